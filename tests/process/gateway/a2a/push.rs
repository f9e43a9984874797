//! Push notifications: each change of a task, posted to the addresses of its client.

use std::fs;

use http::Method;
use serde_json::{Value, json};

use super::{
    super::{Gateway, granted, receiver::Receiver},
    Client, ended, message, report, take,
};
use crate::broker::{Broker, eventually};

const OPTIONS: [&str; 4] = ["--a2a-publish", "bob", "--a2a-push", "--allow-local-targets"];

/// What an event shows: the state, or that it is the result.
fn shown(event: &Value) -> String {
    if event["artifactUpdate"].is_object() {
        return "result".to_owned();
    }
    let status = [&event["task"]["status"], &event["statusUpdate"]["status"]].into_iter().find(|one| one.is_object());
    let state = status.unwrap_or_else(|| panic!("{event}"))["state"].as_str().unwrap();
    state.strip_prefix("TASK_STATE_").unwrap().to_owned()
}

/// The events that have come, without repeats.
fn events(receiver: &Receiver) -> Vec<String> {
    let mut all: Vec<String> = receiver.heard().iter().map(|heard| shown(&heard.body)).collect();
    all.dedup();
    all
}

fn files(broker: &Broker) -> Vec<String> {
    let folder = broker.folder.path().join("gateway/push");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    // Beside them are files that are being written.
    let whole = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    whole.map(|path| fs::read_to_string(path).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_a_task_is_posted_in_order_with_token_and_authentication() {
    let broker = Broker::serve("", "");
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let receiver = Receiver::encrypted(&broker, |_, _| (200, String::new())).await;
    let gateway = Gateway::start(&broker, &OPTIONS);
    let client = Client { gateway: &gateway, token: &alice, name: "bob" };
    let card = client.http(Method::GET, "/.well-known/agent-card.json", Value::Null).await.json();
    assert_eq!(card["capabilities"]["pushNotifications"], true);

    let authentication = json!({"scheme": "Bearer", "credentials": "letmein"});
    let push = json!({"url": receiver.url, "token": "t0", "authentication": authentication});
    let configuration = json!({"returnImmediately": true, "taskPushNotificationConfig": push});
    let first = json!({"message": message("add these"), "configuration": configuration});
    let task = client.result("SendMessage", first.clone()).await["task"].clone();
    eventually("the task is told", async || events(&receiver) == ["SUBMITTED"]).await;
    assert_eq!(client.result("SendMessage", first).await["task"]["id"], task["id"], "a repeat changes nothing");
    take(&gateway, &bob, &task).await;
    eventually("the work is told", async || events(&receiver) == ["SUBMITTED", "WORKING"]).await;
    report(&gateway, &bob, &task, "COMPLETED", json!({"result": {"sum": 42}})).await;
    let all = ["SUBMITTED", "WORKING", "result", "COMPLETED"];
    eventually("the end is told", async || events(&receiver) == all).await;
    for heard in receiver.heard() {
        let head = (heard.header("x-a2a-notification-token"), heard.header("authorization"));
        assert_eq!(head, ("t0", "Bearer letmein"));
        assert_eq!(heard.header("content-type"), "application/a2a+json");
        assert!(heard.body.to_string().contains(task["id"].as_str().unwrap()), "{heard:?}");
    }
    let bodies: Vec<Value> = receiver.heard().into_iter().map(|heard| heard.body).collect();
    assert!(bodies.iter().enumerate().all(|(at, body)| !bodies[..at].contains(body)), "each once: {bodies:?}");
    ended(&broker, "alice", &task["id"]).await;
    eventually("the end is kept", async || files(&broker)[0].contains("end_time")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_are_made_shown_listed_and_deleted_in_both_bindings() {
    let broker = Broker::start();
    let ((alice, _), (carol, _)) = (granted(&broker, "alice").await, granted(&broker, "carol").await);
    granted(&broker, "bob").await;
    let receiver = Receiver::start(|_, _| (204, String::new())).await;
    let gateway = Gateway::start(&broker, &OPTIONS);
    let client = Client { gateway: &gateway, token: &alice, name: "bob" };
    let task = client.send(&message("add these")).await;
    let (id, path) = (&task["id"], format!("/tasks/{}/pushNotificationConfigs", task["id"].as_str().unwrap()));
    let create = json!({"taskId": id, "id": "mine", "url": receiver.url, "token": "t0"});
    let made = client.result("CreateTaskPushNotificationConfig", create.clone()).await;
    assert_eq!(made, create);
    let second = client.http(Method::POST, &path, json!({"url": format!("{}/2", receiver.url)})).await;
    assert_eq!(second.status, 200, "{}", second.text);
    let second = second.json();
    assert!(second["id"].as_str().is_some_and(|id| !id.is_empty()), "{second}");
    let told = |path: &str| receiver.heard().iter().any(|heard| heard.path == path);
    eventually("both receivers are told", async || told("/hook") && told("/hook/2")).await;

    let get = json!({"taskId": id, "id": "mine"});
    assert_eq!(client.result("GetTaskPushNotificationConfig", get.clone()).await, made);
    assert_eq!(client.http(Method::GET, &format!("{path}/mine"), Value::Null).await.json(), made);
    let list = client.result("ListTaskPushNotificationConfigs", json!({"taskId": id})).await;
    assert_eq!((list["configs"].as_array().unwrap().len(), &list["nextPageToken"]), (2, &json!("")));
    assert_eq!(client.http(Method::GET, &path, Value::Null).await.json(), list);

    // A foreign task and an absent configuration are not there.
    let none = client.rpc("GetTask", json!({"id": "a2a-none"})).await["error"].clone();
    let other = Client { gateway: &gateway, token: &carol, name: "bob" };
    for (method, params) in [
        ("CreateTaskPushNotificationConfig", create),
        ("GetTaskPushNotificationConfig", get.clone()),
        ("ListTaskPushNotificationConfigs", json!({"taskId": id})),
        ("DeleteTaskPushNotificationConfig", get.clone()),
    ] {
        assert_eq!(other.rpc(method, params).await["error"], none, "{method}");
    }
    assert_eq!(client.rpc("GetTaskPushNotificationConfig", json!({"taskId": id, "id": "x"})).await["error"], none);
    for (wrong, field) in [
        (json!({"taskId": id}), "url"),
        (json!({"taskId": id, "url": "http://10.0.0.1/"}), "url"),
        (json!({"taskId": id, "url": "ftp://a.example/"}), "url"),
        (json!({"taskId": id, "url": receiver.url, "id": "a/b"}), "id"),
        (json!({"taskId": id, "url": receiver.url, "token": "a\nb"}), "token"),
    ] {
        let error = client.rpc("CreateTaskPushNotificationConfig", wrong.clone()).await["error"].clone();
        assert_eq!(error["code"], -32602, "{wrong}: {error}");
        assert!(error["message"].as_str().unwrap().contains(field), "{wrong}: {error}");
    }

    assert_eq!(client.result("DeleteTaskPushNotificationConfig", get).await, json!({}));
    let rest = format!("{path}/{}", second["id"].as_str().unwrap());
    assert_eq!(client.http(Method::DELETE, &rest, Value::Null).await.status, 200);
    assert!(files(&broker).is_empty(), "nothing is kept");
    client.result("CancelTask", json!({"id": id})).await;
    assert_eq!(events(&receiver), ["SUBMITTED"], "a deleted one is not told");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_gateway_goes_on_and_what_a_receiver_refuses_is_repeated() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    // Each event is refused once.
    let seen = std::sync::Mutex::new(Vec::<String>::new());
    let receiver = Receiver::start(move |heard, _| {
        let (mut seen, event) = (seen.lock().unwrap(), shown(&heard.body));
        if seen.contains(&event) {
            return (200, String::new());
        }
        seen.push(event);
        (503, String::new())
    })
    .await;
    let gone = Receiver::start(|_, _| (410, String::new())).await;
    let gateway = Gateway::start(&broker, &OPTIONS);
    let client = Client { gateway: &gateway, token: &alice, name: "bob" };
    let task = client.send(&message("add these")).await;
    for url in [&receiver.url, &gone.url] {
        client.result("CreateTaskPushNotificationConfig", json!({"taskId": task["id"], "url": url})).await;
    }
    eventually("the task is told", async || files(&broker)[0].contains("SUBMITTED")).await;
    take(&gateway, &bob, &task).await;
    eventually("the other receiver is dropped", async || !files(&broker)[0].contains(&gone.url)).await;
    eventually("what was told is kept", async || files(&broker)[0].contains("WORKING")).await;
    gateway.kill();

    // The task ends while no gateway runs.
    let ending = Gateway::start(&broker, &["--a2a-publish", "bob"]);
    report(&ending, &bob, &task, "COMPLETED", json!({"result": {"sum": 42}})).await;
    ended(&broker, "alice", &task["id"]).await;
    ending.kill();
    let gateway = Gateway::start(&broker, &OPTIONS);
    let all = ["SUBMITTED", "WORKING", "result", "COMPLETED"];
    eventually("the end is told", async || events(&receiver) == all).await;
    assert_eq!(gone.heard().len(), 1, "410 ends it");
    drop(gateway);
}
