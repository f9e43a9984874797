import assert from "node:assert/strict";
import { after, afterEach, before, test, type TestContext } from "node:test";
import { setImmediate as turn, setTimeout as wait } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { clone, create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { type Client, Code, createClient } from "@connectrpc/connect";
import {
  type Agent,
  BatonError,
  bytesSection,
  Delivery,
  HandlerTimeout,
  type Handlers,
  HandoffFailed,
  jsonSection,
  makeEnvelope,
  Offer,
  type OwnedTask,
  Poison,
  RetryAfter,
  Stopped,
  v1,
  VerificationError,
} from "../src/index.js";
import { Audit } from "../src/audit.js";
import { SessionEnded } from "../src/errors.js";
import { Mail as MailOf } from "../src/mail.js";
import { Queue } from "../src/queue.js";
import { Jobs } from "../src/jobs.js";
import { deferred, Session } from "../src/session.js";
import { Agents, Broker, Mail, patient, PATIENCE_MS, refusal, unique } from "./broker.js";
import { Relay } from "./relay.js";

let broker: Broker;
const others: Broker[] = [];
const agents = new Agents(() => broker);
before(async () => {
  broker = await Broker.start();
});
afterEach(async () => {
  agents.close();
  for (const other of others.splice(0)) await other.remove();
});
after(async () => {
  await broker.remove();
});

async function own(settings?: string): Promise<Broker> {
  const started = await Broker.start(settings);
  others.push(started);
  return started;
}

const SHORT_ACK_WAIT = 'enrollment = "open"\n[delivery]\nack_wait_ms = 3000';

function hello(text = ""): v1.Info {
  return create(v1.InfoSchema, { text });
}

/** Serves until the agent is closed, or until the returned function is called. */
function serve(agent: Agent, handlers: Handlers): () => Promise<void> {
  const stop = new AbortController();
  const serving = agent.serve(handlers, { signal: stop.signal });
  serving.catch(() => undefined);
  return () => {
    stop.abort();
    return patient(serving);
  };
}

async function taken<T>(queue: Queue<T>): Promise<T> {
  const item = await patient(queue.next());
  assert.ok(item !== undefined);
  return item;
}

/** Sends the context to each agent that accepts, and queues the completed handoffs. */
function give(agent: Agent, more: Handlers = {}): Queue<v1.HandoffComplete> {
  const completed = new Queue<v1.HandoffComplete>();
  const sections = [jsonSection("goals", ["find the cause"]), bytesSection("log", "text/plain", new Uint8Array([1]))];
  serve(agent, {
    handoffAccept: (_, delivery) => agent.sendContext(delivery, sections),
    handoffComplete: (complete) => {
      completed.push(complete);
    },
    ...more,
  });
  return completed;
}

/** Takes over every offer, and queues the owned tasks. */
function take(agent: Agent, sections = 1): Queue<OwnedTask> {
  const owned = new Queue<OwnedTask>();
  const taking = async (): Promise<void> => {
    for await (const offer of agent.handoffs()) {
      const context = await offer.accept({ wantedSections: ["goals"] });
      assert.deepEqual(context.json("goals"), ["find the cause"]);
      assert.equal(context.sections.length, sections);
      owned.push(await context.complete());
    }
  };
  taking().catch((error: unknown) => {
    owned.fail(error);
  });
  return owned;
}

test("a whole handoff", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [completed, owned] = [give(alice), take(bob)];
  const task = unique("ticket");
  const request = await alice.requestHandoff(bob.id, task, { taskType: "support" });
  const receipt = await taken(owned);
  assert.deepEqual([receipt.ownerId, receipt.epoch], [bob.id, 2n]);
  assert.equal((await taken(completed)).outcome, v1.HandoffOutcome.SUCCESS);
  assert.equal((await alice.getHandoff(request.handoffId)).state, v1.HandoffState.COMPLETED);
  const status = v1.TaskStatus.COMPLETED;
  await assert.rejects(alice.updateStatus(task, 1n, { status }), refusal("STALE_EPOCH"));
  await bob.updateStatus(task, 2n, { status });
  for (const agent of [alice, bob]) {
    const last = (await agent.auditTask(task)).at(-1);
    assert.deepEqual([last?.ownerId, last?.epoch, last?.taskStatus], [bob.id, 2n, status]);
  }
});

