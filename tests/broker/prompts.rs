//! Questions about a task: asked with a status, answered once by the agent that was asked.

use std::time::Duration;

use baton_broker_core::{
    access::{Caller, Operator},
    codes::ErrorCode,
    domain::handoff::PromptState,
    ids::{AgentId, TaskId},
    proto::v1::{self, MessageType, TaskStatus},
    queries::TaskFilter,
};
use prost::Message as _;
use serde_json::{Value, json};

use crate::world::{Refusal, Session, World, assert_refused};

const HOUR: Duration = Duration::from_secs(3600);
const SCHEMA: &str = r#"{"required": ["refund"], "properties": {"refund": {"type": "boolean"}}}"#;

fn question(answer_by: &str) -> v1::TaskPrompt {
    v1::TaskPrompt { question: "may I refund?".into(), answer_by: answer_by.into(), ..Default::default() }
}

fn data(name: &str, value: impl Into<Value>) -> String {
    json!({ name: value.into() }).to_string()
}

impl World {
    /// A world in which "a" has handed task "t" to "b", the owner at epoch 2.
    fn owned_by_b(others: &[&str]) -> (Self, Session, Session) {
        let agents = [&["a", "b"], others].concat();
        let mut world = Self::with(&agents);
        let (mut a, mut b) = (world.connect("a"), world.connect("b"));
        world.hand_over(&mut a, &mut b, 1);
        (world, a, b)
    }

    fn ask_with(&self, from: &str, epoch: u64, prompt: v1::TaskPrompt) -> v1::Envelope {
        let status = TaskStatus::WaitingForInput.into();
        let payload = v1::TaskStatusUpdate { status, prompt: Some(prompt), ..Default::default() };
        let envelope = self.envelope(from, "", MessageType::TaskStatusUpdate, &payload);
        v1::Envelope { task_id: "t".into(), epoch, ..envelope }
    }

    /// "b" asks, at epoch 2. Returns the id of the question.
    fn ask_as_b(&mut self, prompt: v1::TaskPrompt) -> String {
        let envelope = self.ask_with("b", 2, prompt);
        let id = envelope.message_id.clone();
        self.send(envelope).unwrap();
        id
    }

    fn answer_with(&self, from: &str, question: &str, epoch: u64, payload: &v1::TaskInput) -> v1::Envelope {
        let envelope = self.envelope(from, "", MessageType::TaskInput, payload);
        v1::Envelope { task_id: "t".into(), correlation_id: question.into(), epoch, ..envelope }
    }

    fn reply_to(&self, from: &str, question: &str) -> v1::Envelope {
        self.answer_with(from, question, 2, &v1::TaskInput { text: "yes".into(), ..Default::default() })
    }

    fn time(&self, span: Duration) -> prost_types::Timestamp {
        self.now.plus(span).into()
    }

    fn last_state(&self) -> PromptState {
        self.task("t").task.prompts.last().expect("a question").state
    }
}

fn asks_until(world: &World, answer_by: &str, span: Duration) -> v1::TaskPrompt {
    v1::TaskPrompt { answer_before: Some(world.time(span)), ..question(answer_by) }
}

fn fields(outcome: Result<v1::Receipt, Refusal>) -> Vec<String> {
    let refusal = assert_refused(outcome, ErrorCode::FieldInvalid);
    refusal.violations().iter().map(|violation| violation.path.clone()).collect()
}

fn notice(session: &mut Session) -> (v1::ErrorCode, v1::NextStep, String) {
    let (_, envelope) = session.delivery();
    let notice = v1::ErrorNotification::decode(envelope.payload.unwrap().value).unwrap();
    (notice.error_code(), notice.next_step(), envelope.correlation_id)
}

