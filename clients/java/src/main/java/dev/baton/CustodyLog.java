package dev.baton;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import dev.baton.v1.CustodyEntry;
import dev.baton.v1.CustodyEnvelope;
import dev.baton.v1.CustodyLogEntry;
import dev.baton.v1.GetCustodyLogRequest;
import dev.baton.v1.GetCustodyLogResponse;
import dev.baton.v1.MessageType;
import dev.baton.v1.Receipt;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * A verified custody log of a task: every entry follows from the entry before and has the digest of its envelope, and
 * the broker's receipts and the envelopes are signed. Of a context that this agent may not read the log has only the
 * digest, and the receipt is what is verified.
 *
 * @param entries all entries, oldest first
 * @param hash the head of the chain, 32 bytes; equal to the hash in the task and in its latest receipt
 */
public record CustodyLog(List<CustodyLogEntry> entries, byte[] hash) {
    private static final int PAGE_SIZE = 200;
    private static final int HASH_BYTES = 32;

    /** Reads and verifies the whole log. */
    static CustodyLog read(Connection connection, String taskId, Directory directory) {
        List<CustodyLogEntry> entries = new ArrayList<>();
        byte[] head = new byte[32];
        long length;
        do {
            GetCustodyLogRequest request = GetCustodyLogRequest.newBuilder()
                    .setTaskId(taskId)
                    .setAfterNumber(entries.size())
                    .setPageSize(PAGE_SIZE)
                    .setIncludeEnvelopes(true)
                    .build();
            GetCustodyLogResponse page = connection.tasks(stub -> stub.getCustodyLog(request));
            length = page.getCustodyLength();
            if (page.getEntriesCount() == 0 && entries.size() < length) {
                throw broken("entries after " + entries.size() + " are missing");
            }
            for (CustodyLogEntry entry : page.getEntriesList()) {
                head = check(entry, entries.size() + 1L, head, directory);
                entries.add(entry);
            }
        } while (entries.size() < length);
        return new CustodyLog(List.copyOf(entries), head);
    }

    static byte[] check(CustodyLogEntry found, long number, byte[] previous, Directory directory) {
        byte[] bytes = found.getEntryBytes().toByteArray();
        byte[] head = Signing.custodyHash(previous, bytes);
        CustodyEntry entry = parse(bytes);
        if (!isHash(head, found.getCustodyHash()) || entry.getNumber() != number) {
            throw broken("entry " + number + " does not follow from the one before");
        }
        if (entry.hasAccepted()) {
            checkAccepted(found, entry.getAccepted(), head, directory);
        }
        return head;
    }

    private static void checkAccepted(
            CustodyLogEntry found, CustodyEnvelope accepted, byte[] head, Directory directory) {
        Receipt receipt = found.getReceipt();
        String id = accepted.getMessageId();
        if (!receipt.getMessageId().equals(id) || !isHash(head, receipt.getCustodyHash())) {
            throw broken("the receipt of message " + id + " is for another message or head");
        }
        Signing.verifyReceipt(receipt, directory.key(Agent.BROKER_ID, receipt.getKeyId()));
        if (!found.hasEnvelope() && isHidden(accepted)) {
            return;
        }
        if (!isHash(Signing.contentDigest(found.getEnvelope()), accepted.getContentDigest())) {
            throw broken("the envelope of message " + id + " is another one");
        }
        directory.verify(found.getEnvelope());
    }

    /** Whether the log may leave the envelope out: it is a context, and the entry has its digest. */
    private static boolean isHidden(CustodyEnvelope accepted) {
        MessageType type = accepted.getMessageType();
        boolean isContext = type == MessageType.MESSAGE_TYPE_TASK_CONTEXT_TRANSFER
                || type == MessageType.MESSAGE_TYPE_CONTEXT_CHECKPOINT;
        return isContext && accepted.getContextDigest().size() == HASH_BYTES;
    }

    private static boolean isHash(byte[] hash, ByteString found) {
        return Arrays.equals(hash, found.toByteArray());
    }

    private static CustodyEntry parse(byte[] entry) {
        try {
            return CustodyEntry.parseFrom(entry);
        } catch (InvalidProtocolBufferException e) {
            throw broken("an entry does not parse");
        }
    }

    private static VerificationException broken(String message) {
        return new VerificationException("CUSTODY_INVALID", message);
    }
}
