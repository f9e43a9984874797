//! Work that nobody shows signs of: tasks whose owner is silent, and loans that are extended.

use std::time::Duration;

use baton_broker_core::{
    codes::ErrorCode,
    domain::handoff::{Cause, State},
    engine::{Command, ConsumerKind},
    ids::InstanceId,
    proto::v1::{self, MessageType},
};
use prost::Message as _;

use crate::world::{Session, World, assert_refused};

const SECOND: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(20);

fn span(span: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(span).ok()
}

fn lent() -> v1::HandoffRequest {
    v1::HandoffRequest {
        task_type: "support".into(),
        mode: v1::HandoffMode::Delegate.into(),
        silence_timeout: span(SILENCE),
        ..Default::default()
    }
}

fn transferred(returns: bool) -> v1::HandoffRequest {
    v1::HandoffRequest {
        task_type: "support".into(),
        silence_timeout: span(SILENCE),
        return_when_abandoned: returns,
        ..Default::default()
    }
}

impl World {
    /// A session of a process that tells its work.
    fn connect_telling(&mut self, agent: &str) -> Session {
        let session = self.connect_as(agent, ConsumerKind::Session, 0);
        let (consumer, instance) = (session.consumer, InstanceId::from_bytes([7; 16]));
        self.engine.handle(Command::Hello { consumer, instance, tells_work: true, reply: None }, self.now);
        self.engine.handle(Command::Credit { consumer, outstanding_max: 100, reply: None }, self.now);
        self.settle();
        session
    }

    fn works_on(&mut self, session: &Session, tasks: &[&str]) {
        let working_on = tasks.iter().map(|&task| task.to_owned()).collect();
        let heartbeat = v1::Heartbeat { working_on, ..Default::default() };
        let (consumer, agent) = (session.consumer, session.agent.clone());
        self.engine.handle(Command::Heartbeat { consumer, agent, heartbeat, reply: None }, self.now);
        self.settle();
    }

    /// Hands task "t" over at this epoch. Returns the id of the handoff.
    fn hand_over_on(&mut self, from: &mut Session, to: &mut Session, epoch: u64, terms: &v1::HandoffRequest) -> String {
        let request = self.request_with(from.agent.as_str(), to.agent.as_str(), epoch, terms);
        self.hand_over_with(from, to, epoch, request)
    }

    /// Lets this time pass, with a heartbeat each 5 s that lists these tasks.
    fn pass_working(&mut self, session: &Session, tasks: &[&str], span: Duration) {
        for _ in 0..span.as_secs() / 5 {
            self.works_on(session, tasks);
            self.pass(5 * SECOND);
        }
    }

    fn owner_and_epoch(&self) -> (String, u64) {
        let task = self.task("t").task;
        (task.owner.to_string(), task.epoch)
    }
}

/// The code, the advice and the severity of the only notification since the last call.
fn told(session: &mut Session) -> (v1::ErrorCode, v1::NextStep, v1::Severity) {
    let (_, envelope) = session.delivery();
    let notice = v1::ErrorNotification::decode(envelope.payload.unwrap().value).unwrap();
    (notice.error_code(), notice.next_step(), notice.severity())
}

#[test]
fn a_loan_whose_owner_stops_to_list_it_comes_back_after_the_silence() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect_telling("b"));
    world.hand_over_on(&mut a, &mut b, 1, &lent());
    world.pass_working(&b, &["t"], 10 * SILENCE);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2), "work that is told goes on");

    world.works_on(&b, &[]);
    world.pass(SILENCE - SECOND);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
    world.pass(2 * SECOND);
    assert_eq!(world.owner_and_epoch(), ("a".into(), 3));
    let abandoned = v1::ErrorCode::TaskAbandoned;
    assert_eq!(told(&mut a), (abandoned, v1::NextStep::KeepTask, v1::Severity::Warning));
    assert_eq!(told(&mut b), (abandoned, v1::NextStep::DropTask, v1::Severity::Warning));
    assert_refused(world.send(world.status("b", "", 2, v1::TaskStatus::Completed)), ErrorCode::StaleEpoch);
    world.audit("t");
}

#[test]
fn a_killed_worker_loses_its_loan_after_the_silence_from_its_last_sign() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect_telling("b"));
    world.hand_over_on(&mut a, &mut b, 1, &lent());
    world.pass_working(&b, &["t"], 35 * SECOND);
    world.works_on(&b, &["t"]);
    world.disconnect(b);
    world.pass(SILENCE - SECOND);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
    world.pass(2 * SECOND);
    assert_eq!(world.owner_and_epoch(), ("a".into(), 3));
    world.audit("t");
}

#[test]
fn another_process_that_lists_the_task_is_a_sign() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect_telling("b"));
    world.hand_over_on(&mut a, &mut b, 1, &lent());
    let other = world.connect_telling("b");
    world.disconnect(b);
    world.pass_working(&other, &["t"], 3 * SILENCE);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
}

