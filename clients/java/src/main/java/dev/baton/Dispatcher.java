package dev.baton;

import com.google.protobuf.Message;
import dev.baton.v1.ContextSection;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorCode;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.HandoffAccept;
import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffComplete;
import dev.baton.v1.HandoffReject;
import dev.baton.v1.Info;
import dev.baton.v1.NackCause;
import dev.baton.v1.NegotiationClosed;
import dev.baton.v1.NextStep;
import dev.baton.v1.RejectReason;
import dev.baton.v1.Task;
import dev.baton.v1.TaskContextTransfer;
import dev.baton.v1.TaskDecline;
import dev.baton.v1.TaskInput;
import dev.baton.v1.TaskOffer;
import dev.baton.v1.TaskRequest;
import dev.baton.v1.TaskStatusUpdate;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;

/**
 * The routing of a delivery: to the handoff that waits for it, to a listener, or to the caller that polls the mail.
 * Extends the delivery meanwhile, and acks or nacks it by the listener's outcome.
 */
final class Dispatcher {
    private static final System.Logger LOG = System.getLogger("dev.baton");
    private static final Set<Class<? extends Message>> OF_A_HANDOFF = Set.of(
            TaskContextTransfer.class,
            HandoffCancel.class,
            HandoffAccept.class,
            HandoffReject.class,
            HandoffComplete.class);
    /** Notices: without a listener they are logged and acked. */
    private static final Set<Class<? extends Message>> NEWS = Set.of(
            ErrorNotification.class,
            TaskStatusUpdate.class,
            TaskInput.class,
            HandoffReject.class,
            HandoffCancel.class,
            HandoffComplete.class,
            TaskDecline.class,
            NegotiationClosed.class);

    private static final Duration WAITED_FOR_SOON = Duration.ofSeconds(2);
    private static final Set<String> TOO_LATE =
            Set.of("HANDOFF_EXPIRED", "HANDOFF_FINAL", "HANDOFF_UNKNOWN", "NOT_CANDIDATE", "STALE_EPOCH");
    /** Refusals of an answer that no redelivery of its question mends. */
    private static final Set<String> ANSWERED = Set.of("INPUT_EXPIRED", "INPUT_TAKEN", "STALE_EPOCH", "TASK_FINAL");
    /** Refusals of an answer in a negotiation that has gone on. */
    private static final Set<String> GONE_ON =
            Set.of("NEGOTIATION_CLOSED", "NEGOTIATION_UNKNOWN", "OFFER_NOT_STANDING", "NOT_ASKED", "PERMISSION_DENIED");
    private static final String STOPPING = "the agent is stopping";
    private static final String TOO_LONG = "the listener took too long";

    /** An offer whose listener runs. */
    private record Working(Offer offer, Handling handling) {}

    /** The body of a listener's call. */
    private interface Work {
        void run() throws Exception;
    }

    private final Agent agent;
    private final ExecutorService executor;
    private final HandoffListener handoffListener;
    private final ContextProvider contextProvider;
    private final RecallListener recallListener;
    private final PromptListener promptListener;
    private final Bidding bidding;
    private final Map<Class<? extends Message>, MessageListener<Message>> listeners;
    private final Duration timeout;
    private final Map<String, Conversation> conversations = new ConcurrentHashMap<>();
    private final Map<String, Conversation> results = new ConcurrentHashMap<>();
    private final Map<String, Conversation> answers = new ConcurrentHashMap<>();
    private final Map<String, Conversation> negotiations = new ConcurrentHashMap<>();
    /** The ownerships of tasks that calls hand over, with the number of these calls. */
    private final Map<Handing, Integer> handing = new ConcurrentHashMap<>();
    private final Map<Delivery.Key, Delivery<?>> held = new ConcurrentHashMap<>();
    private final Map<String, Working> offers = new ConcurrentHashMap<>();
    private final Set<Handling> running = ConcurrentHashMap.newKeySet();
    private final AtomicInteger active = new AtomicInteger();
    private final boolean resumes;
    private final Resumption resumption;
    private volatile boolean isStopping;

