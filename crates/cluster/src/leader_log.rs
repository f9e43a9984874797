//! The appends of one term: one entry in flight, and an unknown outcome that the log settles.
//!
//! Owns the entry in flight. Each term has its own, so an outcome of a former term finds no place here. Pure: the caller
//! makes the calls that it asks for, and brings each outcome with the ticket of its call.
//!
//! After an unknown outcome the same bytes are appended again behind the same entry. What a read finds may not be durable, so
//! a confirmation is appended behind it. Nothing is ever cut, and no other entry is put at the position.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    entry::{Chain, EntryError, Expected, Payload, Position, TooLarge},
    log::{AppendError, ReadError},
};

/// The pause before a call is made again.
pub const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The number of a call, so that its outcome is not taken for that of another.
pub type Ticket = u64;

/// A call that the log must make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Append these bytes behind `after`.
    Append {
        /// The position before.
        after: Position,
        /// The entry.
        entry: Bytes,
    },
    /// Read the entry at this position.
    Read {
        /// The position.
        position: Position,
    },
}

/// What an outcome means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The outcome is that of an earlier call, or the call is made again later.
    Nothing,
    /// The entry is in the log and durable, and all before it.
    Committed,
    /// Nothing was written; the log goes on with another entry.
    Refused(TooLarge),
    /// Another broker has appended. This one leads no longer.
    Fenced,
    /// The log lacks an entry that it had acknowledged, or that was read in it.
    WentBack,
    /// The log has bytes that cannot follow.
    Damaged(EntryError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Append,
    Read,
}

#[derive(Debug)]
struct InFlight {
    entry: Bytes,
    asked: Asked,
    /// The ticket of the call under way; `None` while the next one waits for its time.
    ticket: Option<Ticket>,
    /// The time of the next call.
    due: Duration,
}

impl InFlight {
    /// Makes the same call again later.
    fn retry(&mut self, now: Duration) {
        (self.ticket, self.due) = (None, now + RETRY_AFTER);
    }
}

/// The log as the leader of a term sees it.
#[derive(Debug)]
pub struct LeaderLog {
    /// The known end of the log.
    chain: Chain,
    in_flight: Option<InFlight>,
}

impl LeaderLog {
    /// A log that ends here.
    pub fn new(chain: Chain) -> Self {
        Self { chain, in_flight: None }
    }

    /// The last entry known to be in the log.
    pub fn chain(&self) -> Chain {
        self.chain
    }

    /// Whether an entry is in flight. The next one waits for it.
    pub fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Begins an append. No entry may be in flight.
    pub fn begin(
        &mut self,
        now: Duration,
        payload: &Payload,
        expected: &Expected,
        bytes_max: usize,
    ) -> Result<(), TooLarge> {
        debug_assert!(!self.is_busy(), "one append is in flight");
        let entry = self.chain.next(payload, expected, bytes_max)?;
        self.in_flight = Some(InFlight { entry, asked: Asked::Append, ticket: None, due: now });
        Ok(())
    }

    /// The time of the next call, if one waits.
    pub fn due(&self) -> Option<Duration> {
        self.in_flight.as_ref().filter(|flight| flight.ticket.is_none()).map(|flight| flight.due)
    }

    /// The call whose time has come. Its outcome must come with this ticket.
    pub fn call(&mut self, now: Duration, ticket: Ticket) -> Option<Call> {
        let after = self.chain.position;
        let flight = self.in_flight.as_mut().filter(|flight| flight.ticket.is_none() && flight.due <= now)?;
        flight.ticket = Some(ticket);
        Some(match flight.asked {
            Asked::Append => Call::Append { after, entry: flight.entry.clone() },
            Asked::Read => Call::Read { position: after + 1 },
        })
    }

    /// Takes the outcome of an append.
    pub fn appended(
        &mut self,
        now: Duration,
        ticket: Ticket,
        outcome: Result<(), AppendError>,
        expected: &Expected,
    ) -> Step {
        let Some(flight) = self.awaited(ticket) else { return Step::Nothing };
        match outcome {
            Ok(()) => {
                let entry = flight.entry.clone();
                self.in_flight = None;
                self.follow(&entry, expected).map_or_else(Step::Damaged, |()| Step::Committed)
            }
            Err(AppendError::Unknown(_)) => {
                flight.retry(now);
                Step::Nothing
            }
            // The fence may be the own entry of an earlier try.
            Err(AppendError::Fenced) => {
                (flight.asked, flight.ticket, flight.due) = (Asked::Read, None, now);
                Step::Nothing
            }
            Err(AppendError::TooLarge { bytes, bytes_max }) => {
                self.in_flight = None;
                Step::Refused(TooLarge { bytes, bytes_max })
            }
        }
    }

    /// Takes the outcome of a read of one entry.
    pub fn read(
        &mut self,
        now: Duration,
        ticket: Ticket,
        outcome: Result<Vec<(Position, Bytes)>, ReadError>,
        expected: &Expected,
    ) -> Step {
        let position = self.chain.position + 1;
        let Some(flight) = self.awaited(ticket) else { return Step::Nothing };
        match outcome.map(|found| found.into_iter().find(|(at, _)| *at == position)) {
            // The first try was in. What was read may not be durable: a confirmation behind it is, and makes it so.
            Ok(Some((_, entry))) if entry == flight.entry => self.confirm(now, &entry, expected),
            // Others went on so far that the position was trimmed.
            Ok(Some(_)) | Err(ReadError::Trimmed { .. }) => Step::Fenced,
            Ok(None) => Step::WentBack,
            Err(ReadError::Unavailable(_) | ReadError::Damaged(_)) => {
                flight.retry(now);
                Step::Nothing
            }
        }
    }

    fn confirm(&mut self, now: Duration, entry: &Bytes, expected: &Expected) -> Step {
        self.in_flight = None;
        if let Err(error) = self.follow(entry, expected) {
            return Step::Damaged(error);
        }
        match self.begin(now, &Payload::Confirmation, expected, usize::MAX) {
            Ok(()) => Step::Nothing,
            Err(error) => Step::Refused(error), // a confirmation is a head alone
        }
    }

    fn follow(&mut self, entry: &Bytes, expected: &Expected) -> Result<(), EntryError> {
        self.chain.follow(entry, expected).map(drop)
    }

    fn awaited(&mut self, ticket: Ticket) -> Option<&mut InFlight> {
        self.in_flight.as_mut().filter(|flight| flight.ticket == Some(ticket))
    }
}
