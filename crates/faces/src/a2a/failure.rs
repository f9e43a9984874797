//! Why an A2A request did not happen: the errors of the protocol, and those of the broker under its own codes.

use a2a::error_code::{
    CONTENT_TYPE_NOT_SUPPORTED, INTERNAL_ERROR, INVALID_PARAMS, PUSH_NOTIFICATION_NOT_SUPPORTED, TASK_NOT_CANCELABLE,
    TASK_NOT_FOUND, UNSUPPORTED_OPERATION, VERSION_NOT_SUPPORTED,
};
use baton_client::codes::{Category, ErrorCode};
use serde_json::{Value, json};

use crate::ActError;

/// The domain of the protocol's own reasons.
const A2A: &str = "a2a-protocol.org";
/// The domain of the broker's codes.
const BATON: &str = "baton";

/// A request that did not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The code of JSON-RPC.
    pub(crate) code: i32,
    /// The stable reason: of the protocol, or the broker's code.
    pub(crate) reason: String,
    domain: &'static str,
    pub(crate) message: String,
    /// The path of the wrong field.
    field: Option<String>,
    /// The seconds to wait before another try.
    pub(crate) retry_after_seconds: Option<u64>,
}

impl Failure {
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        let reason = a2a::error_reason(code).to_owned();
        Self { code, reason, domain: A2A, message: message.into(), field: None, retry_after_seconds: None }
    }

    /// A field has a wrong value.
    pub(crate) fn invalid(field: &str, problem: impl std::fmt::Display) -> Self {
        Self { field: Some(field.to_owned()), ..Self::new(INVALID_PARAMS, format!("{field}: {problem}")) }
    }

    /// An unknown task, or one of another caller: the same bytes.
    pub(crate) fn task_not_found() -> Self {
        Self::new(TASK_NOT_FOUND, "there is no such task of this caller here")
    }

    pub(crate) fn not_cancelable() -> Self {
        Self::new(TASK_NOT_CANCELABLE, "the task has ended")
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(UNSUPPORTED_OPERATION, message)
    }

    pub(crate) fn content_type(message: impl Into<String>) -> Self {
        Self::new(CONTENT_TYPE_NOT_SUPPORTED, message)
    }

    pub(crate) fn no_push() -> Self {
        Self::new(PUSH_NOTIFICATION_NOT_SUPPORTED, "push notifications are not supported; subscribe, or get the task")
    }

    pub(crate) fn version(version: &str) -> Self {
        let shown = crate::text::clean(version, 32);
        Self::new(VERSION_NOT_SUPPORTED, format!("A2A-Version is {shown:?}, and {} is spoken here", super::VERSION))
    }

    /// The details of an error, each with its type.
    pub(crate) fn details(&self) -> Value {
        let mut details = Vec::new();
        if let Some(field) = &self.field {
            let violation = json!({"field": field, "description": self.message});
            details.push(json!({"@type": a2a::BAD_REQUEST_TYPE, "fieldViolations": [violation]}));
        }
        let mut info = json!({"@type": a2a::ERROR_INFO_TYPE, "reason": self.reason, "domain": self.domain});
        if let Some(seconds) = self.retry_after_seconds {
            info["metadata"] = json!({"retryAfterSeconds": seconds.to_string()});
        }
        details.push(info);
        details.into()
    }
}

impl From<ActError> for Failure {
    fn from(error: ActError) -> Self {
        let category = ErrorCode::ALL.iter().find(|code| code.name() == error.reason).map(|code| code.category());
        let is_of_message = matches!(error.reason.as_str(), "ARGUMENTS_INVALID" | "PAYLOAD_TOO_LARGE")
            || category == Some(Category::InvalidArgument);
        let code = if is_of_message { INVALID_PARAMS } else { INTERNAL_ERROR };
        Self {
            code,
            domain: BATON,
            message: error.text,
            field: is_of_message.then(|| "message".to_owned()),
            retry_after_seconds: error.retry_after_seconds,
            reason: error.reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_field_or_the_code_of_the_broker() {
        let invalid = Failure::invalid("message.parts", "is empty");
        assert_eq!((invalid.code, invalid.reason.as_str()), (-32602, "INVALID_PARAMS"));
        let details = invalid.details();
        assert_eq!(details[0]["fieldViolations"][0]["field"], "message.parts");
        assert_eq!((&details[1]["reason"], &details[1]["domain"]), (&json!("INVALID_PARAMS"), &json!(A2A)));
        let busy = ActError { retry_after_seconds: Some(7), ..ActError::new("LIMIT_EXCEEDED", "later") };
        let failure = Failure::from(busy);
        assert_eq!(failure.code, -32603);
        let details = failure.details();
        assert_eq!((&details[0]["reason"], &details[0]["domain"]), (&json!("LIMIT_EXCEEDED"), &json!(BATON)));
        assert_eq!(details[0]["metadata"]["retryAfterSeconds"], "7");
        assert_eq!(Failure::from(ActError::new("FIELD_INVALID", "no")).code, -32602);
    }
}