    Dispatcher(Agent agent, ExecutorService executor, AgentBuilder from) {
        this.agent = agent;
        this.executor = executor;
        this.handoffListener = from.handoffListener;
        this.contextProvider = from.contextProvider;
        this.recallListener = from.recallListener;
        this.promptListener = from.promptListener;
        this.bidding = from.bidListener == null ? null : new Bidding(agent, from.bidListener);
        this.listeners = Map.copyOf(from.listeners);
        this.timeout = from.listenerTimeout;
        this.resumes = from.resumes;
        this.resumption = new Resumption(agent, this, executor);
    }

    boolean hasListeners() {
        boolean hasRoles = handoffListener != null || contextProvider != null || recallListener != null;
        return hasRoles || promptListener != null || bidding != null || !listeners.isEmpty();
    }

    /** The number of handoffs in progress. */
    int activeCount() {
        return active.get();
    }

    /** The number of handoffs that the capacity leaves room for; this many without a capacity. */
    int freeSlots(int unlimited) {
        int capacity = agent.capacity();
        return capacity > 0 ? Math.max(0, capacity - active.get()) : unlimited;
    }

    /** A session has begun: asks for the tasks to resume, if the agent resumes. */
    void begin() {
        if (resumes && handoffListener != null) {
            resumption.begin();
        }
    }

    /** The ownership of a task in one epoch, while a call hands it over. */
    record Handing(String taskId, long epoch) {}

    /**
     * Notes that a call hands a task over, until {@link #handsNoMore}. Throws {@link WaitedForException} if another call
     * does. A task that has come back has a later epoch.
     */
    Handing hands(String taskId, long epoch) {
        Handing one = new Handing(taskId, epoch);
        if (handing.putIfAbsent(one, 1) != null) {
            throw new WaitedForException("task " + taskId);
        }
        return one;
    }

    /** As {@link #hands}, for a handoff that has begun. */
    Handing handsAlso(String taskId, long epoch) {
        Handing one = new Handing(taskId, epoch);
        handing.merge(one, 1, Integer::sum);
        return one;
    }

    void handsNoMore(Handing one) {
        handing.computeIfPresent(one, (key, calls) -> calls == 1 ? null : calls - 1);
    }

    /** Routes the mail of one handoff to a queue, until {@link #close}. */
    Conversation conversation(String handoffId) {
        return open(conversations, handoffId, new Conversation("", 0));
    }

    /** As {@link #conversation(String)}, for the handoff's sender: a recall of the task ends the queue. */
    Conversation conversation(String handoffId, String taskId, long epoch) {
        return open(conversations, handoffId, new Conversation(taskId, epoch));
    }

    /** As {@link #conversation(String)}, for a handoff that goes on. Throws {@link WaitedForException}. */
    Conversation resumed(String handoffId) {
        return openOnce(conversations, "handoff ", handoffId, new Conversation("", 0));
    }

    /**
     * Routes a task's final status from this epoch on to a queue, until {@link #closeResults}. Throws
     * {@link WaitedForException}.
     */
    Conversation results(String taskId, long epoch) {
        return openOnce(results, "task ", taskId, new Conversation(taskId, epoch));
    }

    void close(String handoffId, Conversation conversation) {
        conversations.remove(handoffId, conversation);
        conversation.close().forEach(this::dispatch);
    }

    void closeResults(String taskId, Conversation conversation) {
        results.remove(taskId, conversation);
        conversation.close().forEach(this::dispatch);
    }

    /** Routes the answer to a question to a queue, until {@link #closeAnswers}. Throws {@link WaitedForException}. */
    Conversation answers(String questionId) {
        return openOnce(answers, "question ", questionId, new Conversation("", 0));
    }

    void closeAnswers(String questionId, Conversation conversation) {
        answers.remove(questionId, conversation);
        conversation.close().forEach(this::dispatch);
    }

    /** Routes the mail of a negotiation of this agent to a queue, until {@link #closeNegotiation}. */
    Conversation negotiation(String negotiationId) {
        return openOnce(negotiations, "negotiation ", negotiationId, new Conversation("", 0));
    }

    void closeNegotiation(String negotiationId, Conversation conversation) {
        negotiations.remove(negotiationId, conversation);
        conversation.close().forEach(this::dispatch);
    }

