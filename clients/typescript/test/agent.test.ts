import assert from "node:assert/strict";
import { readFileSync, statSync, writeFileSync } from "node:fs";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http2";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import {
  Agent,
  BatonError,
  type Delivery,
  generateKey,
  loadKey,
  makeEnvelope,
  newMessageId,
  payloadOf,
  publicBytes,
  saveKey,
  signEnvelope,
  v1,
  VerificationError,
  verifyEnvelope,
  vouch,
} from "../src/index.js";
import { checkedReceipt } from "../src/agent.js";
import { Jobs, Poison } from "../src/jobs.js";
import { handle } from "../src/serve.js";
import { deferred } from "../src/session.js";
import { Agents, Broker, Mail, patient, refusal, temporaryFolder, unique } from "./broker.js";

let broker: Broker;
const others: Broker[] = [];
const agents = new Agents(() => broker);
before(async () => {
  broker = await Broker.start();
});
afterEach(async () => {
  agents.close();
  for (const other of others.splice(0)) await other.remove();
});
after(async () => {
  await broker.remove();
});

async function own(settings?: string): Promise<Broker> {
  const started = await Broker.start(settings);
  others.push(started);
  return started;
}

function hello(text: string): v1.Info {
  return create(v1.InfoSchema, { text });
}

test("many calls may wait for mail at once", async () => {
  const alice = await agents.named("alice");
  const warnings: Error[] = [];
  const warned = (warning: Error): void => void warnings.push(warning);
  process.on("warning", warned);
  try {
    for (let i = 0; i < 20; i++) {
      const conversation = await alice.mail.converse(`handoff ${i}`);
      conversation.next().catch(() => undefined);
    }
    await turn();
  } finally {
    process.off("warning", warned);
  }
  assert.deepEqual(warnings, []);
});

test("a refusal to reconnect counts only if the next attempt is refused too", async () => {
  const failures: Code[] = [];
  const over = deferred<undefined>();
  const moody = connectNodeAdapter({
    routes: (router) => {
      router.service(v1.AgentService, {
        createChallenge: () => {
          const code = failures.shift();
          if (code !== undefined) throw new ConnectError("not in the mood", code);
          return {};
        },
        createToken: () => ({ token: "token" }),
      });
      router.service(v1.BrokerService, {
        connect: async function* () {
          yield { response: { case: "welcome" as const, value: {} } };
          await over.promise;
        },
      });
    },
  });
  const server = createServer(moody).listen(0, "127.0.0.1");
  try {
    await once(server, "listening");
    const { card: _, ...options } = broker.options("alice");
    const { port } = server.address() as AddressInfo;
    const alice = await agents.connect({ ...options, server: `http://127.0.0.1:${port}` });
    failures.push(Code.PermissionDenied, Code.Unavailable, Code.PermissionDenied, Code.Unauthenticated);
    over.resolve(undefined);
    // The last one is the first refusal that follows another.
    assert.equal((await patient(alice.ended)).code, Code.Unauthenticated);
  } finally {
    server.close();
  }
});

test("a wrong key is refused", async () => {
  const options = broker.options("alice");
  (await agents.connect(options)).close();
  const { card, ...unregistered } = { ...options, key: generateKey() };
  await assert.rejects(Agent.connect(unregistered), refusal("CHALLENGE_FAILED"));
  // Nor can another key take the name over.
  await assert.rejects(Agent.connect({ ...unregistered, card: card ?? {} }), refusal("CHALLENGE_FAILED"));
});

test("a wrong CA is told", async () => {
  const { ca: _, ...options } = broker.options("alice");
  await assert.rejects(Agent.connect(options), (error) => {
    assert.ok(error instanceof BatonError);
    assert.equal(error.reason, "");
    assert.match(error.message, /certificate/);
    return true;
  });
});

test("no broker listens", async () => {
  await assert.rejects(Agent.connect({ ...broker.options("alice"), server: "127.0.0.1:1" }), (error) => {
    assert.ok(error instanceof BatonError);
    assert.equal(error.code, Code.Unavailable);
    return true;
  });
});

test("a token whose time is over is refused", async () => {
  const b = await own();
  const options = b.options("alice");
  const first = await agents.connect(options);
  const token = first.headers["authorization"]?.replace("Bearer ", "") ?? "";
  first.close();
  const { card: _, ...withToken } = { ...options, token };
  const before = await agents.connect(withToken); // valid until the broker stops
  await b.kill();
  await b.restart();
  await assert.rejects(Agent.connect(withToken), refusal("TOKEN_INVALID"));
  // The agent cannot renew it.
  assert.equal((await patient(before.ended)).reason, "TOKEN_INVALID");
  await assert.rejects(before.send("unknown", {}, hello("")), refusal("TOKEN_INVALID"));
});

