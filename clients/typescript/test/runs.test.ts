import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { type BatonError, jsonSection, type Offer, readTurn, v1 } from "../src/index.js";
import { type ResponseShape, resultsOf } from "../src/turns.js";
import { Agents, Broker, patient, refusal, unique } from "./broker.js";

// Routing by a model: the responses of models, and runs through a graph.

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

const REASON = { reason: "all facts hold" };

interface Said {
  calls?: string[];
  text?: string;
}

function responsesApi({ calls = [], text = "" }: Said): object {
  const content = [{ type: "output_text", text, annotations: [] }];
  const made = calls.map((name, at) => ({ type: "function_call", call_id: `c${at}`, name, arguments: JSON.stringify(REASON) }));
  return { object: "response", status: "completed", output: [{ type: "reasoning", summary: [] }, { type: "message", content }, ...made] };
}

function chatCompletion({ calls = [], text = "" }: Said): object {
  const made = calls.map((name, at) => ({ id: `c${at}`, type: "function", function: { name, arguments: JSON.stringify(REASON) } }));
  const message = { role: "assistant", content: text, ...(made.length > 0 && { tool_calls: made }) };
  return { object: "chat.completion", choices: [{ index: 0, finish_reason: made.length > 0 ? "tool_calls" : "stop", message }] };
}

function anthropicMessage({ calls = [], text = "" }: Said): object {
  const made = calls.map((name, at) => ({ type: "tool_use", id: `c${at}`, name, input: REASON }));
  return { type: "message", role: "assistant", content: [{ type: "text", text }, ...made], stop_reason: made.length > 0 ? "tool_use" : "end_turn" };
}

function mcpSampled({ calls = [], text = "" }: Said): object {
  const made = calls.map((name, at) => ({ type: "tool_use", id: `c${at}`, name, input: REASON }));
  const content = made.length > 0 ? [{ type: "text", text }, ...made] : { type: "text", text };
  return { role: "assistant", model: "m", content, stopReason: made.length > 0 ? "toolUse" : "endTurn" };
}

function graphOf(graphId: string, writerId = ""): Parameters<typeof create<typeof v1.GraphSchema>>[1] & object {
  return {
    graphId,
    entryNodeIds: ["searcher"],
    nodes: [
      { nodeId: "searcher", description: "Finds pages.", outputNodes: ["checker"] },
      { nodeId: "checker", description: "Checks.", handoffs: 2, outputNodes: ["searcher", "generator"] },
      { nodeId: "generator", description: "Writes the answer.", agentId: writerId, outputNodes: ["end"] },
    ],
  };
}

for (const make of [responsesApi, chatCompletion, anthropicMessage, mcpSampled]) {
  test(`a response is read as it is: ${make.name}`, () => {
    const turn = readTurn(make({ calls: ["look_up", "transfer_to_generator"], text: "I am done." }));
    assert.deepEqual(turn.calls.map(({ callId, name, argumentsJson }) => [callId, name, JSON.parse(argumentsJson) as unknown]), [
      ["c0", "look_up", REASON],
      ["c1", "transfer_to_generator", REASON],
    ]);
    assert.deepEqual([turn.output, turn.finished], ["I am done.", false]);
    const last = readTurn(make({ text: "The answer." }));
    assert.deepEqual([last.calls, last.output, last.finished], [[], "The answer.", true]);
  });
}

test("a response that is cut off is not finished, and other objects are refused", () => {
  assert.equal(readTurn({ ...responsesApi({ text: "so" }), status: "incomplete" }).finished, false);
  assert.equal(readTurn({ ...anthropicMessage({ text: "so" }), stop_reason: "max_tokens" }).finished, false);
  const called = readTurn({ method: "tools/call", params: { name: "transfer_to_generator", arguments: REASON } });
  assert.deepEqual([called.shape, called.calls[0]?.name, called.finished], ["mcp-call", "transfer_to_generator", false]);
  for (const wrong of [{}, { choices: [] }, { role: "user", content: "hello" }]) assert.throws(() => readTurn(wrong), TypeError);
});

