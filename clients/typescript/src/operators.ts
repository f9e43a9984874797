/** Dead letters and the audit log. By default operators decide and read: each call takes an `operatorToken`. */
import { create, fromBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { VerificationError } from "./errors.js";
import type { AdministeringCaller, CallOptions, KeyCallOptions } from "./following.js";
import { auditHash } from "./signing.js";
import { pages } from "./watching.js";
import * as v1 from "./v1.js";

const PAGE_SIZE = 200;

/** How many dead letters are redriven at a time. */
export interface RedriveOptions {
  /** The agent that gets all messages; by default each goes to the agent that was to have it. */
  toAgentId?: string;
  /** The most redrives per second; by default there is no limit. */
  maxPerSecond?: number;
  /** Yields the dead letters that would be tried, and changes nothing. */
  dryRun?: boolean;
}

/**
 * Dead letters: messages that could not be delivered or applied. By default an agent reads those of messages that it sent or was to
 * receive; an operator reads all, and decides. All calls throw BatonError if the broker refuses.
 */
export class DeadLetters {
  readonly #caller: AdministeringCaller;
  readonly #service: Client<typeof v1.DeadLetterService>;

  /** @internal */
  constructor(caller: AdministeringCaller, transport: Transport) {
    this.#caller = caller;
    this.#service = createClient(v1.DeadLetterService, transport);
  }

  /** Yields the dead letters that match all filters, by default all PARKED ones, the newest first, without their envelopes. */
  list(
    filter: MessageInitShape<typeof v1.DeadLetterFilterSchema> = {},
    { operatorToken, ...options }: KeyCallOptions & CallOptions = {},
  ): AsyncGenerator<v1.DeadLetter, void> {
    return pages(async (pageToken) => {
      const request = { filter, pageSize: PAGE_SIZE, pageToken };
      const { deadLetters: items, nextPageToken } = await this.#caller.administer(operatorToken, (wire) =>
        this.#service.listDeadLetters(request, wire),
      );
      return { items, nextPageToken };
    }, options);
  }

  /** Yields the dead letters that match all filters, by default all PARKED ones, the oldest first, with their envelopes. */
  async *export(
    filter: MessageInitShape<typeof v1.DeadLetterFilterSchema> = {},
    { operatorToken, signal }: KeyCallOptions & CallOptions = {},
  ): AsyncGenerator<v1.DeadLetter, void> {
    const answers = this.#caller.administerStream(operatorToken, (wire) => this.#service.exportDeadLetters({ filter }, wire), signal);
    for await (const { deadLetter } of answers) if (deadLetter !== undefined) yield deadLetter;
  }

  /**
   * Redrives the PARKED dead letters that match all filters, the oldest first, and yields each with its result: `error` is set for one
   * that could not be redriven. `dryRun` changes nothing. To stop, leave the loop; the same call again continues with the rest. Throws
   * NOTHING_MATCHES.
   */
  redriveAll(
    filter: MessageInitShape<typeof v1.DeadLetterFilterSchema> = {},
    { toAgentId = "", maxPerSecond = 0, dryRun = false, operatorToken, signal }: RedriveOptions & KeyCallOptions & CallOptions = {},
  ): AsyncGenerator<v1.RedriveDeadLettersResponse, void> {
    const request = { filter, toAgentId, maxPerSecond, dryRun };
    return this.#caller.administerStream(operatorToken, (wire) => this.#service.redriveDeadLetters(request, wire), signal);
  }

  /** Returns one dead letter with its envelope. */
  async get(deadLetterId: string, { operatorToken }: KeyCallOptions = {}): Promise<v1.DeadLetter> {
    const answer = await this.#caller.administer(operatorToken, (options) => this.#service.getDeadLetter({ deadLetterId }, options));
    return answer.deadLetter ?? create(v1.DeadLetterSchema);
  }

  /**
   * Puts a message on its way again, to `toAgentId` or to the agent that was to have it. A handoff request starts a new handoff.
   * Returns the dead letter, REDRIVEN.
   */
  async redrive(deadLetterId: string, { toAgentId = "", operatorToken }: { toAgentId?: string } & KeyCallOptions = {}): Promise<v1.DeadLetter> {
    const request = { deadLetterId, toAgentId };
    const answer = await this.#caller.administer(operatorToken, (options) => this.#service.redriveDeadLetter(request, options));
    return answer.deadLetter ?? create(v1.DeadLetterSchema);
  }

  /** Gives a message up for good. Returns the dead letter, DISCARDED. */
  async discard(deadLetterId: string, { reasonText = "", operatorToken }: { reasonText?: string } & KeyCallOptions = {}): Promise<v1.DeadLetter> {
    const request = { deadLetterId, reasonText };
    const answer = await this.#caller.administer(operatorToken, (options) => this.#service.discardDeadLetter(request, options));
    return answer.deadLetter ?? create(v1.DeadLetterSchema);
  }
}

/** The broker's log of administrative acts. */
export class AuditLog {
  readonly #caller: AdministeringCaller;
  readonly #service: Client<typeof v1.AuditService>;

  /** @internal */
  constructor(caller: AdministeringCaller, transport: Transport) {
    this.#caller = caller;
    this.#service = createClient(v1.AuditService, transport);
  }

  /**
   * Yields the entries with a number above `after`, by default all that are kept, oldest first, up to the present end. Checks the
   * chain of hashes from the first entry that it reads on. Throws BatonError, PERMISSION_DENIED without the right to read the log;
   * VerificationError, AUDIT_INVALID.
   */
  async *entries({ after = 0n, operatorToken, signal }: { after?: bigint } & KeyCallOptions & CallOptions = {}): AsyncGenerator<v1.AuditEntry, void> {
    let head: Uint8Array | undefined;
    for (let last = after; ;) {
      signal?.throwIfAborted();
      const request = { afterNumber: last, pageSize: PAGE_SIZE };
      const page = await this.#caller.administer(operatorToken, (options) => this.#service.listAuditEntries(request, options));
      if (page.entries.length === 0) return;
      for (const { entryBytes, chainHash } of page.entries) {
        const entry = fromBinary(v1.AuditEntrySchema, entryBytes);
        if (entry.number === page.firstNumber) head = page.hashBeforeFirst;
        if (head && Buffer.compare(auditHash(head, entryBytes), chainHash) !== 0) {
          throw new VerificationError("AUDIT_INVALID", `entry ${entry.number}: the chain breaks`);
        }
        [head, last] = [chainHash, entry.number];
        yield entry;
      }
    }
  }
}
