//! The HTTP+JSON binding (A2A 11).

use a2a::error_code::{
    CONTENT_TYPE_NOT_SUPPORTED, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, TASK_NOT_FOUND,
};
use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use http::{
    HeaderValue, Method, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
    request::Parts,
};
use serde_json::{Map, Value, json};

use super::{Call, Ended, Events, Operation, Outcome, PushCall, check_version, parsed, query, unknown};
use crate::{a2a::Failure, http::api};

const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/a2a+json");
/// When a client may try again where the broker does not say it, in seconds.
const LATER_SECONDS: u64 = 30;

pub(super) async fn answer(call: &Call<'_>, head: &Parts, path: &str, body: &[u8]) -> Response {
    let operation = match operation(head, path, body) {
        Some(operation) => check_version(head).and(operation),
        None => return unknown().into_response(),
    };
    let outcome = match operation {
        Ok(operation) => call.run(operation).await,
        Err(failure) => Err(Ended::Failed(failure)),
    };
    match outcome {
        Ok(Outcome::Value(value)) => shown(StatusCode::OK, value.to_string()),
        Ok(Outcome::Stream(following)) => {
            Events::of(following, Value::to_string, |failure| failed(status_of(failure), failure).to_string())
                .into_response()
        }
        Err(Ended::Failed(failure)) => refused(&failure),
        Err(Ended::Refused(refused)) => refused.into_response(),
    }
}

/// The operation of a request; `None`: none has this method and path.
fn operation(head: &Parts, path: &str, body: &[u8]) -> Option<Result<Operation, Failure>> {
    let segments: Vec<&str> = path.split('/').collect();
    let about = |id: &str| json!({"id": id});
    let is_get = head.method == Method::GET;
    let is_post = head.method == Method::POST;
    Some(match segments[..] {
        ["message:send"] if is_post => json_of(body).and_then(parsed).map(Operation::Send),
        ["message:stream"] if is_post => json_of(body).and_then(parsed).map(Operation::SendStreaming),
        ["extendedAgentCard"] if is_get => Ok(Operation::ExtendedCard),
        ["tasks"] if is_get => listed(head).and_then(parsed).map(Operation::List),
        ["tasks", task, "pushNotificationConfigs"] if is_post => {
            json_of(body).map(|given| Operation::Push(PushCall::Create, with_task(given, task)))
        }
        ["tasks", task, "pushNotificationConfigs"] if is_get => {
            typed(head, &["pageSize"], &[]).map(|given| Operation::Push(PushCall::List, with_task(given, task)))
        }
        ["tasks", task, "pushNotificationConfigs", id] if is_get => {
            Ok(Operation::Push(PushCall::Get, config(task, id)))
        }
        ["tasks", task, "pushNotificationConfigs", id] if head.method == Method::DELETE => {
            Ok(Operation::Push(PushCall::Delete, config(task, id)))
        }
        ["tasks", task] => match task.rsplit_once(':') {
            Some((id, "cancel")) if is_post => json_of(body).and_then(|mut given| {
                given["id"] = id.into();
                parsed(given).map(Operation::Cancel)
            }),
            // The specification has POST, and its schema GET.
            Some((id, "subscribe")) if is_get || is_post => parsed(about(id)).map(Operation::Subscribe),
            None if is_get => typed(head, &["historyLength"], &[]).and_then(|mut given| {
                given["id"] = task.into();
                parsed(given).map(Operation::Get)
            }),
            _ => return None,
        },
        _ => return None,
    })
}

fn with_task(mut given: Value, task_id: &str) -> Value {
    given["taskId"] = task_id.into();
    given
}

fn config(task_id: &str, id: &str) -> Value {
    json!({"taskId": task_id, "id": id})
}

/// The JSON object of a body. An empty one has no members.
fn json_of(body: &[u8]) -> Result<Value, Failure> {
    if body.trim_ascii().is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    match serde_json::from_slice(body) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(Failure::new(INVALID_REQUEST, "the body must be a JSON object")),
        Err(error) => Err(Failure::new(PARSE_ERROR, format!("the body is not JSON: {error}"))),
    }
}

fn listed(head: &Parts) -> Result<Value, Failure> {
    typed(head, &["pageSize", "historyLength"], &["includeArtifacts"])
}

/// The parameters of the address, those of these names as numbers and as truth values.
fn typed(head: &Parts, numbers: &[&str], truths: &[&str]) -> Result<Value, Failure> {
    let mut given = Map::new();
    for (name, value) in query(&head.uri) {
        let value = if numbers.contains(&&*name) {
            let number = value.parse::<i32>().map_err(|error| Failure::invalid(&name, error))?;
            number.into()
        } else if truths.contains(&&*name) {
            value.parse::<bool>().map_err(|error| Failure::invalid(&name, error))?.into()
        } else {
            value.into()
        };
        given.insert(name, value);
    }
    Ok(given.into())
}

/// The status of a failure (A2A 5.4), for the broker's codes that of their kind.
fn status_of(failure: &Failure) -> StatusCode {
    match failure.code {
        TASK_NOT_FOUND => StatusCode::NOT_FOUND,
        INTERNAL_ERROR => api::status_of(&failure.reason),
        _ => StatusCode::BAD_REQUEST,
    }
}

