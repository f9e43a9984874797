import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { type Agent, type Handlers, type Outcome, type OwnedTask, v1 } from "../src/index.js";
import { Queue } from "../src/queue.js";
import { Agents, Broker, patient, unique } from "./broker.js";

// New tasks of a handler are parts of its task, and the progress of lent tasks.

const { IN_PROGRESS, WAITING_FOR_INPUT, COMPLETED } = v1.TaskStatus;
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

function works(agent: Agent, work: (task: OwnedTask) => unknown, more: Handlers = {}): void {
  agent.serve({
    offer: async (offer) => {
      await work(await (await offer.accept()).complete());
    },
    ...more,
  }).catch(() => undefined);
}

/** Has bob work on a task that alice lends, while carol takes the tasks that bob requests and finishes them. */
async function lent(work: (task: OwnedTask, bob: Agent, carol: Agent) => unknown): Promise<Outcome & { alice: Agent; bob: Agent }> {
  const [alice, bob, carol] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol")];
  works(carol, (task) => task.finish());
  works(bob, (task) => work(task, bob, carol));
  const outcome = await patient(alice.delegate(bob.id, unique("ticket"), WORK, []));
  return { ...outcome, alice, bob };
}

test("a new task that a handler requests is a part of its task", async () => {
  const parts = [unique("lent"), unique("handed"), unique("requested"), unique("second")] as const;
  const { taskId, status, alice } = await lent(async (task, bob, carol) => {
    await bob.delegate(carol.id, parts[0], WORK, []);
    await bob.handOver(carol.id, parts[1], WORK, []);
    await new Promise(setImmediate); // the handler's context is that of its promises, too
    await bob.requestHandoff(carol.id, parts[2], create(v1.HandoffRequestSchema, WORK));
    await task.delegate(carol.id, WORK, []); // its own task is no part of itself
    await bob.delegate(carol.id, parts[3], WORK, []);
    await task.finish();
  });
  assert.equal(status, COMPLETED);
  assert.deepEqual((await alice.getTask(taskId)).partTaskIds, [...parts].reverse());
});

test("a named parent stays, also none, and a task that exists already gets none", async () => {
  const [none, known, named] = [unique("none"), unique("known"), unique("named")];
  const parents: string[] = [];
  const { details } = await lent(async (task, bob, carol) => {
    await bob.handOver(carol.id, none, { ...WORK, parentTaskId: "" }, []);
    const { handoffId } = await bob.requestHandoff(carol.id, known, { ...WORK, parentTaskId: "", timeouts: {} });
    await bob.cancel(handoffId).catch(() => undefined);
    await bob.handOver(carol.id, known, WORK, []).catch(() => undefined);
    await bob.delegate(carol.id, named, { ...WORK, parentTaskId: task.taskId }, []);
    for (const id of [none, known, named]) parents.push((await bob.getTask(id)).parentTaskId === task.taskId ? "handler" : "");
    await task.finish();
  });
  assert.equal(details, "");
  assert.deepEqual(parents, ["", "", "handler"]);
});

test("a task of a handler whose own task has ended is no part of it", async () => {
  const [later, made] = [unique("later"), new Queue<string>()];
  const { status } = await lent(async (task, bob, carol) => {
    await task.finish();
    await bob.delegate(carol.id, later, WORK, []);
    made.push((await bob.getTask(later)).parentTaskId);
  });
  assert.equal(status, COMPLETED);
  assert.equal(await patient(made.next()), "");
});

test("a request outside of a handler has no parent, and within a task it has", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [free, part] = [unique("free"), unique("part")];
  await alice.requestHandoff(bob.id, free, WORK);
  assert.equal((await alice.getTask(free)).parentTaskId, "");
  for await (const task of alice.ownedTasks()) await task.within(() => alice.requestHandoff(bob.id, part, WORK));
  assert.equal((await alice.getTask(part)).parentTaskId, free);
});

test("the progress of a lent task reaches the caller in order", async () => {
  const [alice, bob, carol, dave] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol"), await agents.named("dave")];
  works(carol, () => undefined, { prompt: (question) => question.answer("the third") });
  works(dave, async (task) => {
    await task.report("from the inner loan");
    await task.finish();
  });
  works(bob, async (task) => {
    await task.report("begun", { progress: 0.25 });
    await task.ask("Which router?", carol.id);
    if (task.epoch === 2n) await task.delegate(dave.id, WORK, []);
    await task.report("nearly", { progress: 0.75 });
    await task.finish({ done: true });
  });
  const taskId = unique("ticket");
  for (const epoch of [1n, 5n]) {
    const seen: unknown[] = [];
    const onProgress = ({ status, progress, details, prompt }: v1.TaskStatusUpdate): void => {
      seen.push([status, progress, details || prompt?.question]);
      if (seen.length === 2) throw new Error("a bug of the callback");
    };
    const { result } = await patient(alice.delegate(bob.id, taskId, WORK, [], { epoch, onProgress }));
    const inner = epoch === 1n ? [[IN_PROGRESS, undefined, "from the inner loan"]] : [];
    assert.deepEqual(seen, [
      [IN_PROGRESS, 0.25, "begun"],
      [WAITING_FOR_INPUT, undefined, "Which router?"],
      ...inner,
      [IN_PROGRESS, 0.75, "nearly"],
    ]);
    assert.deepEqual(result, { done: true });
  }
});
test("an error of the watch does not end the call", async () => {
  const logged: string[] = [];
  const [alice, bob] = [await agents.connect({ ...broker.options("alice"), log: (text) => logged.push(text) }), await agents.named("bob")];
  alice.tasks.watch = () => {
    throw new Error("no watches");
  };
  works(bob, (task) => task.finish({ done: true }));
  const { result } = await patient(alice.delegate(bob.id, unique("ticket"), WORK, [], { onProgress: () => undefined }));
  assert.deepEqual(result, { done: true });
  assert.ok(logged.some((text) => text.includes("progress")));
});