#[test]
fn a_question_reaches_the_agent_and_its_answer_the_owner() {
    let (mut world, mut a, mut b) = World::owned_by_b(&["c"]);
    let mut c = world.connect("c");
    let asked = world.ask_as_b(question("c"));
    let delivered = world.take_and_ack(&mut c);
    assert_eq!(delivered.message_id, asked);
    let shown =
        world.view(&Caller::Operator(Operator::named("olga"))).shown_task(&TaskId::parse("t").unwrap()).unwrap();
    assert_eq!(shown.record.task.open_prompt().unwrap().asked.as_str(), "c");
    assert_eq!(shown.prompt.unwrap().prompt.unwrap().question, "may I refund?");

    let answer = world.reply_to("c", &asked);
    let answer_id = answer.message_id.clone();
    world.send(answer).unwrap();
    assert_eq!(world.take_and_ack(&mut b).message_id, answer_id);
    assert_eq!(world.last_state(), PromptState::Answered);
    assert!(a.deliveries().is_empty());
    world.audit("t");
}

#[test]
fn only_the_first_answer_counts() {
    let (mut world, _a, mut b) = World::owned_by_b(&["c"]);
    let asked = world.ask_as_b(question("c"));
    let mut first = world.reply_to("c", &asked);
    world.sign(&mut first);
    let receipt = world.send_signed(&first).unwrap();
    assert_refused(world.send(world.reply_to("c", &asked)), ErrorCode::InputTaken);
    assert_eq!(world.send_signed(&first).unwrap(), receipt, "a repeat gets the first receipt");
    assert_eq!(b.deliveries().len(), 1);
    world.audit("t");
}

#[test]
fn an_answer_survives_a_restart_and_stays_the_only_one() {
    let (mut world, _a, b) = World::owned_by_b(&["c"]);
    drop(b);
    let asked = world.ask_as_b(asks_until(&world, "c", HOUR));
    world.restart();
    world.send(world.reply_to("c", &asked)).unwrap();
    world.restart();
    assert_refused(world.send(world.reply_to("c", &asked)), ErrorCode::InputTaken);
    assert_eq!(world.connect("b").deliveries().len(), 1);
    world.pass(2 * HOUR);
    assert_eq!(world.last_state(), PromptState::Answered, "the deadline of an answered question is gone");
    world.audit("t");
}

#[test]
fn an_agent_that_was_not_asked_cannot_answer() {
    let (mut world, _a, _b) = World::owned_by_b(&["c", "stranger"]);
    let asked = world.ask_as_b(question("c"));
    for agent in ["a", "b", "stranger"] {
        assert_refused(world.send(world.reply_to(agent, &asked)), ErrorCode::NotAsked);
    }
    let unknown = world.envelope("c", "", MessageType::Info, &v1::Info::default()).message_id;
    assert_refused(world.send(world.reply_to("c", &unknown)), ErrorCode::NotAsked);
    let elsewhere = v1::Envelope { task_id: "none".into(), ..world.reply_to("c", &asked) };
    assert_refused(world.send(elsewhere), ErrorCode::NotAsked);
    assert_eq!(world.last_state(), PromptState::Open);
}

#[test]
fn a_question_expires_at_its_deadline_and_its_owner_is_told_once() {
    let (mut world, _a, mut b) = World::owned_by_b(&["c"]);
    let asked = world.ask_as_b(asks_until(&world, "c", HOUR));
    world.pass(HOUR - Duration::from_millis(1));
    assert!(b.deliveries().is_empty());
    world.pass(Duration::from_millis(1));
    assert_eq!(notice(&mut b), (v1::ErrorCode::InputExpired, v1::NextStep::KeepTask, asked.clone()));
    let refusal = assert_refused(world.send(world.reply_to("c", &asked)), ErrorCode::InputExpired);
    assert_eq!(refusal.metadata(), [("state", "EXPIRED".to_owned())]);
    world.restart();
    world.pass(HOUR);
    assert_eq!(world.last_state(), PromptState::Expired);
    assert_eq!(world.connect("b").deliveries().len(), 1, "the one notice, which was not acked");
    world.audit("t");
}

#[test]
fn a_question_that_came_due_while_the_broker_was_down_expires_at_its_start() {
    let (mut world, _a, _b) = World::owned_by_b(&["c"]);
    let asked = world.ask_as_b(asks_until(&world, "c", HOUR));
    world.now = world.now.plus(2 * HOUR);
    world.restart();
    world.settle();
    assert_eq!(world.last_state(), PromptState::Expired);
    assert_refused(world.send(world.reply_to("c", &asked)), ErrorCode::InputExpired);
    world.audit("t");
}

