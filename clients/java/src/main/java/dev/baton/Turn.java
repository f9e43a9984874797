package dev.baton;

import dev.baton.v1.ToolCall;
import java.time.Instant;
import java.util.List;

/**
 * A turn of a node's model, for {@link Run#turn}.
 *
 * @param id the id of the turn, a UUID: the idempotency key
 * @param calls all tool calls of the turn, at most 128
 * @param isFinished whether the model has finished; without a transfer call the node then leads to its forward outputs
 * @param output the output of the node for the nodes that follow, at most 65,536 bytes
 * @param error the error that ended the node's work, at most 65,536 bytes; not together with a transfer call
 */
public record Turn(String id, List<ToolCall> calls, boolean isFinished, String output, String error) {
    /** Copies the list. */
    public Turn {
        calls = List.copyOf(calls);
    }

    /** Returns a turn under a new id, with these tool calls. */
    public static Turn of(ToolCall... calls) {
        return new Turn(Envelopes.newMessageId(Instant.now()), List.of(calls), false, "", "");
    }

    /** Returns the turn as the last one of its node, with this output. */
    public Turn finish(String output) {
        return new Turn(id, calls, true, output, error);
    }

    /** Returns the turn as the end of its node's work by this error. */
    public Turn fail(String error) {
        return new Turn(id, calls, isFinished, output, error);
    }
}
