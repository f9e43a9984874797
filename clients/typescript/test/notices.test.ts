import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { type Agent, Delivery, HandoffFailed, makeEnvelope, NoAnswer, type OwnedTask, type Recalled, TaskRecalled, v1 } from "../src/index.js";
import { loanOf } from "../src/loans.js";
import { Queue } from "../src/queue.js";
import type { Session } from "../src/session.js";
import { Agents, Broker, patient, unique } from "./broker.js";

// Tasks that the broker takes away for silence or with their parents, and questions that are taken up again.

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

/** Has the agent get a notice of the broker, and resolves with its acknowledgement. */
function notice(agent: Agent, taskId: string, epoch: bigint, errorCode: v1.ErrorCode, nextStep: v1.NextStep): Promise<string | undefined> {
  const payload = create(v1.ErrorNotificationSchema, { errorCode, errorMessage: "the words of the broker", nextStep });
  const envelope = makeEnvelope("baton", agent.id, { taskId, epoch }, payload);
  return new Promise((resolve) => {
    const ask = (request: { value: { outcome: { case?: string } } }): Promise<unknown> => {
      resolve(request.value.outcome.case);
      return Promise.resolve({ case: "acknowledged", value: {} });
    };
    const session = { ask, isOpen: true, welcome: create(v1.WelcomeSchema) } as unknown as Session;
    agent.mail.route(new Delivery(create(v1.DeliverySchema, { deliveryId: "1" }), envelope, payload, session));
  });
}

interface Working {
  owned: Queue<OwnedTask>;
  stopped: Queue<unknown>;
  recalled: Queue<Recalled>;
}

function working(agent: Agent): Working {
  const [owned, stopped, recalled] = [new Queue<OwnedTask>(), new Queue<unknown>(), new Queue<Recalled>()];
  agent.serve({
    offer: async (offer) => {
      owned.push(await (await offer.accept()).complete());
      await new Promise((resolve) => {
        offer.signal.addEventListener("abort", resolve);
      });
      stopped.push(offer.signal.reason);
      throw offer.signal.reason;
    },
    recalled: (one) => {
      recalled.push(one);
    },
  }).catch(() => undefined);
  return { owned, stopped, recalled };
}

test("a loan that is abandoned ends the call that waits", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const { owned } = working(bob);
  const taskId = unique("ticket");
  const lending = alice.delegate(bob.id, taskId, WORK, []);
  lending.catch(() => undefined);
  await patient(owned.next());
  assert.equal(await notice(alice, taskId, 3n, v1.ErrorCode.TASK_ABANDONED, v1.NextStep.KEEP_TASK), "ack");
  await assert.rejects(patient(lending), (error) => {
    assert.ok(error instanceof TaskRecalled);
    assert.deepEqual([error.reason, error.epoch, error.isOwner, error.text], ["ABANDONED", 3n, true, "the words of the broker"]);
    return true;
  });
});

test("a task that is abandoned or cancelled stops its handler, which has not failed", async () => {
  const { TASK_ABANDONED, TASK_CANCELED } = v1.ErrorCode;
  for (const [code, reason, epoch] of [[TASK_ABANDONED, "ABANDONED", 3n], [TASK_CANCELED, "CANCELED", 2n]] as const) {
    const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
    const { owned, stopped, recalled } = working(bob);
    const taskId = unique("ticket");
    await patient(alice.handOver(bob.id, taskId, WORK, []));
    const task = await patient(owned.next());
    assert.deepEqual(bob.holdings.listed(), [taskId]);
    const signal = task?.signal;
    assert.equal(await notice(bob, taskId, epoch, code, v1.NextStep.DROP_TASK), "ack");
    const why = await patient(stopped.next());
    assert.ok(why instanceof TaskRecalled);
    assert.deepEqual([why.reason, why.epoch, why.isOwner, signal?.aborted], [reason, epoch, false, true]);
    const told = await patient(recalled.next());
    assert.deepEqual([told?.reason, told?.taskId], [reason, taskId]);
    assert.deepEqual(bob.holdings.listed(), []);
    assert.equal((await bob.getTask(taskId)).status, v1.TaskStatus.CREATED);
  }
});

