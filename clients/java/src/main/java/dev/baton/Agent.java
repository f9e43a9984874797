package dev.baton;

import com.google.protobuf.ByteString;
import com.google.protobuf.Message;
import dev.baton.v1.AddAgentKeyRequest;
import dev.baton.v1.AgentCard;
import dev.baton.v1.AgentKey;
import dev.baton.v1.ContextSection;
import dev.baton.v1.CreateInvitationRequest;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.GetAgentRequest;
import dev.baton.v1.GetHandoffRequest;
import dev.baton.v1.GetTaskRequest;
import dev.baton.v1.Handoff;
import dev.baton.v1.HandoffAccept;
import dev.baton.v1.HandoffMode;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.Heartbeat;
import dev.baton.v1.KeyVoucher;
import dev.baton.v1.ListTasksRequest;
import dev.baton.v1.ListTasksResponse;
import dev.baton.v1.NackCause;
import dev.baton.v1.Receipt;
import dev.baton.v1.RegisterAgentRequest;
import dev.baton.v1.RevokeAgentKeyRequest;
import dev.baton.v1.Task;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.VouchForAgentKeyRequest;
import dev.baton.v1.Welcome;
import io.grpc.Status;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.security.KeyPair;
import java.time.Clock;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;

/**
 * One agent: registers, proves who it is, sends and receives.
 *
 * <pre>{@code
 * try (Agent bob = Agent.builder()
 *         .server("127.0.0.1:22866")
 *         .caFile(Path.of("baton-data/tls/ca.pem"))
 *         .id("bob")
 *         .key(Keys.load(Path.of("bob.pem")))
 *         .onHandoff(offer -> {
 *             OwnedTask task = offer.accept().complete();
 *             task.finish(Struct.getDefaultInstance(), "done");
 *         })
 *         .connect()) {
 *     bob.awaitEnd();
 * }
 * }</pre>
 *
 * <p>Once it is connected the session is kept up: when it ends, another is opened, after the time that the broker asked for
 * or with a backoff of 0.1 to 30 s, and whatever has no answer yet is sent again, byte for byte. Only where the broker
 * refuses for good or its certificate is not trusted, the agent ends. For use from any thread.
 */
public final class Agent implements AutoCloseable {
    /** The agent id of the broker itself. */
    public static final String BROKER_ID = "baton";

    private static final System.Logger LOG = System.getLogger("dev.baton");
    private static final Duration GRACE = Duration.ofSeconds(10);
    private static final int RETURNING_MAX = 4096;
    private static final int PAGE_SIZE = 500;

    private final String id;
    private final String keyId;
    private final KeyPair key;
    private final Clock clock;
    private final Duration sendTimeout;
    private final int capacity;
    private final Duration lookInterval;
    private final Connection connection;
    private final Directory directory;
    private final Dispatcher dispatcher;
    private final Link link;
    private final ScheduledExecutorService scheduler;
    private final ExecutorService executor;
    private final ExecutorService sorter;
    private final Set<String> returning = Collections.newSetFromMap(new LinkedHashMap<>() {
        private static final long serialVersionUID = 1;

        @Override
        protected boolean removeEldestEntry(Map.Entry<String, Boolean> eldest) {
            return size() > RETURNING_MAX;
        }
    });
    private final BlockingQueue<Delivery<?>> mail = new LinkedBlockingQueue<>();
    private final Delivery.Acknowledger acknowledger = new Acknowledging();
    private volatile Heartbeat heartbeat = Heartbeat.newBuilder().setStatus("ok").build();
    private volatile Welcome welcome = Welcome.getDefaultInstance();
    private volatile Duration ackWait = Duration.ofSeconds(30);

