//! Delegations that are begun in a thread: the one message at their end.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use baton_broker_core::{
    Settings,
    access::Caller,
    codes::ErrorCode,
    domain::{
        threads::IDLE,
        workspace::{Limits, Topic, WorkspaceId},
    },
    envelope::history,
    ids::AgentId,
    proto::v1::{self, MessageType, workspace_entry},
    queries::EntryQuery,
};
use prost::Message as _;
use serde_json::{Value, json};

use crate::world::{Session, World, assert_refused};

const HOUR: Duration = Duration::from_secs(3600);

fn in_thread(thread: &str) -> v1::HandoffRequest {
    v1::HandoffRequest {
        task_type: "support".into(),
        mode: v1::HandoffMode::Delegate.into(),
        thread_id: thread.into(),
        ..Default::default()
    }
}

impl World {
    /// Task "t" of agent a, lent to b in the thread "th" of both. Returns the handoff.
    fn with_loan(settings: Settings) -> (Self, Session, Session, String) {
        let mut world = Self::with_thread_under(settings);
        let (mut a, mut b) = (world.connect("a"), world.connect("b"));
        let request = world.request_with("a", "b", 1, &in_thread("th"));
        let lent = world.hand_over_with(&mut a, &mut b, 1, request);
        (world, a, b, lent)
    }

    fn end_with(&self, status: v1::TaskStatus, details: &str, result_json: &str) -> v1::Envelope {
        let update = v1::TaskStatusUpdate {
            status: status.into(),
            details: details.into(),
            result_json: result_json.into(),
            ..Default::default()
        };
        let envelope = self.envelope("b", "", MessageType::TaskStatusUpdate, &update);
        v1::Envelope { task_id: "t".into(), epoch: 2, ..envelope }
    }

    fn take_back(&self, handoff: &str) -> v1::Envelope {
        let envelope = self.envelope("a", "", MessageType::TaskRecall, &v1::TaskRecall::default());
        v1::Envelope { task_id: "t".into(), correlation_id: handoff.into(), epoch: 1, ..envelope }
    }

    /// The entries of the history of the thread, each with its author.
    fn history(&self) -> Vec<(String, Value, String)> {
        let caller = Caller::Agent(AgentId::parse("a").unwrap());
        let query = EntryQuery {
            workspace: WorkspaceId::parse("thread:th").unwrap(),
            topics: vec![Topic::parse("messages").unwrap()],
            after: 0,
            limit: 100,
            envelopes: false,
        };
        let entries = self.view(&caller).workspace_entries(&query).unwrap().entries;
        let read = |entry: v1::WorkspaceEntry| {
            let Some(workspace_entry::Entry::Json(text)) = entry.entry else {
                panic!("an entry of the history is JSON")
            };
            (entry.author_id, serde_json::from_str(&text).unwrap(), text)
        };
        entries.into_iter().map(read).collect()
    }

    /// The data of the only message, which the broker has written.
    fn only_message(&self) -> Value {
        let history = self.history();
        let [(author, message, _)] = &history[..] else { panic!("one message, not {history:?}") };
        assert_eq!((author.as_str(), &message["role"]), ("baton.coordinator", &json!("user")));
        history::entries(json!([message])).expect("the message is of the shape of histories");
        assert_eq!(message["content"][1]["type"], "data");
        message["content"][1]["data"].clone()
    }
}

