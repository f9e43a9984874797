//! A gateway that is killed: the same task, one handoff, nothing open.

use std::sync::Arc;

use baton::proto::v1::{self, TaskStatus};
use serde_json::json;

use super::{Client, ended, message, report, take};
use crate::{
    broker::{Broker, eventually},
    gateway::{Gateway, granted},
};

const OPTIONS: [&str; 2] = ["--a2a-publish", "bob"];

fn bobs<'a>(gateway: &'a Gateway, token: &'a str) -> Client<'a> {
    Client { gateway, token, name: "bob" }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_killed_at_each_step_makes_one_handoff_and_leaves_nothing_open() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let sent = message("survive");

    // Ten at once, and the gateway is killed while they wait.
    let gateway = Arc::new(Gateway::start(&broker, &OPTIONS));
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let (gateway, alice, sent) = (Arc::clone(&gateway), alice.clone(), sent.clone());
            tokio::spawn(async move {
                let client = bobs(&gateway, &alice);
                gateway.send(client.call("SendMessage", &json!({"message": sent}))).await
            })
        })
        .collect();
    eventually("the task is there", async || {
        bobs(&gateway, &alice).result("ListTasks", json!({})).await["totalSize"] == 1
    })
    .await;
    let pid = gateway.pid();
    assert!(std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    for call in waiting {
        call.await.unwrap().unwrap_err();
    }
    drop(gateway);

    let gateway = Gateway::start(&broker, &OPTIONS);
    let task = bobs(&gateway, &alice).send(&sent).await;
    take(&gateway, &bob, &task).await;
    gateway.kill();
    let gateway = Gateway::start(&broker, &OPTIONS);
    assert_eq!(bobs(&gateway, &alice).state(&task["id"]).await, "WORKING");
    report(&gateway, &bob, &task, "COMPLETED", json!({"result": {"n": 1}})).await;
    // At once: whether it has ended the task or not.
    gateway.kill();
    let gateway = Gateway::start(&broker, &OPTIONS);
    assert_eq!(ended(&broker, "alice", &task["id"]).await.status(), TaskStatus::Completed);
    let again = bobs(&gateway, &alice).result("SendMessage", json!({"message": sent})).await["task"].clone();
    assert_eq!(again["id"], task["id"]);
    assert_eq!(again["artifacts"][0]["parts"][0]["data"], json!({"n": 1}));
    assert_eq!(broker.lines(&["handoff", "list"]).len(), 1, "one handoff in all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_came_back_without_a_gateway_is_ended_at_its_start() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let gateway = Gateway::start(&broker, &OPTIONS);
    let client = bobs(&gateway, &alice);
    let (lent, open) = (client.send(&message("one")).await, client.send(&message("two")).await);
    take(&gateway, &bob, &lent).await;
    gateway.kill();

    // Bob works on without the gateway.
    let agent = broker.client_of("bob").await;
    let composer = crate::broker::composer("bob");
    let update = v1::TaskStatusUpdate { status: TaskStatus::Failed.into(), details: "no".into(), ..Default::default() };
    let epoch = lent["metadata"]["baton/epoch"].as_u64().unwrap_or_default().max(2);
    let about = baton_client::About::task(lent["id"].as_str().unwrap(), epoch);
    agent.send(composer.encode("", v1::MessageType::TaskStatusUpdate, &about, &update)).await.unwrap();

    let gateway = Gateway::start(&broker, &OPTIONS);
    let client = bobs(&gateway, &alice);
    let found = ended(&broker, "alice", &lent["id"]).await;
    assert_eq!((found.status(), found.details.as_str()), (TaskStatus::Failed, "no"));
    // One that waits for its agent goes on.
    assert_eq!(client.state(&open["id"]).await, "SUBMITTED");
    assert_eq!(client.state(&lent["id"]).await, "FAILED");
}
