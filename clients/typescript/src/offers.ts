import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Agent } from "./agent.js";
import type { Delivery } from "./delivery.js";
import { BatonError, hasGoneOn } from "./errors.js";
import { Queue } from "./queue.js";
import { type Handlers, Poison, Stopped } from "./serve.js";
import { deferred } from "./session.js";
import type * as v1 from "./v1.js";
import { NextStep, RejectReason } from "./v1.js";

/** The handoff went on without this agent: cancelled, out of time, or offered to another. Drop what there is of it. */
export class HandoffEnded extends Error {
  override readonly name = "HandoffEnded";
}

/** A handoff that is offered to this agent, and is to be decided within its accept timeout. */
export class Offer {
  /** Aborts when the handoff goes on without this agent. */
  readonly signal: AbortSignal;
  /** @internal Settles when its reader has it, or nobody will. */
  readonly begun = deferred<undefined>();
  /** @internal */
  readonly contextCame = deferred<Context>();
  readonly #agent: Agent;
  readonly #abort = new AbortController();
  #isDecided = false;

  /** @internal */
  constructor(
    agent: Agent,
    /** What is asked. */
    readonly request: v1.HandoffRequest,
    /** The request's delivery, with its envelope. */
    readonly delivery: Delivery,
  ) {
    this.#agent = agent;
    this.signal = this.#abort.signal;
    this.contextCame.promise.catch(() => undefined); // nobody need wait for it
    this.begun.promise.catch(() => undefined);
  }

  get handoffId(): string {
    return this.delivery.handoffId;
  }

  get taskId(): string {
    return this.delivery.envelope.taskId;
  }

  /** The task's owner, who asks. */
  get senderId(): string {
    return this.delivery.envelope.senderId;
  }

  /**
   * Takes the handoff and waits for the context. Throws HandoffEnded if it is too late, or if the handoff ends before. One
   * that this agent accepted before it restarted is gone on with.
   */
  async accept(accept: MessageInitShape<typeof v1.HandoffAcceptSchema> = {}): Promise<Context> {
    await this.#decide(async () => {
      try {
        await this.#agent.accept(this.delivery, accept);
      } catch (error) {
        if (!isAcceptedBefore(error)) throw error;
      }
    });
    return this.contextCame.promise;
  }

  /** Does not take it. */
  async reject(reject: MessageInitShape<typeof v1.HandoffRejectSchema>): Promise<void> {
    await this.#decide(() => this.#agent.reject(this.delivery, reject));
  }

  /** Asks for more time to decide, or to take over, than the handoff's timeouts give. */
  async keepTurn(details = ""): Promise<void> {
    await this.#agent.keepTurn(this.delivery, details);
  }

  /** @internal Acks the request, from which on the accept timeout runs, and gives the offer to its reader. */
  async begin(): Promise<void> {
    // If the session ends meanwhile, the request is delivered again, and acked then.
    await this.delivery.ack().catch(() => undefined);
    this.begun.resolve(undefined);
  }

  /** @internal */
  end(cause: Error): void {
    this.#abort.abort(cause);
    this.contextCame.reject(cause);
    this.begun.reject(cause);
  }

  /** @internal Its reader has gone: what it has not decided is rejected, so that another is asked. */
  async leave(): Promise<void> {
    if (this.delivery.outcome === "acked" && !this.#isDecided && !this.signal.aborted) {
      await this.reject({ reason: RejectReason.SHUTDOWN }).catch(() => undefined);
    }
    this.end(new Stopped("the agent stops"));
  }

  async #decide(say: () => Promise<unknown>): Promise<void> {
    if (this.#isDecided) throw new Error("the offer is decided already");
    this.#isDecided = true;
    this.signal.throwIfAborted();
    try {
      await say();
    } catch (error) {
      throw hasGoneOn(error) ? new HandoffEnded(String(error), { cause: error }) : error;
    }
  }
}

/** NOT_CANDIDATE would be the answer if somebody else had accepted. */
function isAcceptedBefore(error: unknown): boolean {
  const isOther = error instanceof BatonError && error.reason === "HANDOFF_STATE";
  return isOther && ["ACCEPTED", "CONTEXT_SENT"].includes(error.metadata["state"] ?? "");
}

