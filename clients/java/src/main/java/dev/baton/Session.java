package dev.baton;

import com.google.rpc.Status;
import dev.baton.v1.BrokerServiceGrpc.BrokerServiceStub;
import dev.baton.v1.ConnectRequest;
import dev.baton.v1.ConnectResponse;
import dev.baton.v1.Delivery;
import dev.baton.v1.Heartbeat;
import dev.baton.v1.Hello;
import dev.baton.v1.Welcome;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** One session with the broker: a Connect stream, its frames and its heartbeats. A session is used once. */
final class Session {
    private static final System.Logger LOG = System.getLogger("dev.baton");
    private static final Duration CLOSE_TIME = Duration.ofSeconds(5);
    /** The least time between two heartbeats that go out because their tasks have changed. */
    private static final Duration CHANGES_INTERVAL = Duration.ofMillis(200);

    private final Consumer<Delivery> deliver;
    private final Supplier<Heartbeat> heartbeat;
    private final ScheduledExecutorService scheduler;
    private final AtomicLong lastRequestId = new AtomicLong();
    private final Map<Long, Waiting> answers = new ConcurrentHashMap<>();
    private final CompletableFuture<Welcome> welcome = new CompletableFuture<>();
    private final CompletableFuture<SessionEndedException> ended = new CompletableFuture<>();
    private ClientCallStreamObserver<ConnectRequest> out;
    private ScheduledFuture<?> beating;
    private SessionEndedException goAway;
    private List<String> listedTaskIds = List.of();
    private boolean isBeatingSoon;
    private long changedNanos = System.nanoTime() - CHANGES_INTERVAL.toNanos();

    /** A frame without an answer, and the size of its envelope in bytes; 0 for a frame without one. */
    private record Waiting(CompletableFuture<ConnectResponse> answer, int envelopeBytesCount) {}

    private Session(Consumer<Delivery> deliver, Supplier<Heartbeat> heartbeat, ScheduledExecutorService scheduler) {
        this.deliver = deliver;
        this.heartbeat = heartbeat;
        this.scheduler = scheduler;
    }

