//! Complete blobs in a bucket of S3, or of a store that is compatible with it.
//!
//! Owns where a bucket is. `s3` reads and writes its objects; a build without the feature `s3` has `absent` in its place,
//! which refuses to open a bucket.

#[cfg(not(feature = "s3"))]
mod absent;
#[cfg(feature = "s3")]
mod s3;

#[cfg(not(feature = "s3"))]
pub use absent::Bucket;
#[cfg(feature = "s3")]
pub use s3::Bucket;

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
