import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { type Agent, type Handlers, NoAnswer, type OwnedTask, type Question } from "../src/index.js";
import { Queue } from "../src/queue.js";
import { Agents, Broker, patient, refusal, unique } from "./broker.js";

// Questions about a task, and their answers.

const SCHEMA = { type: "object", properties: { router: { type: "integer" } }, required: ["router"] };

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

function serve(agent: Agent, handlers: Handlers): void {
  agent.serve(handlers).catch(() => undefined);
}

/** Returns a task of alice: a handoff that was cancelled created it. Alice serves, for the news of it comes before answers. */
async function owning(alice: Agent, bob: Agent, handlers: Handlers = {}): Promise<OwnedTask> {
  serve(alice, handlers);
  const { handoffId } = await alice.requestHandoff(bob.id, unique("ticket"), { taskType: "support" });
  await alice.cancel(handoffId).catch(() => undefined); // bob may have rejected it already
  for await (const task of alice.ownedTasks()) return task;
  throw new Error("alice owns no task");
}

async function taken<T>(queue: Queue<T>): Promise<T> {
  const item = await patient(queue.next());
  assert.ok(item !== undefined);
  return item;
}

function noAnswer(reason: string): (error: unknown) => boolean {
  return (error) => error instanceof NoAnswer && error.reason === reason;
}

test("a question is answered once, and by its schema", async () => {
  const [alice, bob, asked] = [await agents.named("alice"), await agents.named("bob"), new Queue<Question>()];
  serve(bob, {
    prompt: async (question) => {
      await assert.rejects(question.answer("the third", { router: "three" }), refusal("FIELD_INVALID"));
      await question.answer("the one in the hall", { router: 3 });
      asked.push(question);
    },
  });
  const task = await owning(alice, bob);
  const answer = await patient(task.ask("Which router?", bob.id, { schema: SCHEMA, details: "there are four" }));
  assert.deepEqual(answer, { agentId: bob.id, text: "the one in the hall", data: { router: 3 } });
  const question = await taken(asked);
  assert.deepEqual([question.text, question.details, question.ownerId], ["Which router?", "there are four", alice.id]);
  assert.deepEqual([question.taskId, question.schema, question.answerBefore], [task.taskId, SCHEMA, undefined]);
  await assert.rejects(question.answer("another one", { router: 4 }), refusal("INPUT_TAKEN"));
  await task.finish();
});

test("a question without an answer expires", async () => {
  const [alice, bob, asked] = [await agents.named("alice"), await agents.named("bob"), new Queue<Question>()];
  serve(bob, {
    prompt: (question) => {
      asked.push(question);
    },
  });
  const task = await owning(alice, bob);
  await assert.rejects(patient(task.ask("Which router?", bob.id, { withinMs: 2_000 })), noAnswer("EXPIRED"));
  const question = await taken(asked);
  assert.ok(question.answerBefore !== undefined);
  await assert.rejects(bob.answer(question, "too late"), refusal("INPUT_EXPIRED"));
});

test("a later status withdraws a question", async () => {
  const [alice, bob, asked] = [await agents.named("alice"), await agents.named("bob"), new Queue<Question>()];
  alice.mail.lookAfterMs = 200;
  serve(bob, {
    prompt: (question) => {
      asked.push(question);
    },
  });
  const task = await owning(alice, bob);
  const asking = task.ask("Which router?", bob.id);
  asking.catch(() => undefined);
  await taken(asked);
  await task.report("found it");
  await assert.rejects(patient(asking), noAnswer("WITHDRAWN"));
});

test("an aborted call leaves the question open, and the handler gets the answer", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [asked, told, abort] = [new Queue<Question>(), new Queue<string>(), new AbortController()];
  serve(bob, {
    prompt: (question) => {
      asked.push(question);
    },
  });
  const task = await owning(alice, bob, {
    taskInput: ({ text }) => {
      told.push(text);
    },
  });
  const asking = task.ask("Which router?", bob.id, { signal: abort.signal });
  asking.catch(() => undefined);
  const question = await taken(asked);
  abort.abort(new Error("enough"));
  await assert.rejects(patient(asking), /enough/);
  await question.answer("the third");
  assert.equal(await taken(told), "the third");
});
