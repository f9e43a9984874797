import { anyUnpack } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { type BadRequest, BadRequestSchema, type ErrorInfo, ErrorInfoSchema, type RetryInfo, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import type { Status } from "./gen/google/rpc/status_pb.js";
import type { RejectReason } from "./v1.js";

/** One invalid field of a request. */
export interface FieldViolation {
  /** The field's path, for example `envelope.task_id`. */
  readonly field: string;
  /** The rule that the field breaks. */
  readonly description: string;
}

interface Details {
  info?: ErrorInfo | undefined;
  badRequest?: BadRequest | undefined;
  retry?: RetryInfo | undefined;
}

/**
 * A refusal by the broker, which then has changed nothing, or a failure of the connection, whose outcome is unknown.
 *
 * With `code` Unavailable or DeadlineExceeded the outcome is unknown: send the same envelope again, and the broker answers with
 * its first receipt. Branch on `reason`.
 */
export class BatonError extends Error {
  override readonly name = "BatonError";
  /**
   * The stable reason, for example `STALE_EPOCH`; docs/errors.md of the broker has a remedy for each. Empty for an error that
   * the broker did not raise.
   */
  readonly reason: string;
  /** The details of the reason, for example `current_epoch`. */
  readonly metadata: Readonly<Record<string, string>>;
  /** All invalid fields. */
  readonly fields: readonly FieldViolation[];
  /** The delay after which a retry may succeed; undefined if the broker names none. */
  readonly retryDelayMs: number | undefined;

  constructor(
    /** The gRPC status code. */
    readonly code: Code,
    /** The explanation, for people. */
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

  /** Converts a google.rpc.Status from a session's frame. */
  static ofStatus(status: Status): BatonError {
    const details: Details = {};
    for (const any of status.details) {
      details.info ??= anyUnpack(any, ErrorInfoSchema);
      details.badRequest ??= anyUnpack(any, BadRequestSchema);
      details.retry ??= anyUnpack(any, RetryInfoSchema);
    }
    return new BatonError(codeOf(status.code), status.message, details);
  }

  /** Converts the error of a failed call. */
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

/** A message fails verification by this client, independent of the broker's checks. */
export class VerificationError extends Error {
  override readonly name = "VerificationError";

  constructor(
    /**
     * The broker's reason for the same fault: SIGNATURE_MISSING, SIGNATURE_INVALID, SIGNATURE_VERSION_UNKNOWN, KEY_WEAK,
     * KEY_UNKNOWN, KEY_NOT_VALID, PAYLOAD_TYPE_MISMATCH, MALFORMED or CONTEXT_DIGEST_MISMATCH. CUSTODY_INVALID is the client's
     * own.
     */
    readonly reason: string,
    text: string,
  ) {
    super(`${reason}: ${text}`);
  }
}

/** A candidate's refusal of a handoff. */
export interface Rejection {
  /** The candidate. */
  readonly agentId: string;
  /** The reason. */
  readonly reason: RejectReason;
  /** The explanation, if the candidate gave one. */
  readonly text: string;
}

/**
 * A handoff ended without moving the task. The sender keeps the task at the same epoch; the candidate discards its copy.
 */
export class HandoffFailed extends Error {
  override readonly name = "HandoffFailed";

  constructor(
    readonly handoffId: string,
    /** The stable code, for example NO_CANDIDATE, ACCEPT_TIMEOUT, HANDOFF_CANCELLED or TAKEOVER_FAILED. */
    readonly reason: string,
    text: string,
    /** The agents that did not take the task, in order. Only the sender's side knows them. */
    readonly rejections: readonly Rejection[] = [],
    options?: ErrorOptions,
  ) {
    super(`${reason}: ${text}`, options);
  }
}

/**
 * The reason why a lent task came back without a result: its loan timeout passed; the time limit of `delegate` passed; a
 * `recall` by this agent, or by an agent that had lent the task to it; or an operator reassigned the task.
 */
export type RecallReason = "LOAN_TIMEOUT" | "DEADLINE" | "RECALL" | "REASSIGNED" | "ABANDONED" | "CANCELED";

/** A lent task was taken back before its delegate reported a final status. */
export class TaskRecalled extends Error {
  override readonly name = "TaskRecalled";

  constructor(
    readonly taskId: string,
    /** The handoff that lent the task. */
    readonly handoffId: string,
    readonly reason: RecallReason,
    /** The explanation, for people. */
    readonly text: string,
    /** The task's epoch after the recall. */
    readonly epoch: bigint,
    /** Whether this agent owns the task again. False: an agent that had lent the task to this one, or an operator, took it. */
    readonly isOwner: boolean,
  ) {
    super(`${reason}: ${text}`);
  }
}

/**
 * A question about a task ended without an answer: EXPIRED, no answer came before its deadline; WITHDRAWN, a later status update
 * or a move of the task closed it, or another process of this agent got the answer.
 */
export class NoAnswer extends Error {
  override readonly name = "NoAnswer";

  constructor(
    /** The messageId of the status update that asked. */
    readonly questionId: string,
    readonly reason: "EXPIRED" | "WITHDRAWN",
    text: string,
  ) {
    super(`${reason}: ${text}`);
  }
}

/**
 * A negotiation ended without an award: NO_OFFER, NEGOTIATION_EXPIRED or another code of the broker; CANCELLED, or the state for
 * an award as mail.
 */
export class NegotiationFailed extends Error {
  override readonly name = "NegotiationFailed";

  constructor(
    readonly negotiationId: string,
    readonly reason: string,
    text: string,
  ) {
    super(`${reason}: ${text}`);
  }
}

/**
 * The log that a watch follows has lost entries: they were removed, or the log is shorter after a restore. To go on behind the
 * gap, watch again after `lastNumber`.
 */
export class Gap extends Error {
  override readonly name = "Gap";

  constructor(
    what: string,
    /** The number of the first missing entry. */
    readonly firstNumber: bigint,
    /** The number of the last missing entry. */
    readonly lastNumber: bigint,
  ) {
    super(`entries ${firstNumber} to ${lastNumber} of ${what} do not exist`);
  }
}

/** The session ended before the answer arrived; the question may be repeated on the next session. */
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
  "INPUT_EXPIRED",
  "INPUT_TAKEN",
  "NEGOTIATION_CLOSED",
  "NEGOTIATION_UNKNOWN",
  "NOT_CANDIDATE",
  "NOT_OWNER",
  "OFFER_NOT_STANDING",
  "STALE_EPOCH",
  "TASK_FINAL",
]);

/**
 * Whether the broker refused because the handoff or the task has moved on: it is over, at another step, or another agent's. The
 * message that led to the call needs no further work, and `serve` acks it. Also true for HandoffFailed and
 * TaskRecalled.
 */
export function hasGoneOn(error: unknown): boolean {
  return error instanceof HandoffFailed || error instanceof TaskRecalled || (error instanceof BatonError && GONE_ON.has(error.reason));
}

/** Whether the same call may succeed later: after a failed connection, or on a broker that is stopping. */
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
      // An error without a reason is the connection's: one that breaks ends its calls with any of these codes.
      return error.reason === "";
    default:
      return false;
  }
}
