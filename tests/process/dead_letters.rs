//! Dead letters over the wire and on the command line, following a task, and auditing it.

use baton::proto::v1::{self, MessageType, custody_entry::Event, watch_task_response::Update};
use baton_client::{About, Client, ClientError, context_of, session::Agent};
use prost::Message as _;
use tokio_stream::StreamExt as _;

use crate::broker::{Broker, a_request, composer, exit_of, new_task};

fn poison() -> v1::Nack {
    v1::Nack { cause: v1::NackCause::Poison.into(), reason_text: "cannot parse".into(), ..Default::default() }
}

/// Makes dead letters of this number of messages from a to b.
async fn poison_messages(a: &Agent, b: &Agent, many: usize) {
    for number in 0..many {
        let info = v1::Info { text: number.to_string(), ..Default::default() };
        a.send("b", MessageType::Info, &About::default(), &info).await.unwrap();
        let delivered = b.next().await.unwrap();
        b.session.nack(&delivered.delivery.delivery_id, poison()).await.unwrap();
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, ClientError>, reason: &str) {
    match outcome {
        Err(error) => assert_eq!(error.reason(), Some(reason), "{error}"),
        Ok(taken) => panic!("expected {reason}, but it was taken: {taken:?}"),
    }
}

#[tokio::test]
async fn a_dry_run_lists_what_would_be_redriven_and_changes_nothing() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    poison_messages(&a, &b, 3).await;
    let listed = broker.lines(&["dlq", "list"]);
    let dry = broker.lines(&["dlq", "redrive", "--agent", "b", "--dry-run"]);
    let ids = |rows: &[serde_json::Value]| rows.iter().map(|row| row["deadLetterId"].clone()).collect::<Vec<_>>();
    let mut expected = ids(&listed);
    expected.reverse();
    assert_eq!(ids(&dry), expected, "the oldest first");
    assert_eq!(broker.lines(&["dlq", "list"]), listed);
    let (code, stderr) = exit_of(&mut broker.command(&["dlq", "redrive", "--reason", "expired", "--dry-run"]));
    assert!(code == Some(8) && stderr.contains("NOTHING_MATCHES"), "{stderr}");
    let (code, stderr) = exit_of(&mut broker.command(&["dlq", "redrive", "1", "--dry-run"]));
    assert!(code == Some(2) && stderr.contains("--dry-run"), "{stderr}");
    // An agent may see its dead letters, and not settle them.
    let client = broker.client_of("a").await;
    let request = v1::RedriveDeadLettersRequest { dry_run: true, ..Default::default() };
    let dry = client.answer(client.dead_letters().redrive_dead_letters(request).await).map(drop);
    refused(dry, "PERMISSION_DENIED");
}

