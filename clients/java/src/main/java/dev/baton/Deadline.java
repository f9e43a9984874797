package dev.baton;

import io.grpc.Status;
import java.time.Duration;

/**
 * A moment of this machine's monotonic clock until which a call waits.
 *
 * @param nanos the moment, in nanoseconds of System.nanoTime()
 */
record Deadline(long nanos) {
    private static final Duration FOR_EVER = Duration.ofDays(36_500);

    /** Returns the deadline after this time from now; at most a hundred years. */
    static Deadline in(Duration time) {
        return new Deadline(System.nanoTime() + (time.compareTo(FOR_EVER) < 0 ? time : FOR_EVER).toNanos());
    }

    static Deadline none() {
        return in(FOR_EVER);
    }

    /** Returns the time left, at most this much. */
    Duration leftAtMost(Duration most) {
        Duration left = Duration.ofNanos(Math.max(0, nanos - System.nanoTime()));
        return left.compareTo(most) < 0 ? left : most;
    }

    boolean isOver() {
        return nanos - System.nanoTime() <= 0;
    }

    /** Throws {@link BatonException}, DEADLINE_EXCEEDED with this text, if no time is left. */
    void check(String text) {
        if (isOver()) {
            throw new BatonException(Status.Code.DEADLINE_EXCEEDED, text);
        }
    }
}
