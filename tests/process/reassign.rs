//! An operator gives the task of a dead owner to another agent.

use baton::{
    envelope::keys::{PrivateKey, PublicKey},
    ids::{AgentId, KeyId},
    proto::v1::{self, MessageType},
};
use baton_client::{About, Trust, context_of};
use prost::Message as _;

use crate::broker::{Broker, a_request, exit_of, new_task};

#[tokio::test]
async fn the_task_of_a_dead_owner_goes_on_with_another_agent() {
    let broker = Broker::start();
    let (alice, bob, carol) = (broker.agent("alice").await, broker.agent("bob").await, broker.agent("carol").await);
    let task = new_task();
    alice.request("bob", &task, 1, &a_request()).await.unwrap();
    bob.accept(&bob.take().await.unwrap()).await.unwrap();
    let accept = alice.take().await.unwrap();
    alice.send_context(&accept, &context_of([("goals", r#"{"from":"alice"}"#.to_owned())])).await.unwrap();
    bob.complete(&bob.take().await.unwrap()).await.unwrap();

    // Bob hands the task to alice, and dies after it has sent its context: alice does not complete in time.
    bob.request("alice", &task, 2, &a_request()).await.unwrap();
    alice.take().await.unwrap(); // bob's completion
    alice.accept(&alice.take().await.unwrap()).await.unwrap();
    let accept = bob.take().await.unwrap();
    bob.send_context(&accept, &context_of([("goals", r#"{"from":"bob"}"#.to_owned())])).await.unwrap();
    drop(bob);

    // The command needs the right, and says so.
    let (code, stderr) = exit_of(&mut broker.command(&["task", "reassign", &task, "--to", "unknown"]));
    assert!(code != Some(0) && stderr.contains("RECEIVER_UNKNOWN"), "{stderr}");
    let made = broker.lines(&["task", "reassign", &task, "--to", "carol", "--reason", "bob is gone"]).remove(0);
    assert_eq!(made["task"]["ownerId"], "baton.coordinator");
    assert_eq!(made["task"]["epoch"], "3");

    let offer = carol.take().await.unwrap();
    assert_eq!(offer.envelope.sender_id, "baton.coordinator");
    carol.accept(&offer).await.unwrap();
    let delivered = carol.take().await.unwrap();
    assert_eq!(delivered.kind(), MessageType::TaskContextTransfer);
    let payload = delivered.envelope.payload.clone().unwrap().value;
    let context = v1::TaskContextTransfer::decode(payload).unwrap();
    match context.sections[0].content.as_ref().unwrap() {
        v1::context_section::Content::Json(json) => assert_eq!(json, r#"{"from":"bob"}"#),
        other => panic!("{other:?}"),
    }
    carol.complete(&delivered).await.unwrap();
    let done = v1::TaskStatusUpdate { status: v1::TaskStatus::Completed.into(), ..Default::default() };
    carol.report(&About::task(&task, 4), &done).await.unwrap();

    // Bob comes back, is told, and its late words are refused and on record.
    let bob = broker.agent_session("bob").await;
    let late = bob.report(&About::task(&task, 2), &done).await.unwrap_err();
    assert_eq!(late.reason(), Some("STALE_EPOCH"), "{late}");
    let audit = broker.lines(&["task", "audit", &task]).remove(0);
    assert_eq!((audit["ownerId"].as_str(), audit["refusals"].as_u64()), (Some("carol"), Some(1)));
    let acts = broker.lines(&["audit"]);
    assert!(acts.iter().any(|act| act.to_string().contains("AUDIT_ACTION_TASK_REASSIGNED")), "{acts:?}");
}

#[tokio::test]
async fn the_coordinator_has_one_key_over_restarts_and_no_session() {
    let broker = Broker::start();
    let key = |broker: &Broker| {
        let shown = broker.lines(&["agent", "show", "baton.coordinator"]).remove(0);
        shown["card"]["keys"][0]["publicKey"].as_str().unwrap().to_owned()
    };
    let first = key(&broker);
    let path = broker.data().join("keys/coordinator.pem");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let folder = broker.kill();
    let broker = Broker::start_in(folder, &[]);
    assert_eq!(key(&broker), first);
    // The holder of the key file gets no token for it.
    let path = path.to_str().unwrap();
    let (code, stderr) = exit_of(&mut broker.command(&["token", "--id", "baton.coordinator", "--key", path]));
    assert!(code != Some(0) && stderr.contains("CHALLENGE_FAILED"), "{stderr}");
}

/// Reassigns a new task of alice's to bob, who trusts these keys. Returns whether bob accepts its sender.
async fn believes_the_coordinator(broker: &Broker, trust: &Trust) -> bool {
    let (alice, task) = (broker.agent_session("alice").await, new_task());
    // The request creates the task. Carol is not there, so the handoff is open and is cancelled.
    alice.request("carol", &task, 1, &a_request()).await.unwrap();
    let bob = broker.agent_session("bob").await.trusting(trust.clone());
    broker.lines(&["task", "reassign", &task, "--to", "bob"]);
    let delivery = bob.session.next_delivery().await.unwrap();
    bob.session.ack(&delivery.delivery_id).await.unwrap();
    match bob.check(delivery).await {
        Ok(offer) => {
            assert_eq!(offer.envelope.sender_id, "baton.coordinator");
            bob.reject(&offer, &v1::HandoffReject::default()).await.unwrap();
            true
        }
        Err(error) => {
            assert!(error.to_string().contains("does not verify"), "{error}");
            false
        }
    }
}

#[tokio::test]
async fn a_receiver_believes_the_coordinator_by_an_operators_voucher_or_by_a_pin() {
    let broker = Broker::start();
    for name in ["alice", "bob", "carol"] {
        drop(broker.agent(name).await);
    }
    let (coordinator, ops_id) = (AgentId::parse("baton.coordinator").unwrap(), KeyId::parse("ops").unwrap());
    let ops = PrivateKey::from_seed(&[7; 32]);
    let operators = Trust::Operators([(ops_id, ops.public())].into());
    assert!(believes_the_coordinator(&broker, &Trust::Broker).await);
    assert!(!believes_the_coordinator(&broker, &operators).await, "no operator vouches for its key");

    let ops_file = broker.folder.path().join("ops.pem");
    ops.write(&ops_file).unwrap();
    let card = broker.lines(&["agent", "show", "baton.coordinator"]).remove(0)["card"].clone();
    let key_id = card["keys"][0]["keyId"].as_str().unwrap().to_owned();
    let own_file = broker.data().join("keys/coordinator.pem");
    let vouch = ["agent", "key", "vouch", "baton.coordinator", &key_id, "--operator", "ops"];
    let files = ["--key-file", own_file.to_str().unwrap(), "--operator-key", ops_file.to_str().unwrap()];
    broker.lines(&[&vouch[..], &files].concat());
    assert!(believes_the_coordinator(&broker, &operators).await, "an operator vouches for its key");

    let own: PublicKey = PrivateKey::read(&own_file).unwrap().public();
    let pinned = |key: PublicKey| Trust::Pinned([(coordinator.clone(), vec![key])].into());
    assert!(believes_the_coordinator(&broker, &pinned(own)).await);
    assert!(!believes_the_coordinator(&broker, &pinned(ops.public())).await, "another key is pinned");

    // The voucher is on the card for good.
    let broker = Broker::start_in(broker.kill(), &[]);
    assert!(believes_the_coordinator(&broker, &operators).await);
}
