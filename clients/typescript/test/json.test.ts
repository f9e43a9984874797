import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import type { JsonObject } from "@bufbuild/protobuf";
import { type Agent, BatonError, v1 } from "../src/index.js";
import { ANSWER_BYTES_MAX, RESULT_BYTES_MAX } from "../src/json.js";
import { Agents, Broker, unique } from "./broker.js";

// JSON at the limits: the broker takes what the client sends, and the client does not send the rest.

let broker: Broker;
const agents = new Agents(() => broker);
before(async () => {
  broker = await Broker.start();
});
afterEach(() => {
  agents.close();
});
after(async () => {
  await broker.remove();
});

/** An object of this many levels. */
function nested(levels: number, inside: unknown = 1): JsonObject {
  return JSON.parse('{"a":'.repeat(levels) + JSON.stringify(inside) + "}".repeat(levels)) as JsonObject;
}

/** A list of this many levels in an object. */
function listed(levels: number): JsonObject {
  return JSON.parse(`{"a":${"[".repeat(levels)}1${"]".repeat(levels)}}`) as JsonObject;
}

/** An object of this size as JSON. */
function sized(bytes: number): JsonObject {
  return { a: "é".repeat(1) + "x".repeat(bytes - 10) };
}

async function owning(): Promise<{ alice: Agent; taskId: string }> {
  const [alice, bob, taskId] = [await agents.named("alice"), await agents.named("bob"), unique("ticket")];
  await alice.requestHandoff(bob.id, taskId, { taskType: "support" });
  return { alice, taskId };
}

const status = v1.TaskStatus.IN_PROGRESS;

test("the broker takes a result at each limit", async () => {
  const { alice, taskId } = await owning();
  for (const result of [nested(32), nested(32, {}), listed(47), sized(RESULT_BYTES_MAX), { a: "\u{1F600}" }]) {
    await alice.updateStatus(taskId, 1n, { status, result });
  }
});

test("a result that the broker does not take is refused before it is sent", async () => {
  const { alice, taskId } = await owning();
  const before = (await alice.getTask(taskId)).custodyLength;
  const refused: [unknown, RegExp][] = [
    [nested(33), /nested at least 33 levels deep, at \/a\/a.* 32 objects/],
    [listed(48), /nested at least 49 levels deep.* 48 lists/],
    [sized(RESULT_BYTES_MAX + 1), /has 262145 bytes as JSON, over the limit of 262144/],
    [{ a: [1, NaN] }, /finite numbers only, not NaN at \/a\/1/],
    [{ a: { "b/c": "\ud800" } }, /surrogate pair.* at \/a\/b~1c/],
    [{ "\udc00": 1 }, /a name with half of a surrogate pair/],
    [{ a: 1n }, /has no bigint: at \/a/],
  ];
  for (const [result, words] of refused) {
    await assert.rejects(alice.updateStatus(taskId, 1n, { status, result: result as JsonObject }), (error) => {
      assert.ok(error instanceof BatonError && error.reason === "FIELD_INVALID", String(error));
      assert.equal(error.fields[0]?.field, "envelope.payload.result");
      return words.test(error.message);
    });
  }
  assert.equal((await alice.getTask(taskId)).custodyLength, before);
});

test("an answer has limits of its own", async () => {
  const { alice, taskId } = await owning();
  const question = { taskId, epoch: 1n, questionId: "0190c7a8-0000-7000-8000-000000000001" };
  await assert.rejects(alice.answer(question, "", sized(ANSWER_BYTES_MAX + 1)), /has 65537 bytes as JSON, over the limit of 65536/);
  await assert.rejects(alice.answer(question, "", { a: "\ud800" }), /surrogate/);
});
