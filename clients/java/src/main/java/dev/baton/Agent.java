package dev.baton;

import com.google.protobuf.ByteString;
import com.google.protobuf.FieldMask;
import com.google.protobuf.Message;
import dev.baton.v1.AddAgentKeyRequest;
import dev.baton.v1.AgentCard;
import dev.baton.v1.AgentKey;
import dev.baton.v1.AgentMatch;
import dev.baton.v1.AuditLogEntry;
import dev.baton.v1.ContextSection;
import dev.baton.v1.CreateInvitationRequest;
import dev.baton.v1.DeregisterAgentRequest;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.FindAgentsRequest;
import dev.baton.v1.FindAgentsResponse;
import dev.baton.v1.GetAgentRequest;
import dev.baton.v1.GetHandoffRequest;
import dev.baton.v1.GetTaskRequest;
import dev.baton.v1.Handoff;
import dev.baton.v1.HandoffAccept;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.Heartbeat;
import dev.baton.v1.Hello;
import dev.baton.v1.KeyVoucher;
import dev.baton.v1.ListAgentsRequest;
import dev.baton.v1.ListAgentsResponse;
import dev.baton.v1.ListAuditEntriesRequest;
import dev.baton.v1.ListAuditEntriesResponse;
import dev.baton.v1.ListProcessesRequest;
import dev.baton.v1.ListTasksRequest;
import dev.baton.v1.MessageType;
import dev.baton.v1.NackCause;
import dev.baton.v1.NegotiationClosed;
import dev.baton.v1.Receipt;
import dev.baton.v1.ReceiveRequest;
import dev.baton.v1.ReceiveResponse;
import dev.baton.v1.RegisterAgentRequest;
import dev.baton.v1.RevokeAgentKeyRequest;
import dev.baton.v1.SenderView;
import dev.baton.v1.Task;
import dev.baton.v1.TaskInput;
import dev.baton.v1.TaskPrompt;
import dev.baton.v1.TaskCreate;
import dev.baton.v1.TaskRecall;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.TaskStatusUpdate;
import dev.baton.v1.UpdateAgentRequest;
import dev.baton.v1.VouchForAgentKeyRequest;
import dev.baton.v1.WatchAgentsRequest;
import dev.baton.v1.WatchAgentsResponse;
import dev.baton.v1.Welcome;
import io.grpc.Status;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.security.KeyPair;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;
import java.util.function.Supplier;

/**
 * An agent of the broker: registers, proves its identity, sends messages and handles its mail.
 *
 * <pre>{@code
 * try (Agent bob = Agent.builder()
 *         .server("127.0.0.1:22866")
 *         .caFile(Path.of("baton-data/tls/ca.pem"))
 *         .id("bob")
 *         .key(Keys.load(Path.of("bob.pem")))
 *         .onHandoff(offer -> {
 *             OwnedTask task = offer.accept().complete();
 *             task.finish(Map.of(), "done");
 *         })
 *         .connect()) {
 *     bob.awaitEnd();
 * }
 * }</pre>
 *
 * <p>When the session ends, the agent opens another, after the delay that the broker named or with a backoff of 0.1 to
 * 30 s, and sends every unanswered envelope again, byte for byte. The agent ends only when the broker refuses
 * permanently or its certificate is not trusted. An agent is thread-safe.
 */
public final class Agent implements AutoCloseable {
    /** The agent id of the broker itself. */
    public static final String BROKER_ID = "baton";

    /** The loan timeout of a delegation for which neither the request nor the call names a time: one hour. */
    public static final Duration LOAN_TIMEOUT = Duration.ofHours(1);

    private static final System.Logger LOG = System.getLogger("dev.baton");
    private static final Duration GRACE = Duration.ofSeconds(10);
    /** The time in which a notice is expected of what the broker shows already. */
    static final Duration NOTICE_TIME = Duration.ofSeconds(1);
    /** The number of handled messages without a confirmed ack that are remembered. */
    private static final int HANDLED_MAX = 4096;
    private static final int PAGE_SIZE = 500;
    /** The age of a message from which a refusal of its time is due to the wait, and not to a wrong clock. */
    private static final Duration SIGN_AGAIN_AFTER = Duration.ofSeconds(1);
    /** The maximum number of agents on a page of findAgents. */
    private static final int FOUND_MAX = 1000;

