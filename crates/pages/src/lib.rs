//! What the pages of the web console and the page of `baton console` share: the style sheet,
//! the script, and the security headers.

#![forbid(unsafe_code)]

use http::{
    HeaderName, HeaderValue,
    header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
};

/// The style sheet of all pages.
pub const STYLE: &str = include_str!("console.css");

/// The script of all pages. A page works without it, and is read anew to see news.
pub const SCRIPT: &str = include_str!("console.js");
/// The library by which the script changes what differs in an open page.
pub const MORPH: &str = include_str!("idiomorph.min.js");

/// The policy for the contents of a page: files and forms of the same port, and nothing else.
const CONTENTS: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                        form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Adds the security headers of an answer. A browser then takes contents only from the same port, guesses no content
/// type, and does not tell other sites from which page a link was followed.
pub fn secure(headers: &mut http::HeaderMap) {
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, CONTENTS),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
