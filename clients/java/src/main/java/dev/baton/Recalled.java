package dev.baton;

import dev.baton.v1.ErrorCode;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.NextStep;

/**
 * A task that was taken from this agent: another agent recalled it, or its loan timeout passed.
 *
 * @param taskId the task's id
 * @param handoffId the handoff that lent the task, to this agent or before it
 * @param epoch the task's epoch after the recall; the broker refuses messages about the task of a lower one
 * @param message the explanation, for people
 */
public record Recalled(String taskId, String handoffId, long epoch, String message) {
    /** Returns the broker's notice of a recall, or null if the delivery is another message. */
    static ErrorNotification noticeOf(Delivery<?> delivery, String brokerId) {
        boolean isRecall = delivery.payload() instanceof ErrorNotification told
                && told.getErrorCode() == ErrorCode.ERROR_CODE_TASK_RECALLED
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
        return new Recalled(taskId, delivery.handoffId(), delivery.envelope().getEpoch(), told.getErrorMessage());
    }

    TaskRecalledException asLoss() {
        TaskRecalledException.Reason reason = TaskRecalledException.Reason.RECALL;
        return new TaskRecalledException(taskId, handoffId, reason, message, epoch, false);
    }
}
