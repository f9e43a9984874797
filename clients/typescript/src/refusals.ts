/** Refusals by the client itself, with the reasons of the broker. */
import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { BatonError, type FieldViolation } from "./errors.js";
import { BadRequestSchema, ErrorInfoSchema } from "./gen/google/rpc/error_details_pb.js";

/** Returns the error of the broker for a message over a limit. */
export function refusal(reason: string, text: string, fieldViolations: FieldViolation[] = [], code = Code.InvalidArgument): BatonError {
  const info = create(ErrorInfoSchema, { reason, domain: "baton" });
  return new BatonError(code, text, { info, badRequest: create(BadRequestSchema, { fieldViolations }) });
}

/** Returns the error of the broker for wrong fields: FIELD_INVALID. */
export function invalid(wrong: FieldViolation[]): BatonError {
  return refusal("FIELD_INVALID", wrong.map(({ field, description }) => `${field} ${description}`).join("; "), wrong);
}
