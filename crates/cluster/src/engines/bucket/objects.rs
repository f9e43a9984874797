//! The objects of one log and register. Owns their requests, what an outcome means, and the count of them. Must not know
//! positions.

use std::{fmt, sync::Arc, time::Duration};

use baton_store::bucket::BucketOptions;
use bytes::Bytes;
use object_store::{
    ClientConfigKey, Error, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutResult, RetryConfig,
    UpdateVersion,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    path::Path,
};
use tokio_stream::StreamExt as _;

use crate::{log::Unavailable, requests::Requests};

/// The most time of one request. The driver of a member waits for less.
const REQUEST_TIMEOUT: &str = "10s";
/// The most time to connect.
const CONNECT_TIMEOUT: &str = "2s";
/// The objects of one answer to a listing, and of one request that deletes.
const PAGE: u64 = 1000;

/// A write that was not acknowledged.
#[derive(Debug)]
pub(super) enum Failure {
    /// The condition does not hold; or an object was new, and two writers were in conflict. Nothing was written by this
    /// request.
    Refused,
    /// It may be written, now or later.
    Unknown(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => formatter.write_str("the condition does not hold"),
            Self::Unknown(words) => formatter.write_str(words),
        }
    }
}

/// The time of an object, by the clock of the server.
pub(super) struct Time(ObjectMeta);

/// An object of a listing.
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) bytes: u64,
    meta: ObjectMeta,
}

impl Listed {
    /// How much older it is than another object. `None`: it is younger.
    pub(super) fn age(&self, now: &Time) -> Option<Duration> {
        (now.0.last_modified - self.meta.last_modified).to_std().ok()
    }
}

/// A client of the server.
///
/// No request is repeated: the outcome of a first try that was cut off would hide behind that of the second.
pub(super) fn connect(options: &BucketOptions) -> Result<Arc<dyn ObjectStore>, Unavailable> {
    let (bucket, _) = parts(options)?;
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() });
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = &options.region {
        builder = builder.with_region(region);
    }
    if options.allow_http {
        builder = builder.with_allow_http(true);
    }
    Ok(Arc::new(builder.build().map_err(unavailable)?))
}

/// The prefix of a cluster's objects.
pub(super) fn prefix(options: &BucketOptions, cluster: &str) -> Result<String, Unavailable> {
    let (_, prefix) = parts(options)?;
    Ok(if prefix.is_empty() { cluster.to_owned() } else { format!("{prefix}/{cluster}") })
}

fn parts(options: &BucketOptions) -> Result<(&str, &str), Unavailable> {
    options.parts().map_err(|problem| Unavailable(format!("the address of the bucket {problem}")))
}

fn unavailable(error: Error) -> Unavailable {
    Unavailable(error.to_string())
}

/// The objects below a prefix. Names are those behind it.
#[derive(Clone)]
pub(super) struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Arc<str>,
    pub(super) requests: Arc<Requests>,
}

impl Objects {
    pub(super) fn new(store: Arc<dyn ObjectStore>, prefix: String) -> Self {
        Self { store, prefix: prefix.into(), requests: Arc::default() }
    }

    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.prefix))
    }

    /// Asks whether the bucket is there and may be listed.
    pub(super) async fn look(&self) -> Result<(), Unavailable> {
        self.list("probe/", None, 1).await.map(drop)
    }

    /// The version and the bytes of an object.
    pub(super) async fn get(&self, name: &str) -> Result<Option<(String, Bytes)>, Unavailable> {
        self.requests.has_read();
        let found = match self.store.get(&self.path(name)).await {
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found.map_err(unavailable)?,
        };
        let version = found.meta.e_tag.clone().unwrap_or_default();
        Ok(Some((version, found.bytes().await.map_err(unavailable)?)))
    }

    async fn head(&self, name: &str) -> Result<Option<ObjectMeta>, Unavailable> {
        self.requests.has_read();
        match self.store.head(&self.path(name)).await {
            Err(Error::NotFound { .. }) => Ok(None),
            found => found.map(Some).map_err(unavailable),
        }
    }

    /// Whether an object is there.
    pub(super) async fn has(&self, name: &str) -> Result<bool, Unavailable> {
        Ok(self.head(name).await?.is_some())
    }

    /// The time of the last write of an object.
    pub(super) async fn time_of(&self, name: &str) -> Result<Time, Unavailable> {
        let found = self.head(name).await?;
        found.map(Time).ok_or_else(|| Unavailable(format!("the object {name:?} is gone")))
    }

    /// Writes an object whose name is free. Returns its version.
    pub(super) async fn create(&self, name: &str, bytes: Bytes) -> Result<String, Failure> {
        self.put(name, PutMode::Create, bytes).await
    }

    /// Writes an object that has this version. Returns the next one.
    pub(super) async fn update(&self, name: &str, version: &str, bytes: Bytes) -> Result<String, Failure> {
        let version = UpdateVersion { e_tag: Some(version.to_owned()), version: None };
        self.put(name, PutMode::Update(version), bytes).await
    }

    async fn put(&self, name: &str, mode: PutMode, bytes: Bytes) -> Result<String, Failure> {
        self.requests.wrote(1);
        // Of an object that is there it means a conflict (409): the server asks to try again.
        let is_new = matches!(mode, PutMode::Create);
        match self.store.put_opts(&self.path(name), bytes.into(), mode.into()).await {
            Ok(PutResult { e_tag: Some(version), .. }) => Ok(version),
            Ok(_) => Err(Failure::Unknown("the server gives no ETag".to_owned())),
            Err(Error::Precondition { .. } | Error::NotModified { .. }) => Err(Failure::Refused),
            Err(Error::AlreadyExists { .. }) if is_new => Err(Failure::Refused),
            Err(error) => Err(Failure::Unknown(error.to_string())),
        }
    }

    /// The first objects of a folder behind a name, in the order of their names.
    pub(super) async fn list(
        &self,
        folder: &str,
        behind: Option<&str>,
        count_max: usize,
    ) -> Result<Vec<Listed>, Unavailable> {
        let folder = self.path(folder);
        let mut listing = match behind {
            Some(behind) => self.store.list_with_offset(Some(&folder), &self.path(behind)),
            None => self.store.list(Some(&folder)),
        };
        let (begins, mut found) = (format!("{}/", self.prefix), Vec::new());
        while found.len() < count_max
            && let Some(meta) = listing.next().await
        {
            let meta = meta.map_err(unavailable)?;
            if let Some(name) = meta.location.as_ref().strip_prefix(&begins) {
                found.push(Listed { name: name.to_owned(), bytes: meta.size, meta });
            }
        }
        self.requests.wrote(found.len() as u64 / PAGE + 1);
        Ok(found)
    }

    /// Deletes objects that may be gone already.
    pub(super) async fn delete(&self, names: Vec<String>) -> Result<(), Unavailable> {
        self.requests.wrote((names.len() as u64).div_ceil(PAGE));
        let paths: Vec<_> = names.iter().map(|name| Ok(self.path(name))).collect();
        let mut deleted = self.store.delete_stream(Box::pin(tokio_stream::iter(paths)));
        while let Some(outcome) = deleted.next().await {
            match outcome {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(unavailable(error)),
            }
        }
        Ok(())
    }
}
