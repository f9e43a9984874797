/** A handoff as a tool of the Vercel AI SDK. Needs the package `ai`; import from `@baton-broker/client/ai`. */
import { jsonSchema, type ModelMessage, tool, type Tool } from "ai";
import type { Agent } from "./agent.js";
import { jsonSection, newMessageId } from "./envelopes.js";
import { BatonError, HandoffFailed, TaskRecalled } from "./errors.js";
import { checkHistory, type HistoryCall, type HistoryEntry, HistoryError, type HistoryPart, historySection, settled } from "./history.js";
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
 * Returns a tool that delegates a task, with the model's call and the messages before it as its context (task_description and
 * history_log), and gives the model the result; or `error` and
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
  const execute = async (input: HandoffInput, { messages, abortSignal }: { messages: ModelMessage[]; abortSignal?: AbortSignal }): Promise<HandoffOutput> => {
    const request = { taskType, reason: HandoffReason.SKILL, initialContextSummary: input.summary };
    const limits = {
      ...(timeoutMs !== undefined && { timeoutMs }),
      ...(loanTimeoutMs !== undefined && { loanTimeoutMs }),
      ...(abortSignal && { signal: abortSignal }),
    };
    try {
      const sections = [historySection(settled(fromModelMessages(messages))), jsonSection("task_description", input)];
      const { status, result, details } = await agent.delegate(receiverId, `tool-${newMessageId()}`, request, sections, limits);
      return { status: TaskStatus[status] as keyof typeof TaskStatus, result: plain(result), details };
    } catch (error) {
      return failureOf(error);
    }
  };
  return tool({ description, inputSchema: INPUT, execute });
}

/**
 * Converts messages of the AI SDK to a history. Reasoning and approvals are dropped. Throws HistoryError, with the place, for a
 * content that a history has no form for.
 */
export function fromModelMessages(messages: readonly ModelMessage[]): HistoryEntry[] {
  return checkHistory(messages.flatMap((message, index) => ofMessage(`/${index}`, message)));
}

/** Converts a history to messages of the AI SDK, for `messages` of `generateText`. */
export function toModelMessages(history: readonly HistoryEntry[]): ModelMessage[] {
  const names = new Map<string | undefined, string>();
  return checkHistory(history).map((entry, index): ModelMessage => {
    const at = `/${index}`;
    switch (entry.role) {
      case "system":
        return { role: "system", content: textOf(at, entry) };
      case "user":
        return { role: "user", content: typeof entry.content === "string" ? entry.content : entry.content.map(toPart) };
      case "assistant": {
        if (!entry.tool_calls?.length) return { role: "assistant", content: textOf(at, entry) };
        const said = textOf(at, entry);
        const calls = entry.tool_calls.map(({ id, name, arguments: written }) => {
          names.set(id, name);
          return { type: "tool-call" as const, toolCallId: id, toolName: name, input: inputOf(written) };
        });
        return { role: "assistant", content: [...(said === "" ? [] : [{ type: "text" as const, text: said }]), ...calls] };
      }
      case "tool": {
        const output = { type: "text" as const, value: textOf(at, entry) };
        const toolName = names.get(entry.tool_call_id) ?? "tool";
        return { role: "tool", content: [{ type: "tool-result", toolCallId: entry.tool_call_id ?? "", toolName, output }] };
      }
    }
  });
}

function ofMessage(at: string, { role, content }: ModelMessage): HistoryEntry[] {
  if (typeof content === "string") return [{ role, content }];
  const [parts, calls, results]: [HistoryPart[], HistoryCall[], HistoryEntry[]] = [[], [], []];
  for (const [index, part] of content.entries()) {
    switch (part.type) {
      case "text":
        parts.push({ type: "text", text: part.text });
        break;
      case "image":
        parts.push(mediaOf(`${at}/content/${index}`, "image", part.image, part.mediaType));
        break;
      case "file":
        parts.push(mediaOf(`${at}/content/${index}`, part.mediaType.startsWith("image/") ? "image" : "file", part.data, part.mediaType, part.filename));
        break;
      case "tool-call":
        calls.push({ id: part.toolCallId, name: part.toolName, arguments: JSON.stringify(part.input ?? {}) });
        break;
      case "tool-result":
        results.push({ role: "tool", content: outputOf(part.output), tool_call_id: part.toolCallId });
    }
  }
  const [first] = parts;
  const said = first === undefined ? "" : parts.length === 1 && first.type === "text" ? first.text : parts;
  const entry = { role, content: said, ...(calls.length > 0 && { tool_calls: calls }) } as HistoryEntry;
  return [...(role !== "tool" && (said !== "" || calls.length > 0) ? [entry] : []), ...results];
}

function mediaOf(at: string, type: "image" | "file", data: unknown, mediaType?: string, name?: string): HistoryPart {
  const more = { ...(mediaType !== undefined && { media_type: mediaType }), ...(name !== undefined && { name }) };
  const [, ofUrl, inUrl] = /^data:([^;,]*);base64,(.*)$/s.exec(String(data)) ?? [];
  if (inUrl !== undefined) return { type, data: inUrl, ...(ofUrl && { media_type: ofUrl }), ...more };
  const isUrl = data instanceof URL || (typeof data === "string" && /^https?:/.test(data));
  if (isUrl) return { type, url: String(data), ...more };
  if (typeof data === "string") return { type, data, ...more };
  if (data instanceof Uint8Array) return { type, data: Buffer.from(data).toString("base64"), ...more };
  if (data instanceof ArrayBuffer) return { type, data: Buffer.from(data).toString("base64"), ...more };
  throw new HistoryError(at, "is a file that only the provider has");
}

function outputOf(output: { type: string; value?: unknown; reason?: string }): string {
  return typeof output.value === "string" ? output.value : JSON.stringify(output.value ?? output.reason ?? output.type);
}

function toPart(part: HistoryPart): { type: "text"; text: string } | { type: "file"; data: string | URL; mediaType: string; filename?: string } {
  if (part.type === "text") return part;
  if (part.type !== "image" && part.type !== "file") return { type: "text", text: JSON.stringify((part as { data?: unknown }).data) };
  const mediaType = part.media_type ?? (part.type === "image" ? "image/*" : "application/octet-stream");
  const data = part.url === undefined ? (part.data ?? "") : new URL(part.url);
  return { type: "file", data, mediaType, ...(part.name !== undefined && { filename: part.name }) };
}

function textOf(at: string, { role, content }: HistoryEntry): string {
  if (typeof content === "string") return content;
  const texts = content.map((part, index) => {
    const shown = toPart(part);
    if (shown.type === "text") return shown.text;
    throw new HistoryError(`${at}/content/${index}`, `is of the type ${part.type}, which the SDK does not take from ${role}`);
  });
  return texts.join("");
}

function inputOf(written: string): unknown {
  try {
    return JSON.parse(written) as unknown;
  } catch {
    return { arguments: written };
  }
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