test("results have the shape of the response", () => {
  const calls = ["look_up", "transfer_to_generator"].map((name, at) => create(v1.ToolCallSchema, { callId: `c${at}`, name }));
  const told = ["own", "Transferred."].map((text, at) => create(v1.ToolResultSchema, { callId: `c${at}`, text }));
  const text = [{ type: "text", text: "Transferred." }];
  const expected: Record<ResponseShape, object[]> = {
    "openai-responses": [{ type: "function_call_output", call_id: "c1", output: "Transferred." }],
    "openai-chat": [{ role: "tool", tool_call_id: "c1", content: "Transferred." }],
    anthropic: [{ role: "user", content: [{ type: "tool_result", tool_use_id: "c1", content: "Transferred.", is_error: false }] }],
    "mcp-sampling": [{ role: "user", content: [{ type: "tool_result", toolUseId: "c1", content: text, isError: false }] }],
    "mcp-call": [{ content: text, isError: false }],
  };
  for (const [shape, messages] of Object.entries(expected)) assert.deepEqual(resultsOf(shape as ResponseShape, calls, told), messages);
});

test("a run goes where the model chooses", async () => {
  const alice = await agents.named("alice");
  const graphId = unique("search");
  const registered = await alice.routing.register(graphOf(graphId));
  assert.deepEqual([registered.graph?.revision, registered.graph?.nodes.length], [1n, 3]);
  assert.equal((await alice.routing.graph(graphId)).nodes.length, 3);
  const run = await alice.routing.start(graphId, { wholeTimeoutMs: 300_000 });
  for await (const one of alice.routing.runs({ graphId })) assert.equal(one.runId, run.id);
  const first = await run.turn("searcher", anthropicMessage({ text: "three pages" }));
  assert.deepEqual([first.nextNodeIds, first.results, first.isOver], [["checker"], [], false]);
  for (const shape of ["openai", "anthropic", "mcp"] as const) {
    const node = await run.tools("checker", shape);
    assert.deepEqual(node.tools.map((tool) => tool["name"]), ["transfer_to_searcher", "transfer_to_generator"]);
    assert.deepEqual([node.remaining, node.inputs.map(({ output }) => output)], [2, ["three pages"]]);
  }
  const wrong = await run.turn("checker", responsesApi({ calls: ["transfer_to_searcher", "transfer_to_generator"] }));
  assert.deepEqual([wrong.refusal, wrong.results.length], ["TRANSFER_AMBIGUOUS", 2]);
  const chosen = await run.turn("checker", anthropicMessage({ calls: ["look_up", "transfer_to_generator"] }));
  assert.deepEqual([chosen.answer.choice?.targetNodeId, chosen.answer.choice?.reason], ["generator", "all facts hold"]);
  assert.equal((chosen.results[0]?.["content"] as unknown[]).length, 1);
  await assert.rejects(run.turn("checker", anthropicMessage({})), refusal("NODE_NOT_ACTIVE"));
  assert.ok((await run.turn("generator", undefined, { finished: true, output: "42" })).isOver);
  const kinds: unknown[] = [];
  for await (const { event } of run.watch()) kinds.push(event.case);
  assert.deepEqual([kinds[0], kinds.filter((kind) => kind === "turn").length, kinds.at(-1)], ["started", 4, "ended"]);
  for await (const _ of run.watch({ after: BigInt(kinds.length) })) assert.fail("there is no further entry");
  await assert.rejects(run.tools("checker"), refusal("RUN_FINAL"));
});

test("wrong graphs and runs are refused", async () => {
  const alice = await agents.named("alice");
  const graphId = unique("search");
  const wrong = { graphId, entryNodeIds: ["a"], nodes: [{ nodeId: "a", outputNodes: ["nowhere"] }] };
  assert.ok((await alice.routing.validate(wrong)).some(({ code }) => code === "OUTPUT_UNKNOWN"));
  await assert.rejects(alice.routing.register(wrong), (error) => refusal("GRAPH_INVALID")(error) && (error as BatonError).fields.length > 0);
  await assert.rejects(alice.routing.start("unknown"), refusal("GRAPH_UNKNOWN"));
  await alice.routing.register(graphOf(graphId));
  const ids: string[] = [];
  for await (const graph of alice.routing.graphs()) ids.push(graph.graphId);
  assert.ok(ids.includes(graphId));
  const run = await alice.routing.start(graphId);
  assert.equal((await run.cancel("enough")).state, v1.RunState.CANCELLED);
  assert.match((await alice.routing.join(run.id).state()).errorMessage, /enough/);
});