    Agent(AgentBuilder from) throws IOException {
        id = from.id;
        keyId = from.keyId;
        key = from.key;
        clock = from.clock;
        sendTimeout = from.sendTimeout;
        capacity = from.capacity;
        lookInterval = from.lookInterval;
        ThreadFactory threads = work -> {
            Thread thread = new Thread(work, "baton-" + id);
            thread.setDaemon(true);
            return thread;
        };
        ScheduledThreadPoolExecutor timers = new ScheduledThreadPoolExecutor(1, threads);
        timers.setRemoveOnCancelPolicy(true);
        scheduler = timers;
        executor = Executors.newCachedThreadPool(threads);
        sorter = Executors.newSingleThreadExecutor(threads);
        Connection.Identity identity = new Connection.Identity(id, keyId, key);
        connection = new Connection(
                from.server,
                identity,
                from.caFile,
                from.certificateFile,
                from.certificateKeyFile,
                from.operatorToken,
                from.keepAliveTime);
        directory = new Directory(this::getAgent, from.pinnedKeys, from.operatorKeys, clock);
        dispatcher = new Dispatcher(this, executor, from);
        Link.Events events = new Link.Events(this::welcomed, this::arrived, this::beat, dispatcher::fail);
        link = new Link(connection, scheduler, events, from.credit);
    }

    /** What an agent begins with. */
    public static AgentBuilder builder() {
        return new AgentBuilder();
    }

    /** Its id. */
    public String id() {
        return id;
    }

    /** The broker's first word on the present session: its id, its key and its times. */
    public Welcome welcome() {
        return welcome;
    }

    /** What the agent says of itself at every heartbeat from now on; active_tasks and capacity are filled in. */
    public void setHeartbeat(Heartbeat heartbeat) {
        this.heartbeat = heartbeat;
    }

    // Who one is.

    /**
     * Registers this agent's card, with its id, capacity and key filled in, or changes it; the same card again is no error.
     * Throws {@link BatonException}, CHALLENGE_FAILED if somebody else is registered under this id.
     */
    public dev.baton.v1.Agent register(AgentCard card) {
        return register(card, "");
    }

    /** As {@link #register(AgentCard)}, with an invitation: it lets a new agent in where only operators may register. */
    public dev.baton.v1.Agent register(AgentCard card, String invitation) {
        AgentKey agentKey = AgentKey.newBuilder()
                .setKeyId(keyId)
                .setPublicKey(ByteString.copyFrom(Keys.publicBytes(key)))
                .build();
        AgentCard whole = card.toBuilder()
                .setAgentId(id)
                .setCapacity(capacity)
                .clearKeys()
                .addKeys(agentKey)
                .build();
        RegisterAgentRequest request = RegisterAgentRequest.newBuilder()
                .setCard(whole)
                .setInvitation(invitation)
                .build();
        try {
            return connection.agents(stub -> stub.registerAgent(request)).getAgent();
        } catch (BatonException e) {
            if (!e.reason().equals("AGENT_EXISTS")) {
                throw e;
            }
            // Known with another card: it may change its own, once it has proven who it is.
            connection.prove();
            return connection.agents(stub -> stub.registerAgent(request)).getAgent();
        }
    }

    /**
     * Makes an invitation: whoever has it may register one new agent, this one or any if the id is empty. Returns the
     * secret.
     */
    public String invite(String agentId, Duration lifetime) {
        CreateInvitationRequest request = CreateInvitationRequest.newBuilder()
                .setAgentId(agentId)
                .setLifetime(Times.ofDuration(lifetime))
                .build();
        return connection.agents(stub -> stub.createInvitation(request)).getInvitation();
    }

    /** Adds a key of an agent, or rotates one: the key ids that it replaces stay good for the grace. */
    public dev.baton.v1.Agent addKey(String agentId, AgentKey added, Collection<String> replaces, Duration grace) {
        AddAgentKeyRequest request = AddAgentKeyRequest.newBuilder()
                .setAgentId(agentId)
                .setKey(added)
                .addAllReplacedKeyIds(replaces)
                .setGrace(Times.ofDuration(grace))
                .build();
        return connection.agents(stub -> stub.addAgentKey(request)).getAgent();
    }

