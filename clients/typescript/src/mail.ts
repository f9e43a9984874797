/** The routing of an agent's mail: to the call or offer that waits for it, otherwise to `serve` or `deliveries`. */
import type { Delivery } from "./delivery.js";
import { BROKER_ID } from "./envelopes.js";
import { BatonError } from "./errors.js";
import { type HandlerContext, Jobs, Later, Stopped } from "./jobs.js";
import { Queue } from "./queue.js";
import { lastEpochOf, recallNotice, type Recalled, takenBy } from "./recalls.js";
import { bounded, deferred, type Session } from "./session.js";
import { isFinalStatus } from "./states.js";
import { ErrorCode, NextStep } from "./v1.js";

/** The redelivery delay of a message that no call of this process waits for yet. */
export const LATER_MS = 2_000;
/** The time for mail that waited at the broker to arrive on a new session, and for the mail of a state that was read. */
export const NEWS_MS = 1_000;
/** The maximum number of letters in one conversation. The broker delivers one message of a task at a time. */
const LETTERS_MAX = 16;
const KNOWN_MAX = 4_096;

/**
 * A call would wait for what another call of this `Agent` waits for: a second `delegate` or `handOver` of a task, or a second
 * resumption of a handoff, a negotiation or a question. The second call has sent nothing.
 */
export class WaitedFor extends Error {
  override readonly name = "WaitedFor";

  /** @internal */
  constructor(key: string) {
    super(`another call of this agent waits for it: ${key}`);
  }
}

/** A delivery in a conversation. The conversation extends it until `finish`. */
export class Letter {
  readonly #result = deferred<unknown>();
  /** Resolves after the broker has answered the acknowledgement. */
  settled: Promise<void> = Promise.resolve();

  constructor(readonly delivery: Delivery) {}

  /** Acknowledges the delivery by its handler's outcome, and waits for the broker's answer. */
  async finish(failure?: unknown): Promise<void> {
    this.#result.resolve(failure);
    await this.settled;
  }

  /** Waits for `finish`, for the job that extends and settles the delivery. */
  async wait({ signal }: HandlerContext): Promise<void> {
    const failure = await unlessAborted(this.#result.promise, signal);
    if (failure !== undefined) throw failure as Error;
  }
}

/** The mail of one handoff, or the final status of one lent task, while a call or an offer waits for it. */
export class Conversation {
  readonly #letters = new Queue<Letter>();
  readonly #life: AbortSignal;
  readonly #onClose: () => void;
  #waiting = 0;
  #isFailed = false;
  #look: (() => void) | undefined;
  /**
   * Whether the waiting call knows the end, so that further mail about it needs no handling. The call sets it before `close`.
   */
  isOver = false;

  constructor(life: AbortSignal, onClose: () => void) {
    this.#life = life;
    this.#onClose = onClose;
  }

  /** Waits for the next letter, which the caller finishes. Throws the reason of a signal that aborts, or the agent's end. */
  async next(...signals: readonly (AbortSignal | undefined)[]): Promise<Letter> {
    const letter = await this.#letters.next(...signals, this.#life);
    if (letter === undefined) throw new Stopped("what waited for it has ended");
    this.#waiting--;
    return letter;
  }

  /** As `next`, but returns undefined if no letter arrives in time, and when a new session has begun. */
  async nextWithin(ms: number, signal?: AbortSignal): Promise<Letter | undefined> {
    const quiet = new AbortController();
    const look = (): void => {
      quiet.abort(quiet);
    };
    const timer = setTimeout(look, ms);
    this.#look = look;
    try {
      return await this.next(signal, quiet.signal);
    } catch (error) {
      if (error === quiet) return undefined;
      throw error;
    } finally {
      clearTimeout(timer);
      this.#look = undefined;
    }
  }

  /** Has a call that waits read the state at the broker. */
  look(): void {
    this.#look?.();
  }

  /** Ends the conversation with an error for its call, after the letters that wait. */
  fail(error: Error): void {
    this.#isFailed = true;
    this.#letters.fail(error);
  }

