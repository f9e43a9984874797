//! Queries of stored records. They run beside the pipeline, and see only durable state.

mod audit;
mod blobs;
mod contexts;
mod handoff_changes;
mod handoffs;
mod inbox;
mod logs;
mod mailbox;
mod negotiations;
mod pages;
mod plans;
mod registries;
mod routing;
mod schemas;
mod subtask_work;
mod summaries;
mod task_updates;
mod threads;
mod workspaces;

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;
use prost::Message as _;

use super::{
    BrokerError,
    access::{Access, Caller, Purpose, Reach},
    contexts::{has_secret, payload_in},
    custody::{self, Logged},
    stored,
};
use crate::{
    domain::{
        EntityId, MessageType,
        dead_letter::{DeadState, ParkReason},
        handoff::{Handoff, State, Task, TaskStatus},
        mailbox::EnvelopePlace,
    },
    ids::{AgentId, ConversationId, MessageId, TaskId},
    proto::v1,
    records::{
        DeadEnvelope, DeadLetterRecord, EntityRecord, HandoffPlace, HandoffRecord, List, LogEntry, LogItem,
        MessageRecord, TaskRecord, read_envelope, receipt_of,
    },
    store::{Order, Store, Table},
    time::Timestamp,
};

pub use self::blobs::BlobSearch;
pub use self::contexts::{ContextView, SectionQuery, section_info};
pub use self::handoff_changes::{Backlog, BacklogPage};
pub use self::handoffs::HandoffFilter;
pub use self::logs::{LogPage, NumberedEntry};
pub use self::mailbox::MailPage;
pub use self::negotiations::NegotiationFilter;
use self::pages::READ_AT_A_TIME;
pub use self::pages::{LOOKED_AT_MAX, Page};
pub use self::pages::{make_token, parse_token};
pub use self::registries::NameFilter;
pub use self::routing::RunFilter;
pub use self::threads::{ThreadFilter, ThreadWithSpecs};
use self::workspaces::StoredEntities;
pub use self::workspaces::{EntryPage, EntryQuery, WorkspaceView};

/// A filter of tasks. All conditions that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// The owner of the task.
    pub owner: Option<AgentId>,
    /// The permitted statuses. Empty: all.
    pub statuses: Vec<TaskStatus>,
    /// The task that the task is a part of.
    pub parent: Option<TaskId>,
    /// The outer conversation that the task belongs to.
    pub conversation: Option<ConversationId>,
    /// Whether the list is in the order of the latest updates, and not of the creations.
    pub by_update: bool,
}

impl TaskFilter {
    /// Whether the task has what the filter says of it.
    fn matches(&self, task: &Task) -> bool {
        let has = |wanted: &Option<TaskId>| wanted.is_none() || *wanted == task.parent;
        self.owner.as_ref().is_none_or(|owner| task.owner == *owner)
            && (self.statuses.is_empty() || self.statuses.contains(&task.status))
            && has(&self.parent)
            && (self.conversation.is_none() || self.conversation == task.conversation)
    }
}

/// A task with what its messages say of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownTask {
    /// The stored task with the head of its custody log.
    pub record: TaskRecord,
    /// The `TaskCreate` of the task.
    pub creation: Option<v1::TaskCreate>,
    /// The status update with the task's result.
    pub result: Option<v1::TaskStatusUpdate>,
    /// The status update with the open question.
    pub prompt: Option<v1::TaskStatusUpdate>,
    /// The status update with the latest question that was answered, and its answer.
    pub answered: Option<(v1::TaskStatusUpdate, v1::TaskInput)>,
    /// The latest parts of the task, at most [`PARTS_SHOWN_MAX`].
    pub parts: Vec<TaskId>,
    /// Whether the caller sees the task only because of its open question.
    pub is_asked_only: bool,
}

/// A handoff with what its request says of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownHandoff {
    /// The stored state of the handoff.
    pub handoff: Arc<Handoff>,
    /// The payload of the request. Empty: the request is removed.
    pub request: v1::HandoffRequest,
}