#[test]
fn a_status_is_a_sign() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect_telling("b"));
    world.hand_over_on(&mut a, &mut b, 1, &lent());
    for _ in 0..5 {
        world.pass(SILENCE - SECOND);
        world.send(world.status("b", "", 2, v1::TaskStatus::InProgress)).unwrap();
    }
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
    world.pass(SILENCE + SECOND);
    assert_eq!(world.owner_and_epoch(), ("a".into(), 3));
}

#[test]
fn of_a_process_that_tells_nothing_only_the_absence_counts() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over_on(&mut a, &mut b, 1, &lent());
    for _ in 0..20 {
        world.heartbeat(&b);
        world.pass(10 * SECOND);
    }
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
    world.disconnect(b);
    world.pass(60 * SECOND + SILENCE + SECOND);
    assert_eq!(world.owner_and_epoch(), ("a".into(), 3), "a gone owner works on nothing");
    world.audit("t");
}

#[test]
fn a_transferred_task_goes_back_if_its_request_says_so() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect_telling("b"));
    world.hand_over_on(&mut a, &mut b, 1, &transferred(true));
    world.pass(SILENCE + SECOND);
    assert_eq!(world.owner_and_epoch(), ("a".into(), 3));
    let abandoned = v1::ErrorCode::TaskAbandoned;
    assert_eq!(told(&mut a), (abandoned, v1::NextStep::KeepTask, v1::Severity::Warning));
    assert_eq!(told(&mut b), (abandoned, v1::NextStep::DropTask, v1::Severity::Warning));
    world.pass(10 * SILENCE);
    assert_eq!(world.owner_and_epoch(), ("a".into(), 3), "the former owner has no such terms");
    world.audit("t");
}

#[test]
fn without_that_the_former_owner_is_told_once() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect_telling("b"));
    world.hand_over_on(&mut a, &mut b, 1, &transferred(false));
    world.pass(SILENCE + SECOND);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
    let notice = world.take_and_ack(&mut a);
    let notice = v1::ErrorNotification::decode(notice.payload.unwrap().value).unwrap();
    let told = (notice.error_code(), notice.severity());
    assert_eq!(told, (v1::ErrorCode::TaskAbandoned, v1::Severity::Critical));
    world.pass_working(&b, &[], 3 * SILENCE);
    assert!(a.deliveries().is_empty());
    world.audit("t");
}

#[test]
fn a_silent_owner_loses_the_handoff_that_it_has_begun() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b) = (world.connect("a"), world.connect_telling("b"));
    world.hand_over_on(&mut a, &mut b, 1, &transferred(true));
    let open = world.send(world.request("b", "c", 2)).unwrap().handoff_id;
    world.pass(SILENCE + SECOND);
    assert_eq!(world.owner_and_epoch(), ("a".into(), 3));
    let handoff = world.handoff(&open);
    assert_eq!((handoff.state, handoff.steps.last().unwrap().cause), (State::Cancelled, Cause::Recalled));
    world.audit("t");
}

#[test]
fn a_task_that_waits_for_an_answer_with_a_deadline_is_not_silent() {
    let mut world = World::with(&["a", "b", "p"]);
    let (mut a, mut b) = (world.connect("a"), world.connect_telling("b"));
    world.hand_over_on(&mut a, &mut b, 1, &lent());
    let (seconds, nanos) = world.now.plus(10 * SILENCE).to_parts();
    let prompt = v1::TaskPrompt {
        question: "which?".into(),
        answer_by: "p".into(),
        answer_before: Some(prost_types::Timestamp { seconds, nanos }),
        ..Default::default()
    };
    let update = v1::TaskStatusUpdate {
        status: v1::TaskStatus::WaitingForInput.into(),
        prompt: Some(prompt),
        ..Default::default()
    };
    let envelope = world.envelope("b", "", MessageType::TaskStatusUpdate, &update);
    world.send(v1::Envelope { task_id: "t".into(), epoch: 2, ..envelope }).unwrap();
    world.pass(9 * SILENCE);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
    world.pass(2 * SILENCE + 2 * SECOND);
    assert_eq!(world.owner_and_epoch(), ("a".into(), 3), "after the deadline silence counts again");
    world.audit("t");
}

#[test]
fn after_a_restart_of_the_broker_silence_begins_anew() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect_telling("b"));
    world.hand_over_on(&mut a, &mut b, 1, &lent());
    world.pass_working(&b, &["t"], 2 * SILENCE);
    world.restart();
    let b = world.connect_telling("b");
    world.works_on(&b, &["t"]);
    world.pass_working(&b, &["t"], 2 * SILENCE);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
    world.works_on(&b, &[]);
    world.pass(SILENCE + SECOND);
    assert_eq!(world.owner_and_epoch(), ("a".into(), 3));
}

