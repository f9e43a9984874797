/** A task of an adapter: lent once for one call of the framework, followed, and ended with its outcome. */
import { createHash } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import type { Agent } from "./agent.js";
import { BatonError, HandoffFailed, isPassing, TaskRecalled } from "./errors.js";
import type { JsonObject } from "./json.js";
import { type Outcome, takeBack } from "./loans.js";
import type { UpdateSource } from "./progress.js";
import { Queue } from "./queue.js";
import { refusal } from "./refusals.js";
import { isFinalStatus } from "./states.js";
import { type ContextSection, type HandoffRequestSchema, RejectReason, type Task, TaskStatus, type TaskStatusUpdate } from "./v1.js";

const ATTEMPTS_MAX = 100;
const SUMMARY_BYTES_MAX = 16_384;
const GONE_ON = ["INPUT_TAKEN", "INPUT_EXPIRED", "STALE_EPOCH", "TASK_FINAL"];
const UNKNOWN = ["TASK_UNKNOWN", "PERMISSION_DENIED"];

/** A question of the agent that works on a lent task, to the agent that lent it. */
export interface Asked {
  readonly taskId: string;
  /** The agent that asks. */
  readonly agentId: string;
  /** The question, for people. */
  readonly text: string;
  /** The JSON Schema that an answer's data must fit; empty: any data. */
  readonly schemaJson: string;
}

/** Answers a question by a text for people, or by data for programs. */
export type OnQuestion = (asked: Asked) => string | JsonObject | Promise<string | JsonObject>;

/** What a call of a framework lends. */
export interface Loan {
  readonly agent: Agent;
  readonly receiverId: string;
  /** See `derivedId`. A repeat after an attempt without a result has the id with a number. */
  readonly taskId: string;
  readonly request: MessageInitShape<typeof HandoffRequestSchema>;
  readonly sections: readonly ContextSection[];
  readonly timeoutMs?: number | undefined;
  readonly loanTimeoutMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly onQuestion?: OnQuestion | undefined;
}

/** The other agent has asked a question that no code of this process answers. The task was taken back. */
export class Unanswered extends Error {
  override readonly name = "Unanswered";

  constructor(readonly asked: Asked) {
    super(`${asked.agentId} asks: ${asked.text}`);
  }
}

interface Found {
  readonly task: Task;
  /** The handoff that lends it; empty if none has. */
  readonly handoffId: string;
  /** Whether that loan, or the attempt at it, has ended. */
  readonly isOver: boolean;
}

type News = [update: TaskStatusUpdate, source: UpdateSource];

/** Returns a task id that is the same for the same parts of a framework's call, and for no others. */
export function derivedId(kind: string, agent: Agent, ...parts: readonly unknown[]): string {
  const hash = createHash("sha256").update(JSON.stringify([agent.id, ...parts]));
  return `${kind}-${hash.digest("hex").slice(0, 32)}`;
}

/** Returns a text as the summary of a request, which is cut where it is too long for one. */
export function summaryOf(text: string): string {
  return new TextDecoder().decode(Buffer.from(text).subarray(0, SUMMARY_BYTES_MAX)).replace(/\uFFFD+$/, "");
}

/**
 * Lends the task, or finds the loan of an earlier call with the same id; yields the reports, and ends the task with the delegate's
 * status, or as CANCELED without one. An earlier loan that ended with a final status of its delegate is the outcome again. After one
 * that an earlier call has seen fail, the task is lent anew. A call that is aborted or left takes the task back.
 */
export async function* lend(loan: Loan): AsyncGenerator<TaskStatusUpdate, Outcome, undefined> {
  const { agent } = loan;
  const [taskId, found] = await latest(loan);
  const leave = new AbortController();
  const signal = AbortSignal.any([leave.signal, ...(loan.signal ? [loan.signal] : [])]);
  const news = new Queue<News>();
  const onProgress = (...one: News): void => { news.push(one); };
  const running = found?.handoffId ? foundAgain(loan, found, signal, onProgress) : begun(loan, taskId, found?.task.epoch ?? 1n, signal, onProgress);
  running.then(() => { news.close(); }, () => { news.close(); });
  try {
    for await (const [update, source] of news) {
      yield update;
      if (source.askedAgentId === agent.id) await answer(loan, taskId, update, source);
    }
    const outcome = await running;
    await end(agent, taskId, isFinalStatus(outcome.status) ? outcome.status : TaskStatus.CANCELED, outcome.details);
    return outcome;
  } catch (error) {
    leave.abort(error);
    await running.catch(() => undefined);
    const isUnknown = error instanceof BatonError && (isPassing(error) || error.reason === "HANDOFF_OPEN");
    // After a passing error the outcome is unknown, and a repeat of the call finds the loan.
    if (!isUnknown) await end(agent, taskId, TaskStatus.CANCELED, String(error));
    throw error;
  } finally {
    if (!leave.signal.aborted) leave.abort(new Error("the call was left"));
  }
}

/** Returns the id of the attempt that a call is about, and the attempt, if an earlier call has begun it. */
async function latest({ agent, taskId }: Loan): Promise<[string, Found | undefined]> {
  for (let attempt = 1; attempt <= ATTEMPTS_MAX; attempt++) {
    const name = attempt === 1 ? taskId : `${taskId}-${attempt}`;
    const found = await find(agent, name);
    // The end of the task says that a call has had the outcome.
    if (found === undefined || !isFinalStatus(found.task.status) || (await hasResult(agent, found))) return [name, found];
  }
  throw refusal("TASK_FINAL", `task ${taskId} was lent ${ATTEMPTS_MAX} times without a result`, [], Code.FailedPrecondition);
}

