//! The calls of `baton.v1` at the gateway, by the Connect protocol.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use baton::proto::{self, v1};
use baton_client::About;
use http::{Method, Request};
use prost::Message as _;
use serde_json::{Value, json};

use super::{Answer, Gateway, granted, post};
use crate::broker::{Broker, composer, eventually, new_task};

/// The methods of all services, with whether request and answer are streams.
fn methods() -> Vec<(String, bool, bool)> {
    let files = prost_types::FileDescriptorSet::decode(proto::DESCRIPTORS).unwrap().file;
    let services = files.iter().filter(|file| file.package() == "baton.v1").flat_map(|file| &file.service);
    let methods = services.flat_map(|service| service.method.iter().map(|method| (service.name(), method)));
    methods
        .map(|(service, method)| {
            let path = format!("/baton.v1.{service}/{}", method.name());
            (path, method.client_streaming(), method.server_streaming())
        })
        .collect()
}

fn request(path: &str, token: &str, kind: &str, body: Vec<u8>) -> Request<Vec<u8>> {
    let request = Request::builder().method(Method::POST).uri(path).header("content-type", kind);
    request.header("authorization", format!("Bearer {token}")).body(body).unwrap()
}

/// The code of an error, and the reason of the broker or of the gateway.
fn error_of(body: &Value) -> (String, String) {
    let info = body["details"].as_array().and_then(|details| {
        details.iter().find(|detail| detail["type"] == "google.rpc.ErrorInfo").map(|detail| detail["debug"].clone())
    });
    let reason = info.map(|info| info["reason"].as_str().unwrap_or_default().to_owned());
    (body["code"].as_str().unwrap_or_default().to_owned(), reason.unwrap_or_default())
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.head[name].to_str().unwrap()
    }

    /// The last line of a stream.
    fn last_line(&self) -> Value {
        serde_json::from_str(self.text.lines().next_back().unwrap_or_default()).unwrap()
    }
}

impl Gateway {
    /// Makes a call by JSON.
    async fn try_call(&self, token: &str, method: &str, body: Value) -> Answer {
        self.send(post(&format!("/baton.v1.{method}"), Some(token), &body)).await.unwrap()
    }

