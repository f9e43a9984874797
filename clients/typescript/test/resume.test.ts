import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { Code } from "@connectrpc/connect";
import { type Agent, BatonError, jsonSection, type Offer, v1 } from "../src/index.js";
import { Queue } from "../src/queue.js";
import { Agents, Broker, patient, unique } from "./broker.js";

// Workers that restart: their next process goes on with the tasks that they own.

const { CREATED, COMPLETED, FAILED } = v1.TaskStatus;
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

/** Returns bob, and the ids of tasks that an earlier process of him took over from alice and left. */
async function restarted(count: number, credit = 16): Promise<{ alice: Agent; bob: Agent; taskIds: string[]; asked: number[] }> {
  const options = { ...broker.options("bob"), credit };
  const [alice, earlier] = [await agents.named("alice"), await agents.connect(options)];
  earlier.serve({ offer: async (offer) => { await (await offer.accept()).complete(); } }).catch(() => undefined);
  const taskIds = [];
  for (let number = 0; number < count; number++) {
    const taskId = unique("ticket");
    taskIds.push(taskId);
    await patient(alice.handOver(earlier.id, taskId, WORK, [jsonSection("goals", [taskId])]));
  }
  earlier.close();
  const bob = await agents.connect(options);
  return { alice, bob, taskIds, asked: giving(bob) };
}

/** Has the call give owned tasks that the process does not work on, as a broker does that knows the processes. */
function giving(bob: Agent): number[] {
  const asked: number[] = [];
  const given = new Set<string>();
  bob.greeted = () => Promise.resolve(true);
  bob.tasks.resume = async (instanceId, most) => {
    assert.equal(instanceId, bob.instanceId);
    asked.push(most);
    const tasks = [];
    for await (const task of bob.tasks.list({ ownerId: bob.id, statuses: [CREATED] })) {
      if (!given.has(task.taskId)) tasks.push(await bob.getTask(task.taskId));
    }
    const next = tasks.reverse().slice(0, most);
    for (const { taskId } of next) given.add(taskId);
    return next;
  };
  return asked;
}

test("the next process of a worker goes on with its tasks, with their last context", async () => {
  const { alice, bob, taskIds } = await restarted(2);
  const seen: unknown[] = [];
  const done = new Queue<string>();
  const stop = new AbortController();
  const offer = async (one: Offer): Promise<void> => {
    const takeover = await one.accept();
    const task = await takeover.complete();
    await assert.rejects(one.reject({ reason: v1.RejectReason.OVERLOADED }), /decided/);
    seen.push([one.isResumed, task.isResumed, one.request, one.senderId, one.epoch, task.epoch, takeover.json("goals")]);
    assert.ok(bob.holdings.listed().includes(task.taskId));
    await task.finish();
    done.push(task.taskId);
  };
  const serving = bob.serve({ offer }, { signal: stop.signal, resume: true });
  const ended = [await patient(done.next()), await patient(done.next())];
  assert.deepEqual(new Set(ended), new Set(taskIds));
  const expected = taskIds.map((taskId) => [true, true, undefined, alice.id, 1n, 2n, [taskId]]);
  assert.deepEqual(new Set(seen), new Set(expected));
  const later = unique("ticket");
  await patient(alice.handOver(bob.id, later, WORK, [jsonSection("goals", [later])]));
  await patient(done.next());
  assert.deepEqual(seen.at(-1), [false, false, (seen.at(-1) as unknown[])[2], alice.id, 1n, 2n, [later]]);
  stop.abort();
  await patient(serving);
  assert.deepEqual(bob.holdings.listed(), []);
});

test("no more tasks are resumed than there is room for, and the rest as handlers end", async () => {
  const { bob, taskIds, asked } = await restarted(5, 2);
  const begun = new Queue<{ taskId: string; go: () => void }>();
  let [running, most] = [0, 0];
  bob.serve({
    offer: async (one) => {
      const task = await (await one.accept()).complete();
      most = Math.max(most, ++running);
      await new Promise<void>((go) => {
        begun.push({ taskId: task.taskId, go });
      });
      await task.finish();
      running--;
    },
  }, { resume: true }).catch(() => undefined);
  const seen = [];
  for (const _ of taskIds) {
    const one = await patient(begun.next());
    seen.push(one?.taskId);
    one?.go();
  }
  assert.deepEqual(new Set(seen), new Set(taskIds));
  assert.deepEqual([asked[0], Math.max(...asked), most <= 2], [2, 2, true]);
});

