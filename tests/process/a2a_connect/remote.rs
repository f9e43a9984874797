//! A remote agent that speaks A2A 1.0 over JSON-RPC, as a script of the test.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};

use crate::broker::eventually;

/// The answer to a call.
pub(super) enum Reply {
    Result(Value),
    Error(i64, &'static str),
    /// Events, and how their stream ends.
    Stream(Vec<Value>, End),
    /// No answer, as long as the connection lives.
    Silence,
}

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Closed,
    /// In the middle of an event.
    Cut,
    /// Not at all.
    Open,
}

/// A call that has come.
#[derive(Debug, Clone)]
pub(super) struct Heard {
    pub(super) method: String,
    pub(super) params: Value,
    pub(super) authorization: Option<String>,
}

/// Answers a call. The number counts earlier calls of the same method.
type Script = dyn Fn(&Heard, usize) -> Reply + Send + Sync;

/// The remote agent. It ends with the test.
pub(super) struct Remote {
    pub(super) url: String,
    shared: Arc<Shared>,
}

struct Shared {
    script: Box<Script>,
    card: Value,
    heard: Mutex<Vec<Heard>>,
    /// The streams that stay open.
    open: Mutex<Vec<Piece>>,
}

type Piece = mpsc::Sender<Result<Bytes, io::Error>>;

/// The bytes of an answer, as they come. What came before a failure is sent first.
struct Piped {
    pieces: mpsc::Receiver<Result<Bytes, io::Error>>,
    failure: Option<io::Error>,
}

impl Body for Piped {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(failure) = self.failure.take() {
            return Poll::Ready(Some(Err(failure)));
        }
        match self.pieces.poll_recv(context) {
            Poll::Ready(Some(Err(failure))) => {
                self.failure = Some(failure);
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(piece) => Poll::Ready(piece.map(|piece| piece.map(Frame::data))),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// The card of an agent at this address.
pub(super) fn card(url: &str) -> Value {
    json!({
        "name": "biller", "description": "It bills.", "version": "1",
        "supportedInterfaces": [{"url": format!("{url}/rpc"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        "capabilities": {"streaming": true},
        "defaultInputModes": ["text/plain", "application/json"], "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "finance.bill", "name": "Bills", "description": "Writes bills.", "tags": ["bill"]}],
    })
}

impl Remote {
    pub(super) async fn start(script: impl Fn(&Heard, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::with(card, script).await
    }

    /// An agent with another card.
    pub(super) async fn with(
        card: impl FnOnce(&str) -> Value,
        script: impl Fn(&Heard, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            script: Box::new(script),
            card: card(&url),
            heard: Mutex::default(),
            open: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = Arc::clone(&serving);
                let service = service_fn(move |request| respond(Arc::clone(&shared), request));
                tokio::spawn(async move {
                    // A connector that is killed closes it.
                    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
                });
            }
        });
        Self { url, shared }
    }

    /// The calls of this method.
    pub(super) fn of(&self, method: &str) -> Vec<Heard> {
        self.shared.heard.lock().unwrap().iter().filter(|heard| heard.method == method).cloned().collect()
    }

    /// Waits for so many calls of this method.
    pub(super) async fn has(&self, method: &str, count: usize) {
        eventually("the remote agent has the call", async || self.of(method).len() >= count).await;
    }

    /// The ids of the messages that have come, each once.
    pub(super) fn message_ids(&self) -> Vec<String> {
        let sent = [self.of("SendStreamingMessage"), self.of("SendMessage")].concat();
        let mut ids: Vec<_> =
            sent.iter().map(|heard| heard.params["message"]["messageId"].as_str().unwrap().to_owned()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

async fn respond(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Piped>, Infallible> {
    let (head, body) = request.into_parts();
    let (sender, receiver) = mpsc::channel(64);
    let response = |kind: &str| {
        Response::builder().header("content-type", kind).body(Piped { pieces: receiver, failure: None }).unwrap()
    };
    if head.method == "GET" {
        let is_card = head.uri.path() == "/.well-known/agent-card.json";
        let text = if is_card { shared.card.to_string() } else { "nothing is here".to_owned() };
        sender.send(Ok(text.into())).await.unwrap();
        let mut response = response("application/json");
        *response.status_mut() = if is_card { http::StatusCode::OK } else { http::StatusCode::NOT_FOUND };
        return Ok(response);
    }
    let body: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
    assert_eq!((&head.headers["a2a-version"], &body["jsonrpc"]), (&"1.0".parse().unwrap(), &json!("2.0")));
    let heard = Heard {
        method: body["method"].as_str().unwrap().to_owned(),
        params: body["params"].clone(),
        authorization: head.headers.get("authorization").map(|value| value.to_str().unwrap().to_owned()),
    };
    let earlier = {
        let mut all = shared.heard.lock().unwrap();
        all.push(heard.clone());
        all.iter().filter(|other| other.method == heard.method).count() - 1
    };
    let answer = |name: &str, value: Value| json!({"jsonrpc": "2.0", "id": body["id"], name: value}).to_string();
    let (kind, text) = match (shared.script)(&heard, earlier) {
        Reply::Result(result) => ("application/json", answer("result", result)),
        Reply::Error(code, words) => ("application/json", answer("error", json!({"code": code, "message": words}))),
        Reply::Silence => std::future::pending().await,
        Reply::Stream(events, end) => {
            for event in events {
                sender.send(Ok(format!("data: {}\n\n", answer("result", event)).into())).await.unwrap();
            }
            match end {
                End::Closed => {}
                End::Cut => {
                    sender.send(Ok(Bytes::from_static(b"data: {\"json"))).await.unwrap();
                    sender.send(Err(io::ErrorKind::ConnectionReset.into())).await.unwrap();
                }
                End::Open => shared.open.lock().unwrap().push(sender),
            }
            return Ok(response("text/event-stream"));
        }
    };
    sender.send(Ok(text.into())).await.unwrap();
    Ok(response(kind))
}

/// A task of the remote agent as its events have it.
pub(super) fn task(state: &str, words: &str) -> Value {
    json!({"id": "r-1", "contextId": "c-1", "status": status(state, words)})
}

fn status(state: &str, words: &str) -> Value {
    let message = json!({"messageId": format!("s-{state}-{words}"), "role": "ROLE_AGENT", "parts": [{"text": words}]});
    json!({"state": format!("TASK_STATE_{state}"), "message": message})
}

pub(super) fn first(state: &str, words: &str) -> Value {
    json!({"task": task(state, words)})
}

pub(super) fn update(state: &str, words: &str) -> Value {
    json!({"statusUpdate": {"taskId": "r-1", "contextId": "c-1", "status": status(state, words)}})
}

pub(super) fn artifact(parts: Value) -> Value {
    let artifact = json!({"artifactId": "a-1", "name": "bill", "parts": parts});
    json!({"artifactUpdate": {"taskId": "r-1", "contextId": "c-1", "artifact": artifact}})
}
