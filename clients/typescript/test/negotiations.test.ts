import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { type Agent, type Bid, type Handlers, jsonSection, NegotiationFailed, offerOf, v1 } from "../src/index.js";
import { Queue } from "../src/queue.js";
import { Agents, Broker, patient, refusal, unique } from "./broker.js";

// Negotiations: offers, counter-offers, awards with and without a task, and what a restart leaves.

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

const REQUEST = { description: "the sums of march" };
const TERMS = { taskType: "report" };
const GOALS = [jsonSection("goals", ["the sums of march"])];
const decline = create(v1.TaskDeclineSchema, { reason: v1.RejectReason.OVERLOADED, reasonText: "too much work" });

type Answer = NonNullable<Handlers["bid"]>;

/** Connects an agent that offers by this function, and takes over what it is awarded. `told` gets its news. */
async function bidder(type: string, name: string, bid: Answer, told = new Queue<string>()): Promise<Agent> {
  const agent = await agents.connect({ ...broker.options(name), card: { agentTypes: [type] } });
  const handlers: Handlers = {
    bid,
    offer: async (offer) => {
      assert.ok(offer.isAward);
      const task = await (await offer.accept()).complete();
      told.push(`${name} owns at ${task.epoch} from ${offer.senderId}`);
    },
    taskAccept: () => { told.push(`${name} has the work`); },
    negotiationClosed: ({ winnerId }) => { told.push(`${name} hears of ${winnerId}`); },
  };
  agent.serve(handlers).catch(() => undefined);
  return agent;
}

function costs(cost: number): Answer {
  return ({ request }) => {
    assert.equal(request?.description, REQUEST.description);
    return offerOf({ confidence: 0.9, cost, conditions: "by mail" });
  };
}

test("offers are iterated, countered and awarded", async () => {
  const type = unique("analyst");
  const alice = await agents.named("alice");
  const told = new Queue<string>();
  const haggles: Answer = ({ counter }) => offerOf({ confidence: 0.5, cost: counter ? counter.cost + 1 : 9 });
  const [bob, carol] = [await bidder(type, "bob", costs(6), told), await bidder(type, "carol", haggles, told)];
  const dave = await bidder(type, "dave", () => decline);
  await agents.connect({ ...broker.options("erin"), card: { agentTypes: [type] } }); // does not answer: it stays open
  await using negotiation = await alice.negotiate(`all:${type}`, REQUEST, { offersMs: 120_000 });
  const seen: [number, number][] = [];
  for await (const bid of negotiation) {
    if (bid.agentId === carol.id) {
      seen.push([bid.offer.cost, bid.offer.round]);
      if (bid.offer.cost > 4) await bid.counter({ cost: bid.offer.cost - 4 });
    }
    if (negotiation.bids.has(bob.id) && negotiation.bids.get(carol.id)?.offer.cost === 3) break;
  }
  assert.deepEqual(seen, [[9, 0], [6, 1], [3, 2]]);
  assert.equal(negotiation.bids.get(bob.id)?.offer.conditions, "by mail");
  const best = negotiation.bids.get(carol.id);
  assert.ok(best);
  await negotiation.award(best, "thank you");
  const { state, winnerId } = await negotiation.state();
  assert.deepEqual([state, winnerId], [v1.NegotiationState.SETTLED, carol.id]);
  await assert.rejects(negotiation.cancel(), refusal("NEGOTIATION_CLOSED"));
  const news = [await patient(told.next()), await patient(told.next())].sort();
  assert.deepEqual(news, [`bob hears of ${carol.id}`, "carol has the work"]);
  assert.notEqual(dave.id, winnerId);
  const listed: string[] = [];
  for await (const one of alice.negotiations.list({ agentId: alice.id })) listed.push(one.negotiationId);
  assert.deepEqual(listed, [negotiation.id]);
});

test("the iteration ends when all have answered, and the watch at the end", async () => {
  const type = unique("analyst");
  const alice = await agents.named("alice");
  const bob = await bidder(type, "bob", costs(2));
  const dave = await bidder(type, "dave", () => decline);
  await using negotiation = await alice.negotiate(`all:${type}`, REQUEST, { offersMs: 120_000 });
  const bids: string[] = [];
  for await (const { agentId } of negotiation) bids.push(agentId);
  assert.deepEqual(bids, [bob.id]);
  assert.equal((await negotiation.closed()).state, v1.NegotiationState.DECIDING);
  assert.ok([...negotiation.declines.keys()].every((agentId) => agentId === dave.id));
  const states: v1.NegotiationState[] = [];
  for await (const { state } of alice.negotiations.watch(negotiation.id)) {
    states.push(state);
    if (states.length === 1) await negotiation.cancel();
  }
  assert.deepEqual(states, [v1.NegotiationState.DECIDING, v1.NegotiationState.CANCELLED]);
});

