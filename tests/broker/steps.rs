//! The engine works in bounded steps: what is due at one instant is spread over commits, and commands go in between.

use std::time::Duration;

use baton_broker_core::{
    Reply, Settings,
    access::Caller,
    domain::negotiation::{State, ThreadState},
    engine::{Command, ConsumerKind},
    ids::{AgentId, MessageId},
    proto::v1,
    store::Table,
    time::Timestamp,
};

use crate::world::{World, operator};

/// The most records that a commit without a command writes, with some room for what one step adds to a full budget.
const WRITES_MAX: usize = 1200;

fn agents(many: usize) -> Vec<String> {
    (0..many).map(|number| format!("a{number}")).collect()
}

fn world_of(names: &[String]) -> World {
    let agents: Vec<String> = names.iter().map(|name| format!("{name}:analyst")).collect();
    let all: Vec<&str> = agents.iter().map(String::as_str).chain(["alice", "zoe"]).collect();
    World::with_settings(&all, Settings::default())
}

impl World {
    /// Hands a message to the engine, and leaves the commit to the caller.
    fn handle_message(&mut self, envelope: v1::Envelope) {
        let message = self.prepared(envelope).unwrap();
        let (reply, _) = Reply::once();
        self.engine.handle(Command::Submit { message, is_from_sender: true, reply }, self.now);
    }

    fn ask_for_offers(&mut self, deadline: Timestamp) -> String {
        let request = v1::TaskRequest { offers_deadline: Some(deadline.into()), ..Default::default() };
        let envelope = self.envelope("alice", "all:analyst", v1::MessageType::TaskRequest, &request);
        let id = envelope.message_id.clone();
        self.send(envelope).unwrap();
        id
    }

    /// The number of writes of each commit since the last call.
    fn writes(&self) -> Vec<usize> {
        std::mem::take(&mut *self.disk.written.lock().unwrap()).iter().map(Vec::len).collect()
    }
}

#[test]
fn negotiations_that_close_at_one_instant_are_closed_over_many_commits() {
    let names = agents(300);
    let mut world = world_of(&names);
    let deadline = world.now.plus(Duration::from_secs(20));
    let open: Vec<String> = (0..20).map(|_| world.ask_for_offers(deadline)).collect();
    let mut zoe = world.connect("zoe");
    world.writes();
    world.now = deadline;
    // A command of another agent is committed with the first part of the closes, and not after all of them.
    let info = world.info("alice", "zoe", "hello");
    let message = world.prepared(info).unwrap();
    let (reply, mut receipt) = Reply::once();
    let submit = Command::Submit { message, is_from_sender: true, reply };
    world.engine.handle(submit, world.now);
    world.finish();
    assert!(receipt.try_recv().unwrap().is_ok());
    assert_eq!(zoe.deliveries().len(), 1);
    let left = world.rows(Table::Mailbox);
    assert!(left > 300 * 20 / 2, "{left} letters are left after the first commit");
    // The rest survives a restart.
    world.restart();
    world.settle();
    let writes = world.writes();
    assert!(writes.len() > 10 && writes.iter().all(|writes| *writes <= WRITES_MAX), "{writes:?}");
    for id in &open {
        let negotiation = world.view(&operator()).negotiation(MessageId::parse(id).unwrap()).unwrap();
        assert_eq!(negotiation.state, State::Failed);
        assert!(negotiation.threads.iter().all(|thread| thread.state == ThreadState::NotReached));
    }
    assert_eq!(world.rows(Table::SharedEnvelopes), 0);
}

#[test]
fn handoffs_that_are_due_at_one_instant_end_over_many_commits() {
    let mut world = World::with(&["alice", "bob"]);
    for number in 0..400 {
        let mut request = world.request("alice", "bob", 1);
        request.task_id = format!("t{number}");
        world.send(request).unwrap();
    }
    world.writes();
    world.now = world.now.plus(Duration::from_secs(400));
    world.settle();
    let writes = world.writes();
    assert!(writes.len() > 5 && writes.iter().all(|writes| *writes <= WRITES_MAX), "{writes:?}");
    assert!((0..400).all(|number| world.task(&format!("t{number}")).task.open_handoff.is_none()));
}

