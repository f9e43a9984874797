//! The cookie of a session.

use http::{
    HeaderMap, HeaderValue,
    header::{COOKIE, SET_COOKIE},
};

/// The name. With this prefix a browser takes the cookie only over TLS, for this host alone and for all of its paths.
const NAME: &str = "__Host-baton";

/// The secret in the request's cookie. `None`: the request has no such cookie, or more than one.
pub(super) fn of(headers: &HeaderMap) -> Option<String> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut secrets = pairs.filter(|(name, _)| *name == NAME).map(|(_, secret)| secret.to_owned());
    let first = secrets.next();
    // A browser sends one cookie of a name and path, so a second one was put there by something else.
    first.filter(|_| secrets.next().is_none())
}

/// Sets the cookie, until the browser is closed.
pub(super) fn set(headers: &mut HeaderMap, secret: &str) {
    insert(headers, &format!("{NAME}={secret}; Path=/; Secure; HttpOnly; SameSite=Strict"));
}

/// Removes the cookie.
pub(super) fn remove(headers: &mut HeaderMap) {
    insert(headers, &format!("{NAME}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0"));
}

fn insert(headers: &mut HeaderMap, cookie: &str) {
    headers.insert(SET_COOKIE, HeaderValue::from_str(cookie).expect("hexadecimal digits and constant text"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_that_of_the_one_cookie() {
        for (lines, expected) in [
            (&["__Host-baton=ab"][..], Some("ab")),
            (&["a=b; __Host-baton=ab; c=d"], Some("ab")),
            (&["a=b", "__Host-baton=ab"], Some("ab")),
            (&["__Host-baton=ab; __Host-baton=cd"], None),
            (&["baton=ab"], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(COOKIE, HeaderValue::from_static(line));
            }
            assert_eq!(of(&headers).as_deref(), expected, "{lines:?}");
        }
    }
}
