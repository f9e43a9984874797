//! Resolves the agents and the terms of a message: candidates, receivers, timeouts, limits. The rules are in the
//! domain; this module asks the directory and the policies.

use super::{
    Engine,
    authorization::{Work, permitted},
};
use crate::{
    broker::BrokerError,
    domain::{
        Header, Receiver,
        admission::{self, AdmissionError},
        handoff::{LoopLimits, Timeouts},
    },
    envelope::RequestBody,
    ids::AgentId,
    time::Timestamp,
};

impl Engine {
    /// The agents that a request may be offered to, best first.
    pub(super) fn candidates(
        &self,
        header: &Header,
        request: &RequestBody,
        now: Timestamp,
    ) -> Result<Vec<AgentId>, BrokerError> {
        let work = Work::of_request(header, request);
        // A named agent must be permitted, or the request is refused.
        let named = |agent: &AgentId| {
            let agent = self.registered(agent)?;
            self.check_hand_off(&work, &agent).map(|()| agent)
        };
        admission::check_not_own(header)?;
        let of_receiver = match &header.receiver {
            Receiver::Agent(agent) => vec![named(agent)?],
            Receiver::AnyOf(agent_type) => {
                let able = self.env.directory.able(agent_type, &request.required_skills, now);
                permitted(admission::others(header, able), |agent| self.check_hand_off(&work, agent))?
            }
            // The rules of a request refuse these receivers earlier; only the fallbacks would be asked.
            Receiver::Nobody | Receiver::AllOf(_) => Vec::new(),
        };
        let fallbacks = admission::others(header, request.fallback_candidates.clone());
        let fallbacks = fallbacks.iter().map(named).collect::<Result<_, _>>()?;
        Ok(admission::candidates(header, of_receiver, fallbacks)?)
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

    /// The registered agents that the receiver of a message resolves to. A type does not resolve to the sender.
    pub(super) fn receivers(&self, header: &Header, now: Timestamp) -> Result<Vec<AgentId>, BrokerError> {
        let of_type = match &header.receiver {
            Receiver::Nobody => return Ok(Vec::new()),
            Receiver::Agent(agent) => {
                let agent = self.registered(agent)?;
                self.check_send(header, &agent)?;
                return Ok(vec![agent]);
            }
            Receiver::AnyOf(agent_type) => self.env.directory.able(agent_type, &[], now),
            Receiver::AllOf(agent_type) => {
                self.check_send_to_all(header, agent_type)?;
                let all = self.env.directory.list(None, usize::MAX, Some(agent_type));
                all.iter().map(|entry| entry.id()).collect()
            }
        };
        let able = permitted(admission::others(header, of_type), |agent| self.check_send(header, agent))?;
        Ok(admission::receivers_of_type(header, able)?)
    }
}

/// The error for an unregistered agent. A sender that may not know of a registered agent gets the same error.
pub(super) fn receiver_unknown(agent: &AgentId) -> BrokerError {
    AdmissionError::ReceiverUnknown { receiver: agent.to_string() }.into()
}
