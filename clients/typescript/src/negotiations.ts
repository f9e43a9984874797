/** Negotiations: ask for offers, counter, award; and on the other side, answer with an offer or a decline. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, timestampFromMs } from "@bufbuild/protobuf/wkt";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import type { AgentCore } from "./core.js";
import type { Delivery } from "./delivery.js";
import type { About, Payload } from "./envelopes.js";
import { BatonError, isPassing, NegotiationFailed } from "./errors.js";
import { type Caller, type CallOptions, delayOf } from "./following.js";
import { codeOf, type HandedOver, type HandOverOptions } from "./handovers.js";
import { type Conversation, unlessAborted } from "./mail.js";
import { Queue } from "./queue.js";
import { deferred, sleep } from "./session.js";
import * as v1 from "./v1.js";

const PAGE_SIZE = 200;
/** The requests for offers that are remembered for later counter-offers. */
const REQUESTS_MAX = 1024;

/** The terms of an offer, for `offerOf` and `Bid.counter`. */
export interface Terms {
  /** The confidence that the agent can do the work, from 0 to 1. */
  confidence?: number;
  /** The price, in a unit that the agents have agreed on. */
  cost?: number;
  /** The time that the work would take. */
  estimatedMs?: number;
  /** The conditions, for people. */
  conditions?: string;
  /** The time for which the offer stands; default: until the negotiation ends. */
  validMs?: number;
}

/** Returns an offer with these terms. */
export function offerOf({ confidence = 0, cost = 0, estimatedMs, conditions = "", validMs }: Terms): v1.TaskOffer {
  const estimate = estimatedMs === undefined ? {} : { estimatedDuration: durationFromMs(estimatedMs) };
  const valid = validMs === undefined ? {} : { validUntil: timestampFromMs(Date.now() + validMs) };
  return create(v1.TaskOfferSchema, { confidence, cost, conditions, ...estimate, ...valid });
}

/** An offer of a bidder. It stands until the bidder replaces or withdraws it, or either side declines. */
export class Bid {
  /** @internal */
  constructor(
    readonly negotiation: Negotiation,
    /** The bidder. */
    readonly agentId: string,
    /** The messageId of the offer. */
    readonly offerId: string,
    /** The terms. `conditions` is empty if an earlier process of the requester has read the offer. */
    readonly offer: v1.TaskOffer,
  ) {}

  /**
   * Makes a counter-offer. What is not named stays as in the offer. The bidder's answer is a further bid. Throws BatonError:
   * ROUND_LIMIT after three rounds, OFFER_NOT_STANDING, NEGOTIATION_CLOSED.
   */
  async counter(terms: Terms): Promise<v1.Receipt> {
    const { confidence, cost, estimatedDuration, round } = this.offer;
    const counter = offerOf({ confidence, cost, ...terms });
    if (terms.estimatedMs === undefined && estimatedDuration) counter.estimatedDuration = estimatedDuration;
    counter.round = round + 1;
    return this.negotiation.tell(this.agentId, counter);
  }

  /** Declines the offer, which ends the bidder's part. */
  async decline(reasonText = "", reason = v1.RejectReason.OTHER): Promise<v1.Receipt> {
    const receipt = await this.negotiation.tell(this.agentId, create(v1.TaskDeclineSchema, { reason, reasonText }));
    this.negotiation.bids.delete(this.agentId);
    return receipt;
  }
}

/** The part of an agent that negotiations use. */
export interface Negotiator extends AgentCore {
  readonly negotiations: Negotiations;
  readonly taskRequests: TaskRequests;

  handOverBy(
    award: v1.TaskAccept,
    receiverId: string,
    about: About,
    sections: readonly v1.ContextSection[],
    options: HandOverOptions,
  ): Promise<HandedOver>;
  resumeHandOver(handoffId: string, sections: readonly v1.ContextSection[], options?: CallOptions): Promise<HandedOver>;
}

/**
 * A negotiation of this agent: see `Agent.negotiate` and `Agent.resumeNegotiation`. Iterating yields each offer as it arrives,
 * also one that replaces another, until no further offers are taken.
 *
 *     await using negotiation = await alice.negotiate("all:analyst", { description: "the sums of march" });
 *     for await (const bid of negotiation) {
 *       if (bid.offer.cost > 5 && bid.offer.round === 0) await bid.counter({ cost: 5 });
 *     }
 *     const [first] = negotiation.bids.values();
 *     if (first) await negotiation.award(first);
 */