    /** Ends every queue with this error. */
    void fail(BatonException why) {
        conversations.values().forEach(one -> one.fail(why));
        answers.values().forEach(one -> one.fail(why));
        negotiations.values().forEach(one -> one.fail(why));
        results.values().forEach(one -> one.fail(why));
    }

    /** Lets each waiting call read the state at the broker. */
    void wake() {
        conversations.values().forEach(Conversation::wake);
        answers.values().forEach(Conversation::wake);
        negotiations.values().forEach(Conversation::wake);
        results.values().forEach(Conversation::wake);
    }

    /** Ends the wait for the result of a task that this agent has recalled. */
    void returned(String taskId, String handoffId, long epoch) {
        Conversation waiting = results.get(taskId);
        if (waiting != null && waiting.isBefore(taskId, epoch)) {
            TaskRecalledException.Reason reason = TaskRecalledException.Reason.RECALL;
            String text = "this agent recalled the task";
            waiting.fail(new TaskRecalledException(taskId, handoffId, reason, text, epoch, true));
        }
    }

    /** If the broker took a task from this agent: ends the calls and interrupts the listeners that work on it. */
    private void stopWork(Delivery<?> delivery) {
        Recalled recalled = Recalled.of(delivery, agent.welcome().getBrokerId());
        if (recalled == null) {
            return;
        }
        long epoch = recalled.firstValidEpoch();
        agent.workload().lost(recalled.taskId(), epoch);
        conversations.forEach((handoffId, waiting) -> {
            if (waiting.isBefore(recalled.taskId(), epoch)) {
                String text = recalled.message();
                waiting.fail(new HandoffFailedException(handoffId, recalled.code(), text, List.of()));
            }
        });
        Conversation waiting = results.get(recalled.taskId());
        // The queue of results begins with the epoch of the loan, which is one after this agent's own.
        if (waiting != null && waiting.isBefore(recalled.taskId(), epoch + 1)) {
            waiting.fail(recalled.asLoss());
        }
        offers.values().forEach(working -> {
            Offer offer = working.offer();
            boolean isOfTask = offer.taskId().equals(recalled.taskId()) && offer.epoch() < epoch;
            if (isOfTask && !offer.awaitsContext()) {
                working.handling().recall();
            }
        });
    }

    /** Gives a redelivery to the holder of the same message. Returns whether there was a holder. */
    boolean renew(dev.baton.v1.Delivery arrived) {
        Delivery<?> delivery = held.get(Delivery.Key.of(arrived));
        return delivery != null && delivery.renew(arrived);
    }

    /** Forgets a delivery that was acked or nacked. */
    void settled(Delivery<?> delivery) {
        held.remove(delivery.key(), delivery);
    }

    /** Passes a delivery to its queue, its listener or the agent's mail. */
    void dispatch(Delivery<?> delivery) {
        stopWork(delivery);
        if (isGivenToItsConversation(delivery)) {
            return;
        }
        if (hasListeners()) {
            try {
                hold(delivery); // before the next delivery is processed, which may be of the same message
                executor.execute(() -> handle(delivery));
            } catch (RejectedExecutionException e) {
                // The agent is closed: the end of the session gives the delivery back.
            }
            return;
        }
        release(delivery);
        agent.leave(delivery);
        // A conversation opened since the check above did not find the delivery.
        if (waitingFor(delivery) != null && !agent.takeBack(one -> one == delivery).isEmpty()) {
            dispatch(delivery);
        }
    }

    private boolean isGivenToItsConversation(Delivery<?> delivery) {
        Conversation waiting = waitingFor(delivery);
        if (waiting == null) {
            return false;
        }
        hold(delivery);
        return waiting.put(delivery);
    }

    /**
     * Waits up to the grace for the running listeners and for the mail they wait for, then interrupts the rest. Their
     * deliveries, and mail that arrives meanwhile, are nacked as SHUTDOWN.
     */
    void stop(Duration grace) throws InterruptedException {
        isStopping = true;
        long deadlineNanos = System.nanoTime() + grace.toNanos();
        synchronized (running) {
            while (running.stream().anyMatch(Handling::isOfAnother) && System.nanoTime() < deadlineNanos) {
                running.wait(Math.max(1, TimeUnit.NANOSECONDS.toMillis(deadlineNanos - System.nanoTime())));
            }
        }
        running.stream()
                .filter(Handling::isOfAnother)
                .forEach(one -> one.abort(NackCause.NACK_CAUSE_SHUTDOWN, STOPPING));
    }

