package dev.baton;

import dev.baton.v1.TaskStatus;
import java.util.Map;

/**
 * The outcome of a delegated task, which this agent owns again.
 *
 * @param taskId the task's id
 * @param epoch the epoch that began with the task's return
 * @param status TASK_STATUS_COMPLETED, FAILED or CANCELED; another status if a handoff returned the task unfinished
 * @param result the result, as it was sent: see {@link Json}
 * @param details the delegate's explanation
 */
public record Outcome(String taskId, long epoch, TaskStatus status, Map<String, Object> result, String details) {}
