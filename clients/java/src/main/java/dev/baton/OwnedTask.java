package dev.baton;

import com.google.protobuf.Struct;
import dev.baton.v1.ContextSection;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.Receipt;
import dev.baton.v1.Task;
import dev.baton.v1.TaskPrompt;
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

    /** Returns the workspace of the task. */
    public Workspace workspace() {
        return agent.workspace("task:" + taskId);
    }

    /**
     * Stores a context of the task at the broker, without a handoff: the agent that owns the task next can go on with
     * it, also if this one is gone. A JSON section of which this process has sent or received an earlier version goes as
     * a delta where that is less. Throws {@link BatonException}: STALE_EPOCH after the task has moved on, TASK_FINAL after
     * it has ended.
     */
    public Receipt checkpoint(List<ContextSection> sections) throws InterruptedException {
        return agent.checkpoint(taskId, epoch, sections);
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

    /** Asks one agent a question about the task, and waits for its answer: see {@link Agent#ask}. */
    public Answer ask(TaskPrompt prompt, String details) throws InterruptedException {
        return agent.ask(taskId, epoch, prompt, details);
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
