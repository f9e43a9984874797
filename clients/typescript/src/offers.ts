/** The receiver's side of a handoff: an offer, and the takeover of its context. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { clippedTo, type Delivery } from "./delivery.js";
import { BatonError, HandoffFailed, hasGoneOn } from "./errors.js";
import { codeOf, lookAt } from "./handovers.js";
import type { Holding } from "./holdings.js";
import { type HandlerContext, HandlerTimeout, Later, Stopped } from "./jobs.js";
import { parseJson } from "./json.js";
import { type Conversation, LATER_MS, Letter, unlessAborted, WaitedFor } from "./mail.js";
import { inWork } from "./parents.js";
import { filled, type SubtaskInputs, subtaskOf } from "./plans.js";
import { lossOf, noticeOf, type Recalled } from "./recalls.js";
import { bounded, deferred } from "./session.js";
import { isFinalState } from "./states.js";
import { OwnedTask, type TaskOwner } from "./tasks.js";
import { type ContextSection, HandoffState, type HandoffRequest, type HandoffAcceptSchema, type HandoffRejectSchema, NextStep, RejectReason, type Task, type TaskHop, TaskStatus } from "./v1.js";

/** A task that an earlier process of this agent took over. */
export interface ResumedTask {
  readonly task: Task;
  /** The handoff by which the agent got the task. */
  readonly hop: TaskHop | undefined;
  /** The last context of the task. */
  readonly sections: readonly ContextSection[];
  readonly holding: Holding;
}

/** The maximum size of the details of a status update, in bytes. */
const DETAILS_BYTES_MAX = 16_384;

/**
 * An offer of a task to this agent: `accept` or `reject` it.
 *
 * After a crash the broker redelivers the messages that the process had not answered. An offer that an earlier process of this
 * agent accepted continues: its `accept` sends no second accept.
 */
export class Offer {
  /** The handoff's id. */
  readonly handoffId: string;
  /** The task's id. */
  readonly taskId: string;
  /** The task's epoch at its present owner. */
  readonly epoch: bigint;
  /** The task's owner, which sent the request. */
  readonly senderId: string;
  /** The request; undefined if an earlier process of this agent accepted it. */
  readonly request: HandoffRequest | undefined;
  /** Whether this is the award of a negotiation. */
  readonly isAward: boolean;
  /**
   * Whether this agent owns the task already, by an earlier process that took it over: see `resume` of `serve`. Then `accept` and
   * `complete` return at once, `reject` throws, and `epoch` is that of the handoff.
   */
  readonly isResumed: boolean;
  /** The delivery of the offer: the request, or the context if `request` is undefined; undefined for a resumed task. */
  readonly delivery: Delivery | undefined;
  /**
   * Aborts after the accept, with a HandoffFailed as its reason, if the handoff continues without this agent; and with a
   * TaskRecalled if the task is recalled while the handler works on it. It also aborts as the signal of a handler does.
   */
  readonly signal: AbortSignal;
  /** @internal Resolves when the offer was rejected, completed or failed; rejects with the cause of an earlier end. */
  readonly over = deferred<undefined>();
  /** @internal Whether its reader has the offer. */
  isBegun = false;
  /** @internal Whether the program works on the task after the handler has returned. */
  isByHand = false;
  /** @internal The task, once this agent owns it. */
  task: OwnedTask | undefined;
  /** @internal The work of this process on the task. */
  holding: Holding | undefined;
  readonly #agent: TaskOwner;
  readonly #abort = new AbortController();
  readonly #contextCame = deferred<Letter>();
  /** The request, until it is answered. */
  #asked: Delivery | undefined;
  /** The context, until it is answered. */
  #context: Letter | undefined;
  #takeover: Takeover | undefined;
  #isDecided = false;
  #isOver = false;

  /** @internal */
  constructor(agent: TaskOwner, from: Delivery | ResumedTask) {
    this.#agent = agent;
    this.signal = this.#abort.signal;
    this.#contextCame.promise.catch(() => undefined); // no caller may be waiting for it
    this.over.promise.catch(() => undefined);
    this.isResumed = "task" in from;
    if ("task" in from) {
      const { task, hop, sections, holding } = from;
      this.delivery = this.request = undefined;
      this.isAward = false;
      this.handoffId = hop?.handoffId ?? "";
      this.taskId = task.taskId;
      this.epoch = (hop?.epoch ?? task.epoch) - 1n;
      this.senderId = hop?.senderId ?? "";
      this.holding = holding;
      this.task = new OwnedTask(agent, holding, task.status, task.openHandoffId, true);
      this.#isDecided = true;
      this.#takeover = new Takeover(agent, this, undefined, sections);
      return;
    }
    const { handoffRequest, payload, envelope, handoffId } = from;
    const delivery = from;
    this.delivery = delivery;
    this.handoffId = handoffId;
    this.taskId = envelope.taskId;
    this.epoch = envelope.epoch;
    this.senderId = delivery.answerTo;
    this.isAward = handoffRequest !== undefined && payload?.$typeName !== "baton.v1.HandoffRequest";
    if (handoffRequest !== undefined) {
      this.request = handoffRequest;
      this.#asked = delivery;
    } else {
      this.request = undefined;
      this.contextCame(new Letter(delivery)); // its job acknowledges it
    }
  }

