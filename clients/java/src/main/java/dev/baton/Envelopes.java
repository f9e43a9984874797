package dev.baton;

import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import dev.baton.v1.ContextBytes;
import dev.baton.v1.ContextSection;
import dev.baton.v1.Delegation;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.HandoffAccept;
import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffComplete;
import dev.baton.v1.HandoffReject;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.Heartbeat;
import dev.baton.v1.Info;
import dev.baton.v1.MessageType;
import dev.baton.v1.NegotiationClosed;
import dev.baton.v1.PlanSubmission;
import dev.baton.v1.TaskAccept;
import dev.baton.v1.TaskContextTransfer;
import dev.baton.v1.TaskCreate;
import dev.baton.v1.TaskDecline;
import dev.baton.v1.TaskInput;
import dev.baton.v1.TaskOffer;
import dev.baton.v1.TaskRecall;
import dev.baton.v1.TaskRequest;
import dev.baton.v1.TaskStatusUpdate;
import dev.baton.v1.WorkspaceAppend;
import java.security.SecureRandom;
import java.time.Instant;
import java.util.Map;
import java.util.UUID;

/** Construction and parsing of envelopes, their payloads and the sections of a context. */
public final class Envelopes {
    private static final String TYPE_URL = "type.googleapis.com/baton.v1.";
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final Map<MessageType, Message> PAYLOADS = Map.ofEntries(
            Map.entry(MessageType.MESSAGE_TYPE_HANDOFF_REQUEST, HandoffRequest.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_HANDOFF_ACCEPT, HandoffAccept.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_HANDOFF_REJECT, HandoffReject.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_HANDOFF_CANCEL, HandoffCancel.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_TASK_CONTEXT_TRANSFER, TaskContextTransfer.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_CONTEXT_CHECKPOINT, TaskContextTransfer.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_HANDOFF_COMPLETE, HandoffComplete.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_TASK_STATUS_UPDATE, TaskStatusUpdate.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_ERROR_NOTIFICATION, ErrorNotification.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_HEARTBEAT, Heartbeat.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_TASK_REQUEST, TaskRequest.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_TASK_OFFER, TaskOffer.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_TASK_ACCEPT, TaskAccept.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_DELEGATION, Delegation.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_INFO, Info.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_TASK_DECLINE, TaskDecline.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_NEGOTIATION_CLOSED, NegotiationClosed.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_PLAN_SUBMISSION, PlanSubmission.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_WORKSPACE_APPEND, WorkspaceAppend.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_TASK_RECALL, TaskRecall.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_TASK_INPUT, TaskInput.getDefaultInstance()),
            Map.entry(MessageType.MESSAGE_TYPE_TASK_CREATE, TaskCreate.getDefaultInstance()));

    private Envelopes() {}

    /**
     * The task, epoch and handoff of a message. Each may be empty.
     *
     * @param taskId the task's id
     * @param epoch the task's fencing token as known to the sender: 1 for a new task, 0 without a task
     * @param correlationId the handoff, or the message that is answered
     */
    public record About(String taskId, long epoch, String correlationId) {
        /** No task and no handoff, for plain mail. */
        public static final About NOTHING = new About("", 0, "");

        /** Names a task at an epoch. */
        public static About task(String taskId, long epoch) {
            return new About(taskId, epoch, "");
        }
    }

    /** Returns a new UUID of version 7: later ids sort after earlier ones. */
    public static String newMessageId(Instant now) {
        long high = now.toEpochMilli() << 16 | 0x7000 | RANDOM.nextInt(1 << 12);
        long low = RANDOM.nextLong() >>> 2 | 1L << 63;
        return new UUID(high, low).toString();
    }

    /** Returns an unsigned envelope around a payload of baton.v1, with the trace context of this thread. */
    public static Envelope make(Message payload, String senderId, String receiverId, About about, Instant now) {
        String name = payload.getDescriptorForType().getName();
        Envelope.Builder envelope = Envelope.newBuilder()
                .setMessageId(newMessageId(now))
                .setSenderId(senderId)
                .setReceiverId(receiverId)
                .setTimestamp(Times.ofInstant(now))
                .setMessageType(typeOf(payload))
                .setCorrelationId(about.correlationId())
                .setTaskId(about.taskId())
                .setEpoch(about.epoch())
                .setPayload(Any.newBuilder().setTypeUrl(TYPE_URL + name).setValue(payload.toByteString()));
        Traces.current().ifPresent(envelope::setTraceContext);
        return envelope.build();
    }

    /**
     * Returns the payload as the message of baton.v1 that message_type names. Throws {@link VerificationException}:
     * PAYLOAD_TYPE_MISMATCH if the payload differs from message_type, MALFORMED if it does not parse.
     */
    public static Message payloadOf(Envelope envelope) {
        Message known = PAYLOADS.get(envelope.getMessageType());
        String url = envelope.getPayload().getTypeUrl();
        if (known == null || !url.equals(TYPE_URL + known.getDescriptorForType().getName())) {
            throw new VerificationException(
                    "PAYLOAD_TYPE_MISMATCH",
                    "message_type " + envelope.getMessageTypeValue() + " with a payload of type '" + url + "'");
        }
        try {
            return known.getParserForType().parseFrom(envelope.getPayload().getValue());
        } catch (InvalidProtocolBufferException e) {
            throw new VerificationException("MALFORMED", "the payload cannot be parsed: " + e.getMessage());
        }
    }

    /**
     * Returns the handoff of an envelope: the message_id of a request or of an award with a task, the correlation_id of
     * any other message.
     */
    public static String handoffIdOf(Envelope envelope) {
        boolean isAward = envelope.getMessageType() == MessageType.MESSAGE_TYPE_TASK_ACCEPT
                && !envelope.getTaskId().isEmpty();
        boolean isRequest = isAward || envelope.getMessageType() == MessageType.MESSAGE_TYPE_HANDOFF_REQUEST;
        return isRequest ? envelope.getMessageId() : envelope.getCorrelationId();
    }

    /** Returns a context section with a JSON object or list as text. Its digest is over exactly this text. */
    public static ContextSection jsonSection(String name, String json) {
        return ContextSection.newBuilder().setName(name).setJson(json).build();
    }

    /** Returns a context section with bytes of the given media type. */
    public static ContextSection bytesSection(String name, byte[] data, String mediaType) {
        ContextBytes bytes = ContextBytes.newBuilder()
                .setData(ByteString.copyFrom(data))
                .setMediaType(mediaType)
                .build();
        return ContextSection.newBuilder().setName(name).setBytes(bytes).build();
    }

    private static MessageType typeOf(Message payload) {
        return PAYLOADS.entrySet().stream()
                // A checkpoint has the payload of a context, which by itself is that of a handoff.
                .filter(entry -> entry.getKey() != MessageType.MESSAGE_TYPE_CONTEXT_CHECKPOINT)
                .filter(entry -> entry.getValue().getClass() == payload.getClass())
                .map(Map.Entry::getKey)
                .findFirst()
                .orElseThrow(() -> new IllegalArgumentException(
                        payload.getDescriptorForType().getFullName() + " is not a payload"));
    }
}
