//! A2A 1.0 at `/a2a/NAME`, with requests by hand.

mod cards;
mod cut;
mod push;
mod refused;
mod states;
mod streams;

use std::sync::atomic::{AtomicU32, Ordering};

use baton::proto::v1;
use http::{Method, Request};
use serde_json::{Value, json};

use super::{Answer, Gateway, granted};
use crate::broker::{Broker, eventually};

/// A client of A2A, which speaks to one published agent as one caller.
struct Client<'a> {
    gateway: &'a Gateway,
    token: &'a str,
    name: &'a str,
}

/// A message with an id of its own.
fn message(text: &str) -> Value {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let id = format!("m-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    json!({"messageId": id, "role": "ROLE_USER", "parts": [{"text": text}]})
}

/// A message to this task.
fn about(task: &Value, text: &str) -> Value {
    let mut message = message(text);
    message["taskId"] = task["id"].clone();
    message
}

impl Client<'_> {
    fn request(&self, method: Method, rest: &str, body: &Value) -> Request<Vec<u8>> {
        let request = Request::builder().method(method).uri(format!("/a2a/{}{rest}", self.name));
        let request = request.header("authorization", format!("Bearer {}", self.token)).header("a2a-version", "1.0");
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        request.header("content-type", "application/json").body(body).unwrap()
    }

    /// A call over JSON-RPC.
    fn call(&self, method: &str, params: &Value) -> Request<Vec<u8>> {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        self.request(Method::POST, "", &body)
    }

    async fn rpc(&self, method: &str, params: Value) -> Value {
        let answer = self.gateway.send(self.call(method, &params)).await.unwrap();
        assert_eq!((answer.status, answer.kind()), (200, "application/json"), "{}", answer.text);
        let answer = answer.json();
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)), "{answer}");
        answer
    }

    /// The result of a call that works.
    async fn result(&self, method: &str, params: Value) -> Value {
        let answer = self.rpc(method, params).await;
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// The error of a call that does not work.
    async fn code(&self, method: &str, params: Value) -> i64 {
        let answer = self.rpc(method, params).await;
        let details = &answer["error"]["data"];
        let typed =
            |detail: &Value| detail["@type"].as_str().is_some_and(|kind| kind.starts_with("type.googleapis.com/"));
        assert!(details.as_array().is_some_and(|details| details.iter().all(typed)), "{answer}");
        answer["error"]["code"].as_i64().unwrap()
    }

    /// Sends a message, and does not wait. The task.
    async fn send(&self, message: &Value) -> Value {
        let configuration = json!({"returnImmediately": true});
        self.result("SendMessage", json!({"message": message, "configuration": configuration})).await["task"].clone()
    }

    /// A call over HTTP+JSON.
    async fn http(&self, method: Method, rest: &str, body: Value) -> Answer {
        self.gateway.send(self.request(method, rest, &body)).await.unwrap()
    }

    /// The task, which both bindings show alike.
    async fn task(&self, id: &Value) -> Value {
        let path = format!("/tasks/{}", id.as_str().unwrap());
        for _ in 0..5 {
            let by_rpc = self.result("GetTask", json!({"id": id})).await;
            let by_http = self.http(Method::GET, &path, Value::Null).await;
            assert_eq!((by_http.status, by_http.kind()), (200, "application/a2a+json"));
            // It may have moved between the two.
            if by_rpc == by_http.json() {
                return by_rpc;
            }
        }
        panic!("the bindings differ");
    }

    async fn state(&self, id: &Value) -> String {
        state_of(&self.task(id).await)
    }
}

fn state_of(task: &Value) -> String {
    let state = task["status"]["state"].as_str().unwrap_or_else(|| panic!("{task}"));
    state.strip_prefix("TASK_STATE_").unwrap().to_owned()
}

fn words_of(task: &Value) -> &str {
    task["status"]["message"]["parts"][0]["text"].as_str().unwrap_or_default()
}

/// Bob takes the task.
async fn take(gateway: &Gateway, bob: &str, task: &Value) -> Value {
    let handoff = &task["metadata"]["baton/handoff_id"];
    gateway.act(bob, "take_task", json!({"handoff_id": handoff})).await
}

async fn report(gateway: &Gateway, bob: &str, task: &Value, status: &str, more: Value) {
    let mut arguments = json!({"task_id": task["id"], "status": status});
    arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    gateway.act(bob, "report", arguments).await;
}

