package dev.baton;

import dev.baton.v1.Receipt;
import dev.baton.v1.TaskOffer;
import dev.baton.v1.TaskRequest;
import java.util.Optional;

/** A request for an offer of this agent, or a counter-offer to the offer that it has made. */
public final class OfferWanted {
    private final Agent agent;
    private final String negotiationId;
    private final String requesterId;
    private final TaskRequest request;
    private final TaskOffer counter;

    OfferWanted(Agent agent, String negotiationId, String requesterId, TaskRequest request, TaskOffer counter) {
        this.agent = agent;
        this.negotiationId = negotiationId;
        this.requesterId = requesterId;
        this.request = request;
        this.counter = counter;
    }

    /** Returns the negotiation's id. */
    public String negotiationId() {
        return negotiationId;
    }

    /** Returns the agent that asks. */
    public String requesterId() {
        return requesterId;
    }

    /** Returns the request; empty for a counter-offer whose request an earlier process of this agent received. */
    public Optional<TaskRequest> request() {
        return Optional.ofNullable(request);
    }

    /** Returns the requester's counter-offer; empty for the request itself. */
    public Optional<TaskOffer> counter() {
        return Optional.ofNullable(counter);
    }

    /** Returns the round of the answer, 0 to 3. */
    public int round() {
        return counter == null ? 0 : counter.getRound();
    }

    /**
     * Makes an offer, in place of the one before, and sets its round. Throws {@link BatonException}: NEGOTIATION_CLOSED
     * after the close, OFFER_NOT_STANDING if this agent is not on turn.
     */
    public Receipt offer(TaskOffer offer) throws InterruptedException {
        TaskOffer ofRound = offer.toBuilder().setRound(round()).build();
        return agent.negotiations().tell(requesterId, negotiationId, ofRound);
    }

    /** Withdraws this agent's offer, which ends its part. Throws as {@link #offer}. */
    public Receipt withdraw() throws InterruptedException {
        return offer(TaskOffer.newBuilder().setWithdrawn(true).build());
    }
}