#[test]
fn a_session_with_much_mail_in_hand_ends_over_many_commits() {
    let mut world = World::with(&["alice", "bob"]);
    let mut bob = world.connect_as("bob", ConsumerKind::Session, 1000);
    for number in 0..500 {
        world.send(world.info("alice", "bob", &number.to_string())).unwrap();
    }
    assert_eq!(bob.deliveries().len(), 500);
    world.writes();
    world.disconnect(bob);
    let writes = world.writes();
    assert!(writes.len() >= 500 / 64 && writes.iter().all(|writes| *writes <= 70), "{writes:?}");
    let mut bob = world.connect_as("bob", ConsumerKind::Session, 1000);
    let again = bob.deliveries();
    assert_eq!(again.len(), 500);
    assert!(again.iter().all(|(delivery, _)| delivery.attempt == 2), "each attempt is on record");
}

#[test]
fn leases_that_end_at_one_instant_end_over_many_commits() {
    let mut world = World::with(&["alice", "bob"]);
    let mut bob = world.connect_as("bob", ConsumerKind::Session, 1000);
    for number in 0..300 {
        world.send(world.info("alice", "bob", &number.to_string())).unwrap();
    }
    assert_eq!(bob.deliveries().len(), 300);
    world.writes();
    world.pass(Duration::from_secs(31));
    let writes = world.writes();
    assert!(writes.iter().all(|writes| *writes <= 70), "{writes:?}");
    world.pass(Duration::from_secs(10));
    assert_eq!(bob.deliveries().len(), 300, "all are delivered again");
}

#[test]
fn a_request_to_many_agents_is_delivered_over_many_commits() {
    let names = agents(300);
    let mut world = world_of(&names);
    let mut zoe = world.connect("zoe");
    let mut last = world.connect("a299");
    world.writes();
    let request =
        v1::TaskRequest { offers_deadline: Some(world.now.plus(Duration::from_secs(20)).into()), ..Default::default() };
    let mut envelope = world.envelope("alice", "all:analyst", v1::MessageType::TaskRequest, &request);
    envelope.expires_at = Some(world.now.plus(Duration::from_secs(7)).into());
    let id = envelope.message_id.clone();
    world.handle_message(envelope);
    world.finish();
    let first = world.rows(Table::Mailbox);
    assert!(first > 0 && first < 100, "{first} letters are stored in the commit of the message");
    // Another agent's message goes before the rest, which survives a restart.
    let info = world.info("alice", "zoe", "hello");
    world.handle_message(info);
    world.finish();
    assert_eq!(zoe.deliveries().len(), 1);
    assert!(world.rows(Table::Mailbox) < 200);
    world.restart();
    world.settle();
    let writes = world.writes();
    assert!(writes.len() >= 4 && writes.iter().all(|writes| *writes <= 400), "{writes:?}");
    // The letter of the last agent is the signed request itself, and expires with it.
    drop(last.deliveries());
    let mut last = world.connect("a299");
    let (delivery, delivered) = last.deliveries().remove(0);
    assert_eq!((delivered.message_id, delivery.attempt), (id, 1));
    assert!(!delivered.signature.is_empty());
    assert_eq!(world.rows(Table::Mailbox), 301);
    world.disconnect(last);
    world.pass(Duration::from_secs(8));
    assert_eq!(world.rows(Table::SharedEnvelopes), 0, "each letter has expired with its message");
}

