//! The data folder: the broker's files. Folders have mode 0700 and files 0600, so only the user that runs the broker
//! can read them.
//!
//! ```text
//! store/          tasks, handoffs, mail: see `store`
//! blobs/          the bytes of blobs: see `blobs`
//! keys/broker.pem the broker's own key
//! keys/coordinator.pem the key of its agent baton.coordinator
//! tls/            the development CA, if used
//! operator.token  the operator's token
//! address         the broker's listen address, while it runs
//! ```

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use zeroize::Zeroizing;

use crate::{
    blobs::{BlobFiles, Bucket, Removed},
    broker::{BrokerIdentity, Signer, identity::random_bytes},
    disk,
    envelope::{
        keys::{KeyFileError, PrivateKey},
        signing,
    },
    ids::{IdSource, KeyId},
    records::{BlobRecord, UploadRecord},
    store::{EmbeddedStore, OpenError, Replica, Store},
};

/// The reason why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The broker failed to read or write a file.
    #[error("failed to use the data folder: {}: {source}", path.display())]
    File {
        /// The path of the file, or of the folder itself.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Other users of the machine can use the folder, and the broker must not change that.
    #[error(
        "other users can access the data folder {} (mode {mode:o}), and {why}; name another folder with --data, or run \
         chmod 700 on this one",
        path.display()
    )]
    Shared {
        /// The path of the data folder.
        path: PathBuf,
        /// The lower nine permission bits of the folder.
        mode: u32,
        /// The reason why the broker leaves them unchanged.
        why: String,
    },
    /// An earlier start has left its files, and the store is not there.
    #[error(
        "the data folder {0} has lost its store: {found} is there, and {0}/store is missing or empty; nothing was changed. Mount \
         the volume of the store, or restore the folder from a backup. To begin with an empty store and the same keys, run \
         `baton store create --data {0}`: all tasks, messages and blobs are lost then",
        path.display()
    )]
    StoreLost {
        /// The path of the data folder.
        path: PathBuf,
        /// A file of the earlier start.
        found: &'static str,
    },
    /// The broker's key cannot be read or created.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
}

/// Makes the folder if it is missing, and keeps other users out of it.
pub(super) fn prepare(path: &Path) -> Result<(), FolderError> {
    disk::keep_to_owner();
    close(path)?;
    make_folder(path)
}

/// A data folder in use. The store's lock keeps other brokers out.
pub(super) struct DataFolder {
    path: PathBuf,
    pub(super) store: Arc<dyn Store>,
    pub(super) blobs: Arc<BlobFiles>,
    pub(super) identity: BrokerIdentity,
    pub(super) operator_token: Zeroizing<String>,
}

impl DataFolder {
    /// Opens the folder, or creates it.
    pub(super) fn open(path: &Path, ids: &dyn IdSource, bucket: Option<Arc<Bucket>>) -> Result<Self, FolderError> {
        prepare(path)?;
        find_store(path)?;
        // The store comes first, for its lock: this process changes no other file while another broker uses the folder. A
        // first start that is cut off leaves no key without a store.
        let store = Arc::new(EmbeddedStore::open(&path.join("store"))?);
        let blobs = Arc::new(open_blobs(path, &*store, bucket)?);
        close_contents(path)?;
        make_folder(&path.join("keys"))?;
        let identity = broker_identity(&path.join("keys").join("broker.pem"), ids)?;
        let operator_token = Zeroizing::new(operator_token(&path.join("operator.token"), ids)?);
        Ok(Self { path: path.into(), store, blobs, identity, operator_token })
    }

    pub(super) fn tls_folder(&self) -> PathBuf {
        tls_folder(&self.path)
    }

    pub(super) fn operator_token_path(&self) -> PathBuf {
        self.path.join("operator.token")
    }

    /// Writes the listen address, for scripts that start the broker on port 0.
    pub(super) fn write_address(&self, address: SocketAddr) -> Result<(), FolderError> {
        write_address(&self.path, address)
    }

    pub(super) fn remove_address(&self) {
        remove_address(&self.path);
    }
}

pub(super) fn tls_folder(data: &Path) -> PathBuf {
    data.join("tls")
}

