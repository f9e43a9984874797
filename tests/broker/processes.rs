//! Several processes of one agent: each gets what belongs to what it has begun, and idle tasks are given to one of them.

use std::time::Duration;

use baton_broker_core::{
    RunningProcess,
    codes::ErrorCode,
    domain::mailbox::PROCESS_GRACE,
    engine::{Command, ConsumerKind, Fate},
    ids::{AgentId, InstanceId, TaskId},
    proto::v1::{self, MessageType},
};

use crate::world::{Refusal, Session, World, assert_refused};

const P: InstanceId = InstanceId::from_bytes([1; 16]);
const Q: InstanceId = InstanceId::from_bytes([2; 16]);

fn lent() -> v1::HandoffRequest {
    v1::HandoffRequest { task_type: "support".into(), mode: v1::HandoffMode::Delegate.into(), ..Default::default() }
}

impl World {
    pub(crate) fn connect_process(&mut self, agent: &str, instance: InstanceId) -> Session {
        let session = self.connect_as(agent, ConsumerKind::Session, 0);
        let consumer = session.consumer;
        self.engine.handle(Command::Hello { consumer, instance, tells_work: true, reply: None }, self.now);
        self.engine.handle(Command::Credit { consumer, outstanding_max: 100, reply: None }, self.now);
        self.settle();
        session
    }

    fn reports(&mut self, session: &Session, capacity: u32, active_tasks: u32) {
        let heartbeat = v1::Heartbeat { capacity, active_tasks, ..Default::default() };
        let (consumer, agent) = (session.consumer, session.agent.clone());
        self.engine.handle(Command::Heartbeat { consumer, agent, heartbeat, reply: None }, self.now);
    }

    pub(crate) fn send_from(&mut self, process: InstanceId, envelope: v1::Envelope) -> Result<v1::Receipt, Refusal> {
        let message = self.prepared(envelope)?.from_process(Some(process));
        self.ask(|reply| Command::Submit { message, is_from_sender: true, reply })
    }

    /// Lends a new task of `a` from this process, up to its accept. Returns the id of the handoff.
    fn lend_from(&mut self, process: InstanceId, task: &str, b: &mut Session) -> String {
        let request = v1::Envelope { task_id: task.into(), ..self.request_with("a", "b", 1, &lent()) };
        let handoff = self.send_from(process, request).unwrap().handoff_id;
        self.take_and_ack(b);
        let accept = v1::Envelope { task_id: task.into(), ..self.accept("b", "a", &handoff, 1) };
        self.send(accept).unwrap();
        handoff
    }

    /// Lends a task from this process, to its end.
    fn finish_loan(&mut self, own: &mut Session, process: InstanceId, task: &str, handoff: &str, b: &mut Session) {
        assert_eq!(self.take_and_ack(own).message_type(), MessageType::HandoffAccept);
        let context = v1::Envelope { task_id: task.into(), ..self.context("a", "b", handoff, 1) };
        self.send_from(process, context).unwrap();
        self.take_and_ack(b);
        let complete = v1::Envelope { task_id: task.into(), ..self.complete("b", "a", handoff, 1) };
        self.send(complete).unwrap();
        assert_eq!(self.take_and_ack(own).message_type(), MessageType::HandoffComplete);
        let done = v1::Envelope { task_id: task.into(), ..self.status("b", "", 2, v1::TaskStatus::Completed) };
        self.send(done).unwrap();
    }

    fn resume(&mut self, agent: &str, instance: InstanceId, tasks: &[&str]) -> Result<Vec<TaskId>, Refusal> {
        let agent = AgentId::parse(agent).unwrap();
        let tasks = tasks.iter().map(|task| TaskId::parse(task).unwrap()).collect();
        self.ask(|reply| Command::Resume { agent, instance, tasks, tasks_max: 10, reply })
    }
}

