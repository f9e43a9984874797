import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { type Agent, Gap, jsonSection, Poison, type TaskEvent, v1 } from "../src/index.js";
import { Tasks } from "../src/watching.js";
import { Agents, Broker, patient, refusal, unique } from "./broker.js";

// Reading and watching tasks and handoffs, dead letters and the audit log.

const { IN_PROGRESS, COMPLETED } = v1.TaskStatus;
const WORK = { taskType: "work" };

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

/** Requests a handoff to an agent that does not answer. */
async function asked(alice: Agent, bob: Agent, taskId = unique("ticket"), more: Partial<{ parentTaskId: string }> = {}): Promise<{ taskId: string; handoffId: string }> {
  const { handoffId } = await alice.requestHandoff(bob.id, taskId, { ...WORK, ...more });
  return { taskId, handoffId };
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}

test("tasks and handoffs are listed by their filters, over all pages", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const whole = await asked(alice, bob);
  const parts = [];
  for (let number = 0; number < 3; number++) parts.push(await asked(alice, bob, unique("part"), { parentTaskId: whole.taskId }));
  await alice.updateStatus(parts[0]?.taskId ?? "", 1n, { status: IN_PROGRESS });
  const listed = await all(alice.tasks.list({ parentTaskId: whole.taskId }));
  assert.deepEqual(listed.map(({ taskId }) => taskId), parts.map(({ taskId }) => taskId).reverse());
  const working = await all(alice.tasks.list({ ownerId: alice.id, statuses: [IN_PROGRESS] }));
  assert.deepEqual(working.map(({ taskId }) => taskId), [parts[0]?.taskId]);
  const handoffs = await all(alice.handoffRecords.list({ candidateId: bob.id, openOnly: true }));
  assert.deepEqual(handoffs.map(({ handoffId }) => handoffId), [...parts.reverse(), whole].map(({ handoffId }) => handoffId));
  assert.deepEqual(await all(alice.handoffRecords.list({ taskId: whole.taskId, states: [v1.HandoffState.FAILED] })), []);
});

test("an agent begins a task without a handoff, and lists it by its conversation", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [whole, part, conversationId] = [unique("whole"), unique("part"), unique("chat 7")];
  const task = await alice.createTask(whole, { taskType: "bug", summary: "it crashes", conversationId });
  assert.deepEqual([task.epoch, task.status], [1n, v1.TaskStatus.CREATED]);
  await task.checkpoint([jsonSection("goals", ["find the cause"])]);
  await alice.createTask(part, { taskType: "bug", parentTaskId: whole, conversationId });
  const { summary, partTaskIds } = await alice.getTask(whole);
  assert.deepEqual([summary, partTaskIds], ["it crashes", [part]]);
  const listed = await all(alice.tasks.list({ conversationId }));
  assert.deepEqual(listed.map(({ taskId }) => taskId), [part, whole]);
  await assert.rejects(alice.createTask(whole, { taskType: "bug" }), refusal("TASK_EXISTS"));
  await assert.rejects(bob.createTask(whole, { taskType: "bug" }), refusal("NOT_OWNER"));
});

test("a watch of a task goes on over a restart of the broker, to the final status", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const { taskId, handoffId } = await asked(alice, bob);
  const events: TaskEvent[] = [];
  const watching = (async (): Promise<void> => {
    for await (const event of alice.tasks.watch(taskId)) events.push(event);
  })();
  await alice.updateStatus(taskId, 1n, { status: IN_PROGRESS, progress: 0.5, details: "half of it" });
  while (events.length < 2) await new Promise((resolve) => setImmediate(resolve));
  await broker.kill();
  await broker.restart();
  await alice.cancel(handoffId);
  await alice.updateStatus(taskId, 1n, { status: COMPLETED, details: "all of it" });
  await patient(watching);
  assert.deepEqual(events.map(({ number }) => number), events.map((_, index) => BigInt(index + 1)));
  const updates = events.flatMap(({ update }) => (update ? [[update.status, update.progress, update.details]] : []));
  assert.deepEqual(updates, [[IN_PROGRESS, 0.5, "half of it"], [COMPLETED, undefined, "all of it"]]);
  const last = events.at(-1)?.number ?? 0n;
  assert.deepEqual((await all(alice.tasks.watch(taskId, { after: last - 1n }))).map(({ number }) => number), [last]);
  assert.deepEqual(await patient(all(alice.tasks.watch(taskId, { after: last }))), []);
});

