//! The calls of A2A 1.0 to the remote agent, in both bindings.

use std::time::Duration;

use a2a::{
    Message, SVC_PARAM_VERSION, SendMessageResponse, StreamResponse, Task, VERSION,
    error_code::{INTERNAL_ERROR, METHOD_NOT_FOUND, UNSUPPORTED_OPERATION},
    methods,
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time;

use super::{
    events::EventData,
    http::{Answer, Call, Http, Problem},
};
use crate::outgoing::Target;

/// The time limit of a call that does not wait for work.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(30);
/// The same for a message: an agent may wait for its work all the same.
const MESSAGE_TIME: Duration = Duration::from_secs(11 * 60);
/// A stream without a byte for this long counts as cut.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// The longest words of a refusal that are passed on, in bytes.
const WORDS_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binding {
    JsonRpc,
    HttpJson,
}

impl Binding {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::JsonRpc => a2a::TRANSPORT_PROTOCOL_JSONRPC,
            Self::HttpJson => a2a::TRANSPORT_PROTOCOL_HTTP_JSON,
        }
    }
}

/// An interface of the remote agent.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) target: Target,
    pub(super) binding: Binding,
    pub(super) tenant: Option<String>,
    /// Whether the agent has streams.
    pub(super) streams: bool,
}

/// The remote agent.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) http: Http,
    pub(super) place: Place,
}

/// A call of both bindings.
struct Operation {
    method: &'static str,
    /// The parameters of JSON-RPC, and the body of HTTP+JSON.
    params: Value,
    verb: Method,
    /// The path below the address of HTTP+JSON.
    path: String,
    limit: Duration,
}

impl Remote {
    /// Sends a message without waiting for the work.
    pub(super) async fn send(&self, message: &Message) -> Result<SendMessageResponse, Problem> {
        let configuration = json!({"returnImmediately": true});
        self.one(Operation {
            method: methods::SEND_MESSAGE,
            params: json!({"message": message, "configuration": configuration}),
            verb: Method::POST,
            path: "/message:send".to_owned(),
            limit: MESSAGE_TIME,
        })
        .await
    }

    /// Sends a message, and follows its task.
    pub(super) async fn send_streaming(&self, message: &Message) -> Result<Events, Problem> {
        self.stream(Operation {
            method: methods::SEND_STREAMING_MESSAGE,
            params: json!({"message": message}),
            verb: Method::POST,
            path: "/message:stream".to_owned(),
            limit: MESSAGE_TIME,
        })
        .await
    }

    /// Follows a task that has not ended.
    pub(super) async fn subscribe(&self, id: &str) -> Result<Events, Problem> {
        let operation = |verb| Operation {
            method: methods::SUBSCRIBE_TO_TASK,
            params: json!({"id": id}),
            verb,
            path: format!("/tasks/{}:subscribe", segment(id)),
            limit: ANSWER_TIME,
        };
        match self.stream(operation(Method::POST)).await {
            // The specification has POST, and its schema GET.
            Err(Problem::Refused { code: 405, .. }) => self.stream(operation(Method::GET)).await,
            answer => answer,
        }
    }

    pub(super) async fn get(&self, id: &str) -> Result<Task, Problem> {
        self.one(Operation {
            method: methods::GET_TASK,
            params: json!({"id": id}),
            verb: Method::GET,
            path: format!("/tasks/{}", segment(id)),
            limit: ANSWER_TIME,
        })
        .await
    }

    pub(super) async fn cancel(&self, id: &str) -> Result<Task, Problem> {
        self.one(Operation {
            method: methods::CANCEL_TASK,
            params: json!({"id": id}),
            verb: Method::POST,
            path: format!("/tasks/{}:cancel", segment(id)),
            limit: ANSWER_TIME,
        })
        .await
    }

    async fn one<T: DeserializeOwned>(&self, operation: Operation) -> Result<T, Problem> {
        let answer = self.call(operation, false).await?;
        self.value(answer).await
    }

