//! Who may do what: what the broker's things are to a policy, and the policy's word as an answer.
//!
//! Must not know how a caller has proven who it is.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{
    BrokerError,
    directory::{Directory, Entry},
};
use crate::{
    domain::handoff::{Handoff, Task},
    faults::{Fault, is_on},
    ids::{AgentId, AgentType},
    policy::{Action, Agent, Decision, Policies, Principal, Question, Resource, Shared},
    records::DeadLetterRecord,
};

/// The operator whose token lies in the broker's data folder. No other token can have this name.
pub const LOCAL_OPERATOR: &str = "operator.token";

/// Who makes a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Nobody knows.
    Anonymous,
    /// An agent that has proven who it is.
    Agent(AgentId),
    /// An operator, by name: the `sub` of its token, or [`LOCAL_OPERATOR`].
    Operator(String),
}

impl Caller {
    /// The agent, where only an agent can call.
    pub fn agent(&self) -> Result<&AgentId, BrokerError> {
        match self {
            Self::Agent(agent) => Ok(agent),
            Self::Anonymous => Err(BrokerError::IdentityMissing),
            Self::Operator(_) => Err(BrokerError::AgentsOnly { caller: self.to_string() }),
        }
    }
}

/// As it stands in records of what was done.
impl std::fmt::Display for Caller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Anonymous => formatter.write_str("a caller without an identity"),
            Self::Agent(agent) => write!(formatter, "agent {agent}"),
            Self::Operator(name) => write!(formatter, "operator {name}"),
        }
    }
}

/// What was denied, to whom, and by which rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// Who asked.
    pub principal: String,
    /// For what, with what it was about.
    pub action: String,
    /// The action's name.
    pub action_name: &'static str,
    /// To what.
    pub resource: String,
    /// Why not.
    pub decision: Arc<Decision>,
}

impl std::fmt::Display for Denied {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { principal, action, resource, decision, .. } = self;
        write!(formatter, "{principal} may not {action} on {resource}: {decision}")
    }
}

/// The rules of this broker, over who there is.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    /// The policies. They may change between two questions.
    pub policies: &'a ArcSwap<Policies>,
    /// Who there is.
    pub directory: &'a Directory,
}

impl Access<'_> {
    /// Whether the caller may do this to that.
    pub fn check(self, caller: &Caller, action: Action<'_>, resource: Resource<'_>) -> Result<(), BrokerError> {
        match caller {
            Caller::Anonymous => self.decide(Principal::Anonymous, action, resource),
            Caller::Operator(name) => self.decide(Principal::Operator(name), action, resource),
            Caller::Agent(id) => {
                let entry = self.directory.get(id);
                let types = entry.as_ref().map_or(&[][..], |entry| &entry.types);
                self.decide(Principal::Agent(Agent { id: id.as_str(), types }), action, resource)
            }
        }
    }

    /// Whether one agent may hand a task of this type to another.
    pub fn may_hand_off(
        self,
        from: &Entry,
        to: &Entry,
        task_type: &str,
        mode: &'static str,
    ) -> Result<(), BrokerError> {
        self.decide(from.principal(), Action::HandOff { task_type, mode }, Resource::Agent(to.as_asked()))
    }

    /// Whether one agent may write to another.
    pub fn may_send(self, from: &Entry, to: &Entry, message_type: &str) -> Result<(), BrokerError> {
        self.decide(from.principal(), Action::Send { message_type }, Resource::Agent(to.as_asked()))
    }

    /// Whether an agent may write to all of a type.
    pub fn may_send_to_all(self, from: &Entry, to: &AgentType, message_type: &str) -> Result<(), BrokerError> {
        self.decide(from.principal(), Action::SendToAll { message_type }, Resource::Type(to.as_str()))
    }

    /// Whether the caller may look at the directory.
    pub fn may_see_directory(self, caller: &Caller) -> Result<(), BrokerError> {
        self.check(caller, Action::ReadDirectory, Resource::Broker)
    }

    /// Whether the caller may look at this handoff.
    pub fn may_see_handoff(self, caller: &Caller, handoff: &Handoff) -> Result<(), BrokerError> {
        let offered = handoff.offers.iter().map(|offer| offer.candidate.as_str());
        let participants: Vec<&str> = std::iter::once(handoff.sender.as_str()).chain(offered).collect();
        let id = handoff.id.to_string();
        let shared = Shared { id: &id, participants: &participants };
        self.check(caller, Action::ReadHandoff, Resource::Handoff(shared))
    }

    /// Whether the caller may look at this task.
    pub fn may_see_task(self, caller: &Caller, task: &Task) -> Result<(), BrokerError> {
        let passed = task.hops.iter().flat_map(|hop| [hop.sender.as_str(), hop.receiver.as_str()]);
        let participants: Vec<&str> = std::iter::once(task.owner.as_str()).chain(passed).collect();
        let shared = Shared { id: task.id.as_str(), participants: &participants };
        self.check(caller, Action::ReadTask, Resource::Task(shared))
    }

    /// Whether the caller may look at this dead letter.
    pub fn may_see_dead_letter(self, caller: &Caller, dead: &DeadLetterRecord) -> Result<(), BrokerError> {
        self.about_dead_letter(caller, Action::ReadDeadLetter, dead)
    }

    /// Whether the caller may decide what becomes of this dead letter.
    pub fn may_settle_dead_letter(self, caller: &Caller, dead: &DeadLetterRecord) -> Result<(), BrokerError> {
        if is_on(Fault::LetsAnybodySettle) {
            return Ok(());
        }
        self.about_dead_letter(caller, Action::SettleDeadLetter, dead)
    }

    fn about_dead_letter(
        self,
        caller: &Caller,
        action: Action<'_>,
        dead: &DeadLetterRecord,
    ) -> Result<(), BrokerError> {
        let id = dead.number.to_string();
        let shared = Shared { id: &id, participants: &[dead.agent.as_str(), &dead.summary.sender_id] };
        self.check(caller, action, Resource::DeadLetter(shared))
    }

    fn decide(self, principal: Principal<'_>, action: Action<'_>, resource: Resource<'_>) -> Result<(), BrokerError> {
        let decision = self.policies.load().decide(&Question { principal, action, resource });
        if decision.is_allowed {
            return Ok(());
        }
        if principal == Principal::Anonymous {
            return Err(BrokerError::IdentityMissing);
        }
        Err(BrokerError::PermissionDenied(Box::new(Denied {
            principal: principal.to_string(),
            action: action.to_string(),
            action_name: action.name(),
            resource: resource.to_string(),
            decision,
        })))
    }
}

impl Entry {
    /// As policies see it.
    pub fn as_asked(&self) -> Agent<'_> {
        Agent { id: &self.record.card.agent_id, types: &self.types }
    }

    fn principal(&self) -> Principal<'_> {
        Principal::Agent(self.as_asked())
    }
}

impl std::fmt::Debug for Access<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "access by {:?}", self.policies.load())
    }
}
