//! People take their time: offers and questions that are open for days, and the clocks that wait for an answer.

use std::time::Duration;

use baton_broker_core::{
    Settings,
    access::Caller,
    codes::ErrorCode,
    domain::handoff::{Priority, State},
    ids::{AgentId, TaskId},
    proto::v1::{self, MessageType, TaskStatus},
};

use crate::world::{World, assert_refused, operator};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn span(span: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(span).ok()
}

impl World {
    fn waits(&self, from: &str, epoch: u64, asked: &str, due: Option<Duration>) -> v1::Envelope {
        let prompt = v1::TaskPrompt {
            question: "may I pay 900?".into(),
            answer_by: asked.into(),
            answer_before: due.map(|due| self.now.plus(due).into()),
            ..Default::default()
        };
        let status = TaskStatus::WaitingForInput.into();
        let payload = v1::TaskStatusUpdate { status, prompt: Some(prompt), ..Default::default() };
        let envelope = self.envelope(from, "", MessageType::TaskStatusUpdate, &payload);
        v1::Envelope { task_id: "t".into(), epoch, ..envelope }
    }

    fn says(&self, from: &str, question: &str, epoch: u64, text: &str) -> v1::Envelope {
        let payload = v1::TaskInput { text: text.into(), ..Default::default() };
        let envelope = self.envelope(from, "", MessageType::TaskInput, &payload);
        v1::Envelope { task_id: "t".into(), correlation_id: question.into(), epoch, ..envelope }
    }
}

#[test]
fn an_offer_with_seven_days_is_open_for_seven_days_whether_or_not_its_mail_is_fetched() {
    let mut world = World::with(&["a", "pat"]);
    let timeouts = v1::HandoffTimeouts { accept: span(7 * DAY), whole: span(7 * DAY), ..Default::default() };
    let request = v1::HandoffRequest { task_type: "support".into(), timeouts: Some(timeouts), ..Default::default() };
    let handoff = world.send(world.request_with("a", "pat", 1, &request)).unwrap().handoff_id;
    world.pass(6 * DAY);
    assert_eq!(world.handoff(&handoff).state, State::Requested);
    assert_eq!(world.dead_letters().len(), 0);
    world.restart();
    let mut pat = world.connect("pat");
    assert_eq!(world.take_and_ack(&mut pat).message_id, handoff, "the mail lives as long as the offer");
    world.send(world.accept("pat", "a", &handoff, 1)).unwrap();
    world.audit("t");
}

#[test]
fn an_offer_ends_at_its_own_time_and_not_as_mail() {
    let mut world = World::with(&["a", "pat"]);
    let timeouts = v1::HandoffTimeouts { whole: span(3 * DAY), ..Default::default() };
    let request = v1::HandoffRequest { task_type: "support".into(), timeouts: Some(timeouts), ..Default::default() };
    let handoff = world.send(world.request_with("a", "pat", 1, &request)).unwrap().handoff_id;
    world.pass(3 * DAY);
    let ended = world.handoff(&handoff);
    assert_eq!((ended.state, ended.failure.as_ref().unwrap().code), (State::Failed, ErrorCode::WholeTimeout));
}

#[test]
fn a_question_lives_as_long_as_its_deadline_and_other_mail_as_before() {
    let mut world = World::with_settings(&["a", "b", "pat"], Settings { mail_lifetime: HOUR, ..Settings::default() });
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    let question = world.send(world.waits("b", 2, "pat", Some(5 * DAY))).unwrap().message_id;
    world.send(world.info("a", "pat", "news")).unwrap();
    world.pass(4 * DAY);
    let dead = world.dead_letters();
    let dead: Vec<_> =
        dead.iter().filter(|dead| dead.agent.as_str() == "pat").map(|dead| dead.summary.message_type).collect();
    assert_eq!(dead, [i32::from(MessageType::Info)], "the question is no dead letter");
    let mut pat = world.connect("pat");
    assert_eq!(world.take_and_ack(&mut pat).message_id, question);
    world.send(world.says("pat", &question, 2, "yes")).unwrap();
    assert_refused(world.send(world.says("pat", &question, 2, "no")), ErrorCode::InputTaken);
}

