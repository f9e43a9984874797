package dev.baton;

import io.grpc.Status;
import java.time.Duration;

/**
 * A moment of this machine's monotonic clock until which a call waits.
 *
 * @param nanos the moment, as System.nanoTime() has it
 */
record Deadline(long nanos) {
    private static final Duration FOR_EVER = Duration.ofDays(36_500);

    /** After this time, from now; at most a hundred years. */
    static Deadline in(Duration time) {
        return new Deadline(System.nanoTime() + (time.compareTo(FOR_EVER) < 0 ? time : FOR_EVER).toNanos());
    }

    static Deadline none() {
        return in(FOR_EVER);
    }

    /** The time that is left, or this time if that is less. */
    Duration leftAtMost(Duration most) {
        Duration left = Duration.ofNanos(Math.max(0, nanos - System.nanoTime()));
        return left.compareTo(most) < 0 ? left : most;
    }

    /** Throws {@link BatonException}, DEADLINE_EXCEEDED with this text, if no time is left. */
    void check(String text) {
        if (nanos - System.nanoTime() <= 0) {
            throw new BatonException(Status.Code.DEADLINE_EXCEEDED, text);
        }
    }
}
