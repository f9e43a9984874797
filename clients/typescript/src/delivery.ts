import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, timestampDate } from "@bufbuild/protobuf/wkt";
import { type About, mandateOf, type Payload } from "./envelopes.js";
import { bounded, type Session } from "./session.js";
import { validTrace } from "./traces.js";
import { type AcknowledgementSchema, type Envelope, type HandoffRequest, MessageType, type NackCause, type TraceContext, type Delivery as WireDelivery } from "./v1.js";

type Outcome = NonNullable<MessageInitShape<typeof AcknowledgementSchema>["outcome"]>;

const REASON_TEXT_BYTES = 4000;

/** A message that waits in the mailbox: see `Agent.peek`. */
export type Waiting = Pick<Delivery, "envelope" | "payload" | "attempt" | "sequence" | "handoffId">;

/** A message that the broker delivered to this agent, its signature verified. `P` is the type of its payload. */
export class Delivery<P extends Payload | undefined = Payload | undefined> {
  /** The envelope as its sender sent it. */
  readonly envelope: Envelope;
  /** The payload as the message of baton.v1 that messageType names; undefined for a type unknown to this version. */
  readonly payload: P;
  /** The delivery attempt, starting at 1. From 2 on the message may have been handled before. */
  readonly attempt: number;
  /** The message's position in the order of everything that the broker stored. */
  readonly sequence: bigint;
  /** The handoff that the message belongs to, if any. For a redriven request it differs from the messageId. */
  readonly handoffId: string;
  /** The trace context that the receiver continues, as the handler of the message does. Undefined: none is known. */
  readonly traceContext: TraceContext | undefined;

  #deliveryId: string;
  #session: Session;
  #outcome: "acked" | "nacked" | undefined;
  /** Whether an ack was sent, which may have been lost with its session. */
  #isTaken = false;

  /** @internal */
  constructor(wire: WireDelivery, envelope: Envelope, payload: P, session: Session) {
    this.envelope = envelope;
    this.payload = payload;
    this.attempt = wire.attempt;
    this.sequence = wire.sequence;
    this.handoffId = wire.handoffId || handoffOf(envelope);
    this.traceContext = validTrace(wire.traceContext);
    this.#deliveryId = wire.deliveryId;
    this.#session = session;
  }

  /** The terms, if this message asks the agent to take a task over: a request, an award, or a mandate's award. */
  get handoffRequest(): HandoffRequest | undefined {
    const { payload } = this;
    switch (payload?.$typeName) {
      case "baton.v1.HandoffRequest":
        return payload;
      case "baton.v1.TaskAccept":
        return payload.handoff;
      case "baton.v1.NegotiationClosed":
        return payload.taskRequest && mandateOf(payload.taskRequest).handoff;
      default:
        return undefined;
    }
  }

  /** The agent that gets an answer: the sender, or for an award under a mandate the requester. */
  get answerTo(): string {
    const { payload } = this;
    const mandate = payload?.$typeName === "baton.v1.NegotiationClosed" ? payload.taskRequest : undefined;
    return (mandate ?? this.envelope).senderId;
  }

  /** The task, epoch and handoff for an answer to the delivery. */
  get about(): Required<About> {
    return { taskId: this.envelope.taskId, epoch: this.envelope.epoch, correlationId: this.handoffId };
  }

  /**
   * Acks the message: the broker never delivers it again. `serve` acks when the handler is done. A handler that acks earlier
   * has no time limit afterwards. Throws BatonError: DELIVERY_UNKNOWN after the delivery's deadline, and without a reason if the
   * broker does not answer within 30 s.
   */
  async ack(): Promise<void> {
    this.#isTaken = true;
    await this.#acknowledge({ case: "ack", value: {} });
    this.#outcome = "acked";
  }

  /** Nacks the message. It is redelivered after `retryAfterMs`, or by the broker's backoff; a POISON becomes a dead letter. */
  async nack(cause: NackCause, options: { retryAfterMs?: number | undefined; text?: string } = {}): Promise<void> {
    const { retryAfterMs, text = "" } = options;
    const retryAfter = retryAfterMs === undefined ? {} : { retryAfter: durationFromMs(retryAfterMs) };
    await this.#acknowledge({ case: "nack", value: { cause, reasonText: clipped(text), ...retryAfter } });
    this.#outcome = "nacked";
  }

  /**
   * Extends the deadline to `extensionMs` from now: at most 10 minutes, by default the ack wait. Returns the new deadline.
   * `serve` extends by itself.
   */
  async extend(extensionMs?: number): Promise<Date | undefined> {
    const value = extensionMs === undefined ? {} : { extension: durationFromMs(extensionMs) };
    const answer = await this.#acknowledge({ case: "extend", value });
    const deadline = answer.case === "acknowledged" ? answer.value.ackDeadline : undefined;
    return deadline && timestampDate(deadline);
  }

  /** The acknowledgement so far, if any. */
  get outcome(): "acked" | "nacked" | undefined {
    return this.#outcome;
  }

  /** Identifies the delivery attempt; changes with each redelivery. */
  get deliveryId(): string {
    return this.#deliveryId;
  }

  /** @internal */
  get session(): Session {
    return this.#session;
  }

  /** @internal Takes over the deliveryId of a redelivery of the same message. Returns whether an ack was lost. */
  renew(later: Delivery): boolean {
    this.#deliveryId = later.#deliveryId;
    this.#session = later.#session;
    if (this.#isTaken) this.#outcome = undefined;
    return this.#isTaken;
  }

  async #acknowledge(outcome: Outcome): Promise<Awaited<ReturnType<Session["ask"]>>> {
    return bounded(this.#session.ask({ case: "acknowledgement", value: { deliveryId: this.#deliveryId, outcome } }));
  }
}

function handoffOf(envelope: Envelope): string {
  return envelope.messageType === MessageType.HANDOFF_REQUEST ? envelope.messageId : envelope.correlationId;
}

/** Cuts a text to its bound of 4096 bytes. */
export function clipped(text: string): string {
  return clippedTo(REASON_TEXT_BYTES, text);
}

/** Cuts a text to a number of bytes, between two characters. */
export function clippedTo(bytesMax: number, text: string): string {
  const bytes = Buffer.from(text);
  return bytes.length <= bytesMax ? text : bytes.subarray(0, bytesMax).toString().replace(/\uFFFD+$/, "");
}