    private Conversation openOnce(
            Map<String, Conversation> waiting, String kind, String name, Conversation conversation) {
        if (waiting.putIfAbsent(name, conversation) != null) {
            throw new WaitedForException(kind + name);
        }
        return filled(conversation);
    }

    private Conversation open(Map<String, Conversation> waiting, String name, Conversation conversation) {
        waiting.put(name, conversation);
        return filled(conversation);
    }

    /** Gives a conversation the mail that waits for it. */
    private Conversation filled(Conversation conversation) {
        agent.takeBack(delivery -> waitingFor(delivery) == conversation).forEach(this::dispatch);
        return conversation;
    }

    private Conversation waitingFor(Delivery<?> delivery) {
        Message payload = delivery.payload();
        if (payload instanceof TaskStatusUpdate update && Tasks.FINAL.contains(update.getStatus())) {
            Conversation waiting = results.get(delivery.envelope().getTaskId());
            // The status of an earlier loan is a notice. In this queue it would hold back all later mail of the task.
            return waiting != null && waiting.isOfEpoch(delivery.envelope().getEpoch()) ? waiting : null;
        }
        ErrorNotification told = Recalled.noticeOf(delivery, agent.welcome().getBrokerId());
        if (told != null && told.getNextStep() == NextStep.NEXT_STEP_KEEP_TASK) {
            Conversation waiting = results.get(delivery.envelope().getTaskId());
            boolean isOfLoan = waiting != null
                    && waiting.isBefore(delivery.envelope().getTaskId(), delivery.envelope().getEpoch());
            return isOfLoan ? waiting : null;
        }
        if (told != null) {
            // A listener that has the context does not read this queue; it is interrupted.
            Working working = offers.get(delivery.handoffId());
            boolean isWaiting = working != null && working.offer().awaitsContext();
            return isWaiting ? conversations.get(delivery.handoffId()) : null;
        }
        boolean isOfQuestion = payload instanceof TaskInput
                || payload instanceof ErrorNotification expired
                        && expired.getErrorCode() == ErrorCode.ERROR_CODE_INPUT_EXPIRED
                        && delivery.envelope().getSenderId().equals(agent.welcome().getBrokerId());
        if (isOfQuestion) {
            return answers.get(delivery.envelope().getCorrelationId());
        }
        String correlationId = delivery.envelope().getCorrelationId();
        if (payload instanceof TaskOffer || payload instanceof TaskDecline || payload instanceof NegotiationClosed) {
            return delivery.terms() == null ? negotiations.get(correlationId) : null;
        }
        if (OF_A_HANDOFF.contains(payload.getClass())) {
            return conversations.get(delivery.handoffId());
        }
        boolean isNotice = payload instanceof ErrorNotification
                && delivery.envelope().getSenderId().equals(agent.welcome().getBrokerId());
        Conversation waiting = isNotice ? conversations.get(delivery.handoffId()) : null;
        return isNotice && waiting == null ? negotiations.get(correlationId) : waiting;
    }

    private void hold(Delivery<?> delivery) {
        held.put(delivery.key(), delivery);
        delivery.keep();
    }

    private void release(Delivery<?> delivery) {
        settled(delivery);
        delivery.letGo();
    }

    private void handle(Delivery<?> delivery) {
        Message payload = delivery.payload();
        Traces.Scope trace = Traces.begin(delivery.traceContext());
        try {
            MessageListener<Message> listener = listeners.get(payload.getClass());
            boolean isOffer = delivery.terms() != null || payload instanceof TaskContextTransfer;
            if (isStopping) {
                delivery.nack(NackCause.NACK_CAUSE_SHUTDOWN, STOPPING);
            } else if (isOffer && handoffListener != null) {
                offer(delivery);
            } else if (payload instanceof HandoffAccept accept && contextProvider != null) {
                provide(delivery, accept);
            } else if (recallListener != null && Recalled.of(delivery, agent.welcome().getBrokerId()) != null) {
                new Handling(delivery.toString(), () -> delivery).run(() -> tellRecalled(delivery));
            } else if (promptListener != null && payload instanceof TaskStatusUpdate update && update.hasPrompt()) {
                new Handling(delivery.toString(), () -> delivery).run(() -> prompt(delivery, update));
            } else if (bidding != null && bidding.isFor(delivery)) {
                new Handling(delivery.toString(), () -> delivery).run(() -> bid(delivery));
            } else if (listener != null) {
                new Handling(delivery.toString(), () -> delivery).run(() -> listen(listener, delivery));
            } else {
                byDefault(delivery);
            }
        } catch (BatonException e) {
            LOG.log(Level.WARNING, "what became of {0} could not be told: {1}", delivery, e.getMessage());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } finally {
            release(delivery); // one that could not be settled comes again
            trace.close();
        }
    }

