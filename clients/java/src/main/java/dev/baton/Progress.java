package dev.baton;

import dev.baton.v1.TaskPrompt;
import dev.baton.v1.TaskStatus;
import java.util.Optional;
import java.util.OptionalDouble;

/**
 * A status update of a lent task that does not end it.
 *
 * @param taskId the task's id
 * @param agentId the owner that reported it: the delegate, or an agent to which it lent the task further
 * @param status TASK_STATUS_IN_PROGRESS or WAITING_FOR_INPUT
 * @param progress the progress from 0 to 1; empty: not reported
 * @param details the details, for people
 * @param question the question that the task waits for; empty: none
 */
public record Progress(
        String taskId,
        String agentId,
        TaskStatus status,
        OptionalDouble progress,
        String details,
        Optional<TaskPrompt> question) {}
