package dev.baton;

import java.util.Map;

/**
 * The answer to a question.
 *
 * @param agentId the agent that answered
 * @param text the answer for people; may be empty
 * @param data the answer for programs; fits the question's schema, if the question has one. See {@link Json}
 */
public record Answer(String agentId, String text, Map<String, Object> data) {}
