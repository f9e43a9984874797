//! Ownership that returns to its delegator: recalls, loan timeouts, and loans within loans.

use std::time::Duration;

use baton_broker_core::{
    codes::ErrorCode,
    domain::handoff::{Cause, State, TaskStatus},
    proto::v1::{self, MessageType},
};
use prost::Message as _;

use crate::world::{Refusal, Session, World, assert_refused};

const HOUR: Duration = Duration::from_secs(3600);

fn loan(timeout: Option<Duration>) -> v1::HandoffRequest {
    v1::HandoffRequest {
        task_type: "support".into(),
        mode: v1::HandoffMode::Delegate.into(),
        loan_timeout: timeout.map(|span| prost_types::Duration::try_from(span).unwrap()),
        ..Default::default()
    }
}

impl World {
    /// Lends task "t" to another agent at this epoch. Returns the id of the handoff.
    fn lend(&mut self, from: &mut Session, to: &mut Session, epoch: u64, timeout: Option<Duration>) -> String {
        let request = self.request_with(from.agent.as_str(), to.agent.as_str(), epoch, &loan(timeout));
        self.hand_over_with(from, to, epoch, request)
    }

    fn recall(&self, from: &str, handoff: &str) -> v1::Envelope {
        let payload = v1::TaskRecall { reason_text: "no longer needed".into() };
        let envelope = self.envelope(from, "", MessageType::TaskRecall, &payload);
        v1::Envelope { task_id: "t".into(), correlation_id: handoff.into(), epoch: 1, ..envelope }
    }

    fn owner(&self) -> (String, u64) {
        let task = self.task("t").task;
        (task.owner.to_string(), task.epoch)
    }
}

/// The code, the advice and the handoff of the only notification since the last call.
fn told(session: &mut Session) -> (v1::ErrorCode, v1::NextStep, String) {
    let (_, envelope) = session.delivery();
    let notice = v1::ErrorNotification::decode(envelope.payload.unwrap().value).unwrap();
    (notice.error_code(), notice.next_step(), envelope.correlation_id)
}

fn code(outcome: Result<v1::Receipt, Refusal>) -> ErrorCode {
    outcome.expect_err("a refusal").0
}

#[test]
fn a_recall_returns_the_task_to_its_delegator_at_once() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let lent = world.lend(&mut a, &mut b, 1, None);
    assert_eq!(world.owner(), ("b".into(), 2));

    let receipt = world.send(world.recall("a", &lent)).unwrap();
    assert_eq!((receipt.owner_id.as_str(), receipt.epoch), ("a", 3));
    assert_eq!(receipt.task_status(), v1::TaskStatus::InProgress);
    assert_eq!(told(&mut b), (v1::ErrorCode::TaskRecalled, v1::NextStep::DropTask, lent));
    assert!(a.deliveries().is_empty(), "the receipt tells the delegator");
    assert_refused(world.send(world.status("b", "", 2, v1::TaskStatus::Completed)), ErrorCode::StaleEpoch);
    world.send(world.status("a", "", 3, v1::TaskStatus::Completed)).unwrap();
    assert_eq!(world.audit("t").refusals(), 1, "the late status of the former owner is on record");
}

#[test]
fn a_repeated_recall_gets_its_first_receipt() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let lent = world.lend(&mut a, &mut b, 1, None);
    let mut recall = world.recall("a", &lent);
    world.sign(&mut recall);
    let first = world.send_signed(&recall).unwrap();
    assert_eq!(world.send_signed(&recall).unwrap(), first);
    assert_eq!(world.owner(), ("a".into(), 3));
}

#[test]
fn a_recall_ends_the_loan_and_every_loan_within_it() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    let outer = world.lend(&mut a, &mut b, 1, None);
    let inner = world.lend(&mut b, &mut c, 2, None);
    assert_eq!(world.owner(), ("c".into(), 3));

    world.send(world.recall("a", &outer)).unwrap();
    assert_eq!(world.owner(), ("a".into(), 4));
    let recalled = (v1::ErrorCode::TaskRecalled, v1::NextStep::DropTask, outer);
    assert_eq!((told(&mut b), told(&mut c)), (recalled.clone(), recalled));
    assert_refused(world.send(world.recall("b", &inner)), ErrorCode::NotLent);
    world.audit("t");
}

