//! Deregistration of agents (SPEC 6). The card and the keys stay readable, and the id is never used again.

use super::{Engine, LIMIT_RETRY, batch::PostCommit};
use crate::{
    Away, BrokerError, access::Caller, directory::Entry, ids::AgentId, policy::Action, proto::v1::AuditAction,
    time::Timestamp,
};

impl Engine {
    /// Deregisters an agent. Again it succeeds without a write.
    pub(super) fn deregister(
        &mut self,
        agent: &AgentId,
        force: bool,
        reason_text: &str,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let mut transaction = self.transaction();
        let action = Action::Deregister { force };
        let (mut record, stored) = self.permitted_record(&mut transaction, agent, action, caller)?;
        if record.deregistered_at.is_some() {
            return Ok(());
        }
        if !force {
            self.check_idle(agent)?;
        }
        for key in &mut record.card.keys {
            key.revoke_time.get_or_insert(now.into());
        }
        record.deregistered_at = Some(now);
        let entry = Entry::parse(record)?;
        // The order counts: the directory has the change before the mail is looked at.
        let act = (AuditAction::AgentDeregistered, details(force, reason_text));
        tracing::info!(%agent, by = %caller, force, "deregistered an agent");
        let session_end = PostCommit::SessionsEnded(agent.clone(), Away::Deregistered);
        transaction.post_commit.extend([session_end, PostCommit::AgentLeft(agent.clone())]);
        self.store_agent(transaction, entry, Some(&stored), act, caller, now)?;
        self.batch.left.insert(agent.clone());
        Ok(())
    }

    /// Fails while the agent owns open tasks or has open offers. The sender of an open handoff owns its task.
    fn check_idle(&self, agent: &AgentId) -> Result<(), BrokerError> {
        if !self.loads.is_exact() {
            let what = "the broker still counts the tasks of agents after its start";
            return Err(BrokerError::LimitExceeded { what, retry_after: LIMIT_RETRY });
        }
        match self.env.directory.counts(agent) {
            (0, 0) => Ok(()),
            (tasks, offers) => Err(BrokerError::AgentBusy { agent: agent.clone(), tasks, offers }),
        }
    }
}

fn details(force: bool, reason_text: &str) -> String {
    match (force, reason_text.is_empty()) {
        (false, _) => reason_text.to_owned(),
        (true, true) => "with force".to_owned(),
        (true, false) => format!("with force: {reason_text}"),
    }
}
