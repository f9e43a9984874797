//! The keys that all brokers of a cluster share: one folder, which the operator gives to each broker.
//!
//! ```text
//! broker.pem       the key that signs receipts, and from which the key of the log's chain is derived
//! coordinator.pem  the key of the agent baton.coordinator
//! operator.token   the operator's token
//! peer.pem         the certificate of all brokers, for each other
//! peer.key         its key
//! blobs.id         only in keys that took the place of others: the folder of the cluster's blobs in the bucket
//! ```
//!
//! Owns making the folder. Who has it can pose as a broker of the cluster.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use baton_peers::tls::{self, PeerTlsError};

use super::folder::{self, FolderError, SharedKeys};
use crate::{disk, envelope::keys::PrivateKey, ids::IdSource};

/// Where the keys of a cluster come from.
#[derive(Debug, Clone, Copy)]
pub enum Origin<'a> {
    /// All are new.
    New,
    /// Keys and token are those of the broker alone with this data folder.
    Broker(&'a Path),
    /// All are new. The blobs stay where they are with the keys in this folder.
    InPlaceOf(&'a Path),
}

/// The reason why the keys of a cluster cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ClusterKeysError {
    /// The folder has something in it already.
    #[error("{} is not empty; the keys of a cluster are made once, and given to each of its brokers", .0.display())]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error("failed to make the keys of a cluster in {}: {source}", path.display())]
    File {
        /// The folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A key or the operator's token cannot be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The certificate of the brokers cannot be made.
    #[error(transparent)]
    Peer(#[from] PeerTlsError),
}

/// Makes the keys in an empty or missing folder. The folder appears whole or not at all.
pub fn make(path: &Path, origin: Origin<'_>, ids: &dyn IdSource) -> Result<(), ClusterKeysError> {
    // A slash at the end would make the draft a file in the folder.
    let path = &path.components().collect::<PathBuf>();
    let failed = |source| ClusterKeysError::File { path: path.into(), source };
    disk::keep_to_owner();
    match fs::read_dir(path).map(|mut entries| entries.next().is_some()) {
        Ok(true) => return Err(ClusterKeysError::Exists(path.into())),
        Ok(false) => {}
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let draft = disk::draft_of(path);
    // Left from a start that was cut off; no broker has these keys.
    match fs::remove_dir_all(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    disk::make_folder(&draft).map_err(failed)?;
    for name in ["broker.pem", "coordinator.pem"] {
        let key = match origin {
            Origin::Broker(data) => PrivateKey::read(&data.join("keys").join(name)),
            Origin::New | Origin::InPlaceOf(_) => Ok(PrivateKey::generate(ids)),
        };
        key.and_then(|key| key.write(&draft.join(name))).map_err(FolderError::from)?;
    }
    let token = draft.join("operator.token");
    match origin {
        Origin::Broker(data) => folder::copy_operator_token(data, &token)?,
        Origin::New | Origin::InPlaceOf(_) => drop(folder::make_operator_token(&token, ids)?),
    }
    if let Origin::InPlaceOf(former) = origin {
        folder::write_blobs_id(&draft, &SharedKeys::read(former)?.blobs)?;
    }
    tls::make(&draft)?;
    disk::rename(&draft, path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use baton_peers::tls::PeerTls;

    use super::*;
    use crate::ids::SystemIds;

    #[test]
    fn the_keys_are_made_once_and_only_their_owner_can_read_them() {
        let around = tempfile::tempdir().unwrap();
        let path = around.path().join("keys");
        make(&path, Origin::New, &SystemIds).unwrap();
        for name in ["broker.pem", "coordinator.pem", "operator.token", "peer.pem", "peer.key"] {
            let mode = fs::metadata(path.join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{name}");
        }
        PeerTls::load(&path).unwrap();
        let key = PrivateKey::read(&path.join("broker.pem")).unwrap().public();
        assert_ne!(key, PrivateKey::read(&path.join("coordinator.pem")).unwrap().public());
        assert!(matches!(make(&path, Origin::New, &SystemIds), Err(ClusterKeysError::Exists(_))));
        assert_eq!(PrivateKey::read(&path.join("broker.pem")).unwrap().public(), key);
    }

    #[test]
    fn the_keys_of_a_broker_alone_become_those_of_its_cluster() {
        let around = tempfile::tempdir().unwrap();
        let (data, path) = (around.path().join("data"), around.path().join("keys"));
        assert!(matches!(make(&path, Origin::Broker(&data), &SystemIds), Err(ClusterKeysError::Folder(_))));
        assert!(!path.exists());
        fs::create_dir_all(data.join("keys")).unwrap();
        for name in ["broker.pem", "coordinator.pem"] {
            PrivateKey::generate(&SystemIds).write(&data.join("keys").join(name)).unwrap();
        }
        fs::write(data.join("operator.token"), "secret\n").unwrap();
        make(&path, Origin::Broker(&data), &SystemIds).unwrap();
        let public = |path: std::path::PathBuf| PrivateKey::read(&path).unwrap().public();
        for name in ["broker.pem", "coordinator.pem"] {
            assert_eq!(public(path.join(name)), public(data.join("keys").join(name)));
        }
        assert_eq!(fs::read_to_string(path.join("operator.token")).unwrap(), "secret\n");
        PeerTls::load(&path).unwrap();
    }

    #[test]
    fn keys_in_place_of_others_are_new_and_the_blobs_stay_where_they_are() {
        let around = tempfile::tempdir().unwrap();
        let [first, second, third] = ["first", "second", "third"].map(|name| around.path().join(name));
        make(&first, Origin::New, &SystemIds).unwrap();
        make(&second, Origin::InPlaceOf(&first), &SystemIds).unwrap();
        make(&third, Origin::InPlaceOf(&second), &SystemIds).unwrap();
        let keys = [&first, &second, &third].map(|path| SharedKeys::read(path).unwrap());
        for (before, after) in [(0, 1), (1, 2), (0, 2)] {
            assert_ne!(keys[before].identity.key.public(), keys[after].identity.key.public());
            assert!(keys[before].operator_token != keys[after].operator_token);
            assert_eq!(keys[before].blobs, keys[after].blobs);
        }
        fs::write(third.join("blobs.id"), "half").unwrap();
        assert!(SharedKeys::read(&third).is_err(), "it would look for the blobs elsewhere");
        let missing = around.path().join("missing");
        assert!(make(&around.path().join("fourth"), Origin::InPlaceOf(&missing), &SystemIds).is_err());
        assert!(!around.path().join("fourth").exists());
    }

    #[test]
    fn a_draft_that_was_cut_off_is_replaced_and_a_folder_of_others_is_not() {
        let around = tempfile::tempdir().unwrap();
        let path = around.path().join("keys");
        let draft = disk::draft_of(&path);
        fs::create_dir(&draft).unwrap();
        fs::write(draft.join("broker.pem"), "half").unwrap();
        make(&path, Origin::New, &SystemIds).unwrap();
        assert!(!draft.exists());
        let full = around.path().join("full");
        fs::create_dir(&full).unwrap();
        fs::write(full.join("letters"), "of others").unwrap();
        assert!(matches!(make(&full, Origin::New, &SystemIds), Err(ClusterKeysError::Exists(_))));
        assert_eq!(fs::read_dir(&full).unwrap().count(), 1);
    }
}
