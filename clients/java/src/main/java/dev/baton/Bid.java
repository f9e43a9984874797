package dev.baton;

import dev.baton.v1.Receipt;
import dev.baton.v1.RejectReason;
import dev.baton.v1.TaskDecline;
import dev.baton.v1.TaskOffer;

/**
 * An offer of a bidder. It stands until the bidder replaces or withdraws it, or one side declines.
 * {@link Negotiation#next} returns it.
 */
public final class Bid {
    private final Negotiations negotiations;
    private final String negotiationId;
    private final String agentId;
    private final String offerId;
    private final TaskOffer terms;

    Bid(Negotiations negotiations, String negotiationId, String agentId, String offerId, TaskOffer terms) {
        this.negotiations = negotiations;
        this.negotiationId = negotiationId;
        this.agentId = agentId;
        this.offerId = offerId;
        this.terms = terms;
    }

    /** Returns the bidder. */
    public String agentId() {
        return agentId;
    }

    /** Returns the message_id of the offer. */
    public String offerId() {
        return offerId;
    }

    /** Returns the terms. The conditions are empty if an earlier process of this agent has read the offer. */
    public TaskOffer terms() {
        return terms;
    }

    /**
     * Makes a counter-offer, which begins the next round, and sets its round. The bidder's answer is a further bid.
     * Throws {@link BatonException}: ROUND_LIMIT after three rounds, OFFER_NOT_STANDING while the bidder is on turn,
     * NEGOTIATION_CLOSED.
     */
    public Receipt counter(TaskOffer counter) throws InterruptedException {
        TaskOffer ofRound = counter.toBuilder().setRound(terms.getRound() + 1).build();
        return negotiations.tell(agentId, negotiationId, ofRound);
    }

    /** Declines the offer, which ends the bidder's part. The text has at most 4096 bytes. Throws as {@link #counter}. */
    public Receipt decline(RejectReason reason, String text) throws InterruptedException {
        TaskDecline decline =
                TaskDecline.newBuilder().setReason(reason).setReasonText(text).build();
        return negotiations.tell(agentId, negotiationId, decline);
    }
}
