//! The sessions of browsers, in memory only: a restart ends them all.
//!
//! A session is a secret in a cookie, of which only the digest is kept, and the proof of its caller, which is checked
//! again at each request.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use crate::{
    broker::{
        Broker,
        access::Caller,
        identity::{Credential, random_bytes},
    },
    time::Timestamp,
};

/// A session without a request for this long ends.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// A session ends at this age.
const AGE_MAX: Duration = Duration::from_secs(8 * 60 * 60);
/// The most sessions. Of the caller with the most, the one with the oldest request gives way to a new one.
const SESSIONS_MAX: usize = 1024;
/// The most sessions of one caller, so that no caller can end those of the others.
const SESSIONS_OF_ONE_MAX: usize = 16;

type Digest = [u8; 32];

/// The open sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    open: Mutex<HashMap<Digest, Session>>,
}

#[derive(Debug)]
struct Session {
    caller: Caller,
    credential: Credential,
    begun: Timestamp,
    used: Timestamp,
}

impl Session {
    /// A time ahead of now comes from a clock that was ahead and has been set right; the session ends then, too.
    fn is_in_time(&self, now: Timestamp) -> bool {
        let within = |since: Timestamp, most: Duration| since <= now && now < since.plus(most);
        within(self.used, IDLE_MAX) && within(self.begun, AGE_MAX)
    }
}

impl Sessions {
    /// Begins a session. Returns its secret: 64 hexadecimal digits of 256 random bits.
    pub(super) fn begin(&self, caller: Caller, credential: Credential, broker: &Broker) -> String {
        let secret = hex::encode(random_bytes(broker.ids()));
        self.add(digest(&secret), caller, credential, broker.now());
        secret
    }

    fn add(&self, secret: Digest, caller: Caller, credential: Credential, now: Timestamp) {
        let mut open = self.open();
        open.retain(|_, session| session.is_in_time(now));
        let mut counts: HashMap<String, usize> = HashMap::new();
        open.values().for_each(|session| *counts.entry(session.caller.to_string()).or_default() += 1);
        let count_of = |caller: &Caller| counts.get(&caller.to_string()).copied().unwrap_or_default();
        let of_one = count_of(&caller);
        let gives_way = |session: &Session| of_one < SESSIONS_OF_ONE_MAX || session.caller == caller;
        if of_one >= SESSIONS_OF_ONE_MAX || open.len() >= SESSIONS_MAX {
            let candidates = open.iter().filter(|(_, session)| gives_way(session));
            let first = |session: &Session| (Reverse(count_of(&session.caller)), session.used);
            let oldest = candidates.min_by_key(|(_, session)| first(session)).map(|(digest, _)| *digest);
            oldest.map(|oldest| open.remove(&oldest));
        }
        open.insert(secret, Session { caller, credential, begun: now, used: now });
    }

    /// The caller of the session with this secret. `None`: there is no such session, or it has ended. `is_use`: whether
    /// the session counts as used now.
    pub(super) fn caller(&self, secret: &str, broker: &Broker, is_use: bool) -> Option<Caller> {
        let prove =
            |credential: &Credential, now| broker.identities().prove_again(credential, broker.directory(), now).ok();
        self.find(secret, || broker.now(), is_use, prove)
    }

    fn find(
        &self,
        secret: &str,
        now: impl FnOnce() -> Timestamp,
        is_use: bool,
        prove: impl FnOnce(&Credential, Timestamp) -> Option<Caller>,
    ) -> Option<Caller> {
        let digest = digest(secret);
        let mut open = self.open();
        // Read under the lock: a request that waited for it must not be earlier than the last use.
        let now = now();
        let session = open.get_mut(&digest).filter(|session| session.is_in_time(now));
        let proven = session.and_then(|session| {
            session.used = if is_use { now } else { session.used };
            prove(&session.credential, now).filter(|caller| *caller == session.caller)
        });
        if proven.is_none() {
            open.remove(&digest);
        }
        proven
    }

    /// Ends the session with this secret.
    pub(super) fn end(&self, secret: &str) {
        self.open().remove(&digest(secret));
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Digest, Session>> {
        self.open.lock().expect("no holder panics")
    }
}

fn digest(secret: &str) -> Digest {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(secret).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::access::Operator;

    const MINUTE: i64 = 60;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_parts(1_000_000 + seconds, 0).unwrap()
    }

