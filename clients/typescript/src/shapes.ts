/**
 * Histories from and to the shapes of models: OpenAI, Anthropic, Gemini and LangChain. Each `from` function returns entries of
 * `baton.history`. It throws HistoryError with the place of what the shape has no form for; it drops reasoning, the ids of
 * messages, and the calls of tools that the provider runs by itself. Each `to` function throws HistoryError for a part that the
 * interface does not take in that place. `vectors/history-v1.json` has examples.
 */
import { checkHistory, type HistoryCall, type HistoryEntry, HistoryError, type HistoryPart } from "./history.js";

/** A message in the shape of a model. */
export type ShapedMessage = Record<string, unknown>;
/** A system prompt, "" without one, and the messages beside it. */
export interface Prompted {
  system: string;
  messages: ShapedMessage[];
}

type Content = HistoryEntry["content"];
type ReadPart = (at: string, part: unknown) => HistoryPart[];
type WritePart = (at: string, part: HistoryPart) => ShapedMessage;

const DATA_URL = /^data:([^;,]*)(?:;[^,]*)?;base64,(.*)$/s;
const REASONING = ["thinking", "redacted_thinking", "reasoning", "reasoning_content"];
/** Calls that a message of LangChain has a second time in its content. */
const REPEATED = ["tool_use", "tool_call", "tool_call_chunk", "function_call", "input_json_delta"];

/** Converts messages of OpenAI Chat Completions. */
export function fromOpenAIChat(messages: readonly object[]): HistoryEntry[] {
  return read(messages, (at, message) => {
    const role = get(message, "role") === "developer" ? "system" : get(message, "role");
    if (get(message, "function_call") !== undefined && get(message, "function_call") !== null) throw new HistoryError(`${at}/function_call`, "has no id: use tool_calls");
    const calls = list(get(message, "tool_calls")).map((call, number) => {
      const [place, used, custom] = [`${at}/tool_calls/${number}`, get(call, "function"), get(call, "custom")];
      if (used !== undefined) return callOf([`${place}/id`, get(call, "id")], [`${place}/function/name`, get(used, "name")], get(used, "arguments"));
      return callOf([`${place}/id`, get(call, "id")], [`${place}/custom/name`, get(custom, "name")], json(get(custom, "input")));
    });
    const name = role === "tool" ? undefined : get(message, "name");
    const entry = entryOf(role, contentOf(at, get(message, "content") ?? get(message, "refusal"), chatPart), calls, name);
    return [role === "tool" ? ({ ...entry, tool_call_id: get(message, "tool_call_id") } as HistoryEntry) : entry];
  });
}

/** Converts a history to messages of OpenAI Chat Completions. */
export function toOpenAIChat(history: readonly HistoryEntry[]): ShapedMessage[] {
  return checkHistory(history).map((entry, index) => {
    const content = written(`/${index}`, entry, toChatPart, entry.role !== "user");
    const calls = entry.tool_calls?.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
    return {
      role: entry.role,
      content: calls?.length && content.length === 0 ? null : content,
      ...(entry.role === "tool" && { tool_call_id: entry.tool_call_id }),
      ...(entry.role !== "tool" && entry.name !== undefined && { name: entry.name }),
      ...(calls?.length && { tool_calls: calls }),
    };
  });
}

