//! Queries of an inbox: the questions to an agent, and the context of a handoff.

use bytes::Bytes;

use super::{Page, ShownTask, TaskFilter, View};
use crate::{
    BrokerError,
    access::{Caller, Purpose, Reach},
    contexts::has_secret,
    domain::{handoff::Handoff, mailbox::EnvelopePlace},
    ids::{AgentId, TaskId},
    records::{List, TaskRecord, read_envelope},
    store::Key,
};

/// The most questions of one page: each may have 80 KiB, and a page has to fit in a frame.
const QUESTIONS_A_PAGE_MAX: usize = 40;

/// The tasks that one page of the search for left tasks has at most.
const LEFT_A_PAGE: usize = 1000;

impl View<'_> {
    /// The tasks with an open question to this agent, newest first, each with its question and what else the caller may
    /// see of it. An agent without rights to the tasks of others sees only its own questions.
    pub fn questions(
        &self,
        asked: &AgentId,
        filter: &TaskFilter,
        size: usize,
        token: &str,
    ) -> Result<Page<ShownTask>, BrokerError> {
        let is_own = *self.caller == Caller::Agent(asked.clone());
        let list = match self.access.reach(self.caller, Purpose::ReadTasks)? {
            Reach::Everything => Some(List::of_questions(asked)),
            Reach::Own(_) if is_own => Some(List::of_questions(asked)),
            Reach::Own(_) | Reach::Nothing => None,
        };
        let read = |_, value: &Bytes| {
            let shown = match self.shown_task(&TaskRecord::listed(value)?) {
                Ok(shown) => shown,
                // A task that the caller may not see, or one that was removed between the two reads.
                Err(BrokerError::TaskUnknown { .. } | BrokerError::PermissionDenied(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            let task = &shown.record.task;
            // The question may have ended between the two reads.
            let is_asked = task.open_prompt().is_some_and(|prompt| prompt.asked == *asked);
            // Who sees the question alone learns nothing of the conversation.
            let is_shown = filter.conversation.is_none() || !shown.is_asked_only;
            let is_wanted = is_shown && filter.matches(task);
            Ok(Some(ShownTask { creation: None, result: None, answered: None, parts: Vec::new(), ..shown })
                .filter(|_| is_asked && is_wanted))
        };
        self.page(list.as_ref(), &format!("{filter:?}"), size.min(QUESTIONS_A_PAGE_MAX), token, read)
    }

    /// The tasks that a process of the agent may resume, oldest first.
    pub fn left_tasks(&self, agent: &AgentId) -> Result<Vec<TaskId>, BrokerError> {
        let filter = TaskFilter { owner: Some(agent.clone()), ..Default::default() };
        let (mut left, mut token) = (Vec::new(), String::new());
        loop {
            let page = self.tasks(&filter, LEFT_A_PAGE, &token)?;
            let entries = page.entries.into_iter().filter(|record| record.is_left_by(agent));
            left.extend(entries.map(|record| record.task.id.clone()));
            token = page.next_token;
            if token.is_empty() {
                left.reverse();
                return Ok(left);
            }
        }
    }

    /// The envelope of a handoff's context. `None`: the handoff has none, or the caller may not read it.
    pub fn context_of(&self, handoff: &Handoff) -> Result<Option<Bytes>, BrokerError> {
        let Some(stored) = self.store.get(&TaskRecord::key(&handoff.task))? else { return Ok(None) };
        let record = TaskRecord::decode(&stored.value)?;
        if handoff.context_digest.is_none() {
            return Ok(None);
        }
        let Some(message) = self.context_message_of(handoff)? else { return Ok(None) };
        let read = |key: &Key| Ok::<_, BrokerError>(self.store.get(key)?);
        let Some(envelope) = read_envelope(EnvelopePlace::Message(message), read)? else { return Ok(None) };
        let is_party = self.is_party(&envelope) || self.holds_contexts(&record)?;
        let by_policy = || self.access.may_read_contexts(self.caller, record.task.id.as_str(), Some(&record.task));
        // A secret section is for parties only.
        let may_read = is_party || (!has_secret(&envelope) && by_policy());
        Ok(may_read.then_some(envelope))
    }
}
