//! Streams: the task first, then each change, until its end.

use http::Method;
use serde_json::{Value, json};

use super::{Client, message, report, take};
use crate::{
    broker::{Broker, eventually},
    gateway::{Answer, Gateway, granted},
};

/// The events of a stream that has ended.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!((answer.status, answer.kind()), (200, "text/event-stream"), "{}", answer.text);
    let data = answer.text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// Each event as its kind and what it shows.
fn kinds(events: &[Value]) -> Vec<String> {
    let kind = |event: &Value| {
        let (name, shown) = event.as_object().unwrap().iter().next().unwrap();
        match name.as_str() {
            "artifactUpdate" => format!("artifact {}", shown["artifact"]["parts"][0]["data"]),
            _ => super::state_of(shown),
        }
    };
    events.iter().map(kind).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_tells_each_change_and_ends_with_the_task() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let gateway = Gateway::start(&broker, &["--a2a-publish", "bob"]);
    let client = Client { gateway: &gateway, token: &alice, name: "bob" };
    let sent = json!({"message": message("stream it")});
    let streaming = gateway.send(client.call("SendStreamingMessage", &sent));
    let working = async {
        let mut task = Value::Null;
        eventually("the task is listed", async || {
            task = client.result("ListTasks", json!({})).await["tasks"][0].clone();
            !task.is_null()
        })
        .await;
        take(&gateway, &bob, &task).await;
        let path = format!("/tasks/{}:subscribe", task["id"].as_str().unwrap());
        let subscribed = gateway.send(client.request(Method::POST, &path, &Value::Null));
        let ending = async {
            report(&gateway, &bob, &task, "IN_PROGRESS", json!({"details": "half", "progress": 0.5})).await;
            eventually("the change is seen", async || super::words_of(&client.task(&task["id"]).await) == "half").await;
            report(&gateway, &bob, &task, "COMPLETED", json!({"result": {"n": 1}})).await;
        };
        let (subscribed, ()) = tokio::join!(subscribed, ending);
        (task, subscribed.unwrap())
    };
    let (streamed, (task, subscribed)) = tokio::join!(streaming, working);
    let streamed = events(&streamed.unwrap());
    assert!(streamed.iter().all(|event| event["id"] == 7 && event["jsonrpc"] == "2.0"), "{streamed:?}");
    let streamed: Vec<Value> = streamed.into_iter().map(|event| event["result"].clone()).collect();
    assert!(streamed[0]["task"].is_object() && streamed[1..].iter().all(|event| event.get("task").is_none()));
    let (streamed, subscribed) = (kinds(&streamed), events(&subscribed));
    assert!(subscribed[0]["task"].is_object(), "{subscribed:?}");
    let subscribed = kinds(&subscribed);
    assert_eq!(streamed[0], "SUBMITTED");
    for told in [&streamed, &subscribed] {
        assert_eq!(told[told.len() - 2..], [r#"artifact {"n":1}"#.to_owned(), "COMPLETED".to_owned()], "{told:?}");
        assert!(told.iter().any(|state| state == "WORKING"), "{told:?}");
    }
    // The same message again, and a subscription to what has ended.
    let again = gateway.send(client.call("SendStreamingMessage", &sent)).await.unwrap();
    assert_eq!(kinds(&[events(&again)[0]["result"].clone()]), ["COMPLETED"]);
    assert_eq!(client.code("SubscribeToTask", json!({"id": task["id"]})).await, -32004);
}
