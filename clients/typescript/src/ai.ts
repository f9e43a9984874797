/** Handoffs for the Vercel AI SDK. Needs the package `ai`; import from `@baton-broker/client/ai`. */
import { randomUUID } from "node:crypto";
import { convertToModelMessages, generateText, jsonSchema, type LanguageModel, type ModelMessage, tool, type Tool, type ToolSet, type UIMessage } from "ai";
import type { Agent } from "./agent.js";
import { jsonSection } from "./envelopes.js";
import { BatonError, isPassing } from "./errors.js";
import { checkHistory, type HistoryCall, type HistoryEntry, HistoryError, type HistoryPart, historySection, settled } from "./history.js";
import type { JsonObject } from "./json.js";
import { type Asked, derivedId, type Failure, failureOf, lend, type OnQuestion, summaryOf } from "./lending.js";
import type { Offer, Takeover } from "./offers.js";
import type { Run, Step } from "./runs.js";
import type { OwnedTask } from "./tasks.js";
import { TRANSFER_PREFIX } from "./turns.js";
import { type ContextSection, HandoffReason, NodeState, TaskStatus } from "./v1.js";

export type { Asked, OnQuestion };

/** The call of the tool by a model. */
export interface HandoffInput {
  /** The work, in one or two sentences. */
  summary: string;
  /** Everything that the other agent needs to know for it. */
  details: string;
}

/** The answer of the tool to the model: the delegate's final status, or the reason why there is none; before it, reports. */
export type HandoffOutput =
  | { status: keyof typeof TaskStatus; result: object; details: string }
  | { status: keyof typeof TaskStatus; progress?: number; details: string; question?: string }
  | Failure;

