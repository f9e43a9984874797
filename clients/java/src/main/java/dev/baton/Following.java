package dev.baton;

import dev.baton.v1.WatchGap;

/**
 * The calls of a watch of a log with numbered entries, of which only the watch's thread uses them. Each entry comes once
 * and in order, or a gap that covers it, and one caught_up.
 *
 * @param <T> the type of the updates
 */
abstract class Following<T> implements Watch.Source<T> {
    private long last;
    private boolean isCaughtUp;

    /** Begins after this number. */
    Following(long after) {
        this.last = after;
    }

    /** Returns the number after which the next call begins. */
    final long last() {
        return last;
    }

    /** Takes an entry. Returns true. */
    final boolean entry(long number) {
        last = number;
        return true;
    }

    /** Takes a gap. Returns true. */
    final boolean gap(WatchGap gap) {
        last = Math.max(last, gap.getLastNumber());
        return true;
    }

    /** Takes a caught_up. Returns whether it is the first. */
    final boolean caughtUp() {
        boolean isFirst = !isCaughtUp;
        isCaughtUp = true;
        return isFirst;
    }
}