#[tokio::test]
async fn a_dead_request_is_found_redriven_and_completed_and_the_log_holds() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    let task = new_task();
    let former = a.request("b", &task, 1, &a_request()).await.unwrap().handoff_id;
    let delivered = b.next().await.unwrap();
    b.session.nack(&delivered.delivery.delivery_id, poison()).await.unwrap();
    assert_eq!(a.take().await.unwrap().kind(), MessageType::ErrorNotification);
    b.take().await.unwrap();

    let listed = broker.lines(&["dlq", "list"]).remove(0);
    assert_eq!(listed["reason"], "DEAD_LETTER_REASON_POISON");
    assert_eq!(listed["handoffId"], former.as_str());
    let id = listed["deadLetterId"].as_str().unwrap().to_owned();
    let shown = broker.lines(&["dlq", "show", &id]).remove(0);
    assert_eq!(shown["attempts"][0]["reasonText"], "cannot parse");
    assert_eq!(shown["envelope"]["messageId"], former.as_str());
    let redriven = broker.lines(&["dlq", "redrive", &id]).remove(0);
    let handoff = redriven["handoffId"].as_str().unwrap().to_owned();
    assert_ne!(handoff, former);
    let (code, stderr) = exit_of(&mut broker.command(&["dlq", "redrive", &id]));
    assert_eq!(code, Some(8));
    assert!(stderr.contains("DEAD_LETTER_SETTLED"), "{stderr}");

    assert_eq!(a.take().await.unwrap().kind(), MessageType::ErrorNotification, "the owner is told");
    let offer = b.take().await.unwrap();
    assert_eq!((offer.handoff_id(), offer.envelope.message_id.as_str()), (handoff.as_str(), former.as_str()));
    b.accept(&offer).await.unwrap();
    let accept = a.take().await.unwrap();
    a.send_context(&accept, &context_of([("goals", "{}".to_owned())])).await.unwrap();
    let done = b.complete(&b.take().await.unwrap()).await.unwrap();
    assert_eq!((done.owner_id.as_str(), done.epoch), ("b", 2));
    assert!(a.report(&About::task(&task, 1), &v1::TaskStatusUpdate { status: 4, ..Default::default() }).await.is_err());

    let audit = broker.lines(&["task", "audit", &task]).remove(0);
    assert_eq!((audit["ownerId"].as_str(), audit["refusals"].as_u64()), (Some("b"), Some(1)));
    assert_eq!(audit["handoffs"], 2);
    assert!(audit["receipts"].as_u64().unwrap() >= 4);
    assert_eq!(broker.lines(&["dlq", "list", "--state", "redriven"]).len(), 1);
    assert!(broker.lines(&["dlq", "list"]).is_empty());
}

#[tokio::test]
async fn all_that_match_are_redriven_each_once_also_when_it_is_cut_off() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    poison_messages(&a, &b, 20).await;
    let operator = broker.operator().await;
    let filter = v1::DeadLetterFilter { agent_id: "b".into(), ..Default::default() };
    let request = |max_per_second| v1::RedriveDeadLettersRequest {
        filter: Some(filter.clone()),
        max_per_second,
        ..Default::default()
    };
    let mut slowly = operator.answer(operator.dead_letters().redrive_dead_letters(request(20.0)).await).unwrap();
    for _ in 0..3 {
        slowly.next().await.unwrap().unwrap();
    }
    drop(slowly);
    let broker = Broker::start_in(broker.kill(), &[]);
    let b = broker.agent("b").await;
    let operator = broker.operator().await;
    let rest = operator.answer(operator.dead_letters().redrive_dead_letters(request(0.0)).await).unwrap();
    let rest: Vec<_> = rest.collect().await;
    assert!((10..=17).contains(&rest.len()), "{} were left", rest.len());
    let mut texts = std::collections::BTreeSet::new();
    for _ in 0..20 {
        assert!(texts.insert(b.take().await.unwrap().payload::<v1::Info>().text), "each once");
    }
    refused(
        operator.answer(operator.dead_letters().redrive_dead_letters(request(0.0)).await).map(drop),
        "NOTHING_MATCHES",
    );
}

