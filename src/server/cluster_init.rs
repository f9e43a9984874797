//! The folder of a broker alone becomes that of the first broker of a cluster.
//!
//! Owns the order of the steps: the store notes the first entry of the shared log, the log gets it, and the store becomes one of
//! the cluster. An interrupted founding goes on with the next call. Must not know how an entry or a table is
//! kept.

use std::{
    io,
    path::{Path, PathBuf},
};

use baton_cluster::{
    driver::mark_of,
    entry::{Chain, EntryError, Expected, Foundation, Payload, TooLarge},
    log::{AppendError, Position, ReadError, SharedLog, Unavailable},
    settings::ClusterSettings,
};
use bytes::Bytes;

use super::{
    clustered::expected_of,
    folder::{FolderError, SharedKeys},
};
use crate::{
    blobs::BlobFiles,
    broker::{BrokerError, BrokerIdentity},
    config::Config,
    ids::{IdSource as _, SystemIds},
    records::BlobRecord,
    store::{EmbeddedStore, Founding, OpenError, ReadError as RecordError, Store},
};

/// The reason why a broker alone did not become the first of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The data folder has no store.
    #[error("{} has no store of a broker: a cluster without content needs no init, start its brokers", .0.display())]
    NoStore(PathBuf),
    /// The keys of the cluster are others than the broker's.
    #[error(
        "the keys in {} are not those of the broker in {}, whose receipts would be of an unknown key: make the folder with `baton \
         cluster keys --from {} --out FOLDER`",
        keys.display(), data.display(), data.display()
    )]
    OtherKeys {
        /// The folder of the cluster's keys.
        keys: PathBuf,
        /// The data folder of the broker.
        data: PathBuf,
    },
    /// The bytes of a blob are where the other brokers of the cluster cannot read them.
    #[error(
        "{} has blobs as files, which the other brokers cannot read: nothing was changed. Brokers of a cluster keep blobs in \
         the bucket of [blobs], and init takes over those that are there already", .0.display()
    )]
    Blobs(PathBuf),
    /// The shared log has entries.
    #[error(
        "the shared log of {name} has entries already: nothing was changed. Choose another name for the cluster, or start this \
         broker with an empty data folder as a further member"
    )]
    NotEmpty {
        /// The name of the cluster.
        name: String,
    },
    /// The engine can lose acknowledged entries.
    #[error("the shared log is unsafe: {}", .0.join("; "))]
    Unsafe(Vec<String>),
    /// The engine did not say whether the log has the entry.
    #[error("the outcome is not known yet: {0}. Run the command again")]
    Unknown(String),
    /// The engine cannot be reached.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A key cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// A record cannot be read.
    #[error(transparent)]
    Read(#[from] RecordError),
    /// A record cannot be read.
    #[error(transparent)]
    Record(#[from] BrokerError),
    /// The folder of blobs cannot be read.
    #[error("failed to read the folder of blobs: {0}")]
    Files(io::Error),
    /// The first entry does not fit.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The first entry is not one of this cluster.
    #[error(
        "the first entry of the shared log, which an earlier call has noted, is not of this cluster ({0}): run the command with the \
         configuration and arguments of that call"
    )]
    Entry(#[from] EntryError),
}

/// Makes the broker in `config.data`, which does not run, the first of its cluster.
pub async fn init(config: &Config, settings: &ClusterSettings) -> Result<(), InitError> {
    let (data, store) = (&config.data, config.data.join("store"));
    if !store.join("FORMAT").exists() {
        return Err(InitError::NoStore(data.clone()));
    }
    let keys = SharedKeys::read(&settings.keys)?;
    let own = SharedKeys::of_broker(data)?;
    if ids_of(&keys.identity) != ids_of(&own.identity) {
        return Err(InitError::OtherKeys { keys: settings.keys.clone(), data: data.clone() });
    }
    let (expected, cluster) = expected_of(settings, &keys.identity);
    let entry = first_entry(settings, &expected).await?;
    let (data, has_bucket) = (data.clone(), config.blob_bucket.is_some());
    let founding = blocking(move || begin(&data, has_bucket, &store, entry)).await??;
    make_first(settings, &expected, &cluster, founding).await
}

