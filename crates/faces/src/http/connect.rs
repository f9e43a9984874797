//! Every call of `baton.v1` at `/baton.v1.Service/Method`, by the Connect protocol: the message is the body, and an error has
//! its code, its words and the broker's details. The broker sees a call of the grant's agent like any other.
//!
//! A unary call takes `application/json` or `application/proto`. A call whose answer is a stream takes `application/json` too,
//! and answers one line of JSON for each message; a client of Connect has the frames of `application/connect+json` or
//! `application/connect+proto`. Calls with a stream of requests need gRPC.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use baton_client::{
    EncodedAnswers,
    codes::{Category, ErrorCode},
    proto,
    time::Moment,
};
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    Gateway,
    access::Refused,
    body,
    callers::Caller,
    messages::{self, Method, Wrong},
};
use crate::{ActError, text};

const JSON: &str = "application/json";
const PROTO: &str = "application/proto";
const LINES: &str = "application/x-ndjson";
const FRAMES_OF_JSON: &str = "application/connect+json";
const FRAMES_OF_PROTO: &str = "application/connect+proto";

const VERSION: HeaderName = HeaderName::from_static("connect-protocol-version");
const TIMEOUT: HeaderName = HeaderName::from_static("connect-timeout-ms");
const FRAMES_ENCODING: HeaderName = HeaderName::from_static("connect-content-encoding");
const ACCEPT_POST: HeaderName = HeaderName::from_static("accept-post");

/// The most digits of a timeout.
const TIMEOUT_DIGITS_MAX: usize = 10;
/// The bytes before the message of a frame: flags, and the length.
const FRAME_HEAD_BYTES: usize = 5;
/// The flag of a compressed frame, and that of the last one.
const COMPRESSED: u8 = 1;
const LAST: u8 = 2;

/// How long the end of a stream waits for a client that does not read.
const END_TIME: Duration = Duration::from_secs(1);
/// The code of gRPC for a call whose time is over.
const DEADLINE_EXCEEDED: i32 = 4;

/// The codes of gRPC by number, with the name and the status that Connect gives them. 0 is no error.
const CODES: [(&str, u16); 17] = [
    ("unknown", 500),
    ("canceled", 499),
    ("unknown", 500),
    ("invalid_argument", 400),
    ("deadline_exceeded", 504),
    ("not_found", 404),
    ("already_exists", 409),
    ("permission_denied", 403),
    ("resource_exhausted", 429),
    ("failed_precondition", 400),
    ("aborted", 409),
    ("out_of_range", 400),
    ("unimplemented", 501),
    ("internal", 500),
    ("unavailable", 503),
    ("data_loss", 500),
    ("unauthenticated", 401),
];

/// The calls that give an agent or a new agent a key, or take one away. A token is lent for a time, and what a thief did with
/// these would outlast it.
const OF_KEYS: [&str; 5] = [
    "/baton.v1.AgentService/AddAgentKey",
    "/baton.v1.AgentService/CreateInvitation",
    "/baton.v1.AgentService/RegisterAgent",
    "/baton.v1.AgentService/RevokeAgentKey",
    "/baton.v1.AgentService/VouchForAgentKey",
];

/// The paths of all calls.
pub(super) fn routes() -> impl Iterator<Item = String> {
    messages::services().map(|service| format!("{service}/{{method}}"))
}

/// Refuses a request before its call: in the form of Connect where the path is that of one.
pub(super) fn refuse(path: &str, refused: Refused) -> Response {
    match path.starts_with("/baton.v1.") {
        true => refusal(&refused),
        false => refused.into_response(),
    }
}

/// The form of a call's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// One message as JSON, and one as the answer.
    Json,
    /// The same, encoded.
    Proto,
    /// One message as JSON, and a line of JSON for each answer.
    Lines,
    /// Frames of JSON.
    FramesOfJson,
    /// Frames of encoded messages.
    FramesOfProto,
}

impl Form {
    /// The form that a content type asks for. `None`: another one is needed.
    fn of(method: &Method, headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match (kind.as_str(), method.gives_stream) {
            (JSON, false) => Some(Self::Json),
            (PROTO, false) => Some(Self::Proto),
            (JSON, true) => Some(Self::Lines),
            (FRAMES_OF_JSON, true) => Some(Self::FramesOfJson),
            (FRAMES_OF_PROTO, true) => Some(Self::FramesOfProto),
            _ => None,
        }
    }

