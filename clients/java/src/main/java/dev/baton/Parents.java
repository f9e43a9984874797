package dev.baton;

import dev.baton.v1.HandoffRequest;
import dev.baton.v1.TaskCreate;
import java.util.Optional;

/**
 * The parent of the tasks that a thread creates. Within a listener of handoffs, a request of a new task that names no
 * parent gets the listener's task as its {@code parent_task_id}, as long as this agent owns that task and it has not
 * ended. So the broker's loop guard counts along the chain, and the parts end with a cancelled whole. It belongs to a
 * thread: {@link #begin} sets it on another one, or leaves it out.
 */
public final class Parents {
    private static final ThreadLocal<OwnedTask> CURRENT = new ThreadLocal<>();

    private Parents() {}

    /** The end of a parent. {@link #close} restores what was there before, on the same thread. */
    @FunctionalInterface
    public interface Scope extends AutoCloseable {
        @Override
        void close();
    }

    /** Returns the task that a new task of this thread becomes a part of. */
    public static Optional<OwnedTask> current() {
        return Optional.ofNullable(CURRENT.get()).filter(OwnedTask::isOwned);
    }

    /**
     * Makes the tasks that this thread creates parts of this one, until the scope is closed. Empty: they are parts of no
     * task, unless a request names one.
     */
    public static Scope begin(Optional<OwnedTask> parent) {
        OwnedTask before = CURRENT.get();
        CURRENT.set(parent.orElse(null));
        return () -> CURRENT.set(before);
    }

    /** Returns the request with its parent, if it creates a task. */
    static HandoffRequest named(Agent agent, Envelopes.About about, HandoffRequest request)
            throws InterruptedException {
        if (!request.getParentTaskId().isEmpty() || about.epoch() > 1) {
            return request;
        }
        Optional<OwnedTask> parent = current()
                .filter(task -> task.agent() == agent && !task.taskId().equals(about.taskId()));
        if (parent.isEmpty() || !isNew(agent, about.taskId())) {
            return request;
        }
        return request.toBuilder().setParentTaskId(parent.get().taskId()).build();
    }

    /** Returns the creation of a task with its parent. */
    static TaskCreate named(Agent agent, String taskId, TaskCreate create) {
        if (!create.getParentTaskId().isEmpty()) {
            return create;
        }
        return current()
                .filter(parent -> parent.agent() == agent && !parent.taskId().equals(taskId))
                .map(parent ->
                        create.toBuilder().setParentTaskId(parent.taskId()).build())
                .orElse(create);
    }

    /** Whether the broker does not know the task: the parent of a known one never changes. */
    private static boolean isNew(Agent agent, String taskId) throws InterruptedException {
        try {
            agent.readTask(taskId);
            return false;
        } catch (BatonException e) {
            return !e.isPassing();
        }
    }
}
