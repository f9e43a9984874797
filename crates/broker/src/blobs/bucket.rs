//! Complete blobs in a bucket of S3, or of a store that is compatible with it.
//!
//! Owns the names of the objects and how they are read and written. Must not know which blobs there are. All functions
//! but [`Bucket::open`] and [`Bucket::look`] block on the network, and must run on a thread that may block.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use object_store::{
    ClientConfigKey, ObjectStore, ObjectStoreExt as _, RetryConfig, WriteMultipart,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    path::Path as ObjectPath,
};
use tokio::{runtime::Handle, sync::Semaphore};
use tokio_stream::StreamExt as _;

use super::BlobDigest;

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

/// Where the bytes of complete blobs are. The credentials are in the environment, and never here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketOptions {
    /// `s3://BUCKET` or `s3://BUCKET/PREFIX`. Each broker needs a prefix of its own.
    pub url: String,
    /// The address of a compatible server. `None`: the one of AWS, or `AWS_ENDPOINT_URL`.
    pub endpoint: Option<String>,
    /// The region. `None`: `AWS_REGION`, or else `us-east-1`.
    pub region: Option<String>,
    /// Whether the server may be asked without TLS.
    pub allow_http: bool,
}

impl BucketOptions {
    /// The bucket and the prefix of the URL. Fails with what is wrong with it.
    pub fn parts(&self) -> Result<(&str, &str), &'static str> {
        let rest = self.url.strip_prefix("s3://").ok_or("must begin with s3://")?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte));
        let prefix = prefix.trim_end_matches('/');
        match (bucket.is_empty(), is_plain(rest), prefix.split('/').any(|part| matches!(part, "." | ".."))) {
            (true, ..) => Err("must name a bucket"),
            (_, false, _) => Err("must have a bucket and a prefix of A-Z a-z 0-9 . _ - and / only"),
            (.., true) => Err("must have a prefix without . and .."),
            _ if prefix.starts_with('/') || prefix.contains("//") => Err("must have a prefix without empty parts"),
            _ => Ok((bucket, prefix)),
        }
    }
}

/// A bucket, or the part of one below a prefix.
#[derive(Debug)]
pub struct Bucket {
    store: AmazonS3,
    prefix: String,
    runtime: Handle,
    writes: Semaphore,
}

impl Bucket {
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
        Ok(Self { store, prefix: prefix.to_owned(), runtime: Handle::current(), writes: Semaphore::new(WRITES_MAX) })
    }

    fn object(&self, blob: &BlobDigest) -> ObjectPath {
        let name = hex::encode(blob);
        ObjectPath::from(format!("{}/{}/{name}", self.prefix, &name[..2]))
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
    pub(super) fn put(&self, blob: &BlobDigest, file: &Path) -> io::Result<()> {
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
    pub(super) fn read(&self, blob: &BlobDigest, offset: u64, bytes: u64) -> io::Result<Bytes> {
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
    pub(super) fn delete(&self, blob: &BlobDigest) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_bucket_and_a_prefix() {
        let parts = |url: &str| {
            let options = BucketOptions { url: url.to_owned(), endpoint: None, region: None, allow_http: false };
            options.parts().map(|(bucket, prefix)| format!("{bucket} {prefix}"))
        };
        assert_eq!(parts("s3://blobs"), Ok("blobs ".to_owned()));
        assert_eq!(parts("s3://blobs/team/one/"), Ok("blobs team/one".to_owned()));
        for url in
            ["", "blobs", "gs://blobs", "s3://", "s3:///one", "s3://key:secret@blobs", "s3://b/../c", "s3://b//c"]
        {
            assert!(parts(url).is_err(), "{url:?}");
        }
    }
}
