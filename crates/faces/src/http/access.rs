//! Which requests are served at all: by their host, their origin and their token.

use axum::response::{IntoResponse, Response};
use http::{
    HeaderMap, HeaderValue, StatusCode, Uri,
    header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE},
    uri::Authority,
};
use serde_json::{Value, json};

/// The names of this machine itself.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// When a client may try again after a request over a bound, in seconds.
const AGAIN_SECONDS: u64 = 1;
/// The same where the broker does not say it.
const LATER_SECONDS: u64 = 30;

/// A refused request. The body is JSON: the stable reason, and words.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) body: Value,
    /// The value of `WWW-Authenticate`.
    pub(super) challenge: Option<&'static str>,
}

impl Refused {
    pub(super) fn new(status: StatusCode, reason: &str, message: impl Into<String>) -> Self {
        Self::with(status, json!({"reason": reason, "message": message.into()}))
    }

    /// A refusal with this body. With a status of a missing or wrong token it names the way to show one.
    pub(super) fn with(status: StatusCode, body: Value) -> Self {
        // RFC 6750: without a token the challenge has no error.
        let is_missing = body["reason"] == MISSING;
        let challenge = match status {
            StatusCode::UNAUTHORIZED if is_missing => Some(r#"Bearer realm="baton""#),
            StatusCode::UNAUTHORIZED => Some(r#"Bearer realm="baton", error="invalid_token""#),
            _ => None,
        };
        Self { status, body, challenge }
    }

    /// A request over a bound.
    pub(super) fn busy(status: StatusCode, message: &str) -> Self {
        let body = json!({"reason": "LIMIT_EXCEEDED", "message": message, "retry_after_seconds": AGAIN_SECONDS});
        Self::with(status, body)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(challenge) = self.challenge {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            let seconds = self.body["retry_after_seconds"].as_u64().unwrap_or(LATER_SECONDS);
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The hosts by which the gateway may be reached. A page in a browser whose name was pointed at this machine (DNS rebinding)
/// names another host, and a page of another host shows its origin.
#[derive(Debug)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    /// These hosts beside those of this machine itself.
    pub(super) fn new(hosts: Vec<String>) -> Self {
        let hosts = hosts.into_iter().map(|host| host.trim_matches(['[', ']']).to_ascii_lowercase());
        Self(LOOPBACK.iter().map(|host| (*host).to_owned()).chain(hosts).collect())
    }

    /// Refuses a request for another host, or of a page of another host.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
        let mut named = headers.get_all(HOST).iter();
        let (Some(host), None) = (named.next(), named.next()) else {
            return Err(Refused::new(StatusCode::BAD_REQUEST, "HOST_INVALID", "the request must have one Host header"));
        };
        let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
        // A request line with a whole address must name an allowed host, too.
        let is_allowed = [host.as_ref(), uri.authority().or(host.as_ref())];
        if !is_allowed.into_iter().all(|authority| authority.is_some_and(|authority| self.has(authority))) {
            let text = "the gateway is not served under this host; --allow-host adds one";
            return Err(Refused::new(StatusCode::FORBIDDEN, "HOST_NOT_ALLOWED", text));
        }
        for origin in headers.get_all(ORIGIN) {
            let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
            let origin = origin.as_ref().filter(|origin| matches!(origin.scheme_str(), Some("http" | "https")));
            if !origin.and_then(Uri::authority).is_some_and(|authority| self.has(authority)) {
                let text = "a page of another host must not use the gateway";
                return Err(Refused::new(StatusCode::FORBIDDEN, "ORIGIN_NOT_ALLOWED", text));
            }
        }
        Ok(())
    }

    fn has(&self, authority: &Authority) -> bool {
        let host = authority.host().trim_matches(['[', ']']).to_ascii_lowercase();
        !authority.as_str().contains('@') && self.0.contains(&host)
    }
}

const MISSING: &str = "IDENTITY_MISSING";

/// The bearer token of a request.
pub(super) fn token_of(headers: &HeaderMap) -> Result<&str, Refused> {
    let text = "show the token of a grant: Authorization: Bearer TOKEN (`baton gateway grant` prints one)";
    let missing = || Refused::new(StatusCode::UNAUTHORIZED, MISSING, text);
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (Some(given), None) = (given.next(), given.next()) else { return Err(missing()) };
    let (scheme, token) = given.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(missing)?;
    match scheme.eq_ignore_ascii_case("bearer") {
        true => Ok(token.trim()),
        false => Err(missing()),
    }
}

/// The refusal of a token without a grant. It does not name the cause.
pub(super) fn no_grant() -> Refused {
    let text = "no grant has this token: it was never printed, was revoked, or has ended";
    Refused::new(StatusCode::UNAUTHORIZED, "TOKEN_INVALID", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_request_must_be_for_an_allowed_host_and_of_no_other_page() {
        let hosts = Hosts::new(vec!["Gateway.Example".to_owned(), "[2001:db8::1]".to_owned()]);
        let check = |uri: &'static str, pairs: &[(&'static str, &'static str)]| {
            let refused = hosts.check(&Uri::from_static(uri), &headers(pairs)).err()?;
            Some((refused.status.as_u16(), refused.body["reason"].as_str().unwrap().to_owned()))
        };
        for host in
            ["localhost", "127.0.0.1:22869", "[::1]:1", "gateway.example:443", "GATEWAY.EXAMPLE", "[2001:db8::1]"]
        {
            assert_eq!(check("/mcp", &[("host", host)]), None, "{host}");
        }
        let of = |status, reason: &str| Some((status, reason.to_owned()));
        for host in ["evil.example", "localhost.evil.example", "localhost@evil.example", "127.0.0.2", "0.0.0.0", "a b"]
        {
            assert_eq!(check("/mcp", &[("host", host)]), of(403, "HOST_NOT_ALLOWED"), "{host}");
        }
        assert_eq!(check("http://evil.example/mcp", &[("host", "localhost")]), of(403, "HOST_NOT_ALLOWED"));
        assert_eq!(check("http://localhost:1/mcp", &[("host", "localhost")]), None);
        assert_eq!(check("/mcp", &[]), of(400, "HOST_INVALID"));
        assert_eq!(check("/mcp", &[("host", "localhost"), ("host", "localhost")]), of(400, "HOST_INVALID"));
        for origin in ["https://evil.example", "null", "localhost", "file://localhost", "http://localhost.evil.example"]
        {
            let pairs = [("host", "localhost"), ("origin", origin)];
            assert_eq!(check("/mcp", &pairs), of(403, "ORIGIN_NOT_ALLOWED"), "{origin}");
        }
        for origin in ["http://localhost:3000", "https://gateway.example"] {
            assert_eq!(check("/mcp", &[("host", "localhost"), ("origin", origin)]), None, "{origin}");
        }
        let both = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil.example")];
        assert_eq!(check("/mcp", &both), of(403, "ORIGIN_NOT_ALLOWED"));
    }

    #[test]
    fn one_bearer_token_is_taken() {
        let of = |pairs: &[(&'static str, &'static str)]| token_of(&headers(pairs)).map(str::to_owned);
        assert_eq!(of(&[("authorization", "Bearer abc")]).unwrap(), "abc");
        assert_eq!(of(&[("authorization", "bearer abc")]).unwrap(), "abc");
        let two = [("authorization", "Bearer abc"), ("authorization", "Bearer abd")];
        for wrong in [&[][..], &[("authorization", "Basic abc")], &[("authorization", "abc")], &two] {
            let refused = of(wrong).unwrap_err();
            assert_eq!((refused.status.as_u16(), &refused.body["reason"]), (401, &json!("IDENTITY_MISSING")));
            let response = refused.into_response();
            assert_eq!(response.headers()[WWW_AUTHENTICATE], r#"Bearer realm="baton""#);
        }
        let response = no_grant().into_response();
        assert_eq!(response.headers()[WWW_AUTHENTICATE], r#"Bearer realm="baton", error="invalid_token""#);
    }
}
