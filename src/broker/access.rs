//! Who may do what. One place, so that a policy can take its seat here.
//!
//! Owns the decision; must not know how a caller has proven who it is.

use super::{BrokerError, Enrollment};
use crate::{
    domain::handoff::{Handoff, Task},
    ids::AgentId,
    records::DeadLetterRecord,
};

/// Who makes a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Nobody knows.
    Anonymous,
    /// An agent that has proven who it is.
    Agent(AgentId),
    /// An operator, by name: by a token that says it, or by the broker's own operator token.
    Operator(String),
}

impl Caller {
    /// The agent, where only an agent can call.
    pub fn agent(&self) -> Result<&AgentId, BrokerError> {
        match self {
            Self::Agent(agent) => Ok(agent),
            Self::Anonymous => Err(BrokerError::IdentityMissing),
            Self::Operator(_) => Err(denied(self, "do this: it is for an agent, with the agent's own token")),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Anonymous => "a caller without an identity".to_owned(),
            Self::Agent(agent) => format!("agent {agent}"),
            Self::Operator(name) => name.clone(),
        }
    }
}

/// The rules of this broker.
#[derive(Debug, Clone, Copy)]
pub struct Access(pub Enrollment);

impl Access {
    /// Whether the caller may register a new agent under this id.
    pub fn may_enroll(self, caller: &Caller) -> Result<(), BrokerError> {
        match self.0 {
            Enrollment::Open => Ok(()),
            Enrollment::Operator => operators_only(caller, "register a new agent; an operator may"),
        }
    }

    /// Whether the caller may invite agents.
    pub fn may_invite(self, caller: &Caller) -> Result<(), BrokerError> {
        operators_only(caller, "invite agents; an operator may")
    }

    /// Whether the caller may change the card of an agent that is registered.
    pub fn may_change_card(self, caller: &Caller, agent: &AgentId) -> bool {
        match caller {
            Caller::Operator(_) => true,
            Caller::Agent(caller) => caller == agent,
            Caller::Anonymous => false,
        }
    }

    /// Whether the caller may look at the directory.
    pub fn may_see_directory(self, caller: &Caller) -> Result<(), BrokerError> {
        match (self.0, caller) {
            (Enrollment::Open, _) | (_, Caller::Agent(_) | Caller::Operator(_)) => Ok(()),
            (Enrollment::Operator, Caller::Anonymous) => Err(BrokerError::IdentityMissing),
        }
    }

    /// Whether the caller may look at this handoff: one that it takes or took part in, or any as an operator.
    pub fn may_see_handoff(self, caller: &Caller, handoff: &Handoff) -> Result<(), BrokerError> {
        self.may_see(caller, "look at this handoff", |agent| {
            handoff.sender == *agent || handoff.offers.iter().any(|offer| offer.candidate == *agent)
        })
    }

    /// Whether the caller may look at this task: one that it owns or owned, or any as an operator.
    pub fn may_see_task(self, caller: &Caller, task: &Task) -> Result<(), BrokerError> {
        self.may_see(caller, "look at this task", |agent| {
            task.owner == *agent || task.hops.iter().any(|hop| hop.sender == *agent || hop.receiver == *agent)
        })
    }

    /// Whether the caller may look at this dead letter: one that it sent or was to receive, or any as an operator.
    pub fn may_see_dead_letter(self, caller: &Caller, dead: &DeadLetterRecord) -> Result<(), BrokerError> {
        self.may_see(caller, "look at this dead letter", |agent| {
            dead.agent == *agent || dead.summary.sender_id == agent.as_str()
        })
    }

    /// Whether the caller may decide what becomes of dead letters. Returns its name, for the record.
    pub fn may_settle_dead_letters(self, caller: &Caller) -> Result<String, BrokerError> {
        operators_only(caller, "redrive or discard dead letters; an operator may")?;
        Ok(caller.name())
    }

    fn may_see(self, caller: &Caller, action: &str, takes_part: impl Fn(&AgentId) -> bool) -> Result<(), BrokerError> {
        match (self.0, caller) {
            (Enrollment::Open, _) | (_, Caller::Operator(_)) => Ok(()),
            (Enrollment::Operator, Caller::Anonymous) => Err(BrokerError::IdentityMissing),
            (Enrollment::Operator, Caller::Agent(agent)) if takes_part(agent) => Ok(()),
            (Enrollment::Operator, Caller::Agent(_)) => Err(denied(caller, action)),
        }
    }
}

fn operators_only(caller: &Caller, action: &str) -> Result<(), BrokerError> {
    match caller {
        Caller::Operator(_) => Ok(()),
        Caller::Anonymous => Err(BrokerError::IdentityMissing),
        Caller::Agent(_) => Err(denied(caller, action)),
    }
}

fn denied(caller: &Caller, action: &str) -> BrokerError {
    BrokerError::PermissionDenied { caller: caller.name(), action: action.to_owned() }
}
