//! FOLLOWING and RESTORING: reading the log, and applying its entries.

use std::time::Duration;

use bytes::Bytes;

use super::{Action, Divergence, Ending, LogCall, Member, READ_BUSY, READ_IDLE, RESTORE_AGAIN, Role, Ticket};
use crate::{
    entry::{Chain, EntryError, Payload, Position},
    log::ReadError,
};

impl Member {
    /// Reads on when the time has come.
    pub(super) fn read_due(&mut self, now: Duration) {
        let is_wanted = self.role == Role::Following || self.claim.is_some_and(|claim| claim.is_reading());
        if !is_wanted || self.log_call.is_some() || now < self.log_due {
            return;
        }
        // A claim compares with each read: only so does it see that the log lost its end.
        let compares = self.role == Role::Claiming || now >= self.compare_due;
        let from = if compares { self.chain.position.max(1) } else { self.chain.position + 1 };
        self.read_from(from);
    }

    pub(super) fn read_from(&mut self, from: Position) {
        let ticket = self.ticket();
        self.log_call = Some(LogCall { ticket, from });
        self.actions.push_back(Action::ReadLog { ticket, from });
    }

    pub(super) fn log_read(
        &mut self,
        now: Duration,
        ticket: Ticket,
        outcome: Result<Vec<(Position, Bytes)>, ReadError>,
    ) {
        match self.log_call.filter(|call| call.ticket == ticket) {
            Some(call) => {
                self.log_call = None;
                match self.role {
                    Role::Leading | Role::Suspended => self.idle_compared(now, call.from, outcome),
                    Role::Following
                    | Role::Restoring
                    | Role::Claiming
                    | Role::Leaving
                    | Role::Diverged(_)
                    | Role::Ended(_) => self.entries_read(now, call.from, outcome),
                }
            }
            None => self.settled(now, ticket, outcome),
        }
    }

    fn entries_read(&mut self, now: Duration, from: Position, outcome: Result<Vec<(Position, Bytes)>, ReadError>) {
        let compares = from == self.chain.position;
        match outcome {
            // The log begins behind a store that this broker does not have.
            Ok(entries) if self.is_founded(&entries) => self.begin_restore(now, 2),
            Ok(entries) => match self.apply(from, &entries) {
                // The log ends before an entry that this broker had when it was started.
                Ok(0) if self.chain.position < self.known.position => {
                    self.diverge(Divergence::WentBack { position: self.known.position });
                }
                Ok(count) => {
                    // A new entry has the hash of the own last one. A log without an entry has none to compare.
                    if compares || count > 0 || self.chain.position == 0 {
                        self.compare_due = now + self.config.lease;
                    }
                    self.read_done(now, count);
                }
                Err(divergence) => self.stop_at(divergence),
            },
            Err(ReadError::Trimmed { first }) if first > self.chain.position + 1 => self.begin_restore(now, first),
            // The own last entry was trimmed, and the next one is there: the chain compares them.
            Err(ReadError::Trimmed { .. }) => self.read_from(self.chain.position + 1),
            Err(ReadError::Unavailable(_)) => self.log_due = now + READ_IDLE,
            Err(ReadError::Damaged(words)) => self.stop_at(Divergence::Engine(words)),
        }
    }

    fn begin_restore(&mut self, now: Duration, first: Position) {
        self.claim = None;
        (self.log_due, self.log_first) = (now, first);
        self.move_to(Role::Restoring);
    }

    /// Whether the next entry is the foundation of this log.
    fn is_founded(&self, entries: &[(Position, Bytes)]) -> bool {
        let first = entries.first().filter(|_| self.chain.position == 0);
        let mut chain = self.chain;
        let entry = first.and_then(|(_, bytes)| chain.follow(bytes, &self.config.expected).ok());
        entry.is_some_and(|entry| matches!(entry.payload, Payload::Foundation(_)))
    }

    fn read_done(&mut self, now: Duration, count: usize) {
        self.log_due = now + if count > 0 { READ_BUSY } else { READ_IDLE };
        if self.role == Role::Claiming {
            self.log_due = now;
            if count == 0 {
                self.end_reached(now);
            }
        }
    }

    /// Applies the entries behind the own last one. Returns their number.
    fn apply(&mut self, from: Position, entries: &[(Position, Bytes)]) -> Result<usize, Divergence> {
        let mut entries = entries;
        if from == self.chain.position {
            let position = from;
            let Some(((_, own), rest)) = entries.split_first() else {
                return Err(Divergence::WentBack { position });
            };
            if self.config.expected.key.hash(own) != self.chain.hash {
                return Err(Divergence::OtherEntry { position });
            }
            entries = rest;
        }
        for (_, bytes) in entries {
            let entry = self.chain.follow(bytes, &self.config.expected)?;
            if let Payload::Takeover(takeover) = &entry.payload {
                self.took_over_last = Some(takeover.broker.clone());
            }
            let position = self.chain.position;
            if position == self.known.position && self.chain.hash != self.known.hash {
                return Err(Divergence::OtherEntry { position });
            }
            self.actions.push_back(Action::Apply(Box::new(entry), self.chain));
        }
        Ok(entries.len())
    }

    /// An entry that this program or these keys do not fit ends the process. All else is between the log and the tables.
    fn stop_at(&mut self, divergence: Divergence) {
        match divergence {
            Divergence::Damaged(
                error @ (EntryError::Newer { .. } | EntryError::ForeignCluster { .. } | EntryError::ForeignKeys { .. }),
            ) => {
                self.claim = None;
                self.move_to(Role::Ended(Ending::Refused(error)));
            }
            other => self.diverge(other),
        }
    }

    pub(super) fn restore_due(&mut self, now: Duration) {
        if self.log_call.is_none() && now >= self.log_due {
            let ticket = self.ticket();
            self.log_call = Some(LogCall { ticket, from: 0 });
            self.actions.push_back(Action::Restore { ticket, first: self.log_first });
        }
    }

    pub(super) fn restored(&mut self, now: Duration, ticket: Ticket, chain: Option<Chain>) {
        if self.log_call.is_none_or(|call| call.ticket != ticket) {
            return;
        }
        self.log_call = None;
        match chain.filter(|chain| chain.position > self.chain.position) {
            Some(chain) => {
                self.chain = chain;
                (self.log_due, self.compare_due) = (now, now);
                self.move_to(Role::Following);
            }
            None => self.log_due = now + RESTORE_AGAIN,
        }
    }
}
