//! The laws of a cluster, checked against the history of the log: all that ever was appended.

use std::collections::BTreeMap;

use baton_cluster::entry::{Chain, Entry, Expected, Payload, Position};
use bytes::Bytes;

/// All that was ever in the log, and all that was answered.
#[derive(Debug)]
pub(crate) struct History {
    expected: Expected,
    /// The entries, from position 1 on; trimmed ones too.
    entries: Vec<Bytes>,
    /// The groups up to and with each position.
    groups: Vec<usize>,
    /// The end of the chain, which every entry must follow.
    chain: Chain,
    /// The process that took over last.
    author: Bytes,
    taken_over_at: Position,
    /// The highest position of an answered group.
    answered: Position,
    answers: BTreeMap<Position, Bytes>,
    /// The end of the log after it lost its tail.
    lost_behind: Option<Position>,
}

impl History {
    pub(crate) fn new(expected: Expected) -> Self {
        Self {
            expected,
            entries: Vec::new(),
            groups: vec![0],
            chain: Chain::EMPTY,
            author: Bytes::new(),
            taken_over_at: 0,
            answered: 0,
            answers: BTreeMap::new(),
            lost_behind: None,
        }
    }

    pub(crate) fn end(&self) -> Position {
        self.chain.position
    }

    /// The log has taken an entry at this position.
    pub(crate) fn appended(&mut self, position: Position, bytes: &Bytes) {
        let known = self.entries.get(usize::try_from(position - 1).unwrap());
        if known == Some(bytes) {
            // A late second try brings back what the log has lost.
            self.lost_behind = Some(position).filter(|position| *position < self.end());
            return;
        }
        if self.lost_behind.is_some() {
            return; // nothing may be answered from here on: `answered` checks it
        }
        assert!(known.is_none(), "two entries are at position {position}");
        let entry =
            self.chain.follow(bytes, &self.expected).unwrap_or_else(|error| panic!("the chain breaks: {error}"));
        if let Payload::Takeover(takeover) = &entry.payload {
            (self.author, self.taken_over_at) = (takeover.process.clone(), position);
        }
        if let Payload::Group(writes) = &entry.payload {
            assert!(
                writes.starts_with(&self.author),
                "the group at {position} is by another than the leader of its term"
            );
        }
        self.groups.push(self.groups.last().unwrap() + usize::from(matches!(entry.payload, Payload::Group(_))));
        self.entries.push(bytes.clone());
    }

    /// The log has lost all entries behind `end`.
    pub(crate) fn lost_behind(&mut self, end: Position) {
        self.lost_behind = Some(end);
    }

    /// A leader answers for a group that it committed.
    pub(crate) fn answered(&mut self, position: Position, writes: &Bytes) {
        assert_eq!(
            self.group(position).as_ref(),
            Some(writes),
            "a group was answered, and the log lacks it at {position}"
        );
        self.answers.insert(position, writes.clone());
        self.answered = self.answered.max(position);
    }

    /// A leader answers a read from tables that end at `position`.
    pub(crate) fn read_answered(&self, position: Position) {
        assert!(position >= self.answered, "a read misses what was answered: it has {position} of {}", self.answered);
    }

    /// A broker's tables have taken a group: they equal the fold of the log.
    pub(crate) fn applied(&self, broker: usize, position: Position, writes: &Bytes, count: usize) {
        assert_eq!(self.group(position).as_ref(), Some(writes), "broker {broker} applied another group at {position}");
        let wanted = self.groups[usize::try_from(position).unwrap()];
        assert_eq!(count, wanted, "broker {broker} has {count} groups up to {position}, and the log {wanted}");
    }

    /// Nothing that was answered is missing in what the log has now.
    pub(crate) fn assert_kept(&self, log: &[(Position, Bytes)]) {
        for (position, bytes) in log {
            let known = &self.entries[usize::try_from(position - 1).unwrap()];
            assert_eq!(known, bytes, "the log has another entry at {position} than it was given");
        }
        let end = log.last().map_or(0, |(position, _)| *position);
        assert!(end >= self.answered, "the log ends at {end}, and {} was answered", self.answered);
    }

    pub(crate) fn answers(&self) -> usize {
        self.answers.len()
    }

    /// The position of the last takeover.
    pub(crate) fn taken_over_at(&self) -> Position {
        self.taken_over_at
    }

    pub(crate) fn terms(&self) -> u64 {
        self.chain.term
    }

    fn group(&self, position: Position) -> Option<Bytes> {
        let bytes = self.entries.get(usize::try_from(position.checked_sub(1)?).ok()?)?;
        let Ok(Entry { payload: Payload::Group(writes), .. }) = baton_cluster::entry::parse(bytes) else { return None };
        Some(writes)
    }
}
