//! Resolves the agents and the terms of a message: candidates, receivers, timeouts, limits. The rules are in the
//! domain; this module asks the directory and the policies.

use std::time::Duration;

use super::{Engine, authorization::Work, last_request, transaction::Transaction};
use crate::{
    BrokerError,
    domain::{
        EntityId, Header, Receiver,
        admission::{self, AdmissionError},
        handoff::{LoopLimits, OFFERS_MAX, PASSED_OVER_MAX, PassedOver, Priority, Timeouts},
        matching::Wanted,
    },
    envelope::{Body, RequestBody, Resolved},
    ids::{AgentId, AgentType},
    records::{EntityRecord, HandoffRecord},
    time::Timestamp,
};

/// The agents of a type that are recorded as passed over, where none of the type has what a request demands.
const PASSED_OVER_OF_TYPE: usize = 8;

/// The agents that a request may be offered to, and the named ones that lack what it demands.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// The agents to ask, best first.
    pub(super) agents: Vec<AgentId>,
    /// The agents that are passed over, as if each had rejected with `NO_SKILL`.
    pub(super) passed_over: Vec<PassedOver>,
    /// The refusal of an agent that was left out because its mailbox is full.
    refusal: Option<BrokerError>,
}

impl Candidates {
    /// What a request with these terms resolves to.
    pub(super) fn resolved(&self, terms: (Timeouts, LoopLimits)) -> Resolved<'_> {
        Resolved { agents: &self.agents, passed_over: &self.passed_over, terms: Some(terms) }
    }
}

impl Engine {
    /// The agents that a request may be offered to, best first.
    pub(super) fn candidates(
        &mut self,
        header: &Header,
        request: &RequestBody,
        now: Timestamp,
    ) -> Result<Candidates, BrokerError> {
        let work = Work::of_request(header, request);
        admission::check_not_own(header)?;
        let mut found = Candidates::default();
        for named in std::iter::once(&header.receiver).chain(&request.fallback_candidates) {
            match named {
                Receiver::Agent(agent) if *agent != header.sender => {
                    // The agent is checked once it has registered.
                    if request.wait_for_agent && !self.env.directory.is_registered(agent) {
                        continue;
                    }
                    // A named agent must be permitted, or the request is refused.
                    let agent = self.registered(agent)?;
                    self.check_hand_off(&work, &agent)?;
                    self.add_named(&mut found, agent, request);
                }
                Receiver::AnyOf(agent_type) => self.add_of_type(&mut found, agent_type, &work, request, now)?,
                // The rules of a request refuse these receivers earlier, and the sender as a fallback.
                Receiver::Agent(_) | Receiver::Absent | Receiver::AllOf(_) => {}
            }
        }
        // The agents of one type are in this order already.
        if !request.fallback_candidates.is_empty() {
            found.agents.sort_by_key(|agent| self.env.directory.is_full(agent, now));
        }
        if let Some(refusal) = found.refusal.take().filter(|_| found.agents.is_empty()) {
            return Err(refusal);
        }
        let must_have = found.passed_over.is_empty() && !request.wait_for_agent;
        found.agents = admission::candidates(header, found.agents, must_have)?;
        found.passed_over.truncate(PASSED_OVER_MAX);
        Ok(found)
    }

    fn add_named(&self, found: &mut Candidates, agent: AgentId, request: &RequestBody) {
        match self.env.directory.unfit(&agent, &self.wanted(request)) {
            None => found.agents.push(agent),
            Some(reason_text) => found.passed_over.push(PassedOver { agent, reason_text }),
        }
    }

    /// Adds the permitted agents of a type whose mailboxes have room, best first. Without one that has what the request
    /// demands, some of the others are passed over.
    fn add_of_type(
        &mut self,
        found: &mut Candidates,
        agent_type: &AgentType,
        work: &Work<'_>,
        request: &RequestBody,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let wanted = Wanted { agent_type: Some(agent_type), ..self.wanted(request) };
        let is_desired = request.desired_agent_type.as_ref().is_none_or(|desired| desired == agent_type);
        let ranking = self.env.directory.rank(&wanted, now, |agent| agent != work.from);
        let able: Vec<AgentId> = ranking.agents().cloned().collect();
        let mut able = self.permitted_to_take(work, able)?;
        if !is_desired {
            able.retain(|agent| self.env.directory.unfit(agent, &self.wanted(request)).is_none());
        }
        if able.is_empty() {
            let others = self.env.directory.of_type(agent_type).into_iter().map(|entry| entry.id());
            let asked = others.filter(|agent| agent != work.from && self.may_hand_off(work, agent));
            asked.take(PASSED_OVER_OF_TYPE).for_each(|agent| self.add_named(found, agent, request));
        }
        // No further one can be asked, and the first look at a mailbox counts its letters.
        let most = found.agents.len() + OFFERS_MAX;
        for agent in able {
            if found.agents.len() == most {
                break;
            }
            match self.check_mailbox(&agent) {
                Ok(()) => found.agents.push(agent),
                Err(refusal) => found.refusal = Some(refusal),
            }
        }
        Ok(())
    }

