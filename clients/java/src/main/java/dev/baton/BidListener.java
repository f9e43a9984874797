package dev.baton;

/** Answers requests for offers to this agent: see {@link AgentBuilder#onOfferWanted}. */
@FunctionalInterface
public interface BidListener {
    /**
     * Is called for each request for an offer, and for each counter-offer. An exception nacks the message, so that it is
     * redelivered. A redelivery of a message that is answered already, or whose negotiation has closed, is acked without
     * a call.
     */
    BidAnswer onOfferWanted(OfferWanted wanted) throws Exception;
}