#[tokio::test]
async fn dead_letters_are_exported_discarded_and_paged() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    poison_messages(&a, &b, 5).await;
    let exported = broker.lines(&["dlq", "export"]);
    assert_eq!(exported.len(), 5);
    assert_eq!(exported[0]["envelope"]["payload"]["text"], "0", "oldest first");
    let id = exported[0]["deadLetterId"].as_str().unwrap();
    broker.lines(&["dlq", "discard", id, "--reason", "of no use"]);
    let shown = broker.lines(&["dlq", "show", id]).remove(0);
    assert_eq!(shown["settleText"], "operator operator.token: of no use");
    let operator = broker.operator().await;
    let page = |filter, page_token| v1::ListDeadLettersRequest { page_size: 2, page_token, filter: Some(filter) };
    let all = v1::DeadLetterFilter::default();
    let first = operator.dead_letters().list_dead_letters(page(all.clone(), String::new())).await.unwrap().into_inner();
    let next = page(all, first.next_page_token.clone());
    let second = operator.dead_letters().list_dead_letters(next).await.unwrap().into_inner();
    assert_eq!((first.dead_letters.len(), second.dead_letters.len()), (2, 2));
    let of_a = v1::DeadLetterFilter { sender_id: "a".into(), ..Default::default() };
    let other = operator.dead_letters().list_dead_letters(page(of_a, first.next_page_token)).await;
    refused(operator.answer(other), "PAGE_TOKEN_INVALID");
    for (arguments, code, part) in [
        (&["dlq", "redrive", "--reason", "expired"][..], 8, "NOTHING_MATCHES"),
        (&["dlq", "redrive"], 2, "--all"),
        (&["dlq", "redrive", "--all", id], 2, "not both"),
        (&["dlq", "show", "99999"], 8, "DEAD_LETTER_UNKNOWN"),
        (&["dlq", "show", "seven"], 8, "FIELD_INVALID"),
        (&["dlq", "redrive", id], 8, "DEAD_LETTER_SETTLED"),
        (&["dlq", "redrive", "--all", "--rate", "1e9"], 8, "FIELD_INVALID"),
    ] {
        let (found, stderr) = exit_of(&mut broker.command(arguments));
        assert_eq!(found, Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
}

#[tokio::test]
async fn the_rust_client_exports_dead_letters_and_redrives_them_together() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    poison_messages(&a, &b, 3).await;
    let operator = broker.operator().await;
    let mut letters = operator.export_dead_letters(v1::DeadLetterFilter::default()).await.unwrap();
    let mut texts = Vec::new();
    while let Some(letter) = letters.next().await.unwrap() {
        let envelope = v1::Envelope::decode(letter.dead_letter.unwrap().envelope_bytes).unwrap();
        texts.push(v1::Info::decode(envelope.payload.unwrap().value).unwrap().text);
    }
    assert_eq!(texts, ["0", "1", "2"], "the oldest first, with their envelopes");
    let mut states = Vec::new();
    let request =
        |dry_run, max_per_second| v1::RedriveDeadLettersRequest { dry_run, max_per_second, ..Default::default() };
    // A call that is cut off leaves the rest.
    for request in [request(true, 0.0), request(false, 0.01), request(false, 0.0)] {
        let is_cut_off = request.max_per_second > 0.0;
        let mut redriven = operator.redrive_dead_letters(request).await.unwrap();
        while let Some(answer) = redriven.next().await.unwrap() {
            states.push(answer.dead_letter.unwrap().state());
            if is_cut_off {
                break;
            }
        }
    }
    let (parked, gone) = (v1::DeadLetterState::Parked, v1::DeadLetterState::Redriven);
    assert_eq!(states, [parked, parked, parked, gone, gone, gone]);
    refused(operator.redrive_dead_letters(request(false, 0.0)).await, "NOTHING_MATCHES");
}

#[tokio::test]
async fn only_an_operator_decides_about_dead_letters() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    poison_messages(&a, &b, 1).await;
    let id = broker.lines(&["dlq", "list"])[0]["deadLetterId"].as_str().unwrap().to_owned();
    let redrive = || v1::RedriveDeadLetterRequest { dead_letter_id: id.clone(), ..Default::default() };
    let discard = || v1::DiscardDeadLetterRequest { dead_letter_id: id.clone(), ..Default::default() };
    let unknown = broker.client().await;
    refused(unknown.answer(unknown.dead_letters().redrive_dead_letter(redrive()).await), "IDENTITY_MISSING");
    refused(b.client.answer(b.client.dead_letters().redrive_dead_letter(redrive()).await), "PERMISSION_DENIED");
    refused(b.client.answer(b.client.dead_letters().discard_dead_letter(discard()).await), "PERMISSION_DENIED");
    assert_eq!(broker.lines(&["dlq", "list"]).len(), 1);
}

