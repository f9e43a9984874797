import { Code } from "@connectrpc/connect";
import type { Delivery } from "./delivery.js";
import { BROKER_ID, type Payload } from "./envelopes.js";
import { create } from "@bufbuild/protobuf";
import { BatonError, isPassing } from "./errors.js";
import { type ContextProvider, provideContext, unclaimed } from "./handovers.js";
import { type HandlerContext, Later, Poison } from "./jobs.js";
import { LATER_MS } from "./mail.js";
import { isAnswered, type Negotiator, type OfferWanted } from "./negotiations.js";
import { type OfferHandler, takeOffer } from "./offers.js";
import { type Question, questionOf } from "./questions.js";
import { type Recalled, takenBy } from "./recalls.js";
import type { TaskOwner } from "./tasks.js";
import { inTrace } from "./traces.js";
import { NegotiationState, RejectReason, TaskDeclineSchema, type TaskDecline, type TaskOffer, type TaskRequest } from "./v1.js";

type Named<Name extends string> = Extract<Payload, { $typeName: `baton.v1.${Name}` }>;
type Handler<Name extends string> = (payload: Named<Name>, delivery: Delivery, context: HandlerContext) => unknown;

/**
 * One function for each role of the agent and one for each kind of message. When its promise resolves, the message is acked.
 * When it throws, the message is nacked: as FAILURE, so that it is redelivered, or as `Poison` and `RetryAfter` say. A refusal
 * because the handoff has moved on (`hasGoneOn`) acks.
 *
 * Mail that `handOver`, `resumeHandOver`, `delegate` or an offer waits for goes there instead. A function for a kind of message
 * takes precedence over `offer` and `context`, and these over `other`. Without a function:
 *
 * - a handoffRequest, and an award with a task, is rejected as NO_SKILL; a taskRequest is declined so;
 * - a handoffAccept or taskContextTransfer of a handoff that an earlier process of this agent began is redelivered every two
 *   seconds while the handoff is open, so that `resumeHandOver` or another process can continue it, and then acked;
 * - a taskOffer is redelivered every two seconds while its negotiation is open, for `resumeNegotiation`, and then acked;
 * - a taskAccept without a task, or a delegation, and a type unknown to this version, is nacked as POISON, and the broker
 *   keeps it as a dead letter;
 * - a notice is acked.
 */
export interface Handlers {
  /**
   * Accepts or rejects the handoffs that are offered to this agent, also offers accepted by an earlier process of it. Its
   * promise resolves after it has rejected, completed or failed the handoff; an earlier resolution counts as a failure.
   */
  offer?: OfferHandler;
  /**
   * Returns the context for a candidate that has accepted, if no `handOver` or `resumeHandOver` of this process waits for the
   * accept. With it a handoff that an earlier process requested continues.
   */
  context?: ContextProvider;
  /**
   * Learns of a task that was taken from this agent: see `Recalled`. Before it is called, `OwnedTask.signal` and the signal of
   * the offer that works on the task have aborted, and `handOver` and `delegate` of the task have thrown. Without it the notice
   * goes to errorNotification.
   */
  recalled?: (recalled: Recalled, context: HandlerContext) => unknown;
  /**
   * Answers questions to this agent: see `Question`. A handler that returns without an answer leaves the question open. Without
   * it a question goes to taskStatusUpdate.
   */
  prompt?: (question: Question, context: HandlerContext) => unknown;
  /**
   * Answers requests for offers, and counter-offers, with an offer or a decline; `serve` sets the round. An award with a task
   * goes to `offer`; the others go to taskAccept and negotiationClosed.
   */
  bid?: (wanted: OfferWanted, context: HandlerContext) => TaskOffer | TaskDecline | Promise<TaskOffer | TaskDecline>;
  handoffRequest?: Handler<"HandoffRequest">;
  handoffAccept?: Handler<"HandoffAccept">;
  handoffReject?: Handler<"HandoffReject">;
  handoffCancel?: Handler<"HandoffCancel">;
  taskContextTransfer?: Handler<"TaskContextTransfer">;
  handoffComplete?: Handler<"HandoffComplete">;
  taskStatusUpdate?: Handler<"TaskStatusUpdate">;
  taskInput?: Handler<"TaskInput">;
  errorNotification?: Handler<"ErrorNotification">;
  taskRequest?: Handler<"TaskRequest">;
  taskOffer?: Handler<"TaskOffer">;
  taskAccept?: Handler<"TaskAccept">;
  taskDecline?: Handler<"TaskDecline">;
  negotiationClosed?: Handler<"NegotiationClosed">;
  delegation?: Handler<"Delegation">;
  info?: Handler<"Info">;
  /** Handles each message without a handler of its own. */
  other?: (delivery: Delivery, context: HandlerContext) => unknown;
}

