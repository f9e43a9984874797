//! Where a bucket is, as an operator writes it. Must not know how its objects are read and written.

/// A bucket, or the part of one below a prefix. The credentials are in the environment, and never here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketOptions {
    /// `s3://BUCKET` or `s3://BUCKET/PREFIX`.
    pub url: String,
    /// The address of a compatible server. `None`: the one of AWS, or `AWS_ENDPOINT_URL`.
    pub endpoint: Option<String>,
    /// The region. `None`: `AWS_REGION`, or else `us-east-1`.
    pub region: Option<String>,
    /// Whether the server may be asked without TLS.
    pub allow_http: bool,
}

/// The wrong option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketProblem {
    /// [`BucketOptions::url`], and what is wrong with it.
    Url(&'static str),
    /// [`BucketOptions::endpoint`] is no address, or has a user name.
    Endpoint,
    /// [`BucketOptions::endpoint`] has no TLS, and that is not permitted.
    Plaintext,
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

    /// Checks the URL and the endpoint.
    ///
    /// # Errors
    ///
    /// The wrong option.
    pub fn check(&self) -> Result<(), BucketProblem> {
        self.parts().map_err(BucketProblem::Url)?;
        let Some(endpoint) = self.endpoint.as_deref() else { return Ok(()) };
        if endpoint.starts_with("http://") && !self.allow_http {
            return Err(BucketProblem::Plaintext);
        }
        // A part before @ could be a password, which a log would show.
        let has_scheme = ["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme));
        if has_scheme && !endpoint.contains('@') { Ok(()) } else { Err(BucketProblem::Endpoint) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str, endpoint: Option<&str>, allow_http: bool) -> BucketOptions {
        BucketOptions { url: url.to_owned(), endpoint: endpoint.map(str::to_owned), region: None, allow_http }
    }

    #[test]
    fn a_url_names_a_bucket_and_a_prefix() {
        let parts = |url: &str| options(url, None, false).parts().map(|(bucket, prefix)| format!("{bucket} {prefix}"));
        assert_eq!(parts("s3://blobs"), Ok("blobs ".to_owned()));
        assert_eq!(parts("s3://blobs/team/one/"), Ok("blobs team/one".to_owned()));
        for url in
            ["", "blobs", "gs://blobs", "s3://", "s3:///one", "s3://key:secret@blobs", "s3://b/../c", "s3://b//c"]
        {
            assert!(parts(url).is_err(), "{url:?}");
        }
    }

    #[test]
    fn an_endpoint_has_tls_unless_http_is_allowed_and_no_user_name() {
        let check = |endpoint: &str, allow_http| options("s3://b", Some(endpoint), allow_http).check();
        assert_eq!(check("https://h:1", false), Ok(()));
        assert_eq!(check("http://h:1", true), Ok(()));
        assert_eq!(check("http://h:1", false), Err(BucketProblem::Plaintext));
        for endpoint in ["h:1", "ftp://h", "https://key:secret@h"] {
            assert_eq!(check(endpoint, true), Err(BucketProblem::Endpoint), "{endpoint}");
        }
    }
}