async function find(agent: Agent, taskId: string): Promise<Found | undefined> {
  let task: Task;
  try {
    task = await agent.getTask(taskId);
  } catch (error) {
    if (error instanceof BatonError && UNKNOWN.includes(error.reason)) return undefined;
    throw error;
  }
  if (task.openHandoffId !== "" && task.ownerId === agent.id) return { task, handoffId: task.openHandoffId, isOver: false };
  const lent = task.hops.filter(({ senderId }) => senderId === agent.id).map(({ handoffId }) => handoffId);
  const isLent = task.loans.some(({ handoffId }) => lent.includes(handoffId));
  return { task, handoffId: lent.at(-1) ?? "", isOver: !isLent };
}

async function hasResult(agent: Agent, { handoffId }: Found): Promise<boolean> {
  if (handoffId === "") return false;
  try {
    await agent.waitForLoan(handoffId);
    return true;
  } catch (error) {
    if (error instanceof HandoffFailed || error instanceof TaskRecalled) return false;
    throw error;
  }
}

function begun(loan: Loan, taskId: string, epoch: bigint, signal: AbortSignal, onProgress: (...one: News) => void): Promise<Outcome> {
  const { agent, receiverId, request, sections, timeoutMs, loanTimeoutMs } = loan;
  const limits = { ...(timeoutMs !== undefined && { timeoutMs }), ...(loanTimeoutMs !== undefined && { loanTimeoutMs }) };
  return agent.delegate(receiverId, taskId, request, sections, { epoch, signal, onProgress, ...limits });
}

async function foundAgain(loan: Loan, { task, handoffId, isOver }: Found, signal: AbortSignal, onProgress: (...one: News) => void): Promise<Outcome> {
  const { agent, sections, timeoutMs } = loan;
  const limit = timeoutMs === undefined || isOver ? undefined : AbortSignal.timeout(timeoutMs);
  try {
    return await agent.waitForLoan(handoffId, { sections, onProgress, signal: limit ? AbortSignal.any([signal, limit]) : signal });
  } catch (error) {
    const isAtLimit = limit?.aborted === true;
    if (!signal.aborted && !isAtLimit) throw error;
    const text = isAtLimit ? "the time limit of the call passed" : "the call was aborted";
    const { epoch } = await agent.getHandoff(handoffId);
    const receipt = await takeBack(agent, { messageId: handoffId, taskId: task.taskId, epoch }, text);
    if (signal.aborted) throw error;
    if (receipt) throw new TaskRecalled(task.taskId, handoffId, "DEADLINE", text, receipt.epoch, true);
    return agent.waitForLoan(handoffId, { sections });
  }
}

/** Answers a question that is still open. */
async function answer({ agent, onQuestion }: Loan, taskId: string, update: TaskStatusUpdate, source: UpdateSource): Promise<void> {
  const questionId = source.messageId;
  const { openPrompt } = await agent.getTask(taskId);
  if (openPrompt?.messageId !== questionId) return;
  const asked = { taskId, agentId: source.agentId, text: update.prompt?.question ?? "", schemaJson: update.prompt?.answerSchemaJson ?? "" };
  if (onQuestion === undefined) {
    if (agent.mail.answersQuestions) return;
    throw new Unanswered(asked);
  }
  // The question arrives as mail too, for which there is no handler.
  agent.mail.known(questionId);
  const reply = await onQuestion(asked);
  const [text, data] = typeof reply === "string" ? [reply, undefined] : ["", reply];
  try {
    await agent.answer({ taskId, epoch: source.epoch, questionId }, text, data);
  } catch (error) {
    if (!(error instanceof BatonError) || !GONE_ON.includes(error.reason)) throw error;
  }
}

/** Ends a task if this agent owns it. The task keeps the result that its delegate has reported. */
async function end(agent: Agent, taskId: string, status: TaskStatus, details: string): Promise<void> {
  try {
    const { ownerId, epoch, status: present } = await agent.getTask(taskId);
    if (ownerId === agent.id && !isFinalStatus(present)) await agent.updateStatus(taskId, epoch, { status, details: details.slice(0, 1024) });
  } catch (error) {
    if (!(error instanceof BatonError) || !UNKNOWN.includes(error.reason)) agent.log(`task ${taskId} was not ended`, error);
  }
}

/** What a model is told about a call that has no outcome. */
export interface Failure {
  error: string;
  message: string;
  rejections?: string[];
  /** Of a task that was recalled. */
  reason?: string;
  /** Of INPUT_NEEDED: the question of the other agent. */
  question?: string;
}

/** Returns what a model is told about an error of `lend`. Throws any other error. */
export function failureOf(error: unknown): Failure {
  if (error instanceof HandoffFailed) {
    const rejections = error.rejections.map(({ agentId, reason, text }) => `${agentId}: ${text || RejectReason[reason]}`);
    return { error: error.reason, message: error.message, rejections };
  }
  if (error instanceof TaskRecalled) return { error: "TASK_RECALLED", reason: error.reason, message: error.message };
  if (error instanceof Unanswered) {
    const message = "The other agent needs an answer first. Nothing goes on: call again, with the answer in the details.";
    return { error: "INPUT_NEEDED", message, question: error.asked.text };
  }
  if (error instanceof BatonError) return { error: error.reason || Code[error.code], message: error.text };
  throw error;
}
