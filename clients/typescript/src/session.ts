import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { type Client, Code } from "@connectrpc/connect";
import { BatonError, SessionEnded } from "./errors.js";
import { Queue } from "./queue.js";
import * as v1 from "./v1.js";

type Request = NonNullable<MessageInitShape<typeof v1.ConnectRequestSchema>["request"]>;

/** The time limit of a unary call, and of an acknowledgement. */
export const CALL_TIMEOUT_MS = 30_000;
/** The time for which a session is still read after a GoAway, for answers in flight. */
const GO_AWAY_PATIENCE_MS = 5_000;

interface Waiting {
  readonly request: Request;
  resolve: (response: v1.ConnectResponse) => void;
  reject: (error: Error) => void;
}

/** One Connect stream: it matches answers to questions. */
export class Session {
  /** The broker's welcome, the first frame of the session. */
  readonly welcome: v1.Welcome;
  /** Resolves with the cause at the session's end. */
  readonly ended: Promise<BatonError>;
  /** The broker's reconnect delay; 0 if it named none. */
  reconnectAfterMs = 0;
  isOpen = true;

  readonly #frames: Queue<v1.ConnectRequest>;
  readonly #waiting = new Map<bigint, Waiting>();
  readonly #abort: AbortController;
  #nextId = 1n;
  #cause: BatonError | undefined;
  #settle!: (cause: BatonError) => void;

