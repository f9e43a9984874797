//! Errors of connecting to a broker and calling it.

use std::{collections::BTreeMap, error::Error, fmt, io, path::PathBuf, time::Duration};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{
    codes::{ErrorCode, Refusal},
    envelope::{FRAME_BYTES_MAX, keys::KeyFileError},
};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A file of the client certificate cannot be read.
    #[error("failed to read the client certificate or its key, {}: {source}", path.display())]
    Certificate {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The CA's file cannot be read.
    #[error("failed to read the CA {}: {source}; `baton dev` creates one in its data folder, tls/ca.pem", path.display())]
    Ca {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The server is not an address, or the CA's file holds no certificate.
    #[error(
        "failed to use the server {server:?} or its CA: {source}; the form of an address is HOST:PORT, for example 127.0.0.1:22866"
    )]
    Address {
        /// The server as configured.
        server: String,
        /// The error of the transport.
        source: tonic::transport::Error,
    },
    /// A connection without TLS to another machine, which is not allowed.
    #[error(
        "failed to use the server {server:?}: http:// has no TLS and is allowed only for 127.0.0.1, ::1 and localhost"
    )]
    PlaintextAfar {
        /// The server as configured.
        server: String,
    },
    /// The token has characters that gRPC metadata cannot carry.
    #[error("failed to use the token: it has characters that an HTTP header cannot carry")]
    Token,
    /// No broker answers at the address.
    #[error("no broker answers at {server}: {problem}; start one with `baton dev`, or name another with --server")]
    Unreachable {
        /// The server as configured.
        server: String,
        /// The innermost cause as text.
        problem: String,
    },
    /// The server presents a certificate that is not trusted.
    #[error("the certificate of {server} is not trusted: {problem}; name its CA with --ca")]
    Untrusted {
        /// The server as configured.
        server: String,
        /// The innermost cause as text.
        problem: String,
    },
    /// The server's certificate is not valid at this machine's time: it has expired, or the local clock is wrong.
    #[error(
        "the certificate of {server} is expired or not yet valid: {problem}; if the clock of this machine is wrong, set it (NTP), otherwise renew the certificate"
    )]
    Untimely {
        /// The server as configured.
        server: String,
        /// The innermost cause as text.
        problem: String,
    },
    /// The broker refused the call; or the client refused, before sending, a message over the limits of the schema.
    #[error("{0}")]
    Refused(Box<Refused>),
    /// The broker's answer violates the protocol.
    #[error("the broker's answer is not valid: {0}")]
    Answer(String),
    /// A signature or an envelope failed verification in the client.
    #[error("the broker's answer is not authentic: {problem}")]
    Unverified {
        /// The broker's name for the same failure, for example SIGNATURE_INVALID.
        reason: &'static str,
        /// The problem as text.
        problem: String,
    },
    /// A file cannot be read or written.
    #[error("failed to read or write {}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A setting of an agent cannot be used: the text names the variable, the file or the field, and what to do.
    #[error("{0}")]
    Settings(String),
    /// The agent's key file cannot be read or written.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// A section of a context is not there, or not as it was asked for.
    #[error("section {name} of the context {problem}")]
    Section {
        /// The name of the section.
        name: String,
        /// The problem, as the end of a sentence.
        problem: String,
    },
    /// The session has ended.
    #[error("the session has ended: {0}")]
    SessionEnded(String),
}

/// A refusal by the broker, or by this client in the broker's terms before anything was sent.
#[derive(Debug, Clone)]
pub struct Refused {
    /// The gRPC code of the refusal (SPEC 11).
    pub code: Code,
    /// The stable reason; empty if the status has none.
    pub reason: String,
    /// The refusal as text.
    pub message: String,
    /// Further details by name, as in the status's ErrorInfo.
    pub metadata: BTreeMap<String, String>,
    /// The paths of invalid fields, each with its problem.
    pub violations: Vec<(String, String)>,
    /// The delay after which a retry may succeed.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = format!("{:?}", self.code);
        write!(
            formatter,
            "refused: {} ({code}): {}",
            if self.reason.is_empty() { "?" } else { &self.reason },
            self.message
        )?;
        for (path, problem) in &self.violations {
            write!(formatter, "\n  {path}: {problem}")?;
        }
        if let Some(wait) = self.retry_after {
            write!(formatter, "\n  try again in {wait:?}")?;
        }
        Ok(())
    }
}

impl From<Refused> for ClientError {
    fn from(refused: Refused) -> Self {
        Self::Refused(Box::new(refused))
    }
}

