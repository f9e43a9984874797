package dev.baton;

import java.util.List;

/**
 * A handoff of this agent that was accepted: the candidate waits for the context.
 *
 * @param handoffId the handoff
 * @param taskId the task
 * @param epoch the task's epoch at this agent
 * @param candidateId the agent that accepted
 * @param wantedSections the names of the sections that it asks for; empty means all. What it does not want is left out by
 *     itself
 */
public record ContextWanted(
        String handoffId, String taskId, long epoch, String candidateId, List<String> wantedSections) {}