test("a cancelled task ends the calls of its owner", async () => {
  const [alice, bob, carol] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol")];
  const { owned } = working(bob);
  const [loan, offered] = [unique("lent"), unique("offered")];
  alice.serve({}).catch(() => undefined);
  const lent = new Queue<boolean>();
  const onView = (view: v1.SenderView): void => {
    if (view === v1.SenderView.HANDOFF_COMPLETED) lent.push(true);
  };
  const lending = alice.delegate(bob.id, loan, WORK, [], { onView });
  const handing = alice.handOver(carol.id, offered, WORK, []);
  for (const call of [lending, handing]) call.catch(() => undefined);
  await patient(owned.next());
  // Until the delegator knows that the task is lent, a cancellation ends the handoff instead.
  await patient(lent.next());
  for (const [taskId, epoch] of [[loan, 3n], [offered, 1n]] as const) {
    await notice(alice, taskId, epoch, v1.ErrorCode.TASK_CANCELED, v1.NextStep.DROP_TASK);
  }
  await assert.rejects(patient(lending), (error) => error instanceof TaskRecalled && error.reason === "CANCELED" && !error.isOwner);
  await assert.rejects(patient(handing), (error) => error instanceof HandoffFailed && error.reason === "TASK_CANCELED");
});

test("the options of a loan are in its request", () => {
  const { lent } = loanOf(WORK, { silenceTimeoutMs: 5_000, loanTimeoutMaxMs: 7_200_000, threadId: "support" });
  assert.deepEqual([lent.silenceTimeout, lent.loanTimeoutMax].map((one) => one && durationMs(one)), [5_000, 7_200_000]);
  assert.equal(lent.threadId, "support");
  assert.equal(loanOf(WORK, {}).lent.silenceTimeout, undefined);
  assert.equal(loanOf({ ...WORK, threadId: "sales" }, {}).lent.threadId, "sales");
});

test("a task is cancelled, and asks for a longer loan", async () => {
  const [alice, bob, updates] = [await agents.named("alice"), await agents.named("bob"), new Queue<v1.TaskStatusUpdate>()];
  const { owned } = working(bob);
  await patient(alice.handOver(bob.id, unique("ticket"), WORK, []));
  const task = await patient(owned.next());
  const send = bob.send.bind(bob);
  bob.send = (receiverId, about, payload, options) => {
    if (payload.$typeName === "baton.v1.TaskStatusUpdate") updates.push(payload);
    return send(receiverId, about, payload, options);
  };
  // A task that was not lent has no loan to extend.
  await task?.extend(60_000, "more to do").catch(() => undefined);
  await task?.cancel("no longer wanted", { keepParts: true });
  const [extended, cancelled] = updates.drain();
  assert.equal(extended?.extendBy && durationMs(extended.extendBy), 60_000);
  assert.deepEqual([cancelled?.status, cancelled?.keepParts], [v1.TaskStatus.CANCELED, true]);
});

test("a question of an earlier process is taken up again, open or answered", async () => {
  const options = broker.options("bob");
  const [alice, carol] = [await agents.named("alice"), await agents.named("carol")];
  const [first, next] = [await agents.connect(options), await agents.connect(options)];
  const { owned } = working(first);
  const answer = new Queue<() => Promise<unknown>>();
  carol.serve({
    prompt: (question) => {
      answer.push(() => question.answer("the third", { router: 3 }));
    },
  }).catch(() => undefined);
  const taskId = unique("ticket");
  await patient(alice.handOver(options.agentId, taskId, WORK, []));
  const task = await patient(owned.next());
  assert.ok(task !== undefined);
  await assert.rejects(next.resumeAsk(taskId), (error) => error instanceof NoAnswer && error.reason === "WITHDRAWN");
  const abort = new AbortController();
  const asking = first.ask(taskId, task.epoch, "Which router?", carol.id, { signal: abort.signal });
  asking.catch(() => undefined);
  const give = await patient(answer.next());
  first.close(); // the process dies while a person thinks
  const resumed = next.resumeAsk(taskId);
  await give?.();
  assert.deepEqual(await patient(resumed), { agentId: carol.id, text: "the third", data: { router: 3 } });
});
