package dev.baton;

import dev.baton.v1.DeadLetter;
import dev.baton.v1.DeadLetterFilter;
import dev.baton.v1.DiscardDeadLetterRequest;
import dev.baton.v1.GetDeadLetterRequest;
import dev.baton.v1.ListDeadLettersRequest;
import dev.baton.v1.ListDeadLettersResponse;
import dev.baton.v1.RedriveDeadLetterRequest;
import java.util.ArrayList;
import java.util.List;

/**
 * Messages that could not be delivered or applied. An agent reads those that it sent or was to receive; an operator reads
 * all, and decides. {@link Agent#deadLetters} returns it.
 */
public final class DeadLetters {
    private static final int PAGE_SIZE = 500;

    private final Connection connection;

    DeadLetters(Connection connection) {
        this.connection = connection;
    }

    /** Returns the dead letters that match, newest first, without their envelopes. Without states: those in PARKED. */
    public List<DeadLetter> list(DeadLetterFilter filter) {
        List<DeadLetter> found = new ArrayList<>();
        ListDeadLettersRequest.Builder request =
                ListDeadLettersRequest.newBuilder().setPageSize(PAGE_SIZE).setFilter(filter);
        do {
            ListDeadLettersRequest asked = request.build();
            ListDeadLettersResponse page = connection.deadLetters(stub -> stub.listDeadLetters(asked));
            found.addAll(page.getDeadLettersList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return found;
    }

    /** Returns a dead letter with its envelope. Throws {@link BatonException}: DEAD_LETTER_UNKNOWN, PERMISSION_DENIED. */
    public DeadLetter get(String deadLetterId) {
        GetDeadLetterRequest request =
                GetDeadLetterRequest.newBuilder().setDeadLetterId(deadLetterId).build();
        return connection.deadLetters(stub -> stub.getDeadLetter(request)).getDeadLetter();
    }

    /**
     * Puts a message on its way again: to this agent, or to its original receiver if the id is empty. A handoff request
     * starts a new handoff. Returns the dead letter, REDRIVEN. By default for operators.
     */
    public DeadLetter redrive(String deadLetterId, String toAgentId) {
        RedriveDeadLetterRequest request = RedriveDeadLetterRequest.newBuilder()
                .setDeadLetterId(deadLetterId)
                .setToAgentId(toAgentId)
                .build();
        return connection.deadLetters(stub -> stub.redriveDeadLetter(request)).getDeadLetter();
    }

    /**
     * Gives a message up for good, for a reason of at most 4096 bytes. Returns the dead letter, DISCARDED. By default for
     * operators.
     */
    public DeadLetter discard(String deadLetterId, String reason) {
        DiscardDeadLetterRequest request = DiscardDeadLetterRequest.newBuilder()
                .setDeadLetterId(deadLetterId)
                .setReasonText(reason)
                .build();
        return connection.deadLetters(stub -> stub.discardDeadLetter(request)).getDeadLetter();
    }
}
