//! A2A 1.0: the agents and types that the operator has published, each below `/a2a/NAME`.

mod cards;

use std::{collections::HashMap, sync::Arc};

use axum::{
    extract::{Path, Request, State},
    response::{IntoResponse as _, Response},
};
use http::{Method, StatusCode};

pub(super) use self::cards::Cards;
use super::{Gateway, access::Refused};

const CARD: &str = ".well-known/agent-card.json";

/// Answers a request below `/a2a/NAME`.
pub(super) async fn serve(
    State(gateway): State<Arc<Gateway>>,
    Path(path): Path<HashMap<String, String>>,
    request: Request,
) -> Response {
    let part = |name: &str| path.get(name).map(String::as_str).unwrap_or_default();
    let Some(published) = gateway.published.iter().find(|published| published.name() == part("name")) else {
        return unknown().into_response();
    };
    match (request.method(), part("rest")) {
        (&Method::GET | &Method::HEAD, CARD) => cards::card(&gateway, published, request).await,
        (_, CARD) => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        _ => unknown().into_response(),
    }
}

fn unknown() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "PATH_UNKNOWN", "nothing is published here")
}
