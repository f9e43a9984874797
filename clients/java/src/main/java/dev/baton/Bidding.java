package dev.baton;

import com.google.protobuf.Message;
import dev.baton.v1.BidState;
import dev.baton.v1.Negotiation;
import dev.baton.v1.NegotiationBid;
import dev.baton.v1.NegotiationState;
import dev.baton.v1.TaskOffer;
import dev.baton.v1.TaskRequest;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

/** The answers of this agent to requests for offers and to counter-offers. */
final class Bidding {
    private static final int REMEMBERED_MAX = 1024;

    private final Agent agent;
    private final BidListener listener;
    /** The latest requests, for later counter-offers. */
    private final Map<String, TaskRequest> requests = Collections.synchronizedMap(new LinkedHashMap<>() {
        private static final long serialVersionUID = 1;

        @Override
        protected boolean removeEldestEntry(Map.Entry<String, TaskRequest> eldest) {
            return size() > REMEMBERED_MAX;
        }
    });

    Bidding(Agent agent, BidListener listener) {
        this.agent = agent;
        this.listener = listener;
    }

    /** Whether a message asks this agent for an offer. An offer to this agent in round 0 answers its own request. */
    boolean isFor(Delivery<?> delivery) {
        if (delivery.payload() instanceof TaskOffer offer) {
            String id = delivery.envelope().getCorrelationId();
            return offer.getRound() > 0 && (requests.containsKey(id) || isOfAnother(id));
        }
        return delivery.payload() instanceof TaskRequest;
    }

    /** Answers a message by the listener, unless it is answered already. */
    void answer(Delivery<?> delivery) throws Exception {
        String requesterId = delivery.envelope().getSenderId();
        String id = negotiationIdOf(delivery);
        if (delivery.payload() instanceof TaskRequest request) {
            requests.put(id, request);
        }
        if (delivery.attempt() > 1 && isAnswered(delivery, id)) {
            return;
        }
        TaskOffer counter = delivery.payload() instanceof TaskOffer offer ? offer : null;
        OfferWanted wanted = new OfferWanted(agent, id, requesterId, requests.get(id), counter);
        Message answer = listener.onOfferWanted(wanted).payload();
        if (answer instanceof TaskOffer offer) {
            wanted.offer(offer);
        } else if (answer != null) {
            agent.negotiations().tell(requesterId, id, answer);
        }
    }

    private boolean isOfAnother(String negotiationId) {
        try {
            return !agent.negotiations().get(negotiationId).getRequesterId().equals(agent.id());
        } catch (BatonException e) {
            return false;
        }
    }

    private boolean isAnswered(Delivery<?> delivery, String negotiationId) {
        Negotiation state = agent.negotiations().get(negotiationId);
        if (state.getState() != NegotiationState.NEGOTIATION_STATE_OPEN) {
            return true;
        }
        for (NegotiationBid bid : state.getBidsList()) {
            if (bid.getAgentId().equals(agent.id())) {
                return !isOnTurn(bid, delivery);
            }
        }
        return false;
    }

    private static boolean isOnTurn(NegotiationBid bid, Delivery<?> delivery) {
        if (delivery.payload() instanceof TaskRequest) {
            return bid.getState() == BidState.BID_STATE_ASKED || bid.getState() == BidState.BID_STATE_UNREACHABLE;
        }
        String counterOfferId = delivery.envelope().getMessageId();
        return bid.getState() == BidState.BID_STATE_COUNTERED
                && bid.getCounterOfferId().equals(counterOfferId);
    }

    private static String negotiationIdOf(Delivery<?> delivery) {
        boolean isRequest = delivery.payload() instanceof TaskRequest;
        return isRequest ? delivery.envelope().getMessageId() : delivery.envelope().getCorrelationId();
    }
}