pub(super) fn write_address(data: &Path, address: SocketAddr) -> Result<(), FolderError> {
    write_whole(&data.join("address"), &format!("{address}\n"))
}

pub(super) fn remove_address(data: &Path) {
    // A missing file is fine, and a stale one does no harm.
    drop(fs::remove_file(data.join("address")));
}

/// The keys that all brokers of a cluster share: `broker.pem`, `coordinator.pem` and `operator.token` of one folder.
pub(super) struct SharedKeys {
    pub(super) identity: BrokerIdentity,
    pub(super) operator_token: Zeroizing<String>,
    /// The folder of the cluster's blobs in the bucket. It comes from the first keys alone: a cluster with a new log has another
    /// name, and one with new keys other keys, and both have the same blobs.
    pub(super) blobs: [u8; 16],
}

/// The file of the folder of blobs, beside keys that took the place of others.
const BLOBS_ID: &str = "blobs.id";

impl SharedKeys {
    /// Reads the keys of a cluster. Makes none: two brokers would make different ones.
    pub(super) fn read(folder: &Path) -> Result<Self, FolderError> {
        Self::read_from(folder, folder.join("operator.token"))
    }

    /// Reads the keys of a broker alone, in its data folder.
    pub(super) fn of_broker(data: &Path) -> Result<Self, FolderError> {
        Self::read_from(&data.join("keys"), data.join("operator.token"))
    }

    fn read_from(folder: &Path, token_path: PathBuf) -> Result<Self, FolderError> {
        let key = |name: &str| {
            warn_of_readers(&folder.join(name));
            PrivateKey::read(&folder.join(name))
        };
        warn_of_readers(&token_path);
        let token = fs::read_to_string(&token_path).and_then(|token| match token.trim() {
            "" => Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty")),
            token => Ok(Zeroizing::new(token.to_owned())),
        });
        let identity = identity_of(key("broker.pem")?, key("coordinator.pem")?);
        Ok(Self {
            blobs: read_blobs_id(folder)?.unwrap_or_else(|| blobs_of(&identity)),
            identity,
            operator_token: token.map_err(|source| FolderError::File { path: token_path, source })?,
        })
    }
}

/// The folder of the blobs of a cluster with these keys, unless others came before them.
fn blobs_of(identity: &BrokerIdentity) -> [u8; 16] {
    let hash = signing::sha256(&[b"baton cluster blobs\0", identity.key.public().as_bytes()]);
    std::array::from_fn(|at| hash[at])
}

fn read_blobs_id(keys: &Path) -> Result<Option<[u8; 16]>, FolderError> {
    let path = keys.join(BLOBS_ID);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(FolderError::File { path, source }),
        Ok(text) => text,
    };
    let mut id = [0; 16];
    match hex::decode_to_slice(text.trim(), &mut id) {
        Ok(()) => Ok(Some(id)),
        Err(error) => Err(FolderError::File { path, source: io::Error::new(io::ErrorKind::InvalidData, error) }),
    }
}

/// Notes the folder of the blobs beside keys that take the place of others.
pub(super) fn write_blobs_id(keys: &Path, id: &[u8; 16]) -> Result<(), FolderError> {
    write_whole(&keys.join(BLOBS_ID), &format!("{}\n", hex::encode(id)))
}

/// Opens the tables of a broker in a cluster: the same data folder, without keys and blobs of its own.
pub(super) fn open_replica(data: &Path, cluster: &[u8; 16]) -> Result<Replica, FolderError> {
    prepare(data)?;
    find_store(data)?;
    let replica = Replica::open(&data.join("store"), cluster)?;
    close_contents(data)?;
    Ok(replica)
}

/// The files that a first start makes after the store.
const AFTER_STORE: [&str; 2] = ["keys/broker.pem", "operator.token"];

