package dev.baton;

import dev.baton.v1.ConnectRequest;
import dev.baton.v1.ConnectResponse;
import dev.baton.v1.Credit;
import dev.baton.v1.Delivery;
import dev.baton.v1.Envelope;
import dev.baton.v1.Heartbeat;
import dev.baton.v1.Hello;
import dev.baton.v1.Receipt;
import dev.baton.v1.Welcome;
import io.grpc.Status;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * An agent's link to its broker: one session after the other, for the lifetime of the agent.
 *
 * <p>When a session ends, the link opens the next, after the delay that the broker named or with a backoff. The link
 * ends when it is closed, when the server is no longer trusted, or when the broker has refused several times in a row
 * for a reason that does not pass.
 */
final class Link {
    private static final System.Logger LOG = System.getLogger("dev.baton");
    private static final Duration BACKOFF_MIN = Duration.ofMillis(100);
    private static final Duration BACKOFF_MAX = Duration.ofSeconds(30);
    /** The age from which a session counts as stable and resets the backoff. */
    private static final Duration STEADY = Duration.ofSeconds(5);
    /** The number of consecutive refusals to reconnect after which the agent ends. */
    private static final int REFUSALS_MAX = 3;

    /** The agent's callbacks. */
    record Events(
            Consumer<Welcome> welcomed,
            Runnable reconnected,
            Consumer<Delivery> delivered,
            Supplier<Heartbeat> heartbeat,
            Consumer<BatonException> ended) {}

    private final Connection connection;
    private final ScheduledExecutorService scheduler;
    private final Events events;
    private final Hello hello;
    private int credit;
    private Thread keeper;
    private Session session;
    private BatonException end;
    private boolean isClosing;
    private Duration backoff = BACKOFF_MIN;

    Link(Connection connection, ScheduledExecutorService scheduler, Events events, Hello hello, int credit) {
        this.connection = connection;
        this.scheduler = scheduler;
        this.events = events;
        this.hello = hello;
        this.credit = credit;
    }

    /** Opens the first session. Tries once. */
    void begin(String name) throws InterruptedException {
        Session first = open();
        keeper = new Thread(() -> keepUp(first), name);
        keeper.setDaemon(true);
        keeper.start();
    }

    /** Returns the present session, or null. */
    synchronized Session session() {
        return session;
    }

    /** Returns the reason that there will be no further session; null before the link's end, or if it was closed. */
    synchronized BatonException end() {
        return end;
    }

    synchronized boolean isClosing() {
        return isClosing;
    }

    /** Sends a heartbeat soon, if the tasks that it lists have changed. */
    void beatSoon() {
        Session present = session();
        if (present != null) {
            present.beatSoon();
        }
    }

    /** Sends one frame on the present session and returns its answer. */
    CompletableFuture<ConnectResponse> ask(ConnectRequest.Builder frame) {
        Session present = session();
        return present == null ? CompletableFuture.failedFuture(over()) : present.ask(frame);
    }

    /** As {@link #ask}, and waits for the answer. */
    ConnectResponse askAndWait(ConnectRequest.Builder frame) throws InterruptedException {
        Session present = session();
        if (present == null) {
            throw over();
        }
        return present.askAndWait(frame);
    }

    /**
     * Sends the same bytes on each session until the broker answers. Throws the refusal of a session that ended because
     * of a frame's size, if this envelope was the largest unanswered one.
     */
    Receipt askUntilAnswered(Envelope envelope, Duration timeout) throws InterruptedException {
        long deadlineNanos = System.nanoTime() + timeout.toNanos();
        while (true) {
            Session present = live(deadlineNanos);
            CompletableFuture<ConnectResponse> answer = present.ask(ConnectRequest.newBuilder().setEnvelope(envelope));
            try {
                return answer.get(Math.max(0, deadlineNanos - System.nanoTime()), TimeUnit.NANOSECONDS)
                        .getReceipt();
            } catch (ExecutionException e) {
                BatonException error = BatonException.of(e.getCause());
                if (error instanceof SessionEndedException) {
                    forget(present);
                } else if (error.code() == Status.Code.UNAVAILABLE) {
                    long wait = error.retryDelay().orElse(Duration.ofSeconds(1)).toNanos();
                    TimeUnit.NANOSECONDS.sleep(Math.min(wait, Math.max(0, deadlineNanos - System.nanoTime())));
                } else {
                    throw error;
                }
            } catch (TimeoutException e) {
                throw new BatonException(
                        Status.Code.DEADLINE_EXCEEDED,
                        "no receipt for message " + envelope.getMessageId()
                                + " in time; the broker may or may not have accepted it");
            } finally {
                answer.cancel(false);
            }
        }
    }

