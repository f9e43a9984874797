//! Grants: lent, listed, revoked by either way, ended by their time.

use std::{os::unix::fs::MetadataExt as _, time::Duration};

use baton::proto::v1;
use serde_json::{Value, json};

use super::{Gateway, gateway, grant, granted, register};
use crate::broker::{Broker, eventually, exit_of};

/// Within this time a revoked grant must be refused.
const WITHIN: Duration = Duration::from_secs(1);

fn listed(broker: &Broker) -> Vec<Value> {
    let output = gateway(broker, &["list"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

async fn key_of(broker: &Broker, agent: &str, key_id: &str) -> v1::AgentKey {
    let client = broker.client_of(agent).await;
    let keys = client.get_agent(agent).await.unwrap().card.unwrap().keys;
    keys.into_iter().find(|key| key.key_id == key_id).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_was_revoked_is_refused_within_a_second() {
    let broker = Broker::start();
    let ((alice, of_alice), (bob, of_bob)) = (granted(&broker, "alice").await, granted(&broker, "bob").await);
    let gateway_process = Gateway::start(&broker, &[]);
    let gateway_process = &gateway_process;
    let status = async |token: &str| gateway_process.try_act(token, "inbox", json!({})).await.unwrap().status;
    assert_eq!((status(&alice).await, status(&bob).await), (200, 200));
    let lent = key_of(&broker, "alice", &of_alice).await;
    assert!(of_alice.starts_with("gateway.") && lent.not_after_time.is_some() && lent.revoke_time.is_none());
    let states: Vec<Value> = listed(&broker).iter().map(|grant| grant["state"].clone()).collect();
    assert_eq!(states, ["GRANTED", "GRANTED"]);

    // By the command: at once, and at the broker too.
    let output = gateway(&broker, &["revoke", &of_alice]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((status(&alice).await, status(&bob).await), (401, 200));
    assert!(key_of(&broker, "alice", &of_alice).await.revoke_time.is_some());
    assert_eq!(listed(&broker).len(), 1);
    let (code, said) = exit_of(&mut gateway(&broker, &["revoke", &of_alice]));
    assert!(code == Some(8) && said.contains("AGENT_KEY_UNKNOWN"), "{code:?} {said}");

    // At the broker alone.
    let operator = broker.operator().await;
    let request = v1::RevokeAgentKeyRequest { agent_id: "bob".into(), key_id: of_bob.clone(), ..Default::default() };
    operator.answer(operator.agents().revoke_agent_key(request).await).unwrap();
    tokio::time::sleep(WITHIN).await;
    assert_eq!(status(&bob).await, 401);
    // The command still clears the folder.
    assert!(gateway(&broker, &["revoke", &of_bob]).output().unwrap().status.success());
    assert!(listed(&broker).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_call_of_a_revoked_grant_ends() {
    let broker = Broker::start();
    let (alice, of_alice) = granted(&broker, "alice").await;
    let gateway_process = Gateway::start(&broker, &[]);
    gateway_process.act(&alice, "inbox", json!({})).await;
    let waiting = gateway_process.try_act(&alice, "inbox", json!({"wait_seconds": 240}));
    let revoking = async { assert!(gateway(&broker, &["revoke", &of_alice]).output().unwrap().status.success()) };
    let (answer, ()) = tokio::join!(waiting, revoking);
    assert_eq!(answer.as_ref().unwrap().status, 401, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_ends_with_its_time_and_a_new_one_is_served_at_once() {
    let broker = Broker::start();
    let (alice, _) = granted(&broker, "alice").await;
    let gateway_process = Gateway::start(&broker, &[]);
    gateway_process.act(&alice, "inbox", json!({})).await;
    // The folder and the file are for their owner alone.
    let folder = broker.folder.path().join("gateway");
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
    let mut document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert!(!document.to_string().contains(&alice), "the token itself is not stored");
    document["expire_time"] = json!("2026-01-01T00:00:00Z");
    std::fs::write(&file, document.to_string()).unwrap();
    assert_eq!(gateway_process.try_act(&alice, "inbox", json!({})).await.unwrap().status, 401);
    assert_eq!(listed(&broker)[0]["state"], "EXPIRED");
    let second = grant(&broker, "alice");
    gateway_process.act(second["token"].as_str().unwrap(), "inbox", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_the_broker_refuses_leaves_nothing() {
    let broker = Broker::start();
    register(&broker, "alice").await;
    let wrong = broker.folder.path().join("wrong.pem");
    crate::broker::identity("mallory").key.write(&wrong).unwrap();
    let (code, said) = exit_of(&mut gateway(&broker, &["grant", "--id", "alice", "--key", wrong.to_str().unwrap()]));
    assert!(code == Some(8) && said.contains("CHALLENGE_FAILED"), "{code:?} {said}");
    assert!(listed(&broker).is_empty());
    let folder = broker.folder.path().join("gateway");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&folder, open).unwrap();
    let (code, said) = exit_of(&mut gateway(&broker, &["list"]));
    assert!(code == Some(3) && said.contains("chmod 700"), "{code:?} {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_a_grant_is_present_while_the_gateway_runs() {
    let broker = Broker::start();
    let (_, key) = granted(&broker, "alice").await;
    let client = broker.client_of("alice").await;
    let sessions = async || client.get_agent("alice").await.unwrap().session_count;
    let gateway_process = Gateway::start(&broker, &[]);
    eventually("alice has a session", async || sessions().await == 1).await;
    assert!(gateway(&broker, &["revoke", &key]).output().unwrap().status.success());
    eventually("the session has ended", async || sessions().await == 0).await;
    drop(gateway_process);
}