/// Fails if an earlier start has used the folder, and its store is gone: a broker that began with an empty one would take
/// every task and every message for unknown, and delete the blobs.
fn find_store(path: &Path) -> Result<(), FolderError> {
    let store = path.join("store");
    let is_empty = match fs::read_dir(&store) {
        Ok(mut entries) => entries.next().is_none(),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => true,
        Err(source) => return Err(FolderError::File { path: store, source }),
    };
    match AFTER_STORE.into_iter().find(|name| is_empty && path.join(name).exists()) {
        Some(found) => Err(FolderError::StoreLost { path: path.into(), found }),
        None => Ok(()),
    }
}

/// Opens the folder of blobs, and deletes the files that no record names.
pub(super) fn open_blobs(
    path: &Path,
    store: &dyn Store,
    bucket: Option<Arc<Bucket>>,
) -> Result<BlobFiles, FolderError> {
    let folder = BlobFiles::folder(path);
    let failed = |source| FolderError::File { path: folder.clone(), source };
    let blobs = BlobFiles::open(&folder, bucket).map_err(failed)?;
    let deleted = blobs.sweep(|removed| is_named(store, removed)).map_err(failed)?;
    if deleted > 0 {
        tracing::info!(deleted, "deleted files of blobs that no record names");
    }
    Ok(blobs)
}

/// Whether a record names the file of a blob or of an upload. A complete blob whose upload has a record is named by it.
pub(super) fn is_named(store: &dyn Store, removed: Removed) -> io::Result<bool> {
    let named = match removed {
        Removed::Blob(place) => BlobRecord::names(store, &place),
        Removed::Upload(name) => store.get(&UploadRecord::name_key(&name)).map(|found| found.is_some()),
    };
    named.map_err(io::Error::other)
}

/// The permission bits of other users.
const OF_OTHERS: u32 = 0o077;
/// The names of the broker's own files and folders in the data folder.
const CONTENTS: [&str; 7] = ["store", "blobs", "keys", "tls", "gateway", "operator.token", "address"];

/// Removes the permissions of other users from an existing data folder. Fails if the folder belongs to another user, or
/// has no store and is not empty: such a folder may be meant for others.
fn close(path: &Path) -> Result<(), FolderError> {
    let file_error = |source| FolderError::File { path: path.into(), source };
    let found = match fs::metadata(path) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(file_error)?,
    };
    let mode = found.permissions().mode() & 0o777;
    if mode & OF_OTHERS == 0 {
        return Ok(());
    }
    let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
    let shared = |why| Err(FolderError::Shared { path: path.into(), mode, why });
    if owner != user {
        return shared(format!("it belongs to user {owner}, but the broker runs as user {user}"));
    }
    // A folder with foreign files may be shared on purpose, so its permissions stay.
    if !path.join("store").exists() && fs::read_dir(path).map_err(file_error)?.next().is_some() {
        return shared("it has no store and is not empty".to_owned());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode & !OF_OTHERS)).map_err(file_error)?;
    tracing::warn!(path = %path.display(), "removed the permissions of other users from the data folder (mode was {mode:o})");
    Ok(())
}

/// Removes the permissions of other users from the broker's files in the folder, for example after a copy with other
/// permissions. Skips the files of other users: their owners could undo the change, and the folder's own mode keeps
/// them out.
fn close_contents(path: &Path) -> Result<(), FolderError> {
    let user = rustix::process::geteuid().as_raw();
    let mut left: Vec<PathBuf> = CONTENTS.iter().map(|name| path.join(name)).collect();
    let mut closed = 0;
    while let Some(path) = left.pop() {
        let mut close = || -> io::Result<()> {
            let found = fs::symlink_metadata(&path)?; // a link's target is outside the folder
            let mode = found.permissions().mode() & 0o777;
            if !found.is_symlink() && found.uid() == user && mode & OF_OTHERS != 0 {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode & !OF_OTHERS))?;
                closed += 1;
            }
            if found.is_dir() {
                for entry in fs::read_dir(&path)? {
                    left.push(entry?.path());
                }
            }
            Ok(())
        };
        match close() {
            // The store merges files concurrently and removes them, so a file may be missing by now.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(FolderError::File { path, source: error });
            }
            Ok(()) | Err(_) => {}
        }
    }
    if closed > 0 {
        tracing::warn!(path = %path.display(), "removed the permissions of other users from {closed} files and folders in the data folder");
    }
    Ok(())
}

