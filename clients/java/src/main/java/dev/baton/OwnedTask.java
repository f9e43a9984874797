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
 * A task that this agent owns at this epoch. After the task has moved on, its methods throw STALE_EPOCH.
 *
 * @param agent the owner
 * @param taskId the task's id
 * @param epoch the epoch of this agent's ownership
 * @param status the task's status when this object was made
 * @param openHandoffId the handoff that was open then, for {@link Agent#resumeHandOver}; empty without one
 */
public record OwnedTask(Agent agent, String taskId, long epoch, TaskStatus status, String openHandoffId) {
    /** Converts a task of this agent from its protobuf form. */
    static OwnedTask of(Agent agent, Task task) {
        return new OwnedTask(agent, task.getTaskId(), task.getEpoch(), task.getStatus(), task.getOpenHandoffId());
    }

    /** Reports the task's progress as text. */
    public Receipt report(String details) throws InterruptedException {
        return update(TaskStatusUpdate.newBuilder()
                .setStatus(TaskStatus.TASK_STATUS_IN_PROGRESS)
                .setDetails(details)
                .build());
    }

    /** Completes the task. The result of a delegated task goes to the delegator, which owns the task again. */
    public Receipt finish(Struct result, String details) throws InterruptedException {
        return update(TaskStatusUpdate.newBuilder()
                .setStatus(TaskStatus.TASK_STATUS_COMPLETED)
                .setResult(result)
                .setDetails(details)
                .build());
    }

    /** Sends a status update. A final status cannot be changed. */
    public Receipt update(TaskStatusUpdate update) throws InterruptedException {
        return agent.send("", Envelopes.About.task(taskId, epoch), update);
    }

    /** Hands the task over: see {@link Agent#handOver}. */
    public HandedOver handOver(String receiverId, HandoffRequest request, List<ContextSection> context)
            throws InterruptedException {
        return agent.handOver(receiverId, taskId, epoch, request, context);
    }

    /** Lends the task: see {@link Agent#delegate(String, String, long, HandoffRequest, List)}. */
    public Outcome delegate(String receiverId, HandoffRequest request, List<ContextSection> context)
            throws InterruptedException {
        return agent.delegate(receiverId, taskId, epoch, request, context);
    }

    /** Lends the task: see {@link Agent#delegate(String, String, long, HandoffRequest, List, Duration)}. */
    public Outcome delegate(String receiverId, HandoffRequest request, List<ContextSection> context, Duration limit)
            throws InterruptedException {
        return agent.delegate(receiverId, taskId, epoch, request, context, limit);
    }
}
