/** Calls to the broker, and watches that continue over lost connections and restarts of the broker. */
import { BatonError, Gap, isPassing } from "./errors.js";
import { sleep } from "./session.js";

/** The delays between attempts without progress. The last one repeats. */
const RETRY_MS = [1_000, 2_000, 4_000, 8_000, 16_000, 30_000] as const;

/** Returns the delay after this attempt, counted from 0. */
export function delayOf(attempt: number): number {
  return RETRY_MS[attempt] ?? 30_000;
}

/** The options of a call. */
export interface CallOptions {
  signal?: AbortSignal;
}

/** The caller of a key operation: an operator, or by default the agent itself. */
export interface KeyCallOptions {
  operatorToken?: string;
}

/** The options of a call to a service. */
export interface WireOptions {
  headers: Record<string, string>;
  signal: AbortSignal;
  timeoutMs?: number;
}

/** Calls services as an agent. Throws BatonError. */
export interface Caller {
  /** Ends with the agent. */
  readonly life: AbortSignal;
  /** Makes a unary call, and renews an expired token once. `moreMs` is added to the time limit of 30 s. */
  call<T>(call: (options: WireOptions) => Promise<T>, moreMs?: number): Promise<T>;
  /** Yields the responses of one call, and renews an expired token once. */
  stream<T>(open: (options: WireOptions) => AsyncIterable<T>, signal?: AbortSignal): AsyncGenerator<T, void>;
}

/** Calls services as an agent, or as an operator. */
export interface AdministeringCaller extends Caller {
  /** As `call`, with an operator's token if there is one. */
  administer<T>(operatorToken: string | undefined, call: (options: Omit<WireOptions, "signal">) => Promise<T>): Promise<T>;
  /** As `stream`, with an operator's token if there is one. */
  administerStream<T>(
    operatorToken: string | undefined,
    open: (options: WireOptions) => AsyncIterable<T>,
    signal?: AbortSignal,
  ): AsyncGenerator<T, void>;
}

/**
 * Yields the responses of a watch, and calls again after each end of the stream that may pass. `open` begins after `cursor`,
 * which the reader advances before it asks for the next response. Ends when `signal` aborts. Throws BatonError if the broker
 * refuses, and at the agent's end.
 */
export async function* follow<T>(
  caller: Caller,
  open: (options: WireOptions) => AsyncIterable<T>,
  cursor: () => bigint,
  signal?: AbortSignal,
): AsyncGenerator<T, void> {
  const over = AbortSignal.any([caller.life, ...(signal ? [signal] : [])]);
  const isOver = (): boolean => over.aborted;
  for (let attempt = -1; ;) {
    const before = cursor();
    let delayMs = 0;
    try {
      yield* caller.stream(open, over);
    } catch (caught) {
      const error = BatonError.of(caught);
      if (!isOver() && !isPassing(error)) throw error;
      delayMs = error.retryDelayMs ?? 0;
    }
    // A watch that made progress starts again soon.
    attempt = cursor() === before ? attempt + 1 : 0;
    if (!isOver()) await sleep(Math.max(delayMs, delayOf(attempt)), over).catch(() => undefined);
    if (caller.life.aborted) throw caller.life.reason;
    if (isOver()) return;
  }
}

/** The update of a log with numbered entries. */
interface LogUpdate<E> {
  readonly update:
    | { readonly case: "entry"; readonly value: E }
    | { readonly case: "gap"; readonly value: { readonly firstNumber: bigint; readonly lastNumber: bigint } }
    | { readonly case: "caughtUp"; readonly value: unknown }
    | { readonly case: undefined; readonly value?: undefined };
}

/** Where to begin with a log, and when to end. */
export interface LogOptions {
  /** Only entries with a higher number; default 0, all. */
  after?: bigint;
  signal?: AbortSignal;
}

/**
 * As `follow`, for a log with numbered entries: yields each entry, and undefined where the past ends. `what` names the log in the
 * Gap that is thrown where entries are missing.
 */
export async function* followLog<E extends { readonly number: bigint }>(
  caller: Caller,
  what: string,
  open: (afterNumber: bigint, options: WireOptions) => AsyncIterable<LogUpdate<E>>,
  { after = 0n, signal }: LogOptions,
): AsyncGenerator<E | undefined, void> {
  let last = after;
  for await (const { update } of follow(caller, (options) => open(last, options), () => last, signal)) {
    if (update.case === "gap") throw new Gap(what, update.value.firstNumber, update.value.lastNumber);
    if (update.case === "entry") last = update.value.number;
    if (update.case !== undefined) yield update.case === "entry" ? update.value : undefined;
  }
}
