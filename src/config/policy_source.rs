//! Where a broker's policies come from, and reading them.

use std::{fmt, net::SocketAddr, path::PathBuf, sync::Arc};

use serde::Deserialize;

use crate::policy::{Action, Agent, Policies, PolicyError, Principal, Question, Resource, Source};

/// Where the policies come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicySource {
    /// The one that is built in.
    BuiltIn(Enrollment),
    /// A file, or a folder of files.
    Path(PathBuf),
}

/// Who may register a new agent, by the policies that are built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enrollment {
    /// An operator, or whoever has an invitation.
    Operator,
    /// Anybody; agents and tasks can be looked at by anybody too. Only for development.
    Open,
}

/// Why policies are not taken.
#[derive(Debug, thiserror::Error)]
pub enum PolicySourceError {
    /// They cannot be read, or are wrong.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Too open for where the broker listens.
    #[error("{what} is only for development: listen on a loopback address, not {listen}")]
    TooOpen {
        /// What is.
        what: &'static str,
        /// Where the broker listens.
        listen: SocketAddr,
    },
}

impl PolicySource {
    /// Reads them, for a broker that listens there.
    pub fn load(&self, listen: SocketAddr) -> Result<Arc<Policies>, PolicySourceError> {
        let policies = match self {
            Self::BuiltIn(Enrollment::Operator) => Policies::built_in(),
            Self::BuiltIn(Enrollment::Open) => Policies::development(),
            Self::Path(path) => Arc::new(Policies::parse(&Source::read(path)?)?),
        };
        let anybody = Question {
            principal: Principal::Anonymous,
            action: Action::Enroll,
            resource: Resource::Agent(Agent { id: "anybody", types: &[] }),
        };
        if !listen.ip().is_loopback() && policies.decide(&anybody).is_allowed {
            return Err(PolicySourceError::TooOpen { what: "open enrollment", listen });
        }
        Ok(policies)
    }

    /// The files that it is made of, as far as they can be found.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::BuiltIn(_) => Vec::new(),
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
