import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { type Agent, blobReference, jsonSection, type OnProgress, v1, VerificationError } from "../src/index.js";
import { Agents, Broker, patient, refusal, temporaryFolder, unique } from "./broker.js";

// Blobs: progress, ranges, and writes and reads that continue after a break.

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

const MIB = 1024 * 1024;

/** Gives an agent a task: a handoff that was cancelled created it. */
async function taskOf(alice: Agent, other: Agent): Promise<string> {
  const task = unique("ticket");
  await alice.cancel((await alice.requestHandoff(other.id, task, { taskType: "support" })).handoffId);
  return task;
}

test("a blob is written, read and referred to", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const task = await taskOf(alice, bob);
  const held = `task:${task}`;
  const whole = randomBytes(3 * MIB + 7);
  const digest = createHash("sha256").update(whole).digest();
  const file = join(temporaryFolder(), "figures");
  writeFileSync(file, whole);
  assert.equal((await alice.blobs.missing([digest])).length, 1);
  const seen: number[] = [];
  const blob = await alice.blobs.put(file, held, { mediaType: "text/csv", onProgress: (done) => { seen.push(done); } });
  assert.deepEqual([Buffer.from(blob.sha256), blob.sizeBytes, blob.mediaType], [digest, BigInt(whole.length), "text/csv"]);
  assert.deepEqual([seen[0], seen.at(-1), [...seen].sort((one, other) => one - other)], [0, whole.length, seen]);
  assert.equal((await alice.blobs.put(whole, held)).sizeBytes, blob.sizeBytes);
  assert.deepEqual(await alice.blobs.missing([digest]), []);
  const listed: string[] = [];
  for await (const { sha256 } of alice.blobs.list(held)) listed.push(Buffer.from(sha256).toString("hex"));
  assert.deepEqual(listed, [digest.toString("hex")]);
  assert.deepEqual(await alice.blobs.get(digest, { offset: MIB - 1, length: 5 }), whole.subarray(MIB - 1, MIB + 4));
  await assert.rejects(alice.blobs.get(digest, { offset: whole.length + 1 }), refusal("BLOB_OUT_OF_RANGE"));
  await assert.rejects(bob.blobs.get(digest), (error) => refusal("BLOB_UNKNOWN")(error) || refusal("PERMISSION_DENIED")(error));
  await assert.rejects(bob.blobs.put(Buffer.from("mine"), held), (error) => refusal("PERMISSION_DENIED")(error) || refusal("WORKSPACE_UNKNOWN")(error));
  let read: Uint8Array | undefined;
  const serving = bob.serve({
    offer: async (offer) => {
      const takeover = await offer.accept();
      const content = takeover.sections.find(({ name }) => name === "figures")?.content;
      assert.ok(content?.case === "reference");
      read = await bob.blobs.get(content.value.sha256);
      await takeover.complete();
    },
  });
  serving.catch(() => undefined);
  const figures = create(v1.ContextSectionSchema, { name: "figures", content: { case: "reference", value: blobReference(blob) } });
  await patient(alice.handOver(bob.id, task, { taskType: "x" }, [figures, jsonSection("goals", [])]));
  assert.ok(read && whole.equals(read));
  const empty = await bob.blobs.put(new Uint8Array(), held);
  assert.equal((await bob.blobs.get(empty.sha256)).length, 0);
  await bob.blobs.delete(empty.sha256, held);
});

/** Kills and restarts the broker once so many bytes are done. */
function killAt(at: number): { seen: number[]; onProgress: OnProgress; restarted: () => Promise<void> } {
  const seen: number[] = [];
  let restarting: Promise<void> | undefined;
  const onProgress = (done: number): void => {
    seen.push(done);
    if (done >= at) restarting ??= broker.kill().then(() => broker.restart());
  };
  return { seen, onProgress, restarted: () => restarting ?? Promise.resolve() };
}

test("a write and a read continue after a kill", async () => {
  const alice = await agents.named("alice");
  const held = `task:${await taskOf(alice, await agents.named("bob"))}`;
  const whole = randomBytes(12 * MIB);
  const writing = killAt(8 * MIB);
  const blob = await patient(alice.blobs.put(whole, held, writing));
  await writing.restarted();
  const turn = writing.seen.findIndex((done, at) => done < (writing.seen[at - 1] ?? 0));
  // The last bytes may have left before the kill, but then the answer had not come.
  assert.ok(turn > 0 && (writing.seen[turn] ?? 0) > 0, "the write went on where it stopped");
  const file = join(temporaryFolder(), "copy");
  const reading = killAt(2 * MIB);
  await patient(alice.blobs.getTo(blob.sha256, file, reading));
  await reading.restarted();
  assert.deepEqual([whole.equals(readFileSync(file)), existsSync(`${file}.part`)], [true, false]);
  assert.deepEqual([...reading.seen].sort((one, other) => one - other), reading.seen);
});

test("a read into a file continues where it stopped", async () => {
  const alice = await agents.named("alice");
  const held = `task:${await taskOf(alice, await agents.named("bob"))}`;
  const whole = randomBytes(2 * MIB);
  const { sha256 } = await alice.blobs.put(whole, held);
  const file = join(temporaryFolder(), "copy");
  writeFileSync(`${file}.part`, whole.subarray(0, MIB));
  const seen: number[] = [];
  await alice.blobs.getTo(sha256, file, { onProgress: (done) => { seen.push(done); } });
  assert.deepEqual([seen[0], whole.equals(readFileSync(file))], [MIB, true]);
  writeFileSync(`${file}.part`, Buffer.alloc(MIB));
  await assert.rejects(alice.blobs.getTo(sha256, file), VerificationError);
  assert.equal(existsSync(`${file}.part`), false);
  writeFileSync(`${file}.part`, Buffer.alloc(3 * MIB));
  await alice.blobs.getTo(sha256, file);
  assert.ok(whole.equals(readFileSync(file)));
});
