import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { type Agent, BatonError, makeEnvelope, v1, VerificationError, type Workspace } from "../src/index.js";
import { deferred } from "../src/session.js";
import { checkEntry, ENTRY_BYTES_MAX, normalTopic, Workspace as WorkspaceOf } from "../src/workspace.js";
import { Agents, Broker, patient, refusal, unique } from "./broker.js";

// Workspaces: numbered entries that the agents of a task share.

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

/** Returns alice, bob, and the workspace of a task that alice owns. */
async function shared(options: { verify?: boolean } = {}): Promise<{ alice: Agent; bob: Agent; ticket: string; workspace: Workspace }> {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const ticket = unique("ticket");
  const { handoffId } = await alice.requestHandoff(bob.id, ticket, { taskType: "support" });
  await alice.cancel(handoffId);
  return { alice, bob, ticket, workspace: alice.workspace(`task:${ticket}`, options) };
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

async function end(alice: Agent, ticket: string): Promise<void> {
  await alice.updateStatus(ticket, 1n, { status: v1.TaskStatus.COMPLETED });
}

test("entries are numbered, listed and verified", async () => {
  const { alice, ticket, workspace } = await shared({ verify: true });
  assert.deepEqual(await all(workspace), []);
  const sourceTime = new Date("2026-11-22T00:00:00Z");
  const data = create(v1.ContextBytesSchema, { mediaType: "text/plain", data: Buffer.from("panicked") });
  assert.equal(await workspace.append("Growth  Metrics", { rate: 1.5 }, { expectedLastSequence: 0n, sourceTime }), 1n);
  assert.equal(await workspace.append("log", data), 2n);
  assert.equal(await workspace.append(" growth metrics ", ["größer"], { expectedLastSequence: 2n }), 3n);
  await assert.rejects(workspace.append("log", null, { expectedLastSequence: 1n }), (error) => {
    return refusal("SEQUENCE_CONFLICT")(error) && (error as BatonError).metadata["last_sequence"] === "3";
  });
  const entries = await all(workspace);
  assert.deepEqual(entries.map((one) => [one.sequence, one.topic, one.authorId]), [
    [1n, "growth_metrics", alice.id],
    [2n, "log", alice.id],
    [3n, "growth_metrics", alice.id],
  ]);
  assert.deepEqual([entries[0]?.value, entries[2]?.value], [{ rate: 1.5 }, ["größer"]]);
  const bytes = entries[1]?.value as v1.ContextBytes;
  assert.deepEqual([bytes.mediaType, Buffer.from(bytes.data).toString()], ["text/plain", "panicked"]);
  const written = entries[0]?.message.sourceTime;
  assert.deepEqual(written && timestampDate(written), sourceTime);
  assert.deepEqual((await all(workspace.entries({ topics: ["growth metrics"], after: 1n }))).map(({ sequence }) => sequence), [3n]);
  const page = await workspace.page({ topics: ["log"], after: 2n, waitMs: 500 });
  assert.deepEqual([page.entries.length, page.nextAfterSequence, page.hasMore], [0, 3n, false]);
  assert.deepEqual((await workspace.topics()).map(({ name, entryCount }) => [name, entryCount]), [["growth_metrics", 2n], ["log", 1n]]);
  assert.deepEqual((await workspace.state()).chainHash, entries[2]?.message.chainHash);
  await end(alice, ticket);
  await assert.rejects(workspace.append("log", "too late"), refusal("WORKSPACE_CLOSED"));
});

test("an append or a read that may not be is refused", async () => {
  const { alice, bob, ticket, workspace } = await shared();
  await assert.rejects(workspace.append("log", "x".repeat(ENTRY_BYTES_MAX)), refusal("ENTRY_TOO_LARGE"));
  assert.equal(await workspace.append("log", "x".repeat(ENTRY_BYTES_MAX - 2)), 1n, "the largest one");
  await assert.rejects(workspace.append("a topic!", 1), refusal("FIELD_INVALID"));
  await assert.rejects(bob.workspace(`task:${ticket}`).append("log", 1), refusal("PERMISSION_DENIED"));
  await assert.rejects(patient(alice.workspace("task:unknown").watch().next()), /WORKSPACE_UNKNOWN|PERMISSION_DENIED/);
  await assert.rejects(patient(alice.workspace("task:unknown").waitFor(["log"])), /WORKSPACE_UNKNOWN|PERMISSION_DENIED/);
});

test("a watch goes on after a kill, until the end", async () => {
  const { alice, ticket, workspace } = await shared({ verify: true });
  await workspace.append("log", 1);
  const [entries, updates] = [workspace.watch({ topics: ["log"] }), workspace.updates()];
  assert.equal((await patient(entries.next())).value?.value, 1);
  const kinds = [await patient(updates.next()), await patient(updates.next())].map(({ value }) => value?.case);
  assert.deepEqual(kinds, ["entry", "caughtUp"]);
  await broker.kill();
  await broker.restart();
  await workspace.append("other", 2);
  await workspace.append("log", 3);
  assert.equal((await patient(entries.next())).value?.sequence, 3n);
  await end(alice, ticket);
  assert.deepEqual(await patient(all(entries)), []);
  assert.deepEqual((await patient(all(updates))).map((update) => update.case), ["entry", "entry", "closed"], "each once");
});

test("topics are waited for", async () => {
  const { alice, ticket, workspace } = await shared();
  const waiting = workspace.waitFor(new Set(["Findings", "verdict"]));
  await workspace.append("findings", 1);
  await workspace.append("findings", 2);
  await workspace.append("verdict", "guilty");
  const found = await patient(waiting);
  assert.deepEqual([found.get("findings")?.value, found.get("verdict")?.value], [1, "guilty"]);
  assert.deepEqual([...(await workspace.waitFor(["findings", "motive"], { timeoutMs: 500 })).keys()], ["findings"], "the time is over");
  const abort = new AbortController();
  const aborted = workspace.waitFor(["motive"], { signal: abort.signal });
  abort.abort(new Error("changed my mind"));
  await assert.rejects(patient(aborted), /changed my mind/);
  await end(alice, ticket);
  assert.deepEqual((await patient(workspace.waitFor(["motive"]))).size, 0, "closed");
});

for (const isSilent of [true, false]) {
  test(`topics are polled for where streams ${isSilent ? "are held back" : "fail"}`, async () => {
    const { alice, workspace } = await shared();
    const watching = deferred<undefined>();
    const life = new AbortController().signal;
    // eslint-disable-next-line require-yield
    async function* stream(_open: unknown, signal?: AbortSignal): AsyncGenerator<never, void> {
      watching.resolve(undefined);
      if (isSilent) await new Promise((_, reject) => { signal?.addEventListener("abort", () => { reject(new Error("aborted")); }); });
      throw new BatonError(Code.Unimplemented, "no streams through here");
    }
    const options = (): { headers: Record<string, string>; signal: AbortSignal } => ({ headers: alice.headers, signal: life });
    const caller = { life, stream, call: async <T>(call: (options: { headers: Record<string, string>; signal: AbortSignal }) => Promise<T>): Promise<T> => call(options()) };
    const without = { append: (): Promise<never> => Promise.reject(new Error("not used")), verify: (): Promise<void> => Promise.resolve() };
    const polling = new WorkspaceOf(workspace.id, without, caller, alice.transport);
    polling.silenceMs = 200;
    const waiting = polling.waitFor(["verdict"]);
    await watching.promise;
    await workspace.append("verdict", "guilty");
    assert.equal((await patient(waiting)).get("verdict")?.value, "guilty");
  });
}

test("an entry that differs from its envelope is noticed", () => {
  const append = create(v1.WorkspaceAppendSchema, { workspaceId: "task:a", topic: "The Log", entry: { case: "json", value: "1" } });
  const envelope = makeEnvelope("alice", "", {}, append);
  const { messageId } = envelope;
  const entry = { case: "json", value: "1" } as const;
  const shown = { sequence: 1n, topic: "the_log", authorId: "alice", entry, messageId, envelope };
  const check = (changed: MessageInitShape<typeof v1.WorkspaceEntrySchema>, id = "task:a"): void => {
    checkEntry(id, create(v1.WorkspaceEntrySchema, { ...shown, ...changed }));
  };
  check({});
  for (const changed of [
    { entry: { case: "json", value: "2" } },
    { entry: { case: "bytes", value: { data: Buffer.from("1") } } },
    { topic: "log" },
    { authorId: "bob" },
    { messageId: "" },
    { sourceTime: { seconds: 1n } },
  ] as const) {
    assert.throws(() => { check(changed); }, VerificationError);
  }
  assert.throws(() => { check({}, "task:b"); }, /ENTRY_INVALID/);
});

test("names that normalise alike are one topic", () => {
  const names = ["Growth Metrics", " growth\t metrics\n", "GROWTH_metrics"].map(normalTopic);
  assert.deepEqual([...new Set(names)], ["growth_metrics"]);
});

/** The White_Space of Unicode, by which the broker splits. */
const SPACES = "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000";

test("a topic is split where the broker splits it", async () => {
  const { workspace } = await shared({ verify: true });
  for (const space of SPACES) {
    assert.equal(normalTopic(`${space}Growth${space}${space}Metrics${space}`), "growth_metrics", JSON.stringify(space));
    await workspace.append(`growth${space}metrics${space}`, 1);
  }
  const topics = (await all(workspace)).map(({ topic }) => topic);
  assert.deepEqual([topics.length, ...new Set(topics)], [SPACES.length, "growth_metrics"]);
  for (const letter of "\u001c\u001d\u001e\u001f\u180e\u200b\u2060\ufeff") {
    assert.equal(normalTopic(`${letter}a${letter}`), `${letter}a${letter}`);
    await assert.rejects(workspace.append(`${letter}a`, 1), refusal("FIELD_INVALID"));
  }
});
