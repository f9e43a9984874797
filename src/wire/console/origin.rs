//! Refuses requests that another site makes a browser send. Owns that rule. No form needs a token for it.

use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{
    HeaderMap, Method, StatusCode, Uri,
    header::{HOST, ORIGIN},
};

/// Refuses each request that may change something and does not come from a page of this console.
pub(super) async fn same_origin(request: Request, next: Next) -> Response {
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if !is_safe && !is_own(request.headers(), request.uri()) {
        return (StatusCode::FORBIDDEN, "This request does not come from a page of this console.\n").into_response();
    }
    next.run(request).await
}

/// Whether the browser says that a page of this origin, or the user, sends the request.
fn is_own(headers: &HeaderMap, uri: &Uri) -> bool {
    let one = |name: &str| {
        let mut values = headers.get_all(name).iter();
        let first = values.next();
        // A header that occurs twice says nothing.
        first.filter(|_| values.next().is_none()).and_then(|value| value.to_str().ok())
    };
    if headers.contains_key("sec-fetch-site") {
        return matches!(one("sec-fetch-site"), Some("same-origin" | "none"));
    }
    let host = uri.authority().map(|host| host.as_str()).or_else(|| one(HOST.as_str()));
    // Browsers send at least one of the two headers. Any other client can set one itself.
    let origin = one(ORIGIN.as_str()).and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, origin)| host.is_some_and(|host| host.eq_ignore_ascii_case(origin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_origin_passes() {
        for (site, origin, expected) in [
            (Some("same-origin"), None, true),
            (Some("none"), None, true),
            (Some("cross-site"), None, false),
            (Some("same-site"), None, false),
            (Some(""), None, false),
            // The browser's word decides before the origin.
            (Some("cross-site"), Some("https://broker.example:22866"), false),
            (None, Some("https://broker.example:22866"), true),
            (None, Some("https://BROKER.example:22866"), true),
            (None, Some("https://broker.example"), false),
            (None, Some("https://evil.example"), false),
            (None, Some("null"), false),
            (None, None, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, "broker.example:22866".parse().unwrap());
            site.map(|site| headers.insert("sec-fetch-site", site.parse().unwrap()));
            origin.map(|origin| headers.insert(ORIGIN, origin.parse().unwrap()));
            assert_eq!(is_own(&headers, &Uri::from_static("/login")), expected, "{site:?} {origin:?}");
        }
    }

    #[test]
    fn a_header_that_occurs_twice_does_not_pass() {
        let mut headers = HeaderMap::new();
        headers.append("sec-fetch-site", "same-origin".parse().unwrap());
        headers.append("sec-fetch-site", "cross-site".parse().unwrap());
        assert!(!is_own(&headers, &Uri::from_static("/login")));
    }
}