test("a card is changed by its agent alone", async () => {
  const options = broker.options("alice");
  (await agents.connect(options)).close();
  const alice = await agents.connect({ ...options, card: { description: "knows more now" } });
  assert.equal((await alice.getAgent(alice.id)).card?.description, "knows more now");
});

test("enrolment by invitation, and by an operator", async () => {
  const b = await own('enrollment = "operator"');
  const options = b.options("alice");
  await assert.rejects(Agent.connect(options), BatonError);
  const alice = await agents.connect({ ...options, operatorToken: b.operatorToken });
  const invitation = await alice.invite(b.operatorToken, "", 60_000);
  await agents.connect({ ...b.options("bob"), invitation });
  await assert.rejects(Agent.connect({ ...b.options("carol"), invitation }), refusal("INVITATION_INVALID"));
});

test("a certificate proves who one is", async () => {
  const id = unique("alice");
  const { ca, cert, key } = clientCertificate(id);
  const b = await own(`enrollment = "open"\n[tls]\nclient_ca = ${JSON.stringify(ca)}`);
  const alice = await agents.connect({ ...b.options("alice"), agentId: id, certificate: { cert, key } });
  assert.deepEqual(alice.headers, {}, "a token was asked for");
  const bob = await agents.connect(b.options("bob"));
  await alice.send(bob.id, {}, hello(""));
});

function clientCertificate(agentId: string): { ca: string; cert: Buffer; key: Buffer } {
  const folder = temporaryFolder();
  const path = (name: string): string => join(folder, name);
  const openssl = (...args: string[]): void => {
    execFileSync("openssl", args, { cwd: folder, stdio: "pipe" });
  };
  const ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
  openssl("req", "-x509", ...ec, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=clients", "-days", "1");
  openssl("req", ...ec, "-keyout", "leaf.key", "-out", "leaf.csr", "-subj", "/CN=agent");
  const extensions = `subjectAltName=URI:urn:baton:agent:${agentId}\nextendedKeyUsage=clientAuth\nkeyUsage=digitalSignature\nbasicConstraints=CA:FALSE\n`;
  writeFileSync(path("ext"), extensions);
  const by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-extfile", "ext"];
  openssl("x509", "-req", "-in", "leaf.csr", "-out", "leaf.pem", ...by);
  return { ca: path("ca.pem"), cert: readFileSync(path("leaf.pem")), key: readFileSync(path("leaf.key")) };
}

test("a refusal says all that is wrong", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const sending = alice.requestHandoff(bob.id, unique("ticket"), { fallbackCandidates: ["not an id"] });
  await assert.rejects(sending, (error) => {
    assert.ok(error instanceof BatonError);
    assert.equal(error.reason, "FIELD_INVALID");
    assert.equal(error.code, Code.InvalidArgument);
    assert.ok(error.fields.length >= 2);
    return true;
  });
});

test("a clock that is off is told", async () => {
  const [alice, bob] = [await agents.connect(broker.options("alice")), await agents.named("bob")];
  for (const off of [-3_600_000, 3_600_000]) {
    const options = broker.options("carol");
    const carol = await agents.connect(options);
    const envelope = makeEnvelope(carol.id, bob.id, {}, hello(""));
    envelope.timestamp = timestampFromMs(Date.now() + off);
    signEnvelope(envelope, "k1", options.key);
    await assert.rejects(carol.sendEnvelope(envelope), refusal("TIMESTAMP_OUTSIDE_WINDOW"));
  }
  await alice.send(bob.id, {}, hello(""));
});

test("unknown fields travel untouched", async () => {
  const options = broker.options("alice");
  const [alice, bob] = [await agents.connect(options), await agents.named("bob")];
  const newer = { no: 999, wireType: 2, data: new Uint8Array([2, 0x68, 0x69]) };
  const envelope = makeEnvelope(alice.id, bob.id, {}, Object.assign(hello("hello"), { $unknown: [newer] }));
  envelope.$unknown = [newer];
  signEnvelope(envelope, "k1", options.key);
  await alice.sendEnvelope(envelope);
  const delivery = await new Mail(bob).next("baton.v1.Info");
  assert.deepEqual(toBinary(v1.EnvelopeSchema, delivery.envelope), toBinary(v1.EnvelopeSchema, envelope));
  assert.deepEqual(delivery.payload.$unknown, [newer]);
  // A relayed envelope keeps alice's signature.
  const passedOn = fromBinary(v1.EnvelopeSchema, toBinary(v1.EnvelopeSchema, delivery.envelope));
  verifyEnvelope(passedOn, create(v1.AgentKeySchema, { keyId: "k1", publicKey: publicBytes(options.key) }));
});

