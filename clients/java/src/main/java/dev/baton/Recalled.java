package dev.baton;

import dev.baton.v1.ErrorCode;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.NextStep;
import java.util.EnumSet;
import java.util.Set;

/**
 * A task that was taken from this agent: another agent recalled it, its loan timeout passed, an operator reassigned it,
 * this agent was silent about it for too long, or it was cancelled.
 *
 * @param taskId the task's id
 * @param handoffId the handoff that lent the task, to this agent or before it
 * @param epoch the task's epoch after the recall; the broker refuses messages about the task of a lower one
 * @param message the explanation, for people
 * @param code the code of the notice: TASK_RECALLED, TASK_REASSIGNED, TASK_ABANDONED or TASK_CANCELED
 */
public record Recalled(String taskId, String handoffId, long epoch, String message, String code) {
    private static final Set<ErrorCode> TAKEN =
            EnumSet.of(
                    ErrorCode.ERROR_CODE_TASK_RECALLED,
                    ErrorCode.ERROR_CODE_TASK_REASSIGNED,
                    ErrorCode.ERROR_CODE_TASK_ABANDONED,
                    ErrorCode.ERROR_CODE_TASK_CANCELED);

    /** Returns the broker's notice that a task was taken from its owner, or null if the delivery is another message. */
    static ErrorNotification noticeOf(Delivery<?> delivery, String brokerId) {
        boolean isRecall = delivery.payload() instanceof ErrorNotification told
                && TAKEN.contains(told.getErrorCode())
                && delivery.envelope().getSenderId().equals(brokerId);
        return isRecall ? (ErrorNotification) delivery.payload() : null;
    }

    /** Returns what the broker took from this agent by this delivery, or null. */
    static Recalled of(Delivery<?> delivery, String brokerId) {
        ErrorNotification told = noticeOf(delivery, brokerId);
        // A cancelled task has ended, whatever is to be done with it.
        boolean isTaken = told != null
                && (told.getNextStep() == NextStep.NEXT_STEP_DROP_TASK
                        || told.getErrorCode() == ErrorCode.ERROR_CODE_TASK_CANCELED);
        if (!isTaken) {
            return null;
        }
        String taskId = delivery.envelope().getTaskId();
        long epoch = delivery.envelope().getEpoch();
        return new Recalled(taskId, delivery.handoffId(), epoch, told.getErrorMessage(), Agent.codeOf(told));
    }

    /** Returns whether an operator reassigned the task. */
    public boolean isReassigned() {
        return code.equals("TASK_REASSIGNED");
    }

    /** Returns whether the task was cancelled: it has ended, at the epoch. */
    public boolean isCanceled() {
        return code.equals("TASK_CANCELED");
    }

    /** Returns the first epoch of which this agent's work on the task is not void. */
    long firstValidEpoch() {
        return isCanceled() ? epoch + 1 : epoch;
    }

    TaskRecalledException asLoss() {
        TaskRecalledException.Reason reason =
                switch (code) {
                    case "TASK_REASSIGNED" -> TaskRecalledException.Reason.REASSIGNED;
                    case "TASK_ABANDONED" -> TaskRecalledException.Reason.ABANDONED;
                    case "TASK_CANCELED" -> TaskRecalledException.Reason.CANCELED;
                    default -> TaskRecalledException.Reason.RECALL;
                };
        return new TaskRecalledException(taskId, handoffId, reason, message, epoch, false);
    }
}
