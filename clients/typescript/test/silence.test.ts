import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { v1 } from "../src/index.js";
import { Agents, Broker, Mail, PATIENCE_MS } from "./broker.js";
import { Relay } from "./relay.js";

/** The maximum silence of a broker on an open connection before the session ends. */
const SILENCE_MS = 30_000;
/** The time limit of the next connection's TLS handshake, before another one is tried. */
const HANDSHAKE_MS = 10_000;

let broker: Broker;
const agents = new Agents(() => broker);
before(async () => {
  broker = await Broker.start();
});
after(async () => {
  agents.close();
  await broker.remove();
});

// The first connection stops answering, and the second does not start TLS.
test("a broker that falls silent is noticed", { timeout: SILENCE_MS + HANDSHAKE_MS + PATIENCE_MS }, async () => {
  const [bob, relay] = [await agents.named("bob"), await Relay.start(broker.address)];
  try {
    const alice = await agents.connect({ ...broker.options("alice"), server: relay.address });
    relay.fallSilent(1);
    await alice.send(bob.id, {}, create(v1.InfoSchema, { text: "over the third connection" }));
    assert.equal((await new Mail(bob).next("baton.v1.Info")).payload.text, "over the third connection");
  } finally {
    relay.close();
  }
});
