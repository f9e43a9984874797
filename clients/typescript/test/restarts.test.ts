import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { Code, createClient } from "@connectrpc/connect";
import {
  Agent,
  BatonError,
  bytesSection,
  type Delivery,
  type HandedOver,
  type Handlers,
  HandoffFailed,
  jsonSection,
  makeEnvelope,
  type OwnedTask,
  type Payload,
  RetryAfter,
  signEnvelope,
  v1,
  type WantedContext,
} from "../src/index.js";
import { Queue } from "../src/queue.js";
import { Agents, Broker, Mail, patient, refusal, unique } from "./broker.js";

// An agent that dies at any step of a handoff, as sender or as receiver, and its next process. A process dies here by `close`,
// which acknowledges nothing.

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

/** Serves until the agent is closed. */
function serve(agent: Agent, handlers: Handlers): void {
  agent.serve(handlers).catch(() => undefined);
}

/** Takes over every offer, and queues the owned tasks. */
function taking(agent: Agent): Queue<OwnedTask> {
  const owned = new Queue<OwnedTask>();
  serve(agent, {
    offer: async (offer) => {
      owned.push(await (await offer.accept()).complete());
    },
  });
  return owned;
}

async function taken<T>(queue: Queue<T>): Promise<T> {
  const item = await patient(queue.next());
  assert.ok(item !== undefined);
  return item;
}

/** Returns the next delivery without an ack. */
async function received(mail: AsyncGenerator<Delivery, void>, type: Payload["$typeName"]): Promise<Delivery> {
  const { value } = await patient(mail.next());
  assert.equal(value?.payload?.$typeName, type);
  assert.ok(value);
  return value;
}

async function onlyTask(agent: Agent): Promise<OwnedTask> {
  const found: OwnedTask[] = [];
  for await (const task of agent.ownedTasks()) found.push(task);
  const [task, ...others] = found;
  assert.ok(task && others.length === 0, `${found.length} tasks`);
  return task;
}

async function noDeadLetters(agent: Agent): Promise<void> {
  const letters = createClient(v1.DeadLetterService, agent.transport);
  const { deadLetters } = await letters.listDeadLetters({ filter: { agentId: agent.id } }, { headers: agent.headers });
  assert.deepEqual(deadLetters, []);
}

async function untilState(agent: Agent, handoffId: string, state: v1.HandoffState): Promise<void> {
  const reached = async (): Promise<void> => {
    while ((await agent.getHandoff(handoffId)).state !== state);
  };
  await patient(reached());
}

function isFailed(reason: string): (error: unknown) => boolean {
  return (error) => error instanceof HandoffFailed && error.reason === reason;
}

test("a task is handed over without serve", async () => {
  const [alice, bob, carol] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol")];
  const owned = taking(bob);
  serve(carol, {}); // takes no handoffs
  await carol.send(alice.id, {}, create(v1.InfoSchema, { text: "for later" }));
  const taskId = unique("ticket");
  const request = { ...SUPPORT, fallbackCandidates: [bob.id] };
  const done = await patient(alice.handOver(carol.id, taskId, request, GOALS));
  assert.deepEqual([done.taskId, done.ownerId, done.epoch], [taskId, bob.id, 2n]);
  assert.deepEqual(done.rejections, [
    { agentId: carol.id, reason: v1.RejectReason.NO_SKILL, text: "this agent takes no handoffs" },
  ]);
  const mine = await taken(owned);
  assert.deepEqual([mine.taskId, mine.epoch], [taskId, 2n]);
  // Mail that arrived meanwhile was given back.
  assert.equal((await new Mail(alice).next("baton.v1.Info")).payload.text, "for later");
});

test("a failed handoff is a typed error", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  serve(bob, { offer: (offer) => offer.reject({ reason: v1.RejectReason.OTHER }) });
  await assert.rejects(patient(alice.handOver(bob.id, unique("ticket"), SUPPORT, GOALS)), (error) => {
    assert.ok(error instanceof HandoffFailed);
    assert.equal(error.reason, "NO_CANDIDATE");
    assert.deepEqual(error.rejections, [{ agentId: bob.id, reason: v1.RejectReason.OTHER, text: "" }]);
    return true;
  });
  serve(alice, {});
  await assert.rejects(alice.handOver(unique("unknown"), unique("ticket"), SUPPORT, []), refusal("RECEIVER_UNKNOWN"));
  const signal = AbortSignal.abort(new Error("changed my mind"));
  await assert.rejects(alice.handOver(bob.id, unique("ticket"), SUPPORT, [], { signal }), /changed my mind/);
});

