/** The sender's side of a handoff. */
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import type { AgentCore } from "./core.js";
import { clipped, type Delivery } from "./delivery.js";
import { BatonError, HandoffFailed, hasGoneOn, isPassing, type Rejection } from "./errors.js";
import type { CallOptions } from "./following.js";
import { type HandlerContext, Later } from "./jobs.js";
import { type Conversation, LATER_MS, type Letter } from "./mail.js";
import { forWishes } from "./sections.js";
import { sleep } from "./session.js";
import { contextDigest } from "./signing.js";
import { isFinalState } from "./states.js";
import {
  type ContextSection,
  ErrorCode,
  type Handoff,
  type HandoffAccept,
  HandoffCancelSchema,
  HandoffOutcome,
  HandoffState,
  NextStep,
  OfferOutcome,
  type Receipt,
  SenderView,
  TaskContextTransferSchema,
} from "./v1.js";

/** A task that has moved to another agent. */
export interface HandedOver {
  readonly handoffId: string;
  readonly taskId: string;
  /** The task's new owner. */
  readonly ownerId: string;
  /** The epoch that began with the new owner. */
  readonly epoch: bigint;
  /** The agents that did not take the task before, in order. */
  readonly rejections: readonly Rejection[];
}

/** Gets each view that the sender has of its handoff, from IDLE to HANDOFF_COMPLETED. */
export type OnView = (view: SenderView) => void;

/** The options of the calls `handOver`. */
export interface HandOverOptions extends CallOptions {
  /**
   * The time limit of the call. At this time the agent cancels the handoff, unless the task has moved just before: see
   * `Agent.handOver`. At most 2^31 - 1 ms; default: none, so that the request's whole timeout ends the call.
   */
  timeoutMs?: number;
  /** Gets each view that this agent has of the handoff: see `Agent.handOver`. */
  onView?: OnView;
}

/** The longest time of a timer. */
export const TIMER_MS_MAX = 2 ** 31 - 1;
const CANCEL_MS = 10_000;
const ATTEMPTS_MAX = 10;
const ATTEMPT_MS = 200;
const LIMIT_TEXT = "the time limit of the call passed";

/** The context that a candidate waits for after its accept. */
export interface WantedContext {
  readonly handoffId: string;
  readonly taskId: string;
  /** The task's epoch at this agent. */
  readonly epoch: bigint;
  /** The agent that accepted. */
  readonly candidateId: string;
  /** The names of the requested sections; empty for all. The agent leaves out the others itself. */
  readonly sections: readonly string[];
}

/** Returns the context of a task for a candidate that has accepted. */
export type ContextProvider = (
  wanted: WantedContext,
  context: HandlerContext,
) => readonly ContextSection[] | Promise<readonly ContextSection[]>;

interface About {
  handoffId: string;
  taskId: string;
  epoch: bigint;
}

/** A candidate that has accepted and waits for the context. */
interface Candidate {
  readonly about: About;
  readonly candidateId: string;
  readonly wanted: Pick<HandoffAccept, "wantedSections" | "wishes">;
}

/** A handoff that this agent has requested. */
export class HandOver {
  readonly #agent: AgentCore;
  readonly #mail: Conversation;
  readonly #about: About;
  readonly #sections: readonly ContextSection[];
  readonly #onView: OnView;
  readonly #rejections: Rejection[] = [];

  constructor(
    agent: AgentCore,
    mail: Conversation,
    about: About,
    sections: readonly ContextSection[],
    onView: OnView = () => undefined,
  ) {
    this.#onView = onView;
    this.#agent = agent;
    this.#mail = mail;
    this.#about = about;
    this.#sections = sections;
  }

