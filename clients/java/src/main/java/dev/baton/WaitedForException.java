package dev.baton;

/**
 * A call would wait for what another call of this {@link Agent} waits for: a second {@link Agent#delegate} or
 * {@link Agent#handOver} of a task, or a second resumption of a handoff, a negotiation or a question. The second call has
 * sent nothing.
 */
public final class WaitedForException extends IllegalStateException {
    private static final long serialVersionUID = 1;

    WaitedForException(String what) {
        super("another call of this agent waits for it: " + what);
    }
}
