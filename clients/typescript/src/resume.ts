/** Tasks of this agent that no process works on: their handler runs again, after a restart of the worker. */
import { Code } from "@connectrpc/connect";
import { BatonError, isPassing } from "./errors.js";
import { type HandlerContext, Stopped } from "./jobs.js";
import { type OfferHandler, takeResumed } from "./offers.js";
import { deferred, sleep } from "./session.js";
import { isFinalStatus } from "./states.js";
import type { TaskOwner } from "./tasks.js";
import type { ContextSection, Task, TaskHop } from "./v1.js";

/** The time before another attempt, after an error that may pass. */
const RETRY_MS = 1_000;
const TASKS_MAX = 1_000;

/** What the resumption of tasks needs of its agent. */
export interface Resumer extends TaskOwner {
  readonly instanceId: string;
  /** Waits for a session. Returns whether its broker knows this process. */
  greeted(signal: AbortSignal): Promise<boolean>;
}

/** Asks for the tasks at the beginning of each session, and again when handlers end, as long as the last answer was full. */
export class Resumption {
  readonly #running = new Map<Task, { abort: AbortController; done: Promise<void> }>();
  #news = deferred<undefined>();
  #hasMore = true;
  #isStopped = false;

  constructor(
    readonly agent: Resumer,
    readonly handler: OfferHandler,
    /** The number of handlers that may begin now, without those of resumed tasks. */
    readonly slots: () => number,
  ) {}

  /** A session has begun. */
  sessionCame(): void {
    this.#hasMore = true;
    this.#news.resolve(undefined);
  }

  /** A handler has ended. */
  slotFreed(): void {
    if (this.#hasMore) this.#news.resolve(undefined);
  }

  /** Asks for tasks and runs their handlers, until `stopping` aborts. Does not throw. */
  async run(stopping: AbortSignal): Promise<void> {
    const stop = (): void => {
      this.#isStopped = true;
      this.#news.resolve(undefined);
    };
    stopping.addEventListener("abort", stop);
    try {
      while (!this.#isStopped && !stopping.aborted) {
        this.#news = deferred();
        await this.#ask(stopping);
        await this.#news.promise;
      }
    } catch (error) {
      if (!stopping.aborted) this.agent.log("tasks of an earlier process are not resumed", error);
    } finally {
      stopping.removeEventListener("abort", stop);
    }
  }

  /** Waits for the handlers of resumed tasks up to this time, then aborts their signals. */
  async finish(timeoutMs: number): Promise<void> {
    const running = [...this.#running.values()];
    const stop = setTimeout(() => {
      for (const { abort } of running) abort.abort(new Stopped("the agent stops"));
    }, timeoutMs);
    await Promise.all(running.map(({ done }) => done));
    clearTimeout(stop);
  }

  async #ask(stopping: AbortSignal): Promise<void> {
    if (!(await this.agent.greeted(stopping))) return;
    const free = Math.min(this.slots() - this.#running.size, TASKS_MAX);
    if (free <= 0) return;
    try {
      const tasks = await this.agent.tasks.resume(this.agent.instanceId, free);
      this.#hasMore = tasks.length >= free;
      for (const task of tasks) this.#begin(task, stopping);
    } catch (caught) {
      const error = BatonError.of(caught);
      if (error.code === Code.Unimplemented || !isPassing(error)) throw error;
      await sleep(error.retryDelayMs ?? RETRY_MS, stopping);
      this.sessionCame();
    }
  }

  #begin(task: Task, stopping: AbortSignal): void {
    const { agent } = this;
    const hop = hopOf(agent, task);
    if (task.ownerId !== agent.id || isFinalStatus(task.status)) return;
    // The takeover of this process may be on its way to the broker, or its heartbeat.
    if (agent.holdings.find(task.taskId, task.epoch) || (hop && agent.mail.isWaitedFor(`handoff ${hop.handoffId}`))) return;
    const abort = new AbortController();
    const done = Promise.race([this.#work(task, hop, { signal: abort.signal, stopping }), aborted(abort.signal)]).finally(() => {
      this.#running.delete(task);
      this.slotFreed();
    });
    this.#running.set(task, { abort, done });
  }

  async #work(task: Task, hop: TaskHop | undefined, context: HandlerContext): Promise<void> {
    const { agent } = this;
    // Heartbeats list it from now on, while its context is fetched.
    const holding = agent.holdings.begin(task.taskId, task.epoch);
    try {
      const sections = await contextOf(agent, task, hop);
      await takeResumed(agent, { task, hop, sections, holding }, this.handler, context);
    } catch (error) {
      agent.log(`task ${task.taskId} is not resumed`, error);
      agent.holdings.end(holding);
    }
  }
}

/** Resolves when a signal aborts. A handler that ignores it is abandoned. */
function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    signal.addEventListener("abort", () => {
      resolve();
    });
  });
}

/** Returns the handoff by which the agent got the task. */
function hopOf(agent: TaskOwner, { hops }: Task): TaskHop | undefined {
  return hops.findLast(({ receiverId }) => receiverId === agent.id);
}

/** Returns the last context of a task; empty if there is none that this agent may read. */
async function contextOf(agent: TaskOwner, { taskId }: Task, hop: TaskHop | undefined): Promise<ContextSection[]> {
  try {
    return await agent.contexts.latest(taskId);
  } catch (error) {
    if (!(error instanceof BatonError) || isPassing(error)) throw error;
  }
  try {
    return hop ? await agent.contextSent(hop.handoffId) : [];
  } catch (error) {
    if (!(error instanceof BatonError) || isPassing(error)) throw error;
    return [];
  }
}