const ASKS = new Set(["TaskAccept", "Delegation"]);

/** Gives a delivery to its handler, which continues the trace of the delivery. */
export function handle(agent: TaskOwner & Negotiator, handlers: Handlers, delivery: Delivery, context: HandlerContext): Promise<void> {
  return inTrace(delivery.traceContext, () => give(agent, handlers, delivery, context));
}

async function give(agent: TaskOwner & Negotiator, handlers: Handlers, delivery: Delivery, context: HandlerContext): Promise<void> {
  const name = delivery.payload?.$typeName.replace("baton.v1.", "");
  const key = name && ((name.charAt(0).toLowerCase() + name.slice(1)) as keyof Handlers);
  const handler = key && (handlers[key] as ((...args: unknown[]) => unknown) | undefined);
  const isAward = name !== "HandoffRequest" && delivery.handoffRequest !== undefined;
  const isOffer = name === "HandoffRequest" || name === "TaskContextTransfer" || isAward;
  const isCall = name === "TaskRequest" || name === "TaskOffer";
  const recalled = handlers.recalled && takenBy(delivery);
  const question = handlers.prompt && questionOf(agent, delivery);
  if (question) await handlers.prompt?.(question, context);
  else if (recalled) await handlers.recalled?.(recalled, context);
  else if (handler && !(isAward && handlers.offer)) await handler(delivery.payload, delivery, context);
  else if (isCall && handlers.bid) await bid(agent, delivery as Delivery<TaskRequest | TaskOffer>, handlers.bid, context);
  else if (isOffer && handlers.offer) await takeOffer(agent, delivery, handlers.offer, context);
  else if (name === "HandoffAccept" && handlers.context) await provideContext(agent, delivery, handlers.context, context);
  else if (handlers.other) await handlers.other(delivery, context);
  else if (name === "HandoffRequest" || isAward) {
    await agent.reject(delivery, { reason: RejectReason.NO_SKILL, reasonText: "this agent takes no handoffs" });
  } else if (name === "TaskRequest") {
    const decline = create(TaskDeclineSchema, { reason: RejectReason.NO_SKILL, reasonText: "this agent makes no offers" });
    await agent.send(delivery.envelope.senderId, { correlationId: delivery.envelope.messageId }, decline);
  } else if (name === "TaskOffer") {
    await unread(agent, delivery);
  } else if (name === "HandoffAccept" || name === "TaskContextTransfer") await unclaimed(agent, delivery);
  else if (name === "Info" && delivery.envelope.senderId === BROKER_ID) {
    return; // a letter about a run tells what `Run.state` shows too
  } else if (name === undefined || ASKS.has(name)) {
    throw new Poison(`this agent has no handler for ${name ?? `message type ${delivery.envelope.messageType}`}`);
  }
}

/** Answers a request for offers, or a counter-offer, by the handler's offer or decline. */
async function bid(
  agent: Negotiator,
  delivery: Delivery<TaskRequest | TaskOffer>,
  handler: NonNullable<Handlers["bid"]>,
  context: HandlerContext,
): Promise<void> {
  const wanted = agent.taskRequests.wanted(delivery);
  if (await isAnswered(agent, delivery, wanted)) return;
  const answer = await handler(wanted, context);
  if (answer.$typeName === "baton.v1.TaskOffer") answer.round = wanted.round;
  await agent.send(wanted.requesterId, { correlationId: wanted.negotiationId }, answer, { signal: context.signal });
}

/** Has an offer that no negotiation of this process reads redelivered while its negotiation is open. */
async function unread(agent: Negotiator, { envelope }: Delivery): Promise<void> {
  try {
    if ((await agent.negotiations.get(envelope.correlationId)).state !== NegotiationState.OPEN) return;
  } catch (error) {
    if (!isPassing(BatonError.of(error))) return;
  }
  throw new Later(LATER_MS, "no call of this agent waits for offers yet");
}

/** The error of every call after `close`. */
export function closedError(): BatonError {
  return new BatonError(Code.Canceled, "the agent is closed");
}