/// Logs a warning if other users can read a key file that was configured.
pub(super) fn warn_of_readers(path: &Path) {
    let Ok(file) = fs::metadata(path) else { return };
    let mode = file.permissions().mode() & 0o777;
    if mode & OF_OTHERS != 0 {
        tracing::warn!("other users can read {} (mode {mode:o}): run chmod 600 on it", path.display());
    }
}

fn broker_identity(path: &Path, ids: &dyn IdSource) -> Result<BrokerIdentity, FolderError> {
    Ok(identity_of(key_file(path, ids)?, key_file(&path.with_file_name("coordinator.pem"), ids)?))
}

fn identity_of(key: PrivateKey, coordinator: PrivateKey) -> BrokerIdentity {
    // The id is derived from the key, so that receipts of an earlier key are never attributed to this one.
    let fingerprint = signing::sha256(&[key.public().as_bytes()]);
    let key_id = KeyId::parse(&format!("broker-{}", hex::encode(&fingerprint[..8]))).expect("it is a name");
    BrokerIdentity { key_id, key, coordinator: Signer::new(coordinator) }
}

/// Reads a key of the broker's own, or makes it.
fn key_file(path: &Path, ids: &dyn IdSource) -> Result<PrivateKey, FolderError> {
    if path.exists() {
        Ok(PrivateKey::read(path)?)
    } else {
        let key = PrivateKey::generate(ids);
        // The key appears whole or not at all. A draft is left from an interrupted start, and no receipt names its key.
        let draft = disk::draft_of(path);
        let file_error = |source| FolderError::File { path: path.into(), source };
        disk::remove_if_there(&draft).map_err(file_error)?;
        key.write(&draft)?;
        disk::rename(&draft, path).map_err(file_error)?;
        Ok(key)
    }
}

fn operator_token(path: &Path, ids: &dyn IdSource) -> Result<String, FolderError> {
    match fs::read_to_string(path) {
        Ok(token) if !token.trim().is_empty() => Ok(token.trim().to_owned()),
        Ok(_) => make_operator_token(path, ids),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => make_operator_token(path, ids),
        Err(source) => Err(FolderError::File { path: path.into(), source }),
    }
}

pub(super) fn make_operator_token(path: &Path, ids: &dyn IdSource) -> Result<String, FolderError> {
    let token = hex::encode(random_bytes(ids));
    write_whole(path, &format!("{token}\n"))?;
    Ok(token)
}

/// Copies the operator's token of a broker alone.
pub(super) fn copy_operator_token(data: &Path, to: &Path) -> Result<(), FolderError> {
    write_whole(to, &format!("{}\n", *SharedKeys::of_broker(data)?.operator_token))
}

fn make_folder(path: &Path) -> Result<(), FolderError> {
    disk::make_folder(path).map_err(|source| FolderError::File { path: path.into(), source })
}

