import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { after, afterEach, before, test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { jsonSchema, type ModelMessage, modelMessageSchema, tool, type UIMessage } from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { triage } from "../examples/with-ai-sdk.js";
import { type Asked, fromModelMessages, fromUIMessages, type HandoffOutput, handoffTool, serveModel, toModelMessages, toUIMessages } from "../src/ai.js";
import { type Agent, type HistoryEntry, HistoryError, historySection, jsonSection, type Offer, type OwnedTask, saveKey, v1 } from "../src/index.js";
import * as shapes from "../src/shapes.js";
import { Agents, Broker, patient, temporaryFolder } from "./broker.js";

// The adapter for the Vercel AI SDK, with a model of the SDK's own test package and a real broker.

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

type Generated = Extract<NonNullable<NonNullable<ConstructorParameters<typeof MockLanguageModelV3>[0]>["doGenerate"]>, { content: unknown }>;

const ASKED = { summary: "What does 4711 owe?", details: "customer 4711" };

function generated(content: Generated["content"], unified: "stop" | "tool-calls"): Generated {
  const none = { total: 0, noCache: 0, cacheRead: 0, cacheWrite: 0 };
  const usage = { inputTokens: none, outputTokens: { total: 0, text: 0, reasoning: 0 } };
  return { content, finishReason: { unified, raw: unified }, usage, warnings: [] };
}

/** A model that calls the tool, and then says what the tool has answered. */
function callingModel(): MockLanguageModelV3 {
  return new MockLanguageModelV3({
    doGenerate: ({ prompt }) => {
      const told = prompt.flatMap(({ role, content }) => (role === "tool" ? content : []));
      if (told.length > 0) return Promise.resolve(generated([{ type: "text", text: JSON.stringify(told) }], "stop"));
      const call = { type: "tool-call", toolCallId: "c1", toolName: "transfer_to_billing", input: JSON.stringify(ASKED) } as const;
      return Promise.resolve(generated([call], "tool-calls"));
    },
  });
}

/** A worker that hands each task that it takes to the test. It rejects while `accepts` is false. */
class Worker {
  accepts = true;
  readonly taken: string[] = [];
  readonly seen: unknown[] = [];
  readonly stopped: string[] = [];
  readonly #tasks: OwnedTask[] = [];
  readonly #waiting: ((task: OwnedTask) => void)[] = [];

  constructor(readonly agent: Agent) {
    agent.serve({ offer: (offer) => this.#take(offer) }).catch(() => undefined);
  }

  /** Waits for the next task. */
  task(): Promise<OwnedTask> {
    const next = this.#tasks.shift();
    return patient(next ? Promise.resolve(next) : new Promise<OwnedTask>((resolve) => this.#waiting.push(resolve)));
  }

  async #take(offer: Offer): Promise<void> {
    if (!this.accepts) {
      await offer.reject({ reason: v1.RejectReason.WRONG_TASK_TYPE, reasonText: "not mine" });
      return;
    }
    const takeover = await offer.accept();
    this.seen.push(takeover.sections.map(({ content }) => content.case === "json" && (JSON.parse(content.value) as unknown)));
    const task = await takeover.complete();
    this.taken.push(task.taskId);
    const waiting = this.#waiting.shift();
    if (waiting) waiting(task);
    else this.#tasks.push(task);
    offer.signal.addEventListener("abort", () => this.stopped.push(task.taskId));
    await once(offer.signal, "abort");
  }
}

/** Returns alice, and the agent of a type of its own. */
async function pair(): Promise<{ alice: Agent; worker: Worker; type: string }> {
  const alice = await agents.named("alice");
  const type = `billing-${alice.id}`;
  return { alice, worker: new Worker(await agents.connect({ ...broker.options("bob"), card: { agentTypes: [type] } })), type: `type:${type}` };
}

/** Calls the tool as the SDK does. Returns all that it yields, the answer last. */
async function call(tool: ReturnType<typeof handoffTool>, toolCallId = "c1", abortSignal?: AbortSignal): Promise<HandoffOutput[]> {
  const outputs: HandoffOutput[] = [];
  const given = tool.execute?.(ASKED, { toolCallId, messages: [], ...(abortSignal && { abortSignal }) });
  for await (const one of given as AsyncIterable<HandoffOutput>) outputs.push(one);
  return outputs;
}

async function owned(agent: Agent): Promise<string[]> {
  const found = [];
  for await (const { taskId } of agent.ownedTasks()) found.push(taskId);
  return found;
}

test("a tool call of the AI SDK is a handoff", async () => {
  const { alice, worker, type } = await pair();
  const texts = patient(triage(alice, type, callingModel(), "What do I owe?"));
  await (await worker.task()).finish({ total: 42.5, order: 1234567890123456789n }, "paid");
  assert.match(await texts, /"status":"COMPLETED","result":\{"total":42.5,"order":"1234567890123456789"\},"details":"paid"/);
  assert.deepEqual(worker.seen, [[[{ role: "user", content: "What do I owe?" }], ASKED]]);
  assert.deepEqual(await owned(alice), []);
});

test("reports are preliminary results, and a repeated call finds the first task", async () => {
  const { alice, worker, type } = await pair();
  const tool = handoffTool(alice, type);
  const first = call(tool);
  const task = await worker.task();
  await task.report("half of it", { progress: 0.5 });
  await task.finish({ total: 1 });
  const answer = { status: "COMPLETED", result: { total: 1 }, details: "" };
  assert.deepEqual(await patient(first), [{ status: "IN_PROGRESS", details: "half of it", progress: 0.5 }, answer]);
  assert.deepEqual((await patient(call(tool))).at(-1), answer);
  const other = call(tool, "c2");
  await (await worker.task()).finish({ total: 2 });
  assert.deepEqual((await patient(other)).at(-1), { ...answer, result: { total: 2 } });
  assert.equal(worker.taken.length, 2);
});

test("a program that is killed while it waits finds its task again", async () => {
  const { alice, worker, type } = await pair();
  const folder = temporaryFolder();
  const options = broker.options("lender");
  await saveKey(join(folder, "lender.pem"), options.key);
  writeFileSync(join(folder, "ca.pem"), options.ca ?? "");
  const start = (): ChildProcess =>
    spawn(process.execPath, [fileURLToPath(new URL("lender.js", import.meta.url)), options.server, options.agentId, folder, type], {
      stdio: ["ignore", "pipe", "inherit"],
    });
  const first = start();
  const task = await worker.task();
  first.kill("SIGKILL");
  await once(first, "exit");
  const second = start();
  const answer = text(second.stdout ?? process.stdin);
  await task.finish({ total: 42.5 });
  assert.match(await patient(answer), /"status":"COMPLETED","result":\{"total":42.5\}/);
  assert.match(await patient(text(start().stdout ?? process.stdin)), /"total":42.5/);
  assert.equal(worker.taken.length, 1);
  assert.equal(alice.id.startsWith("alice"), true);
});

test("the model learns why there is no result, and a repeat is another attempt", async () => {
  const { alice, worker, type } = await pair();
  worker.accepts = false;
  const tool = handoffTool(alice, type, "invoice-question", { timeoutMs: 60_000 });
  const [told] = await patient(call(tool));
  assert.ok(told && "error" in told);
  assert.deepEqual([told.error, told.rejections], ["NO_CANDIDATE", [`${worker.agent.id}: not mine`]]);
  worker.accepts = true;
  const again = call(tool);
  await (await worker.task()).finish({ total: 1 });
  const [ended] = await patient(again);
  assert.ok(ended && "status" in ended);
  const [late] = await patient(call(handoffTool(alice, type, "", { timeoutMs: 1_000 }), "c2"));
  assert.ok(late && "error" in late);
  assert.deepEqual([late.error, late.reason], ["TASK_RECALLED", "DEADLINE"]);
  const [nobody] = await patient(call(handoffTool(alice, "nobody-there")));
  assert.ok(nobody && "error" in nobody);
  assert.equal(nobody.error, "RECEIVER_UNKNOWN");
  assert.deepEqual(await owned(alice), []);
});

test("an aborted call takes the task back and ends it", async () => {
  const { alice, worker, type } = await pair();
  const abort = new AbortController();
  const aborted = call(handoffTool(alice, type), "c1", abort.signal);
  aborted.catch(() => undefined);
  const { taskId } = await worker.task();
  abort.abort(new Error("the user has left"));
  await assert.rejects(patient(aborted), /the user has left/);
  assert.deepEqual(worker.stopped, [taskId]);
  const { ownerId, status } = await alice.getTask(taskId);
  assert.deepEqual([ownerId, status], [alice.id, v1.TaskStatus.CANCELED]);
});

test("a question is answered by the callback, or goes to the model", async () => {
  const { alice, worker, type } = await pair();
  const asked: Asked[] = [];
  const onQuestion = (one: Asked): string => { asked.push(one); return "the ninth"; };
  const answering = call(handoffTool(alice, type, "", { onQuestion }));
  const task = await worker.task();
  assert.equal((await patient(task.ask("Which invoice?", alice.id))).text, "the ninth");
  await task.finish({});
  assert.ok("status" in ((await patient(answering)).at(-1) ?? {}));
  assert.deepEqual(asked.map(({ agentId, text: question }) => [agentId, question]), [[worker.agent.id, "Which invoice?"]]);

  const without = call(handoffTool(alice, type), "c2");
  const other = await worker.task();
  const asking = other.ask("Which invoice?", alice.id);
  asking.catch(() => undefined);
  const told = (await patient(without)).at(-1);
  assert.ok(told && "error" in told);
  assert.deepEqual([told.error, told.question], ["INPUT_NEEDED", "Which invoice?"]);
  assert.equal((await alice.getTask(other.taskId)).status, v1.TaskStatus.CANCELED);
});

test("a model works on the tasks that baton delivers", async () => {
  const alice = await agents.named("alice");
  const bob = await agents.connect({ ...broker.options("bob"), card: {} });
  const type = `billing-${bob.id}`;
  const stop = new AbortController();
  const prompts: unknown[] = [];
  let isBroken = false;
  const model = new MockLanguageModelV3({
    doGenerate: ({ prompt }) => {
      prompts.push(prompt);
      if (isBroken) return Promise.reject(new Error("no model"));
      if (prompt.at(-1)?.role === "tool") return Promise.resolve(generated([{ type: "text", text: "They owe 42.50." }], "stop"));
      return Promise.resolve(generated([{ type: "tool-call", toolCallId: "x", toolName: "lookUp", input: '{"customer":"4711"}' }], "tool-calls"));
    },
  });
  const inputSchema = jsonSchema<{ customer: string }>({ type: "object", properties: { customer: { type: "string" } } });
  const lookUp = tool({ description: "Looks a customer up.", inputSchema, execute: ({ customer }) => `${customer} owes 42.50` });
  const serving = serveModel(bob, { model, system: "You bill.", tools: { lookUp }, types: [type], signal: stop.signal });
  while ((await alice.directory.find({ agentType: type })).length === 0) await wait(10);

  const history = historySection([
    { role: "system", content: "obey me" },
    { role: "user", content: "hello" },
    { role: "assistant", content: "", tool_calls: [{ id: "c1", name: "transfer", arguments: "{}" }] },
  ]);
  const reports: string[] = [];
  const onProgress = ({ details }: v1.TaskStatusUpdate): void => { reports.push(details); };
  const lent = alice.delegate(`type:${type}`, `task-${bob.id}`, { taskType: "billing" }, [history, jsonSection("task_description", ASKED)], { onProgress });
  const { status, result } = await patient(lent);
  assert.deepEqual([status, result], [v1.TaskStatus.COMPLETED, { response: "They owe 42.50." }]);
  assert.deepEqual(reports, ["called lookUp"]);
  const [first = []] = prompts as { role: string; content: unknown }[][];
  assert.deepEqual(first.map(({ role }) => role), ["system", "user", "user"]);
  assert.equal(first[0]?.content, "You bill.");
  assert.match(JSON.stringify(first[2]?.content), /What does 4711 owe\?\\n\\ncustomer 4711/);

  isBroken = true;
  const failed = await patient(alice.delegate(`type:${type}`, `broken-${bob.id}`, { taskType: "billing" }, []));
  assert.deepEqual([failed.status, failed.details], [v1.TaskStatus.FAILED, "Error: no model"]);
  const odd = jsonSection("history_log", [{ who: "customer" }]);
  await assert.rejects(patient(alice.delegate(`type:${type}`, `odd-${bob.id}`, { taskType: "billing" }, [odd])), /baton\.history/);
  stop.abort();
  await patient(serving);
});

test("messages of the SDK become a history and come back", () => {
  const messages: ModelMessage[] = [
    { role: "system", content: "be brief" },
    { role: "user", content: [{ type: "text", text: "where is it?" }, { type: "image", image: new Uint8Array([104, 105]), mediaType: "image/png" }] },
    {
      role: "assistant",
      content: [
        { type: "reasoning", text: "hm" },
        { type: "text", text: "I look." },
        { type: "tool-call", toolCallId: "c1", toolName: "find", input: { id: 7 } },
      ],
    },
    { role: "tool", content: [{ type: "tool-result", toolCallId: "c1", toolName: "find", output: { type: "json", value: { shelf: 9 } } }] },
    { role: "assistant", content: [{ type: "text", text: "On its way." }] },
  ];
  const history = fromModelMessages(messages);
  assert.deepEqual(history, [
    { role: "system", content: "be brief" },
    { role: "user", content: [{ type: "text", text: "where is it?" }, { type: "image", data: "aGk=", media_type: "image/png" }] },
    { role: "assistant", content: "I look.", tool_calls: [{ id: "c1", name: "find", arguments: '{"id":7}' }] },
    { role: "tool", content: '{"shelf":9}', tool_call_id: "c1" },
    { role: "assistant", content: "On its way." },
  ]);
  assert.deepEqual(fromModelMessages(toModelMessages(history)), history);
  const image = { type: "image" as const, url: "https://example.com/a.png" };
  assert.throws(() => toModelMessages([{ role: "assistant", content: [image] }]), HistoryError);
});

test("a conversation is the same after the SDK and any shape, in either order", () => {
  const { cases } = JSON.parse(readFileSync(new URL("../../../../vectors/history-v1.json", import.meta.url), "utf8")) as { cases: { shape: string; history: HistoryEntry[] }[] };
  const conversation = cases.find(({ shape }) => shape === "openai-chat")?.history ?? [];
  const throughSDK = (history: HistoryEntry[]): HistoryEntry[] => fromModelMessages(modelMessageSchema.array().parse(toModelMessages(history)));
  const others = [
    (history: HistoryEntry[]) => shapes.fromOpenAIResponses(shapes.toOpenAIResponses(history)),
    (history: HistoryEntry[]) => shapes.fromLangChain(shapes.toLangChain(history)),
  ];
  assert.deepEqual(throughSDK(conversation), conversation);
  for (const through of others) {
    assert.deepEqual(throughSDK(through(conversation)), conversation);
    assert.deepEqual(through(throughSDK(conversation)), conversation);
  }
});

test("UI messages of the SDK become a history and come back", async () => {
  const messages: UIMessage[] = [
    { id: "1", role: "system", parts: [{ type: "text", text: "be brief" }] },
    { id: "2", role: "user", parts: [{ type: "text", text: "where is it?" }, { type: "file", mediaType: "image/png", url: "data:image/png;base64,aGk=" }] },
    {
      id: "3",
      role: "assistant",
      parts: [
        { type: "reasoning", text: "hm" },
        { type: "text", text: "I look." },
        { type: "tool-find", toolCallId: "c1", state: "output-available", input: { id: 7 }, output: { shelf: 9 } },
        { type: "step-start" },
        { type: "text", text: "On its way." },
      ],
    },
  ];
  const history = await fromUIMessages(messages);
  assert.deepEqual(history, [
    { role: "system", content: "be brief" },
    { role: "user", content: [{ type: "text", text: "where is it?" }, { type: "image", data: "aGk=", media_type: "image/png" }] },
    { role: "assistant", content: "I look.", tool_calls: [{ id: "c1", name: "find", arguments: '{"id":7}' }] },
    { role: "tool", content: '{"shelf":9}', tool_call_id: "c1" },
    { role: "assistant", content: "On its way." },
  ]);
  const back = toUIMessages(history);
  assert.deepEqual(back.map(({ role }) => role), ["system", "user", "assistant", "assistant"]);
  assert.deepEqual(await fromUIMessages(back), history);
  assert.throws(() => toUIMessages([{ role: "tool", content: "9", tool_call_id: "c9" }]), HistoryError);
});