/// The task at the broker, once it has ended there: nobody has asked the gateway for it.
async fn ended(broker: &Broker, owner: &str, id: &Value) -> v1::Task {
    let client = broker.client_of(owner).await;
    let mut found = v1::Task::default();
    eventually("the task has ended at the broker", async || {
        let request = v1::GetTaskRequest { task_id: id.as_str().unwrap().to_owned() };
        found = client.answer(client.tasks().get_task(request).await).unwrap().task.unwrap();
        use v1::TaskStatus::{Canceled, Completed, Failed};
        matches!(found.status(), Completed | Failed | Canceled) && found.owner_id == owner
    })
    .await;
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_becomes_a_handoff_and_its_result_an_artifact() {
    // With the policies of a broker for others.
    let broker = Broker::serve("", "");
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let gateway = Gateway::start(&broker, &["--a2a-publish", "bob"]);
    let client = Client { gateway: &gateway, token: &alice, name: "bob" };
    let mut first = message("add these");
    first["parts"].as_array_mut().unwrap().push(json!({"data": {"numbers": [40, 2]}}));
    first["contextId"] = "sums".into();
    let task = client.send(&first).await;
    assert_eq!((state_of(&task).as_str(), &task["contextId"]), ("SUBMITTED", &json!("sums")), "{task}");
    assert!(task["id"].as_str().unwrap().starts_with("a2a-"));

    let taken = take(&gateway, &bob, &task).await;
    assert_eq!(taken["context"]["collected_data"], json!({"numbers": [40, 2]}));
    assert_eq!(taken["context"]["task_description"]["summary"], "add these");
    assert_eq!(taken["context"]["a2a"], json!({"messageId": first["messageId"]}));
    assert_eq!(client.state(&task["id"]).await, "WORKING");
    report(&gateway, &bob, &task, "IN_PROGRESS", json!({"details": "adding"})).await;
    let working = client.task(&task["id"]).await;
    assert_eq!((words_of(&working), &working["metadata"]["baton/owner"]), ("adding", &json!("bob")));

    // A message that waits gets the end.
    let waiting = client.result("SendMessage", json!({"message": first}));
    let ending = report(&gateway, &bob, &task, "COMPLETED", json!({"result": {"sum": 42}}));
    let (done, ()) = tokio::join!(waiting, ending);
    let done = &done["task"];
    assert_eq!((state_of(done).as_str(), &done["id"]), ("COMPLETED", &task["id"]));
    let parts = &done["artifacts"][0]["parts"];
    assert_eq!((&parts[0]["data"], &parts[1]["text"]), (&json!({"sum": 42}), &json!("{\"sum\":42}")));
    let at_broker = ended(&broker, "alice", &task["id"]).await;
    assert_eq!((at_broker.status(), at_broker.result_json.as_str()), (v1::TaskStatus::Completed, r#"{"sum":42}"#));
    assert_eq!(*done, client.task(&task["id"]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_listed_by_their_caller_alone_and_the_latest_change_comes_first() {
    let broker = Broker::start();
    let ((alice, _), (carol, _)) = (granted(&broker, "alice").await, granted(&broker, "carol").await);
    let (bob, _) = granted(&broker, "bob").await;
    let gateway = Gateway::start(&broker, &["--a2a-publish", "bob,carol"]);
    let client = Client { gateway: &gateway, token: &alice, name: "bob" };
    let mut tasks = Vec::new();
    for text in ["one", "two", "three"] {
        let mut message = message(text);
        message["contextId"] = if text == "two" { json!("other") } else { json!("same") };
        tasks.push(client.send(&message).await);
    }
    take(&gateway, &bob, &tasks[0]).await;
    report(&gateway, &bob, &tasks[0], "COMPLETED", json!({"result": {"n": 1}})).await;
    assert_eq!(client.state(&tasks[0]["id"]).await, "COMPLETED");

    let ids =
        |list: &Value| list["tasks"].as_array().unwrap().iter().map(|task| task["id"].clone()).collect::<Vec<_>>();
    let all = client.result("ListTasks", json!({})).await;
    assert_eq!(ids(&all), [tasks[0]["id"].clone(), tasks[2]["id"].clone(), tasks[1]["id"].clone()]);
    assert_eq!((&all["nextPageToken"], &all["totalSize"], &all["pageSize"]), (&json!(""), &json!(3), &json!(50)));
    assert!(all["tasks"][0].get("artifacts").is_none(), "only if asked for: {all}");
    let with = client.result("ListTasks", json!({"includeArtifacts": true})).await;
    assert_eq!(with["tasks"][0]["artifacts"][0]["parts"][0]["data"], json!({"n": 1}));
    assert_eq!(with["tasks"][1]["artifacts"], json!([]));
    let same = client.http(Method::GET, "/tasks?contextId=same&status=TASK_STATE_SUBMITTED", Value::Null).await;
    assert_eq!(ids(&same.json()), [tasks[2]["id"].clone()]);

    // Pages.
    let first = client.http(Method::GET, "/tasks?pageSize=2", Value::Null).await.json();
    assert_eq!((ids(&first).len(), &first["totalSize"]), (2, &json!(3)));
    let token = first["nextPageToken"].as_str().unwrap();
    let second = client.result("ListTasks", json!({"pageSize": 2, "pageToken": token})).await;
    assert_eq!((ids(&second), &second["nextPageToken"]), (vec![tasks[1]["id"].clone()], &json!("")));
    let later =
        client.result("ListTasks", json!({"statusTimestampAfter": all["tasks"][0]["status"]["timestamp"]})).await;
    assert_eq!(ids(&later), [tasks[0]["id"].clone()]);

    // Another caller, and another address: nothing of it, with the same bytes as for what is not there. In development
    // mode the broker itself would show it.
    let none = client.rpc("GetTask", json!({"id": "a2a-none"})).await;
    assert_eq!(none["error"]["code"], -32001);
    for other in [
        Client { gateway: &gateway, token: &carol, name: "bob" },
        Client { gateway: &gateway, token: &alice, name: "carol" },
    ] {
        assert_eq!(ids(&other.result("ListTasks", json!({})).await), Vec::<Value>::new());
        assert_eq!(other.rpc("GetTask", json!({"id": tasks[0]["id"]})).await, none);
        for (method, params) in [
            ("CancelTask", json!({"id": tasks[1]["id"]})),
            ("SubscribeToTask", json!({"id": tasks[1]["id"]})),
            ("SendMessage", json!({"message": about(&tasks[1], "mine")})),
        ] {
            assert_eq!(other.rpc(method, params).await["error"], none["error"], "{method}");
        }
        let mut own = message("own");
        own["contextId"] = "same".into();
        assert_ne!(other.send(&own).await["id"], tasks[0]["id"]);
    }
    // The context of the same name is another one.
    assert_eq!(ids(&client.result("ListTasks", json!({"contextId": "same"})).await).len(), 2);
}
