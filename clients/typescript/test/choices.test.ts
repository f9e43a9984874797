import assert from "node:assert/strict";
import { once } from "node:events";
import { after, afterEach, before, test } from "node:test";
import { generateText, stepCountIs } from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { type ChoiceOutput, nodeTools, stopAtChoice } from "../src/ai.js";
import { type Agent, BatonError, jsonSection, type Offer, type Run, v1 } from "../src/index.js";
import { Agents, Broker, patient, unique } from "./broker.js";

// The tools of a node of a run, with a model of the SDK's own test package and a real broker.

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

type Generated = Extract<NonNullable<NonNullable<ConstructorParameters<typeof MockLanguageModelV3>[0]>["doGenerate"]>, { content: unknown }>;
type Tools = Awaited<ReturnType<typeof nodeTools>>;

const QUESTION = "Is it so?";
const RIGHT = ["transfer_to_generator", { reason: "all facts hold" }] as const;
const WRONG = ["transfer_to_generator", { reason: 7 }] as const;

function generated(said: string | readonly [string, unknown], number: number): Generated {
  const isText = typeof said === "string";
  const unified = isText ? "stop" : "tool-calls";
  const none = { total: 0, noCache: 0, cacheRead: 0, cacheWrite: 0 };
  const usage = { inputTokens: none, outputTokens: { total: 0, text: 0, reasoning: 0 } };
  const part = isText ? { type: "text" as const, text: said } : { type: "tool-call" as const, toolCallId: `c${number}`, toolName: said[0], input: JSON.stringify(said[1]) };
  return { content: [part], finishReason: { unified, raw: unified }, usage, warnings: [] };
}

/** Runs a model that says what the script has. Returns what the tools have told it, and the text that ended the run. */
async function converse(tools: Tools, script: readonly (string | readonly [string, unknown])[], abortSignal?: AbortSignal): Promise<{ told: ChoiceOutput[]; text: string }> {
  const model = new MockLanguageModelV3({ doGenerate: script.map(generated) });
  const stopWhen = [stopAtChoice, stepCountIs(5)];
  const { steps, text } = await patient(generateText({ model, prompt: QUESTION, tools, stopWhen, ...(abortSignal && { abortSignal }) }));
  assert.equal(model.doGenerateCalls.length, script.length);
  return { told: steps.flatMap(({ toolResults }) => toolResults.map(({ output }) => output as ChoiceOutput)), text };
}

function graphOf(graphId: string, writerId = "", outputs = ["searcher", "generator"]): Parameters<Agent["routing"]["register"]>[0] {
  return {
    graphId,
    entryNodeIds: ["searcher"],
    nodes: [
      { nodeId: "searcher", description: "Finds pages.", outputNodes: ["checker"] },
      { nodeId: "checker", description: "Checks.", handoffs: 2, outputNodes: outputs },
      { nodeId: "generator", description: "Writes the answer.", agentId: writerId, outputNodes: ["end"] },
    ],
  };
}

/** Starts a run of a graph of its own, and brings it to the node checker. */
async function atChecker(alice: Agent, { writerId = "", outputs, taskId = "" }: { writerId?: string; outputs?: string[]; taskId?: string } = {}): Promise<Run> {
  const graphId = unique("search");
  await alice.routing.register(graphOf(graphId, writerId, outputs));
  const run = await alice.routing.start(graphId, { taskId });
  await run.turn("searcher", undefined, { finished: true, output: "three pages" });
  return run;
}

async function inState(run: Run, wanted: v1.NodeState): Promise<v1.NodeRun[]> {
  return (await run.state()).nodes.filter(({ state }) => state === wanted);
}

async function active(run: Run): Promise<string[]> {
  return (await inState(run, v1.NodeState.ACTIVE)).map(({ nodeId }) => nodeId);
}

test("a choice moves the run", async () => {
  const alice = await agents.named("alice");
  const run = await atChecker(alice);
  const tools = await nodeTools(alice, run, "checker");
  const given = (await run.tools("checker")).tools;
  assert.deepEqual(Object.entries(tools).map(([name, { description }]) => [name, description]), given.map(({ name, description }) => [name, description]));
  const { told } = await converse(tools, [RIGHT]);
  const next = "Your turn is over: the run is at generator. Do nothing more.";
  assert.deepEqual(told, [{ chosen: "generator", active_nodes: ["generator"], next }]);
  assert.deepEqual(await active(run), ["generator"]);
  assert.deepEqual(await nodeTools(alice, run, "generator"), {});
  for await (const { event } of run.watch()) {
    if (event.case !== "turn" || event.value.nodeId !== "checker") continue;
    assert.deepEqual(event.value.calls.map(({ callId, name }) => [callId, name]), [["c0", "transfer_to_generator"]]);
    assert.equal(event.value.choice?.reason, "all facts hold");
    break;
  }
});

test("the end of the run is told", async () => {
  const alice = await agents.named("alice");
  const run = await atChecker(alice, { outputs: ["generator", "end"] });
  const { told } = await converse(await nodeTools(alice, run, "checker"), [["transfer_to_end", {}]]);
  assert.deepEqual(told, [{ chosen: "end", active_nodes: [], next: "Your turn is over: the run has ended. Do nothing more." }]);
  assert.equal((await run.state()).state, v1.RunState.COMPLETED);
});

