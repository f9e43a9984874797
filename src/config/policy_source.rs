//! The source of a broker's policies, and loading them.

use std::{fmt, net::SocketAddr, path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::policy::{Action, Agent, Policies, PolicyError, Principal, Question, Resource, Source};

/// The source of the policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicySource {
    /// The built-in policies.
    BuiltIn(Enrollment),
    /// A file, or a folder of files.
    Path(PathBuf),
}

/// Who may register a new agent under the built-in policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enrollment {
    /// Operators, and callers with an invitation.
    Operator,
    /// Any caller. Any caller may also read agents and tasks. Only for development.
    Open,
}

/// The reason why policies are refused.
#[derive(Debug, thiserror::Error)]
pub enum PolicySourceError {
    /// The policies cannot be read, or are invalid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The configuration is too open for the listen address.
    #[error("{what} is only for development and needs a loopback address to listen on, not {listen}")]
    TooOpen {
        /// The open part.
        what: &'static str,
        /// The listen address.
        listen: SocketAddr,
    },
    /// The configuration is too open for a cluster that other machines reach.
    #[error(
        "{what} is only for development: with [cluster] it also needs loopback addresses in cluster.peer_listen and \
         cluster.peer_address, not {listen} and {address:?}"
    )]
    TooOpenInCluster {
        /// The open part.
        what: &'static str,
        /// The listen address for other brokers.
        listen: SocketAddr,
        /// The address at which other brokers reach this one.
        address: String,
    },
}

/// Whether a caller without an identity may register an agent. Asks the loaded policies, not the setting, so that a policy file
/// that opens enrollment counts too.
pub(super) fn is_enrollment_open(policies: &Policies) -> bool {
    let anonymous = Question {
        principal: Principal::Anonymous,
        action: Action::Enroll,
        resource: Resource::Agent(Agent { id: "anonymous", types: &[] }),
    };
    policies.decide(&anonymous).is_allowed
}

impl PolicySource {
    /// Loads the policies, for a broker with this listen address. Refuses open enrollment except on loopback, unless it may be
    /// open on any address.
    pub(super) fn load(&self, listen: SocketAddr, may_be_open: bool) -> Result<Arc<Policies>, PolicySourceError> {
        let policies = match self {
            Self::BuiltIn(Enrollment::Operator) => Policies::built_in(),
            Self::BuiltIn(Enrollment::Open) => Policies::development(),
            Self::Path(path) => Arc::new(Policies::parse(&Source::read(path)?)?),
        };
        if !may_be_open && !listen.ip().is_loopback() && is_enrollment_open(&policies) {
            return Err(PolicySourceError::TooOpen { what: "open enrollment", listen });
        }
        Ok(policies)
    }

    /// The policy files, as far as they can be listed.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::BuiltIn(_) => Vec::new(),
            // A folder that cannot be listed is watched itself, so that its repair is noticed.
            Self::Path(path) => Source::files(path).unwrap_or_else(|_| vec![path.clone()]),
        }
    }
}

impl fmt::Display for PolicySource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(Enrollment::Operator) => formatter.write_str("built in, with enrollment by operators"),
            Self::BuiltIn(Enrollment::Open) => formatter.write_str("built in, with open enrollment"),
            Self::Path(path) => write!(formatter, "{}", path.display()),
        }
    }
}
