//! The local broker: address, CA and operator token from the data folder in the working directory.
//!
//! Owns the rule that keeps the operator token from other brokers. The token is read only together with the CA of the
//! same folder, and the connection that carries it trusts only that CA. A broker without a certificate of that CA
//! receives no request, and so no token.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

/// The data folder of a running broker.
#[derive(Debug)]
pub(super) struct LocalBroker {
    folder: PathBuf,
    address: SocketAddr,
}

/// A CA, and the token for brokers with its certificates. `token` is `None` if the folder holds none.
#[derive(Debug)]
pub(super) struct LocalAccess {
    pub(super) ca: PathBuf,
    pub(super) token: Option<String>,
}

impl LocalBroker {
    /// Finds the broker that runs on the folder. `None` if no broker runs, or if the folder has no CA.
    pub(super) fn find(folder: &Path) -> Option<Self> {
        let address = std::fs::read_to_string(folder.join("address")).ok()?.trim().parse().ok()?;
        let found = Self { folder: folder.into(), address };
        // Without this CA no certificate would prove that the token goes to this broker.
        found.ca().exists().then_some(found)
    }

    fn ca(&self) -> PathBuf {
        self.folder.join("tls/ca.pem")
    }

    /// Whether the broker listens at HOST:PORT.
    pub(super) fn is_at(&self, server: &str) -> bool {
        listens_at(self.address, server)
    }

    /// The CA and the token of this broker, if `server` is its address and `ca` names no other CA.
    ///
    /// A connection without TLS shows no certificate, and so never carries the token.
    pub(super) fn access(&self, server: &str, ca: Option<&Path>) -> Option<LocalAccess> {
        if !self.is_at(server) || !ca.is_none_or(|ca| is_same_file(ca, &self.ca())) {
            return None;
        }
        let token = std::fs::read_to_string(self.folder.join("operator.token")).ok();
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        Some(LocalAccess { ca: self.ca(), token })
    }
}

/// Whether HOST:PORT is this address. No name except localhost is resolved, because it may name another machine.
fn listens_at(address: SocketAddr, server: &str) -> bool {
    let Some((host, port)) = server.rsplit_once(':') else { return false };
    if port.parse() != Ok(address.port()) {
        return false;
    }
    let reaches = |ip: IpAddr| ip == address.ip() || (address.ip().is_unspecified() && ip.is_loopback());
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(ip) => reaches(ip),
        Err(_) => host == "localhost" && (address.ip().is_loopback() || address.ip().is_unspecified()),
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| std::fs::canonicalize(path).ok();
    // A path that does not resolve is never the same file, so an error does not release the token.
    whole(one).is_some_and(|path| whole(other).is_some_and(|other| path == other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_address_that_the_folder_names_is_its_broker() {
        let here: SocketAddr = "127.0.0.1:22866".parse().unwrap();
        for (server, expected) in [
            ("127.0.0.1:22866", true),
            ("localhost:22866", true),
            ("127.0.0.1:22867", false),
            ("127.0.0.2:22866", false),
            ("broker.example:22866", false),
            ("http://127.0.0.1:22866", false),
            ("127.0.0.1", false),
        ] {
            assert_eq!(listens_at(here, server), expected, "{server}");
        }
        assert!(listens_at("[::]:1".parse().unwrap(), "[::1]:1"));
        assert!(listens_at("0.0.0.0:1".parse().unwrap(), "127.0.0.1:1"));
        assert!(!listens_at("0.0.0.0:1".parse().unwrap(), "10.0.0.1:1"));
    }
}
