//! A shared log and a register in memory, for tests and the simulator.
//!
//! Its methods without `async` are what the simulator calls: it delays, doubles and drops the calls itself. It can lose its
//! tail, as a database does whose standby was behind.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;

use crate::log::{AppendError, Position, ReadError, Register, Settings, SharedLog, Unavailable, Version, WriteError};

/// The largest entry in bytes.
const ENTRY_BYTES_MAX: usize = 8 * 1024 * 1024;

#[derive(Debug, Default)]
struct Contents {
    /// The entries that were not trimmed.
    entries: Vec<Bytes>,
    /// The number of trimmed entries.
    trimmed: Position,
    values: BTreeMap<String, (u64, Bytes)>,
    /// The number of writes of values. It gives each write a version of its own.
    writes: u64,
}

impl Contents {
    fn end(&self) -> Position {
        self.trimmed + self.entries.len() as u64
    }
}

/// A log and a register. A clone is another client of the same.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<Mutex<Contents>>);

impl Memory {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`SharedLog::append`]. The outcome is never unknown.
    pub fn append_now(&self, after: Position, entry: Bytes) -> Result<(), AppendError> {
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(AppendError::TooLarge { bytes: entry.len(), bytes_max: ENTRY_BYTES_MAX });
        }
        let mut contents = self.contents();
        if contents.end() != after {
            return Err(AppendError::Fenced);
        }
        contents.entries.push(entry);
        Ok(())
    }

    /// As [`SharedLog::end`].
    pub fn end_now(&self) -> Position {
        self.contents().end()
    }

    /// As [`SharedLog::read`].
    pub fn read_now(&self, from: Position, bytes: usize) -> Result<Vec<(Position, Bytes)>, ReadError> {
        let contents = self.contents();
        if from <= contents.trimmed {
            return Err(ReadError::Trimmed { first: contents.trimmed + 1 });
        }
        let skipped = usize::try_from(from - contents.trimmed - 1).unwrap_or(usize::MAX);
        let mut taken = 0;
        let within = |entry: &&Bytes| {
            let fits = taken < bytes.max(1);
            taken += entry.len().max(1);
            fits
        };
        let found = contents.entries.iter().skip(skipped).take_while(within).cloned();
        Ok((from..).zip(found).collect())
    }

    /// As [`SharedLog::trim`].
    pub fn trim_now(&self, before: Position) {
        let mut contents = self.contents();
        let before = before.min(contents.end());
        let count = before.saturating_sub(contents.trimmed + 1);
        contents.entries.drain(..usize::try_from(count).unwrap_or(usize::MAX));
        contents.trimmed += count;
    }

    /// Loses the entries behind `end`, which breaks P2.
    pub fn lose_tail(&self, end: Position) {
        let mut contents = self.contents();
        let kept = usize::try_from(end.saturating_sub(contents.trimmed)).unwrap_or(usize::MAX);
        contents.entries.truncate(kept);
    }

    /// As [`Register::read`].
    pub fn value(&self, name: &str) -> Option<(Version, Bytes)> {
        self.contents().values.get(name).map(|(version, value)| (version_of(*version), value.clone()))
    }

    /// As [`Register::write`]. The outcome is never unknown.
    pub fn write_now(&self, name: &str, expected: Option<&Version>, value: Bytes) -> Result<Version, WriteError> {
        let mut contents = self.contents();
        let present = contents.values.get(name).map(|(version, _)| version_of(*version));
        if present.as_ref() != expected {
            return Err(WriteError::Changed);
        }
        contents.writes += 1;
        let version = contents.writes;
        contents.values.insert(name.into(), (version, value));
        Ok(version_of(version))
    }
}

fn version_of(number: u64) -> Version {
    Version(number.to_string())
}

#[async_trait]
impl SharedLog for Memory {
    async fn append(&self, after: Position, entry: Bytes) -> Result<(), AppendError> {
        self.append_now(after, entry)
    }

    async fn end(&self) -> Result<Position, Unavailable> {
        Ok(self.end_now())
    }

    async fn read(&self, from: Position, bytes: usize) -> Result<Vec<(Position, Bytes)>, ReadError> {
        self.read_now(from, bytes)
    }

    async fn trim(&self, before: Position) -> Result<(), Unavailable> {
        self.trim_now(before);
        Ok(())
    }

    async fn size_bytes(&self) -> Result<u64, Unavailable> {
        Ok(self.contents().entries.iter().map(|entry| entry.len() as u64).sum())
    }

    fn entry_bytes_max(&self) -> usize {
        ENTRY_BYTES_MAX
    }

    async fn settings(&self) -> Result<Settings, Unavailable> {
        let volatile = "the log is in memory, and ends with the process: it is for tests".to_owned();
        Ok(Settings { unsafe_ones: vec![volatile], warnings: Vec::new() })
    }
}

#[async_trait]
impl Register for Memory {
    async fn read(&self, name: &str) -> Result<Option<(Version, Bytes)>, Unavailable> {
        Ok(self.value(name))
    }

    async fn write(&self, name: &str, expected: Option<&Version>, value: Bytes) -> Result<Version, WriteError> {
        self.write_now(name, expected, value)
    }

    async fn names(&self, prefix: &str) -> Result<Vec<String>, Unavailable> {
        Ok(self.contents().values.keys().filter(|name| name.starts_with(prefix)).cloned().collect())
    }
}