test("a task is delegated and comes back", async () => {
  const [alice, bob, carol] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol")];
  serve(carol, {
    offer: async (offer) => {
      const task = await (await offer.accept()).complete();
      await task.report("looking", { progress: 0.5 });
      // alice receives it too, and must not take it for the end of its own loan.
      const update = { status: v1.TaskStatus.COMPLETED, resultJson: '{"cause":"a loose cable"}', details: "found" };
      const about = { taskId: task.taskId, epoch: task.epoch };
      await carol.send(alice.id, about, create(v1.TaskStatusUpdateSchema, update));
    },
  });
  // bob lends it further, inside the handler of its own offer.
  serve(bob, {
    offer: async (offer) => {
      const takeover = await offer.accept();
      const task = await takeover.complete();
      const { epoch, status, result } = await task.delegate(carol.id, SUPPORT, takeover.sections);
      await bob.updateStatus(task.taskId, epoch, { status, result });
    },
  });
  const taskId = unique("ticket");
  const outcome = await patient(alice.delegate(bob.id, taskId, SUPPORT, GOALS));
  const { COMPLETED } = v1.TaskStatus;
  assert.deepEqual(outcome, { taskId, epoch: 5n, status: COMPLETED, result: { cause: "a loose cable" }, details: "" });
  assert.equal((await alice.getTask(taskId)).ownerId, alice.id);
});

test("an offer handler that fails gets its context again", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  let calls = 0;
  serve(bob, {
    offer: async (offer) => {
      const takeover = await offer.accept();
      if (++calls === 1) throw new RetryAfter(1, "not now");
      if (calls === 2) return; // and has decided nothing
      assert.equal(offer.request, undefined);
      assert.deepEqual(takeover.json("goals"), ["find the cause"]);
      await takeover.complete();
    },
  });
  await patient(alice.handOver(bob.id, unique("ticket"), SUPPORT, GOALS));
  assert.equal(calls, 3);
});

// Its notices are lost here: this process takes no mail meanwhile.
test("a handoff that ends without a word is looked at", async () => {
  const [options, bob] = [broker.options("alice"), await agents.named("bob")];
  const alice = await agents.connect(options);
  alice.mail.lookAfterMs = 50;
  const taskId = unique("ticket");
  const handing = patient(alice.handOver(bob.id, taskId, SUPPORT, GOALS));
  const mail = bob.deliveries();
  const { handoffId } = await received(mail, "baton.v1.HandoffRequest");
  await alice.setCredit(0);
  await (await agents.connect(options)).cancel(handoffId, "by another process");
  await assert.rejects(handing, isFailed("HANDOFF_CANCELLED"));
});

test("a sender that restarts sends the context", async () => {
  const [options, bob] = [broker.options("alice"), await agents.named("bob")];
  const owned = taking(bob);
  const before = await agents.connect(options);
  const { handoffId } = await before.requestHandoff(bob.id, unique("ticket"), SUPPORT);
  await received(before.deliveries(), "baton.v1.HandoffAccept");
  before.close();

  const alice = await agents.connect(options);
  const wanted = new Queue<WantedContext>();
  serve(alice, {
    context: (one) => {
      wanted.push(one);
      return GOALS;
    },
  });
  await taken(owned);
  const asked = await taken(wanted);
  assert.deepEqual([asked.handoffId, asked.candidateId], [handoffId, bob.id]);
  await noDeadLetters(alice);
});

test("an accept that nothing waits for is not poison", async () => {
  const [options, bob] = [broker.options("alice"), await agents.named("bob")];
  const owned = taking(bob);
  const before = await agents.connect(options);
  const { handoffId } = await before.requestHandoff(bob.id, unique("ticket"), SUPPORT);
  await received(before.deliveries(), "baton.v1.HandoffAccept");
  before.close();

  const waits = new Queue<string>();
  const log = (text: string): void => {
    if (text.endsWith("waits")) waits.push(text);
  };
  const alice = await agents.connect({ ...options, log });
  serve(alice, {});
  await taken(waits);
  assert.equal((await onlyTask(alice)).handoffId, handoffId);
  const { ownerId, epoch } = await patient(alice.resumeHandOver(handoffId, GOALS));
  assert.deepEqual([ownerId, epoch], [bob.id, 2n]);
  await taken(owned);
  await noDeadLetters(alice);
});

