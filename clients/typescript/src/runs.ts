/** Routing by a model: graphs, runs through them, the tools of a node, and the turns of its model. */
import { create, type JsonObject, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { newMessageId } from "./envelopes.js";
import { BatonError, isPassing } from "./errors.js";
import { type Caller, delayOf, followLog, type LogOptions, type WireOptions } from "./following.js";
import { sleep } from "./session.js";
import { type HistoryMessage, readTurn, resultsOf } from "./turns.js";
import * as v1 from "./v1.js";

const PAGE_SIZE = 200;
const TURN_TIMEOUT_MS = 120_000;
const SHAPES = { openai: v1.ToolShape.OPENAI, anthropic: v1.ToolShape.ANTHROPIC, mcp: v1.ToolShape.MCP } as const;

/** The interface that the tools of a node are for: OpenAI Responses (strict), Anthropic Messages, or MCP. */
export type ToolShapeName = keyof typeof SHAPES;

/** The choices of a node's model in its next turn. */
export interface NodeTools {
  /** The tools in the requested shape, for the SDK's `tools`. Empty: the node is plain, or has no choice left. */
  readonly tools: readonly JsonObject[];
  /** The outputs of the nodes that led to this one. */
  readonly inputs: readonly v1.NodeOutput[];
  /** The choices that the node has left. */
  readonly remaining: number;
  /** The whole answer. */
  readonly answer: v1.GetNodeToolsResponse;
}

/** The report of a turn. Without `response` the other fields are the turn; with it they replace what the response says. */
export interface TurnReport {
  /** All tool calls of the turn, at most 128. */
  calls?: readonly MessageInitShape<typeof v1.ToolCallSchema>[];
  /** Whether the model has finished. Default: it ended by itself and called no tool. */
  finished?: boolean;
  /** The output of the node for the nodes that follow, at most 65,536 bytes. Default: the text of a finished response. */
  output?: string;
  /** The error that ended the node's work. */
  error?: string;
  /** The id of the turn, a UUID, with which a later process repeats the report. Default: a new one. */
  turnId?: string;
  signal?: AbortSignal;
}

/** What a turn did. */
export class Step {
  /** @internal */
  constructor(
    /** The whole answer: `outcome`, `choice`, `toolResults`, and the `run` afterwards. */
    readonly answer: v1.RecordTurnResponse,
    /**
     * The results of the transfer calls, in the shape of the response, for the model's history. Each call needs one. The results
     * of the runtime's own tools are the runtime's.
     */
    readonly results: readonly HistoryMessage[],
  ) {}

  /** The nodes that are active now. */
  get nextNodeIds(): readonly string[] {
    return this.answer.nextNodeIds;
  }

  /** TRANSFER_AMBIGUOUS, TRANSFER_NOT_OFFERED or FIELD_INVALID for a wrong transfer, else empty; `results` tell the model. */
  get refusal(): string {
    const { errorCode } = this.answer;
    return errorCode === v1.ErrorCode.UNSPECIFIED ? "" : v1.ErrorCode[errorCode];
  }

  /** The handoff that the next node needs. The owner of the task hands it over to `receiverId`. */
  get proposal(): v1.HandoffRequest | undefined {
    return this.answer.handoffProposal;
  }

  /** The receiver of the proposed handoff; empty without a proposal. */
  get receiverId(): string {
    return this.answer.handoffReceiverId;
  }

  /** Whether the run has ended. */
  get isOver(): boolean {
    return this.answer.run?.state !== v1.RunState.RUNNING;
  }
}

/**
 * A run through a graph: see `Routing.start` and `Routing.join`.
 *
 *     const run = await agent.routing.start("search");
 *     const { tools } = await run.tools("checker", "anthropic");
 *     const step = await run.turn("checker", await anthropic.messages.create({ tools, … }));
 *
 * All calls throw BatonError if the broker refuses: RUN_UNKNOWN, RUN_FINAL, NODE_NOT_ACTIVE, NOT_OWNER.
 */
export class Run {
  readonly #caller: Caller;
  readonly #service: Client<typeof v1.RoutingService>;

  /** @internal */
  constructor(
    readonly id: string,
    caller: Caller,
    service: Client<typeof v1.RoutingService>,
  ) {
    this.#caller = caller;
    this.#service = service;
  }

  /** Returns the tools that the node's model may call in its next turn, and the outputs of the nodes before. */
  async tools(nodeId: string, shape: ToolShapeName = "openai"): Promise<NodeTools> {
    const request = { runId: this.id, nodeId, shape: SHAPES[shape] };
    const answer = await this.#caller.call((options) => this.#service.getNodeTools(request, options));
    const tools = answer.toolsJson.map((tool) => JSON.parse(tool) as JsonObject);
    return { tools, inputs: answer.inputs, remaining: answer.remaining, answer };
  }

  /**
   * Reports a turn of the node's model, whole. `response` is the object of the SDK as it is: see `readTurn`. After a lost answer
   * the call repeats the same report for up to 120 s, which counts once. A wrong transfer is no error: see `Step.refusal`.
   * Throws TypeError if the response is of no known interface.
   */
  async turn(nodeId: string, response?: object, report: TurnReport = {}): Promise<Step> {
    const read = response && readTurn(response);
    const calls = (report.calls ?? read?.calls ?? []).map((call) => create(v1.ToolCallSchema, call));
    const finished = report.finished ?? read?.finished ?? false;
    const output = report.output ?? (finished ? read?.output : undefined) ?? "";
    const { error = "", turnId = newMessageId(), signal } = report;
    const answer = await this.#recorded({ runId: this.id, nodeId, turnId, calls, finished, output, error }, signal);
    return new Step(answer, resultsOf(read?.shape ?? "openai-responses", calls, answer.toolResults));
  }

  /** Returns the present state of the run. */
  async state(): Promise<v1.Run> {
    const { run } = await this.#caller.call((options) => this.#service.getRun({ runId: this.id }, options));
    return run ?? create(v1.RunSchema);
  }

  /** Cancels the run. An open handoff of its task goes on. Throws RUN_FINAL if the run has ended. */
  async cancel(reasonText = ""): Promise<v1.Run> {
    const { run } = await this.#caller.call((options) => this.#service.cancelRun({ runId: this.id, reasonText }, options));
    return run ?? create(v1.RunSchema);
  }

  /**
   * Yields the entries of the run's log after this number, and each new one, until the run has ended or `signal` aborts. The
   * watch continues by itself over lost connections and restarts of the broker. Throws Gap if entries are missing.
   */
  async *watch(options: LogOptions = {}): AsyncGenerator<v1.RunEntry, void> {
    const open = (afterNumber: bigint, wire: WireOptions): AsyncIterable<v1.WatchRunResponse> =>
      this.#service.watchRun({ runId: this.id, afterNumber }, wire);
    let last = options.after ?? 0n;
    for await (const entry of followLog<v1.RunEntry>(this.#caller, `run ${this.id}`, open, options)) {
      if (entry !== undefined) yield entry;
      last = entry?.number ?? last;
      // The end may lie before the first requested entry.
      if (entry === undefined ? await this.#isOver(last) : entry.event.case === "ended") return;
    }
  }

  async #isOver(lastNumber: bigint): Promise<boolean> {
    try {
      const { state, logLength } = await this.state();
      // A run that ended since that entry has further ones.
      return state !== v1.RunState.RUNNING && logLength <= lastNumber;
    } catch (error) {
      if (!isPassing(BatonError.of(error))) throw error;
      return false;
    }
  }

  async #recorded(request: MessageInitShape<typeof v1.RecordTurnRequestSchema>, signal?: AbortSignal): Promise<v1.RecordTurnResponse> {
    const untilMs = performance.now() + TURN_TIMEOUT_MS;
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#caller.call((options) => this.#service.recordTurn(request, options));
      } catch (caught) {
        const error = BatonError.of(caught);
        const delayMs = Math.max(error.retryDelayMs ?? 0, delayOf(attempt));
        if (this.#caller.life.aborted || !isPassing(error) || performance.now() + delayMs > untilMs) throw error;
        await sleep(delayMs, AbortSignal.any([this.#caller.life, ...(signal ? [signal] : [])]));
      }
    }
  }
}

/** The graphs and runs, as an agent sees them. All calls throw BatonError if the broker refuses. */
export class Routing {
  readonly #caller: Caller;
  readonly #service: Client<typeof v1.RoutingService>;

  /** @internal */
  constructor(caller: Caller, transport: Transport) {
    this.#caller = caller;
    this.#service = createClient(v1.RoutingService, transport);
  }

  /**
   * Registers a graph, or a further revision of it. The same graph again is the same revision. The answer has the revision and
   * the warnings. Throws GRAPH_INVALID with each problem in `fields`.
   */
  async register(graph: MessageInitShape<typeof v1.GraphSchema>): Promise<v1.RegisterGraphResponse> {
    return this.#caller.call((options) => this.#service.registerGraph({ graph }, options));
  }

  /** Returns all problems of a graph, and registers nothing. */
  async validate(graph: MessageInitShape<typeof v1.GraphSchema>): Promise<v1.GraphProblem[]> {
    return (await this.#caller.call((options) => this.#service.validateGraph({ graph }, options))).problems;
  }

  /** Returns the latest revision of a graph. Throws GRAPH_UNKNOWN. */
  async graph(graphId: string): Promise<v1.Graph> {
    const { graph } = await this.#caller.call((options) => this.#service.getGraph({ graphId }, options));
    return graph ?? create(v1.GraphSchema);
  }

  /** Yields the graphs, the newest first, without their nodes. */
  async *graphs(): AsyncGenerator<v1.Graph, void> {
    let pageToken = "";
    do {
      const request = { pageSize: PAGE_SIZE, pageToken };
      const page = await this.#caller.call((options) => this.#service.listGraphs(request, options));
      yield* page.graphs;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /**
   * Starts a run, over a task of this agent or over none. `runId` is a UUID; starting the same run again returns it. The run
   * fails after `wholeTimeoutMs`, 1 s to 7 days, by default 1 hour. Throws GRAPH_UNKNOWN, NOT_OWNER.
   */
  async start(
    graphId: string,
    { taskId = "", runId = newMessageId(), wholeTimeoutMs }: { taskId?: string; runId?: string; wholeTimeoutMs?: number } = {},
  ): Promise<Run> {
    const whole = wholeTimeoutMs === undefined ? {} : { wholeTimeout: durationFromMs(wholeTimeoutMs) };
    const request = { graphId, taskId, runId, ...whole };
    const { run } = await this.#caller.call((options) => this.#service.startRun(request, options));
    return this.join(run?.runId ?? runId);
  }

  /** Returns the run with this id, without asking the broker. */
  join(runId: string): Run {
    return new Run(runId, this.#caller, this.#service);
  }

  /** Yields the runs that match all filters, the newest first, each with its graph without nodes. */
  async *runs(filter: { graphId?: string; taskId?: string; states?: v1.RunState[] } = {}): AsyncGenerator<v1.Run, void> {
    let pageToken = "";
    do {
      const request = { ...filter, pageSize: PAGE_SIZE, pageToken };
      const page = await this.#caller.call((options) => this.#service.listRuns(request, options));
      yield* page.runs;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }
}
