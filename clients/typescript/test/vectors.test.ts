import assert from "node:assert/strict";
import { createHash, createPrivateKey, generateKeyPairSync, type KeyObject, sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";
import { clone, create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { AnySchema, type Timestamp, TimestampSchema } from "@bufbuild/protobuf/wkt";
import { Audit } from "../src/audit.js";
import { VerificationError, v1 } from "../src/index.js";
import * as sections from "../src/sections.js";
import * as signing from "../src/signing.js";

// The vectors that the tests of every language run.

type Time = [number, number] | null;

interface EnvelopeFields {
  message_id: string;
  sender_id: string;
  receiver_id: string;
  timestamp: Time;
  message_type: number;
  correlation_id: string;
  task_id: string;
  epoch: number;
  expires_at: Time;
  key_id: string;
  payload: { type_url: string; value: string };
}

interface Signing {
  private_key_seed: string;
  public_key: string;
  vectors: { name: string; envelope: EnvelopeFields; body: string; signing_input_sha256: string; signature: string }[];
}

interface Refusals {
  cases: {
    name: string;
    expect: string;
    envelope: EnvelopeFields;
    signature: string;
    signature_version: number;
    public_key: string;
    not_before: Time;
    not_after: Time;
    revoked_at: Time;
  }[];
}

interface Section {
  name: string;
  json?: string;
  bytes?: string;
  reference_sha256?: string;
  delta_result_sha256?: string;
}

interface ReceiptVector {
  name: string;
  receipt: {
    message_id: string;
    sequence: number;
    accept_time: Time;
    task_id: string;
    task_status: number;
    owner_id: string;
    epoch: number;
    handoff_id: string;
    handoff_state: number;
    custody_hash: string;
    key_id: string;
    resource?: string;
    resource_sequence?: number;
  };
  body: string;
  signature: string;
}

interface Digests {
  private_key_seed: string;
  broker_public_key: string;
  contexts: { name: string; sections: Section[]; section_digests: Record<string, string>; context_digest: string }[];
  sessions: { agent_id: string; key_id: string; challenge: string; body: string; signature: string }[];
  receipts: ReceiptVector[];
  resource_receipts: ReceiptVector[];
  operator_private_key_seed: string;
  operator_public_key: string;
  vouchers: {
    name: string;
    agent_id: string;
    key_id: string;
    public_key: string;
    operator_key_id: string;
    not_after_time: Time;
    body: string;
    signature: string;
  }[];
  custody: { entries: string[]; hashes: string[] };
  audit: { entries: string[]; hashes: string[] };
}

/** Numbers above 2^53 keep their digits: they are read as text. */
function load(name: string): unknown {
  const text = readFileSync(new URL(`../../../../vectors/${name}`, import.meta.url), "utf8");
  return JSON.parse(text.replace(/([[:,\s])(-?\d{16,})(?=[\],}\s])/g, '$1"$2"'));
}

function unhex(text: string): Uint8Array {
  return new Uint8Array(Buffer.from(text, "hex"));
}

function hex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString("hex");
}

function time(parts: Time): { at?: Timestamp } {
  return parts === null ? {} : { at: create(TimestampSchema, { seconds: BigInt(parts[0]), nanos: parts[1] }) };
}

function named<K extends string>(name: K, parts: Time): Partial<Record<K, Timestamp>> {
  const { at } = time(parts);
  return (at ? { [name]: at } : {}) as Partial<Record<K, Timestamp>>;
}

function privateKey(seed: string): KeyObject {
  const prefix = Buffer.from("302e020100300506032b657004220420", "hex");
  return createPrivateKey({ key: Buffer.concat([prefix, unhex(seed)]), format: "der", type: "pkcs8" });
}

function envelopeOf(fields: EnvelopeFields): v1.Envelope {
  return create(v1.EnvelopeSchema, {
    messageId: fields.message_id,
    senderId: fields.sender_id,
    receiverId: fields.receiver_id,
    ...named("timestamp", fields.timestamp),
    messageType: fields.message_type,
    correlationId: fields.correlation_id,
    taskId: fields.task_id,
    epoch: BigInt(fields.epoch),
    ...named("expiresAt", fields.expires_at),
    keyId: fields.key_id,
    payload: create(AnySchema, { typeUrl: fields.payload.type_url, value: unhex(fields.payload.value) }),
  });
}

function refusedFor(reason: string): (error: unknown) => boolean {
  return (error) => error instanceof VerificationError && error.reason === reason;
}

describe("envelopes are signed as pinned", () => {
  const { vectors, private_key_seed, public_key } = load("signing-v1.json") as Signing;
  for (const one of vectors) {
    test(one.name, () => {
      const envelope = envelopeOf(one.envelope);
      assert.equal(hex(signing.envelopeBody(envelope)), one.body);
      const digest = createHash("sha256").update(signing.envelopeInput(envelope)).digest();
      assert.equal(hex(digest), one.signing_input_sha256);
      signing.signEnvelope(envelope, "k1", privateKey(private_key_seed));
      assert.equal(hex(envelope.signature), one.signature);
      const key = create(v1.AgentKeySchema, { keyId: "k1", publicKey: unhex(public_key) });
      signing.verifyEnvelope(envelope, key);
    });
  }
});

