package dev.baton;

import dev.baton.v1.ListTasksRequest;
import dev.baton.v1.ListTasksResponse;
import dev.baton.v1.ReassignTaskRequest;
import dev.baton.v1.ReassignTaskResponse;
import dev.baton.v1.Task;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.WatchTaskRequest;
import dev.baton.v1.WatchTaskResponse;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;

/** Tasks at the broker: lists, watches, and the reassignment by an operator. {@link Agent#tasks} returns it. */
public final class Tasks {
    /** The statuses that never change. */
    static final Set<TaskStatus> FINAL = EnumSet.of(
            TaskStatus.TASK_STATUS_COMPLETED, TaskStatus.TASK_STATUS_FAILED, TaskStatus.TASK_STATUS_CANCELED);

    private static final int PAGE_SIZE = 500;

    private final Agent agent;
    private final Connection connection;

    Tasks(Agent agent, Connection connection) {
        this.agent = agent;
        this.connection = connection;
    }

    /**
     * Returns the tasks that match the request's filters, newest first: by owner, statuses, parent, conversation and asked
     * agent. Sets the paging fields. Throws {@link BatonException}: PERMISSION_DENIED for tasks that this agent may not
     * read.
     */
    public List<Task> list(ListTasksRequest filters) {
        List<Task> found = new ArrayList<>();
        ListTasksRequest.Builder request = filters.toBuilder().setPageSize(PAGE_SIZE).clearPageToken();
        do {
            ListTasksRequest asked = request.build();
            ListTasksResponse page = connection.tasks(stub -> stub.listTasks(asked));
            found.addAll(page.getTasksList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return found;
    }

    /**
     * Follows the custody log of a task from after a number: each entry once and in order, or a gap that covers it. It is
     * over after the entry with a final status. The entry of a status update has its envelope.
     */
    public Watch<WatchTaskResponse> watch(String taskId, long after) {
        return agent.watch("task " + taskId, new Entries(taskId, after));
    }

    /**
     * Takes a task from its owner and hands it to another agent, or to {@code type:NAME}. By default for operators. The
     * expected epoch is the task's present one. The reason has at most 4096 bytes. Throws {@link BatonException}:
     * STALE_EPOCH or EPOCH_AHEAD if the task has moved since, TASK_FINAL, PERMISSION_DENIED.
     */
    public ReassignTaskResponse reassign(String taskId, long expectedEpoch, String to, String reason) {
        ReassignTaskRequest request = ReassignTaskRequest.newBuilder()
                .setTaskId(taskId)
                .setExpectedEpoch(expectedEpoch)
                .setTo(to)
                .setReasonText(reason)
                .build();
        return connection.tasks(stub -> stub.reassignTask(request));
    }

    /** The calls of a watch. Only the watch's thread uses it. */
    private final class Entries extends Following<WatchTaskResponse> {
        private final String taskId;
        private boolean isFinal;

        Entries(String taskId, long after) {
            super(after);
            this.taskId = taskId;
        }

        @Override
        public Iterator<WatchTaskResponse> open() {
            WatchTaskRequest request = WatchTaskRequest.newBuilder()
                    .setTaskId(taskId)
                    .setAfterNumber(last())
                    .build();
            return connection.watchTasks(stub -> stub.watchTask(request));
        }

        @Override
        public boolean take(WatchTaskResponse update) {
            return switch (update.getUpdateCase()) {
                case ENTRY -> entry(update.getEntry().getEntry().getNumber());
                case GAP -> gap(update.getGap());
                case UPDATE_NOT_SET -> false; // of a newer schema
            };
        }

        @Override
        public boolean isLast(WatchTaskResponse update) {
            isFinal = FINAL.contains(update.getEntry().getEntry().getTaskStatus());
            return false; // acks and mail may follow; the broker ends the stream
        }

        @Override
        public boolean isOver() {
            if (isFinal) {
                return true;
            }
            Task task = agent.getTask(taskId);
            // A task that ended while the stream was broken has further entries.
            return FINAL.contains(task.getStatus()) && task.getCustodyLength() <= last();
        }
    }
}
