/** The tool calls in a model's response, and their results in the shape of the same interface. */
import { create } from "@bufbuild/protobuf";
import { type ToolCall, ToolCallSchema, type ToolResult } from "./v1.js";

/** The beginning of the names of the broker's tools. */
export const TRANSFER_PREFIX = "transfer_to_";

/** The interface that a response belongs to. */
export type ResponseShape = "openai-responses" | "openai-chat" | "anthropic" | "mcp-sampling" | "mcp-call";

/** The part of a model's response that a run records. */
export interface ModelTurn {
  readonly shape: ResponseShape;
  readonly calls: readonly ToolCall[];
  /** The text of the response. */
  readonly output: string;
  /** Whether the model ended its turn by itself and without a tool call. */
  readonly finished: boolean;
}

/** A message for the model's history. */
export type HistoryMessage = Record<string, unknown>;

/**
 * Reads a response: the object of an SDK as it is. Known are a Response and a ChatCompletion of OpenAI, a Message of Anthropic,
 * and of MCP a CreateMessageResult and a CallToolRequest, whose call is named `call`. Throws TypeError for any other object.
 */
export function readTurn(response: object): ModelTurn {
  const [output, choices] = [get(response, "output"), get(response, "choices")];
  if (Array.isArray(output)) return ofResponses(response, output);
  if (Array.isArray(choices)) return ofChat(choices);
  const params = get(response, "params");
  if (typeof get(params, "name") === "string") return ofToolRequest(params);
  const content = get(response, "content");
  if (get(response, "role") === "assistant" && content !== undefined) return ofMessage(response, Array.isArray(content) ? content : [content]);
  throw new TypeError("the object is no response of a known interface");
}

/** Returns the results of the transfer calls as messages for the model's history. All other results are the runtime's own. */
export function resultsOf(shape: ResponseShape, calls: readonly ToolCall[], results: readonly ToolResult[]): HistoryMessage[] {
  const transfers = new Set(calls.filter(({ name }) => name.startsWith(TRANSFER_PREFIX)).map(({ callId }) => callId));
  const own = results.filter(({ callId }) => transfers.has(callId));
  const user = (content: HistoryMessage[]): HistoryMessage[] => (content.length === 0 ? [] : [{ role: "user", content }]);
  switch (shape) {
    case "openai-responses":
      return own.map(({ callId, text }) => ({ type: "function_call_output", call_id: callId, output: text }));
    case "openai-chat":
      return own.map(({ callId, text }) => ({ role: "tool", tool_call_id: callId, content: text }));
    case "anthropic":
      return user(own.map(({ callId, text, isError }) => ({ type: "tool_result", tool_use_id: callId, content: text, is_error: isError })));
    case "mcp-sampling":
      return user(own.map((one) => ({ type: "tool_result", toolUseId: one.callId, content: mcpText(one), isError: one.isError })));
    case "mcp-call":
      return own.map((one) => ({ content: mcpText(one), isError: one.isError }));
  }
}

function ofResponses(response: object, output: readonly unknown[]): ModelTurn {
  const [calls, texts]: [ToolCall[], string[]] = [[], []];
  for (const item of output) {
    switch (get(item, "type")) {
      case "function_call":
        calls.push(callOf(get(item, "call_id"), get(item, "name"), text(get(item, "arguments"))));
        break;
      case "custom_tool_call":
        calls.push(callOf(get(item, "call_id"), get(item, "name"), json(get(item, "input"))));
        break;
      case "message":
        for (const part of list(get(item, "content"))) if (get(part, "type") === "output_text") texts.push(text(get(part, "text")));
    }
  }
  const status = get(response, "status") ?? "completed";
  return { shape: "openai-responses", calls, output: texts.join(""), finished: calls.length === 0 && status === "completed" };
}

function ofChat(choices: readonly unknown[]): ModelTurn {
  if (choices.length !== 1) throw new TypeError(`a turn is one choice of the model, not ${choices.length}`);
  const message = get(choices[0], "message");
  const calls = list(get(message, "tool_calls")).map((call) => {
    const [used, custom] = [get(call, "function"), get(call, "custom")];
    if (used !== undefined) return callOf(get(call, "id"), get(used, "name"), text(get(used, "arguments")));
    return callOf(get(call, "id"), get(custom, "name"), json(get(custom, "input")));
  });
  const finished = calls.length === 0 && get(choices[0], "finish_reason") === "stop";
  return { shape: "openai-chat", calls, output: text(get(message, "content")), finished };
}

/** Reads a message of Anthropic or of MCP, which differ in the names of their stop reasons. */
function ofMessage(response: object, blocks: readonly unknown[]): ModelTurn {
  const [calls, texts]: [ToolCall[], string[]] = [[], []];
  for (const block of blocks) {
    const type = get(block, "type");
    if (type === "tool_use") calls.push(callOf(get(block, "id"), get(block, "name"), json(get(block, "input") ?? {})));
    if (type === "text") texts.push(text(get(block, "text")));
  }
  const stop = text(get(response, "stop_reason") ?? get(response, "stopReason"));
  const finished = calls.length === 0 && ["end_turn", "stop_sequence", "endTurn", "stopSequence"].includes(stop);
  const shape = get(response, "type") === "message" ? "anthropic" : "mcp-sampling";
  return { shape, calls, output: texts.join(""), finished };
}

function ofToolRequest(params: unknown): ModelTurn {
  // The request of MCP has no id of the call beside that of the JSON-RPC frame.
  const call = callOf("call", get(params, "name"), json(get(params, "arguments") ?? {}));
  return { shape: "mcp-call", calls: [call], output: "", finished: false };
}

function callOf(callId: unknown, name: unknown, argumentsJson: string): ToolCall {
  return create(ToolCallSchema, { callId: text(callId), name: text(name), argumentsJson: argumentsJson || "{}" });
}

function mcpText({ text }: ToolResult): HistoryMessage[] {
  return [{ type: "text", text }];
}

function get(value: unknown, name: string): unknown {
  return value !== null && typeof value === "object" ? (value as Record<string, unknown>)[name] : undefined;
}

function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function json(value: unknown): string {
  return JSON.stringify(value);
}
