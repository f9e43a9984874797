import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { type Client, Code } from "@connectrpc/connect";
import { BatonError, SessionEnded } from "./errors.js";
import { Queue } from "./queue.js";
import * as v1 from "./v1.js";

type Request = NonNullable<MessageInitShape<typeof v1.ConnectRequestSchema>["request"]>;

/** How long a session that was told to go away is still read, for answers on their way. */
const GO_AWAY_PATIENCE_MS = 5_000;

interface Waiting {
  /** How large the payload of its question is. */
  readonly bytes: number;
  resolve: (response: v1.ConnectResponse) => void;
  reject: (error: Error) => void;
}

/** One Connect stream: answers are matched to their questions. */
export class Session {
  /** What the broker said first. */
  readonly welcome: v1.Welcome;
  /** Settles, with the cause, when the session is over. */
  readonly ended: Promise<BatonError>;
  /** When the broker wants to be asked again; 0 if it did not say. */
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

  /** Opens a session for the agent of the token. Throws BatonError. */
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

  /** Sends a frame and waits for its answer. Throws BatonError; SessionEnded when the session ends before. */
  async ask(request: Request, signal?: AbortSignal): Promise<v1.ConnectResponse["response"]> {
    signal?.throwIfAborted();
    if (!this.isOpen) throw new SessionEnded(this.#cause);
    const requestId = this.#nextId++;
    const { promise, resolve, reject } = deferred<v1.ConnectResponse>();
    const onAbort = (): void => {
      reject(signal?.reason as Error);
    };
    const bytes = request.case === "envelope" ? (request.value.payload?.value?.length ?? 0) : 0;
    this.#waiting.set(requestId, { bytes, resolve, reject });
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

  /** Sends a frame that wants no answer. */
  tell(request: Request): void {
    this.#frames.push(create(v1.ConnectRequestSchema, { request }));
  }

  /** Says how much mail is taken. No error where the session ends: the next one begins with the credit. */
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
   * Refuses the largest question without an answer, where the broker has ended the session over a frame that is too large for
   * it. Were it asked again, it would end the next session.
   */
  #blameLargest(cause: BatonError): void {
    const [largest] = [...this.#waiting.values()].sort((a, b) => b.bytes - a.bytes);
    largest?.reject(cause);
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

/** A promise and what settles it. */
export function deferred<T>(): { promise: Promise<T>; resolve: (value: T) => void; reject: (error: Error) => void } {
  let resolve!: (value: T) => void;
  let reject!: (error: Error) => void;
  const promise = new Promise<T>((onValue, onError) => {
    resolve = onValue;
    reject = onError;
  });
  return { promise, resolve, reject };
}

/** Waits; throws the signal's reason when it aborts before. */
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
