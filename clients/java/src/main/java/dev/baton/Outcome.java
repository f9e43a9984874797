package dev.baton;

import com.google.protobuf.Struct;
import dev.baton.v1.TaskStatus;

/**
 * The outcome of a delegated task, which this agent owns again.
 *
 * @param taskId the task's id
 * @param epoch the epoch that began with the task's return
 * @param status TASK_STATUS_COMPLETED, FAILED or CANCELED; another status if a handoff returned the task unfinished
 * @param result the result
 * @param details the delegate's explanation
 */
public record Outcome(String taskId, long epoch, TaskStatus status, Struct result, String details) {}