    /** Revokes a key of an agent for good: nothing that is signed by it is taken any more. */
    public dev.baton.v1.Agent revokeKey(String agentId, String revokedKeyId, String reason) {
        RevokeAgentKeyRequest request = RevokeAgentKeyRequest.newBuilder()
                .setAgentId(agentId)
                .setKeyId(revokedKeyId)
                .setReasonText(reason)
                .build();
        return connection.agents(stub -> stub.revokeAgentKey(request)).getAgent();
    }

    /** Adds an operator's word for a key of an agent: see {@link Signing#vouch}. */
    public dev.baton.v1.Agent vouchForKey(String agentId, String vouchedKeyId, KeyVoucher voucher) {
        VouchForAgentKeyRequest request = VouchForAgentKeyRequest.newBuilder()
                .setAgentId(agentId)
                .setKeyId(vouchedKeyId)
                .setVoucher(voucher)
                .build();
        return connection.agents(stub -> stub.vouchForAgentKey(request)).getAgent();
    }

    /** Signs a challenge for a token, which later calls carry. {@link #connect} does it by itself. */
    public String proveIdentity() {
        return connection.prove();
    }

    // The session.

    /** Proves who one is and opens the session; deliveries and heartbeats begin. Tries once. */
    public Welcome connect() throws InterruptedException {
        link.begin("baton-link-" + id);
        return welcome;
    }

    /** Waits until the agent is closed; throws {@link BatonException} when it ends before. */
    public void awaitEnd() throws InterruptedException {
        link.awaitOver();
    }

    /** Stops in order, with a grace of 10 s: see {@link #close(Duration)}. */
    @Override
    public void close() {
        close(GRACE);
    }