test("an unknown message type is refused, and never said to be taken", async () => {
  const options = broker.options("alice");
  const [alice, bob] = [await agents.connect(options), await agents.named("bob")];
  const envelope = makeEnvelope(alice.id, bob.id, {}, hello(""));
  envelope.messageType = 99 as v1.MessageType;
  signEnvelope(envelope, "k1", options.key);
  await assert.rejects(alice.sendEnvelope(envelope), (error) => {
    assert.ok(error instanceof BatonError);
    assert.equal(error.code, Code.InvalidArgument);
    assert.notEqual(error.reason, "");
    return true;
  });
  // Stands for a type of a newer broker.
  assert.equal(payloadOf(envelope), undefined);
  const nacked: unknown[] = [];
  const delivery = { envelope, payload: undefined, handoffId: "", session: { welcome: {} } };
  const nack = (cause: v1.NackCause): Promise<void> => Promise.resolve(void nacked.push(cause));
  const log: unknown[] = [];
  const jobs = new Jobs({ handlerTimeoutMs: 1000, log: (_, error) => log.push(error) });
  const unknown = { ...delivery, nack } as unknown as Delivery;
  await jobs.begin(unknown, (context) => handle(alice, {}, unknown, context));
  assert.deepEqual(nacked, [v1.NackCause.POISON]);
  assert.ok(log[0] instanceof Poison);
});

test("payloads that are not what they say", () => {
  const envelope = makeEnvelope("a", "b", {}, hello("hello"));
  const refused = (reason: string) => (error: unknown) => error instanceof VerificationError && error.reason === reason;
  envelope.messageType = v1.MessageType.DELEGATION;
  assert.throws(() => payloadOf(envelope), refused("PAYLOAD_TYPE_MISMATCH"));
  envelope.messageType = v1.MessageType.INFO;
  assert.ok(envelope.payload);
  envelope.payload.value = new Uint8Array([0xff]);
  assert.throws(() => payloadOf(envelope), refused("MALFORMED"));
});

test("what does not verify is not given out", async () => {
  const alice = await agents.named("alice");
  const another = create(v1.AgentKeySchema, { keyId: "k1", publicKey: publicBytes(generateKey()) });
  const bob = await agents.connect({ ...broker.options("bob"), pinnedKeys: new Map([[alice.id, [another]]]) });
  const carol = await agents.named("carol");
  await alice.send(bob.id, {}, hello("forged, for all that bob knows"));
  await carol.send(bob.id, {}, hello("hello"));
  assert.equal((await new Mail(bob).next("baton.v1.Info")).payload.text, "hello");
  const letters = createClient(v1.DeadLetterService, bob.transport);
  const { deadLetters } = await letters.listDeadLetters({ filter: { agentId: bob.id } }, { headers: bob.headers });
  assert.deepEqual(
    deadLetters.map(({ reason }) => reason),
    [v1.DeadLetterReason.POISON],
  );
});

test("only vouched keys are good where operators are known", async () => {
  const [operator, options] = [generateKey(), broker.options("alice")];
  const key = create(v1.AgentKeySchema, { keyId: "k1", publicKey: publicBytes(options.key) });
  const { operatorToken } = broker;
  const alice = await agents.connect(options);
  await alice.vouchForKey(alice.id, "k1", vouch(alice.id, key, "ops", operator), { operatorToken });
  const mallory = await agents.named("mallory");
  const operatorKeys = new Map([["ops", publicBytes(operator)]]);
  const bob = await agents.connect({ ...broker.options("bob"), operatorKeys });
  await mallory.send(bob.id, {}, hello("I am not vouched for"));
  await alice.send(bob.id, {}, hello("hello"));
  assert.equal((await new Mail(bob).next("baton.v1.Info")).payload.text, "hello");
});

test("keys are added and revoked", async () => {
  const [first, key] = [broker.options("alice"), generateKey()];
  const alice = await agents.connect(first);
  const added = await alice.addKey(alice.id, { keyId: "k2", publicKey: publicBytes(key) }, { replaces: ["k1"], graceMs: 3_600_000 });
  const ends = added.card?.keys.map(({ notAfterTime }) => notAfterTime !== undefined);
  assert.deepEqual(ends, [true, false]);
  const { card: _, ...known } = first;
  const later = await agents.connect({ ...known, key, keyId: "k2" });
  const revoked = await later.revokeKey(alice.id, "k1", { reasonText: "rotated" });
  assert.ok(revoked.card?.keys[0]?.revokeTime);
  await assert.rejects(alice.send(later.id, {}, hello("")), BatonError);
});

