//! The records that a handoff writes.

use std::collections::BTreeMap;

use baton::{
    broker::{Reply, engine::Command, engine::Fate},
    proto::v1::{Envelope, Receipt},
};

use crate::world::{Session, World, Written};

impl World {
    /// Sends an envelope and acks a delivery in one commit, as an agent that answers a message does.
    fn answer(&mut self, envelope: Envelope, session: &mut Session) -> Receipt {
        let (delivery, _) = session.delivery();
        let envelope = self.verified(envelope).unwrap();
        let (reply, mut receipt) = Reply::once();
        self.engine.handle(Command::Submit { envelope, reply }, self.now);
        let (agent, delivery_id) = (session.agent.clone(), delivery.delivery_id);
        let (reply, mut acknowledged) = Reply::once();
        self.engine.handle(Command::Acknowledge { agent, delivery_id, fate: Fate::Acked, reply }, self.now);
        self.settle();
        acknowledged.try_recv().unwrap().unwrap();
        receipt.try_recv().unwrap().unwrap()
    }
}

/// The most records that one handoff writes: request, accept, context and completion, each with its receipt and its ack.
const RECORDS_MAX: usize = 22;
/// The most records that each of its five commits writes for the whole batch.
const RECORDS_OF_A_COMMIT_MAX: usize = 1;

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
        let of_all = |written: &&Written| written.table == "meta" || written.table == "kept";
        let mut counts: BTreeMap<(&str, bool), usize> = BTreeMap::new();
        for written in commits.iter().flatten() {
            *counts.entry((written.table, written.is_removal)).or_default() += 1;
        }
        let of_commits = commits.iter().flatten().filter(of_all).count();
        let of_handoff = commits.iter().map(Vec::len).sum::<usize>() - of_commits;
        let list: String = counts
            .iter()
            .map(|((table, is_removal), count)| {
                format!("{count:>4} {table}{}\n", if *is_removal { ", removed" } else { "" })
            })
            .collect();
        println!("handoff {number}: {of_handoff} records, {of_commits} of {} commits\n{list}", commits.len());
        assert_eq!(commits.len(), 5);
        assert!(of_commits <= commits.len() * RECORDS_OF_A_COMMIT_MAX, "{of_commits} records of commits:\n{list}");
        assert!(number == 0 || of_handoff <= RECORDS_MAX, "{of_handoff} records:\n{list}");
    }
}