    fn operator(name: &str) -> Caller {
        Caller::Operator(Operator::named(name))
    }

    fn begun(sessions: &Sessions, secret: &str, name: &str, seconds: i64) {
        sessions.add(digest(secret), operator(name), Credential::Given([0; 32]), at(seconds));
    }

    fn is_open(sessions: &Sessions, secret: &str, name: &str, seconds: i64) -> bool {
        sessions.find(secret, || at(seconds), true, |_, _| Some(operator(name))).is_some()
    }

    #[test]
    fn a_session_ends_half_an_hour_after_its_last_request() {
        let sessions = Sessions::default();
        begun(&sessions, "s", "a", 0);
        assert!(is_open(&sessions, "s", "a", 29 * MINUTE));
        assert!(is_open(&sessions, "s", "a", 58 * MINUTE));
        assert!(!is_open(&sessions, "s", "a", 88 * MINUTE));
        assert!(!is_open(&sessions, "s", "a", 58 * MINUTE), "an ended session stays ended");
    }

    #[test]
    fn what_a_page_asks_by_itself_keeps_no_session_open() {
        let sessions = Sessions::default();
        begun(&sessions, "s", "a", 0);
        let refreshed =
            |minutes| sessions.find("s", || at(minutes * MINUTE), false, |_, _| Some(operator("a"))).is_some();
        assert!(refreshed(10) && refreshed(20) && refreshed(29));
        assert!(!refreshed(30));
    }

    #[test]
    fn a_session_in_use_ends_after_eight_hours() {
        let sessions = Sessions::default();
        begun(&sessions, "s", "a", 0);
        for quarter in 1..32 {
            assert!(is_open(&sessions, "s", "a", quarter * 15 * MINUTE), "{quarter}");
        }
        assert!(!is_open(&sessions, "s", "a", 32 * 15 * MINUTE));
    }

    #[test]
    fn a_session_ends_with_its_proof_and_with_a_logout() {
        let sessions = Sessions::default();
        begun(&sessions, "s", "a", 0);
        assert!(sessions.find("s", || at(1), true, |_, _| None).is_none());
        assert!(!is_open(&sessions, "s", "a", 2));
        begun(&sessions, "t", "a", 0);
        assert!(!is_open(&sessions, "t", "b", 1), "the proof is of another caller now");
        begun(&sessions, "u", "a", 0);
        sessions.end("u");
        assert!(!is_open(&sessions, "u", "a", 1));
    }

    #[test]
    fn a_session_ends_if_the_clock_goes_back_before_its_begin() {
        let sessions = Sessions::default();
        begun(&sessions, "s", "a", 60);
        assert!(!is_open(&sessions, "s", "a", 0));
    }

    #[test]
    fn a_caller_at_its_limit_ends_its_own_oldest_session_alone() {
        let sessions = Sessions::default();
        begun(&sessions, "other", "b", 0);
        for number in 0..=SESSIONS_OF_ONE_MAX {
            begun(&sessions, &number.to_string(), "a", 1 + i64::try_from(number).unwrap());
        }
        assert!(is_open(&sessions, "other", "b", 60));
        assert!(!is_open(&sessions, "0", "a", 60));
        assert!(is_open(&sessions, "1", "a", 60));
    }

    #[test]
    fn the_caller_with_the_most_sessions_gives_way_when_all_are_taken() {
        let sessions = Sessions::default();
        begun(&sessions, "oldest", "b", 0);
        begun(&sessions, "a0", "a", 1);
        begun(&sessions, "a1", "a", 2);
        for number in 3..SESSIONS_MAX {
            begun(&sessions, &number.to_string(), &format!("c{number}"), 3);
        }
        begun(&sessions, "new", "d", 4);
        assert!(!is_open(&sessions, "a0", "a", 5), "its caller had two");
        for (secret, name) in [("oldest", "b"), ("a1", "a"), ("new", "d")] {
            assert!(is_open(&sessions, secret, name, 5), "{secret}");
        }
    }

    #[test]
    fn the_secret_is_not_kept() {
        let sessions = Sessions::default();
        begun(&sessions, "a secret", "a", 0);
        assert!(!format!("{sessions:?}").contains("a secret"));
    }
}