    /** Opens the stream, names this process, and waits for the broker's welcome. */
    static Session open(
            BrokerServiceStub broker,
            Hello hello,
            Consumer<Delivery> deliver,
            Supplier<Heartbeat> heartbeat,
            ScheduledExecutorService scheduler)
            throws InterruptedException {
        Session session = new Session(deliver, heartbeat, scheduler);
        broker.connect(session.new Reader());
        session.say(hello);
        Welcome welcome;
        try {
            welcome = session.welcome.get(Connection.CALL_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException e) {
            throw BatonException.of(e.getCause());
        } catch (TimeoutException | InterruptedException e) {
            session.out.cancel("no welcome", e);
            if (e instanceof InterruptedException interrupted) {
                throw interrupted;
            }
            throw noAnswer();
        }
        long millis = Math.max(100, Times.toDuration(welcome.getHeartbeatInterval()).toMillis());
        session.beating = scheduler.scheduleAtFixedRate(
                session::beat, 0, millis, TimeUnit.MILLISECONDS);
        session.ended.thenRun(() -> session.beating.cancel(false));
        return session;
    }

    Welcome welcome() {
        return welcome.join();
    }

    /** Completes at the session's end with its reason. retryDelay is the broker's reconnect delay. */
    CompletableFuture<SessionEndedException> ended() {
        return ended;
    }

    /**
     * Sends one frame. The future completes with the answer or a BatonException: SessionEndedException if the session
     * ends first, OUT_OF_RANGE or PAYLOAD_TOO_LARGE if the frame is too large.
     */
    CompletableFuture<ConnectResponse> ask(ConnectRequest.Builder asked) {
        long requestId = lastRequestId.incrementAndGet();
        ConnectRequest frame = asked.setRequestId(requestId).build();
        try {
            Limits.checkFrame(frame);
        } catch (BatonException e) {
            return CompletableFuture.failedFuture(e);
        }
        CompletableFuture<ConnectResponse> answer = new CompletableFuture<>();
        answers.put(requestId, new Waiting(answer, frame.getEnvelope().getSerializedSize()));
        answer.whenComplete((response, error) -> answers.remove(requestId));
        if (!write(frame)) {
            answer.completeExceptionally(SessionEndedException.plain()); // this frame did not end it
        }
        // The session may have ended during this call, after its open answers were completed. Then only this line
        // completes the answer.
        if (ended.isDone()) {
            answer.completeExceptionally(why());
        }
        return answer;
    }

    /** As {@link #ask}, and waits for the answer. */
    ConnectResponse askAndWait(ConnectRequest.Builder frame) throws InterruptedException {
        CompletableFuture<ConnectResponse> answer = ask(frame);
        try {
            return answer.get(Connection.CALL_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException e) {
            throw BatonException.of(e.getCause());
        } catch (TimeoutException e) {
            throw noAnswer();
        } finally {
            answer.cancel(false);
        }
    }

    /** Half-closes the stream and reads the remaining frames. */
    void close() {
        synchronized (this) {
            if (!ended.isDone()) {
                out.onCompleted();
            }
        }
        try {
            ended.get(CLOSE_TIME.toMillis(), TimeUnit.MILLISECONDS);
        } catch (TimeoutException | ExecutionException e) {
            out.cancel("the broker does not end the session", e);
        } catch (InterruptedException e) {
            out.cancel("interrupted", e);
            Thread.currentThread().interrupt();
        }
    }

    static BatonException noAnswer() {
        return new BatonException(io.grpc.Status.Code.DEADLINE_EXCEEDED, "no answer in time");
    }

    /** Sends a heartbeat, after the last one for the same cause by 200 ms at least, if its tasks are other ones then. */
    void beatSoon() {
        long waitNanos;
        synchronized (this) {
            if (isBeatingSoon || ended.isDone()) {
                return;
            }
            isBeatingSoon = true;
            waitNanos = Math.max(0, changedNanos + CHANGES_INTERVAL.toNanos() - System.nanoTime());
        }
        try {
            scheduler.schedule(this::beatIfChanged, waitNanos, TimeUnit.NANOSECONDS);
        } catch (RejectedExecutionException e) {
            // The agent is closed.
        }
    }

    private void beatIfChanged() {
        synchronized (this) {
            isBeatingSoon = false; // before the tasks are read, so that a later change is not missed
        }
        Heartbeat next = heartbeat.get();
        synchronized (this) {
            if (next.getWorkingOnList().equals(listedTaskIds)) {
                return; // work that began and ended meanwhile
            }
            changedNanos = System.nanoTime();
        }
        beat(next);
    }

    private void beat() {
        beat(heartbeat.get());
    }

    private void beat(Heartbeat next) {
        ConnectRequest frame = ConnectRequest.newBuilder().setHeartbeat(next).build();
        try {
            Limits.checkFrame(frame);
        } catch (BatonException e) {
            LOG.log(Level.WARNING, "the heartbeat goes without its content: {0}", e.getMessage());
            Heartbeat.Builder rest = Heartbeat.newBuilder().addAllWorkingOn(next.getWorkingOnList());
            frame = ConnectRequest.newBuilder().setHeartbeat(rest).build();
        }
        if (write(frame)) {
            synchronized (this) {
                listedTaskIds = next.getWorkingOnList();
            }
        }
    }

    private void say(Hello hello) {
        ask(ConnectRequest.newBuilder().setHello(hello)).whenComplete((answer, error) -> {
            if (error != null && !(error instanceof SessionEndedException)) {
                boolean isOlder = error instanceof BatonException e && e.reason().equals("NOT_SUPPORTED");
                Level level = isOlder ? Level.DEBUG : Level.WARNING;
                LOG.log(level, "the broker does not know this process: {0}", error.getMessage());
            }
        });
    }

    private synchronized boolean write(ConnectRequest frame) {
        if (ended.isDone()) {
            return false;
        }
        try {
            out.onNext(frame);
            return true;
        } catch (IllegalStateException e) {
            return false; // closed by close(), or the call was cancelled
        }
    }

    private SessionEndedException why() {
        return ended.getNow(SessionEndedException.plain());
    }

    private void end(SessionEndedException why) {
        ended.complete(why);
        answers.values().forEach(waiting -> waiting.answer().completeExceptionally(why));
    }

    /**
     * Refuses the largest unanswered envelope after the broker has ended the session because of a frame's size. Sent
     * again, the envelope would end the next session too.
     */
    private void blameLargest(BatonException broken) {
        // An older broker and a proxy give no reason.
        boolean isTooLarge = broken.code() == io.grpc.Status.Code.OUT_OF_RANGE
                || broken.reason().equals("PAYLOAD_TOO_LARGE");
        if (isTooLarge) {
            answers.values().stream()
                    .filter(waiting -> waiting.envelopeBytesCount() > 0)
                    .max(Comparator.comparingInt(Waiting::envelopeBytesCount))
                    .ifPresent(largest -> largest.answer().completeExceptionally(broken));
        }
    }

    private void take(ConnectResponse frame) {
        switch (frame.getResponseCase()) {
            case WELCOME -> welcome.complete(frame.getWelcome());
            case DELIVERY -> deliver.accept(frame.getDelivery());
            case GO_AWAY -> goAway = new SessionEndedException(
                    frame.getGoAway().getReasonText(),
                    "SHUTTING_DOWN",
                    Times.toDuration(frame.getGoAway().getReconnectAfter()));
            case ERROR -> refuse(frame.getRequestId(), frame.getError());
            case RECEIPT, ACKNOWLEDGED, CREDITED, RESPONSE_NOT_SET -> {
                Waiting waiting = answers.get(frame.getRequestId());
                if (waiting != null) {
                    waiting.answer().complete(frame);
                }
            }
        }
    }

    private void refuse(long requestId, Status error) {
        Waiting waiting = answers.get(requestId);
        if (waiting != null) {
            waiting.answer().completeExceptionally(BatonException.of(error));
        } else {
            LOG.log(Level.WARNING, "the broker refused a frame that no call waits for: {0}", error.getMessage());
        }
    }

    private final class Reader implements ClientResponseObserver<ConnectRequest, ConnectResponse> {
        @Override
        public void beforeStart(ClientCallStreamObserver<ConnectRequest> requests) {
            out = requests;
        }

        @Override
        public void onNext(ConnectResponse frame) {
            take(frame);
        }

        @Override
        public void onError(Throwable error) {
            BatonException broken = BatonException.of(error);
            welcome.completeExceptionally(broken);
            blameLargest(broken);
            end(goAway != null ? goAway : SessionEndedException.by(broken));
        }

        @Override
        public void onCompleted() {
            SessionEndedException why = goAway != null ? goAway : SessionEndedException.plain();
            welcome.completeExceptionally(why);
            end(why);
        }
    }
}