#[tokio::test]
async fn what_is_no_message_is_kept_if_its_sender_is_known_and_only_then() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    refused(a.session.send(bytes::Bytes::from_static(b"\xff\xffgarbage")).await, "MALFORMED");
    let mut wrong =
        v1::Envelope::decode(composer("a").encode("a", MessageType::Info, &About::default(), &v1::Info::default()))
            .unwrap();
    wrong.message_type = MessageType::Delegation.into();
    refused(a.session.send(wrong.encode_to_vec().into()).await, "PAYLOAD_TYPE_MISMATCH");
    // A repeat is retained only once. A message with an invalid field is refused and not retained.
    refused(a.session.send(bytes::Bytes::from_static(b"\xff\xffgarbage")).await, "MALFORMED");
    let info =
        v1::Envelope::decode(composer("a").encode("a", MessageType::Info, &About::default(), &v1::Info::default()))
            .unwrap();
    let invalid = v1::Envelope { task_id: "no id".into(), ..info.clone() };
    refused(a.session.send(invalid.encode_to_vec().into()).await, "FIELD_INVALID");
    let topic = "x".repeat(300);
    let payload = baton::envelope::payload_of(&v1::Info { topic, ..Default::default() });
    let invalid = v1::Envelope { payload: Some(payload), ..info };
    refused(a.session.send(invalid.encode_to_vec().into()).await, "FIELD_INVALID");
    let stranger = broker.client().await;
    let request = v1::SendRequest { envelope: bytes::Bytes::from_static(b"\xff\xffgarbage"), ..Default::default() };
    refused(stranger.answer(stranger.messages().send(request).await), "MALFORMED");
    a.session.heartbeat(v1::Heartbeat::default()).await.unwrap(); // answered after the envelopes are retained
    let kept = broker.lines(&["dlq", "list"]);
    let reasons: Vec<_> = kept.iter().map(|dead| dead["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["DEAD_LETTER_REASON_SCHEMA_INVALID", "DEAD_LETTER_REASON_MALFORMED"]);
    let id = kept[1]["deadLetterId"].as_str().unwrap();
    assert_eq!(broker.lines(&["dlq", "show", id])[0]["envelopeBytes"], "//9nYXJiYWdl");
    let (code, stderr) = exit_of(&mut broker.command(&["dlq", "redrive", id]));
    assert_eq!(code, Some(8));
    assert!(stderr.contains("DEAD_LETTER_NOT_A_MESSAGE"), "{stderr}");
}

/// Watches the task from `after_number` until an entry matches `last`. Returns the numbers of the entries.
async fn watch(client: &Client, task: &str, after_number: u64, last: impl Fn(&v1::CustodyEntry) -> bool) -> Vec<u64> {
    let request = v1::WatchTaskRequest { task_id: task.to_owned(), after_number };
    let mut updates = client.answer(client.tasks().watch_task(request).await).unwrap();
    let mut numbers = Vec::new();
    while let Some(update) = updates.next().await {
        match update.unwrap().update {
            Some(Update::Entry(entry)) => {
                let entry = entry.entry.unwrap();
                numbers.push(entry.number);
                if last(&entry) {
                    break;
                }
            }
            other => panic!("expected an entry, not {other:?}"),
        }
    }
    numbers
}

#[tokio::test]
async fn a_task_is_followed_and_taken_up_again_after_any_entry_also_over_a_restart() {
    let broker = Broker::start();
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    let task = new_task();
    let receipt = a.request("b", &task, 1, &a_request()).await.unwrap();
    let report = |progress: f64, status: v1::TaskStatus| v1::TaskStatusUpdate {
        status: status.into(),
        progress: Some(progress),
        details: "on it".into(),
        ..Default::default()
    };
    a.report(&About::task(&task, 1), &report(0.5, v1::TaskStatus::WaitingForInput)).await.unwrap();
    let client = broker.client().await;
    assert_eq!(watch(&client, &task, 0, |entry| entry.number == 2).await, [1, 2]);
    let following = tokio::spawn({
        let (client, task) = (client.clone(), task.clone());
        async move {
            watch(&client, &task, 2, |entry| matches!(entry.event, Some(Event::Time(_)) | Some(Event::Refused(_))))
                .await
        }
    });
    let stale = a.report(&About::task(&task, 0), &report(0.5, v1::TaskStatus::InProgress)).await;
    assert!(stale.is_err());
    let cancel = About::handoff(&task, 1, &receipt.handoff_id);
    a.send("b", MessageType::HandoffCancel, &cancel, &v1::HandoffCancel::default()).await.unwrap();
    following.abort();

    let broker = Broker::start_in(broker.kill(), &[]);
    let (a, client) = (broker.agent("a").await, broker.client().await);
    a.report(&About::task(&task, 1), &report(1.0, v1::TaskStatus::Completed)).await.unwrap();
    let rest = watch(&client, &task, 2, |_| false).await; // the stream ends because the task is final
    assert_eq!(rest, [3, 4]);
    assert_eq!(watch(&client, &task, 4, |_| false).await, [0; 0]);
    let ahead = v1::WatchTaskRequest { task_id: task.clone(), after_number: 9 };
    let mut updates = client.answer(client.tasks().watch_task(ahead).await).unwrap();
    let gap = v1::WatchGap { first_number: 5, last_number: 9 };
    assert_eq!(updates.next().await.unwrap().unwrap().update, Some(Update::Gap(gap)), "more than there is");
    let printed = broker.command(&["task", "watch", &task, "--output", "table"]).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.contains("accepted TASK_STATUS_UPDATE of a"), "{printed}");
    assert!(printed.contains(": 50 %, on it") && printed.contains(": 100 %, on it"), "{printed}");
}