/** Converts items of OpenAI Responses, as the OpenAI Agents SDK has them. */
export function fromOpenAIResponses(items: readonly object[]): HistoryEntry[] {
  const history: HistoryEntry[] = [];
  for (const [index, item] of items.entries()) {
    const at = `/${index}`;
    const type = get(item, "type") ?? "message";
    switch (type) {
      case "message": {
        checkMembers(at, item, "content");
        const role = get(item, "role") === "developer" ? "system" : get(item, "role");
        history.push(entryOf(role, contentOf(at, get(item, "content"), responsesPart)));
        break;
      }
      case "function_call":
        addCall(history, callOf([`${at}/call_id`, get(item, "call_id")], [`${at}/name`, get(item, "name")], get(item, "arguments")));
        break;
      case "custom_tool_call":
        addCall(history, callOf([`${at}/call_id`, get(item, "call_id")], [`${at}/name`, get(item, "name")], json(get(item, "input"))));
        break;
      case "function_call_output":
      case "custom_tool_call_output":
        history.push(resultOf(`${at}/call_id`, get(item, "call_id"), contentOf(at, get(item, "output"), responsesPart, "output")));
        break;
      case "reasoning":
      case "item_reference":
      case "compaction":
        break;
      default:
        if (typeof type !== "string" || !/_call$|_call_output$|^mcp_/.test(type)) throw unknown(`${at}/type`, type);
    }
  }
  return checkHistory(history);
}

/** Converts a history to items of OpenAI Responses. */
export function toOpenAIResponses(history: readonly HistoryEntry[]): ShapedMessage[] {
  return checkHistory(history).flatMap((entry, index): ShapedMessage[] => {
    const at = `/${index}`;
    if (entry.role === "tool") return [{ type: "function_call_output", call_id: entry.tool_call_id, output: written(at, entry, toResponsesPart) }];
    const isOutput = entry.role === "assistant";
    const content = written(at, entry, isOutput ? (_, part) => ({ type: "output_text", text: textOf(part) }) : toResponsesPart, isOutput);
    const calls = (entry.tool_calls ?? []).map(({ id, name, arguments: text }) => ({ type: "function_call", call_id: id, name, arguments: text }));
    return [...(content.length > 0 || calls.length === 0 ? [{ role: entry.role, content }] : []), ...calls];
  });
}

/** Converts messages of Anthropic, and the system prompt, which is beside them. */
export function fromAnthropic(messages: readonly object[], system?: string | readonly object[]): HistoryEntry[] {
  const history = systemOf(system, anthropicPart);
  for (const [index, message] of messages.entries()) {
    const at = `/${index}`;
    checkMembers(at, message, "content");
    const [role, blocks] = [get(message, "role"), get(message, "content")];
    if (typeof blocks === "string") {
      history.push(entryOf(role, blocks));
      continue;
    }
    if (!Array.isArray(blocks)) throw new HistoryError(`${at}/content`, "must be a text or a list");
    const [parts, calls]: [HistoryPart[], HistoryCall[]] = [[], []];
    for (const [number, block] of (blocks as unknown[]).entries()) {
      const [place, type] = [`${at}/content/${number}`, get(block, "type")];
      if (type === "tool_use") calls.push(callOf([`${place}/id`, get(block, "id")], [`${place}/name`, get(block, "name")], json(get(block, "input") ?? {})));
      else if (type === "tool_result") history.push(resultOf(`${place}/tool_use_id`, get(block, "tool_use_id"), contentOf(place, get(block, "content"), anthropicPart)));
      else if (typeof type !== "string" || !(type === "server_tool_use" || REASONING.includes(type) || type.endsWith("_tool_result"))) parts.push(...anthropicPart(place, block));
    }
    if (parts.length > 0 || calls.length > 0 || blocks.length === 0) history.push(entryOf(role, joined(parts), calls));
  }
  return checkHistory(history);
}

/** Converts a history to the system prompt and the messages of Anthropic. */
export function toAnthropic(history: readonly HistoryEntry[]): Prompted {
  const [system, messages]: [string[], ShapedMessage[]] = [[], []];
  let results: ShapedMessage[] | undefined;
  for (const [index, entry] of checkHistory(history).entries()) {
    const at = `/${index}`;
    if (entry.role === "system") {
      system.push(onlyText(at, entry));
      continue;
    }
    const content = written(at, entry, toAnthropicPart, entry.role === "assistant");
    if (entry.role === "tool") {
      if (results === undefined) messages.push({ role: "user", content: (results = []) });
      results.push({ type: "tool_result", tool_use_id: entry.tool_call_id, content });
      continue;
    }
    results = undefined;
    const calls = (entry.tool_calls ?? []).map((call) => ({ type: "tool_use", id: call.id, name: call.name, input: argumentsOf(call) }));
    const blocks = typeof content === "string" ? (content === "" ? [] : [{ type: "text", text: content }]) : content;
    messages.push({ role: entry.role, content: calls.length > 0 ? [...blocks, ...calls] : content });
  }
  return { system: system.join("\n\n"), messages };
}

