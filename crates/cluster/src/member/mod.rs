//! The life of a broker in a cluster: events in, actions out, time as an argument.
//!
//! Owns the role of the broker, its lease, and its knowledge of the log's end. Must not know clocks, threads, sockets or
//! files: a driver makes the calls that the actions ask for, and brings each outcome with the ticket of its call.
//!
//! | role | the broker | leaves by |
//! |---|---|---|
//! | RESTORING | gets the checkpoint of a peer, because the log begins behind its own | done → FOLLOWING |
//! | FOLLOWING | reads and applies entries | the lease is free → CLAIMING |
//! | CLAIMING | writes the lease, asks its peers, reads to the end, appends its takeover | acknowledged → LEADING; the lease is lost → FOLLOWING; a peer is ahead of the log → DIVERGED |
//! | LEADING | appends groups and answers; renews the lease | the guard lapses → SUSPENDED; fenced, step-down → LEAVING |
//! | SUSPENDED | appends groups and answers those; answers no reads | the lease renewed → LEADING; claimed by another, fenced, two minutes → LEAVING |
//! | LEAVING | ends its sessions and its engine | ended → FOLLOWING or ENDED |
//! | DIVERGED | has, or knows of, an entry that the log lacks; answers nothing | an operator |
//! | ENDED | the process ends | |
//!
//! Two leaders cannot both answer. An answer that has an entry in the log was computed from all entries before it, because
//! the log takes an entry only behind the one that the leader knows as the last. An answer without an entry needs the guard:
//! it holds for four fifths of a lease from the *begin* of the last write of the lease, and another broker waits a whole
//! lease from the moment at which it *saw* that write. So two guards do not overlap while the clocks run within a tenth of
//! each other. A takeover is appended only under the guard, too: else a broker that lost its lease without knowing would
//! depose one that answers reads.

mod claim;
mod follow;
mod lead;
mod lease_calls;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;

use crate::{
    entry::{Chain, Entry, EntryError, Expected, Position, TooLarge},
    leader_log::{LeaderLog, Ticket},
    log::{AppendError, ReadError, Unavailable, Version, WriteError},
};
use claim::Claim;
use lease_calls::LeaseCalls;

/// The pause between two reads while entries come.
pub const READ_BUSY: Duration = Duration::from_millis(50);
/// The pause between two reads of a log at rest, and after a failed one.
pub const READ_IDLE: Duration = Duration::from_millis(500);
/// The longest time without a lease in which a leader still appends.
pub const SUSPENDED_MAX: Duration = Duration::from_secs(120);
/// The pause after a failed restore.
pub const RESTORE_AGAIN: Duration = Duration::from_secs(1);

/// What a member is told at its start.
#[derive(Debug, Clone)]
pub struct Config {
    /// The broker's name in the cluster.
    pub broker: String,
    /// The id of this process: 16 random bytes.
    pub process: Bytes,
    /// The address at which other brokers reach it.
    pub peer_address: String,
    /// The version of the program.
    pub version: String,
    /// The time of a lease.
    pub lease: Duration,
    /// The largest entry of the log in bytes.
    pub entry_bytes_max: usize,
    /// What entries must have.
    pub expected: Expected,
}

/// The role of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Gets the checkpoint of a peer.
    Restoring,
    /// Applies what another writes.
    Following,
    /// Tries to lead.
    Claiming,
    /// Answers.
    Leading,
    /// Appends without a lease.
    Suspended,
    /// Ends its sessions.
    Leaving,
    /// The log and a broker differ.
    Diverged(Divergence),
    /// The process ends.
    Ended(Ending),
}

/// How the log and a broker differ.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Divergence {
    /// The log ends before an entry that this broker has.
    #[error("the log lacks the entry at {position}, which this broker has")]
    WentBack {
        /// The position of the entry.
        position: Position,
    },
    /// The log has another entry than this broker.
    #[error("the log has another entry at {position} than this broker")]
    OtherEntry {
        /// The position of the entry.
        position: Position,
    },
    /// The log ends before an entry that a peer has.
    #[error("the log ends at {end}, and broker {peer} has the entry at {position}")]
    PeerAhead {
        /// The name of the peer.
        peer: String,
        /// The position of the peer's last entry.
        position: Position,
        /// The end of the log.
        end: Position,
    },
    /// An entry is damaged, or the chain is.
    #[error(transparent)]
    Damaged(#[from] EntryError),
    /// The engine reports its own damage.
    #[error("{0}")]
    Engine(String),
}

/// Why the process ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    /// It was told to.
    #[error("the broker was stopped")]
    Stopped,
    /// The own disk failed.
    #[error("the disk of the broker failed")]
    DiskFailed,
    /// The log is not for this program or these keys.
    #[error(transparent)]
    Refused(EntryError),
}

