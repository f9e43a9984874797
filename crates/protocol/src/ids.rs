//! Identifiers: newtypes that hold only values permitted by SPEC 1. Owns their grammar and the source of random ids.
//! Must not know the entities that the ids name.

mod conversation;
mod workspace;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

pub use conversation::ConversationId;
use uuid::Uuid;
pub use workspace::{Topic, WorkspaceId, WorkspaceOwner};

/// The longest name, in characters.
pub const NAME_LENGTH_MAX: usize = 128;

/// A map of ids. The hash is fast, and seeded at random because agents choose ids.
pub type IdMap<K, V> = HashMap<K, V, foldhash::quality::RandomState>;
/// A set of ids, hashed as in [`IdMap`].
pub type IdSet<K> = HashSet<K, foldhash::quality::RandomState>;

/// The reason why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is empty.
    #[error("must not be empty")]
    Empty,
    /// The name has more than [`NAME_LENGTH_MAX`] characters.
    #[error("must have at most {NAME_LENGTH_MAX} characters")]
    TooLong,
    /// The name has a character outside the grammar.
    #[error("must have only A-Z a-z 0-9 . _ - and start with a letter or a digit")]
    Grammar,
    /// The text is not a hyphenated UUID.
    #[error("must be a UUID such as 0198c0de-0000-7000-8000-000000000001")]
    NotUuid,
    /// The text is not the id of a workspace.
    #[error("must be the id of a workspace, such as task:ID")]
    Workspace,
    /// The text has a control character.
    #[error("must have no control character")]
    Control,
    /// The text does not normalise to a topic.
    #[error("must have 1 to 128 letters, digits, _ - and . once it is trimmed and each run of white space is one _")]
    Topic,
}

/// Checks the common grammar of agents, tasks, types, keys and sections.
pub fn check_name(text: &str) -> Result<(), IdError> {
    let first = text.bytes().next().ok_or(IdError::Empty)?;
    if text.len() > NAME_LENGTH_MAX {
        return Err(IdError::TooLong);
    }
    let permitted = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if !first.is_ascii_alphanumeric() || !text.bytes().all(permitted) {
        return Err(IdError::Grammar);
    }
    Ok(())
}

/// Parses a decimal number in its canonical form: digits without a sign and without leading zeros, at most `u64::MAX`.
/// (`str::parse` also accepts `+1` and `007`, which would give one thing several names.)
pub fn parse_number(text: &str) -> Option<u64> {
    let is_canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_canonical)
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses the text, which must follow the grammar of names.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                check_name(text)?;
                Ok(Self(text.into()))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{:?}", &*self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::parse(text)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name_type!(
    /// An agent: a program, or a person behind one.
    AgentId
);
name_type!(
    /// A type of agents, the NAME in `type:NAME` and `all:NAME`.
    AgentType
);
name_type!(
    /// A unit of work, with one owner at every moment.
    TaskId
);
name_type!(
    /// One key among an agent's keys.
    KeyId
);
name_type!(
    /// A part of a sender's requests, for example those of one customer. The parts take turns in a mailbox.
    FairnessKey
);

name_type!(
    /// A graph of nodes that a model routes through.
    GraphId
);
name_type!(
    /// A node of a graph.
    NodeId
);
name_type!(
    /// A plan of subtasks.
    PlanId
);
name_type!(
    /// A specification of an agent or of a model that a thread runs with.
    SpecId
);
name_type!(
    /// A conversation whose persona changes at step boundaries.
    ThreadId
);

impl AgentId {
    /// The broker itself, the sender of its own messages. No agent can register this id.
    pub fn broker() -> Self {
        Self("baton".into())
    }

    /// The coordinator: the agent that the broker runs, with a key of its own. It owns the tasks that an operator has
    /// taken from their owners, has no mailbox and no session, and signs what it sends.
    pub fn coordinator() -> Self {
        Self("baton.coordinator".into())
    }

