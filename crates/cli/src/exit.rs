//! Exit codes, which all commands share, and the texts of failures: `refused: CODE: text` if the broker refused, otherwise
//! `failed: CODE: text`. `baton --help` and docs/configuration.md list the exit codes, and the page also the codes.

use std::{borrow::Cow, fmt, io, path::Path};

use super::output;
use baton_client::{ClientError, Refused, envelope::keys::KeyFileError};
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
/// No broker answers, or no remote agent, or its certificate cannot be trusted.
pub const UNREACHABLE: u8 = 9;

/// The codes of failures by exit code. A refusal has the code of the broker instead (docs/errors.md), and so has an
/// answer that does not verify.
pub const CODES: [(u8, &[&str]); 9] = [
    (
        FAILED,
        &[
            "COMMAND_FAILED",
            "NO_MAIL",
            "DATA_INVALID",
            "LOG_INVALID",
            "CASES_FAILED",
            "ANSWER_INVALID",
            "SESSION_ENDED",
            "NOT_READY",
            "DISK_FULL",
            "WEBHOOK_EXISTS",
            "WEBHOOK_UNKNOWN",
            "CARD_INVALID",
            "CARD_UNSUPPORTED",
        ],
    ),
    (USAGE, &["USAGE_INVALID", "ID_AMBIGUOUS"]),
    (CONFIGURATION, &["CONFIGURATION_INVALID", "FILE_UNUSABLE"]),
    (DATA_IN_USE, &["DATA_IN_USE"]),
    (DATA_VERSION, &["DATA_VERSION"]),
    (DATA_DAMAGED, &["DATA_DAMAGED"]),
    (PORT_IN_USE, &["PORT_IN_USE"]),
    (REFUSED, &["REFUSED"]),
    (UNREACHABLE, &["NO_BROKER", "CERTIFICATE_UNTRUSTED", "CERTIFICATE_UNTIMELY", "REMOTE_UNREACHABLE"]),
];

/// The first code of an exit code.
fn first_of(code: u8) -> &'static str {
    CODES.iter().find(|(other, _)| *other == code).map_or("COMMAND_FAILED", |(_, names)| names[0])
}

/// Why a command failed: its exit code, its code and a text.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    name: Cow<'static, str>,
    message: String,
}

impl Failure {
    /// A failure with an exit code of this module and a text.
    pub fn new(code: u8, message: String) -> Self {
        Self { code, name: first_of(code).into(), message }
    }

    /// The same failure with this code.
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    /// The text without the code.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// The same failure with a further line: what to look at.
    pub(super) fn with_advice(mut self, advice: &str) -> Self {
        self.message = format!("{}\n  {advice}", self.message);
        self
    }

    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::new(FAILED, message.into())
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message.into())
    }

    pub(super) fn damaged(message: impl Into<String>) -> Self {
        Self::new(DATA_DAMAGED, message.into())
    }

    pub(super) fn port_in_use(message: impl Into<String>) -> Self {
        Self::new(PORT_IN_USE, message.into())
    }

    /// A refusal by this program in the place of the broker. `name`: the broker's code for the same problem.
    pub(super) fn refused(name: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(REFUSED, message.into()).named(name)
    }

    pub(super) fn unreachable(message: impl Into<String>) -> Self {
        Self::new(UNREACHABLE, message.into())
    }

    pub(super) fn file(path: &Path, problem: impl fmt::Display) -> Self {
        Self::new(CONFIGURATION, format!("failed to use {}: {problem}", path.display())).named("FILE_UNUSABLE")
    }

    /// A failure to write. A full disk is no fault of the path that was named.
    pub(super) fn writing(path: &Path, problem: &io::Error) -> Self {
        match problem.kind() {
            io::ErrorKind::StorageFull => Self::disk_full(format!("failed to write {}: {problem}", path.display())),
            _ => Self::file(path, problem),
        }
    }

    fn disk_full(message: String) -> Self {
        Self::failed(message).named("DISK_FULL").with_advice("make room on that disk, and run the command again")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.code == REFUSED { "refused" } else { "failed" };
        write!(formatter, "{kind}: {}: {}", self.name, self.message)
    }
}

impl From<KeyFileError> for Failure {
    fn from(error: KeyFileError) -> Self {
        Self::new(CONFIGURATION, error.to_string()).named("FILE_UNUSABLE")
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let (code, name) = match &error {
            ClientError::Ca { .. } | ClientError::Certificate { .. } | ClientError::File { .. } => {
                (CONFIGURATION, "FILE_UNUSABLE")
            }
            ClientError::Key(_) => (CONFIGURATION, "FILE_UNUSABLE"),
            ClientError::Address { .. }
            | ClientError::PlaintextAfar { .. }
            | ClientError::Settings(_)
            | ClientError::Token => (CONFIGURATION, "CONFIGURATION_INVALID"),
            ClientError::Unreachable { .. } => (UNREACHABLE, "NO_BROKER"),
            ClientError::Untrusted { .. } => (UNREACHABLE, "CERTIFICATE_UNTRUSTED"),
            ClientError::Untimely { .. } => (UNREACHABLE, "CERTIFICATE_UNTIMELY"),
            ClientError::Answer(_) | ClientError::Section { .. } => (FAILED, "ANSWER_INVALID"),
            ClientError::SessionEnded(_) => (FAILED, "SESSION_ENDED"),
            ClientError::Unverified { reason, .. } => (FAILED, *reason),
            ClientError::Refused(refused) => return of_refusal(refused),
        };
        Self::new(code, output::line(&error.to_string()).into_owned()).named(name)
    }
}

