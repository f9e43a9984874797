import { Code } from "@connectrpc/connect";
import { durationMs } from "@bufbuild/protobuf/wkt";
import type { Delivery } from "./delivery.js";
import type { Payload } from "./envelopes.js";
import type { Agent } from "./agent.js";
import { create } from "@bufbuild/protobuf";
import { BatonError, hasGoneOn, isPassing } from "./errors.js";
import { type ContextProvider, provideContext, unclaimed } from "./handovers.js";
import { type Recalled, takenBy } from "./loans.js";
import { LATER_MS } from "./mail.js";
import { isAnswered, type OfferWanted } from "./negotiations.js";
import { type OfferHandler, takeOffer } from "./offers.js";
import { type Question, questionOf } from "./questions.js";
import { deferred } from "./session.js";
import { inTrace } from "./traces.js";
import { NackCause, NegotiationState, RejectReason, TaskDeclineSchema, type TaskDecline, type TaskOffer, type TaskRequest } from "./v1.js";

/** The second argument of a handler. */
export interface HandlerContext {
  /** Aborts at the handler's time limit, and when the agent stops. */
  readonly signal: AbortSignal;
}

type Named<Name extends string> = Extract<Payload, { $typeName: `baton.v1.${Name}` }>;
type Handler<Name extends string> = (payload: Named<Name>, delivery: Delivery, context: HandlerContext) => unknown;

/**
 * One function for each role of the agent and one for each kind of message. When its promise resolves, the message is acked.
 * When it throws, the message is nacked: as FAILURE, so that it is redelivered, or as `Poison` and `RetryAfter` say. A refusal
 * because the handoff has moved on (`hasGoneOn`) acks.
 *
 * Mail that `handOver`, `resumeHandOver`, `delegate` or an offer waits for goes there instead. A function for a kind of message
 * takes precedence over `offer` and `context`, and these over `other`. Without a function:
 *
 * - a handoffRequest, and an award with a task, is rejected as NO_SKILL; a taskRequest is declined so;
 * - a handoffAccept or taskContextTransfer of a handoff that an earlier process of this agent began is redelivered every two
 *   seconds while the handoff is open, so that `resumeHandOver` or another process can continue it, and then acked;
 * - a taskOffer is redelivered every two seconds while its negotiation is open, for `resumeNegotiation`, and then acked;
 * - a taskAccept without a task, or a delegation, and a type unknown to this version, is nacked as POISON, and the broker
 *   keeps it as a dead letter;
 * - a notice is acked.
 */
export interface Handlers {
  /**
   * Accepts or rejects the handoffs that are offered to this agent, also offers accepted by an earlier process of it. Its
   * promise resolves after it has rejected, completed or failed the handoff; an earlier resolution counts as a failure.
   */
  offer?: OfferHandler;
  /**
   * Returns the context for a candidate that has accepted, if no `handOver` or `resumeHandOver` of this process waits for the
   * accept. With it a handoff that an earlier process requested continues.
   */
  context?: ContextProvider;
  /**
   * Learns of a task that was taken from this agent: see `Recalled`. Before it is called, `OwnedTask.signal` and the signal of
   * the offer that works on the task have aborted, and `handOver` and `delegate` of the task have thrown. Without it the notice
   * goes to errorNotification.
   */
  recalled?: (recalled: Recalled, context: HandlerContext) => unknown;
  /**
   * Answers questions to this agent: see `Question`. A handler that returns without an answer leaves the question open. Without
   * it a question goes to taskStatusUpdate.
   */
  prompt?: (question: Question, context: HandlerContext) => unknown;
  /**
   * Answers requests for offers, and counter-offers, with an offer or a decline; `serve` sets the round. An award with a task
   * goes to `offer`; the others go to taskAccept and negotiationClosed.
   */
  bid?: (wanted: OfferWanted, context: HandlerContext) => TaskOffer | TaskDecline | Promise<TaskOffer | TaskDecline>;
  handoffRequest?: Handler<"HandoffRequest">;
  handoffAccept?: Handler<"HandoffAccept">;
  handoffReject?: Handler<"HandoffReject">;
  handoffCancel?: Handler<"HandoffCancel">;
  taskContextTransfer?: Handler<"TaskContextTransfer">;
  handoffComplete?: Handler<"HandoffComplete">;
  taskStatusUpdate?: Handler<"TaskStatusUpdate">;
  taskInput?: Handler<"TaskInput">;
  errorNotification?: Handler<"ErrorNotification">;
  taskRequest?: Handler<"TaskRequest">;
  taskOffer?: Handler<"TaskOffer">;
  taskAccept?: Handler<"TaskAccept">;
  taskDecline?: Handler<"TaskDecline">;
  negotiationClosed?: Handler<"NegotiationClosed">;
  delegation?: Handler<"Delegation">;
  info?: Handler<"Info">;
  /** Handles each message without a handler of its own. */
  other?: (delivery: Delivery, context: HandlerContext) => unknown;
}

/** Thrown by a handler for a message that can never be handled. It becomes a dead letter at once. */
export class Poison extends Error {
  override readonly name = "Poison";
}