#[test]
fn an_answer_after_the_deadline_is_late_also_before_the_timer() {
    let (mut world, _a, mut b) = World::owned_by_b(&["c"]);
    let asked = world.ask_as_b(asks_until(&world, "c", HOUR));
    world.now = world.now.plus(HOUR);
    assert_refused(world.send(world.reply_to("c", &asked)), ErrorCode::InputExpired);
    assert_eq!(notice(&mut b).0, v1::ErrorCode::InputExpired);
}

#[test]
fn a_later_status_of_the_owner_withdraws_the_question() {
    for status in [TaskStatus::InProgress, TaskStatus::WaitingForInput] {
        let (mut world, _a, mut b) = World::owned_by_b(&["c"]);
        let asked = world.ask_as_b(asks_until(&world, "c", HOUR));
        world.send(world.status("b", "", 2, status)).unwrap();
        let refusal = assert_refused(world.send(world.reply_to("c", &asked)), ErrorCode::InputExpired);
        assert_eq!(refusal.metadata(), [("state", "WITHDRAWN".to_owned())]);
        world.pass(2 * HOUR);
        assert!(b.deliveries().is_empty(), "a withdrawn question does not expire");
        world.audit("t");
    }
}

#[test]
fn the_end_of_the_task_withdraws_the_question() {
    let (mut world, _a, _b) = World::owned_by_b(&["c"]);
    let asked = world.ask_as_b(asks_until(&world, "c", HOUR));
    world.send(world.status("b", "", 2, TaskStatus::Completed)).unwrap();
    assert_refused(world.send(world.reply_to("c", &asked)), ErrorCode::TaskFinal);
    assert_eq!(world.last_state(), PromptState::Withdrawn);
    world.pass(2 * HOUR);
    world.audit("t");
}

#[test]
fn a_move_of_the_ownership_withdraws_the_question() {
    let (mut world, _a, mut b) = World::owned_by_b(&["c"]);
    let mut c = world.connect("c");
    let asked = world.ask_as_b(asks_until(&world, "c", HOUR));
    world.take_and_ack(&mut c);
    world.hand_over(&mut b, &mut c, 2);
    assert_refused(world.send(world.reply_to("c", &asked)), ErrorCode::StaleEpoch);
    assert_eq!(world.last_state(), PromptState::Withdrawn);
    assert_eq!(world.audit("t").refusals(), 1, "a late answer is on record");
    for _ in 0..4 * 60 {
        world.heartbeat(&c); // an owner that is gone would be news for b
        world.pass(HOUR / 120);
    }
    assert!(b.deliveries().is_empty());
}

#[test]
fn a_recall_withdraws_the_question_of_the_delegate() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let lend = v1::HandoffRequest {
        task_type: "support".into(),
        mode: v1::HandoffMode::Delegate.into(),
        ..Default::default()
    };
    let request = world.request_with("a", "b", 1, &lend);
    let lent = world.hand_over_with(&mut a, &mut b, 1, request);
    let asked = world.ask_as_b(question("c"));
    let recall = world.envelope("a", "", MessageType::TaskRecall, &v1::TaskRecall::default());
    world.send(v1::Envelope { task_id: "t".into(), correlation_id: lent, epoch: 2, ..recall }).unwrap();
    assert_refused(world.send(world.reply_to("c", &asked)), ErrorCode::StaleEpoch);
    assert_eq!(world.last_state(), PromptState::Withdrawn);
    world.audit("t");
}

#[test]
fn a_question_to_a_type_goes_to_one_agent_of_it() {
    let (mut world, _a, _b) = World::owned_by_b(&["c:human", "d:human"]);
    let (mut c, mut d) = (world.connect("c"), world.connect("d"));
    let asked = world.ask_as_b(question("type:human"));
    let chosen = world.task("t").task.open_prompt().unwrap().asked.to_string();
    assert_eq!(c.deliveries().len() + d.deliveries().len(), 1);
    let other = if chosen == "c" { "d" } else { "c" };
    assert_refused(world.send(world.reply_to(other, &asked)), ErrorCode::NotAsked);
    world.send(world.reply_to(&chosen, &asked)).unwrap();
    world.audit("t");
}