/// The most parts that a task shows by itself.
pub const PARTS_SHOWN_MAX: usize = 100;

/// A filter of dead letters. All conditions that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// The permitted states. Empty: only parked ones.
    pub states: Vec<DeadState>,
    /// The permitted reasons. Empty: all.
    pub reasons: Vec<ParkReason>,
    /// The agent of the mailbox, or the sender of a refused envelope.
    pub agent: Option<AgentId>,
    /// The sender of the message.
    pub sender: Option<AgentId>,
    /// The task of the message.
    pub task: Option<TaskId>,
    /// The permitted message types, by number. Empty: all.
    pub message_types: Vec<i32>,
    /// The earliest time of parking.
    pub parked_from: Option<Timestamp>,
    /// The time before which the message was parked.
    pub parked_before: Option<Timestamp>,
}

impl DeadLetterFilter {
    /// Whether a dead letter matches the filter.
    pub fn matches(&self, dead: &DeadLetterRecord) -> bool {
        let state_fits = match self.states.as_slice() {
            [] => dead.state == DeadState::Parked,
            states => states.contains(&dead.state),
        };
        state_fits
            && (self.reasons.is_empty() || self.reasons.contains(&dead.reason))
            && self.agent.as_ref().is_none_or(|agent| dead.agent == *agent)
            && self.sender.as_ref().is_none_or(|sender| dead.summary.sender_id == sender.as_str())
            && self.task.as_ref().is_none_or(|task| dead.summary.task_id == task.as_str())
            && (self.message_types.is_empty() || self.message_types.contains(&dead.summary.message_type))
            && self.parked_from.is_none_or(|from| dead.parked_at >= from)
            && self.parked_before.is_none_or(|before| dead.parked_at < before)
    }
}

/// The envelope of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadBytes {
    /// The envelope byte for byte. Empty: the caller may not read it.
    pub envelope: Bytes,
    /// The digest of the context that the caller may not read; else empty.
    pub context_digest: Bytes,
}

/// A page of a custody log.
#[derive(Debug, Clone, PartialEq)]
pub struct CustodyPage {
    /// The entries, oldest first.
    pub entries: Vec<v1::CustodyLogEntry>,
    /// The number of entries in the log.
    pub length: u64,
    /// Whether the task has ended.
    pub is_final: bool,
    /// The first and last number of requested entries that the log does not have.
    pub gap: Option<(u64, u64)>,
}

/// The most bytes of entries and envelopes in one page, so that any page fits a frame.
pub const PAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The context of a query: the caller, the rules and the store.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The stored records, without the changes of the batch in hand.
    pub store: &'a dyn Store,
    /// The policies that decide which records the caller may see.
    pub access: Access<'a>,
    /// The caller, whose rights limit each answer.
    pub caller: &'a Caller,
}