/** The state of the handoff at its sender's death, and its end for the next process. */
const SENDER_DIES: [string, (alice: Agent, bob: Agent, handoffId: string) => Promise<void>, string?][] = [
  ["after the request's receipt", () => Promise.resolve()],
  [
    "after the accept came",
    async (alice, bob) => {
      await acceptOnly(bob);
      await received(alice.deliveries(), "baton.v1.HandoffAccept");
    },
  ],
  [
    "after the context's receipt",
    async (alice, bob) => {
      await acceptOnly(bob);
      await alice.sendContext(await received(alice.deliveries(), "baton.v1.HandoffAccept"), GOALS);
    },
  ],
  [
    "after it is complete",
    async (alice, bob, handoffId) => {
      taking(bob);
      await alice.sendContext(await received(alice.deliveries(), "baton.v1.HandoffAccept"), GOALS);
      await untilState(alice, handoffId, v1.HandoffState.COMPLETED);
    },
  ],
  [
    "after it was cancelled",
    async (alice, _, handoffId) => {
      await alice.cancel(handoffId, "done by phone");
    },
    "HANDOFF_CANCELLED",
  ],
];

async function acceptOnly(bob: Agent): Promise<void> {
  const mail = bob.deliveries();
  const request = await received(mail, "baton.v1.HandoffRequest");
  await bob.accept(request);
  await request.ack();
  await mail.return();
}

for (const [when, die, reason] of SENDER_DIES) {
  test(`a sender that dies ${when} resumes`, async () => {
    const [options, bobs] = [broker.options("alice"), broker.options("bob")];
    const [before, bob] = [await agents.connect(options), await agents.connect(bobs)];
    const { handoffId } = await before.requestHandoff(bob.id, unique("ticket"), SUPPORT);
    await die(before, bob, handoffId);
    before.close();
    bob.close();
    const [alice, later] = [await agents.connect(options), await agents.connect(bobs)];
    const resumed: Promise<HandedOver> = patient(alice.resumeHandOver(handoffId, GOALS));
    taking(later);
    if (reason === undefined) {
      const { ownerId, epoch } = await resumed;
      assert.deepEqual([ownerId, epoch], [bob.id, 2n]);
    } else {
      await assert.rejects(resumed, isFailed(reason));
    }
    await noDeadLetters(alice);
    await noDeadLetters(later);
  });
}

/** The state of the handoff at its receiver's death. */
const RECEIVER_DIES: [string, (bob: Agent, mail: AsyncGenerator<Delivery, void>) => Promise<void>][] = [
  [
    "with the offer delivered",
    async (_, mail) => {
      await received(mail, "baton.v1.HandoffRequest");
    },
  ],
  [
    "after its accept is stored, before the request is acked",
    async (bob, mail) => {
      await bob.accept(await received(mail, "baton.v1.HandoffRequest"));
    },
  ],
  [
    "before the context comes",
    async (bob, mail) => {
      const request = await received(mail, "baton.v1.HandoffRequest");
      await bob.accept(request);
      await request.ack();
    },
  ],
  [
    "with the context delivered",
    async (bob, mail) => {
      await contextOf(bob, mail);
    },
  ],
  [
    "after its completion is stored, before the context is acked",
    async (bob, mail) => {
      await bob.complete(await contextOf(bob, mail));
    },
  ],
];

async function contextOf(bob: Agent, mail: AsyncGenerator<Delivery, void>): Promise<Delivery> {
  const request = await received(mail, "baton.v1.HandoffRequest");
  await bob.accept(request);
  await request.ack();
  return received(mail, "baton.v1.TaskContextTransfer");
}

for (const [when, die] of RECEIVER_DIES) {
  for (const isLoop of [false, true]) {
    test(`a receiver that dies ${when} goes on, ${isLoop ? "in a loop over offers" : "in a handler"}`, async () => {
      const [alice, options] = [await agents.named("alice"), broker.options("bob")];
      const before = await agents.connect(options);
      const taskId = unique("ticket");
      const handing = patient(alice.handOver(before.id, taskId, SUPPORT, GOALS));
      await die(before, before.deliveries());
      before.close();

      const bob = await agents.connect(options);
      let mine: OwnedTask | undefined;
      if (isLoop) {
        const offers = bob.handoffs();
        const { value: offer } = await patient(offers.next());
        assert.ok(offer);
        mine = await (await patient(offer.accept())).complete();
        await offers.return();
      } else {
        mine = await taken(taking(bob));
      }
      assert.deepEqual([mine.taskId, mine.epoch], [taskId, 2n]);
      assert.equal((await handing).epoch, 2n);
      await noDeadLetters(alice);

      // As the owner it may die again: the next process finds the task.
      bob.close();
      const later = await onlyTask(await agents.connect(options));
      assert.deepEqual([later.taskId, later.epoch, later.handoffId], [taskId, 2n, ""]);
      await later.finish();
    });
  }
}

