/** The heartbeats of a process: at the broker's interval, and soon after a change of the tasks that it works on. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { type Holdings, WORKING_ON_MAX } from "./holdings.js";
import { checkHeartbeat } from "./limits.js";
import type { Session } from "./session.js";
import type { HeartbeatSchema } from "./v1.js";

/** The least time between two heartbeats that tell of changes. */
export const CHANGES_MS = 200;

/** The part of a session that heartbeats use. */
export type Heart = Pick<Session, "welcome" | "isOpen" | "tell">;

/** Sends the heartbeats of a process. */
export class Heartbeats {
  #payload: MessageInitShape<typeof HeartbeatSchema> = { status: "ok" };
  readonly #holdings: Pick<Holdings, "listed">;
  readonly #log: (text: string, error?: unknown) => void;
  #session: Heart | undefined;
  #interval: NodeJS.Timeout | undefined;
  #soon: NodeJS.Timeout | undefined;
  #sentMs = -Infinity;

  constructor(holdings: Pick<Holdings, "listed">, log: (text: string, error?: unknown) => void) {
    this.#holdings = holdings;
    this.#log = log;
  }

  /** What each heartbeat says, beside the tasks in work. Setting it throws BatonError, FIELD_INVALID. */
  get payload(): MessageInitShape<typeof HeartbeatSchema> {
    return this.#payload;
  }

  set payload(payload: MessageInitShape<typeof HeartbeatSchema>) {
    checkHeartbeat(payload);
    this.#payload = payload;
  }

  /** Sends a heartbeat on this session at once, and then at its interval. */
  start(session: Heart): void {
    this.stop();
    const { heartbeatInterval } = session.welcome;
    const everyMs = heartbeatInterval ? durationMs(heartbeatInterval) : 0;
    if (everyMs <= 0 || !session.isOpen) return;
    this.#session = session;
    this.#beat();
    this.#interval = setInterval(() => {
      this.#beat();
    }, everyMs);
  }

  /** Sends no further heartbeats. */
  stop(): void {
    clearInterval(this.#interval);
    clearTimeout(this.#soon);
    this.#soon = this.#session = undefined;
  }

  /** Tells of a change of the tasks in work: at once, or 200 ms after the last heartbeat. */
  changed(): void {
    if (this.#session === undefined || this.#soon !== undefined) return;
    const waitMs = Math.max(0, this.#sentMs + CHANGES_MS - performance.now());
    this.#soon = setTimeout(() => {
      this.#soon = undefined;
      this.#beat();
    }, waitMs);
  }

  #beat(): void {
    if (this.#session?.isOpen !== true) return;
    this.#sentMs = performance.now();
    const tasks = this.#holdings.listed();
    try {
      checkHeartbeat(this.#payload); // it may have been changed in place
      const workingOn = [...new Set([...(this.#payload.workingOn ?? []), ...tasks])].slice(0, WORKING_ON_MAX);
      this.#session.tell({ case: "heartbeat", value: { ...this.#payload, workingOn } });
    } catch (error) {
      this.#log("the heartbeat cannot be sent as it is", error);
      this.#session.tell({ case: "heartbeat", value: { workingOn: tasks } });
    }
  }
}
