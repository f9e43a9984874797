package dev.baton;

/** Accepts or rejects the handoffs that are offered to an agent. */
@FunctionalInterface
public interface HandoffListener {
    /**
     * Handles one offer, on its own thread. It is called again for the same offer after an exception or a stop of the
     * agent before the handoff's completion. On return it must have rejected the offer, or completed or failed the
     * takeover. An earlier exception becomes a nack, and the broker redelivers the offer. After the completion the task
     * is this agent's, and an exception is only logged.
     */
    void onHandoff(Offer offer) throws Exception;
}
