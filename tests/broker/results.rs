//! Results of tasks, parts of tasks, and what a handoff shows of its messages.

use std::time::Duration;

use baton_broker_core::{
    access::Caller,
    codes::ErrorCode,
    domain::handoff::{OfferOutcome, ReceiverView, State},
    ids::{AgentId, MessageId, TaskId},
    proto::v1::{self, MessageType, TaskStatus},
    queries::TaskFilter,
};
use serde_json::json;

use crate::world::{Refusal, Session, World, assert_refused, operator};

const SECOND: Duration = Duration::from_secs(1);

fn result(text: &str) -> String {
    json!({"answer": text}).to_string()
}

fn fields(outcome: Result<v1::Receipt, Refusal>) -> Vec<String> {
    let refusal = assert_refused(outcome, ErrorCode::FieldInvalid);
    refusal.violations().iter().map(|violation| violation.path.clone()).collect()
}

fn span(span: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(span).ok()
}

impl World {
    fn report(&self, from: &str, epoch: u64, status: TaskStatus, result: &str) -> v1::Envelope {
        let result_json = result.to_owned();
        let payload = v1::TaskStatusUpdate { status: status.into(), result_json, ..Default::default() };
        let envelope = self.envelope(from, "", MessageType::TaskStatusUpdate, &payload);
        v1::Envelope { task_id: "t".into(), epoch, ..envelope }
    }

    /// Empty: none.
    fn shown_result(&self) -> String {
        let caller = operator();
        let shown = self.view(&caller).shown_task(&TaskId::parse("t").unwrap()).unwrap();
        shown.result.map(|status| status.result_json).unwrap_or_default()
    }

    /// A request for a new task that is a part of another one.
    fn part(&self, from: &str, task: &str, parent: &str) -> v1::Envelope {
        let payload =
            v1::HandoffRequest { task_type: "part".into(), parent_task_id: parent.into(), ..Default::default() };
        let envelope = self.envelope(from, "b", MessageType::HandoffRequest, &payload);
        v1::Envelope { task_id: task.into(), epoch: 1, ..envelope }
    }

    fn parts(&self, caller: &Caller, parent: &str, size: usize, token: &str) -> (Vec<String>, String) {
        let filter = TaskFilter { parent: Some(TaskId::parse(parent).unwrap()), ..TaskFilter::default() };
        let page = self.view(caller).tasks(&filter, size, token).unwrap();
        (page.entries.iter().map(|record| record.task.id.to_string()).collect(), page.next_token)
    }
}

#[test]
fn a_task_shows_the_result_of_its_final_status() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    world.send(world.report("b", 2, TaskStatus::InProgress, &result("half"))).unwrap();
    assert_eq!(world.shown_result(), "", "a result before the end is for the receivers of the message");
    world.send(world.report("b", 2, TaskStatus::Completed, &result("whole"))).unwrap();
    world.restart();
    assert_eq!(world.shown_result(), result("whole"));
    world.audit("t");
}

#[test]
fn the_result_of_a_delegate_returns_to_its_delegator_and_stays() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let lend = v1::HandoffRequest {
        task_type: "support".into(),
        mode: v1::HandoffMode::Delegate.into(),
        ..Default::default()
    };
    let request = world.request_with("a", "b", 1, &lend);
    world.hand_over_with(&mut a, &mut b, 1, request);
    world.send(world.report("b", 2, TaskStatus::Completed, &result("of b"))).unwrap();
    assert_eq!(world.take_and_ack(&mut a).sender_id, "b");
    assert_eq!(world.shown_result(), result("of b"));
    world.send(world.report("a", 3, TaskStatus::Completed, "")).unwrap();
    assert_eq!(world.shown_result(), result("of b"), "a final status without a result keeps the former one");
    world.audit("t");
}

#[test]
fn a_result_over_its_bound_is_refused_with_advice() {
    let mut world = World::with(&["a", "b"]);
    world.send(world.request("a", "b", 1)).unwrap();
    let most = 256 * 1024 - r#"{"answer":""}"#.len();
    let handoff = world.task("t").task.open_handoff.unwrap().to_string();
    world.send(world.cancel("a", "b", &handoff, 1)).unwrap();
    let too_large = world.report("a", 1, TaskStatus::Completed, &result(&"x".repeat(most + 1)));
    let refusal = assert_refused(world.send(too_large), ErrorCode::FieldInvalid);
    assert!(refusal.to_string().contains("reference"), "{refusal}");
    assert_eq!(refusal.violations()[0].path, "envelope.payload.result_json");
    let largest = result(&"x".repeat(most));
    world.send(world.report("a", 1, TaskStatus::Completed, &largest)).unwrap();
    assert_eq!(world.shown_result(), largest);
}

