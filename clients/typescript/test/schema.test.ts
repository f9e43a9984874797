import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { makeEnvelope, type Payload, payloadOf, v1 } from "../src/index.js";

/** The values of an enum in a file of the schema, by name without its prefix. */
function valuesOf(file: string, prefix: string): Map<string, number> {
  const text = readFileSync(new URL(`../../../../proto/baton/v1/${file}`, import.meta.url), "utf8");
  const found = text.matchAll(new RegExp(`^  ${prefix}_(\\w+) = (\\d+);`, "gm"));
  return new Map([...found].map(([, name = "", number]) => [name, Number(number)]));
}

for (const [file, prefix, known] of [
  ["error.proto", "ERROR_CODE", v1.ErrorCode],
  ["envelope.proto", "MESSAGE_TYPE", v1.MessageType],
] as const) {
  test(`the client knows every ${prefix} of the schema`, () => {
    const expected = valuesOf(file, prefix);
    assert.ok(expected.size > 10);
    const names = Object.entries(known).filter(([, number]) => typeof number === "number") as [string, number][];
    assert.deepEqual(new Map(names), expected);
  });
}

test("every message type has its payload", () => {
  for (const name of valuesOf("envelope.proto", "MESSAGE_TYPE").keys()) {
    // A checkpoint has the payload of a context, which by itself is that of a handoff.
    if (name === "UNSPECIFIED" || name === "CONTEXT_CHECKPOINT") continue;
    const words = name.split("_").map((word) => word.charAt(0) + word.slice(1).toLowerCase());
    const schema = (v1 as unknown as Record<string, typeof v1.InfoSchema | undefined>)[`${words.join("")}Schema`];
    assert.ok(schema, name);
    const payload = create(schema) as Payload;
    const envelope = makeEnvelope("alice", "bob", {}, payload);
    assert.equal(v1.MessageType[envelope.messageType], name);
    assert.deepEqual(payloadOf(envelope), payload);
  }
});