/// A world in which "a" has lent task "t" to "b" for an hour.
fn lent_for_an_hour() -> World {
    let mut world = World::with(&["a", "b", "c", "pat"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let request = v1::HandoffRequest {
        task_type: "support".into(),
        mode: v1::HandoffMode::Delegate.into(),
        loan_timeout: span(HOUR),
        ..Default::default()
    };
    let request = world.request_with("a", "b", 1, &request);
    world.hand_over_with(&mut a, &mut b, 1, request);
    world
}

fn owner(world: &World) -> (String, u64) {
    let task = world.task("t").task;
    (task.owner.to_string(), task.epoch)
}

#[test]
fn the_clock_of_a_loan_stands_still_until_the_answer() {
    let mut world = lent_for_an_hour();
    world.pass(HOUR / 2);
    let question = world.send(world.waits("b", 2, "pat", Some(2 * DAY))).unwrap().message_id;
    world.pass(DAY);
    world.restart();
    world.settle();
    assert_eq!(owner(&world), ("b".into(), 2), "the loan of an hour is not recalled while a person thinks");
    world.send(world.says("pat", &question, 2, "yes")).unwrap();
    world.pass(HOUR / 2 - Duration::from_secs(1));
    assert_eq!(owner(&world), ("b".into(), 2), "the other half of the hour begins with the answer");
    world.pass(Duration::from_secs(2));
    assert_eq!(owner(&world), ("a".into(), 3));
    world.audit("t");
}

#[test]
fn the_clock_of_a_loan_goes_on_after_the_deadline_of_the_question_and_after_its_withdrawal() {
    let mut world = lent_for_an_hour();
    world.send(world.waits("b", 2, "pat", Some(5 * HOUR))).unwrap();
    world.pass(3 * HOUR);
    world.send(world.status("b", "", 2, TaskStatus::InProgress)).unwrap();
    world.send(world.waits("b", 2, "pat", Some(5 * HOUR))).unwrap();
    world.pass(5 * HOUR + HOUR - Duration::from_secs(1));
    assert_eq!(owner(&world), ("b".into(), 2));
    world.pass(Duration::from_secs(2));
    assert_eq!(owner(&world), ("a".into(), 3));
    world.audit("t");
}

#[test]
fn a_question_without_a_deadline_stops_no_clock() {
    let mut world = lent_for_an_hour();
    world.send(world.waits("b", 2, "pat", None)).unwrap();
    world.pass(HOUR);
    assert_eq!(owner(&world), ("a".into(), 3));
    world.audit("t");
}

#[test]
fn a_loan_that_begins_while_a_question_is_open_has_its_own_time() {
    let mut world = lent_for_an_hour();
    world.send(world.waits("b", 2, "pat", Some(DAY))).unwrap();
    world.pass(HOUR / 2);
    let request = v1::HandoffRequest {
        task_type: "support".into(),
        mode: v1::HandoffMode::Delegate.into(),
        loan_timeout: span(HOUR / 4),
        ..Default::default()
    };
    let handoff = world.send(world.request_with("b", "c", 2, &request)).unwrap().handoff_id;
    world.send(world.accept("c", "b", &handoff, 2)).unwrap();
    world.send(world.context("b", "c", &handoff, 2)).unwrap();
    world.send(world.complete("c", "b", &handoff, 2)).unwrap();
    let dues: Vec<_> = world.task("t").task.loans.iter().map(|loan| loan.due.unwrap().since(world.now)).collect();
    assert_eq!(dues, [HOUR, HOUR / 4], "the outer loan has waited with the question, the inner one has just begun");
    world.audit("t");
}

/// The words of the last question of task "t" that was answered, and of its answer, as this caller sees them.
fn last_answer(world: &World, caller: &Caller) -> Option<(String, String)> {
    let shown = world.view(caller).shown_task(&TaskId::parse("t").unwrap()).unwrap();
    let (asked, said) = shown.answered?;
    Some((asked.prompt.unwrap().question, said.text))
}

#[test]
fn a_task_shows_its_last_answer_also_after_a_restart() {
    let mut world = World::with(&["a", "b", "pat"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    let question = world.send(world.waits("b", 2, "pat", None)).unwrap().message_id;
    assert_eq!(last_answer(&world, &operator()), None);
    // The asking process is gone, and the next one acks what it does not use.
    world.disconnect(b);
    world.send(world.says("pat", &question, 2, "yes, pay it")).unwrap();
    let mut next = world.connect("b");
    world.take_and_ack(&mut next);
    world.restart();
    let expected = Some(("may I pay 900?".to_owned(), "yes, pay it".to_owned()));
    let agent = |name: &str| Caller::Agent(AgentId::parse(name).unwrap());
    assert_eq!(last_answer(&world, &agent("b")), expected);
    assert_eq!(last_answer(&world, &operator()), expected);
    // A later question, and the end of the task, leave it.
    let second = world.send(world.waits("b", 2, "pat", None)).unwrap().message_id;
    assert_eq!(last_answer(&world, &agent("b")), expected);
    // An agent that is asked sees its question alone.
    let shown = world.view(&agent("pat")).shown_task(&TaskId::parse("t").unwrap()).unwrap();
    assert_eq!((shown.is_asked_only, shown.answered), (true, None));
    world.send(world.says("pat", &second, 2, "no")).unwrap();
    assert_eq!(last_answer(&world, &agent("b")).unwrap().1, "no");
    world.send(world.status("b", "", 2, TaskStatus::Completed)).unwrap();
    assert_eq!(last_answer(&world, &agent("b")).unwrap().1, "no");
    world.audit("t");
}

#[test]
fn the_last_answer_outlives_many_questions_without_one() {
    let mut world = World::with(&["a", "b", "pat"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    let question = world.send(world.waits("b", 2, "pat", None)).unwrap().message_id;
    world.send(world.says("pat", &question, 2, "yes")).unwrap();
    for _ in 0..20 {
        world.send(world.waits("b", 2, "pat", None)).unwrap();
    }
    assert_eq!(last_answer(&world, &operator()).unwrap().1, "yes");
    assert_eq!(world.task("t").task.prompts.len(), 8);
    world.audit("t");
}

#[test]
fn a_look_into_a_mailbox_counts_no_attempt() {
    let mut world = World::with(&["a", "pat"]);
    world.send(world.info("a", "pat", "first")).unwrap();
    world.send(world.info("a", "pat", "second")).unwrap();
    let pat = AgentId::parse("pat").unwrap();
    let caller = Caller::Agent(pat.clone());
    for _ in 0..20 {
        let page = world.view(&caller).mail(&pat, Priority::Medium, 0, 1, world.now).unwrap();
        let (letter, envelope) = &page.letters[0];
        assert_eq!((page.letters.len(), letter.handouts), (1, 0));
        assert!(String::from_utf8_lossy(envelope).contains("first"));
        let next = world.view(&caller).mail(&pat, Priority::Medium, page.next.unwrap(), 9, world.now).unwrap();
        assert_eq!((next.letters.len(), next.next), (1, None));
        assert_eq!(world.view(&caller).mail(&pat, Priority::High, 0, 9, world.now).unwrap().letters.len(), 0);
        world.pass(Duration::from_secs(60));
    }
    let mut session = world.connect("pat");
    let deliveries = session.deliveries();
    assert_eq!(deliveries.iter().map(|(delivery, _)| delivery.attempt).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(world.dead_letters().len(), 0);
}