  private constructor(welcome: v1.Welcome, frames: Queue<v1.ConnectRequest>, abort: AbortController) {
    this.welcome = welcome;
    this.#frames = frames;
    this.#abort = abort;
    this.ended = new Promise((resolve) => (this.#settle = resolve));
  }

  /** Opens a session for the token's agent. Throws BatonError. */
  static async open(
    broker: Client<typeof v1.BrokerService>,
    headers: Record<string, string>,
    signal: AbortSignal,
    onDelivery: (delivery: v1.Delivery, session: Session) => void,
  ): Promise<Session> {
    const frames = new Queue<v1.ConnectRequest>();
    const abort = new AbortController();
    const stop = (): void => {
      abort.abort(signal.reason);
    };
    signal.addEventListener("abort", stop);
    try {
      const stream = broker.connect(frames, { headers, signal: abort.signal })[Symbol.asyncIterator]();
      const first = await stream.next();
      if (first.done === true || first.value.response.case !== "welcome") {
        throw new BatonError(Code.Internal, "the first frame is not a welcome");
      }
      const session = new Session(first.value.response.value, frames, abort);
      void session.#read(stream, onDelivery);
      return session;
    } catch (error) {
      frames.close();
      abort.abort();
      signal.throwIfAborted();
      throw BatonError.of(error);
    } finally {
      signal.removeEventListener("abort", stop);
    }
  }

  /** Sends a frame and waits for its answer. Throws BatonError; SessionEnded if the session ends first. */
  async ask(request: Request, signal?: AbortSignal): Promise<v1.ConnectResponse["response"]> {
    signal?.throwIfAborted();
    if (!this.isOpen) throw new SessionEnded(this.#cause);
    const requestId = this.#nextId++;
    const { promise, resolve, reject } = deferred<v1.ConnectResponse>();
    const onAbort = (): void => {
      reject(signal?.reason as Error);
    };
    this.#waiting.set(requestId, { request, resolve, reject });
    signal?.addEventListener("abort", onAbort);
    try {
      this.#frames.push(create(v1.ConnectRequestSchema, { requestId, request }));
      const { response } = await promise;
      if (response.case === "error") throw BatonError.ofStatus(response.value);
      return response;
    } finally {
      this.#waiting.delete(requestId);
      signal?.removeEventListener("abort", onAbort);
    }
  }

  /** Sends a frame that has no answer. */
  tell(request: Request): void {
    this.#frames.push(create(v1.ConnectRequestSchema, { request }));
  }

  /** Sends the credit. The session's end is not an error: the next session begins with the credit. */
  async giveCredit(maxOutstanding: number, signal?: AbortSignal): Promise<void> {
    try {
      await this.ask({ case: "credit", value: { maxOutstanding } }, signal);
    } catch (error) {
      if (!(error instanceof SessionEnded)) throw error;
    }
  }

  /** Ends the session. */
  end(cause: BatonError): void {
    if (this.#cause !== undefined) return;
    this.#cause = cause;
    // An older broker gives no reason.
    if (cause.reason === "PAYLOAD_TOO_LARGE" || cause.code === Code.OutOfRange) this.#blameLargest(cause);
    this.isOpen = false;
    this.#frames.close();
    this.#abort.abort();
    for (const waiting of this.#waiting.values()) waiting.reject(new SessionEnded(cause));
    this.#settle(cause);
  }

  /**
   * Refuses the largest unanswered envelope after the broker has ended the session because of a frame's size. Sent
   * again, the envelope would end the next session too. No other frame can be too large.
   */
  #blameLargest(cause: BatonError): void {
    let largest: { waiting: Waiting; bytes: number } | undefined;
    for (const waiting of this.#waiting.values()) {
      const { request } = waiting;
      if (request.case !== "envelope") continue;
      const bytes = toBinary(v1.EnvelopeSchema, create(v1.EnvelopeSchema, request.value)).length;
      if (bytes > (largest?.bytes ?? -1)) largest = { waiting, bytes };
    }
    largest?.waiting.reject(cause);
  }

  async #read(
    stream: AsyncIterator<v1.ConnectResponse>,
    onDelivery: (delivery: v1.Delivery, session: Session) => void,
  ): Promise<void> {
    try {
      for (let next = await stream.next(); next.done !== true; next = await stream.next()) {
        const { requestId, response } = next.value;
        if (response.case === "delivery") onDelivery(response.value, this);
        else if (response.case === "goAway") this.#goAway(response.value);
        else this.#waiting.get(requestId)?.resolve(next.value);
      }
      this.end(new BatonError(Code.Unavailable, "the broker closed the session"));
    } catch (error) {
      this.end(BatonError.of(error));
    }
  }

  #goAway(goAway: v1.GoAway): void {
    this.isOpen = false;
    this.reconnectAfterMs = goAway.reconnectAfter ? durationMs(goAway.reconnectAfter) : 0;
    const end = (): void => {
      this.end(new BatonError(Code.Unavailable, goAway.reasonText));
    };
    setTimeout(end, GO_AWAY_PATIENCE_MS).unref();
  }
}

/** A promise with its resolve and reject functions. */
export function deferred<T>(): { promise: Promise<T>; resolve: (value: T) => void; reject: (error: Error) => void } {
  let resolve!: (value: T) => void;
  let reject!: (error: Error) => void;
  const promise = new Promise<T>((onValue, onError) => {
    resolve = onValue;
    reject = onError;
  });
  return { promise, resolve, reject };
}

/** Waits for an answer of the broker. Throws BatonError, DeadlineExceeded, at the time limit of a call. */
export async function bounded<T>(answer: Promise<T>): Promise<T> {
  const late = deferred<never>();
  const timer = setTimeout(() => {
    late.reject(new BatonError(Code.DeadlineExceeded, `the broker has not answered within ${CALL_TIMEOUT_MS} ms`));
  }, CALL_TIMEOUT_MS);
  try {
    return await Promise.race([answer, late.promise]);
  } finally {
    clearTimeout(timer);
  }
}

/** Waits; throws the signal's reason if it aborts first. */
export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  const { promise, resolve, reject } = deferred<undefined>();
  const onAbort = (): void => {
    reject(signal?.reason as Error);
  };
  signal?.throwIfAborted();
  const timer = setTimeout(() => {
    resolve(undefined);
  }, ms);
  signal?.addEventListener("abort", onAbort);
  try {
    await promise;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", onAbort);
  }
}
