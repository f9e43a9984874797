//! `baton gateway`: agents over HTTP by keys that they have lent, over TLS, with requests by hand.

mod a2a;
mod beside;
mod connect;
mod grants;
mod mcp;
mod receiver;
mod webhooks;

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Stdio},
    sync::Arc,
};

use baton::proto::v1;
use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::{
    broker::{Broker, PATIENCE, baton, card, eventually, exit_of, identity},
    hostile::raw,
};

/// A gateway process, or the gateway of a broker's process. Dropping it kills a process of its own.
pub(super) struct Gateway {
    child: Option<Child>,
    pub(super) address: String,
    is_encrypted: bool,
    ca: PathBuf,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The process may have ended already.
        if let Some(child) = &mut self.child {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// An answer of a gateway.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: HeaderMap,
    pub(super) bytes: Bytes,
    /// The bytes as text.
    pub(super) text: String,
}

impl Answer {
    /// The JSON of the body, or of the last event of a stream.
    pub(super) fn json(&self) -> Value {
        let last = self.text.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&self.text);
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The media type of the body.
    fn kind(&self) -> &str {
        self.head["content-type"].to_str().unwrap()
    }

    fn reason(&self) -> String {
        self.json()["reason"].as_str().unwrap_or_default().to_owned()
    }
}

impl Gateway {
    /// A gateway over TLS on a free port.
    pub(super) fn start(broker: &Broker, options: &[&str]) -> Self {
        let tls = broker.data().join("tls");
        let (certificate, key) = (tls.join("server.pem"), tls.join("server.key"));
        let tls = ["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
        Self::start_with(broker, &[&["--listen", "127.0.0.1:0"], &tls[..], options].concat())
    }

    fn start_with(broker: &Broker, options: &[&str]) -> Self {
        let mut command = gateway(broker, &[]);
        command.args(options).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next().expect("a gateway says where it is");
        let shown: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let url: http::Uri = shown["mcp"].as_str().unwrap().parse().unwrap();
        assert!(shown["openapi"].as_str().unwrap().ends_with("/api/v1/openapi.json"), "{shown}");
        let address = url.authority().unwrap().to_string();
        Self { child: Some(child), address, is_encrypted: url.scheme_str() == Some("https"), ca: broker.ca() }
    }

    /// The gateway of this broker's process, which listens at the address.
    fn beside(broker: &Broker, address: String, is_encrypted: bool) -> Self {
        Self { child: None, address, is_encrypted, ca: broker.ca() }
    }

    /// The id of its own process.
    fn pid(&self) -> String {
        self.child.as_ref().expect("a process of its own").id().to_string()
    }

    /// The exit code of its own process, once it has ended.
    fn code(&mut self) -> Option<i32> {
        self.child.as_mut().expect("a process of its own").wait().unwrap().code()
    }

    /// Sends a request with the needed headers, unless it has them.
    pub(super) async fn send(&self, request: Request<Vec<u8>>) -> Result<Answer, String> {
        let asked = async {
            let stream = TcpStream::connect(&self.address).await.map_err(|error| error.to_string())?;
            let mut sender = match self.is_encrypted {
                false => connect(stream).await?,
                true => {
                    connect(raw::tls_over(stream, &self.ca, &["http/1.1"]).await.map_err(|error| error.to_string())?)
                        .await?
                }
            };
            let mut request = request.map(|body| Full::new(Bytes::from(body)));
            if !request.headers().contains_key("host") {
                request.headers_mut().insert("host", self.address.parse().unwrap());
            }
            let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
            let (head, body) = answer.into_parts();
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            let text = String::from_utf8_lossy(&body).into_owned();
            Ok(Answer { status: head.status.as_u16(), head: head.headers, bytes: body, text })
        };
        tokio::time::timeout(PATIENCE, asked).await.expect("an answer")
    }

    /// Runs an act.
    pub(super) async fn try_act(&self, token: &str, act: &str, arguments: Value) -> Result<Answer, String> {
        self.send(post(&format!("/api/v1/acts/{act}"), Some(token), &arguments)).await
    }

    /// Sends the request again as long as the places are taken, as a poll of the test may have taken one.
    pub(super) async fn once_served(&self, request: impl Fn() -> Request<Vec<u8>>) -> Result<Answer, String> {
        loop {
            let answer = self.send(request()).await?;
            if answer.reason() != "LIMIT_EXCEEDED" {
                return Ok(answer);
            }
        }
    }

    /// Runs an act that works.
    pub(super) async fn act(&self, token: &str, act: &str, arguments: Value) -> Value {
        let answer = self.try_act(token, act, arguments).await.unwrap();
        assert_eq!(answer.status, 200, "{act}: {}", answer.text);
        assert_eq!(answer.head["content-type"], "application/json");
        answer.json()
    }

    fn kill(mut self) {
        self.child.as_mut().expect("a process of its own").kill().unwrap();
        self.code();
    }
}

async fn connect(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
) -> Result<http1::SendRequest<Full<Bytes>>, String> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

pub(super) fn post(path: &str, token: Option<&str>, body: &Value) -> Request<Vec<u8>> {
    let mut request = Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    request.body(body.to_string().into_bytes()).unwrap()
}

/// The command `baton gateway` with the folder of this test.
fn gateway(broker: &Broker, subcommand: &[&str]) -> std::process::Command {
    let mut command = baton();
    command.arg("gateway").args(subcommand).arg("--data").arg(broker.folder.path().join("gateway"));
    command.args(["--server", &broker.address, "-o", "json", "--ca"]).arg(broker.ca());
    // The CA of the receivers of these tests stands for those of the system.
    command.env("SSL_CERT_FILE", broker.ca());
    command
}

async fn register(broker: &Broker, name: &str) {
    let client = broker.operator().await;
    let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
    client.answer(client.agents().register_agent(request).await).unwrap();
}

/// Registers the agent and lends the gateway a key. Returns the token and the key's name.
pub(super) async fn granted(broker: &Broker, name: &str) -> (String, String) {
    register(broker, name).await;
    let shown = grant(broker, name);
    (shown["token"].as_str().unwrap().to_owned(), shown["keyId"].as_str().unwrap().to_owned())
}

fn grant(broker: &Broker, name: &str) -> Value {
    let key = broker.folder.path().join(format!("{name}.pem"));
    if !key.exists() {
        identity(name).key.write(&key).unwrap();
    }
    let output =
        gateway(broker, &["grant", "--id", name, "--key", key.to_str().unwrap(), "--days", "2"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A request for an act without a token, as it is.
fn bare(path: &str) -> http::request::Builder {
    Request::builder().method(Method::POST).uri(path).header("content-type", "application/json")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_lends_a_task_over_http_and_gets_its_result() {
    // With the policies of a broker for others, and not those of development, which let agents see all tasks.
    let broker = Broker::serve("", "");
    let ((alice, _), (bob, key)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let (carol, _) = granted(&broker, "carol").await;
    let gateway = Gateway::start(&broker, &[]);
    let lend = json!({"to": "bob", "summary": "review it", "context": {"files": ["a.rs"]}, "wait_seconds": 0});
    let lent = gateway.act(&alice, "delegate", lend.clone()).await;
    let (handoff, task) = (lent["handoff_id"].as_str().unwrap(), lent["task_id"].as_str().unwrap());
    assert_eq!(gateway.act(&alice, "delegate", lend).await["repeated"], true, "a repeat finds the first");
    let inbox = gateway.act(&bob, "inbox", json!({"wait_seconds": 60})).await;
    assert_eq!((&inbox["offers"][0]["handoff_id"], &inbox["offers"][0]["from"]), (&json!(handoff), &json!("alice")));
    // The gateway sends the context of alice, who does not call.
    let taken = gateway.act(&bob, "take_task", json!({"handoff_id": handoff})).await;
    assert_eq!((&taken["owner_id"], &taken["context"]["files"]), (&json!("bob"), &json!(["a.rs"])));
    gateway.act(&bob, "report", json!({"task_id": task, "status": "COMPLETED", "result": {"verdict": "fine"}})).await;
    let done = gateway.act(&alice, "wait", json!({"id": handoff})).await;
    assert_eq!((&done["state"], &done["result"]), (&json!("RETURNED"), &json!({"verdict": "fine"})));

    // Another agent of the same gateway sees nothing of it.
    let empty = gateway.act(&carol, "inbox", json!({})).await;
    assert_eq!((&empty["offers"], &empty["tasks"]), (&json!([]), &json!([])));
    for (act, arguments) in [("wait", json!({"id": handoff})), ("get_task", json!({"task_id": task}))] {
        let refused = gateway.try_act(&carol, act, arguments).await.unwrap();
        assert!(matches!(refused.status, 403 | 404), "{act}: {refused:?}");
    }
    let taking = gateway.try_act(&carol, "take_task", json!({"handoff_id": handoff})).await.unwrap();
    assert!(matches!(taking.status, 403 | 404), "{taking:?}");
    // Receivers see which key has signed.
    let client = broker.client_of("alice").await;
    let request = v1::GetCustodyLogRequest { task_id: task.to_owned(), page_size: 100, ..Default::default() };
    let log = client.answer(client.tasks().get_custody_log(request).await).unwrap();
    let signed = log.entries.iter().map(|entry| v1::Envelope::decode(&*entry.envelope).unwrap());
    assert!(signed.into_iter().any(|signed| signed.key_id == key), "{log:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_served_is_refused_with_its_status() {
    let broker = Broker::start();
    let (alice, _) = granted(&broker, "alice").await;
    let gateway = Gateway::start(&broker, &[]);
    let inbox = "/api/v1/acts/inbox";
    for path in [inbox, "/mcp"] {
        for (token, reason) in [(None, "IDENTITY_MISSING"), (Some("unknown"), "TOKEN_INVALID")] {
            let refused = gateway.send(post(path, token, &json!({}))).await.unwrap();
            assert_eq!((refused.status, refused.reason()), (401, reason.to_owned()), "{path}");
            let challenge = refused.head["www-authenticate"].to_str().unwrap();
            assert!(challenge.starts_with("Bearer ") && !challenge.contains("resource_metadata"), "{challenge}");
            assert_eq!(challenge.contains(r#"error="invalid_token""#), token.is_some(), "{challenge}");
        }
        for (header, value, reason) in
            [("host", "evil.example", "HOST_NOT_ALLOWED"), ("origin", "https://evil.example", "ORIGIN_NOT_ALLOWED")]
        {
            let mut request = post(path, Some(&alice), &json!({}));
            request.headers_mut().insert(header, value.parse().unwrap());
            let refused = gateway.send(request).await.unwrap();
            assert_eq!((refused.status, refused.reason()), (403, reason.to_owned()), "{path}");
        }
        let long = json!({"x": "x".repeat(1024 * 1024 + 64 * 1024)});
        let refused = gateway.send(post(path, Some(&alice), &long)).await.unwrap();
        assert_eq!((refused.status, refused.reason()), (413, "PAYLOAD_TOO_LARGE".to_owned()), "{path}");
    }
    let authorized = |builder: http::request::Builder| builder.header("authorization", format!("Bearer {alice}"));
    let text = authorized(Request::builder().method(Method::POST).uri(inbox).header("content-type", "text/plain"));
    let get = |path: &str| authorized(Request::builder().uri(path)).body(Vec::new()).unwrap();
    for (request, status, reason) in [
        (text.body(b"{}".to_vec()).unwrap(), 415, "CONTENT_TYPE_INVALID"),
        (authorized(bare(inbox)).body(b"[]".to_vec()).unwrap(), 400, "ARGUMENTS_INVALID"),
        (authorized(bare(inbox)).body(b"{".to_vec()).unwrap(), 400, "ARGUMENTS_INVALID"),
        (authorized(bare("/api/v1/acts/none")).body(b"{}".to_vec()).unwrap(), 404, "ACT_UNKNOWN"),
        (get("/"), 404, "PATH_UNKNOWN"),
        (get(inbox), 405, ""),
        (get("/mcp"), 405, ""),
    ] {
        let refused = gateway.send(request).await.unwrap();
        let found = if reason.is_empty() { String::new() } else { refused.reason() };
        assert_eq!((refused.status, found), (status, reason.to_owned()), "{}", refused.text);
    }
    for (act, arguments, status, reason, field) in [
        ("delegate", json!({"to": 7, "summary": "s"}), 400, "ARGUMENTS_INVALID", json!("/to")),
        ("inbox", json!({"limit": 0}), 400, "ARGUMENTS_INVALID", json!("/limit")),
        ("inbox", json!({"hurry": true}), 400, "ARGUMENTS_INVALID", json!("/hurry")),
        ("get_task", json!({"task_id": "none"}), 404, "TASK_UNKNOWN", json!(null)),
        ("delegate", json!({"to": "nobody", "summary": "s"}), 404, "RECEIVER_UNKNOWN", json!(null)),
    ] {
        let refused = gateway.try_act(&alice, act, arguments).await.unwrap();
        let body = refused.json();
        assert_eq!((refused.status, &body["reason"], &body["field"]), (status, &json!(reason), &field), "{body}");
        assert!(body["message"].as_str().is_some_and(|words| !words.is_empty()), "{body}");
    }
    // The description needs no token, and names each act.
    let shown = gateway.send(Request::builder().uri("/api/v1/openapi.json").body(Vec::new()).unwrap()).await.unwrap();
    let document = shown.json();
    assert_eq!((shown.status, &document["openapi"]), (200, &json!("3.1.0")));
    assert!(document["paths"]["/api/v1/acts/delegate"]["post"].is_object(), "{document}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_a_bound_wait_and_others_are_served() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let gateway = Arc::new(Gateway::start(&broker, &["--requests-max", "2", "--requests-per-agent-max", "1"]));
    let waiting = |token: String| {
        let gateway = Arc::clone(&gateway);
        let inbox = move || post("/api/v1/acts/inbox", Some(&token), &json!({"wait_seconds": 240}));
        tokio::spawn(async move { gateway.once_served(inbox).await })
    };
    let first = waiting(alice.clone());
    eventually("alice has no place left", async || {
        let refused = gateway.try_act(&alice, "get_task", json!({"task_id": "none"})).await.unwrap();
        assert!(matches!(refused.status, 404 | 429), "{refused:?}");
        refused.status == 429 && refused.reason() == "LIMIT_EXCEEDED" && refused.head["retry-after"] == "1"
    })
    .await;
    assert_eq!(gateway.try_act(&bob, "get_task", json!({"task_id": "none"})).await.unwrap().status, 404);
    let second = waiting(bob.clone());
    eventually("there is no place left", async || {
        let refused = gateway.try_act(&bob, "get_task", json!({"task_id": "none"})).await.unwrap();
        assert!(matches!(refused.status, 404 | 429 | 503), "{refused:?}");
        refused.status == 503 && refused.reason() == "LIMIT_EXCEEDED" && refused.head["retry-after"] == "1"
    })
    .await;
    first.abort();
    second.abort();
    eventually("a client that has left gives its place back", async || {
        gateway.try_act(&alice, "get_task", json!({"task_id": "none"})).await.unwrap().status == 404
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_equal_calls_at_once_make_one_handoff_and_a_killed_gateway_loses_nothing() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let gateway = Arc::new(Gateway::start(&broker, &[]));
    let lend = || json!({"to": "bob", "summary": "one", "context": {"n": [1]}, "wait_seconds": 0});
    let calls: Vec<_> = (0..10)
        .map(|_| {
            let (gateway, alice) = (Arc::clone(&gateway), alice.clone());
            tokio::spawn(async move { gateway.act(&alice, "delegate", lend()).await["handoff_id"].clone() })
        })
        .collect();
    let mut handoffs = Vec::new();
    for call in calls {
        handoffs.push(call.await.unwrap());
    }
    handoffs.dedup();
    assert_eq!(handoffs.len(), 1, "{handoffs:?}");

    // A call waits when the gateway is killed.
    let waiting = tokio::spawn({
        let (gateway, alice) = (Arc::clone(&gateway), alice.clone());
        let lend = json!({"to": "bob", "summary": "two", "wait_seconds": 240});
        async move { gateway.try_act(&alice, "delegate", lend).await }
    });
    let mut second = Value::Null;
    eventually("bob has the second offer", async || {
        let inbox = gateway.act(&bob, "inbox", json!({})).await;
        let offers = inbox["offers"].as_array().unwrap().clone();
        second = offers.iter().find(|offer| offer["summary"] == "two").cloned().unwrap_or_default();
        !second.is_null()
    })
    .await;
    let pid = gateway.pid();
    assert!(std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    waiting.await.unwrap().unwrap_err();
    Arc::into_inner(gateway).unwrap().kill();

    let gateway = Gateway::start(&broker, &[]);
    let again = json!({"to": "bob", "summary": "two", "wait_seconds": 0});
    let again = gateway.act(&alice, "delegate", again).await;
    assert_eq!((&again["handoff_id"], &again["repeated"]), (&second["handoff_id"], &json!(true)));
    gateway.act(&bob, "take_task", json!({"handoff_id": second["handoff_id"]})).await;
    gateway.act(&bob, "report", json!({"task_id": second["task_id"], "status": "COMPLETED", "result": {"n": 2}})).await;
    let done = gateway.act(&alice, "wait", json!({"id": second["task_id"]})).await;
    assert_eq!((&done["state"], &done["result"]), (&json!("RETURNED"), &json!({"n": 2})));
    assert_eq!(broker.lines(&["handoff", "list"]).len(), 2, "two handoffs in all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_asked_to_stop_answers_and_ends() {
    let broker = Broker::start();
    let (alice, _) = granted(&broker, "alice").await;
    let options = ["--listen", "127.0.0.1:0", "--requests-per-agent-max", "1"];
    let mut gateway = Gateway::start_with(&broker, &options);
    assert!(!gateway.is_encrypted, "plain HTTP on a loopback address");
    gateway.act(&alice, "inbox", json!({})).await;
    let inbox = || post("/api/v1/acts/inbox", Some(&alice), &json!({"wait_seconds": 240}));
    let waiting = gateway.once_served(inbox);
    let stopping = async {
        eventually("the request is under way", async || {
            gateway.try_act(&alice, "get_task", json!({"task_id": "none"})).await.unwrap().status == 429
        })
        .await;
        let pid = gateway.pid();
        assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    };
    let (answer, ()) = tokio::join!(waiting, stopping);
    let answer = answer.unwrap();
    assert_eq!((answer.status, answer.reason()), (503, "SHUTTING_DOWN".to_owned()));
    assert!(answer.head.contains_key("retry-after"));
    assert_eq!(gateway.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_do_not_travel_without_tls_and_wrong_settings_are_refused() {
    let broker = Broker::start();
    for (options, code, words) in [
        (&["--listen", "0.0.0.0:0"][..], 2, "not a loopback address"),
        (&["--listen", "127.0.0.1:0", "--tls-cert", "none.pem", "--tls-key", "none.key"], 3, "none.pem"),
        (&["--tls-cert", "none.pem"], 2, "--tls-key"),
        (&["--allow-host", "a:1"], 2, "without a port"),
        (&["--requests-max", "0"], 2, "requests-max"),
        (&["--listen", &broker.address], 7, "in use"),
    ] {
        let (found, said) = exit_of(gateway(&broker, &[]).args(options));
        assert!(found == Some(code) && said.contains(words), "{options:?}: {found:?} {said}");
    }
    // With TLS any address will do, under the hosts that are named.
    let (alice, _) = granted(&broker, "alice").await;
    let gateway = Gateway::start(&broker, &["--allow-host", "gateway.example"]);
    let mut request = post("/api/v1/acts/inbox", Some(&alice), &json!({}));
    request.headers_mut().insert("host", "gateway.example".parse().unwrap());
    assert_eq!(gateway.send(request).await.unwrap().status, 200);
}
