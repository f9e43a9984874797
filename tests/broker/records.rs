//! The records that a handoff writes.

use std::{collections::BTreeMap, time::Duration};

use baton_broker_core::{
    Reply,
    engine::Command,
    engine::Fate,
    proto::v1::{Envelope, Receipt},
};

use crate::world::{Session, World, Written, lasting, operator};

impl World {
    /// Sends an envelope and acks a delivery in one commit, as an agent that answers a message does.
    fn answer(&mut self, envelope: Envelope, session: &mut Session) -> Receipt {
        let (delivery, _) = session.delivery();
        let message = self.prepared(envelope).unwrap();
        let (reply, mut receipt) = Reply::once();
        self.engine.handle(Command::Submit { message, is_from_sender: true, reply }, self.now);
        let (agent, delivery_id) = (session.agent.clone(), delivery.delivery_id);
        let (reply, mut acknowledged) = Reply::once();
        self.engine.handle(Command::Acknowledge { agent, delivery_id, fate: Fate::Acked, reply }, self.now);
        self.settle();
        acknowledged.try_recv().unwrap().unwrap();
        receipt.try_recv().unwrap().unwrap()
    }
}

/// The most records that one handoff writes: request, accept, context and completion, each with its receipt and its ack.
/// The end of the offer is in the statistics of the agent that took it. The version of the context has one record for any
/// number of sections by value. The timer is also the entry in the list of open handoffs. The only other list with an
/// entry for both is that of changes: the end of the handoff is the task's latest update.
const RECORDS_MAX: usize = 25;
/// The most of these records that are left once the handoff has ended. The store writes a record into a table file only if
/// no later write has replaced or removed it by then.
const RECORDS_LEFT_MAX: usize = 11;
/// The most records that each of its five commits writes for the whole batch: the sequence, and the count of what an agent
/// stores, one for each agent that has sent a message in the batch.
const RECORDS_OF_A_COMMIT_MAX: usize = 2;

#[test]
fn a_handoff_writes_few_records() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    // The first handoff also sets the timers of both mailboxes.
    for number in 0..3 {
        let about = |envelope| Envelope { task_id: format!("t{number}"), ..envelope };
        world.disk.written.lock().unwrap().clear();
        let request = about(world.request("a", "b", 1));
        let handoff = world.send(request).unwrap().handoff_id;
        let accept = about(world.accept("b", "a", &handoff, 1));
        world.answer(accept, &mut b);
        let context = about(world.context("a", "b", &handoff, 1));
        world.answer(context, &mut a);
        let complete = about(world.complete("b", "a", &handoff, 1));
        world.answer(complete, &mut b);
        let (delivery, _) = a.delivery();
        world.ack(&a, &delivery);
        let commits = std::mem::take(&mut *world.disk.written.lock().unwrap());
        let is_of_all = |written: &Written| ["meta", "kept", "agent_usage"].contains(&written.key.table.name());
        let (of_commits, of_handoff): (Vec<_>, Vec<_>) = commits.iter().flatten().cloned().partition(is_of_all);
        let (of_commits, written) = (of_commits.len(), of_handoff.len());
        let mut counts: BTreeMap<(&str, bool), usize> = BTreeMap::new();
        for record in &of_handoff {
            *counts.entry((record.key.table.name(), record.is_removal)).or_default() += 1;
        }
        let list: String = counts
            .iter()
            .map(|((table, is_removal), count)| {
                format!("{count:>4} {table}{}\n", if *is_removal { ", removed" } else { "" })
            })
            .collect();
        let left = lasting(of_handoff).len();
        println!(
            "handoff {number}: {written} records, {left} of them left, {of_commits} of {} commits\n{list}",
            commits.len()
        );
        assert_eq!(commits.len(), 5);
        assert!(of_commits <= commits.len() * RECORDS_OF_A_COMMIT_MAX, "{of_commits} records of commits:\n{list}");
        assert!(number == 0 || written <= RECORDS_MAX, "{written} records:\n{list}");
        assert!(number == 0 || left <= RECORDS_LEFT_MAX, "{left} records left:\n{list}");
    }
}

/// The record of the next handoff takes the place of the former one in the record of the task.
#[test]
fn a_former_handoff_stays_as_it_was_and_learns_of_its_last_ack() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let former = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.accept("b", "a", &former, 1)).unwrap();
    world.take_and_ack(&mut a);
    world.send(world.context("a", "b", &former, 1)).unwrap();
    world.take_and_ack(&mut b);
    world.send(world.complete("b", "a", &former, 1)).unwrap();
    let (completion, _) = a.delivery();
    let as_it_was = world.handoff(&former);
    assert!(!as_it_was.let_go);
    let next = world.send(world.request("b", "a", 2)).unwrap().handoff_id;
    assert_eq!(world.handoff(&former), as_it_was);
    world.ack(&a, &completion);
    assert!(world.handoff(&former).let_go, "it has left the record of its task, and still learns of the ack");
    assert_eq!(world.handoff(&next).id.to_string(), next);
    world.audit("t");
    world.restart();
    assert!(world.handoff(&former).let_go);
    let mut a = world.connect("a");
    a.deliveries().iter().for_each(|(delivery, _)| world.ack(&a, delivery));
    world.send(world.accept("a", "b", &next, 2)).unwrap();
    let caller = operator();
    let listed = world.view(&caller).handoffs(&Default::default(), 10, "").unwrap().entries;
    let listed: Vec<_> = listed.iter().map(|handoff| handoff.id.to_string()).collect();
    assert_eq!(listed, [next, former]);
    world.audit("t");
}

/// The store has one timer for each open handoff: a time that no step brings forward.
#[test]
fn a_deadline_holds_over_a_restart_in_every_state() {
    let until = |world: &World, id: &str| world.handoff(id).next_deadline().unwrap().since(world.now);
    for steps in 1..4 {
        let mut world = World::with(&["a", "b"]);
        let (mut a, mut b) = (world.connect("a"), world.connect("b"));
        let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
        world.take_and_ack(&mut b);
        if steps > 1 {
            world.send(world.accept("b", "a", &id, 1)).unwrap();
            world.take_and_ack(&mut a);
        }
        if steps > 2 {
            world.send(world.context("a", "b", &id, 1)).unwrap();
        }
        let state = world.handoff(&id).state;
        world.pass(until(&world, &id) - Duration::from_millis(1));
        world.restart();
        world.settle();
        assert_eq!(world.handoff(&id).state, state);
        world.pass(Duration::from_millis(1));
        assert_ne!(world.handoff(&id).state, state, "the deadline holds to the millisecond");
    }
}
