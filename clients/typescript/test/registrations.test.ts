import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { BatonError, v1 } from "../src/index.js";
import { Agents, Broker, unique } from "./broker.js";

// The owners of shared names.

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

const { SCHEMAS } = v1.Registry;
const { ACTIVE, RETIRED, REMOVED } = v1.RegistrationState;

function refusal(reason: string): (error: unknown) => boolean {
  return (error) => error instanceof BatonError && error.reason === reason;
}

test("a name is handed over, retired and removed", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const [id, other] = [unique("name"), unique("other")];
  for (const version of ["1", "2"]) await alice.schemas.register(id, version, { maxLength: Number(version) });
  await alice.schemas.register(other, "1", "true");
  const first = await alice.registrations.get(SCHEMAS, id);
  assert.deepEqual([first.ownerId, first.entries, first.state], [alice.id, 2n, ACTIVE]);
  const names: string[] = [];
  for await (const { name } of bob.registrations.list({ registry: SCHEMAS, ownerId: alice.id })) names.push(name);
  assert.deepEqual(names.sort(), [id, other].sort());

  // Another agent cannot take a name that it was not offered.
  await assert.rejects(bob.registrations.transfer(SCHEMAS, id, bob.id), refusal("PERMISSION_DENIED"));
  const offered = await alice.registrations.transfer(SCHEMAS, id, bob.id, { etag: first.etag });
  assert.deepEqual([offered.ownerId, offered.offeredToId], [alice.id, bob.id]);
  await assert.rejects(alice.registrations.transfer(SCHEMAS, id, alice.id, { etag: first.etag }), refusal("CONFLICT"));
  assert.equal((await bob.registrations.transfer(SCHEMAS, id, bob.id)).ownerId, bob.id);
  // An operator hands it over at once.
  const { operatorToken } = broker;
  assert.equal((await alice.registrations.transfer(SCHEMAS, id, bob.id, { operatorToken })).ownerId, bob.id);

  await assert.rejects(alice.registrations.retire(SCHEMAS, id), refusal("PERMISSION_DENIED"));
  const retired = await bob.registrations.retire(SCHEMAS, id);
  assert.equal(retired.state, RETIRED);
  const left = await bob.registrations.remove(SCHEMAS, id, { schemaVersion: "1", etag: retired.etag });
  assert.deepEqual([left.entries, left.state], [1n, RETIRED]);
  assert.equal((await bob.registrations.remove(SCHEMAS, id, { schemaVersion: "2" })).state, REMOVED);
  await assert.rejects(bob.registrations.get(SCHEMAS, unique("none")), refusal("SCHEMA_UNKNOWN"));
});
