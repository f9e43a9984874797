//! The data folder: what a broker has on disk, and where.
//!
//! ```text
//! store/          tasks, handoffs, mail: see `store`
//! keys/broker.pem the broker's own key
//! tls/            the development CA, if there is one
//! operator.token  the operator's token
//! address         where the broker listens, while it does
//! ```

use std::{
    fs, io,
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use zeroize::Zeroizing;

use crate::{
    broker::{BrokerIdentity, identity::random_bytes},
    envelope::{
        keys::{KeyFileError, PrivateKey},
        signing,
    },
    ids::{IdSource, KeyId},
    store::{EmbeddedStore, OpenError, Store},
};

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file cannot be read or written.
    #[error("failed to use the data folder: {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The broker's key.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The store.
    #[error(transparent)]
    Store(#[from] OpenError),
}

/// A data folder in use. The store's lock keeps others out.
pub(super) struct DataFolder {
    path: PathBuf,
    pub(super) store: Arc<dyn Store>,
    pub(super) identity: BrokerIdentity,
    pub(super) operator_token: Zeroizing<String>,
}

impl DataFolder {
    /// Opens the folder, or makes it.
    pub(super) fn open(path: &Path, ids: &dyn IdSource) -> Result<Self, FolderError> {
        make_private(path)?;
        // First, for its lock: nothing else in the folder is touched while another broker has it.
        let store = Arc::new(EmbeddedStore::open(&path.join("store"))?);
        make_private(&path.join("keys"))?;
        let identity = broker_identity(&path.join("keys").join("broker.pem"), ids)?;
        let operator_token = Zeroizing::new(operator_token(&path.join("operator.token"), ids)?);
        warn_of_readers(path);
        Ok(Self { path: path.into(), store, identity, operator_token })
    }

    pub(super) fn tls_folder(&self) -> PathBuf {
        self.path.join("tls")
    }

    pub(super) fn operator_token_path(&self) -> PathBuf {
        self.path.join("operator.token")
    }

    /// Says where the broker listens, for scripts that started it on port 0.
    pub(super) fn write_address(&self, address: SocketAddr) -> Result<(), FolderError> {
        write_whole(&self.path.join("address"), &format!("{address}\n"), 0o644)
    }

    pub(super) fn remove_address(&self) {
        // It may be gone already; a stale one does no harm either.
        drop(fs::remove_file(self.path.join("address")));
    }
}

/// Says so in the log if others on this machine can read what only the broker should.
pub(super) fn warn_of_readers(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let Ok(file) = fs::metadata(path) else { return };
    let mode = file.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let wanted = if file.is_dir() { "700" } else { "600" };
        tracing::warn!("others can read {} (mode {mode:o}): chmod {wanted} it", path.display());
    }
}

fn broker_identity(path: &Path, ids: &dyn IdSource) -> Result<BrokerIdentity, FolderError> {
    let key = if path.exists() {
        PrivateKey::read(path)?
    } else {
        let key = PrivateKey::generate(ids);
        let draft = path.with_extension("new");
        remove_if_there(&draft)?;
        key.write(&draft)?;
        rename_durably(&draft, path).map_err(|source| FolderError::File { path: path.into(), source })?;
        key
    };
    // Named after the key itself, so that receipts of an earlier key cannot be taken for this one's.
    let fingerprint = signing::sha256(&[key.public().as_bytes()]);
    let key_id = KeyId::parse(&format!("broker-{}", hex::encode(&fingerprint[..8]))).expect("it is a name");
    Ok(BrokerIdentity { key_id, key })
}

fn operator_token(path: &Path, ids: &dyn IdSource) -> Result<String, FolderError> {
    match fs::read_to_string(path) {
        Ok(token) if !token.trim().is_empty() => Ok(token.trim().to_owned()),
        Ok(_) => make_operator_token(path, ids),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => make_operator_token(path, ids),
        Err(source) => Err(FolderError::File { path: path.into(), source }),
    }
}

fn make_operator_token(path: &Path, ids: &dyn IdSource) -> Result<String, FolderError> {
    let token = hex::encode(random_bytes(ids));
    write_whole(path, &format!("{token}\n"), 0o600)?;
    Ok(token)
}

fn make_private(path: &Path) -> Result<(), FolderError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| FolderError::File { path: path.into(), source })
}

fn remove_if_there(path: &Path) -> Result<(), FolderError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FolderError::File { path: path.into(), source: error })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a file so that it is there whole or not at all.
fn write_whole(path: &Path, text: &str, mode: u32) -> Result<(), FolderError> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let draft = path.with_extension("new");
    remove_if_there(&draft)?;
    let written = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        rename_durably(&draft, path)
    });
    written.map_err(|source| FolderError::File { path: path.into(), source })
}

/// Renames, and syncs the folder: after a power cut the file is there, and receipts of this key can still be checked.
fn rename_durably(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(folder)?.sync_all()
}