#[test]
fn a_request_that_is_cancelled_while_agents_are_asked_leaves_nothing() {
    let names = agents(300);
    let mut world = world_of(&names);
    let request = v1::TaskRequest::default();
    let envelope = world.envelope("alice", "all:analyst", v1::MessageType::TaskRequest, &request);
    let id = MessageId::parse(&envelope.message_id).unwrap();
    world.handle_message(envelope);
    world.finish();
    let (reply, mut cancelled) = Reply::once();
    let caller = Caller::Agent(AgentId::parse("alice").unwrap());
    world.engine.handle(Command::CancelNegotiation { negotiation: id, caller, reply }, world.now);
    world.finish();
    assert!(cancelled.try_recv().unwrap().is_ok());
    world.settle();
    let negotiation = world.view(&operator()).negotiation(id).unwrap();
    assert!(negotiation.threads.iter().all(|thread| thread.state == ThreadState::NotReached));
    assert_eq!((world.rows(Table::Mailbox), world.rows(Table::SharedEnvelopes)), (0, 0));
}

/// Stores mail to 300 agents, and restarts the broker after each of the first commits. Returns the mail's id.
fn mail_to_300(world: &mut World, restarts: usize) -> String {
    let envelope = world.info("alice", "all:analyst", "hello");
    let id = envelope.message_id.clone();
    world.handle_message(envelope);
    for _ in 0..restarts {
        world.finish();
        world.restart();
    }
    world.finish();
    id
}

#[test]
fn mail_to_many_agents_is_delivered_over_many_commits() {
    let names = agents(300);
    let mut world = world_of(&names);
    let mut zoe = world.connect("zoe");
    let mut last = world.connect("a299");
    world.writes();
    let id = mail_to_300(&mut world, 0);
    assert_eq!((world.rows(Table::Mailbox), world.rows(Table::Outbox)), (64, 4));
    // Another agent's message goes before the rest.
    let info = world.info("alice", "zoe", "hello");
    world.handle_message(info);
    world.finish();
    assert_eq!(zoe.deliveries().len(), 1);
    world.settle();
    let writes = world.writes();
    assert!(writes.len() >= 3 && writes.iter().all(|writes| *writes <= 400), "{writes:?}");
    assert_eq!((world.rows(Table::Mailbox), world.rows(Table::Outbox)), (301, 0));
    let (delivery, delivered) = last.deliveries().remove(0);
    assert_eq!((delivered.message_id, delivery.attempt), (id, 1));
    assert!(!delivered.signature.is_empty());
    world.disconnect(last);
    world.disconnect(zoe);
    world.pass(Duration::from_secs(49 * 3600));
    assert_eq!(world.rows(Table::SharedEnvelopes), 0, "each letter has expired");
}

#[test]
fn mail_to_many_agents_outlives_a_crash_after_each_commit() {
    let names = agents(300);
    for restarts in 0..6 {
        let mut world = world_of(&names);
        let id = mail_to_300(&mut world, restarts);
        world.restart();
        world.settle();
        assert_eq!((world.rows(Table::Mailbox), world.rows(Table::Outbox)), (300, 0), "{restarts} restarts");
        for name in [&names[0], &names[63], &names[64], &names[299]] {
            let mut agent = world.connect(name);
            let got: Vec<String> = agent.deliveries().into_iter().map(|(_, mail)| mail.message_id).collect();
            assert_eq!(got, [id.as_str()], "{name} after {restarts} restarts");
        }
    }
}

#[test]
fn an_agent_that_leaves_before_its_letter_is_stored_gets_none() {
    let names = agents(300);
    let mut world = world_of(&names);
    let envelope = world.info("alice", "all:analyst", "hello");
    world.handle_message(envelope);
    // In the commit of the mail, so before the rest of its letters is stored.
    let (reply, mut left) = Reply::once();
    let (agent, reason_text, caller) = (AgentId::parse("a299").unwrap(), String::new(), operator());
    world.engine.handle(Command::Deregister { agent, force: true, reason_text, caller, reply }, world.now);
    world.finish();
    assert!(left.try_recv().unwrap().is_ok());
    world.settle();
    assert_eq!((world.rows(Table::Mailbox), world.rows(Table::Outbox)), (299, 0));
    world.pass(Duration::from_secs(49 * 3600));
    assert_eq!(world.rows(Table::SharedEnvelopes), 0, "the shared envelope has not waited for that letter");
}
