import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { type Agent, type AgentOptions, jsonSection, type OwnedTask, v1 } from "../src/index.js";
import type { Payload } from "../src/index.js";
import { Queue } from "../src/queue.js";
import { Agents, Broker, patient, PATIENCE_MS, unique } from "./broker.js";

// Calls whose mail another process of the agent has got: they read the state at the broker.

const { COMPLETED, FAILED } = v1.TaskStatus;
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

/** Has the mail of this kind acked unread, as if another process of the agent had got it. */
function losing(agent: Agent, ...kinds: Payload["$typeName"][]): Queue<string> {
  const lost = new Queue<string>();
  const route = agent.mail.route.bind(agent.mail);
  agent.mail.route = (delivery) => {
    const kind = delivery.payload?.$typeName;
    if (kind === undefined || !kinds.includes(kind)) {
      route(delivery);
      return;
    }
    // The agent may be closed by now; then its test has ended.
    delivery.ack().then(() => { lost.push(kind); }, () => undefined);
  };
  return lost;
}

function works(agent: Agent, work: (task: OwnedTask) => unknown): void {
  agent.serve({
    offer: async (offer) => {
      await work(await (await offer.accept()).complete());
    },
  }).catch(() => undefined);
}

test("a result that another process got is read from the broker", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  alice.mail.lookAfterMs = 100;
  const lost = losing(alice, "baton.v1.TaskStatusUpdate");
  works(bob, async (task) => {
    await task.report("half of it");
    if (task.epoch === 2n) await task.finish({ cause: "a loose cable" }, "found it");
    else throw new Error("no such router");
  });
  const taskId = unique("ticket");
  const first = await patient(alice.delegate(bob.id, taskId, WORK, []));
  assert.deepEqual(first, { taskId, epoch: 3n, status: COMPLETED, result: { cause: "a loose cable" }, details: "found it" });
  const second = await patient(alice.delegate(bob.id, taskId, WORK, [], { epoch: 3n }));
  assert.deepEqual([second.epoch, second.status, second.details, second.result], [5n, FAILED, "Error: no such router", {}]);
  await patient(lost.next());
  await patient(lost.next());
});

test("a result that another process got is read at the time limit, before the call says that it is lost", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  alice.mail.lookAfterMs = PATIENCE_MS;
  losing(alice, "baton.v1.TaskStatusUpdate");
  works(bob, (task) => task.finish({ cause: "a loose cable" }));
  const { result } = await patient(alice.delegate(bob.id, unique("ticket"), WORK, [], { timeoutMs: 1_000 }));
  assert.deepEqual(result, { cause: "a loose cable" });
});

test("the completion of a handoff that another process got is read from the broker", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  alice.mail.lookAfterMs = 100;
  const lost = losing(alice, "baton.v1.HandoffComplete");
  works(bob, () => undefined);
  const { ownerId, epoch } = await patient(alice.handOver(bob.id, unique("ticket"), WORK, [jsonSection("goals", [])]));
  assert.deepEqual([ownerId, epoch, await patient(lost.next())], [bob.id, 2n, "baton.v1.HandoffComplete"]);
});

test("a call reads the state as soon as its agent has connected again", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  alice.mail.lookAfterMs = PATIENCE_MS;
  const lost = losing(alice, "baton.v1.TaskStatusUpdate");
  works(bob, (task) => task.finish({ cause: "a loose cable" }));
  const lending = alice.delegate(bob.id, unique("ticket"), WORK, []);
  await patient(lost.next());
  await broker.stop();
  await broker.restart();
  assert.deepEqual((await patient(lending)).result, { cause: "a loose cable" });
});

test("an answer that another process got is read from the task", async () => {
  const [alice, bob, carol] = [await agents.named("alice"), await agents.named("bob"), await agents.named("carol")];
  bob.mail.lookAfterMs = 100;
  const answered = new Queue<v1.TaskInput>();
  losing(bob, "baton.v1.TaskInput");
  carol.serve({
    prompt: async (question) => {
      await question.answer("the third", { router: 3 });
      const answer = create(v1.TaskInputSchema, { text: "the third", dataJson: '{"router":3}' });
      const getTask = bob.getTask.bind(bob);
      // What a broker shows that keeps the latest answer.
      bob.getTask = async (taskId) => {
        const task = await getTask(taskId);
        const asked = create(v1.OpenPromptSchema, { messageId: question.questionId, askedAgentId: carol.id });
        task.lastAnswer ??= create(v1.AnsweredPromptSchema, { question: asked, answer });
        return task;
      };
      answered.push(answer);
    },
  }).catch(() => undefined);
  const answers = new Queue<unknown>();
  works(bob, async (task) => {
    answers.push(await task.ask("Which router?", carol.id));
  });
  await patient(alice.handOver(bob.id, unique("ticket"), WORK, []));
  assert.deepEqual(await patient(answers.next()), { agentId: carol.id, text: "the third", data: { router: 3 } });
});

test("two processes that lend at the same time get their own results", async () => {
  const options: AgentOptions = broker.options("alice");
  const [one, two, bob] = [await agents.connect(options), await agents.connect(options), await agents.named("bob")];
  works(bob, (task) => task.finish({ of: task.taskId }));
  // One of them also takes all other mail of the agent, and acks it.
  two.serve({}).catch(() => undefined);
  const lending = [one, two, one, two, one, two, one, two].map(async (process) => {
    const taskId = unique("ticket");
    const { result } = await process.delegate(bob.id, taskId, WORK, []);
    assert.deepEqual(result, { of: taskId });
  });
  await patient(Promise.all(lending));
});
