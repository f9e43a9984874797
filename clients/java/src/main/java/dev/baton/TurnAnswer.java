package dev.baton;

import dev.baton.v1.RecordTurnResponse;
import java.util.List;
import java.util.Map;

/**
 * The broker's answer to a response of a model that {@link Run#turn(String, Object)} reported.
 *
 * @param answer the answer: the choice, the next nodes, or the rule that the turn broke
 * @param messages the results of the transfer calls as messages for the model's history, in the shape of the response
 */
public record TurnAnswer(RecordTurnResponse answer, List<Map<String, Object>> messages) {
    /** Copies the list. */
    public TurnAnswer {
        messages = List.copyOf(messages);
    }
}
