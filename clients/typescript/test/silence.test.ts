import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { v1 } from "../src/index.js";
import { Agents, Broker, Mail, PATIENCE_MS } from "./broker.js";
import { Relay } from "./relay.js";

/** The longest that a broker may be silent with its connection open before the session ends. */
const SILENCE_MS = 30_000;
/** And how long the TLS handshake of the next connection may take, before another one is tried. */
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

// The first does not answer any more, and the second does not even take up TLS.
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
