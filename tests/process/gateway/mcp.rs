//! MCP over HTTP, by hand: both eras on one endpoint, without sessions.

use baton::proto::v1;
use http::Request;
use serde_json::{Value, json};

use super::{Answer, Gateway, granted, post};
use crate::broker::{Broker, eventually};

const LEGACY: &str = "2025-11-25";
const NEWEST: &str = "2026-07-28";

/// A request of the era with `initialize`.
pub(super) fn legacy(token: &str, method: &str, params: Value) -> Request<Vec<u8>> {
    let mut request =
        post("/mcp", Some(token), &json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}));
    let headers = request.headers_mut();
    headers.insert("accept", "application/json, text/event-stream".parse().unwrap());
    headers.insert("mcp-protocol-version", LEGACY.parse().unwrap());
    request
}

/// A request of the era with metadata.
fn newest(token: &str, method: &str, mut params: Value) -> Request<Vec<u8>> {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": NEWEST,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut request = legacy(token, method, params.clone());
    let headers = request.headers_mut();
    headers.insert("mcp-protocol-version", NEWEST.parse().unwrap());
    headers.insert("mcp-method", method.parse().unwrap());
    if let Some(name) = params["name"].as_str() {
        headers.insert("mcp-name", name.parse().unwrap());
    }
    request
}

pub(super) async fn result(gateway: &Gateway, request: Request<Vec<u8>>) -> Value {
    let answer: Answer = gateway.send(request).await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(!answer.head.contains_key("mcp-session-id"), "no session is kept");
    let message = answer.json();
    assert!(message["result"].is_object(), "{message}");
    message["result"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_eras_are_served_and_each_token_is_its_own_agent() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let gateway = Gateway::start(&broker, &[]);
    let initialize = json!({
        "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    });
    let info = result(&gateway, legacy(&alice, "initialize", initialize)).await;
    assert_eq!((&info["protocolVersion"], &info["serverInfo"]["name"]), (&json!(LEGACY), &json!("baton")));
    assert!(info["instructions"].as_str().unwrap().contains("the agent alice"), "{info}");
    // Without a session there is no news in this era.
    assert!(info["capabilities"]["resources"]["subscribe"].is_null(), "{info}");
    let discovered = result(&gateway, newest(&bob, "server/discover", json!({}))).await;
    assert!(discovered["instructions"].as_str().unwrap().contains("the agent bob"), "{discovered}");
    let tools = result(&gateway, legacy(&alice, "tools/list", json!({}))).await;
    assert_eq!(tools["tools"].as_array().unwrap().len(), 12);
    assert_eq!(result(&gateway, newest(&alice, "tools/list", json!({}))).await["tools"], tools["tools"]);

    let lend = json!({"name": "delegate", "arguments": {"to": "bob", "summary": "one", "wait_seconds": 0}});
    let lent = result(&gateway, legacy(&alice, "tools/call", lend)).await["structuredContent"].clone();
    let inbox = json!({"name": "inbox", "arguments": {}});
    let offers = result(&gateway, newest(&bob, "tools/call", inbox.clone())).await["structuredContent"].clone();
    assert_eq!(offers["offers"][0]["handoff_id"], lent["handoff_id"]);
    let own = result(&gateway, newest(&alice, "tools/call", inbox)).await["structuredContent"].clone();
    assert_eq!(own["offers"], json!([]), "alice does not see bob's inbox");
    let read = json!({"uri": "baton://me"});
    let me = result(&gateway, legacy(&alice, "resources/read", read)).await;
    assert!(me["contents"][0]["text"].as_str().unwrap().contains("alice"), "{me}");
    // A refusal is a result.
    let wrong = json!({"name": "get_task", "arguments": {"task_id": "none"}});
    assert_eq!(result(&gateway, newest(&alice, "tools/call", wrong)).await["isError"], true);
    let subscribe = gateway.send(legacy(&alice, "resources/subscribe", json!({"uri": "baton://inbox"}))).await.unwrap();
    assert!(subscribe.json()["error"]["message"].as_str().unwrap().contains("without a session"), "{subscribe:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_or_a_form_that_is_unknown_is_refused() {
    let broker = Broker::start();
    let (alice, _) = granted(&broker, "alice").await;
    let gateway = Gateway::start(&broker, &[]);
    let with = |name: &'static str, value: &str| {
        let mut request = legacy(&alice, "tools/list", json!({}));
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    };
    for (request, status) in [
        (with("mcp-protocol-version", "1999-01-01"), 400),
        (with("accept", "text/html"), 406),
        (with("content-type", "text/plain"), 415),
    ] {
        let refused = gateway.send(request).await.unwrap();
        assert_eq!(refused.status, status, "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_stream_of_a_revoked_grant_ends() {
    let broker = Broker::start();
    let (alice, key_id) = granted(&broker, "alice").await;
    let gateway = Gateway::start(&broker, &["--requests-per-agent-max", "1"]);
    let notifications = json!({"notifications": {"toolsListChanged": true}});
    let listening = gateway.once_served(|| newest(&alice, "subscriptions/listen", notifications.clone()));
    let revoking = async {
        eventually("the stream is open", async || {
            gateway.try_act(&alice, "get_task", json!({"task_id": "none"})).await.unwrap().status == 429
        })
        .await;
        let operator = broker.operator().await;
        let request = v1::RevokeAgentKeyRequest { agent_id: "alice".into(), key_id, ..Default::default() };
        operator.answer(operator.agents().revoke_agent_key(request).await).unwrap();
    };
    // The stream ends although the client would listen for ever.
    let (answer, ()) = tokio::join!(listening, revoking);
    assert_eq!(answer.unwrap().status, 200);
}