    async fn stream(&self, operation: Operation) -> Result<Events, Problem> {
        let answer = self.call(operation, true).await?;
        if answer.is_stream() && answer.status.is_success() {
            return Ok(Events {
                binding: self.place.binding,
                source: Source::Stream(Box::new(answer), EventData::default()),
            });
        }
        // A refusal, or an agent that answers at once.
        let event = self.value(answer).await?;
        Ok(Events::one(event))
    }

    async fn call(&self, operation: Operation, is_stream: bool) -> Result<Answer, Problem> {
        let Place { target, binding, tenant, .. } = &self.place;
        let mut head = HeaderMap::new();
        let version = HeaderName::from_bytes(SVC_PARAM_VERSION.as_bytes());
        head.insert(version.map_err(|error| Problem::Here(error.to_string()))?, HeaderValue::from_static(VERSION));
        let accept = if is_stream { "text/event-stream, application/json" } else { "application/json" };
        head.insert(ACCEPT, HeaderValue::from_static(accept));
        let (base, query) = (target.uri.path().trim_end_matches('/'), target.uri.query());
        let (method, path, body) = match binding {
            Binding::JsonRpc => {
                let mut params = operation.params;
                if let Some(tenant) = tenant {
                    params["tenant"] = tenant.as_str().into();
                }
                let request = json!({"jsonrpc": "2.0", "id": 1, "method": operation.method, "params": params});
                (Method::POST, target.uri.path().to_owned(), request.to_string())
            }
            Binding::HttpJson => {
                let tenant = tenant.as_ref().map(|tenant| format!("/{}", segment(tenant))).unwrap_or_default();
                head.insert(CONTENT_TYPE, HeaderValue::from_static("application/a2a+json"));
                let has_body = operation.verb == Method::POST && operation.params.get("message").is_some();
                let body = if has_body { operation.params.to_string() } else { String::new() };
                (operation.verb, format!("{base}{tenant}{}", operation.path), body)
            }
        };
        let path = query.map_or(path.clone(), |query| format!("{path}?{query}"));
        let (body, limit) = (Bytes::from(body), operation.limit);
        self.http.send(Call { method, target, path, head, body, limit }).await
    }

    /// The value of an answer without a stream.
    async fn value<T: DeserializeOwned>(&self, answer: Answer) -> Result<T, Problem> {
        let status = answer.status;
        let bytes = answer.read(MESSAGE_TIME).await?;
        result_of(self.place.binding, status, &bytes)
    }
}

/// The events of a stream, or the single answer in place of them.
pub(super) struct Events {
    binding: Binding,
    source: Source,
}

enum Source {
    Stream(Box<Answer>, EventData),
    One(Option<Box<StreamResponse>>),
}

impl Events {
    /// A single event.
    pub(super) fn one(event: StreamResponse) -> Self {
        Self { binding: Binding::HttpJson, source: Source::One(Some(Box::new(event))) }
    }

    /// The next event; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<StreamResponse>, Problem> {
        let (answer, data) = match &mut self.source {
            Source::Stream(answer, data) => (answer, data),
            Source::One(event) => return Ok(event.take().map(|event| *event)),
        };
        loop {
            if let Some(event) = data.next() {
                return result_of(self.binding, StatusCode::OK, &event).map(Some);
            }
            let silent = |_| Problem::Passing("the stream is silent".to_owned());
            match time::timeout(SILENCE_MAX, answer.chunk()).await.map_err(silent)?? {
                Some(bytes) => data.push(&bytes)?,
                None => return Ok(None),
            }
        }
    }
}

