import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";
import { type HistoryEntry, HistoryError, latestOf, settled, type ShapedMessage, withoutToolCalls } from "../src/index.js";
import * as shapes from "../src/shapes.js";

// Histories in the shapes of models, by the vectors.

interface Case {
  shape: keyof typeof READ;
  name: string;
  system?: string;
  messages: object[];
  history: HistoryEntry[] | null;
  pointer?: string;
  back?: ShapedMessage[];
  back_system?: string;
}

const READ = {
  "openai-chat": shapes.fromOpenAIChat,
  "openai-responses": shapes.fromOpenAIResponses,
  anthropic: shapes.fromAnthropic,
  gemini: shapes.fromGemini,
  langchain: shapes.fromLangChain,
};
const beside = (messages: ShapedMessage[]): shapes.Prompted => ({ system: "", messages });
const WRITE = {
  "openai-chat": (history: HistoryEntry[]) => beside(shapes.toOpenAIChat(history)),
  "openai-responses": (history: HistoryEntry[]) => beside(shapes.toOpenAIResponses(history)),
  anthropic: shapes.toAnthropic,
  gemini: shapes.toGemini,
  langchain: (history: HistoryEntry[]) => beside(shapes.toLangChain(history)),
};
const { cases } = JSON.parse(readFileSync(new URL("../../../../vectors/history-v1.json", import.meta.url), "utf8")) as { cases: Case[] };
const conversation = cases.find(({ shape }) => shape === "openai-chat")?.history ?? [];

describe("a history comes from a shape and goes back", () => {
  for (const one of cases) {
    const { shape, name, system, messages, history, back = messages, back_system: backSystem = system ?? "" } = one;
    if (history === null) continue;
    test(`${shape}: ${name}`, () => {
      assert.deepEqual(READ[shape](messages, system), history);
      assert.deepEqual(WRITE[shape](history), { system: backSystem, messages: back });
    });
  }
});

describe("what has no form is refused with its place", () => {
  for (const { shape, name, messages, history, pointer } of cases) {
    if (history !== null) continue;
    test(`${shape}: ${name}`, () => {
      assert.throws(() => READ[shape](messages), (error) => error instanceof HistoryError && error.pointer === pointer);
    });
  }
});

test("a conversation is the same after any two shapes", () => {
  const ids = new Map([["call_1", "c1"], ["call_2", "c2"]]);
  const names = Object.keys(READ) as (keyof typeof READ)[];
  for (const shape of names.flatMap((first) => names.map((second) => [first, second]))) {
    let history = conversation;
    for (const one of shape) {
      const { system, messages } = WRITE[one](history);
      history = READ[one](messages, system);
    }
    // A call of Gemini has no id.
    const plain = JSON.stringify(history).replaceAll(/call_\d/g, (id) => ids.get(id) ?? id);
    assert.deepEqual(JSON.parse(plain), conversation, shape.join(", "));
  }
});

test("a part that an interface does not take is refused", () => {
  const entry: HistoryEntry = { role: "assistant", content: [{ type: "image", url: "https://example.com/a.png" }] };
  for (const write of [shapes.toOpenAIChat, shapes.toOpenAIResponses, shapes.toAnthropic]) {
    assert.throws(() => write([entry]), (error) => error instanceof HistoryError && error.pointer === "/0/content/0");
  }
  assert.throws(() => shapes.toGemini([{ role: "tool", content: "a", tool_call_id: "c" }]), HistoryError);
});

test("what is no message is refused", () => {
  const wrong: object[] = [{}, { role: "assistant", tool_calls: [{}] }, { role: "user", content: 7 }];
  for (const read of Object.values(READ)) for (const message of wrong) assert.throws(() => read([message]), HistoryError);
});

test("open calls and lost results are left out", () => {
  const calls = ["c1", "c2"].map((id) => ({ id, name: "f", arguments: "{}" }));
  const result: HistoryEntry = { role: "tool", content: "1", tool_call_id: "c1" };
  const lost: HistoryEntry = { role: "tool", content: "0", tool_call_id: "c0" };
  const entry: HistoryEntry = { role: "assistant", content: "", tool_calls: calls };
  assert.deepEqual(settled([lost, entry, result]), [{ ...entry, tool_calls: calls.slice(0, 1) }, result]);
  assert.deepEqual(settled([entry]), []);
  assert.deepEqual(settled([{ ...entry, content: "I look" }]), [{ role: "assistant", content: "I look" }]);
  assert.deepEqual(latestOf([entry, result], 1), [entry, result]);
  assert.deepEqual(withoutToolCalls([entry, result, { ...entry, content: "I look" }]), [{ role: "assistant", content: "I look" }]);
});
