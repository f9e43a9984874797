//! The versions of a task's context: plain data, the bound on kept contents, and the rejections.
//!
//! Each transfer and each checkpoint makes a version. The broker applies deltas and keeps the contents; this module must
//! not know how.

use crate::{
    codes::{ErrorCode, Refusal},
    ids::{AgentId, MessageId, TaskId},
    time::Timestamp,
};

/// The number of versions of a task whose contents the broker keeps. Of older ones it keeps the digests.
pub const VERSIONS_MAX: u64 = 1000;

/// The number of the latest versions of a task whose sections can be the base of a delta.
pub const BASES_MAX: u64 = 64;

/// One version of a task's context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The task whose context this is.
    pub task: TaskId,
    /// The number, from 1 on, without gaps.
    pub number: u64,
    /// The epoch of the task at the time.
    pub epoch: u64,
    /// The agent that signed the version.
    pub author: AgentId,
    /// The agent that the version was sent to. `None`: a checkpoint.
    pub receiver: Option<AgentId>,
    /// The handoff that the version was sent in. `None`: a checkpoint.
    pub handoff: Option<MessageId>,
    /// The message that made the version.
    pub message: MessageId,
    /// The digest over the names and the digests of the sections.
    pub digest: [u8; 32],
    /// The time of the version in the custody log.
    pub created_at: Timestamp,
    /// The sections, in the order of the message.
    pub sections: Vec<Section>,
}

/// A section of a version, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The name, unique in the version.
    pub name: String,
    /// The SHA-256 of the content; of a delta, that of its result.
    pub sha256: [u8; 32],
    /// The size of the content in bytes.
    pub size: u64,
    /// The media type as the author states it; the broker does not check it.
    pub media_type: String,
    /// How the section came.
    pub origin: Origin,
    /// The id and the version of the schema; empty: none.
    pub schema: (String, String),
    /// Whether the broker has checked the content with the schema.
    pub is_checked: bool,
    /// Whether the section is shown to its parties only.
    pub is_secret: bool,
    /// What the section says, in short.
    pub summary: String,
}

/// How a section came to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// With its content, JSON or bytes.
    Value {
        /// Whether the content is JSON, on which deltas are possible.
        is_json: bool,
    },
    /// As an address and a digest.
    Reference {
        /// The address.
        uri: String,
    },
    /// As a change to a stored section.
    Delta {
        /// The digest of that section.
        base: [u8; 32],
    },
}

impl Section {
    /// Whether a delta can change the section.
    pub const fn is_json(&self) -> bool {
        match self.origin {
            Origin::Value { is_json } => is_json,
            Origin::Delta { .. } => true,
            Origin::Reference { .. } => false,
        }
    }
}

impl Version {
    /// Whether the broker keeps the contents, where `latest` is the number of the task's latest version.
    pub const fn has_contents(&self, latest: u64) -> bool {
        // A sum, since the difference of the numbers would underflow for the first versions.
        self.number + VERSIONS_MAX > latest
    }

    /// The section with this name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Whether a section is secret.
    pub fn has_secret(&self) -> bool {
        self.sections.iter().any(|section| section.is_secret)
    }

    /// Whether the agent has written or received the version.
    pub fn is_party(&self, agent: &AgentId) -> bool {
        self.author == *agent || self.receiver.as_ref() == Some(agent)
    }
}

/// The version that loses its contents when a version with this number is stored.
pub const fn falls_out(number: u64) -> Option<u64> {
    match number.checked_sub(VERSIONS_MAX) {
        // Numbers begin at 1, so version 0 does not exist.
        None | Some(0) => None,
        old => old,
    }
}

/// A refusal about a version of a context.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// No recent version has the base of a delta.
    #[error(
        "section {section}: none of the latest {} versions has the base of the delta{}; send the whole section",
        BASES_MAX,
        known.map(|known| format!(", the latest one is {}", hex::encode(known))).unwrap_or_default()
    )]
    BaseUnknown {
        /// The name of the section with the delta.
        section: String,
        /// The digest of the latest section of this name. `None`: none of these versions has one.
        known: Option<[u8; 32]>,
    },
    /// The delta does not give what it states.
    #[error("section {section}: the delta is not valid: {problem}")]
    DeltaInvalid {
        /// The name of the section with the delta.
        section: String,
        /// What is wrong.
        problem: String,
        /// The digest of the result. `None`: there is no result.
        expected: Option<[u8; 32]>,
    },
    /// The version, or its section, does not exist, or has no content any more.
    #[error("task {task} has no {what}")]
    VersionUnknown {
        /// The task that the call names.
        task: TaskId,
        /// What is missing, for a person to read.
        what: String,
    },
}

impl Refusal for Rejection {
    fn code(&self) -> ErrorCode {
        match self {
            Self::BaseUnknown { .. } => ErrorCode::ContextBaseUnknown,
            Self::DeltaInvalid { .. } => ErrorCode::ContextDeltaInvalid,
            Self::VersionUnknown { .. } => ErrorCode::ContextVersionUnknown,
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::BaseUnknown { section, known } => {
                let known = known.map(|known| ("known_sha256", hex::encode(known)));
                [("section", section.clone())].into_iter().chain(known).collect()
            }
            Self::DeltaInvalid { section, expected, .. } => {
                let expected = expected.map(|expected| ("expected_sha256", hex::encode(expected)));
                [("section", section.clone())].into_iter().chain(expected).collect()
            }
            Self::VersionUnknown { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contents_of_the_latest_thousand_versions_stay() {
        assert_eq!([1, 1000, 1001, 2500].map(falls_out), [None, None, Some(1), Some(1500)]);
        let version = |number| Version {
            task: TaskId::parse("t").unwrap(),
            number,
            epoch: 1,
            author: AgentId::parse("a").unwrap(),
            receiver: None,
            handoff: None,
            message: MessageId::from_bytes([1; 16]),
            digest: [0; 32],
            created_at: Timestamp::default(),
            sections: Vec::new(),
        };
        for latest in [1, 999, 1000, 1001, 5000] {
            let gone: Vec<u64> = (1..=latest).filter(|number| !version(*number).has_contents(latest)).collect();
            assert_eq!(gone.last().copied(), falls_out(latest));
            assert_eq!(gone.len() as u64, latest.saturating_sub(VERSIONS_MAX));
        }
    }
}