  /** Processes the handoff to its end, from its request or from the state in `handoff`. */
  async run(signal?: AbortSignal, handoff?: Handoff): Promise<HandedOver> {
    try {
      const done = await (handoff ? this.#resume(handoff, signal) : this.#follow(signal));
      this.#mail.isOver = true;
      return done;
    } catch (error) {
      this.#mail.isOver = error instanceof HandoffFailed;
      throw error;
    }
  }

  /**
   * Cancels the handoff at the time limit of its call, for at most 10 s. Returns if the task has moved before. Throws HandoffFailed;
   * BatonError if the handoff may still be open.
   */
  async endAtLimit(): Promise<HandedOver> {
    const handoff = await cancelled(this.#agent, this.#about.handoffId);
    if (handoff) return this.run(undefined, handoff);
    throw this.#failed("HANDOFF_CANCELLED", LIMIT_TEXT);
  }

  async #resume(handoff: Handoff, signal?: AbortSignal): Promise<HandedOver> {
    for (const { candidateId: agentId, outcome, rejectReason: reason, reasonText: text } of handoff.offers) {
      if (outcome === OfferOutcome.REJECTED) this.#rejected({ agentId, reason, text });
    }
    return isFinalState(handoff.state) ? this.#ended(handoff) : this.#follow(signal);
  }

  async #follow(signal?: AbortSignal): Promise<HandedOver> {
    for (;;) {
      const letter = await this.#mail.nextWithin(this.#agent.mail.lookAfterMs, signal);
      if (letter === undefined) {
        const handoff = await lookAt(this.#agent, this.#about.handoffId);
        if (handoff && isFinalState(handoff.state)) return this.#ended(handoff);
        // Another process of this agent may have the accept.
        if (handoff?.state === HandoffState.ACCEPTED) await this.#provide(handoff, signal);
        continue;
      }
      const { payload, envelope } = letter.delivery;
      switch (payload?.$typeName) {
        case "baton.v1.HandoffAccept": {
          const done = await this.#accepted(letter, signal);
          if (done) return done;
          continue;
        }
        case "baton.v1.HandoffReject":
          this.#rejected({ agentId: envelope.senderId, reason: payload.reason, text: payload.reasonText });
          break;
        case "baton.v1.HandoffComplete":
          if (payload.outcome !== HandoffOutcome.SUCCESS) break;
          await letter.finish();
          return this.#completed(envelope.senderId);
        case "baton.v1.ErrorNotification":
          if (payload.nextStep !== NextStep.KEEP_TASK) break;
          await letter.finish();
          throw this.#failed(codeOf(payload.errorCode), payload.errorMessage);
        default:
      }
      await letter.finish();
    }
  }

  /** Sends the context. Returns a result if the handoff has ended. */
  async #accepted(accept: Letter, signal?: AbortSignal): Promise<HandedOver | undefined> {
    this.#onView(SenderView.CONTEXT_PREPARING);
    try {
      await giveContext(this.#agent, candidateOf(accept.delivery), this.#sections, signal);
      this.#onView(SenderView.AWAITING_CONTEXT_ACK);
      await accept.finish();
      return undefined;
    } catch (error) {
      if (signal?.aborted === true) {
        void accept.finish(new Later(0, "what would have sent the context has ended"));
        signal.throwIfAborted();
      }
      if (!hasGoneOn(error)) {
        // A refusal has cancelled the handoff, and the accept needs no further attempt.
        await accept.finish(isRefusal(error) ? undefined : error);
        if (error instanceof Later) return undefined;
        throw error;
      }
    }
    // The context was sent before, or the handoff is over. An earlier process may have received the mail about its end.
    try {
      const handoff = await this.#agent.getHandoff(this.#about.handoffId);
      return isFinalState(handoff.state) ? this.#ended(handoff) : undefined;
    } finally {
      await accept.finish();
    }
  }

  /** Sends the context to the candidate that the broker names. */
  async #provide({ candidateId, wantedSections }: Handoff, signal?: AbortSignal): Promise<void> {
    const candidate = { about: this.#about, candidateId, wanted: { wantedSections, wishes: [] } };
    this.#onView(SenderView.CONTEXT_PREPARING);
    try {
      await giveContext(this.#agent, candidate, this.#sections, signal);
      this.#onView(SenderView.AWAITING_CONTEXT_ACK);
    } catch (error) {
      signal?.throwIfAborted();
      // The other process has sent it, or the next look tries again.
      if (!hasGoneOn(error) && !(error instanceof Later)) throw error;
    }
  }

  #completed(ownerId: string): HandedOver {
    this.#onView(SenderView.HANDOFF_COMPLETED);
    const { handoffId, taskId, epoch } = this.#about;
    return { handoffId, taskId, ownerId, epoch: epoch + 1n, rejections: this.#rejections };
  }

  #failed(reason: string, text: string): HandoffFailed {
    return new HandoffFailed(this.#about.handoffId, reason, text, this.#rejections);
  }

  #ended({ state, candidateId, errorCode, errorMessage }: Handoff): HandedOver {
    if (state === HandoffState.COMPLETED) return this.#completed(candidateId);
    throw this.#failed(codeOf(errorCode), errorMessage);
  }

  /** Records a rejection once: its message is redelivered if an earlier process left it unacknowledged. */
  #rejected(rejection: Rejection): void {
    if (!this.#rejections.some(({ agentId }) => agentId === rejection.agentId)) this.#rejections.push(rejection);
  }
}

/** Returns the error of a handoff whose time limit passed before its request was sent. */
export function cancelledBefore(handoffId: string): HandoffFailed {
  return new HandoffFailed(handoffId, "HANDOFF_CANCELLED", LIMIT_TEXT);
}

/** Cancels a handoff unless it has ended. Returns its end; undefined if the broker has not stored the request. */
async function cancelled(agent: AgentCore, handoffId: string): Promise<Handoff | undefined> {
  const signal = AbortSignal.timeout(CANCEL_MS);
  let last: BatonError | undefined;
  let isStored = false;
  for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
    try {
      const handoff = await agent.getHandoff(handoffId);
      isStored = true;
      if (isFinalState(handoff.state)) return handoff;
      await agent.cancel(handoffId, LIMIT_TEXT, { signal });
    } catch (error) {
      if (signal.aborted) break;
      // The request may still be on its way, or the handoff has moved on since the look.
      last = BatonError.of(error);
      await sleep(ATTEMPT_MS);
    }
  }
  if (!isStored && last && !isPassing(last)) return undefined;
  const text = `${LIMIT_TEXT}, and handoff ${handoffId} could not be cancelled; its timeouts end it`;
  throw new BatonError(Code.DeadlineExceeded, text);
}