/// Makes the first entry of a log that has none. Looks at the engine first, and changes nothing.
pub(super) async fn first_entry(settings: &ClusterSettings, expected: &Expected) -> Result<Bytes, InitError> {
    let log = settings.log.open(&settings.name).await?.log;
    let found = log.settings().await?;
    if !found.unsafe_ones.is_empty() {
        return Err(InitError::Unsafe(found.unsafe_ones));
    }
    let foundation = Payload::Foundation(Foundation {
        cluster: expected.cluster.clone(),
        broker: settings.broker.clone(),
        id: Bytes::copy_from_slice(&SystemIds.random()),
        version: env!("CARGO_PKG_VERSION").into(),
        keys: expected.keys.clone(),
    });
    Ok(Chain::EMPTY.next(&foundation, expected, log.entry_bytes_max())?)
}

/// Gives the noted entry to the log, and makes the store the first one of the cluster.
pub(super) async fn make_first(
    settings: &ClusterSettings,
    expected: &Expected,
    cluster: &[u8; 16],
    founding: Founding,
) -> Result<(), InitError> {
    // Before the log has it: the founding that was cut off may be that of another cluster.
    let mut chain = Chain::EMPTY;
    chain.follow(founding.entry(), expected)?;
    let log = settings.log.open(&settings.name).await?.log;
    if !append(&*log, founding.entry()).await? {
        founding.cancel()?;
        return Err(InitError::NotEmpty { name: settings.name.clone() });
    }
    Ok(founding.finish(cluster, mark_of(chain))?)
}

/// Runs work that waits for the disk.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, InitError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| InitError::Unknown(error.to_string()))
}

fn begin(data: &Path, has_bucket: bool, store: &Path, entry: Bytes) -> Result<Founding, InitError> {
    match EmbeddedStore::open(store) {
        Ok(opened) if !are_blobs_shared(data, has_bucket, &opened)? => {
            return Err(InitError::Blobs(BlobFiles::folder(data)));
        }
        Ok(_) => {}
        // It was looked at before.
        Err(OpenError::Founding { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Founding::begin(store, || entry)?)
}

/// Whether all brokers can read the blobs: each is in the bucket, or there are none.
fn are_blobs_shared(data: &Path, has_bucket: bool, store: &dyn Store) -> Result<bool, InitError> {
    if !has_bucket {
        return Ok(!BlobRecord::any(store)?);
    }
    let files = BlobFiles::open(&BlobFiles::folder(data), None).map_err(InitError::Files)?;
    let mut are_shared = Ok(true);
    BlobRecord::each(store, |blob| {
        are_shared = blob
            .map_err(|error| InitError::Record(error.into()))
            .and_then(|blob| files.is_in_bucket(&blob.place()).map_err(InitError::Files));
        matches!(are_shared, Ok(true))
    })?;
    are_shared
}

/// Makes an entry the first of the log. Returns whether the log begins with it: an earlier call may have appended it.
async fn append(log: &dyn SharedLog, entry: &Bytes) -> Result<bool, InitError> {
    const FIRST: Position = 1;
    match log.append(FIRST - 1, entry.clone()).await {
        Ok(()) => Ok(true),
        Err(AppendError::TooLarge { bytes, bytes_max }) => Err(TooLarge { bytes, bytes_max }.into()),
        Err(AppendError::Unknown(problem)) => Err(InitError::Unknown(problem)),
        Err(AppendError::Fenced) => match log.read(FIRST, 1).await {
            Ok(entries) => Ok(entries.first().is_some_and(|(_, first)| first == entry)),
            Err(ReadError::Trimmed { .. }) => Ok(false),
            Err(ReadError::Unavailable(error)) => Err(error.into()),
            Err(ReadError::Damaged(problem)) => Err(InitError::Unknown(problem)),
        },
    }
}

/// What tells two identities apart: the keys of the broker and of its coordinator.
pub(super) fn ids_of(identity: &BrokerIdentity) -> (Vec<u8>, Vec<u8>) {
    (identity.key.public().as_bytes().to_vec(), identity.coordinator.public_key().public_key.to_vec())
}
