import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { durationFromMs, timestampDate } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import {
  type Agent,
  BatonError,
  HandoffFailed,
  jsonSection,
  type OwnedTask,
  type Recalled,
  TaskRecalled,
  v1,
  WaitedFor,
} from "../src/index.js";
import { takeBack } from "../src/loans.js";
import { Queue } from "../src/queue.js";
import { Agents, Broker, Mail, patient, PATIENCE_MS, refusal, unique } from "./broker.js";

// Lent tasks that come back: by a result, a recall, the loan timeout, or the end of the delegating call.

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

/** A delegate that takes the task over, and then works until it is stopped. */
class Worker {
  readonly owned = new Queue<OwnedTask>();
  readonly stopped = new Queue<unknown>();
  readonly recalled = new Queue<Recalled>();

  constructor(agent: Agent) {
    const offer = async (one: Parameters<NonNullable<Parameters<Agent["serve"]>[0]["offer"]>>[0]): Promise<void> => {
      const task = await (await one.accept()).complete();
      this.owned.push(task);
      await new Promise((resolve) => {
        one.signal.addEventListener("abort", resolve);
      });
      this.stopped.push(one.signal.reason);
    };
    const recalled = (one: Recalled): void => {
      this.recalled.push(one);
    };
    agent.serve({ offer, recalled }).catch(() => undefined);
  }

  async isStopped(taskId: string, epoch: bigint): Promise<Recalled> {
    const recalled = await taken(this.recalled);
    assert.deepEqual([recalled.taskId, recalled.epoch], [taskId, epoch]);
    const why = await taken(this.stopped);
    assert.ok(why instanceof TaskRecalled && !why.isOwner && why.epoch === epoch, String(why));
    return recalled;
  }
}

async function taken<T>(queue: Queue<T>): Promise<T> {
  const item = await patient(queue.next());
  assert.ok(item !== undefined);
  return item;
}

async function isOwned(agent: Agent, taskId: string, epoch: bigint): Promise<void> {
  const task = await agent.getTask(taskId);
  assert.deepEqual([task.ownerId, task.epoch, task.openHandoffId], [agent.id, epoch, ""]);
}

function recalled(reason: string, epoch: bigint, isOwner = true): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof TaskRecalled, String(error));
    assert.deepEqual([error.reason, error.epoch, error.isOwner], [reason, epoch, isOwner]);
    return true;
  };
}

test("the loan timeout brings the task back", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [worker, ticket] = [new Worker(bob), unique("ticket")];
  const lending = alice.delegate(bob.id, ticket, SUPPORT, GOALS, { loanTimeoutMs: 1_000 });
  await assert.rejects(patient(lending), recalled("LOAN_TIMEOUT", 3n));
  await worker.isStopped(ticket, 3n);
  await isOwned(alice, ticket, 3n);
  const late = await taken(worker.owned);
  await assert.rejects(late.finish(), refusal("STALE_EPOCH"));
});

test("the time limit of the call recalls the task", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [worker, ticket] = [new Worker(bob), unique("ticket")];
  const lending = alice.delegate(bob.id, ticket, SUPPORT, GOALS, { timeoutMs: 8_000 });
  await assert.rejects(patient(lending), recalled("DEADLINE", 3n));
  await worker.isStopped(ticket, 3n);
  await isOwned(alice, ticket, 3n);
});

test("a time limit that the loan timeout outruns is the reason", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [worker, ticket] = [new Worker(bob), unique("ticket")];
  const send = alice.send.bind(alice);
  alice.send = async (receiverId, about, payload, options) => {
    while (payload.$typeName === "baton.v1.TaskRecall" && (await alice.getTask(ticket)).loans.length > 0) await wait(20);
    return send(receiverId, about, payload, options);
  };
  const lending = alice.delegate(bob.id, ticket, SUPPORT, GOALS, { timeoutMs: 4_000 });
  await assert.rejects(patient(lending), recalled("DEADLINE", 3n));
  await worker.isStopped(ticket, 3n);
  await isOwned(alice, ticket, 3n);
});