test("plaintext is for this machine alone", async () => {
  const afar = { ...broker.options("alice"), server: "http://broker.example:22866" };
  await assert.rejects(Agent.connect(afar), RangeError);
  const b = await own('enrollment = "open"\n[tls]\nallow_plaintext = true');
  const { ca: _, ...options } = b.options("alice");
  const alice = await agents.connect({ ...options, server: `http://${b.address}` });
  await alice.send(alice.id, {}, hello("plain"));
  assert.equal((await new Mail(alice).next("baton.v1.Info")).payload.text, "plain");
});

test("a receipt must be for the message", async () => {
  const [alice, bob] = [await agents.named("alice"), await agents.named("bob")];
  const receipt = await alice.send(bob.id, {}, hello(""));
  const { card } = await alice.getAgent("baton");
  const key = card?.keys.find(({ keyId }) => keyId === receipt.keyId);
  const refused = (error: unknown): boolean => error instanceof VerificationError && error.reason === "SIGNATURE_INVALID";
  const envelope = makeEnvelope(alice.id, bob.id, {}, hello(""));
  assert.throws(() => checkedReceipt(receipt, envelope, key), refused);
  envelope.messageId = receipt.messageId;
  assert.equal(checkedReceipt(receipt, envelope, key), receipt);
  receipt.sequence++;
  assert.throws(() => checkedReceipt(receipt, envelope, key), refused);
});

test("receipts are verified with the pinned keys of the broker", async () => {
  const [options, bob, ticket] = [broker.options("alice"), await agents.named("bob"), unique("ticket")];
  const alice = await agents.connect(options);
  await alice.requestHandoff(bob.id, ticket, { taskType: "support" });
  const brokers = (await alice.getAgent("baton")).card?.keys[0];
  assert.ok(brokers);
  const other = create(v1.AgentKeySchema, { keyId: "other", publicKey: publicBytes(generateKey()) });
  const pinned = async (...keys: v1.AgentKey[]): Promise<Agent> => {
    return agents.connect({ ...options, pinnedKeys: new Map([["baton", keys]]) });
  };
  const known = await pinned(other, brokers);
  await known.send(bob.id, {}, hello("hello"));
  await known.auditTask(ticket);
  const forged = create(v1.AgentKeySchema, { keyId: brokers.keyId, publicKey: other.publicKey });
  for (const [key, reason] of [[forged, "SIGNATURE_INVALID"], [other, "KEY_UNKNOWN"]] as const) {
    const deceived = await pinned(key);
    const refused = (error: unknown): boolean => error instanceof VerificationError && error.reason === reason;
    await assert.rejects(deceived.send(bob.id, {}, hello("hello")), refused);
    await assert.rejects(deceived.auditTask(ticket), refused);
  }
});

test("heartbeats come at the broker's interval", async () => {
  const b = await own('enrollment = "open"\n[session]\nheartbeat_interval_ms = 100\npresence_lease_ms = 1000');
  const alice = await agents.connect(b.options("alice"));
  alice.heartbeat = { status: "busy", activeTasks: 3 };
  const busy = async (): Promise<void> => {
    while ((await alice.getAgent(alice.id)).lastHeartbeat?.activeTasks !== 3);
  };
  await patient(busy());
});

test("after close nothing goes", async () => {
  const alice = await agents.named("alice");
  alice.close();
  const closed = /the agent is closed/;
  await assert.rejects(alice.send("bob", {}, hello("")), closed);
  await assert.rejects(alice.deliveries().next(), closed);
  await assert.rejects(alice.serve({}), closed);
  await assert.rejects(alice.getTask("ticket"), closed);
});

test("a signal ends a call", async () => {
  const alice = await agents.named("alice");
  const signal = AbortSignal.abort(new Error("changed my mind"));
  await assert.rejects(alice.send("bob", {}, hello(""), { signal }), /changed my mind/);
});

test("key files", async () => {
  const path = join(temporaryFolder(), "alice.pem");
  const key = generateKey();
  await saveKey(path, key);
  assert.equal(statSync(path).mode & 0o777, 0o600);
  assert.deepEqual(publicBytes(await loadKey(path)), publicBytes(key));
  await assert.rejects(saveKey(path, generateKey()), { code: "EEXIST" });
  await assert.rejects(loadKey(join(broker.data, "tls/server.key")), TypeError);
});

test("message ids are UUIDs of version 7", () => {
  const ids = Array.from({ length: 100 }, newMessageId);
  for (const id of ids) assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  assert.equal(new Set(ids).size, 100);
  const ms = parseInt((ids[0] ?? "").replace(/-/g, "").slice(0, 12), 16);
  assert.ok(Math.abs(ms - Date.now()) < 5000);
});
