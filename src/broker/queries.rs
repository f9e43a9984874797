//! Looking at what is stored. Reads beside the pipeline, and sees only what is durable.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;
use prost::Message as _;

use super::{
    BrokerError,
    access::{Access, Caller},
};
use crate::{
    domain::handoff::{Handoff, State, TaskStatus},
    ids::{AgentId, MessageId, TaskId},
    policy::{Action, Resource},
    proto::v1,
    records::{
        AuditHead, CustodyLink, DeadEnvelope, DeadLetterRecord, DeadState, HandoffRecord, MessageRecord, ParkReason,
        TaskRecord, by_number, receipt_of,
    },
    store::{Key, KeyBytes, KeyRange, Order, ReadError, Record, Store, Table},
    time::Timestamp,
};

/// Most entries that one page looks at, so that a filter that matches little cannot hold a thread for long.
const LOOKED_AT_MAX: usize = 10_000;
/// Entries of a list that are read at a time.
const READ_AT_A_TIME: usize = 256;
/// The same of dead letters, each of which may hold a whole frame.
const DEAD_LETTERS_AT_A_TIME: usize = 8;

/// Which handoffs. What is set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandoffFilter {
    /// Of this task.
    pub task: Option<TaskId>,
    /// With this agent as sender or candidate.
    pub agent: Option<AgentId>,
    /// In one of these states.
    pub states: Vec<State>,
}

/// Which tasks. What is set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Owned by this agent.
    pub owner: Option<AgentId>,
    /// In one of these statuses.
    pub statuses: Vec<TaskStatus>,
}

/// Which dead letters. What is set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// In one of these states; none: those that are parked.
    pub states: Vec<DeadState>,
    /// For one of these reasons.
    pub reasons: Vec<ParkReason>,
    /// For this mailbox, or from this sender of what was refused.
    pub agent: Option<AgentId>,
    /// From this sender.
    pub sender: Option<AgentId>,
    /// About this task.
    pub task: Option<TaskId>,
    /// Of one of these types, by number.
    pub message_types: Vec<i32>,
    /// Parked at this time or later.
    pub parked_from: Option<Timestamp>,
    /// Parked before this time.
    pub parked_before: Option<Timestamp>,
}

impl DeadLetterFilter {
    /// Whether this one is meant.
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

/// Entries of a custody log.
#[derive(Debug, Clone, PartialEq)]
pub struct CustodyPage {
    /// The entries, oldest first.
    pub entries: Vec<v1::CustodyLogEntry>,
    /// How many the log has.
    pub length: u64,
    /// Whether the task has ended.
    pub is_final: bool,
    /// Numbers of entries that were asked for and are not there.
    pub gap: Option<(u64, u64)>,
}

/// Bytes of entries and envelopes in one page, so that it fits a frame whatever is in it.
const PAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Part of a list, and how to go on.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The entries.
    pub entries: Vec<T>,
    /// For the next page; empty on the last one.
    pub next_token: String,
}

/// Who asks, and by which rules.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// What is stored.
    pub store: &'a dyn Store,
    /// The rules.
    pub access: Access<'a>,
    /// Who asks.
    pub caller: &'a Caller,
}

impl std::fmt::Debug for dyn Store {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a store")
    }
}

