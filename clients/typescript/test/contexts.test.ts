import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { BatonError, historySection, jsonSection, type OwnedTask, v1 } from "../src/index.js";
import { canonical, deltaBetween, forWishes, sha256, withDeltas } from "../src/sections.js";
import { Agents, Broker, patient, unique } from "./broker.js";

// Contexts: checkpoints that go as deltas, sections on demand, and wishes.

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

const STORY = { title: "march", text: "x".repeat(2000) };

function story(count: number): v1.ContextSection {
  return jsonSection("story", { ...STORY, count });
}

function textOf({ content }: v1.ContextSection): string {
  assert.ok(content.case === "json");
  return content.value;
}

function countOf(section: v1.ContextSection | undefined): unknown {
  assert.ok(section);
  return (JSON.parse(textOf(section)) as { count: number }).count;
}

test("a small change goes as a delta and a large one whole", () => {
  const base = textOf(story(1));
  const { short, whole } = withDeltas([story(2)], () => base);
  const [first] = short;
  assert.ok(first?.content.case === "delta");
  assert.equal(first.content.value.mergePatch, '{"count":2}');
  assert.equal(countOf(whole[0]), 2);
  const other = jsonSection("story", { other: "y".repeat(2000) });
  assert.deepEqual(withDeltas([other], () => base).short, [other]);
  assert.deepEqual(withDeltas([story(2)], () => undefined).short, [story(2)]);
  assert.equal(deltaBetween('{"a":1}', '{"a":null}'), undefined);
  assert.equal(deltaBetween('{"a":1}', '{"a":1,"__proto__":{"b":2}}')?.delta.mergePatch, '{"__proto__":{"b":2}}');
});

test("wishes select, filter and shorten", () => {
  const history = historySection([{ role: "user", content: "a" }, { role: "assistant", content: "b" }]);
  const [goals, other] = [jsonSection("goals", { not: "a history" }), jsonSection("other", [])];
  const filter = { history: v1.HistoryFilter.LAST, last: 1 };
  const base = textOf(story(1));
  const wishes = [{ name: "history_log", filter }, { name: "story", haveSha256: sha256(base) }, { name: "goals", filter }];
  const sent = forWishes([history, story(2), goals, other], create(v1.HandoffAcceptSchema, { wishes }), () => base);
  assert.deepEqual(sent.map(({ name, content }) => [name, content.case]), [["history_log", "json"], ["story", "delta"]], "goals are no history, so nothing of them is sent");
  assert.deepEqual([sent[0] && textOf(sent[0]), sent[0]?.schemaId], ['[{"content":"b","role":"assistant"}]', "baton.history"]);
  const summary = { wishes: [{ name: "history_log", filter: { history: v1.HistoryFilter.SUMMARY } }] };
  const [short] = forWishes([history], create(v1.HandoffAcceptSchema, summary), () => undefined);
  assert.deepEqual([short && textOf(short), short?.schemaId], ['{"entries":2,"summary":""}', ""]);
  const reference = create(v1.ContextSectionSchema, { name: "history_log", content: { case: "reference", value: { uri: "https://example.com/a" } } });
  assert.deepEqual(forWishes([reference], create(v1.HandoffAcceptSchema, { wishes: wishes.slice(0, 1) }), () => undefined), []);
  assert.equal(forWishes([history, other], create(v1.HandoffAcceptSchema), () => undefined).length, 2);
});

test("a checkpoint goes as a delta, and the next owner fetches what it lacks", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const ticket = unique("ticket");
  await alice.cancel((await alice.requestHandoff(bob.id, ticket, { taskType: "x" })).handoffId);
  let task: OwnedTask | undefined;
  for await (const one of alice.ownedTasks()) task = one;
  assert.ok(task);
  const notes = jsonSection("notes", ["by hand"]);
  await task.checkpoint([story(1), notes]);
  await task.checkpoint([story(2)]);
  const latest = await alice.contexts.get(ticket);
  assert.deepEqual([latest.version, latest.sections[0]?.origin], [2n, v1.SectionOrigin.DELTA]);
  const { content, derived } = await alice.contexts.section(ticket, "story", { version: 1n, filter: { jsonPointers: ["/count"] } });
  assert.deepEqual([content.value, derived], ['{"/count":1}', true]);
  // Another process of alice has stored a version, which this one does not know as a base.
  alice.contexts.known.note(ticket, [story(77)]);
  await task.checkpoint([story(2)]);
  const versions: bigint[] = [];
  for await (const { version } of alice.contexts.versions(ticket)) versions.push(version);
  assert.deepEqual(versions, [3n, 2n, 1n]);
  const found: { sent: unknown[]; counts: unknown[]; notes: unknown; nothing: unknown } = { sent: [], counts: [], notes: "", nothing: "" };
  const serving = bob.serve({
    handoffAccept: () => undefined,
    offer: async (offer) => {
      const takeover = await offer.accept({ wishes: [{ name: "story", haveSha256: sha256(canonical({ ...STORY, count: 2 })) }] });
      found.sent = takeover.sections.map((one) => [one.name, one.content.case]);
      found.counts.push(countOf(await takeover.fetchSection("story")));
      found.notes = (await takeover.fetchSection("notes"))?.content.value;
      found.nothing = await takeover.fetchSection("nothing");
      const owned = await takeover.complete();
      await owned.checkpoint([story(4)]);
      found.counts.push(countOf(await takeover.fetchSection("story")));
    },
  });
  serving.catch(() => undefined);
  assert.equal((await patient(task.handOver(bob.id, { taskType: "x" }, [story(3), notes]))).ownerId, bob.id);
  await assert.rejects(task.checkpoint([story(5)]), (error) => error instanceof BatonError && ["STALE_EPOCH", "NOT_OWNER"].includes(error.reason));
  while ((await bob.contexts.get(ticket)).version < 5n || found.counts.length < 2) await new Promise((resolve) => setTimeout(resolve, 10));
  assert.deepEqual(found, { sent: [["story", "delta"]], counts: [3, 3], notes: '["by hand"]', nothing: undefined });
  assert.equal((await bob.contexts.get(ticket)).sections[0]?.origin, v1.SectionOrigin.DELTA);
});