    private final String id;
    private final String keyId;
    private final KeyPair key;
    private final Clock clock;
    private final Duration sendTimeout;
    private final int capacity;
    private final Duration lookInterval;
    private final ViewListener viewListener;
    private final Connection connection;
    private final Directory directory;
    private final Dispatcher dispatcher;
    private final Link link;
    private final String instanceId = UUID.randomUUID().toString();
    private final Workload workload;
    private final ScheduledExecutorService scheduler;
    private final ExecutorService executor;
    private final ExecutorService sorter;
    private final Set<Delivery.Key> handled = Collections.newSetFromMap(new LinkedHashMap<>() {
        private static final long serialVersionUID = 1;

        @Override
        protected boolean removeEldestEntry(Map.Entry<Delivery.Key, Boolean> eldest) {
            return size() > HANDLED_MAX;
        }
    });
    private final KnownSections knownSections = new KnownSections();
    private final Set<Watch<?>> watches = ConcurrentHashMap.newKeySet();
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
        viewListener = from.viewListener;
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
                from.token,
                from.operatorToken,
                from.keepAliveTime,
                from.interceptors);
        directory = new Directory(this::getAgent, from.pinnedKeys, from.operatorKeys, clock);
        dispatcher = new Dispatcher(this, executor, from);
        Hello hello = Hello.newBuilder().setInstanceId(instanceId).setTellsWork(true).build();
        Link.Events events =
                new Link.Events(this::welcomed, this::reconnected, this::arrived, this::beat, dispatcher::fail);
        link = new Link(connection, scheduler, events, hello, from.credit);
        workload = new Workload(link::beatSoon);
    }

    /** Returns a builder for an agent. */
    public static AgentBuilder builder() {
        return new AgentBuilder();
    }

    /** Returns the agent's id. */
    public String id() {
        return id;
    }

    /** Returns the id of this process, a UUID: what belongs to something that it has begun goes to it while it is connected. */
    public String instanceId() {
        return instanceId;
    }

    /** Returns the broker's welcome on the present session: its id, its key and its timing parameters. */
    public Welcome welcome() {
        return welcome;
    }

    /**
     * Sets the payload of the agent's heartbeats from now on; the agent sets active_tasks, capacity and working_on
     * itself.
     */
    public void setHeartbeat(Heartbeat heartbeat) {
        this.heartbeat = heartbeat;
    }

    // Identity.

    /**
     * Registers this agent's card, with its id, capacity and key filled in, or updates it. Registering the same card
     * again is not an error. Throws {@link BatonException}, CHALLENGE_FAILED if the id is registered with another key.
     */
    public dev.baton.v1.Agent register(AgentCard card) {
        return register(card, "");
    }

    /**
     * As {@link #register(AgentCard)}, with an invitation's secret, which permits a new agent to register where only
     * operators may.
     */
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
            // The agent is registered with another card. It may change its own card once it has proven its identity.
            connection.prove();
            return connection.agents(stub -> stub.registerAgent(request)).getAgent();
        }
    }

    /**
     * Creates an invitation and returns its secret, which registers one new agent: this id, or any id if empty.
     */
    public String invite(String agentId, Duration lifetime) {
        CreateInvitationRequest request = CreateInvitationRequest.newBuilder()
                .setAgentId(agentId)
                .setLifetime(Times.ofDuration(lifetime))
                .build();
        return connection.agents(stub -> stub.createInvitation(request)).getInvitation();
    }

    /** Adds a key to an agent. The keys that it replaces stay valid for the grace. */
    public dev.baton.v1.Agent addKey(String agentId, AgentKey added, Collection<String> replaces, Duration grace) {
        AddAgentKeyRequest request = AddAgentKeyRequest.newBuilder()
                .setAgentId(agentId)
                .setKey(added)
                .addAllReplacedKeyIds(replaces)
                .setGrace(Times.ofDuration(grace))
                .build();
        return connection.agents(stub -> stub.addAgentKey(request)).getAgent();
    }

    /** Revokes a key of an agent permanently: the broker refuses every signature made with it. */
    public dev.baton.v1.Agent revokeKey(String agentId, String revokedKeyId, String reason) {
        RevokeAgentKeyRequest request = RevokeAgentKeyRequest.newBuilder()
                .setAgentId(agentId)
                .setKeyId(revokedKeyId)
                .setReasonText(reason)
                .build();
        return connection.agents(stub -> stub.revokeAgentKey(request)).getAgent();
    }

    /** Adds an operator's voucher for a key of an agent: see {@link Signing#vouch}. */
    public dev.baton.v1.Agent vouchForKey(String agentId, String vouchedKeyId, KeyVoucher voucher) {
        VouchForAgentKeyRequest request = VouchForAgentKeyRequest.newBuilder()
                .setAgentId(agentId)
                .setKeyId(vouchedKeyId)
                .setVoucher(voucher)
                .build();
        return connection.agents(stub -> stub.vouchForAgentKey(request)).getAgent();
    }

    /**
     * Signs a challenge to obtain the token that later calls carry, or returns that of {@link AgentBuilder#token}.
     * {@link #connect} calls this.
     */
    public String proveIdentity() {
        return connection.prove();
    }

    // The session.

    /** Proves the agent's identity and opens the session; deliveries and heartbeats begin. Tries once. */
    public Welcome connect() throws InterruptedException {
        link.begin("baton-link-" + id);
        dispatcher.begin();
        return welcome;
    }

    /** Waits until the agent is closed. Throws {@link BatonException} if the agent ends before. */
    public void awaitEnd() throws InterruptedException {
        link.awaitOver();
    }

    /** Closes the agent with a grace of 10 s: see {@link #close(Duration)}. */
    @Override
    public void close() {
        close(GRACE);
    }

    /**
     * Accepts no more mail, waits up to the grace for the listeners, then closes the session and the connection.
     * Deliveries that a listener still holds after the grace, and mail that was never read, are nacked as SHUTDOWN.
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
        watches.forEach(watch -> watch.fail(SessionEndedException.plain()));
        link.close();
        dispatcher.fail(SessionEndedException.plain());
        executor.shutdown();
        scheduler.shutdownNow();
        connection.close();
    }

    /** Sets the maximum number of unacknowledged deliveries: 0 (a pause) to 4096. */
    public void setCredit(int outstandingMax) throws InterruptedException {
        link.credit(outstandingMax);
    }

    /**
     * Waits for the next message, for agents without listeners; returns empty if none arrives in time. Each sender's
     * signature is verified end to end. A message that does not verify is not returned: the agent nacks it as POISON,
     * and the broker keeps it as a dead letter. Throws {@link BatonException} after the agent's end.
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

    /**
     * Returns what waits in this agent's mailbox now, in order, and takes nothing: no delivery is outstanding after it, no
     * attempt counts, and the delivery_id is empty. Each sender's signature is verified; messages that do not verify are
     * left out.
     */
    public List<dev.baton.v1.Delivery> peek() {
        ReceiveRequest request = ReceiveRequest.newBuilder()
                .setInstanceId(instanceId)
                .setPeek(true)
                .build();
        List<ReceiveResponse> answers = connection.broker(stub -> {
            List<ReceiveResponse> all = new ArrayList<>();
            stub.receive(request).forEachRemaining(all::add);
            return all;
        });
        return answers.stream()
                .map(ReceiveResponse::getDelivery)
                .filter(delivery -> isVerified(delivery.getEnvelope()))
                .toList();
    }

    private boolean isVerified(Envelope envelope) {
        try {
            directory.verify(envelope);
            return true;
        } catch (VerificationException e) {
            LOG.log(Level.WARNING, "message {0}: {1}", envelope.getMessageId(), e.getMessage());
            return false;
        }
    }

    // Sending.

    /**
     * Returns a signed envelope of this agent around a payload of baton.v1, with the current time. Throws
     * {@link BatonException}, FIELD_INVALID, for a result over 262144 bytes of JSON, data over 65536 bytes, objects nested
     * more than 32 deep, numbers that are not finite, and text with half a surrogate pair.
     */
    public Envelope envelope(String receiverId, Envelopes.About about, Message payload) {
        PayloadCheck.check(payload);
        return Signing.sign(Envelopes.make(payload, id, receiverId, about, clock.instant()), keyId, key);
    }

    /**
     * Signs and sends a payload of baton.v1. Returns the broker's receipt, its signature verified. After a lost
     * connection the agent sends the same bytes again, until the broker answers. If the message has waited longer than
     * the broker's clock window, the agent signs it again, with the present time and the same id. Throws
     * {@link BatonException} if the broker refuses or does not answer in time; {@link VerificationException} if the
     * broker did not sign the receipt.
     */
    public Receipt send(String receiverId, Envelopes.About about, Message payload) throws InterruptedException {
        return sendOwn(envelope(receiverId, about, payload));
    }

    /**
     * Sends a signed envelope unchanged. A repeated envelope gets its first receipt again. An envelope outside the
     * schema's bounds is not sent; the exception has the broker's reason: PAYLOAD_TOO_LARGE over 1 MiB, FIELD_INVALID
     * for an overlong id.
     */
    public Receipt send(Envelope envelope) throws InterruptedException {
        return send(envelope, sendTimeout);
    }

    /** Sends an envelope that this agent made and signed, as {@link #send(String, Envelopes.About, Message)} does. */
    Receipt sendOwn(Envelope envelope) throws InterruptedException {
        return sendOwn(envelope, sendTimeout);
    }

    Receipt sendOwn(Envelope envelope, Duration within) throws InterruptedException {
        Deadline deadline = Deadline.in(within);
        try {
            return send(envelope, within);
        } catch (BatonException e) {
            Instant made = Times.toInstant(envelope.getTimestamp());
            boolean isOld = Duration.between(made, clock.instant()).compareTo(SIGN_AGAIN_AFTER) >= 0;
            if (!isOld || !e.reason().equals("TIMESTAMP_OUTSIDE_WINDOW")) {
                throw e;
            }
        }
        // The broker detects a repeat before it checks the time, so it has not accepted the message.
        Envelope anew = envelope.toBuilder().setTimestamp(Times.ofInstant(clock.instant())).build();
        return send(Signing.sign(anew, keyId, key), deadline.leftAtMost(within));
    }

    private Receipt send(Envelope envelope, Duration within) throws InterruptedException {
        Limits.check(envelope);
        Receipt receipt = link.askUntilAnswered(envelope, within);
        AgentKey brokerKey =
                Connection.interruptibly(() -> directory.key(welcome.getBrokerId(), receipt.getKeyId()));
        Signing.verifyReceipt(receipt, brokerKey);
        if (!receipt.getMessageId().equals(envelope.getMessageId())) {
            throw new VerificationException(
                    "SIGNATURE_INVALID", "the receipt is for another message, " + receipt.getMessageId());
        }
        switch (envelope.getMessageType()) {
            case MESSAGE_TYPE_HANDOFF_COMPLETE, MESSAGE_TYPE_TASK_STATUS_UPDATE -> workload.sent(
                    envelope.getTaskId(), envelope.getEpoch(), Envelopes.payloadOf(envelope), receipt);
            default -> {} // of no other message the work begins or ends
        }
        return receipt;
    }

    /** Sends a payload to the sender of a message, or to the requester of an award, with its task, epoch and handoff. */
    public Receipt reply(Delivery<?> to, Message payload) throws InterruptedException {
        Envelope asked = to.envelope();
        Envelopes.About about = new Envelopes.About(asked.getTaskId(), asked.getEpoch(), to.handoffId());
        return send(to.answerTo(), about, payload);
    }

    /**
     * Sends the context to the candidate of a delivered HandoffAccept: the sections that it wants, or all. Applies the
     * filters of its wishes, and sends a change to the version that the candidate has where that is less.
     */
    public Receipt sendContext(Delivery<?> accept, List<ContextSection> sections) throws InterruptedException {
        HandoffAccept wanted =
                accept.payload() instanceof HandoffAccept asked ? asked : HandoffAccept.getDefaultInstance();
        Envelope envelope = accept.envelope();
        ContextWanted context = new ContextWanted(
                accept.handoffId(),
                envelope.getTaskId(),
                envelope.getEpoch(),
                accept.answerTo(),
                wanted.getWantedSectionsList(),
                wanted.getWishesList());
        return Handover.sendContext(this, context, sections);
    }

    /**
     * Hands a task over: sends the request, waits for an accept, sends the context and waits for the end. An unknown
     * task id creates the task, owned by this agent at epoch 1.
     *
     * <p>Returns within the request's whole timeout. Throws {@link HandoffFailedException} if the task stays with this
     * agent; {@link BatonException} if the broker refuses the request or the context, or if the context is over 1 MiB,
     * in which case nothing is sent; {@link WaitedForException} if another call hands the task over at this epoch. If the
     * caller is interrupted, the handoff stays open for {@link #resumeHandOver}
     * until its timeouts.
     */
    public HandedOver handOver(
            String receiverId, String taskId, long epoch, HandoffRequest request, List<ContextSection> context)
            throws InterruptedException {
        return handOver(workload.of(taskId, epoch), receiverId, request, context, null);
    }

    /**
     * As {@link #handOver(String, String, long, HandoffRequest, List)}, with a limit for the whole call. At the limit the
     * agent cancels the handoff, for about 10 s at most, and throws {@link HandoffFailedException}, HANDOFF_CANCELLED: the
     * task stays with this agent. A task that has moved just before is handed over. Throws {@link BatonException},
     * DEADLINE_EXCEEDED, if the handoff could not be cancelled; its timeouts end it. A null limit stands for none.
     */
    public HandedOver handOver(
            String receiverId,
            String taskId,
            long epoch,
            HandoffRequest request,
            List<ContextSection> context,
            Duration limit)
            throws InterruptedException {
        return handOver(workload.of(taskId, epoch), receiverId, request, context, limit);
    }

    /** As the public call, for a task of which this process may know the ownership. A null limit stands for none. */
    HandedOver handOver(
            Tenure tenure, String receiverId, HandoffRequest request, List<ContextSection> context, Duration limit)
            throws InterruptedException {
        Handover.checkContext(context);
        Envelopes.About about = Envelopes.About.task(tenure.taskId(), tenure.epoch());
        Envelope envelope = envelope(receiverId, about, Parents.named(this, about, request));
        return handOver(tenure, envelope, context, limit == null ? Deadline.none() : Deadline.in(limit));
    }

    /** Hands a task over, and notes what that means for its ownership. At the deadline the handoff is cancelled. */
    HandedOver handOver(Tenure tenure, Envelope request, List<ContextSection> context, Deadline deadline)
            throws InterruptedException {
        Dispatcher.Handing handing = dispatcher.hands(request.getTaskId(), request.getEpoch());
        tenure.away();
        try {
            HandedOver handed = handOver(request, context, deadline, true);
            workload.over(tenure);
            return handed;
        } catch (HandoffFailedException e) {
            tenure.kept();
            throw e;
        } catch (BatonException e) {
            if (!e.isPassing()) {
                tenure.kept();
            }
            throw e;
        } finally {
            dispatcher.handsNoMore(handing);
        }
    }

    /** As the public call, for a request or an award. At the deadline the handoff is cancelled, or left as it is. */
    private HandedOver handOver(Envelope request, List<ContextSection> context, Deadline deadline, boolean isCancelled)
            throws InterruptedException {
        String handoffId = request.getMessageId();
        show(handoffId, SenderView.SENDER_VIEW_IDLE);
        Conversation conversation = dispatcher.conversation(handoffId, request.getTaskId(), request.getEpoch());
        Handover handover = new Handover(this, conversation, context, request);
        try {
            show(handoffId, SenderView.SENDER_VIEW_HANDOFF_INITIATED);
            sendOwn(request, deadline.leftAtMost(sendTimeout));
            show(handoffId, SenderView.SENDER_VIEW_AWAITING_HANDOFF_ACCEPT);
            return handover.end(deadline);
        } catch (BatonException e) {
            if (!isCancelled || e.code() != Status.Code.DEADLINE_EXCEEDED || !deadline.isOver()) {
                throw e;
            }
            return handover.endAtLimit();
        } finally {
            dispatcher.close(handoffId, conversation);
        }
    }

    /**
     * Continues a handoff that an earlier process of this agent requested, from any state, to its end. Returns or
     * throws as {@link #handOver}, also when the handoff has ended meanwhile. {@link #ownedTasks} lists the open
     * handoffs. Throws {@link BatonException}, NOT_OWNER if another agent requested the handoff, PERMISSION_DENIED if
     * this agent is not a party of it.
     */
    public HandedOver resumeHandOver(String handoffId, List<ContextSection> context) throws InterruptedException {
        Handover.checkContext(context);
        Conversation conversation = dispatcher.resumed(handoffId);
        Dispatcher.Handing handing = null;
        try {
            Handoff handoff = readHandoff(handoffId);
            conversation.isAbout(handoff.getTaskId(), handoff.getEpoch());
            if (!handoff.getSenderId().equals(id)) {
                String text = "handoff " + handoffId + " was asked for by " + handoff.getSenderId();
                throw new BatonException(
                        Status.Code.PERMISSION_DENIED, text, "NOT_OWNER", Map.of(), List.of(), null);
            }
            if (Handover.isOpen(handoff)) {
                handing = dispatcher.handsAlso(handoff.getTaskId(), handoff.getEpoch());
            }
            Handover handover = new Handover(
                    this, conversation, context, handoffId, handoff.getTaskId(), handoff.getEpoch());
            HandedOver ended = handover.goOnFrom(handoff);
            return ended != null ? ended : handover.end(Deadline.none());
        } finally {
            if (handing != null) {
                dispatcher.handsNoMore(handing);
            }
            dispatcher.close(handoffId, conversation);
        }
    }

    /**
     * Lends a task, and waits for its final status. The broker's timeouts bound the call, that of the handoff and that of
     * the loan: see {@link #delegate(String, String, long, HandoffRequest, List, Duration)}.
     */
    public Outcome delegate(
            String receiverId, String taskId, long epoch, HandoffRequest request, List<ContextSection> context)
            throws InterruptedException {
        return delegate(workload.of(taskId, epoch), receiverId, request, context, null, null);
    }

    /**
     * Lends a task, and waits for its final status: {@link #handOver} with HANDOFF_MODE_DELEGATE, then the result. On
     * return this agent owns the task again, at the next epoch.
     *
     * <p>The limit is for the whole call. The request's loan_timeout, 1 s to 30 days, is the time after the completion
     * at which the broker returns the task without a result; default: the limit, or {@link #LOAN_TIMEOUT} without one.
     * At the limit, and when the caller is interrupted, the agent takes the task back: it recalls it, or cancels a
     * handoff that is still open, for about 10 s at most.
     *
     * <p>Throws {@link TaskRecalledException} if the task came back without a result: by its loan timeout, the limit, a
     * recall, the silence of the delegate, or because the task was cancelled; {@link HandoffFailedException} if the task
     * was not lent: NO_CANDIDATE after rejections, HANDOFF_CANCELLED at the limit, and others as {@link #handOver};
     * {@link WaitedForException} if another call of this object hands the task over, or waits for its result. The
     * call reads the state at the broker at least every 5 s, so it ends as well if another process of this agent got the
     * result. After a restart, {@link #waitForLoan} goes on with the wait; without it, {@link #ownedTasks} lists the
     * task once it is back, and the listener of TaskStatusUpdate gets its final status.
     */
    public Outcome delegate(
            String receiverId,
            String taskId,
            long epoch,
            HandoffRequest request,
            List<ContextSection> context,
            Duration limit)
            throws InterruptedException {
        return delegate(receiverId, taskId, epoch, request, context, limit, null);
    }

    /**
     * As {@link #delegate(String, String, long, HandoffRequest, List, Duration)}, with a listener that gets each status
     * update of the lent task while the call waits: the progress, the details, a question. An error of that watch does
     * not end the call. A null limit stands for none, a null listener too.
     */
    public Outcome delegate(
            String receiverId,
            String taskId,
            long epoch,
            HandoffRequest request,
            List<ContextSection> context,
            Duration limit,
            ProgressListener onProgress)
            throws InterruptedException {
        return delegate(workload.of(taskId, epoch), receiverId, request, context, limit, onProgress);
    }

    /** As the public call, for a task of which this process may know the ownership. A null stands for none. */
    Outcome delegate(
            Tenure tenure,
            String receiverId,
            HandoffRequest request,
            List<ContextSection> context,
            Duration limit,
            ProgressListener onProgress)
            throws InterruptedException {
        Handover.checkContext(context);
        Dispatcher.Handing handing = dispatcher.hands(tenure.taskId(), tenure.epoch());
        try {
            return delegateOnce(tenure, receiverId, request, context, limit, onProgress);
        } finally {
            dispatcher.handsNoMore(handing);
        }
    }

    private Outcome delegateOnce(
            Tenure tenure,
            String receiverId,
            HandoffRequest request,
            List<ContextSection> context,
            Duration limit,
            ProgressListener onProgress)
            throws InterruptedException {
        // Without a limit the broker's timeouts end the call: those of the handoff, and that of the loan, which a question
        // and an extension move.
        Deadline deadline = limit == null ? Deadline.none() : Deadline.in(limit);
        Envelopes.About about = Envelopes.About.task(tenure.taskId(), tenure.epoch());
        HandoffRequest lent = Parents.named(this, about, Loan.requestOf(request, limit));
        Envelope envelope = envelope(receiverId, about, lent);
        Conversation results = dispatcher.results(about.taskId(), about.epoch() + 1);
        Loan loan = new Loan(this, results, envelope, onProgress);
        tenure.away();
        try {
            Outcome outcome = lend(loan, envelope, context, deadline);
            tenure.owned(outcome.epoch());
            return outcome;
        } catch (InterruptedException e) {
            loan.takeBackOfInterrupted(tenure);
            throw e;
        } catch (TaskRecalledException e) {
            if (e.isOwner() && e.reason() != TaskRecalledException.Reason.CANCELED) {
                tenure.owned(e.epoch());
            } else {
                workload.over(tenure);
            }
            // Where the limit is the loan timeout too, either of the two passes first.
            boolean isOneTime = limit != null && !request.hasLoanTimeout();
            throw isOneTime ? Loan.byLimit(e, TaskRecalledException.Reason.LOAN_TIMEOUT) : e;
        } catch (HandoffFailedException e) {
            tenure.kept();
            throw e;
        } catch (BatonException e) {
            if (!e.isPassing()) {
                tenure.kept();
            }
            throw e;
        } finally {
            dispatcher.closeResults(about.taskId(), results);
        }
    }

    private Outcome lend(Loan loan, Envelope request, List<ContextSection> context, Deadline deadline)
            throws InterruptedException {
        try {
            return loan.outcome(handOver(request, context, deadline, false), deadline);
        } catch (BatonException e) {
            if (e.code() != Status.Code.DEADLINE_EXCEEDED || !deadline.isOver()) {
                throw e;
            }
            return loan.endAtDeadline();
        }
    }

    /** As {@link #waitForLoan(String, List, ProgressListener)}, without a context and a listener. */
    public Outcome waitForLoan(String handoffId) throws InterruptedException {
        return waitForLoan(handoffId, null, null);
    }

    /**
     * Waits for the final status of a task that a handoff of this agent lends, also one of an earlier process. Returns or
     * throws as {@link #delegate(String, String, long, HandoffRequest, List, Duration)}, also when the loan has ended
     * meanwhile. Of a handoff that is still open, the context goes to the agent that accepts; without one, null, the
     * context provider gives it, or another call. The end of this wait ends nothing: an interrupted call leaves the loan
     * as it is, and the call has no time limit of its own. The listener, or null, gets each status update of the lent
     * task from the takeover on.
     *
     * <p>Throws {@link BatonException}: HANDOFF_UNKNOWN; NOT_OWNER if another agent requested the handoff; NOT_LENT if it
     * lends nothing, or if the task has been handed on since the loan ended. Throws {@link WaitedForException} while
     * another call of this object waits for the task.
     */
    public Outcome waitForLoan(String handoffId, List<ContextSection> context, ProgressListener onProgress)
            throws InterruptedException {
        if (context != null) {
            Handover.checkContext(context);
        }
        Handoff handoff = readHandoff(handoffId);
        Loan.check(this, handoff);
        String taskId = handoff.getTaskId();
        Tenure tenure = workload.of(taskId, handoff.getEpoch());
        Conversation results = dispatcher.results(taskId, handoff.getEpoch() + 1);
        try {
            HandedOver lent = lentBy(handoff, context);
            Envelope request = Envelope.newBuilder()
                    .setMessageId(handoffId)
                    .setTaskId(taskId)
                    .setEpoch(handoff.getEpoch())
                    .build();
            Outcome outcome = new Loan(this, results, request, onProgress).outcomeOfEarlier(lent);
            tenure.owned(outcome.epoch());
            return outcome;
        } catch (TaskRecalledException e) {
            if (e.isOwner() && e.reason() != TaskRecalledException.Reason.CANCELED) {
                tenure.owned(e.epoch());
            } else {
                workload.over(tenure);
            }
            throw e;
        } finally {
            dispatcher.closeResults(taskId, results);
        }
    }

    /** Goes on with a handoff until it has lent the task. Throws {@link HandoffFailedException}. */
    private HandedOver lentBy(Handoff handoff, List<ContextSection> context) throws InterruptedException {
        String handoffId = handoff.getHandoffId();
        if (context != null && Handover.isOpen(handoff)) {
            return resumeHandOver(handoffId, context);
        }
        Handoff last = handoff;
        if (Handover.isOpen(handoff)) {
            try (Watch<Handoff> steps = handoffs().watch(handoffId)) {
                while (!steps.isOver()) {
                    last = steps.next(NOTICE_TIME).orElse(last);
                }
            }
        }
        Handover over =
                new Handover(this, new Conversation("", 0), List.of(), handoffId, last.getTaskId(), last.getEpoch());
        return over.goOnFrom(last);
    }

    /**
     * Takes back the task that a handoff of this agent lent. This agent owns it from the receipt on. The loans within
     * this one end too, and an open handoff of the task is cancelled. The broker tells the agents that work on the
     * task. Throws {@link BatonException}, NOT_LENT if the loan has ended or the handoff did not lend the task,
     * NOT_OWNER if another agent lent it.
     */
    public OwnedTask recall(String handoffId, String reason) throws InterruptedException {
        Handoff handoff = readHandoff(handoffId);
        String taskId = handoff.getTaskId();
        Envelopes.About about = new Envelopes.About(taskId, handoff.getEpoch(), handoffId);
        Receipt receipt = send("", about, TaskRecall.newBuilder().setReasonText(reason).build());
        dispatcher.returned(taskId, handoffId, receipt.getEpoch());
        Tenure tenure = workload.of(taskId, receipt.getEpoch());
        return new OwnedTask(this, tenure, receipt.getTaskStatus(), "", false);
    }

    /**
     * Begins a task that this agent owns, at epoch 1 and without a handoff. Its context, workspace, runs and threads can
     * begin at once, and it can be handed over later. Within a listener of handoffs the new task is a part of the
     * listener's: see {@link Parents}. Throws {@link BatonException}, TASK_EXISTS if this agent takes part in a task with
     * this id, NOT_OWNER if only others do.
     */
    public OwnedTask createTask(String taskId, TaskCreate create) throws InterruptedException {
        Receipt receipt = send("", Envelopes.About.task(taskId, 1), Parents.named(this, taskId, create));
        Tenure tenure = workload.of(taskId, receipt.getEpoch());
        return new OwnedTask(this, tenure, receipt.getTaskStatus(), "", false);
    }

    // The directory.

    /**
     * Returns the agents that fit a piece of work, best first, at most this many. Asks no agent. Sets the request's
     * paging fields. The order may change between two pages of 1000 agents; an agent that moves back then occurs twice.
     * {@link Explanation#of} has the reasons for a rank. Throws {@link BatonException}: FIELD_INVALID for a field out of
     * its bounds, SENDER_MISMATCH if the agent searches as another one.
     */
    public List<AgentMatch> findAgents(FindAgentsRequest request, int limit) {
        List<AgentMatch> found = new ArrayList<>();
        FindAgentsRequest.Builder page = request.toBuilder().clearPageToken();
        boolean isMore = true;
        while (isMore && found.size() < limit) {
            FindAgentsRequest asked = page.setPageSize(Math.min(limit - found.size(), FOUND_MAX)).build();
            FindAgentsResponse answer = connection.agents(stub -> stub.findAgents(asked));
            found.addAll(answer.getMatchesList());
            page.setPageToken(answer.getNextPageToken());
            isMore = !page.getPageToken().isEmpty();
        }
        return found;
    }

    /**
     * Returns the processes of an agent that have an open session, in the order in which they came, at most 100. Each names
     * at most 20 tasks that it works on, without those that this agent may not see. Throws {@link BatonException},
     * AGENT_UNKNOWN.
     */
    public List<dev.baton.v1.Process> listProcesses(String agentId) {
        ListProcessesRequest request =
                ListProcessesRequest.newBuilder().setAgentId(agentId).build();
        return connection.agents(stub -> stub.listProcesses(request)).getProcessesList();
    }

    /** Returns the agents that match the request's filters, in the order of their ids. */
    public List<dev.baton.v1.Agent> listAgents(ListAgentsRequest filters) {
        List<dev.baton.v1.Agent> agents = new ArrayList<>();
        ListAgentsRequest.Builder page = filters.toBuilder().setPageSize(PAGE_SIZE).clearPageToken();
        do {
            ListAgentsRequest asked = page.build();
            ListAgentsResponse answer = connection.agents(stub -> stub.listAgents(asked));
            agents.addAll(answer.getAgentsList());
            page.setPageToken(answer.getNextPageToken());
        } while (!page.getPageToken().isEmpty());
        return agents;
    }

    /**
     * Replaces fields of an agent's card: agent_types, description, skills, capacity, metadata or decides_within; all of
     * them if none is named. The card's agent_id names the agent. With an etag, that of {@link #getAgent}, the call throws
     * {@link BatonException}, CONFLICT, if the agent has changed since; an empty one applies to any version. Another
     * field is refused with FIELD_INVALID. Returns the updated registration.
     */
    public dev.baton.v1.Agent updateAgent(AgentCard card, String etag, String... fields) {
        UpdateAgentRequest request = UpdateAgentRequest.newBuilder()
                .setCard(card)
                .setEtag(etag)
                .setUpdateMask(FieldMask.newBuilder().addAllPaths(List.of(fields)))
                .build();
        return connection.agents(stub -> stub.updateAgent(request)).getAgent();
    }

    /**
     * Removes an agent permanently: its keys are revoked, its sessions end, and its id is never used again. Throws
     * {@link BatonException}, AGENT_BUSY, if the agent owns open tasks or takes part in open handoffs, unless it is
     * forced. The reason has at most 1024 bytes, for the audit log. A repetition has no effect.
     */
    public dev.baton.v1.Agent deregisterAgent(String agentId, String reason, boolean isForced) {
        DeregisterAgentRequest request = DeregisterAgentRequest.newBuilder()
                .setAgentId(agentId)
                .setReasonText(reason)
                .setForce(isForced)
                .build();
        return connection.agents(stub -> stub.deregisterAgent(request)).getAgent();
    }

    /**
     * Follows the directory: the agents that changed after the request's cursor, or all of them for 0, then one
     * caught_up, then each change. No change is missed; of several changes of one agent the last may come alone. A later
     * process goes on from the cursor of the last event that it handled.
     */
    public Watch<WatchAgentsResponse> watchAgents(WatchAgentsRequest request) {
        return watch("agents", new Watch.Source<>() {
            private long cursor = request.getAfterCursor();
            private boolean isCaughtUp;

            @Override
            public Iterator<WatchAgentsResponse> open() {
                WatchAgentsRequest asked = request.toBuilder().setAfterCursor(cursor).build();
                return connection.watchAgents(stub -> stub.watchAgents(asked));
            }

            @Override
            public boolean take(WatchAgentsResponse event) {
                cursor = Math.max(cursor, event.getCursor());
                boolean isRepeated = event.getCaughtUp() && isCaughtUp;
                isCaughtUp = isCaughtUp || event.getCaughtUp();
                return !isRepeated;
            }
        });
    }

    // Workspaces and runs.

    /** Returns the workspace with this id, for example {@code task:crash-7}. Sends nothing. */
    public Workspace workspace(String workspaceId) {
        return new Workspace(this, connection, directory, workspaceId, false);
    }

    /** Returns the JSON Schemas of contexts. */
    public Schemas schemas() {
        return new Schemas(this, connection);
    }

    /** Returns the versions of the contexts of tasks. */
    public Contexts contexts() {
        return new Contexts(connection, knownSections);
    }

    /** Returns the blobs: content that is too large for a message. */
    public Blobs blobs() {
        return new Blobs(connection, sendTimeout);
    }

    /** Returns the bases of the deltas of contexts. */
    KnownSections knownSections() {
        return knownSections;
    }

    /** Stores a context of a task that this agent owns at this epoch: see {@link OwnedTask#checkpoint}. */
    Receipt checkpoint(String taskId, long epoch, List<ContextSection> sections) throws InterruptedException {
        Sections.Shortened context = Sections.withDeltas(sections, name -> knownSections.get(taskId, name));
        Receipt receipt;
        try {
            receipt = sendCheckpoint(taskId, epoch, context.sent());
        } catch (BatonException e) {
            if (!Handover.isBaseUnknown(e)) {
                throw e;
            }
            // The broker has another version than this process. The whole sections need no base.
            knownSections.forget(taskId);
            receipt = sendCheckpoint(taskId, epoch, context.whole());
        }
        knownSections.note(taskId, context.whole());
        return receipt;
    }

    private Receipt sendCheckpoint(String taskId, long epoch, List<ContextSection> sections)
            throws InterruptedException {
        Message context = Handover.contextOf(sections);
        PayloadCheck.check(context);
        Envelope envelope = Envelopes.make(context, id, "", Envelopes.About.task(taskId, epoch), clock.instant());
        Envelope checkpoint = envelope.toBuilder()
                .setMessageType(MessageType.MESSAGE_TYPE_CONTEXT_CHECKPOINT)
                .build();
        return sendOwn(Signing.sign(checkpoint, keyId, key));
    }

    /** Returns the graphs, and the runs through them. */
    public Routing routing() {
        return new Routing(this, connection);
    }

    /** Returns the negotiations of this agent, and those that it bids in. */
    public Negotiations negotiations() {
        return new Negotiations(this, connection, dispatcher);
    }

    /** Returns the tasks at the broker: lists, watches, and reassignments. */
    public Tasks tasks() {
        return new Tasks(this, connection);
    }

    /** Returns the handoffs at the broker: lists and watches. */
    public Handoffs handoffs() {
        return new Handoffs(this, connection);
    }

    /** Returns the names of graphs, schemas and specs, with their owners. */
    public Registrations registrations() {
        return new Registrations(connection);
    }

    /** Returns the dead letters. */
    public DeadLetters deadLetters() {
        return new DeadLetters(connection);
    }

    /**
     * Returns the entries of the broker's audit log after a number, oldest first; 0: from the first kept one on. By default
     * for operators. Throws {@link BatonException}, PERMISSION_DENIED.
     */
    public List<AuditLogEntry> auditLog(long after) {
        List<AuditLogEntry> found = new ArrayList<>();
        ListAuditEntriesRequest.Builder request =
                ListAuditEntriesRequest.newBuilder().setPageSize(PAGE_SIZE).setAfterNumber(after);
        ListAuditEntriesResponse page;
        do {
            ListAuditEntriesRequest asked = request.build();
            page = connection.audit(stub -> stub.listAuditEntries(asked));
            found.addAll(page.getEntriesList());
            request.setAfterNumber(found.isEmpty() ? after : found.get(found.size() - 1).getEntry().getNumber());
        } while (page.getEntriesCount() > 0 && request.getAfterNumber() < page.getLogLength());
        return found;
    }

    /** Returns the plans of subtasks. */
    public Plans plans() {
        return new Plans(this, connection);
    }

    /** Returns the threads, and the specs of their personas and models. */
    public Threads threads() {
        return new Threads(this, connection);
    }

    /** Begins a watch, which ends with this agent. */
    <T> Watch<T> watch(String name, Watch.Source<T> source) {
        AtomicReference<Watch<T>> begun = new AtomicReference<>();
        Watch<T> watch = new Watch<>(
                connection, "baton-watch-" + id + "-" + name, source, () -> watches.remove(begun.get()));
        begun.set(watch);
        watches.add(watch);
        if (link.isClosing()) {
            watch.fail(SessionEndedException.plain());
        }
        return watch.begin();
    }

    /**
     * Repeats a call that is the same call again, until the broker answers or the send timeout passes. A lease of another
     * runner is an answer.
     */
    <A> A persist(Supplier<A> call) throws InterruptedException {
        Deadline deadline = Deadline.in(sendTimeout);
        Duration backoff = Duration.ofMillis(100);
        while (true) {
            try {
                return Connection.interruptibly(call);
            } catch (BatonException e) {
                boolean isLeased = e.reason().equals("RUN_OPEN");
                if (!e.isPassing() || isLeased || deadline.isOver() || link.isClosing()) {
                    throw e;
                }
                Duration delay = e.retryDelay().orElse(backoff);
                TimeUnit.NANOSECONDS.sleep(deadline.leftAtMost(delay).toNanos());
                backoff = backoff.multipliedBy(2);
            }
        }
    }

    // Questions.

    /**
     * Asks one agent a question about a task that this agent owns at this epoch, and waits for the answer: reports
     * WAITING_FOR_INPUT with the prompt. Throws {@link NoAnswerException} if the question ends without an answer;
     * {@link BatonException} if the broker refuses it, RECEIVER_UNKNOWN if no able agent can be asked, FIELD_INVALID
     * for an invalid prompt. If the caller is interrupted, the question stays open, and its answer goes to the
     * listener of {@link TaskInput}.
     */
    public Answer ask(String taskId, long epoch, TaskPrompt prompt, String details) throws InterruptedException {
        TaskStatusUpdate update = TaskStatusUpdate.newBuilder()
                .setStatus(TaskStatus.TASK_STATUS_WAITING_FOR_INPUT)
                .setDetails(details)
                .setPrompt(prompt)
                .build();
        Envelope envelope = envelope("", Envelopes.About.task(taskId, epoch), update);
        String questionId = envelope.getMessageId();
        // Opened before the question is sent, for the answer may arrive before the receipt.
        Conversation answers = dispatcher.answers(questionId);
        try {
            sendOwn(envelope);
            return Question.answerTo(this, answers, taskId, questionId);
        } finally {
            dispatcher.closeAnswers(questionId, answers);
        }
    }

    /**
     * Continues the wait for the answer to the open question about a task that this agent owns, as {@link #ask}, for a
     * process that did not ask it. If no question is open, returns the answer to the latest one that was answered, also
     * if its mail was acked long ago. Throws {@link NoAnswerException}, WITHDRAWN, if the task has neither.
     */
    public Answer resumeAsk(String taskId) throws InterruptedException {
        Task task = readTask(taskId);
        String questionId = task.getOpenPrompt().getMessageId();
        if (!questionId.isEmpty()) {
            Conversation answers = dispatcher.answers(questionId);
            try {
                answers.wake(); // the answer may have come since the task was read
                return Question.answerTo(this, answers, taskId, questionId);
            } finally {
                dispatcher.closeAnswers(questionId, answers);
            }
        }
        if (task.hasLastAnswer()) {
            return Question.of(task.getLastAnswer());
        }
        String text = "task " + taskId + " has no open question, and none was answered";
        throw new NoAnswerException("", NoAnswerException.Reason.WITHDRAWN, text);
    }

    /**
     * Answers a question to this agent, also one that an earlier process received: see {@link Question#answer}. A null
     * stands for no data.
     */
    public Receipt answer(String taskId, long epoch, String questionId, String text, Map<String, ?> data)
            throws InterruptedException {
        TaskInput.Builder input = TaskInput.newBuilder().setText(text);
        if (data != null) {
            input.setDataJson(Json.text(data, "data_json"));
        }
        return send("", new Envelopes.About(taskId, epoch, questionId), input.build());
    }

    // Queries.

    /**
     * Lists a task in this agent's heartbeats as one that this process works on, until the scope is closed or the task
     * ends or moves: for work on an owned task outside a listener. The tasks of running listeners are listed without it.
     * A request's {@code silence_timeout} judges by it.
     */
    public Parents.Scope workOn(OwnedTask task) {
        workload.beginByHand(task.tenure());
        return () -> workload.endByHand(task.tenure());
    }

    /** Returns an agent's registration; the broker's own id is {@link #BROKER_ID}. */
    public dev.baton.v1.Agent getAgent(String agentId) {
        GetAgentRequest request = GetAgentRequest.newBuilder().setAgentId(agentId).build();
        return connection.agents(stub -> stub.getAgent(request)).getAgent();
    }

    /** Returns a task. */
    public Task getTask(String taskId) {
        GetTaskRequest request = GetTaskRequest.newBuilder().setTaskId(taskId).build();
        return connection.tasks(stub -> stub.getTask(request)).getTask();
    }

    /**
     * Returns the unfinished tasks that this agent owns, newest first: the starting point after a restart.
     * {@link #resumeHandOver} continues the open handoff of a task, if it has one.
     */
    public List<OwnedTask> ownedTasks() {
        ListTasksRequest unfinished = ListTasksRequest.newBuilder()
                .setOwnerId(id)
                .addStatuses(TaskStatus.TASK_STATUS_CREATED)
                .addStatuses(TaskStatus.TASK_STATUS_IN_PROGRESS)
                .addStatuses(TaskStatus.TASK_STATUS_WAITING_FOR_INPUT)
                .build();
        return tasks().list(unfinished).stream()
                .map(task -> OwnedTask.of(this, task))
                .toList();
    }

    /** Returns a handoff: its state, the view of either side, and each step. */
    public Handoff getHandoff(String handoffId) {
        GetHandoffRequest request = GetHandoffRequest.newBuilder().setHandoffId(handoffId).build();
        return connection.handoffs(stub -> stub.getHandoff(request)).getHandoff();
    }

    /** Reads and verifies a task's custody log. Throws {@link VerificationException}, for example CUSTODY_INVALID. */
    public CustodyLog verifyCustody(String taskId) {
        return CustodyLog.read(connection, taskId, directory);
    }

    /** Returns the name of an ErrorNotification's code, as in ErrorInfo.reason. */
    public static String codeOf(ErrorNotification told) {
        return Handover.codeOf(told.getErrorCode(), told.getErrorCodeValue());
    }

    // For the calls of this library.

    /** As {@link #getTask}, for a call that declares InterruptedException. */
    Task readTask(String taskId) throws InterruptedException {
        return Connection.interruptibly(() -> getTask(taskId));
    }

    /** As {@link #getHandoff}, for a call that declares InterruptedException. */
    Handoff readHandoff(String handoffId) throws InterruptedException {
        return Connection.interruptibly(() -> getHandoff(handoffId));
    }

    // For the dispatcher.

    int capacity() {
        return capacity;
    }

    Workload workload() {
        return workload;
    }

    Connection connection() {
        return connection;
    }

    Directory directory() {
        return directory;
    }

    ScheduledExecutorService scheduler() {
        return scheduler;
    }

    /** Tells the listener of views. */
    void show(String handoffId, SenderView view) {
        viewListener.onView(handoffId, view);
    }

    /** The silence after which a side asks the broker for the state of its handoff or delegated task. */
    Duration lookInterval() {
        return lookInterval;
    }

    /** Queues mail that has no listener. */
    void leave(Delivery<?> delivery) {
        if (delivery.attempt() > 1) {
            mail.removeIf(earlier -> earlier.key().equals(delivery.key()));
        }
        mail.add(delivery);
    }

    /** Removes and returns queued mail that a call now waits for. */
    List<Delivery<?>> takeBack(Predicate<Delivery<?>> isWanted) {
        List<Delivery<?>> wanted = new ArrayList<>();
        mail.removeIf(delivery -> isWanted.test(delivery) && wanted.add(delivery));
        return wanted;
    }

    /** Replaces the broker's ack wait, for tests. */
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
        return beat.setCapacity(capacity)
                .clearWorkingOn()
                .addAllWorkingOn(workload.taskIds())
                .build();
    }

    /** A session follows another: asks for tasks to resume, and lets the calls that wait read the state at the broker: now, and once more for what a late notice would say. */
    private void reconnected() {
        dispatcher.wake();
        dispatcher.begin();
        try {
            scheduler.schedule(dispatcher::wake, NOTICE_TIME.toMillis(), TimeUnit.MILLISECONDS);
        } catch (RejectedExecutionException e) {
            // The agent is closed, and with it its calls.
        }
    }

    private void arrived(dev.baton.v1.Delivery delivery) {
        if (!sorter.isShutdown()) {
            sorter.execute(() -> take(delivery));
        }
    }

    /** Verifies a delivery and passes it to the dispatcher. Deliveries are processed in the order of arrival. */
    private void take(dev.baton.v1.Delivery arrived) {
        Envelope envelope = arrived.getEnvelope();
        try {
            // In this order: a message that is handled meanwhile is recorded before it is no longer in work.
            if (dispatcher.renew(arrived)) {
                return;
            }
            if (acknowledger.forget(Delivery.Key.of(arrived))) {
                new Delivery<Message>(arrived, null, acknowledger).ackAgain();
            } else {
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
            Message checked = payload;
            Connection.interruptibly(() -> {
                directory.verify(envelope);
                if (checked instanceof NegotiationClosed closed) {
                    Negotiations.checkMandate(envelope, closed, directory);
                }
                return null;
            });
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
        public void handled(Delivery.Key key) {
            synchronized (handled) {
                handled.add(key);
            }
        }

        @Override
        public boolean forget(Delivery.Key key) {
            synchronized (handled) {
                return handled.remove(key);
            }
        }

        @Override
        public void settled(Delivery<?> delivery) {
            dispatcher.settled(delivery);
        }
    }
}
