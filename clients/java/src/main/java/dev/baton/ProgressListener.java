package dev.baton;

/** Gets the status updates of a lent task while the call that lent it waits. */
@FunctionalInterface
public interface ProgressListener {
    /** Called for each status update, in order, by a thread of the agent's. An exception is logged. */
    void onProgress(Progress progress);
}