/**
 * Converts contents of Gemini, and the system instruction, which is beside them. A call of Gemini may have no id. Then it gets one
 * by its place, and a result belongs to the first open call of its name.
 */
export function fromGemini(contents: readonly object[], system?: string | object): HistoryEntry[] {
  const parts = typeof system === "object" && !Array.isArray(system) ? get(system, "parts") : system;
  const history = systemOf(parts, geminiPart);
  const open: { id: string; name: unknown }[] = [];
  let count = 0;
  for (const [index, content] of contents.entries()) {
    const at = `/${index}`;
    checkMembers(at, content, "parts");
    const [found, calls]: [HistoryPart[], HistoryCall[]] = [[], []];
    for (const [number, part] of list(get(content, "parts")).entries()) {
      const place = `${at}/parts/${number}`;
      const [call, response] = [either(part, "functionCall"), either(part, "functionResponse")];
      if (call !== undefined) {
        count++;
        const id = text(get(call, "id")) || `call_${count}`;
        open.push({ id, name: get(call, "name") });
        calls.push(callOf([place, id], [`${place}/functionCall/name`, get(call, "name")], json(get(call, "args") ?? {})));
      } else if (response !== undefined) {
        const byId = open.findIndex(({ id }) => id === get(response, "id"));
        const at = byId >= 0 ? byId : open.findIndex(({ name }) => name === get(response, "name"));
        const [known] = at < 0 ? [] : open.splice(at, 1);
        if (known === undefined) throw new HistoryError(place, "is the result of no call");
        if (list(get(response, "parts")).length > 0) throw new HistoryError(`${place}/functionResponse/parts`, "are what baton.history has no form for in a result");
        history.push(resultOf(place, known.id, responseText(get(response, "response"))));
      } else {
        found.push(...geminiPart(place, part));
      }
    }
    const isEmpty = list(get(content, "parts")).length === 0;
    if (found.length > 0 || calls.length > 0 || isEmpty) history.push(entryOf(get(content, "role") === "model" ? "assistant" : "user", joined(found), calls));
  }
  return checkHistory(history);
}

/** Converts a history to the system instruction and the contents of Gemini. */
export function toGemini(history: readonly HistoryEntry[]): Prompted {
  const [system, messages]: [string[], ShapedMessage[]] = [[], []];
  const names = new Map<string | undefined, string>();
  let results: ShapedMessage[] | undefined;
  for (const [index, entry] of checkHistory(history).entries()) {
    const at = `/${index}`;
    if (entry.role === "system") {
      system.push(onlyText(at, entry));
      continue;
    }
    if (entry.role === "tool") {
      const name = names.get(entry.tool_call_id);
      if (name === undefined) throw new HistoryError(`${at}/tool_call_id`, "is that of no call, and a result of Gemini has the call's name");
      if (results === undefined) messages.push({ role: "user", parts: (results = []) });
      const answer = onlyText(at, entry);
      const response = parsed(answer);
      results.push({ functionResponse: { name, response: isObject(response) ? response : { result: answer } } });
      continue;
    }
    results = undefined;
    const content = written(at, entry, toGeminiPart);
    const parts: ShapedMessage[] = typeof content === "string" ? (content === "" ? [] : [{ text: content }]) : content;
    for (const call of entry.tool_calls ?? []) {
      names.set(call.id, call.name);
      parts.push({ functionCall: { name: call.name, args: argumentsOf(call) } });
    }
    messages.push({ role: entry.role === "assistant" ? "model" : "user", parts: parts.length > 0 ? parts : [{ text: "" }] });
  }
  return { system: system.join("\n\n"), messages };
}

