package dev.baton;

import com.google.protobuf.Message;
import dev.baton.TaskRecalledException.Reason;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.Handoff;
import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffMode;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.HandoffState;
import dev.baton.v1.Receipt;
import dev.baton.v1.Task;
import dev.baton.v1.TaskHop;
import dev.baton.v1.TaskRecall;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.TaskStatusUpdate;
import io.grpc.Status;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/** A delegated task, from its request to its return. */
final class Loan {
    private static final System.Logger LOG = System.getLogger("dev.baton");
    private static final Duration LOAN_TIMEOUT_MIN = Duration.ofSeconds(1);
    private static final Duration LOAN_TIMEOUT_MAX = Duration.ofDays(30);
    private static final Duration TAKE_BACK_TIME = Duration.ofSeconds(10);
    private static final int ATTEMPTS_MAX = 10;
    private static final long ATTEMPT_MILLIS = 200;

    private final Agent agent;
    private final Conversation results;
    private final Envelope request;
    private final ProgressListener onProgress;
    /** Whether the loan was seen to have ended. Then its notice arrives soon, or another process has it. */
    private boolean isBack;

    /** A null listener stands for none. */
    Loan(Agent agent, Conversation results, Envelope request, ProgressListener onProgress) {
        this.agent = agent;
        this.results = results;
        this.request = request;
        this.onProgress = onProgress;
    }

    /** Throws {@link BatonException}, NOT_OWNER or NOT_LENT, for a handoff that is no loan of this agent. */
    static void check(Agent agent, Handoff handoff) {
        String handoffId = handoff.getHandoffId();
        if (!handoff.getSenderId().equals(agent.id())) {
            String text = "handoff " + handoffId + " was asked for by " + handoff.getSenderId();
            throw new BatonException(Status.Code.PERMISSION_DENIED, text, "NOT_OWNER", Map.of(), List.of(), null);
        }
        if (handoff.getMode() != HandoffMode.HANDOFF_MODE_DELEGATE) {
            throw notLent("handoff " + handoffId + " hands the task over for good");
        }
    }

    private static BatonException notLent(String text) {
        return new BatonException(Status.Code.FAILED_PRECONDITION, text, "NOT_LENT", Map.of(), List.of(), null);
    }

    /**
     * As {@link #outcome}, for a loan that may have ended before. Throws {@link BatonException}, NOT_LENT, if this agent
     * has handed the task on since.
     */
    Outcome outcomeOfEarlier(HandedOver lent) throws InterruptedException {
        Task task = agent.readTask(lent.taskId());
        if (task.getLoansList().stream().noneMatch(loan -> loan.getHandoffId().equals(lent.handoffId()))) {
            for (TaskHop hop : task.getHopsList()) {
                if (hop.getSenderId().equals(agent.id()) && hop.getEpoch() > lent.epoch()) {
                    String text = "handoff " + lent.handoffId() + " lends nothing any more: " + hop.getHandoffId();
                    throw notLent(text + " has moved the task since");
                }
            }
            isBack = true;
        }
        return outcome(lent, Deadline.none());
    }

    /** Returns the request of a delegation. A null limit stands for none. */
    static HandoffRequest requestOf(HandoffRequest request, Duration limit) {
        HandoffRequest.Builder lent = request.toBuilder().setMode(HandoffMode.HANDOFF_MODE_DELEGATE);
        if (!lent.hasLoanTimeout()) {
            // If this process dies, nothing but the loan timeout brings the task back.
            Duration within = limit == null ? Agent.LOAN_TIMEOUT : limit;
            within = within.compareTo(LOAN_TIMEOUT_MIN) < 0 ? LOAN_TIMEOUT_MIN : within;
            within = within.compareTo(LOAN_TIMEOUT_MAX) > 0 ? LOAN_TIMEOUT_MAX : within;
            lent.setLoanTimeout(Times.ofDuration(within));
        }
        return lent.build();
    }