    @SuppressWarnings("unchecked")
    private static void listen(MessageListener<Message> listener, Delivery<?> delivery) throws Exception {
        listener.onMessage((Delivery<Message>) delivery);
        if (!delivery.isSettled()) {
            delivery.ackForSure();
        }
    }

    private void tellRecalled(Delivery<?> delivery) throws Exception {
        recallListener.onRecalled(Recalled.of(delivery, agent.welcome().getBrokerId()));
        delivery.ackForSure();
    }

    private void prompt(Delivery<?> delivery, TaskStatusUpdate update) throws Exception {
        try {
            promptListener.onPrompt(new Question(agent, delivery.envelope(), update));
        } catch (BatonException e) {
            if (!ANSWERED.contains(e.reason())) {
                throw e;
            }
            LOG.log(Level.WARNING, "{0} is no longer open: {1}", delivery, e.getMessage());
        }
        delivery.ackForSure();
    }

    private void bid(Delivery<?> delivery) throws Exception {
        try {
            bidding.answer(delivery);
        } catch (BatonException e) {
            if (!GONE_ON.contains(e.reason())) {
                throw e;
            }
            LOG.log(Level.INFO, "{0} has gone on without an offer: {1}", delivery, e.getMessage());
        }
        delivery.ackForSure();
    }

    private void offer(Delivery<?> delivery) throws InterruptedException {
        int capacity = agent.capacity();
        int working = active.incrementAndGet();
        try {
            if (delivery.terms() != null && capacity > 0 && working > capacity) {
                String text = "works on " + capacity + " handoffs already";
                reject(delivery, RejectReason.REJECT_REASON_OVERLOADED, text);
                return;
            }
            Conversation mail = conversation(delivery.handoffId());
            work(new Offer(agent, mail, delivery), mail);
        } finally {
            active.decrementAndGet();
            resumption.freed();
        }
    }

    /** Runs the listener of handoffs for a task that this agent owns, and that no process works on. */
    void resume(Task task) {
        if (isStopping || handoffListener == null || agent.workload().hasTask(task.getTaskId())) {
            return;
        }
        active.incrementAndGet();
        try {
            Offer offer = Offer.resumed(agent, task); // lists the task as one that this process works on
            executor.execute(() -> resume(offer));
        } catch (RejectedExecutionException e) {
            active.decrementAndGet(); // the agent is closed
        }
    }

    private void resume(Offer offer) {
        Conversation mail = conversation(offer.handoffId());
        try {
            work(offer, mail);
        } catch (BatonException e) {
            LOG.log(Level.WARNING, "what became of {0} could not be told: {1}", offer.taskId(), e.getMessage());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } finally {
            active.decrementAndGet();
            resumption.freed();
        }
    }

    private void work(Offer offer, Conversation mail) throws InterruptedException {
        try {
            Handling handling = new Handling("handoff " + offer.handoffId(), offer::inHand);
            Throwable thrown = handling.run(() -> decide(offer, handling));
            if (thrown != null) {
                offer.task().ifPresent(task -> Failure.say(agent, task, thrown));
            }
        } finally {
            offer.task().ifPresent(task -> agent.workload().end(task.tenure()));
            close(offer.handoffId(), mail);
        }
    }

    private void decide(Offer offer, Handling handling) throws Exception {
        offers.put(offer.handoffId(), new Working(offer, handling));
        try (Parents.Scope parent = offer.parent()) {
            handoffListener.onHandoff(offer);
        } finally {
            offers.remove(offer.handoffId());
        }
        if (!offer.isOver()) {
            throw new IllegalStateException("the listener has neither rejected nor completed the handoff");
        }
    }

