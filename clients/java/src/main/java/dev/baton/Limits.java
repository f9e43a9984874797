package dev.baton;

import com.google.protobuf.MessageLite;
import dev.baton.BatonException.FieldViolation;
import dev.baton.v1.Envelope;
import dev.baton.v1.MessageType;
import io.grpc.Status;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** The bounds of the schema. The client checks them before it sends. */
final class Limits {
    /** The maximum size of a payload's value, in bytes. */
    static final int PAYLOAD_BYTES_MAX = 1024 * 1024;
    /** The maximum size of the content of a workspace's entry, in bytes. */
    static final int ENTRY_BYTES_MAX = 1024 * 1024;
    /** The maximum size of the payload that appends an entry, in bytes. */
    static final int APPEND_BYTES_MAX = ENTRY_BYTES_MAX + 4096;
    /** The maximum size of a message on a connection, in bytes. A longer message ends its session. */
    static final int FRAME_BYTES_MAX = 4 * 1024 * 1024;
    /** The maximum length of an agent, task or key id, and of NAME in type:NAME and all:NAME, in characters. */
    static final int NAME_LENGTH_MAX = 128;

    private static final int UUID_LENGTH = 36;
    private static final int TRACEPARENT_LENGTH_MAX = 55;
    private static final int TRACESTATE_LENGTH_MAX = 512;

    private Limits() {}

    /** Throws the broker's error: FIELD_INVALID for an overlong id, PAYLOAD_TOO_LARGE, or ENTRY_TOO_LARGE. */
    static void check(Envelope envelope) {
        List<FieldViolation> violations = new ArrayList<>();
        bound(violations, "message_id", envelope.getMessageId(), UUID_LENGTH);
        bound(violations, "sender_id", envelope.getSenderId(), NAME_LENGTH_MAX);
        bound(violations, "receiver_id", nameOf(envelope.getReceiverId()), NAME_LENGTH_MAX);
        bound(violations, "correlation_id", envelope.getCorrelationId(), UUID_LENGTH);
        bound(violations, "task_id", envelope.getTaskId(), NAME_LENGTH_MAX);
        bound(violations, "key_id", envelope.getKeyId(), NAME_LENGTH_MAX);
        String path = "trace_context.";
        bound(violations, path + "traceparent", envelope.getTraceContext().getTraceparent(), TRACEPARENT_LENGTH_MAX);
        bound(violations, path + "tracestate", envelope.getTraceContext().getTracestate(), TRACESTATE_LENGTH_MAX);
        if (!violations.isEmpty()) {
            String problem = violations.stream()
                    .map(one -> one.field() + " " + one.description())
                    .collect(Collectors.joining("; "));
            throw refused(problem, "FIELD_INVALID", violations);
        }
        int bytesCount = envelope.getPayload().getValue().size();
        if (envelope.getMessageType() != MessageType.MESSAGE_TYPE_WORKSPACE_APPEND) {
            checkPayload(bytesCount);
        } else if (bytesCount > APPEND_BYTES_MAX) {
            throw entryTooLarge(bytesCount);
        }
    }

    /** Throws ENTRY_TOO_LARGE for the content of a workspace's entry. */
    static void checkEntry(int bytesCount) {
        if (bytesCount > ENTRY_BYTES_MAX) {
            throw entryTooLarge(bytesCount);
        }
    }

    /** Throws PAYLOAD_TOO_LARGE. */
    static void checkPayload(int bytesCount) {
        if (bytesCount > PAYLOAD_BYTES_MAX) {
            String problem = "the payload has " + bytesCount + " bytes; the limit is " + PAYLOAD_BYTES_MAX;
            throw refused(problem, "PAYLOAD_TOO_LARGE", List.of());
        }
    }

    /** Throws OUT_OF_RANGE without a reason: the transport's answer to an oversized frame. */
    static void checkFrame(MessageLite frame) {
        int bytesCount = frame.getSerializedSize();
        if (bytesCount > FRAME_BYTES_MAX) {
            String problem = "the frame has " + bytesCount + " bytes; the limit is " + FRAME_BYTES_MAX;
            throw new BatonException(Status.Code.OUT_OF_RANGE, problem);
        }
    }

    private static void bound(List<FieldViolation> violations, String field, String text, int lengthMax) {
        if (text.length() > lengthMax) {
            violations.add(
                    new FieldViolation("envelope." + field, "must have at most " + lengthMax + " characters"));
        }
    }

    private static String nameOf(String receiverId) {
        boolean isType = receiverId.startsWith("type:") || receiverId.startsWith("all:");
        return isType ? receiverId.substring(receiverId.indexOf(':') + 1) : receiverId;
    }

    private static BatonException entryTooLarge(int bytesCount) {
        String problem = "the entry has " + bytesCount + " bytes; the limit is " + ENTRY_BYTES_MAX;
        return refused(problem, "ENTRY_TOO_LARGE", List.of());
    }

    private static BatonException refused(String problem, String reason, List<FieldViolation> violations) {
        return new BatonException(Status.Code.INVALID_ARGUMENT, problem, reason, Map.of(), violations, null);
    }
}
