import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { type Agent, type Offer, type ThreadStep, v1 } from "../src/index.js";
import { Agents, Broker, PATIENCE_MS, patient, refusal, unique } from "./broker.js";

// Threads: personas that change at boundaries, leases, and calls whose answers are lost.

let broker: Broker;
const agents = new Agents(() => broker);
before(async () => {
  broker = await Broker.start();
  const alice = await agents.named("alice");
  await withSpecs(alice);
  agents.close();
});
afterEach(() => {
  agents.close();
});
after(async () => {
  await broker.remove();
});

/** Registers the model and the personas, as an operator. */
async function withSpecs({ threads }: Agent): Promise<void> {
  const as = { operatorToken: broker.operatorToken };
  await threads.putModel({ modelId: "large", provider: "p", modelName: "m" }, as);
  for (const [specId, pluginIds] of [["concierge", ["notes", "agent_handoff"]], ["writer", ["spelling", "agent_handoff"]], ["mute", []]] as [string, string[]][]) {
    const spec = { specId, modelId: "large", systemPrompt: `You are ${specId}.`, pluginIds };
    assert.equal((await threads.putSpec(spec, as)).revision, 1n);
    assert.equal((await threads.putSpec(spec, as)).revision, 1n);
  }
  assert.equal((await threads.putSpec({ specId: "mute", modelId: "large", description: "says nothing" }, as)).revision, 2n);
  assert.equal((await threads.spec("mute", 1n)).description, "");
  const found: string[] = [];
  for await (const { specId } of threads.specs()) found.push(specId);
  for await (const { modelId } of threads.models()) found.push(modelId);
  assert.deepEqual(found.sort(), ["concierge", "large", "mute", "writer"]);
  await assert.rejects(threads.spec("mute", 3n), refusal("SPEC_UNKNOWN"));
  await assert.rejects(threads.putSpec({ specId: "mine", modelId: "large" }), refusal("PERMISSION_DENIED"));
}

test("the persona changes at the boundary", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  await assert.rejects(alice.threads.create("unknown"), refusal("HANDOFF_RESOLVE_FAILED"));
  const threadId = unique("support");
  const thread = await alice.threads.create("concierge", { threadId, participantIds: [bob.id] });
  const steps: ThreadStep[] = [];
  {
    await using run = await thread.run();
    for await (const step of run) {
      steps.push(step);
      if (step.number === 1n) {
        assert.match((await bob.threads.join(threadId).request("unknown")).warning, /no spec/);
        await bob.threads.join(threadId).request("writer");
        assert.equal((await thread.state()).inForceSpecId, "concierge");
      } else if (step.number === 2n) await thread.clear();
      else if (step.number === 3n) await thread.activate("mute");
      else break;
    }
    await assert.rejects(thread.clear(), refusal("HANDOFF_PLUGIN_MISSING"));
    assert.equal(run.step, steps.at(-1));
  }
  assert.deepEqual(steps.map(({ number, spec }) => `${number} ${spec.specId}`), ["1 concierge", "2 writer", "3 concierge", "4 mute"]);
  const [first, second, , last] = steps;
  assert.deepEqual([second?.deactivatePluginIds, second?.activatePluginIds], [["notes"], ["spelling"]]);
  assert.deepEqual([second?.request?.specId, second?.request?.outcome], ["writer", v1.ThreadRequestOutcome.PROMOTED]);
  assert.deepEqual([second?.spec.systemPrompt, second?.model.modelName, second?.switched], ["You are writer.", "m", true]);
  assert.deepEqual([last?.spec.revision, first?.request], [2n, undefined]);
  const state = await thread.state();
  assert.deepEqual([state.runId, state.activeAgent], ["", "mute"]);
  const kinds: unknown[] = [];
  for await (const { event, number } of thread.watch()) {
    kinds.push(event.case);
    if (number === state.logLength) break;
  }
  assert.deepEqual([kinds[0], kinds.at(-1), kinds.filter((kind) => kind === "boundary").length], ["created", "runEnded", 4]);
  const listed: string[] = [];
  for await (const one of bob.threads.list()) listed.push(one.threadId);
  assert.deepEqual(listed, [threadId]);
  await bob.workspace(`thread:${threadId}`).append("messages", { role: "user", text: "hello" });
});

test("the result of a delegation is in its thread", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const work = async (offer: Offer): Promise<void> => {
    const task = await (await offer.accept()).complete();
    await task.finish({ answer: 42 });
  };
  bob.serve({ offer: work }).catch(() => undefined);
  const [thread, taskId] = [await alice.threads.create("concierge"), unique("ticket")];
  const { epoch } = await patient(alice.delegate(bob.id, taskId, { taskType: "support" }, [], { threadId: thread.id }));
  const told: unknown[] = [];
  for await (const { value } of alice.workspace(`thread:${thread.id}`).entries({ topics: ["messages"] })) told.push(value);
  assert.equal(told.length, 1);
  const { data } = (told[0] as { content: { data: Record<string, unknown> }[] }).content[1] ?? {};
  assert.deepEqual([data?.["task_id"], data?.["outcome"], data?.["result"]], [taskId, "COMPLETED", { answer: 42 }]);
  const other = alice.delegate(bob.id, taskId, { taskType: "support" }, [], { epoch, threadId: unique("other") });
  await assert.rejects(other, refusal("PERMISSION_DENIED"));
});

test("one runner at a time has the thread and keeps its lease", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  alice.threads.keepMs = 50;
  const thread = await alice.threads.create("concierge", { participantIds: [bob.id] });
  const run = await thread.run();
  await assert.rejects(bob.threads.join(thread.id).run(), refusal("RUN_OPEN"));
  for (let turn = 0; turn < 2; turn++) {
    const before = (await thread.state()).leaseDeadline;
    const until = Date.now() + PATIENCE_MS;
    for (let isRenewed = false; !isRenewed && Date.now() < until;) {
      await wait(10);
      const { leaseDeadline } = await thread.state();
      isRenewed = leaseDeadline?.seconds !== before?.seconds || leaseDeadline?.nanos !== before?.nanos;
    }
    await run.nextStep();
  }
  assert.deepEqual([run.step.number, (await thread.state()).step], [3n, 3n]);
  await run.end();
  const other = await bob.threads.join(thread.id).run();
  assert.equal(other.step.number, 1n);
  await assert.rejects(run.nextStep(), (error) => refusal("RUN_FINAL")(error) || refusal("RUN_OPEN")(error));
  await other.end();
});

test("a boundary whose answer is lost is applied once", async () => {
  const alice = await agents.named("alice");
  const thread = await alice.threads.create("concierge");
  const entries = thread.watch();
  assert.equal((await patient(entries.next())).value?.event.case, "created");
  const run = await thread.run();
  await thread.request("writer");
  await broker.kill();
  const stepping = run.nextStep();
  await broker.restart();
  assert.equal((await patient(stepping)).spec.specId, "writer");
  await run.end();
  const kinds: unknown[] = [];
  while (kinds.at(-1) !== "runEnded") kinds.push((await patient(entries.next())).value?.event.case);
  assert.deepEqual(kinds, ["runBegan", "boundary", "requested", "requestEnded", "boundary", "runEnded"]);
  await entries.return();
});
