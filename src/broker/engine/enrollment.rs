//! Registering agents, and letting somebody do so once.

use super::{
    Engine, EnrollmentRight, LIMIT_RETRY,
    drafts::{Act, Draft},
};
use crate::{
    broker::{Answer, BrokerError, Outcome, directory::Entry, refused},
    ids::AgentId,
    records::{AgentRecord, InvitationRecord},
    time::Timestamp,
};

impl Engine {
    pub(super) fn register(&mut self, entry: Entry, right: &EnrollmentRight, now: Timestamp) -> Outcome {
        self.make_entry(entry, right, now).map_err(refused)
    }

    fn make_entry(&mut self, mut entry: Entry, right: &EnrollmentRight, now: Timestamp) -> Result<Answer, BrokerError> {
        let id = entry.id();
        let mut draft = self.draft();
        let key = AgentRecord::key(&id);
        let stored = self.read(&mut draft, &key)?;
        let mut record = AgentRecord { created_at: now, updated_at: now, ..entry.record.clone() };
        if let Some(stored) = &stored {
            let known = AgentRecord::decode(&stored.value)?;
            if known.card == record.card {
                return Ok(Answer::Registered);
            }
            let may_change = matches!(right, EnrollmentRight::Change | EnrollmentRight::Enroll { may_change: true });
            if !may_change {
                return Err(BrokerError::AgentExists { agent: id });
            }
            record.created_at = known.created_at;
        } else {
            self.check_agents()?;
        }
        if let Some(key_id) = self.directory.key_of_another(&entry) {
            return Err(BrokerError::KeyTaken { key_id: key_id.to_string() });
        }
        match right {
            EnrollmentRight::Invited(invitation) if stored.is_none() => {
                self.use_invitation(&mut draft, invitation, &id, now)?;
            }
            EnrollmentRight::Change if stored.is_none() => {
                return Err(BrokerError::AgentUnknown { agent: id.to_string() });
            }
            EnrollmentRight::Invited(_) | EnrollmentRight::Change | EnrollmentRight::Enroll { .. } => {}
        }
        draft.put(key, record.encode(), stored.as_ref());
        entry.record = record;
        draft.acts.push(Act::AgentStored(Box::new(entry)));
        self.seal(draft);
        Ok(Answer::Registered)
    }

    /// Whether one more agent may register. What is in the same group is not counted yet.
    fn check_agents(&self) -> Result<(), BrokerError> {
        let most = self.settings.broker_limits.agents_max as usize;
        if most == 0 || self.directory.registered() < most {
            return Ok(());
        }
        Err(BrokerError::LimitExceeded { what: "too many agents are registered", retry_after: LIMIT_RETRY })
    }

    /// Used up in the commit that registers the agent, or not at all.
    fn use_invitation(
        &self,
        draft: &mut Draft,
        invitation: &str,
        agent: &AgentId,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let key = InvitationRecord::key(invitation);
        let stored = self.read(draft, &key)?.ok_or(BrokerError::InvitationInvalid)?;
        let record = InvitationRecord::decode(&stored.value)?;
        let is_good = record.used_by.is_none()
            && record.expires_at > now
            && record.agent.as_ref().is_none_or(|invited| invited == agent);
        if !is_good {
            return Err(BrokerError::InvitationInvalid);
        }
        let used = InvitationRecord { used_by: Some(agent.clone()), ..record };
        draft.put(key, used.encode(), Some(&stored));
        Ok(())
    }

    pub(super) fn invite(&mut self, invitation: &str, agent: Option<AgentId>, expires_at: Timestamp) -> Outcome {
        let mut draft = self.draft();
        let record = InvitationRecord { agent, expires_at, used_by: None };
        draft.put_new(InvitationRecord::key(invitation), record.encode());
        self.seal(draft);
        Ok(Answer::Registered)
    }
}