    /// What a request demands of every candidate.
    fn wanted<'a>(&self, request: &'a RequestBody) -> Wanted<'a> {
        Wanted {
            agent_type: request.desired_agent_type.as_ref(),
            required_skills: &request.required_skills,
            preferred_skills: &[],
            // The task type of a request is for the policies; a skill need not list it.
            task_type: "",
            languages: &[],
            tags: &[],
            priority: request.priority,
            accept_timeout: request.timeouts.accept.unwrap_or(self.env.settings.timeouts.accept),
        }
    }

    /// The agents that a reject suggests: registered, and permitted to the owner. Others are left out.
    pub(super) fn suggested(
        &mut self,
        header: &Header,
        suggestions: &[Receiver],
        now: Timestamp,
    ) -> Result<Candidates, BrokerError> {
        let mut found = Candidates::default();
        let Some(handoff) = header.correlation.filter(|_| !suggestions.is_empty()) else { return Ok(found) };
        let stored = self.entity_record(&mut self.transaction(), &EntityId::Handoff(handoff))?;
        // The step refuses a reject of an unknown handoff, with the error that the sender may see.
        let Some(stored) = stored.as_deref().and_then(EntityRecord::as_handoff) else { return Ok(found) };
        if stored.is_under_mandate() {
            // The mandate permits the agents of the offers alone.
            return Ok(found);
        }
        let parsed = self.stored_request(stored.request)?;
        let request = terms_in(parsed.body())?;
        let work = Work::of_handoff(&stored.handoff);
        for suggestion in suggestions {
            match suggestion {
                Receiver::Agent(agent) => {
                    if self.env.directory.is_registered(agent) && self.may_hand_off(&work, agent) {
                        self.add_named(&mut found, agent.clone(), request);
                    }
                }
                Receiver::AnyOf(agent_type) => {
                    // A type without a permitted agent is left out, and does not make the reject invalid (SPEC 3).
                    drop(self.add_of_type(&mut found, agent_type, &work, request, now));
                }
                Receiver::Absent | Receiver::AllOf(_) => {}
            }
        }
        let task = self.entity_record(&mut self.transaction(), &EntityId::Task(stored.handoff.task.clone()))?;
        if let Some(task) = task.as_deref().and_then(EntityRecord::as_task)
            && let Some(chain) = self.chain_of(task.task.clone())?
        {
            // A suggestion that the loop guard forbids is left out, and does not make the reject invalid.
            drop(chain.keep_free(&stored.handoff.sender, &mut found.agents));
        }
        found.agents.truncate(OFFERS_MAX);
        found.passed_over.truncate(PASSED_OVER_MAX);
        Ok(found)
    }

    /// Fails if the agent lacks what the request demands.
    pub(super) fn check_fit(&self, former: &HandoffRecord, agent: &AgentId) -> Result<(), BrokerError> {
        if former.is_under_mandate() {
            if former.handoff.was_offered_to(agent) {
                return Ok(());
            }
            let problem = "the mandate of the negotiation permits the agents of the offers alone".to_owned();
            return Err(AdmissionError::ReceiverInvalid { receiver: agent.to_string(), problem }.into());
        }
        let parsed = self.stored_request(former.request)?;
        let request = terms_in(parsed.body())?;
        match self.env.directory.unfit(agent, &self.wanted(request)) {
            None => Ok(()),
            Some(problem) => Err(AdmissionError::ReceiverInvalid { receiver: agent.to_string(), problem }.into()),
        }
    }

    /// Returns the agent if a message may name it as a receiver or a candidate: it must be registered.
    pub(super) fn registered(&self, agent: &AgentId) -> Result<AgentId, BrokerError> {
        admission::check_named(agent, self.env.directory.is_registered(agent))?;
        Ok(agent.clone())
    }

    /// The timeouts and loop limits of a request, within the operator's bounds.
    pub(super) fn terms(&self, request: &RequestBody) -> Result<(Timeouts, LoopLimits), BrokerError> {
        let settings = &self.env.settings;
        let timeouts = settings.timeouts.requested(&request.timeouts, settings.timeout_bounds);
        let timeouts = timeouts.map_err(|violations| BrokerError::Fields { violations })?;
        Ok((timeouts, settings.loop_limits.lowered_to(request.loop_limits)))
    }

    /// The registered agents of a type, best first.
    pub(super) fn best_of(&self, agent_type: &AgentType, now: Timestamp) -> Vec<AgentId> {
        let wanted = Wanted {
            agent_type: Some(agent_type),
            required_skills: &[],
            preferred_skills: &[],
            task_type: "",
            languages: &[],
            tags: &[],
            priority: Priority::default(),
            accept_timeout: self.env.settings.timeouts.accept,
        };
        self.env.directory.rank(&wanted, now, |_| true).agents().cloned().collect()
    }

    /// The terms of a request with these candidates: a whole time that it does not name has room for the decision of the
    /// first one.
    pub(super) fn terms_with(
        &self,
        (timeouts, limits): (Timeouts, LoopLimits),
        request: &RequestBody,
        candidates: &[AgentId],
    ) -> (Timeouts, LoopLimits) {
        let first = candidates.first().and_then(|agent| self.env.directory.get(agent));
        let decides_within = first.and_then(|entry| entry.decides_within());
        (timeouts.with_room_for(&request.timeouts, decides_within, self.env.settings.timeout_bounds), limits)
    }

    /// The time for the decision that the card of a candidate gives it about an offer. `None`: the handoff's own timeout.
    pub(super) fn time_of_candidate(
        &mut self,
        transaction: &mut Transaction,
        agent: &AgentId,
        about: &EntityId,
    ) -> Result<Option<Duration>, BrokerError> {
        let Some(decides_within) = self.env.directory.get(agent).and_then(|entry| entry.decides_within()) else {
            return Ok(None);
        };
        let stored = self.entity_record(transaction, about)?;
        let Some(record) = stored.as_deref().and_then(EntityRecord::as_handoff) else { return Ok(None) };
        let place = self.place_of_request(transaction, record)?;
        let request = self.envelope_bytes(place).and_then(|raw| last_request::terms_in(&raw));
        let is_named = request.and_then(|request| request.timeouts).is_some_and(|named| named.accept.is_some());
        Ok(record.handoff.timeouts.own_decision(is_named, decides_within, self.env.settings.timeout_bounds))
    }

    /// The registered agents that the receiver of a message resolves to. A type does not resolve to the sender.
    pub(super) fn receivers(&mut self, header: &Header, now: Timestamp) -> Result<Vec<AgentId>, BrokerError> {
        let able = self.permitted_receivers(header, now)?;
        match &header.receiver {
            Receiver::Absent | Receiver::Agent(_) => Ok(able),
            Receiver::AnyOf(_) | Receiver::AllOf(_) => self.receivers_of_type(header, able),
        }
    }

    /// The agents that a message could go to, whether their mailboxes have room or not.
    pub(super) fn permitted_receivers(&self, header: &Header, now: Timestamp) -> Result<Vec<AgentId>, BrokerError> {
        let of_type = match &header.receiver {
            Receiver::Absent => return Ok(Vec::new()),
            Receiver::Agent(agent) => {
                let agent = self.registered(agent)?;
                self.check_send(header, &agent)?;
                return Ok(vec![agent]);
            }
            Receiver::AnyOf(agent_type) => self.best_of(agent_type, now),
            Receiver::AllOf(agent_type) => {
                self.check_send_to_all(header, agent_type)?;
                self.env.directory.of_type(agent_type).iter().map(|entry| entry.id()).collect()
            }
        };
        self.permitted_to_get(header, admission::others(header, of_type))
    }

    /// The receivers of a message to a type, out of the able and permitted agents, best first: the first one whose mailbox
    /// has room, or all. All of them must have room, because the sender would not learn which ones got nothing.
    pub(super) fn receivers_of_type(
        &mut self,
        header: &Header,
        able: Vec<AgentId>,
    ) -> Result<Vec<AgentId>, BrokerError> {
        let able = match header.receiver {
            Receiver::AnyOf(_) => self.first_with_room(able)?.into_iter().collect(),
            Receiver::AllOf(_) => {
                able.iter().try_for_each(|agent| self.check_mailbox(agent))?;
                able
            }
            // The mailbox of a named agent is checked before.
            Receiver::Agent(_) | Receiver::Absent => able,
        };
        Ok(admission::receivers_of_type(header, able)?)
    }

    /// The first agent whose mailbox has room. `None`: the list is empty. Fails if all mailboxes are full.
    pub(super) fn first_with_room(&mut self, able: Vec<AgentId>) -> Result<Option<AgentId>, BrokerError> {
        let mut refusal = None;
        for agent in able {
            match self.check_mailbox(&agent) {
                Ok(()) => return Ok(Some(agent)),
                Err(error) => refusal = Some(error),
            }
        }
        refusal.map_or(Ok(None), Err)
    }
}

/// The error for an unregistered agent. A sender that may not know of a registered agent gets the same error.
pub(super) fn receiver_unknown(agent: &AgentId) -> BrokerError {
    AdmissionError::ReceiverUnknown { receiver: agent.to_string() }.into()
}

/// The terms in the stored request of a handoff.
fn terms_in(body: &Body) -> Result<&RequestBody, BrokerError> {
    match body {
        Body::Request(terms) => Ok(terms),
        Body::TaskAccept { terms: Some(terms), .. } => Ok(terms),
        _ => Err(BrokerError::Internal),
    }
}
