package dev.baton;

import java.util.List;

/**
 * A task that has moved to another agent.
 *
 * @param handoffId the handoff's id
 * @param taskId the task's id
 * @param ownerId the task's new owner
 * @param epoch the epoch that began with the new owner
 * @param rejections the agents that did not take the task before, in order
 */
public record HandedOver(String handoffId, String taskId, String ownerId, long epoch, List<Rejection> rejections) {}