#[test]
fn a_process_that_is_back_after_a_restart_has_the_whole_time_to_tell_its_work() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect_telling("b"));
    world.hand_over_on(&mut a, &mut b, 1, &lent());
    world.works_on(&b, &["t"]);
    world.pass(SILENCE - SECOND);
    world.restart();
    let b = world.connect_telling("b");
    world.pass(5 * SECOND);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
    world.works_on(&b, &["t"]);
    world.pass_working(&b, &["t"], 2 * SILENCE);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
    world.audit("t");
}

#[test]
fn a_process_that_was_gone_with_an_open_session_is_heard_again() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect_telling("b"));
    world.pass(Duration::from_secs(90));
    assert!(world.engine.directory().is_gone(&b.agent, world.now));
    world.works_on(&b, &[]);
    world.hand_over_on(&mut a, &mut b, 1, &lent());
    world.pass_working(&b, &["t"], 3 * SILENCE);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
    world.works_on(&b, &[]);
    world.pass_working(&b, &[], SILENCE + 5 * SECOND);
    assert_eq!(world.owner_and_epoch(), ("a".into(), 3));
    world.audit("t");
}

#[test]
fn a_delegate_extends_its_loan_up_to_the_limit_of_the_request() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let terms = v1::HandoffRequest {
        silence_timeout: None,
        loan_timeout: span(60 * SECOND),
        loan_timeout_max: span(100 * SECOND),
        ..lent()
    };
    world.hand_over_on(&mut a, &mut b, 1, &terms);
    let extend = |world: &World, by: Duration| {
        let update = v1::TaskStatusUpdate {
            status: v1::TaskStatus::InProgress.into(),
            extend_by: span(by),
            ..Default::default()
        };
        let envelope = world.envelope("b", "", MessageType::TaskStatusUpdate, &update);
        v1::Envelope { task_id: "t".into(), epoch: 2, ..envelope }
    };
    world.pass(50 * SECOND);
    world.send(extend(&world, 30 * SECOND)).unwrap();
    world.pass(25 * SECOND);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2), "extended to 80 s");
    world.send(extend(&world, 600 * SECOND)).unwrap();
    world.pass(20 * SECOND);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
    world.pass(6 * SECOND);
    assert_eq!(world.owner_and_epoch(), ("a".into(), 3), "and never over 100 s");
    world.audit("t");
}

#[test]
fn a_loan_without_a_longest_time_is_not_extended() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over_on(&mut a, &mut b, 1, &v1::HandoffRequest { loan_timeout: span(60 * SECOND), ..lent() });
    let update = v1::TaskStatusUpdate {
        status: v1::TaskStatus::InProgress.into(),
        extend_by: span(SECOND),
        ..Default::default()
    };
    let envelope = world.envelope("b", "", MessageType::TaskStatusUpdate, &update);
    let refused = world.send(v1::Envelope { task_id: "t".into(), epoch: 2, ..envelope });
    assert_refused(refused, ErrorCode::NotLent);
}

#[test]
fn terms_out_of_their_bounds_are_refused() {
    let mut world = World::with(&["a", "b"]);
    let long = span(Duration::from_secs(24 * 3600 + 1));
    let (given, wrong) = (lent(), |terms: v1::HandoffRequest| terms);
    for terms in [
        wrong(v1::HandoffRequest { silence_timeout: span(4 * SECOND), ..given.clone() }),
        wrong(v1::HandoffRequest { silence_timeout: long, ..given.clone() }),
        wrong(v1::HandoffRequest { return_when_abandoned: true, ..given.clone() }),
        wrong(v1::HandoffRequest { silence_timeout: None, ..transferred(true) }),
        wrong(v1::HandoffRequest { loan_timeout_max: span(60 * SECOND), ..given.clone() }),
        wrong(v1::HandoffRequest {
            loan_timeout: span(60 * SECOND),
            loan_timeout_max: span(59 * SECOND),
            ..given.clone()
        }),
    ] {
        assert_refused(world.send(world.request_with("a", "b", 1, &terms)), ErrorCode::FieldInvalid);
    }
}

#[test]
fn signs_of_work_do_not_move_the_hard_limit_of_a_loan() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect_telling("b"));
    world.hand_over_on(&mut a, &mut b, 1, &v1::HandoffRequest { loan_timeout: span(50 * SECOND), ..lent() });
    world.pass_working(&b, &["t"], 45 * SECOND);
    assert_eq!(world.owner_and_epoch(), ("b".into(), 2));
    world.works_on(&b, &["t"]);
    world.pass(6 * SECOND);
    assert_eq!(world.owner_and_epoch(), ("a".into(), 3));
    world.audit("t");
}
