//! LEADING, SUSPENDED and LEAVING: appends, the guard, and the end of a term.

use std::time::Duration;

use bytes::Bytes;

use super::{Action, Divergence, Ending, Leave, Member, ProposeError, Role, SUSPENDED_MAX, Ticket};
use crate::{
    entry::{Payload, Position},
    leader_log::{Call, LeaderLog, Step},
    log::{AppendError, ReadError},
};

impl Member {
    /// Appends a group of writes. [`Action::Committed`] says that it is in the log; where the broker leaves before, the group
    /// may be in the log, and nothing is answered.
    pub fn propose(&mut self, now: Duration, writes: Bytes) -> Result<(), ProposeError> {
        let (Role::Leading | Role::Suspended, Some(log)) = (&self.role, &mut self.leader_log) else {
            return Err(ProposeError::NotLeading);
        };
        if log.is_busy() {
            return Err(ProposeError::Busy);
        }
        log.begin(now, &Payload::Group(writes), &self.config.expected, self.config.entry_bytes_max)?;
        self.group_at = self.chain.position + 1;
        self.append_due(now);
        Ok(())
    }

    pub(super) fn append_due(&mut self, now: Duration) {
        if self.leader_log.as_ref().and_then(LeaderLog::due).is_none_or(|due| now < due) {
            return;
        }
        let ticket = self.ticket();
        let call = self.leader_log.as_mut().and_then(|log| log.call(now, ticket));
        self.actions.extend(call.map(|call| match call {
            Call::Append { after, entry } => Action::Append { ticket, after, entry },
            Call::Read { position } => Action::ReadLog { ticket, from: position },
        }));
    }

    pub(super) fn appended(&mut self, now: Duration, ticket: Ticket, outcome: Result<(), AppendError>) {
        let Some(log) = &mut self.leader_log else { return };
        let step = log.appended(now, ticket, outcome, &self.config.expected);
        self.take_step(now, step);
    }

    /// A read that was not that of the tables.
    pub(super) fn settled(
        &mut self,
        now: Duration,
        ticket: Ticket,
        outcome: Result<Vec<(Position, Bytes)>, ReadError>,
    ) {
        let Some(log) = &mut self.leader_log else { return };
        let step = log.read(now, ticket, outcome, &self.config.expected);
        self.take_step(now, step);
    }

    /// Whether a read can compare the own last entry with that of the log: none is in flight, and no read is under way.
    pub(super) fn is_comparable(&self) -> bool {
        self.log_call.is_none() && self.leader_log.as_ref().is_some_and(|log| !log.is_busy())
    }

    /// Looks once a lease whether the log still has the own last entry. An append shows it, and may not come for hours.
    pub(super) fn compare_idle(&mut self, now: Duration) {
        if now >= self.compare_due && self.is_comparable() {
            self.read_from(self.chain.position);
        }
    }

    pub(super) fn idle_compared(
        &mut self,
        now: Duration,
        position: Position,
        outcome: Result<Vec<(Position, Bytes)>, ReadError>,
    ) {
        self.compare_due = now + self.config.lease;
        // Behind an append of its own, this broker has learnt it by that.
        if position != self.chain.position {
            return;
        }
        match outcome.map(|found| found.into_iter().find(|(at, _)| *at == position)) {
            Ok(None) => self.diverge(Divergence::WentBack { position }),
            Ok(Some((_, own))) if self.config.expected.key.hash(&own) != self.chain.hash => {
                self.diverge(Divergence::OtherEntry { position });
            }
            // Entries behind it are of a later term, which the lease and the next append show.
            Ok(Some(_)) | Err(ReadError::Trimmed { .. } | ReadError::Unavailable(_)) => {}
            Err(ReadError::Damaged(words)) => self.diverge(Divergence::Engine(words)),
        }
    }

    fn take_step(&mut self, now: Duration, step: Step) {
        match (step, &self.role) {
            (Step::Nothing, _) => {}
            (Step::Committed, role) => {
                let is_takeover = *role == Role::Claiming;
                self.compare_due = now + self.config.lease;
                self.chain = self.leader_log.as_ref().map_or(self.chain, LeaderLog::chain);
                match is_takeover {
                    true => self.took_over(now),
                    false => self.actions.push_back(Action::Committed(self.group_at)),
                }
            }
            (Step::Refused(_), Role::Claiming) => self.give_up_claim(now),
            (Step::Refused(error), _) => self.actions.push_back(Action::Refused(error)),
            (Step::Fenced, Role::Claiming) => self.read_again(now),
            (Step::Fenced, _) => self.leave(Leave::Fenced, Role::Following),
            (Step::WentBack, _) => self.diverge(Divergence::WentBack { position: self.chain.position }),
            (Step::Damaged(error), _) => self.diverge(error.into()),
        }
    }

    /// The guard lapses, and a leader without one does not go on for ever.
    pub(super) fn check_guard(&mut self, now: Duration) {
        if self.role == Role::Leading && !self.lease.is_held(now, self.config.lease) {
            self.suspended_since = now;
            self.move_to(Role::Suspended);
        }
        if self.role == Role::Suspended && now >= self.suspended_since + SUSPENDED_MAX {
            self.leave(Leave::SuspendedTooLong, Role::Following);
        }
    }

    /// Stops leading. The entry in flight may be in the log: the tables get it from there.
    pub(super) fn leave(&mut self, reason: Leave, then: Role) {
        self.leader_log = None;
        self.after_leaving = then;
        self.actions.push_back(Action::EndService(reason));
        self.move_to(Role::Leaving);
    }

    pub(super) fn step_down(&mut self, now: Duration) {
        if matches!(self.role, Role::Leading | Role::Suspended) {
            self.hold_back(now);
            self.leave(Leave::SteppedDown, Role::Following);
        }
    }

    pub(super) fn end(&mut self, now: Duration, reason: Leave, ending: Ending) {
        match self.role {
            Role::Leading | Role::Suspended => self.leave(reason, Role::Ended(ending)),
            Role::Leaving => self.after_leaving = Role::Ended(ending),
            Role::Claiming | Role::Following | Role::Restoring | Role::Diverged(_) => {
                if self.holds_lease() {
                    self.write_lease(now, true);
                }
                (self.claim, self.leader_log) = (None, None);
                self.move_to(Role::Ended(ending));
            }
            Role::Ended(_) => {}
        }
    }

    /// The engine has ended: the lease is given back, so that another broker takes over at once.
    pub(super) fn service_ended(&mut self, now: Duration) {
        if self.role != Role::Leaving {
            return;
        }
        let holds = self.holds_lease();
        self.drop_lease(now);
        if holds {
            self.write_lease(now, true);
        }
        (self.log_due, self.compare_due, self.log_call) = (now, now, None);
        self.move_to(self.after_leaving.clone());
    }
}