/// The name of the status in gRPC.
fn name_of(status: StatusCode, failure: &Failure) -> &'static str {
    match status.as_u16() {
        400 if matches!(failure.code, INVALID_PARAMS | INVALID_REQUEST | PARSE_ERROR | CONTENT_TYPE_NOT_SUPPORTED) => {
            "INVALID_ARGUMENT"
        }
        400 | 409 => "FAILED_PRECONDITION",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        413 | 429 => "RESOURCE_EXHAUSTED",
        501 => "UNIMPLEMENTED",
        502 | 503 => "UNAVAILABLE",
        _ => "INTERNAL",
    }
}

fn failed(status: StatusCode, failure: &Failure) -> Value {
    json!({"error": {
        "code": status.as_u16(),
        "status": name_of(status, failure),
        "message": failure.message,
        "details": failure.details(),
    }})
}

fn refused(failure: &Failure) -> Response {
    let status = status_of(failure);
    let mut response = shown(status, failed(status, failure).to_string());
    let headers = response.headers_mut();
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        headers.insert(RETRY_AFTER, failure.retry_after_seconds.unwrap_or(LATER_SECONDS).into());
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(r#"Bearer realm="baton", error="invalid_token""#));
    }
    response
}

fn shown(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, MEDIA_TYPE);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ActError;

    fn run(method: Method, uri: &str, body: &str) -> Option<Result<Operation, Failure>> {
        let (head, ()) = http::Request::builder().method(method).uri(uri).body(()).unwrap().into_parts();
        let path = head.uri.path().to_owned();
        operation(&head, path.trim_start_matches('/'), body.as_bytes())
    }

    #[test]
    fn each_path_is_its_operation() {
        let list = run(Method::GET, "/tasks?pageSize=7&includeArtifacts=true&status=TASK_STATE_WORKING", "");
        let Some(Ok(Operation::List(list))) = list else { panic!("no list") };
        assert_eq!((list.page_size, list.include_artifacts), (Some(7), Some(true)));
        assert!(
            matches!(run(Method::GET, "/tasks/a2a-1?historyLength=0", ""), Some(Ok(Operation::Get(get))) if get.id == "a2a-1")
        );
        assert!(
            matches!(run(Method::POST, "/tasks/a2a-1:cancel", ""), Some(Ok(Operation::Cancel(cancel))) if cancel.id == "a2a-1")
        );
        for method in [Method::GET, Method::POST] {
            assert!(matches!(run(method, "/tasks/a:subscribe", ""), Some(Ok(Operation::Subscribe(_)))));
        }
        let (all, one) = ("/tasks/a/pushNotificationConfigs", "/tasks/a/pushNotificationConfigs/b");
        for (method, uri, call, params) in [
            (Method::POST, all, PushCall::Create, json!({"taskId": "a", "url": "u"})),
            (Method::GET, all, PushCall::List, json!({"taskId": "a"})),
            (Method::GET, one, PushCall::Get, json!({"taskId": "a", "id": "b"})),
            (Method::DELETE, one, PushCall::Delete, json!({"taskId": "a", "id": "b"})),
        ] {
            let found = run(method, uri, r#"{"url": "u"}"#);
            assert!(
                matches!(&found, Some(Ok(Operation::Push(found, given))) if (*found, given) == (call, &params)),
                "{call:?}"
            );
        }
        assert!(matches!(run(Method::GET, "/extendedAgentCard", ""), Some(Ok(Operation::ExtendedCard))));
        for (method, uri) in [
            (Method::GET, "/message:send"),
            (Method::POST, "/tasks"),
            (Method::POST, "/tasks/a:stop"),
            (Method::GET, "/x"),
        ] {
            assert!(run(method, uri, "").is_none(), "{uri}");
        }
    }

    #[test]
    fn a_wrong_request_is_status_400_and_names_its_field() {
        for (method, uri, body, field) in [
            (Method::GET, "/tasks?pageSize=x", "", Some("pageSize")),
            (Method::GET, "/tasks?includeArtifacts=1", "", Some("includeArtifacts")),
            (Method::POST, "/message:send", "{}", Some("params")),
            (Method::POST, "/message:send", "[]", None),
            (Method::POST, "/message:send", "{", None),
        ] {
            let failure = run(method, uri, body).unwrap().err().unwrap();
            assert_eq!(status_of(&failure), StatusCode::BAD_REQUEST, "{uri}");
            let error = failed(StatusCode::BAD_REQUEST, &failure);
            assert_eq!(error["error"]["status"], "INVALID_ARGUMENT", "{uri}");
            let named = error["error"]["details"][0]["fieldViolations"][0]["field"].as_str();
            assert_eq!(named, field, "{uri}");
        }
    }

    #[test]
    fn a_code_of_the_broker_has_the_status_of_its_kind() {
        for (reason, status, name) in [
            ("PERMISSION_DENIED", 403, "PERMISSION_DENIED"),
            ("LIMIT_EXCEEDED", 429, "RESOURCE_EXHAUSTED"),
            ("UNAVAILABLE", 503, "UNAVAILABLE"),
            ("CHALLENGE_FAILED", 401, "UNAUTHENTICATED"),
            ("INTERNAL", 500, "INTERNAL"),
        ] {
            let failure = Failure::from(ActError::new(reason, "no"));
            let response = refused(&failure);
            assert_eq!(response.status().as_u16(), status, "{reason}");
            assert_eq!(response.headers().contains_key(RETRY_AFTER), matches!(status, 429 | 503), "{reason}");
            assert_eq!(name_of(response.status(), &failure), name);
        }
        assert_eq!(status_of(&Failure::task_not_found()), StatusCode::NOT_FOUND);
        assert_eq!(name_of(StatusCode::BAD_REQUEST, &Failure::not_cancelable()), "FAILED_PRECONDITION");
    }
}
