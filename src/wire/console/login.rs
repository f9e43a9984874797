//! Login and logout.

use askama::Template;
use axum::{
    Extension, Form,
    extract::{Query, State},
    response::Response,
};
use http::{HeaderMap, StatusCode, Uri};
use serde::Deserialize;

use super::{Console, cookie, page, see_other};
use crate::{
    broker::{Broker, BrokerError, access::Caller, identity::Credential},
    ids::AgentId,
    wire::edge::ConnectInfo,
};

/// The page after a login that was not on the way to another one.
const FIRST_PAGE: &str = "/overview";

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    is_refused: bool,
    /// The agent of the connection's client certificate.
    certified: Option<String>,
    /// The caller of the browser's session. The script asks before a code replaces it.
    present: Option<String>,
    next: String,
}

#[derive(Deserialize)]
pub(super) struct LoginQuery {
    #[serde(default)]
    next: String,
}

/// One of the three proves the caller.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
pub(super) struct LoginForm {
    token: String,
    code: String,
    /// Not empty: the client certificate of the connection.
    certificate: String,
    next: String,
}

/// The login, on the way to this page.
pub(super) fn path_to(uri: &Uri) -> String {
    let Some(path) = uri.path_and_query().filter(|path| path.as_str() != FIRST_PAGE) else {
        return "/login".to_owned();
    };
    format!("/login?{}", form_urlencoded::Serializer::new(String::new()).append_pair("next", path.as_str()).finish())
}

/// The page to go to. Only pages of this console: a path of its own that names no host.
fn next_page(next: &str) -> &str {
    let is_own = next.starts_with('/') && !next.starts_with("//") && !next.contains(['\\', '\r', '\n', '\t']);
    if is_own { next } else { FIRST_PAGE }
}

pub(super) async fn form(
    State(console): State<Console>,
    connection: Option<Extension<ConnectInfo>>,
    headers: HeaderMap,
    Query(query): Query<LoginQuery>,
) -> Response {
    let certified = certified(&console.broker, connection).map(|agent| agent.to_string());
    let present = cookie::of(&headers).and_then(|secret| console.sessions.caller(&secret, &console.broker, false));
    let present = present.map(|caller| caller.to_string());
    page(StatusCode::OK, &LoginPage { is_refused: false, certified, present, next: query.next })
}

/// The registered agent of the connection's client certificate.
fn certified(broker: &Broker, connection: Option<Extension<ConnectInfo>>) -> Option<AgentId> {
    let Extension(connection) = connection?;
    connection.agent.filter(|agent| broker.directory().is_registered(agent))
}

/// Exchanges a proof for a session.
pub(super) async fn log_in(
    State(console): State<Console>,
    connection: Option<Extension<ConnectInfo>>,
    headers: HeaderMap,
    Form(form): Form<LoginForm>,
) -> Response {
    let broker = &console.broker;
    let certified = certified(broker, connection);
    let Ok((caller, credential)) = proven(broker, &form, certified.clone()) else {
        let certified = certified.map(|agent| agent.to_string());
        return page(StatusCode::FORBIDDEN, &LoginPage { is_refused: true, certified, present: None, next: form.next });
    };
    // The browser forgets the secret of its former session, so no request could end that one.
    if let Some(former) = cookie::of(&headers) {
        console.sessions.end(&former);
    }
    tracing::info!(%caller, "a session of the console begins");
    let secret = console.sessions.begin(caller, credential, broker);
    let mut answer = see_other(next_page(&form.next));
    cookie::set(answer.headers_mut(), &secret);
    answer
}

fn proven(broker: &Broker, form: &LoginForm, certified: Option<AgentId>) -> Result<(Caller, Credential), BrokerError> {
    let now = broker.now();
    if !form.code.is_empty() {
        return broker.identities().log_in(&form.code, broker.directory(), now);
    }
    match certified {
        Some(agent) if !form.certificate.is_empty() => {
            Ok((Caller::Agent(agent.clone()), Credential::Certificate(agent)))
        }
        _ => broker.identities().prove(form.token.trim(), broker.directory(), now),
    }
}

pub(super) async fn log_out(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    if let Some(secret) = cookie::of(&headers) {
        console.sessions.end(&secret);
    }
    tracing::info!(%caller, "a session of the console ends");
    let mut answer = see_other("/login");
    cookie::remove(answer.headers_mut());
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_goes_on_to_pages_of_this_console_alone() {
        for (next, expected) in [
            ("/handoffs?state=all", "/handoffs?state=all"),
            ("", FIRST_PAGE),
            ("https://evil.example/", FIRST_PAGE),
            ("//evil.example/", FIRST_PAGE),
            ("/\\evil.example/", FIRST_PAGE),
            ("/\t/evil.example/", FIRST_PAGE),
        ] {
            assert_eq!(next_page(next), expected, "{next:?}");
        }
    }

    #[test]
    fn the_way_to_the_login_names_the_page() {
        for (uri, expected) in [
            ("/overview", "/login"),
            ("/handoffs", "/login?next=%2Fhandoffs"),
            ("/handoffs?agent=a&state=all", "/login?next=%2Fhandoffs%3Fagent%3Da%26state%3Dall"),
        ] {
            assert_eq!(path_to(&Uri::from_static(uri)), expected);
        }
    }
}