test("a watch of a task ends with its signal, and says where entries are missing", async () => {
  const [alice, bob, abort] = [await agents.named("alice"), await agents.named("bob"), new AbortController()];
  const { taskId } = await asked(alice, bob);
  for await (const { number } of alice.tasks.watch(taskId, { signal: abort.signal })) {
    assert.equal(number, 1n);
    abort.abort();
  }
  await assert.rejects(all(alice.tasks.watch(unique("none"))), refusal("TASK_UNKNOWN"));
  await assert.rejects(all(alice.tasks.watch(taskId, { after: 1_000n })), (error) => error instanceof Gap);
});

test("a watch of a handoff shows each step to the end", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const { handoffId } = await asked(alice, bob);
  const states: v1.HandoffState[] = [];
  for await (const { state } of alice.handoffRecords.watch(handoffId)) {
    if (states.push(state) === 1) await alice.cancel(handoffId);
  }
  assert.deepEqual(states, [v1.HandoffState.REQUESTED, v1.HandoffState.CANCELLED]);
});

test("a watch of all handoffs goes on over a restart of the broker", async () => {
  const [alice, bob, stop] = [await agents.named("alice"), await agents.named("bob"), new AbortController()];
  const open = await asked(alice, bob);
  const seen: (string | undefined)[] = [];
  let later = "";
  for await (const { event } of alice.handoffRecords.watchAll({ senderId: alice.id, signal: stop.signal })) {
    seen.push(event.case === "handoff" ? event.value.handoffId : event.case);
    if (event.case === "caughtUp") {
      await broker.stop();
      await broker.restart();
      later = (await asked(alice, bob)).handoffId;
    } else if (event.case === "handoff" && event.value.handoffId === later) stop.abort();
  }
  assert.deepEqual([seen[0], seen[1], seen.at(-1)], [open.handoffId, "caughtUp", later]);
  assert.equal(seen.filter((one) => one === "caughtUp").length, 1);
});

test("dead letters are listed, redriven and discarded, and the audit log says so", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const { operatorToken } = broker;
  let isPoison = true;
  const got: string[] = [];
  bob.serve({
    info: ({ text }) => {
      if (isPoison) throw new Poison("not this one");
      got.push(text);
    },
  }).catch(() => undefined);
  for (const text of ["one", "two"]) await alice.send(bob.id, {}, create(v1.InfoSchema, { text }));
  const filter = { senderId: alice.id };
  let parked: v1.DeadLetter[] = [];
  while (parked.length < 2) parked = await all(alice.deadLetters.list(filter));
  const [second, first] = parked.map(({ deadLetterId }) => deadLetterId);
  assert.ok(first !== undefined && second !== undefined);
  assert.equal((await alice.deadLetters.get(first)).envelopeBytes.length > 100, true);
  await assert.rejects(alice.deadLetters.discard(first), refusal("PERMISSION_DENIED"));
  isPoison = false;
  const redriven = await alice.deadLetters.redrive(first, { operatorToken });
  assert.equal(redriven.state, v1.DeadLetterState.REDRIVEN);
  const discarded = await alice.deadLetters.discard(second, { operatorToken, reasonText: "old" });
  assert.equal(discarded.state, v1.DeadLetterState.DISCARDED);
  while (got.length === 0) await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(got, ["one"]);
  const entries = await all(alice.auditLog.entries({ operatorToken }));
  assert.deepEqual(entries.map(({ number }) => number), entries.map((_, index) => BigInt(index + 1)));
  assert.ok(entries.some(({ subject, details }) => subject === second && details.includes("old")));
  const rest = await all(alice.auditLog.entries({ operatorToken, after: BigInt(entries.length - 1) }));
  assert.deepEqual(rest.map(({ number }) => number), [BigInt(entries.length)]);
  await assert.rejects(all(alice.auditLog.entries()), refusal("PERMISSION_DENIED"));
});

