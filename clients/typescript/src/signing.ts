/** The byte layouts that are signed or hashed, as docs/signing.md of the broker defines them. */
import { createHash, createPublicKey, type KeyObject, sign, verify as verifySignature } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { type Timestamp, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { VerificationError } from "./errors.js";
import { type AgentKey, AgentKeySchema, type ContextSection, type Envelope, type KeyVoucher, KeyVoucherSchema, type Receipt } from "./v1.js";

/** The signature layout that this client writes, and the only one that it accepts. */
export const SIGNATURE_VERSION = 1;

const ENVELOPE = "application/vnd.baton.envelope.v1";
const CONTEXT = "application/vnd.baton.context.v1";
const SESSION = "application/vnd.baton.session.v1";
const RECEIPT = "application/vnd.baton.receipt.v1";
const RECEIPT_OF_RESOURCE = "application/vnd.baton.receipt.v2";
const CUSTODY = "application/vnd.baton.custody.v1";
const AUDIT = "application/vnd.baton.audit.v1";
const VOUCHER = "application/vnd.baton.key-voucher.v1";

/** Returns DSSE's pre-authentication encoding of a body. */
export function pae(kind: string, body: Uint8Array): Buffer {
  return Buffer.concat([Buffer.from(`DSSEv1 ${Buffer.byteLength(kind)} ${kind} ${body.length} `), body]);
}

/** Returns the bytes to sign for an envelope, in their pre-authentication encoding. */
export function envelopeInput(envelope: Envelope): Buffer {
  return pae(ENVELOPE, envelopeBody(envelope));
}

/** Returns the signed fields of an envelope: all but trace context, signature and signature version. */
export function envelopeBody(e: Envelope): Buffer {
  const payload = sha256(pae(e.payload?.typeUrl ?? "", e.payload?.value ?? new Uint8Array()));
  return Buffer.concat([
    text(e.messageId),
    text(e.senderId),
    text(e.receiverId),
    time(e.timestamp),
    number(BigInt(e.messageType)),
    text(e.correlationId),
    text(e.taskId),
    number(e.epoch),
    time(e.expiresAt),
    text(e.keyId),
    bytes(payload),
  ]);
}

/** Signs the envelope in place: sets its keyId, signatureVersion and signature. */
export function signEnvelope(envelope: Envelope, keyId: string, key: KeyObject): void {
  envelope.keyId = keyId;
  envelope.signatureVersion = SIGNATURE_VERSION;
  envelope.signature = new Uint8Array(sign(null, envelopeInput(envelope), key));
}

/**
 * Verifies the envelope's signature with this key, which must be valid at the envelope's timestamp. The caller decides whether
 * the key is the sender's. Throws VerificationError: SIGNATURE_MISSING, SIGNATURE_VERSION_UNKNOWN, KEY_NOT_VALID, KEY_WEAK or
 * SIGNATURE_INVALID.
 */
export function verifyEnvelope(envelope: Envelope, key: AgentKey): void {
  if (envelope.signature.length === 0) throw new VerificationError("SIGNATURE_MISSING", "the envelope is not signed");
  if (envelope.signatureVersion !== SIGNATURE_VERSION) {
    throw new VerificationError("SIGNATURE_VERSION_UNKNOWN", `signature_version ${envelope.signatureVersion}`);
  }
  checkKey(key, envelope.timestamp);
  verify(key, envelopeInput(envelope), envelope.signature);
}

/** Returns a section's digest, 32 bytes: of its text or bytes, or the digest in its reference or delta. */
export function sectionDigest(section: ContextSection): Uint8Array {
  switch (section.content.case) {
    case "json":
      return sha256(Buffer.from(section.content.value));
    case "bytes":
      return sha256(section.content.value.data);
    case "reference":
      return section.content.value.sha256;
    case "delta":
      return section.content.value.resultSha256;
    case undefined:
      throw new TypeError(`section ${section.name} has no content`);
  }
}

/** Returns the digest of a context, 32 bytes. The order of the sections does not matter. */
export function contextDigest(sections: readonly ContextSection[]): Uint8Array {
  const named = sections.map((section) => ({ name: Buffer.from(section.name), digest: sectionDigest(section) }));
  named.sort((a, b) => Buffer.compare(a.name, b.name));
  return sha256(pae(CONTEXT, Buffer.concat(named.flatMap(({ name, digest }) => [bytes(name), bytes(digest)]))));
}

/** Returns the signed bytes of a proof of identity. */
export function sessionBody(agentId: string, keyId: string, challenge: Uint8Array): Buffer {
  return Buffer.concat([text(agentId), text(keyId), bytes(challenge)]);
}

/** Signs the proof of identity for AgentService.CreateToken, 64 bytes. */
export function signSession(agentId: string, keyId: string, challenge: Uint8Array, key: KeyObject): Uint8Array {
  return new Uint8Array(sign(null, pae(SESSION, sessionBody(agentId, keyId, challenge)), key));
}

/** Returns the signed bytes of a receipt: all fields but the signature. */
export function receiptBody(r: Receipt): Buffer {
  return Buffer.concat([
    text(r.messageId),
    number(r.sequence),
    time(r.acceptTime),
    text(r.taskId),
    number(BigInt(r.taskStatus)),
    text(r.ownerId),
    number(r.epoch),
    text(r.handoffId),
    number(BigInt(r.handoffState)),
    bytes(r.custodyHash),
    text(r.keyId),
    ...(r.resource ? [text(r.resource), number(r.resourceSequence)] : []),
  ]);
}

/**
 * Verifies the broker's signature on a receipt. Throws VerificationError: KEY_UNKNOWN if another key signed it,
 * SIGNATURE_MISSING, KEY_WEAK or SIGNATURE_INVALID.
 */
export function verifyReceipt(receipt: Receipt, brokerKey: AgentKey): void {
  if (receipt.signature.length === 0) throw new VerificationError("SIGNATURE_MISSING", "the receipt is not signed");
  if (receipt.keyId !== brokerKey.keyId) {
    throw new VerificationError("KEY_UNKNOWN", `the receipt is signed with ${receipt.keyId}, not ${brokerKey.keyId}`);
  }
  verify(brokerKey, pae(receipt.resource ? RECEIPT_OF_RESOURCE : RECEIPT, receiptBody(receipt)), receipt.signature);
}

/** Returns the next hash of a task's custody chain, 32 bytes. The first follows 32 zero bytes. */
export function custodyHash(previous: Uint8Array, entry: Uint8Array): Uint8Array {
  return sha256(pae(CUSTODY, Buffer.concat([bytes(previous), bytes(entry)])));
}

/** Returns the next hash of the chain of the broker's audit log, 32 bytes. The first follows 32 zero bytes. */
export function auditHash(previous: Uint8Array, entry: Uint8Array): Uint8Array {
  return sha256(pae(AUDIT, Buffer.concat([bytes(previous), bytes(entry)])));
}

/** Returns the fields of a key voucher that are signed, before their encoding. */
export function voucherBody(agentId: string, key: AgentKey, voucher: KeyVoucher): Buffer {
  const names = [text(agentId), text(key.keyId), bytes(key.publicKey), text(voucher.operatorKeyId)];
  return Buffer.concat([...names, time(voucher.notAfterTime)]);
}

/** Signs an operator's voucher that the key is the agent's. `notAfter` is its expiry; absent for no expiry. */
export function vouch(
  agentId: string,
  key: AgentKey,
  operatorKeyId: string,
  operator: KeyObject,
  notAfter?: Date,
): KeyVoucher {
  const voucher = create(KeyVoucherSchema, {
    operatorKeyId,
    ...(notAfter && { notAfterTime: timestampFromDate(notAfter) }),
  });
  voucher.signature = new Uint8Array(sign(null, pae(VOUCHER, voucherBody(agentId, key, voucher)), operator));
  return voucher;
}

/**
 * Verifies an operator's voucher that the key is the agent's, at this time. `operatorKey` is the operator's public key, 32
 * bytes. Throws VerificationError: KEY_NOT_VALID for an expired voucher, KEY_WEAK or SIGNATURE_INVALID.
 */
export function verifyVoucher(agentId: string, key: AgentKey, voucher: KeyVoucher, operatorKey: Uint8Array, at: Date): void {
  const end = voucher.notAfterTime;
  if (end !== undefined && nanoseconds(timestampFromDate(at)) >= nanoseconds(end)) {
    throw new VerificationError("KEY_NOT_VALID", `the voucher for key ${key.keyId} is over`);
  }
  const operator = create(AgentKeySchema, { keyId: voucher.operatorKeyId, publicKey: operatorKey });
  verify(operator, pae(VOUCHER, voucherBody(agentId, key, voucher)), voucher.signature);
}

const KEY_BYTES = 32;
const SIGNATURE_BYTES = 64;
const P = 2n ** 255n - 19n;
// The y of the 8 points of small order: the identity, orders 2 and 4, and the two of order 8.
const Y_8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022n;
const SMALL_ORDER_Y = new Set([1n, P - 1n, 0n, Y_8, P - Y_8]);

/** Whether 32 bytes encode a point of small order, canonically or not. Signatures by this key can be forged. */
export function isWeak(point: Uint8Array): boolean {
  const bigEndian = Buffer.from(point).reverse();
  const y = BigInt(`0x${bigEndian.toString("hex")}`) & ((1n << 255n) - 1n);
  return SMALL_ORDER_Y.has(y % P);
}

/**
 * Checks that a key is valid: at or after not_before_time, and before not_after_time. A revoked key is invalid at every time,
 * also for older signatures: its thief can choose any timestamp.
 */
function checkKey(key: AgentKey, at: Timestamp | undefined): void {
  const moment = nanoseconds(at);
  const isEarly = key.notBeforeTime !== undefined && moment < nanoseconds(key.notBeforeTime);
  const isLate = key.notAfterTime !== undefined && moment >= nanoseconds(key.notAfterTime);
  if (key.revokeTime !== undefined || isEarly || isLate) {
    throw new VerificationError("KEY_NOT_VALID", `key ${key.keyId} is revoked, or not valid at this time`);
  }
}

function verify(key: AgentKey, signed: Uint8Array, signature: Uint8Array): void {
  const isSized = key.publicKey.length === KEY_BYTES;
  if (isSized && isWeak(key.publicKey)) {
    throw new VerificationError("KEY_WEAK", `key ${key.keyId} is weak: signatures can be forged under it`);
  }
  // The library refuses an S of L or more and every R but the computed one. It accepts a small-order R.
  const isWellFormed = isSized && signature.length === SIGNATURE_BYTES && !isWeak(signature.subarray(0, KEY_BYTES));
  if (!isWellFormed || !holds(key.publicKey, signed, signature)) {
    throw new VerificationError("SIGNATURE_INVALID", `the signature does not verify with key ${key.keyId}`);
  }
}

function holds(publicKey: Uint8Array, signed: Uint8Array, signature: Uint8Array): boolean {
  try {
    const x = Buffer.from(publicKey).toString("base64url");
    const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
    return verifySignature(null, signed, key, signature);
  } catch {
    return false; // the bytes are not a point of the curve
  }
}

function sha256(data: Uint8Array): Uint8Array {
  return new Uint8Array(createHash("sha256").update(data).digest());
}

function bytes(value: Uint8Array): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(value.length);
  return Buffer.concat([length, value]);
}

function text(value: string): Buffer {
  return bytes(Buffer.from(value));
}

function number(value: bigint): Buffer {
  const buffer = Buffer.alloc(8);
  // A negative value, which no enum of the schema has, is sign-extended as protobuf does.
  buffer.writeBigUInt64BE(BigInt.asUintN(64, value));
  return bytes(buffer);
}

function time(value: Timestamp | undefined): Buffer {
  if (value === undefined) return bytes(Buffer.alloc(0));
  const buffer = Buffer.alloc(12);
  buffer.writeBigInt64BE(value.seconds);
  buffer.writeInt32BE(value.nanos, 8);
  return bytes(buffer);
}

function nanoseconds(value: Timestamp | undefined): bigint {
  return value === undefined ? 0n : value.seconds * 1_000_000_000n + BigInt(value.nanos);
}
