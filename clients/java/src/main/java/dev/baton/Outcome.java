package dev.baton;

import com.google.protobuf.Struct;
import dev.baton.v1.TaskStatus;

/**
 * How a delegated task ended. It is this agent's again.
 *
 * @param taskId the task
 * @param epoch the epoch that began with it
 * @param status TASK_STATUS_COMPLETED, FAILED or CANCELED; any other where the task was given back by a handoff, not
 *     finished
 * @param result what came out
 * @param details in words
 */
public record Outcome(String taskId, long epoch, TaskStatus status, Struct result, String details) {}
