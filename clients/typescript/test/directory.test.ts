import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { type Agent, type AgentFilter, explain, v1 } from "../src/index.js";
import { Agents, Broker, patient, refusal, unique } from "./broker.js";

// The directory of agents: find, change, deregister, watch.

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

/** Connects an agent with this card. */
async function carded(name: string, card: NonNullable<ReturnType<Broker["options"]>["card"]>): Promise<Agent> {
  return agents.connect({ ...broker.options(name), card });
}

test("an explanation has a line for each factor", () => {
  const found = create(v1.AgentMatchSchema, {
    agentId: "bob",
    rank: 1,
    score: 0.5876,
    presence: v1.Presence.ALIVE,
    load: { isFull: true },
    factors: [
      { name: "skill cover", value: 1, weight: 0.4, text: "1 of 1 skills" },
      { name: "free capacity", value: 0.75, weight: 0.25, text: "1 of 4 in use" },
    ],
  });
  assert.deepEqual(explain(found).split("\n"), [
    "1. bob: 0.588, ALIVE, full",
    "   skill cover    1.00 x 0.40 = 0.400  1 of 1 skills",
    "   free capacity  0.75 x 0.25 = 0.188  1 of 4 in use",
  ]);
});

test("agents are found best first, with reasons", async () => {
  const type = unique("clerk");
  const [tax, writing] = [{ name: "finance.tax.de" }, { name: "writing" }];
  const alice = await agents.named("alice");
  const bob = await carded("bob", { agentTypes: [type], skills: [tax] });
  const carol = await carded("carol", { agentTypes: [type], skills: [tax, writing] });
  const search = { agentType: type, requiredSkills: ["finance.tax"], preferredSkills: ["writing"] };
  const found = await alice.directory.find(search);
  assert.deepEqual(found.map((one) => [one.agentId, one.rank, one.missingSkills]), [
    [carol.id, 1, []],
    [bob.id, 2, ["writing"]],
  ]);
  assert.match(explain(found[1] ?? create(v1.AgentMatchSchema)), /1 of 2 skills, without writing/);
  assert.deepEqual((await alice.directory.find(search, 1)).map(({ agentId }) => agentId), [carol.id]);
  assert.deepEqual(await alice.directory.find({ requiredSkills: ["plumbing"] }), []);
  await assert.rejects(alice.directory.find({ asSenderId: bob.id }), refusal("SENDER_MISMATCH"));
});

test("the processes of an agent are listed", async () => {
  const alice = await agents.named("alice");
  const bob = await agents.named("bob");
  let listed = await alice.directory.processes(bob.id);
  // The first frame of a session names its process.
  while (listed.some(({ instanceId }) => instanceId === "")) listed = await alice.directory.processes(bob.id);
  assert.deepEqual(listed.map(({ listsWork, taskIds, taskCount }) => [listsWork, taskIds, taskCount]), [[true, [], 0]]);
  await assert.rejects(alice.directory.processes(unique("nobody")), refusal("AGENT_UNKNOWN"));
});

test("agents are listed by their ids", async () => {
  const type = unique("clerk");
  const alice = await agents.named("alice");
  const cards = { agentTypes: [type], skills: [{ name: "finance.tax.de" }] };
  const [carol, bob] = [await carded("carol", cards), await carded("bob", cards)];
  const listed = async (filter: AgentFilter): Promise<(string | undefined)[]> => {
    const found = [];
    for await (const { card } of alice.directory.list(filter)) found.push(card?.agentId);
    return found;
  };
  assert.deepEqual(await listed({ agentType: type, skill: "finance.tax" }), [bob.id, carol.id]);
  await bob.directory.deregister();
  assert.deepEqual(await listed({ agentType: type }), [carol.id]);
  assert.ok((await listed({ includeDeregistered: true })).includes(bob.id));
  await assert.rejects(listed({ agentType: "no type" }), refusal("FIELD_INVALID"));
});

test("a card changes by field and etag", async () => {
  const alice = await carded("alice", { agentTypes: ["support"], capacity: 2 });
  const { etag } = await alice.getAgent(alice.id);
  const { card } = await alice.directory.update({ description: "taxes", metadata: { desk: "4" } }, { etag });
  assert.deepEqual([card?.description, card?.metadata], ["taxes", { desk: "4" }]);
  assert.deepEqual([card?.capacity, card?.agentTypes], [2, ["support"]], "fields that are not named stay");
  const slow = await alice.directory.update({ decidesWithin: { seconds: 28_800n } });
  assert.equal(slow.card?.decidesWithin?.seconds, 28_800n);
  await assert.rejects(alice.directory.update({ decidesWithin: { seconds: 700_000n } }), refusal("FIELD_INVALID"));
  await assert.rejects(alice.directory.update({ capacity: 3 }, { etag }), refusal("CONFLICT"));
  assert.equal((await alice.directory.update({ capacity: 0 })).card?.capacity, 0, "a zero is a value");
  await assert.rejects(alice.directory.update({}), RangeError);
});

test("an agent deregisters once it owns nothing", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const ticket = unique("ticket");
  const { handoffId } = await alice.requestHandoff(bob.id, ticket, { taskType: "support" });
  await assert.rejects(alice.directory.deregister(), refusal("AGENT_BUSY"));
  await alice.cancel(handoffId);
  await alice.updateStatus(ticket, 1n, { status: v1.TaskStatus.CANCELED });
  const gone = await alice.directory.deregister({ reasonText: "moved away" });
  assert.ok(gone.deregisterTime);
});

test("a watch of agents goes on after a kill", async () => {
  const type = unique("type");
  const alice = await carded("alice", { agentTypes: [type] });
  const changes = alice.directory.watch({ agentType: type, cardsOnly: true });
  const next = async (from = changes): Promise<{ cursor: bigint; told: string | undefined }> => {
    const { value } = await patient(from.next());
    const agentId = value?.event.case === "agent" ? value.event.value.card?.agentId : undefined;
    return { cursor: value?.cursor ?? 0n, told: agentId ?? String(value?.event.case) };
  };
  const first = await next();
  assert.equal(first.told, alice.id);
  assert.equal((await next()).told, "caughtUp");
  await broker.kill();
  await broker.restart();
  const bob = await carded("bob", { agentTypes: [type] });
  const second = await next();
  assert.equal(second.told, bob.id);
  assert.ok(second.cursor > first.cursor);
  await changes.return();
  await bob.directory.update({ agentTypes: [] });
  const later = alice.directory.watch({ agentType: type, afterCursor: second.cursor, cardsOnly: true });
  assert.equal((await next(later)).told, "leftAgentId");
  await later.return();
  await assert.rejects(patient(alice.directory.watch({ agentType: "no type" }).next()), refusal("FIELD_INVALID"));
  const stop = new AbortController();
  const stopped = alice.directory.watch({ signal: stop.signal });
  await patient(stopped.next());
  stop.abort();
  for await (const _ of stopped); // ends
});
