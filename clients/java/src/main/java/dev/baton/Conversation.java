package dev.baton;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A queue of mail that a call waits for: the mail of one handoff, or the result of a delegated task. */
final class Conversation {
    private final long epoch;
    private final Deque<Delivery<?>> mail = new ArrayDeque<>();
    private BatonException end;
    private boolean isClosed;

    /** Creates a queue for mail of a task from this epoch on. */
    Conversation(long epoch) {
        this.epoch = epoch;
    }

    boolean isOfEpoch(long epoch) {
        return epoch >= this.epoch;
    }

    /** Appends a delivery. Returns false, without appending, if the conversation is closed. */
    synchronized boolean put(Delivery<?> delivery) {
        if (!isClosed) {
            mail.add(delivery);
            notifyAll();
        }
        return !isClosed;
    }

    /** Ends the queue: {@link #next} throws this exception after the queued deliveries. */
    synchronized void fail(BatonException why) {
        end = why;
        notifyAll();
    }

    /** Waits for a delivery and removes it. Throws {@link BatonException} at the end of the queue. */
    synchronized Delivery<?> next() throws InterruptedException {
        while (mail.isEmpty() && end == null) {
            wait();
        }
        return poll();
    }

    /** As {@link #next()}, but returns null if no delivery arrives in time. */
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

    /** Closes the queue. Returns the deliveries left in it. */
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