describe("what must not verify does not", () => {
  for (const one of (load("refusals-v1.json") as Refusals).cases) {
    test(one.name, () => {
      const envelope = envelopeOf(one.envelope);
      envelope.signature = unhex(one.signature);
      envelope.signatureVersion = one.signature_version;
      const key = create(v1.AgentKeySchema, {
        keyId: "k1",
        publicKey: unhex(one.public_key),
        ...named("notBeforeTime", one.not_before),
        ...named("notAfterTime", one.not_after),
        ...named("revokeTime", one.revoked_at),
      });
      if (one.expect === "valid") signing.verifyEnvelope(envelope, key);
      else
        assert.throws(() => {
          signing.verifyEnvelope(envelope, key);
        }, refusedFor(one.expect));
    });
  }
});

describe("digests", () => {
  const digests = load("digests-v1.json") as Digests;

  for (const one of digests.contexts) {
    test(`context: ${one.name}`, () => {
      const sections = one.sections.map(sectionOf);
      const found = Object.fromEntries(sections.map((section) => [section.name, hex(signing.sectionDigest(section))]));
      assert.deepEqual(found, one.section_digests);
      assert.equal(hex(signing.contextDigest(sections)), one.context_digest);
      assert.equal(hex(signing.contextDigest(sections.reverse())), one.context_digest);
    });
  }

  test("proofs of identity", () => {
    assert.ok(digests.sessions.length > 0);
    for (const one of digests.sessions) {
      const challenge = unhex(one.challenge);
      assert.equal(hex(signing.sessionBody(one.agent_id, one.key_id, challenge)), one.body);
      const key = privateKey(digests.private_key_seed);
      assert.equal(hex(signing.signSession(one.agent_id, one.key_id, challenge, key)), one.signature);
    }
  });

  for (const one of [...digests.receipts, ...digests.resource_receipts]) {
    test(`receipt: ${one.name}, and its changes`, () => {
      const r = one.receipt;
      const receipt = create(v1.ReceiptSchema, {
        messageId: r.message_id,
        sequence: BigInt(r.sequence),
        ...named("acceptTime", r.accept_time),
        taskId: r.task_id,
        taskStatus: r.task_status,
        ownerId: r.owner_id,
        epoch: BigInt(r.epoch),
        handoffId: r.handoff_id,
        handoffState: r.handoff_state,
        custodyHash: unhex(r.custody_hash),
        keyId: r.key_id,
        resource: r.resource ?? "",
        resourceSequence: BigInt(r.resource_sequence ?? 0),
        signature: unhex(one.signature),
      });
      const key = create(v1.AgentKeySchema, { keyId: r.key_id, publicKey: unhex(digests.broker_public_key) });
      assert.equal(hex(signing.receiptBody(receipt)), one.body);
      signing.verifyReceipt(receipt, key);
      const changes: [string, Partial<v1.Receipt>][] = [
        ["SIGNATURE_INVALID", { epoch: receipt.epoch + 1n }],
        ["SIGNATURE_INVALID", { ownerId: "another" }],
        ["SIGNATURE_INVALID", { resource: "another" }],
        ["SIGNATURE_MISSING", { signature: new Uint8Array() }],
        ["KEY_UNKNOWN", { keyId: "another" }],
      ];
      for (const [reason, change] of changes) {
        const changed = Object.assign(clone(v1.ReceiptSchema, receipt), change);
        assert.throws(() => {
          signing.verifyReceipt(changed, key);
        }, refusedFor(reason));
      }
    });
  }

  for (const one of digests.vouchers) {
    test(`voucher: ${one.name}`, () => {
      const key = create(v1.AgentKeySchema, { keyId: one.key_id, publicKey: unhex(one.public_key) });
      const voucher = create(v1.KeyVoucherSchema, {
        operatorKeyId: one.operator_key_id,
        ...named("notAfterTime", one.not_after_time),
        signature: unhex(one.signature),
      });
      assert.equal(hex(signing.voucherBody(one.agent_id, key, voucher)), one.body);
      // A Date has milliseconds; the vector's time is finer.
      if (!one.not_after_time) {
        const operator = privateKey(digests.operator_private_key_seed);
        assert.equal(hex(signing.vouch(one.agent_id, key, one.operator_key_id, operator).signature), one.signature);
      }
      const verify = (agentId: string, seconds: number) => () => {
        signing.verifyVoucher(agentId, key, voucher, unhex(digests.operator_public_key), new Date(seconds * 1000));
      };
      verify(one.agent_id, 1_600_000_000)();
      assert.throws(verify("another", 1_600_000_000), refusedFor("SIGNATURE_INVALID"));
      if (one.not_after_time) assert.throws(verify(one.agent_id, one.not_after_time[0] + 1), refusedFor("KEY_NOT_VALID"));
    });
  }

  for (const [name, chain, next] of [
    ["custody", digests.custody, signing.custodyHash],
    ["audit", digests.audit, signing.auditHash],
  ] as const) {
    test(`${name} chain`, () => {
      let head: Uint8Array = new Uint8Array(32);
      assert.ok(chain.entries.length > 0);
      chain.entries.forEach((entry, i) => {
        head = next(head, unhex(entry));
        assert.equal(hex(head), chain.hashes[i]);
      });
    });
  }
});