    /// Whether the id is reserved for agents that the broker runs: it begins with `baton.`.
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with("baton.")
    }

    /// Whether this is the coordinator.
    pub fn is_coordinator(&self) -> bool {
        *self.0 == *"baton.coordinator"
    }
}

impl TaskId {
    /// The task of a subtask in a round of its plan, counted from 1: `baton.SUBMISSION.SUBTASK`, and
    /// `baton.SUBMISSION-ROUND.SUBTASK` after a retry. SUBMISSION is the first 8 bytes of the digest of the plan's
    /// submission, in hexadecimal, so no other plan has the id, whatever their names are. The id of the subtask is a name of
    /// at most 60 characters.
    pub fn of_subtask(submission_digest: &[u8; 32], subtask: &str, round: u32) -> Self {
        use fmt::Write as _;
        let mut id = "baton.".to_owned();
        for byte in &submission_digest[..8] {
            write!(id, "{byte:02x}").expect("a String takes all text");
        }
        // A task that has ended never runs again, so each round has tasks of its own.
        if round > 1 {
            write!(id, "-{round}").expect("a String takes all text");
        }
        Self(format!("{id}.{subtask}").into())
    }

    /// The task of the compensation of a subtask in a round of its plan: `baton.SUBMISSION-cROUND.SUBTASK`. No subtask has a
    /// task with such an id, because rounds are numbers.
    pub fn of_compensation(submission_digest: &[u8; 32], subtask: &str, round: u32) -> Self {
        let first = Self::of_subtask(submission_digest, "", 1);
        Self(format!("{}-c{round}.{subtask}", first.0.trim_end_matches('.')).into())
    }

    /// The task of an element of a subtask in a round of its plan, at this place of its list:
    /// `baton.SUBMISSION-eROUND-PLACE.SUBTASK`. No subtask has a task with an id of this form, because rounds are numbers.
    pub fn of_element(submission_digest: &[u8; 32], subtask: &str, round: u32, place: usize) -> Self {
        let first = Self::of_subtask(submission_digest, "", 1);
        Self(format!("{}-e{round}-{place}.{subtask}", first.0.trim_end_matches('.')).into())
    }

    /// Whether only the broker creates a task with this id, that of a subtask: it begins with `baton.`.
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with("baton.")
    }
}

/// A message's id, its idempotency key. The id of a `HandoffRequest` is also the id of its handoff.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(Uuid);

impl MessageId {
    /// Parses a UUID in its hyphenated form, 36 characters, of any version.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if text.is_empty() {
            return Err(IdError::Empty);
        }
        // `Uuid::try_parse` also accepts a UUID without hyphens, in braces, or as a URN.
        if text.len() != 36 {
            return Err(IdError::NotUuid);
        }
        Uuid::try_parse(text).map(Self).map_err(|_| IdError::NotUuid)
    }

    /// The id with these 16 bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The time in a UUID of version 7, to the millisecond. `None`: the id has another version.
    pub fn time(self) -> Option<crate::time::Timestamp> {
        let (seconds, nanos) = self.0.get_timestamp().filter(|_| self.0.get_version_num() == 7)?.to_unix();
        crate::time::Timestamp::from_parts(i64::try_from(seconds).ok()?, i32::try_from(nanos).ok()?)
    }

    /// The id's 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl std::str::FromStr for MessageId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::parse(text)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(formatter)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A process: one running instance of an agent. It makes its id when it starts and keeps it over reconnects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(Uuid);

impl InstanceId {
    /// Parses a UUID in its hyphenated form, 36 characters, of any version.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        MessageId::parse(text).map(|id| Self(id.0))
    }

    /// The id with these 16 bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The id's 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(formatter)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A source of random ids; injected, so that a seed replays a run.
pub trait IdSource: Send + Sync {
    /// 16 unpredictable bytes.
    fn random(&self) -> [u8; 16];

    /// A new message id: a UUID version 7 with this time.
    fn message_id(&self, now: crate::time::Timestamp) -> MessageId {
        let milliseconds = u64::try_from(now.unix_milliseconds()).unwrap_or(0);
        let random = self.random();
        let mut tail = [0; 10];
        tail.copy_from_slice(&random[..10]);
        MessageId(uuid::Builder::from_unix_timestamp_millis(milliseconds, &tail).into_uuid())
    }
}

