package dev.baton;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A queue of mail that a call waits for: that of one handoff or negotiation, or the result of a delegated task. */
final class Conversation {
    private String taskId;
    private long epoch;
    private final Deque<Delivery<?>> mail = new ArrayDeque<>();
    private RuntimeException end;
    private boolean isClosed;
    private boolean isWoken;

    /** Creates a queue for mail of a task from this epoch on. The task's id is empty for an offer. */
    Conversation(String taskId, long epoch) {
        this.taskId = taskId;
        this.epoch = epoch;
    }

    /** Sets the task and the epoch of the waiting call, once they are known. */
    synchronized void isAbout(String taskId, long epoch) {
        this.taskId = taskId;
        this.epoch = epoch;
    }

    /** Whether the waiting call is about this task, and began before this epoch. */
    synchronized boolean isBefore(String taskId, long epoch) {
        return this.taskId.equals(taskId) && this.epoch < epoch;
    }

    synchronized boolean isOfEpoch(long epoch) {
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
    synchronized void fail(RuntimeException why) {
        end = why;
        notifyAll();
    }

    /** Lets {@link #next(Duration)} return at once, after the queued deliveries. */
    synchronized void wake() {
        isWoken = true;
        notifyAll();
    }

    /** Waits for a delivery and removes it. Throws the exception of {@link #fail} at its end. */
    synchronized Delivery<?> next() throws InterruptedException {
        while (mail.isEmpty() && end == null) {
            wait();
        }
        return poll();
    }

    /** As {@link #next()}, but returns null if no delivery arrives in time, or after {@link #wake}. */
    synchronized Delivery<?> next(Duration within) throws InterruptedException {
        long deadlineNanos = System.nanoTime() + within.toNanos();
        while (mail.isEmpty() && end == null) {
            if (isWoken) {
                isWoken = false;
                return null;
            }
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
