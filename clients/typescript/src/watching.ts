/** Reading and watching tasks and handoffs: lists go over their pages, watches over lost connections and restarts of the broker. */
import { create, equals, fromBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { payloadOf } from "./envelopes.js";
import { BatonError, Gap, isPassing, VerificationError } from "./errors.js";
import { type AdministeringCaller, type CallOptions, type Caller, delayOf, follow, type KeyCallOptions, type LogOptions, type WireOptions } from "./following.js";
import { sleep } from "./session.js";
import { isFinalState, isFinalStatus } from "./states.js";
import * as v1 from "./v1.js";

const PAGE_SIZE = 200;

/** The filters of a list of tasks. All that are set must match. */
export type TaskFilter = Omit<MessageInitShape<typeof v1.ListTasksRequestSchema>, "$typeName" | "pageSize" | "pageToken">;

/** The filters of a list of handoffs. All that are set must match. */
export type HandoffFilter = Omit<MessageInitShape<typeof v1.ListHandoffsRequestSchema>, "$typeName" | "pageSize" | "pageToken">;

/** The filters of a watch of handoffs, and where it begins. */
export type HandoffWatch = Omit<MessageInitShape<typeof v1.WatchHandoffsRequestSchema>, "$typeName"> & CallOptions;

/** One event of a task. */
export interface TaskEvent {
  /** The number of the event in the task's custody log, from 1; `after` of a later watch. */
  readonly number: bigint;
  /** The event, and the task's owner, epoch and status after it. */
  readonly entry: v1.CustodyEntry;
  /** The status update that the event accepted, its sender's signature verified; undefined for other events. */
  readonly update: v1.TaskStatusUpdate | undefined;
}

/** A change of a handoff, `caughtUp` after those that were there at the beginning, or changes that the broker cannot show. */
export interface HandoffChange {
  readonly event: Exclude<v1.WatchHandoffsResponse["event"], { case: undefined }>;
  /** `afterCursor` of a later watch that goes on here. */
  readonly cursor: bigint;
}

/** Yields the items of all pages of a list. */
export async function* pages<T>(
  page: (pageToken: string) => Promise<{ items: readonly T[]; nextPageToken: string }>,
  { signal }: CallOptions = {},
): AsyncGenerator<T, void> {
  let pageToken = "";
  do {
    signal?.throwIfAborted();
    const { items, nextPageToken } = await page(pageToken);
    yield* items;
    pageToken = nextPageToken;
  } while (pageToken !== "");
}

/** Tasks and their custody logs, as an agent sees them. All calls throw BatonError if the broker refuses. */
export class Tasks {
  readonly #caller: AdministeringCaller;
  readonly #service: Client<typeof v1.TaskService>;
  readonly #verify: (envelope: v1.Envelope) => Promise<void>;

  /** @internal */
  constructor(caller: AdministeringCaller, transport: Transport, verify: (envelope: v1.Envelope) => Promise<void>) {
    this.#caller = caller;
    this.#service = createClient(v1.TaskService, transport);
    this.#verify = verify;
  }

  /** Returns one task. */
  async get(taskId: string): Promise<v1.Task> {
    const { task } = await this.#caller.call((options) => this.#service.getTask({ taskId }, options));
    return task ?? create(v1.TaskSchema);
  }

  /**
   * Yields the tasks that match all filters, the newest first: by `ownerId`, `statuses`, `parentTaskId`, `conversationId`,
   * `askedAgentId` (with the open question to that agent), and in another `order`.
   */
  list(filter: TaskFilter = {}, options: CallOptions = {}): AsyncGenerator<v1.Task, void> {
    return pages(async (pageToken) => {
      const request = { ...filter, pageSize: PAGE_SIZE, pageToken };
      const { tasks: items, nextPageToken } = await this.#caller.call((wire) => this.#service.listTasks(request, wire));
      return { items, nextPageToken };
    }, options);
  }

  /**
   * Yields the events of a task with a number above `after`, by default all, up to its final status or until `signal` aborts.
   * Goes on by itself over lost connections and restarts of the broker. Throws Gap where events are missing, VerificationError if
   * the signature of a status update is not valid.
   */
  async *watch(taskId: string, { after = 0n, signal }: LogOptions = {}): AsyncGenerator<TaskEvent, void> {
    let last = after;
    const open = (options: WireOptions): AsyncIterable<v1.WatchTaskResponse> =>
      this.#service.watchTask({ taskId, afterNumber: last }, options);
    for await (const { update } of untilEnd(this.#caller, open, () => last, () => this.#isRead(taskId, last), signal)) {
      if (update.case === "gap") throw new Gap(`the custody log of ${taskId}`, update.value.firstNumber, update.value.lastNumber);
      if (update.case !== "entry") continue;
      const event = await this.#event(update.value);
      last = event.number;
      yield event;
      if (isFinalStatus(event.entry.taskStatus)) return;
    }
  }

  /**
   * Takes a task that has not ended from its owner, and has baton.coordinator hand it to `to`, an agent or `type:NAME`. By default
   * for operators only: `operatorToken`. `expectedEpoch` is the task's epoch as the caller has read it. Throws BatonError, for
   * example PERMISSION_DENIED, STALE_EPOCH, TASK_FINAL.
   */
  async reassign(
    taskId: string,
    to: string,
    { expectedEpoch, reasonText = "", operatorToken }: { expectedEpoch: bigint; reasonText?: string } & KeyCallOptions,
  ): Promise<v1.ReassignTaskResponse> {
    const request = { taskId, to, expectedEpoch, reasonText };
    return this.#caller.administer(operatorToken, (options) => this.#service.reassignTask(request, options));
  }

  /** @internal Returns tasks of this agent that no connected process works on. */
  async resume(instanceId: string, maxTasks: number): Promise<v1.Task[]> {
    return (await this.#caller.call((options) => this.#service.resumeTasks({ instanceId, maxTasks }, options))).tasks;
  }

  /**
   * @internal Returns the final status with which the owner of an epoch ended a loan or the task, and the entry after which it was;
   * undefined if that epoch ended otherwise.
   */
  async finalStatusAt(taskId: string, epoch: bigint, custodyLength: bigint): Promise<TaskEvent | undefined> {
    // The end of the epoch is among the latest entries, unless much has happened since.
    for (let before = custodyLength; before > 0n; before -= BigInt(PAGE_SIZE)) {
      const afterNumber = before > BigInt(PAGE_SIZE) ? before - BigInt(PAGE_SIZE) : 0n;
      for (const found of (await this.#entries(taskId, afterNumber, before)).reverse()) {
        const { update, entry } = await this.#event(found);
        if (entry.epoch < epoch) return undefined;
        if (update && isFinalStatus(update.status) && found.envelope?.epoch === epoch) return { number: entry.number, entry, update };
      }
    }
    return undefined;
  }

  /** Returns the entries of a custody log after one and up to another. */
  async #entries(taskId: string, after: bigint, upTo: bigint): Promise<v1.CustodyLogEntry[]> {
    const entries: v1.CustodyLogEntry[] = [];
    for (let last = after; last < upTo;) {
      const request = { taskId, afterNumber: last, pageSize: PAGE_SIZE };
      const page = await this.#caller.call((options) => this.#service.getCustodyLog(request, options));
      if (page.entries.length === 0) break;
      for (const found of page.entries) {
        last = entryOf(found).number;
        if (last <= upTo) entries.push(found);
      }
    }
    return entries;
  }

  async #event(found: v1.CustodyLogEntry): Promise<TaskEvent> {
    const entry = entryOf(found);
    const { envelope } = found;
    const accepted = entry.event.case === "accepted" ? entry.event.value : undefined;
    if (accepted?.messageType !== v1.MessageType.TASK_STATUS_UPDATE || envelope === undefined) {
      return { number: entry.number, entry, update: undefined };
    }
    if (envelope.messageId !== accepted.messageId) {
      throw new VerificationError("CUSTODY_INVALID", `entry ${entry.number}: the envelope is not its own`);
    }
    await this.#verify(envelope);
    const payload = payloadOf(envelope);
    const update = payload?.$typeName === "baton.v1.TaskStatusUpdate" ? payload : undefined;
    return { number: entry.number, entry, update };
  }

  /** Whether a task has ended and has no entry after this one. */
  async #isRead(taskId: string, last: bigint): Promise<boolean> {
    const { status, custodyLength } = await this.get(taskId);
    return isFinalStatus(status) && custodyLength <= last;
  }
}

function entryOf({ entryBytes }: v1.CustodyLogEntry): v1.CustodyEntry {
  return fromBinary(v1.CustodyEntrySchema, entryBytes);
}

/** Handoffs, as an agent sees them. All calls throw BatonError if the broker refuses. */
export class HandoffRecords {
  readonly #caller: Caller;
  readonly #service: Client<typeof v1.HandoffService>;

  /** @internal */
  constructor(caller: Caller, transport: Transport) {
    this.#caller = caller;
    this.#service = createClient(v1.HandoffService, transport);
  }

  /** Returns one handoff. */
  async get(handoffId: string): Promise<v1.Handoff> {
    const { handoff } = await this.#caller.call((options) => this.#service.getHandoff({ handoffId }, options));
    return handoff ?? create(v1.HandoffSchema);
  }

  /** @internal Returns the envelope of a handoff's context, as its sender sent it; undefined if the broker shows none. */
  async context(handoffId: string): Promise<v1.Envelope | undefined> {
    const request = { handoffId, includeContext: true };
    return (await this.#caller.call((options) => this.#service.getHandoff(request, options))).context;
  }

  /** Yields the handoffs that match all filters, the newest first. */
  list(filter: HandoffFilter = {}, options: CallOptions = {}): AsyncGenerator<v1.Handoff, void> {
    return pages(async (pageToken) => {
      const request = { ...filter, pageSize: PAGE_SIZE, pageToken };
      const { handoffs: items, nextPageToken } = await this.#caller.call((wire) => this.#service.listHandoffs(request, wire));
      return { items, nextPageToken };
    }, options);
  }

  /**
   * Yields a handoff as it is, and after each step, up to its end or until `signal` aborts. After a lost connection or a restart of
   * the broker it goes on with the state then, if that is another one.
   */
  async *watch(handoffId: string, { signal }: CallOptions = {}): AsyncGenerator<v1.Handoff, void> {
    let [count, last]: [bigint, v1.Handoff | undefined] = [0n, undefined];
    const open = (options: WireOptions): AsyncIterable<v1.WatchHandoffResponse> => this.#service.watchHandoff({ handoffId }, options);
    for await (const { handoff } of untilEnd(this.#caller, open, () => count, () => Promise.resolve(false), signal)) {
      if (handoff === undefined || (last && equals(v1.HandoffSchema, last, handoff))) continue;
      count++;
      last = handoff;
      yield handoff;
      if (isFinalState(handoff.state)) return;
    }
  }

  /**
   * Yields the open handoffs that match, or those that changed after `afterCursor`; then one `caughtUp`; then each change, until
   * `signal` aborts. Goes on by itself over lost connections and restarts of the broker; one that had not caught up begins again. A
   * `gap` says that changes are missing.
   */
  async *watchAll({ afterCursor = 0n, signal, ...filters }: HandoffWatch = {}): AsyncGenerator<HandoffChange, void> {
    let [cursor, isCaughtUp] = [afterCursor, false];
    const changes = follow(
      this.#caller,
      (options) => this.#service.watchHandoffs({ ...filters, afterCursor: cursor }, options),
      () => cursor,
      signal,
    );
    for await (const { event, cursor: at } of changes) {
      if (at > 0n) cursor = at; // after the restore of a backup it may fall
      if (event.case === undefined || (event.case === "caughtUp" && isCaughtUp)) continue;
      isCaughtUp ||= event.case === "caughtUp";
      yield { event, cursor: at };
    }
  }
}

/**
 * As `follow`, for a watch that the broker ends: asks `isRead` after each end of the stream without an error whether everything was
 * read.
 */
async function* untilEnd<T>(
  caller: Caller,
  open: (options: WireOptions) => AsyncIterable<T>,
  cursor: () => bigint,
  isRead: () => Promise<boolean>,
  signal?: AbortSignal,
): AsyncGenerator<T, void> {
  const over = AbortSignal.any([caller.life, ...(signal ? [signal] : [])]);
  const isOver = (): boolean => over.aborted;
  for (let attempt = -1; !isOver();) {
    const before = cursor();
    let delayMs = 0;
    try {
      yield* caller.stream(open, over);
      if (await isRead()) return;
    } catch (caught) {
      if (isOver()) break;
      const error = BatonError.of(caught);
      if (!isPassing(error)) throw error;
      delayMs = error.retryDelayMs ?? 0;
    }
    attempt = cursor() === before ? attempt + 1 : 0;
    await sleep(Math.max(delayMs, delayOf(attempt)), over).catch(() => undefined);
  }
  if (caller.life.aborted) throw caller.life.reason;
}
