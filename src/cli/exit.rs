//! Exit codes: the same for every command; `baton --help` lists them.

use std::{fmt, io, path::Path};

use crate::{
    client::ClientError,
    config::ConfigError,
    envelope::keys::KeyFileError,
    server::{FolderError, ServerError},
    store::OpenError,
    wire::grpc::listener::BindError,
};

pub(super) const OK: u8 = 0;
const FAILED: u8 = 1;
const USAGE: u8 = 2;
const CONFIGURATION: u8 = 3;
const DATA_IN_USE: u8 = 4;
const DATA_VERSION: u8 = 5;
const DATA_DAMAGED: u8 = 6;
const PORT_IN_USE: u8 = 7;
const REFUSED: u8 = 8;
const UNREACHABLE: u8 = 9;
const NOT_CONFORMANT: u8 = 10;

/// Why a command did not do what it should, and the exit code for it.
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

    /// What was tried does not keep a rule.
    pub(super) fn not_conformant(message: impl Into<String>) -> Self {
        Self { code: NOT_CONFORMANT, message: message.into() }
    }

    /// Whether trying again later can help.
    pub(super) fn may_pass(&self) -> bool {
        self.code == UNREACHABLE && !self.message.contains("not trusted") || self.code == FAILED
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
            | ClientError::Token => CONFIGURATION,
            ClientError::Unreachable { .. } | ClientError::Untrusted { .. } => UNREACHABLE,
            ClientError::Refused(_) => REFUSED,
            ClientError::Answer(_) | ClientError::Unverified { .. } | ClientError::SessionEnded(_) => FAILED,
        };
        Self { code, message: error.to_string() }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let code = match &error {
            ServerError::Folder(FolderError::Store(error)) | ServerError::Store(error) => of_store(error),
            ServerError::Folder(FolderError::File { .. } | FolderError::Key(_))
            | ServerError::DevelopmentCa(_)
            | ServerError::Tls(_)
            | ServerError::OperatorKeys { .. }
            | ServerError::Bind(BindError::Other { .. }) => CONFIGURATION,
            ServerError::Bind(BindError::PortInUse { .. }) => PORT_IN_USE,
            ServerError::Start(_) => DATA_DAMAGED,
            ServerError::Reflection(_) | ServerError::Serve(_) | ServerError::Engine => FAILED,
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
