//! The calls for the lease: a follower watches it, a leader renews it.

use std::time::Duration;

use bytes::Bytes;

use super::{Action, Leave, Member, Role, Ticket};
use crate::{
    lease::Lease,
    log::{Unavailable, Version, WriteError},
};

/// The pause after a call of the register that failed.
const AGAIN: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Read,
    Write,
}

/// What a broker knows of the lease, and its call under way.
#[derive(Debug)]
pub(super) struct LeaseCalls {
    /// The version that was seen last; for a leader that of its own last write.
    version: Option<Version>,
    seen: Option<Lease>,
    /// Whether the register answered once.
    is_known: bool,
    /// The time at which the version was seen first.
    changed_at: Duration,
    /// No claim before this: a broker that stepped down lets others go first.
    pub(super) claim_from: Duration,
    call: Option<(Ticket, Asked)>,
    due: Duration,
    /// The last write: its counter, and the time at which it began.
    written: (u64, Duration),
    /// The begin of the last write with a known success.
    held_since: Option<Duration>,
}

impl LeaseCalls {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            version: None,
            seen: None,
            is_known: false,
            changed_at: now,
            claim_from: now,
            call: None,
            due: now,
            written: (0, now),
            held_since: None,
        }
    }

    /// The time of the next call.
    pub(super) fn due(&self) -> Option<Duration> {
        self.call.is_none().then_some(self.due)
    }

    /// The end of the guard: four fifths of a lease from the begin of the last write.
    pub(super) fn guard_until(&self, lease: Duration) -> Option<Duration> {
        self.held_since.map(|since| since + lease * 4 / 5)
    }

    pub(super) fn is_held(&self, now: Duration, lease: Duration) -> bool {
        self.guard_until(lease).is_some_and(|until| now < until)
    }

    fn note(&mut self, now: Duration, found: Option<(Version, Bytes)>) {
        let (version, value) = found.unzip();
        if version != self.version || !self.is_known {
            self.changed_at = now;
        }
        self.is_known = true;
        self.version = version;
        self.seen = value.as_ref().and_then(Lease::parse);
    }

    /// The time at which the lease is free, once the register has answered.
    fn free_at(&self, lease: Duration) -> Option<Duration> {
        let is_free = self.version.is_none() || self.seen.as_ref().is_some_and(|seen| seen.released);
        let free = if is_free { self.changed_at } else { self.changed_at + lease };
        self.is_known.then_some(free.max(self.claim_from))
    }
}

impl Member {
    /// The leader as the lease names it: its broker and its address. The driver relays connections to it.
    pub fn leader(&self) -> Option<(&str, &str)> {
        let seen = self.lease.seen.as_ref().filter(|seen| !seen.released)?;
        Some((&seen.broker, &seen.peer_address))
    }

    /// The broker that had the lease before this one, as its last value in the register said.
    pub(super) fn lease_holder_before(&self) -> Option<String> {
        self.lease.seen.as_ref().map(|seen| seen.broker.clone())
    }

    /// The name and the address of this broker.
    pub fn own_address(&self) -> (String, String) {
        (self.config.broker.clone(), self.config.peer_address.clone())
    }

    /// Whether a call for the lease is under way.
    pub fn has_lease_call(&self) -> bool {
        self.lease.call.is_some()
    }

    /// The time at which a follower claims.
    pub(super) fn free_at(&self) -> Option<Duration> {
        self.lease.free_at(self.config.lease).filter(|_| self.lease.call.is_none())
    }

    pub(super) fn watch_lease(&mut self, now: Duration) {
        if self.lease.call.is_some() {
            return;
        }
        if self.free_at().is_some_and(|free| now >= free) {
            self.begin_claim(now);
        } else if now >= self.lease.due {
            self.read_lease(now);
        }
    }

    /// Reads the lease, to know the leader, and claims nothing.
    pub(super) fn learn_lease(&mut self, now: Duration) {
        if self.lease.call.is_none() && now >= self.lease.due {
            self.read_lease(now);
        }
    }

    pub(super) fn renew_lease(&mut self, now: Duration) {
        if self.lease.call.is_none() && now >= self.lease.due {
            self.write_lease(now, false);
        }
    }

    fn read_lease(&mut self, now: Duration) {
        let ticket = self.ticket();
        self.lease.call = Some((ticket, Asked::Read));
        self.lease.due = now + self.config.lease / 5;
        self.actions.push_back(Action::ReadLease(ticket));
    }

