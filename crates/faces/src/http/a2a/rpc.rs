//! The JSON-RPC binding (A2A 9).

use a2a::{
    JsonRpcId,
    error_code::{INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR},
    methods,
};
use axum::response::{IntoResponse as _, Response};
use http::{Method, StatusCode, request::Parts};
use serde_json::{Map, Value, json};

use super::{Call, Ended, Events, Operation, Outcome, PushCall, check_version, parsed};
use crate::{
    a2a::Failure,
    http::{access::Refused, api},
};

pub(super) async fn answer(call: &Call<'_>, head: &Parts, body: &[u8]) -> Response {
    if head.method != Method::POST {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    if !api::is_json(&head.headers) {
        let text = "the Content-Type must be application/json";
        return Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "CONTENT_TYPE_INVALID", text).into_response();
    }
    let (id, request) = request_of(body);
    let operation = request.and_then(|(method, params)| {
        check_version(head)?;
        operation(&method, params)
    });
    let outcome = match operation {
        Ok(operation) => call.run(operation).await,
        Err(failure) => Err(Ended::Failed(failure)),
    };
    match outcome {
        Ok(Outcome::Value(result)) => api::json(succeeded(&id, &result).into()),
        Ok(Outcome::Stream(following)) => {
            let refused = id.clone();
            Events::of(following, move |event| succeeded(&id, event), move |failure| failed(&refused, failure))
                .into_response()
        }
        Err(Ended::Failed(failure)) => api::json(failed(&id, &failure).into()),
        Err(Ended::Refused(refused)) => refused.into_response(),
    }
}

fn succeeded(id: &JsonRpcId, result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

fn failed(id: &JsonRpcId, failure: &Failure) -> String {
    let error = json!({"code": failure.code, "message": failure.message, "data": failure.details()});
    json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
}

/// The id of a request as far as known, its method and its parameters.
fn request_of(body: &[u8]) -> (JsonRpcId, Result<(String, Value), Failure>) {
    let wrong = |text: &str| Err(Failure::new(INVALID_REQUEST, text));
    let value: Value = match serde_json::from_slice(body) {
        Ok(value) => value,
        Err(error) => {
            return (JsonRpcId::Null, Err(Failure::new(PARSE_ERROR, format!("the body is not JSON: {error}"))));
        }
    };
    let Value::Object(mut request) = value else {
        return (JsonRpcId::Null, wrong("the request must be a JSON object; batches are not supported"));
    };
    let id = request.remove("id").and_then(|id| serde_json::from_value(id).ok());
    let Some(id) = id.filter(|id| *id != JsonRpcId::Null) else {
        return (JsonRpcId::Null, wrong("id must be a text or a whole number"));
    };
    if request.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return (id, wrong("jsonrpc must be \"2.0\""));
    }
    let Some(Value::String(method)) = request.remove("method") else {
        return (id, wrong("method must be a text"));
    };
    match request.remove("params").unwrap_or(Value::Null) {
        Value::Null => (id, Ok((method, Value::Object(Map::new())))),
        params @ Value::Object(_) => (id, Ok((method, params))),
        _ => (id, wrong("params must be an object")),
    }
}

fn operation(method: &str, params: Value) -> Result<Operation, Failure> {
    Ok(match method {
        methods::SEND_MESSAGE => Operation::Send(parsed(params)?),
        methods::SEND_STREAMING_MESSAGE => Operation::SendStreaming(parsed(params)?),
        methods::GET_TASK => Operation::Get(parsed(params)?),
        methods::LIST_TASKS => Operation::List(parsed(params)?),
        methods::CANCEL_TASK => Operation::Cancel(parsed(params)?),
        methods::SUBSCRIBE_TO_TASK => Operation::Subscribe(parsed(params)?),
        methods::CREATE_PUSH_CONFIG => Operation::Push(PushCall::Create, params),
        methods::GET_PUSH_CONFIG => Operation::Push(PushCall::Get, params),
        methods::LIST_PUSH_CONFIGS => Operation::Push(PushCall::List, params),
        methods::DELETE_PUSH_CONFIG => Operation::Push(PushCall::Delete, params),
        methods::GET_EXTENDED_AGENT_CARD => Operation::ExtendedCard,
        other => {
            let shown = crate::text::clean(other, 64);
            return Err(Failure::new(METHOD_NOT_FOUND, format!("there is no method {shown:?}")));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_request_has_the_code_of_json_rpc() {
        let code = |body: &str| {
            let (id, request) = request_of(body.as_bytes());
            request.map(drop).map_err(|failure| (id, failure.code))
        };
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":"a","method":"GetTask"}"#), Ok(()));
        let number = || JsonRpcId::Number(1);
        for (body, id, expected) in [
            ("{", JsonRpcId::Null, -32700),
            ("[]", JsonRpcId::Null, -32600),
            (r#"{"jsonrpc":"2.0","method":"GetTask"}"#, JsonRpcId::Null, -32600),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"GetTask"}"#, JsonRpcId::Null, -32600),
            (r#"{"id":1,"method":"GetTask"}"#, number(), -32600),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, number(), -32600),
            (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[1]}"#, number(), -32600),
        ] {
            assert_eq!(code(body), Err((id, expected)), "{body}");
        }
        assert_eq!(operation("message/send", json!({})).err().map(|failure| failure.code), Some(-32601));
        assert_eq!(operation("GetTask", json!({})).err().map(|failure| failure.code), Some(-32602));
    }
}
