package dev.baton;

import com.google.protobuf.Message;
import dev.baton.v1.CancelNegotiationRequest;
import dev.baton.v1.Envelope;
import dev.baton.v1.GetNegotiationRequest;
import dev.baton.v1.ListNegotiationsRequest;
import dev.baton.v1.ListNegotiationsResponse;
import dev.baton.v1.NegotiationClosed;
import dev.baton.v1.NegotiationState;
import dev.baton.v1.Receipt;
import dev.baton.v1.TaskRequest;
import dev.baton.v1.WatchNegotiationRequest;
import io.grpc.Status;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Requests for offers, of this agent and those that it bids in. {@link Agent#negotiations} returns it. */
public final class Negotiations {
    private static final int PAGE_SIZE = 200;
    private static final Set<NegotiationState> FINAL = EnumSet.of(
            NegotiationState.NEGOTIATION_STATE_SETTLED,
            NegotiationState.NEGOTIATION_STATE_FAILED,
            NegotiationState.NEGOTIATION_STATE_CANCELLED);

    private final Agent agent;
    private final Connection connection;
    private final Dispatcher dispatcher;

    Negotiations(Agent agent, Connection connection, Dispatcher dispatcher) {
        this.agent = agent;
        this.connection = connection;
        this.dispatcher = dispatcher;
    }

    /**
     * Asks agents for offers: one agent, {@code type:NAME} for one agent of the type, or {@code all:NAME} for all of
     * them. With a task, {@code about} names it and its epoch at this agent, and an award moves it. Throws
     * {@link BatonException} if the broker refuses the request: RECEIVER_UNKNOWN if no agent can be asked.
     */
    public Negotiation begin(String receiverId, Envelopes.About about, TaskRequest request)
            throws InterruptedException {
        boolean hasTerms = request.hasHandoff() && !about.taskId().isEmpty();
        TaskRequest asked = hasTerms
                ? request.toBuilder().setHandoff(Parents.named(agent, about, request.getHandoff())).build()
                : request;
        Envelope envelope = agent.envelope(receiverId, about, asked);
        // Opened before the request is sent, for an offer may arrive before the receipt.
        Negotiation negotiation = open(envelope.getMessageId(), about);
        try {
            agent.sendOwn(envelope);
            return negotiation;
        } catch (RuntimeException | InterruptedException e) {
            negotiation.close();
            throw e;
        }
    }

    /**
     * Continues a negotiation that an earlier process of this agent began: the offers that stand are heard again. The
     * epoch is that of the negotiation's task at this agent, 0 without a task. Throws {@link BatonException}: NOT_ASKED
     * if another agent asked for the offers, NEGOTIATION_UNKNOWN or PERMISSION_DENIED.
     */
    public Negotiation resume(String negotiationId, long epoch) {
        Conversation mail = dispatcher.negotiation(negotiationId);
        try {
            dev.baton.v1.Negotiation state = get(negotiationId);
            if (!state.getRequesterId().equals(agent.id())) {
                String text = "negotiation " + negotiationId + " is one of " + state.getRequesterId();
                throw new BatonException(
                        Status.Code.PERMISSION_DENIED, text, "NOT_ASKED", Map.of(), List.of(), null);
            }
            Envelopes.About about = Envelopes.About.task(state.getTaskId(), epoch);
            Negotiation resumed = new Negotiation(agent, this, dispatcher, mail, negotiationId, about);
            resumed.resumeFrom(state);
            return resumed;
        } catch (RuntimeException e) {
            dispatcher.closeNegotiation(negotiationId, mail);
            throw e;
        }
    }

    /**
     * Returns a negotiation. A bidder sees its own bid alone. Throws {@link BatonException}: NEGOTIATION_UNKNOWN or
     * PERMISSION_DENIED.
     */
    public dev.baton.v1.Negotiation get(String negotiationId) {
        GetNegotiationRequest request =
                GetNegotiationRequest.newBuilder().setNegotiationId(negotiationId).build();
        return connection.negotiations(stub -> stub.getNegotiation(request)).getNegotiation();
    }

    /** Returns the negotiations that match the request's filters, newest first and without their bids. */
    public List<dev.baton.v1.Negotiation> list(ListNegotiationsRequest filters) {
        List<dev.baton.v1.Negotiation> found = new ArrayList<>();
        ListNegotiationsRequest.Builder request = filters.toBuilder().setPageSize(PAGE_SIZE).clearPageToken();
        do {
            ListNegotiationsRequest asked = request.build();
            ListNegotiationsResponse page = connection.negotiations(stub -> stub.listNegotiations(asked));
            found.addAll(page.getNegotiationsList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return found;
    }

    /**
     * Cancels a negotiation of this agent in state OPEN or DECIDING, and returns it. Throws {@link BatonException}:
     * NEGOTIATION_CLOSED after an award or the end, NOT_ASKED for a bidder.
     */
    public dev.baton.v1.Negotiation cancel(String negotiationId) {
        CancelNegotiationRequest request = CancelNegotiationRequest.newBuilder()
                .setNegotiationId(negotiationId)
                .build();
        return connection.negotiations(stub -> stub.cancelNegotiation(request)).getNegotiation();
    }

    /**
     * Follows a negotiation: its present state, then its state after each step, until it is final. After a lost
     * connection the states between are missing.
     */
    public Watch<dev.baton.v1.Negotiation> watch(String negotiationId) {
        WatchNegotiationRequest request =
                WatchNegotiationRequest.newBuilder().setNegotiationId(negotiationId).build();
        return agent.watch("negotiation " + negotiationId, new Watch.Source<>() {
            private dev.baton.v1.Negotiation last = dev.baton.v1.Negotiation.getDefaultInstance();

            @Override
            public Iterator<dev.baton.v1.Negotiation> open() {
                var answers = connection.watchNegotiations(stub -> stub.watchNegotiation(request));
                return new Iterator<>() {
                    @Override
                    public boolean hasNext() {
                        return answers.hasNext();
                    }

                    @Override
                    public dev.baton.v1.Negotiation next() {
                        return answers.next().getNegotiation();
                    }
                };
            }

            @Override
            public boolean take(dev.baton.v1.Negotiation state) {
                boolean isNew = !state.equals(last); // a call that was opened again repeats it
                last = state;
                return isNew;
            }

            @Override
            public boolean isLast(dev.baton.v1.Negotiation state) {
                return FINAL.contains(state.getState());
            }

            @Override
            public boolean isOver() {
                return isLast(last);
            }
        });
    }

    Receipt tell(String receiverId, String negotiationId, Message payload) throws InterruptedException {
        return agent.send(receiverId, new Envelopes.About("", 0, negotiationId), payload);
    }

    /** Whether a negotiation takes offers; also if the broker cannot be asked now. */
    boolean isOpen(String negotiationId) throws InterruptedException {
        try {
            dev.baton.v1.Negotiation state = Connection.interruptibly(() -> get(negotiationId));
            return state.getState() == NegotiationState.NEGOTIATION_STATE_OPEN;
        } catch (BatonException e) {
            return e.isPassing();
        }
    }

    /**
     * Verifies the requester's mandate in an award. Without it the broker could ask in any agent's name. Throws
     * {@link VerificationException}.
     */
    static void checkMandate(Envelope award, NegotiationClosed closed, Directory directory) {
        if (!closed.hasTaskRequest()) {
            return;
        }
        Envelope mandate = closed.getTaskRequest();
        boolean isOfAward = mandate.getMessageId().equals(award.getCorrelationId())
                && mandate.getTaskId().equals(award.getTaskId())
                && mandate.getEpoch() == award.getEpoch();
        if (!isOfAward || !(Envelopes.payloadOf(mandate) instanceof TaskRequest request) || !request.hasHandoff()) {
            throw new VerificationException(
                    "FIELD_INVALID", "the mandate of an award is of another negotiation or task");
        }
        directory.verify(mandate);
    }

    private Negotiation open(String id, Envelopes.About about) {
        return new Negotiation(agent, this, dispatcher, dispatcher.negotiation(id), id, about);
    }
}
