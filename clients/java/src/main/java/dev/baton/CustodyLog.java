package dev.baton;

import com.google.protobuf.InvalidProtocolBufferException;
import dev.baton.v1.CustodyEntry;
import dev.baton.v1.CustodyLogEntry;
import dev.baton.v1.GetCustodyLogRequest;
import dev.baton.v1.GetCustodyLogResponse;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * A verified custody log of a task: every entry follows from the entry before, and the broker's receipts and the
 * envelopes in it are signed.
 *
 * @param entries all entries, oldest first
 * @param hash the head of the chain, 32 bytes; equal to the hash in the task and in its latest receipt
 */
public record CustodyLog(List<CustodyLogEntry> entries, byte[] hash) {
    private static final int PAGE_SIZE = 200;

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

    private static byte[] check(CustodyLogEntry entry, long number, byte[] previous, Directory directory) {
        byte[] bytes = entry.getEntryBytes().toByteArray();
        byte[] head = Signing.custodyHash(previous, bytes);
        if (!Arrays.equals(head, entry.getCustodyHash().toByteArray()) || numberOf(bytes) != number) {
            throw broken("entry " + number + " does not follow from the one before");
        }
        if (entry.hasReceipt()) {
            Signing.verifyReceipt(
                    entry.getReceipt(),
                    directory.key(Agent.BROKER_ID, entry.getReceipt().getKeyId()));
            if (!Arrays.equals(head, entry.getReceipt().getCustodyHash().toByteArray())) {
                throw broken("the receipt of entry " + number + " is for another head");
            }
        }
        if (entry.hasEnvelope()) {
            directory.verify(entry.getEnvelope());
        }
        return head;
    }

    private static long numberOf(byte[] entry) {
        try {
            return CustodyEntry.parseFrom(entry).getNumber();
        } catch (InvalidProtocolBufferException e) {
            throw broken("an entry does not parse");
        }
    }

    private static VerificationException broken(String message) {
        return new VerificationException("CUSTODY_BROKEN", message);
    }
}
