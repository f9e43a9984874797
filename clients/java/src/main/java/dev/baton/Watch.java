package dev.baton;

import io.grpc.Context;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Iterator;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.Flow;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * A stream of updates that outlives its connection: after a lost connection and a restart of the broker it goes on
 * after the last update, with a backoff of 0.1 to 10 s. Read it by {@link #next}, or once by {@link #subscribe}.
 *
 * <p>A watch reads at most 16 updates ahead of its reader; the broker waits with further ones. Close it when it is no
 * longer needed. It also ends with its agent.
 *
 * @param <T> the type of the updates
 */
public final class Watch<T> implements Flow.Publisher<T>, AutoCloseable {
    private static final int BUFFERED_MAX = 16;
    private static final Duration BACKOFF_MIN = Duration.ofMillis(100);
    private static final Duration BACKOFF_MAX = Duration.ofSeconds(10);
    /** The age from which a call resets the backoff. */
    private static final Duration STEADY = Duration.ofSeconds(5);

    /** The calls of a watch, and the place after which the next one begins. */
    interface Source<T> {
        /** Begins a call after what {@link #take} has taken. */
        Iterator<T> open();

        /** Notes the place of an update. Returns whether it is for the reader. Throws if it does not verify. */
        boolean take(T update);

        /** Whether this is the last update. */
        default boolean isLast(T update) {
            return false;
        }

        /** Whether a call that the broker has ended without an error has no more updates. */
        default boolean isOver() {
            return false;
        }
    }

    private final Source<T> source;
    private final Connection connection;
    private final Runnable whenOver;
    private final Context.CancellableContext context = Context.ROOT.withCancellation();
    private final Thread reader;
    private final Deque<T> updates = new ArrayDeque<>();
    private RuntimeException failure;
    private boolean isOver;
    private boolean isClosed;
    private boolean isSubscribed;

    Watch(Connection connection, String name, Source<T> source, Runnable whenOver) {
        this.connection = connection;
        this.source = source;
        this.whenOver = whenOver;
        this.reader = new Thread(() -> context.run(this::read), name);
        this.reader.setDaemon(true);
    }

    /** Begins to read. */
    Watch<T> begin() {
        reader.start();
        return this;
    }

    /**
     * Waits for the next update and removes it; returns empty if none arrives in time, or if the watch is over. Throws
     * the end of a failed watch after the updates before it: {@link BatonException} for a refusal of the broker,
     * {@link VerificationException} for an update that does not verify.
     */
    public synchronized Optional<T> next(Duration within) throws InterruptedException {
        long deadlineNanos = System.nanoTime() + within.toNanos();
        while (updates.isEmpty() && !isOver) {
            long leftNanos = deadlineNanos - System.nanoTime();
            if (leftNanos <= 0) {
                return Optional.empty();
            }
            TimeUnit.NANOSECONDS.timedWait(this, leftNanos);
        }
        T update = updates.poll();
        if (update == null && failure != null) {
            throw failure;
        }
        notifyAll();
        return Optional.ofNullable(update);
    }

    /** Whether no update follows: the last one was read, or the watch was closed or has failed. */
    public synchronized boolean isOver() {
        return isOver && updates.isEmpty();
    }

    /**
     * Passes the updates to a subscriber, in a thread of its own. A watch has one subscriber, and then no other reader:
     * a second one gets {@link IllegalStateException}. A cancelled subscription closes the watch.
     */
    @Override
    public void subscribe(Flow.Subscriber<? super T> subscriber) {
        Objects.requireNonNull(subscriber);
        boolean isFirst;
        synchronized (this) {
            isFirst = !isSubscribed;
            isSubscribed = true;
        }
        Delivering delivering = new Delivering(subscriber);
        subscriber.onSubscribe(delivering);
        if (!isFirst) {
            delivering.silence();
            subscriber.onError(new IllegalStateException("the watch has a subscriber already"));
            return;
        }
        Thread thread = new Thread(delivering, reader.getName() + "-subscriber");
        thread.setDaemon(true);
        thread.start();
    }

    /** Ends the watch. Updates that were not read are dropped. */
    @Override
    public void close() {
        synchronized (this) {
            isClosed = true;
            updates.clear();
            notifyAll();
        }
        context.cancel(null);
        reader.interrupt();
        end(null);
    }

    /** Ends the watch with its agent: further reads throw this exception. */
    void fail(RuntimeException why) {
        end(why);
        context.cancel(null);
        reader.interrupt();
    }

    private synchronized void end(RuntimeException why) {
        if (!isOver) {
            isOver = true;
            failure = why;
            notifyAll();
        }
    }

    private synchronized boolean hasEnded() {
        return isOver || isClosed;
    }

    private void read() {
        try {
            follow();
            end(null);
        } catch (RuntimeException e) {
            end(e);
        } catch (InterruptedException e) {
            end(null); // close() or fail() interrupted the thread
        } finally {
            whenOver.run();
        }
    }

    private void follow() throws InterruptedException {
        Duration backoff = BACKOFF_MIN;
        boolean isProven = false;
        while (true) {
            long beganNanos = System.nanoTime();
            BatonException broken = readOnce();
            if (broken == null || hasEnded()) {
                return;
            }
            if (broken.reason().equals("TOKEN_INVALID")) {
                if (isProven || !connection.canProve()) {
                    throw broken;
                }
                try {
                    connection.prove();
                    isProven = true;
                    continue;
                } catch (BatonException e) {
                    broken = e;
                }
            }
            if (!broken.isPassing()) {
                throw broken;
            }
            isProven = false;
            if (System.nanoTime() - beganNanos >= STEADY.toNanos()) {
                backoff = BACKOFF_MIN;
            }
            long waitNanos = (long) (backoff.toNanos() * ThreadLocalRandom.current().nextDouble(0.8, 1.2));
            TimeUnit.NANOSECONDS.sleep(
                    Math.max(waitNanos, broken.retryDelay().orElse(Duration.ZERO).toNanos()));
            Duration longer = backoff.multipliedBy(2);
            backoff = longer.compareTo(BACKOFF_MAX) < 0 ? longer : BACKOFF_MAX;
        }
    }

    /** Reads one call to its end. Returns the error that broke it, or null if the watch is over. */
    private BatonException readOnce() throws InterruptedException {
        try {
            Iterator<T> call = source.open();
            while (call.hasNext()) {
                T update = call.next();
                if (source.take(update)) {
                    put(update);
                }
                if (source.isLast(update)) {
                    return null;
                }
            }
            return source.isOver() ? null : SessionEndedException.plain();
        } catch (StatusRuntimeException e) {
            return BatonException.of(e);
        } catch (BatonException e) {
            return e;
        }
    }

    private synchronized void put(T update) throws InterruptedException {
        while (updates.size() >= BUFFERED_MAX && !hasEnded()) {
            wait();
        }
        if (hasEnded()) {
            throw new InterruptedException();
        }
        updates.add(update);
        notifyAll();
    }

    /** Passes updates to a subscriber as it asks for them. Its state is guarded by the watch. */
    private final class Delivering implements Flow.Subscription, Runnable {
        private final Flow.Subscriber<? super T> subscriber;
        private long asked;
        private boolean isCancelled;
        private boolean isWrong;

        Delivering(Flow.Subscriber<? super T> subscriber) {
            this.subscriber = subscriber;
        }

        @Override
        public void request(long count) {
            synchronized (Watch.this) {
                isWrong = isWrong || count <= 0;
                asked = asked + count < 0 ? Long.MAX_VALUE : asked + count;
                Watch.this.notifyAll();
            }
        }

        @Override
        public void cancel() {
            silence();
            close();
        }

        @Override
        public void run() {
            try {
                for (T update = nextAsked(); update != null; update = nextAsked()) {
                    subscriber.onNext(update);
                }
                if (silence()) {
                    subscriber.onComplete();
                }
            } catch (RuntimeException e) {
                if (silence()) {
                    subscriber.onError(e);
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            } finally {
                close();
            }
        }

        /** Waits for demand and an update. Returns null after a cancellation, or at the end of the watch. */
        private T nextAsked() throws InterruptedException {
            synchronized (Watch.this) {
                while (!isCancelled && !isWrong && !isOver() && (asked == 0 || updates.isEmpty())) {
                    Watch.this.wait();
                }
                if (isCancelled) {
                    return null;
                }
                if (isWrong) {
                    throw new IllegalArgumentException("a subscriber asks for at least one update");
                }
                T update = updates.poll();
                if (update == null && failure != null) {
                    throw failure;
                }
                asked--;
                Watch.this.notifyAll();
                return update;
            }
        }

        /** Ends the signals to the subscriber. Returns whether it still expected any. */
        boolean silence() {
            synchronized (Watch.this) {
                boolean isFirst = !isCancelled;
                isCancelled = true;
                Watch.this.notifyAll();
                return isFirst;
            }
        }
    }
}
