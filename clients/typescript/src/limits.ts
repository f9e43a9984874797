/**
 * The limits of the schema. The client refuses a message over a limit before it sends: a frame over the limit would end the
 * session.
 */
import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import type { FieldViolation } from "./errors.js";
import { invalid, refusal } from "./refusals.js";
import * as v1 from "./v1.js";

/** The maximum size of a payload's value, in bytes. */
export const PAYLOAD_BYTES_MAX = 1024 * 1024;
/** The maximum size of the payload of an append to a workspace: an entry of 1 MiB, and its topic. */
const APPEND_BYTES_MAX = PAYLOAD_BYTES_MAX + 4096;
/** The maximum size of a message on a connection, in bytes. */
export const FRAME_BYTES_MAX = 4 * 1024 * 1024;
const NAME_LENGTH_MAX = 128;
const UUID_LENGTH = 36;
const TRACEPARENT_LENGTH_MAX = 55;
const TRACESTATE_LENGTH_MAX = 512;
const HEARTBEAT_TEXT_MAX = 256;
const HEARTBEAT_ENTRIES_MAX = 32;

/** Refuses an envelope over a limit, with the broker's reason. Throws BatonError. */
export function checkEnvelope(envelope: v1.Envelope): void {
  const { messageId, senderId, correlationId, taskId, keyId, traceContext, payload } = envelope;
  const bounds: [string, string, number][] = [
    ["message_id", messageId, UUID_LENGTH],
    ["sender_id", senderId, NAME_LENGTH_MAX],
    ["receiver_id", envelope.receiverId.replace(/^(type|all):/, ""), NAME_LENGTH_MAX],
    ["correlation_id", correlationId, UUID_LENGTH],
    ["task_id", taskId, NAME_LENGTH_MAX],
    ["key_id", keyId, NAME_LENGTH_MAX],
    ["trace_context.traceparent", traceContext?.traceparent ?? "", TRACEPARENT_LENGTH_MAX],
    ["trace_context.tracestate", traceContext?.tracestate ?? "", TRACESTATE_LENGTH_MAX],
  ];
  const wrong = bounds
    .filter(([, text, most]) => text.length > most)
    .map(([field, , most]) => ({ field: `envelope.${field}`, description: `must have at most ${most} characters` }));
  refuse(wrong);
  const isAppend = envelope.messageType === v1.MessageType.WORKSPACE_APPEND;
  checkPayload(payload?.value.length ?? 0, isAppend ? APPEND_BYTES_MAX : PAYLOAD_BYTES_MAX);
  const bytes = toBinary(v1.ConnectRequestSchema, frameOf(envelope)).length;
  if (bytes > FRAME_BYTES_MAX) {
    throw refusal("PAYLOAD_TOO_LARGE", `the frame has ${bytes} bytes; the limit is ${FRAME_BYTES_MAX}`);
  }
}

/** Refuses sections that do not fit into one TaskContextTransfer, before the handoff's request is sent. */
export function checkContext(sections: readonly v1.ContextSection[]): void {
  const transfer = create(v1.TaskContextTransferSchema, { sections: [...sections], contextDigest: new Uint8Array(32) });
  checkPayload(toBinary(v1.TaskContextTransferSchema, transfer).length);
}

/** Refuses a heartbeat that the broker would refuse, or that would end the session. Throws BatonError. */
export function checkHeartbeat(heartbeat: MessageInitShape<typeof v1.HeartbeatSchema>): void {
  const { status, metrics } = create(v1.HeartbeatSchema, heartbeat);
  const wrong: FieldViolation[] = [];
  if (Buffer.byteLength(status) > HEARTBEAT_TEXT_MAX) {
    wrong.push({ field: "heartbeat.status", description: `must have at most ${HEARTBEAT_TEXT_MAX} bytes` });
  }
  if (Object.keys(metrics).length > HEARTBEAT_ENTRIES_MAX) {
    wrong.push({ field: "heartbeat.metrics", description: `must have at most ${HEARTBEAT_ENTRIES_MAX} entries` });
  }
  if (toBinary(v1.HeartbeatSchema, create(v1.HeartbeatSchema, heartbeat)).length > PAYLOAD_BYTES_MAX) {
    wrong.push({ field: "heartbeat", description: `must have at most ${PAYLOAD_BYTES_MAX} bytes` });
  }
  refuse(wrong);
}

function frameOf(envelope: v1.Envelope): v1.ConnectRequest {
  return create(v1.ConnectRequestSchema, { request: { case: "envelope", value: envelope } });
}

function checkPayload(bytes: number, bytesMax = PAYLOAD_BYTES_MAX): void {
  if (bytes <= bytesMax) return;
  const text = `the payload has ${bytes} bytes; the limit is ${bytesMax}`;
  throw refusal("PAYLOAD_TOO_LARGE", text, []);
}

function refuse(wrong: FieldViolation[]): void {
  if (wrong.length > 0) throw invalid(wrong);
}
