import { Code } from "@connectrpc/connect";
import { durationMs } from "@bufbuild/protobuf/wkt";
import type { Delivery } from "./delivery.js";
import type { Payload } from "./envelopes.js";
import type { Agent } from "./agent.js";
import { BatonError, hasGoneOn } from "./errors.js";
import { type ContextProvider, provideContext, unclaimed } from "./handovers.js";
import { type OfferHandler, takeOffer } from "./offers.js";
import { deferred } from "./session.js";
import { NackCause, RejectReason } from "./v1.js";

/** What a handler gets besides the message. */
export interface HandlerContext {
  /** Aborts when the handler's time is over, and when the agent stops. */
  readonly signal: AbortSignal;
}

type Named<Name extends string> = Extract<Payload, { $typeName: `baton.v1.${Name}` }>;
type Handler<Name extends string> = (payload: Named<Name>, delivery: Delivery, context: HandlerContext) => unknown;

/**
 * A function for what this agent does, and one for each kind of message. When it is done (its promise is resolved) the
 * message is acked; when it throws the message is nacked as FAILURE and comes again, or as `Poison` and `RetryAfter` say. A
 * refusal of the broker because the handoff has gone on (`hasGoneOn`) acks.
 *
 * What `handOver`, `resumeHandOver`, `delegate` or an offer waits for goes there and not here. A function for a kind of
 * message comes before `offer` and `context`, and these before `other`. What has no function:
 *
 * - a handoffRequest is rejected, as NO_SKILL;
 * - a handoffAccept or taskContextTransfer, of a handoff that an earlier process of this agent began, comes again every two
 *   seconds while the handoff is open, so that `resumeHandOver` or another process can go on with it, and is acked then;
 * - a taskRequest, taskOffer, taskAccept, delegation, or a type that this version does not know, is nacked as POISON, so
 *   that the broker keeps it as a dead letter;
 * - news are acked.
 */
export interface Handlers {
  /**
   * Takes or rejects the handoffs that are offered to this agent, also those that an earlier process of it accepted. It is
   * done after it has rejected, completed or failed the handoff; before that, being done is a failure.
   */
  offer?: OfferHandler;
  /**
   * Answers a candidate that has accepted, where no `handOver` or `resumeHandOver` of this process waits for it: it gives the
   * context of the task. So a handoff goes on that was asked for by an earlier process.
   */
  context?: ContextProvider;
  handoffRequest?: Handler<"HandoffRequest">;
  handoffAccept?: Handler<"HandoffAccept">;
  handoffReject?: Handler<"HandoffReject">;
  handoffCancel?: Handler<"HandoffCancel">;
  taskContextTransfer?: Handler<"TaskContextTransfer">;
  handoffComplete?: Handler<"HandoffComplete">;
  taskStatusUpdate?: Handler<"TaskStatusUpdate">;
  errorNotification?: Handler<"ErrorNotification">;
  taskRequest?: Handler<"TaskRequest">;
  taskOffer?: Handler<"TaskOffer">;
  taskAccept?: Handler<"TaskAccept">;
  delegation?: Handler<"Delegation">;
  info?: Handler<"Info">;
  /** What has no handler of its own. */
  other?: (delivery: Delivery, context: HandlerContext) => unknown;
}

/** Thrown by a handler: the message can never be taken. It becomes a dead letter at once. */
export class Poison extends Error {
  override readonly name = "Poison";
}

/** Thrown by a handler: the message is to come again after this time. */
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

/** Why a handler's signal aborts: it took too long. */
export class HandlerTimeout extends Error {
  override readonly name = "HandlerTimeout";
}

/** Why a handler's signal aborts: the agent stops. */
export class Stopped extends Error {
  override readonly name = "Stopped";
}

/** Thrown inside: the message is to come again after this time, and that is no failure. */
export class Later extends Error {
  override readonly name = "Later";

  constructor(
    readonly ms: number,
    message: string,
  ) {
    super(message);
  }
}

const ASKS = new Set(["TaskRequest", "TaskOffer", "TaskAccept", "Delegation"]);
/** How many handled messages are remembered, so that one whose ack was lost is not handled twice. */
const REMEMBERED_MAX = 4096;

