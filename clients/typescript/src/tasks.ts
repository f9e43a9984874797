/** The tasks that an agent owns. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import type { AgentCore } from "./core.js";
import { TaskRecalled } from "./errors.js";
import type { CallOptions } from "./following.js";
import type { HandedOver, HandOverOptions } from "./handovers.js";
import { Holding, type Holdings } from "./holdings.js";
import type { JsonObject } from "./json.js";
import type { DelegateOptions, Outcome } from "./loans.js";
import { inWork } from "./parents.js";
import type { Answer, AskOptions } from "./questions.js";
import type { StatusUpdate } from "./updates.js";
import { type ContextSection, type HandoffRequestSchema, type Receipt, type Task, TaskStatus } from "./v1.js";

/** The part of an agent that its tasks use. */
export interface TaskOwner extends AgentCore {
  readonly holdings: Holdings;
  /** Returns the context that a handoff of this agent carried, its signature verified; empty if the broker shows none. */
  contextSent(handoffId: string): Promise<ContextSection[]>;
  ask(taskId: string, epoch: bigint, question: string, answerBy: string, options?: AskOptions): Promise<Answer>;
  handOver(
    receiverId: string,
    taskId: string,
    request: MessageInitShape<typeof HandoffRequestSchema>,
    sections: readonly ContextSection[],
    options?: { epoch?: bigint } & HandOverOptions,
  ): Promise<HandedOver>;
  delegate(
    receiverId: string,
    taskId: string,
    request: MessageInitShape<typeof HandoffRequestSchema>,
    sections: readonly ContextSection[],
    options?: DelegateOptions,
  ): Promise<Outcome>;
}

/**
 * A task that this agent owns. It follows the epochs of the loans that its own calls begin: after `delegate` it is usable again,
 * also if that call throws TaskRecalled with `isOwner`. After the task has moved on otherwise, its methods throw STALE_EPOCH.
 */
export class OwnedTask {
  readonly #agent: TaskOwner;
  readonly #holding: Holding;
  #signal: AbortSignal | undefined;

  /** @internal */
  constructor(
    agent: TaskOwner,
    holding: Holding,
    /** The task's status when it was read. */
    readonly status: TaskStatus,
    /** The handoff that was open then, for `resumeHandOver`; empty without one. */
    readonly handoffId: string,
    /** Whether an earlier process of this agent took the task over, and `resume` of `serve` gave it to this one. */
    readonly isResumed = false,
  ) {
    this.#agent = agent;
    this.#holding = holding;
  }

  /** @internal */
  static of(agent: TaskOwner, { taskId, epoch, status, openHandoffId }: Task, holding = new Holding(taskId, epoch)): OwnedTask {
    return new OwnedTask(agent, holding, status, openHandoffId);
  }

  /** The task's id. */
  get taskId(): string {
    return this.#holding.taskId;
  }

  /** The epoch of this agent's ownership; a later one after a loan that came back. */
  get epoch(): bigint {
    return this.#holding.epoch;
  }

  /** The agent that owns the task. */
  get ownerId(): string {
    return this.#agent.id;
  }

  /**
   * Aborts, with a TaskRecalled as its reason, when the task is recalled from this agent. It does not abort for other ends of
   * the ownership.
   */
  get signal(): AbortSignal {
    return (this.#signal ??= this.#agent.recallSignal(this.taskId, this.epoch));
  }

  /** Reports the task's progress as text; `progress` is from 0 to 1. */
  async report(details: string, { progress }: { progress?: number } = {}): Promise<Receipt> {
    const status = TaskStatus.IN_PROGRESS;
    return this.update({ status, details, ...(progress === undefined ? {} : { progress }) });
  }

  /** Completes the task. The result of a delegated task goes to the delegator, which owns the task again. */
  async finish(result?: JsonObject, details = ""): Promise<Receipt> {
    const status = TaskStatus.COMPLETED;
    return this.update({ status, details, ...(result === undefined ? {} : { result }) });
  }

  /**
   * Ends the task as CANCELED. Its open parts are cancelled with it, down the tree, unless `keepParts` is set. A delegator gets the
   * status of a task that it lent, and owns the task again.
   */
  async cancel(details = "", { keepParts = false } = {}): Promise<Receipt> {
    return this.update({ status: TaskStatus.CANCELED, details, keepParts });
  }

  /**
   * Asks for a later end of the loan of this task: `byMs` from now, up to the limit in the request of the delegator. Throws
   * BatonError, FIELD_INVALID, if the task is not lent to this agent or the loan cannot be extended.
   */
  async extend(byMs: number, details = ""): Promise<Receipt> {
    return this.update({ status: TaskStatus.IN_PROGRESS, details, extendBy: durationFromMs(byMs) });
  }

  /**
   * Runs a function within the task: new tasks that it requests are parts of this one, as those of a handler. For loops over
   * `handoffs`, which have no handler.
   */
  within<T>(body: () => T): T {
    return inWork({ holding: this.#holding }, body);
  }

  /** Asks one agent a question about the task, and waits for its answer: see `Agent.ask`. */
  async ask(question: string, answerBy: string, options: AskOptions = {}): Promise<Answer> {
    return this.#agent.ask(this.taskId, this.epoch, question, answerBy, options);
  }

  /** Sends a status update. A final status cannot be changed. */
  async update(update: StatusUpdate): Promise<Receipt> {
    return this.#agent.updateStatus(this.taskId, this.epoch, update);
  }

  /** Stores a context of the task without a handoff: see `Agent.checkpoint`. */
  async checkpoint(sections: readonly ContextSection[], options: CallOptions = {}): Promise<Receipt> {
    return this.#agent.checkpoint(this.taskId, this.epoch, sections, options);
  }

  /** Hands the task over: see `Agent.handOver`. */
  async handOver(
    receiverId: string,
    request: MessageInitShape<typeof HandoffRequestSchema>,
    sections: readonly ContextSection[],
    options: HandOverOptions = {},
  ): Promise<HandedOver> {
    return this.#agent.handOver(receiverId, this.taskId, request, sections, { epoch: this.epoch, ...options });
  }

  /** Lends the task: see `Agent.delegate`. Afterwards this object has the epoch with which the task came back. */
  async delegate(
    receiverId: string,
    request: MessageInitShape<typeof HandoffRequestSchema>,
    sections: readonly ContextSection[],
    options: Omit<DelegateOptions, "epoch"> = {},
  ): Promise<Outcome> {
    const epoch = this.epoch;
    try {
      const outcome = await this.#agent.delegate(receiverId, this.taskId, request, sections, { epoch, ...options });
      this.#returned(epoch, outcome.epoch);
      return outcome;
    } catch (error) {
      if (error instanceof TaskRecalled && error.isOwner) this.#returned(epoch, error.epoch);
      throw error;
    }
  }

  #returned(from: bigint, to: bigint): void {
    if (this.#holding.epoch === from) this.#holding.epoch = to;
  }
}