impl View<'_> {
    /// One handoff that the caller may see.
    pub fn handoff(&self, id: MessageId) -> Result<Arc<Handoff>, BrokerError> {
        let stored = stored::entity(self.store, &EntityId::Handoff(id))?;
        // Before the policies: a removed handoff gets the answer of an unknown one.
        let stored = self.whole_handoff(stored)?;
        let seen = stored.filter(|handoff| self.access.may_see_handoff(self.caller, handoff));
        // A handoff that does not exist and a hidden one get the same answer (SPEC 5).
        seen.ok_or_else(|| self.access.no_such_handoff(self.caller, id))
    }

    /// One handoff that the caller may see, with its request.
    pub fn shown_handoff(&self, id: MessageId) -> Result<ShownHandoff, BrokerError> {
        let handoff = self.handoff(id)?;
        let stored = stored::entity(self.store, &EntityId::Handoff(id))?;
        // A removal between the two reads leaves nothing to show of the request.
        let request = match stored.as_ref().and_then(EntityRecord::as_handoff) {
            Some(record) => self.request_of(record)?.unwrap_or_default(),
            None => v1::HandoffRequest::default(),
        };
        Ok(ShownHandoff { handoff, request })
    }

    /// The request of a handoff, in the message that has opened it: the request itself, the accept of an award, or the
    /// request for offers whose mandate the broker has awarded. `None`: the message was removed.
    fn request_of(&self, record: &HandoffRecord) -> Result<Option<v1::HandoffRequest>, BrokerError> {
        let message = record.request.message;
        if record.is_under_mandate() {
            let stored = stored::entity(self.store, &EntityId::Negotiation(message))?;
            let copy = stored.as_ref().and_then(EntityRecord::as_negotiation).and_then(|record| record.envelope);
            let Some(place) = copy.map(EnvelopePlace::Sequence) else { return Ok(None) };
            return Ok(self.payload_at::<v1::TaskRequest>(place, message)?.and_then(|request| request.handoff));
        }
        let Some(bytes) = self.envelope_at(EnvelopePlace::Message(message))? else { return Ok(None) };
        let sent = v1::Envelope::decode(bytes.clone());
        if sent.is_ok_and(|sent| sent.message_type() == v1::MessageType::TaskAccept) {
            return Ok(decoded::<v1::TaskAccept>(&bytes, message)?.handoff);
        }
        decoded(&bytes, message).map(Some)
    }

    /// The payload of a stored message in a custody log. `None`: the message was removed.
    fn payload_of<M: prost::Message + Default>(&self, message: MessageId) -> Result<Option<M>, BrokerError> {
        self.payload_at(EnvelopePlace::Message(message), message)
    }

    /// The payload of the envelope of a message, at this place. `None`: the message was removed.
    fn payload_at<M: prost::Message + Default>(
        &self,
        place: EnvelopePlace,
        message: MessageId,
    ) -> Result<Option<M>, BrokerError> {
        self.envelope_at(place)?.map(|bytes| decoded(&bytes, message)).transpose()
    }

    fn envelope_at(&self, place: EnvelopePlace) -> Result<Option<Bytes>, BrokerError> {
        read_envelope(place, |key| Ok::<_, BrokerError>(self.store.get(key)?))
    }

    /// A handoff as stored. A final handoff whose task is removed counts as removed: its record goes next.
    fn whole_handoff(&self, stored: Option<EntityRecord>) -> Result<Option<Arc<Handoff>>, BrokerError> {
        let Some(handoff) = stored.as_ref().and_then(EntityRecord::as_handoff) else { return Ok(None) };
        let handoff = handoff.handoff.clone();
        let is_whole = !handoff.state.is_final() || self.store.get(&TaskRecord::key(&handoff.task))?.is_some();
        Ok(is_whole.then_some(handoff))
    }

    /// One task that the caller may see, with its result, its open question and its parts. The agent of the open
    /// question sees the question, also without the right to see the task.
    pub fn shown_task(&self, id: &TaskId) -> Result<ShownTask, BrokerError> {
        let stored = self.store.get(&TaskRecord::key(id))?;
        let stored = stored.map(|record| TaskRecord::decode(&record.value)).transpose()?;
        let record = stored.ok_or_else(|| self.access.no_such_task(self.caller, id))?;
        let open = record.task.open_prompt();
        let is_asked = open.is_some_and(|prompt| *self.caller == Caller::Agent(prompt.asked.clone()));
        let is_seen = self.access.may_see_task(self.caller, &record.task);
        if !is_seen && !is_asked {
            return Err(self.access.no_such_task(self.caller, id));
        }
        let prompt = open.map(|prompt| self.payload_of(prompt.id)).transpose()?.flatten();
        // An agent that was asked one question takes no part in the task, so it sees neither result nor parts.
        if !is_seen {
            return Ok(ShownTask {
                record,
                creation: None,
                result: None,
                prompt,
                answered: None,
                parts: Vec::new(),
                is_asked_only: true,
            });
        }
        let creation = record.task.created_by.map(|message| self.payload_of(message)).transpose()?.flatten();
        let result = record.task.result.map(|message| self.payload_of(message)).transpose()?.flatten();
        let answered = match record.task.last_answered() {
            Some((prompt, answer)) => self.payload_of(prompt.id)?.zip(self.payload_of(answer.id)?),
            None => None,
        };
        let list = List::of_parts(id);
        // Only the latest ones: a list of all has pages of its own.
        let parts = self.store.scan(list.table, list.range(), Order::Descending, PARTS_SHOWN_MAX)?;
        let parts = parts.iter().map(|(_, part)| TaskRecord::listed(&part.value)).collect::<Result<_, _>>()?;
        Ok(ShownTask { record, creation, result, prompt, answered, parts, is_asked_only: false })
    }

    /// One task that the caller may see.
    pub fn task(&self, id: &TaskId) -> Result<TaskRecord, BrokerError> {
        let stored = self.store.get(&TaskRecord::key(id))?;
        let stored = stored.map(|record| TaskRecord::decode(&record.value)).transpose()?;
        let seen = stored.filter(|record| self.access.may_see_task(self.caller, &record.task));
        seen.ok_or_else(|| self.access.no_such_task(self.caller, id))
    }

    /// The tasks that the caller may see, newest first. Those of one agent are in the order in which the agent joined
    /// them.
    pub fn tasks(&self, filter: &TaskFilter, size: usize, token: &str) -> Result<Page<TaskRecord>, BrokerError> {
        // The narrowest list that has all wanted tasks: one agent's own, or that of the named owner.
        let named = filter.owner.as_ref();
        let list = self.list(Purpose::ReadTasks, List::of_handoffs, named)?;
        let of_agent = match self.access.reach(self.caller, Purpose::ReadTasks)? {
            Reach::Own(agent) => Some(agent),
            Reach::Everything | Reach::Nothing => named,
        };
        if filter.by_update {
            return self.tasks_by_update(filter, size, token);
        }
        let wanted =
            |record: &TaskRecord| filter.matches(&record.task) && self.access.may_see_task(self.caller, &record.task);
        // The parts of a task and the tasks of a conversation have lists of their own, which show each of them once.
        let own_list = match (&filter.parent, &filter.conversation) {
            (Some(parent), _) => Some(List::of_parts(parent)),
            (None, Some(conversation)) => Some(List::of_conversation(conversation)),
            (None, None) => None,
        };
        if let Some(own_list) = own_list {
            let list = list.map(|_| own_list);
            let read = |_, value: &Bytes| {
                let Some(record) = self.store.get(&TaskRecord::key(&TaskRecord::listed(value)?))? else {
                    return Ok(None);
                };
                Ok(Some(TaskRecord::decode(&record.value)?).filter(wanted))
            };
            return self.page(list.as_ref(), &format!("{filter:?}"), size, token, read);
        }
        let read = |number, value: &Bytes| {
            let place = HandoffPlace::decode(number, value)?;
            let Some(record) = self.store.get(&TaskRecord::key(&place.task))? else { return Ok(None) };
            let record = TaskRecord::decode(&record.value)?;
            // A task has an entry for each of its handoffs, and the list shows it at one of them.
            let is_here =
                of_agent.map_or_else(|| record.is_shown_at(&place), |agent| record.is_shown_to_at(agent, &place));
            Ok(Some(record).filter(|record| is_here && wanted(record)))
        };
        self.page(list.as_ref(), &format!("{filter:?}"), size, token, read)
    }

    /// One dead letter that the caller may see.
    pub fn dead_letter(&self, number: u64) -> Result<DeadLetterRecord, BrokerError> {
        let key = DeadLetterRecord::key(number);
        let stored = self.store.get(&key)?;
        let stored = stored.map(|record| DeadLetterRecord::decode(&key.key, &record.value)).transpose()?;
        let seen = stored.filter(|dead| self.access.may_see_dead_letter(self.caller, dead));
        seen.ok_or_else(|| self.access.no_such_dead_letter(self.caller, number))
    }

    /// The bytes of a dead letter that the caller may see, or the digest of a context that it may not read.
    pub fn dead_bytes(&self, dead: &DeadLetterRecord) -> Result<DeadBytes, BrokerError> {
        if !self.access.may_see_dead_letter(self.caller, dead) {
            return Err(self.access.no_such_dead_letter(self.caller, dead.number));
        }
        let envelope = match &dead.envelope {
            DeadEnvelope::Refused(raw) => raw.clone(),
            DeadEnvelope::Accepted(_) => self.envelope(dead.number)?,
        };
        let whole = |envelope| DeadBytes { envelope, context_digest: Bytes::new() };
        let is_context = dead.summary.message_type == MessageType::TaskContextTransfer.number();
        let is_own = matches!(self.caller, Caller::Agent(agent) if *agent == dead.agent);
        // Only a context has contents that a reader of the dead letter may lack the right to.
        if !is_context {
            return Ok(whole(envelope));
        }
        if !has_secret(&envelope) && (is_own || self.is_party(&envelope)) {
            return Ok(whole(envelope));
        }
        let task = TaskId::parse(&dead.summary.task_id).ok();
        let stored = task.map(|task| self.store.get(&TaskRecord::key(&task))).transpose()?.flatten();
        let record = stored.map(|record| TaskRecord::decode(&record.value)).transpose()?;
        // A secret section is in no dead letter, for any caller: who may read it asks for the section.
        if !has_secret(&envelope) && self.reads_all_contexts(&dead.summary.task_id, record.as_ref())? {
            return Ok(whole(envelope));
        }
        let context: Option<v1::TaskContextTransfer> = payload_in(&envelope);
        let context_digest = context.map(|context| context.context_digest).unwrap_or_default();
        Ok(DeadBytes { envelope: Bytes::new(), context_digest })
    }

    /// Whether the caller is the author or the receiver of this envelope.
    fn is_party(&self, envelope: &Bytes) -> bool {
        let Caller::Agent(agent) = self.caller else { return false };
        let envelope = v1::Envelope::decode(envelope.clone());
        envelope.is_ok_and(|envelope| [&envelope.sender_id, &envelope.receiver_id].contains(&&agent.to_string()))
    }

    /// Whether the caller may read every context of a task: it owns the task, or is the candidate of the open handoff
    /// from its accept on, or a policy permits it.
    fn reads_all_contexts(&self, id: &str, record: Option<&TaskRecord>) -> Result<bool, BrokerError> {
        if record.map_or(Ok(false), |record| self.holds_contexts(record))? {
            return Ok(true);
        }
        Ok(self.access.may_read_contexts(self.caller, id, record.map(|record| &*record.task)))
    }

    /// Whether the caller owns the task, or is the candidate of the open handoff from its accept on.
    fn holds_contexts(&self, record: &TaskRecord) -> Result<bool, BrokerError> {
        if let Caller::Agent(agent) = self.caller {
            if record.task.owner == *agent {
                return Ok(true);
            }
            if let Some(open) = record.task.open_handoff {
                let (id, task) = (EntityId::Handoff(open), EntityId::Task(record.task.id.clone()));
                let stored = stored::entity_in(self.store, &id, &task)?;
                let handoff = stored.as_ref().and_then(EntityRecord::as_handoff).map(|record| &record.handoff);
                let has_accepted = |handoff: &Handoff| matches!(handoff.state, State::Accepted | State::ContextSent);
                return Ok(handoff.is_some_and(|handoff| handoff.candidate == *agent && has_accepted(handoff)));
            }
        }
        Ok(false)
    }

    /// An envelope by sequence.
    fn envelope(&self, sequence: u64) -> Result<Bytes, BrokerError> {
        let record = self.store.get(&MessageRecord::envelope_key(sequence))?;
        record.map(|record| record.value).ok_or_else(|| {
            tracing::error!(sequence, "an envelope is not in the store");
            BrokerError::Internal
        })
    }

    /// The dead letters that the caller may see, newest first.
    pub fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        size: usize,
        token: &str,
    ) -> Result<Page<DeadLetterRecord>, BrokerError> {
        let list = self.dead_letters_of(filter)?;
        let read = |number, value: &Bytes| self.wanted_dead_letter(filter, number, value);
        self.page(list.as_ref(), &format!("{filter:?}"), size, token, read)
    }

    fn dead_letters_of(&self, filter: &DeadLetterFilter) -> Result<Option<List>, BrokerError> {
        self.list(Purpose::ReadDeadLetters, List::of_dead_letters, filter.agent.as_ref())
    }

    /// The dead letter of a list entry, if it matches, without the bytes of a refused envelope. The entries of an agent's list
    /// hold only the number.
    fn wanted_dead_letter(
        &self,
        filter: &DeadLetterFilter,
        number: u64,
        value: &Bytes,
    ) -> Result<Option<DeadLetterRecord>, BrokerError> {
        let key = DeadLetterRecord::key(number);
        let record = match value.is_empty() {
            true => self.store.get(&key)?.map(|record| record.value),
            false => Some(value.clone()),
        };
        let Some(mut dead) = record.map(|value| DeadLetterRecord::decode(&key.key, &value)).transpose()? else {
            return Ok(None);
        };
        if let DeadEnvelope::Refused(raw) = &mut dead.envelope {
            *raw = Bytes::new(); // some of them together can have many megabytes
        }
        Ok(Some(dead).filter(|dead| filter.matches(dead) && self.access.may_see_dead_letter(self.caller, dead)))
    }

    /// The dead letters with numbers after `after` and up to `last`, oldest first, at most `limit` matching ones.
    /// Returns the number to continue after, or `None` at the end.
    pub fn dead_letters_after(
        &self,
        filter: &DeadLetterFilter,
        after: u64,
        last: u64,
        limit: usize,
    ) -> Result<(Vec<DeadLetterRecord>, Option<u64>), BrokerError> {
        let Some(list) = self.dead_letters_of(filter)? else { return Ok((Vec::new(), None)) };
        let range = (Bound::Excluded(list.key(after)), Bound::Included(list.key(last)));
        let mut found = Vec::new();
        for (looked_at, entry) in self.entries(&list, range, Order::Ascending, limit).enumerate() {
            let (number, record) = entry?;
            found.extend(self.wanted_dead_letter(filter, number, &record.value)?);
            // The second bound is on the work: a filter without a match must not read the whole list in one call.
            if found.len() == limit || looked_at + 1 == LOOKED_AT_MAX {
                return Ok((found, Some(number)));
            }
        }
        Ok((found, None))
    }

    /// The number of the latest dead letter; 0 if none exists. Every caller that may list dead letters may know it.
    pub fn last_dead_letter(&self) -> Result<u64, BrokerError> {
        self.access.reach(self.caller, Purpose::ReadDeadLetters)?;
        let all = (Bound::Unbounded, Bound::Unbounded);
        let last = self.store.scan(Table::DeadLetters, all, Order::Descending, 1)?;
        last.first().map_or(Ok(0), |(key, record)| Ok(DeadLetterRecord::decode(key, &record.value)?.number))
    }

    /// The entries of a task's custody log after this number. Status updates include their envelopes, others only on
    /// request. The receipts are unsigned.
    pub fn custody(&self, id: &TaskId, after: u64, limit: usize, envelopes: bool) -> Result<CustodyPage, BrokerError> {
        let record = self.task(id)?;
        let page = self.custody_page(id, &record, after, limit, envelopes);
        self.task(id)?; // a removal during the read would leave the page incomplete
        page
    }

    fn custody_page(
        &self,
        id: &TaskId,
        record: &TaskRecord,
        after: u64,
        limit: usize,
        envelopes: bool,
    ) -> Result<CustodyPage, BrokerError> {
        let (length, is_final) = (record.custody.length, record.task.status.is_final());
        if after > length {
            // The caller has seen more entries than the log has: the broker was restored to an earlier state.
            return Ok(CustodyPage { entries: Vec::new(), length, is_final, gap: Some((length + 1, after)) });
        }
        let mut page = CustodyPage { entries: Vec::new(), length, is_final, gap: None };
        let mut bytes = 0;
        let reads_contexts = envelopes && self.reads_all_contexts(id.as_str(), Some(record))?;
        for (number, item) in custody::items(self.store, record, after, limit)? {
            let entry = self.custody_entry(id, item, envelopes, reads_contexts)?;
            if page.entries.is_empty() && number > after + 1 {
                page.gap = Some((after + 1, number - 1));
            }
            bytes += entry.encoded_len();
            // A page has at least one entry, of any size.
            if bytes > PAGE_BYTES_MAX && !page.entries.is_empty() {
                break;
            }
            page.entries.push(entry);
        }
        // The log is longer, but the scan found nothing: the requested entries are missing.
        if page.entries.is_empty() && page.gap.is_none() && after < length {
            page.gap = Some((after + 1, length));
        }
        Ok(page)
    }

    fn custody_entry(
        &self,
        task: &TaskId,
        item: LogItem,
        envelopes: bool,
        reads_contexts: bool,
    ) -> Result<v1::CustodyLogEntry, BrokerError> {
        use v1::custody_entry::Event;
        let Logged { entry: LogEntry { hash, bytes: entry_bytes }, message } = custody::entry(self.store, item)?;
        let entry = v1::CustodyEntry::decode(entry_bytes.clone()).map_err(|error| {
            tracing::error!(%error, "failed to decode an entry of a custody log");
            BrokerError::Internal
        })?;
        let custody_hash = hash.to_vec().into();
        let mut shown = v1::CustodyLogEntry { entry_bytes, custody_hash, ..Default::default() };
        if let Some(Event::Accepted(accepted)) = &entry.event {
            // Watchers of a task show progress and results without a second call.
            let is_status = accepted.message_type == MessageType::TaskStatusUpdate.number();
            if envelopes || is_status {
                // An envelope is in the record of its message only where the keys of messages grow with time; else it
                // has a record of its own.
                let inline = message.as_ref().and_then(|message| message.logged()?.envelope.clone());
                shown.envelope = match inline {
                    Some(envelope) => envelope,
                    None => self.envelope(accepted.sequence)?,
                };
                let is_context = [MessageType::TaskContextTransfer, MessageType::ContextCheckpoint]
                    .iter()
                    .any(|kind| accepted.message_type == kind.number());
                let is_hidden = || !reads_contexts && !self.is_party(&shown.envelope) || has_secret(&shown.envelope);
                if is_context && is_hidden() {
                    shown.envelope = Bytes::new(); // the entry has the digest
                }
            }
            shown.receipt = Some(receipt_of(task, &entry, accepted, hash));
        }
        shown.entry = Some(entry);
        Ok(shown)
    }

    /// The list that a query for this purpose reads: that of all, or one agent's. `None`: nothing. A caller that may see
    /// everything and names an agent gets that agent's list.
    fn list(
        &self,
        purpose: Purpose,
        of: impl FnOnce(Option<&AgentId>) -> List,
        named: Option<&AgentId>,
    ) -> Result<Option<List>, BrokerError> {
        Ok(match self.access.reach(self.caller, purpose)? {
            Reach::Nothing => None,
            Reach::Own(agent) => Some(of(Some(agent))),
            Reach::Everything => Some(of(named)),
        })
    }
}

/// The payload of a stored envelope.
fn decoded<M: prost::Message + Default>(bytes: &Bytes, message: MessageId) -> Result<M, BrokerError> {
    payload_in(bytes).ok_or_else(|| {
        tracing::error!(%message, "a stored envelope does not decode");
        BrokerError::Internal
    })
}
