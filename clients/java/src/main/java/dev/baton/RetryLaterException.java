package dev.baton;

import java.time.Duration;

/** To be thrown by a listener: not now. The message is delivered again after the time that is given. */
public final class RetryLaterException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final Duration retryAfter;

    /** Says when to try again, and why not now. */
    public RetryLaterException(Duration retryAfter, String message) {
        super(message);
        this.retryAfter = retryAfter;
    }

    /** When to try again. */
    public Duration retryAfter() {
        return retryAfter;
    }
}