test("an operator gives a task to another agent", async () => {
  const [alice, bob, carol] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol")];
  const { taskId, handoffId } = await asked(alice, bob);
  await assert.rejects(alice.tasks.reassign(taskId, carol.id, { expectedEpoch: 1n }), refusal("PERMISSION_DENIED"));
  const { operatorToken } = broker;
  await assert.rejects(alice.tasks.reassign(taskId, carol.id, { expectedEpoch: 7n, operatorToken }), refusal("EPOCH_AHEAD"));
  const { task, handoff } = await alice.tasks.reassign(taskId, carol.id, { expectedEpoch: 1n, reasonText: "alice is ill", operatorToken });
  assert.deepEqual([task?.ownerId, task?.epoch, handoff?.receiverId], ["baton.coordinator", 2n, carol.id]);
  assert.equal((await alice.getHandoff(handoffId)).state, v1.HandoffState.CANCELLED);
});

test("a final status is found in the custody log, by its epoch", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  bob.serve({
    offer: async (offer) => {
      const task = await (await offer.accept()).complete();
      await task.report("half of it");
      await task.finish({ at: Number(task.epoch) });
    },
  }).catch(() => undefined);
  const taskId = unique("ticket");
  assert.ok(alice.tasks instanceof Tasks);
  await patient(alice.delegate(bob.id, taskId, WORK, [jsonSection("goals", [])]));
  await patient(alice.delegate(bob.id, taskId, WORK, [], { epoch: 3n }));
  const { custodyLength } = await alice.getTask(taskId);
  const results = [];
  for (const epoch of [1n, 2n, 3n, 4n, 5n]) {
    results.push((await alice.tasks.finalStatusAt(taskId, epoch, custodyLength))?.update?.resultJson);
  }
  assert.deepEqual(results, [undefined, '{"at":2}', undefined, '{"at":4}', undefined]);
});

test("dead letters are exported and redriven together", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const { operatorToken } = broker;
  bob.serve({
    info: () => {
      throw new Poison("not this one");
    },
  }).catch(() => undefined);
  for (const text of ["one", "two"]) await alice.send(bob.id, {}, create(v1.InfoSchema, { text }));
  const filter = { senderId: alice.id };
  let letters: v1.DeadLetter[] = [];
  while (letters.length < 2) letters = await all(alice.deadLetters.export(filter, { operatorToken }));
  assert.ok(letters.every(({ envelopeBytes }) => envelopeBytes.length > 100));
  assert.deepEqual(await all(alice.deadLetters.export({ taskId: unique("none") })), []);
  const tried = await all(alice.deadLetters.redriveAll(filter, { operatorToken, dryRun: true }));
  assert.deepEqual(tried.map(({ deadLetter }) => deadLetter?.state), [v1.DeadLetterState.PARKED, v1.DeadLetterState.PARKED]);
  // A call that is cut off leaves the rest.
  for await (const { deadLetter } of alice.deadLetters.redriveAll(filter, { operatorToken, maxPerSecond: 0.01 })) {
    assert.deepEqual([deadLetter?.deadLetterId, deadLetter?.state], [letters[0]?.deadLetterId, v1.DeadLetterState.REDRIVEN]);
    break;
  }
  const rest = await all(alice.deadLetters.redriveAll({ ...filter, agentId: bob.id }, { operatorToken, toAgentId: alice.id }));
  assert.equal(rest[0]?.deadLetter?.deadLetterId, letters[1]?.deadLetterId);
  assert.equal(rest[0]?.error, undefined);
  await assert.rejects(all(alice.deadLetters.redriveAll({ taskId: unique("none") }, { operatorToken })), refusal("NOTHING_MATCHES"));
});