test("an audit sees each change of a custody log", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const taskId = unique("ticket");
  await alice.requestHandoff(bob.id, taskId, { taskType: "support" });
  const tasks = createClient(v1.TaskService, alice.transport);
  const { entries } = await tasks.getCustodyLog({ taskId, includeEnvelopes: true }, { headers: alice.headers });
  const first = entries[0];
  assert.ok(first?.receipt && first.envelope);
  const keys = (await alice.getAgent("baton")).card?.keys ?? [];
  new Audit(keys).add(first);
  const changes: [string, (entry: v1.CustodyLogEntry) => void][] = [
    ["CUSTODY_INVALID", (e) => (e.entryBytes = new Uint8Array([...e.entryBytes, 0x78, 1]))],
    ["CUSTODY_INVALID", (e) => (e.custodyHash = new Uint8Array(32))],
    ["CUSTODY_INVALID", (e) => e.envelope && (e.envelope.taskId = "another")],
    ["CUSTODY_INVALID", (e) => delete e.receipt],
    ["SIGNATURE_INVALID", (e) => e.receipt && e.receipt.epoch++],
  ];
  for (const [reason, change] of changes) {
    const changed = clone(v1.CustodyLogEntrySchema, first);
    change(changed);
    assert.throws(
      () => {
        new Audit(keys).add(changed);
      },
      (error) => error instanceof VerificationError && error.reason === reason,
    );
  }
});

test("a rejected handoff goes to the next", async () => {
  const [alice, bob, carol] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol")];
  const rejected = new Queue<v1.HandoffReject>();
  const completed = give(alice, {
    handoffReject: (reject) => {
      rejected.push(reject);
    },
  });
  const owned = take(carol);
  const refusing = async (): Promise<void> => {
    for await (const offer of bob.handoffs()) {
      await offer.reject({ reason: v1.RejectReason.OVERLOADED });
      await assert.rejects(offer.accept(), /decided/);
    }
  };
  refusing().catch(() => undefined);
  await alice.requestHandoff(bob.id, unique("ticket"), { taskType: "support", fallbackCandidates: [carol.id] });
  assert.equal((await taken(rejected)).reason, v1.RejectReason.OVERLOADED);
  assert.equal((await taken(owned)).ownerId, carol.id);
  await taken(completed);
});

// An offer's request is acked with its accept; until then the broker holds back the next message of the task.
test("an offer that is cancelled ends, before and after its accept", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const offers = bob.handoffs();
  for (const isAccepted of [false, true]) {
    const { handoffId } = await alice.requestHandoff(bob.id, unique("ticket"), { taskType: "support" });
    const { value: offer } = await patient(offers.next());
    assert.ok(offer);
    const ended = new Promise((resolve) => {
      offer.signal.addEventListener("abort", resolve);
    });
    const accepting = isAccepted && assert.rejects(offer.accept(), HandoffFailed);
    if (isAccepted) while ((await alice.getHandoff(handoffId)).state !== v1.HandoffState.ACCEPTED);
    await alice.cancel(handoffId, "done by phone");
    await (accepting || assert.rejects(offer.accept(), HandoffFailed));
    await patient(ended);
  }
  await offers.return();
});

