/**
 * The limits of JSON that travels as `google.protobuf.Struct`: results, answers and the data of mail. The client refuses a value
 * that the broker would refuse or that would arrive changed, before it sends anything.
 */
import type { FieldViolation } from "./errors.js";
import type { Payload } from "./envelopes.js";

/** The maximum size of a result as JSON, in bytes. */
export const RESULT_BYTES_MAX = 262_144;
/** The maximum size of the data of an answer as JSON, in bytes. */
export const ANSWER_BYTES_MAX = 65_536;
/** The maximum number of objects inside each other. */
export const LEVELS_MAX = 32;
/**
 * Parsers of protobuf take 100 messages inside each other. `GetTaskResponse` and `Task` are around the result; an object takes a
 * Struct, an entry and a Value, a list takes a ListValue and a Value.
 */
const MESSAGES_MAX = 98;
const [OBJECT_MESSAGES, LIST_MESSAGES] = [3, 2];

/** The JSON of a payload: its field, its value and the maximum size in bytes. Undefined: the payload has none. */
function jsonOf(payload: Payload): { field: string; value: unknown; bytesMax: number | undefined } | undefined {
  switch (payload.$typeName) {
    case "baton.v1.TaskStatusUpdate":
      return { field: "result", value: payload.result, bytesMax: RESULT_BYTES_MAX };
    case "baton.v1.TaskInput":
      return { field: "data", value: payload.data, bytesMax: ANSWER_BYTES_MAX };
    case "baton.v1.Delegation":
      return { field: "input", value: payload.input, bytesMax: undefined };
    case "baton.v1.Info":
      return { field: "data", value: payload.data, bytesMax: undefined };
    default:
      return undefined;
  }
}

/** Returns what is wrong with the JSON of a payload. Undefined: nothing is. */
export function wrongJson(payload: Payload): FieldViolation | undefined {
  const json = jsonOf(payload);
  if (json?.value === undefined) return undefined;
  const description = wrongValue(json.value, "", 0, 0) ?? wrongSize(json.value, json.bytesMax);
  return description === undefined ? undefined : { field: `envelope.payload.${json.field}`, description };
}

function wrongSize(value: unknown, bytesMax: number | undefined): string | undefined {
  const bytes = Buffer.byteLength(JSON.stringify(value));
  if (bytesMax === undefined || bytes <= bytesMax) return undefined;
  return `has ${bytes} bytes as JSON, over the limit of ${bytesMax}; store it elsewhere and send a reference to it`;
}

function wrongValue(value: unknown, pointer: string, messages: number, levels: number): string | undefined {
  const where = pointer === "" ? "" : ` at ${shortened(pointer)}`;
  switch (typeof value) {
    case "number":
      return Number.isFinite(value) ? undefined : `must have finite numbers only, not ${value}${where}`;
    case "string":
      return value.isWellFormed() ? undefined : `has half of a surrogate pair, which is no character,${where}`;
    case "bigint":
    case "function":
    case "symbol":
      return `must be JSON, which has no ${typeof value}:${where}`;
    case "object":
      break;
    default:
      return undefined;
  }
  if (value === null) return undefined;
  const isList = Array.isArray(value);
  const entries = isList ? value.entries() : Object.entries(value);
  const inside = messages + (isList ? LIST_MESSAGES : OBJECT_MESSAGES);
  let wrong: string | undefined;
  for (const [name, member] of entries) {
    const at = `${pointer}/${String(name).replaceAll("~", "~0").replaceAll("/", "~1")}`;
    if (inside > MESSAGES_MAX) {
      return `is nested at least ${levels + 1} levels deep, at ${shortened(at)}; the limit is ${LEVELS_MAX} objects, or 48 lists, inside each other`;
    }
    if (typeof name === "string" && !name.isWellFormed()) return `has a name with half of a surrogate pair${where}`;
    wrong ??= wrongValue(member, at, inside, levels + 1);
    if (wrong !== undefined) return wrong;
  }
  return undefined;
}

function shortened(pointer: string): string {
  return pointer.length <= 200 ? pointer : `${pointer.slice(0, 200)}…`;
}
