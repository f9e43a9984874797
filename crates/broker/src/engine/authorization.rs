//! The policy checks of messages: the agents that may be asked to take a task, and the agents that may be written to.
//!
//! The policy must permit a receiver that the sender names, or the message is refused. A type stands for its permitted
//! agents; the message is refused if the type has agents and none is permitted.

use super::{Engine, resolution::receiver_unknown};
use crate::{
    BrokerError,
    access::Caller,
    domain::{
        Header,
        handoff::{Handoff, Mode},
        negotiation::Mandate,
    },
    envelope::RequestBody,
    ids::{AgentId, AgentType},
};

/// The task that a handoff offers, as policies see it.
pub(super) struct Work<'a> {
    pub(super) from: &'a AgentId,
    task_type: &'a str,
    mode: Mode,
    /// For whom the coordinator asks. `None`: the sender asks for itself.
    submitter: Option<&'a str>,
}

impl<'a> Work<'a> {
    pub(super) fn of_request(header: &'a Header, request: &'a RequestBody) -> Self {
        let submitter = request.submitter.as_deref();
        Self { from: &header.sender, task_type: &request.task_type, mode: request.mode, submitter }
    }

    pub(super) fn of_mandate(from: &'a AgentId, mandate: &'a Mandate) -> Self {
        Self { from, submitter: None, task_type: &mandate.task_type, mode: mandate.mode }
    }

    pub(super) fn of_handoff(handoff: &'a Handoff) -> Self {
        let submitter = handoff.submitter.as_deref();
        Self { from: &handoff.sender, task_type: &handoff.task_type, mode: handoff.mode, submitter }
    }
}

impl Engine {
    /// Checks that both agents are registered and that this one may be asked to take the task.
    pub(super) fn check_hand_off(&self, work: &Work<'_>, to: &AgentId) -> Result<(), BrokerError> {
        self.decide_hand_off(work, to).map_err(|refusal| self.told_about_work(refusal, work, to))
    }

    /// Whether both agents are registered and this one may be asked to take the task.
    pub(super) fn may_hand_off(&self, work: &Work<'_>, to: &AgentId) -> bool {
        self.decide_hand_off(work, to).is_ok()
    }

    /// The agents of a list that may be asked to take the task. Fails with the last refusal if the list has agents and none
    /// may be asked.
    pub(super) fn permitted_to_take(&self, work: &Work<'_>, agents: Vec<AgentId>) -> Result<Vec<AgentId>, BrokerError> {
        let permitted = permitted(agents, |agent| self.decide_hand_off(work, agent));
        permitted.map_err(|(agent, refusal)| self.told_about_work(refusal, work, &agent))
    }

    /// Checks that the sender may write to this agent.
    pub(super) fn check_send(&self, header: &Header, to: &AgentId) -> Result<(), BrokerError> {
        self.decide_send(header, to).map_err(|refusal| self.unless_secret(refusal, &header.sender, to))
    }

    /// The agents of a list that the sender may write to. Fails with the last refusal if the list has agents and the sender
    /// may write to none.
    pub(super) fn permitted_to_get(&self, header: &Header, agents: Vec<AgentId>) -> Result<Vec<AgentId>, BrokerError> {
        let permitted = permitted(agents, |agent| self.decide_send(header, agent));
        permitted.map_err(|(agent, refusal)| self.unless_secret(refusal, &header.sender, &agent))
    }

    /// The decision about a handoff. Its refusal may reveal a registration.
    fn decide_hand_off(&self, work: &Work<'_>, to: &AgentId) -> Result<(), BrokerError> {
        // The directory also has the agents that have left. One that has left can neither get a task nor send its context.
        let registered = |agent| self.env.directory.get(agent).filter(|entry| entry.is_registered());
        let from = registered(work.from);
        let from = from.ok_or_else(|| BrokerError::AgentUnknown { agent: work.from.to_string() })?;
        let to = registered(to).ok_or_else(|| receiver_unknown(to))?;
        let mode = match work.mode {
            Mode::Transfer => "TRANSFER",
            Mode::Delegate => "DELEGATE",
        };
        // The coordinator has no rights of its own.
        match work.submitter {
            Some(submitter) => self.access().may_hand_off_for(submitter, &to, work.task_type, mode),
            None => self.access().may_hand_off(&from, &to, work.task_type, mode),
        }
    }

    /// The decision about a message. Its refusal may reveal a registration.
    fn decide_send(&self, header: &Header, to: &AgentId) -> Result<(), BrokerError> {
        let (Some(from), Some(to)) = (self.env.directory.get(&header.sender), self.env.directory.get(to)) else {
            return Err(receiver_unknown(to));
        };
        self.access().may_send(&from, &to, header.message_type.name())
    }

    /// The refusal of a handoff as its sender gets it.
    fn told_about_work(&self, refusal: BrokerError, work: &Work<'_>, to: &AgentId) -> BrokerError {
        match work.submitter {
            // The plan of the submitter shows the rule that stopped it.
            Some(_) => refusal,
            None => self.unless_secret(refusal, work.from, to),
        }
    }

    /// Turns a denial into "receiver unknown" for a sender that may not read the directory, so that the denial does not
    /// reveal the registration. The policies decide about the directory without a cache, so this is for the one refusal
    /// that a sender gets, and not for each agent of a list.
    fn unless_secret(&self, refusal: BrokerError, from: &AgentId, to: &AgentId) -> BrokerError {
        let is_secret = matches!(refusal, BrokerError::PermissionDenied(_))
            && self.access().may_see_directory(&Caller::Agent(from.clone())).is_err();
        if is_secret { receiver_unknown(to) } else { refusal }
    }

    /// Checks that the sender may write to all agents of this type.
    pub(super) fn check_send_to_all(&self, header: &Header, to: &AgentType) -> Result<(), BrokerError> {
        let Some(from) = self.env.directory.get(&header.sender) else {
            return Err(BrokerError::AgentUnknown { agent: header.sender.to_string() });
        };
        self.access().may_send_to_all(&from, to, header.message_type.name())
    }
}

/// The agents that pass the check. Fails with the last refused agent and its refusal if the list has agents and none passes.
fn permitted(
    agents: Vec<AgentId>,
    check: impl Fn(&AgentId) -> Result<(), BrokerError>,
) -> Result<Vec<AgentId>, (AgentId, BrokerError)> {
    let mut refused = None;
    let mut passed = Vec::with_capacity(agents.len());
    for agent in agents {
        match check(&agent) {
            Ok(()) => passed.push(agent),
            Err(refusal) => refused = Some((agent, refusal)),
        }
    }
    match refused {
        Some(refused) if passed.is_empty() => Err(refused),
        Some(_) | None => Ok(passed),
    }
}
