package dev.baton;

import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.baton.v1.Registration;
import dev.baton.v1.RegistrationState;
import dev.baton.v1.Registry;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** The owners of shared names. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class RegistrationsTest {
    private static final Registry SCHEMAS = Registry.REGISTRY_SCHEMAS;

    @TempDir
    Path folder;

    @Test
    void aNameIsHandedOverRetiredAndRemoved() throws Exception {
        try (RealBroker broker = new RealBroker(folder).start();
                Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob"));
                Agent olga = begin(broker.agent("olga").operatorToken(broker.operatorToken()))) {
            alice.schemas().register("ticket", "1", "{\"maxLength\":1}");
            alice.schemas().register("ticket", "2", "{\"maxLength\":2}");
            alice.schemas().register("other", "1", "true");
            Registration first = alice.registrations().get(SCHEMAS, "ticket");
            assertEquals(alice.id(), first.getOwnerId());
            assertEquals(2, first.getEntries());
            List<String> names = bob.registrations().list(SCHEMAS, alice.id()).stream()
                    .map(Registration::getName)
                    .sorted()
                    .toList();
            assertEquals(List.of("other", "ticket"), names);

            // Another agent cannot take a name that it was not offered.
            assertRefused("PERMISSION_DENIED", () -> bob.registrations().transfer(SCHEMAS, "ticket", bob.id(), ""));
            Registration offered = alice.registrations().transfer(SCHEMAS, "ticket", bob.id(), first.getEtag());
            assertEquals(List.of(alice.id(), bob.id()), List.of(offered.getOwnerId(), offered.getOfferedToId()));
            assertRefused(
                    "CONFLICT", () -> alice.registrations().transfer(SCHEMAS, "ticket", alice.id(), first.getEtag()));
            Registration taken = bob.registrations().transfer(SCHEMAS, "ticket", bob.id(), "");
            assertEquals(bob.id(), taken.getOwnerId());
            // An operator hands a name over at once.
            Registration moved = olga.registrations().transfer(SCHEMAS, "other", bob.id(), "");
            assertEquals(bob.id(), moved.getOwnerId());

            assertRefused("PERMISSION_DENIED", () -> alice.registrations().retire(SCHEMAS, "ticket", ""));
            Registration retired = bob.registrations().retire(SCHEMAS, "ticket", "");
            assertEquals(RegistrationState.REGISTRATION_STATE_RETIRED, retired.getState());
            Registration left = bob.registrations().remove(SCHEMAS, "ticket", "1", retired.getEtag());
            assertEquals(1, left.getEntries());
            Registration gone = bob.registrations().remove(SCHEMAS, "ticket", "2", "");
            assertEquals(RegistrationState.REGISTRATION_STATE_REMOVED, gone.getState());
            assertRefused("SCHEMA_UNKNOWN", () -> alice.registrations().get(SCHEMAS, "unknown"));
        }
    }

    private static void assertRefused(String reason, Callable<?> call) {
        assertEquals(reason, assertThrows(BatonException.class, call::call).reason());
    }
}
