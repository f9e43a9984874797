package dev.baton;

import com.google.protobuf.Message;
import dev.baton.v1.ContextSection;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.Handoff;
import dev.baton.v1.HandoffAccept;
import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffReject;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.HandoffState;
import dev.baton.v1.NextStep;
import dev.baton.v1.RejectReason;
import dev.baton.v1.Task;
import dev.baton.v1.TaskContextTransfer;
import dev.baton.v1.TaskHop;
import java.util.Collection;
import java.util.EnumSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * An offer of a task to this agent: {@link #accept} or {@link #reject} it.
 *
 * <p>The agent extends the delivery while the listener works. After a crash, or an exception in the listener, the
 * broker redelivers the unacknowledged message and the listener runs again. An offer that an earlier process of this
 * agent accepted has no request; its {@link #accept} returns the context at once. With {@link AgentBuilder#resume} there
 * are also offers of tasks that an earlier process took over: see {@link #isResumed}.
 */
public final class Offer {
    private static final Set<HandoffState> ACCEPTED =
            EnumSet.of(HandoffState.HANDOFF_STATE_ACCEPTED, HandoffState.HANDOFF_STATE_CONTEXT_SENT);

    private final Agent agent;
    private final Conversation mail;
    private final String handoffId;
    private final String taskId;
    private final long epoch;
    private final String senderId;
    private final HandoffRequest request;
    private volatile Delivery<?> requestInHand;
    private volatile Delivery<?> contextInHand;
    private volatile boolean isOver;
    private volatile OwnedTask task;
    private volatile Thread listener;
    private boolean isResumed;

    Offer(Agent agent, Conversation mail, Delivery<?> delivery) {
        this.agent = agent;
        this.mail = mail;
        this.handoffId = delivery.handoffId();
        this.taskId = delivery.envelope().getTaskId();
        this.epoch = delivery.envelope().getEpoch();
        this.senderId = delivery.answerTo();
        this.request = delivery.terms();
        if (request != null) {
            this.requestInHand = delivery;
        } else {
            this.contextInHand = delivery;
        }
    }

    private Offer(Agent agent, Task task, TaskHop hop) {
        this.agent = agent;
        this.mail = null;
        this.handoffId = hop.getHandoffId();
        this.taskId = task.getTaskId();
        this.epoch = task.getEpoch() - 1;
        this.senderId = hop.getSenderId();
        this.request = null;
        this.isOver = true;
    }

    /** Returns the offer of a task that this agent owns already. */
    static Offer resumed(Agent agent, Task task) {
        int last = task.getHopsCount() - 1;
        Offer offer = new Offer(agent, task, last < 0 ? TaskHop.getDefaultInstance() : task.getHops(last));
        Tenure tenure = new Tenure(task.getTaskId(), task.getEpoch());
        offer.isResumed = true;
        offer.own(new OwnedTask(agent, tenure, task.getStatus(), task.getOpenHandoffId(), true));
        return offer;
    }

    /**
     * Returns whether an earlier process of this agent took the task over, and the task is this agent's. Then it cannot
     * be rejected.
     */
    public boolean isResumed() {
        return isResumed;
    }

    /** Returns the handoff's id. */
    public String handoffId() {
        return handoffId;
    }

    /** Returns the task's id. */
    public String taskId() {
        return taskId;
    }

    /** Returns the task's epoch at its present owner. */
    public long epoch() {
        return epoch;
    }

    /** Returns the task's present owner. */
    public String senderId() {
        return senderId;
    }

    /** Returns the terms, of the request or of an award; empty if an earlier process of this agent accepted it. */
    public Optional<HandoffRequest> request() {
        return Optional.ofNullable(request);
    }

    /**
     * Returns the subtask of a plan that the handoff carries out: its ids and description, and after {@link #accept} also
     * its inputs. Empty: it carries out none.
     */
    public Optional<Subtask> subtask() {
        if (isResumed) {
            return Subtask.of(agent.contexts().latest(taskId));
        }
        Delivery<?> context = contextInHand;
        if (context != null) {
            return Subtask.of(((TaskContextTransfer) context.payload()).getSectionsList());
        }
        return request().flatMap(Subtask::of);
    }

    /**
     * Accepts the handoff and waits for the context: the sections of these names, or all. Throws
     * {@link HandoffFailedException} if the handoff ends before the context arrives, {@link BatonException} if the
     * accept is too late.
     */
    public Takeover accept(String... wantedSections) throws InterruptedException {
        return accept(HandoffAccept.newBuilder()
                .addAllWantedSections(List.of(wantedSections))
                .build());
    }

    /** As {@link #accept(String...)}, with what the candidate needs of each section: {@link Contexts#want}. */
    public Takeover accept(HandoffAccept accept) throws InterruptedException {
        if (isResumed) {
            List<ContextSection> sections = agent.persist(() -> agent.contexts().latest(taskId));
            return new Takeover(agent, this, null, Handover.contextOf(sections));
        }
        Delivery<?> asked = requestInHand;
        if (asked != null) {
            say(asked, accept);
            asked.ackForSure();
            requestInHand = null;
        }
        if (contextInHand == null) {
            contextInHand = nextContext();
        }
        return new Takeover(agent, this, contextInHand, (TaskContextTransfer) contextInHand.payload());
    }

    /** Rejects the handoff. The broker asks the next candidate, if any. */
    public void reject(RejectReason reason, String text) throws InterruptedException {
        reject(reason, text, List.of());
    }

    /** Rejects the handoff and names alternatives, which the broker asks next. */
    public void reject(RejectReason reason, String text, Collection<String> alternatives) throws InterruptedException {
        Delivery<?> asked = requestInHand;
        if (asked == null) {
            String problem = isResumed
                    ? "the task is this agent's; it ends by OwnedTask.fail"
                    : "it was accepted; a Takeover can be refused by fail()";
            throw new IllegalStateException(problem);
        }
        agent.reply(asked, HandoffReject.newBuilder()
                .setReason(reason)
                .setReasonText(text)
                .addAllAlternativeAgentSuggestions(alternatives)
                .build());
        isOver = true;
        requestInHand = null;
        asked.ackForSure();
    }

    /** Returns the unacknowledged delivery of this offer, or null. */
    Delivery<?> inHand() {
        Delivery<?> asked = requestInHand;
        return asked != null ? asked : contextInHand;
    }

    /** Whether this agent has rejected, completed or failed the handoff. */
    boolean isOver() {
        return isOver;
    }

    /** Whether the context has not arrived. */
    boolean awaitsContext() {
        return contextInHand == null && !isOver;
    }

    /** Returns the task after the completion. */
    Optional<OwnedTask> task() {
        return Optional.ofNullable(task);
    }

    /** The agent owns the task from here on: the listener works on it. */
    void own(OwnedTask owned) {
        agent.workload().begin(owned.tenure());
        task = owned;
        if (isListener()) {
            Parents.begin(Optional.of(owned)); // the listener's own scope ends it
        }
    }

    /** Begins the scope of the listener, in which {@link #own} sets the parent of new tasks. */
    Parents.Scope parent() {
        listener = Thread.currentThread();
        return Parents.begin(task());
    }

    private boolean isListener() {
        return listener == Thread.currentThread();
    }

    void end() throws InterruptedException {
        isOver = true;
        Delivery<?> context = contextInHand;
        contextInHand = null;
        context.ackForSure();
    }

    private void say(Delivery<?> asked, HandoffAccept accept) throws InterruptedException {
        try {
            agent.reply(asked, accept);
        } catch (BatonException e) {
            if (!Handover.DONE_OR_OVER.contains(e.reason()) || !isAccepted()) {
                throw e;
            }
        }
    }

    /** Whether an earlier process of this agent accepted the handoff but did not ack its request. */
    private boolean isAccepted() throws InterruptedException {
        Handoff handoff = agent.readHandoff(handoffId);
        return ACCEPTED.contains(handoff.getState()) && handoff.getCandidateId().equals(agent.id());
    }

    /** Throws if the handoff has ended or has another candidate although no mail said so. */
    private void look() throws InterruptedException {
        Handoff handoff;
        try {
            handoff = agent.readHandoff(handoffId);
        } catch (BatonException e) {
            if (!e.isPassing()) {
                throw e;
            }
            return;
        }
        boolean isCompletedHere = handoff.getState() == HandoffState.HANDOFF_STATE_COMPLETED
                && handoff.getCandidateId().equals(agent.id());
        if (isCompletedHere) {
            String text = "another process of this agent has taken the task over";
            throw new HandoffFailedException(handoffId, "HANDOFF_FINAL", text, List.of());
        }
        if (!Handover.isOpen(handoff)) {
            String code = Handover.codeOf(handoff.getErrorCode(), handoff.getErrorCodeValue());
            throw new HandoffFailedException(handoffId, code, handoff.getErrorMessage(), List.of());
        }
        if (!handoff.getCandidateId().equals(agent.id())) {
            String text = "the candidate is " + handoff.getCandidateId() + " now";
            throw new HandoffFailedException(handoffId, "OFFER_WITHDRAWN", text, List.of());
        }
    }

    private Delivery<?> nextContext() throws InterruptedException {
        while (true) {
            Delivery<?> delivery = mail.next(agent.lookInterval());
            if (delivery == null) {
                look();
                continue;
            }
            Message payload = delivery.payload();
            if (payload instanceof TaskContextTransfer) {
                return delivery;
            }
            delivery.ackForSure();
            if (payload instanceof HandoffCancel cancel) {
                throw new HandoffFailedException(handoffId, "HANDOFF_CANCELLED", cancel.getReasonText(), List.of());
            }
            if (payload instanceof ErrorNotification told && told.getNextStep() == NextStep.NEXT_STEP_DROP_TASK) {
                throw new HandoffFailedException(handoffId, Agent.codeOf(told), told.getErrorMessage(), List.of());
            }
        }
    }
}