    /**
     * Stops in order: takes nothing more, lets listeners end within the grace, and closes session and connection. What a
     * listener was still at after the grace is nacked as SHUTDOWN, and so is mail that nobody has taken.
     */
    public void close(Duration grace) {
        if (link.isClosing()) {
            return;
        }
        link.closing();
        try {
            dispatcher.stop(grace);
            if (link.session() != null) {
                giveBack();
            }
        } catch (BatonException e) {
            LOG.log(Level.DEBUG, "the broker could not be told: {0}", e.getMessage());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        sorter.shutdownNow();
        link.close();
        dispatcher.fail(SessionEndedException.plain());
        executor.shutdown();
        scheduler.shutdownNow();
        connection.close();
    }

    /** Sets how many deliveries may be handed out and not yet acknowledged: 0 (a pause) to 4096. */
    public void setCredit(int outstandingMax) throws InterruptedException {
        link.credit(outstandingMax);
    }

    /**
     * The next message, for agents without listeners; empty when the time is over. Each sender's signature is checked end
     * to end; a message that does not verify is nacked as POISON, so that the broker keeps it as a dead letter, and is
     * not given out. Throws {@link BatonException} when the agent has ended.
     */
    public Optional<Delivery<?>> poll(Duration wait) throws InterruptedException {
        if (dispatcher.hasListeners()) {
            throw new IllegalStateException("mail goes to the listeners");
        }
        Delivery<?> delivery = mail.poll(wait.toNanos(), TimeUnit.NANOSECONDS);
        if (delivery == null && link.end() != null) {
            throw link.end();
        }
        return Optional.ofNullable(delivery);
    }

    // Sending.

    /** A signed envelope of this agent around a payload of baton.v1, of now. */
    public Envelope envelope(String receiverId, Envelopes.About about, Message payload) {
        return Signing.sign(Envelopes.make(payload, id, receiverId, about, clock.instant()), keyId, key);
    }

    /**
     * Signs and sends a payload of baton.v1. Returns the broker's receipt, its signature checked. Over a break the same
     * bytes are sent again, until the broker has answered. Throws {@link BatonException} if the broker refuses, or has
     * not answered in time; {@link VerificationException} if the receipt is not the broker's.
     */
    public Receipt send(String receiverId, Envelopes.About about, Message payload) throws InterruptedException {
        return send(envelope(receiverId, about, payload));
    }

    /**
     * Sends an envelope as it is; the same envelope again gives the first receipt again. What is over the bounds of the
     * schema is refused here, with the broker's own reason, and not sent: PAYLOAD_TOO_LARGE over 1 MiB, FIELD_INVALID for
     * ids that are too long.
     */
    public Receipt send(Envelope envelope) throws InterruptedException {
        Limits.check(envelope);
        Receipt receipt = link.askUntilAnswered(envelope, sendTimeout);
        Signing.verifyReceipt(receipt, directory.key(welcome.getBrokerId(), receipt.getKeyId()));
        if (!receipt.getMessageId().equals(envelope.getMessageId())) {
            throw new VerificationException(
                    "SIGNATURE_INVALID", "the receipt is for another message, " + receipt.getMessageId());
        }
        return receipt;
    }

    /** Sends to the sender of a message, about the same task, epoch and handoff. */
    public Receipt reply(Delivery<?> to, Message payload) throws InterruptedException {
        Envelope asked = to.envelope();
        Envelopes.About about = new Envelopes.About(asked.getTaskId(), asked.getEpoch(), to.handoffId());
        return send(asked.getSenderId(), about, payload);
    }

    /** Answers a delivered HandoffAccept with the context: the sections that it wants, or all of them. */
    public Receipt sendContext(Delivery<?> accept, List<ContextSection> sections) throws InterruptedException {
        List<String> wanted = accept.payload() instanceof HandoffAccept asked
                ? asked.getWantedSectionsList()
                : List.of();
        return reply(accept, Handover.contextFor(sections, wanted));
    }

    /**
     * Hands a task over, all of it: asks, waits for an agent to take it, sends the context, waits for the end. A task id
     * that is new makes the task, owned by this agent at epoch 1.
     *
     * <p>As long as any handoff lasts: at most the request's whole timeout. Throws {@link HandoffFailedException} if the
     * task stays here; {@link BatonException} if the broker does not take the request or the context, or if the context is
     * over 1 MiB: then nothing is sent. A caller that is interrupted leaves the handoff to its timeouts, or to
     * {@link #resumeHandOver}.
     */
    public HandedOver handOver(
            String receiverId, String taskId, long epoch, HandoffRequest request, List<ContextSection> context)
            throws InterruptedException {
        return handOver(receiverId, Envelopes.About.task(taskId, epoch), request, context, Deadline.none());
    }

    private HandedOver handOver(
            String receiverId,
            Envelopes.About about,
            HandoffRequest request,
            List<ContextSection> context,
            Deadline deadline)
            throws InterruptedException {
        Handover.checkContext(context);
        Envelope envelope = envelope(receiverId, about, request);
        String handoffId = envelope.getMessageId();
        Conversation conversation = dispatcher.conversation(handoffId);
        try {
            send(envelope);
            return new Handover(this, conversation, context, handoffId, about.taskId(), about.epoch()).end(deadline);
        } finally {
            dispatcher.close(handoffId, conversation);
        }
    }

    /**
     * Goes on with a handoff that an earlier process of this agent asked for, at whatever step it is, to its end. Returns or
     * throws as {@link #handOver}, also when the handoff ended meanwhile. {@link #ownedTasks} names the handoffs that are
     * open. Throws {@link BatonException}, NOT_OWNER if another agent asked for it, PERMISSION_DENIED if this one takes no
     * part in such a handoff.
     */
    public HandedOver resumeHandOver(String handoffId, List<ContextSection> context) throws InterruptedException {
        Handover.checkContext(context);
        Conversation conversation = dispatcher.conversation(handoffId);
        try {
            Handoff handoff = getHandoff(handoffId);
            if (!handoff.getSenderId().equals(id)) {
                String text = "handoff " + handoffId + " was asked for by " + handoff.getSenderId();
                throw new BatonException(
                        Status.Code.PERMISSION_DENIED, text, "NOT_OWNER", Map.of(), List.of(), null);
            }
            Handover handover = new Handover(
                    this, conversation, context, handoffId, handoff.getTaskId(), handoff.getEpoch());
            HandedOver ended = handover.goOnFrom(handoff);
            return ended != null ? ended : handover.end(Deadline.none());
        } finally {
            dispatcher.close(handoffId, conversation);
        }
    }

    /**
     * Lends a task and waits for what comes of it, as long as the delegate takes: see
     * {@link #delegate(String, String, long, HandoffRequest, List, Duration)}.
     */
    public Outcome delegate(
            String receiverId, String taskId, long epoch, HandoffRequest request, List<ContextSection> context)
            throws InterruptedException {
        return delegate(receiverId, taskId, epoch, request, context, ChronoUnit.FOREVER.getDuration());
    }

    /**
     * Lends a task and waits for what comes of it: {@link #handOver} with HANDOFF_MODE_DELEGATE, then the final status.
     * With that the task is this agent's again, one epoch on. Throws as {@link #handOver}, and {@link BatonException},
     * DEADLINE_EXCEEDED, where it has not come back within this time: handoff or loan go on without the caller. A caller
     * that stops waiting, also by a restart, finds the task in {@link #ownedTasks} when it is back; its final status goes to
     * the listener of TaskStatusUpdate.
     */
    public Outcome delegate(
            String receiverId,
            String taskId,
            long epoch,
            HandoffRequest request,
            List<ContextSection> context,
            Duration wait)
            throws InterruptedException {
        Deadline deadline = Deadline.in(wait);
        HandoffRequest lent = request.toBuilder().setMode(HandoffMode.HANDOFF_MODE_DELEGATE).build();
        Conversation results = dispatcher.results(taskId, epoch + 1);
        try {
            Envelopes.About about = Envelopes.About.task(taskId, epoch);
            HandedOver handed = handOver(receiverId, about, lent, context, deadline);
            return new Loan(this, results, handed).outcome(deadline);
        } finally {
            dispatcher.closeResults(taskId, results);
        }
    }

    // Looking.

    /** An agent as the broker knows it; the broker itself is {@link #BROKER_ID}. */
    public dev.baton.v1.Agent getAgent(String agentId) {
        GetAgentRequest request = GetAgentRequest.newBuilder().setAgentId(agentId).build();
        return connection.agents(stub -> stub.getAgent(request)).getAgent();
    }

    /** A task. */
    public Task getTask(String taskId) {
        GetTaskRequest request = GetTaskRequest.newBuilder().setTaskId(taskId).build();
        return connection.tasks(stub -> stub.getTask(request)).getTask();
    }

    /**
     * Every task that this agent owns and that is not final, newest first: where an agent goes on after a restart. A task
     * with an open handoff is on its way to another agent: {@link #resumeHandOver} goes on with that.
     */
    public List<OwnedTask> ownedTasks() {
        ListTasksRequest.Builder request = ListTasksRequest.newBuilder()
                .setPageSize(PAGE_SIZE)
                .setOwnerId(id)
                .addStatuses(TaskStatus.TASK_STATUS_CREATED)
                .addStatuses(TaskStatus.TASK_STATUS_IN_PROGRESS)
                .addStatuses(TaskStatus.TASK_STATUS_WAITING_FOR_INPUT);
        List<OwnedTask> owned = new ArrayList<>();
        do {
            ListTasksRequest asked = request.build();
            ListTasksResponse page = connection.tasks(stub -> stub.listTasks(asked));
            page.getTasksList().forEach(task -> owned.add(OwnedTask.of(this, task)));
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return owned;
    }

    /** A handoff with its state, both views and every step. */
    public Handoff getHandoff(String handoffId) {
        GetHandoffRequest request = GetHandoffRequest.newBuilder().setHandoffId(handoffId).build();
        return connection.handoffs(stub -> stub.getHandoff(request)).getHandoff();
    }

    /** Reads a task's custody log and checks it. Throws {@link VerificationException}, CUSTODY_BROKEN among others. */
    public CustodyLog verifyCustody(String taskId) {
        return CustodyLog.read(connection, taskId, directory);
    }

    /** The stable code of an ErrorNotification, as ErrorInfo.reason has it. */
    public static String codeOf(ErrorNotification told) {
        return Handover.codeOf(told.getErrorCode(), told.getErrorCodeValue());
    }

    // For the dispatcher.

    int capacity() {
        return capacity;
    }

    ScheduledExecutorService scheduler() {
        return scheduler;
    }

    /** After how long without mail of a handoff, or of a delegated task, the broker is asked how it stands. */
    Duration lookInterval() {
        return lookInterval;
    }

    /** Mail that no listener is for. */
    void leave(Delivery<?> delivery) {
        if (delivery.attempt() > 1) {
            String messageId = delivery.envelope().getMessageId();
            mail.removeIf(earlier -> earlier.envelope().getMessageId().equals(messageId));
        }
        mail.add(delivery);
    }

    /** What was left and is now waited for. */
    List<Delivery<?>> takeBack(Predicate<Delivery<?>> isWanted) {
        List<Delivery<?>> wanted = new ArrayList<>();
        mail.removeIf(delivery -> isWanted.test(delivery) && wanted.add(delivery));
        return wanted;
    }

    /** As if the broker's ack wait were this. */
    void setAckWait(Duration ackWait) {
        this.ackWait = ackWait;
    }

    private void welcomed(Welcome welcome) {
        this.welcome = welcome;
        directory.meetBroker(welcome);
        if (welcome.hasAckWait()) {
            ackWait = Times.toDuration(welcome.getAckWait());
        }
    }

    private Heartbeat beat() {
        Heartbeat.Builder beat = heartbeat.toBuilder();
        if (beat.getActiveTasks() == 0) {
            beat.setActiveTasks(dispatcher.activeCount());
        }
        return beat.setCapacity(capacity).build();
    }

    private void arrived(dev.baton.v1.Delivery delivery) {
        if (!sorter.isShutdown()) {
            sorter.execute(() -> take(delivery));
        }
    }

    /** Checks a delivery and gives it to whoever is to have it. Deliveries are taken in the order in which they come. */
    private void take(dev.baton.v1.Delivery arrived) {
        Envelope envelope = arrived.getEnvelope();
        try {
            boolean isDone;
            synchronized (returning) {
                isDone = returning.remove(envelope.getMessageId());
            }
            if (isDone) {
                new Delivery<Message>(arrived, null, acknowledger).ack();
            } else if (!dispatcher.renew(arrived)) {
                check(arrived);
            }
        } catch (BatonException e) {
            LOG.log(
                    Level.WARNING,
                    "message {0} could not be acknowledged: {1}",
                    envelope.getMessageId(),
                    e.getMessage());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void check(dev.baton.v1.Delivery arrived) throws InterruptedException {
        Envelope envelope = arrived.getEnvelope();
        Message payload = null;
        try {
            payload = Envelopes.payloadOf(envelope);
            directory.verify(envelope);
        } catch (VerificationException | BatonException e) {
            LOG.log(Level.WARNING, "message {0} of {1}: {2}", envelope.getMessageId(), envelope.getSenderId(), e);
            boolean isPoison = e instanceof VerificationException;
            NackCause cause = isPoison ? NackCause.NACK_CAUSE_POISON : NackCause.NACK_CAUSE_FAILURE;
            new Delivery<>(arrived, payload, acknowledger).nack(cause, e.getMessage());
            return;
        }
        dispatcher.dispatch(new Delivery<>(arrived, payload, acknowledger));
    }

    private void giveBack() throws InterruptedException {
        link.credit(0);
        for (Delivery<?> delivery = mail.poll(); delivery != null; delivery = mail.poll()) {
            delivery.nack(NackCause.NACK_CAUSE_SHUTDOWN, "the agent is stopping");
        }
    }

    private final class Acknowledging implements Delivery.Acknowledger {
        @Override
        public Link link() {
            return link;
        }

        @Override
        public Duration ackWait() {
            return ackWait;
        }

        @Override
        public ScheduledExecutorService scheduler() {
            return scheduler;
        }

        @Override
        public void ackWhenItReturns(String messageId) {
            synchronized (returning) {
                returning.add(messageId);
            }
        }

        @Override
        public void settled(Delivery<?> delivery) {
            dispatcher.settled(delivery);
        }
    }
}
