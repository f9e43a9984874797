//! The refusals that the scripted broker gives, with the reasons of `docs/errors.md`.

use std::{collections::HashMap, time::Duration};

use baton_client::proto;
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// A refusal: code, reason, and optional details.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub code: Code,
    pub reason: &'static str,
    pub metadata: Option<(&'static str, &'static str)>,
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// A refusal with only a code and a reason.
    pub(crate) const fn new(code: Code, reason: &'static str) -> Self {
        Self { code, reason, metadata: None, retry_after: None }
    }

    /// The refusal as a status of a call.
    pub(crate) fn status(self) -> Status {
        let metadata: HashMap<_, _> =
            self.metadata.map(|(name, value)| (name.into(), value.into())).into_iter().collect();
        let mut details = ErrorDetails::with_error_info(self.reason, "baton", metadata);
        if self.retry_after.is_some() {
            details.set_retry_info(self.retry_after);
        }
        Status::with_error_details(self.code, format!("refused by the script: {}", self.reason), details)
    }

    /// The refusal as an answer on a session.
    pub(crate) fn message(self) -> proto::Status {
        let status = self.status();
        proto::Status::decode(status.details()).expect("the details of a status are this message, encoded")
    }
}
