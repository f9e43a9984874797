import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { type Agent, type Handlers, type Outcome, type OwnedTask, TaskRecalled, v1 } from "../src/index.js";
import { Queue } from "../src/queue.js";
import { Agents, Broker, patient, unique } from "./broker.js";

// Handlers that fail after the takeover, and tasks that go on after a loan of their own.

const { COMPLETED, FAILED, CREATED } = v1.TaskStatus;
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

function serve(agent: Agent, handlers: Handlers): { stop: AbortController; done: Promise<void> } {
  const stop = new AbortController();
  const done = agent.serve(handlers, { signal: stop.signal });
  done.catch(() => undefined);
  return { stop, done };
}

/** Serves offers by work that gets the owned task. */
function works(agent: Agent, work: (task: OwnedTask, signal: AbortSignal) => unknown): { stop: AbortController; done: Promise<void> } {
  return serve(agent, {
    offer: async (offer) => {
      const task = await (await offer.accept()).complete();
      await work(task, offer.signal);
    },
  });
}

async function lent(work: (task: OwnedTask) => unknown): Promise<Outcome> {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  works(bob, work);
  return patient(alice.delegate(bob.id, unique("ticket"), WORK, []));
}

test("a handler that raises after the takeover ends the loan as FAILED, with its words", async () => {
  const { status, details, epoch } = await lent(() => {
    throw new TypeError("the router is not a router");
  });
  assert.deepEqual([status, details, epoch], [FAILED, "TypeError: the router is not a router", 3n]);
});

test("the words of a failure are cut at the bound of the details", async () => {
  const { status, details } = await lent(() => {
    throw new Error("é".repeat(20_000));
  });
  assert.equal(status, FAILED);
  assert.deepEqual([Buffer.byteLength(details) > 16_380, Buffer.byteLength(details) <= 16_384], [true, true]);
  assert.match(details, /^Error: é+$/);
});

test("a result that is refused before it is sent ends the task as FAILED", async () => {
  const { status, details } = await lent((task) => task.finish({ text: "x".repeat(300 * 1024) }));
  assert.equal(status, FAILED);
  assert.match(details, /result_json has 307211 bytes as JSON, over the limit of 262144/);
});

test("a task that was transferred is FAILED too, and not left to its owner", async () => {
  const [alice, bob, taskId, failed] = [await agents.named("alice"), await agents.named("bob"), unique("ticket"), new Queue<boolean>()];
  const { stop, done } = works(bob, () => {
    failed.push(true);
    throw new Error("a bug");
  });
  await patient(alice.handOver(bob.id, taskId, WORK, []));
  await failed.next();
  stop.abort();
  await patient(done);
  const { status, details, ownerId } = await bob.getTask(taskId);
  assert.deepEqual([status, details, ownerId], [FAILED, "Error: a bug", bob.id]);
});

test("a handler that raises after it has finished or handed on the task changes nothing", async () => {
  const [alice, bob, carol, taskId] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol"), unique("ticket")];
  const { status, result } = await lent(async (task) => {
    await task.finish({ cause: "a loose cable" });
    throw new Error("too late");
  });
  assert.deepEqual([status, result], [COMPLETED, { cause: "a loose cable" }]);
  const owned = new Queue<OwnedTask>();
  works(carol, (task) => {
    owned.push(task);
  });
  const { stop, done } = works(bob, async (task) => {
    await task.handOver(carol.id, WORK, []);
    throw new Error("too late");
  });
  await patient(alice.handOver(bob.id, taskId, WORK, []));
  await patient(owned.next());
  stop.abort();
  await patient(done);
  const task = await carol.getTask(taskId);
  assert.deepEqual([task.status, task.ownerId], [CREATED, carol.id]);
});

test("a worker that stops has not failed", async () => {
  for (const isByHandler of [true, false]) {
    const [alice, begun] = [await agents.named("alice"), new Queue<string>()];
    const bob = await agents.connect({ ...broker.options("bob"), stopTimeoutMs: isByHandler ? 50 : 10_000 });
    const { stop, done } = works(bob, async ({ taskId }, signal) => {
      begun.push(taskId);
      // One handler ends by its own signal, after the time that a stop gives it; the other one by that of the program.
      const over = isByHandler ? signal : stop.signal;
      await new Promise((_, reject) => {
        over.addEventListener("abort", () => {
          reject(over.reason as Error);
        });
      });
    });
    const taskId = unique("ticket");
    await patient(alice.handOver(bob.id, taskId, WORK, []));
    await begun.next();
    stop.abort();
    await patient(done);
    assert.equal((await bob.getTask(taskId)).status, CREATED);
  }
});

test("a task is usable again after a loan of its own: finished, and recalled", async () => {
  const [carol, epochs] = [await agents.named("carol"), new Queue<bigint>()];
  works(carol, (task, signal) => {
    if (task.epoch === 3n) return task.finish({ half: 1 });
    return new Promise((resolve) => { signal.addEventListener("abort", resolve); });
  });
  const { status, result, epoch } = await lent(async (task) => {
    epochs.push(task.epoch);
    await task.delegate(carol.id, WORK, []);
    epochs.push(task.epoch);
    await task.report("half of it");
    await assert.rejects(task.delegate(carol.id, WORK, [], { loanTimeoutMs: 1_000 }), TaskRecalled);
    epochs.push(task.epoch);
    await task.finish({ whole: 1 });
  });
  assert.deepEqual(epochs.drain(), [2n, 4n, 6n]);
  assert.deepEqual([status, result, epoch], [COMPLETED, { whole: 1 }, 7n]);
});

test("a handler that raises after a loan of its own ends the task at its present epoch", async () => {
  const carol = await agents.named("carol");
  works(carol, (task) => task.finish());
  const { status, details } = await lent(async (task) => {
    await task.delegate(carol.id, WORK, []);
    throw new Error("the second half fails");
  });
  assert.deepEqual([status, details], [FAILED, "Error: the second half fails"]);
});
