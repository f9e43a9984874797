//! Whether an agent is there (SPEC 6).
//!
//! Owns what signs of life say about an agent, and for how long. Must not know how signs of life come, or who asks.

use std::time::Duration;

use crate::time::Timestamp;

/// Whether an agent is there, the better before the worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Liveness {
    /// It gives signs of life.
    Alive,
    /// It has missed heartbeats, or has just left, or has not come back since the broker started.
    Suspect,
    /// It has given no sign of life for the lease.
    Gone,
}

/// What an agent shows of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signs {
    /// Sessions that are open now.
    pub sessions: u32,
    /// Calls of `Receive` that are open now. An open call is a sign of life as long as it lasts.
    pub receives: u32,
    /// Its latest sign of life. `None`: none since the broker started.
    pub last_seen: Option<Timestamp>,
}

/// When an agent is taken for what.
#[derive(Debug, Clone, Copy)]
pub struct PresenceRule {
    /// After this without a sign of life an agent with a session is suspect: three heartbeats.
    pub suspect_after: Duration,
    /// After this without a sign of life an agent is gone.
    pub lease: Duration,
    /// When the broker started. The lease of an agent that was not seen since begins here.
    pub started_at: Timestamp,
}

/// What a look at an agent finds when its lease may be over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresenceCheck {
    /// It is gone.
    Gone,
    /// It is not gone before this time.
    LookAgain(Timestamp),
}

impl PresenceRule {
    /// When the agent is gone, if it gives no further sign of life. `None`: not as long as its call of `Receive` is open.
    pub fn gone_at(&self, signs: Signs) -> Option<Timestamp> {
        match signs.receives {
            0 => Some(signs.last_seen.unwrap_or(self.started_at).plus(self.lease)),
            _ => None,
        }
    }

    /// Whether the agent has given no sign of life for the lease.
    pub fn is_gone(&self, signs: Signs, now: Timestamp) -> bool {
        self.gone_at(signs).is_some_and(|at| at <= now)
    }

    /// Whether the agent is gone now, or when to look again.
    pub fn check(&self, signs: Signs, now: Timestamp) -> PresenceCheck {
        match self.gone_at(signs) {
            Some(at) if at <= now => PresenceCheck::Gone,
            Some(at) => PresenceCheck::LookAgain(at),
            None => PresenceCheck::LookAgain(now.plus(self.lease)),
        }
    }

    /// Whether the agent is there.
    pub fn liveness(&self, signs: Signs, now: Timestamp) -> Liveness {
        if self.is_gone(signs, now) {
            return Liveness::Gone;
        }
        let is_heard = signs.last_seen.is_some_and(|seen| now.since(seen) < self.suspect_after);
        if signs.receives > 0 || (signs.sessions > 0 && is_heard) { Liveness::Alive } else { Liveness::Suspect }
    }
}

/// How loaded an agent is, from what it says of itself: 1000 is full. An agent that names no capacity counts as idle.
pub fn load_permille(capacity: u32, active_tasks: u32, queue_length: u32) -> u32 {
    let busy = u64::from(active_tasks) + u64::from(queue_length);
    (busy * 1000).checked_div(u64::from(capacity)).map_or(0, |load| u32::try_from(load).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: PresenceRule = PresenceRule {
        suspect_after: Duration::from_secs(30),
        lease: Duration::from_secs(60),
        started_at: Timestamp::from_unix_nanoseconds(0),
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    fn signs(sessions: u32, receives: u32, last_seen: Option<i64>) -> Signs {
        Signs { sessions, receives, last_seen: last_seen.map(at) }
    }

    #[test]
    fn an_agent_with_a_session_is_suspect_after_three_heartbeats_and_gone_after_its_lease() {
        let liveness = |now| RULE.liveness(signs(1, 0, Some(100)), at(now));
        assert_eq!([liveness(100), liveness(129)], [Liveness::Alive; 2]);
        assert_eq!([liveness(130), liveness(159)], [Liveness::Suspect; 2]);
        assert_eq!(liveness(160), Liveness::Gone);
    }

    #[test]
    fn an_agent_that_has_left_is_suspect_at_once() {
        assert_eq!(RULE.liveness(signs(0, 0, Some(100)), at(101)), Liveness::Suspect);
        assert_eq!(RULE.liveness(signs(0, 0, Some(100)), at(160)), Liveness::Gone);
    }

    #[test]
    fn an_agent_that_was_not_seen_since_the_start_is_gone_a_lease_after_it() {
        assert_eq!(RULE.liveness(Signs::default(), at(59)), Liveness::Suspect);
        assert_eq!(RULE.liveness(Signs::default(), at(60)), Liveness::Gone);
    }

    #[test]
    fn an_open_call_of_receive_is_a_sign_of_life_as_long_as_it_lasts() {
        assert_eq!(RULE.liveness(signs(0, 1, Some(0)), at(1000)), Liveness::Alive);
        assert_eq!(RULE.check(signs(0, 1, Some(0)), at(1000)), PresenceCheck::LookAgain(at(1060)));
    }

    #[test]
    fn a_look_finds_that_an_agent_is_gone_exactly_when_it_is() {
        for now in [100, 130, 159] {
            assert_eq!(RULE.check(signs(1, 0, Some(100)), at(now)), PresenceCheck::LookAgain(at(160)));
            assert!(!RULE.is_gone(signs(1, 0, Some(100)), at(now)));
        }
        assert_eq!(RULE.check(signs(1, 0, Some(100)), at(160)), PresenceCheck::Gone);
        assert!(RULE.is_gone(signs(1, 0, Some(100)), at(160)));
    }

    #[test]
    fn load_is_a_part_of_the_capacity() {
        let loads = [(0, 5, 5, 0), (4, 0, 0, 0), (4, 1, 1, 500), (4, 4, 4, 2000), (1, u32::MAX, u32::MAX, u32::MAX)];
        for (capacity, active, queued, load) in loads {
            assert_eq!(load_permille(capacity, active, queued), load);
        }
    }
}
