package dev.baton;

import dev.baton.v1.SectionWish;
import java.util.List;

/**
 * An accepted handoff of this agent, whose candidate waits for the context.
 *
 * @param handoffId the handoff's id
 * @param taskId the task's id
 * @param epoch the task's epoch at this agent
 * @param candidateId the agent that accepted
 * @param wantedSections the names of the requested sections; with no wishes, empty for all. The agent leaves out the
 *     others itself
 * @param wishes the requested sections of which the candidate says more than the name. The agent leaves out a section in
 *     a schema version that the candidate does not read, and sends the others whole
 */
public record ContextWanted(
        String handoffId,
        String taskId,
        long epoch,
        String candidateId,
        List<String> wantedSections,
        List<SectionWish> wishes) {}