test("the time limit of the call cancels an open handoff", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const ticket = unique("ticket");
  const lending = alice.delegate(bob.id, ticket, SUPPORT, GOALS, { timeoutMs: 1_000 });
  await assert.rejects(patient(lending), (error) => error instanceof HandoffFailed && error.reason === "HANDOFF_CANCELLED");
  await isOwned(alice, ticket, 1n);
});

test("an aborted call recalls the task", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [worker, ticket, abort] = [new Worker(bob), unique("ticket"), new AbortController()];
  const lending = alice.delegate(bob.id, ticket, SUPPORT, GOALS, { signal: abort.signal });
  const task = await taken(worker.owned);
  assert.equal(task.signal.aborted, false);
  abort.abort(new Error("changed my mind"));
  await assert.rejects(patient(lending), /changed my mind/);
  await isOwned(alice, ticket, 3n);
  await worker.isStopped(ticket, 3n);
  assert.ok(task.signal.reason instanceof TaskRecalled, "the task's own signal");
});

test("an aborted call cancels an open handoff", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [ticket, abort] = [unique("ticket"), new AbortController()];
  const onView = (view: v1.SenderView): void => {
    if (view === v1.SenderView.AWAITING_HANDOFF_ACCEPT) abort.abort(new Error("changed my mind"));
  };
  const lending = alice.delegate(bob.id, ticket, SUPPORT, GOALS, { signal: abort.signal, onView });
  await assert.rejects(patient(lending), /changed my mind/);
  await isOwned(alice, ticket, 1n);
});

test("a recall ends the call, and a second one is refused", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [worker, ticket] = [new Worker(bob), unique("ticket")];
  const lending = alice.delegate(bob.id, ticket, SUPPORT, GOALS);
  lending.catch(() => undefined);
  await taken(worker.owned);
  const handoffId = (await alice.getTask(ticket)).loans[0]?.handoffId ?? "";
  await assert.rejects(bob.recall(handoffId), refusal("NOT_OWNER"));
  const task = await patient(alice.recall(handoffId, "done by phone"));
  assert.equal(task.epoch, 3n);
  await assert.rejects(patient(lending), recalled("RECALL", 3n));
  await worker.isStopped(ticket, 3n);
  await assert.rejects(alice.recall(handoffId), refusal("NOT_LENT"));
  await task.finish();
});

test("an outer recall ends the inner loan", async () => {
  const [alice, bob, carol] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol")];
  const [worker, ticket] = [new Worker(carol), unique("ticket")];
  const [inner, told] = [new Queue<unknown>(), new Queue<Recalled>()];
  const serving = bob.serve({
    offer: async (offer) => {
      const task = await (await offer.accept()).complete();
      await task.delegate(carol.id, SUPPORT, GOALS).catch((error: unknown) => {
        inner.push(error);
      });
    },
    recalled: (one) => {
      told.push(one);
    },
  });
  serving.catch(() => undefined);
  const lending = alice.delegate(bob.id, ticket, SUPPORT, GOALS);
  lending.catch(() => undefined);
  await taken(worker.owned);
  const outer = (await alice.getTask(ticket)).loans[0]?.handoffId ?? "";
  await patient(alice.recall(outer));
  recalled("RECALL", 4n, false)(await taken(inner));
  assert.equal((await taken(told)).epoch, 4n);
  assert.equal((await worker.isStopped(ticket, 4n)).handoffId, outer);
  await assert.rejects(patient(lending), recalled("RECALL", 4n));
  await isOwned(alice, ticket, 4n);
});

test("a final status that the delegating call fails at is given out again", async () => {
  const [alice, bob, carol] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol")];
  const ticket = unique("ticket");
  const [first, second] = [new Worker(bob), new Worker(carol)];
  alice.mail.lookAfterMs = PATIENCE_MS; // a look asks for the task too
  const lending = alice.delegate(bob.id, ticket, SUPPORT, GOALS);
  const inner = (await taken(first.owned)).delegate(carol.id, SUPPORT, GOALS);
  inner.catch(() => undefined);
  const { taskId, epoch } = await taken(second.owned);
  // At a later epoch than that of the loan the call asks for the task.
  alice.getTask = () => Promise.reject(new BatonError(Code.Unimplemented, "no tasks"));
  const update = { status: v1.TaskStatus.COMPLETED, details: "found" };
  await carol.send(alice.id, { taskId, epoch }, create(v1.TaskStatusUpdateSchema, update));
  await assert.rejects(patient(lending), /no tasks/);
  assert.equal((await new Mail(alice).next("baton.v1.TaskStatusUpdate")).payload.details, "found");
});

