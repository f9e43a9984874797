//! The acts as JSON over HTTP, with the inputs, outputs and refusals of the tools.

use std::sync::Arc;

use axum::{
    extract::{Path, Request, State},
    response::{IntoResponse as _, Response},
};
use baton_client::codes::{Category, ErrorCode};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde_json::{Map, Value};

use super::{
    Gateway,
    access::{Refused, no_grant},
    body,
};
use crate::{ActError, text};

/// Runs an act.
pub(super) async fn act(State(gateway): State<Arc<Gateway>>, Path(name): Path<String>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let admitted = match gateway.callers.admit(&head.headers).await {
        Ok(admitted) => admitted,
        Err(refused) => return refused.into_response(),
    };
    let answered = async {
        let Some(act) = gateway.acts.iter().find(|act| act.name == name) else {
            let text = format!("there is no act {:?}; /api/v1/openapi.json lists all", text::clean(&name, 128));
            return Err(Refused::new(StatusCode::NOT_FOUND, "ACT_UNKNOWN", text));
        };
        if !is_json(&head.headers) {
            let text = "the Content-Type must be application/json";
            return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "CONTENT_TYPE_INVALID", text));
        }
        let arguments = arguments(&body::read(body).await?).map_err(|error| refused(&error))?;
        tokio::select! {
            output = act.run(Arc::clone(&admitted.caller.face), arguments) => output.map_err(|error| refused(&error)),
            // The end of a wait ends nothing.
            () = gateway.stop.cancelled() => Err(stopping()),
            () = admitted.caller.stop.cancelled() => Err(match gateway.stop.is_cancelled() {
                true => stopping(),
                false => no_grant(),
            }),
        }
    };
    let answer = match answered.await {
        Ok(output) => json(Value::Object(output).to_string().into()),
        Err(refused) => refused.into_response(),
    };
    body::holding(answer, admitted.place)
}

pub(super) fn stopping() -> Refused {
    let text = "The gateway stops. What the act began goes on; try again after a second.";
    refused(&ActError { retry_after_seconds: Some(1), ..ActError::new("SHUTTING_DOWN", text) })
}

/// The description of all acts.
pub(super) async fn openapi(State(gateway): State<Arc<Gateway>>) -> Response {
    json(gateway.openapi.clone().into())
}

pub(super) fn json(body: axum::body::Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let name = kind.split(';').next().unwrap_or_default();
    name.trim().eq_ignore_ascii_case("application/json")
}

/// The arguments in a body. An empty body has none.
fn arguments(body: &[u8]) -> Result<Map<String, Value>, ActError> {
    if body.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(arguments)) => Ok(arguments),
        Ok(_) => Err(ActError::argument("", "must be a JSON object")),
        Err(error) => Err(ActError::argument("", format!("not JSON: {error}"))),
    }
}

/// An act that did not happen, as an answer.
pub(super) fn refused(error: &ActError) -> Refused {
    let mut body = serde_json::to_value(error).unwrap_or_default();
    body["message"] = error.text.clone().into();
    Refused::with(status_of(&error.reason), body)
}

/// The status of a stable reason: that of its category, as gRPC's codes have one.
pub(super) fn status_of(reason: &str) -> StatusCode {
    match reason {
        "ARGUMENTS_INVALID" => return StatusCode::BAD_REQUEST,
        "PAYLOAD_TOO_LARGE" => return StatusCode::PAYLOAD_TOO_LARGE,
        "UNAVAILABLE" => return StatusCode::SERVICE_UNAVAILABLE,
        _ => {}
    }
    let code = ErrorCode::ALL.iter().find(|code| code.name() == reason);
    match code.map(|code| code.category()) {
        Some(Category::InvalidArgument | Category::OutOfRange) => StatusCode::BAD_REQUEST,
        // Of the broker's answers, those about the caller's own key. Another signature is not the caller's.
        Some(Category::Unauthenticated) if reason.starts_with("SIGNATURE") => StatusCode::BAD_GATEWAY,
        Some(Category::Unauthenticated) => StatusCode::UNAUTHORIZED,
        Some(Category::PermissionDenied) => StatusCode::FORBIDDEN,
        Some(Category::NotFound) => StatusCode::NOT_FOUND,
        Some(
            Category::AlreadyExists | Category::FailedPrecondition | Category::Aborted | Category::NotificationOnly,
        ) => StatusCode::CONFLICT,
        Some(Category::ResourceExhausted) => StatusCode::TOO_MANY_REQUESTS,
        Some(Category::Unavailable) => StatusCode::SERVICE_UNAVAILABLE,
        Some(Category::Unimplemented) => StatusCode::NOT_IMPLEMENTED,
        Some(Category::DataLoss | Category::Internal) => StatusCode::INTERNAL_SERVER_ERROR,
        // A proxy before the broker, or settings of the gateway.
        None => StatusCode::BAD_GATEWAY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_of_the_broker_has_the_status_of_its_kind() {
        for (reason, status) in [
            ("ARGUMENTS_INVALID", 400),
            ("FIELD_INVALID", 400),
            ("CHALLENGE_FAILED", 401),
            ("NOT_OWNER", 403),
            ("PERMISSION_DENIED", 403),
            ("TASK_UNKNOWN", 404),
            ("STALE_EPOCH", 409),
            ("HANDOFF_FINAL", 409),
            ("NO_CANDIDATE", 409),
            ("PAYLOAD_TOO_LARGE", 413),
            ("LIMIT_EXCEEDED", 429),
            ("INTERNAL", 500),
            ("NOT_SUPPORTED", 501),
            ("SIGNATURE_INVALID", 502),
            ("SETTINGS_INVALID", 502),
            ("STORE_UNAVAILABLE", 503),
            ("UNAVAILABLE", 503),
        ] {
            assert_eq!(status_of(reason).as_u16(), status, "{reason}");
        }
    }

    #[test]
    fn a_refusal_has_reason_words_and_pointer() {
        let error = arguments(b"[1]").unwrap_err();
        let refused = refused(&error);
        assert_eq!((refused.status.as_u16(), refused.body["field"].as_str()), (400, Some("")));
        assert!(refused.body["message"].as_str().unwrap().contains("must be a JSON object"), "{}", refused.body);
        assert_eq!(refused.body["reason"], "ARGUMENTS_INVALID");
        assert!(arguments(b" \n").unwrap().is_empty());
        assert!(arguments(b"{\"a\": 1}").unwrap().contains_key("a"));
        assert!(arguments(b"{").unwrap_err().text.contains("not JSON"));
    }
}