/// Why a broker stops leading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// Another broker has appended.
    Fenced,
    /// Another broker has the lease.
    LeaseLost,
    /// Too long without a lease.
    SuspendedTooLong,
    /// An operator said so.
    SteppedDown,
    /// The process is told to end.
    Stopped,
    /// The own disk failed.
    DiskFailed,
    /// The log and a broker differ.
    Diverged,
}

/// The last entry of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerPosition {
    /// The peer's name.
    pub peer: String,
    /// The end of the log as the peer knows it.
    pub chain: Chain,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The time of [`Member::next_wake`] has come.
    Tick,
    /// The outcome of [`Action::ReadLease`].
    LeaseRead(Ticket, Result<Option<(Version, Bytes)>, Unavailable>),
    /// The outcome of [`Action::WriteLease`].
    LeaseWritten(Ticket, Result<Version, WriteError>),
    /// The outcome of [`Action::ReadLog`].
    LogRead(Ticket, Result<Vec<(Position, Bytes)>, ReadError>),
    /// The outcome of [`Action::Append`].
    Appended(Ticket, Result<(), AppendError>),
    /// The peers that answered [`Action::AskPeers`].
    PeersAnswered(Ticket, Vec<PeerPosition>),
    /// The outcome of [`Action::Restore`]: the last entry of the checkpoint, `None` if no peer had one.
    Restored(Ticket, Option<Chain>),
    /// [`Action::EndService`] is done.
    ServiceEnded,
    /// An operator wants another leader.
    StepDown,
    /// The own disk failed.
    DiskFailed,
    /// The process is to end.
    Stop,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Read the lease in the register.
    ReadLease(Ticket),
    /// Write the lease.
    WriteLease {
        /// The number of the call.
        ticket: Ticket,
        /// The version that it replaces.
        expected: Option<Version>,
        /// The lease.
        value: Bytes,
    },
    /// Read entries.
    ReadLog {
        /// The number of the call.
        ticket: Ticket,
        /// The first position.
        from: Position,
    },
    /// Append an entry. Where no answer comes within two seconds, the outcome is unknown.
    Append {
        /// The number of the call.
        ticket: Ticket,
        /// The position before.
        after: Position,
        /// The entry.
        entry: Bytes,
    },
    /// Ask all peers for their last entry.
    AskPeers(Ticket),
    /// Get the checkpoint of a peer, and put it in the place of the tables.
    Restore {
        /// The number of the call.
        ticket: Ticket,
        /// The first entry that the log has.
        first: Position,
    },
    /// Apply an entry that was read to the tables. The chain is that up to it.
    Apply(Box<Entry>, Chain),
    /// Start the engine over the tables, and serve.
    Lead {
        /// The term that begins. Its takeover is the entry at [`Member::chain`].
        term: u64,
        /// The name of the broker that led before, as far as the log that this broker has read, or else the lease, says.
        former: Option<String>,
    },
    /// The group in flight is in the log at this position: apply it to the tables, and answer. The mark of the tables is
    /// [`Member::chain`].
    Committed(Position),
    /// The group in flight was not written, and will not be.
    Refused(TooLarge),
    /// End sessions and engine; nothing is answered from now on.
    EndService(Leave),
    /// The role has changed.
    Moved(Role),
}

/// A group that cannot be appended now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This broker does not lead.
    #[error("this broker does not lead")]
    NotLeading,
    /// Another group is in flight.
    #[error("another group is in flight")]
    Busy,
    /// The group does not fit.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// A broker of a cluster.
#[derive(Debug)]
pub struct Member {
    config: Config,
    role: Role,
    /// The last entry that the tables have.
    chain: Chain,
    /// The last entry that this broker had before its start, which the log must have.
    known: Chain,
    tickets: Ticket,
    actions: VecDeque<Action>,
    lease: LeaseCalls,
    /// The read or restore under way.
    log_call: Option<LogCall>,
    /// The time of the next read or restore.
    log_due: Duration,
    /// The first entry of the log, as of the read that found it trimmed.
    log_first: Position,
    /// The time at which a read also looks whether the log still has the own last entry. While this broker leads, each append
    /// looks, too.
    compare_due: Duration,
    claim: Option<Claim>,
    /// The broker of the last takeover that this one has read or made.
    took_over_last: Option<String>,
    /// Of the peers that answered a claim, the one with the highest position.
    ahead: Option<PeerPosition>,
    leader_log: Option<LeaderLog>,
    /// The position of the group that was proposed last. A confirmation may follow it.
    group_at: Position,
    suspended_since: Duration,
    /// The role after LEAVING.
    after_leaving: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LogCall {
    ticket: Ticket,
    from: Position,
}

impl Member {
    /// A broker whose tables have the log up to `chain`.
    pub fn new(config: Config, chain: Chain, now: Duration) -> Self {
        Self {
            lease: LeaseCalls::new(now),
            config,
            role: Role::Following,
            chain,
            known: chain,
            tickets: 0,
            actions: VecDeque::new(),
            log_call: None,
            log_due: now,
            log_first: 0,
            compare_due: now,
            claim: None,
            took_over_last: None,
            ahead: None,
            leader_log: None,
            group_at: 0,
            suspended_since: now,
            after_leaving: Role::Following,
        }
    }