    const fn has_frames(self) -> bool {
        matches!(self, Self::FramesOfJson | Self::FramesOfProto)
    }

    const fn is_encoded(self) -> bool {
        matches!(self, Self::Proto | Self::FramesOfProto)
    }

    /// The content type of the answer.
    const fn answered(self) -> &'static str {
        match self {
            Self::Json => JSON,
            Self::Proto => PROTO,
            Self::Lines => LINES,
            Self::FramesOfJson => FRAMES_OF_JSON,
            Self::FramesOfProto => FRAMES_OF_PROTO,
        }
    }

    /// The encoded request in a body.
    fn request(self, method: &Method, body: Bytes) -> Result<Bytes, Failed> {
        let message = match self.has_frames() {
            true => only_frame(body)?,
            false => body,
        };
        match self.is_encoded() {
            true => Ok(message),
            false => method.encode(&message).map_err(|wrong| Failed::of_request(&wrong)),
        }
    }

    /// An answer as a body, or as a part of one.
    fn answer(self, method: &Method, message: Bytes) -> Result<Bytes, Failed> {
        if self.is_encoded() {
            return Ok(if self.has_frames() { frame(0, &message) } else { message });
        }
        let message = method.decode(&message).ok_or_else(|| {
            Failed::new(Category::Internal, "INTERNAL", "the broker's answer is no message of the schema".to_owned())
        })?;
        Ok(match self {
            Self::Lines => format!("{{\"result\":{message}}}\n").into(),
            Self::FramesOfJson => frame(0, message.as_bytes()),
            _ => message.into(),
        })
    }

    /// The end of a stream.
    fn end(self, failed: Option<&Failed>) -> Bytes {
        match failed {
            None if self.has_frames() => frame(LAST, b"{}"),
            None => Bytes::new(),
            Some(failed) => {
                let end = json!({"error": failed.body()}).to_string();
                if self.has_frames() { frame(LAST, end.as_bytes()) } else { (end + "\n").into() }
            }
        }
    }
}

/// The message of a body of one frame.
fn only_frame(mut body: Bytes) -> Result<Bytes, Failed> {
    let malformed = |problem: &str| Failed::new(Category::InvalidArgument, "MALFORMED", problem.to_owned());
    if body.len() < FRAME_HEAD_BYTES {
        return Err(malformed("the body must be one frame: a byte of flags, 4 bytes of length, the message"));
    }
    let head = body.split_to(FRAME_HEAD_BYTES);
    if head[0] & COMPRESSED != 0 {
        return Err(Failed::new(
            Category::Unimplemented,
            "NOT_SUPPORTED",
            "the frame must not be compressed".to_owned(),
        ));
    }
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    match usize::try_from(length).is_ok_and(|length| length == body.len()) {
        true => Ok(body),
        false => Err(malformed("the body must be one frame, and its length is another")),
    }
}

fn frame(flags: u8, message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(FRAME_HEAD_BYTES + message.len());
    frame.put_u8(flags);
    frame.put_u32(u32::try_from(message.len()).expect("a message of gRPC has at most 4 MiB"));
    frame.put_slice(message);
    frame.freeze()
}

/// A call that failed.
#[derive(Debug)]
struct Failed {
    status: proto::Status,
    /// The status of HTTP where it is not that of the code.
    http: Option<StatusCode>,
    challenge: Option<&'static str>,
}

impl Failed {
    /// A refusal of the gateway, in the broker's form.
    fn new(category: Category, reason: &str, message: String) -> Self {
        let info = json!({"reason": reason, "domain": "baton"});
        let details = vec![messages::detail_of("google.rpc.ErrorInfo", info)];
        proto::Status { code: category.grpc_code(), message, details }.into()
    }

    /// A call whose time is over.
    fn of_deadline() -> Self {
        let message = "the deadline has passed".to_owned();
        proto::Status { code: DEADLINE_EXCEEDED, message, details: Vec::new() }.into()
    }

