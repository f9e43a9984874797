package dev.baton;

import java.util.List;

/**
 * A task that has gone to another agent.
 *
 * @param handoffId the handoff
 * @param taskId the task
 * @param ownerId who owns it now
 * @param epoch the epoch that began with it
 * @param rejections the agents that did not take it before, and why, in words
 */
public record HandedOver(String handoffId, String taskId, String ownerId, long epoch, List<String> rejections) {}