  /** Adds a letter. Returns false if the conversation is full or has failed. */
  put(letter: Letter): boolean {
    if (this.#isFailed || this.#waiting >= LETTERS_MAX) return false;
    this.#waiting++;
    this.#letters.push(letter);
    return true;
  }

  /**
   * Ends the conversation without waiting. Its remaining letters are redelivered to a later conversation, or settled if the
   * conversation is over.
   */
  close(): void {
    this.#onClose();
    const rest = this.isOver ? undefined : new Later(0, "what waited for it has ended");
    for (const letter of this.#letters.drain()) void letter.finish(rest);
  }
}

/** Work on a task of this agent, which a recall of the task ends. */
interface Work {
  readonly taskId: string;
  /** The task's epoch when the work began. A recall to a later one ends it. */
  readonly epoch: bigint;
  /** Ends the work. Returns whether the notice needs no handler. */
  readonly stop: (recalled: Recalled) => boolean;
}

/** The parts of an agent that its mail uses. */
interface Owner {
  readonly credit: number;
  readonly handlerTimeoutMs: number;
  readonly life: AbortSignal;
  readonly session: () => Session | undefined;
  readonly log: (text: string, error?: unknown) => void;
  /** Learns of each task that was taken from this agent. */
  readonly taken: (recalled: Recalled) => void;
}

/** Routes an agent's deliveries, and controls the agent's credit. */
export class Mail {
  /** The maximum number of unacknowledged deliveries, for this session and the start of the next. */
  credit = 0;
  /**
   * The silence after which a call reads the state at the broker: another process of this agent may have got the mail, or the mail
   * may have expired.
   */
  lookAfterMs = 5_000;
  /** Whether a handler of this agent answers questions. */
  answersQuestions = false;
  readonly #owner: Owner;
  readonly #waiting = new Map<string, { conversation: Conversation; afterEpoch: bigint }>();
  /** The ownerships of tasks that calls hand over, with the number of these calls. */
  readonly #handing = new Map<string, number>();
  readonly #works = new Set<Work>();
  readonly #letters: Jobs;
  readonly #queue = new Queue<Delivery>();
  /** The messages whose content a call has read at the broker. */
  readonly #known = new Set<string>();
  #news: NodeJS.Timeout | undefined;
  #isTaking = false;
  #isRead = false;

  constructor(owner: Owner) {
    this.#owner = owner;
    const { handlerTimeoutMs, log } = owner;
    this.#letters = new Jobs({ handlerTimeoutMs, log });
  }

  /**
   * Opens the conversation about a handoff, `handoff ID`, a negotiation, `negotiation ID`, about the answer to a question, `question ID`, or about the end of a
   * lent task, `task ID`, after an epoch. It is registered at once, so that no answer is missed. Throws WaitedFor.
   */
  async converse(key: string, { afterEpoch = 0n, signal }: { afterEpoch?: bigint; signal?: AbortSignal | undefined } = {}): Promise<Conversation> {
    if (this.#waiting.has(key)) throw new WaitedFor(key);
    const conversation = new Conversation(this.#owner.life, () => {
      const forget = (): void => {
        if (this.#waiting.get(key)?.conversation === conversation) this.#waiting.delete(key);
      };
      this.#want(forget).catch((error: unknown) => {
        this.#owner.log("failed to change the credit", error);
      });
    });
    try {
      await this.#want(() => this.#waiting.set(key, { conversation, afterEpoch }), signal);
      return conversation;
    } catch (error) {
      conversation.close();
      throw error;
    }
  }

  /**
   * Notes that a call hands a task over, until the returned function is called. Throws WaitedFor if another call does. A task that
   * has come back has a later epoch.
   */
  hands(taskId: string, epoch: bigint): () => void {
    if (this.#handing.has(`${epoch} ${taskId}`)) throw new WaitedFor(`task ${taskId}`);
    return this.handsAlso(taskId, epoch);
  }

  /** As `hands`, for a handoff that has begun. */
  handsAlso(taskId: string, epoch: bigint): () => void {
    const key = `${epoch} ${taskId}`;
    this.#handing.set(key, (this.#handing.get(key) ?? 0) + 1);
    return () => {
      const left = (this.#handing.get(key) ?? 0) - 1;
      if (left > 0) this.#handing.set(key, left);
      else this.#handing.delete(key);
    };
  }

  /** Whether a conversation with this key is open. */
  isWaitedFor(key: string): boolean {
    return this.#waiting.has(key);
  }

  /** Yields the mail that belongs to no conversation, to one reader at a time. */
  async *read(signal: AbortSignal): AsyncGenerator<Delivery, void> {
    if (this.#isRead) throw new Error("the mail of this agent is being read already");
    this.#isRead = true;
    try {
      await this.#want(() => (this.#isTaking = true), signal);
      for (;;) {
        const delivery = await this.#queue.next(signal);
        if (delivery?.session.isOpen === true) yield delivery; // after the session's end it is redelivered
      }
    } finally {
      this.#isRead = false;
      await this.#stopTaking();
    }
  }

  /** Has a message acked that is still to come and that no code waits for: a call has read its content at the broker. */
  known(messageId: string): void {
    if (this.#known.size >= KNOWN_MAX) this.#known.clear();
    this.#known.add(messageId);
  }

  /** Sets the credit of this session and later ones. */
  async setCredit(maxOutstanding: number): Promise<void> {
    this.credit = maxOutstanding;
    if (maxOutstanding > 0) this.#isTaking = true;
    const session = this.#owner.session();
    // Without a session the next one begins with this credit.
    if (session !== undefined) await session.giveCredit(maxOutstanding);
  }

  /** Has `stop` called when the task is recalled from this agent. Returns the function that ends this. */
  watch(taskId: string, epoch: bigint, stop: (recalled: Recalled) => boolean): () => void {
    const work = { taskId, epoch, stop };
    this.#works.add(work);
    return () => this.#works.delete(work);
  }

  /** Ends the wait for the result of a task that this agent has recalled. */
  recalled(taskId: string, epoch: bigint, error: Error): void {
    const waiting = this.#waiting.get(`task ${taskId}`);
    if (waiting && epoch > waiting.afterEpoch + 1n) waiting.conversation.fail(error);
  }

  /** Ends the work on a task that the broker took from this agent. Returns whether the notice needs no handler. */
  #stopWork(delivery: Delivery): boolean {
    const recalled = takenBy(delivery);
    if (recalled === undefined) return false;
    this.#owner.taken(recalled);
    let isDone = false;
    for (const work of [...this.#works]) {
      if (work.taskId !== recalled.taskId || work.epoch > lastEpochOf(recalled)) continue;
      this.#works.delete(work);
      isDone = work.stop(recalled) || isDone;
    }
    return isDone;
  }

  /** Gives a delivery to its conversation, to the reader, or back to the broker. */
  route(delivery: Delivery): void {
    if (this.#letters.again(delivery)) return;
    if (this.#stopWork(delivery)) {
      void this.#letters.settle(delivery, undefined);
      return;
    }
    const conversation = this.#conversationOf(delivery);
    if (conversation !== undefined) {
      const letter = new Letter(delivery);
      letter.settled = this.#letters.begin(delivery, (context) => letter.wait(context));
      if (!conversation.put(letter)) void letter.finish(new Later(LATER_MS, "too many messages wait"));
    } else if (this.#known.has(delivery.envelope.messageId)) {
      void this.#letters.settle(delivery, undefined);
    } else if (this.#isTaking) {
      this.#queue.push(delivery);
    } else {
      // Without a reader only conversations take mail.
      const later = new Later(this.#wantsMail ? LATER_MS : 0, "the agent does not take mail at present");
      void this.#letters.settle(delivery, later);
    }
  }

  /** Drops the queued mail of an ended session, which the broker redelivers. */
  forget(): void {
    clearTimeout(this.#news);
    this.#queue.drain();
  }

  /** Has each call that waits read the state at the broker on a new session: at once, and once its mail has had time to arrive. */
  returned(): void {
    const look = (): void => {
      for (const { conversation } of this.#waiting.values()) conversation.look();
    };
    clearTimeout(this.#news);
    look();
    this.#news = setTimeout(look, NEWS_MS);
    this.#news.unref();
  }

  get #wantsMail(): boolean {
    return this.#isTaking || this.#waiting.size > 0;
  }

  /** Changes the mail that this agent waits for. The agent gives credit while it waits for any mail. */
  async #want(change: () => unknown, signal?: AbortSignal): Promise<void> {
    const before = this.#wantsMail;
    change();
    if (before === this.#wantsMail) return;
    this.credit = before ? 0 : this.#owner.credit;
    if (!this.#owner.life.aborted) await this.#owner.session()?.giveCredit(this.credit, signal);
  }

  /** Takes only the mail of conversations from now on, and gives queued deliveries back. */
  async #stopTaking(): Promise<void> {
    try {
      await bounded(this.#want(() => (this.#isTaking = false)));
      const rest = this.#queue.drain().filter(({ session }) => session.isOpen);
      if (this.#owner.life.aborted) return;
      await Promise.all(rest.map((delivery) => this.#letters.settle(delivery, new Stopped("the agent stops"))));
    } catch (error) {
      this.#owner.log("failed to give mail back; it comes again", error);
    }
  }

  #conversationOf(delivery: Delivery): Conversation | undefined {
    const { payload, envelope, handoffId } = delivery;
    switch (payload?.$typeName) {
      case "baton.v1.HandoffAccept":
      case "baton.v1.HandoffReject":
      case "baton.v1.HandoffCancel":
      case "baton.v1.TaskContextTransfer":
      case "baton.v1.HandoffComplete":
        return this.#waiting.get(`handoff ${handoffId}`)?.conversation;
      case "baton.v1.TaskOffer":
      case "baton.v1.TaskDecline":
      case "baton.v1.NegotiationClosed":
        return delivery.handoffRequest ? undefined : this.#waiting.get(`negotiation ${envelope.correlationId}`)?.conversation;
      case "baton.v1.TaskInput":
        return this.#waiting.get(`question ${envelope.correlationId}`)?.conversation;
      case "baton.v1.ErrorNotification": {
        if (envelope.senderId === BROKER_ID && payload.errorCode === ErrorCode.INPUT_EXPIRED) {
          return this.#waiting.get(`question ${envelope.correlationId}`)?.conversation;
        }
        const notice = recallNotice(delivery);
        if (notice !== undefined) {
          const waiting = notice.nextStep === NextStep.KEEP_TASK ? this.#waiting.get(`task ${envelope.taskId}`) : undefined;
          return waiting && envelope.epoch > waiting.afterEpoch + 1n ? waiting.conversation : undefined;
        }
        if (envelope.senderId !== BROKER_ID) return undefined;
        return (this.#waiting.get(`handoff ${handoffId}`) ?? this.#waiting.get(`negotiation ${envelope.correlationId}`))?.conversation;
      }
      case "baton.v1.TaskStatusUpdate": {
        const waiting = isFinalStatus(payload.status) ? this.#waiting.get(`task ${envelope.taskId}`) : undefined;
        // Excludes the result of an earlier loan of the task.
        return waiting && envelope.epoch > waiting.afterEpoch ? waiting.conversation : undefined;
      }
      default:
        return undefined;
    }
  }
}

/** Returns the promise's value, or throws the signal's reason as an error if it aborts first. */
export async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  const aborted = deferred<never>();
  const onAbort = (): void => {
    aborted.reject(signal.reason instanceof Error ? signal.reason : BatonError.of(signal.reason));
  };
  if (signal.aborted) onAbort();
  signal.addEventListener("abort", onAbort);
  try {
    return await Promise.race([promise, aborted.promise]);
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}