test("an undecided offer is rejected when the loop is left, and an unseen one is given back", async () => {
  const alice = await agents.named("alice");
  const bob = await agents.connect({ ...broker.options("bob"), credit: 2 });
  const rejected = new Queue<v1.RejectReason>();
  serve(alice, {
    handoffReject: ({ reason }) => {
      rejected.push(reason);
    },
  });
  await alice.requestHandoff(bob.id, unique("seen"), { taskType: "support" });
  const unseen = await alice.requestHandoff(bob.id, unique("unseen"), { taskType: "support" });
  for await (const offer of bob.handoffs()) {
    assert.notEqual(offer.handoffId, unseen.handoffId);
    break;
  }
  assert.equal(await taken(rejected), v1.RejectReason.SHUTDOWN);
  const again = await new Mail(bob).next("baton.v1.HandoffRequest");
  assert.equal(again.handoffId, unseen.handoffId);
});

test("a failed takeover, and a context that is not the one that was sent", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const completed = give(alice);
  await alice.requestHandoff(bob.id, unique("ticket"), { taskType: "support" });
  for await (const offer of bob.handoffs()) {
    const context = await offer.accept();
    await context.keepTurn("looking into it");
    const { delivery } = context;
    assert.ok(delivery !== undefined);
    const { payload } = delivery;
    assert.ok(payload?.$typeName === "baton.v1.TaskContextTransfer");
    const sections = payload.sections.splice(0);
    await assert.rejects(bob.complete(delivery), (error) => {
      return error instanceof VerificationError && error.reason === "CONTEXT_DIGEST_MISMATCH";
    });
    payload.sections.push(...sections);
    await context.fail("no room");
    assert.equal((await bob.getHandoff(offer.handoffId)).errorCode, v1.ErrorCode.TAKEOVER_FAILED);
    break;
  }
  assert.equal((await taken(completed)).outcome, v1.HandoffOutcome.FAILURE);
});

test("a handler that throws gets the message again", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const attempts = new Queue<number>();
  serve(bob, {
    info: (_, { attempt }) => {
      attempts.push(attempt);
      if (attempt === 1) throw new RetryAfter(1, "not now");
      if (attempt === 2) throw new Error("a bug");
    },
  });
  await alice.send(bob.id, {}, hello());
  for (const expected of [1, 2, 3]) assert.equal(await taken(attempts), expected);
});

test("poison, and what has no handler, become dead letters", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const told = new Queue<v1.ErrorCode>();
  serve(alice, {
    errorNotification: ({ errorCode }) => {
      told.push(errorCode);
    },
  });
  serve(bob, {
    info: () => {
      throw new Poison("no");
    },
  });
  await alice.send(bob.id, {}, hello());
  await alice.requestHandoff(bob.id, unique("ticket"), { taskType: "support" });
  assert.equal(await taken(told), v1.ErrorCode.NO_CANDIDATE);
  const letters = createClient(v1.DeadLetterService, bob.transport);
  const two = async (): Promise<void> => {
    const list = { filter: { agentId: bob.id } };
    while ((await letters.listDeadLetters(list, { headers: bob.headers })).deadLetters.length < 2);
  };
  await patient(two());
});

test("a delivery is extended while its handler works", async () => {
  const b = await own(SHORT_ACK_WAIT);
  const [alice, bob] = [await agents.connect(b.options("alice")), await agents.connect(b.options("bob"))];
  const finished = new Queue<number>();
  let calls = 0;
  serve(bob, {
    info: async ({ text }, delivery) => {
      const { attempt, deliveryId } = delivery;
      if (text === "long") {
        calls++;
        await wait(7000); // more than twice the ack wait, as the handler's work; it waits for no event
      }
      if (delivery.deliveryId !== deliveryId) finished.fail(new Error("it was delivered again"));
      finished.push(attempt);
    },
  });
  await alice.send(bob.id, {}, hello("long"));
  assert.equal(await taken(finished), 1);
  // A redelivery of the first would precede this one: mail to a receiver is in order.
  await alice.send(bob.id, {}, hello("short"));
  await taken(finished);
  assert.equal(calls, 1);
});