#[tokio::test]
async fn presence_is_shown_and_nonsense_in_a_heartbeat_is_refused() {
    let broker = Broker::start();
    let a = broker.agent("a").await;
    let presence = async || {
        let request = v1::GetAgentRequest { agent_id: "a".into() };
        a.client.agents().get_agent(request).await.unwrap().into_inner().agent.unwrap().presence()
    };
    assert_eq!(presence().await, v1::Presence::Alive);
    let beat = |name: &str, value| v1::Heartbeat { metrics: [(name.to_owned(), value)].into(), ..Default::default() };
    refused(a.session.heartbeat(beat("load", f64::NAN)).await, "FIELD_INVALID");
    refused(a.session.heartbeat(beat("load", f64::INFINITY)).await, "FIELD_INVALID");
    refused(a.session.heartbeat(beat(&"x".repeat(65), 1.0)).await, "FIELD_INVALID");
    let status = "x".repeat(257);
    refused(a.session.heartbeat(v1::Heartbeat { status, ..Default::default() }).await, "FIELD_INVALID");
    a.session.heartbeat(beat("load", 0.5)).await.unwrap();
}

#[tokio::test]
async fn timeouts_beyond_the_operator_s_bounds_are_refused() {
    let broker = Broker::start();
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    for timeouts in [
        v1::HandoffTimeouts { accept: seconds(8 * 24 * 3600), ..Default::default() },
        v1::HandoffTimeouts { whole: seconds(0), ..Default::default() },
        v1::HandoffTimeouts { complete: seconds(-1), ..Default::default() },
    ] {
        let request = v1::HandoffRequest { timeouts: Some(timeouts), ..a_request() };
        refused(a.request("b", &new_task(), 1, &request).await, "FIELD_INVALID");
    }
}

#[tokio::test]
async fn an_ack_of_another_agents_delivery_is_refused() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    a.send("b", MessageType::Info, &About::default(), &v1::Info::default()).await.unwrap();
    let delivered = b.next().await.unwrap();
    refused(a.session.ack(&delivered.delivery.delivery_id).await, "DELIVERY_UNKNOWN");
    b.session.ack(&delivered.delivery.delivery_id).await.unwrap();
}