    private void byDefault(Delivery<?> delivery) throws InterruptedException {
        Message payload = delivery.payload();
        if (delivery.terms() != null) {
            reject(delivery, RejectReason.REJECT_REASON_NO_SKILL, "this agent takes no handoffs");
        } else if (payload instanceof HandoffAccept || payload instanceof TaskContextTransfer) {
            waitForTaker(delivery);
        } else if (payload instanceof TaskRequest) {
            decline(delivery);
        } else if (payload instanceof TaskOffer) {
            waitForReader(delivery);
        } else if (NEWS.contains(payload.getClass())
                || (payload instanceof Info && delivery.envelope().getSenderId().equals(Agent.BROKER_ID))) {
            LOG.log(Level.INFO, "{0}, which no listener is for", delivery);
            delivery.ack();
        } else {
            LOG.log(Level.WARNING, "{0}, which no listener is for", delivery);
            String kind = payload.getDescriptorForType().getName();
            delivery.nack(NackCause.NACK_CAUSE_POISON, "this agent has no listener for " + kind);
        }
    }

    private void provide(Delivery<?> delivery, HandoffAccept accept) throws InterruptedException {
        Envelope envelope = delivery.envelope();
        ContextWanted wanted = new ContextWanted(
                delivery.handoffId(),
                envelope.getTaskId(),
                envelope.getEpoch(),
                envelope.getSenderId(),
                accept.getWantedSectionsList(),
                accept.getWishesList());
        new Handling("the accept of handoff " + wanted.handoffId(), () -> delivery).run(() -> {
            List<ContextSection> sections = contextProvider.contextFor(wanted);
            give(wanted, sections);
            delivery.ackForSure();
        });
    }

    private void give(ContextWanted wanted, List<ContextSection> sections) throws InterruptedException {
        try {
            Handover.giveContext(agent, wanted, sections);
        } catch (BatonException | IllegalArgumentException e) {
            if (e instanceof BatonException broken && broken.isPassing()) {
                throw e;
            }
            String text = "handoff {0} is cancelled, for its context cannot be sent: {1}";
            LOG.log(Level.ERROR, text, wanted.handoffId(), e.getMessage());
        }
    }

    /**
     * Nacks a step that an earlier process was working on, with a delay, until a call takes it or the handoff is over.
     */
    private void waitForTaker(Delivery<?> delivery) throws InterruptedException {
        if (isOpen(delivery.handoffId())) {
            String text = "no call of this process waits for this handoff";
            delivery.nack(NackCause.NACK_CAUSE_SHUTDOWN, text, WAITED_FOR_SOON);
        } else {
            delivery.ack();
        }
    }

    private void decline(Delivery<?> request) throws InterruptedException {
        TaskDecline decline = TaskDecline.newBuilder()
                .setReason(RejectReason.REJECT_REASON_NO_SKILL)
                .setReasonText("this agent makes no offers")
                .build();
        try {
            agent.negotiations().tell(request.envelope().getSenderId(), request.envelope().getMessageId(), decline);
        } catch (BatonException e) {
            if (!GONE_ON.contains(e.reason())) {
                throw e;
            }
        }
        request.ackForSure();
    }

    /** Nacks an offer with a delay, until {@link Negotiations#resume} takes it or the negotiation has closed. */
    private void waitForReader(Delivery<?> delivery) throws InterruptedException {
        if (agent.negotiations().isOpen(delivery.envelope().getCorrelationId())) {
            delivery.nack(NackCause.NACK_CAUSE_SHUTDOWN, "no call of this process waits for offers", WAITED_FOR_SOON);
        } else {
            delivery.ack();
        }
    }

    private boolean isOpen(String handoffId) throws InterruptedException {
        try {
            return Handover.isOpen(agent.readHandoff(handoffId));
        } catch (BatonException e) {
            return e.isPassing(); // any other refusal: the task has ended and was removed
        }
    }

