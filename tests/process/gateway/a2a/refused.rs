//! What is refused, with its code in both bindings.

use http::{Method, Request};
use serde_json::{Value, json};

use super::{Client, about, message, take};
use crate::{
    broker::Broker,
    gateway::{Gateway, granted, post},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_call_has_the_same_reason_in_both_bindings() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let gateway = Gateway::start(&broker, &["--a2a-publish", "bob"]);
    let client = Client { gateway: &gateway, token: &alice, name: "bob" };
    let task = client.send(&message("one")).await;
    take(&gateway, &bob, &task).await;
    let other = client.send(&message("two")).await;
    let with = |field: &str, value: Value| {
        let mut message = message("x");
        message[field] = value;
        json!({"message": message})
    };
    let configured = |name: &str, value: Value| json!({"message": message("x"), "configuration": {name: value}});
    let mut mixed = about(&task, "x");
    mixed["contextId"] = other["contextId"].clone();
    let long = json!([{"text": "x".repeat(70_000)}]);
    let mut long_mail = about(&task, "");
    long_mail["parts"] = long;
    for (params, code, reason, field) in [
        (json!({}), -32602, "INVALID_PARAMS", "params"),
        (with("parts", json!([])), -32602, "INVALID_PARAMS", "message.parts"),
        (with("parts", json!([{"text": 7}])), -32602, "INVALID_PARAMS", "message.parts[0]"),
        (with("messageId", json!("")), -32602, "INVALID_PARAMS", "message.messageId"),
        (with("role", json!("ROLE_AGENT")), -32602, "INVALID_PARAMS", "message.role"),
        (with("contextId", json!("c".repeat(113))), -32602, "INVALID_PARAMS", "message.contextId"),
        (with("parts", json!([{"raw": "AA==", "mediaType": "image/png"}])), -32005, "CONTENT_TYPE_NOT_SUPPORTED", ""),
        (json!({"message": mixed}), -32602, "INVALID_PARAMS", "message.contextId"),
        (json!({"message": long_mail}), -32602, "INVALID_PARAMS", "message.parts"),
        (with("taskId", json!("a2a-none")), -32001, "TASK_NOT_FOUND", ""),
        (with("taskId", json!("../../x")), -32001, "TASK_NOT_FOUND", ""),
        (configured("historyLength", json!(-1)), -32602, "INVALID_PARAMS", "configuration.historyLength"),
        (configured("acceptedOutputModes", json!(["image/png"])), -32005, "CONTENT_TYPE_NOT_SUPPORTED", ""),
        (
            configured("taskPushNotificationConfig", json!({"url": "https://example.com"})),
            -32003,
            "PUSH_NOTIFICATION_NOT_SUPPORTED",
            "",
        ),
    ] {
        for (method, path) in [("SendMessage", "/message:send"), ("SendStreamingMessage", "/message:stream")] {
            let error = client.rpc(method, params.clone()).await["error"].clone();
            let details = error["data"].as_array().unwrap();
            let found = (&error["code"], &details.last().unwrap()["reason"]);
            assert_eq!(found, (&json!(code), &json!(reason)), "{params}: {error}");
            let named = details[0]["fieldViolations"][0]["field"].as_str().unwrap_or_default();
            assert_eq!(named, field, "{params}: {error}");
            let answer = client.http(Method::POST, path, params.clone()).await;
            let status = if code == -32001 { 404 } else { 400 };
            assert_eq!((answer.status, &answer.json()["error"]["details"]), (status, &error["data"]), "{params}");
        }
    }
    for (method, params, code, verb, path) in [
        ("GetTask", json!({"id": "none"}), -32001, Method::GET, "/tasks/none"),
        ("CancelTask", json!({"id": "none"}), -32001, Method::POST, "/tasks/none:cancel"),
        ("SubscribeToTask", json!({"id": "none"}), -32001, Method::GET, "/tasks/none:subscribe"),
        ("ListTasks", json!({"pageSize": 101}), -32602, Method::GET, "/tasks?pageSize=101"),
        ("ListTasks", json!({"pageToken": "x"}), -32602, Method::GET, "/tasks?pageToken=x"),
        ("GetExtendedAgentCard", json!({}), -32004, Method::GET, "/extendedAgentCard"),
        ("CreateTaskPushNotificationConfig", json!({}), -32003, Method::POST, "/tasks/x/pushNotificationConfigs"),
        ("ListTaskPushNotificationConfigs", json!({}), -32003, Method::GET, "/tasks/x/pushNotificationConfigs"),
        ("DeleteTaskPushNotificationConfig", json!({}), -32003, Method::DELETE, "/tasks/x/pushNotificationConfigs/y"),
    ] {
        assert_eq!(client.code(method, params).await, code, "{method}");
        let status = if code == -32001 { 404 } else { 400 };
        assert_eq!(client.http(verb, path, Value::Null).await.status, status, "{path}");
    }
    assert_eq!(client.code("message/send", json!({})).await, -32601, "the name of version 0.3");
    assert_eq!(client.http(Method::POST, "/message:stop", json!({})).await.status, 404);
    assert_eq!(client.http(Method::GET, "", Value::Null).await.status, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_versions_and_callers_without_a_grant_are_refused() {
    let broker = Broker::start();
    let (alice, _) = granted(&broker, "alice").await;
    granted(&broker, "bob").await;
    let gateway = Gateway::start(&broker, &["--a2a-publish", "bob"]);
    let client = Client { gateway: &gateway, token: &alice, name: "bob" };
    for version in ["", "0.3", "1.1", "2.0"] {
        let changed = |mut request: Request<Vec<u8>>| {
            request.headers_mut().insert("a2a-version", version.parse().unwrap());
            request
        };
        let answer = gateway.send(changed(client.call("ListTasks", &json!({})))).await.unwrap().json();
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32009), &json!(7)), "{version:?}");
        let answer = gateway.send(changed(client.request(Method::GET, "/tasks", &Value::Null))).await.unwrap();
        let details = &answer.json()["error"]["details"];
        assert_eq!((answer.status, &details[0]["reason"]), (400, &json!("VERSION_NOT_SUPPORTED")), "{version:?}");
    }
    for (token, reason) in [(None, "IDENTITY_MISSING"), (Some("unknown"), "TOKEN_INVALID")] {
        for path in ["/a2a/bob", "/a2a/bob/message:send"] {
            let refused = gateway.send(post(path, token, &json!({}))).await.unwrap();
            assert_eq!((refused.status, refused.reason()), (401, reason.to_owned()), "{path}");
            assert!(refused.head.contains_key("www-authenticate"));
        }
    }
    // Unpublished is not there, with and without a token.
    for token in [None, Some(&*alice)] {
        assert_eq!(gateway.send(post("/a2a/alice", token, &json!({}))).await.unwrap().status, 404);
    }
    let text = "x".repeat(1024 * 1024 + 64 * 1024);
    let long = client.call("SendMessage", &json!({"message": message(&text)}));
    assert_eq!(gateway.send(long).await.unwrap().status, 413);
}