test("refused arguments are told, and the third refusal ends the turn", async () => {
  const alice = await agents.named("alice");
  const first = await converse(await nodeTools(alice, await atChecker(alice), "checker"), [WRONG, RIGHT]);
  assert.deepEqual(first.told.map(({ error, chosen }) => error ?? chosen), ["FIELD_INVALID", "generator"]);
  assert.match(first.told[0]?.message ?? "", /reason/);
  const run = await atChecker(alice);
  const { told } = await converse(await nodeTools(alice, run, "checker"), [WRONG, ["transfer_to_generator", []], WRONG]);
  assert.deepEqual(told.map(({ error }) => error), ["FIELD_INVALID", "FIELD_INVALID", "FIELD_INVALID"]);
  assert.deepEqual(told.map(({ active_nodes: nodes }) => nodes), [undefined, undefined, ["generator"]]);
  assert.deepEqual(await active(run), ["generator"]);
});

test("a turn of a node that is not active is told", async () => {
  const alice = await agents.named("alice");
  const run = await atChecker(alice);
  const tools = await nodeTools(alice, run, "checker");
  await run.turn("checker", undefined, { finished: true });
  const { told, text } = await converse(tools, [RIGHT, "I stop."]);
  assert.deepEqual([told.map(({ error }) => error), text], [["NODE_NOT_ACTIVE"], "I stop."]);
  assert.deepEqual(await active(run), ["generator"]);
  await assert.rejects(nodeTools(alice, run, "checker"), (error) => error instanceof BatonError && error.reason === "NODE_NOT_ACTIVE");
});

test("without a choice the text is the output", async () => {
  const alice = await agents.named("alice");
  const run = await atChecker(alice);
  const { told, text } = await converse(await nodeTools(alice, run, "checker"), ["All of it is so."]);
  assert.deepEqual([told, await active(run)], [[], ["checker"]]);
  const step = await run.turn("checker", undefined, { finished: true, output: text });
  assert.deepEqual(step.nextNodeIds, ["generator"]);
  assert.deepEqual((await run.tools("generator")).inputs.map(({ output }) => output), ["All of it is so."]);
});

/** Returns bob, who works on the node generator, and alice with a task that carol has given to her. */
async function pair(): Promise<{ alice: Agent; bob: Agent; run: Run; taskId: string }> {
  const [alice, bob, carol] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol")];
  const offer = async (one: Offer): Promise<void> => {
    await (await one.accept()).complete();
  };
  alice.serve({ offer }).catch(() => undefined);
  const taskId = unique("ticket");
  await patient(carol.handOver(alice.id, taskId, { taskType: "support" }, [jsonSection("goals", ["write"])]));
  return { alice, bob, run: await atChecker(alice, { writerId: bob.id, taskId }), taskId };
}

test("a choice of another agent's node hands the task over", async () => {
  const { alice, bob, run, taskId } = await pair();
  const seen: unknown[] = [];
  let rejects = true;
  const offer = async (one: Offer): Promise<void> => {
    if (rejects) {
      rejects = false;
      await one.reject({ reason: v1.RejectReason.WRONG_TASK_TYPE, reasonText: "not mine" });
      return;
    }
    const takeover = await one.accept();
    seen.push(takeover.json("goals"), takeover.json("history_log"));
    await takeover.complete();
  };
  bob.serve({ offer }).catch(() => undefined);
  const { told } = await converse(await nodeTools(alice, run, "checker"), [RIGHT, RIGHT]);
  assert.deepEqual([told[0]?.error, told[0]?.rejections], ["NO_CANDIDATE", [`${bob.id}: not mine`]]);
  assert.deepEqual(told[1]?.handoff, { task_id: taskId, owner: bob.id });
  assert.equal(told[1].next, `Your turn is over: ${bob.id} has the task now. Do nothing more.`);
  const [goals, history] = seen as [string[], object[]];
  assert.deepEqual([goals, history[0]], [["write"], { role: "user", content: QUESTION }]);
  assert.deepEqual([(await alice.getTask(taskId)).ownerId, await active(run)], [bob.id, ["generator"]]);
});

test("a run that is aborted leaves its handoff open", async () => {
  const { alice, bob, run } = await pair();
  const [asked, go, abort] = [new EventTarget(), new AbortController(), new AbortController()];
  const offered = once(asked, "offer");
  const offer = async (one: Offer): Promise<void> => {
    asked.dispatchEvent(new Event("offer"));
    if (!go.signal.aborted) await once(go.signal, "abort");
    await (await one.accept()).complete();
  };
  bob.serve({ offer }).catch(() => undefined);
  const running = converse(await nodeTools(alice, run, "checker"), [RIGHT], abort.signal);
  running.catch(() => undefined);
  await patient(offered);
  abort.abort(new Error("the user has left"));
  await assert.rejects(running, /the user has left/);
  const [moving] = await inState(run, v1.NodeState.MOVING);
  go.abort();
  const { ownerId } = await patient(alice.resumeHandOver(moving?.handoffId ?? "", [jsonSection("goals", ["write"])]));
  assert.deepEqual([ownerId, await active(run)], [bob.id, ["generator"]]);
});
