import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { Agent, type AgentOptions, v1 } from "../src/index.js";
import { CHANGES_MS } from "../src/heartbeats.js";
import { Holdings } from "../src/holdings.js";
import { patient } from "./broker.js";
import { FakeBroker } from "./fake.js";

// What a process says of itself: its name, and the tasks that it works on.

const brokers: FakeBroker[] = [];
const agents: Agent[] = [];
afterEach(() => {
  for (const agent of agents.splice(0)) agent.close();
  for (const broker of brokers.splice(0)) broker.stop();
});

async function broker(refuses: readonly string[] = []): Promise<FakeBroker> {
  const started = await FakeBroker.start(refuses);
  brokers.push(started);
  return started;
}

async function connect(options: AgentOptions): Promise<Agent> {
  const agent = await Agent.connect(options);
  agents.push(agent);
  return agent;
}

interface Frames {
  hello: v1.Hello;
  heartbeat: v1.Heartbeat;
  credit: v1.Credit;
}

async function frame<C extends keyof Frames>(from: FakeBroker, kind: C): Promise<Frames[C]> {
  const found = (await patient(from.frames.next()))?.request;
  assert.ok(found?.case === kind, found?.case);
  return found.value as Frames[C];
}

test("a session begins with the name of the process, which stays over reconnects", async () => {
  const fake = await broker();
  const options = fake.options("alice");
  const agent = await connect(options);
  for (let session = 0; session < 2; session++) {
    const { instanceId, tellsWork } = await frame(fake, "hello");
    assert.deepEqual([instanceId, tellsWork], [agent.instanceId, true]);
    assert.deepEqual((await frame(fake, "heartbeat")).workingOn, []);
    if (session === 0) fake.endSessions();
  }
  const other = await connect(options);
  assert.equal((await frame(fake, "hello")).instanceId, other.instanceId);
  assert.notEqual(other.instanceId, agent.instanceId);
});

test("a broker that knows no processes is no obstacle", async () => {
  const fake = await broker(["hello"]);
  const logged: string[] = [];
  const agent = await connect({ ...fake.options("alice"), log: (text) => logged.push(text) });
  await patient(agent.setCredit(3));
  assert.deepEqual(logged, ["the broker does not take the name of this process"]);
  await frame(fake, "hello");
  await frame(fake, "heartbeat");
  assert.equal((await frame(fake, "credit")).maxOutstanding, 3);
});

test("heartbeats tell of the tasks in work, at once and at most each 200 ms", async () => {
  const fake = await broker();
  const agent = await connect(fake.options("alice"));
  agent.heartbeat = { status: "busy", workingOn: ["by-hand"] };
  await frame(fake, "hello");
  await frame(fake, "heartbeat");
  await wait(CHANGES_MS);
  const begun = performance.now();
  const first = agent.holdings.begin("ticket-1", 2n);
  assert.deepEqual((await frame(fake, "heartbeat")).workingOn, ["by-hand", "ticket-1"]);
  for (let number = 2; number < 100; number++) agent.holdings.begin(`ticket-${number}`, 2n);
  for (let number = 3; number < 100; number++) agent.holdings.over(`ticket-${number}`, 2n);
  agent.holdings.end(first);
  const { status, workingOn } = await frame(fake, "heartbeat");
  assert.deepEqual([status, workingOn], ["busy", ["by-hand", "ticket-2"]]);
  assert.ok(performance.now() - begun >= CHANGES_MS - 10);
  fake.endSessions();
  await frame(fake, "hello");
  assert.deepEqual((await frame(fake, "heartbeat")).workingOn, ["by-hand", "ticket-2"]);
});

test("of more than 1024 tasks, heartbeats take turns", () => {
  const holdings = new Holdings();
  for (let number = 0; number < 1_500; number++) holdings.begin(`ticket-${number}`, 2n);
  const [first, second] = [holdings.listed(), holdings.listed()];
  assert.deepEqual([first.length, second.length, second[0]], [1024, 1024, "ticket-1024"]);
  assert.equal(new Set([...first, ...second]).size, 1_500);
});

test("a holding follows its task until the task has left", () => {
  let changes = 0;
  const holdings = new Holdings(() => changes++);
  const holding = holdings.begin("ticket", 2n);
  assert.equal(holdings.begin("ticket", 2n), holding);
  holdings.lent("ticket", 2n, true);
  assert.equal(holding.isOwned, false);
  holdings.moved("ticket", 2n, 4n);
  assert.deepEqual([holding.epoch, holding.isOwned], [4n, true]);
  holdings.over("ticket", 3n);
  assert.deepEqual([holding.isOver, holdings.listed()], [false, ["ticket"]]);
  holdings.over("ticket", 4n);
  assert.deepEqual([holding.isOver, holding.isOwned, holdings.listed(), changes], [true, false, [], 2]);
});