/** The context of a task that is handed over. */
export class Context {
  /** @internal */
  readonly settled = deferred<undefined>();
  readonly #agent: Agent;

  /** @internal */
  constructor(
    agent: Agent,
    /** What the next agent needs to know. */
    readonly sections: readonly v1.ContextSection[],
    /** Its delivery, with its envelope. */
    readonly delivery: Delivery,
  ) {
    this.#agent = agent;
  }

  /**
   * Takes the task over, after a check of the digest. From the receipt on this agent owns the task, at the receipt's epoch.
   * Throws BatonError, or VerificationError.
   */
  async complete(): Promise<v1.Receipt> {
    return this.#settle(() => this.#agent.complete(this.delivery));
  }

  /** Says that it cannot take over: the sender keeps the task. */
  async fail(details: string): Promise<v1.Receipt> {
    return this.#settle(() => this.#agent.failTakeover(this.delivery, details));
  }

  /** The section of this name, its JSON parsed; undefined if there is none. */
  json(name: string): unknown {
    const section = this.sections.find((one) => one.name === name);
    return section?.content.case === "json" ? JSON.parse(section.content.value) : undefined;
  }

  async #settle(say: () => Promise<v1.Receipt>): Promise<v1.Receipt> {
    try {
      return await say();
    } finally {
      this.settled.resolve(undefined);
    }
  }
}

/** Turns mail into offers, and the context of each into its answer. */
export class Offers {
  readonly queue = new Queue<Offer>();
  readonly handlers: Handlers;
  readonly #agent: Agent;
  readonly #open = new Map<string, Offer>();

  constructor(agent: Agent, others: Handlers) {
    this.#agent = agent;
    this.handlers = {
      ...others,
      handoffRequest: (request, delivery, { signal }) => this.#offered(request, delivery, signal),
      taskContextTransfer: async (transfer, delivery, context) => {
        const offer = this.#open.get(delivery.handoffId);
        if (offer !== undefined) await this.#contextCame(offer, transfer, delivery, context.signal);
        else if (others.taskContextTransfer) await others.taskContextTransfer(transfer, delivery, context);
        else throw new Poison("this agent knows nothing of the handoff: it has restarted since it accepted");
      },
      handoffCancel: async (cancel, delivery, context) => {
        this.#ended(delivery, `cancelled: ${cancel.reasonText}`);
        await others.handoffCancel?.(cancel, delivery, context);
      },
      errorNotification: async (error, delivery, context) => {
        if (error.nextStep === NextStep.DROP_TASK) this.#ended(delivery, error.errorMessage);
        await others.errorNotification?.(error, delivery, context);
      },
    };
  }

  /** Gives up what is open: nobody asks for it any more. */
  async leave(): Promise<void> {
    const open = [...this.#open.values()];
    this.#open.clear();
    await Promise.all(open.map((offer) => offer.leave()));
  }

  async #offered(request: v1.HandoffRequest, delivery: Delivery, signal: AbortSignal): Promise<void> {
    const offer = new Offer(this.#agent, request, delivery);
    this.#open.set(offer.handoffId, offer);
    this.queue.push(offer);
    signal.addEventListener("abort", () => {
      offer.begun.reject(signal.reason as Error);
    });
    await offer.begun.promise;
  }

  async #contextCame(
    offer: Offer,
    transfer: v1.TaskContextTransfer,
    delivery: Delivery,
    signal: AbortSignal,
  ): Promise<void> {
    const context = new Context(this.#agent, transfer.sections, delivery);
    offer.contextCame.resolve(context);
    signal.addEventListener("abort", () => {
      context.settled.resolve(undefined);
    });
    await context.settled.promise;
    this.#open.delete(offer.handoffId);
  }

  #ended(delivery: Delivery, text: string): void {
    const offer = this.#open.get(delivery.handoffId);
    this.#open.delete(delivery.handoffId);
    offer?.end(new HandoffEnded(text));
  }
}
