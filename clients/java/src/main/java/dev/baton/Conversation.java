package dev.baton;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Mail that a call waits for: that of one handoff, or what comes of a delegated task. */
final class Conversation {
    private final long epoch;
    private final Deque<Delivery<?>> mail = new ArrayDeque<>();
    private BatonException end;
    private boolean isClosed;

    /** A queue for mail of this epoch of a task, and later ones. */
    Conversation(long epoch) {
        this.epoch = epoch;
    }

    boolean isOfEpoch(long epoch) {
        return epoch >= this.epoch;
    }

    /** Appends a delivery. Returns false if the conversation is closed: then it is not taken. */
    synchronized boolean put(Delivery<?> delivery) {
        if (!isClosed) {
            mail.add(delivery);
            notifyAll();
        }
        return !isClosed;
    }

    /** Ends it: {@link #next} throws this after the deliveries that are in it. */
    synchronized void fail(BatonException why) {
        end = why;
        notifyAll();
    }

    /** Waits for a delivery and takes it out. Throws {@link BatonException} at the end. */
    synchronized Delivery<?> next() throws InterruptedException {
        while (mail.isEmpty() && end == null) {
            wait();
        }
        return poll();
    }

    /** As {@link #next()}; null if there is no delivery within this time. */
    synchronized Delivery<?> next(Duration within) throws InterruptedException {
        long deadlineNanos = System.nanoTime() + within.toNanos();
        while (mail.isEmpty() && end == null) {
            long leftNanos = deadlineNanos - System.nanoTime();
            if (leftNanos <= 0) {
                return null;
            }
            TimeUnit.NANOSECONDS.timedWait(this, leftNanos);
        }
        return poll();
    }

    /** Closes it. Returns the deliveries that were not taken out. */
    synchronized List<Delivery<?>> close() {
        isClosed = true;
        List<Delivery<?>> rest = List.copyOf(mail);
        mail.clear();
        return rest;
    }

    private Delivery<?> poll() {
        Delivery<?> delivery = mail.poll();
        if (delivery == null) {
            throw end;
        }
        return delivery;
    }
}