test("a recall by another process of the delegator ends the call", async () => {
  const options = broker.options("alice");
  const [alice, bob] = [await agents.connect(options), await agents.named("bob")];
  alice.mail.lookAfterMs = 200;
  const [worker, ticket] = [new Worker(bob), unique("ticket")];
  const lending = alice.delegate(bob.id, ticket, SUPPORT, GOALS);
  lending.catch(() => undefined);
  await taken(worker.owned);
  const handoffId = (await alice.getTask(ticket)).loans[0]?.handoffId ?? "";
  const other = await agents.connect(options);
  await patient(other.recall(handoffId));
  await assert.rejects(patient(lending), recalled("RECALL", 3n));
});

test("without a time limit the loan has the default timeout", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [worker, ticket] = [new Worker(bob), unique("ticket")];
  const lending = alice.delegate(bob.id, ticket, SUPPORT, GOALS);
  const task = await taken(worker.owned);
  const due = (await alice.getTask(ticket)).loans[0]?.dueTime;
  const leftMs = due ? timestampDate(due).getTime() - Date.now() : 0;
  assert.ok(leftMs > 50 * 60_000 && leftMs <= 3_601_000, `${leftMs} ms`);
  await task.update({ status: v1.TaskStatus.FAILED, details: "no such router" });
  const { epoch, status, details } = await patient(lending);
  assert.deepEqual([epoch, status, details], [3n, v1.TaskStatus.FAILED, "no such router"]);
});

test("the request's own loan timeout is kept", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [worker, ticket] = [new Worker(bob), unique("ticket")];
  const request = { ...SUPPORT, loanTimeout: durationFromMs(1_000) };
  await assert.rejects(patient(alice.delegate(bob.id, ticket, request, GOALS)), recalled("LOAN_TIMEOUT", 3n));
  await worker.isStopped(ticket, 3n);
  const tooLong = { loanTimeoutMs: 31 * 24 * 3_600_000 };
  await assert.rejects(alice.delegate(bob.id, unique("ticket"), SUPPORT, GOALS, tooLong), refusal("FIELD_INVALID"));
});

test("a loan that is rejected is a failed handoff", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  bob.serve({ offer: (offer) => offer.reject({ reason: v1.RejectReason.NO_SKILL, reasonText: "routers only" }) }).catch(() => undefined);
  const lending = alice.delegate(bob.id, unique("ticket"), SUPPORT, GOALS, { timeoutMs: 60_000 });
  await assert.rejects(patient(lending), (error) => {
    assert.ok(error instanceof HandoffFailed);
    assert.deepEqual([error.reason, error.rejections.map(({ text }) => text)], ["NO_CANDIDATE", ["routers only"]]);
    return true;
  });
});

function waited(taskId: string): (error: unknown) => boolean {
  return (error) => error instanceof WaitedFor && error.message.endsWith(taskId);
}

test("a second call for a task that is lent is refused at once", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [worker, ticket] = [new Worker(bob), unique("ticket")];
  const lending = alice.delegate(bob.id, ticket, SUPPORT, GOALS);
  await assert.rejects(alice.delegate(bob.id, ticket, SUPPORT, GOALS), waited(ticket)); // in the same turn of the event loop
  const task = await taken(worker.owned);
  await assert.rejects(alice.delegate(bob.id, ticket, SUPPORT, GOALS), waited(ticket));
  await assert.rejects(alice.delegate(bob.id, ticket, SUPPORT, GOALS, { epoch: 3n }), waited(ticket));
  await assert.rejects(alice.handOver(bob.id, ticket, SUPPORT, GOALS), waited(ticket));
  await task.finish({ cause: "a cable" });
  // The first call has lost nothing.
  assert.deepEqual((await patient(lending)).result, { cause: "a cable" });
  assert.equal((await patient(alice.handOver(bob.id, ticket, SUPPORT, GOALS, { epoch: 3n }))).ownerId, bob.id);
});

