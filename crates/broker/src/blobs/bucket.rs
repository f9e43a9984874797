//! Complete blobs in a bucket of S3, or of a store that is compatible with it.
//!
//! `s3` reads and writes its objects; a build without the feature `s3` has `absent` in its place,
//! which refuses to open a bucket.

#[cfg(not(feature = "s3"))]
mod absent;
#[cfg(feature = "s3")]
mod s3;

#[cfg(not(feature = "s3"))]
pub use absent::Bucket;
#[cfg(feature = "s3")]
pub use s3::Bucket;

/// Where the bytes of complete blobs are. Each broker needs a prefix of its own.
pub use baton_store::bucket::BucketOptions;
