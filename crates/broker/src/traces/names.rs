//! The names of spans, of their attributes and of their links. docs/traces.md lists them.
//!
//! The conventions of OpenTelemetry have names for messaging and for agents, and none for a handoff: those are `baton.*`.
//! Names of spans are fixed words; ids are attributes.

/// The span of a handoff, from its request to its end.
pub(super) const HANDOFF: &str = "handoff";
/// The span of one offer of a handoff that has several.
pub(super) const OFFER: &str = "offer";
/// The span of one delivery attempt of a message that needed several.
pub(super) const DELIVERY: &str = "delivery";
/// The moment at which a lent task goes back to its delegator.
pub(super) const RECALL: &str = "recall";
/// The span of a request for offers.
pub(super) const NEGOTIATION: &str = "negotiation";
/// The span of a round of a plan.
pub(super) const PLAN: &str = "plan";

pub(super) const SYSTEM: &str = "messaging.system";
pub(super) const OPERATION_NAME: &str = "messaging.operation.name";
pub(super) const DESTINATION: &str = "messaging.destination.name";
pub(super) const MESSAGE_ID: &str = "messaging.message.id";
pub(super) const MESSAGE_CONVERSATION: &str = "messaging.message.conversation_id";
pub(super) const AGENT: &str = "gen_ai.agent.id";
pub(super) const CONVERSATION: &str = "gen_ai.conversation.id";

pub(super) const TASK: &str = "baton.task.id";
pub(super) const EPOCH: &str = "baton.task.epoch";
pub(super) const HANDOFF_ID: &str = "baton.handoff.id";
pub(super) const HANDOFF_STATE: &str = "baton.handoff.state";
pub(super) const HANDOFF_MODE: &str = "baton.handoff.mode";
pub(super) const NEGOTIATION_ID: &str = "baton.negotiation.id";
pub(super) const PLAN_ID: &str = "baton.plan.id";
pub(super) const OUTCOME: &str = "baton.outcome";
pub(super) const REASON: &str = "baton.reason";
pub(super) const SENDER: &str = "baton.sender.id";
pub(super) const RECEIVER: &str = "baton.receiver.id";
pub(super) const ATTEMPT: &str = "baton.attempt";
/// Why a span links to another one: [`REDRIVE`], [`AWARD`], [`SUBTASK`], [`REOFFER`], [`REDELIVERY`] or [`RECALL`].
pub(super) const LINK: &str = "baton.link";

/// To the handoff that an operator redrove.
pub(super) const REDRIVE: &str = "redrive";
/// To the negotiation whose award the handoff is.
pub(super) const AWARD: &str = "award";
/// To the plan whose subtask the handoff starts.
pub(super) const SUBTASK: &str = "subtask";
/// To the offer before this one.
pub(super) const REOFFER: &str = "reoffer";
/// To the delivery attempt before this one.
pub(super) const REDELIVERY: &str = "redelivery";