  /**
   * Accepts the handoff and waits for the context, by default for all of it. Throws HandoffFailed if the accept is too late or
   * the handoff ends first. The request is acked after the broker has taken the accept.
   */
  async accept(accept: MessageInitShape<typeof HandoffAcceptSchema> = {}): Promise<Takeover> {
    if (this.#takeover !== undefined) return this.#takeover;
    if (this.#isDecided) throw new Error("the offer is decided already");
    const asked = this.#asked;
    if (asked !== undefined) {
      this.#isDecided = true;
      this.signal.throwIfAborted();
      try {
        await this.#agent.accept(asked, accept);
      } catch (error) {
        if (!(await this.#isAcceptedBefore(error))) throw this.#why(error);
      }
      this.#asked = undefined;
      await this.#ack(asked);
    }
    const letter = await unlessAborted(this.#contextCame.promise, this.signal);
    const { payload } = letter.delivery;
    this.#takeover = new Takeover(this.#agent, this, letter, payload?.$typeName === "baton.v1.TaskContextTransfer" ? payload.sections : []);
    return this.#takeover;
  }

  /** Rejects the handoff. The broker asks the next candidate, if any. */
  async reject(reject: MessageInitShape<typeof HandoffRejectSchema>): Promise<void> {
    const asked = this.#asked;
    if (this.#isDecided || asked === undefined) throw new Error("the offer is decided already");
    this.#isDecided = true;
    this.signal.throwIfAborted();
    try {
      await this.#agent.reject(asked, reject);
    } catch (error) {
      throw this.#why(error);
    }
    this.#asked = undefined;
    await this.#ack(asked);
    this.#finish();
  }

  /** @internal Stores the context. Returns false if the offer has one already. */
  contextCame(letter: Letter): boolean {
    if (this.#context !== undefined) return false;
    this.#context = letter;
    this.#contextCame.resolve(letter);
    return true;
  }

  /** @internal Forgets a context that was given back or answered. */
  contextWent(): void {
    if (!this.#isOver) this.end(new HandlerTimeout("the handler took too long"));
  }

  /** @internal Ends the offer for a cause other than this agent's own answer. */
  end(cause: Error): void {
    if (this.#isOver) return;
    this.#abort.abort(cause);
    this.#contextCame.reject(cause);
    this.over.reject(cause);
  }

  /** @internal Ends the offer, or the work on its task. Returns whether this agent never owned the task. */
  recalled(recalled: Recalled): boolean {
    if (this.#isOver || this.#context !== undefined || this.isResumed) {
      const cause = lossOf(recalled);
      if (this.#isOver) this.#abort.abort(cause);
      else this.end(cause);
      return false;
    }
    this.end(new HandoffFailed(this.handoffId, noticeOf(recalled), recalled.text));
    return true;
  }

  /** @internal Ends the offer without its reader: an undecided offer is rejected, and the broker asks another agent. */
  async leave(): Promise<void> {
    if (!this.isBegun || this.isResumed) {
      this.end(new Stopped("the agent stops"));
    } else if (!this.#isDecided && this.#asked !== undefined && !this.signal.aborted) {
      await bounded(this.reject({ reason: RejectReason.SHUTDOWN })).catch((error: unknown) => {
        this.end(error instanceof Error ? error : new Stopped("the agent stops"));
      });
    }
  }

  /** @internal Whether this agent has rejected, completed or failed the handoff. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** @internal */
  get lookAfterMs(): number {
    return this.#agent.mail.lookAfterMs;
  }

  /** @internal Ends the offer if the handoff continues without this agent although no mail said so. */
  async look(): Promise<void> {
    try {
      const handoff = await lookAt(this.#agent, this.handoffId);
      if (handoff === undefined || this.#isOver || this.#context !== undefined) return;
      const isOpen = !isFinalState(handoff.state);
      if (isOpen && handoff.candidateId === this.#agent.id) return;
      const reason = isOpen ? "OFFER_WITHDRAWN" : codeOf(handoff.errorCode);
      this.end(new HandoffFailed(this.handoffId, reason, handoff.errorMessage));
    } catch (error) {
      // The broker no longer shows the handoff.
      const { reason, text } = BatonError.of(error);
      this.end(new HandoffFailed(this.handoffId, reason, text, [], { cause: error }));
    }
  }

  /** @internal Ends the signal as the handler's own, and gives the context back. */
  async abandon(reason: unknown): Promise<void> {
    this.#abort.abort(reason);
    await this.giveBack(reason);
  }

  /** @internal Settles the context, if one is in hand. */
  async giveBack(failure: unknown): Promise<void> {
    const context = this.#context;
    this.#context = undefined;
    await context?.finish(failure);
  }

  /** @internal Begins the work on a resumed task, which needs no answer. */
  resume(): void {
    this.#finish();
  }

  /** @internal Answers the context for its takeover, and acks it. */
  async answer<T>(letter: Letter, say: () => Promise<T>, ifRefused?: (error: unknown) => Promise<T | undefined>): Promise<T> {
    let said: T;
    try {
      said = await say();
    } catch (error) {
      const known = await ifRefused?.(error);
      if (known === undefined) throw this.#why(error);
      said = known;
    }
    this.#finish();
    this.#context = undefined;
    await this.#ack(letter.delivery);
    await letter.finish();
    return said;
  }

  /**
   * @internal Returns the task if an earlier process of this agent completed the handoff and still owns the task by it.
   */
  async taskIfDoneBefore(refusal: unknown): Promise<Task | undefined> {
    if (!hasGoneOn(refusal)) return undefined;
    const { state, candidateId, epoch } = await this.#agent.getHandoff(this.handoffId);
    if (state !== HandoffState.COMPLETED || candidateId !== this.#agent.id) return undefined;
    const task = await this.#agent.getTask(this.taskId);
    return task.ownerId === this.#agent.id && task.epoch === epoch + 1n ? task : undefined;
  }

  /** Whether an earlier process of this agent accepted the handoff but did not ack its request. */
  async #isAcceptedBefore(refusal: unknown): Promise<boolean> {
    if (!hasGoneOn(refusal)) return false;
    const { state, candidateId } = await this.#agent.getHandoff(this.handoffId);
    const isAccepted = state === HandoffState.ACCEPTED || state === HandoffState.CONTEXT_SENT;
    return isAccepted && candidateId === this.#agent.id;
  }

  /** The cause of the offer's end takes precedence over a later refusal by the broker. */
  #why(error: unknown): unknown {
    if (!hasGoneOn(error)) return error;
    const reason: unknown = this.#abort.signal.reason;
    if (reason instanceof HandoffFailed) return reason;
    const code = error instanceof BatonError ? error.reason : "";
    const failed = new HandoffFailed(this.handoffId, code, String(error), [], { cause: error });
    this.end(failed);
    return failed;
  }

  #finish(): void {
    this.#isOver = true;
    this.over.resolve(undefined);
  }

  /** Acks the request: the broker holds back the task's next message until then. */
  async #ack(delivery: Delivery): Promise<void> {
    await delivery.ack().catch((error: unknown) => {
      this.#agent.log("an acknowledgement was lost; the message comes again", error);
    });
  }
}

/** The context of a handoff. `complete` makes this agent the task's owner; `fail` leaves the task with its sender. */
export class Takeover {
  /** The task's id. */
  readonly taskId: string;
  /** The sections of the context; of a resumed task, those of its latest version. */
  readonly sections: readonly ContextSection[];
  /** The context's delivery, with its envelope; undefined for a resumed task. */
  readonly delivery: Delivery | undefined;
  readonly #agent: TaskOwner;
  readonly #offer: Offer;
  readonly #letter: Letter | undefined;

  /** @internal */
  constructor(agent: TaskOwner, offer: Offer, letter: Letter | undefined, sections: readonly ContextSection[]) {
    this.#agent = agent;
    this.#offer = offer;
    this.#letter = letter;
    this.taskId = offer.taskId;
    this.delivery = letter?.delivery;
    this.sections = sections;
    agent.contexts.known.note(this.taskId, this.sections);
  }

  /** Returns the parsed JSON of the section of this name; undefined without one. Integers beyond 2^53 - 1 are `bigint`. */
  json(name: string): unknown {
    const section = this.sections.find((one) => one.name === name);
    return section?.content.case === "json" ? parseJson(section.content.value) : undefined;
  }

  /**
   * Returns one section whole, from the message or from the broker. A delta is resolved; the result has the digest that the sender
   * has signed. A section that the message does not have is taken from the latest earlier version that has it, and its digest is
   * the broker's word; undefined if no version that this agent may read has it. Throws BatonError; VerificationError,
   * CONTEXT_DIGEST_MISMATCH.
   */
  async fetchSection(name: string): Promise<ContextSection | undefined> {
    return this.#agent.contexts.whole(this.taskId, name, this.sections.find((one) => one.name === name));
  }

  /** The inputs of a subtask of a plan; undefined if the handoff carries out no subtask. */
  get subtask(): SubtaskInputs | undefined {
    return subtaskOf(this.sections);
  }

  /**
   * Returns `subtask` with the whole of the results that the context had no room for. It is called after `complete`: from then on
   * the broker shows the plan to this agent. Throws BatonError, PERMISSION_DENIED before.
   */
  async fetchSubtask(): Promise<SubtaskInputs | undefined> {
    const inputs = this.subtask;
    if (inputs === undefined || inputs.omitted.size === 0) return inputs;
    return filled(inputs, await this.#agent.plans.join(inputs.planId).results());
  }

  /**
   * Verifies the digest and takes ownership of the task: this agent owns it once the promise resolves. Throws
   * VerificationError, CONTEXT_DIGEST_MISMATCH; HandoffFailed if it is too late. Succeeds if an earlier process of this agent
   * completed the handoff and still owns the task.
   */
  async complete(): Promise<OwnedTask> {
    const { holdings } = this.#agent;
    const letter = this.#letter;
    if (letter === undefined) return this.#resumed();
    const say = async (): Promise<OwnedTask> => {
      const { taskId, epoch, taskStatus } = await this.#agent.complete(letter.delivery);
      return this.#owned(holdings.begin(taskId, epoch), taskStatus, "");
    };
    return this.#offer.answer(letter, say, async (error) => {
      const task = await this.#offer.taskIfDoneBefore(error);
      return task && this.#owned(holdings.begin(task.taskId, task.epoch), task.status, task.openHandoffId);
    });
  }

  /** Returns the task that an earlier process took over. */
  #resumed(): OwnedTask {
    const { task } = this.#offer;
    if (task === undefined) throw new TypeError("the offer has no task");
    this.#offer.resume();
    return task;
  }

  #owned(holding: Holding, status: TaskStatus, handoffId: string): OwnedTask {
    const task = new OwnedTask(this.#agent, holding, status, handoffId);
    this.#offer.holding = holding;
    this.#offer.task = task;
    return task;
  }

  /**
   * Refuses the context for the reason in `details`. The handoff fails and the sender keeps the task. A resumed task ends as FAILED.
   */
  async fail(details: string): Promise<void> {
    const letter = this.#letter;
    if (letter === undefined) await this.#resumed().update({ status: TaskStatus.FAILED, details });
    else await this.#offer.answer(letter, () => this.#agent.failTakeover(letter.delivery, details));
  }

  /** Asks for more time for a takeover that lasts longer than the handoff's timeout for it. */
  async keepTurn(details = ""): Promise<void> {
    if (this.delivery) await this.#agent.keepTurn(this.delivery, details);
    else await this.#offer.task?.report(details);
  }
}

/** Accepts or rejects an offer. */
export type OfferHandler = (offer: Offer, context: HandlerContext) => unknown;

/**
 * Calls the handler of an offer for a delivered HandoffRequest, or for a TaskContextTransfer whose request an earlier process
 * accepted. Throws the error that settles the delivery, as any handler.
 */
export async function takeOffer(
  agent: TaskOwner,
  delivery: Delivery,
  handler: OfferHandler,
  context: HandlerContext,
): Promise<void> {
  const { signal } = context;
  let mail: Conversation;
  try {
    mail = await agent.mail.converse(`handoff ${delivery.handoffId}`);
  } catch (error) {
    if (error instanceof WaitedFor) throw new Later(LATER_MS, "another handler is at work on the handoff");
    throw error;
  }
  const offer = new Offer(agent, delivery);
  const listening = new AbortController();
  const unwatch = agent.mail.watch(offer.taskId, offer.epoch, (recalled) => offer.recalled(recalled));
  // A handler that ignores its signal is abandoned, and its delivery is redelivered.
  const abandon = (): void => {
    listening.abort();
    mail.close();
    void offer.abandon(signal.reason);
  };
  if (signal.aborted) abandon();
  signal.addEventListener("abort", abandon);
  void listen(offer, mail, listening.signal);
  try {
    await inWork(offer, () => handler(offer, { signal: offer.signal }));
    if (!offer.isOver) {
      const reason: unknown = offer.signal.aborted ? offer.signal.reason : undefined;
      throw hasGoneOn(reason) ? reason : new Error("the handler has neither rejected nor completed the handoff");
    }
  } catch (error) {
    // The cause of the end takes precedence over the handler's own error.
    const failure: unknown = offer.signal.aborted && hasGoneOn(offer.signal.reason) ? offer.signal.reason : error;
    await offer.giveBack(failure);
    if (!offer.isOver) throw failure;
    agent.log("a handler failed after its handoff was over", failure); // the delivery is answered and must not be redelivered
    if (!signal.aborted && !isOfStop(failure, context)) await sayFailed(agent, offer, failure);
  } finally {
    if (offer.holding && !offer.isByHand) agent.holdings.end(offer.holding);
    signal.removeEventListener("abort", abandon);
    listening.abort();
    unwatch();
    mail.close();
  }
}

/**
 * Calls the handler of an offer for a task that an earlier process of this agent took over. A handler that raises ends the task as
 * FAILED. Does not throw.
 */
export async function takeResumed(agent: TaskOwner, resumed: ResumedTask, handler: OfferHandler, context: HandlerContext): Promise<void> {
  const { signal } = context;
  const offer = new Offer(agent, resumed);
  const unwatch = agent.mail.watch(offer.taskId, resumed.holding.epoch, (recalled) => offer.recalled(recalled));
  const abandon = (): void => {
    void offer.abandon(signal.reason);
  };
  if (signal.aborted) abandon();
  signal.addEventListener("abort", abandon);
  try {
    await inWork(offer, () => handler(offer, { signal: offer.signal }));
  } catch (error) {
    agent.log("the handler of a resumed task failed", error);
    if (!signal.aborted && !isOfStop(error, context)) await sayFailed(agent, offer, error);
  } finally {
    signal.removeEventListener("abort", abandon);
    unwatch();
    // A loop over handoffs that was left has not taken it.
    if (!offer.isByHand || !offer.isOver) agent.holdings.end(resumed.holding);
  }
}

/** Whether a handler failed because the program stops. */
function isOfStop(failure: unknown, { stopping }: HandlerContext): boolean {
  if (stopping?.aborted !== true) return false;
  return failure === stopping.reason || failure instanceof Stopped || (failure instanceof Error && failure.name === "AbortError");
}

/** Ends the task of a handler that failed as FAILED, with the words of the failure, unless the task has ended or moved. */
async function sayFailed(agent: TaskOwner, { task, holding }: Offer, failure: unknown): Promise<void> {
  if (task === undefined || holding?.isOver !== false) return;
  const details = clippedTo(DETAILS_BYTES_MAX, failure instanceof Error ? String(failure) : `the handler threw ${String(failure)}`);
  try {
    await task.update({ status: TaskStatus.FAILED, details });
  } catch (error) {
    // Without this process the task's loan timeout returns it, or its silence is noticed.
    agent.log(`the failure of task ${task.taskId} could not be reported`, error);
  }
}

/** Receives the mail of the handoff: its context, or the notice that it continues without this agent. */
async function listen(offer: Offer, mail: Conversation, signal: AbortSignal): Promise<void> {
  for (;;) {
    let letter: Letter;
    try {
      const next = offer.isOver ? await mail.next(signal) : await mail.nextWithin(offer.lookAfterMs, signal);
      if (next === undefined) {
        await offer.look();
        continue;
      }
      letter = next;
    } catch {
      return; // the handler has ended
    }
    const { payload } = letter.delivery;
    switch (payload?.$typeName) {
      case "baton.v1.TaskContextTransfer":
        if (offer.contextCame(letter)) {
          void letter.settled.then(() => {
            offer.contextWent();
          });
        } else {
          void letter.finish(new Later(LATER_MS, "the context is here already"));
        }
        continue;
      case "baton.v1.HandoffCancel":
        offer.end(new HandoffFailed(offer.handoffId, "HANDOFF_CANCELLED", payload.reasonText));
        break;
      case "baton.v1.ErrorNotification":
        if (payload.nextStep === NextStep.DROP_TASK) {
          offer.end(new HandoffFailed(offer.handoffId, codeOf(payload.errorCode), payload.errorMessage));
        }
        break;
      default:
    }
    await letter.finish();
  }
}
