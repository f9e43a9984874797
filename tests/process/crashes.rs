//! Brokers that are killed lose nothing that they acknowledged.

use baton::proto::v1::{self, HandoffState, MessageType};
use baton_client::context_of;

use crate::broker::{Broker, a_request, new_task};

fn context() -> v1::TaskContextTransfer {
    context_of([("collected_data", r#"{"crash":"segfault"}"#.to_owned())])
}

#[tokio::test]
async fn a_handoff_goes_on_after_kill_9_between_accept_and_context() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    let task = new_task();
    let asked = a.request("b", &task, 1, &a_request()).await.unwrap();
    let request = b.take().await.unwrap();
    b.accept(&request).await.unwrap();

    let broker = Broker::start_in(broker.kill(), &[]);
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    let accept = a.take().await.unwrap();
    assert_eq!(accept.kind(), MessageType::HandoffAccept);
    let sent = a.send_context(&accept, &context()).await.unwrap();
    assert_eq!(sent.handoff_state(), HandoffState::ContextSent);
    let context = b.take().await.unwrap();
    let done = b.complete(&context).await.unwrap();
    assert_eq!((done.owner_id.as_str(), done.epoch), ("b", 2));
    assert_eq!(done.handoff_id, asked.handoff_id);
    assert_eq!(a.take().await.unwrap().kind(), MessageType::HandoffComplete);
}

#[tokio::test]
async fn every_receipt_outlives_kill_9_under_load() {
    let mut folder = None;
    let mut receipts: Vec<v1::Receipt> = Vec::new();
    for round in 1..=3 {
        let broker = match folder.take() {
            None => Broker::start(),
            Some(folder) => Broker::start_in(folder, &[]),
        };
        let a = broker.agent("a").await;
        broker.agent("b").await;
        let client = broker.client().await;
        for receipt in &receipts {
            let request = v1::GetHandoffRequest { handoff_id: receipt.handoff_id.clone(), ..Default::default() };
            let found = client.handoffs().get_handoff(request).await.unwrap().into_inner().handoff.unwrap();
            assert_eq!(found.task_id, receipt.task_id, "round {round}");
        }
        // The kill hits many requests in flight. Every request with a receipt must be there after the restart.
        let a = std::sync::Arc::new(a);
        let mut under_way = tokio::task::JoinSet::new();
        for _ in 0..200 {
            let a = a.clone();
            under_way.spawn(async move { a.request("b", &new_task(), 1, &a_request()).await });
        }
        let mut broker = Some(broker);
        let mut answered = 0;
        while let Some(answer) = under_way.join_next().await {
            receipts.extend(answer.unwrap());
            answered += 1;
            if answered == 60
                && let Some(broker) = broker.take()
            {
                folder = Some(broker.kill());
            }
        }
    }
    assert!(receipts.len() >= 180);
}