/** Converts messages of LangChain: objects, what `toDict` returns, `{role, content}`, `[role, text]` and texts. */
export function fromLangChain(messages: readonly (object | string)[]): HistoryEntry[] {
  return read(messages, (at, one) => {
    const { type, data } = langChain(one);
    if (type === "openai") return fromLangChainRole(at, data);
    if (typeof type !== "string" || !isObject(data)) throw unknown(at, type);
    const content = contentOf(at, get(data, "content"), langChainPart);
    const role = { human: "user", ai: "assistant", system: "system", developer: "system", tool: "tool" }[type.replace(/MessageChunk$/, "").toLowerCase()];
    if (role === undefined) throw unknown(`${at}/type`, type);
    if (role === "tool") return [resultOf(`${at}/tool_call_id`, get(data, "tool_call_id"), content)];
    const read = (member: string, args: (call: unknown) => unknown): HistoryCall[] =>
      list(get(data, member)).map((call, number) => {
        const place = `${at}/${member}/${number}`;
        return callOf([`${place}/id`, get(call, "id")], [`${place}/name`, get(call, "name")], args(call));
      });
    const calls = read("tool_calls", (call) => json(get(call, "args") ?? {}));
    const broken = read("invalid_tool_calls", (call) => get(call, "args"));
    return [entryOf(role, content, [...calls, ...broken], get(data, "name"))];
  });
}

/** Converts a history to what LangChain calls stored messages: `mapStoredMessagesToChatMessages` takes them. */
export function toLangChain(history: readonly HistoryEntry[]): ShapedMessage[] {
  return checkHistory(history).map((entry, index) => {
    const type = entry.role === "user" ? "human" : entry.role === "assistant" ? "ai" : entry.role;
    const data: ShapedMessage = { content: written(`/${index}`, entry, toLangChainPart), type };
    if (entry.name !== undefined && type !== "tool") data["name"] = entry.name;
    if (type === "tool") data["tool_call_id"] = entry.tool_call_id;
    if (type === "ai") {
      const calls = (entry.tool_calls ?? []).map((call) => ({ ...call, args: parsed(call.arguments) }));
      data["tool_calls"] = calls.filter(({ args }) => isObject(args)).map(({ name, args, id }) => ({ name, args, id, type: "tool_call" }));
      const broken = calls.filter(({ args }) => !isObject(args));
      data["invalid_tool_calls"] = broken.map(({ name, arguments: args, id }) => ({ name, args, id, error: null, type: "invalid_tool_call" }));
    }
    return { type, data };
  });
}

const chatPart: ReadPart = (at, part) => {
  const [image, file, audio] = [get(part, "image_url"), get(part, "file"), get(part, "input_audio")];
  switch (get(part, "type")) {
    case "text":
      return [plain(`${at}/text`, get(part, "text"))];
    case "refusal":
      return [plain(`${at}/refusal`, get(part, "refusal"))];
    case "image_url":
      return [typeof image === "string" ? media(at, "image", image) : media(`${at}/image_url/url`, "image", get(image, "url"))];
    case "file":
      if (get(file, "file_data") !== undefined) return [media(at, "file", get(file, "file_data"), get(file, "filename"))];
      break;
    case "input_audio":
      return [{ type: "file", data: text(get(audio, "data")), media_type: `audio/${text(get(audio, "format"))}` }];
  }
  throw unknown(`${at}/type`, get(part, "type"));
};