test("a turn whose answer is lost counts once", async () => {
  const alice = await agents.named("alice");
  const graphId = unique("search");
  await alice.routing.register(graphOf(graphId));
  const run = await alice.routing.start(graphId);
  const entries = run.watch();
  assert.equal((await patient(entries.next())).value?.event.case, "started");
  await broker.kill();
  const report = { finished: true, output: "two pages" };
  const reporting = run.turn("searcher", undefined, report);
  await broker.restart();
  assert.deepEqual((await patient(reporting)).nextNodeIds, ["checker"]);
  let turnId = "";
  while (turnId === "") {
    const { value } = await patient(entries.next());
    if (value?.event.case === "turn") turnId = value.event.value.turnId;
  }
  const again = await run.turn("searcher", undefined, { ...report, turnId });
  assert.deepEqual([again.answer.run?.turns, again.nextNodeIds], [1, ["checker"]]);
  await assert.rejects(run.turn("searcher", undefined, { ...report, output: "other pages", turnId }), refusal("MESSAGE_ID_REUSED"));
  await entries.return();
});

test("a plain edge to another agent's node is a handoff, and the agent is told", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [graphId, ticket] = [unique("search"), unique("ticket")];
  const offer = async (one: Offer): Promise<void> => {
    await (await one.accept()).complete();
  };
  await alice.cancel((await alice.requestHandoff(bob.id, ticket, { taskType: "support" })).handoffId);
  const told = new Promise<v1.Info>((resolve) => {
    bob.serve({ offer, info: (letter) => { resolve(letter); } }).catch(() => undefined);
  });
  await alice.routing.register(graphOf(graphId, bob.id));
  const run = await alice.routing.start(graphId, { taskId: ticket });
  await run.turn("searcher", undefined, { finished: true });
  const step = await run.turn("checker", undefined, { finished: true, output: "all facts hold" });
  assert.ok(step.proposal);
  assert.deepEqual([step.receiverId, step.nextNodeIds], [bob.id, []]);
  await assert.rejects(run.turn("generator", undefined, { finished: true }), refusal("NODE_NOT_ACTIVE"));
  await patient(alice.handOver(step.receiverId, ticket, step.proposal, [jsonSection("goals", ["write"])]));
  const letter = await patient(told);
  const data = JSON.parse(letter.dataJson) as { run_id: string; node_id: string; inputs: { output: string }[] };
  assert.deepEqual([letter.topic, data.run_id, data.node_id], ["run.node_active", run.id, "generator"]);
  assert.deepEqual(data.inputs.map((given) => given.output), ["all facts hold"]);
  assert.ok((await bob.routing.join(run.id).turn("generator", undefined, { finished: true })).isOver);
});

test("a choice of another agent's node is a handoff", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [graphId, ticket] = [unique("search"), unique("ticket")];
  const offer = async (one: Offer): Promise<void> => {
    await (await one.accept()).complete();
  };
  await alice.cancel((await alice.requestHandoff(bob.id, ticket, { taskType: "support" })).handoffId);
  bob.serve({ offer }).catch(() => undefined); // an accept of the first handoff would wait in alice's mail before the second
  await alice.routing.register(graphOf(graphId, bob.id));
  const run = await alice.routing.start(graphId, { taskId: ticket });
  await run.turn("searcher", undefined, { finished: true });
  const step = await run.turn("checker", chatCompletion({ calls: ["transfer_to_generator"] }));
  assert.ok(step.proposal);
  assert.equal(step.receiverId, bob.id);
  const handed = await patient(alice.handOver(step.receiverId, ticket, step.proposal, [jsonSection("goals", ["write"])]));
  assert.equal(handed.ownerId, bob.id);
  await assert.rejects(run.turn("generator", undefined, { finished: true }), refusal("NOT_OWNER"));
  assert.ok((await bob.routing.join(run.id).turn("generator", undefined, { finished: true })).isOver);
});