impl View<'_> {
    /// One handoff, with its place in lists.
    pub fn handoff(&self, id: MessageId) -> Result<Arc<Handoff>, BrokerError> {
        let unknown = || BrokerError::HandoffUnknown { handoff: id.to_string() };
        let handoff = self.stored_handoff(&HandoffRecord::key(id))?.ok_or_else(unknown)?;
        self.access.may_see_handoff(self.caller, &handoff)?;
        Ok(handoff)
    }

    /// A handoff whose task is gone is about to go too.
    fn stored_handoff(&self, key: &Key) -> Result<Option<Arc<Handoff>>, BrokerError> {
        let Some(record) = self.store.get(key)? else { return Ok(None) };
        let handoff = HandoffRecord::decode(&record.value)?.handoff;
        let is_whole = !handoff.state.is_final() || self.store.get(&TaskRecord::key(&handoff.task))?.is_some();
        Ok(is_whole.then_some(handoff))
    }

    /// One task.
    pub fn task(&self, id: &TaskId) -> Result<TaskRecord, BrokerError> {
        let unknown = || BrokerError::TaskUnknown { task: id.to_string() };
        let record = self.store.get(&TaskRecord::key(id))?.ok_or_else(unknown)?;
        let record = TaskRecord::decode(&record.value)?;
        self.access.may_see_task(self.caller, &record.task)?;
        Ok(record)
    }

    /// Handoffs that the caller may see, newest first.
    pub fn handoffs(
        &self,
        filter: &HandoffFilter,
        size: usize,
        token: &str,
    ) -> Result<Page<Arc<Handoff>>, BrokerError> {
        let read = |_: &[u8], id: &Bytes| self.stored_handoff(&Key { table: Table::Handoffs, key: (&**id).into() });
        let wanted = |handoff: &Arc<Handoff>| {
            let agent_fits = |agent: &AgentId| handoff.sender == *agent || handoff.candidate == *agent;
            filter.task.as_ref().is_none_or(|task| handoff.task == *task)
                && filter.agent.as_ref().is_none_or(agent_fits)
                && (filter.states.is_empty() || filter.states.contains(&handoff.state))
                && self.access.may_see_handoff(self.caller, handoff).is_ok()
        };
        self.page(Table::HandoffsBySequence, &format!("{filter:?}"), size, token, read, wanted)
    }

    /// Tasks that the caller may see, newest first.
    pub fn tasks(&self, filter: &TaskFilter, size: usize, token: &str) -> Result<Page<TaskRecord>, BrokerError> {
        let read = |_: &[u8], id: &Bytes| {
            let record = self.store.get(&Key { table: Table::Tasks, key: (&**id).into() })?;
            record.map(|record| Ok(TaskRecord::decode(&record.value)?)).transpose()
        };
        let wanted = |record: &TaskRecord| {
            filter.owner.as_ref().is_none_or(|owner| record.task.owner == *owner)
                && (filter.statuses.is_empty() || filter.statuses.contains(&record.task.status))
                && self.access.may_see_task(self.caller, &record.task).is_ok()
        };
        self.page(Table::TasksBySequence, &format!("{filter:?}"), size, token, read, wanted)
    }

    /// One dead letter.
    pub fn dead_letter(&self, number: u64) -> Result<DeadLetterRecord, BrokerError> {
        let key = DeadLetterRecord::key(number);
        let unknown = || BrokerError::DeadLetterUnknown { dead_letter: number.to_string() };
        let record = self.store.get(&key)?.ok_or_else(unknown)?;
        let dead = DeadLetterRecord::decode(&key.key, &record.value)?;
        self.access.may_see_dead_letter(self.caller, &dead)?;
        Ok(dead)
    }

    /// The bytes of a dead letter.
    pub fn dead_bytes(&self, dead: &DeadLetterRecord) -> Result<Bytes, BrokerError> {
        match &dead.envelope {
            DeadEnvelope::Refused(raw) => Ok(raw.clone()),
            DeadEnvelope::Accepted(_) => self.envelope(dead.number),
        }
    }

    fn envelope(&self, sequence: u64) -> Result<Bytes, BrokerError> {
        let record = self.store.get(&MessageRecord::envelope_key(sequence))?;
        record.map(|record| record.value).ok_or_else(|| {
            tracing::error!(sequence, "an envelope is not in the store");
            BrokerError::Internal
        })
    }

    /// Dead letters that the caller may see, newest first.
    pub fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        size: usize,
        token: &str,
    ) -> Result<Page<DeadLetterRecord>, BrokerError> {
        let read = |key: &[u8], value: &Bytes| {
            let mut dead = DeadLetterRecord::decode(key, value)?;
            if let DeadEnvelope::Refused(raw) = &mut dead.envelope {
                *raw = Bytes::new(); // a list does not show it, and a page of them could be large
            }
            Ok(Some(dead))
        };
        let wanted = |dead: &DeadLetterRecord| {
            filter.matches(dead) && self.access.may_see_dead_letter(self.caller, dead).is_ok()
        };
        self.page(Table::DeadLetters, &format!("{filter:?}"), size, token, read, wanted)
    }

    /// Dead letters after this one and up to that one, oldest first, at most `limit` that match; and after which one to go
    /// on, unless that was all.
    pub fn dead_letters_after(
        &self,
        filter: &DeadLetterFilter,
        after: u64,
        last: u64,
        limit: usize,
    ) -> Result<(Vec<DeadLetterRecord>, Option<u64>), BrokerError> {
        let bound = |number: u64| DeadLetterRecord::key(number).key;
        let range = (Bound::Excluded(bound(after)), Bound::Included(bound(last)));
        let mut found = Vec::new();
        for (looked_at, entry) in self.entries(Table::DeadLetters, range, Order::Ascending).enumerate() {
            let (key, record) = entry?;
            let dead = DeadLetterRecord::decode(&key, &record.value)?;
            let number = dead.number;
            if filter.matches(&dead) && self.access.may_see_dead_letter(self.caller, &dead).is_ok() {
                found.push(dead);
            }
            if found.len() == limit || looked_at + 1 == LOOKED_AT_MAX {
                return Ok((found, Some(number)));
            }
        }
        Ok((found, None))
    }

    /// The number of the latest dead letter; 0 if there is none.
    pub fn last_dead_letter(&self) -> Result<u64, BrokerError> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let last = self.store.scan(Table::DeadLetters, all, Order::Descending, 1)?;
        last.first().map_or(Ok(0), |(key, record)| Ok(DeadLetterRecord::decode(key, &record.value)?.number))
    }

    /// Entries of a task's custody log after this number. Status updates come with their envelopes, others if they are
    /// wanted. Receipts are not signed yet.
    pub fn custody(&self, id: &TaskId, after: u64, limit: usize, envelopes: bool) -> Result<CustodyPage, BrokerError> {
        let record = self.task(id)?;
        let page = self.custody_page(id, &record, after, limit, envelopes);
        self.task(id)?; // it may have been removed meanwhile, and what was read of it is not all there was
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
            // The caller has seen more than there is: of a broker that was set back.
            return Ok(CustodyPage { entries: Vec::new(), length, is_final, gap: Some((length + 1, after)) });
        }
        let range = CustodyLink::range(record.sequence, id, after + 1);
        let stored = self.store.scan(Table::Custody, range, Order::Ascending, limit)?;
        let mut page = CustodyPage { entries: Vec::new(), length, is_final, gap: None };
        let mut bytes = 0;
        for (_, record) in stored {
            let entry = self.custody_entry(id, &record.value, envelopes)?;
            let number = entry.entry.as_ref().map_or(0, |entry| entry.number);
            if page.entries.is_empty() && number > after + 1 {
                page.gap = Some((after + 1, number - 1));
            }
            bytes += entry.encoded_len();
            if bytes > PAGE_BYTES_MAX && !page.entries.is_empty() {
                break;
            }
            page.entries.push(entry);
        }
        if page.entries.is_empty() && page.gap.is_none() && after < length {
            page.gap = Some((after + 1, length));
        }
        Ok(page)
    }

    fn custody_entry(
        &self,
        task: &TaskId,
        stored: &Bytes,
        envelopes: bool,
    ) -> Result<v1::CustodyLogEntry, BrokerError> {
        use v1::custody_entry::Event;
        let (hash, entry_bytes) = CustodyLink::decode(stored)?;
        let entry = v1::CustodyEntry::decode(entry_bytes.clone()).map_err(|error| {
            tracing::error!(%error, "an entry of a custody log does not decode");
            BrokerError::Internal
        })?;
        let custody_hash = hash.to_vec().into();
        let mut shown = v1::CustodyLogEntry { entry_bytes, custody_hash, ..Default::default() };
        if let Some(Event::Accepted(accepted)) = &entry.event {
            let is_status = accepted.message_type == v1::MessageType::TaskStatusUpdate as i32;
            if envelopes || is_status {
                shown.envelope = self.envelope(accepted.sequence)?;
            }
            shown.receipt = Some(receipt_of(task, &entry, accepted, hash));
        }
        shown.entry = Some(entry);
        Ok(shown)
    }

    /// Entries of the log of administrative acts after this number, oldest first, and how many the log has.
    pub fn audit_log(&self, after: u64, limit: usize) -> Result<(Vec<v1::AuditLogEntry>, u64), BrokerError> {
        self.access.check(self.caller, Action::ReadAuditLog, Resource::Broker)?;
        let stored = self.store.get(&AuditHead::key())?;
        let head = stored.map(|record| AuditHead::decode(&record.value)).transpose()?.unwrap_or_default();
        let range = (Bound::Excluded(AuditHead::entry_key(after).key), Bound::Unbounded);
        let found = self.store.scan(Table::Audit, range, Order::Ascending, limit)?;
        let shown = |record: &Record| {
            let (hash, entry_bytes) = AuditHead::decode_entry(&record.value)?;
            let entry = v1::AuditEntry::decode(entry_bytes.clone()).map_err(|error| {
                tracing::error!(%error, "an entry of the audit log does not decode");
                BrokerError::Internal
            })?;
            Ok(v1::AuditLogEntry { entry: Some(entry), entry_bytes, chain_hash: hash.to_vec().into() })
        };
        let entries: Result<Vec<_>, BrokerError> = found.iter().map(|(_, record)| shown(record)).collect();
        Ok((entries?, head.length))
    }

    /// A page of an index, newest first. The token names the last entry that was looked at, and the filter.
    fn page<T>(
        &self,
        index: Table,
        filter: &str,
        size: usize,
        token: &str,
        read: impl Fn(&[u8], &Bytes) -> Result<Option<T>, BrokerError>,
        wanted: impl Fn(&T) -> bool,
    ) -> Result<Page<T>, BrokerError> {
        if *self.caller == Caller::Anonymous {
            // Rather than a list without anything in it.
            self.access.may_see_directory(self.caller)?;
        }
        let list = format!("{index:?} {filter}");
        let end = match token {
            "" => Bound::Unbounded,
            token => Bound::Excluded(by_number(index, parse_token(token, &list)?).key),
        };
        let mut entries = self.entries(index, (Bound::Unbounded, end), Order::Descending).peekable();
        let mut page = Page { entries: Vec::new(), next_token: String::new() };
        let mut looked_at = 0;
        while let Some(entry) = entries.next() {
            let (key, id) = entry?;
            looked_at += 1;
            if let Some(entry) = read(&key, &id.value)?.filter(&wanted) {
                page.entries.push(entry);
            }
            if page.entries.len() == size || looked_at == LOOKED_AT_MAX {
                if entries.peek().is_some() {
                    page.next_token = make_token(&key, &list);
                }
                break;
            }
        }
        Ok(page)
    }

    fn entries(&self, table: Table, range: KeyRange, order: Order) -> Entries<'_> {
        let at_a_time = if table == Table::DeadLetters { DEAD_LETTERS_AT_A_TIME } else { READ_AT_A_TIME };
        Entries { store: self.store, table, range, order, at_a_time, read: Vec::new().into_iter(), is_over: false }
    }
}