const responsesPart: ReadPart = (at, part) => {
  switch (get(part, "type")) {
    case "input_text":
    case "output_text":
    case "text":
      return [plain(`${at}/text`, get(part, "text"))];
    case "refusal":
      return [plain(`${at}/refusal`, get(part, "refusal"))];
    case "input_image":
      if (text(get(part, "image_url"))) return [media(at, "image", get(part, "image_url"))];
      break;
    case "input_file":
      if (text(get(part, "file_data")) || text(get(part, "file_url"))) return [media(at, "file", get(part, "file_data") ?? get(part, "file_url"), get(part, "filename"))];
  }
  throw unknown(`${at}/type`, get(part, "type"));
};

const anthropicPart: ReadPart = (at, block) => {
  const [type, source, name] = [get(block, "type"), get(block, "source"), text(get(block, "title"))];
  if (type === "text") return [plain(`${at}/text`, get(block, "text"))];
  if (type === "image" || type === "document") {
    const kind = type === "image" ? "image" : "file";
    switch (get(source, "type")) {
      case "base64":
        return [{ type: kind, data: text(get(source, "data")), media_type: text(get(source, "media_type")), ...(name && { name }) }];
      case "url":
        return [{ type: kind, url: text(get(source, "url")), ...(name && { name }) }];
      case "text":
        return [plain(`${at}/source/data`, get(source, "data"))];
    }
  }
  throw unknown(`${at}/type`, type);
};

const geminiPart: ReadPart = (at, part) => {
  if (get(part, "thought") === true || either(part, "executableCode") !== undefined || either(part, "codeExecutionResult") !== undefined) return [];
  if (typeof part === "string") return [{ type: "text", text: part }];
  if (typeof get(part, "text") === "string") return [plain(`${at}/text`, get(part, "text"))];
  const held = either(part, "inlineData") ?? either(part, "fileData");
  if (held === undefined) throw new HistoryError(at, "is no part that baton.history has a form for");
  const [type, name, data] = [text(either(held, "mimeType")), text(either(held, "displayName")), text(get(held, "data"))];
  const place = data ? { data } : { url: text(either(held, "fileUri")) };
  return [{ type: type.startsWith("image/") ? "image" : "file", ...place, ...(type && { media_type: type }), ...(name && { name }) }];
};

const langChainPart: ReadPart = (at, part) => {
  const type = get(part, "type");
  if (typeof type !== "string") throw unknown(`${at}/type`, type);
  if (["text", "image_url", "refusal", "input_audio"].includes(type)) return chatPart(at, part);
  if (["input_text", "output_text"].includes(type)) return [plain(`${at}/text`, get(part, "text"))];
  if (REASONING.includes(type) || REPEATED.includes(type)) return [];
  if (!["image", "file", "audio", "video"].includes(type)) throw unknown(`${at}/type`, type);
  if (get(part, "source") !== undefined) return anthropicPart(at, part);
  const data = text(get(part, "base64")) || (get(part, "source_type") === "base64" ? text(get(part, "data")) : "");
  const [url, mediaType, name] = [text(get(part, "url")), text(get(part, "mime_type")), text(get(part, "filename") ?? get(part, "name"))];
  if (!data && !url) throw unknown(`${at}/type`, type);
  return [{ type: type === "image" ? "image" : "file", ...(data ? { data } : { url }), ...(mediaType && { media_type: mediaType }), ...(name && { name }) }];
};

const toChatPart: WritePart = (at, part) => {
  if (part.type === "image") return { type: "image_url", image_url: { url: urlOf(part) } };
  if (part.type !== "file") return { type: "text", text: textOf(part) };
  if (part.data === undefined) throw new HistoryError(`${at}/url`, "is a file elsewhere, which Chat Completions does not take");
  return { type: "file", file: { ...(part.name !== undefined && { filename: part.name }), file_data: urlOf(part) } };
};

