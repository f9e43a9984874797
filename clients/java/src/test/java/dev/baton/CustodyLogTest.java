package dev.baton;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.protobuf.ByteString;
import dev.baton.v1.AgentCard;
import dev.baton.v1.AgentKey;
import dev.baton.v1.CustodyEntry;
import dev.baton.v1.CustodyEnvelope;
import dev.baton.v1.CustodyLogEntry;
import dev.baton.v1.Envelope;
import dev.baton.v1.Info;
import dev.baton.v1.MessageType;
import dev.baton.v1.Receipt;
import java.security.KeyPair;
import java.time.Clock;
import java.time.Instant;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** A custody log holds exactly the envelopes whose digests its entries have. */
class CustodyLogTest {
    private static final byte[] ZEROS = new byte[32];
    private static final ByteString DIGEST = ByteString.copyFrom(ZEROS);

    private final KeyPair broker = Keys.generate();
    private final KeyPair alice = Keys.generate();
    private final Directory directory = new Directory(
            id -> agentOf(id.equals("alice") ? alice : broker), Map.of(), Map.of(), Clock.systemUTC());
    private final Envelope envelope = signed("hello");

    @Test
    void anEnvelopeWithItsDigestIsValid() {
        CustodyLogEntry entry = entryOf(accepted(MessageType.MESSAGE_TYPE_INFO, envelope), envelope);
        assertArrayEquals(entry.getCustodyHash().toByteArray(), CustodyLog.check(entry, 1, ZEROS, directory));
    }

    @Test
    void anotherEnvelopeOfTheSameAgentIsRefused() {
        assertBroken(entryOf(accepted(MessageType.MESSAGE_TYPE_INFO, envelope), signed("goodbye")));
    }

    @Test
    void onlyAContextMayBeLeftOut() {
        MessageType context = MessageType.MESSAGE_TYPE_TASK_CONTEXT_TRANSFER;
        CustodyEnvelope hidden = accepted(context, envelope).toBuilder().setContextDigest(DIGEST).build();
        CustodyLog.check(entryOf(hidden, null), 1, ZEROS, directory);
        assertBroken(entryOf(accepted(context, envelope), null));
        assertBroken(entryOf(accepted(MessageType.MESSAGE_TYPE_INFO, envelope), null));
    }

    @Test
    void anAcceptedEnvelopeHasItsOwnReceipt() {
        CustodyLogEntry entry = entryOf(accepted(MessageType.MESSAGE_TYPE_INFO, envelope), envelope);
        assertBroken(entry.toBuilder().clearReceipt().build());
        Receipt other = entry.getReceipt().toBuilder().setMessageId("other").build();
        assertBroken(entry.toBuilder().setReceipt(signed(other)).build());
    }

    private void assertBroken(CustodyLogEntry entry) {
        var broken = assertThrows(
                VerificationException.class, () -> CustodyLog.check(entry, 1, ZEROS, directory));
        assertEquals("CUSTODY_INVALID", broken.reason());
    }

    private Envelope signed(String text) {
        Info info = Info.newBuilder().setText(text).build();
        Envelope made = Envelopes.make(info, "alice", "bob", Envelopes.About.NOTHING, Instant.now());
        return Signing.sign(made, "k1", alice);
    }

    private static CustodyEnvelope accepted(MessageType type, Envelope envelope) {
        return CustodyEnvelope.newBuilder()
                .setMessageId(envelope.getMessageId())
                .setMessageType(type)
                .setContentDigest(ByteString.copyFrom(Signing.contentDigest(envelope)))
                .build();
    }

    private CustodyLogEntry entryOf(CustodyEnvelope accepted, Envelope envelope) {
        ByteString bytes =
                CustodyEntry.newBuilder().setNumber(1).setAccepted(accepted).build().toByteString();
        ByteString head = ByteString.copyFrom(Signing.custodyHash(ZEROS, bytes.toByteArray()));
        Receipt receipt = Receipt.newBuilder()
                .setMessageId(accepted.getMessageId())
                .setCustodyHash(head)
                .setKeyId("k1")
                .build();
        CustodyLogEntry.Builder entry = CustodyLogEntry.newBuilder()
                .setEntryBytes(bytes)
                .setCustodyHash(head)
                .setReceipt(signed(receipt));
        return envelope == null ? entry.build() : entry.setEnvelope(envelope).build();
    }

    private Receipt signed(Receipt receipt) {
        byte[] input = Signing.pae("application/vnd.baton.receipt.v1", Signing.receiptBody(receipt));
        byte[] signature = Keys.sign(broker.getPrivate(), input);
        return receipt.toBuilder().setSignature(ByteString.copyFrom(signature)).build();
    }

    private static dev.baton.v1.Agent agentOf(KeyPair key) {
        AgentKey agentKey = AgentKey.newBuilder()
                .setKeyId("k1")
                .setPublicKey(ByteString.copyFrom(Keys.publicBytes(key)))
                .build();
        return dev.baton.v1.Agent.newBuilder().setCard(AgentCard.newBuilder().addKeys(agentKey)).build();
    }
}
