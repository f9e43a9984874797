//! A stream that is cut, and a connector that is killed at each step: one remote task, one result.

use baton::proto::v1::TaskStatus;
use serde_json::json;

use super::{
    Connector, alice, builder, file, lend, new_task,
    remote::{End, Heard, Remote, Reply, artifact, first, task, update},
    reported, returned, within,
};
use crate::broker::{Broker, write_private};

/// The end of a stream that completes.
fn completes() -> Vec<serde_json::Value> {
    vec![first("WORKING", ""), artifact(json!([{"data": {"sum": 42}}])), update("COMPLETED", "")]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_goes_on_by_a_subscription() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let remote = Remote::start(|heard, earlier| match (heard.method.as_str(), earlier) {
        ("SendStreamingMessage", _) => Reply::Stream(vec![first("WORKING", "")], End::Cut),
        ("SubscribeToTask", 0) => Reply::Stream(vec![first("WORKING", "half")], End::Cut),
        ("SubscribeToTask", 1) => Reply::Error(-32603, "later"),
        // It has ended meanwhile.
        ("SubscribeToTask", _) => Reply::Error(-32004, "the task has ended"),
        ("GetTask", _) => {
            let mut done = task("COMPLETED", "");
            done["artifacts"] = json!([{"artifactId": "a", "parts": [{"data": {"sum": 42}}]}]);
            Reply::Result(done)
        }
        _ => Reply::Error(-32601, "not here"),
    })
    .await;
    let _connector = Connector::start(&broker, &remote.url, &[]);
    assert_eq!(returned(&alice).await.result, Some(json!({"sum": 42})));
    assert_eq!((remote.of("SendStreamingMessage").len(), remote.of("SubscribeToTask").len()), (1, 3));
}

/// Kills a connector once `is_there` holds, starts the next one, and returns the remote agent after the result.
async fn killed(
    script: impl Fn(&Heard, usize) -> Reply + Send + Sync + 'static,
    sees: impl AsyncFn(&Broker, &baton_client::Agent, &Remote, &str),
    prepare: impl Fn(&Broker),
    repair: impl Fn(&Broker),
) -> Remote {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let remote = Remote::start(script).await;
    let bearer = file(&broker, "bearer");
    write_private(&bearer, "t0");
    let options = ["--bearer-file", bearer.to_str().unwrap()];
    let connector = Connector::start(&broker, &remote.url, &options);
    prepare(&broker);
    let lent = new_task();
    let waiting = tokio::spawn(lend(&alice, &lent).into_future());
    sees(&broker, &alice, &remote, &lent).await;
    connector.kill();
    repair(&broker);
    let _next = Connector::start(&broker, &remote.url, &options);
    let done = within(waiting).await.unwrap().unwrap();
    assert_eq!((done.status, done.result), (TaskStatus::Completed, Some(json!({"sum": 42}))));
    assert_eq!(remote.message_ids(), [alice.get_task(&lent).await.unwrap().hops[0].handoff_id.as_str()]);
    remote
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connector_killed_before_the_message_sends_it_once() {
    let remote = killed(
        |_, _| Reply::Stream(completes(), End::Closed),
        async |_, alice, _, lent| reported(alice, lent, "remote_message_id").await,
        // Without a token no request goes out.
        |broker| std::fs::remove_file(file(broker, "bearer")).unwrap(),
        |broker| write_private(&file(broker, "bearer"), "t0"),
    )
    .await;
    assert_eq!(remote.of("SendStreamingMessage").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connector_killed_after_the_message_repeats_the_same_one() {
    let remote = killed(
        |_, earlier| match earlier {
            0 => Reply::Silence,
            _ => Reply::Stream(completes(), End::Closed),
        },
        async |_, _, remote, _| remote.has("SendStreamingMessage", 1).await,
        |_| {},
        |_| {},
    )
    .await;
    assert_eq!(remote.of("SendStreamingMessage").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connector_killed_while_it_follows_subscribes() {
    let remote = killed(
        |heard, _| match heard.method.as_str() {
            "SendStreamingMessage" => Reply::Stream(vec![first("WORKING", "")], End::Open),
            _ => Reply::Stream(completes(), End::Closed),
        },
        async |_, alice, _, lent| reported(alice, lent, "remote_task_id").await,
        |_| {},
        |_| {},
    )
    .await;
    assert_eq!(remote.of("SendStreamingMessage").len(), 1);
    assert_eq!(remote.of("SubscribeToTask")[0].params, json!({"id": "r-1"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_outlives_its_connector_and_is_answered_once() {
    let broker = Broker::start();
    let (heard, mut questions) = tokio::sync::mpsc::unbounded_channel();
    let alice = builder(&broker, "alice").on_question(move |question: baton_client::Question| {
        let heard = heard.clone();
        async move {
            drop(heard.send(question));
            Ok(())
        }
    });
    let alice = alice.connect().await.unwrap();
    let asks = || vec![first("INPUT_REQUIRED", "which currency?")];
    let remote = Remote::start(move |heard, earlier| match (heard.method.as_str(), earlier) {
        ("SendStreamingMessage", 0) => Reply::Stream(asks(), End::Closed),
        // The answer has come, and nothing comes back.
        ("SendStreamingMessage", 1) => Reply::Silence,
        ("SendStreamingMessage", _) => Reply::Stream(completes(), End::Closed),
        ("SubscribeToTask", _) => Reply::Stream(asks(), End::Closed),
        _ => Reply::Error(-32601, "not here"),
    })
    .await;
    let connector = Connector::start(&broker, &remote.url, &[]);
    let waiting = tokio::spawn(lend(&alice, &new_task()).into_future());
    let question = within(questions.recv()).await.unwrap();
    connector.kill();
    let connector = Connector::start(&broker, &remote.url, &[]);
    remote.has("SubscribeToTask", 1).await;
    question.answer("in euro").await.unwrap();
    remote.has("SendStreamingMessage", 2).await;
    connector.kill();
    let _next = Connector::start(&broker, &remote.url, &[]);
    assert_eq!(within(waiting).await.unwrap().unwrap().result, Some(json!({"sum": 42})));
    assert!(questions.try_recv().is_err(), "one question");
    let sent = remote.of("SendStreamingMessage");
    assert_eq!((sent.len(), &sent[1].params), (3, &sent[2].params), "the same answer again");
}
