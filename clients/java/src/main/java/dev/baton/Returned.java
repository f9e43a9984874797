package dev.baton;

import dev.baton.v1.CustodyEntry;
import dev.baton.v1.CustodyLogEntry;
import dev.baton.v1.GetCustodyLogRequest;
import dev.baton.v1.GetCustodyLogResponse;
import dev.baton.v1.MessageType;
import dev.baton.v1.Task;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.TaskStatusUpdate;
import java.util.Map;

/**
 * How a lent task came back, by its custody log, for a call whose notice another process of this agent got.
 *
 * @param outcome the outcome; null for a task that was taken back
 * @param reason the reason for which it was taken back; null with an outcome
 */
record Returned(Outcome outcome, TaskRecalledException.Reason reason) {
    private static final int PAGE_SIZE = 200;

    /**
     * Reads the return of a loan that has ended. Null: the task did not come back to this agent. Throws
     * {@link VerificationException} if the delegate has not signed its final status.
     */
    static Returned find(Agent agent, HandedOver lent, Task task) {
        try {
            return findInLog(agent, lent, task);
        } catch (BatonException e) {
            if (e.isPassing()) {
                throw e;
            }
            return ofTask(agent, lent, task); // the log is not for this agent
        }
    }

    /** Returns what the task itself shows of its return. */
    private static Returned ofTask(Agent agent, HandedOver lent, Task task) {
        if (!task.getOwnerId().equals(agent.id()) || task.getResultJson().isEmpty()) {
            return null;
        }
        TaskStatus status =
                Tasks.FINAL.contains(task.getStatus()) ? task.getStatus() : TaskStatus.TASK_STATUS_COMPLETED;
        Outcome outcome = new Outcome(
                lent.taskId(), task.getEpoch(), status, Json.object(task.getResultJson()), task.getDetails());
        return new Returned(outcome, null);
    }

    private static Returned findInLog(Agent agent, HandedOver lent, Task task) {
        // An agent that lent the task and had it lent again within that loan owned it twice: the last return counts.
        boolean isNested = task.getHopsList().stream()
                .anyMatch(hop -> hop.getEpoch() > lent.epoch() && hop.getReceiverId().equals(agent.id()));
        Returned found = null;
        long epoch = 0;
        long number = 0;
        long length;
        do {
            GetCustodyLogRequest request = GetCustodyLogRequest.newBuilder()
                    .setTaskId(lent.taskId())
                    .setAfterNumber(number)
                    .setPageSize(PAGE_SIZE)
                    .build();
            GetCustodyLogResponse page = agent.connection().tasks(stub -> stub.getCustodyLog(request));
            length = page.getEntriesCount() == 0 ? number : page.getCustodyLength();
            for (CustodyLogEntry logged : page.getEntriesList()) {
                CustodyEntry entry = logged.getEntry();
                number = entry.getNumber();
                boolean isMove = entry.getEpoch() > Math.max(epoch, lent.epoch());
                epoch = Math.max(epoch, entry.getEpoch());
                if (isMove && entry.getOwnerId().equals(agent.id()) && (found == null || isNested)) {
                    found = of(agent, lent, logged, task);
                }
            }
        } while (number < length);
        return found;
    }

    private static Returned of(Agent agent, HandedOver lent, CustodyLogEntry logged, Task task) {
        CustodyEntry entry = logged.getEntry();
        MessageType type = entry.getAccepted().getMessageType();
        if (type == MessageType.MESSAGE_TYPE_TASK_STATUS_UPDATE) {
            agent.directory().verify(logged.getEnvelope());
            TaskStatusUpdate update = (TaskStatusUpdate) Envelopes.payloadOf(logged.getEnvelope());
            return new Returned(
                    new Outcome(
                            lent.taskId(),
                            entry.getEpoch(),
                            update.getStatus(),
                            Json.object(update.getResultJson()),
                            update.getDetails()),
                    null);
        }
        if (type == MessageType.MESSAGE_TYPE_HANDOFF_COMPLETE) {
            return new Returned(
                    new Outcome(lent.taskId(), entry.getEpoch(), entry.getTaskStatus(), Map.of(), task.getDetails()),
                    null);
        }
        boolean isRecall = type == MessageType.MESSAGE_TYPE_TASK_RECALL;
        return new Returned(
                null,
                isRecall
                        ? TaskRecalledException.Reason.RECALL
                        : entry.hasTime()
                                ? TaskRecalledException.Reason.LOAN_TIMEOUT
                                : TaskRecalledException.Reason.ABANDONED);
    }
}
