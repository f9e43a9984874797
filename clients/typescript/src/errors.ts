import { anyUnpack } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { type BadRequest, BadRequestSchema, type ErrorInfo, ErrorInfoSchema, type RetryInfo, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import type { Status } from "./gen/google/rpc/status_pb.js";
import type { RejectReason } from "./v1.js";

/** One field of a request that is wrong. */
export interface FieldViolation {
  /** Its path, for example `envelope.task_id`. */
  readonly field: string;
  /** What it should be. */
  readonly description: string;
}

interface Details {
  info?: ErrorInfo | undefined;
  badRequest?: BadRequest | undefined;
  retry?: RetryInfo | undefined;
}

/**
 * A refusal of the broker, which then has changed nothing; or a failure of the connection, and then nobody knows.
 *
 * `code` Unavailable and DeadlineExceeded are of the second kind: send the same envelope again, and the broker answers with
 * its first receipt. Branch on `reason`.
 */
export class BatonError extends Error {
  override readonly name = "BatonError";
  /** The stable reason, for example `STALE_EPOCH`: docs/errors.md of the broker. Empty where the error is not the broker's own. */
  readonly reason: string;
  /** What belongs to the reason, for example `current_epoch`. */
  readonly metadata: Readonly<Record<string, string>>;
  /** The fields that are wrong, all of them. */
  readonly fields: readonly FieldViolation[];
  /** After how long trying again may help; undefined where the broker does not say. */
  readonly retryDelayMs: number | undefined;

  constructor(
    /** The gRPC status code. */
    readonly code: Code,
    /** In words, for people. */
    readonly text: string,
    details: Details = {},
    cause?: unknown,
  ) {
    super(`${details.info?.reason || Code[code] || "Unknown"}: ${text}`, { cause });
    this.reason = details.info?.reason ?? "";
    this.metadata = details.info?.metadata ?? {};
    this.fields = (details.badRequest?.fieldViolations ?? []).map(({ field, description }) => ({ field, description }));
    const delay = details.retry?.retryDelay;
    this.retryDelayMs = delay && durationMs(delay);
  }

  /** The error of a google.rpc.Status, as it comes on a session. */
  static ofStatus(status: Status): BatonError {
    const details: Details = {};
    for (const any of status.details) {
      details.info ??= anyUnpack(any, ErrorInfoSchema);
      details.badRequest ??= anyUnpack(any, BadRequestSchema);
      details.retry ??= anyUnpack(any, RetryInfoSchema);
    }
    return new BatonError(codeOf(status.code), status.message, details);
  }

  /** The error of a call that failed. */
  static of(error: unknown): BatonError {
    if (error instanceof BatonError) return error;
    const from = ConnectError.from(error);
    const details = {
      info: from.findDetails(ErrorInfoSchema)[0],
      badRequest: from.findDetails(BadRequestSchema)[0],
      retry: from.findDetails(RetryInfoSchema)[0],
    };
    return new BatonError(from.code, from.rawMessage, details, from.cause ?? error);
  }
}

/** A message does not verify here, whatever the broker says of it. */
export class VerificationError extends Error {
  override readonly name = "VerificationError";

  constructor(
    /**
     * The broker's word for the same: SIGNATURE_MISSING, SIGNATURE_INVALID, SIGNATURE_VERSION_UNKNOWN, KEY_WEAK,
     * KEY_UNKNOWN, KEY_NOT_VALID, PAYLOAD_TYPE_MISMATCH, MALFORMED or CONTEXT_DIGEST_MISMATCH. CUSTODY_INVALID is ours.
     */
    readonly reason: string,
    text: string,
  ) {
    super(`${reason}: ${text}`);
  }
}

/** A candidate that did not take a handoff. */
export interface Rejection {
  /** The candidate. */
  readonly agentId: string;
  /** Why. */
  readonly reason: RejectReason;
  /** The same in words, if it said any. */
  readonly text: string;
}

/**
 * A handoff has ended without moving the task. For its sender the task stays where it is, at the same epoch; its candidate
 * drops what it has of it.
 */
export class HandoffFailed extends Error {
  override readonly name = "HandoffFailed";

  constructor(
    readonly handoffId: string,
    /** The stable code, for example NO_CANDIDATE, ACCEPT_TIMEOUT, HANDOFF_CANCELLED or TAKEOVER_FAILED. */
    readonly reason: string,
    text: string,
    /** The agents that did not take it, in order; known to its sender. */
    readonly rejections: readonly Rejection[] = [],
    options?: ErrorOptions,
  ) {
    super(`${reason}: ${text}`, options);
  }
}

/** The session ended before the answer came: what was asked may be asked again on the next one. */
export class SessionEnded extends BatonError {
  constructor(cause?: unknown) {
    super(Code.Unavailable, "the session has ended", {}, cause);
  }
}

function codeOf(number: number): Code {
  const name = Code[number] as keyof typeof Code | undefined;
  return name === undefined ? Code.Unknown : Code[name];
}

const GONE_ON = new Set([
  "HANDOFF_STATE",
  "HANDOFF_FINAL",
  "HANDOFF_EXPIRED",
  "NOT_CANDIDATE",
  "NOT_OWNER",
  "STALE_EPOCH",
  "TASK_FINAL",
]);

/**
 * Whether the broker refused because the handoff or the task has gone on: it is over, or at another step, or another
 * agent's. Nothing is left to do about the message that led to it, and `serve` acks it. So it is with HandoffFailed.
 */
export function hasGoneOn(error: unknown): boolean {
  return error instanceof HandoffFailed || (error instanceof BatonError && GONE_ON.has(error.reason));
}

/** Whether the same call may work later: connections that fail, and brokers that stop. */
export function isPassing(error: BatonError): boolean {
  switch (error.code) {
    case Code.Unavailable:
    case Code.DeadlineExceeded:
    case Code.Aborted:
    case Code.ResourceExhausted:
      return true;
    case Code.Canceled:
    case Code.Unknown:
    case Code.Internal:
      // What has no reason is the connection's: one that breaks ends its calls with any of these.
      return error.reason === "";
    default:
      return false;
  }
}
