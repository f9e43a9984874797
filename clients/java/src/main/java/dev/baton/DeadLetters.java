package dev.baton;

import dev.baton.v1.DeadLetter;
import dev.baton.v1.DeadLetterFilter;
import dev.baton.v1.DeadLetterServiceGrpc.DeadLetterServiceBlockingStub;
import dev.baton.v1.DiscardDeadLetterRequest;
import dev.baton.v1.ExportDeadLettersRequest;
import dev.baton.v1.GetDeadLetterRequest;
import dev.baton.v1.ListDeadLettersRequest;
import dev.baton.v1.ListDeadLettersResponse;
import dev.baton.v1.RedriveDeadLetterRequest;
import dev.baton.v1.RedriveDeadLettersRequest;
import dev.baton.v1.RedriveDeadLettersResponse;
import io.grpc.Context;
import io.grpc.StatusRuntimeException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Function;

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

    /**
     * Passes on the dead letters that match, oldest first and with their envelopes. Without states: those in PARKED. An
     * exception of {@code each} ends the call and is thrown.
     */
    public void export(DeadLetterFilter filter, Consumer<? super DeadLetter> each) {
        ExportDeadLettersRequest request =
                ExportDeadLettersRequest.newBuilder().setFilter(filter).build();
        read(stub -> stub.exportDeadLetters(request), answer -> each.accept(answer.getDeadLetter()));
    }

    /**
     * Redrives the dead letters in PARKED that match the filter of the request, oldest first, and passes each on with its
     * result; one that could not be redriven has an error, and the call goes on. An exception of {@code each} ends the call
     * and is thrown; the same call again continues with the rest. Throws {@link BatonException}, NOTHING_MATCHES. By
     * default for operators.
     */
    public void redriveAll(RedriveDeadLettersRequest request, Consumer<? super RedriveDeadLettersResponse> each) {
        read(stub -> stub.redriveDeadLetters(request), each);
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

    /** Reads a stream of the broker to its end, and renews an expired token once. */
    private <A> void read(Function<DeadLetterServiceBlockingStub, Iterator<A>> call, Consumer<? super A> each) {
        Context.CancellableContext context = Context.current().withCancellation();
        Context before = context.attach();
        try {
            Iterator<A> answers = connection.readDeadLetters(call);
            for (boolean isFirst = true; ; ) {
                A answer;
                try {
                    if (!answers.hasNext()) {
                        return;
                    }
                    answer = answers.next();
                } catch (StatusRuntimeException e) {
                    BatonException refusal = BatonException.of(e);
                    if (!isFirst || !refusal.reason().equals("TOKEN_INVALID") || !connection.canProve()) {
                        throw refusal;
                    }
                    isFirst = false;
                    connection.prove();
                    answers = connection.readDeadLetters(call);
                    continue;
                }
                isFirst = false;
                each.accept(answer);
            }
        } finally {
            context.detach(before);
            // Ends a call that the reader has left.
            context.cancel(null);
        }
    }
}
