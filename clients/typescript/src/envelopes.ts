/** Construction and parsing of envelopes, their payloads and context sections. */
import { randomBytes } from "node:crypto";
import { create, fromBinary, type MessageShape, toBinary } from "@bufbuild/protobuf";
import { AnySchema, timestampNow } from "@bufbuild/protobuf/wkt";
import { VerificationError } from "./errors.js";
import { jsonOf } from "./json.js";
import { currentTrace } from "./traces.js";
import * as v1 from "./v1.js";

/** The agent id of a broker. */
export const BROKER_ID = "baton";

const PAYLOADS = {
  [v1.MessageType.HANDOFF_REQUEST]: v1.HandoffRequestSchema,
  [v1.MessageType.HANDOFF_ACCEPT]: v1.HandoffAcceptSchema,
  [v1.MessageType.HANDOFF_REJECT]: v1.HandoffRejectSchema,
  [v1.MessageType.HANDOFF_CANCEL]: v1.HandoffCancelSchema,
  [v1.MessageType.TASK_CONTEXT_TRANSFER]: v1.TaskContextTransferSchema,
  [v1.MessageType.HANDOFF_COMPLETE]: v1.HandoffCompleteSchema,
  [v1.MessageType.TASK_STATUS_UPDATE]: v1.TaskStatusUpdateSchema,
  [v1.MessageType.ERROR_NOTIFICATION]: v1.ErrorNotificationSchema,
  [v1.MessageType.HEARTBEAT]: v1.HeartbeatSchema,
  [v1.MessageType.TASK_REQUEST]: v1.TaskRequestSchema,
  [v1.MessageType.TASK_OFFER]: v1.TaskOfferSchema,
  [v1.MessageType.TASK_ACCEPT]: v1.TaskAcceptSchema,
  [v1.MessageType.DELEGATION]: v1.DelegationSchema,
  [v1.MessageType.INFO]: v1.InfoSchema,
  [v1.MessageType.TASK_DECLINE]: v1.TaskDeclineSchema,
  [v1.MessageType.NEGOTIATION_CLOSED]: v1.NegotiationClosedSchema,
  [v1.MessageType.CONTEXT_CHECKPOINT]: v1.TaskContextTransferSchema,
  [v1.MessageType.WORKSPACE_APPEND]: v1.WorkspaceAppendSchema,
  [v1.MessageType.PLAN_SUBMISSION]: v1.PlanSubmissionSchema,
  [v1.MessageType.TASK_RECALL]: v1.TaskRecallSchema,
  [v1.MessageType.TASK_INPUT]: v1.TaskInputSchema,
  [v1.MessageType.TASK_CREATE]: v1.TaskCreateSchema,
} as const;

type PayloadSchema = (typeof PAYLOADS)[keyof typeof PAYLOADS];

/** A payload of baton.v1; `$typeName` names its type. */
export type Payload = MessageShape<PayloadSchema>;

const KINDS = new Map<string, { type: v1.MessageType; schema: PayloadSchema }>(
  Object.entries(PAYLOADS)
    // A checkpoint has the payload of a context, which by itself is that of a handoff.
    .filter(([type]) => type !== String(v1.MessageType.CONTEXT_CHECKPOINT))
    .map(([type, schema]) => [schema.typeName, { type: Number(type), schema }]),
);

const TYPE_URL = "type.googleapis.com/";

/** The task, epoch and handoff of a message. An absent field is left out of the envelope. */
export interface About {
  /** The task's id. */
  taskId?: string;
  /** The task's fencing token as known to the sender: 1 for a new task, 0 without a task. */
  epoch?: bigint;
  /** The handoff that the message belongs to, or the message that it answers. */
  correlationId?: string;
}

/** Returns a new UUID of version 7: later ids sort after earlier ones. */
export function newMessageId(): string {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes.writeUInt8(0x70 | (bytes.readUInt8(6) & 0x0f), 6);
  bytes.writeUInt8(0x80 | (bytes.readUInt8(8) & 0x3f), 8);
  return bytes.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** Returns an unsigned envelope around a payload of baton.v1, with a new id, the current time and the present trace context. */
export function makeEnvelope(senderId: string, receiverId: string, about: About, payload: Payload): v1.Envelope {
  const kind = KINDS.get(payload.$typeName);
  if (kind === undefined) throw new TypeError(`${payload.$typeName} is not a payload`);
  const traceContext = currentTrace();
  return create(v1.EnvelopeSchema, {
    ...(traceContext === undefined ? {} : { traceContext }),
    messageId: newMessageId(),
    senderId,
    receiverId,
    timestamp: timestampNow(),
    messageType: kind.type,
    correlationId: about.correlationId ?? "",
    taskId: about.taskId ?? "",
    epoch: about.epoch ?? 0n,
    payload: create(AnySchema, { typeUrl: TYPE_URL + payload.$typeName, value: toBinary(kind.schema, payload) }),
  });
}

/**
 * Returns the envelope's payload; undefined for a message type unknown to this version. Throws VerificationError:
 * PAYLOAD_TYPE_MISMATCH if the payload differs from messageType, MALFORMED if it does not parse.
 */
export function payloadOf(envelope: v1.Envelope): Payload | undefined {
  const schema = (PAYLOADS as Partial<Record<number, PayloadSchema>>)[envelope.messageType];
  if (schema === undefined) return undefined;
  if (envelope.payload?.typeUrl !== TYPE_URL + schema.typeName) {
    const found = `message_type ${v1.MessageType[envelope.messageType]} with a payload of type ${envelope.payload?.typeUrl}`;
    throw new VerificationError("PAYLOAD_TYPE_MISMATCH", found);
  }
  try {
    return fromBinary(schema, envelope.payload.value);
  } catch (error) {
    throw new VerificationError("MALFORMED", `the payload cannot be parsed: ${String(error)}`);
  }
}

/** Returns the request for offers in the envelope that a mandate is. Throws VerificationError. */
export function mandateOf(envelope: v1.Envelope): v1.TaskRequest {
  const request = payloadOf(envelope);
  if (request?.$typeName === "baton.v1.TaskRequest" && request.handoff !== undefined) return request;
  throw new VerificationError("PAYLOAD_TYPE_MISMATCH", "the message under a mandate is no request with terms");
}

/** Returns a context section with a JSON object or list. A `bigint` is an integer. */
export function jsonSection(name: string, value: object): v1.ContextSection {
  return create(v1.ContextSectionSchema, { name, content: { case: "json", value: jsonOf(value) } });
}

/** Returns a context section with bytes of the given media type. */
export function bytesSection(name: string, mediaType: string, data: Uint8Array): v1.ContextSection {
  return create(v1.ContextSectionSchema, { name, content: { case: "bytes", value: { mediaType, data } } });
}
