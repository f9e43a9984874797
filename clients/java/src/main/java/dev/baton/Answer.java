package dev.baton;

import com.google.protobuf.Struct;

/**
 * The answer to a question.
 *
 * @param agentId the agent that answered
 * @param text the answer for people; may be empty
 * @param data the answer for programs; fits the question's schema, if the question has one
 */
public record Answer(String agentId, String text, Struct data) {}
