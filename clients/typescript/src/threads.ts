/** Threads: one conversation whose persona changes at step boundaries, and the specs of personas and models. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { newMessageId } from "./envelopes.js";
import { BatonError, isPassing } from "./errors.js";
import { type AdministeringCaller, delayOf, followLog, type KeyCallOptions, type LogOptions, type WireOptions } from "./following.js";
import { sleep } from "./session.js";
import * as v1 from "./v1.js";

const PAGE_SIZE = 200;
const LEASE_MS = 60_000;
/** The runner repeats a call whose answer is lost. These refusals are answers. */
const ANSWERS = new Set(["RUN_OPEN", "SEQUENCE_CONFLICT"]);

type Service = Client<typeof v1.ThreadService>;

/** A step of a run with its spec and model, to its end. */
export interface ThreadStep {
  /** The number, starting at 1. */
  readonly number: bigint;
  /** The spec of the persona in force. */
  readonly spec: v1.AgentSpec;
  /** The spec of its model. */
  readonly model: v1.ModelSpec;
  /** Whether another spec or revision than before is in force. */
  readonly switched: boolean;
  /** The plugins to turn off before the step. */
  readonly deactivatePluginIds: readonly string[];
  /** The plugins to turn on before the step. */
  readonly activatePluginIds: readonly string[];
  /** The request that ended at the begin of the step; undefined: none waited. */
  readonly request: v1.ThreadRequestEnded | undefined;
}

/**
 * An open run of a thread: see `Thread.run`. Iterating yields the first step, and then the next ones, without end; each turn of
 * the loop ends the step before.
 *
 *     await using run = await thread.run();
 *     for await (const { spec, model } of run) {
 *       const said = await ask(spec, model);
 *       if (said.isDone) break;
 *     }
 *
 * The client renews the lease of 60 s while a step takes longer. Calls throw BatonError: RUN_FINAL after the lease, RUN_OPEN if
 * another run has begun since.
 */
export class ThreadRun implements AsyncDisposable {
  readonly #calls: Calls;
  readonly #threadId: string;
  readonly #keeper: NodeJS.Timeout;
  #step: ThreadStep;
  /** The last call of the run. The calls of a run come one after the other. */
  #turn: Promise<unknown> = Promise.resolve();

  private constructor(
    /** The id of the run. */
    readonly id: string,
    threadId: string,
    calls: Calls,
    step: ThreadStep,
    keepMs: number,
  ) {
    this.#calls = calls;
    this.#threadId = threadId;
    this.#step = step;
    this.#keeper = setInterval(() => {
      this.keep().catch((error: unknown) => {
        calls.log(`the lease of run ${id} was not renewed`, error);
      });
    }, keepMs);
    this.#keeper.unref();
  }

  /** @internal */
  static async open(id: string, threadId: string, calls: Calls, keepMs: number): Promise<ThreadRun> {
    return new ThreadRun(id, threadId, calls, await begin(id, threadId, calls), keepMs);
  }

  /** The present step. */
  get step(): ThreadStep {
    return this.#step;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ThreadStep, void> {
    yield this.#step;
    for (;;) yield await this.nextStep();
  }

  /** Ends the present step, and begins the next one. A lost answer is asked for again. */
  async nextStep(): Promise<ThreadStep> {
    return this.#inTurn(async () => (this.#step = await this.#endStep(this.#step.number)));
  }

  /** Renews the lease. The client does so every 20 s. */
  async keep(): Promise<void> {
    await this.#inTurn(() => {
      const { number } = this.#step;
      return number === 1n ? begin(this.id, this.#threadId, this.#calls) : this.#endStep(number - 1n);
    });
  }

  /** Ends the run. A run that has lost its lease is over already. */
  async end(): Promise<void> {
    clearInterval(this.#keeper);
    const request = { threadId: this.#threadId, runId: this.id };
    await this.#inTurn(() => this.#calls.repeat((service, options) => service.endRun(request, options))).catch((error: unknown) => {
      if (!(error instanceof BatonError) || error.reason !== "RUN_FINAL") throw error;
    });
  }

  /** As `end`, for `await using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.end();
  }

  async #endStep(step: bigint): Promise<ThreadStep> {
    const request = { threadId: this.#threadId, runId: this.id, step };
    return stepOf(await this.#calls.repeat((service, options) => service.endStep(request, options)), step + 1n);
  }

  #inTurn<T>(call: () => Promise<T>): Promise<T> {
    const done = this.#turn.then(call);
    this.#turn = done.catch(() => undefined);
    return done;
  }
}

async function begin(runId: string, threadId: string, calls: Calls): Promise<ThreadStep> {
  const answer = await calls.repeat((service, options) => service.beginRun({ threadId, runId }, options));
  return stepOf(answer, answer.thread?.step ?? 1n);
}

function stepOf({ spec, model, switched, deactivatePluginIds, activatePluginIds, request }: v1.BeginRunResponse | v1.EndStepResponse, number: bigint): ThreadStep {
  const specs = { spec: spec ?? create(v1.AgentSpecSchema), model: model ?? create(v1.ModelSpecSchema) };
  return { number, ...specs, switched, deactivatePluginIds, activatePluginIds, request };
}

/**
 * A thread: see `Threads.create` and `Threads.join`. Its history is the topic `messages` of the workspace `thread:ID`. All calls
 * throw BatonError if the broker refuses: THREAD_UNKNOWN, PERMISSION_DENIED.
 */