export class Negotiation implements AsyncIterable<Bid>, AsyncDisposable {
  /** The standing offers that have arrived, by bidder. */
  readonly bids = new Map<string, Bid>();
  /** The answers of the agents that make no offer, by agent. */
  readonly declines = new Map<string, v1.TaskDecline>();
  readonly #agent: Negotiator;
  readonly #mail: Conversation;
  readonly #epoch: bigint;
  readonly #terms: v1.HandoffRequest | undefined;
  readonly #seen = new Set<string>();
  readonly #new = new Queue<Bid>();
  readonly #closed = deferred<v1.Negotiation>();
  readonly #reading = new AbortController();
  #isClosed = false;

  /** @internal */
  constructor(
    agent: Negotiator,
    mail: Conversation,
    /** The id of the negotiation: the messageId of the TaskRequest. */
    readonly id: string,
    /** The task of the negotiation; empty without one. */
    readonly taskId: string,
    epoch: bigint,
    terms?: v1.HandoffRequest,
  ) {
    this.#agent = agent;
    this.#mail = mail;
    this.#epoch = epoch;
    this.#terms = terms;
    this.#closed.promise.catch(() => undefined); // no caller may be waiting for it
  }

  /** @internal Begins to read the mail, after the bids of an earlier process. */
  begin(state?: v1.Negotiation): this {
    if (state !== undefined) {
      for (const bid of state.bids) if (isStanding(bid)) this.#bid(this.#ofState(bid));
      if (state.state !== v1.NegotiationState.OPEN) this.#close(state);
    }
    this.#read().catch((error: unknown) => {
      this.#new.fail(error);
      this.#closed.reject(error as Error);
    });
    return this;
  }

  [Symbol.asyncIterator](): AsyncGenerator<Bid, void> {
    return this.#new[Symbol.asyncIterator]();
  }

  /** Ends the reading of offers. The negotiation goes on at the broker. */
  close(): void {
    this.#reading.abort();
    this.#new.close();
    this.#mail.close();
  }

  /** As `close`, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  /** Waits until no further offers are taken. Returns the state then. */
  async closed({ signal }: CallOptions = {}): Promise<v1.Negotiation> {
    return unlessAborted(this.#closed.promise, AbortSignal.any([this.#reading.signal, ...(signal ? [signal] : [])]));
  }

  /** Returns the present state of the negotiation. */
  async state(): Promise<v1.Negotiation> {
    return this.#agent.negotiations.get(this.id);
  }

  /**
   * Awards the work to an offer, as mail: no task moves. The other bidders are told. Throws BatonError: OFFER_NOT_STANDING,
   * NEGOTIATION_CLOSED.
   */
  async award({ agentId, offerId }: Bid, details = ""): Promise<v1.Receipt> {
    return this.tell(agentId, create(v1.TaskAcceptSchema, { offerId, details }));
  }

  /**
   * Awards the task of the negotiation to an offer, and hands it over to the bidder: see `Agent.handOver`. `terms` are those of
   * the handoff; by default the ones that the request for offers named.
   */
  async handOver(
    { agentId, offerId }: Bid,
    sections: readonly v1.ContextSection[],
    { terms, details = "", ...options }: { terms?: MessageInitShape<typeof v1.HandoffRequestSchema>; details?: string } & HandOverOptions = {},
  ): Promise<HandedOver> {
    const handoff = terms ?? this.#terms;
    if (handoff === undefined || this.taskId === "") throw new TypeError("a handoff needs the task of the negotiation and the terms");
    const award = create(v1.TaskAcceptSchema, { offerId, details, handoff });
    const about = { taskId: this.taskId, epoch: this.#epoch, correlationId: this.id };
    return this.#agent.handOverBy(award, agentId, about, sections, options);
  }

  /**
   * Waits for the award that the broker makes under the mandate, and gives the context to the agent that accepts. Throws
   * NegotiationFailed if no offer counts at the close, or if there is nothing to hand over; HandoffFailed if no agent takes the
   * task.
   */
  async handedOver(sections: readonly v1.ContextSection[], options: CallOptions = {}): Promise<HandedOver> {
    const { handoffId, state, errorCode, errorMessage } = await this.closed(options);
    if (handoffId === "") {
      const reason = errorCode === v1.ErrorCode.UNSPECIFIED ? v1.NegotiationState[state] : codeOf(errorCode);
      throw new NegotiationFailed(this.id, reason, errorMessage || "the broker has opened no handoff");
    }
    return this.#agent.resumeHandOver(handoffId, sections, options);
  }

  /** Cancels the negotiation, and the bidders are told. Throws BatonError, NEGOTIATION_CLOSED. */
  async cancel(): Promise<v1.Negotiation> {
    const state = await this.#agent.negotiations.cancel(this.id);
    this.#close(state);
    return state;
  }

  /** @internal */
  async tell(agentId: string, payload: Payload): Promise<v1.Receipt> {
    return this.#agent.send(agentId, { correlationId: this.id }, payload);
  }

  /** Takes the mail of the negotiation, and acks it: the broker keeps the bids, and the end. */
  async #read(): Promise<void> {
    const { signal } = this.#reading;
    const isOver = (): boolean => signal.aborted;
    for (let isLate = false; !isOver();) {
      let letter;
      try {
        letter = await this.#mail.nextWithin(this.#agent.mail.lookAfterMs, signal);
      } catch (error) {
        if (isOver()) return;
        throw error;
      }
      const type = letter?.delivery.payload?.$typeName;
      if (letter !== undefined) {
        this.#take(letter.delivery);
        await letter.finish();
      }
      const isNews = letter === undefined || type === "baton.v1.NegotiationClosed" || type === "baton.v1.ErrorNotification";
      if (!this.#isClosed && (isNews || isLate)) isLate = await this.#look(letter !== undefined);
    }
  }

  #take({ envelope, payload }: Delivery): void {
    const agentId = envelope.senderId;
    switch (payload?.$typeName) {
      case "baton.v1.TaskOffer":
        if (payload.withdrawn) this.bids.delete(agentId);
        else this.#bid(new Bid(this, agentId, envelope.messageId, payload));
        break;
      case "baton.v1.TaskDecline":
        this.bids.delete(agentId);
        this.declines.set(agentId, payload);
        break;
      default:
    }
  }

  #bid(bid: Bid): void {
    if (this.#seen.has(bid.offerId)) return;
    this.#seen.add(bid.offerId);
    this.bids.set(bid.agentId, bid);
    this.#new.push(bid);
  }

  /** Looks whether the negotiation has closed. Returns whether it has, and the mail of an offer is still due. */
  async #look(waits: boolean): Promise<boolean> {
    let state: v1.Negotiation;
    try {
      state = await this.state();
    } catch (error) {
      if (!isPassing(BatonError.of(error))) throw error;
      return false;
    }
    if (state.state === v1.NegotiationState.OPEN) return false;
    const due = state.bids.filter((bid) => isStanding(bid) && !this.#seen.has(bid.offerId));
    if (due.length > 0 && waits) return true;
    for (const bid of due) this.#bid(this.#ofState(bid));
    this.#close(state);
    return false;
  }

  #ofState({ agentId, offerId, confidence, cost, round, estimatedDuration, validUntil }: v1.NegotiationBid): Bid {
    const offer = create(v1.TaskOfferSchema, {
      confidence,
      cost,
      round,
      ...(estimatedDuration && { estimatedDuration }),
      ...(validUntil && { validUntil }),
    });
    return new Bid(this, agentId, offerId, offer);
  }

  #close(state: v1.Negotiation): void {
    this.#isClosed = true;
    this.#closed.resolve(state);
    this.#new.close();
  }
}

