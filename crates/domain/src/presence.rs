//! The presence of agents (SPEC 6).
//!
//! This module owns the rule that turns signs of life into a liveness. It must not know how signs of life arrive, or
//! which component asks.

use std::time::Duration;

use crate::time::Timestamp;

/// The liveness of an agent, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Liveness {
    /// The agent gives signs of life.
    Alive,
    /// The agent has missed heartbeats, has just left, or has not come back since the broker started.
    Suspect,
    /// The agent has given no sign of life for the length of the lease.
    Gone,
}

/// What people and metrics are told of an agent's presence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PresenceState {
    /// The agent gives signs of life.
    Alive,
    /// The agent has missed heartbeats, or its last session has just ended.
    Suspect,
    /// The agent had a session, and has given no sign of life for the length of the lease.
    Gone,
    /// The agent has had no session since it was registered or the broker started: nobody has seen it yet, or it works by
    /// single calls, as a person does on the command line. So nothing has ended that could be missed.
    Unseen,
}

impl PresenceState {
    /// Every state, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Alive, Self::Suspect, Self::Gone, Self::Unseen];

    /// The name, as in `Presence` of the schema.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alive => "ALIVE",
            Self::Suspect => "SUSPECT",
            Self::Gone => "GONE",
            Self::Unseen => "UNSEEN",
        }
    }
}

/// The signs of life of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signs {
    /// The number of open sessions.
    pub sessions: u32,
    /// The number of open calls of `Receive`. An open call is a sign of life as long as it lasts.
    pub receives: u32,
    /// The latest sign of life. `None`: none since the broker started.
    pub last_seen: Option<Timestamp>,
    /// Whether the agent has had a session since the broker started.
    pub had_session: bool,
}

/// The times after which an agent counts as suspect or gone.
#[derive(Debug, Clone, Copy)]
pub struct PresenceRule {
    /// The time without a sign of life after which an agent with a session is suspect: three heartbeats.
    pub suspect_after: Duration,
    /// The time without a sign of life after which an agent is gone.
    pub lease: Duration,
    /// The start of the broker. The lease of an agent without a sign of life since then begins here.
    pub started_at: Timestamp,
}

/// The result of a check of an agent whose lease may be over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresenceCheck {
    /// The agent is gone.
    Gone,
    /// The agent is not gone before this time.
    LookAgain(Timestamp),
}

impl PresenceRule {
    /// The time at which the agent is gone without a further sign of life. `None`: a call of `Receive` is open.
    pub fn gone_at(&self, signs: Signs) -> Option<Timestamp> {
        match signs.receives {
            // After a start no agent has had the chance to come back, so its lease begins with the start.
            0 => Some(signs.last_seen.unwrap_or(self.started_at).plus(self.lease)),
            _ => None,
        }
    }

    /// Whether the agent has given no sign of life for the length of the lease.
    pub fn is_gone(&self, signs: Signs, now: Timestamp) -> bool {
        self.gone_at(signs).is_some_and(|at| at <= now)
    }

    /// Whether the agent is gone now, or the time of the next check.
    pub fn check(&self, signs: Signs, now: Timestamp) -> PresenceCheck {
        match self.gone_at(signs) {
            Some(at) if at <= now => PresenceCheck::Gone,
            Some(at) => PresenceCheck::LookAgain(at),
            // An open call of `Receive` counts as a sign of life at this moment.
            None => PresenceCheck::LookAgain(now.plus(self.lease)),
        }
    }

    /// What is shown of the agent's presence.
    pub fn state(&self, signs: Signs, now: Timestamp) -> PresenceState {
        match self.liveness(signs, now) {
            Liveness::Alive => PresenceState::Alive,
            _ if !signs.had_session => PresenceState::Unseen,
            Liveness::Suspect => PresenceState::Suspect,
            Liveness::Gone => PresenceState::Gone,
        }
    }

    /// The liveness of the agent, by which candidates are chosen.
    pub fn liveness(&self, signs: Signs, now: Timestamp) -> Liveness {
        if self.is_gone(signs, now) {
            return Liveness::Gone;
        }
        // A call of `Receive` carries no heartbeats, so it counts as long as it is open.
        let is_heard = signs.last_seen.is_some_and(|seen| now.since(seen) < self.suspect_after);
        if signs.receives > 0 || (signs.sessions > 0 && is_heard) { Liveness::Alive } else { Liveness::Suspect }
    }
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
        Signs { sessions, receives, last_seen: last_seen.map(at), had_session: sessions > 0 }
    }

    #[test]
    fn an_agent_without_a_session_is_unseen_and_never_gone_to_people() {
        let state = |signs: Signs, now| RULE.state(signs, at(now));
        // By single calls: the last at 100. Candidates are chosen as if it were gone.
        let by_calls = signs(0, 0, Some(100));
        assert_eq!([state(by_calls, 101), state(by_calls, 160)], [PresenceState::Unseen; 2]);
        assert_eq!(RULE.liveness(by_calls, at(160)), Liveness::Gone);
        assert_eq!(state(Signs::default(), 60), PresenceState::Unseen);
        assert_eq!(state(signs(0, 1, Some(0)), 1000), PresenceState::Alive, "a call of Receive is open");
    }

    #[test]
    fn an_agent_that_had_a_session_is_suspect_and_then_gone() {
        let left = Signs { had_session: true, ..signs(0, 0, Some(100)) };
        let state = |now| RULE.state(left, at(now));
        assert_eq!(
            [state(101), state(159), state(160)],
            [PresenceState::Suspect, PresenceState::Suspect, PresenceState::Gone]
        );
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
}
