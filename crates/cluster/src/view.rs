//! What a member shows to the rest of the program: its role, its place in the log, and the leader that it knows.
//!
//! Owns the form alone. The driver publishes a view through a `tokio::sync::watch` channel whenever one changes; the relay,
//! the metrics, the checks of health and `baton cluster status` read it. Must not know how a role is reached.

use std::time::Duration;

use crate::{
    entry::{Chain, Hash, Position},
    member,
};

/// The role of a broker, without the reasons for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Gets the checkpoint of a peer.
    Restoring,
    /// Applies what the leader writes, and relays connections to it.
    Following,
    /// Tries to lead.
    Claiming,
    /// Answers.
    Leading,
    /// Appends without a lease, and answers nothing else.
    Suspended,
    /// Ends its sessions.
    Leaving,
    /// The log and a broker differ: an operator must act.
    Diverged,
}

impl Role {
    /// All roles, for figures that have one series each.
    pub const ALL: [Self; 7] = [
        Self::Restoring,
        Self::Following,
        Self::Claiming,
        Self::Leading,
        Self::Suspended,
        Self::Leaving,
        Self::Diverged,
    ];

    /// The name in figures and output, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Restoring => "restoring",
            Self::Following => "following",
            Self::Claiming => "claiming",
            Self::Leading => "leading",
            Self::Suspended => "suspended",
            Self::Leaving => "leaving",
            Self::Diverged => "diverged",
        }
    }

    /// The role with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Whether connections on the client port are served by this broker itself.
    pub fn serves_clients(self) -> bool {
        matches!(self, Self::Leading | Self::Suspended)
    }
}

impl From<&member::Role> for Role {
    /// A member that has ended shows the role in which it left.
    fn from(role: &member::Role) -> Self {
        match role {
            member::Role::Restoring => Self::Restoring,
            member::Role::Following => Self::Following,
            member::Role::Claiming => Self::Claiming,
            member::Role::Leading => Self::Leading,
            member::Role::Suspended => Self::Suspended,
            member::Role::Leaving | member::Role::Ended(_) => Self::Leaving,
            member::Role::Diverged(_) => Self::Diverged,
        }
    }
}

/// The broker that leads, as far as another one knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its name in the cluster.
    pub name: String,
    /// The address at which other brokers reach it, host and port.
    pub peer_address: String,
}

/// What a member shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Its role.
    pub role: Role,
    /// The number of takeovers in the log, as far as it was applied.
    pub term: u64,
    /// The last entry that the tables have.
    pub position: Position,
    /// The hash of that entry.
    pub hash: Hash,
    /// The last entry that the checkpoint on the disk has.
    pub flushed_upto: Position,
    /// The leader; the broker itself while it leads.
    pub leader: Option<Leader>,
    /// Why no broker leads, in words for an operator. `None` while one does.
    pub why_nobody_leads: Option<String>,
    /// How far the tables are behind the log: the time since they last had the log's end. Zero at the leader.
    pub lag: Duration,
    /// How often this process has taken over.
    pub takeovers: u64,
}

impl View {
    /// The view of a broker that has just started: it follows, and knows no leader.
    pub fn at_start(chain: Chain, flushed_upto: Position) -> Self {
        Self {
            role: Role::Following,
            term: chain.term,
            position: chain.position,
            hash: chain.hash,
            flushed_upto,
            leader: None,
            why_nobody_leads: None,
            lag: Duration::ZERO,
            takeovers: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_a_name_of_its_own() {
        for role in Role::ALL {
            assert_eq!(Role::named(role.name()), Some(role));
        }
        assert_eq!(Role::named("ended"), None);
    }

    #[test]
    fn only_a_leader_serves_clients_also_without_its_lease() {
        let serving: Vec<Role> = Role::ALL.into_iter().filter(|role| role.serves_clients()).collect();
        assert_eq!(serving, [Role::Leading, Role::Suspended]);
    }
}