const toResponsesPart: WritePart = (_, part) => {
  if (part.type === "image") return { type: "input_image", image_url: urlOf(part), detail: "auto" };
  if (part.type !== "file") return { type: "input_text", text: textOf(part) };
  const place = part.data === undefined ? { file_url: part.url } : { file_data: urlOf(part) };
  return { type: "input_file", ...(part.name !== undefined && { filename: part.name }), ...place };
};

const toAnthropicPart: WritePart = (_, part) => {
  if (part.type !== "image" && part.type !== "file") return { type: "text", text: textOf(part) };
  const held = { type: "base64", media_type: part.media_type ?? "application/octet-stream", data: part.data };
  const source = part.url === undefined ? held : { type: "url", url: part.url };
  return part.type === "image" ? { type: "image", source } : { type: "document", source, ...(part.name !== undefined && { title: part.name }) };
};

const toGeminiPart: WritePart = (_, part) => {
  if (part.type !== "image" && part.type !== "file") return { text: textOf(part) };
  const mimeType = part.media_type ?? (part.type === "image" ? "image/png" : "application/octet-stream");
  const name = part.name !== undefined && { displayName: part.name };
  return part.data === undefined ? { fileData: { mimeType, fileUri: part.url, ...name } } : { inlineData: { mimeType, data: part.data, ...name } };
};

const toLangChainPart: WritePart = (_, part) => {
  if (part.type === "image") return { type: "image_url", image_url: { url: urlOf(part) } };
  if (part.type !== "file") return { type: "text", text: textOf(part) };
  const place = part.data === undefined ? { url: part.url } : { base64: part.data };
  return { type: "file", ...place, ...(part.media_type !== undefined && { mime_type: part.media_type }), ...(part.name !== undefined && { filename: part.name }) };
};

function read(messages: readonly (object | string)[], convert: (at: string, message: object | string) => HistoryEntry[]): HistoryEntry[] {
  return checkHistory(messages.flatMap((message, index) => convert(`/${index}`, message)));
}

function fromLangChainRole(at: string, message: unknown): HistoryEntry[] {
  const role = get(message, "role") ?? get(message, "type");
  try {
    return fromOpenAIChat([{ ...(message as object), role: role === "human" ? "user" : role === "ai" ? "assistant" : role }]);
  } catch (error) {
    if (error instanceof HistoryError) throw new HistoryError(error.pointer.replace("/0", at), error.problem);
    throw error;
  }
}

/** Returns a message as it is stored; one with a role as of the type openai. */
function langChain(message: object | string): { type: unknown; data: unknown } {
  if (typeof message === "string") return { type: "human", data: { content: message } };
  if (Array.isArray(message)) {
    const [role, content] = message as unknown[];
    return { type: "openai", data: { role, content } };
  }
  if ("toDict" in message) return (message as { toDict: () => { type: unknown; data: unknown } }).toDict();
  return get(message, "data") === undefined ? { type: "openai", data: message } : { type: get(message, "type"), data: get(message, "data") };
}

function systemOf(system: unknown, part: ReadPart): HistoryEntry[] {
  return system === undefined || system === "" ? [] : [entryOf("system", contentOf("/system", system, part))];
}

/** Refuses a message of another shape, whose calls or texts would be overlooked. */
function checkMembers(at: string, message: object, needed: string): void {
  if (get(message, needed) === undefined) throw new HistoryError(`${at}/${needed}`, "is missing");
  if (list(get(message, "tool_calls")).length > 0) throw new HistoryError(`${at}/tool_calls`, "is of another shape");
}

/** Returns a content of an entry: of a text, of parts, or "" of none. */
function contentOf(at: string, content: unknown, part: ReadPart, name = "content"): Content {
  if (content === undefined || content === null) return "";
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) throw new HistoryError(`${at}/${name}`, "must be a text or a list");
  return joined(content.flatMap((one, index) => (typeof one === "string" ? [{ type: "text" as const, text: one }] : part(`${at}/${name}/${index}`, one))));
}