test("a handler that never returns is given up", async () => {
  const b = await own(SHORT_ACK_WAIT);
  const alice = await agents.connect(b.options("alice"));
  const bob = await agents.connect({ ...b.options("bob"), handlerTimeoutMs: 1000 });
  const calls = new Queue<{ attempt: number; at: number }>();
  const causes = new Queue<unknown>();
  serve(bob, {
    info: (_, { attempt }, { signal }) => {
      calls.push({ attempt, at: performance.now() });
      signal.addEventListener("abort", () => {
        causes.push(signal.reason);
      });
      return attempt < 3 ? new Promise(() => undefined) : undefined;
    },
  });
  await alice.send(bob.id, {}, hello());
  const [first, second, third] = [await taken(calls), await taken(calls), await taken(calls)];
  assert.deepEqual([first.attempt, second.attempt, third.attempt], [1, 2, 3]);
  assert.ok(second.at - first.at >= 990 && third.at - second.at >= 990, "extended for as long as it may work");
  assert.ok((await taken(causes)) instanceof HandlerTimeout);
});

test("credit bounds what is in work", async () => {
  const alice = await agents.named("alice");
  const bob = await agents.connect({ ...broker.options("bob"), credit: 2 });
  const begun = new Queue<() => void>();
  let [working, most] = [0, 0];
  serve(bob, {
    info: async () => {
      const goOn = deferred<undefined>();
      most = Math.max(most, ++working);
      begun.push(() => {
        goOn.resolve(undefined);
      });
      await goOn.promise;
      working--;
    },
  });
  for (let i = 0; i < 5; i++) await alice.send(bob.id, {}, hello());
  const [one, two] = [await taken(begun), await taken(begun)];
  one();
  two();
  for (let i = 0; i < 3; i++) (await taken(begun))();
  assert.equal(most, 2);
});

test("serve stops in order", async () => {
  const alice = await agents.named("alice");
  const options = { ...broker.options("bob"), credit: 1 };
  const bob = await agents.connect(options);
  const [begun, goOn] = [deferred<undefined>(), deferred<undefined>()];
  const stop = serve(bob, {
    info: async () => {
      begun.resolve(undefined);
      await goOn.promise;
    },
  });
  await alice.send(bob.id, {}, hello("in work"));
  await begun.promise;
  await alice.send(bob.id, {}, hello("for later"));
  const stopping = stop();
  goOn.resolve(undefined);
  await stopping;
  // The messages in work were acked. Another session gets the rest, for this one takes no more.
  const later = await new Mail(await agents.connect(options)).next("baton.v1.Info");
  assert.deepEqual([later.payload.text, later.attempt], ["for later", 1]);
});

test("a handler that does not end is given back at the stop", async () => {
  const alice = await agents.named("alice");
  const bob = await agents.connect({ ...broker.options("bob"), stopTimeoutMs: 50 });
  const begun = deferred<undefined>();
  const stop = serve(bob, {
    info: () => {
      begun.resolve(undefined);
      return new Promise(() => undefined);
    },
  });
  await alice.send(bob.id, {}, hello());
  await begun.promise;
  await stop();
  assert.equal((await new Mail(bob).next("baton.v1.Info")).attempt, 2);
});

/** A session whose broker answers nothing after its welcome. */
async function stalled(): Promise<Session> {
  async function* connect(): AsyncGenerator<v1.ConnectResponse, void> {
    yield create(v1.ConnectResponseSchema, { response: { case: "welcome", value: {} } });
    await new Promise(() => undefined);
  }
  const client = { connect } as unknown as Client<typeof v1.BrokerService>;
  return Session.open(client, {}, new AbortController().signal, () => undefined);
}

test("only an envelope is blamed for its size", async () => {
  const session = await stalled();
  const tooLarge = new BatonError(Code.OutOfRange, "too large");
  const answers = Promise.allSettled([
    session.ask({ case: "acknowledgement", value: { deliveryId: "x".repeat(1000) } }),
    session.ask({ case: "envelope", value: makeEnvelope("alice", "bob", {}, hello()) }),
    session.ask({ case: "envelope", value: makeEnvelope("alice", "bob", { taskId: "ticket" }, hello()) }),
  ]);
  session.end(tooLarge);
  const [acked, small, large] = await answers;
  for (const one of [acked, small]) assert.ok(one.status === "rejected" && one.reason instanceof SessionEnded);
  assert.ok(large.status === "rejected" && large.reason === tooLarge);
});

