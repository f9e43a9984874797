//! An operator gives the task of a dead owner to another agent.

use baton::{
    client::{About, context_of},
    proto::v1::{self, MessageType},
};
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
    let (code, stderr) = exit_of(&mut broker.command(&["task", "reassign", &task, "--to", "nobody"]));
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
