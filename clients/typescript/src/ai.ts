/** A handoff as a tool of the Vercel AI SDK. Needs the package `ai`; import from `@baton-broker/client/ai`. */
import { jsonSchema, tool, type Tool } from "ai";
import type { Agent } from "./agent.js";
import { jsonSection, newMessageId } from "./envelopes.js";
import { BatonError, HandoffFailed, TaskRecalled } from "./errors.js";
import type { JsonObject } from "./json.js";
import { HandoffReason, RejectReason, TaskStatus } from "./v1.js";

/** The call of the tool by a model. */
export interface HandoffInput {
  /** The work, in one or two sentences. */
  summary: string;
  /** Everything that the other agent needs to know for it. */
  details: string;
}

/** The answer of the tool to the model: the delegate's final status, or the reason why there is none. */
export type HandoffOutput =
  | { status: keyof typeof TaskStatus; result: object; details: string }
  | { error: string; message: string; rejections?: string[] };

/** The options of `handoffTool`. */
export interface HandoffToolOptions {
  /** The purpose of the other agent, for the model. */
  description: string;
  /** The time limit of the whole call: see `DelegateOptions`. */
  timeoutMs?: number;
  /** The time limit of the loan at the broker: see `DelegateOptions`. */
  loanTimeoutMs?: number;
}

const INPUT = jsonSchema<HandoffInput>({
  type: "object",
  properties: {
    summary: { type: "string", description: "What is to be done, in one or two sentences." },
    details: { type: "string", description: "Everything that the other agent needs to know for it." },
  },
  required: ["summary", "details"],
  additionalProperties: false,
});

/**
 * Returns a tool that delegates a task, with the model's call as its context, and gives the model the result; or `error` and
 * `message` if no agent took the task, if it came back without a result, or if the broker refused, so that the model continues by
 * other means. An integer beyond 2^53 - 1 in the result is a text. When the SDK aborts the call, the agent takes the task back.
 *
 *     generateText({ model, prompt, tools: { transfer_to_billing: handoffTool(agent, "type:billing", "invoice-question", { description: "…" }) } })
 */
export function handoffTool(
  agent: Agent,
  receiverId: string,
  taskType: string,
  { description, timeoutMs, loanTimeoutMs }: HandoffToolOptions,
): Tool<HandoffInput, HandoffOutput> {
  const execute = async (input: HandoffInput, { abortSignal }: { abortSignal?: AbortSignal }): Promise<HandoffOutput> => {
    const request = { taskType, reason: HandoffReason.SKILL, initialContextSummary: input.summary };
    const limits = {
      ...(timeoutMs !== undefined && { timeoutMs }),
      ...(loanTimeoutMs !== undefined && { loanTimeoutMs }),
      ...(abortSignal && { signal: abortSignal }),
    };
    try {
      const sections = [jsonSection("task_description", input)];
      const { status, result, details } = await agent.delegate(receiverId, `tool-${newMessageId()}`, request, sections, limits);
      return { status: TaskStatus[status] as keyof typeof TaskStatus, result: plain(result), details };
    } catch (error) {
      return failureOf(error);
    }
  };
  return tool({ description, inputSchema: INPUT, execute });
}

/** Returns JSON without `bigint`, which the SDK cannot write: a text has all digits. */
function plain(result: JsonObject): object {
  return JSON.parse(JSON.stringify(result, (_, value: unknown) => (typeof value === "bigint" ? String(value) : value))) as object;
}

/** Returns what the model is told about a failed handoff. Throws any other error. */
function failureOf(error: unknown): HandoffOutput {
  if (error instanceof HandoffFailed) {
    const rejections = error.rejections.map(({ agentId, reason, text }) => `${agentId}: ${text || RejectReason[reason]}`);
    return { error: error.reason, message: error.message, rejections };
  }
  if (error instanceof TaskRecalled) return { error: "TASK_RECALLED", message: error.message };
  if (error instanceof BatonError && error.reason !== "") return { error: error.reason, message: error.text };
  throw error;
}