/** The options of `handoffTool`. */
export interface HandoffToolOptions {
  /** The purpose of the other agent, for the model. */
  description?: string;
  /** The time limit of the whole call: see `DelegateOptions`. */
  timeoutMs?: number;
  /** The time limit of the loan at the broker: see `DelegateOptions`. */
  loanTimeoutMs?: number;
  /**
   * Answers a question of the other agent to this agent by a text, or by data for programs. Without it, and without a handler
   * `prompt` of `serve`, the tool takes the task back and gives the model the question, for a call with the answer.
   */
  onQuestion?: OnQuestion;
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
 * other means. The reports of the other agent are preliminary results of the tool. An integer beyond 2^53 - 1 in the result is a text.
 * By default the task type is the name of the receiver.
 *
 * The id of the task comes from the id of the model's call and its input, so a repeated call finds the first task. When the SDK aborts
 * the call, the agent takes the task back.
 *
 *     generateText({ model, prompt, tools: { transfer_to_billing: handoffTool(agent, "type:billing") } })
 */
export function handoffTool(
  agent: Agent,
  receiverId: string,
  taskType = "",
  options: HandoffToolOptions = {},
): Tool<HandoffInput, HandoffOutput> {
  const { timeoutMs, loanTimeoutMs, onQuestion } = options;
  const plain = receiverId.replace(/^type:/, "");
  const kind = taskType || plain;
  const { description = `Hands a task over to ${plain} and returns its result.` } = options;
  const execute = async function* (
    input: HandoffInput,
    { messages, toolCallId, abortSignal: signal }: { messages: ModelMessage[]; toolCallId: string; abortSignal?: AbortSignal },
  ): AsyncGenerator<HandoffOutput, void> {
    try {
      const lending = lend({
        agent,
        receiverId,
        taskId: derivedId("tool", agent, receiverId, kind, toolCallId || randomUUID(), input),
        request: { taskType: kind, reason: HandoffReason.SKILL, initialContextSummary: summaryOf(input.summary) },
        sections: [historySection(settled(fromModelMessages(messages))), jsonSection("task_description", input)],
        timeoutMs,
        loanTimeoutMs,
        signal,
        onQuestion,
      });
      for (;;) {
        const step = await lending.next();
        if (step.done === true) {
          const { status, result, details } = step.value;
          yield { status: TaskStatus[status] as keyof typeof TaskStatus, result: plainOf(result), details };
          return;
        }
        const { status, progress, details, prompt } = step.value;
        const more = { ...(progress !== undefined && { progress }), ...(prompt && { question: prompt.question }) };
        yield { status: TaskStatus[status] as keyof typeof TaskStatus, details, ...more };
      }
    } catch (error) {
      yield failureOf(error);
    }
  };
  return tool({ description, inputSchema: INPUT, execute });
}

/** The answer of a tool of `nodeTools` to the model. */
export interface ChoiceOutput {
  /** The chosen node, or "end". */
  chosen?: string;
  /** The nodes that are active now. Without it the choice does not count, and the model may choose again. */
  active_nodes?: string[];
  /** The new owner of the run's task, if the chosen node is another agent's. */
  handoff?: { task_id: string; owner: string };
  /** What the model does next. */
  next?: string;
  /** The reason why the choice does not count. */
  error?: string;
  message?: string;
  /** The agents that did not take the task. */
  rejections?: string[];
}

/**
 * Returns the tools `transfer_to_NODE` with which a model chooses the next node of a run: see `Routing.start`.
 *
 * The tools are those of the node's next turn; a node without choices has none. A call of one reports the turn to the broker. If
 * the chosen node is another agent's, this agent, which owns the run's task, hands the task over: the context is the task's latest
 * one, with the messages of the call as its history_log.
 *
 * If the choice does not count, the model gets `error` and `message`, and may choose again. After the third refused choice in a row
 * the node's turn ends, as it does by a choice; `stopAtChoice` ends the run of the SDK there. A run of the SDK may end without a
 * choice. The node is active then, and its output is reported as always:
 *
 *     const tools = await nodeTools(agent, run, "triage");
 *     const { text } = await generateText({ model, prompt, tools, stopWhen: [stopAtChoice, stepCountIs(5)] });
 *     const { nodes } = await run.state();
 *     const isActive = nodes.some(({ nodeId, state }) => nodeId === "triage" && state === v1.NodeState.ACTIVE);
 *     if (isActive) await run.turn("triage", undefined, { finished: true, output: text });
 *
 * Throws BatonError, for example NODE_NOT_ACTIVE.
 */
export async function nodeTools(agent: Agent, run: Run, nodeId: string): Promise<Record<string, Tool<unknown, ChoiceOutput>>> {
  const { tools } = await run.tools(nodeId);
  const taskId = tools.length > 0 ? (await run.state()).taskId : "";
  const made = tools.map(({ name, description, parameters }) => {
    const choice: Choice = { agent, run, nodeId, taskId, name: name as string };
    const execute = (input: unknown, call: Call): Promise<ChoiceOutput> => choose(choice, input, call);
    return [choice.name, tool({ description: description as string, inputSchema: jsonSchema(parameters as object), execute })] as const;
  });
  return Object.fromEntries(made);
}

/** Ends a run of the SDK once a tool of `nodeTools` has ended the node's turn: for `stopWhen`. */
export function stopAtChoice({ steps }: { steps: readonly { toolResults: readonly { toolName: string; output: unknown }[] }[] }): boolean {
  return steps.at(-1)?.toolResults.some(({ toolName, output }) => {
    const isOver = typeof output === "object" && output !== null && "active_nodes" in output;
    return isOver && toolName.startsWith(TRANSFER_PREFIX);
  }) ?? false;
}

/** A tool of `nodeTools`. */
interface Choice {
  readonly agent: Agent;
  readonly run: Run;
  readonly nodeId: string;
  /** The task of the run; empty if the run is over none. */
  readonly taskId: string;
  readonly name: string;
}

/** A call of a tool by the SDK. */
interface Call {
  readonly messages: ModelMessage[];
  readonly toolCallId: string;
  readonly abortSignal?: AbortSignal;
}

/** Reports the turn, and hands the task over if the run goes on at another agent. */
async function choose(choice: Choice, input: unknown, { messages, toolCallId: callId, abortSignal: signal }: Call): Promise<ChoiceOutput> {
  const { run, nodeId, taskId, name } = choice;
  const conversation = taskId === "" ? [] : [historySection(settled(fromModelMessages(messages)))];
  const ends = signal ? { signal } : {};
  try {
    const calls = [{ callId, name, argumentsJson: JSON.stringify(input ?? {}) }];
    const step = await run.turn(nodeId, undefined, { calls, ...ends });
    return toldOf(choice, step, step.proposal && (await handOver(choice, step, conversation, ends)));
  } catch (error) {
    return failureOf(error);
  }
}

/** Hands the task over to the agent of the next node. Returns the new owner. */
async function handOver({ agent, taskId }: Choice, step: Step, conversation: readonly ContextSection[], ends: { signal?: AbortSignal }): Promise<string> {
  const { epoch } = await agent.getTask(taskId);
  const sections = new Map((await latestContext(agent, taskId)).map((section) => [section.name, section]));
  for (const section of conversation) sections.set(section.name, section);
  const { ownerId } = await agent.handOver(step.receiverId, taskId, step.proposal ?? {}, [...sections.values()], { epoch, ...ends });
  return ownerId;
}

/** Returns the sections of a task's latest context; none if the broker shows none. */
async function latestContext(agent: Agent, taskId: string): Promise<ContextSection[]> {
  try {
    return await agent.contexts.latest(taskId);
  } catch (error) {
    if (error instanceof BatonError && !isPassing(error)) return [];
    throw error;
  }
}

function toldOf({ nodeId, taskId }: Choice, step: Step, owner: string | undefined): ChoiceOutput {
  const { choice, toolResults, run } = step.answer;
  const refused = step.refusal !== "" && { error: step.refusal, message: toolResults[0]?.text ?? "" };
  const isActive = run?.nodes.some((node) => node.nodeId === nodeId && node.state === NodeState.ACTIVE);
  if (refused && isActive) return refused;
  const active = [...step.nextNodeIds];
  const at = active.length > 0 ? `: the run is at ${active.join(", ")}` : "";
  const where = owner !== undefined ? `: ${owner} has the task now` : step.isOver ? ": the run has ended" : at;
  const handoff = owner !== undefined && { handoff: { task_id: taskId, owner } };
  const next = `Your turn is over${where}. Do nothing more.`;
  return { ...(refused || { chosen: choice?.targetNodeId ?? "" }), active_nodes: active, ...handoff, next };
}

/** The worker of `serveModel`. */
export interface ModelWorker {
  model: LanguageModel;
  /** The instructions of the model. */
  system?: string;
  tools?: ToolSet;
  /** The types of the agent. Its card stays as it is without them. */
  types?: readonly string[];
  /** The maximum number of steps of a run; default 10. */
  maxSteps?: number;
  /** Ends the work: see `Agent.serve`. */
  signal?: AbortSignal;
}

/**
 * Has a model work on the tasks that baton delivers, until `signal` aborts or the agent ends. Each task is a run of `generateText`: the
 * messages are those of history_log, without the system prompts of others, and the description of the task. Calls of tools are
 * reported. The result is `response`, the text of the last step. A run that throws ends the task as FAILED. A task of an earlier
 * process runs again, and the run of a recalled task is aborted.
 *
 *     await serveModel(agent, { model, system: "You bill.", tools, types: ["billing"] });
 */
export async function serveModel(agent: Agent, worker: ModelWorker): Promise<void> {
  const { model, system, tools, types = [], maxSteps = 10, signal } = worker;
  if (types.length > 0) await agent.directory.update({ agentTypes: [...types] });
  const offer = async (offered: Offer): Promise<void> => {
    const takeover = await offered.accept();
    let messages: ModelMessage[];
    try {
      messages = messagesOf(takeover, offered.request?.initialContextSummary ?? "");
    } catch (error) {
      if (!(error instanceof HistoryError)) throw error;
      await takeover.fail(`history_log is no baton.history: ${error.message}`);
      return;
    }
    const task = await takeover.complete();
    const { text } = await generateText({
      model,
      messages,
      ...(system !== undefined && { system }),
      ...(tools && { tools }),
      stopWhen: ({ steps }) => steps.length >= maxSteps,
      abortSignal: offered.signal,
      onStepFinish: ({ toolCalls }) => reportCalls(agent, task, toolCalls.map(({ toolName }) => toolName)),
    });
    await task.finish({ response: text });
  };
  await agent.serve({ offer }, { resume: true, ...(signal && { signal }) });
}

/** Reports calls of tools. A report that the broker does not take is left out. */
async function reportCalls(agent: Agent, task: OwnedTask, names: readonly string[]): Promise<void> {
  for (const name of names) {
    try {
      await task.report(`called ${name}`);
    } catch (error) {
      if (!(error instanceof BatonError)) throw error;
      agent.log(`a step of task ${task.taskId} was not reported`, error);
    }
  }
}

/** Returns the messages for a model that works on a task. */
function messagesOf(takeover: Takeover, summary: string): ModelMessage[] {
  const log = takeover.json("history_log");
  const history = settled(log === undefined ? [] : checkHistory(log)).filter(({ role }) => role !== "system");
  const others = takeover.sections.filter(({ name, content }) => content.case === "json" && !["history_log", "task_description"].includes(name));
  const texts = [textOfTask(takeover.json("task_description")) || summary];
  for (const { name, content } of others) texts.push(`${name}:\n${content.value as string}`);
  const text = texts.filter((one) => one !== "").join("\n\n");
  const messages = toModelMessages(history);
  return text !== "" || messages.length === 0 ? [...messages, { role: "user", content: text }] : messages;
}

function textOfTask(description: unknown): string {
  if (description === undefined) return "";
  if (typeof description === "string") return description;
  const { summary, details, ...rest } = description as Record<string, unknown>;
  const isCall = Object.keys(rest).length === 0 && (typeof summary === "string" || typeof details === "string");
  return isCall ? [summary, details].filter(Boolean).join("\n\n") : JSON.stringify(plainOf(description as JsonObject));
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

/** Converts UI messages of the AI SDK, as `useChat` has them, to a history. Otherwise as `fromModelMessages`. */
export async function fromUIMessages(messages: readonly UIMessage[]): Promise<HistoryEntry[]> {
  return fromModelMessages(await convertToModelMessages([...messages]));
}

/**
 * Converts a history to UI messages of the AI SDK. A message has the id `history-N`, by its place. The result of a call is in the part of
 * the call; a call without a result is one whose input is there.
 */
export function toUIMessages(history: readonly HistoryEntry[]): UIMessage[] {
  const messages: UIMessage[] = [];
  const calls = new Map<string | undefined, { parts: UIMessage["parts"]; index: number }>();
  checkHistory(history).forEach((entry, index) => {
    const at = `/${index}`;
    if (entry.role === "tool") {
      const call = calls.get(entry.tool_call_id);
      if (call === undefined) throw new HistoryError(`${at}/tool_call_id`, "is that of no call");
      Object.assign(call.parts[call.index] ?? {}, { state: "output-available", output: textOf(at, entry) });
      return;
    }
    const parts: UIMessage["parts"] = typeof entry.content === "string" ? textParts(entry.content) : entry.content.map(toUIPart);
    for (const { id: toolCallId, name: toolName, arguments: written } of entry.tool_calls ?? []) {
      calls.set(toolCallId, { parts, index: parts.length });
      parts.push({ type: "dynamic-tool", toolName, toolCallId, state: "input-available", input: inputOf(written) });
    }
    messages.push({ id: `history-${index}`, role: entry.role, parts });
  });
  return messages;
}

function textParts(text: string): UIMessage["parts"] {
  return text === "" ? [] : [{ type: "text", text }];
}

function toUIPart(part: HistoryPart): UIMessage["parts"][number] {
  const shown = toPart(part);
  if (shown.type === "text") return shown;
  const { mediaType, filename } = shown;
  const url = typeof shown.data === "string" ? `data:${mediaType};base64,${shown.data}` : shown.data.href;
  return { type: "file", mediaType, url, ...(filename !== undefined && { filename }) };
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

function mediaOf(at: string, type: "image" | "file", given: unknown, mediaType?: string, name?: string): HistoryPart {
  const data = contentOf(given);
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

/** Returns the content of a file, which the SDK marks with its kind from version 7 on. */
function contentOf(data: unknown): unknown {
  if (data === null || typeof data !== "object" || !("type" in data)) return data;
  if (data.type === "url" && "url" in data) return data.url;
  return data.type === "data" && "data" in data ? data.data : data;
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
function plainOf(result: JsonObject): object {
  return JSON.parse(JSON.stringify(result, (_, value: unknown) => (typeof value === "bigint" ? String(value) : value))) as object;
}