test("without an envelope nothing is blamed for its size", async () => {
  const session = await stalled();
  const credited = session.giveCredit(16);
  session.end(new BatonError(Code.OutOfRange, "too large"));
  await credited; // the next session begins with the credit
});

/** Checks that a promise settles after 30 s. */
async function assertBounded({ mock }: TestContext, promise: Promise<unknown>): Promise<void> {
  const over: number[] = [];
  const end = (): void => void over.push(0);
  promise.then(end, end);
  const counts: number[] = [];
  for (const ms of [0, 29_999, 1]) {
    mock.timers.tick(ms);
    await turn();
    counts.push(over.length);
  }
  assert.deepEqual(counts, [0, 0, 1]);
}

test("serve does not wait for acks that the broker does not answer", async (t) => {
  const session = await stalled();
  t.mock.timers.enable({ apis: ["setTimeout"] });
  for (const outcome of [undefined, new Error("a bug")]) {
    const jobs = new Jobs({ handlerTimeoutMs: 600_000, log: () => undefined });
    const envelope = makeEnvelope("alice", "bob", {}, hello());
    const delivery = new Delivery(create(v1.DeliverySchema, {}), envelope, hello(), session);
    void jobs.begin(delivery, () => outcome && Promise.reject(outcome));
    await assertBounded(t, jobs.finish(10_000));
  }
});

test("serve does not wait for the answer to its credit", async (t) => {
  const session = await stalled();
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const log = (): void => undefined;
  const mail = new MailOf({ credit: 16, handlerTimeoutMs: 600_000, life: new AbortController().signal, session: () => session, log, taken: log });
  const stop = new AbortController();
  const reading = mail.read(stop.signal).next();
  stop.abort(new Stopped("the agent stops"));
  await assertBounded(t, reading);
  await assert.rejects(reading, Stopped);
});

test("the end of the loop over handoffs does not wait for a reject that the broker does not answer", async (t) => {
  const agent = { reject: () => new Promise(() => undefined) } as unknown as Agent;
  const request = create(v1.HandoffRequestSchema, { taskType: "support" });
  const envelope = makeEnvelope("alice", "bob", { taskId: "ticket" }, request);
  const delivery = new Delivery(create(v1.DeliverySchema, {}), envelope, request, await stalled());
  const offer = new Offer(agent, delivery);
  t.mock.timers.enable({ apis: ["setTimeout"] });
  offer.isBegun = true;
  await assertBounded(t, offer.leave());
  assert.ok(offer.signal.aborted);
});

test("the signals of handled messages are collected, also with the listener of a handler", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const signals = new Queue<WeakRef<AbortSignal>>();
  const listen = (signal: AbortSignal): void => {
    signal.addEventListener("abort", () => signal.aborted);
    signals.push(new WeakRef(signal));
  };
  serve(bob, {
    info: (_, __, { signal }) => {
      listen(signal);
    },
    offer: async (offer) => {
      listen(offer.signal);
      await offer.reject({ reason: v1.RejectReason.OTHER });
    },
  });
  await alice.send(bob.id, {}, hello());
  const message = await taken(signals);
  await alice.requestHandoff(bob.id, unique("ticket"), { taskType: "support" });
  const offer = await taken(signals);
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  // The agent holds them until the broker has answered its acks.
  const until = Date.now() + PATIENCE_MS;
  while ((message.deref() ?? offer.deref()) !== undefined && Date.now() < until) {
    await wait(5);
    collect();
  }
  assert.deepEqual([message.deref(), offer.deref()], [undefined, undefined]);
});

