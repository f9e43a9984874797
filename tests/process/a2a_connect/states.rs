//! What the remote agent does, as what the task of baton is.

use baton::proto::v1::{self, TaskStatus, context_section::Content};
use baton_client::{HandOverError, Question, RecallReason};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    Connector, alice, builder, file, lend, new_task, remote,
    remote::{End, Remote, Reply, artifact, first, task, update},
    reports, returned, within,
};
use crate::broker::{Broker, a_request, write_private};

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_one_message_and_its_artifact_is_the_result() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let remote = Remote::start(|heard, _| match heard.method.as_str() {
        "SendStreamingMessage" => Reply::Stream(
            vec![
                first("SUBMITTED", ""),
                update("WORKING", "adding up"),
                artifact(json!([{"data": {"sum": 42}}])),
                update("COMPLETED", "done"),
            ],
            End::Closed,
        ),
        _ => Reply::Error(-32601, "not here"),
    })
    .await;
    let bearer = file(&broker, "bearer");
    write_private(&bearer, "t0\n");
    let mut connector = Connector::start(&broker, &remote.url, &["--bearer-file", bearer.to_str().unwrap()]);
    let lent = new_task();
    let done = within(lend(&alice, &lent)).await.unwrap();
    assert_eq!((done.status, done.result), (TaskStatus::Completed, Some(json!({"sum": 42}))));
    connector.says("completed");

    let record = alice.get_task(&lent).await.unwrap();
    let [sent] = &remote.of("SendStreamingMessage")[..] else { panic!("one message") };
    let message = &sent.params["message"];
    assert_eq!(message["messageId"], record.hops[0].handoff_id.as_str());
    assert_eq!((&message["contextId"], &message["role"]), (&json!("talk-7"), &json!("ROLE_USER")));
    let data = json!({"data": {"collected_data": {"hours": [40, 2]}}, "mediaType": "application/json"});
    assert_eq!(message["parts"], json!([{"text": "bill it", "mediaType": "text/plain"}, data]));
    assert_eq!(message["metadata"], json!({"baton/from": "alice", "baton/task_type": "support"}));
    assert_eq!(sent.authorization.as_deref(), Some("Bearer t0"));

    let reports = reports(&alice, &lent).await;
    assert_eq!(reports[0], json!({"remote_message_id": record.hops[0].handoff_id}).to_string());
    assert_eq!(reports[1], r#"{"remote_task_id":"r-1"}"#);

    // The token is read anew, and the skills are those of the card.
    write_private(&bearer, "t1");
    returned(&alice).await;
    assert_eq!(remote.of("SendStreamingMessage")[1].authorization.as_deref(), Some("Bearer t1"));
    let card = broker.client_of("alice").await.get_agent("bob").await.unwrap().card.unwrap();
    assert_eq!((card.skills[0].name.as_str(), card.description.as_str()), ("finance.bill", "It bills."));
    assert_eq!((card.agent_types[0].as_str(), card.capacity), ("billing", 16));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_and_an_authorization_are_asked_of_the_delegator() {
    let broker = Broker::start();
    let (heard, mut questions) = mpsc::unbounded_channel();
    let alice = builder(&broker, "alice").on_question(move |question: Question| {
        let heard = heard.clone();
        async move {
            drop(heard.send(question.text().to_owned()));
            let input = v1::TaskInput { text: "in euro".into(), data_json: r#"{"vat":19}"#.into() };
            question.answer_with(&input).await?;
            Ok(())
        }
    });
    let alice = alice.connect().await.unwrap();
    let remote = Remote::start(|heard, earlier| match (heard.method.as_str(), earlier) {
        ("SendStreamingMessage", 0) => {
            Reply::Stream(vec![first("WORKING", ""), update("INPUT_REQUIRED", "which currency?")], End::Closed)
        }
        // The task as it was comes first.
        ("SendStreamingMessage", 1) => Reply::Stream(
            vec![first("INPUT_REQUIRED", "which currency?"), update("WORKING", ""), update("AUTH_REQUIRED", "log in")],
            End::Open,
        ),
        ("SendStreamingMessage", _) => Reply::Stream(
            vec![first("WORKING", ""), artifact(json!([{"text": "42 EUR"}])), update("COMPLETED", "")],
            End::Closed,
        ),
        _ => Reply::Error(-32601, "not here"),
    })
    .await;
    let _connector = Connector::start(&broker, &remote.url, &[]);
    let lent = new_task();
    let done = within(lend(&alice, &lent)).await.unwrap();
    assert_eq!((done.status, done.result), (TaskStatus::Completed, Some(json!({"response": "42 EUR"}))));
    assert_eq!(questions.recv().await.unwrap(), "which currency?");
    let asked = questions.recv().await.unwrap();
    assert!(asked.starts_with("log in\n\nAuthorize it at the remote agent itself."), "{asked}");
    assert!(questions.try_recv().is_err(), "no third question");

    let sent = remote.of("SendStreamingMessage");
    let parts = |place: usize| sent[place].params["message"]["parts"].clone();
    let text = json!({"text": "in euro", "mediaType": "text/plain"});
    assert_eq!(parts(1), json!([text, {"data": {"vat": 19}, "mediaType": "application/json"}]));
    assert_eq!(parts(2), json!([text]), "credentials do not pass through");
    for place in [1, 2] {
        let message = &sent[place].params["message"];
        assert_eq!((&message["taskId"], &message["contextId"]), (&json!("r-1"), &json!("c-1")));
    }
    assert_eq!(remote.message_ids().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_rejected_failed_or_canceled_has_failed_with_the_words() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let states = ["REJECTED", "FAILED", "CANCELED"];
    let remote = Remote::start(move |_, earlier| match states.get(earlier) {
        Some(state) => Reply::Stream(vec![first("WORKING", ""), update(state, "no paper")], End::Closed),
        None => Reply::Error(-32005, "no such type"),
    })
    .await;
    let mut connector = Connector::start(&broker, &remote.url, &[]);
    for words in [
        "the remote agent has rejected the task: no paper",
        "the remote agent has failed: no paper",
        "the task was canceled at the remote agent: no paper",
        "the remote agent refuses it (-32005): no such type",
    ] {
        let failed = returned(&alice).await;
        assert_eq!((failed.status, failed.result, failed.details.as_str()), (TaskStatus::Failed, None, words));
        assert_eq!(connector.says("failed")["problem"], words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_streams_is_looked_at() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let card = |url: &str| {
        let mut card = remote::card(url);
        card["capabilities"] = json!({});
        card
    };
    let remote = Remote::with(card, |heard, earlier| match (heard.method.as_str(), earlier) {
        ("SendMessage", 0) => Reply::Result(first("SUBMITTED", "")),
        // An agent may answer by a message alone.
        ("SendMessage", _) => {
            Reply::Result(json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "at once"}]}}))
        }
        ("GetTask", 0) => Reply::Result(task("WORKING", "half")),
        ("GetTask", _) => {
            let mut done = task("COMPLETED", "");
            done["artifacts"] = json!([{"artifactId": "a", "parts": [{"text": "42"}]}]);
            Reply::Result(done)
        }
        _ => Reply::Error(-32004, "no streams"),
    })
    .await;
    let _connector = Connector::start(&broker, &remote.url, &[]);
    assert_eq!(returned(&alice).await.result, Some(json!({"response": "42"})));
    assert_eq!(returned(&alice).await.result, Some(json!({"response": "at once"})));
    let sent = &remote.of("SendMessage")[0].params;
    assert_eq!(sent["configuration"], json!({"returnImmediately": true}));
    assert_eq!(remote.of("GetTask")[0].params, json!({"id": "r-1"}));
    assert!(remote.of("SendStreamingMessage").is_empty() && remote.of("SubscribeToTask").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_result_is_stored_as_a_blob() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let large = "x".repeat(300 * 1024);
    let sent = large.clone();
    let remote = Remote::start(move |_, _| {
        let events = vec![first("WORKING", ""), artifact(json!([{"text": sent}])), update("COMPLETED", "")];
        Reply::Stream(events, End::Closed)
    })
    .await;
    let _connector = Connector::start(&broker, &remote.url, &[]);
    let result = returned(&alice).await.result.unwrap();
    assert_eq!(result["blob"]["media_type"], "application/json");
    let mut sha256 = [0; 32];
    hex::decode_to_slice(result["blob"]["sha256"].as_str().unwrap(), &mut sha256).unwrap();
    let read = file(&broker, "read.json");
    alice.client().await.unwrap().get_blob_to(&sha256, &read, &|_, _| {}).await.unwrap();
    let read: Value = serde_json::from_slice(&std::fs::read(read).unwrap()).unwrap();
    assert_eq!(read, json!({ "response": large }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_that_the_agent_does_not_take_stays_with_its_sender() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let remote = Remote::start(|_, _| Reply::Error(-32601, "not here")).await;
    let mut connector = Connector::start(&broker, &remote.url, &[]);
    let bytes = v1::ContextBytes { media_type: "image/png".into(), data: vec![0, 255].into() };
    let section =
        v1::ContextSection { name: "scan".into(), content: Some(Content::Bytes(bytes)), ..Default::default() };
    let lent = new_task();
    let failed = within(alice.delegate("type:billing", &lent, &a_request(), [section])).await;
    let Err(HandOverError::Failed { message, .. }) = failed else { panic!("{failed:?}") };
    assert!(message.contains("NO_SKILL: biller does not take the media type of scan (image/png)"), "{message}");
    connector.says("refused");
    assert_eq!(alice.get_task(&lent).await.unwrap().owner_id, "alice");
    assert!(remote.of("SendStreamingMessage").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recall_cancels_the_remote_task() {
    let broker = Broker::start();
    let alice = alice(&broker).await;
    let remote = Remote::start(|heard, earlier| match (heard.method.as_str(), earlier) {
        ("SendStreamingMessage" | "SubscribeToTask", _) => Reply::Stream(vec![first("WORKING", "")], End::Open),
        // It does not come through at first.
        ("CancelTask", 1) => Reply::Error(-32603, "later"),
        ("CancelTask", _) => Reply::Result(task("CANCELED", "")),
        _ => Reply::Error(-32601, "not here"),
    })
    .await;
    let mut connector = Connector::start(&broker, &remote.url, &[]);
    let recall = async |lent: &str| {
        let handoff = alice.get_task(lent).await.unwrap().hops[0].handoff_id.clone();
        alice.recall(&handoff, "no longer needed").await.unwrap();
    };
    let first_task = new_task();
    let lent = tokio::spawn(lend(&alice, &first_task).into_future());
    super::reported(&alice, &first_task, "remote_task_id").await;
    recall(&first_task).await;
    let recalled = within(lent).await.unwrap();
    assert!(matches!(recalled, Err(HandOverError::Recalled { reason: RecallReason::Recall, .. })), "{recalled:?}");
    assert_eq!(connector.says("canceled"), json!({"task": first_task, "remote_task": "r-1"}));
    assert_eq!(remote.of("CancelTask")[0].params, json!({"id": "r-1"}));

    // While the connector is away: the next process cancels it, and tries again.
    let second = new_task();
    let lent = tokio::spawn(lend(&alice, &second).into_future());
    super::reported(&alice, &second, "remote_task_id").await;
    connector.kill();
    recall(&second).await;
    within(lent).await.unwrap().unwrap_err();
    let mut connector = Connector::start(&broker, &remote.url, &[]);
    assert_eq!(connector.says("canceled"), json!({"task": second, "remote_task": "r-1"}));
    assert_eq!(remote.of("CancelTask").len(), 3);
}
