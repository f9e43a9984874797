//! The one map from errors to gRPC status (SPEC 11). No other module builds a [`Status`].

use std::{collections::HashMap, time::Duration};

use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use baton_envelope::proto;
use baton_protocol::codes::Refusal;

/// The domain of every `google.rpc.ErrorInfo` of the broker.
pub const DOMAIN: &str = "baton";

/// The most bytes of the violations that a status lists. A status travels in headers, of which gRPC for Java and for C take
/// 8 KiB. The details are in base64.
const VIOLATIONS_BYTES_MAX: usize = 2 * 1024;
/// The most bytes of the message of a status. It is in the headers twice: in base64, and as text that can take three times its
/// bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

/// The status of a refusal: code, message and ErrorInfo, with BadRequest and RetryInfo where they apply.
pub fn of(refusal: &dyn Refusal) -> Status {
    let code = refusal.code();
    let metadata: HashMap<String, String> =
        refusal.metadata().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let mut details = ErrorDetails::with_error_info(code.name(), DOMAIN, metadata);
    let violations = refusal.violations();
    let mut left = VIOLATIONS_BYTES_MAX;
    for (place, violation) in violations.iter().enumerate() {
        let bytes = violation.path.len() + violation.problem.len();
        if bytes <= left {
            details.add_bad_request_violation(&violation.path, &violation.problem);
        } else if place == 0 {
            let room = left.saturating_sub(violation.path.len());
            details.add_bad_request_violation(&violation.path, shortened(violation.problem.clone(), room));
        } else {
            let more = violations.len() - place;
            details.add_bad_request_violation(&violation.path, format!("and {more} more"));
            break;
        }
        left = left.saturating_sub(bytes);
    }
    if let Some(retry_after) = refusal.retry_after() {
        details.set_retry_info(Some(retry_after));
    }
    let message = shortened(refusal.to_string(), MESSAGE_BYTES_MAX);
    Status::with_error_details(Code::from_i32(code.category().grpc_code()), message, details)
}

/// The first bytes of a text, with an ellipsis if it has more.
fn shortened(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.push('…');
    }
    text
}

/// The status of a refusal as a message, for answers on a session.
pub fn message_of(refusal: &dyn Refusal) -> proto::Status {
    let status = of(refusal);
    // The encoded details of a status are this message.
    proto::Status::decode(status.details()).unwrap_or_else(|_| proto::Status {
        code: status.code() as i32,
        message: status.message().to_owned(),
        details: Vec::new(),
    })
}

/// The status of a call over its deadline.
pub fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("the deadline of the call is over; what it asked for may still happen")
}

/// The time that a client is told to wait before it reconnects to a broker that stops.
pub const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// The time that a client is told to wait when all clients together exceed a bound.
pub const RETRY_OVERUSE_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::fmt;

    use baton_envelope::{envelope::EnvelopeError, proto::v1};
    use baton_protocol::codes::{ErrorCode, FieldViolation};

    use super::*;

    #[derive(Debug)]
    struct ShuttingDown;

    impl fmt::Display for ShuttingDown {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("the broker is shutting down")
        }
    }

    impl Refusal for ShuttingDown {
        fn code(&self) -> ErrorCode {
            ErrorCode::ShuttingDown
        }

        fn retry_after(&self) -> Option<Duration> {
            Some(RECONNECT_AFTER)
        }
    }

    #[test]
    fn the_codes_are_those_of_the_schema() {
        for code in ErrorCode::ALL {
            let of_schema = v1::ErrorCode::try_from(code.number()).expect("the schema has the number");
            assert_eq!(of_schema.as_str_name(), format!("ERROR_CODE_{}", code.name()));
        }
        let numbers = (0..1000).filter(|number| v1::ErrorCode::try_from(*number).is_ok()).count();
        assert_eq!(numbers, ErrorCode::ALL.len() + 1, "the schema has no other code than ours and the unspecified one");
    }

    #[test]
    fn every_code_has_a_section_in_the_docs() {
        let docs = include_str!("../../../docs/errors.md");
        for code in ErrorCode::ALL {
            assert!(docs.contains(&format!("\n## {}\n", code.name())), "docs/errors.md lacks {}", code.name());
        }
    }

    #[test]
    fn a_status_says_reason_fields_and_when_to_retry() {
        let violations = vec![FieldViolation { path: "envelope.task_id".into(), problem: "must not be empty".into() }];
        let status = of(&EnvelopeError::Fields { violations });
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "envelope.task_id must not be empty"));
        let details = status.get_error_details();
        assert_eq!(details.error_info().unwrap().reason, "FIELD_INVALID");
        assert_eq!(details.error_info().unwrap().domain, "baton");
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, "envelope.task_id");
        let status = of(&ShuttingDown);
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.get_error_details().retry_info().is_some());
        assert_eq!(message_of(&ShuttingDown).code, Code::Unavailable as i32);
        assert_eq!(message_of(&ShuttingDown).details.len(), 2);
    }

    #[test]
    fn a_status_fits_the_headers_of_every_client_and_counts_what_it_leaves_out() {
        let violation = |number| FieldViolation { path: format!("list[{number:03}]"), problem: "é".repeat(100) };
        let of_many = |violations: Vec<FieldViolation>| {
            let status = of(&EnvelopeError::Fields { violations });
            let mut headers = http::HeaderMap::new();
            status.add_header(&mut headers).unwrap();
            // As HTTP/2 counts a list of headers.
            let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
            assert!(bytes < 8 * 1024, "{bytes}");
            let listed = status.get_error_details().bad_request().unwrap().field_violations.clone();
            (status.message().to_owned(), listed)
        };
        let (message, listed) = of_many((0..1000).map(violation).collect());
        assert!(message.ends_with("é…") && message.len() <= MESSAGE_BYTES_MAX + '…'.len_utf8());
        let last = listed.last().unwrap();
        assert_eq!((listed.len(), last.field.as_str(), last.description.as_str()), (10, "list[009]", "and 991 more"));
        let (_, listed) = of_many(vec![FieldViolation { path: "list".into(), problem: "é".repeat(10_000) }]);
        assert!(listed[0].description.ends_with("é…"));
    }
}
