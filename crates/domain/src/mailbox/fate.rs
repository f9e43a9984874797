//! The fate of a delivery: an ack, a retry with backoff, a requeue, a dead letter, or an extension (SPEC 4).

use std::time::Duration;

use super::{ATTEMPTS_MAX, AttemptEnd, Lease, Letter, backoff};
use crate::{dead_letter::ParkReason, time::Timestamp};

/// The longest wait before a redelivery that an agent may ask for.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);

/// The text of an attempt whose lease ended without an ack.
const NO_ACK_TEXT: &str = "no ack in time";

/// The fate of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The agent has taken the message.
    Acked,
    /// The agent can never take the message.
    Poison {
        /// The reason in the agent's words.
        text: String,
    },
    /// The agent could not take the message this time.
    Failed {
        /// The reason in the agent's words.
        text: String,
        /// The wait before the redelivery, from now; at most [`RETRY_AFTER_MAX`]. `None`: the backoff.
        retry_after: Option<Duration>,
    },
    /// The agent is about to stop.
    Shutdown {
        /// The reason in the agent's words.
        text: String,
        /// The wait before the redelivery, from now; at most [`RETRY_AFTER_MAX`]. `None`: no wait.
        retry_after: Option<Duration>,
    },
    /// The agent needs more time.
    Extend {
        /// The length of the extension, from now; at most [`LeaseLimits::extension_max`]. `None`:
        /// [`LeaseLimits::ack_wait`].
        extension: Option<Duration>,
    },
    /// The lease ended without an answer of the agent. Only the broker reports this fate.
    Overdue,
    /// The session that held the lease ended. Only the broker reports this fate.
    SessionEnded,
}

/// The lengths of leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseLimits {
    /// The length of a lease, and of an extension without a length.
    pub ack_wait: Duration,
    /// The longest extension, from the time of the agent's request.
    pub extension_max: Duration,
}

/// The consequence of a delivery's fate for its letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The letter leaves the mailbox as delivered.
    Remove(Letter),
    /// The letter stays, and is ready for dispatch from its `not_before` on.
    Requeue(Letter),
    /// The letter leaves the mailbox and becomes a dead letter.
    Park {
        /// The letter with its last attempt.
        letter: Letter,
        /// The reason that the dead letter shows.
        reason: ParkReason,
        /// The text of the last attempt, from the agent or from the broker.
        text: String,
    },
    /// The lease goes on until this time, or until its present end if that is later.
    Extend(Timestamp),
}

/// The consequence of a delivery's fate. A failure is retried after the backoff, up to [`ATTEMPTS_MAX`] failures; the
/// stop of an agent and the end of a session are no failures. Calls `jitter` at most once, for a backoff.
pub fn after(
    mut letter: Letter,
    lease: &Lease,
    fate: &Fate,
    limits: LeaseLimits,
    jitter: impl FnOnce() -> u8,
    now: Timestamp,
) -> Next {
    match fate {
        Fate::Acked => Next::Remove(letter),
        Fate::Poison { text } => {
            letter.attempt_ended(lease, AttemptEnd::Poison, text, now);
            Next::Park { letter, reason: ParkReason::Poison, text: text.clone() }
        }
        Fate::Failed { text, retry_after } => {
            letter.attempt_ended(lease, AttemptEnd::Failure, text, now);
            retry_or_park(letter, *retry_after, jitter, now)
        }
        Fate::Overdue => {
            letter.attempt_ended(lease, AttemptEnd::NoAck, NO_ACK_TEXT, now);
            retry_or_park(letter, None, jitter, now)
        }
        Fate::Shutdown { text, retry_after } => {
            letter.attempt_ended(lease, AttemptEnd::Shutdown, text, now);
            // No failure of the message, so neither the attempts nor the backoff count it.
            requeue(letter, retry_after.unwrap_or_default(), now)
        }
        Fate::SessionEnded => {
            letter.attempt_ended(lease, AttemptEnd::SessionEnded, "", now);
            requeue(letter, Duration::ZERO, now)
        }
        // From now, not from the present end of the lease: so repeated extensions do not add up.
        Fate::Extend { extension } => {
            Next::Extend(now.plus(extension.unwrap_or(limits.ack_wait).min(limits.extension_max)))
        }
    }
}

fn retry_or_park(letter: Letter, retry_after: Option<Duration>, jitter: impl FnOnce() -> u8, now: Timestamp) -> Next {
    // `attempt_ended` has counted the failure of this attempt.
    if letter.failures >= ATTEMPTS_MAX {
        let text = letter.attempts.last().map(|attempt| attempt.text.clone()).unwrap_or_default();
        return Next::Park { letter, reason: ParkReason::DeliveryAttemptsExhausted, text };
    }
    // The agent knows better than the backoff when it can take the message.
    let wait = retry_after.unwrap_or_else(|| backoff(letter.failures, jitter()));
    requeue(letter, wait, now)
}