/** A request for an offer, or a counter-offer, for the handler `bid` of `serve`. */
export interface OfferWanted {
  readonly negotiationId: string;
  /** The agent that asks. */
  readonly requesterId: string;
  /** The request; undefined for a counter-offer to an offer that an earlier process of this agent made. */
  readonly request: v1.TaskRequest | undefined;
  /** The requester's counter-offer; undefined for the request itself. */
  readonly counter: v1.TaskOffer | undefined;
  /** The round of the answer, 0 to 3. */
  readonly round: number;
}

/** The requests for offers that this process has got, for later counter-offers. */
export class TaskRequests {
  readonly #requests = new Map<string, v1.TaskRequest>();

  /** Returns what a delivery asks for. */
  wanted({ envelope, payload }: Delivery<v1.TaskRequest | v1.TaskOffer>): OfferWanted {
    const isRequest = payload.$typeName === "baton.v1.TaskRequest";
    const negotiationId = isRequest ? envelope.messageId : envelope.correlationId;
    if (isRequest) {
      this.#requests.set(negotiationId, payload);
      if (this.#requests.size > REQUESTS_MAX) this.#requests.delete([...this.#requests.keys()][0] ?? "");
    }
    const counter = isRequest ? undefined : payload;
    const request = this.#requests.get(negotiationId);
    return { negotiationId, requesterId: envelope.senderId, request, counter, round: counter?.round ?? 0 };
  }
}

/** Whether an earlier delivery of a request or a counter-offer was answered, or needs no answer any more. */
export async function isAnswered(agent: Negotiator, delivery: Delivery, { negotiationId, counter }: OfferWanted): Promise<boolean> {
  if (delivery.attempt === 1) return false;
  const { state, bids } = await agent.negotiations.get(negotiationId);
  if (state !== v1.NegotiationState.OPEN) return true;
  const own = bids.find(({ agentId }) => agentId === agent.id);
  if (counter === undefined) return own?.state !== v1.BidState.ASKED && own?.state !== v1.BidState.UNREACHABLE;
  return own?.state !== v1.BidState.COUNTERED || own.counterOfferId !== delivery.envelope.messageId;
}

/** Reading and cancelling negotiations, as an agent sees them. All calls throw BatonError if the broker refuses. */
export class Negotiations {
  readonly #caller: Caller;
  readonly #service: Client<typeof v1.NegotiationService>;