/** Returns the parts, or their text if there is one text alone. */
function joined(parts: HistoryPart[]): Content {
  const [first] = parts;
  if (first === undefined) return "";
  return parts.length === 1 && first.type === "text" ? first.text : parts;
}

function written(at: string, entry: HistoryEntry, write: WritePart, isOnlyText = false): string | ShapedMessage[] {
  if (typeof entry.content === "string") return entry.content;
  return entry.content.map((part, index) => {
    const place = `${at}/content/${index}`;
    if (isOnlyText && (part.type === "image" || part.type === "file")) {
      throw new HistoryError(place, `is of the type ${part.type}, which the interface does not take from ${entry.role}`);
    }
    return write(place, part);
  });
}

function onlyText(at: string, entry: HistoryEntry): string {
  const content = written(at, entry, (_, part) => ({ text: textOf(part) }), true);
  return typeof content === "string" ? content : content.map((part) => text(part["text"])).join("");
}

function entryOf(role: unknown, content: Content, calls: HistoryCall[] = [], name?: unknown): HistoryEntry {
  const entry = { role, content, ...(text(name) && { name: text(name) }), ...(calls.length > 0 && { tool_calls: calls }) };
  return entry as HistoryEntry;
}

function resultOf(at: string, callId: unknown, content: Content): HistoryEntry {
  return { role: "tool", content, tool_call_id: textAt(at, callId) };
}

/** Adds a call to the assistant's entry that is the last one. */
function addCall(history: HistoryEntry[], call: HistoryCall): void {
  let last = history.at(-1);
  if (last?.role !== "assistant") history.push((last = { role: "assistant", content: "" }));
  (last.tool_calls ??= []).push(call);
}

/** Returns a call of an id and a name, each with its place. */
function callOf(id: [string, unknown], name: [string, unknown], written: unknown): HistoryCall {
  return { id: textAt(...id), name: textAt(...name), arguments: text(written) || "{}" };
}

function textAt(at: string, value: unknown): string {
  if (typeof value !== "string") throw new HistoryError(at, value === undefined || value === null ? "is missing" : "must be a text");
  return value;
}

/** Returns the arguments of a call. A model may write what is no object; its text stays. */
function argumentsOf({ arguments: written }: HistoryCall): object {
  const value = parsed(written);
  return isObject(value) ? value : { arguments: written };
}

function parsed(written: string): unknown {
  try {
    return JSON.parse(written);
  } catch {
    return undefined;
  }
}

function responseText(response: unknown): string {
  const [[name, value] = [], ...more] = isObject(response) ? Object.entries(response) : [];
  return (name === "result" || name === "output") && typeof value === "string" && more.length === 0 ? value : json(response ?? {});
}

function media(at: string, type: "image" | "file", url: unknown, name?: unknown): HistoryPart {
  if (typeof url !== "string") throw new HistoryError(at, "has no URL");
  const [, mediaType, data] = DATA_URL.exec(url) ?? [];
  const place = data === undefined ? { url } : { data, ...(mediaType && { media_type: mediaType }) };
  return { type, ...place, ...(text(name) && { name: text(name) }) };
}

function urlOf({ url, data, media_type: mediaType }: { url?: string; data?: string; media_type?: string }): string {
  return url ?? `data:${mediaType ?? "application/octet-stream"};base64,${data ?? ""}`;
}

function plain(at: string, value: unknown): HistoryPart {
  return { type: "text", text: textAt(at, value) };
}

function textOf(part: HistoryPart): string {
  return part.type === "text" ? part.text : json((part as { data?: unknown }).data ?? null);
}

/** Returns a member by its name in JSON, or by its name in Python. */
function either(value: unknown, name: string): unknown {
  return get(value, name) ?? get(value, name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`));
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

function isObject(value: unknown): value is ShapedMessage {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function unknown(pointer: string, kind: unknown): HistoryError {
  return new HistoryError(pointer, `is ${json(kind)}, which baton.history has no form for`);
}