#[test]
fn a_question_that_no_agent_can_answer_is_refused() {
    let (mut world, _a, _b) = World::owned_by_b(&[]);
    for answer_by in ["c", "type:human"] {
        assert_refused(world.send(world.ask_with("b", 2, question(answer_by))), ErrorCode::ReceiverUnknown);
    }
    assert_refused(world.send(world.ask_with("b", 2, question("b"))), ErrorCode::ReceiverInvalid);
    for answer_by in ["", "all:human", "no one"] {
        let refused = world.send(world.ask_with("b", 2, question(answer_by)));
        assert_eq!(fields(refused), ["envelope.payload.prompt.answer_by"], "{answer_by}");
    }
    assert_eq!(world.task("t").task.prompts, []);
}

#[test]
fn a_question_needs_waiting_for_input_and_stays_within_its_bounds() {
    let (mut world, _a, _b) = World::owned_by_b(&["c"]);
    let mut in_progress = world.ask_with("b", 2, question("c"));
    let payload = v1::TaskStatusUpdate {
        status: TaskStatus::InProgress.into(),
        prompt: Some(question("c")),
        ..Default::default()
    };
    in_progress.payload = Some(baton_broker_core::envelope::payload_of(&payload));
    assert_eq!(fields(world.send(in_progress)), ["envelope.payload.prompt"]);

    let too_long = v1::TaskPrompt { question: "x".repeat(16 * 1024 + 1), ..question("c") };
    assert_eq!(fields(world.send(world.ask_with("b", 2, too_long))), ["envelope.payload.prompt.question"]);
    let empty = v1::TaskPrompt { question: String::new(), ..question("c") };
    assert_eq!(fields(world.send(world.ask_with("b", 2, empty))), ["envelope.payload.prompt.question"]);
    let past = v1::TaskPrompt { answer_before: Some(world.time(Duration::ZERO)), ..question("c") };
    assert_eq!(fields(world.send(world.ask_with("b", 2, past))), ["envelope.payload.prompt.answer_before"]);
    let schema = "envelope.payload.prompt.answer_schema_json";
    for json in ["{", "[]", r#"{"type": "money"}"#, r#"{"$ref": "https://example.com/s"}"#, &" ".repeat(64 * 1024 + 1)]
    {
        let bad = v1::TaskPrompt { answer_schema_json: json.into(), ..question("c") };
        assert_eq!(fields(world.send(world.ask_with("b", 2, bad))), [schema], "{json:.40}");
    }
    assert_refused(world.send(world.ask_with("a", 2, question("c"))), ErrorCode::NotOwner);
    assert_refused(world.send(world.ask_with("b", 1, question("c"))), ErrorCode::StaleEpoch);
    assert_eq!(world.task("t").task.prompts, []);
}

#[test]
fn an_answer_that_does_not_fit_the_schema_is_refused_with_the_places() {
    let (mut world, _a, mut b) = World::owned_by_b(&["c", "stranger"]);
    let asked = world.ask_as_b(v1::TaskPrompt { answer_schema_json: SCHEMA.into(), ..question("c") });
    let answer = |world: &World, data_json: String| {
        world.answer_with("c", &asked, 2, &v1::TaskInput { text: "yes".into(), data_json })
    };
    let wrong = answer(&world, data("refund", "yes"));
    assert_eq!(fields(world.send(wrong)), ["envelope.payload.data_json/refund"]);
    let missing = answer(&world, data("other", true));
    assert_eq!(fields(world.send(missing)), ["envelope.payload.data_json/refund"]);
    let none = answer(&world, String::new());
    assert_eq!(fields(world.send(none)), ["envelope.payload.data_json"]);
    let of_stranger = v1::TaskInput { data_json: data("refund", 1), ..Default::default() };
    let of_stranger = world.answer_with("stranger", &asked, 2, &of_stranger);
    assert_refused(world.send(of_stranger), ErrorCode::NotAsked);

    let good = answer(&world, data("refund", true));
    world.send(good).unwrap();
    assert_eq!(b.deliveries().len(), 1);
    world.audit("t");
}

#[test]
fn an_answer_whose_check_would_take_too_much_work_is_refused() {
    let (mut world, _a, _b) = World::owned_by_b(&["c"]);
    let slow = r#"{"properties": {"refund": {"pattern": "a[ab]{3000}[^ab]"}}}"#;
    let asked = world.ask_as_b(v1::TaskPrompt { answer_schema_json: slow.into(), ..question("c") });
    let long = v1::TaskInput { data_json: data("refund", "ab".repeat(32_000)), ..Default::default() };
    let refusal = assert_refused(world.send(world.answer_with("c", &asked, 2, &long)), ErrorCode::FieldInvalid);
    assert!(refusal.violations()[0].problem.contains("too long texts"), "{refusal}");
}

#[test]
fn an_answer_names_its_question_and_no_receiver_and_says_something() {
    let (mut world, _a, _b) = World::owned_by_b(&["c"]);
    let asked = world.ask_as_b(question("c"));
    let without_question = world.reply_to("c", "");
    assert_eq!(fields(world.send(without_question)), ["envelope.correlation_id"]);
    let with_receiver = v1::Envelope { receiver_id: "b".into(), ..world.reply_to("c", &asked) };
    assert_eq!(fields(world.send(with_receiver)), ["envelope.receiver_id"]);
    let empty = world.answer_with("c", &asked, 2, &v1::TaskInput::default());
    assert_eq!(fields(world.send(empty)), ["envelope.payload"]);
    let long = v1::TaskInput { text: "x".repeat(64 * 1024 + 1), ..Default::default() };
    assert_eq!(fields(world.send(world.answer_with("c", &asked, 2, &long))), ["envelope.payload.text"]);
    let ahead = world.answer_with("c", &asked, 3, &v1::TaskInput { text: "yes".into(), ..Default::default() });
    assert_refused(world.send(ahead), ErrorCode::EpochAhead);
    for (text, place) in [
        (r#"{"n": NaN}"#, "/n"),
        (r#"{"a": {"b": 1, "b": 2}}"#, "/a/b"),
        (r#"{"a": ["\ud800"]}"#, "/a/0"),
        ("[1]", ""),
        (&data("text", "x".repeat(64 * 1024)), ""),
    ] {
        let wrong = v1::TaskInput { data_json: text.to_owned(), ..Default::default() };
        let path = format!("envelope.payload.data_json{place}");
        assert_eq!(fields(world.send(world.answer_with("c", &asked, 2, &wrong))), [path]);
    }
    assert_eq!(world.last_state(), PromptState::Open);
}

#[test]
fn a_second_question_replaces_the_first_and_both_are_remembered() {
    let (mut world, _a, _b) = World::owned_by_b(&["c", "d"]);
    let first = world.ask_as_b(question("c"));
    let second = world.ask_as_b(question("d"));
    assert_refused(world.send(world.reply_to("c", &first)), ErrorCode::InputExpired);
    assert_refused(world.send(world.reply_to("c", &second)), ErrorCode::NotAsked);
    world.send(world.reply_to("d", &second)).unwrap();
    for _ in 0..8 {
        world.ask_as_b(question("d"));
    }
    assert_eq!(world.task("t").task.prompts.len(), 8);
    assert_refused(world.send(world.reply_to("c", &first)), ErrorCode::NotAsked);
    world.audit("t");
}

#[test]
fn the_agent_that_is_asked_reads_the_question_and_nothing_else_of_the_task() {
    let (mut world, _a, _b) = World::owned_by_b(&["c", "stranger"]);
    let (task, c) = (TaskId::parse("t").unwrap(), Caller::Agent(AgentId::parse("c").unwrap()));
    world.view(&c).shown_task(&task).expect_err("not asked yet");
    let asked = world.ask_as_b(question("c"));
    let shown = world.view(&c).shown_task(&task).unwrap();
    assert!(shown.is_asked_only && shown.result.is_none() && shown.parts.is_empty());
    assert_eq!(shown.prompt.unwrap().prompt.unwrap().answer_by, "c");
    world.view(&c).task(&task).expect_err("the record of the task is for its participants");
    world.view(&c).custody(&task, 0, 10, true).expect_err("so is its log");
    world.view(&Caller::Agent(AgentId::parse("stranger").unwrap())).shown_task(&task).expect_err("a stranger");
    world.send(world.reply_to("c", &asked)).unwrap();
    world.view(&c).shown_task(&task).expect_err("the question is answered");
}

/// The tasks that list their question to "c", for this caller.
fn questions(world: &World, caller: &str) -> Vec<(String, bool)> {
    let (caller, c) = (Caller::Agent(AgentId::parse(caller).unwrap()), AgentId::parse("c").unwrap());
    let page = world.view(&caller).questions(&c, &TaskFilter::default(), 50, "").unwrap();
    let entry = |shown: &baton_broker_core::queries::ShownTask| {
        assert_eq!(shown.prompt.as_ref().unwrap().prompt.as_ref().unwrap().answer_by, "c");
        (shown.record.task.id.to_string(), shown.is_asked_only)
    };
    page.entries.iter().map(entry).collect()
}

#[test]
fn an_open_question_is_listed_for_its_agent_until_it_ends() {
    let (mut world, _a, _b) = World::owned_by_b(&["c", "stranger"]);
    let listed = [("t".to_owned(), true)];
    assert_eq!(questions(&world, "c"), []);
    let asked = world.ask_as_b(question("c"));
    for _ in 0..2 {
        assert_eq!(questions(&world, "c"), listed);
        assert_eq!((questions(&world, "b"), questions(&world, "stranger")), (vec![], vec![]), "the list is c's");
        world.restart();
    }
    world.send(world.reply_to("c", &asked)).unwrap();
    assert_eq!(questions(&world, "c"), [], "answered");
    // The same agent again, and then another one.
    world.ask_as_b(question("c"));
    world.ask_as_b(question("c"));
    assert_eq!(questions(&world, "c"), listed);
    world.ask_as_b(question("stranger"));
    assert_eq!(questions(&world, "c"), [], "withdrawn");
    world.ask_as_b(asks_until(&world, "c", HOUR));
    world.pass(HOUR);
    world.restart();
    assert_eq!(questions(&world, "c"), [], "expired");
}

#[test]
fn the_context_of_a_handoff_is_not_shown_to_a_stranger() {
    let mut world = World::with(&["a", "b", "stranger"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    let handoff = world.task("t").task.hops[0].handoff;
    let seen_by = |caller: &Caller| {
        let handoff = world.view(&Caller::Agent(AgentId::parse("a").unwrap())).handoff(handoff).unwrap();
        world.view(caller).context_of(&handoff).unwrap().is_some()
    };
    let agent = |name: &str| Caller::Agent(AgentId::parse(name).unwrap());
    assert!(seen_by(&agent("a")) && seen_by(&agent("b")));
    assert!(!seen_by(&agent("stranger")));
    assert!(seen_by(&Caller::Operator(Operator::named("ops"))), "by the built-in policy");
}

#[test]
fn a_named_receiver_gets_the_status_beside_the_agent_that_is_asked() {
    let (mut world, mut a, _b) = World::owned_by_b(&["c"]);
    let mut c = world.connect("c");
    world.send(v1::Envelope { receiver_id: "a".into(), ..world.ask_with("b", 2, question("c")) }).unwrap();
    assert_eq!((a.deliveries().len(), c.deliveries().len()), (1, 1));
    world.send(v1::Envelope { receiver_id: "c".into(), ..world.ask_with("b", 2, question("c")) }).unwrap();
    assert_eq!(c.deliveries().len(), 1, "the first question is withdrawn, and holds up no other");
    world.audit("t");
}
