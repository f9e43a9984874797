//! Finding agents for a piece of work without asking any of them.

use super::{Broker, BrokerError, access::Caller, directory::Ranking};
use crate::{domain::matching::Wanted, ids::AgentId};

impl Broker {
    /// The agents that fit, best first. With a sender, only agents that it may hand a task of this type to.
    ///
    /// # Errors
    /// PERMISSION_DENIED if the caller may not read the directory. SENDER_MISMATCH if an agent names another agent as the
    /// sender. AGENT_UNKNOWN if the named sender is not registered.
    pub fn find_agents(
        &self,
        caller: &Caller,
        wanted: &Wanted<'_>,
        as_sender: Option<AgentId>,
        include_gone: bool,
    ) -> Result<Ranking, BrokerError> {
        self.access().may_see_directory(caller)?;
        let sender = match (as_sender, caller) {
            (Some(sender), Caller::Agent(agent)) if sender != *agent => {
                return Err(BrokerError::SenderMismatch { sender, agent: agent.clone() });
            }
            (None, Caller::Agent(agent)) => Some(agent.clone()),
            (sender, _) => sender,
        };
        let from = match &sender {
            None => None,
            Some(sender) => {
                let entry = self.directory().get(sender).filter(|entry| entry.is_registered());
                Some(entry.ok_or_else(|| BrokerError::AgentUnknown { agent: sender.to_string() })?)
            }
        };
        let permits = |agent: &AgentId| {
            let Some(from) = &from else { return true };
            // No agent hands a task to itself.
            let other = self.directory().get(agent).filter(|_| *agent != from.id());
            other.is_some_and(|to| self.access().may_hand_off(from, &to, wanted.task_type, "TRANSFER").is_ok())
        };
        let mut found = self.directory().rank(wanted, self.now(), permits);
        if !include_gone {
            found.without_gone();
        }
        Ok(found)
    }
}
