//! When mail is over, and what is done with it (SPEC 4).

use std::time::Duration;

use super::Letter;
use crate::time::Timestamp;

/// From the end of a lease until its letter is looked at again: the lease's own end is dealt with first.
const LEASE_GRACE: Duration = Duration::from_millis(1);

/// What to do with a letter that may have expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// It is over: it becomes a dead letter.
    Over,
    /// Nothing before this running time.
    LookAgain(Timestamp),
}

/// When mail that is stored now is over, by the clock: after its sender's `expires_at` or the lifetime of all mail,
/// whichever is earlier.
pub fn expires_at(asked: Option<Timestamp>, lifetime: Duration, now: Timestamp) -> Timestamp {
    let longest = now.plus(lifetime);
    asked.map_or(longest, |at| at.min(longest))
}

impl Letter {
    /// Whether it is not delivered any more at this running time.
    pub fn is_expired(&self, running: Timestamp) -> bool {
        self.expires_at <= running
    }

    /// What to do at this running time. `leased_until` is the end of its lease by the running time, if it is handed out:
    /// its ack may still come, and then it was delivered in time.
    pub fn expiry(&self, leased_until: Option<Timestamp>, running: Timestamp) -> Expiry {
        if !self.is_expired(running) {
            return Expiry::LookAgain(self.expires_at);
        }
        match leased_until {
            Some(end) => Expiry::LookAgain(end.max(running.plus(LEASE_GRACE))),
            None => Expiry::Over,
        }
    }
}

/// When a letter is looked at again that a change of the same moment has written.
pub fn soon(running: Timestamp) -> Timestamp {
    running.plus(LEASE_GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{handoff::Priority, mailbox::EnvelopeOwner},
        ids::MessageId,
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    fn letter(expires_at: i64) -> Letter {
        Letter {
            sequence: 1,
            message_sequence: 1,
            message: MessageId::from_bytes([1; 16]),
            task: None,
            priority: Priority::Medium,
            expires_at: at(expires_at),
            handouts: 0,
            failures: 0,
            not_before: at(0),
            report_to: None,
            attempts: Vec::new(),
            envelope_owner: EnvelopeOwner::Log,
        }
    }

    #[test]
    fn mail_ends_when_its_sender_says_but_never_after_its_lifetime() {
        let lifetime = Duration::from_secs(100);
        for (asked, end) in [(None, 110), (Some(50), 50), (Some(110), 110), (Some(111), 110)] {
            assert_eq!(expires_at(asked.map(at), lifetime, at(10)), at(end), "{asked:?}");
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
