//! Cards over HTTP. Cards need no token, so the broker is asked for each at most once in some seconds.

use std::{collections::HashMap, time::Duration};

use a2a::AgentCard;
use axum::{
    extract::Request,
    response::{IntoResponse as _, Response},
};
use baton_client::{envelope::signing, time::Moment};
use http::{
    HeaderMap, HeaderValue, Method, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HOST, IF_NONE_MATCH},
};
use tokio::sync::Mutex;

use super::super::{Gateway, access::Refused, api};
use crate::{
    ActError,
    a2a::{Published, cards},
};

/// How long a card that was read counts.
const READ_FOR: Duration = Duration::from_secs(5);
/// How long a client may keep a card.
const KEPT_FOR: HeaderValue = HeaderValue::from_static("public, max-age=60");

/// The cards that were read last, by name. `None`: the broker has no agent of this name.
#[derive(Debug, Default)]
pub(in super::super) struct Cards(Mutex<HashMap<String, (Moment, Option<AgentCard>)>>);

pub(super) async fn card(gateway: &Gateway, published: &Published, request: Request) -> Response {
    let mut found = match read(gateway, published).await {
        Ok(Some(found)) => found,
        Ok(None) => return super::unknown().into_response(),
        Err(error) => return api::refused(&error).into_response(),
    };
    found.capabilities.push_notifications = Some(gateway.pushes.is_some());
    let Some(host) = request.headers().get(HOST).and_then(|host| host.to_str().ok()) else {
        return Refused::new(StatusCode::BAD_REQUEST, "HOST_INVALID", "the request must have a Host").into_response();
    };
    let url = format!("{}://{host}/a2a/{}", scheme(gateway.is_encrypted, request.headers()), published.name());
    let body = serde_json::to_vec(&cards::at(found, &url)).unwrap_or_default();
    let tag = format!("\"{}\"", hex::encode(&signing::sha256(&[&body])[..16]));
    let mut response = match is_known(request.headers(), &tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false if request.method() == Method::HEAD => StatusCode::OK.into_response(),
        false => body.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, KEPT_FOR);
    if let Ok(tag) = tag.parse() {
        headers.insert(ETAG, tag);
    }
    response
}

/// The scheme by which clients reach the gateway. Without TLS it serves this machine alone, so a proxy before it that ends
/// TLS is here, too, and may say so.
fn scheme(is_encrypted: bool, headers: &HeaderMap) -> &'static str {
    let forwarded = headers.get("x-forwarded-proto").map(HeaderValue::as_bytes);
    if is_encrypted || forwarded == Some(b"https") { "https" } else { "http" }
}

/// Whether the client has the card with this tag (RFC 9110, 13.1.2).
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let named = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    named.flat_map(|value| value.split(',')).any(|one| {
        let one = one.trim();
        one == "*" || one.trim_start_matches("W/") == tag
    })
}

/// The card, as any agent of a grant may read it: the gateway has no identity of its own.
async fn read(gateway: &Gateway, published: &Published) -> Result<Option<AgentCard>, ActError> {
    // Requests at the same time wait for the first.
    let mut known = gateway.cards.0.lock().await;
    if let Some((at, card)) = known.get(published.name())
        && at.elapsed() < READ_FOR
    {
        return Ok(card.clone());
    }
    let text = "No agent has lent the gateway a key, so it cannot read the card.";
    let mut problem = ActError { retry_after_seconds: Some(30), ..ActError::new("UNAVAILABLE", text) };
    for face in gateway.callers.faces() {
        match cards::read(&face, published, gateway.version).await {
            Ok(card) => {
                known.insert(published.name().to_owned(), (Moment::now(), card.clone()));
                return Ok(card);
            }
            Err(error) => problem = error,
        }
    }
    Err(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_names_the_scheme_of_the_proxy() {
        let mut headers = HeaderMap::new();
        assert_eq!((scheme(true, &headers), scheme(false, &headers)), ("https", "http"));
        headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
        assert_eq!(scheme(false, &headers), "https");
    }

    #[test]
    fn a_known_card_is_not_sent_again() {
        let mut headers = HeaderMap::new();
        assert!(!is_known(&headers, "\"a\""));
        headers.append(IF_NONE_MATCH, HeaderValue::from_static("\"b\", W/\"a\""));
        assert!(is_known(&headers, "\"a\"") && is_known(&headers, "\"b\"") && !is_known(&headers, "\"c\""));
        headers.append(IF_NONE_MATCH, HeaderValue::from_static("*"));
        assert!(is_known(&headers, "\"c\""));
    }
}
