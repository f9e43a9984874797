import { createHash } from "node:crypto";
import { create, fromBinary } from "@bufbuild/protobuf";
import { VerificationError } from "./errors.js";
import { custodyHash, envelopeInput, verifyReceipt } from "./signing.js";
import { AgentKeySchema, type AgentKey, CustodyEntrySchema, type CustodyEntry, type CustodyEnvelope, type CustodyLogEntry, MessageType } from "./v1.js";

/** Verifies a custody log, entry by entry in order. */
export class Audit {
  /** The verified entries, oldest first. */
  readonly entries: CustodyEntry[] = [];
  #head: Uint8Array = new Uint8Array(32);

  constructor(readonly brokerKeys: readonly AgentKey[]) {}

  /** Verifies the next entry: the chain, and for an accepted envelope its receipt and digest. Throws VerificationError. */
  add(found: CustodyLogEntry): void {
    const number = this.entries.length + 1;
    this.#head = custodyHash(this.#head, found.entryBytes);
    const entry = parsed(found.entryBytes, number);
    if (entry.number !== BigInt(number)) throw invalid(number, "it is another one");
    if (!isSame(this.#head, found.custodyHash)) throw invalid(number, "the chain breaks");
    if (entry.event.case === "accepted") this.#checkAccepted(found, number, entry.event.value);
    this.entries.push(entry);
  }

  #checkAccepted(found: CustodyLogEntry, number: number, accepted: CustodyEnvelope): void {
    const { receipt, envelope } = found;
    if (receipt?.messageId !== accepted.messageId || !isSame(receipt.custodyHash, this.#head)) {
      throw invalid(number, "the receipt is not its own");
    }
    verifyReceipt(receipt, this.brokerKeys.find(({ keyId }) => keyId === receipt.keyId) ?? create(AgentKeySchema));
    if (!envelope && isHidden(accepted)) return;
    const digest = envelope && createHash("sha256").update(envelopeInput(envelope)).digest();
    if (!digest || !isSame(digest, accepted.contentDigest)) throw invalid(number, "the envelope is not its own");
  }
}

/** Whether the log may leave the envelope out: it is a context, which this agent may not read, and the entry has its digest. */
function isHidden(accepted: CustodyEnvelope): boolean {
  const { TASK_CONTEXT_TRANSFER, CONTEXT_CHECKPOINT } = MessageType;
  const isContext = [TASK_CONTEXT_TRANSFER, CONTEXT_CHECKPOINT].includes(accepted.messageType);
  return isContext && accepted.contextDigest.length === 32;
}

function parsed(bytes: Uint8Array, number: number): CustodyEntry {
  try {
    return fromBinary(CustodyEntrySchema, bytes);
  } catch (error) {
    throw invalid(number, String(error));
  }
}

function isSame(a: Uint8Array, b: Uint8Array): boolean {
  return Buffer.compare(a, b) === 0;
}

export function invalid(number: number, text: string): VerificationError {
  return new VerificationError("CUSTODY_INVALID", `entry ${number}: ${text}`);
}
