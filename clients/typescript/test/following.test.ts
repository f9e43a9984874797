import assert from "node:assert/strict";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { type Caller, followLog } from "../src/following.js";
import { Gap, v1 } from "../src/index.js";

// Watches of logs: what they do about entries that do not exist.

const caller: Caller = {
  life: new AbortController().signal,
  call: () => Promise.reject(new Error("not called")),
  stream: async function* (open) {
    yield* open({ headers: {}, signal: AbortSignal.timeout(60_000) });
  },
};

function response(update: Exclude<v1.WatchRunResponse["update"], { case: undefined; value?: undefined }>): v1.WatchRunResponse {
  return create(v1.WatchRunResponseSchema, { update });
}

test("a gap is an error that says where to go on", async () => {
  const gap = create(v1.WatchGapSchema, { firstNumber: 3n, lastNumber: 7n });
  const open = async function* (): AsyncGenerator<v1.WatchRunResponse> {
    for (const number of [1n, 2n]) yield await Promise.resolve(response({ case: "entry", value: create(v1.RunEntrySchema, { number }) }));
    yield response({ case: "gap", value: gap });
  };
  const seen: (bigint | undefined)[] = [];
  const reading = async (): Promise<void> => {
    for await (const entry of followLog<v1.RunEntry>(caller, "run r", open, {})) seen.push(entry?.number);
  };
  await assert.rejects(reading(), (error) => error instanceof Gap && error.lastNumber === 7n && error.message.includes("3 to 7 of run r"));
  assert.deepEqual(seen, [1n, 2n]);
});

test("a watch begins again after its last entry", async () => {
  const begun: bigint[] = [];
  const open = async function* (afterNumber: bigint): AsyncGenerator<v1.WatchRunResponse> {
    begun.push(afterNumber);
    yield await Promise.resolve(response({ case: "entry", value: create(v1.RunEntrySchema, { number: afterNumber + 1n }) }));
  };
  for await (const entry of followLog<v1.RunEntry>(caller, "run r", open, { after: 4n })) if (entry?.number === 6n) break;
  assert.deepEqual(begun, [4n, 5n]);
});
