//! The expiry of mail (SPEC 4).

use std::time::Duration;

use super::Letter;
use crate::time::Timestamp;

/// The time from the end of a lease to the next check of its letter, so that the end of the lease is handled first.
const LEASE_GRACE: Duration = Duration::from_millis(1);

/// The result of an expiry check of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// The letter has expired and becomes a dead letter.
    Over,
    /// The letter is not to be parked before this running time.
    LookAgain(Timestamp),
}

/// The time from the deadline of what a letter carries to the letter's expiry, so that the deadline is handled first.
const DEADLINE_GRACE: Duration = Duration::from_secs(60);

/// The time of the clock at which mail stored now expires: the sender's `expires_at` or the end of the lifetime of all
/// mail, whichever is earlier. What has a later `deadline` of its own, an offer or a question, lives until then.
pub fn expires_at(
    asked: Option<Timestamp>,
    lifetime: Duration,
    deadline: Option<Timestamp>,
    now: Timestamp,
) -> Timestamp {
    let longest = now.plus(lifetime);
    let longest = deadline.map_or(longest, |deadline| longest.max(deadline.plus(DEADLINE_GRACE)));
    asked.map_or(longest, |at| at.min(longest))
}

impl Letter {
    /// Whether the letter has expired at this running time.
    pub fn is_expired(&self, running: Timestamp) -> bool {
        self.expires_at <= running
    }

    /// Checks the expiry at this running time. `leased_until` is the end of the letter's lease as a running time, if
    /// the letter is dispatched: its ack may still arrive, and then the delivery was in time.
    pub fn expiry(&self, leased_until: Option<Timestamp>, running: Timestamp) -> Expiry {
        if !self.is_expired(running) {
            return Expiry::LookAgain(self.expires_at);
        }
        match leased_until {
            // At the end of the lease its fate comes first: it requeues or parks the letter.
            Some(end) => Expiry::LookAgain(end.max(running.plus(LEASE_GRACE))),
            None => Expiry::Over,
        }
    }
}

/// The time of the next check of a letter that the batch in hand has written.
pub fn soon(running: Timestamp) -> Timestamp {
    running.plus(LEASE_GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{AgentId, MessageId},
        mailbox::Flow,
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    fn letter(expires_at: i64) -> Letter {
        Letter {
            expires_at: at(expires_at),
            ..Letter::new(1, MessageId::from_bytes([1; 16]), Flow::of(AgentId::broker()), at(0))
        }
    }

    #[test]
    fn mail_ends_when_its_sender_says_but_never_after_its_lifetime() {
        let lifetime = Duration::from_secs(100);
        for (asked, end) in [(None, 110), (Some(50), 50), (Some(110), 110), (Some(111), 110)] {
            assert_eq!(expires_at(asked.map(at), lifetime, None, at(10)), at(end), "{asked:?}");
        }
    }

    #[test]
    fn mail_lives_as_long_as_the_deadline_of_what_it_carries() {
        let lifetime = Duration::from_secs(100);
        for (asked, deadline, end) in [(None, 20, 110), (None, 500, 560), (Some(50), 500, 50), (Some(300), 500, 300)] {
            let found = expires_at(asked.map(at), lifetime, Some(at(deadline)), at(10));
            assert_eq!(found, at(end), "{asked:?} {deadline}");
        }
    }

    #[test]
    fn mail_is_over_at_its_time_and_not_before() {
        assert_eq!(letter(100).expiry(None, at(99)), Expiry::LookAgain(at(100)));
        assert_eq!(letter(100).expiry(None, at(100)), Expiry::Over);
    }

    #[test]
    fn mail_that_is_handed_out_is_not_given_up_before_its_lease_is_over() {
        assert_eq!(letter(100).expiry(Some(at(130)), at(99)), Expiry::LookAgain(at(100)));
        assert_eq!(letter(100).expiry(Some(at(130)), at(101)), Expiry::LookAgain(at(130)));
        let Expiry::LookAgain(again) = letter(100).expiry(Some(at(130)), at(130)) else { panic!("it is handed out") };
        assert!(again > at(130) && again < at(131), "after the end of the lease");
    }
}
