/** The directory of agents: find, change, deregister, watch. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { type Caller, type CallOptions, follow } from "./following.js";
import * as v1 from "./v1.js";
import { pages } from "./watching.js";

const PAGE_MAX = 1000;
const PAGE_SIZE = 200;
const FIELDS = ["agentTypes", "description", "skills", "capacity", "metadata", "decidesWithin"] as const;
const PATHS: Readonly<Record<(typeof FIELDS)[number], string>> = {
  agentTypes: "agent_types",
  description: "description",
  skills: "skills",
  capacity: "capacity",
  metadata: "metadata",
  decidesWithin: "decides_within",
};

/** The fields of a card that an update can change. */
export type CardChanges = Pick<MessageInitShape<typeof v1.AgentCardSchema> & object, (typeof FIELDS)[number]>;

/** A search for agents. All filters that are set must match; the paging is the client's. */
export type Search = Omit<MessageInitShape<typeof v1.FindAgentsRequestSchema>, "$typeName" | "$unknown" | "pageSize" | "pageToken">;

/** The filters of a list of agents. All that are set must match. */
export type AgentFilter = Omit<MessageInitShape<typeof v1.ListAgentsRequestSchema>, "$typeName" | "$unknown" | "pageSize" | "pageToken">;

/** One event of `Directory.watch`. */
export interface DirectoryChange {
  /** The event: an agent as it is now, the id of one that left the filter, activities, or caughtUp, once. */
  readonly event: Exclude<v1.WatchAgentsResponse["event"], { case: undefined }>;
  /** The place of the event in the order of all changes. A watch with `afterCursor` continues after it. */
  readonly cursor: bigint;
}

/** The filters of `Directory.watch`. */
export interface WatchOptions {
  /** Only changes after this cursor; default: all agents that are there, then changes. */
  afterCursor?: bigint;
  /** Only agents of this type. */
  agentType?: string;
  /** Only agents with this skill, or a more specific one. */
  skill?: string;
  /** Whether presence and load are left out. */
  cardsOnly?: boolean;
  /** Ends the watch. */
  signal?: AbortSignal;
}

/** The directory, as its agent sees it. All calls throw BatonError if the broker refuses. */
export class Directory {
  readonly #agentId: string;
  readonly #caller: Caller;
  readonly #agents: Client<typeof v1.AgentService>;

  /** @internal */
  constructor(agentId: string, caller: Caller, transport: Transport) {
    this.#agentId = agentId;
    this.#caller = caller;
    this.#agents = createClient(v1.AgentService, transport);
  }

  /**
   * Returns the agents that fit, best first, at most `limit` (default 50), each with the reasons for its rank: see `explain`.
   * Asks no agent. Only agents are found to which the policies let this one hand a task over. The order may change between two
   * pages of 1000 agents; an agent that moves back then occurs twice. Throws FIELD_INVALID, SENDER_MISMATCH or
   * PERMISSION_DENIED.
   */
  async find(search: Search, limit = 50): Promise<v1.AgentMatch[]> {
    const found: v1.AgentMatch[] = [];
    for (let pageToken = ""; found.length < limit;) {
      const request = { ...search, pageSize: Math.min(limit - found.length, PAGE_MAX), pageToken };
      const page = await this.#caller.call((options) => this.#agents.findAgents(request, options));
      found.push(...page.matches);
      pageToken = page.nextPageToken;
      if (pageToken === "") break;
    }
    return found;
  }

  /** Yields the agents that match all filters, in the order of their ids. Throws BatonError, for example FIELD_INVALID. */
  list(filter: AgentFilter = {}, options: CallOptions = {}): AsyncGenerator<v1.Agent, void> {
    return pages(async (pageToken) => {
      const request = { ...filter, pageSize: PAGE_SIZE, pageToken };
      const { agents: items, nextPageToken } = await this.#caller.call((wire) => this.#agents.listAgents(request, wire));
      return { items, nextPageToken };
    }, options);
  }

  /**
   * Returns the processes of an agent that have an open session, in the order in which they came, at most 100. Each names at
   * most 20 tasks that it works on, without those that this agent may not see. Throws BatonError, AGENT_UNKNOWN.
   */
  async processes(agentId: string): Promise<v1.Process[]> {
    const { processes } = await this.#caller.call((options) => this.#agents.listProcesses({ agentId }, options));
    return processes;
  }

  /**
   * Changes the named fields of a card, each as a whole; by default of this agent's card. With `etag` the change fails with
   * CONFLICT if the card has changed since `Agent.getAgent` returned this etag. Throws RangeError if no field is named.
   */
  async update(changes: CardChanges, { agentId = this.#agentId, etag = "" }: { agentId?: string; etag?: string } = {}): Promise<v1.Agent> {
    const paths = FIELDS.filter((field) => changes[field] !== undefined).map((field) => PATHS[field]);
    if (paths.length === 0) throw new RangeError("name at least one field to change");
    const request = { card: { ...changes, agentId }, updateMask: { paths }, etag };
    const { agent } = await this.#caller.call((options) => this.#agents.updateAgent(request, options));
    return agent ?? create(v1.AgentSchema);
  }

  /**
   * Deregisters an agent for good; by default this one. Its keys are revoked, its sessions end, and its id is never used again.
   * `force` also deregisters an agent that owns open tasks or has open handoffs, which is refused with AGENT_BUSY otherwise.
   * Repeating the call has no effect.
   */
  async deregister({ agentId = this.#agentId, force = false, reasonText = "" } = {}): Promise<v1.Agent> {
    const { agent } = await this.#caller.call((options) => this.#agents.deregisterAgent({ agentId, force, reasonText }, options));
    return agent ?? create(v1.AgentSchema);
  }

  /**
   * Yields the agents, then one `caughtUp`, then each change, until `signal` aborts. The watch continues by itself over lost
   * connections and restarts of the broker.
   */
  async *watch({ afterCursor = 0n, signal, ...filters }: WatchOptions = {}): AsyncGenerator<DirectoryChange, void> {
    let [cursor, isCaughtUp] = [afterCursor, false];
    const changes = follow(
      this.#caller,
      (options) => this.#agents.watchAgents({ ...filters, afterCursor: cursor }, options),
      () => cursor,
      signal,
    );
    for await (const change of changes) {
      if (change.cursor > cursor) cursor = change.cursor;
      const { event } = change;
      // An event of a later schema, or the second beginning of the same watch.
      if (event.case === undefined || (event.case === "caughtUp" && isCaughtUp)) continue;
      isCaughtUp ||= event.case === "caughtUp";
      yield { event, cursor: change.cursor };
    }
  }
}

/** Returns the reasons for a rank, for people: a line for the agent, and one for each factor of its score. */
export function explain({ rank, agentId, score, presence, load, factors }: v1.AgentMatch): string {
  const full = load?.isFull === true ? ", full" : "";
  const lines = [`${rank}. ${agentId}: ${score.toFixed(3)}, ${v1.Presence[presence]}${full}`];
  for (const { name, value, weight, text } of factors) {
    lines.push(`   ${name.padEnd(14)} ${value.toFixed(2)} x ${weight.toFixed(2)} = ${(value * weight).toFixed(3)}  ${text}`);
  }
  return lines.join("\n");
}
