//! Why the program starts no broker, with the exit code of each reason.

use std::io;

use baton_cli::{
    Failure,
    exit::{CONFIGURATION, DATA_DAMAGED, DATA_IN_USE, DATA_VERSION, FAILED, PORT_IN_USE, of_store},
};
use baton_cluster::{
    driver::{self, Ended},
    entry::EntryError,
    member::Ending,
};

use crate::{
    broker::StartError,
    config::ConfigError,
    server::{ClusterError, FolderError, ServerError},
    wire::edge::BindError,
};

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        // The error of the TOML parser ends with a line feed.
        let mut message = error.to_string().trim_end().to_owned();
        match error {
            ConfigError::Read { .. } => {}
            ConfigError::Parse { .. } | ConfigError::Environment { .. } | ConfigError::Refused(_) => {
                message.push_str(
                    "\n  docs/configuration.md describes each key, and deploy/baton.toml has each with its default",
                );
            }
        }
        Self::new(CONFIGURATION, message)
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let code = match &error {
            ServerError::Folder(FolderError::Store(error)) | ServerError::Store(error) => of_store(error),
            ServerError::Folder(FolderError::StoreLost { .. }) => DATA_DAMAGED,
            ServerError::Folder(FolderError::File { .. } | FolderError::Shared { .. } | FolderError::Key(_))
            | ServerError::DevelopmentCa(_)
            | ServerError::Tls(_)
            | ServerError::OperatorKeys { .. }
            | ServerError::Traces(_)
            | ServerError::Bucket(_)
            | ServerError::Bind(BindError::Other { .. }) => CONFIGURATION,
            ServerError::MetricsListen { problem, .. } | ServerError::GatewayListen { problem, .. } => {
                match problem.kind() {
                    io::ErrorKind::AddrInUse => PORT_IN_USE,
                    _ => CONFIGURATION,
                }
            }
            ServerError::Bind(BindError::PortInUse { .. }) => PORT_IN_USE,
            ServerError::Cluster(error) => of_cluster(error),
            ServerError::Start(StartError::Store(_)) => DATA_DAMAGED,
            ServerError::Start(StartError::Thread(_)) | ServerError::Reflection(_) | ServerError::Engine => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

/// The exit code of a broker that cannot be a member of its cluster.
fn of_cluster(error: &ClusterError) -> u8 {
    match error {
        ClusterError::Start(driver::StartError::Unsafe(_)) => CONFIGURATION,
        ClusterError::Start(driver::StartError::NameInUse(_)) | ClusterError::Ended(Ended::NameInUse(_)) => DATA_IN_USE,
        ClusterError::Ended(Ended::Member(Ending::Refused(EntryError::Newer { .. }))) => DATA_VERSION,
        ClusterError::Ended(Ended::Diverged(_)) => DATA_DAMAGED,
        ClusterError::Ended(Ended::Member(Ending::Refused(_)))
        | ClusterError::PeerTls(_)
        | ClusterError::PeerListen { .. } => CONFIGURATION,
        ClusterError::Start(driver::StartError::Thread(_) | driver::StartError::Stopped)
        | ClusterError::Ended(Ended::Member(Ending::Stopped | Ending::DiskFailed)) => FAILED,
    }
}
