package dev.baton;

import java.time.Duration;
import java.util.concurrent.TimeUnit;

/** The breaks of a write or a read of a blob, and the waits after them. */
final class BlobBreaks {
    private static final Duration BACKOFF_MIN = Duration.ofMillis(100);
    private static final Duration BACKOFF_MAX = Duration.ofSeconds(10);

    private final Connection connection;
    private final Duration patience;
    private Deadline deadline;
    private Duration backoff = BACKOFF_MIN;
    private long furthest;
    private boolean isProven;

    BlobBreaks(Connection connection, Duration patience) {
        this.connection = connection;
        this.patience = patience;
        this.deadline = Deadline.in(patience);
    }

    /** Notes how many bytes are done. Progress renews the patience. */
    void came(long done) {
        if (done > furthest) {
            furthest = done;
            deadline = Deadline.in(patience);
            backoff = BACKOFF_MIN;
            isProven = false;
        }
    }

    /** Waits before the next attempt. Throws the error of the last one if there is none. */
    void await(BatonException error) throws InterruptedException {
        if (error.reason().equals("TOKEN_INVALID")) {
            if (isProven || !connection.canProve()) {
                throw error;
            }
            isProven = true;
            Connection.interruptibly(connection::prove);
            return;
        }
        // For the broker the stream before may not have ended yet, which it refuses as passing.
        if (error.reason().equals("QUOTA_EXCEEDED") || !error.isPassing() || deadline.isOver()) {
            throw error;
        }
        Duration wait = error.retryDelay().orElse(backoff);
        TimeUnit.NANOSECONDS.sleep(deadline.leftAtMost(wait).toNanos());
        Duration longer = backoff.multipliedBy(2);
        backoff = longer.compareTo(BACKOFF_MAX) < 0 ? longer : BACKOFF_MAX;
    }
}