    /// A request that is no message of its type.
    fn of_request(wrong: &Wrong) -> Self {
        let Wrong { field, problem } = wrong;
        if field.is_empty() {
            return Self::new(
                Category::InvalidArgument,
                "MALFORMED",
                format!("the request is not of its type: {problem}"),
            );
        }
        let mut failed = Self::new(Category::InvalidArgument, "FIELD_INVALID", format!("{field}: {problem}"));
        let violations = json!({"fieldViolations": [{"field": field, "description": problem}]});
        failed.status.details.push(messages::detail_of("google.rpc.BadRequest", violations));
        failed
    }

    /// A refusal before the call.
    fn of_refused(refused: &Refused) -> Self {
        let text = |name: &str| refused.body[name].as_str().unwrap_or_default().to_owned();
        let category = match refused.status {
            StatusCode::UNAUTHORIZED => Category::Unauthenticated,
            StatusCode::FORBIDDEN => Category::PermissionDenied,
            StatusCode::NOT_FOUND => Category::Unimplemented,
            StatusCode::TOO_MANY_REQUESTS => Category::ResourceExhausted,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::REQUEST_TIMEOUT => Category::Unavailable,
            _ => Category::InvalidArgument,
        };
        let mut failed = Self::new(category, &text("reason"), text("message"));
        if let Some(seconds) = refused.body["retry_after_seconds"].as_u64() {
            let retry = json!({"retryDelay": format!("{seconds}s")});
            failed.status.details.push(messages::detail_of("google.rpc.RetryInfo", retry));
        }
        failed.challenge = refused.challenge;
        // What a server of Connect answers by the status alone.
        failed.http = (refused.status == StatusCode::NOT_FOUND).then_some(StatusCode::NOT_FOUND);
        failed
    }

    /// No connection to the broker as this agent.
    fn of_act(error: &ActError) -> Self {
        let known = ErrorCode::ALL.iter().find(|code| code.name() == error.reason);
        let category = known.map_or(Category::Unavailable, |code| code.category());
        Self::new(category, &error.reason, error.text.clone())
    }

    fn body(&self) -> Value {
        let proto::Status { code, message, details } = &self.status;
        let details: Vec<Value> = details
            .iter()
            .map(|sent| {
                let (name, shown) = messages::detail(sent);
                let mut detail = json!({"type": name, "value": STANDARD_NO_PAD.encode(&sent.value)});
                if let Some(shown) = shown {
                    detail["debug"] = shown;
                }
                detail
            })
            .collect();
        json!({"code": named(*code).0, "message": message, "details": details})
    }

