import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { type Agent, BatonError, type JsonObject, jsonSection, jsonText, type JsonValue, parseJson, v1 } from "../src/index.js";
import { ANSWER_BYTES_MAX, RESULT_BYTES_MAX } from "../src/json.js";
import { Agents, Broker, patient, unique } from "./broker.js";

// JSON arrives as it was sent, and at the limits: the broker takes what the client sends, and the client does not send the rest.

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

const BIG = 1234567890123456789n;
const DATA: JsonObject = { id: BIG, count: 42, none: null, list: [BIG + 1n, { deep: -BIG }], most: 2n ** 64n - 1n, half: 0.5 };
const TEXT =
  '{"id":1234567890123456789,"count":42,"none":null,"list":[1234567890123456790,{"deep":-1234567890123456789}],"most":18446744073709551615,"half":0.5}';

/** An object of this many levels. */
function nested(levels: number, inside: unknown = 1): JsonObject {
  return JSON.parse('{"a":'.repeat(levels) + JSON.stringify(inside) + "}".repeat(levels)) as JsonObject;
}

/** Lists of this many levels in an object. */
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

test("JSON is the same after its text, with large integers as bigint", () => {
  assert.equal(jsonText(DATA), TEXT);
  assert.deepEqual(parseJson(TEXT), DATA);
  for (const text of ['{"a":9007199254740991}', '{"1":{},"a":[1e+300,-0.5,true,null,"ü\\n"]}', '{"a":"9007199254740993"}']) {
    assert.equal(jsonText(parseJson(text) as JsonObject), text);
  }
  assert.deepEqual([parseJson("9007199254740993"), parseJson("-9007199254740993"), parseJson("9007199254740991")], [9007199254740993n, -9007199254740993n, 9007199254740991]);
  assert.deepEqual(Object.keys(parseJson('{"__proto__":12345678901234567890}') as object), ["__proto__"]);
});

test("a result, an answer, a context and mail arrive as they were sent", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const got: JsonValue[] = [];
  bob.serve({
    offer: async (offer) => {
      const takeover = await offer.accept();
      got.push(takeover.json("order") as JsonValue);
      const task = await takeover.complete();
      got.push((await task.ask("Which order?", alice.id)).data);
      await task.finish(DATA);
    },
    info: ({ dataJson }) => {
      got.push(parseJson(dataJson));
    },
  }).catch(() => undefined);
  alice.serve({
    prompt: async (question) => {
      await assert.rejects(question.answer("none", { a: [NaN] }), /data_json must have finite numbers only, not NaN at \/a\/0/);
      await question.answer("this one", DATA);
    },
  }).catch(() => undefined);
  const taskId = unique("ticket");
  await alice.send(bob.id, {}, create(v1.InfoSchema, { text: "the order", dataJson: jsonText(DATA) }));
  const { result } = await patient(alice.delegate(bob.id, taskId, { taskType: "support" }, [jsonSection("order", DATA)]));
  assert.deepEqual([result, ...got], [DATA, DATA, DATA, DATA]);
  const task = await alice.getTask(taskId);
  assert.deepEqual([task.resultJson, task.lastAnswer?.answer?.dataJson], [TEXT, TEXT]);
});

test("the input and the results of a plan arrive as they were sent", async () => {
  const type = unique("worker");
  const [alice, bob] = [await agents.named("alice"), await agents.connect({ ...broker.options("bob"), card: { agentTypes: [type] } })];
  const got: unknown[] = [];
  bob.serve({
    offer: async (offer) => {
      const takeover = await offer.accept();
      const task = await takeover.complete();
      const { subtask } = takeover;
      got.push([subtask?.input, subtask?.planInput, parseJson(subtask?.dependencyResults.get("first")?.resultJson ?? "null")]);
      await task.finish(subtask?.input);
    },
  }).catch(() => undefined);
  const subtasks = [
    { id: "first", agentType: type, input: DATA },
    { id: "second", agentType: type, dependencies: ["first"], input: { count: 42 } },
  ];
  const plan = await alice.plans.submit({ planId: unique("exact"), subtasks, input: DATA });
  assert.equal((await patient(plan.finished())).state, v1.PlanState.COMPLETED);
  assert.deepEqual(got, [[DATA, DATA, null], [{ count: 42 }, DATA, DATA]]);
  const results = await plan.results();
  assert.deepEqual([...results.values()].map(({ resultJson }) => resultJson), [TEXT, '{"count":42}']);
  const wrong = { planId: unique("wrong"), subtasks: [{ id: "a", agentType: type, input: { a: [NaN] } }] };
  await assert.rejects(alice.plans.submit(wrong), /plan\.subtasks\[0\]\.input_json must have finite numbers only, not NaN at \/a\/0/);
});

test("the broker takes a result at each limit", async () => {
  const { alice, taskId } = await owning();
  for (const result of [nested(128), nested(127, {}), listed(127), sized(RESULT_BYTES_MAX), { a: "\u{1F600}" }]) {
    await alice.updateStatus(taskId, 1n, { status, result });
  }
});

const refused: [unknown, RegExp][] = [
  [nested(129), /is nested too deep at \/a\/a.*: the limit is 128 objects and lists/],
  [listed(128), /is nested too deep at \/a\/0\/0.*: the limit is 128 objects and lists/],
  [sized(RESULT_BYTES_MAX + 1), /has 262145 bytes as JSON, over the limit of 262144/],
  [{ a: [1, NaN] }, /finite numbers only, not NaN at \/a\/1/],
  [{ a: -Infinity }, /finite numbers only, not -Infinity at \/a/],
  [{ a: 10n ** 400n }, /finite numbers only, not an integer beyond 1.8e308 at \/a/],
  [{ a: { "b/c": "\ud800" } }, /surrogate pair.* at \/a\/b~1c/],
  [{ a: { "\udc00": 1 } }, /a name with half of a surrogate pair at \/a/],
  [{ a: [new Map()] }, /must be JSON, which has no Map at \/a\/0/],
  [{ a: () => 1 }, /must be JSON, which has no function at \/a/],
  [[1], /must be a JSON object/],
];

test("what the broker does not take is refused before it is sent", () => {
  for (const [result, words] of refused) {
    assert.throws(
      () => jsonText(result as JsonObject, "result_json", RESULT_BYTES_MAX),
      (error) => {
        assert.ok(error instanceof BatonError && error.reason === "FIELD_INVALID", String(error));
        assert.equal(error.fields[0]?.field, "envelope.payload.result_json");
        return words.test(error.message);
      },
    );
  }
});

test("a refused result changes nothing", async () => {
  const { alice, taskId } = await owning();
  const before = (await alice.getTask(taskId)).custodyLength;
  for (const [result, words] of refused) await assert.rejects(alice.updateStatus(taskId, 1n, { status, result: result as JsonObject }), words);
  assert.equal((await alice.getTask(taskId)).custodyLength, before);
});

test("an answer has limits of its own", async () => {
  const { alice, taskId } = await owning();
  const question = { taskId, epoch: 1n, questionId: "0190c7a8-0000-7000-8000-000000000001" };
  await assert.rejects(alice.answer(question, "", sized(ANSWER_BYTES_MAX + 1)), /has 65537 bytes as JSON, over the limit of 65536/);
  await assert.rejects(alice.answer(question, "", { a: "\ud800" }), /surrogate/);
});