    pub(super) fn write_lease(&mut self, now: Duration, released: bool) {
        let ticket = self.ticket();
        self.lease.written = (self.lease.written.0 + 1, now);
        self.lease.call = Some((ticket, Asked::Write));
        self.lease.due = now + self.config.lease / 5;
        let lease = Lease {
            broker: self.config.broker.clone(),
            process: self.config.process.clone(),
            peer_address: self.config.peer_address.clone(),
            term: self.chain.term,
            counter: self.lease.written.0,
            released,
        };
        let expected = self.lease.version.clone();
        self.actions.push_back(Action::WriteLease { ticket, expected, value: lease.to_bytes() });
    }

    pub(super) fn lease_written(&mut self, now: Duration, ticket: Ticket, outcome: Result<Version, WriteError>) {
        if self.lease.call != Some((ticket, Asked::Write)) {
            return;
        }
        self.lease.call = None;
        match (&self.role, outcome) {
            (Role::Claiming | Role::Leading | Role::Suspended, Ok(version)) => self.lease_held(now, version),
            // An earlier write of this process may have come late, so a read tells.
            (Role::Claiming | Role::Leading | Role::Suspended, Err(_)) => self.read_lease(now),
            (Role::Following | Role::Restoring, _) => self.lease.due = now,
            (Role::Leaving | Role::Diverged(_) | Role::Ended(_), _) => {}
        }
    }

    /// The last write is in the register.
    fn lease_held(&mut self, now: Duration, version: Version) {
        self.lease.version = Some(version);
        self.lease.held_since = Some(self.lease.written.1);
        self.lease.due = self.lease.written.1 + self.config.lease / 5;
        match self.role {
            Role::Claiming => self.lease_claimed(),
            Role::Suspended if self.lease.is_held(now, self.config.lease) => self.move_to(Role::Leading),
            _ => {}
        }
    }

    pub(super) fn lease_read(
        &mut self,
        now: Duration,
        ticket: Ticket,
        outcome: Result<Option<(Version, Bytes)>, Unavailable>,
    ) {
        if self.lease.call != Some((ticket, Asked::Read)) {
            return;
        }
        self.lease.call = None;
        match (&self.role, outcome) {
            (Role::Following | Role::Restoring, Ok(found)) => self.lease.note(now, found),
            (Role::Claiming | Role::Leading | Role::Suspended, Ok(found)) => self.lease_compared(now, found),
            // A claim is not worth the wait; a leader asks again.
            (Role::Claiming, Err(_)) if self.lease.held_since.is_none() => self.give_up_claim(now),
            (Role::Claiming | Role::Leading | Role::Suspended, Err(_)) => self.lease.due = now + AGAIN,
            (Role::Following | Role::Restoring | Role::Leaving | Role::Diverged(_) | Role::Ended(_), _) => {}
        }
    }

    /// After a write whose outcome was not `Ok`: whose lease is it?
    fn lease_compared(&mut self, now: Duration, found: Option<(Version, Bytes)>) {
        let lease = found.as_ref().and_then(|(_, value)| Lease::parse(value));
        let own = lease.filter(|lease| lease.process == self.config.process && !lease.released);
        match (own, found) {
            (Some(own), Some((version, _))) if own.counter == self.lease.written.0 => self.lease_held(now, version),
            // An earlier write of this process: the lease is its own, and the next write counts from its begin.
            (Some(_), Some((version, _))) if self.lease.held_since.is_some() => {
                self.lease.version = Some(version);
                self.lease.due = now;
            }
            // The value is as it was: nothing came between.
            (_, found)
                if self.lease.held_since.is_some()
                    && found.as_ref().map(|(version, _)| version) == self.lease.version.as_ref() =>
            {
                self.lease.due = now;
            }
            (_, found) => {
                self.lease.note(now, found);
                self.lease_lost(now);
            }
        }
    }

    fn lease_lost(&mut self, now: Duration) {
        // The lease of another broker must not be given back at the end.
        self.lease.held_since = None;
        match self.role {
            Role::Claiming => self.give_up_claim(now),
            Role::Leading | Role::Suspended => self.leave(Leave::LeaseLost, Role::Following),
            Role::Restoring | Role::Following | Role::Leaving | Role::Diverged(_) | Role::Ended(_) => {}
        }
    }

    /// Gives up the lease as far as this broker is concerned. It learns anew whose it is.
    pub(super) fn drop_lease(&mut self, now: Duration) {
        let was_held = self.lease.held_since.take().is_some();
        self.lease.is_known &= !was_held;
        (self.lease.call, self.lease.due) = (None, now);
    }

    /// Lets other brokers claim first.
    pub(super) fn hold_back(&mut self, now: Duration) {
        self.lease.claim_from = now + self.config.lease;
    }

    pub(super) fn holds_lease(&self) -> bool {
        self.lease.held_since.is_some()
    }
}