/// The error as text for the command line, without advice.
pub(super) fn describe(error: &ClientError) -> String {
    match error {
        ClientError::Refused(refused) => without_advice(refused).to_string(),
        _ => output::line(&error.to_string()).into_owned(),
    }
}

/// The failure of a refused call, with the flag or the command that helps.
fn of_refusal(refused: &Refused) -> Failure {
    let failure = without_advice(refused);
    match advice(&refused.reason) {
        Some(advice) => failure.with_advice(advice),
        None => failure,
    }
}

/// The failure of a refused call. Each text from the broker stays on one line.
fn without_advice(refused: &Refused) -> Failure {
    // Escaped part by part: the whole text has line feeds of its own, which must stay.
    let line = |text: &str| output::line(text).into_owned();
    let mut message = line(&refused.message);
    for (path, problem) in &refused.violations {
        message.push_str(&format!("\n  {}: {}", line(path), line(problem)));
    }
    if let Some(wait) = refused.retry_after {
        message.push_str(&format!("\n  try again in {wait:?}"));
    }
    // A status without a code comes from a proxy. Its gRPC code is then all that is known.
    let name = if refused.reason.is_empty() { format!("{:?}", refused.code) } else { line(&refused.reason) };
    Failure::refused(name, message)
}

/// What helps against a refusal with this code, where its text does not say it.
fn advice(code: &str) -> Option<&'static str> {
    match code {
        "IDENTITY_MISSING" => Some(
            "authenticate with --token TOKEN, the token of an operator or of an agent (`baton token --id AGENT --key FILE` prints \
             one), or with a client certificate, --cert FILE --cert-key FILE. A new agent registers with --invitation",
        ),
        "TOKEN_INVALID" => Some(
            "the token came from --token, BATON_TOKEN, a token file or ./baton-data/operator.token. Tokens of agents end when the \
             broker restarts: `baton token --id AGENT --key FILE` prints a new one",
        ),
        "TLS_REQUIRED" => Some("give --server as HOST:PORT, without http://, and the CA of the broker with --ca"),
        "NOT_OWNER" | "STALE_EPOCH" | "EPOCH_AHEAD" => Some("`baton task show TASK` shows the owner and the epoch"),
        "HANDOFF_STATE" | "HANDOFF_FINAL" | "NOT_CANDIDATE" => {
            Some("`baton handoff show TASK` shows the state, the candidate and whose turn it is")
        }
        "RECEIVER_UNKNOWN" | "AGENT_UNKNOWN" => Some("`baton agent list` lists the registered agents"),
        "DEAD_LETTER_UNKNOWN" | "NOTHING_MATCHES" => Some("`baton dlq list --state all` lists the dead letters"),
        "AGENT_BUSY" => Some("as an operator: `baton agent deregister AGENT --force`"),
        "TIMESTAMP_OUTSIDE_WINDOW" => Some("the clocks of this machine and the broker differ: synchronise them (NTP)"),
        _ => None,
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match is_full(&error) {
            true => Self::disk_full(error.to_string()),
            false => Self::new(of_store(&error), error.to_string()),
        }
    }
}

/// The exit code of a store that cannot be opened.
pub fn of_store(error: &OpenError) -> u8 {
    match error {
        error if is_full(error) => FAILED,
        OpenError::InUse { .. } => DATA_IN_USE,
        OpenError::Format { .. } => DATA_VERSION,
        OpenError::LostWrites { .. }
        | OpenError::Damaged { .. }
        | OpenError::Engine { .. }
        | OpenError::Unfinished { .. }
        | OpenError::Conversion { .. } => DATA_DAMAGED,
        OpenError::NotAStore { .. }
        | OpenError::File { .. }
        | OpenError::OfCluster { .. }
        | OpenError::NotOfCluster { .. }
        | OpenError::Founding { .. }
        | OpenError::OtherCluster { .. } => CONFIGURATION,
        OpenError::Deposed { .. } | OpenError::ReplicaFailed { .. } | OpenError::NotFlushed { .. } => FAILED,
    }
}

/// Whether a file of the store could not be written because the disk is full.
fn is_full(error: &OpenError) -> bool {
    matches!(error, OpenError::File { source, .. } if source.kind() == io::ErrorKind::StorageFull)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_no_wrong_path() {
        for (kind, code, name) in [
            (io::ErrorKind::StorageFull, FAILED, "failed: DISK_FULL: "),
            (io::ErrorKind::PermissionDenied, CONFIGURATION, "failed: "),
        ] {
            let of_store = OpenError::File { path: "store".into(), source: kind.into() };
            for failure in [Failure::from(of_store), Failure::writing(Path::new("copy"), &kind.into())] {
                assert_eq!(failure.code, code, "{failure}");
                assert!(failure.to_string().starts_with(name), "{failure}");
            }
        }
    }

    #[test]
    fn a_failure_begins_with_its_kind_and_its_code() {
        assert_eq!(Failure::failed("no").to_string(), "failed: COMMAND_FAILED: no");
        assert_eq!(Failure::usage("no").to_string(), "failed: USAGE_INVALID: no");
        assert_eq!(Failure::refused("STALE_EPOCH", "no").to_string(), "refused: STALE_EPOCH: no");
        let unreachable = ClientError::Unreachable { server: "127.0.0.1:1".into(), problem: "closed".into() };
        let unreachable = Failure::from(unreachable);
        assert_eq!(unreachable.code, UNREACHABLE);
        assert!(unreachable.to_string().starts_with("failed: NO_BROKER: no broker answers at 127.0.0.1:1"));
    }
}
