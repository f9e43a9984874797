//! The rejections of an append.

use std::time::Duration;

use super::WorkspaceId;
use crate::codes::{ErrorCode, Refusal};

/// A typed refusal of the machine. Nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The owner of the workspace does not exist.
    #[error("workspace {workspace} does not exist: a workspace exists with its task, plan, thread or run")]
    Unknown {
        /// The workspace that the append names.
        workspace: WorkspaceId,
    },
    /// The owner of the workspace has ended.
    #[error("workspace {workspace} is closed: its owner has ended, and it can only be read")]
    Closed {
        /// The workspace that the append names.
        workspace: WorkspaceId,
    },
    /// The last entry has another number than the append expects.
    #[error("the last entry of the workspace is {last}, not {expected}")]
    SequenceConflict {
        /// The number that the append expects.
        expected: u64,
        /// The number of the last entry.
        last: u64,
    },
    /// A quota of the workspace is used up.
    #[error("the workspace has reached its limit of {limit} {what}; its oldest entry expires in {retry_after:?}")]
    QuotaExceeded {
        /// The counted objects.
        what: &'static str,
        /// The value of the limit.
        limit: u64,
        /// The time until the oldest entry expires.
        retry_after: Duration,
    },
}

impl Refusal for Rejection {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown { .. } => ErrorCode::WorkspaceUnknown,
            Self::Closed { .. } => ErrorCode::WorkspaceClosed,
            Self::SequenceConflict { .. } => ErrorCode::SequenceConflict,
            Self::QuotaExceeded { .. } => ErrorCode::QuotaExceeded,
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Unknown { .. } | Self::Closed { .. } => Vec::new(),
            Self::SequenceConflict { last, .. } => vec![("last_sequence", last.to_string())],
            Self::QuotaExceeded { what, limit, .. } => {
                vec![("quota", (*what).to_owned()), ("limit", limit.to_string())]
            }
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::QuotaExceeded { retry_after, .. } => Some(*retry_after),
            Self::Unknown { .. } | Self::Closed { .. } | Self::SequenceConflict { .. } => None,
        }
    }
}
