package dev.baton;

import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.baton.v1.Schema;
import dev.baton.v1.SchemaViolation;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** Schemas, and data that is checked against them. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class SchemasTest {
    private static final String TEXT = "{\"type\":\"object\",\"properties\":{\"router\":{\"type\":\"integer\"}}}";

    @TempDir
    Path folder;

    @Test
    void aSchemaIsRegisteredOnceAndChecksData() throws Exception {
        try (RealBroker broker = new RealBroker(folder).start();
                Agent alice = begin(broker.agent("alice"))) {
            Schemas schemas = alice.schemas();
            Schema first = schemas.register("ticket", "1", TEXT);
            broker.kill();
            broker.start();
            assertEquals(first.getSha256(), schemas.register("ticket", "1", TEXT).getSha256());
            assertRefused("SCHEMA_EXISTS", () -> schemas.register("ticket", "1", "true"));
            assertRefused("SCHEMA_REJECTED", () -> schemas.register("ticket", "2", "{\"type\":7}"));
            schemas.register("ticket", "2", "true");
            assertEquals(TEXT, schemas.get("ticket", "1").getSchemaJson());
            assertRefused("SCHEMA_UNKNOWN", () -> schemas.get("ticket", "3"));
            List<String> versions = schemas.list("ticket").stream().map(Schema::getSchemaVersion).toList();
            assertEquals(List.of("2", "1"), versions);
            List<SchemaViolation> wrong = schemas.check("ticket", "1", "{\"router\":\"three\"}");
            assertEquals(List.of("/router"), wrong.stream().map(SchemaViolation::getJsonPointer).toList());
            assertEquals(List.of(), schemas.check("ticket", "1", "{\"router\":3}"));
            assertRefused("FIELD_INVALID", () -> schemas.check("ticket", "1", "{"));
        }
    }

    private static void assertRefused(String reason, Callable<?> call) {
        assertEquals(reason, assertThrows(BatonException.class, call::call).reason());
    }
}