#[test]
fn a_recall_of_the_inner_loan_leaves_the_outer_one() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    let outer = world.lend(&mut a, &mut b, 1, None);
    let inner = world.lend(&mut b, &mut c, 2, None);
    world.send(world.recall("b", &inner)).unwrap();
    assert_eq!(world.owner(), ("b".into(), 4));
    world.send(world.recall("a", &outer)).unwrap();
    assert_eq!(world.owner(), ("a".into(), 5));
}

#[test]
fn a_recall_cancels_the_open_handoff_and_its_candidate_drops_the_task() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    let lent = world.lend(&mut a, &mut b, 1, None);
    let open = world.send(world.request("b", "c", 2)).unwrap().handoff_id;
    world.take_and_ack(&mut c);
    world.send(world.accept("c", "b", &open, 2)).unwrap();
    world.take_and_ack(&mut b);

    world.send(world.recall("a", &lent)).unwrap();
    let handoff = world.handoff(&open);
    assert_eq!((handoff.state, handoff.steps.last().unwrap().cause), (State::Cancelled, Cause::Recalled));
    assert_eq!(told(&mut c), (v1::ErrorCode::TaskRecalled, v1::NextStep::DropTask, open.clone()));
    assert_eq!(told(&mut b), (v1::ErrorCode::TaskRecalled, v1::NextStep::DropTask, lent));
    assert_refused(world.send(world.context("b", "c", &open, 2)), ErrorCode::StaleEpoch);
    assert_eq!(world.engine.open_handoffs(), 0, "no timer is left");
    world.send(world.request("a", "c", 3)).expect("the delegator can hand the task on");
    world.audit("t");
}

#[test]
fn a_task_that_is_not_lent_cannot_be_recalled() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let transfer = world.hand_over(&mut a, &mut b, 1);
    assert_eq!(code(world.send(world.recall("a", &transfer))), ErrorCode::NotLent);

    let ended = world.lend(&mut b, &mut a, 2, None);
    world.send(world.status("a", "", 3, v1::TaskStatus::Completed)).unwrap();
    world.take_and_ack(&mut b);
    assert_eq!(code(world.send(world.recall("b", &ended))), ErrorCode::NotLent);

    let open = world.send(world.request_with("b", "a", 4, &loan(None))).unwrap().handoff_id;
    assert_eq!(code(world.send(world.recall("b", &open))), ErrorCode::NotLent);
    assert_eq!(world.handoff(&open).state, State::Requested);
    assert_eq!(world.owner(), ("b".into(), 4));
    assert_eq!(world.audit("t").refusals(), 3);
}

#[test]
fn only_the_delegator_of_a_loan_recalls_it() {
    let mut world = World::with(&["a", "b", "c", "stranger"]);
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    let outer = world.lend(&mut a, &mut b, 1, None);
    world.lend(&mut b, &mut c, 2, None);
    for agent in ["b", "c", "stranger"] {
        assert_eq!(code(world.send(world.recall(agent, &outer))), ErrorCode::NotOwner, "{agent}");
    }
    assert_eq!(world.owner(), ("c".into(), 3));
}

#[test]
fn a_final_task_cannot_be_recalled() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let lent = world.lend(&mut a, &mut b, 1, None);
    world.send(world.status("b", "", 2, v1::TaskStatus::Completed)).unwrap();
    world.send(world.status("a", "", 3, v1::TaskStatus::Completed)).unwrap();
    assert_eq!(code(world.send(world.recall("a", &lent))), ErrorCode::TaskFinal);
    assert_eq!(world.task("t").task.status, TaskStatus::Completed);
}

#[test]
fn a_recall_names_its_loan_and_no_receiver() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let lent = world.lend(&mut a, &mut b, 1, None);
    let without_loan = world.recall("a", "");
    assert_eq!(code(world.send(without_loan)), ErrorCode::FieldInvalid);
    let with_receiver = v1::Envelope { receiver_id: "b".into(), ..world.recall("a", &lent) };
    assert_eq!(code(world.send(with_receiver)), ErrorCode::FieldInvalid);
    assert_eq!(world.owner(), ("b".into(), 2));
}