impl ClientError {
    /// The stable reason of a refusal or of a failed verification.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Refused(refused) => Some(&refused.reason),
            Self::Unverified { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// The delay after which the broker suggests a retry.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refused) => refused.retry_after,
            _ => None,
        }
    }

    pub(super) fn unverified(problem: impl Into<String>) -> Self {
        Self::Unverified { reason: "SIGNATURE_INVALID", problem: problem.into() }
    }

    /// Whether a retry may succeed, possibly over a new connection.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::SessionEnded(_) => true,
            Self::Refused(refused) => {
                // An invalid token passes too, because the next session gets a new one.
                matches!(refused.code, Code::Unavailable | Code::ResourceExhausted) || refused.reason == "TOKEN_INVALID"
            }
            _ => false,
        }
    }

    pub(super) fn connecting(server: &str, error: &(dyn Error + 'static)) -> Self {
        let problem = innermost(error);
        let server = server.to_owned();
        // The transport does not expose the TLS error as a type, so its text decides.
        if problem.contains("certificate not valid yet") || problem.contains("certificate expired") {
            Self::Untimely { server, problem }
        } else if problem.contains("certificate") || problem.contains("UnknownIssuer") {
            Self::Untrusted { server, problem }
        } else {
            Self::Unreachable { server, problem }
        }
    }

    pub(super) fn of(server: &str, status: &Status) -> Self {
        let details = status.get_error_details();
        // Each refusal by a broker has a reason. A status without one comes from the connection, possibly in terms of
        // HTTP/2.
        let is_of_connection =
            matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled);
        if details.error_info().is_none() && is_of_connection {
            return match status.source() {
                Some(source) if is_too_large(source) => {
                    let text =
                        format!("the gRPC message has more than {FRAME_BYTES_MAX} bytes, the limit of a gRPC message");
                    let mut refused = Refused::of_client(ErrorCode::PayloadTooLarge, text);
                    refused.metadata.insert("frame_bytes_max".to_owned(), FRAME_BYTES_MAX.to_string());
                    refused.into()
                }
                Some(source) => Self::connecting(server, source),
                None => Self::Unreachable { server: server.to_owned(), problem: status.message().to_owned() },
            };
        }
        Self::Refused(Box::new(Refused::of(status, &details)))
    }

    /// The error in an answer on a session or a stream.
    pub fn of_message(message: &crate::proto::Status) -> Self {
        use prost::Message as _;
        let code = Code::from_i32(message.code);
        let status = Status::with_details(code, message.message.clone(), message.encode_to_vec().into());
        Self::Refused(Box::new(Refused::of(&status, &status.get_error_details())))
    }
}

impl Refused {
    /// The refusal that the broker would give for this error.
    pub(super) fn before_sending(error: &impl Refusal) -> Self {
        let violation = |violation: &crate::codes::FieldViolation| (violation.path.clone(), violation.problem.clone());
        Self {
            metadata: error.metadata().into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            violations: error.violations().iter().map(violation).collect(),
            ..Self::of_client(error.code(), error.to_string())
        }
    }

    /// A refusal by this client, with this code and text.
    pub(super) fn of_client(code: ErrorCode, message: String) -> Self {
        Self {
            code: Code::from_i32(code.category().grpc_code()),
            reason: code.name().to_owned(),
            message,
            metadata: BTreeMap::new(),
            violations: Vec::new(),
            retry_after: None,
        }
    }

    fn of(status: &Status, details: &ErrorDetails) -> Self {
        let info = details.error_info();
        let violations = details.bad_request().map(|bad| bad.field_violations.clone()).unwrap_or_default();
        Self {
            code: status.code(),
            reason: info.map(|info| info.reason.clone()).unwrap_or_default(),
            message: status.message().to_owned(),
            metadata: info.map(|info| info.metadata.clone().into_iter().collect()).unwrap_or_default(),
            violations: violations.into_iter().map(|violation| (violation.field, violation.description)).collect(),
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
        }
    }
}

/// Whether the stub itself has ended the call, because the request exceeds its limit. The transport then shows only an
/// internal error of the sending side.
fn is_too_large(error: &(dyn Error + 'static)) -> bool {
    innermost(error).contains("sent by user: unexpected internal error")
}

fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_connection_says_when_it_breaks_passes_and_what_a_broker_says_need_not() {
        let passes = |status: Status| ClientError::of("127.0.0.1:1", &status).is_passing();
        assert!(passes(Status::cancelled("operation was canceled")), "a call that was not yet sent");
        assert!(passes(Status::internal("h2 protocol error")));
        assert!(!passes(Status::deadline_exceeded("the deadline of the call is over")));
        let details = ErrorDetails::with_error_info("INTERNAL", "baton", []);
        assert!(!passes(Status::with_error_details(Code::Internal, "a fault of the broker", details)));
    }
}