#[test]
fn each_process_gets_all_that_belongs_to_its_own_loans() {
    let mut world = World::with(&["a", "b"]);
    let (mut p, mut q) = (world.connect_process("a", P), world.connect_process("a", Q));
    let mut b = world.connect("b");
    for round in 0..4 {
        let (task, other) = (format!("p{round}"), format!("q{round}"));
        let first = world.lend_from(P, &task, &mut b);
        let second = world.lend_from(Q, &other, &mut b);
        world.finish_loan(&mut q, Q, &other, &second, &mut b);
        world.finish_loan(&mut p, P, &task, &first, &mut b);
        for (own, task) in [(&mut p, &task), (&mut q, &other)] {
            let result = world.take_and_ack(own);
            assert_eq!((result.message_type(), &result.task_id), (MessageType::TaskStatusUpdate, task));
        }
    }
    assert!(p.deliveries().is_empty() && q.deliveries().is_empty());
}

#[test]
fn what_belongs_to_a_process_that_is_gone_waits_and_then_goes_to_another() {
    let mut world = World::with(&["a", "b"]);
    let (p, mut q) = (world.connect_process("a", P), world.connect_process("a", Q));
    let mut b = world.connect("b");
    world.disconnect(p);
    world.lend_from(P, "t1", &mut b);
    assert!(q.deliveries().is_empty(), "the process has the time to come back");
    world.pass(PROCESS_GRACE + Duration::from_millis(1));
    assert_eq!(world.take_and_ack(&mut q).message_type(), MessageType::HandoffAccept);
}

#[test]
fn a_process_that_comes_back_in_time_gets_what_is_its_own() {
    let mut world = World::with(&["a", "b"]);
    let (p, mut q) = (world.connect_process("a", P), world.connect_process("a", Q));
    let mut b = world.connect("b");
    world.disconnect(p);
    world.lend_from(P, "t1", &mut b);
    world.pass(PROCESS_GRACE / 2);
    let mut p = world.connect_process("a", P);
    assert_eq!(world.take_and_ack(&mut p).message_type(), MessageType::HandoffAccept);
    assert!(q.deliveries().is_empty());
}

#[test]
fn a_restart_of_the_broker_loses_no_process() {
    let mut world = World::with(&["a", "b"]);
    let (_p, _q) = (world.connect_process("a", P), world.connect_process("a", Q));
    let request = v1::Envelope { task_id: "t1".into(), ..world.request_with("a", "b", 1, &lent()) };
    let handoff = world.send_from(P, request).unwrap().handoff_id;
    world.restart();
    let mut b = world.connect("b");
    world.take_and_ack(&mut b);
    let accept = v1::Envelope { task_id: "t1".into(), ..world.accept("b", "a", &handoff, 1) };
    world.send(accept).unwrap();
    let mut q = world.connect_process("a", Q);
    assert!(q.deliveries().is_empty());
    let mut p = world.connect_process("a", P);
    assert_eq!(world.take_and_ack(&mut p).message_type(), MessageType::HandoffAccept);
}

#[test]
fn new_work_goes_to_the_process_with_the_most_room() {
    let mut world = World::with(&["a", "b"]);
    let (mut p, mut q) = (world.connect_process("b", P), world.connect_process("b", Q));
    for (session, active_tasks) in [(&p, 3), (&q, 1)] {
        world.reports(session, 4, active_tasks);
    }
    for _ in 0..2 {
        world.send(world.info("a", "b", "work")).unwrap();
    }
    assert_eq!((p.deliveries().len(), q.deliveries().len()), (0, 2));
}

#[test]
fn the_capacity_of_an_agent_is_the_sum_of_its_processes() {
    let mut world = World::with(&["a", "b"]);
    let load = |world: &World| {
        let entry = world.engine.directory().get(&AgentId::parse("b").unwrap()).unwrap();
        let load = world.engine.directory().busy(&entry, world.now).load;
        (load.in_use, load.capacity)
    };
    let (p, q) = (world.connect_process("b", P), world.connect_process("b", Q));
    world.reports(&p, 4, 3);
    assert_eq!(load(&world), (3, 4));
    world.reports(&q, 2, 1);
    assert_eq!(load(&world), (4, 6));
    world.reports(&p, 4, 0);
    assert_eq!(load(&world), (1, 6), "a process replaces what it said before");
    let again = world.connect_process("b", P);
    world.reports(&again, 4, 2);
    assert_eq!(load(&world), (3, 6), "a process that is back counts once");
    world.disconnect(p);
    assert_eq!(load(&world), (3, 6));
    world.disconnect(again);
    assert_eq!(load(&world), (1, 2));
    world.disconnect(q);
    assert_eq!(load(&world), (1, 2), "what the last one has said stays");
}

