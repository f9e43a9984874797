/** The jobs of an agent: each runs the handler of one delivery and acknowledges the delivery by the handler's outcome. */
import { durationMs } from "@bufbuild/protobuf/wkt";
import type { Delivery } from "./delivery.js";
import { hasGoneOn } from "./errors.js";
import { deferred } from "./session.js";
import { NackCause } from "./v1.js";

/** The number of handled messages that are remembered. A message whose ack was lost is not handled twice. */
const REMEMBERED_MAX = 4096;

/** The second argument of a handler. */
export interface HandlerContext {
  /** Aborts at the handler's time limit, and when the agent stops. */
  readonly signal: AbortSignal;
  /** @internal Aborts as soon as `serve` is to stop. */
  readonly stopping?: AbortSignal | undefined;
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

/** The messages in work, and the messages handled lately. */
export class Jobs {
  readonly #running = new Map<string, { delivery: Delivery; abort: AbortController; done: Promise<void> }>();
  readonly #taken = new Set<string>();

  constructor(readonly options: { handlerTimeoutMs: number; log: (text: string, error?: unknown) => void }) {}

  /** The number of handlers that run. */
  get size(): number {
    return this.#running.size;
  }

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