/** Returns where a task went by a handoff that has ended. Throws HandoffFailed if the task stayed. */
export function endedBy({ state, candidateId, errorCode, errorMessage, offers }: Handoff, about: About): HandedOver {
  const rejections: Rejection[] = offers
    .filter(({ outcome }) => outcome === OfferOutcome.REJECTED)
    .map(({ candidateId: agentId, rejectReason: reason, reasonText: text }) => ({ agentId, reason, text }));
  const { handoffId, taskId, epoch } = about;
  if (state === HandoffState.COMPLETED) return { handoffId, taskId, ownerId: candidateId, epoch: epoch + 1n, rejections };
  throw new HandoffFailed(handoffId, codeOf(errorCode), errorMessage, rejections);
}

/** Answers an accept that no `handOver` waits for, with the context from the handler. */
export async function provideContext(
  agent: AgentCore,
  accept: Delivery,
  provide: ContextProvider,
  context: HandlerContext,
): Promise<void> {
  const candidate = candidateOf(accept);
  const { about, candidateId, wanted } = candidate;
  const given = await provide({ ...about, candidateId, sections: wanted.wantedSections }, context);
  try {
    await giveContext(agent, candidate, given, context.signal);
  } catch (error) {
    if (isRefusal(error)) {
      await accept.ack().catch((lost: unknown) => {
        agent.log("an acknowledgement was lost; the message comes again", lost);
      });
    }
    throw error;
  }
}

/** Whether a context was refused for good, so that `giveContext` has cancelled its handoff. */
function isRefusal(error: unknown): boolean {
  return error instanceof BatonError && !isPassing(error) && !hasGoneOn(error);
}