/** Gives a delivery to its handler. */
export async function handle(agent: Agent, handlers: Handlers, delivery: Delivery, context: HandlerContext): Promise<void> {
  const name = delivery.payload?.$typeName.replace("baton.v1.", "");
  const key = name && ((name.charAt(0).toLowerCase() + name.slice(1)) as keyof Handlers);
  const handler = key && (handlers[key] as ((...args: unknown[]) => unknown) | undefined);
  const isOffer = name === "HandoffRequest" || name === "TaskContextTransfer";
  if (handler) await handler(delivery.payload, delivery, context);
  else if (isOffer && handlers.offer) await takeOffer(agent, delivery, handlers.offer, context);
  else if (name === "HandoffAccept" && handlers.context) await provideContext(agent, delivery, handlers.context, context);
  else if (handlers.other) await handlers.other(delivery, context);
  else if (name === "HandoffRequest") {
    await agent.reject(delivery, { reason: RejectReason.NO_SKILL, reasonText: "this agent takes no handoffs" });
  } else if (name === "HandoffAccept" || name === "TaskContextTransfer") await unclaimed(agent, delivery);
  else if (name === undefined || ASKS.has(name)) {
    throw new Poison(`this agent has no handler for ${name ?? `message type ${delivery.envelope.messageType}`}`);
  }
}

/** The messages that are in work, and those that were taken lately. */
export class Jobs {
  readonly #running = new Map<string, { delivery: Delivery; done: Promise<void> }>();
  readonly #taken = new Set<string>();
  readonly #stop = new AbortController();

  constructor(readonly options: { handlerTimeoutMs: number; log: (text: string, error?: unknown) => void }) {}

  /** Whether a delivery is in work, or was taken before: then it is acknowledged as that was, and not handled again. */
  again(delivery: Delivery): boolean {
    const id = idOf(delivery);
    const running = this.#running.get(id);
    if (running !== undefined) {
      // From now on this is the handing-out to acknowledge. One whose ack was lost is acked at once: the broker keeps back
      // the task's next message until then.
      if (running.delivery.renew(delivery)) void this.settle(running.delivery, undefined);
    } else if (this.#taken.has(id)) {
      void this.settle(delivery, undefined);
    } else {
      return false;
    }
    return true;
  }

  /** Takes up a delivery that is not in work. Settles when the broker was told what became of it. */
  begin(delivery: Delivery, handler: (context: HandlerContext) => unknown): Promise<void> {
    const done = this.#run(idOf(delivery), delivery, handler);
    this.#running.set(idOf(delivery), { delivery, done });
    return done;
  }

  /** Waits for what is in work, for this long; what is not done then is given back. */
  async finish(timeoutMs: number): Promise<void> {
    const stop = setTimeout(() => {
      this.#stop.abort(new Stopped("the agent stops"));
    }, timeoutMs);
    await Promise.all([...this.#running.values()].map(({ done }) => done));
    clearTimeout(stop);
  }

  async #run(id: string, delivery: Delivery, handler: (context: HandlerContext) => unknown): Promise<void> {
    await Promise.resolve(); // known as running before anything of it runs
    const abort = new AbortController();
    const timer = setTimeout(() => {
      if (delivery.outcome === undefined) abort.abort(new HandlerTimeout("the handler took too long"));
    }, this.options.handlerTimeoutMs);
    const signal = AbortSignal.any([abort.signal, this.#stop.signal]);
    const ended = deferred<undefined>();
    signal.addEventListener("abort", () => {
      ended.reject(signal.reason as Error);
    });
    const extending = this.#extendUntil(signal, delivery);
    let failure: unknown;
    try {
      // A handler that does not listen to its signal is left behind; the message comes again.
      await Promise.race([handler({ signal }), ended.promise]);
    } catch (error) {
      failure = signal.aborted ? signal.reason : (error ?? new Error("the handler failed"));
    }
    clearTimeout(timer);
    clearTimeout(extending.timer);
    if (await this.settle(delivery, failure)) this.#remember(id);
    this.#running.delete(id);
  }

  /** Extends the delivery at half of its time, again and again. */
  #extendUntil(signal: AbortSignal, delivery: Delivery): { timer?: NodeJS.Timeout } {
    const extending: { timer?: NodeJS.Timeout } = {};
    const next = (): void => {
      const ackWait = delivery.session.welcome.ackWait;
      extending.timer = setTimeout(
        () => {
          if (signal.aborted || delivery.outcome !== undefined) return;
          // Without a session, or where it came too late, the message is delivered again, and taken up there.
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

  /** Acknowledges by what a handler came to. Tells whether the message was taken. */
  async settle(delivery: Delivery, outcome: unknown): Promise<boolean> {
    let failure = outcome;
    if (hasGoneOn(failure)) {
      // The agent did this before it restarted, or came too late: again it would be refused again.
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

/** A request that was redriven is another handoff, and another job. */
function idOf({ envelope, handoffId }: Delivery): string {
  return `${envelope.messageId} ${handoffId}`;
}

/** What every call gets after `close`. */
export function closedError(): BatonError {
  return new BatonError(Code.Canceled, "the agent is closed");
}
