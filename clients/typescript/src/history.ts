/**
 * The one shape of a chat history: the section schema `baton.history`, version 1. Filters work on this shape and on no other,
 * because a list of another shape may keep tool calls where a filter does not know them. `vectors/history-v1.schema.json` is the
 * schema. `shapes.ts` converts from and to the shapes of models.
 */
import { jsonSection } from "./envelopes.js";
import type { ContextSection } from "./v1.js";

/** The id of the schema. Every broker knows it without a registration. */
export const HISTORY_SCHEMA_ID = "baton.history";
/** The version of the schema. */
export const HISTORY_SCHEMA_VERSION = "1";

/** A call of a tool. */
export interface HistoryCall {
  id: string;
  name: string;
  /** The JSON of the arguments, as the model wrote it. */
  arguments: string;
}

/** A part of a content. `data` of an image and of a file are its bytes in base64. */
export type HistoryPart =
  | { type: "text"; text: string }
  | { type: "image" | "file"; url?: string; data?: string; media_type?: string; name?: string }
  | { type: "data"; data: unknown };

/** An entry of a history. A call and its result have the same id. */
export interface HistoryEntry {
  role: "system" | "user" | "assistant" | "tool";
  content: string | HistoryPart[];
  name?: string;
  /** For the role assistant. */
  tool_calls?: HistoryCall[];
  /** For the role tool. */
  tool_call_id?: string;
  agent_id?: string;
  /** The time as in RFC 3339. */
  time?: string;
}

type Members = Record<string, unknown>;

const ENTRY = ["role", "content", "name", "tool_calls", "tool_call_id", "agent_id", "time"];
const CALL = ["id", "name", "arguments"];
const MEDIA = ["type", "url", "data", "media_type", "name"];

/** A value is no history. */
export class HistoryError extends TypeError {
  override readonly name = "HistoryError";
  /** The JSON Pointer of the part that does not fit. */
  readonly pointer: string;
  /** What is wrong with it. */
  readonly problem: string;

  constructor(pointer: string, problem: string) {
    super(`"${pointer}" ${problem}`);
    this.pointer = pointer;
    this.problem = problem;
  }
}

/** Returns a section with a history, marked as one of `baton.history`. Throws HistoryError for another shape. */
export function historySection(entries: readonly HistoryEntry[], { name = "history_log" }: { name?: string } = {}): ContextSection {
  const section = jsonSection(name, checkHistory(entries));
  return { ...section, schemaId: HISTORY_SCHEMA_ID, schemaVersion: HISTORY_SCHEMA_VERSION };
}

/** Returns the value if it is a history. Throws HistoryError with the first part that does not fit. */
export function checkHistory(value: unknown): HistoryEntry[] {
  list("", value).forEach((entry, index) => { checkEntry(`/${index}`, entry); });
  return value as HistoryEntry[];
}

/** Returns the latest entries: `last`, or more where the first one would be the result of a call before it. */
export function latestOf(entries: readonly HistoryEntry[], last: number): HistoryEntry[] {
  const calls = callsOfResults(entries);
  let start = Math.max(entries.length - last, 0);
  for (let at = entries.length - 1; at >= start; at--) start = Math.min(start, calls[at] ?? at);
  return entries.slice(start);
}

/** Returns the entries without calls of tools and without their results. An entry that only calls is left out. */
export function withoutToolCalls(entries: readonly HistoryEntry[]): HistoryEntry[] {
  const spoken = entries.filter(({ role, content, tool_calls }) => role !== "tool" && (content.length > 0 || !tool_calls?.length));
  return spoken.map((entry) => without(entry));
}

/**
 * Returns the entries without calls that have no result yet, and without results of unknown calls: interfaces of models refuse
 * such a history. A handoff leaves them, because the call of a handoff is open while it is made.
 */
