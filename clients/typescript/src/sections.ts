/** The contents of context sections: canonical JSON, deltas and filters, as vectors/ has them for every language. */
import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { checkHistory, type HistoryEntry, HistoryError, latestOf, withoutToolCalls } from "./history.js";
import * as v1 from "./v1.js";

const LEVELS_MAX = 127;
const POINTERS_MAX = 64;
const POINTER_BYTES_MAX = 1024;
/** The bytes that a delta has besides its patch. */
const DELTA_BYTES = 96;
const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\]:,]|[^\s"{}[\]:,]+/gu;

type Members = Record<string, unknown>;

/** A text is no JSON that a delta or a filter can work on, or a filter does not fit it. */
export class SectionError extends Error {
  override readonly name = "SectionError";
}

/** Returns the SHA-256 of a text. */
export function sha256(text: string): Uint8Array {
  return createHash("sha256").update(text).digest();
}

/** Returns the canonical JSON of a parsed value (RFC 8785). */
export function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const names = Object.keys(value).sort();
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

/** Parses JSON without duplicate names, and without numbers beyond 2^53 - 1. Throws SectionError. */
export function parse(text: string): unknown {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new SectionError(String(error));
  }
  checkTokens(text);
  return value;
}

/** Applies a JSON Merge Patch (RFC 7396). Returns the result as canonical JSON. Throws SectionError. */
export function applyDelta(base: string, patch: string): string {
  const result = merge(parse(base), parse(patch));
  if (!isObject(result) && !Array.isArray(result)) throw new SectionError("the result must be a JSON object or list");
  return canonical(result);
}

/**
 * Returns the delta from a base to a target, and the target as canonical JSON. Undefined: no merge patch gives the target, for a
 * changed object of it has a member that is null; or one of the two is no JSON that a delta can work on.
 */
export function deltaBetween(base: string, target: string): { delta: v1.ContextDelta; result: string } | undefined {
  try {
    const [from, to] = [parse(base), parse(target)];
    const [mergePatch, result] = [canonical(patchBetween(from, to)), canonical(to)];
    if (applyDelta(base, mergePatch) !== result) return undefined;
    const delta = create(v1.ContextDeltaSchema, { baseSha256: sha256(base), mergePatch, resultSha256: sha256(result) });
    return { delta, result };
  } catch (error) {
    if (error instanceof SectionError) return undefined;
    throw error;
  }
}

/** Returns the part of a JSON section that a filter keeps, as canonical JSON. Throws SectionError. */
export function filtered(text: string, filter: v1.ContextFilter, summary = ""): string {
  checkFilter(filter);
  const { history, last, jsonPointers } = filter;
  const value = parse(text);
  if (jsonPointers.length > 0) {
    const found = jsonPointers.map((pointer) => [pointer, resolve(value, pointer)] as const);
    return canonical(Object.fromEntries(found.filter(([, part]) => part !== undefined).map(([pointer, part]) => [pointer, part?.[0]])));
  }
  const entries = historyOf(value);
  switch (history) {
    case v1.HistoryFilter.LAST:
      return canonical(latestOf(entries, last));
    case v1.HistoryFilter.WITHOUT_TOOL_CALLS: {
      const kept = withoutToolCalls(entries);
      return canonical(last === 0 ? kept : latestOf(kept, last));
    }
    case v1.HistoryFilter.SUMMARY:
      return canonical({ summary, entries: entries.length });
    default:
      return canonical(entries);
  }
}

function historyOf(value: unknown): HistoryEntry[] {
  try {
    return checkHistory(value);
  } catch (error) {
    if (error instanceof HistoryError) throw new SectionError(`a history filter needs a baton.history of version 1: ${error.message}`);
    throw error;
  }
}

/** Finds the text of a section, if it is the latest one with this digest. */
export type FindBase = (name: string, digest: Uint8Array) => string | undefined;

/**
 * Returns the sections that a candidate has asked for: the named ones, filtered, and as deltas where smaller. A section that
 * the filter does not fit is left out: whole it would have what the filter is to keep back.
 */
export function forWishes(
  sections: readonly v1.ContextSection[],
  { wantedSections, wishes }: Pick<v1.HandoffAccept, "wantedSections" | "wishes">,
  known: FindBase,
): v1.ContextSection[] {
  if (wantedSections.length === 0 && wishes.length === 0) return [...sections];
  return sections.flatMap((section) => {
    const wish = wishes.find(({ name }) => name === section.name);
    if (wish === undefined) return wantedSections.includes(section.name) ? [section] : [];
    const hasOther = section.schemaId !== "" && wish.schemaVersions.length > 0 && !wish.schemaVersions.includes(section.schemaVersion);
    return hasOther ? [] : forWish(section, wish, known);
  });
}

/** Returns the sections with deltas where smaller, and whole, with the contents that the deltas give. */
export function withDeltas(
  sections: readonly v1.ContextSection[],
  known: (name: string) => string | undefined,
): { short: v1.ContextSection[]; whole: v1.ContextSection[] } {
  const [short, whole]: [v1.ContextSection[], v1.ContextSection[]] = [[], []];
  for (const section of sections) {
    const { content } = section;
    const base = content.case === "json" ? known(section.name) : undefined;
    const made = base !== undefined && content.case === "json" ? smaller(base, content.value) : undefined;
    short.push(made ? { ...section, content: { case: "delta", value: made.delta } } : section);
    whole.push(made ? { ...section, content: { case: "json", value: made.result } } : section);
  }
  return { short, whole };
}

