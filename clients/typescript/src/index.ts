/**
 * Agents for the baton handoff broker: see `Agent`. The messages of the schema are in `v1`.
 */
export { Agent, type AgentOptions, type CallOptions, type KeyCallOptions } from "./agent.js";
export { Delivery } from "./delivery.js";
export { type About, bytesSection, jsonSection, makeEnvelope, newMessageId, type Payload, payloadOf } from "./envelopes.js";
export { BatonError, type FieldViolation, HandoffFailed, hasGoneOn, NoAnswer, type RecallReason, type Rejection, TaskRecalled, VerificationError } from "./errors.js";
export { type ContextProvider, type HandedOver, type OnView, OwnedTask, type WantedContext } from "./handovers.js";
export { generateKey, loadKey, publicBytes, saveKey } from "./keys.js";
export { type DelegateOptions, LOAN_TIMEOUT_MS, type Outcome, type Recalled } from "./loans.js";
export { Offer, type OfferHandler, Takeover } from "./offers.js";
export { type Answer, type AskOptions, Question } from "./questions.js";
export { type HandlerContext, type Handlers, HandlerTimeout, Poison, RetryAfter, Stopped } from "./serve.js";
export {
  auditHash,
  contextDigest,
  custodyHash,
  sectionDigest,
  signEnvelope,
  verifyEnvelope,
  verifyReceipt,
  verifyVoucher,
  vouch,
} from "./signing.js";
export * as v1 from "./v1.js";
