import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { type Agent, HandoffFailed, jsonSection, type Offer, v1 } from "../src/index.js";
import { Queue } from "../src/queue.js";
import { Agents, Broker, patient, unique } from "./broker.js";

// The time limit of `handOver`: the task moves in time, or the handoff is cancelled and the task stays.

const GOALS = [jsonSection("goals", ["find the cause"])];
const SUPPORT = { taskType: "support" };

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

async function stays(alice: Agent, ticket: string): Promise<void> {
  const { ownerId, epoch, openHandoffId } = await alice.getTask(ticket);
  assert.deepEqual([ownerId, epoch, openHandoffId], [alice.id, 1n, ""]);
}

test("a task moves within the time limit", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const offer = async (one: Offer): Promise<void> => {
    await (await one.accept()).complete();
  };
  bob.serve({ offer }).catch(() => undefined);
  const handed = await patient(alice.handOver(bob.id, unique("ticket"), SUPPORT, GOALS, { timeoutMs: 120_000 }));
  assert.deepEqual([handed.ownerId, handed.epoch], [bob.id, 2n]);
});

test("the time limit cancels the handoff, and the task stays", async () => {
  const [alice, bob, carol] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol")];
  const [ticket, next, ran] = [unique("ticket"), unique("ticket"), new Queue<string>()];
  bob.serve({ offer: (one) => one.reject({ reason: v1.RejectReason.NO_SKILL, reasonText: "routers only" }) }).catch(() => undefined);
  const request = { ...SUPPORT, fallbackCandidates: [carol.id] };
  await assert.rejects(patient(alice.handOver(bob.id, ticket, request, GOALS, { timeoutMs: 2_000 })), (error) => {
    assert.ok(error instanceof HandoffFailed);
    assert.equal(error.reason, "HANDOFF_CANCELLED");
    assert.deepEqual(error.rejections.map(({ agentId, text }) => [agentId, text]), [[bob.id, "routers only"]]);
    return true;
  });
  await stays(alice, ticket);
  // The request of the cancelled handoff is not in the mailbox of an agent that serves later.
  const offer = (one: Offer): void => {
    ran.push(one.taskId);
  };
  carol.serve({ offer }).catch(() => undefined);
  const late = alice.handOver(carol.id, next, SUPPORT, GOALS, { timeoutMs: 1_000 });
  await assert.rejects(patient(late), (error) => error instanceof HandoffFailed && error.reason === "HANDOFF_CANCELLED");
  for await (const taskId of ran) {
    assert.equal(taskId, next);
    break;
  }
});

test("a takeover just before the limit counts", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [ticket, cancelling] = [unique("ticket"), new AbortController()];
  const offer = async (one: Offer): Promise<void> => {
    const takeover = await one.accept();
    while (!cancelling.signal.aborted) await wait(20);
    await takeover.complete();
  };
  bob.serve({ offer }).catch(() => undefined);
  const cancel = alice.cancel.bind(alice);
  alice.cancel = async (handoffId, text, options) => {
    cancelling.abort();
    while ((await alice.getTask(ticket)).ownerId !== bob.id) await wait(20);
    return cancel(handoffId, text, options);
  };
  const handed = await patient(alice.handOver(bob.id, ticket, SUPPORT, GOALS, { timeoutMs: 4_000 }));
  assert.ok(cancelling.signal.aborted, "the limit has passed first");
  assert.deepEqual([handed.ownerId, handed.epoch], [bob.id, 2n]);
});

test("an owned task passes the time limit on, and one that no timer has is refused", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const ticket = unique("ticket");
  const task = await alice.createTask(ticket, SUPPORT);
  await assert.rejects(task.handOver(bob.id, SUPPORT, GOALS, { timeoutMs: 2 ** 31 }), RangeError);
  const handing = patient(task.handOver(bob.id, SUPPORT, GOALS, { timeoutMs: 1_000 }));
  await assert.rejects(handing, (error) => error instanceof HandoffFailed && error.reason === "HANDOFF_CANCELLED");
  await stays(alice, ticket);
});