#[test]
fn an_idle_task_is_given_to_one_process_alone() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    world.disconnect(b);
    let (_p, _q) = (world.connect_process("b", P), world.connect_process("b", Q));
    assert_eq!(world.resume("b", P, &["t"]).unwrap(), [TaskId::parse("t").unwrap()]);
    assert_eq!(world.resume("b", Q, &["t"]).unwrap(), []);
    assert_eq!(world.resume("b", P, &["t"]).unwrap(), [], "a process that has it already needs it no more");
}

#[test]
fn tasks_are_resumed_by_a_process_with_a_session_alone() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    assert_refused(world.resume("b", P, &["t"]), ErrorCode::FieldInvalid);
}

#[test]
fn a_subtask_is_of_the_process_that_accepts_it_and_not_of_the_one_that_submitted_the_plan() {
    let mut world = World::with(&["b:worker"]);
    let (mut p, mut q) = (world.connect_process("b", P), world.connect_process("b", Q));
    let subtask = v1::Subtask {
        id: "only".into(),
        description: "a part".into(),
        agent_type: "worker".into(),
        ..Default::default()
    };
    let plan = v1::Plan {
        plan_id: "q3".into(),
        description: "a report".into(),
        subtasks: vec![subtask],
        ..Default::default()
    };
    let submission = v1::PlanSubmission { plan: Some(plan), ..Default::default() };
    world.send_from(Q, world.envelope("b", "", MessageType::PlanSubmission, &submission)).unwrap();
    let offer = world.take_and_ack(&mut p);
    let accept = world.accept("b", "baton.coordinator", &offer.message_id, offer.epoch);
    world.send_from(P, v1::Envelope { task_id: offer.task_id, ..accept }).unwrap();
    assert_eq!(world.take_and_ack(&mut p).message_type(), MessageType::TaskContextTransfer);
    assert!(q.deliveries().is_empty());
}

#[test]
fn a_redriven_answer_still_belongs_to_its_process() {
    let mut world = World::with(&["a", "b"]);
    let (mut p, mut q) = (world.connect_process("a", P), world.connect_process("a", Q));
    let mut b = world.connect("b");
    world.lend_from(Q, "t1", &mut b);
    let (delivery, accept) = q.delivery();
    world.acknowledge(&q, &delivery, Fate::Poison { text: "bad".into() }).unwrap();
    let number = world.dead_letters()[0].number;
    world.redrive(number, None).unwrap();
    assert!(p.deliveries().is_empty());
    assert_eq!(world.take_and_ack(&mut q).message_id, accept.message_id);
}

#[test]
fn an_agent_has_its_connected_processes_and_what_each_works_on() {
    let mut world = World::with(&["a", "b"]);
    let processes = |world: &mut World| {
        let agent = AgentId::parse("b").unwrap();
        world.ask(|reply| Command::Processes { agent, reply }).unwrap()
    };
    assert_eq!(processes(&mut world), []);
    let first = world.now;
    let p = world.connect_process("b", P);
    world.pass(Duration::from_secs(60));
    let second = world.now;
    // A session that has not said who it is, and a call for mail, which is no process.
    let unnamed = world.connect("b");
    let _call = world.connect_as("b", ConsumerKind::Receive { deliveries_max: None }, 10);
    let heartbeat = v1::Heartbeat { working_on: vec!["t2".into(), "t1".into()], ..Default::default() };
    let (consumer, agent) = (p.consumer, p.agent.clone());
    world.engine.handle(Command::Heartbeat { consumer, agent, heartbeat, reply: None }, world.now);
    let tasks = ["t1", "t2"].map(|task| TaskId::parse(task).unwrap()).to_vec();
    let of_p = RunningProcess { instance: Some(P), since: first, works_on: Some(tasks) };
    let of_unnamed = RunningProcess { instance: None, since: second, works_on: None };
    assert_eq!(processes(&mut world), [of_p.clone(), of_unnamed]);
    world.disconnect(unnamed);
    assert_eq!(processes(&mut world), [of_p]);
    world.disconnect(p);
    assert_eq!(processes(&mut world), []);
}
