//! The fields of an envelope beside its payload, in the types of the domain.

use std::fmt;

use super::{
    TraceContext,
    message_rules::{Handling, MessageRules, MessageType, rules},
};
use crate::{
    ids::{AgentId, AgentType, IdError, MessageId, TaskId},
    time::Timestamp,
};

/// The checked fields of an envelope beside its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The idempotency key.
    pub message_id: MessageId,
    /// The agent that sent the envelope.
    pub sender: AgentId,
    /// The agents that the envelope is addressed to.
    pub receiver: Receiver,
    /// The time at which the sender made the envelope, by the sender's clock.
    pub timestamp: Timestamp,
    /// The type of the payload.
    pub message_type: MessageType,
    /// The handoff that the envelope belongs to, or the message that it answers.
    pub correlation: Option<MessageId>,
    /// The task that the envelope is about. Set if the rules of its type require one.
    pub task: Option<TaskId>,
    /// The task's epoch in the sender's view, from 1. 0: the envelope has no epoch.
    pub epoch: u64,
    /// The time from which on the broker no longer delivers the envelope.
    pub expires_at: Option<Timestamp>,
    /// The sender's trace context, if the envelope has a valid one. Not signed.
    pub trace: Option<Box<TraceContext>>,
}

impl Header {
    /// The rules of the envelope's type.
    pub const fn rules(&self) -> MessageRules {
        rules(self.message_type)
    }

    /// The handoff that the envelope is about: a request's own handoff, or the one that the correlation names. A
    /// message that moves a task is about no handoff. Neither is mail: its correlation only decides whether the sender is
    /// a participant.
    pub const fn handoff(&self) -> Option<MessageId> {
        match self.rules().handling {
            Handling::Request => Some(self.message_id),
            // An accept with a task is the request of its handoff.
            Handling::Negotiation if matches!(self.message_type, MessageType::TaskAccept) && self.task.is_some() => {
                Some(self.message_id)
            }
            Handling::Handoff | Handling::Status => self.correlation,
            Handling::Task
            | Handling::Negotiation
            | Handling::Heartbeat
            | Handling::Workspace
            | Handling::Plan
            | Handling::Mail => None,
        }
    }
}

/// The receiver of an envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receiver {
    /// No receiver; only for messages that the broker takes for itself or tells further.
    Absent,
    /// One agent.
    Agent(AgentId),
    /// Any one agent of this type.
    AnyOf(AgentType),
    /// Every agent of this type.
    AllOf(AgentType),
}

impl Receiver {
    /// Parses a `receiver_id`. An empty text is [`Receiver::Absent`].
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if text.is_empty() {
            return Ok(Self::Absent);
        }
        match text.split_once(':') {
            Some(("type", name)) => AgentType::parse(name).map(Self::AnyOf),
            Some(("all", name)) => AgentType::parse(name).map(Self::AllOf),
            // Names have no colon (SPEC 1), so a text with another prefix fails here.
            Some(_) | None => AgentId::parse(text).map(Self::Agent),
        }
    }
}

impl fmt::Display for Receiver {
    /// Writes the text of `receiver_id`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => Ok(()),
            Self::Agent(agent) => agent.fmt(formatter),
            Self::AnyOf(agent_type) => write!(formatter, "type:{agent_type}"),
            Self::AllOf(agent_type) => write!(formatter, "all:{agent_type}"),
        }
    }
}
