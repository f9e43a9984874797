/** Lent tasks: the wait for a delegate's result, and the ways in which the task comes back without one. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, durationMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import type { AgentCore } from "./core.js";
import { clipped } from "./delivery.js";
import { BatonError, HandoffFailed, isPassing, type RecallReason, TaskRecalled } from "./errors.js";
import type { CallOptions } from "./following.js";
import { endedBy, type HandedOver, type OnView, TIMER_MS_MAX } from "./handovers.js";
import { Later } from "./jobs.js";
import { type JsonObject, parseObject } from "./json.js";
import { type Conversation, NEWS_MS } from "./mail.js";
import type { OnProgress } from "./progress.js";
import { refusal } from "./refusals.js";
import { sleep } from "./session.js";
import { isFinalState, isFinalStatus } from "./states.js";
import {
  type ContextSection,
  type Envelope,
  ErrorCode,
  type Handoff,
  HandoffMode,
  HandoffRequestSchema,
  type HandoffRequest,
  HandoffState,
  type Receipt,
  type Task,
  TaskRecallSchema,
  TaskStatus,
} from "./v1.js";

/** The loan timeout of `delegate` when the call names neither a loan timeout nor a time limit. */
export const LOAN_TIMEOUT_MS = 3_600_000;
const LOAN_TIMEOUT_MS_MIN = 1_000;
const LOAN_TIMEOUT_MS_MAX = 30 * 24 * 3_600_000;
const WHOLE_TIMEOUT_MS = 360_000;
/** The broker's timeouts end a delegation. This is the time for the last news of it. */
const LAST_NEWS_MS = 60_000;
/** The longest time of a timer of Node. */
const TAKE_BACK_MS = 10_000;
const ATTEMPTS_MAX = 10;
const ATTEMPT_MS = 200;

/** The options of `delegate`. */
export interface DelegateOptions extends CallOptions {
  /** The task's epoch at this agent; default 1, for a new task. */
  epoch?: bigint;
  /** The time limit of the whole call. At this time the agent takes the task back. At most 2^31 - 1 ms. */
  timeoutMs?: number;
  /**
   * The time after the completion at which the broker returns the task without a result, 1 s to 30 days. Default: the
   * request's, else `timeoutMs`, else one hour.
   */
  loanTimeoutMs?: number;
  /**
   * The time without a sign of work of the delegate after which the broker returns the task, 5 s to 1 day; default: never. A process
   * of a client library gives signs by itself while its handler works.
   */
  silenceTimeoutMs?: number;
  /** The longest loan that the delegate can ask for by `OwnedTask.extend`, up to 30 days; default: none can be asked for. */
  loanTimeoutMaxMs?: number;
  /**
   * A thread in which this agent takes part: at the end of the delegation the broker appends one message to its history. Default:
   * the request's, else none.
   */
  threadId?: string;
  /** Gets each view that this agent has of the handoff: see `Agent.handOver`. */
  onView?: OnView;
  /**
   * Gets each status update of the lent task that is not final, in order: its status, progress, details and question. An error of
   * the callback or of the watch is logged, and the call goes on.
   */
  onProgress?: OnProgress;
}

/** The options of `waitForLoan`. */
export interface WaitForLoanOptions extends CallOptions {
  /** The context for the agent that accepts, if the handoff is still open. */
  sections?: readonly ContextSection[];
  /** Gets each status update of the lent task that is not final, from the takeover on: see `DelegateOptions`. */
  onProgress?: OnProgress;
}

/** The outcome of a delegated task, which this agent owns again. */
export interface Outcome {
  readonly taskId: string;
  /** The epoch that began with the task's return. */
  readonly epoch: bigint;
  /** COMPLETED, FAILED or CANCELED; another status if a handoff returned the task unfinished. */
  readonly status: TaskStatus;
  /** The result; empty if the delegate gave none. Integers beyond 2^53 - 1 are `bigint`. */
  readonly result: JsonObject;
  /** The delegate's explanation. */
  readonly details: string;
}

/**
 * Returns the request of a delegation, the time limit of the call if a timer can measure it, and whether this limit is the loan
 * timeout too.
 */
export function loanOf(
  request: MessageInitShape<typeof HandoffRequestSchema>,
  { timeoutMs, loanTimeoutMs, silenceTimeoutMs, loanTimeoutMaxMs, threadId }: DelegateOptions,
): { lent: HandoffRequest; limitMs: number | undefined; isOneTime: boolean } {
  if (timeoutMs !== undefined && timeoutMs > TIMER_MS_MAX) throw new RangeError(`timeoutMs is at most ${TIMER_MS_MAX}`);
  const lent = create(HandoffRequestSchema, { ...request, mode: HandoffMode.DELEGATE });
  if (silenceTimeoutMs !== undefined) lent.silenceTimeout = durationFromMs(silenceTimeoutMs);
  if (loanTimeoutMaxMs !== undefined) lent.loanTimeoutMax = durationFromMs(loanTimeoutMaxMs);
  if (threadId !== undefined) lent.threadId = threadId;
  const isOneTime = timeoutMs !== undefined && loanTimeoutMs === undefined && lent.loanTimeout === undefined;
  if (loanTimeoutMs !== undefined || lent.loanTimeout === undefined) {
    // If this process dies, nothing but the loan timeout brings the task back.
    const within = Math.min(Math.max(timeoutMs ?? LOAN_TIMEOUT_MS, LOAN_TIMEOUT_MS_MIN), LOAN_TIMEOUT_MS_MAX);
    lent.loanTimeout = durationFromMs(loanTimeoutMs ?? within);
  }
  const whole = lent.timeouts?.whole;
  const limitMs = timeoutMs ?? (whole ? durationMs(whole) : WHOLE_TIMEOUT_MS) + durationMs(lent.loanTimeout) + LAST_NEWS_MS;
  return { lent, limitMs: limitMs > TIMER_MS_MAX ? undefined : limitMs, isOneTime };
}

