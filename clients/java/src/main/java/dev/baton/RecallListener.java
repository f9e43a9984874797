package dev.baton;

/** Learns of a task that was taken from this agent: see {@link AgentBuilder#onRecalled}. */
@FunctionalInterface
public interface RecallListener {
    /** Is called when the agent no longer owns the task. An exception nacks the notice, so that it is redelivered. */
    void onRecalled(Recalled recalled) throws Exception;
}