// Node keeps a part of each composite signal for as long as one of its sources lives.
test("messages, answers and handoffs make no composite signals", async (t) => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const answers = new Queue<v1.Info>();
  serve(alice, {
    info: (info) => {
      answers.push(info);
    },
  });
  serve(bob, {
    info: async (_, delivery, { signal }) => {
      await bob.reply(delivery, hello(), { signal });
    },
    offer: async (offer) => {
      await (await offer.accept()).complete();
    },
  });
  const exchange = async (): Promise<void> => {
    await alice.send(bob.id, {}, hello());
    await taken(answers);
    await patient(alice.handOver(bob.id, unique("ticket"), { taskType: "support" }, [jsonSection("goals", [])]));
  };
  await exchange();
  const made = t.mock.method(AbortSignal, "any");
  await exchange();
  assert.equal(made.mock.callCount(), 0);
});

test("one loop at a time reads the mail", async () => {
  const bob = await agents.named("bob");
  serve(bob, {});
  await assert.rejects(bob.serve({}), /already/);
});

test("a broker that is killed in mid-handoff", async () => {
  const b = await own();
  const [alice, bob] = [await agents.connect(b.options("alice")), await agents.connect(b.options("bob"))];
  const completed = give(alice);
  const owned = new Queue<v1.Receipt>();
  const [inWork, goOn] = [deferred<undefined>(), deferred<undefined>()];
  let calls = 0;
  serve(bob, {
    handoffRequest: async (_, delivery) => {
      calls++;
      inWork.resolve(undefined);
      await goOn.promise;
      await bob.accept(delivery, { wantedSections: ["goals"] });
    },
    taskContextTransfer: async (_, delivery) => {
      owned.push(await bob.complete(delivery));
    },
  });
  await alice.requestHandoff(bob.id, unique("ticket"), { taskType: "support" });
  await patient(inWork.promise);

  await b.kill();
  goOn.resolve(undefined); // bob accepts while alice is away
  const other = alice.requestHandoff(bob.id, unique("other"), { taskType: "support" }); // and alice requests another one
  await b.restart();

  const receipt = await taken(owned);
  assert.deepEqual([receipt.ownerId, receipt.epoch], [bob.id, 2n]);
  await taken(completed);
  await patient(other);
  await taken(owned);
  assert.equal(calls, 2, "each request is handled once");
});

test("offers live through a restart of the broker", async () => {
  const b = await own();
  const [alice, bob] = [await agents.connect(b.options("alice")), await agents.connect(b.options("bob"))];
  const completed = give(alice);
  await alice.requestHandoff(bob.id, unique("ticket"), { taskType: "support" });
  for await (const offer of bob.handoffs()) {
    await b.kill();
    const accepting = offer.accept();
    await b.restart();
    assert.equal((await (await patient(accepting)).complete()).ownerId, bob.id);
    break;
  }
  await taken(completed);
});

test("a broker that stops in order is come back to", async () => {
  const b = await own();
  const [alice, bob] = [await agents.connect(b.options("alice")), await agents.connect(b.options("bob"))];
  await b.stop();
  await b.restart();
  await patient(alice.send(bob.id, {}, hello("again")));
  assert.equal((await new Mail(bob).next("baton.v1.Info")).payload.text, "again");
});

test("messages that are under way when the broker is killed are taken once", async () => {
  const b = await own();
  const [alice, bob] = [await agents.connect(b.options("alice")), await agents.connect(b.options("bob"))];
  const sending = Array.from({ length: 200 }, (_, i) => alice.send(bob.id, {}, hello(String(i))));
  await sending[20];
  await b.kill();
  await b.restart();
  await patient(Promise.all(sending));
  await alice.send(bob.id, {}, hello("last"));
  const texts: string[] = [];
  const mail = new Mail(bob);
  for (let text = ""; text !== "last"; texts.push(text)) text = (await mail.next("baton.v1.Info")).payload.text;
  assert.equal(texts.length, 201);
  assert.equal(new Set(texts).size, 201);
});

