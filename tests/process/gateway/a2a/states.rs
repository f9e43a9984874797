//! Each way of a task, as both bindings show it. Nothing stays open at the broker.

use baton::proto::v1::TaskStatus;
use http::Method;
use serde_json::{Value, json};

use super::{Client, about, ended, message, report, state_of, take, words_of};
use crate::{
    broker::Broker,
    gateway::{Gateway, granted},
};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_done_says_why() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let gateway = Gateway::start(&broker, &["--a2a-publish", "bob"]);
    let client = Client { gateway: &gateway, token: &alice, name: "bob" };

    let rejected = client.send(&message("decline it")).await;
    let decline = json!({
        "handoff_id": rejected["metadata"]["baton/handoff_id"], "reason": "NO_SKILL", "text": "not mine",
    });
    gateway.act(&bob, "decline_task", decline).await;
    let shown = client.task(&rejected["id"]).await;
    assert_eq!(state_of(&shown), "REJECTED");
    assert!(words_of(&shown).contains("not mine"), "{shown}");
    assert_eq!(ended(&broker, "alice", &rejected["id"]).await.status(), TaskStatus::Canceled);
    assert_eq!(client.state(&rejected["id"]).await, "REJECTED", "also after its end at the broker");

    for (status, state) in [("FAILED", "FAILED"), ("CANCELED", "CANCELED")] {
        let task = client.send(&message(status)).await;
        take(&gateway, &bob, &task).await;
        report(&gateway, &bob, &task, status, json!({"details": "it broke"})).await;
        // Before a client looks, and after.
        ended(&broker, "alice", &task["id"]).await;
        let shown = client.task(&task["id"]).await;
        assert_eq!((state_of(&shown).as_str(), words_of(&shown)), (state, "it broke"));
    }

    // The same agent takes it back beside A2A.
    let task = client.send(&message("recall")).await;
    take(&gateway, &bob, &task).await;
    gateway.act(&alice, "take_back", json!({"id": task["id"]})).await;
    assert_eq!(client.state(&task["id"]).await, "CANCELED");
    assert_eq!(ended(&broker, "alice", &task["id"]).await.status(), TaskStatus::Canceled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_type_without_agents_begins_nothing() {
    let broker = Broker::start();
    let (alice, _) = granted(&broker, "alice").await;
    let gateway = Gateway::start(&broker, &["--a2a-publish", "type:none"]);
    let client = Client { gateway: &gateway, token: &alice, name: "none" };
    let params = json!({"message": message("anybody?")});
    let error = client.rpc("SendMessage", params.clone()).await["error"].clone();
    assert_eq!((&error["code"], &error["data"][0]["reason"]), (&json!(-32603), &json!("RECEIVER_UNKNOWN")));
    let answer = client.http(Method::POST, "/message:send", params).await;
    assert_eq!((answer.status, &answer.json()["error"]["details"]), (404, &error["data"]));
    assert_eq!(client.result("ListTasks", json!({})).await["totalSize"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_cancelled_before_and_after_it_was_taken() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let gateway = Gateway::start(&broker, &["--a2a-publish", "bob"]);
    let client = Client { gateway: &gateway, token: &alice, name: "bob" };
    for (is_taken, by_http) in [(false, false), (true, false), (false, true), (true, true)] {
        let task = client.send(&message("cancel me")).await;
        if is_taken {
            take(&gateway, &bob, &task).await;
        }
        let path = format!("/tasks/{}:cancel", task["id"].as_str().unwrap());
        let cancelled = match by_http {
            true => client.http(Method::POST, &path, Value::Null).await.json(),
            false => client.result("CancelTask", json!({"id": task["id"]})).await,
        };
        assert_eq!(state_of(&cancelled), "CANCELED", "{cancelled}");
        assert_eq!(ended(&broker, "alice", &task["id"]).await.status(), TaskStatus::Canceled);
        assert_eq!(client.code("CancelTask", json!({"id": task["id"]})).await, -32002);
        let again = client.http(Method::POST, &path, Value::Null).await;
        let error = &again.json()["error"];
        assert_eq!((again.status, &error["status"]), (400, &json!("FAILED_PRECONDITION")));
        assert_eq!(error["details"][0]["reason"], "TASK_NOT_CANCELABLE");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_reach_the_agent_that_works_and_answer_its_questions() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    granted(&broker, "carol").await;
    let gateway = Gateway::start(&broker, &["--a2a-publish", "bob"]);
    let client = Client { gateway: &gateway, token: &alice, name: "bob" };
    let task = client.send(&message("paint it")).await;
    let early = json!({"message": about(&task, "soon")});
    assert_eq!(client.code("SendMessage", early).await, -32004, "nobody has it yet");
    take(&gateway, &bob, &task).await;

    // Mail, once however often it is sent.
    let mut hurry = about(&task, "hurry");
    hurry["parts"].as_array_mut().unwrap().push(json!({"data": [1]}));
    for _ in 0..2 {
        assert_eq!(state_of(&client.send(&hurry).await), "WORKING");
    }
    let mail = gateway.act(&bob, "read_mail", json!({})).await.to_string();
    assert_eq!((mail.matches("hurry").count(), mail.matches(r#""data":{"data":[[1]]}"#).count()), (1, 1), "{mail}");

    // A question to another agent is not the client's.
    let ask = |who: &str, question: &str, schema: Value| {
        json!({
            "task_id": task["id"], "question": question, "answer_by": who, "answer_schema": schema, "wait_seconds": 0,
        })
    };
    gateway.act(&bob, "ask", ask("carol", "who pays?", json!({}))).await;
    let waiting = client.task(&task["id"]).await;
    assert_eq!((state_of(&waiting).as_str(), words_of(&waiting)), ("WORKING", "waits for the answer of another agent"));

    gateway.act(&bob, "ask", ask("alice", "which colour?", json!({"type": "object", "required": ["colour"]}))).await;
    let asked = client.task(&task["id"]).await;
    assert_eq!((state_of(&asked).as_str(), words_of(&asked)), ("INPUT_REQUIRED", "which colour?"));
    assert_eq!(asked["status"]["message"]["parts"][1]["data"]["answerSchema"]["required"], json!(["colour"]));
    let answer = client.rpc("SendMessage", json!({"message": about(&task, "red")})).await;
    assert_eq!(answer["error"]["code"], -32602, "it does not fit the schema: {answer}");
    let mut red = about(&task, "please");
    red["contextId"] = task["contextId"].clone();
    red["parts"].as_array_mut().unwrap().push(json!({"data": {"colour": "red"}}));
    for _ in 0..2 {
        assert_eq!(state_of(&client.send(&red).await), "WORKING", "a repeat changes nothing");
    }
    let given = gateway.act(&bob, "get_task", json!({"task_id": task["id"]})).await;
    assert_eq!((&given["answer"]["text"], &given["answer"]["data"]), (&json!("please"), &json!({"colour": "red"})));

    report(&gateway, &bob, &task, "COMPLETED", json!({"details": "red now"})).await;
    let done = client.task(&task["id"]).await;
    assert_eq!(done["artifacts"][0]["parts"], json!([{"text": "red now", "mediaType": "text/plain"}]));
    assert_eq!(client.code("SendMessage", json!({"message": about(&task, "more")})).await, -32004);
}
