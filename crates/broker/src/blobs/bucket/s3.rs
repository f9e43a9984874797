//! The objects of a bucket. Owns their names and how they are read and written. Must not know which blobs there are. All
//! functions but [`Bucket::open`] and [`Bucket::look`] block on the network, and must run on a thread that may block.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use object_store::{
    ClientConfigKey, ObjectStore, ObjectStoreExt as _, RetryConfig, WriteMultipart,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    path::Path as ObjectPath,
};
use tokio::{runtime::Handle, sync::Semaphore};
use tokio_stream::StreamExt as _;

use super::BucketOptions;
use crate::{blobs::BlobPlace, time::Timestamp};

/// The bytes of one part of a large object, and the largest object that is written by one request.
const PART_BYTES: usize = 8 * 1024 * 1024;
/// The parts of one object that are under way.
const PARTS_MAX: usize = 2;
/// The objects that are written at the same time. Each has at most three parts in memory.
const WRITES_MAX: usize = 8;
/// The most time of one request.
const REQUEST_TIMEOUT: &str = "30s";
/// The most time to connect.
const CONNECT_TIMEOUT: &str = "5s";
/// How often, and for how long, a failed request is repeated. A caller repeats its call after that.
const RETRIES: (usize, Duration) = (3, Duration::from_secs(20));

/// A bucket, or the part of one below a prefix.
#[derive(Debug)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    /// The folder of the objects of a cluster, below the prefix. `None`: the bucket is that of a broker alone.
    cluster: Option<String>,
    runtime: Handle,
    writes: Semaphore,
}

impl Bucket {
    /// Prepares the use of a bucket by the brokers of a cluster. What they write lies in a folder of this id, so
    /// that no other cluster's objects are taken for theirs. As [`Self::open`] otherwise.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_shared(options: &BucketOptions, cluster: &[u8]) -> io::Result<Self> {
        Ok(Self::open(options)?.shared_by(cluster))
    }

    pub(in crate::blobs) fn shared_by(self, cluster: &[u8]) -> Self {
        Self { cluster: Some(hex::encode(cluster)), ..self }
    }

    pub(in crate::blobs) fn is_shared(&self) -> bool {
        self.cluster.is_some()
    }

    /// Prepares the use of a bucket. Asks nothing of the server. Must be called in a runtime.
    pub fn open(options: &BucketOptions) -> io::Result<Self> {
        let (bucket, prefix) =
            options.parts().map_err(|problem| io::Error::new(io::ErrorKind::InvalidInput, problem))?;
        let (max_retries, retry_timeout) = RETRIES;
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT)
            .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT)
            .with_retry(RetryConfig { max_retries, retry_timeout, ..RetryConfig::default() });
        if let Some(endpoint) = &options.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &options.region {
            builder = builder.with_region(region);
        }
        if options.allow_http {
            builder = builder.with_allow_http(true);
        }
        let store = builder.build().map_err(io::Error::from)?;
        Ok(Self::over(Arc::new(store), prefix, Handle::current()))
    }

    pub(in crate::blobs) fn over(store: Arc<dyn ObjectStore>, prefix: &str, runtime: Handle) -> Self {
        Self { store, prefix: prefix.to_owned(), cluster: None, runtime, writes: Semaphore::new(WRITES_MAX) }
    }

    fn object(&self, blob: &BlobPlace) -> ObjectPath {
        let (name, part) = (blob.name(), hex::encode(&blob.digest[..1]));
        match (&self.cluster, blob.object) {
            (Some(cluster), Some(_)) => ObjectPath::from(format!("{}/{cluster}/{part}/{name}", self.prefix)),
            _ => ObjectPath::from(format!("{}/{part}/{name}", self.prefix)),
        }
    }

    /// The objects of the cluster that were written before this time and are not named.
    pub(in crate::blobs) fn unnamed(
        &self,
        before: Timestamp,
        is_named: impl Fn(&BlobPlace) -> io::Result<bool>,
    ) -> io::Result<Vec<BlobPlace>> {
        let Some(cluster) = &self.cluster else { return Ok(Vec::new()) };
        let folder = ObjectPath::from(format!("{}/{cluster}", self.prefix));
        self.runtime.block_on(async {
            let (mut listed, mut unnamed) = (self.store.list(Some(&folder)), Vec::new());
            while let Some(object) = listed.next().await {
                let object = object?;
                let is_old = object.last_modified.timestamp() < before.unix_nanoseconds() / 1_000_000_000;
                let place = object.location.filename().and_then(BlobPlace::of_name);
                if let Some(place) = place.filter(|place| is_old && place.object.is_some())
                    && !is_named(&place)?
                {
                    unnamed.push(place);
                }
            }
            Ok(unnamed)
        })
    }

    /// Asks whether the bucket is there and may be listed.
    pub async fn look(&self) -> io::Result<()> {
        let prefix = ObjectPath::from(self.prefix.as_str());
        match self.store.list(Some(&prefix)).next().await {
            Some(Err(error)) => Err(error.into()),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Writes a file as the object of a blob. The object is there whole once this returns, or not at all.
    pub(in crate::blobs) fn put(&self, blob: &BlobPlace, file: &Path) -> io::Result<()> {
        let mut file = File::open(file)?;
        let object = self.object(blob);
        self.runtime.block_on(async {
            let _place = self.writes.acquire().await.map_err(io::Error::other)?;
            let mut part = next_part(&mut file)?;
            if part.len() < PART_BYTES {
                self.store.put(&object, part.into()).await?;
                return Ok(());
            }
            let mut upload = WriteMultipart::new_with_chunk_size(self.store.put_multipart(&object).await?, PART_BYTES);
            let written = loop {
                if part.is_empty() {
                    break Ok(());
                }
                if let Err(error) = upload.wait_for_capacity(PARTS_MAX).await {
                    break Err(io::Error::from(error));
                }
                upload.put(part);
                part = match next_part(&mut file) {
                    Ok(part) => part,
                    Err(error) => break Err(error),
                };
            };
            match written {
                // Parts of an upload that was never ended would cost space.
                Err(error) => {
                    drop(upload.abort().await);
                    Err(error)
                }
                // Its failure aborts the upload.
                Ok(()) => {
                    upload.finish().await?;
                    Ok(())
                }
            }
        })
    }

    /// Bytes of the object of a blob. Fails where the object has fewer.
    pub(in crate::blobs) fn read(&self, blob: &BlobPlace, offset: u64, bytes: u64) -> io::Result<Bytes> {
        if bytes == 0 {
            return Ok(Bytes::new());
        }
        let found = self.runtime.block_on(self.store.get_range(&self.object(blob), offset..offset + bytes))?;
        match found.len() as u64 == bytes {
            true => Ok(found),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Deletes the object of a blob if it exists.
    pub(in crate::blobs) fn delete(&self, blob: &BlobPlace) -> io::Result<()> {
        match self.runtime.block_on(self.store.delete(&self.object(blob))) {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            deleted => Ok(deleted?),
        }
    }
}

/// The next bytes of a file: a whole part, or the last ones.
fn next_part(file: &mut File) -> io::Result<Bytes> {
    let mut part = Vec::new();
    file.take(PART_BYTES as u64).read_to_end(&mut part)?;
    Ok(part.into())
}