#[test]
fn a_loan_is_recalled_when_it_is_due() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let lent = world.lend(&mut a, &mut b, 1, Some(HOUR));
    let due = world.task("t").task.loans[0].due.unwrap();
    assert_eq!(due, world.now.plus(HOUR), "the loan begins with the completion");

    world.pass(HOUR - Duration::from_millis(1));
    assert_eq!(world.owner(), ("b".into(), 2));
    world.pass(Duration::from_millis(1));
    assert_eq!(world.owner(), ("a".into(), 3));
    assert_eq!(told(&mut b), (v1::ErrorCode::TaskRecalled, v1::NextStep::DropTask, lent.clone()));
    assert_eq!(told(&mut a), (v1::ErrorCode::TaskRecalled, v1::NextStep::KeepTask, lent));
    world.audit("t");
}

#[test]
fn a_loan_that_came_due_while_the_broker_was_down_is_recalled_at_its_start() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.lend(&mut a, &mut b, 1, Some(HOUR));
    world.now = world.now.plus(2 * HOUR);
    world.restart();
    world.settle();
    assert_eq!(world.owner(), ("a".into(), 3));
    let custody = world.custody("t").len();
    world.restart();
    world.settle();
    assert_eq!(world.custody("t").len(), custody, "the timer fires once");
    world.audit("t");
}

#[test]
fn a_word_of_the_delegate_after_the_loan_is_late_also_before_the_timer() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.lend(&mut a, &mut b, 1, Some(HOUR));
    world.now = world.now.plus(HOUR);
    assert_refused(world.send(world.status("b", "", 2, v1::TaskStatus::Completed)), ErrorCode::StaleEpoch);
    assert_eq!(world.owner(), ("a".into(), 3));
}

#[test]
fn a_loan_that_ends_by_itself_has_no_timer_left() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.lend(&mut a, &mut b, 1, Some(HOUR));
    world.send(world.status("b", "", 2, v1::TaskStatus::Completed)).unwrap();
    let custody = world.custody("t").len();
    world.pass(2 * HOUR);
    assert_eq!((world.owner(), world.custody("t").len()), (("a".into(), 3), custody));
}

#[test]
fn the_outermost_due_loan_takes_the_inner_ones_with_it() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    world.lend(&mut a, &mut b, 1, Some(HOUR));
    world.lend(&mut b, &mut c, 2, Some(2 * HOUR));
    world.pass(HOUR);
    assert_eq!(world.owner(), ("a".into(), 4));
    world.pass(2 * HOUR);
    assert_eq!(world.owner(), ("a".into(), 4));
    world.audit("t");
}

#[test]
fn a_clock_that_is_set_back_does_not_lengthen_a_loan() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.lend(&mut a, &mut b, 1, Some(HOUR));
    world.pass(HOUR / 2);
    world.now = world.now.minus(12 * HOUR);
    world.settle();
    world.pass(HOUR / 2 - Duration::from_secs(1));
    assert_eq!(world.owner(), ("b".into(), 2));
    world.pass(Duration::from_secs(1));
    assert_eq!(world.owner(), ("a".into(), 3));
    world.audit("t");
}

#[test]
fn a_loan_timeout_is_from_a_second_to_thirty_days_and_only_for_loans() {
    let mut world = World::with(&["a", "b"]);
    let day = Duration::from_secs(24 * 60 * 60);
    for timeout in [Duration::ZERO, Duration::from_millis(999), 30 * day + Duration::from_nanos(1)] {
        let request = world.request_with("a", "b", 1, &loan(Some(timeout)));
        assert_refused(world.send(request), ErrorCode::FieldInvalid);
    }
    let transfer = v1::HandoffRequest { mode: v1::HandoffMode::Transfer.into(), ..loan(Some(HOUR)) };
    assert_refused(world.send(world.request_with("a", "b", 1, &transfer)), ErrorCode::FieldInvalid);
    world.send(world.request_with("a", "b", 1, &loan(Some(30 * day)))).unwrap();
}