#[test]
fn a_result_is_shown_as_it_was_sent() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    let deep = |levels: usize| format!(r#"{{"deep":{}{}}}"#, "[".repeat(levels - 1), "]".repeat(levels - 1));
    for (text, place) in [
        (r#"{"a": {"b": 1, "b": 2}}"#.to_owned(), "/a/b".to_owned()),
        (r#"{"a": [1, NaN]}"#.to_owned(), "/a/1".to_owned()),
        (r#"{"a": "\udc00"}"#.to_owned(), "/a".to_owned()),
        ("[]".to_owned(), String::new()),
        (deep(129), format!("/deep{}", "/0".repeat(127))),
    ] {
        let path = format!("envelope.payload.result_json{place}");
        assert_eq!(fields(world.send(world.report("b", 2, TaskStatus::Completed, &text))), [path]);
    }
    world.send(world.report("b", 2, TaskStatus::InProgress, &deep(128))).unwrap();
    let text = r#" {"id": 1234567890123456789, "n": 42, "f": 42.0, "e": 4.20e1, "none": null} "#;
    world.send(world.report("b", 2, TaskStatus::Completed, text)).unwrap();
    world.restart();
    assert_eq!(world.shown_result(), text);
    world.audit("t");
}

#[test]
fn parts_are_listed_with_their_parent() {
    let mut world = World::with(&["a", "b", "stranger"]);
    world.send(world.request("a", "b", 1)).unwrap();
    for part in ["t.1", "t.2", "t.3"] {
        world.send(world.part("a", part, "t")).unwrap();
    }
    let caller = operator();
    let shown = world.view(&caller).shown_task(&TaskId::parse("t").unwrap()).unwrap();
    assert_eq!(shown.parts.iter().map(TaskId::as_str).collect::<Vec<_>>(), ["t.3", "t.2", "t.1"]);
    let (first, token) = world.parts(&caller, "t", 2, "");
    let (rest, end) = world.parts(&caller, "t", 2, &token);
    assert_eq!((first, rest, end.as_str()), (vec!["t.3".into(), "t.2".into()], vec!["t.1".into()], ""));
    let agent = |name: &str| Caller::Agent(AgentId::parse(name).unwrap());
    assert_eq!(world.parts(&agent("a"), "t", 10, "").0.len(), 3);
    assert_eq!(world.parts(&agent("stranger"), "t", 10, "").0, Vec::<String>::new());
    assert_eq!(world.task("t.1").task.parent, Some(TaskId::parse("t").unwrap()));
    for part in ["t", "t.1"] {
        world.audit(part);
    }
}

#[test]
fn a_parent_is_another_open_task_of_the_sender() {
    let mut world = World::with(&["a", "b", "c"]);
    world.send(world.request("a", "b", 1)).unwrap();
    let path = "envelope.payload.parent_task_id";
    assert_eq!(fields(world.send(world.part("a", "own", "own"))), [path]);
    assert_eq!(fields(world.send(world.part("a", "t", "t"))), [path]);
    assert_eq!(fields(world.send(world.part("a", "x", "no task"))), [path]);
    assert_refused(world.send(world.part("c", "c.1", "t")), ErrorCode::NotOwner);
    assert_refused(world.send(world.part("a", "a.1", "unknown")), ErrorCode::NotOwner);
    let handoff = world.task("t").task.open_handoff.unwrap().to_string();
    world.send(world.cancel("a", "b", &handoff, 1)).unwrap();
    world.send(world.part("a", "t.1", "t")).unwrap();
    world.send(world.status("a", "", 1, TaskStatus::Completed)).unwrap();
    assert_eq!(world.task("t.1").task.status.number(), 1, "a parent may end without its parts");
    assert_refused(world.send(world.part("a", "t.2", "t")), ErrorCode::TaskFinal);
}

#[test]
fn the_parent_of_a_task_never_changes() {
    let mut world = World::with(&["a", "b"]);
    world.send(world.request("a", "b", 1)).unwrap();
    world.send(world.part("a", "t.1", "t")).unwrap();
    let handoff = world.task("t.1").task.open_handoff.unwrap().to_string();
    let cancel = v1::Envelope { task_id: "t.1".into(), ..world.cancel("a", "b", &handoff, 1) };
    world.send(cancel).unwrap();
    world.send(world.part("a", "u", "")).unwrap();
    assert_eq!(fields(world.send(world.part("a", "t.1", "u"))), ["envelope.payload.parent_task_id"]);
    world.send(world.part("a", "t.1", "t")).unwrap();
    assert_eq!(world.task("t.1").task.parent, Some(TaskId::parse("t").unwrap()));
    world.audit("t.1");
}

#[test]
fn parts_are_at_most_16_levels_deep() {
    let mut world = World::with(&["a", "b"]);
    world.send(world.part("a", "level-1", "")).unwrap();
    for level in 2..=16 {
        world.send(world.part("a", &format!("level-{level}"), &format!("level-{}", level - 1))).unwrap();
    }
    let refusal = assert_refused(world.send(world.part("a", "level-17", "level-16")), ErrorCode::LoopLimit);
    let metadata = refusal.metadata();
    assert_eq!(metadata[0], ("limit", "handoffs_max".to_owned()));
    assert_eq!(metadata[1], ("value", "16".to_owned()));
    assert_eq!(metadata[2], ("chain", "a".to_owned()), "all levels are of one agent");
}

#[test]
fn a_handoff_shows_the_words_of_its_request_and_the_estimate() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let request = v1::HandoffRequest {
        task_type: "support".into(),
        reason_text: "too hard".into(),
        desired_agent_type: "".into(),
        initial_context_summary: "it crashes".into(),
        ..Default::default()
    };
    let id = world.send(world.request_with("a", "b", 1, &request)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    let caller = operator();
    let shown = world.view(&caller).shown_handoff(MessageId::parse(&id).unwrap()).unwrap();
    assert_eq!(shown.request, request);
}

/// A request with fallbacks, answered up to the accept of "b" with this estimate.
fn accepted_with(world: &mut World, b: &mut Session, estimate: Duration, whole: Duration) -> String {
    let timeouts = v1::HandoffTimeouts { complete: span(120 * SECOND), whole: span(whole), ..Default::default() };
    let request = v1::HandoffRequest { task_type: "x".into(), timeouts: Some(timeouts), ..Default::default() };
    let id = world.send(world.request_with("a", "b", 1, &request)).unwrap().handoff_id;
    world.take_and_ack(b);
    let accept = v1::HandoffAccept { estimated_handoff_time: span(estimate), ..Default::default() };
    let envelope = world.envelope("b", "a", MessageType::HandoffAccept, &accept);
    world.send(v1::Envelope { task_id: "t".into(), correlation_id: id.clone(), epoch: 1, ..envelope }).unwrap();
    world.send(world.context("a", "b", &id, 1)).unwrap();
    world.take_and_ack(b);
    id
}

#[test]
fn an_estimate_lengthens_the_time_to_complete_and_never_the_whole() {
    for (estimate, whole, expected) in [(60, 360, 120), (200, 360, 200), (1000, 360, 360)] {
        let mut world = World::with(&["a", "b"]);
        let mut b = world.connect("b");
        let id = accepted_with(&mut world, &mut b, estimate * SECOND, whole * SECOND);
        let handoff = world.handoff(&id);
        assert_eq!(handoff.step_deadline, Some(world.now.plus(expected * SECOND)), "{estimate}");
        assert_eq!(handoff.estimate, Some(estimate * SECOND));
        world.pass((expected - 1) * SECOND);
        assert_eq!(world.handoff(&id).state, State::ContextSent);
        world.pass(SECOND);
        assert_eq!(world.handoff(&id).state, State::Failed);
        world.audit("t");
    }
}

#[test]
fn the_record_of_the_accept_shows_handoff_accepted() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    let handoff = world.handoff(&id);
    assert_eq!(handoff.steps.last().unwrap().receiver_view, ReceiverView::HandoffAccepted);
    assert_eq!(handoff.receiver_view(), ReceiverView::AwaitingContextTransfer);
    world.audit("t");
}

impl World {
    /// A request to "b", then to "c", with these timeouts.
    fn request_to_two(&self, whole: Duration) -> v1::Envelope {
        let timeouts = v1::HandoffTimeouts { accept: span(10 * SECOND), whole: span(whole), ..Default::default() };
        let request = v1::HandoffRequest {
            task_type: "x".into(),
            fallback_candidates: vec!["c".into()],
            timeouts: Some(timeouts),
            ..Default::default()
        };
        self.request_with("a", "b", 1, &request)
    }

    fn reject_until(&self, from: &str, handoff: &str, retry_after: Option<Duration>) -> v1::Envelope {
        let payload = v1::HandoffReject {
            reason: v1::RejectReason::Overloaded.into(),
            retry_after: retry_after.and_then(span),
            ..Default::default()
        };
        let envelope = self.envelope(from, "a", MessageType::HandoffReject, &payload);
        v1::Envelope { task_id: "t".into(), correlation_id: handoff.into(), epoch: 1, ..envelope }
    }
}

#[test]
fn a_candidate_that_asks_for_time_is_asked_again_after_all_others() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut b, mut c) = (world.connect("b"), world.connect("c"));
    let id = world.send(world.request_to_two(300 * SECOND)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.reject_until("b", &id, Some(60 * SECOND))).unwrap();
    assert_eq!(world.handoff(&id).candidate.as_str(), "c", "the others go first");
    world.take_and_ack(&mut c);
    world.pass(SECOND);
    world.send(world.reject("c", "a", &id, &[])).unwrap();

    let waiting = world.handoff(&id);
    assert!(waiting.is_held());
    assert_eq!((waiting.state, waiting.candidate.as_str()), (State::Requested, "b"));
    assert_refused(world.send(world.accept("b", "a", &id, 1)), ErrorCode::HandoffState);
    assert_refused(world.send(world.reject_until("b", &id, None)), ErrorCode::HandoffState);
    world.restart();
    world.pass(58 * SECOND);
    assert!(world.handoff(&id).is_held());
    world.pass(SECOND);
    let mut b = world.connect("b");
    world.take_and_ack(&mut b);
    assert_eq!(world.handoff(&id).state, State::Deciding);
    world.send(world.reject_until("b", &id, Some(SECOND))).unwrap();
    assert!(world.handoff(&id).is_held(), "as often as it says so");
    world.pass(SECOND);
    world.take_and_ack(&mut b);
    assert_eq!(world.handoff(&id).offers.len(), 2, "a further offer replaces the former one");
    world.audit("t");
}

