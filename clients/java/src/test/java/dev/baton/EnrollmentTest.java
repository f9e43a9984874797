package dev.baton;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.baton.Envelopes.About;
import dev.baton.v1.AgentCard;
import dev.baton.v1.Info;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** A broker where only operators register agents: by their token, by an invitation, and certificates as proof. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
@Timeout(60)
class EnrollmentTest {
    private static final AgentCard CARD = AgentCard.newBuilder().addAgentTypes("support").build();

    @TempDir
    Path folder;

    private RealBroker broker;

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
    }

    @AfterEach
    void stop() throws Exception {
        broker.close();
    }

    @Test
    void byAnOperatorOrByAnInvitation() throws Exception {
        broker.serve("");
        try (Agent operator = broker.agent("alice").operatorToken(broker.operatorToken()).build();
                Agent bob = broker.agent("bob").build()) {
            assertEquals("alice", operator.register(CARD).getCard().getAgentId());
            var refused = assertThrows(BatonException.class, () -> bob.register(CARD));
            assertTrue(List.of("IDENTITY_MISSING", "PERMISSION_DENIED").contains(refused.reason()), refused.reason());
            var wrong = assertThrows(BatonException.class, () -> bob.register(CARD, "invitation-0000"));
            assertEquals("INVITATION_INVALID", wrong.reason());
            // Without types: these are an operator's to give.
            bob.register(AgentCard.getDefaultInstance(), broker.invite("bob"));
            bob.connect();
            operator.connect();
            operator.send("bob", About.NOTHING, Info.newBuilder().setText("welcome").build());
            bob.poll(Duration.ofSeconds(RealBroker.PATIENCE_SECONDS)).orElseThrow().ack();
        }
    }

    @Test
    void anAgentThatStartsAnewMayChangeItsCard() throws Exception {
        var key = Keys.generate();
        try (Agent bob = broker.agent("bob").key(key).build()) {
            bob.register(CARD);
        }
        try (Agent bob = broker.agent("bob").key(key).capacity(8).build()) {
            assertEquals(8, bob.register(CARD).getCard().getCapacity());
        }
        try (Agent stranger = broker.agent("bob").build()) {
            var refused = assertThrows(BatonException.class, () -> stranger.register(CARD));
            assertEquals("CHALLENGE_FAILED", refused.reason());
        }
    }

    @Test
    void aClientCertificateProvesWhoOneIs() throws Exception {
        Path certificate = folder.resolve("bob.crt");
        Path certificateKey = folder.resolve("bob.key");
        Certificates.make("uri:urn:baton:agent:bob", certificate, certificateKey);
        broker.serve("client_ca = \"" + certificate + "\"");
        try (Agent operator = broker.agent("bob").operatorToken(broker.operatorToken()).build()) {
            operator.register(CARD);
        }
        // Another key than the registered one: the challenge could not be signed.
        try (Agent bob = broker.agent("bob").clientCertificate(certificate, certificateKey).connect()) {
            assertEquals("bob", bob.welcome().getAgentId());
            var refused = assertThrows(
                    BatonException.class, () -> bob.send("alice", About.NOTHING, Info.getDefaultInstance()));
            assertEquals("SIGNATURE_INVALID", refused.reason(), "what it says is still proven by its key alone");
        }
    }
}
