import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import * as z from "zod";
import { BatonError, jsonSection, type OwnedTask } from "../src/index.js";
import { Agents, Broker, unique } from "./broker.js";

// JSON Schemas of contexts, also from zod.

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

function isRefused(reason: string): (error: unknown) => boolean {
  return (error) => error instanceof BatonError && error.reason === reason;
}

test("a schema is registered once, shown, listed and checked", async () => {
  const { schemas } = await agents.named("alice");
  const id = unique("ticket");
  const [type, required, properties] = ["object", ["router"], { router: { type: "integer" } }];
  const ticket = { type, properties, required };
  const first = await schemas.register(id, "1", ticket);
  assert.deepEqual([first.schemaVersion, first.schemaJson], ["1", ""]);
  assert.deepEqual(await schemas.register(id, "1", { required, properties, type }), first);
  await assert.rejects(schemas.register(id, "1", "true"), isRefused("SCHEMA_EXISTS"));
  await assert.rejects(schemas.register(id, "2", { type: 7 }), isRefused("SCHEMA_REJECTED"));
  await schemas.register(id, "2", "true");
  assert.deepEqual(JSON.parse((await schemas.get(id, "1")).schemaJson), ticket);
  await assert.rejects(schemas.get(id, "3"), isRefused("SCHEMA_UNKNOWN"));
  const versions: string[] = [];
  for await (const { schemaVersion } of schemas.list(id)) versions.push(schemaVersion);
  assert.deepEqual(versions, ["2", "1"]);
  const wrong = await schemas.check(id, "1", { router: "three" });
  assert.deepEqual(wrong.map(({ jsonPointer }) => jsonPointer), ["/router"]);
  assert.deepEqual(await schemas.check(id, "1", { router: 3 }), []);
});

test("a context is checked by a schema of zod", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const id = unique("ticket");
  const Ticket = z.object({ routers: z.array(z.object({ name: z.string() })), severity: z.int().min(1).max(5) });
  await alice.schemas.register(id, "1", z.toJSONSchema(Ticket));
  await alice.cancel((await alice.requestHandoff(bob.id, id, { taskType: "x" })).handoffId);
  let task: OwnedTask | undefined;
  for await (const one of alice.ownedTasks()) task = one;
  assert.ok(task);
  const named = { schemaId: id, schemaVersion: "1" };
  await task.checkpoint([{ ...jsonSection("ticket", Ticket.parse({ routers: [{ name: "a" }], severity: 2 })), ...named }]);
  const wrong = { ...jsonSection("ticket", { routers: [{ name: 7 }], severity: 2 }), ...named };
  await assert.rejects(task.checkpoint([wrong]), isRefused("CONTEXT_SCHEMA_VIOLATION"));
});