test("a task is awarded to a bid", async () => {
  const [type, task] = [unique("analyst"), unique("march")];
  const alice = await agents.named("alice");
  const told = new Queue<string>();
  await bidder(type, "bob", costs(2), told);
  const carol = await bidder(type, "carol", costs(1), told);
  await using negotiation = await alice.negotiate(`all:${type}`, { ...REQUEST, handoff: TERMS }, { taskId: task, offersMs: 120_000 });
  const bids: Bid[] = [];
  for await (const bid of negotiation) bids.push(bid);
  const [cheapest] = bids.sort((one, other) => one.offer.cost - other.offer.cost);
  assert.ok(cheapest);
  const handed = await patient(negotiation.handOver(cheapest, GOALS));
  assert.deepEqual([handed.ownerId, handed.taskId, handed.epoch], [carol.id, task, 2n]);
  const news = [await patient(told.next()), await patient(told.next())].sort();
  assert.deepEqual(news, [`bob hears of ${carol.id}`, `carol owns at 2 from ${alice.id}`]);
});

test("the broker awards under the mandate and asks the next offer", async () => {
  const [type, task] = [unique("analyst"), unique("march")];
  const alice = await agents.named("alice");
  const told = new Queue<string>();
  const bob = await agents.connect({ ...broker.options("bob"), card: { agentTypes: [type] } });
  const carol = await bidder(type, "carol", costs(2), told);
  const handlers: Handlers = {
    bid: () => offerOf({ confidence: 1, cost: 1 }),
    offer: async (offer) => {
      assert.deepEqual([offer.isAward, offer.request?.taskType, offer.senderId], [true, "report", alice.id]);
      await offer.reject({ reason: v1.RejectReason.OVERLOADED });
    },
  };
  bob.serve(handlers).catch(() => undefined);
  const request = { ...REQUEST, handoff: TERMS, awardRule: v1.AwardRule.LOWEST_COST };
  await using negotiation = await alice.negotiate(`all:${type}`, request, { taskId: task, offersMs: 120_000 });
  const handed = await patient(negotiation.handedOver(GOALS));
  assert.deepEqual([handed.ownerId, handed.epoch, handed.rejections.map(({ agentId }) => agentId)], [carol.id, 2n, [bob.id]]);
  assert.equal((await negotiation.state()).state, v1.NegotiationState.SETTLED);
  assert.equal(await patient(told.next()), `carol owns at 2 from ${alice.id}`);
});

test("a negotiation without an offer fails, and an agent without a handler declines", async () => {
  const type = unique("analyst");
  const alice = await agents.named("alice");
  const bob = await agents.connect({ ...broker.options("bob"), card: { agentTypes: [type] } });
  bob.serve({}).catch(() => undefined);
  const request = { ...REQUEST, handoff: TERMS, awardRule: v1.AwardRule.SOONEST };
  await using negotiation = await alice.negotiate(`all:${type}`, request, { taskId: unique("march"), offersMs: 120_000 });
  await assert.rejects(patient(negotiation.handedOver(GOALS)), (error) => {
    return error instanceof NegotiationFailed && error.reason === "NO_OFFER" && error.negotiationId === negotiation.id;
  });
  assert.equal(negotiation.declines.get(bob.id)?.reason, v1.RejectReason.NO_SKILL);
  await assert.rejects(alice.negotiate("all:unknown", REQUEST), refusal("RECEIVER_UNKNOWN"));
});

test("a negotiation continues after restarts of requester and broker", async () => {
  const type = unique("analyst");
  const identity = broker.options("alice");
  let answer = (): void => undefined;
  const answers = new Promise<void>((resolve) => (answer = resolve));
  await bidder(type, "bob", costs(2));
  const carol = await bidder(type, "carol", async () => {
    await answers;
    return offerOf({ confidence: 0.5, cost: 1 });
  });
  const before = await agents.connect(identity);
  const first = await before.negotiate(`all:${type}`, { ...REQUEST, handoff: TERMS }, { taskId: unique("march"), offersMs: 240_000 });
  const { value } = await patient(first[Symbol.asyncIterator]().next());
  before.close();
  await broker.kill();
  await broker.restart();
  answer();
  const alice = await agents.connect(identity);
  await using again = await alice.resumeNegotiation(first.id);
  for await (const { agentId } of again) assert.ok(agentId !== "");
  assert.equal(value?.offerId, again.bids.get(value?.agentId ?? "")?.offerId);
  const best = again.bids.get(carol.id);
  assert.ok(best);
  await assert.rejects(again.handOver(best, GOALS), TypeError);
  assert.equal((await patient(again.handOver(best, GOALS, { terms: TERMS }))).ownerId, carol.id);
});