#[test]
fn the_result_of_a_delegation_is_one_message_of_its_thread() {
    let (mut world, .., lent) = World::with_loan(Settings::default());
    assert!(world.history().is_empty());
    assert_eq!(world.handoff(&lent).thread.as_ref().unwrap().as_str(), "th");
    world.restart();
    let report = world.end_with(v1::TaskStatus::Completed, "42 it is", r#"{"answer": 42.0, "id": 9007199254740993}"#);
    world.send(report).unwrap();

    let data = world.only_message();
    assert_eq!(
        (&data["task_id"], &data["handoff_id"], &data["outcome"], &data["details"]),
        (&json!("t"), &json!(lent), &json!("COMPLETED"), &json!("42 it is"))
    );
    let (_, message, text) = world.history().remove(0);
    assert_eq!((&message["agent_id"], &message["content"][0]["text"]), (&json!("b"), &json!("42 it is")));
    assert!(text.contains(r#""result":{"answer": 42.0, "id": 9007199254740993}"#), "the result is exact: {text}");
    let mail = world.connect("a").delivery().1;
    assert_eq!(mail.message_type(), MessageType::TaskStatusUpdate, "the delegator gets its mail, too");
    assert_eq!(world.task("t").task.owner.as_str(), "a");
    world.audit("t");
}

#[test]
fn a_repeat_and_a_kill_append_nothing_twice() {
    let (mut world, ..) = World::with_loan(Settings::default());
    let mut report = world.end_with(v1::TaskStatus::Completed, "done", "");
    world.sign(&mut report);
    world.disk.full.store(true, Relaxed);
    assert_refused(world.send_signed(&report), ErrorCode::StoreUnavailable);
    world.disk.full.store(false, Relaxed);
    world.recover();
    assert!(world.history().is_empty(), "the end and its message are in one commit");
    assert_eq!(world.task("t").task.owner.as_str(), "b");

    let receipt = world.send_signed(&report).unwrap();
    assert_eq!((receipt.owner_id.as_str(), receipt.epoch), ("a", 3));
    world.restart();
    assert_eq!(world.send_signed(&report).unwrap(), receipt);
    assert_eq!(world.only_message()["outcome"], "COMPLETED");
}

#[test]
fn a_failure_has_the_words_of_the_delegate() {
    let (mut world, ..) = World::with_loan(Settings::default());
    world.send(world.end_with(v1::TaskStatus::Failed, "no such customer", "")).unwrap();
    let data = world.only_message();
    assert_eq!((&data["outcome"], &data["details"]), (&json!("FAILED"), &json!("no such customer")));
    assert_eq!(data.get("result"), None);
}

#[test]
fn a_recall_and_the_loans_time_end_the_delegation_in_the_thread() {
    let (mut world, _a, _b, lent) = World::with_loan(Settings::default());
    world.send(world.take_back(&lent)).unwrap();
    let data = world.only_message();
    assert_eq!((&data["outcome"], &data["error_code"]), (&json!("RECALLED"), &json!("TASK_RECALLED")));
    assert_eq!(data["error_message"], "a recalled the task");

    let mut world = World::with_thread();
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let loan_timeout = Some(prost_types::Duration { seconds: 60, nanos: 0 });
    let request = v1::HandoffRequest { loan_timeout, ..in_thread("th") };
    let request = world.request_with("a", "b", 1, &request);
    world.hand_over_with(&mut a, &mut b, 1, request);
    world.pass(Duration::from_secs(61));
    let data = world.only_message();
    assert_eq!((&data["outcome"], &data["error_code"]), (&json!("RECALLED"), &json!("TASK_RECALLED")));
    world.audit("t");
}

#[test]
fn a_task_that_is_handed_back_is_returned() {
    let (mut world, mut a, mut b, _) = World::with_loan(Settings::default());
    drop(a.deliveries());
    let back =
        world.request_with("b", "a", 2, &v1::HandoffRequest { task_type: "support".into(), ..Default::default() });
    world.hand_over_with(&mut b, &mut a, 2, back);
    let data = world.only_message();
    assert_eq!((&data["outcome"], data.get("error_code")), (&json!("RETURNED"), None));
}

#[test]
fn a_delegation_that_no_agent_takes_ends_in_the_thread() {
    let mut world = World::with_thread();
    let mut b = world.connect("b");
    let handoff = world.send(world.request_with("a", "b", 1, &in_thread("th"))).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    assert!(world.history().is_empty());
    world.send(world.reject("b", "a", &handoff, &[])).unwrap();
    let data = world.only_message();
    assert_eq!(
        (&data["outcome"], &data["error_code"], &data["handoff_id"]),
        (&json!("NOT_TAKEN"), &json!("NO_CANDIDATE"), &json!(handoff))
    );
}

#[test]
fn each_loan_within_another_ends_in_its_own_thread_once() {
    let mut world = World::with_thread();
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    let request = world.request_with("a", "b", 1, &in_thread("th"));
    let outer = world.hand_over_with(&mut a, &mut b, 1, request);
    let request = world.request_with("b", "c", 2, &in_thread("th"));
    let inner = world.hand_over_with(&mut b, &mut c, 2, request);
    world.send(world.take_back(&outer)).unwrap();
    let of = |(_, message, _): (String, Value, String)| message["content"][1]["data"]["handoff_id"].clone();
    let told: Vec<Value> = world.history().into_iter().map(of).collect();
    assert_eq!(told, [json!(outer), json!(inner)]);
    world.audit("t");
}

#[test]
fn only_a_delegation_of_a_participant_names_a_thread() {
    let mut world = World::with_thread();
    world.register("d", "worker");
    let before = world.snapshot();
    let transfer = v1::HandoffRequest { mode: v1::HandoffMode::Transfer.into(), ..in_thread("th") };
    for request in [transfer, in_thread("not a name")] {
        let refused = assert_refused(world.send(world.request_with("a", "b", 1, &request)), ErrorCode::FieldInvalid);
        assert!(refused.to_string().contains("envelope.payload.thread_id"), "{refused}");
    }
    // A thread that is hidden and one that does not exist get the same answer.
    let hidden = world.send(world.request_with("d", "b", 1, &in_thread("th")));
    let hidden = assert_refused(hidden, ErrorCode::PermissionDenied).to_string();
    let unknown = world.send(world.request_with("d", "b", 1, &in_thread("none")));
    let unknown = assert_refused(unknown, ErrorCode::PermissionDenied).to_string();
    assert_eq!(hidden.replace("\"th\"", ""), unknown.replace("\"none\"", ""));
    assert_eq!(world.snapshot(), before);
}

#[test]
fn without_workspaces_no_request_names_a_thread() {
    let mut settings = Settings::default();
    settings.services.workspace = false;
    let mut world = World::with_thread_under(settings);
    let request = world.request_with("a", "b", 1, &in_thread("th"));
    assert_refused(world.send(request), ErrorCode::NotSupported);
}

#[test]
fn the_end_stands_if_its_thread_cannot_take_it_and_the_delegator_is_told() {
    let settings = Settings { workspace: Limits { entries_max: 1, ..Limits::default() }, ..Settings::default() };
    let (mut world, mut a, ..) = World::with_loan(settings);
    drop(a.deliveries());
    world.append_message("a", "thread:th", "the workspace is full").unwrap();
    world.send(world.end_with(v1::TaskStatus::Completed, "done", "")).unwrap();
    assert_eq!(world.task("t").task.owner.as_str(), "a");
    assert_eq!(world.take_and_ack(&mut a).message_type(), MessageType::TaskStatusUpdate);
    let (_, notice) = a.delivery();
    let told = v1::ErrorNotification::decode(notice.payload.unwrap().value).unwrap();
    assert_eq!((told.error_code(), notice.correlation_id.as_str()), (v1::ErrorCode::QuotaExceeded, ""));
    world.audit("t");
}

#[test]
fn a_thread_that_has_ended_gets_no_message() {
    let (mut world, mut a, _b, lent) = World::with_loan(Settings::default());
    world.pass(IDLE + HOUR);
    drop(a.deliveries());
    world.send(world.take_back(&lent)).unwrap();
    assert_eq!(world.task("t").task.owner.as_str(), "a");
    let (_, notice) = a.delivery();
    let told = v1::ErrorNotification::decode(notice.payload.unwrap().value).unwrap();
    assert_eq!(told.error_code(), v1::ErrorCode::ThreadUnknown);
    world.audit("t");
}
