package dev.baton;

import java.util.List;

/**
 * An accepted handoff of this agent, whose candidate waits for the context.
 *
 * @param handoffId the handoff's id
 * @param taskId the task's id
 * @param epoch the task's epoch at this agent
 * @param candidateId the agent that accepted
 * @param wantedSections the names of the requested sections; empty for all. The agent leaves out the others itself
 */
public record ContextWanted(
        String handoffId, String taskId, long epoch, String candidateId, List<String> wantedSections) {}
