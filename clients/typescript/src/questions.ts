/** Questions about a task: ask one agent and wait for its answer, or answer a question. */
import { create, type JsonObject as JsonSchema } from "@bufbuild/protobuf";
import { timestampDate, timestampFromMs } from "@bufbuild/protobuf/wkt";
import type { AgentCore } from "./core.js";
import type { Delivery } from "./delivery.js";
import { BatonError, isPassing, NoAnswer } from "./errors.js";
import type { CallOptions } from "./following.js";
import { ANSWER_BYTES_MAX, type JsonObject, jsonText, parseObject } from "./json.js";
import { type Conversation, NEWS_MS } from "./mail.js";
import { type AnsweredPrompt, type Receipt, TaskInputSchema, TaskPromptSchema, type TaskPrompt } from "./v1.js";

/** The options of `ask`. */
export interface AskOptions extends CallOptions {
  /** The time after which the question expires; default: never. */
  withinMs?: number;
  /** A JSON Schema that the answer's data must fit. */
  schema?: JsonSchema;
  /** The details of the status update, for people. */
  details?: string;
}

/** The answer to a question. */
export interface Answer {
  /** The agent that answered. */
  readonly agentId: string;
  /** The answer for people; may be empty. */
  readonly text: string;
  /** The answer for programs. It fits the question's schema, if the question has one. Integers beyond 2^53 - 1 are `bigint`. */
  readonly data: JsonObject;
}

/** A question to this agent about another agent's task: `answer` answers it once. */
export class Question {
  /** The messageId of the status update that asks. */
  readonly questionId: string;
  readonly taskId: string;
  /** The task's epoch at its owner. */
  readonly epoch: bigint;
  /** The task's owner, which asks. */
  readonly ownerId: string;
  /** The question, for people. */
  readonly text: string;
  /** The details of the status update, for people. */
  readonly details: string;
  /** The JSON Schema that the answer's data must fit; undefined: any data. */
  readonly schema: JsonSchema | undefined;
  /** The time at which the question expires; undefined: never. */
  readonly answerBefore: Date | undefined;
  readonly #agent: AgentCore;

  /** @internal */
  constructor(agent: AgentCore, { envelope }: Delivery, prompt: TaskPrompt, details: string) {
    this.#agent = agent;
    this.questionId = envelope.messageId;
    this.taskId = envelope.taskId;
    this.epoch = envelope.epoch;
    this.ownerId = envelope.senderId;
    this.text = prompt.question;
    this.details = details;
    this.schema = prompt.answerSchemaJson === "" ? undefined : (JSON.parse(prompt.answerSchemaJson) as JsonSchema);
    this.answerBefore = prompt.answerBefore && timestampDate(prompt.answerBefore);
  }

  /**
   * Answers the question. The first answer counts. Throws BatonError: INPUT_TAKEN, INPUT_EXPIRED, STALE_EPOCH or TASK_FINAL if
   * the question is no longer open, FIELD_INVALID if the data does not fit the schema.
   */
  async answer(text: string, data?: JsonObject): Promise<Receipt> {
    return this.#agent.answer(this, text, data);
  }
}

/** Returns the question of a delivery, if it has one. */
export function questionOf(agent: AgentCore, delivery: Delivery): Question | undefined {
  const { payload } = delivery;
  if (payload?.$typeName !== "baton.v1.TaskStatusUpdate" || payload.prompt === undefined) return undefined;
  return new Question(agent, delivery, payload.prompt, payload.details);
}

/** Returns the prompt of a question. */
export function promptOf(question: string, answerBy: string, { withinMs, schema }: AskOptions): TaskPrompt {
  const answerSchemaJson = schema === undefined ? "" : JSON.stringify(schema);
  const deadline = withinMs === undefined ? {} : { answerBefore: timestampFromMs(Date.now() + withinMs) };
  return create(TaskPromptSchema, { question, answerBy, answerSchemaJson, ...deadline });
}

/** Returns the payload of an answer. */
export function inputOf(text: string, data: JsonObject | undefined): ReturnType<typeof create<typeof TaskInputSchema>> {
  return create(TaskInputSchema, { text, ...(data !== undefined && { dataJson: jsonText(data, "data_json", ANSWER_BYTES_MAX) }) });
}

/** Returns the answer to this question, if it is the latest one that was answered. */
export function answerOf(last: AnsweredPrompt | undefined, questionId: string): Answer | undefined {
  if (last?.question?.messageId !== questionId) return undefined;
  return { agentId: last.question.askedAgentId, text: last.answer?.text ?? "", data: parseObject(last.answer?.dataJson ?? "") };
}

/** Waits for the answer to a question. Throws NoAnswer. */
export async function answerTo(
  agent: AgentCore,
  mail: Conversation,
  { taskId, questionId }: { taskId: string; questionId: string },
  signal?: AbortSignal,
  isResumed = false,
): Promise<Answer> {
  // The answer to a resumed question may have been stored since its task was read.
  for (let [wasClosed, isSoon] = [false, isResumed]; ;) {
    const { lookAfterMs } = agent.mail;
    const letter = await mail.nextWithin(wasClosed || isSoon ? Math.min(NEWS_MS, lookAfterMs) : lookAfterMs, signal);
    isSoon = false;
    if (letter !== undefined) {
      const { payload, envelope } = letter.delivery;
      await letter.finish();
      if (payload?.$typeName === "baton.v1.TaskInput") {
        return { agentId: envelope.senderId, text: payload.text, data: parseObject(payload.dataJson) };
      }
      const text = payload?.$typeName === "baton.v1.ErrorNotification" ? payload.errorMessage : "";
      throw new NoAnswer(questionId, "EXPIRED", text);
    }
    try {
      const { openPrompt, lastAnswer } = await agent.getTask(taskId);
      const answer = answerOf(lastAnswer, questionId);
      if (answer !== undefined) return answer;
      // The answer to an older broker, or the notice of the expiry, would have arrived by the next look.
      if (wasClosed) throw new NoAnswer(questionId, "WITHDRAWN", "the question is no longer open");
      wasClosed = openPrompt?.messageId !== questionId;
    } catch (error) {
      if (error instanceof NoAnswer) throw error;
      if (!isPassing(BatonError.of(error))) throw error;
    }
  }
}
