package dev.baton;

import com.google.protobuf.Struct;
import dev.baton.v1.ContextSection;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.Receipt;
import dev.baton.v1.Task;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.TaskStatusUpdate;
import java.time.Duration;
import java.util.List;

/**
 * A task that this agent owns at this epoch. Once it has gone, what is said of it is refused with STALE_EPOCH.
 *
 * @param agent who owns it
 * @param taskId which one
 * @param epoch since which epoch
 * @param status how it was doing when this was made
 * @param openHandoffId the handoff that was open then, for {@link Agent#resumeHandOver}; empty if there was none
 */
public record OwnedTask(Agent agent, String taskId, long epoch, TaskStatus status, String openHandoffId) {
    /** A task of this agent as the broker shows it. */
    static OwnedTask of(Agent agent, Task task) {
        return new OwnedTask(agent, task.getTaskId(), task.getEpoch(), task.getStatus(), task.getOpenHandoffId());
    }

    /** Says how it is going, in words. */
    public Receipt report(String details) throws InterruptedException {
        return update(TaskStatusUpdate.newBuilder()
                .setStatus(TaskStatus.TASK_STATUS_IN_PROGRESS)
                .setDetails(details)
                .build());
    }

    /** It is done, for good. The result of a delegated task goes to the delegator, who owns the task again. */
    public Receipt finish(Struct result, String details) throws InterruptedException {
        return update(TaskStatusUpdate.newBuilder()
                .setStatus(TaskStatus.TASK_STATUS_COMPLETED)
                .setResult(result)
                .setDetails(details)
                .build());
    }

    /** Says anything of it; a final status is final. */
    public Receipt update(TaskStatusUpdate update) throws InterruptedException {
        return agent.send("", Envelopes.About.task(taskId, epoch), update);
    }

    /** Hands it on: as {@link Agent#handOver}. */
    public HandedOver handOver(String receiverId, HandoffRequest request, List<ContextSection> context)
            throws InterruptedException {
        return agent.handOver(receiverId, taskId, epoch, request, context);
    }

    /** Lends it: as {@link Agent#delegate(String, String, long, HandoffRequest, List, Duration)}. */
    public Outcome delegate(String receiverId, HandoffRequest request, List<ContextSection> context, Duration wait)
            throws InterruptedException {
        return agent.delegate(receiverId, taskId, epoch, request, context, wait);
    }
}