export class Thread {
  readonly #calls: Calls;

  /** @internal */
  constructor(
    readonly id: string,
    calls: Calls,
  ) {
    this.#calls = calls;
  }

  /** Returns the present state of the thread. */
  async state(): Promise<v1.Thread> {
    const { thread } = await this.#calls.call((service, options) => service.getThread({ threadId: this.id }, options));
    return thread ?? create(v1.ThreadSchema);
  }

  /**
   * Yields the entries of the thread's log after this number, and each new one, until `signal` aborts. The watch continues by
   * itself over lost connections and restarts of the broker. The log keeps the last 1,000 entries: throws Gap if earlier ones are
   * missing.
   */
  async *watch(options: LogOptions = {}): AsyncGenerator<v1.ThreadEntry, void> {
    const open = (afterNumber: bigint, wire: WireOptions): AsyncIterable<v1.WatchThreadResponse> =>
      this.#calls.service.watchThread({ threadId: this.id, afterNumber }, wire);
    for await (const entry of followLog<v1.ThreadEntry>(this.#calls.caller, `thread ${this.id}`, open, options)) {
      if (entry !== undefined) yield entry;
    }
  }

  /**
   * Requests another persona for the next boundary. A further request takes its place. `warning` of the answer says why the spec
   * does not resolve at present. Throws HANDOFF_PLUGIN_MISSING if the spec in force does not permit actions. `actionId` is a UUID;
   * the same action with it counts once.
   */
  async request(specId: string, actionId?: string): Promise<v1.ApplyHandoffActionResponse> {
    return this.#act({ case: "requestSpecId", value: specId }, actionId);
  }

  /**
   * Makes a spec active, which is in force from the next boundary on. Throws as `request`, and HANDOFF_RESOLVE_FAILED if the spec
   * or its model is not registered.
   */
  async activate(specId: string, actionId?: string): Promise<v1.ApplyHandoffActionResponse> {
    return this.#act({ case: "activateSpecId", value: specId }, actionId);
  }

  /** Returns to the base spec from the next boundary on. Throws as `request`. */
  async clear(actionId?: string): Promise<v1.ApplyHandoffActionResponse> {
    return this.#act({ case: "clear", value: true }, actionId);
  }

  /**
   * Opens a run with its first step. `runId` is a UUID; the same run is opened once. Throws RUN_OPEN while another run holds its
   * lease, at most 60 s after its last boundary.
   */
  async run({ runId = newMessageId() }: { runId?: string } = {}): Promise<ThreadRun> {
    return ThreadRun.open(runId, this.id, this.#calls, this.#calls.keepMs);
  }

  async #act(action: v1.ApplyHandoffActionRequest["action"], actionId = newMessageId()): Promise<v1.ApplyHandoffActionResponse> {
    const request = { threadId: this.id, actionId, action };
    return this.#calls.repeat((service, options) => service.applyHandoffAction(request, options));
  }
}

/** The calls to the service. */
class Calls {
  keepMs = LEASE_MS / 3;
  readonly service: Service;

  constructor(
    readonly caller: AdministeringCaller,
    transport: Transport,
    readonly log: (text: string, error?: unknown) => void,
  ) {
    this.service = createClient(v1.ThreadService, transport);
  }

  async call<T>(call: (service: Service, options: WireOptions) => Promise<T>): Promise<T> {
    return this.caller.call((options) => call(this.service, options));
  }

