package dev.baton;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import dev.baton.Envelopes.About;
import dev.baton.v1.AgentCard;
import dev.baton.v1.AgentKey;
import dev.baton.v1.Info;
import java.nio.file.Path;
import java.security.KeyPair;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** A broker where only operators register agents: by operator token, by invitation, and by client certificate. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
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
            // Without types, which only an operator may assign.
            bob.register(AgentCard.getDefaultInstance(), broker.invite("bob"));
            bob.connect();
            operator.connect();
            operator.send("bob", About.NOTHING, Info.newBuilder().setText("welcome").build());
            bob.poll(Duration.ofSeconds(RealBroker.PATIENCE_SECONDS)).orElseThrow().ack();
        }
    }

    @Test
    void onlyVouchedKeysAreGoodWhereOperatorsAreKnown() throws Exception {
        KeyPair operator = Keys.generate();
        String token = broker.operatorToken();
        try (Agent alice = RealBroker.begin(broker.agent("alice").operatorToken(token));
                Agent mallory = RealBroker.begin(broker.agent("mallory"));
                Agent bob = RealBroker.begin(broker.agent("bob").operatorKey("ops", Keys.publicBytes(operator)))) {
            AgentKey alices = bob.getAgent("alice").getCard().getKeys(0);
            alice.vouchForKey("alice", "k1", Signing.vouch("alice", alices, "ops", operator, null));
            mallory.send("bob", About.NOTHING, Info.newBuilder().setText("I am not vouched for").build());
            alice.send("bob", About.NOTHING, Info.newBuilder().setText("hello").build());
            Delivery<?> first = bob.poll(Duration.ofSeconds(RealBroker.PATIENCE_SECONDS)).orElseThrow();
            assertEquals("hello", ((Info) first.payload()).getText());
            first.ack();
        }
    }

    @Test
    void keysAreAddedAndRevoked() throws Exception {
        KeyPair added = Keys.generate();
        AgentKey agentKey = AgentKey.newBuilder()
                .setKeyId("k2")
                .setPublicKey(ByteString.copyFrom(Keys.publicBytes(added)))
                .build();
        try (Agent alice = RealBroker.begin(broker.agent("alice"));
                Agent later = broker.agent("alice").key(added).keyId("k2").build()) {
            var known = alice.addKey("alice", agentKey, List.of("k1"), Duration.ofHours(1)).getCard();
            assertTrue(known.getKeys(0).hasNotAfterTime() && !known.getKeys(1).hasNotAfterTime(), known.toString());
            later.connect();
            assertTrue(later.revokeKey("alice", "k1", "rotated").getCard().getKeys(0).hasRevokeTime());
            assertThrows(BatonException.class, () -> alice.send("alice", About.NOTHING, Info.getDefaultInstance()));
        }
    }

    @Test
    void anInvitationIsMade() throws Exception {
        broker.serve("");
        try (Agent operator = broker.agent("ops").operatorToken(broker.operatorToken()).build();
                Agent bob = broker.agent("bob").build()) {
            String invitation = operator.invite("bob", Duration.ofMinutes(1));
            var registered = bob.register(AgentCard.getDefaultInstance(), invitation);
            assertEquals("bob", registered.getCard().getAgentId());
        }
    }

    @Test
    void plaintextIsForThisMachineAlone() throws Exception {
        AgentBuilder afar = broker.agent("alice").server("http://broker.example:22866");
        assertThrows(IllegalArgumentException.class, afar::build);
        broker.serve("allow_plaintext = true");
        try (Agent alice = broker.agent("alice").server("http://" + broker.server).build()) {
            var refused = assertThrows(BatonException.class, () -> alice.register(CARD));
            assertTrue(List.of("IDENTITY_MISSING", "PERMISSION_DENIED").contains(refused.reason()), refused.reason());
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
        // A key other than the registered one: it could not sign the challenge.
        try (Agent bob = broker.agent("bob").clientCertificate(certificate, certificateKey).connect()) {
            assertEquals("bob", bob.welcome().getAgentId());
            var refused = assertThrows(
                    BatonException.class, () -> bob.send("alice", About.NOTHING, Info.getDefaultInstance()));
            assertEquals("SIGNATURE_INVALID", refused.reason(), "what it says is still proven by its key alone");
        }
    }
}
