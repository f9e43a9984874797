//! Looking at what is stored. Reads beside the pipeline, and sees only what is durable.

use std::ops::Bound;

use bytes::Bytes;

use super::{
    BrokerError,
    access::{Access, Caller},
};
use crate::{
    domain::handoff::{Handoff, State, TaskStatus},
    ids::{AgentId, MessageId, TaskId},
    records::{HandoffRecord, TaskRecord, by_number},
    store::{Key, Order, Store, Table},
};

/// Most entries that one page looks at, so that a filter that matches little cannot hold a thread for long.
const LOOKED_AT_MAX: usize = 10_000;

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
    pub access: Access,
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
    pub fn handoff(&self, id: MessageId) -> Result<Handoff, BrokerError> {
        let unknown = || BrokerError::HandoffUnknown { handoff: id.to_string() };
        let record = self.store.get(&HandoffRecord::key(id))?.ok_or_else(unknown)?;
        let handoff = HandoffRecord::decode(&record.value)?.handoff;
        self.access.may_see_handoff(self.caller, &handoff)?;
        Ok(handoff)
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
    pub fn handoffs(&self, filter: &HandoffFilter, size: usize, token: &str) -> Result<Page<Handoff>, BrokerError> {
        let read = |id: &Bytes| {
            let record = self.store.get(&Key { table: Table::Handoffs, key: id.clone() })?;
            record.map(|record| Ok(HandoffRecord::decode(&record.value)?.handoff)).transpose()
        };
        let wanted = |handoff: &Handoff| {
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
        let read = |id: &Bytes| {
            let record = self.store.get(&Key { table: Table::Tasks, key: id.clone() })?;
            record.map(|record| Ok(TaskRecord::decode(&record.value)?)).transpose()
        };
        let wanted = |record: &TaskRecord| {
            filter.owner.as_ref().is_none_or(|owner| record.task.owner == *owner)
                && (filter.statuses.is_empty() || filter.statuses.contains(&record.task.status))
                && self.access.may_see_task(self.caller, &record.task).is_ok()
        };
        self.page(Table::TasksBySequence, &format!("{filter:?}"), size, token, read, wanted)
    }

    /// A page of an index, newest first. The token names the last entry that was looked at, and the filter.
    fn page<T>(
        &self,
        index: Table,
        filter: &str,
        size: usize,
        token: &str,
        read: impl Fn(&Bytes) -> Result<Option<T>, BrokerError>,
        wanted: impl Fn(&T) -> bool,
    ) -> Result<Page<T>, BrokerError> {
        if *self.caller == Caller::Anonymous {
            self.access.may_see_directory(self.caller)?; // the same rule: open enrollment, or an identity
        }
        let list = format!("{index:?} {filter}");
        let end = match token {
            "" => Bound::Unbounded,
            token => Bound::Excluded(by_number(index, parse_token(token, &list)?).key),
        };
        let entries = self.store.scan(index, (Bound::Unbounded, end), Order::Descending, LOOKED_AT_MAX)?;
        let reached_end = entries.len() < LOOKED_AT_MAX;
        let mut page = Page { entries: Vec::new(), next_token: String::new() };
        let last = entries.len().saturating_sub(1);
        for (place, (key, id)) in entries.iter().enumerate() {
            if let Some(entry) = read(&id.value)?.filter(&wanted) {
                page.entries.push(entry);
            }
            let is_last = place == last;
            if (page.entries.len() == size && !is_last) || (is_last && !reached_end) {
                page.next_token = make_token(key, &list);
                break;
            }
            if page.entries.len() == size {
                break;
            }
        }
        Ok(page)
    }
}

fn make_token(key: &[u8], list: &str) -> String {
    format!("{}{:08x}", hex::encode(key), crc32c::crc32c(list.as_bytes()))
}

fn parse_token(token: &str, list: &str) -> Result<u64, BrokerError> {
    let (key, checksum) = token.split_at_checked(16).ok_or(BrokerError::PageTokenInvalid)?;
    if checksum != format!("{:08x}", crc32c::crc32c(list.as_bytes())) {
        return Err(BrokerError::PageTokenInvalid);
    }
    u64::from_str_radix(key, 16).map_err(|_| BrokerError::PageTokenInvalid)
}
