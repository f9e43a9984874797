import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, timestampDate } from "@bufbuild/protobuf/wkt";
import { type About, type Payload } from "./envelopes.js";
import type { Session } from "./session.js";
import { type AcknowledgementSchema, type Envelope, MessageType, type NackCause, type Delivery as WireDelivery } from "./v1.js";

type Outcome = NonNullable<MessageInitShape<typeof AcknowledgementSchema>["outcome"]>;

const REASON_TEXT_BYTES = 4000;

/** A message handed out to this agent, its signature checked. `P` is what its payload is. */
export class Delivery<P extends Payload | undefined = Payload | undefined> {
  /** As its sender sent it. */
  readonly envelope: Envelope;
  /** The message of baton.v1 that messageType names; undefined where this version does not know the type. */
  readonly payload: P;
  /** The how-manieth handing-out it is; more than 1 means that the message may be known already. */
  readonly attempt: number;
  /** The message's place in the order of everything that the broker stored. */
  readonly sequence: bigint;
  /** The handoff that it belongs to, if any. Of a request that was redriven this is not the messageId. */
  readonly handoffId: string;

  #deliveryId: string;
  #session: Session;
  #outcome: "acked" | "nacked" | undefined;
  /** An ack was asked for, and may have been lost with its session. */
  #isTaken = false;

  /** @internal */
  constructor(wire: WireDelivery, envelope: Envelope, payload: P, session: Session) {
    this.envelope = envelope;
    this.payload = payload;
    this.attempt = wire.attempt;
    this.sequence = wire.sequence;
    this.handoffId = wire.handoffId || handoffOf(envelope);
    this.#deliveryId = wire.deliveryId;
    this.#session = session;
  }

  /** What an answer to it is about. */
  get about(): Required<About> {
    return { taskId: this.envelope.taskId, epoch: this.envelope.epoch, correlationId: this.handoffId };
  }

  /**
   * Takes it: it is never delivered again. `serve` does so by itself when the handler is done; a handler that has it acked
   * before may take its time. Throws BatonError: DELIVERY_UNKNOWN if its time was over.
   */
  async ack(): Promise<void> {
    this.#isTaken = true;
    await this.#acknowledge({ case: "ack", value: {} });
    this.#outcome = "acked";
  }

  /** Does not take it. It comes again after `retryAfterMs`, or by the broker's backoff; after POISON never. */
  async nack(cause: NackCause, options: { retryAfterMs?: number | undefined; text?: string } = {}): Promise<void> {
    const { retryAfterMs, text = "" } = options;
    const retryAfter = retryAfterMs === undefined ? {} : { retryAfter: durationFromMs(retryAfterMs) };
    await this.#acknowledge({ case: "nack", value: { cause, reasonText: clipped(text), ...retryAfter } });
    this.#outcome = "nacked";
  }

  /** Asks for more time, from now: at most 10 minutes, by default the ack wait. Returns the new deadline. `serve` does so by itself. */
  async extend(extensionMs?: number): Promise<Date | undefined> {
    const value = extensionMs === undefined ? {} : { extension: durationFromMs(extensionMs) };
    const answer = await this.#acknowledge({ case: "extend", value });
    const deadline = answer.case === "acknowledged" ? answer.value.ackDeadline : undefined;
    return deadline && timestampDate(deadline);
  }

  /** What became of it so far. */
  get outcome(): "acked" | "nacked" | undefined {
    return this.#outcome;
  }

  /** Names this handing-out; another one after each redelivery. */
  get deliveryId(): string {
    return this.#deliveryId;
  }

  /** @internal */
  get session(): Session {
    return this.#session;
  }

  /** @internal Makes a later handing-out of the same message the one to acknowledge. Tells whether an ack was lost. */
  renew(later: Delivery): boolean {
    this.#deliveryId = later.#deliveryId;
    this.#session = later.#session;
    if (this.#isTaken) this.#outcome = undefined;
    return this.#isTaken;
  }

  async #acknowledge(outcome: Outcome): Promise<Awaited<ReturnType<Session["ask"]>>> {
    return this.#session.ask({ case: "acknowledgement", value: { deliveryId: this.#deliveryId, outcome } });
  }
}

function handoffOf(envelope: Envelope): string {
  return envelope.messageType === MessageType.HANDOFF_REQUEST ? envelope.messageId : envelope.correlationId;
}

/** Keeps a text for people within its bound of 4096 bytes. */
export function clipped(text: string): string {
  const bytes = Buffer.from(text);
  return bytes.length <= REASON_TEXT_BYTES ? text : bytes.subarray(0, REASON_TEXT_BYTES).toString().replace(/\uFFFD+$/, "");
}
