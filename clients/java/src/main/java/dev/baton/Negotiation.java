package dev.baton;

import dev.baton.v1.BidState;
import dev.baton.v1.ContextSection;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.NegotiationBid;
import dev.baton.v1.NegotiationClosed;
import dev.baton.v1.NegotiationState;
import dev.baton.v1.Receipt;
import dev.baton.v1.TaskAccept;
import dev.baton.v1.TaskOffer;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * A request of this agent for offers of a piece of work. {@link Negotiations#begin} and {@link Negotiations#resume}
 * return it. It takes its mail until {@link #close}; the negotiation goes on at the broker.
 *
 * <pre>{@code
 * try (Negotiation negotiation = alice.negotiations().begin("all:analyst", about, request)) {
 *     for (Optional<Bid> bid = negotiation.next(); bid.isPresent(); bid = negotiation.next()) {
 *         bids.add(bid.get());
 *     }
 *     negotiation.handOver(best(bids), terms, context);
 * }
 * }</pre>
 */
public final class Negotiation implements AutoCloseable {
    private static final Duration AGAIN = Duration.ofMillis(100);
    private static final Duration LOOK = Duration.ofMinutes(1);

    private final Agent agent;
    private final Negotiations negotiations;
    private final Dispatcher dispatcher;
    private final Conversation mail;
    private final String id;
    private final Envelopes.About about;
    private final Set<String> seen = new HashSet<>();
    private final Deque<Bid> heard = new ArrayDeque<>();
    private dev.baton.v1.Negotiation closed;

    Negotiation(
            Agent agent,
            Negotiations negotiations,
            Dispatcher dispatcher,
            Conversation mail,
            String id,
            Envelopes.About about) {
        this.agent = agent;
        this.negotiations = negotiations;
        this.dispatcher = dispatcher;
        this.mail = mail;
        this.id = id;
        this.about = about;
    }

    /** Returns the id, the message_id of the TaskRequest. */
    public String id() {
        return id;
    }

    /** Returns the present state of the negotiation. */
    public dev.baton.v1.Negotiation state() {
        return negotiations.get(id);
    }

    /**
     * Waits for the next offer, also one that replaces an earlier one; returns empty when no further offers are taken.
     * Throws {@link BatonException} at the agent's end.
     */
    public synchronized Optional<Bid> next() throws InterruptedException {
        while (heard.isEmpty() && closed == null) {
            hear();
        }
        return Optional.ofNullable(heard.poll());
    }

    /**
     * Waits until no further offers are taken. Returns the negotiation: DECIDING if this agent is to decide, AWARDED or
     * SETTLED after an award, FAILED with the reason, or CANCELLED. {@link #next} returns the offers before it later too.
     */
    public synchronized dev.baton.v1.Negotiation closed() throws InterruptedException {
        while (closed == null) {
            hear();
        }
        return closed;
    }

    /** Waits for the final state: an agent has the work (SETTLED), or none has it (FAILED, CANCELLED). */
    public dev.baton.v1.Negotiation ended() throws InterruptedException {
        dev.baton.v1.Negotiation last = dev.baton.v1.Negotiation.getDefaultInstance();
        try (Watch<dev.baton.v1.Negotiation> watch = negotiations.watch(id)) {
            while (!watch.isOver()) {
                last = watch.next(LOOK).orElse(last);
            }
        }
        return last;
    }

    /**
     * Awards the work to an offer, as mail: no task moves. The details have at most 4096 bytes. Throws
     * {@link BatonException}: OFFER_NOT_STANDING if the bidder has replaced or withdrawn the offer, NEGOTIATION_CLOSED
     * after the time for the decision.
     */
    public Receipt award(Bid bid, String details) throws InterruptedException {
        TaskAccept award = TaskAccept.newBuilder()
                .setOfferId(bid.offerId())
                .setDetails(details)
                .build();
        Receipt receipt = negotiations.tell(bid.agentId(), id, award);
        mail.wake();
        return receipt;
    }

    /**
     * Awards the task of the negotiation to an offer, and hands it over as {@link Agent#handOver}: to the bidder, then to
     * the fallback candidates of the terms. Throws as that call and {@link #award}.
     */
    public HandedOver handOver(Bid bid, HandoffRequest terms, List<ContextSection> context)
            throws InterruptedException {
        return handOver(bid, terms, context, null);
    }

    /**
     * As {@link #handOver(Bid, HandoffRequest, List)}, with a limit for the whole call: see {@link Agent#handOver(String,
     * String, long, HandoffRequest, List, Duration)}. A null limit stands for none.
     */
    public HandedOver handOver(Bid bid, HandoffRequest terms, List<ContextSection> context, Duration limit)
            throws InterruptedException {
        Handover.checkContext(context);
        Tenure tenure = agent.workload().of(about.taskId(), about.epoch());
        TaskAccept award = TaskAccept.newBuilder()
                .setOfferId(bid.offerId())
                .setHandoff(Parents.named(agent, about, terms))
                .build();
        Envelope envelope = agent.envelope(
                bid.agentId(), new Envelopes.About(about.taskId(), about.epoch(), id), award);
        try {
            return agent.handOver(tenure, envelope, context, limit == null ? Deadline.none() : Deadline.in(limit));
        } finally {
            mail.wake();
        }
    }

    /**
     * Waits for the broker's award by the rule of the request, sends the context to the agent that accepts, and waits for
     * the end of the handoff. Throws {@link NegotiationFailedException} if the negotiation ends without a handoff,
     * NO_OFFER if no offer counts, and otherwise as {@link Agent#handOver}.
     */
    public HandedOver handOverToWinner(List<ContextSection> context) throws InterruptedException {
        Handover.checkContext(context);
        dev.baton.v1.Negotiation end = closed();
        if (end.getHandoffId().isEmpty()) {
            boolean isFailed = end.getState() == NegotiationState.NEGOTIATION_STATE_FAILED;
            String reason = isFailed
                    ? Handover.codeOf(end.getErrorCode(), end.getErrorCodeValue())
                    : end.getState().name().replace("NEGOTIATION_STATE_", "");
            String text = isFailed ? end.getErrorMessage() : "the broker has opened no handoff";
            throw new NegotiationFailedException(id, reason, text);
        }
        return agent.resumeHandOver(end.getHandoffId(), context);
    }

    /**
     * Cancels the negotiation, and returns it. The bidders are told. Throws {@link BatonException}, NEGOTIATION_CLOSED,
     * after an award or the end.
     */
    public dev.baton.v1.Negotiation cancel() {
        dev.baton.v1.Negotiation cancelled = negotiations.cancel(id);
        mail.wake();
        return cancelled;
    }

    /** Ends the reading of offers. The negotiation goes on at the broker. */
    @Override
    public void close() {
        dispatcher.closeNegotiation(id, mail);
    }

    /** Takes over the offers that stand, for a negotiation that an earlier process began. */
    synchronized void resumeFrom(dev.baton.v1.Negotiation state) {
        hearStanding(state);
        if (state.getState() != NegotiationState.NEGOTIATION_STATE_OPEN) {
            closed = state;
        }
    }

    /** Takes one message, or looks at the negotiation after a silence: another process may have had the mail. */
    private void hear() throws InterruptedException {
        Delivery<?> delivery = mail.next(agent.lookInterval());
        if (delivery != null) {
            String agentId = delivery.envelope().getSenderId();
            if (delivery.payload() instanceof TaskOffer offer && !offer.getWithdrawn()) {
                offered(new Bid(negotiations, id, agentId, delivery.envelope().getMessageId(), offer));
            }
            delivery.ackForSure();
        }
        boolean isNews = delivery == null
                || delivery.payload() instanceof NegotiationClosed
                || delivery.payload() instanceof ErrorNotification;
        if (isNews) {
            look();
        }
    }

    private void look() throws InterruptedException {
        try {
            dev.baton.v1.Negotiation state = Connection.interruptibly(this::state);
            if (state.getState() != NegotiationState.NEGOTIATION_STATE_OPEN) {
                hearStanding(state);
                closed = state;
            }
        } catch (BatonException e) {
            if (!e.isPassing()) {
                throw e;
            }
            mail.wake();
            TimeUnit.NANOSECONDS.sleep(AGAIN.toNanos());
        }
    }

    private void offered(Bid bid) {
        if (seen.add(bid.offerId())) {
            heard.add(bid);
        }
    }

    /** Hears the offers that stand, without their conditions, unless they were heard before. */
    private void hearStanding(dev.baton.v1.Negotiation state) {
        for (NegotiationBid bid : state.getBidsList()) {
            if (bid.getState() != BidState.BID_STATE_OFFERED && bid.getState() != BidState.BID_STATE_COUNTERED) {
                continue;
            }
            TaskOffer.Builder terms = TaskOffer.newBuilder()
                    .setConfidence(bid.getConfidence())
                    .setCost(bid.getCost())
                    .setRound(bid.getRound());
            if (bid.hasEstimatedDuration()) {
                terms.setEstimatedDuration(bid.getEstimatedDuration());
            }
            if (bid.hasValidUntil()) {
                terms.setValidUntil(bid.getValidUntil());
            }
            offered(new Bid(negotiations, id, bid.getAgentId(), bid.getOfferId(), terms.build()));
        }
    }
}
