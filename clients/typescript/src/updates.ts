/** Status updates with results. */
import { create, type Message, type MessageInitShape } from "@bufbuild/protobuf";
import { type JsonObject, jsonText, RESULT_BYTES_MAX } from "./json.js";
import { type TaskStatusUpdate, TaskStatusUpdateSchema } from "./v1.js";

/** A status update that is to be sent, with its result as JSON: at most 262144 bytes and 128 levels. A `bigint` is an integer. */
export type StatusUpdate = Omit<Exclude<MessageInitShape<typeof TaskStatusUpdateSchema>, Message>, "result"> & { result?: JsonObject | undefined };

/** Returns the message of a status update. Throws BatonError, FIELD_INVALID. */
export function statusOf({ result, ...update }: StatusUpdate): TaskStatusUpdate {
  const resultJson = result === undefined ? {} : { resultJson: jsonText(result, "result_json", RESULT_BYTES_MAX) };
  return create(TaskStatusUpdateSchema, { ...update, ...resultJson });
}
