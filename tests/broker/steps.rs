//! The engine works in bounded steps: what is due at one instant is spread over commits, and commands go in between.

use std::time::Duration;

use baton_broker_core::{
    Reply, Settings,
    domain::negotiation::{State, ThreadState},
    engine::{Command, ConsumerKind},
    ids::MessageId,
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