/** The end of a delegation, with the limit as the reason in place of these, if the agent owns the task again. */
export function byLimit(error: unknown, ...others: RecallReason[]): unknown {
  if (!(error instanceof TaskRecalled) || !error.isOwner || !others.includes(error.reason)) return error;
  return new TaskRecalled(error.taskId, error.handoffId, "DEADLINE", error.text, error.epoch, true);
}

/** Throws BatonError, NOT_OWNER or NOT_LENT, for a handoff that is no loan of this agent. */
export function checkLoan(agentId: string, { handoffId, senderId, mode }: Handoff): void {
  if (senderId !== agentId) {
    throw refusal("NOT_OWNER", `handoff ${handoffId} was asked for by ${senderId}`, [], Code.PermissionDenied);
  }
  if (mode !== HandoffMode.DELEGATE) throw notLent(`handoff ${handoffId} hands the task over for good`);
}

/** Throws BatonError, NOT_LENT, if this agent has handed the task on after the loan ended. Returns whether it is lent. */
export function isLentBy({ handoffId, epoch }: HandedOver, agentId: string, { loans, hops }: Task): boolean {
  if (loans.some((loan) => loan.handoffId === handoffId)) return true;
  const later = hops.findLast((hop) => hop.senderId === agentId && hop.epoch > epoch);
  if (later) throw notLent(`handoff ${handoffId} lends nothing any more: ${later.handoffId} has moved the task since`);
  return false;
}

function notLent(text: string): BatonError {
  return refusal("NOT_LENT", text, [], Code.FailedPrecondition);
}

/** Waits for the final status of a delegated task. Throws TaskRecalled. */
export async function outcomeOf(
  agent: AgentCore,
  results: Conversation,
  lent: HandedOver,
  signal: AbortSignal | undefined,
  lookAfterMs = agent.mail.lookAfterMs,
): Promise<Outcome> {
  for (let isBack = false; ;) {
    // The mail about a loan that has ended arrives within the time for news, unless another process of this agent has got it.
    const letter = await results.nextWithin(isBack ? Math.min(NEWS_MS, lookAfterMs) : lookAfterMs, signal);
    if (letter === undefined) {
      const task = await look(agent, lent);
      if (task !== undefined && isBack) return withoutNews(agent, lent, task);
      isBack = task !== undefined;
      continue;
    }
    const { payload, envelope } = letter.delivery;
    const { taskId, epoch } = envelope;
    if (payload?.$typeName === "baton.v1.ErrorNotification") {
      await letter.finish();
      const reason = payload.errorCode === ErrorCode.TASK_ABANDONED ? "ABANDONED" : "LOAN_TIMEOUT";
      throw new TaskRecalled(taskId, lent.handoffId, reason, payload.errorMessage, epoch, true);
    }
    if (payload?.$typeName !== "baton.v1.TaskStatusUpdate") throw new TypeError("the result is no status");
    let isEnd: boolean;
    try {
      isEnd = await isReturned(agent, lent, epoch);
    } catch (error) {
      // Otherwise its job would extend it, and the broker would hold back the later mail of the task.
      await letter.finish(new Later(0, "the call that waited for the status has failed"));
      throw error;
    }
    await letter.finish();
    const { status, details, resultJson } = payload;
    if (isEnd) return { taskId, epoch: epoch + 1n, status, result: parseObject(resultJson), details };
  }
}

/**
 * Whether a final status ended the loan. A status of a later epoch may have ended a further loan by the delegate, which names
 * this agent as a receiver too.
 */
async function isReturned(agent: AgentCore, lent: HandedOver, endedAt: bigint): Promise<boolean> {
  if (endedAt === lent.epoch) return true;
  const { ownerId, epoch } = await agent.getTask(lent.taskId);
  return ownerId === agent.id && epoch === endedAt + 1n;
}

/** Reads the task. Returns it if its loan has ended. */
async function look(agent: AgentCore, lent: HandedOver): Promise<Task | undefined> {
  try {
    const task = await agent.getTask(lent.taskId);
    const isLent = task.loans.some(({ handoffId }) => handoffId === lent.handoffId);
    return !isLent && task.epoch > lent.epoch ? task : undefined;
  } catch (error) {
    if (isPassing(BatonError.of(error))) return undefined;
    throw error;
  }
}