fn requeue(mut letter: Letter, wait: Duration, now: Timestamp) -> Next {
    // The later mail of the same task waits behind this letter, so the wait that an agent asks for is bounded.
    letter.not_before = now.plus(wait.min(RETRY_AFTER_MAX));
    Next::Requeue(letter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{AgentId, MessageId},
        mailbox::{ConsumerId, Flow, Mailbox},
    };

    const LIMITS: LeaseLimits =
        LeaseLimits { ack_wait: Duration::from_secs(30), extension_max: Duration::from_secs(600) };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(seconds, 0).unwrap()
    }

    fn letter() -> Letter {
        Letter {
            expires_at: at(1_000_000),
            ..Letter::new(1, MessageId::from_bytes([1; 16]), Flow::of(AgentId::broker()), at(0))
        }
    }

    fn failed(retry_after: Option<u64>) -> Fate {
        Fate::Failed { text: "busy".into(), retry_after: retry_after.map(Duration::from_secs) }
    }

    fn shutdown(retry_after: Option<u64>) -> Fate {
        Fate::Shutdown { text: "deploying".into(), retry_after: retry_after.map(Duration::from_secs) }
    }

    /// Delivers the letter once at this second, with this fate a second later.
    fn deliver(letter: Letter, fate: &Fate, second: i64) -> Next {
        let mut mailbox = Mailbox::default();
        mailbox.add(letter);
        let lease = mailbox.dispatch(ConsumerId(1), None, at(second), LIMITS.ack_wait).expect("the letter waits");
        let letter = mailbox.letter(1).unwrap().clone();
        after(letter, &lease, fate, LIMITS, || 128, at(second + 1))
    }

    fn requeued(next: Next) -> Letter {
        match next {
            Next::Requeue(letter) => letter,
            Next::Remove(_) | Next::Park { .. } | Next::Extend(_) => panic!("{next:?} is no requeue"),
        }
    }

    #[test]
    fn an_ack_removes_the_letter() {
        let delivered = Letter { handouts: 1, ..letter() };
        assert_eq!(deliver(letter(), &Fate::Acked, 10), Next::Remove(delivered));
    }

    #[test]
    fn a_failure_and_an_overdue_lease_wait_longer_each_time_and_are_given_up_at_last() {
        for (fate, end, text) in
            [(failed(None), AttemptEnd::Failure, "busy"), (Fate::Overdue, AttemptEnd::NoAck, "no ack in time")]
        {
            let (mut letter, mut waits, mut second) = (letter(), Vec::new(), 10);
            let parked = loop {
                match deliver(letter, &fate, second) {
                    Next::Requeue(next) => {
                        waits.push(next.not_before.since(at(second + 1)).as_secs_f64().round());
                        second += 100;
                        letter = next;
                    }
                    other => break other,
                }
            };
            assert_eq!(waits, [1.0, 2.0, 4.0, 8.0]);
            let Next::Park { letter, reason, text: said } = parked else { panic!("{parked:?}") };
            assert_eq!((reason, said.as_str()), (ParkReason::DeliveryAttemptsExhausted, text));
            assert_eq!((letter.failures, letter.attempts.len()), (ATTEMPTS_MAX, 5));
            assert!(letter.attempts.iter().all(|attempt| attempt.end == end && attempt.text == text));
        }
    }

    #[test]
    fn an_agent_chooses_its_wait_up_to_an_hour() {
        for (asked, waits) in [(0, 0), (5, 5), (3600, 3600), (100_000, 3600)] {
            for fate in [failed(Some(asked)), shutdown(Some(asked))] {
                assert_eq!(requeued(deliver(letter(), &fate, 10)).not_before, at(11 + waits), "{fate:?}");
            }
        }
    }

    #[test]
    fn a_stop_and_the_end_of_a_session_are_no_failures_however_many() {
        let (mut letter, mut second) = (letter(), 10);
        for _ in 0..20 {
            for (fate, end) in [(shutdown(None), AttemptEnd::Shutdown), (Fate::SessionEnded, AttemptEnd::SessionEnded)]
            {
                letter = requeued(deliver(letter, &fate, second));
                second += 1;
                assert_eq!((letter.failures, letter.not_before), (0, at(second)), "it can be dispatched at once");
                assert_eq!(letter.attempts.last().unwrap().end, end);
            }
        }
        assert_eq!(letter.handouts, 40, "each is an attempt that is counted");
    }

    #[test]
    fn poison_is_given_up_at_the_first_attempt() {
        let next = deliver(letter(), &Fate::Poison { text: "cannot parse".into() }, 10);
        let Next::Park { letter, reason, text } = next else { panic!("{next:?}") };
        assert_eq!((reason, text.as_str(), letter.failures), (ParkReason::Poison, "cannot parse", 0));
        assert_eq!(letter.attempts[0].end, AttemptEnd::Poison);
    }

    #[test]
    fn an_extension_is_the_ack_wait_or_what_is_asked_for_up_to_a_bound() {
        for (asked, until) in [(None, 41), (Some(0), 11), (Some(60), 71), (Some(600), 611), (Some(601), 611)] {
            let fate = Fate::Extend { extension: asked.map(Duration::from_secs) };
            assert_eq!(deliver(letter(), &fate, 10), Next::Extend(at(until)), "{asked:?}");
        }
    }

    #[test]
    fn only_a_backoff_asks_for_random_numbers() {
        let lease = Lease { sequence: 1, attempt: 1, consumer: ConsumerId(1), since: at(1), deadline: at(31) };
        for fate in [Fate::Acked, failed(Some(1)), shutdown(None), Fate::SessionEnded, Fate::Extend { extension: None }]
        {
            after(letter(), &lease, &fate, LIMITS, || panic!("{fate:?} needs none"), at(2));
        }
    }
}
