/** The progress of a lent task, for the call that waits for its end. */
import type { AgentCore } from "./core.js";
import { deferred, sleep } from "./session.js";
import { isFinalStatus } from "./states.js";
import type { CustodyEntry, TaskStatusUpdate } from "./v1.js";

/** The sender of a status update, and the agent that it asks. */
export interface UpdateSource {
  /** The message_id of the update. An answer to its question names it. */
  readonly messageId: string;
  readonly agentId: string;
  readonly epoch: bigint;
  /** The agent that the update asks; empty if it asks nothing. */
  readonly askedAgentId: string;
}

/** Gets each status update of a lent task. */
export type OnProgress = (update: TaskStatusUpdate, source: UpdateSource) => unknown;

/** The time for the last updates, once the loan has ended. */
const REST_MS = 2_000;

/** Watches a lent task. */
export class Progress {
  readonly #abort = new AbortController();
  readonly #done = deferred<undefined>();
  #isStarted = false;
  #endEpoch: bigint | undefined;
  #lastEpoch = 0n;

  private constructor(
    readonly agent: Pick<AgentCore, "tasks" | "log">,
    readonly taskId: string,
    /** The task's epoch at its delegator. */
    readonly epoch: bigint,
    /** The number of the last entry of the custody log before the loan. */
    readonly after: bigint,
    readonly onProgress: OnProgress,
  ) {}

  /** Prepares the watch, before the task is lent. */
  static async of(agent: Pick<AgentCore, "tasks" | "log">, taskId: string, epoch: bigint, onProgress: OnProgress): Promise<Progress> {
    // A new task has no log yet.
    const after = epoch === 1n ? 0n : (await agent.tasks.get(taskId)).custodyLength;
    return new Progress(agent, taskId, epoch, after, onProgress);
  }

  /** Prepares the watch of a task that is lent already. The callback gets each update from the takeover on. */
  static ofLoan(agent: Pick<AgentCore, "tasks" | "log">, taskId: string, epoch: bigint, onProgress: OnProgress): Progress {
    return new Progress(agent, taskId, epoch, 0n, onProgress);
  }

  /** Begins to watch, once the task is lent. */
  start(): void {
    this.#isStarted = true;
    void this.#watch().finally(() => {
      this.#done.resolve(undefined);
    });
  }

  /** Waits until the updates before the end of the loan have reached the callback, for a bounded time. */
  async readUpTo(epoch: bigint): Promise<void> {
    this.#endEpoch = epoch;
    if (this.#isStarted && this.#lastEpoch < epoch) await Promise.race([this.#done.promise, sleep(REST_MS, this.#abort.signal)]);
  }

  stop(): void {
    this.#abort.abort();
  }

  async #watch(): Promise<void> {
    const { signal } = this.#abort;
    try {
      for await (const { entry, update } of this.agent.tasks.watch(this.taskId, { after: this.after, signal })) {
        this.#lastEpoch = entry.epoch;
        if (update && entry.epoch > this.epoch && !isFinalStatus(update.status)) await this.#tell(update, entry);
        if (this.#endEpoch !== undefined && entry.epoch >= this.#endEpoch) return;
      }
    } catch (error) {
      if (!signal.aborted) this.agent.log(`the progress of task ${this.taskId} is no longer shown`, error);
    }
  }

  async #tell(update: TaskStatusUpdate, { event, epoch }: CustodyEntry): Promise<void> {
    if (event.case !== "accepted") return;
    const { messageId, senderId: agentId, resolvedAgentIds } = event.value;
    const askedAgentId = (update.prompt && resolvedAgentIds[0]) ?? "";
    try {
      await this.onProgress(update, { messageId, agentId, epoch, askedAgentId });
    } catch (error) {
      this.agent.log("a callback of progress failed", error);
    }
  }
}
