/**
 * Agents for the baton handoff broker: see `Agent`. The messages of the schema are in `v1`.
 */
export { Agent, type AgentOptions, type ServeOptions } from "./agent.js";
export { type BlobOptions, type BlobRange, blobReference, Blobs, type OnProgress } from "./blobs.js";
export { Contexts } from "./contexts.js";
export { Delivery, type Waiting } from "./delivery.js";
export { type AgentFilter, type CardChanges, Directory, type DirectoryChange, explain, type Search, type WatchOptions } from "./directory.js";
export { type About, bytesSection, jsonSection, makeEnvelope, newMessageId, type Payload, payloadOf } from "./envelopes.js";
export { type Environment, type EnvironmentOptions, optionsFromEnv } from "./environment.js";
export { BatonError, type FieldViolation, Gap, HandoffFailed, hasGoneOn, NegotiationFailed, NoAnswer, type RecallReason, type Rejection, TaskRecalled, VerificationError } from "./errors.js";
export { type CallOptions, type KeyCallOptions } from "./following.js";
export { type ContextProvider, type HandedOver, type HandOverOptions, type OnView, type WantedContext } from "./handovers.js";
export { type HandlerContext, HandlerTimeout, Poison, RetryAfter, Stopped } from "./jobs.js";
export {
  checkHistory, HISTORY_SCHEMA_ID, HISTORY_SCHEMA_VERSION, type HistoryCall, type HistoryEntry, HistoryError, type HistoryPart, historySection, latestOf, settled, withoutToolCalls,
} from "./history.js";
export { type JsonObject, jsonText, type JsonValue, parseJson } from "./json.js";
export { generateKey, loadKey, publicBytes, saveKey } from "./keys.js";
export { type DelegateOptions, LOAN_TIMEOUT_MS, type Outcome, type WaitForLoanOptions } from "./loans.js";
export { WaitedFor } from "./mail.js";
export { Bid, Negotiation, Negotiations, offerOf, type OfferWanted, type Terms } from "./negotiations.js";
export { Offer, type OfferHandler, Takeover } from "./offers.js";
export { AuditLog, DeadLetters, type RedriveOptions } from "./operators.js";
export { type Element, Plan, type PlanInit, Plans, type SubtaskInit, type SubtaskInputs } from "./plans.js";
export { type OnProgress as OnTaskProgress, type UpdateSource } from "./progress.js";
export { type Answer, type AskOptions, Question } from "./questions.js";
export { type Recalled } from "./recalls.js";
export { type NodeTools, Routing, Run, Step, type ToolShapeName, type TurnReport } from "./runs.js";
export { type RegistrationChange, Registrations } from "./registrations.js";
export { Schemas } from "./schemas.js";
export { type Handlers } from "./serve.js";
export {
  fromAnthropic,
  fromGemini,
  fromLangChain,
  fromOpenAIChat,
  fromOpenAIResponses,
  type Prompted,
  type ShapedMessage,
  toAnthropic,
  toGemini,
  toLangChain,
  toOpenAIChat,
  toOpenAIResponses,
} from "./shapes.js";
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
export { OwnedTask } from "./tasks.js";
export { Thread, ThreadRun, Threads, type ThreadStep } from "./threads.js";
export { currentTrace, inTrace } from "./traces.js";
export { type StatusUpdate } from "./updates.js";
export { type HistoryMessage, type ModelTurn, readTurn, type ResponseShape } from "./turns.js";
export { type HandoffChange, type HandoffFilter, HandoffRecords, type HandoffWatch, type TaskEvent, type TaskFilter, Tasks } from "./watching.js";
export { type Entry, type EntryValue, type ReadOptions, Workspace } from "./workspace.js";
export * as v1 from "./v1.js";
