//! Exit codes, which all commands share, and the texts of failures. `baton --help` and docs/configuration.md list the
//! codes.

use std::{fmt, io, path::Path};

use super::output;
use crate::{
    client::{ClientError, Refused},
    config::ConfigError,
    envelope::keys::KeyFileError,
    server::{FolderError, ServerError, StartError},
    store::OpenError,
    wire::edge::BindError,
};

pub(super) const OK: u8 = 0;
pub(super) const FAILED: u8 = 1;
const USAGE: u8 = 2;
const CONFIGURATION: u8 = 3;
const DATA_IN_USE: u8 = 4;
const DATA_VERSION: u8 = 5;
const DATA_DAMAGED: u8 = 6;
const PORT_IN_USE: u8 = 7;
const REFUSED: u8 = 8;
pub(super) const UNREACHABLE: u8 = 9;
const NOT_CONFORMANT: u8 = 10;

/// Why a command failed, and its exit code.
#[derive(Debug)]
pub struct Failure {
    pub(super) code: u8,
    message: String,
}

impl Failure {
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self { code: FAILED, message: message.into() }
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, message: message.into() }
    }

    pub(super) fn damaged(message: impl Into<String>) -> Self {
        Self { code: DATA_DAMAGED, message: message.into() }
    }

    /// The tested program breaks a rule.
    pub(super) fn not_conformant(message: impl Into<String>) -> Self {
        Self { code: NOT_CONFORMANT, message: message.into() }
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

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self { code: CONFIGURATION, message: error.to_string() }
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

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let code = match &error {
            ServerError::Folder(FolderError::Store(error)) | ServerError::Store(error) => of_store(error),
            ServerError::Folder(FolderError::File { .. } | FolderError::Shared { .. } | FolderError::Key(_))
            | ServerError::DevelopmentCa(_)
            | ServerError::Tls(_)
            | ServerError::OperatorKeys { .. }
            | ServerError::Traces(_)
            | ServerError::Bucket(_)
            | ServerError::Bind(BindError::Other { .. }) => CONFIGURATION,
            ServerError::MetricsListen { problem, .. } => match problem.kind() {
                io::ErrorKind::AddrInUse => PORT_IN_USE,
                _ => CONFIGURATION,
            },
            ServerError::Bind(BindError::PortInUse { .. }) => PORT_IN_USE,
            ServerError::Start(StartError::Store(_)) => DATA_DAMAGED,
            ServerError::Start(StartError::Thread(_)) | ServerError::Reflection(_) | ServerError::Engine => FAILED,
        };
        Self { code, message: error.to_string() }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self { code: of_store(&error), message: error.to_string() }
    }
}

fn of_store(error: &OpenError) -> u8 {
    match error {
        OpenError::InUse { .. } => DATA_IN_USE,
        OpenError::Format { .. } => DATA_VERSION,
        OpenError::LostWrites { .. } | OpenError::Damaged { .. } | OpenError::Engine { .. } => DATA_DAMAGED,
        OpenError::NotAStore { .. } | OpenError::File { .. } => CONFIGURATION,
    }
}
