//! The rule of HTTP/1 on the header `Host` (RFC 9112, section 3.2). Must not know any route, nor the form of a refusal.

use http::{Request, Version, header::HOST, uri::Authority};

/// Whether a request names its host as its version must: over HTTP/1.1 in exactly one header, over HTTP/1.0 in one at
/// most, each with a valid value. A proxy that reads another of several headers would see another request. HTTP/2 has
/// `:authority` instead.
pub fn names_host<B>(request: &Request<B>) -> bool {
    if request.version() >= Version::HTTP_2 {
        return true;
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) => request.version() < Version::HTTP_11,
        // Empty: the target has no authority.
        (Some(host), None) => host.is_empty() || is_authority(host.as_bytes()),
        (Some(_), Some(_)) => false,
    }
}

fn is_authority(host: &[u8]) -> bool {
    // A host with a user would be taken for one without.
    !host.contains(&b'@') && Authority::try_from(host).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_is_named_and_no_second_one() {
        for (version, hosts, expected) in [
            (Version::HTTP_11, &["broker.example:22866"][..], true),
            (Version::HTTP_11, &["[::1]:22866"], true),
            (Version::HTTP_11, &[""], true),
            (Version::HTTP_11, &[], false),
            (Version::HTTP_11, &["a.example", "a.example"], false),
            (Version::HTTP_11, &["a.example", "b.example"], false),
            (Version::HTTP_11, &["a b"], false),
            (Version::HTTP_11, &["a.example/x"], false),
            (Version::HTTP_11, &["a@b.example"], false),
            (Version::HTTP_10, &[], true),
            (Version::HTTP_10, &["a.example"], true),
            (Version::HTTP_10, &["a.example", "a.example"], false),
            (Version::HTTP_2, &[], true),
        ] {
            let request = Request::get("/").version(version);
            let request = hosts.iter().fold(request, |request, host| request.header(HOST, *host));
            assert_eq!(names_host(&request.body(()).unwrap()), expected, "{version:?} {hosts:?}");
        }
    }
}