test("an audit takes a context by its digest, and no other message", () => {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const raw = new Uint8Array(publicKey.export({ format: "der", type: "spki" }).subarray(-32));
  const keys = [create(v1.AgentKeySchema, { keyId: "broker", publicKey: raw })];
  const audited = (accepted: MessageInitShape<typeof v1.CustodyEnvelopeSchema>) => () => {
    const event = { case: "accepted" as const, value: { ...accepted, messageId: "m" } };
    const entryBytes = toBinary(v1.CustodyEntrySchema, create(v1.CustodyEntrySchema, { number: 1n, event }));
    const custodyHash = signing.custodyHash(new Uint8Array(32), entryBytes);
    const receipt = create(v1.ReceiptSchema, { messageId: "m", custodyHash, keyId: "broker" });
    const input = signing.pae("application/vnd.baton.receipt.v1", signing.receiptBody(receipt));
    receipt.signature = new Uint8Array(sign(null, input, privateKey));
    new Audit(keys).add(create(v1.CustodyLogEntrySchema, { entryBytes, custodyHash, receipt }));
  };
  const contextDigest = new Uint8Array(32);
  audited({ messageType: v1.MessageType.TASK_CONTEXT_TRANSFER, contextDigest })();
  assert.throws(audited({ messageType: v1.MessageType.TASK_CONTEXT_TRANSFER }), refusedFor("CUSTODY_INVALID"));
  assert.throws(audited({ messageType: v1.MessageType.INFO, contextDigest }), refusedFor("CUSTODY_INVALID"));
});

test("a section without content has no digest", () => {
  assert.throws(() => signing.sectionDigest(create(v1.ContextSectionSchema, { name: "goals" })), TypeError);
});

function sectionOf(section: Section): v1.ContextSection {
  const content = ((): v1.ContextSection["content"] => {
    if (section.json !== undefined) return { case: "json", value: section.json };
    if (section.bytes !== undefined) {
      return { case: "bytes", value: create(v1.ContextBytesSchema, { data: unhex(section.bytes) }) };
    }
    if (section.reference_sha256 !== undefined) {
      return { case: "reference", value: create(v1.ContextReferenceSchema, { sha256: unhex(section.reference_sha256) }) };
    }
    const resultSha256 = unhex(section.delta_result_sha256 ?? "");
    return { case: "delta", value: create(v1.ContextDeltaSchema, { resultSha256 }) };
  })();
  return create(v1.ContextSectionSchema, { name: section.name, content });
}

interface DeltaCase {
  name: string;
  base: string;
  patch: string;
  result: string | null;
  result_sha256?: string;
}

interface FilterCase {
  name: string;
  section: string;
  filter: { history?: keyof typeof v1.HistoryFilter; last?: number; json_pointers?: string[] };
  summary: string;
  result: string | null;
}

/** The texts in these files keep their digits, which `load` would change. */
function cases<T>(name: string): T[] {
  return (JSON.parse(readFileSync(new URL(`../../../../vectors/${name}`, import.meta.url), "utf8")) as { cases: T[] }).cases;
}

describe("deltas", () => {
  for (const { name, base, patch, result, result_sha256: digest } of cases<DeltaCase>("deltas-v1.json")) {
    test(name, () => {
      if (result === null) {
        assert.throws(() => sections.applyDelta(base, patch), sections.SectionError);
        return;
      }
      assert.equal(sections.applyDelta(base, patch), result);
      assert.equal(hex(sections.sha256(result)), digest);
      const made = sections.deltaBetween(base, result);
      if (made) assert.equal(sections.applyDelta(base, made.delta.mergePatch), result);
    });
  }
});

describe("filters", () => {
  for (const { name, section, filter, summary, result } of cases<FilterCase>("filters-v1.json")) {
    test(name, () => {
      const { history = "UNSPECIFIED", last = 0, json_pointers: jsonPointers = [] } = filter;
      const chosen = create(v1.ContextFilterSchema, { history: v1.HistoryFilter[history], last, jsonPointers });
      if (result === null) assert.throws(() => sections.filtered(section, chosen, summary), sections.SectionError);
      else assert.equal(sections.filtered(section, chosen, summary), result);
    });
  }
});
