//! Exit codes: the same for every command, and documented in `baton --help`.

use crate::{
    config::ConfigError,
    server::{FolderError, ServerError},
    store::OpenError,
    wire::grpc::listener::BindError,
};

/// Done.
pub const OK: u8 = 0;
/// Something failed.
pub const FAILED: u8 = 1;
/// Wrong usage.
pub const USAGE: u8 = 2;
/// The configuration or a file that was named cannot be used.
pub const CONFIGURATION: u8 = 3;
/// Another broker has the data folder.
pub const DATA_IN_USE: u8 = 4;
/// The data folder is of another version.
pub const DATA_VERSION: u8 = 5;
/// The store is damaged.
pub const DATA_DAMAGED: u8 = 6;
/// The port is in use.
pub const PORT_IN_USE: u8 = 7;
/// The broker refused.
pub const REFUSED: u8 = 8;
/// No broker answers.
pub const UNREACHABLE: u8 = 9;

/// The code of a broker that does not run.
pub fn of_server(error: &ServerError) -> u8 {
    match error {
        ServerError::Folder(FolderError::Store(error)) | ServerError::Store(error) => of_store(error),
        ServerError::Folder(FolderError::File { .. } | FolderError::Key(_))
        | ServerError::DevelopmentCa(_)
        | ServerError::Tls(_) => CONFIGURATION,
        ServerError::Bind(BindError::PortInUse { .. }) => PORT_IN_USE,
        ServerError::Bind(BindError::Other { .. }) => CONFIGURATION,
        ServerError::Start(_) => DATA_DAMAGED,
        ServerError::Reflection(_) | ServerError::Serve(_) | ServerError::Engine => FAILED,
    }
}

/// The code of a configuration that cannot be used.
pub fn of_config(_: &ConfigError) -> u8 {
    CONFIGURATION
}

fn of_store(error: &OpenError) -> u8 {
    match error {
        OpenError::InUse { .. } => DATA_IN_USE,
        OpenError::Format { .. } => DATA_VERSION,
        OpenError::LostWrites { .. } | OpenError::Engine { .. } => DATA_DAMAGED,
        OpenError::NotAStore { .. } | OpenError::File { .. } => CONFIGURATION,
    }
}
