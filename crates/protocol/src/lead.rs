//! Whether a process may answer from its own state: the deadline that a leader has by its lease.
//!
//! Owns the deadline alone. Must not know leases, nor what an answer is. A broker alone always may.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::time::Moment;

/// The state of a [`LeadGuard`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    /// An answer may leave.
    Held,
    /// No answer may leave now. The guard may be held again.
    Lapsed,
    /// No answer may leave any more: the term is over.
    Over,
}

/// The value of an ended term. No deadline reaches it, 584 years away.
const OVER: u64 = u64::MAX;

/// Says whether an answer may leave that has no entry of its own in the shared log: a read, a delivery, a receipt of a
/// repeat. Asked right before each, by any thread. A clone is the same guard. One guard is for one term.
#[derive(Debug, Clone, Default)]
pub struct LeadGuard(Option<Arc<Term>>);

#[derive(Debug)]
struct Term {
    base: Moment,
    /// Nanoseconds since `base` up to which the guard is held; [`OVER`] after the end.
    until: AtomicU64,
}

impl LeadGuard {
    /// The guard of a broker alone: always held.
    pub fn alone() -> Self {
        Self(None)
    }

    /// A guard that has lapsed. Deadlines are counted from `base`.
    pub fn lapsed(base: Moment) -> Self {
        Self(Some(Arc::new(Term { base, until: AtomicU64::new(0) })))
    }

    /// Holds the guard until this time after `base`; zero lets it lapse at once. After [`Self::end`] this does nothing.
    pub fn hold_until(&self, deadline: Duration) {
        let Some(term) = &self.0 else { return };
        let deadline = u64::try_from(deadline.as_nanos()).unwrap_or(OVER).min(OVER - 1);
        // One thread sets deadlines, and any may end the term.
        let _ =
            term.until.fetch_update(Ordering::AcqRel, Ordering::Acquire, |until| (until != OVER).then_some(deadline));
    }

    /// Ends the term.
    pub fn end(&self) {
        if let Some(term) = &self.0 {
            term.until.store(OVER, Ordering::Release);
        }
    }

    /// Whether an answer may leave now.
    pub fn state(&self) -> Lead {
        let Some(term) = &self.0 else { return Lead::Held };
        match term.until.load(Ordering::Acquire) {
            OVER => Lead::Over,
            until if term.base.elapsed() < Duration::from_nanos(until) => Lead::Held,
            _ => Lead::Lapsed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_held_up_to_its_deadline_and_never_after_its_term() {
        let guard = LeadGuard::lapsed(Moment::now());
        assert_eq!(guard.state(), Lead::Lapsed);
        guard.hold_until(Duration::from_secs(3600));
        assert_eq!(guard.clone().state(), Lead::Held);
        guard.hold_until(Duration::ZERO);
        assert_eq!(guard.state(), Lead::Lapsed);
        guard.hold_until(Duration::MAX);
        assert_eq!(guard.state(), Lead::Held);
        guard.end();
        guard.hold_until(Duration::from_secs(3600));
        assert_eq!(guard.state(), Lead::Over);
    }

    #[test]
    fn a_broker_alone_always_answers() {
        let guard = LeadGuard::alone();
        guard.end();
        assert_eq!(guard.state(), Lead::Held);
    }
}