test("a second call for a task that is handed over is refused at once", async () => {
  const [alice, bob, ticket] = [await agents.named("alice"), await agents.named("bob"), unique("ticket")];
  const mail = new Mail(bob);
  const handing = alice.handOver(bob.id, ticket, SUPPORT, GOALS);
  const request = await mail.next("baton.v1.HandoffRequest");
  await assert.rejects(alice.handOver(bob.id, ticket, SUPPORT, GOALS), waited(ticket));
  await assert.rejects(alice.delegate(bob.id, ticket, SUPPORT, GOALS), waited(ticket));
  await assert.rejects(alice.resumeHandOver(request.handoffId, GOALS), waited(request.handoffId));
  await bob.reject(request, { reason: v1.RejectReason.NO_SKILL, reasonText: "only routers" });
  await assert.rejects(patient(handing), (error) => {
    assert.ok(error instanceof HandoffFailed);
    assert.deepEqual(error.rejections, [{ agentId: bob.id, reason: v1.RejectReason.NO_SKILL, text: "only routers" }]);
    return true;
  });
  await mail.end();
  // The task is alice's to hand over again.
  new Worker(bob);
  assert.equal((await patient(alice.handOver(bob.id, ticket, SUPPORT, GOALS))).ownerId, bob.id);
});

test("an agent hands on a task that comes back while its call still waits", async () => {
  const [alice, bob, carol] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol")];
  alice.mail.lookAfterMs = 2_000;
  new Worker(carol);
  bob.serve({ offer: async (offer) => (await (await offer.accept()).complete()).handOver(alice.id, SUPPORT, GOALS) }).catch(() => undefined);
  const handed = new Queue<string>();
  alice.serve({
    offer: async (offer) => {
      const task = await (await offer.accept()).complete();
      const ended = task.handOver(carol.id, SUPPORT, GOALS).then(({ ownerId }) => ownerId, String);
      handed.push(await ended);
    },
  }).catch(() => undefined);
  const lending = alice.delegate(bob.id, unique("ticket"), SUPPORT, GOALS);
  assert.equal(await taken(handed), carol.id);
  await patient(Promise.allSettled([lending])); // the handoff to alice has ended the loan, without a result
});

test("the sender sees its views from the first on", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  new Worker(bob);
  const views: v1.SenderView[] = [];
  const onView = (view: v1.SenderView): void => {
    views.push(view);
  };
  await patient(alice.handOver(bob.id, unique("ticket"), SUPPORT, GOALS, { onView }));
  const names = views.map((view) => v1.SenderView[view]);
  const expected = ["IDLE", "HANDOFF_INITIATED", "AWAITING_HANDOFF_ACCEPT", "CONTEXT_PREPARING", "AWAITING_CONTEXT_ACK", "HANDOFF_COMPLETED"];
  assert.deepEqual(names, expected);
});

/** Begins a loan as a process that is about to die does: it sends the request, and no more. */
async function requested(alice: Agent, receiverId: string, taskId: string): Promise<string> {
  const request = { ...SUPPORT, mode: v1.HandoffMode.DELEGATE };
  return (await alice.requestHandoff(receiverId, taskId, request)).handoffId;
}

test("a later process gets the result of a loan, whenever it comes", async () => {
  const [options, bob] = [broker.options("alice"), await agents.named("bob")];
  const [worker, ticket] = [new Worker(bob), unique("ticket")];
  const alice = await agents.connect(options);
  const handoffId = await requested(alice, bob.id, ticket);
  alice.close();
  const later = await agents.connect(options);
  const updates: string[] = [];
  const onProgress = ({ details }: v1.TaskStatusUpdate): void => { updates.push(details); };
  const waiting = later.waitForLoan(handoffId, { sections: GOALS, onProgress });
  const task = await taken(worker.owned);
  await task.report("half of it");
  await task.finish({ cause: "a loose cable" }, "found");
  const outcome = await patient(waiting);
  assert.deepEqual([outcome.status, outcome.result, outcome.epoch], [v1.TaskStatus.COMPLETED, { cause: "a loose cable" }, 3n]);
  assert.deepEqual(updates, ["half of it"]);
  // From the records alone, also once the task has ended.
  assert.deepEqual(await patient(later.waitForLoan(handoffId)), outcome);
  await later.updateStatus(ticket, 3n, { status: v1.TaskStatus.COMPLETED });
  assert.deepEqual(await patient(later.waitForLoan(handoffId, { sections: GOALS })), outcome);
});