fn write_whole(path: &Path, text: &str) -> Result<(), FolderError> {
    disk::write_whole(path, text.as_bytes()).map_err(|source| FolderError::File { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::SystemIds,
        server::development_ca::DevelopmentCa,
        store::{Change, Key, Record, Table, Write},
        time::Timestamp,
    };

    /// Does with a folder what a broker does at start.
    fn start(path: &Path) -> DataFolder {
        let folder = DataFolder::open(path, &SystemIds, None).unwrap();
        let now = Timestamp::from_unix_nanoseconds(1_800_000_000_000_000_000);
        DevelopmentCa::load_or_create(&folder.tls_folder(), now, &[]).unwrap();
        folder.write_address(([127, 0, 0, 1], 1).into()).unwrap();
        folder
    }

    const KEY: &[u8] = b"task";

    fn commit(folder: &DataFolder) {
        let key = Key { table: Table::Tasks, key: KEY.into() };
        let record = Some(Record { revision: 1, value: bytes::Bytes::from_static(b"a task") });
        let change = Change { expectations: vec![], writes: vec![Write { key, record, is_new: true }] };
        assert_eq!(folder.store.commit(vec![change]).unwrap(), [Ok(())]);
    }

    fn has_task(folder: &DataFolder) -> bool {
        folder.store.get(&Key { table: Table::Tasks, key: KEY.into() }).unwrap().is_some()
    }

    /// The working copy of the tables is made anew at each start. Every other name must be synced.
    fn is_working_copy(folder: &Path) -> bool {
        folder.ancestors().any(|around| around.ends_with("store/work"))
    }

    #[test]
    fn a_power_cut_takes_no_folder_that_is_needed_and_leaves_none_that_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("not/there/yet");
        let survive = |synced: &[_]| {
            let to = tempfile::tempdir().unwrap();
            disk::record::survivors(synced, parent.path(), to.path(), &is_working_copy);
            let survivor = to.path().join("not/there/yet");
            (to, survivor)
        };
        drop(disk::record::take());
        let first = start(&path);
        let mut synced = disk::record::take();
        for moment in 0..synced.len() {
            let (_to, survivor) = survive(&synced[..moment]);
            start(&survivor); // it is not refused
        }
        drop(disk::record::take());
        commit(&first);
        synced.extend(disk::record::take());
        let (key, token) = (first.identity.key_id.clone(), first.operator_token.clone());
        drop(first);
        let (_to, survivor) = survive(&synced);
        let again = start(&survivor);
        assert!(has_task(&again), "what was answered is there");
        assert_eq!((&again.identity.key_id, &again.operator_token), (&key, &token));
    }

    #[test]
    fn a_folder_that_has_lost_its_store_is_refused_and_left_as_it_is() {
        for kept in [&AFTER_STORE[..], &AFTER_STORE[..1], &AFTER_STORE[1..]] {
            for is_mount_point in [false, true] {
                let parent = tempfile::tempdir().unwrap();
                let path = parent.path().join("data");
                drop(start(&path));
                fs::remove_dir_all(path.join("store")).unwrap();
                // That of a volume that is not mounted is there and empty.
                if is_mount_point {
                    fs::create_dir(path.join("store")).unwrap();
                }
                for name in AFTER_STORE.iter().filter(|name| !kept.contains(name)) {
                    fs::remove_file(path.join(name)).unwrap();
                }
                let Err(FolderError::StoreLost { found, .. }) = DataFolder::open(&path, &SystemIds, None) else {
                    panic!("it is refused")
                };
                assert_eq!(found, kept[0]);
                assert_eq!(path.join("store").exists(), is_mount_point, "no store is made");
                // What `baton store create` does.
                drop(EmbeddedStore::open(&path.join("store")).unwrap());
                start(&path);
            }
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_data_folder_that_is_open_to_others_is_closed_with_all_in_it() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        drop(start(&path));
        let inside =
            ["", "store", "store/wal", "store/FORMAT", "keys", "keys/broker.pem", "operator.token", "tls/ca.key"];
        inside.iter().for_each(|name| set_mode(&path.join(name), 0o777));
        drop(start(&path));
        inside.iter().for_each(|name| assert_eq!(mode(&path.join(name)), 0o700, "{name}"));
    }

    #[test]
    fn a_folder_that_others_may_be_using_is_refused_and_left_as_it_is() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        fs::create_dir(&path).unwrap();
        set_mode(&path, 0o750);
        fs::write(path.join("notes.txt"), "of another program").unwrap();
        match DataFolder::open(&path, &SystemIds, None) {
            Err(FolderError::Shared { path: found, mode, .. }) => assert_eq!((found, mode), (path.clone(), 0o750)),
            other => panic!("expected Shared, got {:?}", other.err()),
        }
        assert_eq!((mode(&path), fs::read_dir(&path).unwrap().count()), (0o750, 1));
        fs::remove_file(path.join("notes.txt")).unwrap();
        start(&path);
        assert_eq!(mode(&path), 0o700);
        // Only the superuser can change the owner of a folder.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            start(&path);
            set_mode(&path, 0o701);
            let refused = DataFolder::open(&path, &SystemIds, None).err().expect("it is another user's").to_string();
            assert!(refused.contains("user 12345") && refused.contains("--data"), "{refused}");
        }
    }
}
