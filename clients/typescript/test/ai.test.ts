import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import type { ModelMessage } from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { triage } from "../examples/with-ai-sdk.js";
import { fromModelMessages, handoffTool, toModelMessages } from "../src/ai.js";
import { type Agent, HistoryError, v1 } from "../src/index.js";
import { Agents, Broker, patient } from "./broker.js";

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

/** Returns alice, and the contexts that bob took over. Bob rejects other task types. */
async function pair(): Promise<{ alice: Agent; bob: Agent; seen: unknown[] }> {
  const seen: unknown[] = [];
  const alice = await agents.named("alice");
  const bob = await agents.connect({ ...broker.options("bob"), card: { agentTypes: ["billing"] } });
  const serving = bob.serve({
    offer: async (offer) => {
      if (offer.request?.taskType !== "invoice-question") {
        await offer.reject({ reason: v1.RejectReason.WRONG_TASK_TYPE, reasonText: "not mine" });
        return;
      }
      const takeover = await offer.accept();
      seen.push(...takeover.sections.map(({ content }) => content.case === "json" && (JSON.parse(content.value) as unknown)));
      const task = await takeover.complete();
      await task.finish({ total: 42.5, order: 1234567890123456789n }, "paid");
    },
  });
  serving.catch(() => undefined);
  return { alice, bob, seen };
}

test("a tool call of the AI SDK is a handoff", async () => {
  const { alice, seen } = await pair();
  const text = await patient(triage(alice, callingModel(), "What do I owe?"));
  assert.match(text, /"status":"COMPLETED","result":\{"total":42.5,"order":"1234567890123456789"\},"details":"paid"/);
  assert.deepEqual(seen, [[{ role: "user", content: "What do I owe?" }], ASKED]);
});

test("the model learns that no agent takes the task, and an aborted call takes it back", async () => {
  const { alice, bob } = await pair();
  const options = { toolCallId: "c1", messages: [] };
  const travel = handoffTool(alice, bob.id, "travel", { description: "Books a trip." });
  const told = await patient(Promise.resolve(travel.execute?.(ASKED, options)));
  assert.ok(told && "error" in told);
  assert.deepEqual([told.error, told.rejections], ["NO_CANDIDATE", [`${bob.id}: not mine`]]);

  const idle = await agents.named("idle");
  const waiting = handoffTool(alice, idle.id, "travel", { description: "Books a trip." });
  const abort = new AbortController();
  const call = Promise.resolve(waiting.execute?.(ASKED, { ...options, abortSignal: abort.signal }));
  call.catch(() => undefined);
  const owned = async (): Promise<boolean> => {
    for await (const task of alice.ownedTasks()) if (task.handoffId !== "") return true;
    return false;
  };
  while (!(await owned()));
  abort.abort(new Error("the user has left"));
  await assert.rejects(patient(call), /the user has left/);
  assert.equal(await owned(), false, "the handoff is cancelled");
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
