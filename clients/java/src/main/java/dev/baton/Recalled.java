package dev.baton;

import dev.baton.v1.ErrorCode;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.NextStep;
import java.util.EnumSet;
import java.util.Set;

/**
 * A task that was taken from this agent: another agent recalled it, its loan timeout passed, or an operator reassigned
 * it.
 *
 * @param taskId the task's id
 * @param handoffId the handoff that lent the task, to this agent or before it
 * @param epoch the task's epoch after the recall; the broker refuses messages about the task of a lower one
 * @param message the explanation, for people
 * @param isReassigned whether an operator reassigned the task
 */
public record Recalled(String taskId, String handoffId, long epoch, String message, boolean isReassigned) {
    private static final Set<ErrorCode> TAKEN =
            EnumSet.of(ErrorCode.ERROR_CODE_TASK_RECALLED, ErrorCode.ERROR_CODE_TASK_REASSIGNED);

    /** Returns the broker's notice of a recall or a reassignment, or null if the delivery is another message. */
    static ErrorNotification noticeOf(Delivery<?> delivery, String brokerId) {
        boolean isRecall = delivery.payload() instanceof ErrorNotification told
                && TAKEN.contains(told.getErrorCode())
                && delivery.envelope().getSenderId().equals(brokerId);
        return isRecall ? (ErrorNotification) delivery.payload() : null;
    }

    /** Returns what the broker took from this agent by this delivery, or null. */
    static Recalled of(Delivery<?> delivery, String brokerId) {
        ErrorNotification told = noticeOf(delivery, brokerId);
        if (told == null || told.getNextStep() != NextStep.NEXT_STEP_DROP_TASK) {
            return null;
        }
        String taskId = delivery.envelope().getTaskId();
        long epoch = delivery.envelope().getEpoch();
        boolean isReassigned = told.getErrorCode() == ErrorCode.ERROR_CODE_TASK_REASSIGNED;
        return new Recalled(taskId, delivery.handoffId(), epoch, told.getErrorMessage(), isReassigned);
    }

    /** Returns the name of the notice's code. */
    String code() {
        return isReassigned ? "TASK_REASSIGNED" : "TASK_RECALLED";
    }

    TaskRecalledException asLoss() {
        TaskRecalledException.Reason reason =
                isReassigned ? TaskRecalledException.Reason.REASSIGNED : TaskRecalledException.Reason.RECALL;
        return new TaskRecalledException(taskId, handoffId, reason, message, epoch, false);
    }
}