/// The value of an answer, or of an event.
fn result_of<T: DeserializeOwned>(binding: Binding, status: StatusCode, bytes: &[u8]) -> Result<T, Problem> {
    let parsed: Option<Value> = serde_json::from_slice(bytes).ok();
    let error = parsed.as_ref().and_then(|value| value.get("error")).filter(|error| error.is_object());
    if let Some(error) = error {
        return Err(refusal(binding, status, error));
    }
    match status {
        status if status.is_success() => {}
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
            return Err(Problem::Passing(format!("the status is {status}")));
        }
        status if status.is_server_error() => return Err(Problem::Passing(format!("the status is {status}"))),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let words = "it does not take the token of --bearer-file, or asks for one".to_owned();
            return Err(Problem::Refused { code: code_of(status), words });
        }
        status => {
            let words = status.canonical_reason().unwrap_or("an unknown status").to_owned();
            return Err(Problem::Refused { code: code_of(status), words });
        }
    }
    let value = parsed.ok_or_else(|| Problem::Invalid("an answer is no JSON".to_owned()))?;
    let value = match binding {
        Binding::HttpJson => value,
        Binding::JsonRpc => match value {
            Value::Object(mut members) => members
                .remove("result")
                .ok_or_else(|| Problem::Invalid("an answer has neither result nor error".to_owned()))?,
            _ => return Err(Problem::Invalid("an answer is no JSON object".to_owned())),
        },
    };
    serde_json::from_value(value).map_err(|error| Problem::Invalid(error.to_string()))
}

/// The code of a refusal by a status alone.
fn code_of(status: StatusCode) -> i32 {
    i32::from(status.as_u16())
}

/// What an error says: that of JSON-RPC by its code, that of HTTP+JSON by the reason among its details.
fn refusal(binding: Binding, status: StatusCode, error: &Value) -> Problem {
    let words = error["message"].as_str().unwrap_or("it gives no reason");
    let words = words[..words.floor_char_boundary(WORDS_MAX)].to_owned();
    let code = match binding {
        Binding::JsonRpc => error["code"].as_i64().and_then(|code| i32::try_from(code).ok()).unwrap_or(INTERNAL_ERROR),
        Binding::HttpJson => {
            let details = error["details"].as_array().into_iter().flatten();
            details
                .filter_map(|detail| a2a::reason_to_error_code(detail["reason"].as_str()?))
                .next()
                .unwrap_or(code_of(status))
        }
    };
    let is_busy = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
    let is_passing = code == INTERNAL_ERROR || (code == code_of(status) && is_busy);
    match is_passing {
        true => Problem::Passing(words),
        false => Problem::Refused { code, words },
    }
}

/// Whether the agent says that it has no streams, or none for a task that has ended.
pub(super) fn is_without_stream(problem: &Problem) -> bool {
    matches!(problem, Problem::Refused { code: UNSUPPORTED_OPERATION | METHOD_NOT_FOUND, .. })
}

/// A text as a segment of a path.
fn segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => segment.push(char::from(byte)),
            _ => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(binding: Binding, status: u16, text: &str) -> Result<Value, Problem> {
        result_of(binding, StatusCode::from_u16(status).unwrap(), text.as_bytes())
    }

    #[test]
    fn a_refusal_has_its_code_in_both_bindings() {
        let rpc = |text: &str| parsed(Binding::JsonRpc, 200, text);
        assert_eq!(rpc(r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#), Ok(json!({"a": 1})));
        let unknown = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"gone"}}"#;
        assert_eq!(rpc(unknown), Err(Problem::Refused { code: -32001, words: "gone".to_owned() }));
        let inner = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"later"}}"#;
        assert_eq!(rpc(inner), Err(Problem::Passing("later".to_owned())));
        assert!(matches!(rpc("{}"), Err(Problem::Invalid(_))));
        assert!(matches!(rpc("<html>"), Err(Problem::Invalid(_))));

        let http = |status, text: &str| parsed(Binding::HttpJson, status, text);
        assert_eq!(http(200, r#"{"a":1}"#), Ok(json!({"a": 1})));
        let unknown = r#"{"error":{"code":404,"message":"gone","details":[{"reason":"TASK_NOT_FOUND"}]}}"#;
        assert_eq!(http(404, unknown), Err(Problem::Refused { code: -32001, words: "gone".to_owned() }));
        for (status, is_passing) in [(503, true), (429, true), (408, true), (401, false), (404, false), (301, false)] {
            assert_eq!(http(status, "").unwrap_err().is_passing(), is_passing, "{status}");
        }
        assert!(http(401, "").unwrap_err().to_string().contains("--bearer-file"));
    }

    #[test]
    fn an_id_is_one_segment_of_a_path() {
        assert_eq!(segment("a2a-1/../x?y ä"), "a2a-1%2F..%2Fx%3Fy%20%C3%A4");
    }
}
