//! Exit codes, which all commands share, and the texts of failures. `baton --help` and docs/configuration.md list the
//! codes.

use std::{fmt, io, path::Path};

use super::output;
use baton_client::{
    envelope::keys::KeyFileError,
    {ClientError, Refused},
};
use baton_store::OpenError;

/// Success.
pub const OK: u8 = 0;
/// The command failed.
pub const FAILED: u8 = 1;
/// Wrong usage.
pub const USAGE: u8 = 2;
/// The configuration or a named file cannot be used.
pub const CONFIGURATION: u8 = 3;
/// Another broker uses the data folder.
pub const DATA_IN_USE: u8 = 4;
/// The data folder has the format of another version.
pub const DATA_VERSION: u8 = 5;
/// The store is damaged.
pub const DATA_DAMAGED: u8 = 6;
/// The port is in use.
pub const PORT_IN_USE: u8 = 7;
/// The broker refused the request.
pub const REFUSED: u8 = 8;
/// No broker answers, or its certificate cannot be trusted.
pub const UNREACHABLE: u8 = 9;

/// Why a command failed, and its exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    message: String,
}

impl Failure {
    /// A failure with an exit code of this module and a text.
    pub fn new(code: u8, message: String) -> Self {
        Self { code, message }
    }

    /// The same failure with a further line: what to look at.
    pub(super) fn with_advice(mut self, advice: &str) -> Self {
        self.message = format!("{}\n  {advice}", self.message);
        self
    }

    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self { code: FAILED, message: message.into() }
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, message: message.into() }
    }

    pub(super) fn damaged(message: impl Into<String>) -> Self {
        Self { code: DATA_DAMAGED, message: message.into() }
    }

    pub(super) fn port_in_use(message: impl Into<String>) -> Self {
        Self { code: PORT_IN_USE, message: message.into() }
    }

    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self { code: REFUSED, message: message.into() }
    }

    pub(super) fn file(path: &Path, problem: impl fmt::Display) -> Self {
        Self { code: CONFIGURATION, message: format!("failed to use {}: {problem}", path.display()) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl From<KeyFileError> for Failure {
    fn from(error: KeyFileError) -> Self {
        Self { code: CONFIGURATION, message: error.to_string() }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Ca { .. }
            | ClientError::Certificate { .. }
            | ClientError::Address { .. }
            | ClientError::PlaintextAfar { .. }
            | ClientError::File { .. }
            | ClientError::Token => CONFIGURATION,
            ClientError::Unreachable { .. } | ClientError::Untrusted { .. } | ClientError::Untimely { .. } => {
                UNREACHABLE
            }
            ClientError::Refused(_) => REFUSED,
            ClientError::Answer(_) | ClientError::Unverified { .. } | ClientError::SessionEnded(_) => FAILED,
        };
        Self { code, message: describe(&error) }
    }
}

/// The error as text for the command line. Each text from the broker stays on one line, and the advice names the flag
/// that helps.
pub(super) fn describe(error: &ClientError) -> String {
    let ClientError::Refused(refused) = error else { return output::line(&error.to_string()).into_owned() };
    // Escaped part by part: the whole text has line feeds of its own, which must stay.
    let line = |text: &str| output::line(text).into_owned();
    let mut shown = Refused::clone(refused);
    shown.reason = line(&shown.reason);
    shown.message = line(&shown.message);
    shown.violations = shown.violations.iter().map(|(path, problem)| (line(path), line(problem))).collect();
    let advice = match refused.reason.as_str() {
        "IDENTITY_MISSING" => {
            "authenticate with --token TOKEN, the token of an operator or of an agent (`baton token --id AGENT --key FILE` prints \
             one), or with a client certificate, --cert FILE --cert-key FILE"
        }
        "TOKEN_INVALID" => {
            "the token came from --token, BATON_TOKEN or ./baton-data/operator.token. Tokens of agents end when the broker \
             restarts: `baton token --id AGENT --key FILE` prints a new one"
        }
        "TIMESTAMP_OUTSIDE_WINDOW" => "the clocks of this machine and the broker differ: synchronise them (NTP)",
        _ => return shown.to_string(),
    };
    format!("{shown}\n  {advice}")
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self { code: of_store(&error), message: error.to_string() }
    }
}

/// The exit code of a store that cannot be opened.
pub fn of_store(error: &OpenError) -> u8 {
    match error {
        OpenError::InUse { .. } => DATA_IN_USE,
        OpenError::Format { .. } => DATA_VERSION,
        OpenError::LostWrites { .. } | OpenError::Damaged { .. } | OpenError::Engine { .. } => DATA_DAMAGED,
        OpenError::NotAStore { .. } | OpenError::File { .. } => CONFIGURATION,
    }
}