/** Returns the candidate whose accept was delivered. */
export function candidateOf({ handoffId, envelope, answerTo, payload }: Delivery): Candidate {
  const { taskId, epoch } = envelope;
  const wanted = payload?.$typeName === "baton.v1.HandoffAccept" ? payload : { wantedSections: [], wishes: [] };
  return { about: { handoffId, taskId, epoch }, candidateId: answerTo, wanted };
}

/** Sends a candidate the sections that it wants. They are the bases of later deltas. */
export async function sendContextTo(
  agent: AgentCore,
  { about, candidateId, wanted }: Candidate,
  sections: readonly ContextSection[],
  options: CallOptions,
): Promise<Receipt> {
  const { handoffId: correlationId, taskId, epoch } = about;
  const { known } = agent.contexts;
  const sent = forWishes(sections, wanted, (name, digest) => known.find(taskId, name, digest));
  const transfer = create(TaskContextTransferSchema, { sections: sent, contextDigest: contextDigest(sent) });
  const receipt = await agent.send(candidateId, { taskId, epoch, correlationId }, transfer, options);
  known.note(taskId, sections);
  return receipt;
}

/**
 * Settles mail of a handoff that no call of this process waits for: a context, or an accept whose `handOver` died with an
 * earlier process. While the handoff is open the message is redelivered, until a call takes it or the broker ends the handoff
 * by its timeout.
 */
export async function unclaimed(agent: AgentCore, { handoffId, payload }: Delivery): Promise<void> {
  let handoff: Handoff;
  try {
    handoff = await agent.getHandoff(handoffId);
  } catch (error) {
    // The handoff was removed, or belongs to other agents: no call can wait for it.
    if (!isPassing(BatonError.of(error))) return;
    throw new Later(LATER_MS, `failed to look at handoff ${handoffId}: ${String(error)}`);
  }
  const isSent = payload?.$typeName === "baton.v1.HandoffAccept" && handoff.state === HandoffState.CONTEXT_SENT;
  if (!isSent && !isFinalState(handoff.state)) throw new Later(LATER_MS, "no code of this agent waits for it yet");
}

/** Returns the name of an error code, as in BatonError.reason. */
export function codeOf(code: ErrorCode): string {
  return (ErrorCode as Partial<Record<number, string>>)[code] ?? String(code);
}

/** Reads a handoff; returns undefined after a passing error, and for one that the broker does not show: mail tells its end. */
export async function lookAt(agent: AgentCore, handoffId: string): Promise<Handoff | undefined> {
  try {
    return await agent.getHandoff(handoffId);
  } catch (error) {
    const failure = BatonError.of(error);
    if (isPassing(failure) || failure.reason === "HANDOFF_UNKNOWN") return undefined;
    throw error;
  }
}

/**
 * Sends the context to a candidate. A permanent refusal ends the handoff, since no candidate could take it over. Throws Later if
 * a retry may succeed.
 */
async function giveContext(
  agent: AgentCore,
  candidate: Candidate,
  sections: readonly ContextSection[],
  signal?: AbortSignal,
): Promise<void> {
  try {
    await sendContextTo(agent, candidate, sections, signal ? { signal } : {});
  } catch (error) {
    if (hasGoneOn(error)) throw error;
    if (signal?.aborted === true) throw new Later(0, "what would have sent the context has ended");
    if (!(error instanceof BatonError)) throw error;
    if (isPassing(error)) throw new Later(Math.max(error.retryDelayMs ?? 0, LATER_MS), String(error));
    const reasonText = clipped(`there is no context: ${error.message}`);
    const { handoffId: correlationId, taskId, epoch } = candidate.about;
    try {
      await agent.send(candidate.candidateId, { taskId, epoch, correlationId }, create(HandoffCancelSchema, { reasonText }));
    } catch (failure) {
      if (!hasGoneOn(failure)) throw failure;
    }
    throw error;
  }
}