/** Thrown by a handler to have the message redelivered after this time. */
export class RetryAfter extends Error {
  override readonly name = "RetryAfter";

  constructor(
    readonly ms: number,
    message?: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** The reason of a handler's signal at its time limit. */
export class HandlerTimeout extends Error {
  override readonly name = "HandlerTimeout";
}

/** The reason of a handler's signal when the agent stops. */
export class Stopped extends Error {
  override readonly name = "Stopped";
}

/** Thrown internally to have the message redelivered after this time, without counting as a failure. */
export class Later extends Error {
  override readonly name = "Later";

  constructor(
    readonly ms: number,
    message: string,
  ) {
    super(message);
  }
}

const ASKS = new Set(["TaskAccept", "Delegation"]);
/** The number of handled messages that are remembered. A message whose ack was lost is not handled twice. */
const REMEMBERED_MAX = 4096;

/** Gives a delivery to its handler, which continues the trace of the delivery. */
export function handle(agent: Agent, handlers: Handlers, delivery: Delivery, context: HandlerContext): Promise<void> {
  return inTrace(delivery.traceContext, () => give(agent, handlers, delivery, context));
}

async function give(agent: Agent, handlers: Handlers, delivery: Delivery, context: HandlerContext): Promise<void> {
  const name = delivery.payload?.$typeName.replace("baton.v1.", "");
  const key = name && ((name.charAt(0).toLowerCase() + name.slice(1)) as keyof Handlers);
  const handler = key && (handlers[key] as ((...args: unknown[]) => unknown) | undefined);
  const isAward = name !== "HandoffRequest" && delivery.handoffRequest !== undefined;
  const isOffer = name === "HandoffRequest" || name === "TaskContextTransfer" || isAward;
  const isCall = name === "TaskRequest" || name === "TaskOffer";
  const recalled = handlers.recalled && takenBy(delivery);
  const question = handlers.prompt && questionOf(agent, delivery);
  if (question) await handlers.prompt?.(question, context);
  else if (recalled) await handlers.recalled?.(recalled, context);
  else if (handler && !(isAward && handlers.offer)) await handler(delivery.payload, delivery, context);
  else if (isCall && handlers.bid) await bid(agent, delivery as Delivery<TaskRequest | TaskOffer>, handlers.bid, context);
  else if (isOffer && handlers.offer) await takeOffer(agent, delivery, handlers.offer, context);
  else if (name === "HandoffAccept" && handlers.context) await provideContext(agent, delivery, handlers.context, context);
  else if (handlers.other) await handlers.other(delivery, context);
  else if (name === "HandoffRequest" || isAward) {
    await agent.reject(delivery, { reason: RejectReason.NO_SKILL, reasonText: "this agent takes no handoffs" });
  } else if (name === "TaskRequest") {
    const decline = create(TaskDeclineSchema, { reason: RejectReason.NO_SKILL, reasonText: "this agent makes no offers" });
    await agent.send(delivery.envelope.senderId, { correlationId: delivery.envelope.messageId }, decline);
  } else if (name === "TaskOffer") {
    await unread(agent, delivery);
  } else if (name === "HandoffAccept" || name === "TaskContextTransfer") await unclaimed(agent, delivery);
  else if (name === undefined || ASKS.has(name)) {
    throw new Poison(`this agent has no handler for ${name ?? `message type ${delivery.envelope.messageType}`}`);
  }
}

/** Answers a request for offers, or a counter-offer, by the handler's offer or decline. */
async function bid(
  agent: Agent,
  delivery: Delivery<TaskRequest | TaskOffer>,
  handler: NonNullable<Handlers["bid"]>,
  context: HandlerContext,
): Promise<void> {
  const wanted = agent.taskRequests.wanted(delivery);
  if (await isAnswered(agent, delivery, wanted)) return;
  const answer = await handler(wanted, context);
  if (answer.$typeName === "baton.v1.TaskOffer") answer.round = wanted.round;
  await agent.send(wanted.requesterId, { correlationId: wanted.negotiationId }, answer, { signal: context.signal });
}

/** Has an offer that no negotiation of this process reads redelivered while its negotiation is open. */
async function unread(agent: Agent, { envelope }: Delivery): Promise<void> {
  try {
    if ((await agent.negotiations.get(envelope.correlationId)).state !== NegotiationState.OPEN) return;
  } catch (error) {
    if (!isPassing(BatonError.of(error))) return;
  }
  throw new Later(LATER_MS, "no call of this agent waits for offers yet");
}

/** The messages in work, and the messages handled lately. */
export class Jobs {
  readonly #running = new Map<string, { delivery: Delivery; abort: AbortController; done: Promise<void> }>();
  readonly #taken = new Set<string>();

  constructor(readonly options: { handlerTimeoutMs: number; log: (text: string, error?: unknown) => void }) {}

  /** Whether a delivery is in work or was handled before. A handled one is acknowledged as before, and not handled again. */
  again(delivery: Delivery): boolean {
    const id = idOf(delivery);
    const running = this.#running.get(id);
    if (running !== undefined) {
      // The redelivery is now the one to acknowledge. If an ack was lost it is repeated at once: the broker holds back the
      // task's next message until then.
      if (running.delivery.renew(delivery)) void this.settle(running.delivery, undefined);
    } else if (this.#taken.has(id)) {
      void this.settle(delivery, undefined);
    } else {
      return false;
    }
    return true;
  }

  /** Starts the work on a new delivery. Resolves after the broker has answered the acknowledgement. */
  begin(delivery: Delivery, handler: (context: HandlerContext) => unknown): Promise<void> {
    // A signal of its own: Node keeps a composite one for ever after a handler has left a listener on it.
    const abort = new AbortController();
    const done = this.#run(idOf(delivery), delivery, handler, abort);
    this.#running.set(idOf(delivery), { delivery, abort, done });
    return done;
  }

  /** Waits for the work in progress up to this time, then gives the rest back. */
  async finish(timeoutMs: number): Promise<void> {
    const running = [...this.#running.values()];
    const stop = setTimeout(() => {
      for (const { abort } of running) abort.abort(new Stopped("the agent stops"));
    }, timeoutMs);
    await Promise.all(running.map(({ done }) => done));
    clearTimeout(stop);
  }

  async #run(id: string, delivery: Delivery, handler: (context: HandlerContext) => unknown, abort: AbortController): Promise<void> {
    await Promise.resolve(); // registers the job before any of it runs
    const { signal } = abort;
    const timer = setTimeout(() => {
      if (delivery.outcome === undefined) abort.abort(new HandlerTimeout("the handler took too long"));
    }, this.options.handlerTimeoutMs);
    const ended = deferred<undefined>();
    signal.addEventListener("abort", () => {
      ended.reject(signal.reason as Error);
    });
    const extending = this.#extendUntil(signal, delivery);
    let failure: unknown;
    try {
      // A handler that ignores its signal is abandoned; the message is redelivered.
      await Promise.race([handler({ signal }), ended.promise]);
    } catch (error) {
      failure = signal.aborted ? signal.reason : (error ?? new Error("the handler failed"));
    }
    clearTimeout(timer);
    clearTimeout(extending.timer);
    if (await this.settle(delivery, failure)) this.#remember(id);
    this.#running.delete(id);
  }

  /** Extends the delivery periodically, at half of its time. */
  #extendUntil(signal: AbortSignal, delivery: Delivery): { timer?: NodeJS.Timeout } {
    const extending: { timer?: NodeJS.Timeout } = {};
    const next = (): void => {
      const ackWait = delivery.session.welcome.ackWait;
      extending.timer = setTimeout(
        () => {
          if (signal.aborted || delivery.outcome !== undefined) return;
          // Without a session, or after the deadline, the message is redelivered and `again` takes it over.
          delivery.extend().catch((error: unknown) => {
            this.options.log("failed to extend a delivery", error);
          });
          next();
        },
        Math.max((ackWait ? durationMs(ackWait) : 30_000) / 2, 10),
      );
    };
    next();
    return extending;
  }

  /** Acknowledges a delivery by its handler's outcome. Returns whether the message was acked. */
  async settle(delivery: Delivery, outcome: unknown): Promise<boolean> {
    let failure = outcome;
    if (hasGoneOn(failure)) {
      // The agent did this before a restart, or came too late: a redelivery would be refused again.
      this.options.log("the handoff has gone on", failure);
      failure = undefined;
    }
    try {
      if (delivery.outcome !== undefined) {
        if (failure !== undefined) this.options.log("a handler failed after its acknowledgement", failure);
      } else if (failure === undefined) {
        await delivery.ack();
      } else if (failure instanceof Stopped) {
        await delivery.nack(NackCause.SHUTDOWN, { text: failure.message });
      } else if (failure instanceof Later) {
        this.options.log(`message ${delivery.envelope.messageId} waits`, failure);
        await delivery.nack(NackCause.SHUTDOWN, { retryAfterMs: failure.ms, text: failure.message });
      } else {
        this.options.log(`message ${delivery.envelope.messageId} was not taken`, failure);
        const cause = failure instanceof Poison ? NackCause.POISON : NackCause.FAILURE;
        const retryAfterMs = failure instanceof RetryAfter ? failure.ms : undefined;
        await delivery.nack(cause, { retryAfterMs, text: String(failure) });
      }
    } catch (error) {
      this.options.log("an acknowledgement was lost; the message comes again", error);
    }
    return delivery.outcome === undefined ? failure === undefined : delivery.outcome === "acked";
  }

  #remember(id: string): void {
    this.#taken.add(id);
    if (this.#taken.size > REMEMBERED_MAX) {
      for (const oldest of this.#taken) {
        this.#taken.delete(oldest);
        break;
      }
    }
  }
}

/** A redriven request is another handoff, and another job. */
function idOf({ envelope, handoffId }: Delivery): string {
  return `${envelope.messageId} ${handoffId}`;
}

/** The error of every call after `close`. */
export function closedError(): BatonError {
  return new BatonError(Code.Canceled, "the agent is closed");
}