function forWish(section: v1.ContextSection, { filter, haveSha256 }: v1.SectionWish, known: FindBase): v1.ContextSection[] {
  if (section.content.case !== "json") return filter ? [] : [section];
  let text = section.content.value;
  try {
    if (filter) text = filtered(text, filter, section.summary);
  } catch (error) {
    if (!(error instanceof SectionError)) throw error;
    return [];
  }
  // The schema is not about a part of another shape.
  const isOther = filter !== undefined && (filter.jsonPointers.length > 0 || filter.history === v1.HistoryFilter.SUMMARY);
  const schema = isOther && { schemaId: "", schemaVersion: "" };
  const base = haveSha256.length > 0 ? known(section.name, haveSha256) : undefined;
  const made = base === undefined ? undefined : smaller(base, text);
  return [{ ...section, ...schema, content: made ? { case: "delta", value: made.delta } : { case: "json", value: text } }];
}

function smaller(base: string, text: string): ReturnType<typeof deltaBetween> {
  const made = deltaBetween(base, text);
  return made && Buffer.byteLength(made.delta.mergePatch) + DELTA_BYTES < Buffer.byteLength(text) ? made : undefined;
}

function patchBetween(from: unknown, to: unknown): unknown {
  if (!isObject(from) || !isObject(to)) return to;
  // A name may be __proto__, which only an entry keeps.
  const patch: [string, unknown][] = Object.keys(from).filter((name) => !Object.hasOwn(to, name)).map((name) => [name, null]);
  for (const [name, value] of Object.entries(to)) {
    if (!Object.hasOwn(from, name)) patch.push([name, value]);
    else if (canonical(from[name]) !== canonical(value)) patch.push([name, patchBetween(from[name], value)]);
  }
  return Object.fromEntries(patch);
}

function merge(target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return patch;
  const merged = new Map(isObject(target) ? Object.entries(target) : []);
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) merged.delete(name);
    else merged.set(name, merge(merged.get(name), value));
  }
  return Object.fromEntries(merged);
}

/** Returns the value at a JSON Pointer (RFC 6901), in a list; undefined without a value. */
function resolve(value: unknown, pointer: string): [unknown] | undefined {
  let found = value;
  for (const step of pointer.split("/").slice(1)) {
    const name = step.replaceAll("~1", "/").replaceAll("~0", "~");
    if (isObject(found) && Object.hasOwn(found, name)) found = found[name];
    else if (Array.isArray(found) && /^(0|[1-9]\d{0,9})$/.test(name) && Number(name) < found.length) found = (found as unknown[])[Number(name)];
    else return undefined;
  }
  return [found];
}

/** Checks the form of a filter. Throws SectionError. */
function checkFilter({ history, last, jsonPointers }: v1.ContextFilter): void {
  const { UNSPECIFIED, LAST, WITHOUT_TOOL_CALLS } = v1.HistoryFilter;
  const isBad =
    !(history in v1.HistoryFilter) ||
    jsonPointers.length > 0 === (history !== UNSPECIFIED) ||
    (history === LAST && last === 0) ||
    (last > 0 && history !== LAST && history !== WITHOUT_TOOL_CALLS) ||
    jsonPointers.length > POINTERS_MAX ||
    new Set(jsonPointers).size < jsonPointers.length ||
    jsonPointers.some((pointer) => !/^(\/([^~]|~[01])*)?$/su.test(pointer) || Buffer.byteLength(pointer) > POINTER_BYTES_MAX);
  if (isBad) throw new SectionError("the filter breaks a rule of its form");
}

/** Checks what JSON.parse does not: names that occur twice, large numbers, half characters, and the levels. */
function checkTokens(text: string): void {
  const levels: (Set<string> | undefined)[] = [];
  let isName = false;
  for (const [token] of text.matchAll(TOKENS)) {
    const names = levels.at(-1);
    if (token === "{") levels.push(new Set());
    else if (token === "[") levels.push(undefined);
    else if (token === "}" || token === "]") levels.pop();
    else if (token.startsWith('"')) checkText(JSON.parse(token) as string, isName ? names : undefined);
    else if (/^[-\d]/.test(token) && Math.abs(Number(token)) > Number.MAX_SAFE_INTEGER) throw new SectionError("a number is beyond 2^53 - 1");
    if (levels.length > LEVELS_MAX) throw new SectionError(`the JSON nests deeper than ${LEVELS_MAX} levels`);
    isName = levels.at(-1) !== undefined && (token === "{" || token === ",");
  }
}

function checkText(text: string, names: Set<string> | undefined): void {
  if (/\p{Surrogate}/u.test(text)) throw new SectionError("a text has half of a character");
  if (names?.has(text)) throw new SectionError("a name occurs twice");
  names?.add(text);
}

function isObject(value: unknown): value is Members {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
