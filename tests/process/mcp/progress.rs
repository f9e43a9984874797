//! The steps of a call that waits, for a host that asks to hear of them.

use rmcp::{
    ClientHandler, RoleClient,
    model::{CallToolRequestParams, ClientRequest, ProgressNotificationParam, Request},
    service::{NotificationContext, PeerRequestOptions},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Host, text};
use crate::broker::{Broker, PATIENCE};

/// A host that hears of the progress of its calls.
struct Hearing(mpsc::UnboundedSender<ProgressNotificationParam>);

impl ClientHandler for Hearing {
    async fn on_progress(&self, news: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        drop(self.0.send(news));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_tells_its_steps_to_the_host() {
    let broker = Broker::start();
    let (heard, mut news) = mpsc::unbounded_channel();
    let alice = Host::with(Hearing(heard), &broker, "alice", &[]).await;
    let bob = Host::start(&broker, "bob", &["--type", "reviewer"]).await;
    bob.call("inbox", json!({})).await;
    let mut request = CallToolRequestParams::new("delegate");
    let Value::Object(arguments) = json!({"to": "bob", "summary": "review it", "wait_seconds": 240}) else { panic!() };
    request.arguments = Some(arguments);
    // The library sets a token of its own for each request.
    let call = ClientRequest::CallToolRequest(Request::new(request));
    let call = alice.client.send_cancellable_request(call, PeerRequestOptions::no_options()).await.unwrap();
    let mut next = async || tokio::time::timeout(PATIENCE, news.recv()).await.unwrap().unwrap();

    let first = next().await;
    assert_eq!((first.progress, first.total), (1.0, None));
    assert!(first.message.as_deref().is_some_and(|words| words.ends_with(", owned by alice")), "{first:?}");
    let inbox = bob.call("inbox", json!({})).await;
    let handoff = text(&inbox["offers"][0], "handoff_id").to_owned();
    let taken = bob.call("take_task", json!({"handoff_id": handoff})).await;
    let task = text(&taken, "task_id").to_owned();
    let details = "half of it\u{1b}[31m";
    bob.call("report", json!({"task_id": task, "status": "IN_PROGRESS", "progress": 0.5, "details": details})).await;
    let mut last = first;
    loop {
        let step = next().await;
        assert!(step.progress > last.progress && step.progress_token == last.progress_token, "{step:?}");
        assert_ne!(step.message, last.message, "each step is told once");
        last = step;
        if last.message.as_deref().unwrap_or_default().contains("50 %") {
            break;
        }
    }
    // The words of bob stand behind his name, without what a terminal would obey.
    let words = last.message.clone().unwrap();
    assert!(words.starts_with("LENT, owned by bob, 50 %. bob says: half of it"), "{words}");
    assert!(!words.contains('\u{1b}'), "{words}");
    bob.call("report", json!({"task_id": task, "status": "COMPLETED", "result": {"ok": true}})).await;
    let answer = tokio::time::timeout(PATIENCE, call.await_response()).await.unwrap().unwrap();
    let answer = serde_json::to_value(answer).unwrap();
    assert_eq!(answer["structuredContent"]["state"], "RETURNED");
}
