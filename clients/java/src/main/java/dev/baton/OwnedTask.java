package dev.baton;

import dev.baton.v1.ContextSection;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.Receipt;
import dev.baton.v1.Task;
import dev.baton.v1.TaskPrompt;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.TaskStatusUpdate;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/**
 * A task that this agent owns. The object follows the task's epoch: after a loan that came back, in any way, its next call
 * is of the new epoch. After the task has moved on, its methods throw STALE_EPOCH, and after its end TASK_FINAL.
 */
public final class OwnedTask {
    private final Agent agent;
    private final Tenure tenure;
    private final TaskStatus status;
    private final String openHandoffId;
    private final boolean isResumed;

    OwnedTask(Agent agent, Tenure tenure, TaskStatus status, String openHandoffId, boolean isResumed) {
        this.agent = agent;
        this.tenure = tenure;
        this.status = status;
        this.openHandoffId = openHandoffId;
        this.isResumed = isResumed;
    }

    /** Converts a task of this agent from its protobuf form. */
    static OwnedTask of(Agent agent, Task task) {
        Tenure tenure = agent.workload().of(task.getTaskId(), task.getEpoch());
        return new OwnedTask(agent, tenure, task.getStatus(), task.getOpenHandoffId(), false);
    }

    /** Returns the owner. */
    public Agent agent() {
        return agent;
    }

    /** Returns the task's id. */
    public String taskId() {
        return tenure.taskId();
    }

    /** Returns the epoch of this agent's ownership, the latest that this process knows. */
    public long epoch() {
        return tenure.epoch();
    }

    /** Returns the task's status when this object was made. */
    public TaskStatus status() {
        return status;
    }

    /** Returns the handoff that was open when this object was made, for {@link Agent#resumeHandOver}; empty without one. */
    public String openHandoffId() {
        return openHandoffId;
    }

    /** Returns whether an earlier process of this agent took the task over: see {@link AgentBuilder#resume}. */
    public boolean isResumed() {
        return isResumed;
    }

    /** Returns whether this agent owns the task, as far as this process knows: it has not ended, moved, or been lent. */
    public boolean isOwned() {
        return tenure.state() == Tenure.State.OWNED;
    }

    /** Returns the workspace of the task. */
    public Workspace workspace() {
        return agent.workspace("task:" + taskId());
    }

    /**
     * Stores a context of the task at the broker, without a handoff: the agent that owns the task next can go on with
     * it, also if this one is gone. A JSON section of which this process has sent or received an earlier version goes as
     * a delta where that is less. Throws {@link BatonException}: STALE_EPOCH after the task has moved on, TASK_FINAL after
     * it has ended.
     */
    public Receipt checkpoint(List<ContextSection> sections) throws InterruptedException {
        return agent.checkpoint(taskId(), epoch(), sections);
    }

    /** Reports the task's progress as text. */
    public Receipt report(String details) throws InterruptedException {
        return update(inProgress().setDetails(details).build());
    }

    /** Reports the task's progress as text, and as a number from 0 to 1. */
    public Receipt report(String details, double progress) throws InterruptedException {
        return update(inProgress().setDetails(details).setProgress(progress).build());
    }

    /**
     * Asks for more time: the loan is due this much later than now, at most at the end of the request's
     * {@code loan_timeout_max}; a time that is no later changes nothing. Throws {@link BatonException} if the task is no
     * loan that can be extended.
     */
    public Receipt extend(Duration by) throws InterruptedException {
        return update(inProgress().setExtendBy(Times.ofDuration(by)).build());
    }

    /**
     * Completes the task. The result of a delegated task goes to the delegator, which owns the task again. Throws {@link
     * BatonException}, FIELD_INVALID, for a result over 262144 bytes as JSON, or that cannot be sent: see {@link Json}.
     */
    public Receipt finish(Map<String, ?> result, String details) throws InterruptedException {
        return update(TaskStatusUpdate.newBuilder()
                .setStatus(TaskStatus.TASK_STATUS_COMPLETED)
                .setResultJson(Json.text(result, "result_json"))
                .setDetails(details)
                .build());
    }

    /** Ends the task as FAILED, for the reason in {@code details}, at most 16384 bytes. */
    public Receipt fail(String details) throws InterruptedException {
        return update(TaskStatusUpdate.newBuilder()
                .setStatus(TaskStatus.TASK_STATUS_FAILED)
                .setDetails(details)
                .build());
    }

    /**
     * Ends the task as CANCELED, for the reason in {@code details}. Its open parts are cancelled with it, down the tree,
     * unless they are kept.
     */
    public Receipt cancel(String details, boolean keepsParts) throws InterruptedException {
        return update(TaskStatusUpdate.newBuilder()
                .setStatus(TaskStatus.TASK_STATUS_CANCELED)
                .setDetails(details)
                .setKeepParts(keepsParts)
                .build());
    }

    /**
     * Sends a status update. A final status cannot be changed. Throws {@link BatonException}, FIELD_INVALID, before
     * anything is sent, for a result over 262144 bytes of JSON, one that is nested more than 32 objects deep, a number
     * that is not finite, and text with half a surrogate pair.
     */
    public Receipt update(TaskStatusUpdate update) throws InterruptedException {
        Receipt receipt = agent.send("", Envelopes.About.task(taskId(), epoch()), update);
        if (Tasks.FINAL.contains(update.getStatus())) {
            agent.workload().over(tenure);
        }
        return receipt;
    }

    /** Asks one agent a question about the task, and waits for its answer: see {@link Agent#ask}. */
    public Answer ask(TaskPrompt prompt, String details) throws InterruptedException {
        return agent.ask(taskId(), epoch(), prompt, details);
    }

    /** Hands the task over: see {@link Agent#handOver}. */
    public HandedOver handOver(String receiverId, HandoffRequest request, List<ContextSection> context)
            throws InterruptedException {
        return agent.handOver(tenure, receiverId, request, context, null);
    }

    /** Hands the task over: see {@link Agent#handOver(String, String, long, HandoffRequest, List, Duration)}. */
    public HandedOver handOver(String receiverId, HandoffRequest request, List<ContextSection> context, Duration limit)
            throws InterruptedException {
        return agent.handOver(tenure, receiverId, request, context, limit);
    }

    /** Lends the task: see {@link Agent#delegate(String, String, long, HandoffRequest, List)}. */
    public Outcome delegate(String receiverId, HandoffRequest request, List<ContextSection> context)
            throws InterruptedException {
        return agent.delegate(tenure, receiverId, request, context, null, null);
    }

    /** Lends the task: see {@link Agent#delegate(String, String, long, HandoffRequest, List, Duration)}. */
    public Outcome delegate(String receiverId, HandoffRequest request, List<ContextSection> context, Duration limit)
            throws InterruptedException {
        return agent.delegate(tenure, receiverId, request, context, limit, null);
    }

    /**
     * Lends the task: see {@link Agent#delegate(String, String, long, HandoffRequest, List, Duration, ProgressListener)}.
     */
    public Outcome delegate(
            String receiverId,
            HandoffRequest request,
            List<ContextSection> context,
            Duration limit,
            ProgressListener onProgress)
            throws InterruptedException {
        return agent.delegate(tenure, receiverId, request, context, limit, onProgress);
    }

    Tenure tenure() {
        return tenure;
    }

    private static TaskStatusUpdate.Builder inProgress() {
        return TaskStatusUpdate.newBuilder().setStatus(TaskStatus.TASK_STATUS_IN_PROGRESS);
    }

    @Override
    public String toString() {
        return "task " + taskId() + " at epoch " + epoch();
    }
}
