/** The workspace of a task: numbered entries in topics, which the agents of the task share. */
import { create, equals, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, timestampDate, timestampFromDate, TimestampSchema } from "@bufbuild/protobuf/wkt";
import { type Client, Code, createClient, type Transport } from "@connectrpc/connect";
import { payloadOf } from "./envelopes.js";
import { BatonError, isPassing, VerificationError } from "./errors.js";
import { type Caller, delayOf, follow, type WireOptions } from "./following.js";
import { ErrorInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { jsonOf, type JsonValue, parseJson } from "./json.js";
import { sleep } from "./session.js";
import * as v1 from "./v1.js";

/** The maximum size of an entry's content, in bytes. */
export const ENTRY_BYTES_MAX = 1024 * 1024;
const PAGE_SIZE = 1000;
/** A watch begins with an update. A proxy that holds back a stream does not let it through. */
const SILENCE_MS = 10_000;

/** The content of an entry: a JSON value, bytes, or the address of content that is stored elsewhere. */
export type EntryValue = JsonValue | v1.ContextBytes | v1.ContextReference;

/** An entry of a workspace. */
export interface Entry {
  /** The number, from 1 and dense over all topics, in the order of commits. */
  readonly sequence: bigint;
  /** The topic, normalised. */
  readonly topic: string;
  readonly authorId: string;
  readonly value: EntryValue;
  /** The time at which the broker appended the entry. */
  readonly createTime: Date;
  /** All fields. */
  readonly message: v1.WorkspaceEntry;
}

/** The options of a read. */
export interface ReadOptions {
  /** Only entries of these topics; default: all. */
  topics?: readonly string[];
  /** Only entries with a higher number; default 0n, from the first one on. */
  after?: bigint;
}

/** What a workspace needs of its agent. */
export interface WorkspaceAgent {
  append(payload: v1.WorkspaceAppend): Promise<v1.Receipt>;
  verify(envelope: v1.Envelope): Promise<void>;
}

/**
 * A workspace in which the agent takes part: see `Agent.workspace`.
 *
 *     const workspace = agent.workspace("task:crash-7");
 *     const number = await workspace.append("findings", { cause: "use after free" });
 *     for await (const entry of workspace.watch({ topics: ["findings"], after: number })) console.log(entry.value);
 *
 * All calls throw BatonError if the broker refuses: WORKSPACE_UNKNOWN, PERMISSION_DENIED, FIELD_INVALID. With `verify` each read
 * checks the signature of each entry's author, and that the broker shows what the author has signed; it throws
 * VerificationError at the first entry that does not verify.
 */
export class Workspace {
  readonly #agent: WorkspaceAgent;
  readonly #caller: Caller;
  readonly #service: Client<typeof v1.WorkspaceService>;
  readonly #verifies: boolean;
  /** @internal The time after which a watch without an update counts as held back. */
  silenceMs = SILENCE_MS;

  /** @internal */
  constructor(
    /** The id, for example `task:crash-7`. */
    readonly id: string,
    agent: WorkspaceAgent,
    caller: Caller,
    transport: Transport,
    { verify = false }: { verify?: boolean } = {},
  ) {
    this.#agent = agent;
    this.#caller = caller;
    this.#service = createClient(v1.WorkspaceService, transport);
    this.#verifies = verify;
  }

  /**
   * Appends an entry and returns its number. After a lost connection the agent sends the same message again, which makes one
   * entry. With `expectedLastSequence` the append succeeds only if this is the number of the workspace's last entry, 0n for
   * none. `sourceTime` is the writer's own time. Throws SEQUENCE_CONFLICT with the right number as `last_sequence` in the
   * metadata, WORKSPACE_CLOSED, QUOTA_EXCEEDED; ENTRY_TOO_LARGE over 1 MiB, before anything is sent.
   */
  async append(
    topic: string,
    value: EntryValue,
    { expectedLastSequence, sourceTime }: { expectedLastSequence?: bigint; sourceTime?: Date } = {},
  ): Promise<bigint> {
    const entry = contentOf(value);
    const size = sizeOf(entry);
    if (size > ENTRY_BYTES_MAX) {
      const text = `the entry has ${size} bytes; the limit is ${ENTRY_BYTES_MAX}. Append a reference instead`;
      throw new BatonError(Code.InvalidArgument, text, { info: create(ErrorInfoSchema, { reason: "ENTRY_TOO_LARGE", domain: "baton" }) });
    }
    const append: MessageInitShape<typeof v1.WorkspaceAppendSchema> = { workspaceId: this.id, topic, entry };
    if (expectedLastSequence !== undefined) append.expectedLastSequence = expectedLastSequence;
    if (sourceTime !== undefined) append.sourceTime = timestampFromDate(sourceTime);
    return (await this.#agent.append(create(v1.WorkspaceAppendSchema, append))).resourceSequence;
  }

  /**
   * Returns a page of entries, oldest first. `pageSize` is at most 1000; default 200. If there is no entry yet, the call waits
   * for one up to `waitMs`, at most 60 s. The next page is the one after `nextAfterSequence`; `gap` has the numbers that have
   * expired.
   */
  async page({ topics = [], after = 0n, pageSize = 0, waitMs = 0 }: ReadOptions & { pageSize?: number; waitMs?: number } = {}): Promise<v1.ListEntriesResponse> {
    const wait = waitMs > 0 ? { wait: durationFromMs(waitMs) } : {};
    const request = { workspaceId: this.id, topics: [...topics], afterSequence: after, pageSize, includeEnvelopes: this.#verifies, ...wait };
    const page = await this.#caller.call((options) => this.#service.listEntries(request, options), waitMs);
    for (const entry of page.entries) await this.#check(entry);
    return page;
  }

  /** Yields the entries that exist, oldest first, page by page. Expired entries are skipped. */
  async *entries({ topics = [], after = 0n }: ReadOptions = {}): AsyncGenerator<Entry, void> {
    for (let next = after; ;) {
      const page = await this.page({ topics, after: next, pageSize: PAGE_SIZE });
      for (const entry of page.entries) yield entryOf(entry);
      if (!page.hasMore) return;
      next = page.nextAfterSequence;
    }
  }

  /** Yields all entries that exist: see `entries`. */
  [Symbol.asyncIterator](): AsyncGenerator<Entry, void> {
    return this.entries();
  }

  /** Returns the topics that have entries, by name. */
  async topics(): Promise<v1.WorkspaceTopic[]> {
    return (await this.#caller.call((options) => this.#service.listTopics({ workspaceId: this.id }, options))).topics;
  }

  /** Returns the state of the workspace, with the head of its hash chain. */
  async state(): Promise<v1.Workspace> {
    const { workspace } = await this.#caller.call((options) => this.#service.getWorkspace({ workspaceId: this.id }, options));
    return workspace ?? create(v1.WorkspaceSchema);
  }

  /**
   * Yields the entries that exist and then each new one, until the workspace is closed or `signal` aborts. The watch continues
   * by itself over lost connections and restarts of the broker, and yields each entry once and in order. Expired entries are
   * skipped; `updates` shows the gap.
   */
  async *watch(options: ReadOptions & { signal?: AbortSignal } = {}): AsyncGenerator<Entry, void> {
    for await (const update of this.updates(options)) if (update.case === "entry") yield entryOf(update.value);
  }

  /** As `watch`, but yields each update: `entry`, `gap`, `caughtUp` once, and `closed` at last. */
  async *updates({
    topics = [],
    after = 0n,
    signal,
  }: ReadOptions & { signal?: AbortSignal } = {}): AsyncGenerator<Exclude<v1.WatchEntriesResponse["update"], { case: undefined }>, void> {
    let [last, isCaughtUp] = [after, false];
    const stream = follow(this.#caller, (options) => this.#open(topics, last, options), () => last, signal);
    for await (const { update } of stream) {
      last = afterOf(update, last);
      // An update of a later schema, or the second beginning of the same watch.
      if (update.case === undefined || (update.case === "caughtUp" && isCaughtUp)) continue;
      isCaughtUp ||= update.case === "caughtUp";
      if (update.case === "entry") await this.#check(update.value);
      yield update;
      if (update.case === "closed") return;
    }
  }

  /**
   * Waits until each of these topics has an entry. Returns the first one of each, by the topic's normalised name. A topic is
   * missing in the answer if `timeoutMs` passes, or if the workspace is closed without it. Where streams fail or are held back,
   * the call reads the entries after 1, 2, 4, 8, 16 and then every 30 s. If `signal` aborts, the call throws its reason.
   */
  async waitFor(topics: Iterable<string>, { timeoutMs, signal }: { timeoutMs?: number; signal?: AbortSignal } = {}): Promise<Map<string, Entry>> {
    const names = [...topics];
    const waiting = new Waiting(names);
    const limit = new AbortController();
    const timer = timeoutMs === undefined ? undefined : setTimeout(() => { limit.abort(); }, timeoutMs);
    const over = AbortSignal.any([this.#caller.life, limit.signal, ...(signal ? [signal] : [])]);
    const isOver = (): boolean => over.aborted || waiting.isOver;
    try {
      let canWatch = true;
      for (let attempt = 0; !isOver(); attempt++) {
        canWatch &&= await this.#watchFor(waiting, names, over);
        if (!isOver()) await this.#pollFor(waiting, names);
        if (!isOver()) await sleep(delayOf(attempt), over).catch(() => undefined);
      }
    } finally {
      clearTimeout(timer);
    }
    if (!waiting.isOver) {
      this.#caller.life.throwIfAborted();
      signal?.throwIfAborted();
    }
    return waiting.found;
  }

  /** Watches until the end of the stream. Returns false if the stream was held back. */
  async #watchFor(waiting: Waiting, topics: readonly string[], over: AbortSignal): Promise<boolean> {
    const silence = new AbortController();
    const timer = setTimeout(() => { silence.abort(); }, this.silenceMs);
    try {
      const signal = AbortSignal.any([over, silence.signal]);
      for await (const { update } of this.#caller.stream((options) => this.#open(topics, waiting.after, options), signal)) {
        clearTimeout(timer);
        if (update.case === "entry") await this.#check(update.value);
        waiting.take(update);
        if (waiting.isOver) break;
      }
    } catch (caught) {
      const error = caught instanceof VerificationError ? caught : BatonError.of(caught);
      // An error without a reason is not the broker's, but of what lies between.
      const isMendable = error instanceof BatonError && (error.reason === "" || isPassing(error));
      if (!over.aborted && !silence.signal.aborted && !isMendable) throw error;
    } finally {
      clearTimeout(timer);
    }
    return !silence.signal.aborted;
  }

  async #pollFor(waiting: Waiting, topics: readonly string[]): Promise<void> {
    try {
      for (;;) {
        const page = await this.page({ topics, after: waiting.after, pageSize: PAGE_SIZE });
        for (const value of page.entries) waiting.take({ case: "entry", value });
        waiting.after = page.nextAfterSequence;
        if (page.hasMore) continue;
        waiting.isClosed = page.closed;
        return;
      }
    } catch (error) {
      if (error instanceof VerificationError || !isPassing(BatonError.of(error))) throw error;
    }
  }

  #open(topics: readonly string[], afterSequence: bigint, options: WireOptions): AsyncIterable<v1.WatchEntriesResponse> {
    const request = { workspaceId: this.id, topics: [...topics], afterSequence, includeEnvelopes: this.#verifies };
    return this.#service.watchEntries(request, options);
  }

  /** Checks the author's signature, and that it covers what the entry shows, if the workspace verifies. */
  async #check(entry: v1.WorkspaceEntry): Promise<void> {
    if (!this.#verifies) return;
    await this.#agent.verify(entry.envelope ?? create(v1.EnvelopeSchema));
    checkEntry(this.id, entry);
  }
}

/** The first entries of some topics, as they are found. */
class Waiting {
  readonly found = new Map<string, Entry>();
  after = 0n;
  isClosed = false;
  readonly #wanted: ReadonlySet<string>;

  constructor(topics: readonly string[]) {
    this.#wanted = new Set(topics.map(normalTopic));
  }

  get isOver(): boolean {
    return this.isClosed || [...this.#wanted].every((topic) => this.found.has(topic));
  }

  take(update: v1.WatchEntriesResponse["update"]): void {
    if (update.case === "entry" && !this.found.has(update.value.topic)) this.found.set(update.value.topic, entryOf(update.value));
    this.isClosed ||= update.case === "closed";
    this.after = afterOf(update, this.after);
  }
}

/** Returns a topic's name as the broker normalises it: trimmed, in lower case, each run of white space one `_`. */
export function normalTopic(name: string): string {
  // The broker splits by the White_Space of Unicode. \s lacks U+0085 and has U+FEFF.
  const words = name.split(/\p{White_Space}+/u).filter((word) => word !== "");
  return words.map((word) => word.toLowerCase()).join("_");
}

/** Checks that the entry shows what its envelope says. The caller verifies the latter. Throws VerificationError. */
export function checkEntry(workspaceId: string, entry: v1.WorkspaceEntry): void {
  const { envelope } = entry;
  const append = envelope && payloadOf(envelope);
  const isShown =
    append?.$typeName === "baton.v1.WorkspaceAppend" &&
    append.workspaceId === workspaceId &&
    normalTopic(append.topic) === entry.topic &&
    envelope?.senderId === entry.authorId &&
    envelope.messageId === entry.messageId &&
    isSameContent(append.entry, entry.entry) &&
    equals(TimestampSchema, append.sourceTime ?? create(TimestampSchema), entry.sourceTime ?? create(TimestampSchema));
  if (!isShown) throw new VerificationError("ENTRY_INVALID", `entry ${entry.sequence} differs from its envelope`);
}

function isSameContent(signed: v1.WorkspaceAppend["entry"], shown: v1.WorkspaceEntry["entry"]): boolean {
  if (signed.case === "json" && shown.case === "json") return signed.value === shown.value;
  if (signed.case === "bytes" && shown.case === "bytes") return equals(v1.ContextBytesSchema, signed.value, shown.value);
  return signed.case === "reference" && shown.case === "reference" && equals(v1.ContextReferenceSchema, signed.value, shown.value);
}

function entryOf(message: v1.WorkspaceEntry): Entry {
  const { sequence, topic, authorId, createTime, entry } = message;
  const value = entry.case === "json" ? parseJson(entry.value) : (entry.value ?? null);
  return { sequence, topic, authorId, value, createTime: createTime ? timestampDate(createTime) : new Date(0), message };
}

function contentOf(value: EntryValue): v1.WorkspaceAppend["entry"] {
  if (isMessage(value)) {
    return value.$typeName === "baton.v1.ContextBytes" ? { case: "bytes", value } : { case: "reference", value };
  }
  return { case: "json", value: jsonOf(value) };
}

function isMessage(value: EntryValue): value is v1.ContextBytes | v1.ContextReference {
  const name = value !== null && typeof value === "object" && "$typeName" in value ? value.$typeName : undefined;
  return name === "baton.v1.ContextBytes" || name === "baton.v1.ContextReference";
}

function sizeOf(entry: v1.WorkspaceAppend["entry"]): number {
  switch (entry.case) {
    case "json":
      return Buffer.byteLength(entry.value);
    case "bytes":
      return entry.value.data.length;
    case "reference":
      return Buffer.byteLength(entry.value.uri);
    case undefined:
      return 0;
  }
}

/** Returns the number after which a watch goes on. */
function afterOf(update: v1.WatchEntriesResponse["update"], after: bigint): bigint {
  const later = (number: bigint): bigint => (number > after ? number : after);
  switch (update.case) {
    case "entry":
      return update.value.sequence;
    case "gap":
      return later(update.value.lastNumber);
    case "caughtUp":
      // Entries of other topics need not be looked at again.
      return later(update.value.lastSequence);
    case "closed":
    case undefined:
      return after;
  }
}
