package dev.baton;

/** Takes or rejects what is offered to an agent. */
@FunctionalInterface
public interface HandoffListener {
    /**
     * Called on a thread of its own for each offer, and again where it threw or the agent was stopped before the handoff
     * was completed. When it returns it must have rejected the offer, or completed or failed the takeover; what it throws
     * before that becomes a nack, and the broker offers again. After the completion the task is this agent's, and what is
     * thrown is only logged.
     */
    void onHandoff(Offer offer) throws Exception;
}
