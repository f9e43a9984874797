//! Pages of the log of a run, a thread or a plan.

use bytes::Bytes;

use super::View;
use crate::{
    BrokerError,
    proto::v1,
    records::DecodeError,
    store::{KeyRange, Order, Table},
};

/// An entry of a log.
pub trait NumberedEntry {
    /// The place of the entry in its log, starting at 1.
    fn number(&self) -> u64;
}

impl NumberedEntry for v1::RunEntry {
    fn number(&self) -> u64 {
        self.number
    }
}

impl NumberedEntry for v1::ThreadEntry {
    fn number(&self) -> u64 {
        self.number
    }
}

impl NumberedEntry for v1::PlanEntry {
    fn number(&self) -> u64 {
        self.number
    }
}

/// A page of a log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogPage<E> {
    /// The entries, oldest first.
    pub entries: Vec<E>,
    /// The number of the last entry of the log.
    pub length: u64,
    /// Whether the log gets no further entry.
    pub is_final: bool,
    /// The first and last number of requested entries that the log does not have.
    pub gap: Option<(u64, u64)>,
}

/// What a page of a log is read from.
pub(super) struct Log<E> {
    pub(super) table: Table,
    /// The keys of the entries after `after`.
    pub(super) range: KeyRange,
    /// The page begins after the entry with this number.
    pub(super) after: u64,
    pub(super) decode: fn(&Bytes) -> Result<E, DecodeError>,
    /// As in the page. The entity must be read before its log: the log then has every kept entry up to this length.
    pub(super) length: u64,
    pub(super) is_final: bool,
}

impl View<'_> {
    /// The next entries of a log, at most `limit`, oldest first.
    pub(super) fn log_page<E: NumberedEntry>(&self, log: Log<E>, limit: usize) -> Result<LogPage<E>, BrokerError> {
        let Log { table, range, after, decode, length, is_final } = log;
        let found = self.store.scan(table, range, Order::Ascending, limit)?;
        let entries = found.iter().map(|(_, record)| decode(&record.value)).collect::<Result<Vec<_>, _>>()?;
        let gap = match entries.first() {
            Some(first) if first.number() > after + 1 => Some((after + 1, first.number() - 1)),
            // The caller has seen more entries than the log has, or they are removed.
            None if after > length => Some((length + 1, after)),
            None if after < length => Some((after + 1, length)),
            Some(_) | None => None,
        };
        Ok(LogPage { entries, length, is_final, gap })
    }
}