/**
 * Returns the outcome of a loan from the records of the broker: the final status that ended it, or the task that a handoff returned
 * unfinished. Throws TaskRecalled for a recalled one.
 */
async function withoutNews(agent: AgentCore, lent: HandedOver, task: Task): Promise<Outcome> {
  const { taskId, epoch, status, details, ownerId, hops, custodyLength } = task;
  const isOwner = ownerId === agent.id;
  // A loan ends in the epoch before its return; a task that has moved on since has another one.
  const ended = await agent.tasks.finalStatusAt(taskId, isOwner ? epoch - 1n : lent.epoch, custodyLength).catch((error: unknown) => {
    if (isPassing(BatonError.of(error))) throw error;
    agent.log(`the end of the loan of task ${taskId} cannot be read`, error); // the custody log may not be this agent's to read
    return null;
  });
  if (ended?.update && ended.entry.ownerId === agent.id) {
    const { update } = ended;
    return { taskId, epoch: ended.entry.epoch, status: update.status, result: parseObject(update.resultJson), details: update.details };
  }
  // Without a log that can be read, the task has the result, but not how the loan ended.
  if ((ended === null || custodyLength === 0n) && isOwner && task.resultJson !== "") {
    return { taskId, epoch, status: isFinalStatus(status) ? status : TaskStatus.COMPLETED, result: parseObject(task.resultJson), details };
  }
  const last = hops.at(-1);
  if (isOwner && last?.receiverId === agent.id && last.epoch === epoch) return { taskId, epoch, status, result: {}, details };
  const text = "the loan has ended without a final status of the delegate";
  throw new TaskRecalled(taskId, lent.handoffId, "RECALL", text, epoch, isOwner);
}

/**
 * Cancels the handoff of this request, or recalls the task that it lent. Returns the receipt of the recall; undefined if the
 * task was not lent or its loan has ended. Throws BatonError if the broker cannot be reached within 10 s.
 */
export async function takeBack(agent: AgentCore, request: Pick<Envelope, "messageId" | "taskId" | "epoch">, text: string): Promise<Receipt | undefined> {
  const { messageId: correlationId, taskId, epoch } = request;
  const signal = AbortSignal.timeout(TAKE_BACK_MS);
  const late = (): BatonError =>
    new BatonError(Code.DeadlineExceeded, `task ${taskId} could not be taken back in time; its loan timeout returns it`);
  let last: BatonError | undefined;
  for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
    try {
      const { state } = await agent.getHandoff(correlationId);
      if (state === HandoffState.COMPLETED) {
        const recall = create(TaskRecallSchema, { reasonText: clipped(text) });
        return await agent.send("", { taskId, epoch, correlationId }, recall, { signal });
      }
      if (!isFinalState(state)) await agent.cancel(correlationId, text, { signal });
      return undefined;
    } catch (error) {
      if (signal.aborted) throw late();
      last = BatonError.of(error);
      if (last.reason === "NOT_LENT") return undefined;
      // The request may still be on its way, or the handoff has moved on since the look.
      await sleep(ATTEMPT_MS, signal).catch(() => {
        throw late();
      });
    }
  }
  if (last && isPassing(last)) throw last;
  return undefined;
}

/** As `takeBack`, for an aborted call, which has no more use for the outcome. Failures are logged. */
export async function takeBackOfAborted(agent: AgentCore, request: Envelope): Promise<Receipt | undefined> {
  try {
    return await takeBack(agent, request, "the delegating call was aborted");
  } catch (error) {
    agent.log(`the loan of task ${request.taskId} ends by its timeout`, error);
    return undefined;
  }
}

/**
 * Takes the task back at the time limit of a call. Returns the delegate's result if it came first. Throws TaskRecalled, or
 * HandoffFailed if the task was not lent.
 */
export async function endAtDeadline(agent: AgentCore, results: Conversation, request: Envelope): Promise<Outcome> {
  const text = "the time limit of the delegating call passed";
  const { messageId: handoffId, taskId, epoch } = request;
  const receipt = await takeBack(agent, request, text);
  if (receipt) throw new TaskRecalled(taskId, handoffId, "DEADLINE", text, receipt.epoch, true);
  let lent: HandedOver;
  try {
    const handoff = await agent.getHandoff(handoffId);
    if (!isFinalState(handoff.state)) {
      throw new BatonError(Code.DeadlineExceeded, `${text}, and the handoff could not be cancelled`);
    }
    lent = endedBy(handoff, { handoffId, taskId, epoch });
  } catch (error) {
    if (error instanceof HandoffFailed || isPassing(BatonError.of(error))) throw error;
    throw new HandoffFailed(handoffId, "HANDOFF_CANCELLED", text, [], { cause: error }); // the request was not stored
  }
  // The mail about the end of the loan is here, or comes before two looks.
  return outcomeOf(agent, results, lent, AbortSignal.timeout(4 * TAKE_BACK_MS), TAKE_BACK_MS);
}