    private void reject(Delivery<?> request, RejectReason reason, String text) throws InterruptedException {
        try {
            agent.reply(request, HandoffReject.newBuilder().setReason(reason).setReasonText(text).build());
        } catch (BatonException e) {
            if (!TOO_LATE.contains(e.reason())) {
                throw e;
            }
        }
        request.ackForSure();
    }

    /** One running listener; its exception becomes a nack of the delivery in hand. */
    private final class Handling {
        private final String what;
        private final Supplier<Delivery<?>> inHand;
        private final Thread thread = Thread.currentThread();
        private boolean isDone;
        private boolean isAborted;
        private boolean isRecalled;

        Handling(String what, Supplier<Delivery<?>> inHand) {
            this.what = what;
            this.inHand = inHand;
        }

        /** Whether another thread runs this listener. A listener that closes its agent does not wait for itself. */
        boolean isOfAnother() {
            return thread != Thread.currentThread();
        }

        /**
         * Runs the listener. Returns the failure of its work: what it has thrown, or that it took too long. Null: it
         * returned, its task was taken from it, or the agent is stopping.
         */
        Throwable run(Work work) throws InterruptedException {
            ScheduledFuture<?> alarm = timeout == null
                    ? null
                    : agent.scheduler()
                            .schedule(
                                    () -> abort(NackCause.NACK_CAUSE_FAILURE, TOO_LONG),
                                    timeout.toMillis(),
                                    TimeUnit.MILLISECONDS);
            running.add(this);
            Throwable thrown = null;
            try {
                work.run();
            } catch (Throwable e) {
                // An Error too: without a nack its message would be redelivered only after the ack wait.
                thrown = e;
            } finally {
                if (alarm != null) {
                    alarm.cancel(false);
                }
                end();
            }
            if (isRecalled) {
                settleRecalled();
                return null;
            }
            if (thrown != null && !isAborted) {
                settle(thrown);
            }
            boolean isOfStop = isStopping && (isAborted || Failure.isOfStop(thrown));
            if (thrown == null || isOfStop) {
                return null;
            }
            return isAborted ? new TimeoutException(TOO_LONG) : thrown;
        }

        /** Interrupts the listener. Its delivery is nacked at once, since a listener may ignore the interrupt. */
        synchronized void abort(NackCause cause, String text) {
            if (isDone) {
                return;
            }
            LOG.log(Level.WARNING, "the listener of {0} is interrupted: {1}", what, text);
            isAborted = true;
            Delivery<?> delivery = inHand.get();
            if (delivery != null && !delivery.isSettled()) {
                delivery.nackSoon(cause, text);
            }
            thread.interrupt();
        }

        /** Interrupts the listener, whose task was recalled. */
        synchronized void recall() {
            if (!isDone) {
                LOG.log(Level.INFO, "the task of {0} was recalled from its listener", what);
                isRecalled = true;
                thread.interrupt();
            }
        }

        private void settleRecalled() throws InterruptedException {
            Delivery<?> delivery = inHand.get();
            if (delivery != null && !delivery.isSettled()) {
                delivery.ackForSure(); // a retry cannot help
            }
        }

        private void end() {
            synchronized (this) {
                isDone = true;
                Thread.interrupted(); // a late interrupt must not reach the thread's next listener
            }
            running.remove(this);
            synchronized (running) {
                running.notifyAll();
            }
        }

        private void settle(Throwable thrown) throws InterruptedException {
            boolean isTooLate = thrown instanceof BatonException e && TOO_LATE.contains(e.reason());
            if (thrown instanceof HandoffFailedException || isTooLate) {
                LOG.log(Level.INFO, "{0} has gone on without its listener: {1}", what, thrown.getMessage());
            } else {
                LOG.log(Level.WARNING, "the listener of " + what + " failed", thrown);
            }
            Delivery<?> delivery = inHand.get();
            if (delivery == null || delivery.isSettled()) {
                return;
            }
            if (isTooLate) {
                delivery.ackForSure(); // a retry cannot help
            } else if (thrown instanceof PoisonException) {
                delivery.nack(NackCause.NACK_CAUSE_POISON, thrown.toString());
            } else {
                Duration retryAfter = thrown instanceof RetryLaterException later ? later.retryAfter() : null;
                delivery.nack(NackCause.NACK_CAUSE_FAILURE, thrown.toString(), retryAfter);
            }
        }
    }
}