export function settled(entries: readonly HistoryEntry[]): HistoryEntry[] {
  const answered = new Set(entries.map(({ tool_call_id }) => tool_call_id));
  const known = new Set<string | undefined>();
  const kept: HistoryEntry[] = [];
  for (const entry of entries) {
    const calls = entry.tool_calls ?? [];
    const open = calls.filter(({ id }) => answered.has(id));
    for (const { id } of open) known.add(id);
    if (entry.role === "tool" && !known.has(entry.tool_call_id)) continue;
    if (calls.length === 0 || open.length === calls.length) kept.push(entry);
    else if (open.length > 0) kept.push({ ...entry, tool_calls: open });
    else if (entry.content.length > 0) kept.push(without(entry));
  }
  return kept;
}

function without(entry: HistoryEntry): HistoryEntry {
  return Object.fromEntries(Object.entries(entry).filter(([name]) => name !== "tool_calls")) as unknown as HistoryEntry;
}

/** Returns for each result the index of its call. */
function callsOfResults(entries: readonly HistoryEntry[]): (number | undefined)[] {
  const known = new Map<string, number>();
  return entries.map(({ tool_calls, tool_call_id }, index) => {
    for (const { id } of tool_calls ?? []) known.set(id, index);
    return tool_call_id === undefined ? undefined : known.get(tool_call_id);
  });
}

function checkEntry(at: string, value: unknown): void {
  const entry = object(at, value, ENTRY);
  const { role, content, tool_calls: calls } = entry;
  if (role !== "system" && role !== "user" && role !== "assistant" && role !== "tool") {
    throw new HistoryError(`${at}/role`, "must be system, user, assistant or tool");
  }
  texts(at, entry, "name", "agent_id", "time", "tool_call_id");
  if (Object.hasOwn(entry, "tool_call_id") !== (role === "tool")) {
    throw new HistoryError(`${at}/tool_call_id`, role === "tool" ? "is missing" : "is for the role tool");
  }
  if (Object.hasOwn(entry, "tool_calls")) {
    if (role !== "assistant") throw new HistoryError(`${at}/tool_calls`, "is for the role assistant");
    list(`${at}/tool_calls`, calls).forEach((call, index) => { checkCall(`${at}/tool_calls/${index}`, call); });
  }
  if (!Object.hasOwn(entry, "content")) throw new HistoryError(`${at}/content`, "is missing");
  if (typeof content !== "string") list(`${at}/content`, content).forEach((part, index) => { checkPart(`${at}/content/${index}`, part); });
}

function checkCall(at: string, value: unknown): void {
  const call = object(at, value, CALL);
  const missing = CALL.find((name) => !Object.hasOwn(call, name));
  if (missing !== undefined) throw new HistoryError(`${at}/${missing}`, "is missing");
  texts(at, call, ...CALL);
}

function checkPart(at: string, value: unknown): void {
  const { type: kind } = object(at, value);
  if (kind === "text" || kind === "data") {
    const part = object(at, value, ["type", kind]);
    if (!Object.hasOwn(part, kind)) throw new HistoryError(`${at}/${kind}`, "is missing");
    texts(at, part, "text");
  } else if (kind === "image" || kind === "file") {
    const part = object(at, value, MEDIA);
    texts(at, part, ...MEDIA);
    if (Object.hasOwn(part, "url") === Object.hasOwn(part, "data")) throw new HistoryError(at, "must have either url or data");
  } else {
    throw new HistoryError(`${at}/type`, "must be text, image, file or data");
  }
}

function object(at: string, value: unknown, known?: readonly string[]): Members {
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new HistoryError(at, "must be an object");
  // A member that is undefined is not written.
  const members = Object.fromEntries(Object.entries(value).filter(([, member]) => member !== undefined));
  const other = known && Object.keys(members).find((name) => !known.includes(name));
  if (other !== undefined) throw new HistoryError(`${at}/${other.replaceAll("~", "~0").replaceAll("/", "~1")}`, "is no member of the shape");
  return members;
}

function list(at: string, value: unknown): readonly unknown[] {
  if (!Array.isArray(value)) throw new HistoryError(at, "must be a list");
  return value;
}

function texts(at: string, members: Members, ...names: string[]): void {
  const wrong = names.find((name) => Object.hasOwn(members, name) && typeof members[name] !== "string");
  if (wrong !== undefined) throw new HistoryError(`${at}/${wrong}`, "must be a text");
}
