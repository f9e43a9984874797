//! The last request of an agent for a task: the coordinator keeps its words and its demands when an operator reassigns the
//! task.

use bytes::Bytes;
use prost::Message as _;

use super::{Engine, transaction::Transaction};
use crate::{
    BrokerError,
    contexts::payload_in,
    domain::{EntityId, coordinator::RequestOrder, handoff::Priority, matching::Wanted},
    ids::{AgentId, AgentType, TaskId},
    proto::v1,
    records::{EntityRecord, HandoffPlace, HandoffRecord, List},
    store::Order,
};

/// The most earlier handoffs of the task among which the request is looked for.
const HANDOFFS_MAX: usize = 32;
/// The bounds of `HandoffRequest.initial_context_summary` and of `reason_text`.
const SUMMARY_BYTES_MAX: usize = 16 * 1024;
const TEXT_BYTES_MAX: usize = 4096;

impl Engine {
    /// The latest request of an agent for this task. `None`: there is none any more.
    pub(super) fn last_request(
        &mut self,
        transaction: &mut Transaction,
        task: &TaskId,
    ) -> Result<Option<v1::HandoffRequest>, BrokerError> {
        let Some(handoff) = self.last_handoff(transaction, task)? else { return Ok(None) };
        let place = self.place_of_request(transaction, &handoff)?;
        Ok(self.envelope_bytes(place).and_then(|raw| terms_in(&raw)))
    }

    fn last_handoff(
        &mut self,
        transaction: &mut Transaction,
        task: &TaskId,
    ) -> Result<Option<HandoffRecord>, BrokerError> {
        let of_agent = |record: &HandoffRecord| !record.handoff.sender.is_coordinator();
        let stored = self.entity_record(transaction, &EntityId::Task(task.clone()))?;
        let latest = stored.as_deref().and_then(EntityRecord::as_task).and_then(|record| record.handoff.clone());
        if let Some(latest) = latest.filter(of_agent) {
            return Ok(Some(latest));
        }
        let list = List::handoffs_of_task(task);
        for (key, record) in self.env.store.scan(list.table, list.range(), Order::Descending, HANDOFFS_MAX)? {
            let place = HandoffPlace::decode(list.number(&key)?, &record.value)?;
            let stored = self.entity_record(transaction, &EntityId::Handoff(place.handoff))?;
            if let Some(handoff) = stored.as_deref().and_then(EntityRecord::as_handoff).filter(|found| of_agent(found))
            {
                return Ok(Some(handoff.clone()));
            }
        }
        Ok(None)
    }

    /// What an agent lacks for this request. `None`: it has all that the request demands.
    pub(super) fn lacks(&self, agent: &AgentId, request: &v1::HandoffRequest) -> Option<String> {
        let desired = AgentType::parse(&request.desired_agent_type).ok();
        let wanted = Wanted {
            agent_type: desired.as_ref(),
            required_skills: &request.required_skills,
            preferred_skills: &[],
            task_type: "",
            languages: &[],
            tags: &[],
            priority: Priority::default(),
            accept_timeout: self.env.settings.timeouts.accept,
        };
        self.env.directory.unfit(agent, &wanted)
    }
}

/// The request of the coordinator: the words, the reason and the demands of the last request, and those of the order.
pub(super) fn request_of(order: &RequestOrder, last: Option<v1::HandoffRequest>) -> v1::HandoffRequest {
    let last = last.unwrap_or_default();
    let reason = match last.reason() {
        v1::HandoffReason::Unspecified => v1::HandoffReason::Other,
        reason => reason,
    };
    v1::HandoffRequest {
        task_type: order.task_type.clone(),
        reason: reason.into(),
        reason_text: joined([&order.reason_text, &last.reason_text], "; the last request says: ", TEXT_BYTES_MAX),
        priority: order.priority.number(),
        initial_context_summary: joined([&order.summary, &last.initial_context_summary], "\n\n", SUMMARY_BYTES_MAX),
        required_skills: last.required_skills,
        desired_agent_type: last.desired_agent_type,
        on_behalf_of: Some(v1::OnBehalfOf { submitter_id: order.submitter.clone(), ..Default::default() }),
        ..Default::default()
    }
}

/// Two texts, of which the second one is cut where both do not fit.
fn joined([first, second]: [&str; 2], between: &str, most: usize) -> String {
    if first.is_empty() || second.is_empty() {
        return [first, second].concat();
    }
    let mut end = second.len().min(most.saturating_sub(first.len() + between.len()));
    while !second.is_char_boundary(end) {
        end -= 1;
    }
    [first, between, &second[..end]].concat()
}

/// The terms of a handoff in the message that asked for it.
pub(super) fn terms_in(envelope: &Bytes) -> Option<v1::HandoffRequest> {
    match v1::Envelope::decode(envelope.clone()).ok()?.message_type() {
        v1::MessageType::HandoffRequest => payload_in(envelope),
        v1::MessageType::TaskAccept => payload_in::<v1::TaskAccept>(envelope)?.handoff,
        v1::MessageType::TaskRequest => payload_in::<v1::TaskRequest>(envelope)?.handoff,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn the_second_text_is_cut_where_both_do_not_fit() {
        assert_eq!(joined(["one", "two"], ": ", 100), "one: two");
        assert_eq!(joined(["", "two"], ": ", 100), "two");
        assert_eq!(joined(["one", ""], ": ", 100), "one");
        assert_eq!(joined(["one", "äöü"], ": ", 8), "one: ä", "never within a character");
        assert_eq!(joined(["one", "two"], ": ", 2), "one: ");
    }
}