#[test]
fn a_candidate_that_is_asked_again_can_accept() {
    let mut world = World::with(&["a", "b", "c"]);
    let mut b = world.connect("b");
    let id = world.send(world.request_to_two(300 * SECOND)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.reject_until("b", &id, Some(20 * SECOND))).unwrap();
    let mut c = world.connect("c");
    world.take_and_ack(&mut c);
    world.pass(10 * SECOND);
    assert!(world.handoff(&id).is_held(), "the other candidate did not decide in time");
    world.pass(10 * SECOND);
    world.take_and_ack(&mut b);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    let outcomes: Vec<_> = world.handoff(&id).offers.iter().map(|offer| offer.outcome).collect();
    assert_eq!(outcomes, [OfferOutcome::TimedOut, OfferOutcome::Accepted]);
    world.audit("t");
}

#[test]
fn a_retry_after_the_whole_time_is_not_waited_for() {
    let mut world = World::with(&["a", "b", "c"]);
    let mut b = world.connect("b");
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.reject_until("b", &id, Some(360 * SECOND))).unwrap();
    assert_eq!(world.handoff(&id).state, State::Rejected);
    world.audit("t");
}

#[test]
fn the_owner_cancels_while_the_broker_waits_to_ask_again() {
    let mut world = World::with(&["a", "b", "c"]);
    let mut b = world.connect("b");
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.reject_until("b", &id, Some(100 * SECOND))).unwrap();
    assert!(world.handoff(&id).is_held());
    world.send(world.cancel("a", "b", &id, 1)).unwrap();
    assert_eq!(world.handoff(&id).state, State::Cancelled);
    world.pass(400 * SECOND);
    world.audit("t");
}

#[test]
fn a_late_ack_of_a_rejected_offer_changes_nothing_while_the_broker_waits() {
    let mut world = World::with(&["a", "b", "c"]);
    let mut b = world.connect("b");
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let (delivery, _) = b.delivery();
    world.send(world.reject_until("b", &id, Some(100 * SECOND))).unwrap();
    world.ack(&b, &delivery);
    assert!(world.handoff(&id).is_held());
    world.audit("t");
}

#[test]
fn spans_over_thirty_days_and_unknown_numbers_are_refused() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let unknown = v1::HandoffRequest { task_type: "x".into(), reason: 99, ..Default::default() };
    assert_eq!(fields(world.send(world.request_with("a", "b", 1, &unknown))), ["envelope.payload.reason"]);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    let month = Duration::from_secs(30 * 24 * 3600);
    let late = world.reject_until("b", &id, Some(month + SECOND));
    assert_eq!(fields(world.send(late)), ["envelope.payload.retry_after"]);
}