    /// Makes a call that works.
    async fn call(&self, token: &str, method: &str, body: Value) -> Value {
        let answer = self.try_call(token, method, body).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"), "{method}: {answer:?}");
        answer.json()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_unary_call_is_there_as_json_and_encoded() {
    let broker = Broker::start();
    let (alice, _) = granted(&broker, "alice").await;
    let gateway = Gateway::start(&broker, &[]);
    let mut count = 0;
    for (path, takes_stream, gives_stream) in methods() {
        if takes_stream {
            let refused = gateway.send(post(&path, Some(&alice), &json!({}))).await.unwrap();
            let error = error_of(&refused.json());
            assert_eq!((refused.status, error), (501, ("unimplemented".into(), "NOT_SUPPORTED".into())), "{path}");
            continue;
        }
        if gives_stream {
            // A wrong type, so that none streams.
            let encoded = gateway.send(request(&path, &alice, "application/proto", Vec::new())).await.unwrap();
            let accepted = "application/json, application/connect+json, application/connect+proto";
            assert_eq!((encoded.status, encoded.header("accept-post")), (415, accepted), "{path}");
            continue;
        }
        count += 1;
        let by_json = gateway.send(post(&path, Some(&alice), &json!({}))).await.unwrap();
        let encoded = gateway.send(request(&path, &alice, "application/proto", Vec::new())).await.unwrap();
        assert_eq!(by_json.status, encoded.status, "{path}: {by_json:?} {encoded:?}");
        if by_json.status == 200 {
            assert_eq!(encoded.head["content-type"], "application/proto", "{path}");
            assert!(by_json.json().is_object(), "{path}");
            continue;
        }
        // What the broker says: a name of an object is missing, or the agent may not.
        let (code, reason) = error_of(&by_json.json());
        assert_ne!(code, "unimplemented", "{path}: {by_json:?}");
        assert!(!reason.is_empty() && reason != "METHOD_UNKNOWN", "{path}: {by_json:?}");
        assert_eq!(error_of(&encoded.json()), (code, reason), "{path}: errors are JSON in both forms");
    }
    assert!(count > 50, "{count}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_has_the_rights_of_its_agent_and_signed_envelopes_go_as_they_are() {
    let broker = Broker::serve("", "");
    let ((alice, _), (carol, _)) = (granted(&broker, "alice").await, granted(&broker, "carol").await);
    let gateway = Gateway::start(&broker, &[]);
    // Alice signs by herself; the gateway has no part in it.
    let task = new_task();
    let create = v1::TaskCreate { task_type: "review".into(), ..Default::default() };
    let envelope = composer("alice").encode("", v1::MessageType::TaskCreate, &About::task(&task, 1), &create);
    let sent = gateway.call(&alice, "BrokerService/Send", json!({"envelope": STANDARD.encode(&envelope)})).await;
    assert_eq!(sent["receipt"]["epoch"], "1", "{sent}");
    let mut other = envelope.to_vec();
    *other.last_mut().unwrap() ^= 1;
    let refused = gateway.try_call(&alice, "BrokerService/Send", json!({"envelope": STANDARD.encode(&other)})).await;
    assert!(matches!(refused.status, 400 | 401), "a changed byte: {refused:?}");

    let shown = gateway.call(&alice, "TaskService/GetTask", json!({"taskId": task})).await;
    assert_eq!((&shown["task"]["ownerId"], &shown["task"]["taskType"]), (&json!("alice"), &json!("review")));
    assert_eq!(shown["task"], broker.lines(&["task", "show", &task]).remove(0), "the same as grpcurl shows");
    let body = v1::GetTaskRequest { task_id: task.clone() }.encode_to_vec();
    let path = "/baton.v1.TaskService/GetTask";
    let encoded = gateway.send(request(path, &alice, "application/proto", body)).await.unwrap();
    assert_eq!(v1::GetTaskResponse::decode(&*encoded.bytes).unwrap().task.unwrap().task_id, task);

    // Another agent of the same gateway may not see it, and no agent is an operator.
    let id = json!({"taskId": task});
    let refused = gateway.try_call(&carol, "TaskService/GetTask", id).await;
    let error = error_of(&refused.json());
    assert_eq!((refused.status, error), (403, ("permission_denied".into(), "PERMISSION_DENIED".into())), "{refused:?}");
    let refused = gateway.try_call(&carol, "AuditService/ListAuditEntries", json!({})).await;
    assert_eq!((refused.status, error_of(&refused.json()).0.as_str()), (403, "permission_denied"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_has_its_code_and_its_status() {
    let broker = Broker::start();
    let (alice, _) = granted(&broker, "alice").await;
    granted(&broker, "bob").await;
    let gateway = Gateway::start(&broker, &[]);
    let path = "/baton.v1.TaskService/ListTasks";
    let authorized = |body: &str| request(path, &alice, "application/json", body.as_bytes().to_vec());
    let with = |name: &'static str, value: &str| {
        let mut request = authorized("{}");
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    };
    let none = |path: &str| request(path, &alice, "application/json", b"{}".to_vec());
    let long = format!("{{\"pageToken\": \"{}\"}}", "x".repeat(1024 * 1024 + 64 * 1024));
    let unknown =
        request("/baton.v1.TaskService/GetTask", &alice, "application/json", b"{\"taskId\": \"none\"}".to_vec());
    for (request, status, code, reason) in [
        (none("/baton.v1.TaskService/Destroy"), 404, "unimplemented", "METHOD_UNKNOWN"),
        (none("/baton.v1.NoService/GetTask"), 404, "unimplemented", "PATH_UNKNOWN"),
        (authorized("{\"hurry\": true}"), 400, "invalid_argument", "FIELD_INVALID"),
        (authorized("{\"pageSize\": \"many\"}"), 400, "invalid_argument", "FIELD_INVALID"),
        (authorized("{\"statuses\": [\"DONE\"]}"), 400, "invalid_argument", "FIELD_INVALID"),
        (authorized("[]"), 400, "invalid_argument", "MALFORMED"),
        (authorized("{"), 400, "invalid_argument", "MALFORMED"),
        (authorized(&long), 400, "invalid_argument", "PAYLOAD_TOO_LARGE"),
        (post(path, None, &json!({})), 401, "unauthenticated", "IDENTITY_MISSING"),
        (post(path, Some("unknown"), &json!({})), 401, "unauthenticated", "TOKEN_INVALID"),
        (with("content-type", "text/plain"), 415, "invalid_argument", "CONTENT_TYPE_INVALID"),
        (with("content-type", "application/connect+json"), 415, "invalid_argument", "CONTENT_TYPE_INVALID"),
        (with("content-encoding", "gzip"), 501, "unimplemented", "NOT_SUPPORTED"),
        (with("connect-protocol-version", "2"), 400, "invalid_argument", "FIELD_INVALID"),
        (with("connect-timeout-ms", "soon"), 400, "invalid_argument", "FIELD_INVALID"),
        (with("connect-timeout-ms", "12345678901"), 400, "invalid_argument", "FIELD_INVALID"),
        (with("host", "evil.example"), 403, "permission_denied", "HOST_NOT_ALLOWED"),
        (with("origin", "https://evil.example"), 403, "permission_denied", "ORIGIN_NOT_ALLOWED"),
        (unknown, 404, "not_found", "TASK_UNKNOWN"),
        // What a stolen token did with it would outlast the grant.
        (none("/baton.v1.AgentService/AddAgentKey"), 403, "permission_denied", "PERMISSION_DENIED"),
    ] {
        let about = format!("{request:.200?}");
        let refused = gateway.send(request).await.unwrap();
        let body = refused.json();
        assert_eq!((refused.status, refused.header("content-type")), (status, "application/json"), "{about}: {body}");
        assert_eq!(error_of(&body), (code.to_owned(), reason.to_owned()), "{about}: {body}");
        assert!(body["message"].as_str().is_some_and(|words| !words.is_empty()), "{body}");
        assert_eq!(refused.head.contains_key("www-authenticate"), status == 401, "{about}");
        assert!(body["details"][0]["value"].as_str().is_some_and(|value| !value.contains('=')), "{body}");
    }
    let wrong = gateway.send(authorized("{\"statuses\": [\"DONE\"]}")).await.unwrap().json();
    let violations = &wrong["details"][1]["debug"]["fieldViolations"];
    assert_eq!(violations[0]["field"], "statuses[0]", "{wrong}");
    let get = Request::builder().uri(path).header("authorization", format!("Bearer {alice}")).body(Vec::new()).unwrap();
    assert_eq!(gateway.send(get).await.unwrap().status, 405);
    let right = with("connect-protocol-version", "1");
    assert_eq!(gateway.send(right).await.unwrap().status, 200);

    // A call that waits ends with its time.
    let own = gateway.act(&alice, "delegate", json!({"to": "bob", "summary": "s", "wait_seconds": 0})).await;
    let topic = format!("task:{}", own["task_id"].as_str().unwrap());
    let wait = json!({"workspaceId": topic, "wait": "60s"});
    let mut waiting = post("/baton.v1.WorkspaceService/ListEntries", Some(&alice), &wait);
    waiting.headers_mut().insert("connect-timeout-ms", "300".parse().unwrap());
    let late = gateway.send(waiting).await.unwrap();
    assert_eq!((late.status, error_of(&late.json()).0.as_str()), (504, "deadline_exceeded"), "{late:?}");
    // A broker that is away.
    let _folder = broker.kill();
    let away = gateway.try_call(&alice, "TaskService/ListTasks", json!({})).await;
    assert_eq!((away.status, error_of(&away.json()).0.as_str()), (503, "unavailable"), "{away:?}");
}

/// The frames of a body: flags and message.
fn frames(mut body: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [flags, a, b, c, d, rest @ ..] = body {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        frames.push((*flags, rest[..length].to_vec()));
        body = &rest[length..];
    }
    assert!(body.is_empty(), "a frame is cut");
    frames
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_lines_of_json_or_frames_and_ends_with_its_grant() {
    let broker = Broker::start();
    let ((alice, key), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let gateway = Gateway::start(&broker, &[]);
    let lent = gateway.act(&alice, "delegate", json!({"to": "bob", "summary": "s", "wait_seconds": 0})).await;
    gateway.act(&bob, "take_task", json!({"handoff_id": lent["handoff_id"]})).await;
    gateway.act(&bob, "report", json!({"task_id": lent["task_id"], "status": "COMPLETED"})).await;
    gateway.act(&alice, "wait", json!({"id": lent["handoff_id"]})).await;
    // The task has its final status: the stream ends.
    let (watch, id) = ("TaskService/WatchTask", json!({"taskId": lent["task_id"]}));
    let lines = gateway.try_call(&alice, watch, id.clone()).await;
    assert_eq!((lines.status, lines.header("content-type")), (200, "application/x-ndjson"), "{lines:?}");
    let lines: Vec<Value> = lines.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<&str> =
        lines.iter().map(|line| line["result"]["entry"]["entry"]["number"].as_str().unwrap()).collect();
    assert!(numbers.len() > 4 && numbers[..2] == ["1", "2"], "{lines:?}");

    let path = format!("/baton.v1.{watch}");
    let by_frames = |kind: &'static str, message: Vec<u8>| request(&path, &alice, kind, framed(&message));
    let json_frames = "application/connect+json";
    let answer = gateway.send(by_frames(json_frames, id.to_string().into_bytes())).await.unwrap();
    assert_eq!((answer.status, answer.header("content-type")), (200, json_frames));
    let sent = frames(&answer.bytes);
    let (last, entries) = sent.split_last().unwrap();
    assert_eq!((last.0, last.1.as_slice()), (2, &b"{}"[..]));
    let entries: Vec<Value> = entries.iter().map(|(_, entry)| serde_json::from_slice(entry).unwrap()).collect();
    let results: Vec<Value> = lines.iter().map(|line| line["result"].clone()).collect();
    assert_eq!(entries, results, "the same in frames");
    let message = v1::WatchTaskRequest { task_id: lent["task_id"].as_str().unwrap().into(), after_number: 0 };
    let answer = gateway.send(by_frames("application/connect+proto", message.encode_to_vec())).await.unwrap();
    let encoded = frames(&answer.bytes);
    assert!(encoded.len() == sent.len() && v1::WatchTaskResponse::decode(&*encoded[0].1).unwrap().update.is_some());

    // An error before the first answer: a status, or the last frame.
    let unknown = json!({"taskId": "none"});
    let refused = gateway.try_call(&alice, watch, unknown.clone()).await;
    assert_eq!((refused.status, error_of(&refused.json()).1.as_str()), (404, "TASK_UNKNOWN"), "{refused:?}");
    let answer = gateway.send(by_frames(json_frames, unknown.to_string().into_bytes())).await.unwrap();
    let [(2, end)] = &frames(&answer.bytes)[..] else { panic!("{answer:?}") };
    let end: Value = serde_json::from_slice(end).unwrap();
    assert_eq!((answer.status, error_of(&end["error"]).1.as_str()), (200, "TASK_UNKNOWN"), "{end}");
    for (body, reason) in [(b"{}".to_vec(), "MALFORMED"), ([1, 0, 0, 0, 0].to_vec(), "NOT_SUPPORTED")] {
        let answer = gateway.send(request(&path, &alice, json_frames, body)).await.unwrap();
        let end: Value = serde_json::from_slice(&frames(&answer.bytes)[0].1).unwrap();
        assert_eq!(error_of(&end["error"]).1, reason, "{end}");
    }

    // Its time ends a stream, and so does the end of the grant.
    let mut timed = post("/baton.v1.HandoffService/WatchHandoffs", Some(&alice), &json!({}));
    timed.headers_mut().insert("connect-timeout-ms", "400".parse().unwrap());
    let over = gateway.send(timed).await.unwrap();
    assert_eq!((over.status, over.last_line()["error"]["code"].as_str()), (200, Some("deadline_exceeded")), "{over:?}");
    let open = gateway.try_call(&alice, "HandoffService/WatchHandoffs", json!({}));
    let revoking = async {
        // The stream holds a place of the agent while it is open.
        let done = super::gateway(&broker, &["revoke", &key]).status().unwrap();
        assert!(done.success());
    };
    let (ended, ()) = tokio::join!(open, revoking);
    let code = match ended.status {
        200 => ended.last_line()["error"]["code"].clone(),
        _ => ended.json()["code"].clone(),
    };
    assert_eq!(code, "unauthenticated", "{ended:?}");
    eventually("a later call is refused", async || {
        let refused = gateway.try_call(&alice, "TaskService/ListTasks", json!({})).await;
        refused.status == 401 && error_of(&refused.json()).1 == "TOKEN_INVALID"
    })
    .await;
}
