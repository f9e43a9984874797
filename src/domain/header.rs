//! What an envelope says beside its payload, in the words of the domain.

use std::fmt;

use super::message_rules::{Handling, MessageRules, MessageType, rules};
use crate::{
    ids::{AgentId, AgentType, IdError, MessageId, TaskId},
    time::Timestamp,
};

/// What an envelope says beside its payload, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The idempotency key.
    pub message_id: MessageId,
    /// The agent that sent it.
    pub sender: AgentId,
    /// The agents that it is for.
    pub receiver: Receiver,
    /// When it was made, by its sender's clock.
    pub timestamp: Timestamp,
    /// What it carries.
    pub message_type: MessageType,
    /// The handoff it belongs to, or the message it answers.
    pub correlation: Option<MessageId>,
    /// The task it is about. Set if the rules of its type say so.
    pub task: Option<TaskId>,
    /// The task's epoch as its sender knows it, from 1; 0 if the envelope says none.
    pub epoch: u64,
    /// The moment from which on it is not delivered any more.
    pub expires_at: Option<Timestamp>,
}

impl Header {
    /// The rules of its type.
    pub const fn rules(&self) -> MessageRules {
        rules(self.message_type)
    }

    /// The handoff that it is about: a request's own, or the one that the correlation names. Mail is about none: its
    /// correlation says no more than who takes part.
    pub const fn handoff(&self) -> Option<MessageId> {
        match self.rules().handling {
            Handling::Request => Some(self.message_id),
            Handling::Handoff | Handling::Status => self.correlation,
            Handling::Heartbeat | Handling::Mail => None,
        }
    }
}

/// The agents that an envelope is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receiver {
    /// None in particular; only for status updates and heartbeats.
    Nobody,
    /// One agent.
    Agent(AgentId),
    /// Any one agent of this type.
    AnyOf(AgentType),
    /// Every agent of this type.
    AllOf(AgentType),
}

impl Receiver {
    /// Parses a receiver_id.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if text.is_empty() {
            return Ok(Self::Nobody);
        }
        match text.split_once(':') {
            Some(("type", name)) => AgentType::parse(name).map(Self::AnyOf),
            Some(("all", name)) => AgentType::parse(name).map(Self::AllOf),
            Some(_) | None => AgentId::parse(text).map(Self::Agent),
        }
    }
}

impl fmt::Display for Receiver {
    /// As it stands in receiver_id.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => Ok(()),
            Self::Agent(agent) => agent.fmt(formatter),
            Self::AnyOf(agent_type) => write!(formatter, "type:{agent_type}"),
            Self::AllOf(agent_type) => write!(formatter, "all:{agent_type}"),
        }
    }
}
