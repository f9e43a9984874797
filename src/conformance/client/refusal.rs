//! What a broker says when it refuses: the words of `docs/errors.md`, chosen by the case.

use std::{collections::HashMap, time::Duration};

use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// A refusal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub code: Code,
    pub reason: &'static str,
    pub metadata: Option<(&'static str, &'static str)>,
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// With a stable reason alone.
    pub const fn new(code: Code, reason: &'static str) -> Self {
        Self { code, reason, metadata: None, retry_after: None }
    }

    /// As the answer to a call.
    pub fn status(self) -> Status {
        let metadata: HashMap<_, _> =
            self.metadata.map(|(name, value)| (name.into(), value.into())).into_iter().collect();
        let mut details = ErrorDetails::with_error_info(self.reason, "baton", metadata);
        if self.retry_after.is_some() {
            details.set_retry_info(self.retry_after);
        }
        Status::with_error_details(self.code, format!("refused by the script: {}", self.reason), details)
    }

    /// As an answer on a session.
    pub fn message(self) -> tonic_types::pb::Status {
        let status = self.status();
        tonic_types::pb::Status::decode(status.details()).expect("the details of a status are this message, encoded")
    }
}