  /** @internal */
  constructor(caller: Caller, transport: Transport) {
    this.#caller = caller;
    this.#service = createClient(v1.NegotiationService, transport);
  }

  /** Returns a negotiation. A bidder sees its own bid alone. */
  async get(negotiationId: string): Promise<v1.Negotiation> {
    const { negotiation } = await this.#caller.call((options) => this.#service.getNegotiation({ negotiationId }, options));
    return negotiation ?? create(v1.NegotiationSchema);
  }

  /** Yields the negotiations that match all filters, the newest first, without their bids. */
  async *list(filter: { agentId?: string; states?: v1.NegotiationState[] } = {}): AsyncGenerator<v1.Negotiation, void> {
    let pageToken = "";
    do {
      const request = { ...filter, pageSize: PAGE_SIZE, pageToken };
      const page = await this.#caller.call((options) => this.#service.listNegotiations(request, options));
      yield* page.negotiations;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /**
   * Yields the negotiation at present and after each step, to its end or until `signal` aborts. After a lost connection the
   * watch begins again with the present state.
   */
  async *watch(negotiationId: string, { signal }: CallOptions = {}): AsyncGenerator<v1.Negotiation, void> {
    const over = AbortSignal.any([this.#caller.life, ...(signal ? [signal] : [])]);
    const isOver = (): boolean => over.aborted;
    for (let attempt = 0; !isOver(); attempt++) {
      let delayMs = 0;
      try {
        const stream = this.#caller.stream((options) => this.#service.watchNegotiation({ negotiationId }, options), over);
        for await (const { negotiation } of stream) {
          if (negotiation === undefined) continue;
          attempt = 0;
          yield negotiation;
          if (isFinal(negotiation.state)) return;
        }
      } catch (caught) {
        const error = BatonError.of(caught);
        if (!isOver() && !isPassing(error)) throw error;
        delayMs = error.retryDelayMs ?? 0;
      }
      if (!isOver()) await sleep(Math.max(delayMs, delayOf(attempt)), over).catch(() => undefined);
      if (this.#caller.life.aborted) throw this.#caller.life.reason;
    }
  }

  /** Cancels a negotiation of this agent that is not awarded. Throws NEGOTIATION_CLOSED. */
  async cancel(negotiationId: string): Promise<v1.Negotiation> {
    const { negotiation } = await this.#caller.call((options) => this.#service.cancelNegotiation({ negotiationId }, options));
    return negotiation ?? create(v1.NegotiationSchema);
  }
}

function isStanding({ state }: v1.NegotiationBid): boolean {
  return state === v1.BidState.OFFERED || state === v1.BidState.COUNTERED;
}

function isFinal(state: v1.NegotiationState): boolean {
  const { SETTLED, FAILED, CANCELLED } = v1.NegotiationState;
  return [SETTLED, FAILED, CANCELLED].includes(state);
}