    /// The same broker, which had the log up to `known` before its start. Behind the checkpoint of its tables it has lost
    /// the entries, and not what it may have answered by them.
    pub fn having_known(mut self, known: Chain) -> Self {
        if known.position > self.chain.position {
            self.known = known;
        }
        self
    }

    /// Lets no claim begin before this.
    pub fn hold_claims_until(&mut self, time: Duration) {
        self.lease.claim_from = self.lease.claim_from.max(time);
    }

    /// The end of the guard of a leader.
    pub fn guard_until(&self) -> Option<Duration> {
        self.lease.guard_until(self.config.lease).filter(|_| self.role == Role::Leading)
    }

    /// The role of the broker.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// The last entry that the tables have.
    pub fn chain(&self) -> Chain {
        self.chain
    }

    /// Whether an answer without an entry in the log may leave: a read, a delivery, a receipt of a repeat. Asked right
    /// before each.
    pub fn guard_holds(&self, now: Duration) -> bool {
        self.role == Role::Leading && self.lease.is_held(now, self.config.lease)
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether the tables wait for the outcome of this read.
    pub fn awaits_read(&self, ticket: Ticket) -> bool {
        self.log_call.is_some_and(|call| call.ticket == ticket)
    }

    /// Takes an event, and queues what follows from it.
    pub fn handle(&mut self, now: Duration, event: Event) {
        match event {
            Event::Tick => {}
            Event::LeaseRead(ticket, outcome) => self.lease_read(now, ticket, outcome),
            Event::LeaseWritten(ticket, outcome) => self.lease_written(now, ticket, outcome),
            Event::LogRead(ticket, outcome) => self.log_read(now, ticket, outcome),
            Event::Appended(ticket, outcome) => self.appended(now, ticket, outcome),
            Event::PeersAnswered(ticket, peers) => self.peers_answered(now, ticket, &peers),
            Event::Restored(ticket, chain) => self.restored(now, ticket, chain),
            Event::ServiceEnded => self.service_ended(now),
            Event::StepDown => self.step_down(now),
            Event::DiskFailed => self.end(now, Leave::DiskFailed, Ending::DiskFailed),
            Event::Stop => self.end(now, Leave::Stopped, Ending::Stopped),
        }
        self.do_due(now);
    }

    /// Makes the calls whose time has come.
    fn do_due(&mut self, now: Duration) {
        match self.role {
            Role::Following => {
                self.watch_lease(now);
                self.read_due(now);
            }
            Role::Restoring => {
                self.learn_lease(now);
                self.restore_due(now);
            }
            Role::Claiming => {
                self.renew_lease(now);
                self.read_due(now);
                self.append_due(now);
            }
            Role::Leading | Role::Suspended => {
                self.check_guard(now);
                self.renew_lease(now);
                self.append_due(now);
                self.compare_idle(now);
            }
            Role::Leaving | Role::Diverged(_) | Role::Ended(_) => {}
        }
    }

    /// The time at which the member must be given a [`Event::Tick`], if it waits for one.
    pub fn next_wake(&self) -> Option<Duration> {
        let lease = self.lease.due().into_iter();
        let read = self.log_call.is_none().then_some(self.log_due).into_iter();
        let append = self.leader_log.as_ref().and_then(LeaderLog::due).into_iter();
        match self.role {
            Role::Following => lease.chain(read).chain(self.free_at()).min(),
            Role::Restoring => lease.chain(read).min(),
            Role::Claiming => {
                let reads = self.claim.is_some_and(|claim| claim.is_reading());
                lease.chain(read.filter(|_| reads)).chain(append).min()
            }
            Role::Leading => {
                let compare = self.is_comparable().then_some(self.compare_due);
                lease.chain(append).chain(compare).chain(self.lease.guard_until(self.config.lease)).min()
            }
            Role::Suspended => lease.chain(append).chain([self.suspended_since + SUSPENDED_MAX]).min(),
            Role::Leaving | Role::Diverged(_) | Role::Ended(_) => None,
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        self.tickets
    }

    fn move_to(&mut self, role: Role) {
        if self.role != role {
            self.role = role.clone();
            self.actions.push_back(Action::Moved(role));
        }
    }

    /// The log and this broker, or a peer, differ: nothing is answered any more.
    fn diverge(&mut self, divergence: Divergence) {
        if matches!(self.role, Role::Leading | Role::Suspended) {
            self.actions.push_back(Action::EndService(Leave::Diverged));
        }
        (self.claim, self.leader_log, self.log_call) = (None, None, None);
        self.move_to(Role::Diverged(divergence));
    }
}
