import { type KeyObject, randomUUID } from "node:crypto";
import { setMaxListeners } from "node:events";
import type { TLSSocket } from "node:tls";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, timestampFromMs, timestampNow } from "@bufbuild/protobuf/wkt";
import { type Client, Code, createClient, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { secureSocket } from "./socket.js";
import { Audit, invalid } from "./audit.js";
import { Blobs } from "./blobs.js";
import { Contexts } from "./contexts.js";
import { Directory } from "./directory.js";
import { type Environment, optionsFromEnv } from "./environment.js";
import { type AdministeringCaller, type CallOptions, type KeyCallOptions, type WireOptions } from "./following.js";
import { Routing } from "./runs.js";
import { Workspace } from "./workspace.js";
import { clipped, Delivery, type Waiting } from "./delivery.js";
import { type About, BROKER_ID, makeEnvelope, mandateOf, type Payload, payloadOf } from "./envelopes.js";
import { BatonError, HandoffFailed, hasGoneOn, isPassing, NoAnswer, type RecallReason, SessionEnded, TaskRecalled, VerificationError } from "./errors.js";
import { cancelledBefore, candidateOf, endedBy, type HandedOver, HandOver, type HandOverOptions, type OnView, sendContextTo, TIMER_MS_MAX } from "./handovers.js";
import { Heartbeats } from "./heartbeats.js";
import { Holding, Holdings } from "./holdings.js";
import { Jobs, Stopped } from "./jobs.js";
import { AuditLog, DeadLetters } from "./operators.js";
import type { JsonObject } from "./json.js";
import { publicBytes } from "./keys.js";
import { checkContext, checkEnvelope, FRAME_BYTES_MAX } from "./limits.js";
import { byLimit, checkLoan, type DelegateOptions, endAtDeadline, isLentBy, loanOf, type Outcome, outcomeOf, takeBackOfAborted, type WaitForLoanOptions } from "./loans.js";
import { type Conversation, Mail, NEWS_MS, WaitedFor } from "./mail.js";
import type { Offer } from "./offers.js";
import { type Answer, answerOf, answerTo, type AskOptions, inputOf, promptOf } from "./questions.js";
import { Negotiation, Negotiations, type Negotiator, TaskRequests } from "./negotiations.js";
import { asPart, parentOf } from "./parents.js";
import { Plans } from "./plans.js";
import { Progress } from "./progress.js";
import { Queue } from "./queue.js";
import { lastEpochOf, lossOf, noticeOf } from "./recalls.js";
import { Resumption } from "./resume.js";
import { Registrations } from "./registrations.js";
import { Schemas } from "./schemas.js";
import { closedError, handle, type Handlers } from "./serve.js";
import { withDeltas } from "./sections.js";
import { CALL_TIMEOUT_MS, deferred, Session, sleep } from "./session.js";
import { isFinalState, isFinalStatus } from "./states.js";
import { OwnedTask, type TaskOwner } from "./tasks.js";
import { Threads } from "./threads.js";
import { contextDigest, signEnvelope, signSession, verifyEnvelope, verifyReceipt, verifyVoucher } from "./signing.js";
import { type StatusUpdate, statusOf } from "./updates.js";
import { HandoffRecords, Tasks } from "./watching.js";
import * as v1 from "./v1.js";

const CREDIT_MAX = 4096;
const CREDIT = 16;
const HANDLER_TIMEOUT_MS = 600_000;
/** The idle time of a connection after which it is tested by a ping. */
const PING_AFTER_MS = 20_000;
/** The time limit for the answer to a ping, after which the connection counts as broken. */
const PING_TIMEOUT_MS = 10_000;
/** The age from which a message that the broker finds too old may get a new timestamp and signature. */
const RESIGN_AFTER_MS = 1_000;
const PLAINTEXT = "http://";
const CUSTODY_PAGE = 200;
const KEYS_KEPT_MS = 60_000;
const RECONNECT_FIRST_MS = 100;
const RECONNECT_MOST_MS = 10_000;
/** The age from which a session counts as stable and resets the backoff. */
const STEADY_MS = 5_000;

/** The settings of an agent: the broker, the agent's identity, and limits. */
export interface AgentOptions {
  /** The broker: HOST:PORT with TLS, or http://HOST:PORT without TLS for a broker on this machine. */
  server: string;
  /** The agent's id. */
  agentId: string;
  /** The key that signs the agent's messages. It also proves the agent's identity, unless `certificate` or `token` does. */
  key: KeyObject;
  /** The id of the key among the agent's keys; default "k1". */
  keyId?: string;

  /** The CA that has signed the broker's certificate, PEM; default: Node's CAs. */
  ca?: string | Buffer;
  /** The client certificate and its key, PEM, that prove the agent's identity, instead of `key`. */
  certificate?: { cert: string | Buffer; key: string | Buffer };
  /** A token that proves the agent's identity, from `baton token`. The agent does not renew it. */
  token?: string;

  /**
   * If set, `connect` first registers the agent with this card and fills in its agentId and keys. Registering the same card
   * again is not an error; a registered agent changes its own card.
   */
  card?: MessageInitShape<typeof v1.AgentCardSchema>;
  /** The secret of an invitation, to register where registration is not open. */
  invitation?: string;
  /** An operator's token, to register where registration is not open. */
  operatorToken?: string;

  /**
   * The maximum number of unacknowledged deliveries, and so of concurrent handlers: up to 4096; default 16. The agent takes
   * mail only while `serve`, `handoffs`, `deliveries`, `handOver`, `resumeHandOver` or `delegate` runs.
   */
  credit?: number;
  /**
   * The time limit of a handler for an unacknowledged delivery, which `serve` extends meanwhile; default 10 minutes. After the
   * ack, which for an offer is its completion, the handler has no limit.
   */
  handlerTimeoutMs?: number;
  /** The time for which `serve` waits for running handlers when it stops; default 10 s. */
  stopTimeoutMs?: number;
  /** Pinned keys by agent id: all valid keys of that agent, used instead of the directory's. Those of "baton" verify receipts. */
  pinnedKeys?: ReadonlyMap<string, readonly v1.AgentKey[]>;
  /**
   * Operators' public keys, 32 bytes each, by operatorKeyId. If any are set, a key from the directory is valid only with a
   * voucher of one of these operators.
   */
  operatorKeys?: ReadonlyMap<string, Uint8Array>;
  /** Receives the log: failed handlers, lost acknowledgements, broken sessions. Default: no log. */
  log?: (text: string, error?: unknown) => void;
}

/** The options of `serve` and `handoffs`. */
export interface ServeOptions extends CallOptions {
  /**
   * Whether the handler of offers also gets the tasks of this agent that no connected process works on, for example after a restart
   * of the worker: as an `Offer` with `isResumed`, with the last context that the broker has. At the beginning of each session, and
   * when handlers end, as many as `credit` has room for. Default: no.
   */
  resume?: boolean;
}

/**
 * An agent with a session at the broker. When the session ends, the agent opens another, until `close`.
 */
export class Agent implements TaskOwner, Negotiator {
  /**
   * Resolves with the error at the agent's end: by `close`, or after the broker refuses the agent permanently.
   */
  readonly ended: Promise<BatonError>;

  /**
   * The name of this process of the agent at the broker, a UUID. What answers something that this process has begun goes to it, also
   * after it has connected again.
   */
  readonly instanceId: string = randomUUID();

  readonly #options: AgentOptions;
  readonly #keyId: string;
  /** @internal */
  readonly log: (text: string, error?: unknown) => void;
  /** @internal */
  readonly mail: Mail;
  readonly #http: Http2SessionManager;
  /**
   * The transport, for clients of services that this package does not wrap:
   * `createClient(v1.DeadLetterService, agent.transport)`.
   */
  readonly transport: Transport;
  /** The directory of agents: find, update, deregister, watch. */
  readonly directory: Directory;
  /** Routing by a model: graphs and runs. */
  readonly routing: Routing;
  /** The versions of contexts; `checkpoint` makes one. */
  readonly contexts: Contexts;
  /** The JSON Schemas by which the broker checks contexts. */
  readonly schemas: Schemas;
  /** Content that is too large for a message. */
  readonly blobs: Blobs;
  /** Threads, and the specs of their personas. */
  readonly threads: Threads;
  /** Plans of many agents: check, submit, follow. */
  readonly plans: Plans;
  /** Reading and cancelling negotiations; `negotiate` begins one. */
  readonly negotiations: Negotiations;
  /** Tasks: list, watch, reassign. */
  readonly tasks: Tasks;
  /** Handoffs as the broker keeps them: list, watch. `handoffs` takes those that are offered to this agent. */
  readonly handoffRecords: HandoffRecords;
  /** Messages that could not be delivered or applied. */
  readonly deadLetters: DeadLetters;
  /** The owners of the names of graphs, schemas and specs. */
  readonly registrations: Registrations;
  /** The broker's log of administrative acts. */
  readonly auditLog: AuditLog;
  /** @internal */
  readonly taskRequests = new TaskRequests();
  /** @internal The tasks that this process has taken over and works on. */
  readonly holdings = new Holdings(() => {
    this.#heartbeats.changed();
  });
  readonly #heartbeats = new Heartbeats(this.holdings, (text, error) => {
    this.log(text, error);
  });
  readonly #broker: Client<typeof v1.BrokerService>;
  readonly #agents: Client<typeof v1.AgentService>;
  readonly #tasks: Client<typeof v1.TaskService>;
  readonly #life = new AbortController();
  readonly #inbox = new Queue<{ wire: v1.Delivery; session: Session }>();
  readonly #keys = new Map<string, { keys: readonly v1.AgentKey[]; untilMs: number }>();
  /** The ends of the watches behind `OwnedTask.signal`, by task id. */
  readonly #signals = new Map<string, () => void>();
  #token = "";
  #session: Session | undefined;
  #sessionCame = deferred<undefined>();
  #greeting = Promise.resolve(false);
  readonly #resumptions = new Set<Resumption>();
  #backoffMs = RECONNECT_FIRST_MS;
  #enteredMs = 0;

  private constructor(options: AgentOptions) {
    if ((options.credit ?? 0) > CREDIT_MAX) throw new RangeError(`credit is at most ${CREDIT_MAX}`);
    this.#options = options;
    // Each call that waits for mail listens to it. Node would take more than ten listeners for a leak and warn.
    setMaxListeners(0, this.#life.signal);
    this.#keyId = options.keyId ?? "k1";
    this.log = options.log ?? ((): void => undefined);
    this.#token = options.token ?? "";
    const baseUrl = baseUrlOf(options.server);
    const { ca, certificate } = options;
    const tls = { ...(ca === undefined ? {} : { ca }), ...certificate };
    const isPlaintext = baseUrl.startsWith(PLAINTEXT);
    const nodeOptions = isPlaintext ? {} : { createConnection: (broker: URL): TLSSocket => secureSocket(broker, tls) };
    this.#http = new Http2SessionManager(baseUrl, { pingIntervalMs: PING_AFTER_MS, pingTimeoutMs: PING_TIMEOUT_MS }, nodeOptions);
    this.transport = createGrpcTransport({ baseUrl, sessionManager: this.#http, readMaxBytes: FRAME_BYTES_MAX });
    this.#broker = createClient(v1.BrokerService, this.transport);
    this.#agents = createClient(v1.AgentService, this.transport);
    this.#tasks = createClient(v1.TaskService, this.transport);
    this.directory = new Directory(this.id, this.#caller(), this.transport);
    this.routing = new Routing(this.#caller(), this.transport);
    this.contexts = new Contexts(this.#caller(), this.transport);
    this.schemas = new Schemas(this.#caller(), this.transport);
    this.blobs = new Blobs(this.#caller(), this.transport);
    this.threads = new Threads(this.#caller(), this.transport, this.log);
    this.plans = new Plans(this.#caller(), this.transport, (submission) => this.send("", {}, submission));
    this.negotiations = new Negotiations(this.#caller(), this.transport);
    this.tasks = new Tasks(this.#caller(), this.transport, (envelope) => this.#verifySender(envelope));
    this.handoffRecords = new HandoffRecords(this.#caller(), this.transport);
    this.deadLetters = new DeadLetters(this.#caller(), this.transport);
    this.registrations = new Registrations(this.#caller(), this.transport);
    this.auditLog = new AuditLog(this.#caller(), this.transport);
    this.mail = new Mail({
      credit: options.credit ?? CREDIT,
      handlerTimeoutMs: options.handlerTimeoutMs ?? HANDLER_TIMEOUT_MS,
      life: this.#life.signal,
      session: () => this.#session,
      log: this.log,
      taken: (recalled) => {
        this.holdings.over(recalled.taskId, lastEpochOf(recalled));
      },
    });
    this.ended = new Promise((resolve) => {
      this.#life.signal.addEventListener("abort", () => {
        resolve(this.#life.signal.reason as BatonError);
      });
    });
  }

  /**
   * Registers the agent if `options.card` is set, proves its identity and opens its session. Throws at once if the broker
   * cannot be reached; after the first session the agent keeps trying.
   */
  static async connect(options: AgentOptions): Promise<Agent> {
    const agent = new Agent(options);
    const timeout = AbortSignal.timeout(CALL_TIMEOUT_MS);
    try {
      if (options.card !== undefined) await agent.#register(options.card);
      await agent.#enter(await agent.#open(timeout));
      void agent.#sortMail();
    } catch (error) {
      agent.#end(closedError());
      throw error;
    }
    return agent;
  }

  /**
   * Connects as the agent that the environment or a profile of the command line names: see `optionsFromEnv`. `options` has the
   * further options, and takes precedence.
   */
  static async fromEnv(options: Partial<AgentOptions> = {}, environment: Environment = process.env): Promise<Agent> {
    return Agent.connect({ ...(await optionsFromEnv(environment)), ...options });
  }

  /** The agent's id. */
  get id(): string {
    return this.#options.agentId;
  }

  /**
   * The payload of the agent's heartbeats; it may be set at any time. The agent adds the tasks that it works on: those whose
   * handlers run, from the takeover on, and those that the program took over by `handoffs` or `complete` and has not ended or handed
   * on. A heartbeat has at most 1024 of them; of more it has others each time. Throws BatonError, FIELD_INVALID, if the payload breaks a
   * rule of the schema.
   */
  get heartbeat(): MessageInitShape<typeof v1.HeartbeatSchema> {
    return this.#heartbeats.payload;
  }

  set heartbeat(heartbeat: MessageInitShape<typeof v1.HeartbeatSchema>) {
    this.#heartbeats.payload = heartbeat;
  }

  /** The headers with which a client made from `transport` calls as this agent. */
  get headers(): Record<string, string> {
    return this.#token === "" ? {} : { authorization: `Bearer ${this.#token}` };
  }

  /**
   * Ends the session and the connection. The broker redelivers unacknowledged messages. For an orderly stop, abort the signal
   * of `serve` first and wait for `serve` to return.
   */
  close(): void {
    this.#end(closedError());
  }

  /** As `close`, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  // ------------------------------------------------------------------------------------------------------- sending

  /**
   * Signs and sends a payload of baton.v1, for example `create(v1.InfoSchema, { text: "hello" })`, and waits for the broker's
   * receipt, whose signature it verifies. When the session ends, it sends the same envelope on the next one, so that the broker
   * takes the message once, until `signal` aborts. Throws BatonError if the broker refuses, VerificationError if the broker did
   * not sign the receipt. A message over a limit of the schema is not sent; the error has the broker's reason, for example
   * PAYLOAD_TOO_LARGE. JSON in a payload is text, for example `create(v1.InfoSchema, { dataJson: jsonText({ id: 1n }) })`.
   */
  async send(receiverId: string, about: About, payload: Payload, options: CallOptions = {}): Promise<v1.Receipt> {
    return this.#signAndSend(makeEnvelope(this.id, receiverId, about, payload), options);
  }

  async #signAndSend(envelope: v1.Envelope, options: CallOptions): Promise<v1.Receipt> {
    const madeMs = performance.now();
    signEnvelope(envelope, this.#keyId, this.#options.key);
    try {
      return await this.sendEnvelope(envelope, options);
    } catch (error) {
      const isOld = error instanceof BatonError && error.reason === "TIMESTAMP_OUTSIDE_WINDOW";
      if (!isOld || performance.now() - madeMs < RESIGN_AFTER_MS) throw error;
      // The broker was unreachable for longer than its clock window. It detects repeats before it checks the time, so the
      // message was not taken before and may be signed anew. A wrong local clock is refused again.
      envelope.timestamp = timestampNow();
      signEnvelope(envelope, this.#keyId, this.#options.key);
      return this.sendEnvelope(envelope, options);
    }
  }

  /** Sends a signed envelope unchanged; otherwise as `send`. A repeated envelope gets its first receipt again. */
  async sendEnvelope(envelope: v1.Envelope, options: CallOptions = {}): Promise<v1.Receipt> {
    checkEnvelope(envelope);
    return this.sendUntilAnswered(envelope, options);
  }

  /** @internal Does not check the size. */
  async sendUntilAnswered(envelope: v1.Envelope, { signal }: CallOptions = {}): Promise<v1.Receipt> {
    for (;;) {
      const session = await this.#current(signal);
      try {
        const answer = await session.ask({ case: "envelope", value: envelope }, signal);
        if (answer.case !== "receipt") throw new BatonError(Code.Internal, "the answer is no receipt");
        const pinned = this.#options.pinnedKeys?.get(BROKER_ID);
        const brokerKey = pinned ? keyOf(pinned, answer.value.keyId) : session.welcome.brokerKey;
        return checkedReceipt(answer.value, envelope, brokerKey);
      } catch (error) {
        if (error instanceof SessionEnded) continue;
        // SHUTTING_DOWN, or a full disk: whether the message was taken is unknown.
        if (!(error instanceof BatonError) || error.code !== Code.Unavailable) throw error;
        await sleep(Math.max(error.retryDelayMs ?? 0, RECONNECT_FIRST_MS), anyOf(signal, this.#life.signal));
      }
    }
  }

  /**
   * Requests a handoff to an agent, or to any agent of `type:NAME`. The receipt has the handoffId. An unknown task id creates
   * the task, owned by this agent at epoch 1.
   *
   * Inside a handler of an offer a new task is a part of the handler's task, as long as this agent owns that one. `parentTaskId` in
   * the request names another parent, or none if it is empty. LOOP_LIMIT ends agents that lend each other new tasks. The same holds
   * for `handOver` and `delegate`.
   */
  async requestHandoff(
    receiverId: string,
    taskId: string,
    request: MessageInitShape<typeof v1.HandoffRequestSchema>,
    { epoch = 1n, ...options }: { epoch?: bigint } & CallOptions = {},
  ): Promise<v1.Receipt> {
    const part = asPart(request, taskId, epoch);
    return this.#sendRequest(makeEnvelope(this.id, receiverId, { taskId, epoch }, part.request), part.isAdded, options);
  }

  /**
   * Sends a request. Sends it again without the parent that was added, if only this parent is refused: the task exists already, or
   * the parent has ended or moved.
   */
  async #sendRequest(envelope: v1.Envelope, hasAddedParent: boolean, options: CallOptions): Promise<v1.Receipt> {
    try {
      return await this.#signAndSend(envelope, options);
    } catch (error) {
      if (!hasAddedParent || !(error instanceof BatonError) || !(await this.#isOfParent(error, envelope.taskId))) throw error;
    }
    const payload = payloadOf(envelope);
    const request = payload?.$typeName === "baton.v1.TaskAccept" ? payload.handoff : payload;
    if (request?.$typeName === "baton.v1.HandoffRequest") request.parentTaskId = "";
    const { receiverId, taskId, epoch, correlationId, messageId } = envelope;
    if (payload) Object.assign(envelope, makeEnvelope(this.id, receiverId, { taskId, epoch, correlationId }, payload), { messageId });
    return this.#signAndSend(envelope, options);
  }

  /** Whether a request was refused for its parent, and may be sent without one. */
  async #isOfParent({ reason, fields }: BatonError, taskId: string): Promise<boolean> {
    if (reason === "NOT_OWNER" || reason === "TASK_FINAL") return true;
    if (!fields.some(({ field }) => field.endsWith("parent_task_id"))) return false;
    // A new task is refused for the parent's level, which stands.
    return this.getTask(taskId).then(
      () => true,
      () => false,
    );
  }

  /** Accepts the handoff of a delivered HandoffRequest; by default it asks for the whole context. */
  async accept(request: Delivery, accept: MessageInitShape<typeof v1.HandoffAcceptSchema> = {}): Promise<v1.Receipt> {
    return this.reply(request, create(v1.HandoffAcceptSchema, accept));
  }

  /** Rejects the handoff of a delivered HandoffRequest. */
  async reject(request: Delivery, reject: MessageInitShape<typeof v1.HandoffRejectSchema>): Promise<v1.Receipt> {
    return this.reply(request, create(v1.HandoffRejectSchema, reject));
  }

  /** Sends the context to the candidate of a delivered HandoffAccept: the sections that it wants, or all. */
  async sendContext(
    accept: Delivery,
    sections: readonly v1.ContextSection[],
    options: CallOptions = {},
  ): Promise<v1.Receipt> {
    return sendContextTo(this, candidateOf(accept), sections, options);
  }

  /**
   * Takes the task over with a delivered TaskContextTransfer. Verifies the context's digest first: throws VerificationError,
   * CONTEXT_DIGEST_MISMATCH. From the receipt on this agent owns the task, at the receipt's epoch.
   */
  async complete(transfer: Delivery): Promise<v1.Receipt> {
    if (transfer.payload?.$typeName !== "baton.v1.TaskContextTransfer") {
      throw new TypeError("complete needs a delivered TaskContextTransfer");
    }
    const digest = contextDigest(transfer.payload.sections);
    if (Buffer.compare(digest, transfer.payload.contextDigest) !== 0) {
      throw new VerificationError("CONTEXT_DIGEST_MISMATCH", "the context is not the one that was sent");
    }
    const outcome = v1.HandoffOutcome.SUCCESS;
    const receipt = await this.reply(transfer, create(v1.HandoffCompleteSchema, { outcome, contextDigest: digest }));
    this.holdings.begin(receipt.taskId, receipt.epoch);
    return receipt;
  }

  /** Refuses a delivered TaskContextTransfer: the handoff fails and its sender keeps the task. */
  async failTakeover(transfer: Delivery, details: string): Promise<v1.Receipt> {
    const outcome = v1.HandoffOutcome.FAILURE;
    return this.reply(transfer, create(v1.HandoffCompleteSchema, { outcome, details: clipped(details) }));
  }

  /** Cancels an open handoff that this agent requested. */
  async cancel(handoffId: string, text = "", options: CallOptions = {}): Promise<v1.Receipt> {
    const { candidateId, taskId, epoch } = await this.getHandoff(handoffId);
    const cancel = create(v1.HandoffCancelSchema, { reasonText: clipped(text) });
    return this.send(candidateId, { taskId, epoch, correlationId: handoffId }, cancel, options);
  }

  /**
   * Takes back the task that a handoff of this agent lent. This agent owns it from the receipt on. The loans within this one
   * end too, and an open handoff of the task is cancelled. The broker tells the agents that work on the task. Throws BatonError,
   * NOT_LENT, if the loan has ended or the handoff did not lend the task; NOT_OWNER if another agent lent it.
   */
  async recall(handoffId: string, text = "", options: CallOptions = {}): Promise<OwnedTask> {
    const { taskId, epoch } = await this.getHandoff(handoffId);
    const recall = create(v1.TaskRecallSchema, { reasonText: clipped(text) });
    const receipt = await this.send("", { taskId, epoch, correlationId: handoffId }, recall, options);
    const why = new TaskRecalled(taskId, handoffId, "RECALL", "this agent recalled the task", receipt.epoch, true);
    this.mail.recalled(taskId, receipt.epoch, why);
    this.holdings.moved(taskId, epoch, receipt.epoch);
    return new OwnedTask(this, new Holding(taskId, receipt.epoch), receipt.taskStatus, "");
  }

  /**
   * Begins a task that this agent owns, at epoch 1 and without a handoff. Its context, workspace, runs and threads can begin at once,
   * and it can be handed over later. Inside a handler of an offer the new task is a part of the handler's, unless `parentTaskId`
   * names another parent, or none if it is empty. Throws BatonError, TASK_EXISTS, if this agent takes part in a task with this id;
   * NOT_OWNER if only others do.
   */
  async createTask(
    taskId: string,
    task: Omit<MessageInitShape<typeof v1.TaskCreateSchema>, "$typeName">,
    options: CallOptions = {},
  ): Promise<OwnedTask> {
    const payload = create(v1.TaskCreateSchema, { ...task, parentTaskId: task.parentTaskId ?? parentOf(taskId) ?? "" });
    const receipt = await this.send("", { taskId, epoch: 1n }, payload, options);
    return new OwnedTask(this, new Holding(taskId, receipt.epoch), receipt.taskStatus, "");
  }

  /** @internal Returns the signal of a task that this agent owns. */
  recallSignal(taskId: string, epoch: bigint): AbortSignal {
    const abort = new AbortController();
    // The ownership began with this epoch, so a recall to any later one ends it.
    const unwatch = this.mail.watch(taskId, epoch, (recalled) => {
      this.#signals.delete(taskId);
      abort.abort(lossOf(recalled));
      return false;
    });
    this.#forgetSignals(taskId);
    this.#signals.set(taskId, unwatch);
    return abort.signal;
  }

  /** Ends the watch for recalls of a task. */
  #forgetSignals(taskId: string): void {
    this.#signals.get(taskId)?.();
    this.#signals.delete(taskId);
  }

  /** Ends what this process keeps about a task that has ended, or that this agent no longer owns. */
  #left(taskId: string, epoch: bigint): void {
    this.#forgetSignals(taskId);
    this.holdings.over(taskId, epoch);
  }

  /**
   * Stores a context of a task that this agent owns, without a handoff: the next owner can go on with it. A JSON section of which
   * this process has sent or received an earlier version goes as a delta where that is smaller. Throws BatonError, STALE_EPOCH
   * after the task has moved on, TASK_FINAL after it has ended.
   */
  async checkpoint(
    taskId: string,
    epoch: bigint,
    sections: readonly v1.ContextSection[],
    options: CallOptions = {},
  ): Promise<v1.Receipt> {
    const { known } = this.contexts;
    const { short, whole } = withDeltas(sections, (name) => known.get(taskId, name));
    const send = (sent: v1.ContextSection[]): Promise<v1.Receipt> => {
      const context = create(v1.TaskContextTransferSchema, { sections: sent, contextDigest: contextDigest(sent) });
      const envelope = makeEnvelope(this.id, "", { taskId, epoch }, context);
      envelope.messageType = v1.MessageType.CONTEXT_CHECKPOINT;
      return this.#signAndSend(envelope, options);
    };
    let receipt: v1.Receipt;
    try {
      receipt = await send(short);
    } catch (error) {
      // The broker has another version than this process: the whole sections need no base.
      if (!(error instanceof BatonError) || !["CONTEXT_BASE_UNKNOWN", "CONTEXT_DELTA_INVALID"].includes(error.reason)) throw error;
      known.forget(taskId);
      receipt = await send(whole);
    }
    known.note(taskId, whole);
    return receipt;
  }

  /**
   * Reports the status of a task that this agent owns at this epoch. Throws BatonError, FIELD_INVALID, for a result that cannot
   * arrive as it is: see `jsonText`.
   */
  async updateStatus(taskId: string, epoch: bigint, update: StatusUpdate): Promise<v1.Receipt> {
    const message = statusOf(update);
    let receipt: v1.Receipt;
    try {
      receipt = await this.send("", { taskId, epoch }, message);
    } catch (error) {
      if (hasGoneOn(error)) this.holdings.over(taskId, epoch);
      throw error;
    }
    if (isFinalStatus(message.status)) this.#left(taskId, epoch);
    return receipt;
  }

  /**
   * Asks a question about a task that this agent owns, and waits for the answer: reports WAITING_FOR_INPUT with a prompt.
   * `answerBy` is an agent's id, or `type:NAME` for one able agent of the type. Without `withinMs` the call waits until the
   * answer, or until the question is withdrawn by the next status update or a move of the task. If `signal` aborts, the
   * question stays open, and the handler `taskInput` gets the answer. Throws NoAnswer without an answer; BatonError, for example
   * RECEIVER_UNKNOWN if no able agent can be asked, or FIELD_INVALID.
   *
   * The broker delivers the mail of one task in order. If other mail about the task may wait, `serve` must run to take it.
   */
  async ask(taskId: string, epoch: bigint, question: string, answerBy: string, options: AskOptions = {}): Promise<Answer> {
    const { signal, details = "" } = options;
    const prompt = promptOf(question, answerBy, options);
    const update = create(v1.TaskStatusUpdateSchema, { status: v1.TaskStatus.WAITING_FOR_INPUT, details, prompt });
    const envelope = makeEnvelope(this.id, "", { taskId, epoch }, update);
    const mail = await this.mail.converse(`question ${envelope.messageId}`, { signal });
    try {
      await this.#signAndSend(envelope, signal ? { signal } : {});
      return await answerTo(this, mail, { taskId, questionId: envelope.messageId }, signal);
    } finally {
      mail.close();
    }
  }

  /**
   * Waits for the answer to the open question of a task that an earlier process of this agent asked. Without an open question it
   * returns the answer to the latest one. Throws NoAnswer, as `ask`; also WITHDRAWN if the task has no answered question.
   */
  async resumeAsk(taskId: string, { signal }: CallOptions = {}): Promise<Answer> {
    const { openPrompt, lastAnswer } = await this.getTask(taskId);
    if (openPrompt === undefined) {
      const answer = answerOf(lastAnswer, lastAnswer?.question?.messageId ?? "");
      if (answer !== undefined) return answer;
      throw new NoAnswer("", "WITHDRAWN", "the task has no question");
    }
    const questionId = openPrompt.messageId;
    const mail = await this.mail.converse(`question ${questionId}`, { signal });
    try {
      return await answerTo(this, mail, { taskId, questionId }, signal, true);
    } finally {
      mail.close();
    }
  }

  /** Answers a question to this agent: see `Question.answer`. */
  async answer(
    { taskId, epoch, questionId }: { taskId: string; epoch: bigint; questionId: string },
    text: string,
    data?: JsonObject,
  ): Promise<v1.Receipt> {
    return this.send("", { taskId, epoch, correlationId: questionId }, inputOf(text, data));
  }

  /** Asks for more time for this agent's step of a handoff, if the step takes longer than its timeout. */
  async keepTurn(delivery: Delivery, details = ""): Promise<v1.Receipt> {
    const status = v1.TaskStatus.IN_PROGRESS;
    return this.reply(delivery, create(v1.TaskStatusUpdateSchema, { status, details }));
  }

  /** Sends a payload to the sender of a delivery, about the same task and handoff. */
  async reply(to: Delivery, payload: Payload, options: CallOptions = {}): Promise<v1.Receipt> {
    return this.send(to.answerTo, to.about, payload, options);
  }

  // ------------------------------------------------------------------------------------------------- whole handoffs

  /**
   * Hands a task over: sends the request, sends the context to the agent that accepts, and waits for the end, at most for the
   * request's whole timeout. An unknown task id creates the task, at epoch 1.
   *
   * Throws HandoffFailed if the task stays with this agent, BatonError if the broker refuses the request or the context, WaitedFor if
   * another call of this object hands the task over at this epoch. If `signal` aborts first, the handoff continues: `resumeHandOver` joins it, `cancel` ends it, and otherwise its timeouts end
   * it. The call receives its mail also without `serve`; all other mail goes to `serve`.
   *
   * `timeoutMs` limits the call. At that time the agent cancels the handoff, for at most 10 s, and the call throws HandoffFailed,
   * HANDOFF_CANCELLED, unless the task has moved just before. The task stays with this agent.
   *
   * `onView` gets each view that this agent has of the handoff: IDLE and HANDOFF_INITIATED before the request is stored, then
   * those that `getHandoff` shows.
   */
  async handOver(
    receiverId: string,
    taskId: string,
    request: MessageInitShape<typeof v1.HandoffRequestSchema>,
    sections: readonly v1.ContextSection[],
    { epoch = 1n, ...options }: { epoch?: bigint } & HandOverOptions = {},
  ): Promise<HandedOver> {
    checkContext(sections);
    const part = asPart(request, taskId, epoch);
    const envelope = makeEnvelope(this.id, receiverId, { taskId, epoch }, part.request);
    const handed = await this.#handOver(envelope, part.isAdded, sections, options);
    this.#left(taskId, epoch);
    return handed;
  }

  /** @internal Hands a task over by the award of a negotiation. */
  async handOverBy(
    award: v1.TaskAccept,
    receiverId: string,
    about: About,
    sections: readonly v1.ContextSection[],
    options: HandOverOptions,
  ): Promise<HandedOver> {
    checkContext(sections);
    const part = award.handoff && asPart(award.handoff, about.taskId ?? "", about.epoch ?? 0n);
    if (part) award.handoff = part.request;
    const envelope = makeEnvelope(this.id, receiverId, about, award);
    const handed = await this.#handOver(envelope, part?.isAdded === true, sections, options);
    this.#left(handed.taskId, handed.epoch - 1n);
    return handed;
  }

  async #handOver(
    request: v1.Envelope,
    hasAddedParent: boolean,
    sections: readonly v1.ContextSection[],
    { signal, timeoutMs, onView }: HandOverOptions,
  ): Promise<HandedOver> {
    if (timeoutMs !== undefined && timeoutMs > TIMER_MS_MAX) throw new RangeError(`timeoutMs is at most ${TIMER_MS_MAX}`);
    const release = this.mail.hands(request.taskId, request.epoch);
    const limit = new AbortController();
    const timer = timeoutMs === undefined ? undefined : setTimeout(() => { limit.abort(); }, timeoutMs);
    try {
      return await this.#handOverOnce(request, hasAddedParent, sections, signal, onView, timer && limit.signal);
    } finally {
      clearTimeout(timer);
      release();
    }
  }

  /** As `#handOver`, for a caller that has called `Mail.hands`. When `limit` aborts, the handoff is cancelled. */
  async #handOverOnce(
    request: v1.Envelope,
    hasAddedParent: boolean,
    sections: readonly v1.ContextSection[],
    signal: AbortSignal | undefined,
    onView: OnView = () => undefined,
    limit?: AbortSignal,
  ): Promise<HandedOver> {
    const { messageId: handoffId, taskId, epoch } = request;
    onView(v1.SenderView.IDLE);
    const over = limit ? anyOf(signal, limit) : signal;
    // Registered before the request is sent, for the answer may arrive before the receipt.
    const mail = await this.mail.converse(`handoff ${handoffId}`, { signal: over }).catch((error: unknown) => {
      throw limit?.aborted === true && signal?.aborted !== true ? cancelledBefore(handoffId) : error;
    });
    const unwatch = this.#watchHandOver(mail, handoffId, taskId, epoch);
    const handing = new HandOver(this, mail, { handoffId, taskId, epoch }, sections, onView);
    try {
      onView(v1.SenderView.HANDOFF_INITIATED);
      await this.#sendRequest(request, hasAddedParent, over ? { signal: over } : {});
      onView(v1.SenderView.AWAITING_HANDOFF_ACCEPT);
      return await handing.run(over);
    } catch (error) {
      if (limit?.aborted !== true || signal?.aborted === true || error instanceof HandoffFailed) throw error;
      return await handing.endAtLimit();
    } finally {
      unwatch();
      mail.close();
    }
  }

  /** Ends a handoff of a task that is recalled from this agent. */
  #watchHandOver(mail: Conversation, handoffId: string, taskId: string, epoch: bigint): () => void {
    return this.mail.watch(taskId, epoch, (recalled) => {
      mail.fail(new HandoffFailed(handoffId, noticeOf(recalled), recalled.text));
      return false;
    });
  }

  /**
   * Continues a handoff that an earlier process of this agent requested, from any state. Returns or throws as `handOver`, also
   * when the handoff has ended meanwhile. `ownedTasks` lists the open handoffs.
   */
  async resumeHandOver(
    handoffId: string,
    sections: readonly v1.ContextSection[],
    { signal }: CallOptions = {},
  ): Promise<HandedOver> {
    checkContext(sections);
    const handed = await this.#resumeHandOver(handoffId, sections, signal);
    this.#left(handed.taskId, handed.epoch - 1n);
    return handed;
  }

  async #resumeHandOver(handoffId: string, sections: readonly v1.ContextSection[], signal?: AbortSignal): Promise<HandedOver> {
    const mail = await this.mail.converse(`handoff ${handoffId}`, { signal });
    try {
      // Read after the conversation is registered: an earlier end shows in this state, and a later end arrives as mail.
      const handoff = await this.getHandoff(handoffId);
      const { senderId, taskId, epoch } = handoff;
      if (senderId !== this.id) throw new Error(`handoff ${handoffId} is not one that ${this.id} asked for`);
      const unwatch = this.#watchHandOver(mail, handoffId, taskId, epoch);
      const release = isFinalState(handoff.state) ? undefined : this.mail.handsAlso(taskId, epoch);
      try {
        return await new HandOver(this, mail, { handoffId, taskId, epoch }, sections).run(signal, handoff);
      } finally {
        release?.();
        unwatch();
      }
    } finally {
      mail.close();
    }
  }

  /**
   * Lends a task and waits for its final status: `handOver` with HandoffMode.DELEGATE, then the result. On return this agent
   * owns the task again, at the next epoch.
   *
   * `onProgress` gets the status updates of the lent task while the call waits: see `DelegateOptions`.
   *
   * `timeoutMs` limits the whole call, `loanTimeoutMs` the loan at the broker: see `DelegateOptions`. At the time limit, and
   * when `signal` aborts, the agent takes the task back: it recalls it, or cancels a handoff that is still open, for at most
   * 10 s. Without `timeoutMs` the whole timeout of the handoff and the loan timeout limit the call.
   *
   * Throws TaskRecalled if the task came back without a result, with the reason LOAN_TIMEOUT, DEADLINE or RECALL, DEADLINE where
   * `timeoutMs` is the loan timeout too; HandoffFailed
   * if the task was not lent: NO_CANDIDATE after rejections, HANDOFF_CANCELLED at the time limit, and others as `handOver`; and
   * the reason of `signal`.
   *
   * A process that restarts while the task is lent goes on by `waitForLoan`. Without it, it gets the final status as a
   * TaskStatusUpdate, and `ownedTasks` lists the task from then on. Throws WaitedFor if another call of this object hands the task over, or waits for its result.
   */
  async delegate(
    receiverId: string,
    taskId: string,
    request: MessageInitShape<typeof v1.HandoffRequestSchema>,
    sections: readonly v1.ContextSection[],
    options: DelegateOptions = {},
  ): Promise<Outcome> {
    checkContext(sections);
    if (this.mail.isWaitedFor(`task ${taskId}`)) throw new WaitedFor(`task ${taskId}`);
    const release = this.mail.hands(taskId, options.epoch ?? 1n);
    try {
      return await this.#delegate(receiverId, taskId, request, sections, options);
    } finally {
      release();
    }
  }

  /**
   * Waits for the final status of a task that a handoff of this agent lends, also one of an earlier process. Returns or throws as
   * `delegate`, also when the loan has ended meanwhile. Of a handoff that is still open, `sections` go to the agent that accepts;
   * without them the handler `context` of `serve` gives them, or another call. The end of this wait ends nothing: if `signal` aborts,
   * the loan stays as it is, and the call has no time limit of its own.
   *
   * Throws BatonError: HANDOFF_UNKNOWN; NOT_OWNER if another agent requested the handoff; NOT_LENT if it lends nothing, or if the task
   * has been handed on since the loan ended. Throws WaitedFor while another call of this object waits for the task.
   */
  async waitForLoan(handoffId: string, { sections, signal, onProgress }: WaitForLoanOptions = {}): Promise<Outcome> {
    if (sections) checkContext(sections);
    const handoff = await this.getHandoff(handoffId);
    checkLoan(this.id, handoff);
    const { taskId, epoch } = handoff;
    const results = await this.mail.converse(`task ${taskId}`, { afterEpoch: epoch, signal });
    const unwatch = this.mail.watch(taskId, epoch, (recalled) => {
      results.fail(lossOf(recalled));
      return false;
    });
    const progress = onProgress && Progress.ofLoan(this, taskId, epoch, onProgress);
    try {
      const lent =
        sections && !isFinalState(handoff.state)
          ? await this.#resumeHandOver(handoffId, sections, signal)
          : endedBy(await this.#endOf(handoff, signal), { handoffId, taskId, epoch });
      const isLent = isLentBy(lent, this.id, await this.getTask(taskId));
      this.holdings.lent(taskId, epoch, true);
      progress?.start();
      const outcome = await outcomeOf(this, results, lent, signal, isLent ? this.mail.lookAfterMs : NEWS_MS);
      this.holdings.moved(taskId, epoch, outcome.epoch);
      await progress?.readUpTo(outcome.epoch);
      return outcome;
    } catch (error) {
      if (error instanceof TaskRecalled && error.isOwner) this.holdings.moved(taskId, epoch, error.epoch);
      else if (error instanceof TaskRecalled) this.#left(taskId, epoch);
      throw error;
    } finally {
      progress?.stop();
      this.holdings.lent(taskId, epoch, false);
      unwatch();
      results.close();
    }
  }

  /** Waits for the end of a handoff that another call goes on with. */
  async #endOf(handoff: v1.Handoff, signal?: AbortSignal): Promise<v1.Handoff> {
    let last = handoff;
    if (isFinalState(last.state)) return last;
    for await (const step of this.handoffRecords.watch(handoff.handoffId, signal ? { signal } : {})) last = step;
    signal?.throwIfAborted();
    return last;
  }

  async #delegate(
    receiverId: string,
    taskId: string,
    request: MessageInitShape<typeof v1.HandoffRequestSchema>,
    sections: readonly v1.ContextSection[],
    options: DelegateOptions,
  ): Promise<Outcome> {
    const { signal, onView, epoch = 1n } = options;
    const part = asPart(request, taskId, epoch);
    const { lent, limitMs, isOneTime } = loanOf(part.request, options);
    const progress = options.onProgress && (await Progress.of(this, taskId, epoch, options.onProgress));
    // A limit that is the loan timeout too races with it: either may end the loan, and the limit is the reason.
    const ofLimit: RecallReason[] = isOneTime ? ["LOAN_TIMEOUT"] : [];
    const envelope = makeEnvelope(this.id, receiverId, { taskId, epoch }, lent);
    const results = await this.mail.converse(`task ${taskId}`, { afterEpoch: epoch, signal });
    const unwatch = this.mail.watch(taskId, epoch, (recalled) => {
      results.fail(lossOf(recalled));
      return false;
    });
    const limit = new AbortController();
    const timer = limitMs === undefined ? undefined : setTimeout(() => { limit.abort(); }, limitMs);
    const over = anyOf(signal, limit.signal);
    try {
      const lend = async (): Promise<Outcome> => {
        const handed = await this.#handOverOnce(envelope, part.isAdded, sections, over, onView);
        this.holdings.lent(taskId, epoch, true);
        progress?.start();
        return outcomeOf(this, results, handed, over);
      };
      const outcome = await lend().catch(async (error: unknown) => {
        if (!over.aborted || error instanceof HandoffFailed || error instanceof TaskRecalled) throw byLimit(error, ...ofLimit);
        if (signal?.aborted === true) {
          const receipt = await takeBackOfAborted(this, envelope);
          if (receipt) this.holdings.moved(taskId, epoch, receipt.epoch);
          throw error;
        }
        // A loan that has ended by now without news has ended by the limit.
        return endAtDeadline(this, results, envelope).catch((ended: unknown) => {
          throw byLimit(ended, ...ofLimit, "RECALL");
        });
      });
      this.holdings.moved(taskId, epoch, outcome.epoch);
      await progress?.readUpTo(outcome.epoch);
      return outcome;
    } catch (error) {
      if (error instanceof TaskRecalled && error.isOwner) this.holdings.moved(taskId, epoch, error.epoch);
      else if (error instanceof TaskRecalled) this.#left(taskId, epoch);
      throw error;
    } finally {
      progress?.stop();
      this.holdings.lent(taskId, epoch, false);
      clearTimeout(timer);
      unwatch();
      results.close();
    }
  }

  /**
   * Yields the unfinished tasks that this agent owns, newest first: the starting point after a restart. Reads page by page.
   * Throws BatonError.
   */
  async *ownedTasks(options: CallOptions = {}): AsyncGenerator<OwnedTask, void> {
    const { CREATED, IN_PROGRESS, WAITING_FOR_INPUT } = v1.TaskStatus;
    const filter = { ownerId: this.id, statuses: [CREATED, IN_PROGRESS, WAITING_FOR_INPUT] };
    for await (const task of this.tasks.list(filter, options)) if (!isFinalStatus(task.status)) yield OwnedTask.of(this, task);
  }

  // -------------------------------------------------------------------------------------------------- negotiations

  /**
   * Asks the agents of `all:NAME`, one of `type:NAME`, or one agent for offers: see `Negotiation`. With `taskId` the award hands
   * over this task, at `epoch`, by default 1. The broker awards by `awardRule` if the request has one; with its `handoff` it
   * hands the task over itself, and `handedOver` gives the context. `offersMs` is the time for offers, by default 30 s.
   *
   * Closing the negotiation object does not end the negotiation: `resumeNegotiation` takes it up again. Throws BatonError, for
   * example RECEIVER_UNKNOWN if no agent can be asked, FIELD_INVALID, STALE_EPOCH.
   */
  async negotiate(
    receiverId: string,
    request: MessageInitShape<typeof v1.TaskRequestSchema>,
    options: { taskId?: string; epoch?: bigint; offersMs?: number } & CallOptions = {},
  ): Promise<Negotiation> {
    const { taskId = "", epoch = taskId === "" ? 0n : 1n, offersMs, signal } = options;
    const asked = create(v1.TaskRequestSchema, request);
    if (offersMs !== undefined) asked.offersDeadline = timestampFromMs(Date.now() + offersMs);
    const envelope = makeEnvelope(this.id, receiverId, { taskId, epoch }, asked);
    const mail = await this.mail.converse(`negotiation ${envelope.messageId}`, { signal });
    try {
      await this.#signAndSend(envelope, signal ? { signal } : {});
      return new Negotiation(this, mail, envelope.messageId, taskId, epoch, asked.handoff).begin();
    } catch (error) {
      mail.close();
      throw error;
    }
  }

  /**
   * Continues a negotiation that an earlier process of this agent began. Its standing offers come first. Throws BatonError,
   * PERMISSION_DENIED if this agent has no part in it.
   */
  async resumeNegotiation(
    negotiationId: string,
    { epoch = 1n, signal }: { epoch?: bigint } & CallOptions = {},
  ): Promise<Negotiation> {
    const mail = await this.mail.converse(`negotiation ${negotiationId}`, { signal });
    try {
      const state = await this.negotiations.get(negotiationId);
      if (state.requesterId !== this.id) throw new Error(`the offers of ${negotiationId} are not ones that ${this.id} asked for`);
      return new Negotiation(this, mail, negotiationId, state.taskId, epoch).begin(state);
    } catch (error) {
      mail.close();
      throw error;
    }
  }

  // ------------------------------------------------------------------------------------------------------- looking

  /** Returns a task of which this agent is or was a party. */
  async getTask(taskId: string): Promise<v1.Task> {
    return this.tasks.get(taskId);
  }

  /** Returns a handoff of which this agent is or was a party. */
  async getHandoff(handoffId: string): Promise<v1.Handoff> {
    return this.handoffRecords.get(handoffId);
  }

  /** Returns an agent's entry in the directory. */
  async getAgent(agentId: string): Promise<v1.Agent> {
    const { agent } = await this.#call((options) => this.#agents.getAgent({ agentId }, options));
    return agent ?? create(v1.AgentSchema);
  }

  /**
   * Returns the workspace with this id, for example `task:crash-7`, without asking the broker. With `verify` each read checks
   * the authors' signatures.
   */
  workspace(workspaceId: string, options: { verify?: boolean } = {}): Workspace {
    const agent = {
      append: (payload: v1.WorkspaceAppend): Promise<v1.Receipt> => this.send("", {}, payload),
      verify: (envelope: v1.Envelope): Promise<void> => this.#verifySender(envelope),
    };
    return new Workspace(workspaceId, agent, this.#caller(), this.transport, options);
  }

  /**
   * Reads and verifies the custody log of a task of which this agent is or was a party: the unbroken chain of hashes, the
   * broker's receipt for each accepted envelope, and the senders' signatures on the envelopes. Returns the entries, oldest
   * first, with the task's state after each. Throws VerificationError: CUSTODY_INVALID, or the reason of an invalid signature,
   * also KEY_NOT_VALID for a sender's key that was revoked later.
   */
  async auditTask(taskId: string): Promise<v1.CustodyEntry[]> {
    const pinned = this.#options.pinnedKeys?.get(BROKER_ID);
    const audit = new Audit(pinned ?? (await this.getAgent(BROKER_ID)).card?.keys ?? []);
    for (;;) {
      const request = { taskId, afterNumber: BigInt(audit.entries.length), pageSize: CUSTODY_PAGE, includeEnvelopes: true };
      const page = await this.#call((options) => this.#tasks.getCustodyLog(request, options));
      for (const found of page.entries) {
        audit.add(found);
        if (found.envelope) await this.#verifySender(found.envelope);
      }
      if (audit.entries.length >= page.custodyLength) return audit.entries;
      if (page.entries.length === 0) throw invalid(audit.entries.length + 1, "it is missing");
    }
  }

  /**
   * Creates an invitation and returns its secret. The secret registers one new agent: `agentId`, or any id if `agentId` is
   * empty. `operatorToken` is an operator's token.
   */
  async invite(operatorToken: string, agentId: string, lifetimeMs?: number): Promise<string> {
    const request = { agentId, ...(lifetimeMs === undefined ? {} : { lifetime: durationFromMs(lifetimeMs) }) };
    return (await this.#administer(operatorToken, (options) => this.#agents.createInvitation(request, options))).invitation;
  }

  /** Adds a key to an agent. The keys in `replaces` stay valid for `graceMs`, one day by default. */
  async addKey(
    agentId: string,
    key: MessageInitShape<typeof v1.AgentKeySchema>,
    { replaces = [], graceMs, operatorToken }: { replaces?: string[]; graceMs?: number } & KeyCallOptions = {},
  ): Promise<v1.Agent> {
    const grace = graceMs === undefined ? {} : { grace: durationFromMs(graceMs) };
    const request = { agentId, key, replacedKeyIds: replaces, ...grace };
    const { agent } = await this.#administer(operatorToken, (options) => this.#agents.addAgentKey(request, options));
    return agent ?? create(v1.AgentSchema);
  }

  /** Revokes a key of an agent permanently: the broker refuses every signature made with it. */
  async revokeKey(
    agentId: string,
    keyId: string,
    { reasonText = "", operatorToken }: { reasonText?: string } & KeyCallOptions = {},
  ): Promise<v1.Agent> {
    const request = { agentId, keyId, reasonText };
    const { agent } = await this.#administer(operatorToken, (options) => this.#agents.revokeAgentKey(request, options));
    return agent ?? create(v1.AgentSchema);
  }

  /** Adds an operator's voucher for a key of an agent: see `vouch`. */
  async vouchForKey(
    agentId: string,
    keyId: string,
    voucher: v1.KeyVoucher,
    { operatorToken }: KeyCallOptions = {},
  ): Promise<v1.Agent> {
    const request = { agentId, keyId, voucher };
    const { agent } = await this.#administer(operatorToken, (options) => this.#agents.vouchForAgentKey(request, options));
    return agent ?? create(v1.AgentSchema);
  }

  // ----------------------------------------------------------------------------------------------------- receiving

  /**
   * Takes mail and handles it until `signal` aborts. Acknowledges each delivery by its handler's outcome and extends the
   * delivery while the handler runs. A message that is redelivered meanwhile is not handled twice.
   *
   * When `signal` aborts, `serve` takes no more mail, gives queued deliveries back, waits up to `stopTimeoutMs` for the running
   * handlers, then aborts their signals and gives their deliveries back. It waits up to 30 s for each answer of the broker. Then
   * it returns. Throws at the agent's end.
   *
   * An `offer` handler that raises after the takeover ends its task as FAILED, with the words of the error, unless the task has
   * ended or moved, or `serve` stops. With `resume` the handler also gets the tasks that an earlier process took over and did not
   * end: see `ServeOptions`.
   */
  async serve(handlers: Handlers, { signal, resume = false }: ServeOptions = {}): Promise<void> {
    const jobs = new Jobs({ handlerTimeoutMs: this.#options.handlerTimeoutMs ?? HANDLER_TIMEOUT_MS, log: this.log });
    const credit = this.#options.credit ?? CREDIT;
    const { offer } = handlers;
    const resumption = resume && offer ? new Resumption(this, offer, () => credit - jobs.size) : undefined;
    const leave = new AbortController();
    this.mail.answersQuestions = handlers.prompt !== undefined || handlers.taskStatusUpdate !== undefined;
    try {
      if (resumption) {
        this.#resumptions.add(resumption);
        void resumption.run(anyOf(signal, this.#life.signal, leave.signal));
      }
      for await (const delivery of this.deliveries({ ...(signal && { signal }) })) {
        if (jobs.again(delivery)) continue;
        const done = jobs.begin(delivery, (context) => handle(this, handlers, delivery, { ...context, stopping: signal }));
        if (resumption) void done.then(() => { resumption.slotFreed(); });
      }
    } finally {
      this.mail.answersQuestions = false;
      leave.abort(new Stopped("the agent stops"));
      if (resumption) this.#resumptions.delete(resumption);
      const timeoutMs = this.#life.signal.aborted ? 0 : (this.#options.stopTimeoutMs ?? 10_000);
      await Promise.all([jobs.finish(timeoutMs), resumption?.finish(timeoutMs)]);
    }
  }

  /**
   * Yields the handoffs that are offered to this agent; the loop accepts or rejects each, as the handler `offer` of `serve`
   * does. All other mail goes to `handlers`. The iterator ends as `serve` does, when `signal` aborts or the loop is left; then
   * it rejects the undecided offers as SHUTDOWN.
   *
   *     for await (const offer of agent.handoffs()) {
   *       const takeover = await offer.accept();
   *       const task = await takeover.complete();
   *     }
   */
  async *handoffs({ handlers = {}, signal, resume = false }: { handlers?: Handlers } & ServeOptions = {}): AsyncGenerator<Offer, void> {
    const leave = new AbortController();
    const [queue, open] = [new Queue<Offer>(), new Set<Offer>()];
    const offer = async (one: Offer): Promise<void> => {
      one.isByHand = true;
      open.add(one);
      queue.push(one);
      if (leave.signal.aborted || signal?.aborted === true) await one.leave();
      try {
        await one.over.promise;
      } finally {
        open.delete(one);
      }
    };
    const stop = (): void => {
      for (const one of queue.drain()) one.end(new Stopped("the agent stops"));
      queue.close();
    };
    signal?.addEventListener("abort", stop);
    const serving = this.serve({ ...handlers, offer }, { signal: anyOf(signal, leave.signal), resume });
    serving.then(
      () => {
        queue.close();
      },
      (error: unknown) => {
        queue.fail(error);
      },
    );
    try {
      for await (const one of queue) {
        if (one.signal.aborted) continue;
        one.isBegun = true;
        yield one;
      }
    } finally {
      signal?.removeEventListener("abort", stop);
      leave.abort();
      await Promise.all([...open].map((one) => one.leave()));
      await serving.catch(() => undefined);
    }
  }

  /**
   * Yields the agent's mail, which the reader acknowledges; `serve` and `handoffs` acknowledge by themselves. One loop may read
   * it at a time. Each sender's signature is verified end to end. A message that does not verify is not yielded: the agent
   * nacks it as POISON, and the broker keeps it as a dead letter.
   */
  async *deliveries({ signal }: CallOptions = {}): AsyncGenerator<Delivery, void> {
    try {
      yield* this.mail.read(anyOf(signal, this.#life.signal));
    } catch (error) {
      if (this.#life.signal.aborted) throw this.#life.signal.reason;
      if (signal?.aborted !== true) throw error;
    }
  }

  /**
   * Yields what waits in the mailbox, in order, and ends: it takes nothing, acks nothing, and counts no attempt. Each sender's
   * signature is verified. Throws BatonError; VerificationError for a message that does not verify.
   */
  async *peek({ signal }: CallOptions = {}): AsyncGenerator<Waiting, void> {
    const request = { peek: true, instanceId: this.instanceId };
    for await (const { delivery } of this.#stream((options) => this.#broker.receive(request, options), signal)) {
      const { envelope, attempt = 0, sequence = 0n, handoffId = "" } = delivery ?? {};
      if (envelope === undefined) continue;
      await this.#verifySender(envelope);
      yield { envelope, payload: payloadOf(envelope), attempt, sequence, handoffId };
    }
  }

  /**
   * Sets the maximum number of unacknowledged deliveries, 0 (a pause) to 4096, for this session and later ones, until `serve`
   * or another reader of the mail ends. Without it, the reader sets `credit` when it starts.
   */
  async setCredit(maxOutstanding: number): Promise<void> {
    await this.mail.setCredit(maxOutstanding);
  }

  // ---------------------------------------------------------------------------------------------------- the session

  async #register(card: NonNullable<AgentOptions["card"]>): Promise<void> {
    const keys = [{ keyId: this.#keyId, publicKey: publicBytes(this.#options.key) }];
    const { operatorToken = "", invitation = "" } = this.#options;
    const request = { card: { keys, ...card, agentId: this.id } as typeof card, invitation };
    const timeoutMs = CALL_TIMEOUT_MS;
    try {
      const headers: Record<string, string> = operatorToken === "" ? {} : { authorization: `Bearer ${operatorToken}` };
      await this.#agents.registerAgent(request, { headers, timeoutMs });
    } catch (first) {
      const error = BatonError.of(first);
      if (error.reason !== "AGENT_EXISTS") throw error;
      // The agent is registered with another card. It may change its own card once it has proven its identity.
      await this.#prove();
      await this.#call((options) => this.#agents.registerAgent(request, options));
    }
  }

  /**
   * Signs a challenge for a token, unless a certificate or `token` proves the agent's identity. Tokens do not survive a restart
   * of the broker, so each session begins with a new one.
   */
  async #prove(): Promise<void> {
    const { token, certificate, key } = this.#options;
    if (token !== undefined || certificate !== undefined) return;
    try {
      const agentId = this.id;
      const options = { timeoutMs: CALL_TIMEOUT_MS };
      const { challenge } = await this.#agents.createChallenge({ agentId }, options);
      const signature = signSession(agentId, this.#keyId, challenge, key);
      const proof = { agentId, keyId: this.#keyId, challenge, signature };
      this.#token = (await this.#agents.createToken(proof, options)).token;
    } catch (error) {
      throw BatonError.of(error);
    }
  }

  /** Makes a unary call as this agent. Renews an expired token once. */
  async #call<T>(call: (options: WireOptions) => Promise<T>, moreMs = 0): Promise<T> {
    const signal = this.#life.signal;
    for (let isFirst = true; ; isFirst = false) {
      try {
        return await call({ headers: this.headers, timeoutMs: CALL_TIMEOUT_MS + moreMs, signal });
      } catch (caught) {
        if (signal.aborted) throw signal.reason;
        const error = BatonError.of(caught);
        if (!isFirst || !this.#isRenewable(error)) throw error;
      }
      await this.#prove();
    }
  }

  /** Yields the responses of a call as this agent, or as an operator. Renews an expired token of the agent once. */
  async *#stream<T>(
    open: (options: WireOptions) => AsyncIterable<T>,
    signal?: AbortSignal,
    operatorToken?: string,
  ): AsyncGenerator<T, void> {
    for (let isFirst = true; ; isFirst = false) {
      // Also ends the call when the reader leaves its loop.
      const leave = new AbortController();
      try {
        const headers = operatorToken === undefined ? this.headers : { authorization: `Bearer ${operatorToken}` };
        yield* open({ headers, signal: anyOf(this.#life.signal, signal, leave.signal) });
        return;
      } catch (caught) {
        const error = BatonError.of(caught);
        if (!isFirst || operatorToken !== undefined || !this.#isRenewable(error)) throw error;
      } finally {
        leave.abort();
      }
      await this.#prove();
    }
  }

  #isRenewable(error: BatonError): boolean {
    return error.reason === "TOKEN_INVALID" && this.#options.token === undefined;
  }

  #caller(): AdministeringCaller {
    return {
      life: this.#life.signal,
      call: (call, moreMs) => this.#call(call, moreMs),
      administer: (operatorToken, call) => this.#administer(operatorToken, call),
      stream: (open, signal) => this.#stream(open, signal),
      administerStream: (operatorToken, open, signal) => this.#stream(open, signal, operatorToken),
    };
  }

  /** Makes a unary call as an operator, or as this agent without an operator's token. */
  async #administer<T>(
    operatorToken: string | undefined,
    call: (options: Omit<WireOptions, "signal">) => Promise<T>,
  ): Promise<T> {
    if (operatorToken === undefined) return this.#call(call);
    try {
      return await call({ headers: { authorization: `Bearer ${operatorToken}` }, timeoutMs: CALL_TIMEOUT_MS });
    } catch (error) {
      throw BatonError.of(error);
    }
  }

  async #open(signal: AbortSignal): Promise<Session> {
    await this.#prove();
    return Session.open(this.#broker, this.headers, signal, (wire, session) => {
      this.#inbox.push({ wire, session });
    });
  }

  /** Makes a session the present one, sends its credit and heartbeats, and replaces it at its end. */
  async #enter(session: Session): Promise<void> {
    if (this.#life.signal.aborted) session.end(closedError());
    const isFirst = this.#enteredMs === 0;
    this.#session = session;
    this.#enteredMs = performance.now();
    this.#sessionCame.resolve(undefined);
    this.#sessionCame = deferred();
    this.#sayHello(session); // before the first credit
    this.#heartbeats.start(session);
    void session.ended.then((cause) => this.#reopen(session, cause));
    if (this.mail.credit > 0) {
      await session.giveCredit(this.mail.credit).catch((error: unknown) => {
        session.end(BatonError.of(error));
      });
    }
    if (isFirst) return;
    this.mail.returned();
    for (const resumption of this.#resumptions) resumption.sessionCame();
  }

  async #reopen(old: Session, cause: BatonError): Promise<void> {
    this.#heartbeats.stop();
    this.#session = undefined;
    this.#inbox.drain();
    this.mail.forget();
    const life = this.#life.signal;
    const isOver = (): boolean => life.aborted;
    if (isOver()) return;
    this.log("the session has ended; connecting again", cause);
    let wait = old.reconnectAfterMs;
    let refusals = 0;
    if (performance.now() - this.#enteredMs >= STEADY_MS) this.#backoffMs = RECONNECT_FIRST_MS;
    for (;;) {
      const backoff = this.#backoffMs;
      this.#backoffMs = Math.min(2 * backoff, RECONNECT_MOST_MS);
      try {
        // Plus or minus a fifth, to spread the reconnects of many agents.
        await sleep(Math.max(wait, backoff * (0.8 + 0.4 * Math.random())), life);
        await this.#enter(await this.#open(anyOf(life, AbortSignal.timeout(CALL_TIMEOUT_MS))));
        return;
      } catch (caught) {
        if (isOver()) return;
        const error = BatonError.of(caught);
        // A broker that restarts between two steps of the proof refuses the second, so a refusal counts only when the
        // next attempt is refused too.
        refusals = isPassing(error) ? 0 : refusals + 1;
        if (refusals > 1) {
          this.#end(error);
          return;
        }
        this.log("failed to connect", error);
        wait = error.retryDelayMs ?? 0;
      }
    }
  }

  /** Names this process to the broker. A broker that knows no processes refuses it, and the session goes on without. */
  #sayHello(session: Session): void {
    const hello = { instanceId: this.instanceId, tellsWork: true };
    this.#greeting = session.ask({ case: "hello", value: hello }).then(
      () => true,
      (error: unknown) => {
        if (!(error instanceof SessionEnded)) this.log("the broker does not take the name of this process", error);
        return false;
      },
    );
  }

  /** @internal Waits for a session. Returns whether its broker knows this process. */
  async greeted(signal: AbortSignal): Promise<boolean> {
    await this.#current(signal);
    return this.#greeting;
  }

  /** @internal */
  async contextSent(handoffId: string): Promise<v1.ContextSection[]> {
    const envelope = await this.handoffRecords.context(handoffId);
    if (envelope === undefined) return [];
    await this.#verifySender(envelope);
    const payload = payloadOf(envelope);
    return payload?.$typeName === "baton.v1.TaskContextTransfer" ? payload.sections : [];
  }

  /** Waits for a session that takes questions. */
  async #current(signal?: AbortSignal): Promise<Session> {
    for (;;) {
      signal?.throwIfAborted();
      this.#life.signal.throwIfAborted();
      if (this.#session?.isOpen === true) return this.#session;
      const over = anyOf(signal, this.#life.signal);
      const aborted = deferred<undefined>();
      const onAbort = (): void => {
        aborted.reject(over.reason as Error);
      };
      over.addEventListener("abort", onAbort);
      try {
        await Promise.race([this.#sessionCame.promise, aborted.promise]);
      } finally {
        over.removeEventListener("abort", onAbort);
      }
    }
  }

  #end(cause: BatonError): void {
    if (this.#life.signal.aborted) return;
    this.#life.abort(cause);
    this.#heartbeats.stop();
    this.#session?.end(cause);
    this.#http.abort();
  }

  /** Verifies each delivery and routes it, until the agent's end. */
  async #sortMail(): Promise<void> {
    const life = this.#life.signal;
    const isOver = (): boolean => life.aborted;
    while (!isOver()) {
      try {
        const next = await this.#inbox.next(life);
        const delivery = next && (await this.#checked(next.wire, next.session));
        if (delivery) this.mail.route(delivery);
      } catch (error) {
        if (!isOver()) this.log("a delivery could not be sorted", error);
      }
    }
  }

  // --------------------------------------------------------------------------------------------------- verification

  /** Returns the delivery if its signature and its form are valid. */
  async #checked(wire: v1.Delivery, session: Session): Promise<Delivery | undefined> {
    if (!session.isOpen) return undefined; // after the session's end it is redelivered
    const { envelope = create(v1.EnvelopeSchema) } = wire;
    try {
      await this.#verifySender(envelope);
      const payload = payloadOf(envelope);
      if (payload?.$typeName === "baton.v1.NegotiationClosed") await this.#checkMandate(payload, envelope);
      return new Delivery(wire, envelope, payload, session);
    } catch (error) {
      if (this.#life.signal.aborted) return undefined;
      this.log(`message ${envelope.messageId} of ${envelope.senderId} was not taken`, error);
      const cause = error instanceof VerificationError ? v1.NackCause.POISON : v1.NackCause.FAILURE;
      const nacking = new Delivery(wire, envelope, undefined, session).nack(cause, { text: String(error) });
      await nacking.catch((lost: unknown) => {
        this.log("failed to nack", lost);
      });
      return undefined;
    }
  }

  /** Checks that the requester of a negotiation has signed the award that the broker makes in its name. */
  async #checkMandate({ taskRequest, negotiationId }: v1.NegotiationClosed, { taskId, epoch }: v1.Envelope): Promise<void> {
    if (taskRequest === undefined) return;
    mandateOf(taskRequest);
    if (taskRequest.messageId !== negotiationId || taskRequest.taskId !== taskId || taskRequest.epoch !== epoch) {
      throw new VerificationError("SIGNATURE_INVALID", "the mandate is of another negotiation or task");
    }
    await this.#verifySender(taskRequest);
  }

  /** Verifies an envelope with its sender's key: pinned, cached for up to one minute, or from the directory. */
  async #verifySender(envelope: v1.Envelope): Promise<void> {
    const pinned = this.#options.pinnedKeys?.get(envelope.senderId);
    if (pinned !== undefined) {
      verifyByOneOf(envelope, pinned);
      return;
    }
    const known = this.#keys.get(envelope.senderId);
    if (known !== undefined && known.untilMs > performance.now() && keyOf(known.keys, envelope.keyId)) {
      this.#verifyVouched(envelope, known.keys);
      return;
    }
    const { card } = await this.getAgent(envelope.senderId);
    const keys = card?.keys ?? [];
    if (this.#keys.size >= CREDIT_MAX) this.#keys.clear();
    this.#keys.set(envelope.senderId, { keys, untilMs: performance.now() + KEYS_KEPT_MS });
    this.#verifyVouched(envelope, keys);
  }

  /** A key of the directory may need a voucher. The broker itself is the authority for its own key, so that key needs none. */
  #verifyVouched(envelope: v1.Envelope, keys: readonly v1.AgentKey[]): void {
    const operators = this.#options.operatorKeys;
    const key = keyOf(keys, envelope.keyId);
    if (key && operators?.size && envelope.senderId !== BROKER_ID && !isVouched(envelope.senderId, key, operators)) {
      throw new VerificationError("KEY_UNKNOWN", `no operator vouches for key ${key.keyId} of ${envelope.senderId}`);
    }
    verifyByOneOf(envelope, keys);
  }
}

/** Plaintext is restricted to this machine, since the calls carry tokens. */
function baseUrlOf(server: string): string {
  if (!server.startsWith(PLAINTEXT)) return `https://${server}`;
  const { hostname, origin } = new URL(server);
  if (!/^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname)) {
    throw new RangeError(`${server} is not on this machine: it takes TLS, without http://`);
  }
  return origin;
}

function isVouched(agentId: string, key: v1.AgentKey, operators: ReadonlyMap<string, Uint8Array>): boolean {
  return key.vouchers.some((voucher) => {
    const operator = operators.get(voucher.operatorKeyId);
    try {
      if (operator) verifyVoucher(agentId, key, voucher, operator, new Date());
      return operator !== undefined;
    } catch {
      return false;
    }
  });
}

function keyOf(keys: readonly v1.AgentKey[], keyId: string): v1.AgentKey | undefined {
  return keys.find((key) => key.keyId === keyId);
}

function verifyByOneOf(envelope: v1.Envelope, keys: readonly v1.AgentKey[]): void {
  const key = keyOf(keys, envelope.keyId);
  if (key === undefined) throw new VerificationError("KEY_UNKNOWN", `${envelope.senderId} has no key ${envelope.keyId}`);
  verifyEnvelope(envelope, key);
}

/** Verifies that the broker signed the receipt and that it is for this envelope. Throws VerificationError. */
export function checkedReceipt(receipt: v1.Receipt, envelope: v1.Envelope, brokerKey: v1.AgentKey | undefined): v1.Receipt {
  verifyReceipt(receipt, brokerKey ?? create(v1.AgentKeySchema));
  if (receipt.messageId !== envelope.messageId) {
    throw new VerificationError("SIGNATURE_INVALID", `the receipt is for another message, ${receipt.messageId}`);
  }
  return receipt;
}

function anyOf(...signals: (AbortSignal | undefined)[]): AbortSignal {
  return AbortSignal.any(signals.filter((signal) => signal !== undefined));
}