    /** Sets the maximum number of unacknowledged deliveries, for this session and all later ones. */
    void credit(int outstandingMax) throws InterruptedException {
        live(System.nanoTime() + Connection.CALL_TIMEOUT.toNanos()).askAndWait(credited(outstandingMax));
        synchronized (this) {
            credit = outstandingMax;
        }
    }

    /** Waits for {@link #closing} or for the link's end, and throws on the latter. */
    synchronized void awaitOver() throws InterruptedException {
        while (!isClosing && end == null) {
            wait();
        }
        if (end != null) {
            throw end;
        }
    }

    /** Prevents a further session. */
    synchronized void closing() {
        isClosing = true;
        notifyAll();
    }

    /** Closes the session. */
    void close() {
        Session present = session();
        if (present != null) {
            present.close();
        }
        if (keeper != null) {
            keeper.interrupt();
        }
    }

    private synchronized Session live(long deadlineNanos) throws InterruptedException {
        if (keeper == null && session == null && end == null && !isClosing) {
            throw new IllegalStateException("connect first");
        }
        while (session == null && end == null && !isClosing) {
            long millis = TimeUnit.NANOSECONDS.toMillis(deadlineNanos - System.nanoTime());
            if (millis <= 0) {
                throw Session.noAnswer();
            }
            wait(millis);
        }
        if (session == null) {
            throw over();
        }
        return session;
    }

    private synchronized BatonException over() {
        return end != null ? end : SessionEndedException.plain();
    }

    private synchronized void forget(Session gone) {
        if (session == gone) {
            session = null;
        }
    }

    private synchronized void set(Session present) {
        session = present;
        notifyAll();
    }

    private Session open() throws InterruptedException {
        Session opened = Session.open(
                Connection.interruptibly(connection::forSession),
                hello,
                events.delivered(),
                events.heartbeat(),
                scheduler);
        events.welcomed().accept(opened.welcome());
        int outstandingMax;
        synchronized (this) {
            outstandingMax = credit;
        }
        set(opened);
        try {
            opened.askAndWait(credited(outstandingMax));
        } catch (BatonException | InterruptedException e) {
            forget(opened);
            opened.close();
            throw e;
        }
        return opened;
    }

    private void keepUp(Session first) {
        Session present = first;
        try {
            while (true) {
                long beganNanos = System.nanoTime();
                SessionEndedException why = present.ended().get();
                forget(present);
                if (isClosing()) {
                    return;
                }
                LOG.log(Level.WARNING, "the session has ended: {0}", why.getMessage());
                if (System.nanoTime() - beganNanos >= STEADY.toNanos()) {
                    backoff = BACKOFF_MIN;
                }
                present = openAgain(why);
                LOG.log(Level.INFO, "connected again");
                events.reconnected().run();
            }
        } catch (BatonException e) {
            LOG.log(Level.ERROR, "there will be no further session: {0}", e.getMessage());
            synchronized (this) {
                end = e;
                notifyAll();
            }
            events.ended().accept(e);
        } catch (InterruptedException e) {
            // close() interrupted the thread
        } catch (ExecutionException e) {
            throw new IllegalStateException("it never fails", e);
        }
    }

    private Session openAgain(SessionEndedException ended) throws InterruptedException {
        int refusals = 0;
        Duration delay = ended.retryDelay().orElse(null);
        while (true) {
            Duration wait = delay == null ? backoff : delay;
            double jitter = ThreadLocalRandom.current().nextDouble(0.8, 1.2);
            TimeUnit.NANOSECONDS.sleep((long) (wait.toNanos() * jitter));
            backoff = backoff.multipliedBy(2).compareTo(BACKOFF_MAX) < 0 ? backoff.multipliedBy(2) : BACKOFF_MAX;
            try {
                return open();
            } catch (BatonException e) {
                LOG.log(Level.INFO, "could not connect: {0}", e.getMessage());
                refusals = e.isPassing() ? 0 : refusals + 1;
                if (refusals >= REFUSALS_MAX || e instanceof UntrustedException) {
                    throw e;
                }
                delay = e.retryDelay().orElse(null);
            }
        }
    }

    private static ConnectRequest.Builder credited(int outstandingMax) {
        return ConnectRequest.newBuilder().setCredit(Credit.newBuilder().setMaxOutstanding(outstandingMax));
    }
}