/// The operating system's random numbers.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemIds;

impl IdSource for SystemIds {
    #[expect(clippy::disallowed_methods, reason = "this is the one id source")]
    fn random(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system has random numbers");
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_subtasks_have_one_task() {
        let (one, other) = ([1; 32], [2; 32]);
        let ids = [(&one, "a", 1), (&one, "a", 2), (&one, "a.r2", 1), (&one, "2.a", 1), (&other, "a", 1)];
        let ids = ids.map(|(digest, subtask, round)| TaskId::of_subtask(digest, subtask, round));
        assert_eq!((ids[0].as_str(), ids[1].as_str()), ("baton.0101010101010101.a", "baton.0101010101010101-2.a"));
        assert_eq!(HashSet::from(ids.clone()).len(), ids.len());
        let longest = TaskId::of_subtask(&one, &"s".repeat(60), u32::MAX);
        assert_eq!(TaskId::parse(longest.as_str()), Ok(longest.clone()));
        let undoing = [("a", 1), ("a", 2), ("b", 1)].map(|(id, round)| TaskId::of_compensation(&one, id, round));
        assert_eq!(undoing[1].as_str(), "baton.0101010101010101-c2.a");
        assert_eq!(HashSet::from(undoing).union(&HashSet::from(ids.clone())).count(), ids.len() + 3);
        let elements = [("a", 1, 0), ("a", 1, 1), ("a", 2, 0)];
        let elements = elements.map(|(id, round, place)| TaskId::of_element(&one, id, round, place));
        assert_eq!(elements[1].as_str(), "baton.0101010101010101-e1-1.a");
        assert_eq!(HashSet::from(elements).union(&HashSet::from(ids.clone())).count(), ids.len() + 3);
        let longest_of_elements = TaskId::of_element(&one, &"s".repeat(60), u32::MAX, usize::MAX);
        assert_eq!(TaskId::parse(longest_of_elements.as_str()), Ok(longest_of_elements.clone()));
        let longest_of_undoing = TaskId::of_compensation(&one, &"s".repeat(60), u32::MAX);
        assert_eq!(TaskId::parse(longest_of_undoing.as_str()), Ok(longest_of_undoing.clone()));
        assert!(
            longest.is_reserved() && longest_of_undoing.is_reserved() && !TaskId::parse("baton").unwrap().is_reserved()
        );
    }

    #[test]
    fn names_keep_to_the_grammar() {
        for good in ["a", "0", "Agent_A.b-c", &"x".repeat(128)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        assert_eq!(check_name(""), Err(IdError::Empty));
        assert_eq!(check_name(&"x".repeat(129)), Err(IdError::TooLong));
        for bad in ["-a", ".a", "_a", "a b", "a:b", "客服", "a/b", "a\n"] {
            assert_eq!(check_name(bad), Err(IdError::Grammar), "{bad}");
        }
    }

    #[test]
    fn a_number_has_one_form() {
        assert_eq!([parse_number("0"), parse_number("17")], [Some(0), Some(17)]);
        assert_eq!(parse_number("18446744073709551615"), Some(u64::MAX));
        for bad in ["", "+1", "-1", "01", "00", " 1", "1 ", "1_000", "0x1", "١", "18446744073709551616"] {
            assert_eq!(parse_number(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn message_ids_are_hyphenated_uuids() {
        let text = "0198c0de-0000-7000-8000-000000000001";
        assert_eq!(MessageId::parse(text).unwrap().to_string(), text);
        assert_eq!(MessageId::parse(""), Err(IdError::Empty));
        for bad in ["0198c0de000070008000000000000001", "nonsense", "0198c0de-0000-7000-8000-00000000000g"] {
            assert_eq!(MessageId::parse(bad), Err(IdError::NotUuid), "{bad}");
        }
    }
}