    /// The seconds after which another try may work.
    fn retry_after(&self) -> Option<u64> {
        let delay = self.status.details.iter().find_map(|sent| match messages::detail(sent) {
            ("google.rpc.RetryInfo", Some(shown)) => shown["retryDelay"].as_str().map(str::to_owned),
            _ => None,
        })?;
        let seconds: f64 = delay.strip_suffix('s')?.parse().ok()?;
        // A delay of the broker is below an hour.
        Duration::try_from_secs_f64(seconds.ceil().max(1.0)).ok().map(|delay| delay.as_secs())
    }

    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(named(self.status.code).1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = answered(JSON, self.body().to_string().into());
        *response.status_mut() = self.http.unwrap_or(status);
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if let Some(challenge) = self.challenge {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }
}

impl From<proto::Status> for Failed {
    fn from(status: proto::Status) -> Self {
        Self { status, http: None, challenge: None }
    }
}

fn named(code: i32) -> (&'static str, u16) {
    usize::try_from(code).ok().and_then(|code| CODES.get(code)).copied().unwrap_or(CODES[0])
}

fn answered(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A refusal before the call, in the form of Connect.
fn refusal(refused: &Refused) -> Response {
    Failed::of_refused(refused).into_response()
}

/// Makes a call as the grant's agent.
pub(super) async fn call(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let admitted = match gateway.callers.admit(&head.headers).await {
        Ok(admitted) => admitted,
        Err(refused) => return refusal(&refused),
    };
    let (path, caller) = (head.uri.path(), &admitted.caller);
    let answer = match messages::method(path) {
        Some(method) => made(&gateway, caller, method, path, &head.headers, body).await,
        None => {
            let text = format!("there is no call {}", text::clean(path, 128));
            refusal(&Refused::new(StatusCode::NOT_FOUND, "METHOD_UNKNOWN", text))
        }
    };
    body::holding(answer, admitted.place)
}

async fn made(
    gateway: &Arc<Gateway>,
    caller: &Arc<Caller>,
    method: &'static Method,
    path: &str,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    if method.takes_stream {
        let text = "a call with a stream of requests needs gRPC".to_owned();
        return Failed::new(Category::Unimplemented, "NOT_SUPPORTED", text).into_response();
    }
    if OF_KEYS.contains(&path) {
        let text = "a gateway changes no keys: make this call at the broker, with the agent's own key".to_owned();
        return Failed::new(Category::PermissionDenied, "PERMISSION_DENIED", text).into_response();
    }
    let Some(form) = Form::of(method, headers) else {
        let kinds = match method.gives_stream {
            true => [JSON, FRAMES_OF_JSON, FRAMES_OF_PROTO].join(", "),
            false => [JSON, PROTO].join(", "),
        };
        let text = format!("the Content-Type must be one of: {kinds}");
        let mut failed = Failed::new(Category::InvalidArgument, "CONTENT_TYPE_INVALID", text);
        failed.http = Some(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        let mut response = failed.into_response();
        response.headers_mut().insert(ACCEPT_POST, HeaderValue::from_str(&kinds).expect("the kinds are text"));
        return response;
    };
    let begun = async {
        let limit = limit_of(form, headers)?;
        let body = body::read(body).await.map_err(|refused| Failed::of_refused(&refused))?;
        let message = form.request(method, body)?;
        let timeout = limit.map(Limit::left);
        let client = caller.face.client().await.map_err(|error| Failed::of_act(&error))?;
        match method.gives_stream {
            true => {
                let answers = client.stream_encoded(path, message, timeout).await?;
                let (sender, receiver) = mpsc::channel(1);
                let pump = Pump { gateway: Arc::clone(gateway), caller: Arc::clone(caller), method, form, limit };
                tokio::spawn(pump.run(answers, sender));
                Ok(Body::from_stream(ReceiverStream::new(receiver)))
            }
            false => {
                let answer = client.call_encoded(path, message, timeout).await?;
                Ok(form.answer(method, answer)?.into())
            }
        }
    };
    let begun: Result<Body, Failed> = tokio::select! {
        begun = begun => begun,
        failed = stopped(gateway, caller) => Err(failed),
    };
    match begun {
        Ok(body) => answered(form.answered(), body),
        // A stream of frames says all errors in its last frame.
        Err(failed) if form.has_frames() => answered(form.answered(), form.end(Some(&failed)).into()),
        Err(failed) => failed.into_response(),
    }
}

/// Ends with the gateway, or with the grant.
async fn stopped(gateway: &Gateway, caller: &Caller) -> Failed {
    caller.stop.cancelled().await;
    match gateway.stop.is_cancelled() {
        true => {
            let text = "the gateway stops; try again after a second".to_owned();
            Failed::new(Category::Unavailable, "SHUTTING_DOWN", text)
        }
        false => Failed::of_refused(&super::access::no_grant()),
    }
}

/// The time limit of a call.
#[derive(Debug, Clone, Copy)]
struct Limit {
    began: Moment,
    time: Duration,
}

impl Limit {
    fn left(self) -> Duration {
        self.time.saturating_sub(self.began.elapsed())
    }
}

/// The time limit that the headers give, if any. `Err`: they ask for what is not there.
fn limit_of(form: Form, headers: &HeaderMap) -> Result<Option<Limit>, Failed> {
    let invalid = |text: String| Failed::new(Category::InvalidArgument, "FIELD_INVALID", text);
    if headers.get(VERSION).is_some_and(|version| version != "1") {
        return Err(invalid("Connect-Protocol-Version must be 1".to_owned()));
    }
    let encoding = headers.get(if form.has_frames() { FRAMES_ENCODING } else { CONTENT_ENCODING });
    if encoding.is_some_and(|encoding| encoding != "identity") {
        let text = "the body must not be compressed: the only encoding is identity".to_owned();
        return Err(Failed::new(Category::Unimplemented, "NOT_SUPPORTED", text));
    }
    let Some(given) = headers.get(TIMEOUT) else { return Ok(None) };
    let digits = given.to_str().ok().filter(|text| {
        (1..=TIMEOUT_DIGITS_MAX).contains(&text.len()) && text.bytes().all(|letter| letter.is_ascii_digit())
    });
    let milliseconds: Option<u64> = digits.and_then(|digits| digits.parse().ok());
    let milliseconds = milliseconds.ok_or_else(|| {
        invalid(format!("Connect-Timeout-Ms must be a number of at most {TIMEOUT_DIGITS_MAX} digits"))
    })?;
    Ok(Some(Limit { began: Moment::now(), time: Duration::from_millis(milliseconds) }))
}

/// Passes the answers of a stream on.
struct Pump {
    gateway: Arc<Gateway>,
    caller: Arc<Caller>,
    method: &'static Method,
    form: Form,
    limit: Option<Limit>,
}

impl Pump {
    /// Ends with the stream, the client, the grant, the time or the gateway.
    async fn run(self, mut answers: EncodedAnswers, sender: mpsc::Sender<Result<Bytes, std::convert::Infallible>>) {
        let over = async {
            match self.limit {
                Some(limit) => sleep(limit.left()).await,
                None => std::future::pending().await,
            }
        };
        let (stopped, mut over) = (stopped(&self.gateway, &self.caller), std::pin::pin!(over));
        let mut stopped = std::pin::pin!(stopped);
        let end = loop {
            let part = tokio::select! {
                // The client is gone.
                () = sender.closed() => return,
                failed = &mut stopped => break Some(failed),
                () = &mut over => break Some(Failed::of_deadline()),
                answer = answers.next() => match answer {
                    Ok(Some(message)) => self.form.answer(self.method, message),
                    Ok(None) => break None,
                    Err(status) => Err(status.into()),
                },
            };
            match part {
                Ok(part) => tokio::select! {
                    sent = sender.send(Ok(part)) => {
                        if sent.is_err() {
                            return;
                        }
                    }
                    // A client that does not read loses what it has not read.
                    failed = &mut stopped => break Some(failed),
                    () = &mut over => break Some(Failed::of_deadline()),
                },
                Err(failed) => break Some(failed),
            }
        };
        let end = self.form.end(end.as_ref());
        if !end.is_empty() {
            // The client may be gone, or not read.
            drop(timeout(END_TIME, sender.send(Ok(end))).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_of_keys_are_calls() {
        assert!(OF_KEYS.iter().all(|path| messages::method(path).is_some_and(|method| !method.gives_stream)));
    }

    #[test]
    fn an_error_has_its_code_its_words_and_its_details() {
        let info = messages::detail_of("google.rpc.ErrorInfo", json!({"reason": "LIMIT_EXCEEDED", "domain": "baton"}));
        let retry = messages::detail_of("google.rpc.RetryInfo", json!({"retryDelay": "1.2s"}));
        let other = proto::Any { type_url: "type.googleapis.com/other.Type".to_owned(), value: vec![1, 2].into() };
        let details = vec![info, retry, other];
        let failed = Failed::from(proto::Status { code: 8, message: "too many".to_owned(), details });
        let body = failed.body();
        assert_eq!((&body["code"], &body["message"]), (&json!("resource_exhausted"), &json!("too many")));
        assert_eq!(body["details"][0]["debug"]["reason"], "LIMIT_EXCEEDED");
        assert_eq!(body["details"][2], json!({"type": "other.Type", "value": "AQI"}), "an unknown type");
        let response = failed.into_response();
        assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (429, &"2".parse().unwrap()));
        for (code, name, status) in
            [(-1, "unknown", 500), (1, "canceled", 499), (16, "unauthenticated", 401), (17, "unknown", 500)]
        {
            assert_eq!(named(code), (name, status), "{code}");
        }
    }

    #[test]
    fn a_body_is_one_whole_frame() {
        let of = |body: &[u8]| only_frame(Bytes::copy_from_slice(body)).map_err(|failed| failed.status.code);
        assert_eq!(of(&frame(0, b"{}")).unwrap(), "{}");
        assert_eq!(of(&frame(0, b"")).unwrap(), "");
        let two = [frame(0, b"{}"), frame(0, b"{}")].concat();
        for (body, code) in [(&b""[..], 3), (b"{}", 3), (&[0, 0, 0, 0, 3, b'{'], 3), (&two, 3), (&frame(1, b"{}"), 12)]
        {
            assert_eq!(of(body).unwrap_err(), code, "{body:?}");
        }
    }
}