    /**
     * Waits for the task's final status. Reads the state at the broker where no notice comes, and at the deadline. Throws
     * {@link TaskRecalledException}; {@link BatonException}, DEADLINE_EXCEEDED.
     */
    Outcome outcome(HandedOver lent, Deadline deadline) throws InterruptedException {
        if (onProgress == null) {
            return await(lent, deadline);
        }
        try (ProgressWatch watch = new ProgressWatch(agent, lent, onProgress)) {
            Outcome outcome = await(lent, deadline);
            watch.awaitEnd();
            return outcome;
        }
    }

    private Outcome await(HandedOver lent, Deadline deadline) throws InterruptedException {
        while (true) {
            Duration wait = isBack ? Agent.NOTICE_TIME : agent.lookInterval();
            Delivery<?> delivery = results.next(deadline.leftAtMost(wait));
            if (delivery != null) {
                Outcome outcome = outcomeOf(delivery, lent);
                if (outcome != null) {
                    return outcome;
                }
                continue;
            }
            Task task = look(lent, deadline);
            if (task != null && isBack) {
                try {
                    return withoutNews(lent, task); // another process of this agent has the notice
                } catch (BatonException e) {
                    if (!e.isPassing()) {
                        throw e;
                    }
                }
            }
            isBack = task != null;
            if (!isBack) {
                deadline.check("task " + lent.taskId() + " has not come back in time");
            }
        }
    }

    private Outcome outcomeOf(Delivery<?> delivery, HandedOver lent) throws InterruptedException {
        Envelope envelope = delivery.envelope();
        Message payload = delivery.payload();
        if (payload instanceof ErrorNotification told) {
            delivery.ackForSure();
            Reason reason =
                    switch (told.getErrorCode()) {
                        case ERROR_CODE_TASK_ABANDONED -> Reason.ABANDONED;
                        case ERROR_CODE_TASK_CANCELED -> Reason.CANCELED;
                        default -> Reason.LOAN_TIMEOUT;
                    };
            throw recalled(reason, told.getErrorMessage(), envelope.getEpoch(), true);
        }
        boolean isEnd;
        try {
            isEnd = isReturned(lent, envelope.getEpoch());
        } catch (InterruptedException | RuntimeException e) {
            results.put(delivery); // the dispatcher settles the rest
            throw e;
        }
        delivery.ackForSure();
        TaskStatusUpdate update = (TaskStatusUpdate) payload;
        long epoch = envelope.getEpoch() + 1;
        return isEnd
                ? new Outcome(
                        lent.taskId(),
                        epoch,
                        update.getStatus(),
                        Json.object(update.getResultJson()),
                        update.getDetails())
                : null;
    }

    /**
     * Whether a final status ended the loan. A status of a later epoch may have ended a further loan by the delegate,
     * which names this agent as a receiver too.
     */
    private boolean isReturned(HandedOver lent, long endedAt) throws InterruptedException {
        if (endedAt == lent.epoch()) {
            return true;
        }
        Task task = agent.readTask(lent.taskId());
        return task.getOwnerId().equals(agent.id()) && task.getEpoch() == endedAt + 1;
    }

    /** Returns the task if its loan has ended; otherwise null. At the deadline, a task that is not shown is taken back. */
    private Task look(HandedOver lent, Deadline deadline) throws InterruptedException {
        try {
            Task task = agent.readTask(lent.taskId());
            boolean isLent = task.getLoansList().stream().anyMatch(loan -> loan.getHandoffId().equals(lent.handoffId()));
            return !isLent && task.getEpoch() > lent.epoch() ? task : null;
        } catch (BatonException e) {
            if (!e.isPassing() && !deadline.isOver()) {
                throw e;
            }
            return null;
        }
    }

    /** Returns the end of the loan as the custody log has it. Throws {@link TaskRecalledException} without an outcome. */
    private Outcome withoutNews(HandedOver lent, Task task) throws InterruptedException {
        Returned returned = Connection.interruptibly(() -> Returned.find(agent, lent, task));
        if (returned != null && returned.reason() == null) {
            return returned.outcome();
        }
        boolean isOwner = task.getOwnerId().equals(agent.id());
        Reason reason = returned == null ? Reason.RECALL : returned.reason();
        if (task.getStatus() == TaskStatus.TASK_STATUS_CANCELED) {
            reason = Reason.CANCELED;
        }
        String text = "the loan has ended without a final status of the delegate";
        throw recalled(reason, text, task.getEpoch(), isOwner);
    }