/// The entries of a range, of which only a few are in memory at a time.
struct Entries<'a> {
    store: &'a dyn Store,
    table: Table,
    /// What is not read yet.
    range: KeyRange,
    order: Order,
    at_a_time: usize,
    read: std::vec::IntoIter<(KeyBytes, Record)>,
    is_over: bool,
}

impl Iterator for Entries<'_> {
    type Item = Result<(KeyBytes, Record), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.read.len() == 0 && !self.is_over {
            match self.store.scan(self.table, self.range.clone(), self.order, self.at_a_time) {
                Ok(entries) => {
                    self.is_over = entries.len() < self.at_a_time;
                    self.read = entries.into_iter();
                }
                Err(error) => return Some(Err(error)),
            }
        }
        let (key, record) = self.read.next()?;
        match self.order {
            Order::Ascending => self.range.0 = Bound::Excluded(key.clone()),
            Order::Descending => self.range.1 = Bound::Excluded(key.clone()),
        }
        Some(Ok((key, record)))
    }
}

pub(crate) fn make_token(key: &[u8], list: &str) -> String {
    format!("{}{:08x}", hex::encode(key), crc32c::crc32c(list.as_bytes()))
}

pub(crate) fn parse_token(token: &str, list: &str) -> Result<u64, BrokerError> {
    let number = token.get(..16).and_then(|key| u64::from_str_radix(key, 16).ok());
    // Only what was given: no sign, no capital letters, no other list.
    let is_given = |number: &u64| make_token(&number.to_be_bytes(), list) == token;
    number.filter(is_given).ok_or(BrokerError::PageTokenInvalid)
}
