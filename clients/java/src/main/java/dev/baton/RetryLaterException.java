package dev.baton;

import java.time.Duration;

/** Thrown by a listener that cannot handle the message now. It is redelivered after the given time. */
public final class RetryLaterException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final Duration retryAfter;

    /** Takes the redelivery delay and the explanation. */
    public RetryLaterException(Duration retryAfter, String message) {
        super(message);
        this.retryAfter = retryAfter;
    }

    /** Returns the redelivery delay. */
    public Duration retryAfter() {
        return retryAfter;
    }
}