  /** Makes a call that counts once. Repeats it while its answer is lost, within the time of a lease. */
  async repeat<T>(call: (service: Service, options: WireOptions) => Promise<T>): Promise<T> {
    const untilMs = performance.now() + LEASE_MS;
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.call(call);
      } catch (caught) {
        const error = BatonError.of(caught);
        const delayMs = Math.max(error.retryDelayMs ?? 0, delayOf(attempt));
        const isAnswer = !isPassing(error) || ANSWERS.has(error.reason);
        if (this.caller.life.aborted || isAnswer || performance.now() + delayMs > untilMs) throw error;
        await sleep(delayMs, this.caller.life);
      }
    }
  }
}

/** The threads and their specs, as an agent sees them. All calls throw BatonError if the broker refuses. */
export class Threads {
  readonly #calls: Calls;

  /** @internal */
  constructor(caller: AdministeringCaller, transport: Transport, log: (text: string, error?: unknown) => void) {
    this.#calls = new Calls(caller, transport, log);
  }

  /** @internal Sets how often a run renews its lease. */
  set keepMs(ms: number) {
    this.#calls.keepMs = ms;
  }

  /**
   * Registers the spec of a persona, or a further revision of it. The same spec again is the same revision. By default only
   * operators may, with `operatorToken`.
   */
  async putSpec(spec: MessageInitShape<typeof v1.AgentSpecSchema>, { operatorToken }: KeyCallOptions = {}): Promise<v1.AgentSpec> {
    const { caller, service } = this.#calls;
    const { spec: stored } = await caller.administer(operatorToken, (options) => service.putAgentSpec({ spec }, options));
    return stored ?? create(v1.AgentSpecSchema);
  }

  /** As `putSpec`, for the spec of a model. */
  async putModel(spec: MessageInitShape<typeof v1.ModelSpecSchema>, { operatorToken }: KeyCallOptions = {}): Promise<v1.ModelSpec> {
    const { caller, service } = this.#calls;
    const { spec: stored } = await caller.administer(operatorToken, (options) => service.putModelSpec({ spec }, options));
    return stored ?? create(v1.ModelSpecSchema);
  }

  /** Returns a revision of a spec, by default the latest. Throws SPEC_UNKNOWN. */
  async spec(specId: string, revision = 0n): Promise<v1.AgentSpec> {
    const { spec } = await this.#calls.call((service, options) => service.getAgentSpec({ specId, revision }, options));
    return spec ?? create(v1.AgentSpecSchema);
  }

  /** Yields the latest revisions, the newest spec first, without prompt, sections and overlay. */
  async *specs(): AsyncGenerator<v1.AgentSpec, void> {
    let pageToken = "";
    do {
      const request = { pageSize: PAGE_SIZE, pageToken };
      const page = await this.#calls.call((service, options) => service.listAgentSpecs(request, options));
      yield* page.specs;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Yields the latest revisions, the newest spec first, without their parameters. */
  async *models(): AsyncGenerator<v1.ModelSpec, void> {
    let pageToken = "";
    do {
      const request = { pageSize: PAGE_SIZE, pageToken };
      const page = await this.#calls.call((service, options) => service.listModelSpecs(request, options));
      yield* page.specs;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /**
   * Creates a thread. The same `threadId` again, with the same base spec, task and creator, returns the thread. `taskId` names a
   * task of this agent. Throws HANDOFF_RESOLVE_FAILED if the base spec or its model is not registered.
   */
  async create(
    baseSpecId: string,
    { threadId = "", taskId = "", participantIds = [] }: { threadId?: string; taskId?: string; participantIds?: string[] } = {},
  ): Promise<Thread> {
    const request = { baseSpecId, threadId, taskId, participantIds };
    const { thread } = await this.#calls.call((service, options) => service.createThread(request, options));
    return this.join(thread?.threadId ?? threadId);
  }

  /** Returns the thread with this id, without asking the broker. */
  join(threadId: string): Thread {
    return new Thread(threadId, this.#calls);
  }

  /** Yields the threads that match all filters and name this agent as a participant, the newest first. */
  async *list(filter: { taskId?: string; inForceSpecId?: string } = {}): AsyncGenerator<v1.Thread, void> {
    let pageToken = "";
    do {
      const request = { ...filter, pageSize: PAGE_SIZE, pageToken };
      const page = await this.#calls.call((service, options) => service.listThreads(request, options));
      yield* page.threads;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }
}
