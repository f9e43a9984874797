//! The bucket of a build without the feature `s3`: there is none.

use std::{io, path::Path};

use bytes::Bytes;

use super::BucketOptions;
use crate::{blobs::BlobPlace, time::Timestamp};

/// A bucket, which no value of this type is.
#[derive(Debug)]
pub enum Bucket {}

impl Bucket {
    /// Refuses.
    ///
    /// # Errors
    ///
    /// Always: the build has no S3.
    pub fn open(_options: &BucketOptions) -> io::Result<Self> {
        let problem = "this build of baton has no S3; build it with the feature s3, or leave the bucket out of [blobs]";
        Err(io::Error::new(io::ErrorKind::Unsupported, problem))
    }

    /// Refuses, as [`Self::open`] does.
    ///
    /// # Errors
    ///
    /// Always: the build has no S3.
    pub fn open_shared(options: &BucketOptions, _cluster: &[u8]) -> io::Result<Self> {
        Self::open(options)
    }

    pub(in crate::blobs) fn is_shared(&self) -> bool {
        match *self {}
    }

    pub(in crate::blobs) fn unnamed(
        &self,
        _before: Timestamp,
        _is_named: impl Fn(&BlobPlace) -> io::Result<bool>,
    ) -> io::Result<Vec<BlobPlace>> {
        match *self {}
    }

    /// Asks whether the bucket is there and may be listed.
    ///
    /// # Errors
    ///
    /// None: there is no bucket.
    #[expect(clippy::unused_async, reason = "the shape of the bucket of a build with S3")]
    pub async fn look(&self) -> io::Result<()> {
        match *self {}
    }

    pub(in crate::blobs) fn put(&self, _blob: &BlobPlace, _file: &Path) -> io::Result<()> {
        match *self {}
    }

    pub(in crate::blobs) fn read(&self, _blob: &BlobPlace, _offset: u64, _bytes: u64) -> io::Result<Bytes> {
        match *self {}
    }

    pub(in crate::blobs) fn delete(&self, _blob: &BlobPlace) -> io::Result<()> {
        match *self {}
    }
}