test("a session ends with its connection, also where only a write finds out", async () => {
  const bob = await agents.named("bob");
  const relay = await Relay.start(broker.address, 40);
  const alice = await agents.connect({ ...broker.options("alice"), server: relay.address });
  try {
    await patient(Promise.all(Array.from({ length: 2000 }, (_, i) => alice.send(bob.id, {}, hello(String(i))))));
  } finally {
    relay.close();
  }
});

test("a message that waited for too long is made anew", async () => {
  const b = await own('enrollment = "open"\n[session]\nclock_window_ms = 3000');
  const [alice, bob] = [await agents.connect(b.options("alice")), await agents.connect(b.options("bob"))];
  await b.kill();
  const sending = alice.send(bob.id, {}, hello("late"));
  await wait(3500); // longer than the clock window: the outage itself
  await b.restart();
  await patient(sending);
  assert.equal((await new Mail(bob).next("baton.v1.Info")).payload.text, "late");
});

// The refusal of its second accept must not cause five redeliveries.
test("an agent that restarts between its accept and its ack goes on with its handoff", async () => {
  const [alice, options] = [await agents.named("alice"), broker.options("bob")];
  const completed = give(alice);
  const before = await agents.connect(options);
  await alice.requestHandoff(before.id, unique("ticket"), { taskType: "support" });
  const { value: request } = await patient(before.deliveries().next());
  assert.ok(request);
  await before.accept(request);
  before.close();

  const bob = await agents.connect(options);
  const accepts = new Queue<string>();
  serve(bob, {
    handoffRequest: async (_, delivery) => {
      const accepting = bob.accept(delivery);
      accepting.then(
        () => {
          accepts.push("taken");
        },
        (error: unknown) => {
          accepts.push(error instanceof BatonError ? error.reason : String(error));
        },
      );
      await accepting;
    },
    taskContextTransfer: (_, delivery) => bob.complete(delivery),
  });
  assert.equal(await taken(accepts), "HANDOFF_STATE");
  await taken(completed);
  await alice.requestHandoff(bob.id, unique("other"), { taskType: "support" });
  assert.equal(await taken(accepts), "taken"); // the next request, not a redelivery of the first
});

test("offers go on after a restart of their agent", async () => {
  const [alice, options] = [await agents.named("alice"), broker.options("bob")];
  const completed = give(alice);
  const before = await agents.connect(options);
  await alice.requestHandoff(before.id, unique("ticket"), { taskType: "support" });
  const { value: request } = await patient(before.deliveries().next());
  assert.ok(request);
  await before.accept(request);
  before.close();
  const owned = take(await agents.connect(options), 2); // its first accept wanted all sections
  assert.equal((await taken(owned)).ownerId, options.agentId);
  await taken(completed);
});

test("an offer that is too late ends", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const timeouts = { accept: durationFromMs(2000), whole: durationFromMs(4000) };
  await alice.requestHandoff(bob.id, unique("ticket"), { taskType: "support", timeouts });
  for await (const offer of bob.handoffs()) {
    while ((await bob.getHandoff(offer.handoffId)).state !== v1.HandoffState.FAILED) await wait(10);
    await assert.rejects(offer.accept(), HandoffFailed);
    break;
  }
});

test("a message that is delivered again while its handler works is not handled twice", async () => {
  const b = await own();
  const [alice, bob] = [await agents.connect(b.options("alice")), await agents.connect(b.options("bob"))];
  const begun = new Queue<Delivery>();
  const goOn = deferred<undefined>();
  serve(bob, {
    info: async (_, delivery) => {
      begun.push(delivery);
      await goOn.promise;
    },
  });
  await alice.send(bob.id, {}, hello());
  const delivery = await taken(begun);
  const { session } = delivery;
  await b.kill();
  await b.restart();
  const again = async (): Promise<void> => {
    while (delivery.session === session) await wait(10);
  };
  await patient(again());
  goOn.resolve(undefined);
  await alice.send(bob.id, {}, hello("last"));
  const last = await taken(begun);
  assert.ok(last.payload?.$typeName === "baton.v1.Info");
  assert.equal(last.payload.text, "last");
});
