/**
 * JSON as text in messages: results, answers and inputs. It arrives as it was sent: a `bigint` is an integer, and an integer beyond
 * 2^53 - 1 is a `bigint`. The client refuses a value that the broker would refuse, or that JSON does not have, before it sends
 * anything.
 */
import { parse, stringify } from "lossless-json";
import type { BatonError } from "./errors.js";
import { invalid } from "./refusals.js";

/** A value of JSON. Integers beyond 2^53 - 1 are `bigint`, all other numbers `number`. */
export type JsonValue = null | boolean | number | bigint | string | JsonValue[] | JsonObject;

/** An object of JSON. */
export interface JsonObject {
  [name: string]: JsonValue;
}

/** The maximum size of a result as JSON, in bytes. */
export const RESULT_BYTES_MAX = 262_144;
/** The maximum size of the data of an answer as JSON, in bytes. */
export const ANSWER_BYTES_MAX = 65_536;
/** The maximum number of objects and lists inside each other. */
export const LEVELS_MAX = 128;
/** The maximum size of other JSON in a message: that of its payload, in bytes. */
const TEXT_BYTES_MAX = 1024 * 1024;
/** The digits of the least integer beyond 2^53 - 1. */
const MAY_BE_LARGE = /\d{16}/;
const INTEGER = /^-?\d+$/;

/**
 * Returns the JSON text of an object, for a field of a message whose name ends in `Json`: a result, an answer, an input, sections,
 * settings, parameters. Throws BatonError, FIELD_INVALID, with the place of what is wrong: a number that is not finite, half of a
 * surrogate pair, a value that JSON does not have, over 128 objects and lists inside each other, or over its size.
 */
export function jsonText(value: JsonObject, field = "value", bytesMax = TEXT_BYTES_MAX): string {
  const wrong = (description: string): BatonError => invalid([{ field: `envelope.payload.${field}`, description }]);
  const description = isObject(value) ? wrongValue(value, "", 0) : "must be a JSON object";
  if (description !== undefined) throw wrong(description);
  const text = jsonOf(value);
  const bytes = Buffer.byteLength(text);
  if (bytes > bytesMax) throw wrong(`has ${bytes} bytes as JSON, over the limit of ${bytesMax}; store it elsewhere and send a reference to it`);
  return text;
}

/** Parses JSON text. An integer beyond 2^53 - 1 is a `bigint`. Throws SyntaxError if it is no JSON. */
export function parseJson(text: string): JsonValue {
  if (!MAY_BE_LARGE.test(text)) return JSON.parse(text) as JsonValue;
  const parseNumber = (digits: string): number | bigint => {
    const number = Number(digits);
    return INTEGER.test(digits) && !Number.isSafeInteger(number) ? BigInt(digits) : number;
  };
  return parse(text, null, { parseNumber }) as JsonValue;
}

/** Parses the JSON object of a message; an empty text is an empty object. */
export function parseObject(text: string): JsonObject {
  return text === "" ? {} : (parseJson(text) as JsonObject);
}

/** As JSON.stringify, with `bigint` as integers. */
export function jsonOf(value: unknown): string {
  return stringify(value) ?? "null";
}

function wrongValue(value: unknown, pointer: string, levels: number): string | undefined {
  const where = pointer === "" ? "" : ` at ${shortened(pointer)}`;
  switch (typeof value) {
    case "number":
      return Number.isFinite(value) ? undefined : `must have finite numbers only, not ${value}${where}`;
    case "bigint":
      return Number.isFinite(Number(value)) ? undefined : `must have finite numbers only, not an integer beyond 1.8e308${where}`;
    case "string":
      return value.isWellFormed() ? undefined : `has half of a surrogate pair, which is no character,${where}`;
    case "function":
    case "symbol":
      return `must be JSON, which has no ${typeof value}${where}`;
    case "object":
      break;
    default:
      return undefined;
  }
  if (value === null) return undefined;
  if (value instanceof Map || value instanceof Set || ArrayBuffer.isView(value)) return `must be JSON, which has no ${value.constructor.name}${where}`;
  if (levels === LEVELS_MAX) return `is nested too deep${where}: the limit is ${LEVELS_MAX} objects and lists inside each other`;
  const isList = Array.isArray(value);
  for (const [name, member] of isList ? value.entries() : Object.entries(value)) {
    if (typeof name === "string" && !name.isWellFormed()) return `has a name with half of a surrogate pair${where}`;
    const at = `${pointer}/${String(name).replaceAll("~", "~0").replaceAll("/", "~1")}`;
    const wrong = wrongValue(member, at, levels + 1);
    if (wrong !== undefined) return wrong;
  }
  return undefined;
}

function isObject(value: unknown): boolean {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function shortened(pointer: string): string {
  return pointer.length <= 200 ? pointer : `${pointer.slice(0, 200)}…`;
}