test("a delegator that restarts has its task again", async () => {
  const [options, bob] = [broker.options("alice"), await agents.named("bob")];
  const owned = taking(bob);
  const before = await agents.connect(options);
  const lending = before.delegate(bob.id, unique("ticket"), SUPPORT, GOALS);
  lending.catch(() => undefined);
  const task = await taken(owned);
  before.close();
  await assert.rejects(lending);
  await task.finish({ answer: 42 });

  const alice = await agents.connect(options);
  const told = new Queue<v1.TaskStatusUpdate>();
  serve(alice, {
    taskStatusUpdate: (update) => {
      told.push(update);
    },
  });
  assert.equal((await taken(told)).resultJson, '{"answer":42}');
  const mine = await onlyTask(alice);
  assert.deepEqual([mine.taskId, mine.epoch], [task.taskId, 3n]);
});

test("only tasks that are owned and not final are listed", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const ids: string[] = [];
  for (let i = 0; i < 3; i++) {
    const taskId = unique("ticket");
    const { handoffId } = await alice.requestHandoff(bob.id, taskId, SUPPORT);
    await alice.cancel(handoffId);
    ids.unshift(taskId);
  }
  await alice.updateStatus(ids[1] ?? "", 1n, { status: v1.TaskStatus.FAILED });
  const found: string[] = [];
  for await (const { taskId } of alice.ownedTasks()) found.push(taskId);
  assert.deepEqual(found, [ids[0], ids[2]]);
  for await (const task of bob.ownedTasks()) assert.fail(task.taskId);
});

test("what is too large is refused here", async () => {
  const options = broker.options("alice");
  const [alice, bob] = [await agents.connect(options), await agents.named("bob")];
  const hello = (length: number): v1.Info => create(v1.InfoSchema, { text: "x".repeat(length) });
  for (const length of [1024 * 1024, 4 * 1024 * 1024 + 1]) {
    await assert.rejects(alice.send(bob.id, {}, hello(length)), refusal("PAYLOAD_TOO_LARGE"));
  }
  const large = bytesSection("log", "text/plain", new Uint8Array(1024 * 1024));
  await assert.rejects(alice.handOver(bob.id, unique("ticket"), SUPPORT, [large]), refusal("PAYLOAD_TOO_LARGE"));
  const about = { taskId: "x".repeat(4 * 1024 * 1024) };
  await assert.rejects(alice.send(`type:${"x".repeat(129)}`, about, hello(1)), (error) => {
    assert.ok(error instanceof BatonError);
    assert.equal(error.reason, "FIELD_INVALID");
    assert.deepEqual(
      error.fields.map(({ field }) => field),
      ["envelope.receiver_id", "envelope.task_id"],
    );
    return true;
  });
  const envelope = makeEnvelope(alice.id, bob.id, {}, hello(1));
  envelope.signature = new Uint8Array(4 * 1024 * 1024);
  await assert.rejects(alice.sendEnvelope(envelope), refusal("PAYLOAD_TOO_LARGE"));
  assert.throws(() => {
    alice.heartbeat = { status: "x".repeat(4 * 1024 * 1024) };
  }, refusal("FIELD_INVALID"));
});

// Without the check on this side, the broker would end this session and the next one over the frame.
test("a frame that ends the session is not sent again", async () => {
  const options = broker.options("alice");
  const [alice, bob] = [await agents.connect(options), await agents.named("bob")];
  const envelope = makeEnvelope(alice.id, bob.id, {}, create(v1.InfoSchema, { text: "x".repeat(4 * 1024 * 1024) }));
  signEnvelope(envelope, "k1", options.key);
  await assert.rejects(patient(alice.sendUntilAnswered(envelope)), (error) => {
    // An older broker gives no reason.
    return error instanceof BatonError && (error.reason === "PAYLOAD_TOO_LARGE" || error.code === Code.OutOfRange);
  });
  await patient(alice.send(bob.id, {}, create(v1.InfoSchema, { text: "and goes on" })));
});

test("a refused context ends the handoff, also when the broker names the candidate", async () => {
  const [options, bob] = [broker.options("alice"), await agents.named("bob")];
  taking(bob);
  const odd = { ...jsonSection("history_log", [{ who: "customer" }]), schemaId: "baton.history", schemaVersion: "1" };
  for (const isLost of [false, true]) {
    const alice = await agents.connect(options);
    const { handoffId } = await alice.requestHandoff(bob.id, unique("ticket"), SUPPORT);
    if (isLost) {
      // An earlier process has acked the accept, and died before it sent the context.
      const mail = alice.deliveries();
      await (await received(mail, "baton.v1.HandoffAccept")).ack();
      await mail.return();
      alice.mail.lookAfterMs = 50;
    }
    await assert.rejects(patient(alice.resumeHandOver(handoffId, [odd])), refusal("CONTEXT_SCHEMA_VIOLATION"));
    assert.equal((await alice.getHandoff(handoffId)).state, v1.HandoffState.CANCELLED);
    alice.close();
  }
});