test("the end of a wait ends nothing, and a recall ends the wait", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [worker, ticket] = [new Worker(bob), unique("ticket")];
  const handoffId = await requested(alice, bob.id, ticket);
  const abort = new AbortController();
  const first = alice.waitForLoan(handoffId, { sections: GOALS, signal: abort.signal });
  first.catch(() => undefined);
  await taken(worker.owned);
  await assert.rejects(alice.waitForLoan(handoffId), WaitedFor);
  abort.abort(new Error("enough"));
  await assert.rejects(patient(first), /enough/);
  await isOwned(bob, ticket, 2n);
  const second = alice.waitForLoan(handoffId);
  second.catch(() => undefined);
  while (!alice.mail.isWaitedFor(`task ${ticket}`)) await wait(10);
  await alice.recall(handoffId);
  await assert.rejects(patient(second), recalled("RECALL", 3n));
  await assert.rejects(patient(alice.waitForLoan(handoffId)), recalled("RECALL", 3n));
});

test("a wait for what is no loan of this agent is refused", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [worker, given, lent] = [new Worker(bob), unique("ticket"), unique("ticket")];
  const { handoffId } = await patient(alice.handOver(bob.id, given, SUPPORT, GOALS));
  await assert.rejects(alice.waitForLoan(handoffId), refusal("NOT_LENT"));
  await assert.rejects(bob.waitForLoan(handoffId), refusal("NOT_OWNER"));
  await assert.rejects(alice.waitForLoan("00000000-0000-4000-8000-000000000000"), refusal("HANDOFF_UNKNOWN"));
  await taken(worker.owned);
  const first = await requested(alice, bob.id, lent);
  const waiting = alice.waitForLoan(first, { sections: GOALS });
  await (await taken(worker.owned)).finish();
  const { epoch } = await patient(waiting);
  const again = alice.delegate(bob.id, lent, SUPPORT, GOALS, { epoch });
  await (await taken(worker.owned)).finish();
  await patient(again);
  await assert.rejects(alice.waitForLoan(first), refusal("NOT_LENT"));
});

test("a wait for a handoff that has failed throws its end, and one without a context leaves it to the provider", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const reject = { reason: v1.RejectReason.OTHER, reasonText: "not mine" };
  let isWilling = false;
  const offer = async (one: Parameters<NonNullable<Parameters<Agent["serve"]>[0]["offer"]>>[0]): Promise<void> => {
    if (isWilling) await (await (await one.accept()).complete()).finish({ n: 1 });
    else await one.reject(reject);
  };
  bob.serve({ offer }).catch(() => undefined);
  const failed = await requested(alice, bob.id, unique("ticket"));
  const isRejected = (error: unknown): boolean => error instanceof HandoffFailed && error.rejections[0]?.text === "not mine";
  await assert.rejects(patient(alice.waitForLoan(failed)), isRejected);
  isWilling = true;
  alice.serve({ context: () => GOALS }).catch(() => undefined);
  const handoffId = await requested(alice, bob.id, unique("ticket"));
  assert.deepEqual((await patient(alice.waitForLoan(handoffId))).result, { n: 1 });
});

test("a recall whose time passes between two attempts fails with BatonError", async (context) => {
  const limit = new AbortController();
  context.mock.method(AbortSignal, "timeout", () => limit.signal);
  const getHandoff = (): Promise<never> => {
    // The pause before the next attempt begins before this runs.
    setImmediate(() => {
      limit.abort(new DOMException("the time is over", "TimeoutError"));
    });
    return Promise.reject(new BatonError(Code.Unavailable, "the broker is away"));
  };
  const agent = { getHandoff } as unknown as Agent;
  await assert.rejects(takeBack(agent, { messageId: "h", taskId: "ticket-1", epoch: 1n }, "no more use"), (error) => {
    return error instanceof BatonError && error.code === Code.DeadlineExceeded;
  });
});