test("a worker without resume does not ask", async () => {
  const { alice, bob, asked } = await restarted(1);
  const done = new Queue<string>();
  bob.serve({
    offer: async (one) => {
      await (await one.accept()).complete();
      done.push(one.taskId);
    },
  }).catch(() => undefined);
  const later = unique("ticket");
  await patient(alice.handOver(bob.id, later, WORK, []));
  assert.equal(await patient(done.next()), later);
  assert.deepEqual(asked, []);
});

test("the handler of a resumed task that raises ends it as FAILED, and a stop does not", async () => {
  const { bob, taskIds: [first = "", second = ""] } = await restarted(2);
  const stop = new AbortController();
  const begun = new Queue<string>();
  const serving = bob.serve({
    offer: async (one) => {
      begun.push(one.taskId);
      if (one.taskId === first) throw new Error("no such router");
      await new Promise((_, reject) => {
        stop.signal.addEventListener("abort", () => {
          reject(stop.signal.reason as Error);
        });
      });
    },
  }, { signal: stop.signal, resume: true });
  await patient(begun.next());
  await patient(begun.next());
  while ((await bob.getTask(first)).status !== FAILED);
  stop.abort();
  await patient(serving);
  assert.equal((await bob.getTask(first)).details, "Error: no such router");
  assert.equal((await bob.getTask(second)).status, CREATED);
});

test("a loop over handoffs gets resumed tasks too", async () => {
  const { bob, taskIds: [taskId = ""] } = await restarted(1);
  for await (const offer of bob.handoffs({ resume: true })) {
    const task = await (await offer.accept()).complete();
    assert.deepEqual([offer.isResumed, bob.holdings.listed()], [true, [taskId]]);
    await task.finish();
    assert.deepEqual(bob.holdings.listed(), []);
    break;
  }
  assert.equal((await bob.getTask(taskId)).status, COMPLETED);
});

test("a loop that is left before it takes a resumed task leaves the task open", async () => {
  const { bob, taskIds: [taskId = ""] } = await restarted(1);
  for await (const offer of bob.handoffs({ resume: true })) {
    assert.equal(offer.isResumed, true);
    break;
  }
  assert.deepEqual([(await bob.getTask(taskId)).status, bob.holdings.listed()], [CREATED, []]);
});

test("a broker without the call is logged once, and the worker goes on", async () => {
  const logged: string[] = [];
  const [alice, bob] = [await agents.named("alice"), await agents.connect({ ...broker.options("bob"), log: (text) => logged.push(text) })];
  bob.greeted = () => Promise.resolve(true);
  bob.tasks.resume = () => Promise.reject(new BatonError(Code.Unimplemented, "not here"));
  const done = new Queue<string>();
  bob.serve({
    offer: async (one) => {
      const task = await (await one.accept()).complete();
      await task.finish();
      done.push(one.taskId);
    },
  }, { resume: true }).catch(() => undefined);
  for (let number = 0; number < 2; number++) {
    await patient(alice.delegate(bob.id, unique("ticket"), WORK, []));
    await patient(done.next());
  }
  assert.equal(logged.filter((text) => text.includes("not resumed")).length, 1);
});

test("a broker that knows processes gives their tasks to the next one", async (t) => {
  const options = broker.options("bob");
  const [alice, earlier] = [await agents.named("alice"), await agents.connect(options)];
  try {
    await earlier.tasks.resume(earlier.instanceId, 1);
  } catch (error) {
    if (!(error instanceof BatonError) || error.code !== Code.Unimplemented) throw error;
    t.skip("this broker knows no processes");
    return;
  }
  const owned = new Queue<string>();
  earlier.serve({
    offer: async (one) => {
      owned.push((await (await one.accept()).complete()).taskId);
      await new Promise(() => undefined);
    },
  }).catch(() => undefined);
  const lending = alice.delegate(earlier.id, unique("ticket"), WORK, [jsonSection("goals", ["find the cause"])]);
  await patient(owned.next());
  earlier.close();
  const bob = await agents.connect(options);
  bob.serve({
    offer: async (one) => {
      const takeover = await one.accept();
      await (await takeover.complete()).finish({ goals: takeover.json("goals") as string[], resumed: one.isResumed });
    },
  }, { resume: true }).catch(() => undefined);
  assert.deepEqual((await patient(lending)).result, { goals: ["find the cause"], resumed: true });
});