    /**
     * Takes the task back at the time limit of the call. Returns the delegate's result if it came first. Throws
     * {@link TaskRecalledException}, or {@link HandoffFailedException} if the task was not lent.
     */
    Outcome endAtDeadline() throws InterruptedException {
        String text = "the time limit of the delegating call passed";
        Receipt receipt = takeBack(text);
        if (receipt != null) {
            throw recalled(Reason.DEADLINE, text, receipt.getEpoch(), true);
        }
        String handoffId = request.getMessageId();
        Handoff handoff;
        try {
            handoff = agent.readHandoff(handoffId);
        } catch (BatonException e) {
            if (e.isPassing()) {
                throw e;
            }
            // The request was not stored.
            throw new HandoffFailedException(handoffId, "HANDOFF_CANCELLED", text, List.of());
        }
        if (Handover.isOpen(handoff)) {
            throw new BatonException(Status.Code.DEADLINE_EXCEEDED, text + ", and the handoff could not be cancelled");
        }
        HandedOver lent = new Handover(agent, results, List.of(), request).goOnFrom(handoff);
        try {
            // The loan has ended: within two looks the call has its end.
            return await(lent, Deadline.in(TAKE_BACK_TIME.multipliedBy(4)));
        } catch (TaskRecalledException e) {
            // A loan that has ended by then without news has ended by the same limit.
            throw byLimit(e, Reason.RECALL);
        }
    }

    /** Returns the end of a delegation with the limit of the call as the reason in place of another reason. */
    static TaskRecalledException byLimit(TaskRecalledException end, Reason other) {
        boolean isByLimit = end.reason() == other && end.isOwner();
        return isByLimit ? end.as(Reason.DEADLINE) : end;
    }

    /** Takes the task back for an interrupted call, which has no more use for the outcome. */
    void takeBackOfInterrupted(Tenure tenure) {
        try {
            Receipt receipt = takeBack("the delegating call was interrupted");
            if (receipt != null) {
                tenure.owned(receipt.getEpoch());
            }
        } catch (BatonException e) {
            String text = "the loan of task {0} ends by its timeout: {1}";
            LOG.log(Level.WARNING, text, request.getTaskId(), e.getMessage());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /**
     * Cancels the handoff of the request, or recalls the task that it lent. Returns the receipt of the recall; null if
     * the task was not lent or its loan has ended.
     */
    private Receipt takeBack(String text) throws InterruptedException {
        Deadline deadline = Deadline.in(TAKE_BACK_TIME);
        Envelopes.About about =
                new Envelopes.About(request.getTaskId(), request.getEpoch(), request.getMessageId());
        BatonException last = null;
        for (int attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
            try {
                Handoff handoff = agent.readHandoff(request.getMessageId());
                if (handoff.getState() == HandoffState.HANDOFF_STATE_COMPLETED) {
                    TaskRecall recall = TaskRecall.newBuilder().setReasonText(text).build();
                    return agent.sendOwn(agent.envelope("", about, recall), deadline.leftAtMost(TAKE_BACK_TIME));
                }
                if (Handover.isOpen(handoff)) {
                    HandoffCancel cancel = HandoffCancel.newBuilder().setReasonText(text).build();
                    Envelope envelope = agent.envelope(handoff.getCandidateId(), about, cancel);
                    agent.sendOwn(envelope, deadline.leftAtMost(TAKE_BACK_TIME));
                }
                return null;
            } catch (BatonException e) {
                if (e.reason().equals("NOT_LENT")) {
                    return null;
                }
                // The request may still be on its way, or the handoff has moved on since the look.
                last = e;
                deadline.check("task " + request.getTaskId() + " is not taken back; its loan timeout returns it");
                Thread.sleep(ATTEMPT_MILLIS);
            }
        }
        if (last.isPassing()) {
            throw last;
        }
        return null;
    }

    private TaskRecalledException recalled(
            Reason reason, String text, long epoch, boolean isOwner) {
        return new TaskRecalledException(request.getTaskId(), request.getMessageId(), reason, text, epoch, isOwner);
    }
}
