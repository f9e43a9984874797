//! Webhooks: agents whose work is the answers to requests of the gateway.

use std::{fs, sync::Arc};

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{
    Gateway, gateway, granted,
    receiver::{Heard, Receiver},
};
use crate::broker::{Broker, eventually, exit_of};

const LOCAL: [&str; 1] = ["--allow-local-targets"];

fn command(broker: &Broker, arguments: &[&str]) -> Value {
    let output = gateway(broker, &[&["webhook"], arguments].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Adds a webhook. Its secret.
fn add(broker: &Broker, agent: &str, url: &str, more: &[&str]) -> String {
    command(broker, &[&["add", agent, url], more].concat())["secret"].as_str().unwrap().to_owned()
}

/// Accepts each offer. What it answers to a task is this.
fn accepting(heard: &Heard, to_task: (u16, &str)) -> (u16, String) {
    match heard.kind() {
        "offer" => (200, r#"{"accept": true}"#.to_owned()),
        _ => (to_task.0, to_task.1.to_owned()),
    }
}

/// Alice lends a task to bob. What the act says.
async fn lend(gateway: &Gateway, alice: &str, summary: &str, wait: u32) -> Value {
    let lend = json!({"to": "bob", "summary": summary, "context": {"numbers": [40, 2]}, "wait_seconds": wait});
    gateway.act(alice, "delegate", lend).await
}

/// The end of a loan.
async fn end(gateway: &Gateway, alice: &str, lent: &Value) -> Value {
    gateway.act(alice, "wait", json!({"id": lent["handoff_id"], "wait_seconds": 120})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offer_and_its_task_are_two_signed_requests() {
    // With the policies of a broker for others.
    let broker = Broker::serve("", "");
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let receiver = Receiver::encrypted(&broker, |heard, _| accepting(heard, (200, r#"{"sum": 42}"#))).await;
    let secret = add(&broker, "bob", &receiver.url, &[]);
    let gateway = Gateway::start(&broker, &LOCAL);
    let lent = lend(&gateway, &alice, "add these", 120).await;
    assert_eq!((&lent["state"], &lent["result"]), (&json!("RETURNED"), &json!({"sum": 42})), "{lent}");

    let heard = receiver.heard();
    let [offer, task] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((offer.kind(), task.kind(), offer.path.as_str()), ("offer", "task", "/hook"));
    for one in [offer, task] {
        assert!(one.is_signed(&secret) && one.id().starts_with("msg_"), "{one:?}");
        assert_eq!((one.header("content-type"), one.header("authorization")), ("application/json", ""));
        let data = &one.body["data"];
        assert_eq!((&data["handoff_id"], &data["task_id"]), (&lent["handoff_id"], &lent["task_id"]));
        assert_eq!((&data["from"], &data["summary"]), (&json!("alice"), &json!("add these")));
    }
    assert_ne!(offer.id(), task.id());
    assert_eq!((&offer.body["data"]["is_loan"], &offer.body["data"]["agent_id"]), (&json!(true), &json!("bob")));
    assert_eq!(task.body["data"]["context"]["numbers"], json!([40, 2]));
    assert!(!offer.is_signed(&add_secret()), "another secret has not signed it");
    // The token of the agent is no part of it.
    assert!(heard.iter().all(|one| !format!("{one:?}").contains(&bob)));
}

fn add_secret() -> String {
    format!("whsec_{}", "A".repeat(32))
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_answers_are_repeated_under_one_id_and_one_result_counts() {
    let broker = Broker::start();
    let ((alice, _), _) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let receiver = Receiver::start(|heard, repeats| match (heard.kind(), repeats) {
        ("offer", 0) => (500, String::new()),
        ("offer", 1) => (200, "yes".to_owned()),
        ("task", 0) => (307, String::new()),
        ("task", 1) => (200, "[42]".to_owned()),
        _ => accepting(heard, (200, &json!({"tries": repeats + 1}).to_string())),
    })
    .await;
    add(&broker, "bob", &receiver.url, &[]);
    let gateway = Gateway::start(&broker, &LOCAL);
    let lent = lend(&gateway, &alice, "count", 120).await;
    assert_eq!((&lent["state"], &lent["result"]), (&json!("RETURNED"), &json!({"tries": 3})), "{lent}");
    for kind in ["offer", "task"] {
        let tries = receiver.of(kind);
        assert_eq!(tries.len(), 3, "{tries:?}");
        assert!(tries.iter().all(|one| one.id() == tries[0].id()), "{tries:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_too_late_does_not_count() {
    let broker = Broker::start();
    let ((alice, _), _) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let late = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&late);
    let receiver = Receiver::waiting(move |heard, repeats| {
        let held = Arc::clone(&held);
        Box::pin(async move {
            if heard.kind() == "task" && repeats == 0 {
                drop(held.acquire().await);
            }
            accepting(&heard, (200, &json!({"repeats": repeats}).to_string()))
        })
    })
    .await;
    add(&broker, "bob", &receiver.url, &[]);
    let gateway = Gateway::start(&broker, &LOCAL);
    let lent = lend(&gateway, &alice, "slowly", 120).await;
    late.add_permits(1);
    assert_eq!((&lent["state"], &lent["result"]), (&json!("RETURNED"), &json!({"repeats": 1})), "{lent}");
    assert_eq!(receiver.of("task").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_may_take_a_task_and_report_later_also_to_the_next_gateway() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let receiver = Receiver::start(|heard, _| accepting(heard, (202, ""))).await;
    add(&broker, "bob", &receiver.url, &[]);
    let gateway = Gateway::start(&broker, &LOCAL);
    let first = lend(&gateway, &alice, "first", 0).await;
    let status = async |gateway: &Gateway, lent: &Value| {
        gateway.act(&bob, "get_task", json!({"task_id": lent["task_id"]})).await["status"].clone()
    };
    eventually("the task is taken", async || status(&gateway, &first).await == "IN_PROGRESS").await;
    gateway.kill();

    let gateway = Gateway::start(&broker, &LOCAL);
    let second = lend(&gateway, &alice, "second", 0).await;
    receiver.has("task", 2).await;
    eventually("the second task is taken", async || status(&gateway, &second).await == "IN_PROGRESS").await;
    for lent in [&first, &second] {
        let report = json!({"task_id": lent["task_id"], "status": "COMPLETED", "result": {"for": lent["task_id"]}});
        gateway.act(&bob, "report", report.clone()).await;
        let twice = gateway.try_act(&bob, "report", report).await.unwrap();
        assert_eq!((twice.status, twice.reason()), (403, "NOT_OWNER".to_owned()), "once counts: {}", twice.text);
        let done = end(&gateway, &alice, lent).await;
        assert_eq!((&done["state"], &done["result"]), (&json!("RETURNED"), &json!({"for": lent["task_id"]})));
    }
    let tasks: Vec<Value> = receiver.of("task").iter().map(|one| one.body["data"]["task_id"].clone()).collect();
    assert_eq!(tasks, [first["task_id"].clone(), second["task_id"].clone()], "each was sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_killed_during_a_request_sends_it_again_under_the_same_id() {
    let broker = Broker::start();
    let ((alice, _), _) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    // The first request of each id gets no answer.
    let receiver = Receiver::waiting(|heard, repeats| {
        Box::pin(async move {
            if repeats == 0 {
                std::future::pending::<()>().await;
            }
            accepting(&heard, (200, r#"{"sum": 42}"#))
        })
    })
    .await;
    add(&broker, "bob", &receiver.url, &[]);
    let gateway = Gateway::start(&broker, &LOCAL);
    let lent = lend(&gateway, &alice, "add these", 0).await;
    receiver.has("offer", 1).await;
    gateway.kill();
    let gateway = Gateway::start(&broker, &LOCAL);
    receiver.has("task", 1).await;
    gateway.kill();
    let gateway = Gateway::start(&broker, &LOCAL);
    let done = end(&gateway, &alice, &lent).await;
    assert_eq!((&done["state"], &done["result"]), (&json!("RETURNED"), &json!({"sum": 42})), "{done}");
    for kind in ["offer", "task"] {
        let tries = receiver.of(kind);
        assert!(tries.len() == 2 && tries[0].id() == tries[1].id(), "{kind}: {tries:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_rejects_and_fails_in_its_own_words_and_410_turns_it_off() {
    let broker = Broker::start();
    let ((alice, _), _) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let receiver = Receiver::start(|heard, _| {
        let summary = heard.body["data"]["summary"].as_str().unwrap().to_owned();
        match (heard.kind(), summary.as_str()) {
            ("offer", "reject") => (200, r#"{"reject": {"reason": "NO_SKILL", "text": "cannot add"}}"#.to_owned()),
            ("offer", "off") => (410, String::new()),
            _ => accepting(heard, (422, r#"{"message": "no paper"}"#)),
        }
    })
    .await;
    add(&broker, "bob", &receiver.url, &[]);
    let gateway = Gateway::start(&broker, &LOCAL);
    let rejected = lend(&gateway, &alice, "reject", 120).await;
    assert!(rejected["state"] == "REJECTED" || rejected["state"] == "FAILED", "{rejected}");
    assert!(rejected.to_string().contains("NO_SKILL") && rejected.to_string().contains("cannot add"), "{rejected}");
    let failed = lend(&gateway, &alice, "fail", 120).await;
    assert!(failed.to_string().contains("no paper"), "{failed}");
    let off = lend(&gateway, &alice, "off", 120).await;
    assert!(off.to_string().contains("no more requests"), "{off}");
    eventually("the webhook is off", async || command(&broker, &["list"])[0]["state"] == "OFF").await;

    // Nothing more comes, also from the next gateway, until it is added again.
    let count = receiver.heard().len();
    gateway.kill();
    let gateway = Gateway::start(&broker, &LOCAL);
    let waiting = lend(&gateway, &alice, "later", 0).await;
    assert_eq!((command(&broker, &["list"])[0]["state"].clone(), receiver.heard().len()), (json!("OFF"), count));
    command(&broker, &["remove", "bob"]);
    add(&broker, "bob", &receiver.url, &[]);
    assert!(end(&gateway, &alice, &waiting).await.to_string().contains("no paper"));
    assert_eq!(command(&broker, &["list"])[0]["state"], "ON");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_says_that_something_waits_and_nothing_of_it() {
    let broker = Broker::start();
    let ((alice, _), (bob, _)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let receiver = Receiver::start(|_, repeats| (if repeats == 0 { 503 } else { 204 }, String::new())).await;
    let secret = add(&broker, "bob", &receiver.url, &["--kind", "wake"]);
    let gateway = Gateway::start(&broker, &LOCAL);
    let lent = lend(&gateway, &alice, "a secret matter", 0).await;
    receiver.has("wake", 2).await;
    let woken = receiver.heard();
    assert!(woken[0].is_signed(&secret) && woken[0].id() == woken[1].id(), "{woken:?}");
    assert_eq!(woken[0].body["data"], json!({"agent_id": "bob", "depth": 1}));
    // The function fetches by itself.
    let inbox = gateway.act(&bob, "inbox", json!({})).await;
    gateway.act(&bob, "take_task", json!({"handoff_id": inbox["offers"][0]["handoff_id"]})).await;
    gateway.act(&bob, "report", json!({"task_id": lent["task_id"], "status": "COMPLETED"})).await;
    assert_eq!(end(&gateway, &alice, &lent).await["state"], "RETURNED");
    assert_eq!(receiver.heard().len(), 2, "it is told once");
    lend(&gateway, &alice, "another matter", 0).await;
    receiver.has("wake", 3).await;
    let woken = receiver.heard();
    assert!(woken[2].id() != woken[1].id() && !format!("{woken:?}").contains("matter"), "{woken:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_needs_a_grant_and_an_address_of_the_internet() {
    let broker = Broker::start();
    let (_, key) = granted(&broker, "bob").await;
    for (arguments, code, words) in [
        (&["add", "alice", "https://hooks.example/"][..], 8, "AGENT_KEY_UNKNOWN"),
        (&["add", "bob", "http://hooks.example/"], 2, "this machine"),
        (&["add", "bob", "ftp://hooks.example/"], 2, "https://"),
        (&["add", "bob", "https://user@hooks.example/"], 2, "without a user"),
        (&["add", "bob", "https://hooks.example/", "--secret-file", "none.txt"], 3, "none.txt"),
        (&["remove", "bob"], 1, "WEBHOOK_UNKNOWN"),
    ] {
        let (found, said) = exit_of(&mut gateway(&broker, &[&["webhook"], arguments].concat()));
        assert!(found == Some(code) && said.contains(words), "{arguments:?}: {found:?} {said}");
    }
    let file = broker.folder.path().join("secret.txt");
    fs::write(&file, add_secret()).unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let secret = add(&broker, "bob", "https://hooks.example/", &["--secret-file", file.to_str().unwrap()]);
    assert_eq!(secret, add_secret());
    let (found, said) = exit_of(&mut gateway(&broker, &["webhook", "add", "bob", "https://other.example/"]));
    assert!(found == Some(1) && said.contains("WEBHOOK_EXISTS"), "{found:?} {said}");
    let listed = command(&broker, &["list"]);
    assert_eq!((&listed[0]["state"], &listed[0]["givenUp"]), (&json!("ON"), &json!(0)));
    assert!(!listed.to_string().contains(&secret), "{listed}");
    assert!(gateway(&broker, &["revoke", &key]).output().unwrap().status.success());
    assert_eq!(command(&broker, &["list"])[0]["state"], "NO_GRANT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_posts_to_its_own_machine_only_where_it_is_allowed() {
    let broker = Broker::start();
    let ((alice, _), _) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let receiver = Receiver::encrypted(&broker, |heard, _| accepting(heard, (200, "{}"))).await;
    add(&broker, "bob", &receiver.url, &[]);
    let gateway = Gateway::start(&broker, &[]);
    let lent = lend(&gateway, &alice, "go inside", 3).await;
    assert_ne!(lent["state"], "RETURNED", "{lent}");
    assert!(receiver.heard().is_empty());
    gateway.kill();
    let gateway = Gateway::start(&broker, &LOCAL);
    assert_eq!(end(&gateway, &alice, &lent).await["state"], "RETURNED");
}
