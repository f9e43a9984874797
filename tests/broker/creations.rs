//! Tasks that begin without a handoff.

use std::{ops::Bound::Unbounded, time::Duration};

use baton_broker_core::{
    access::Caller,
    codes::ErrorCode,
    domain::handoff::TaskStatus,
    ids::AgentId,
    proto::v1::{self, MessageType},
    queries::{HandoffFilter, TaskFilter},
    store::{Order, Store as _, Table},
};

use crate::world::{World, assert_refused, operator};

fn a_task(summary: &str, parent: &str) -> v1::TaskCreate {
    v1::TaskCreate {
        task_type: "support".into(),
        summary: summary.into(),
        parent_task_id: parent.into(),
        conversation_id: "chat".into(),
        ..Default::default()
    }
}

impl World {
    fn creation(&self, from: &str, task: &str, payload: &v1::TaskCreate) -> v1::Envelope {
        let envelope = self.envelope(from, "", MessageType::TaskCreate, payload);
        v1::Envelope { task_id: task.into(), epoch: 1, ..envelope }
    }

    fn tasks_seen_by(&self, caller: &Caller, by_update: bool) -> Vec<String> {
        let filter = TaskFilter { by_update, ..TaskFilter::default() };
        let page = self.view(caller).tasks(&filter, 100, "").unwrap();
        page.entries.iter().map(|record| record.task.id.to_string()).collect()
    }
}

#[test]
fn a_task_begins_without_a_handoff_and_is_listed_where_others_are() {
    let mut world = World::with(&["a", "b"]);
    let (a, b) = (Caller::Agent(AgentId::parse("a").unwrap()), Caller::Agent(AgentId::parse("b").unwrap()));
    world.send(world.creation("a", "t", &a_task("it crashes", ""))).unwrap();
    world.send(world.creation("a", "t.1", &a_task("", "t"))).unwrap();
    let of_a = ["t.1".to_owned(), "t".to_owned()];
    for _ in 0..2 {
        for by_update in [false, true] {
            assert_eq!(world.tasks_seen_by(&operator(), by_update), of_a);
            assert_eq!(world.tasks_seen_by(&a, by_update), of_a);
            assert_eq!(world.tasks_seen_by(&b, by_update), Vec::<String>::new());
        }
        let handoffs = world.view(&a).handoffs(&HandoffFilter::default(), 9, "").unwrap();
        assert_eq!(handoffs.entries, [], "a creation is no handoff");
        let shown = world.view(&a).shown_task(&"t".parse().unwrap()).unwrap();
        assert_eq!(shown.creation.unwrap().summary, "it crashes");
        assert_eq!((shown.parts.len(), shown.record.task.epoch), (1, 1));
        assert_eq!(shown.record.task.status, TaskStatus::Created);
        world.restart();
    }
    // It goes on as any other task: a context, a handoff, and lists that show it once.
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.send(world.accept("b", "a", &handoff, 1)).unwrap();
    world.send(world.context("a", "b", &handoff, 1)).unwrap();
    world.send(world.complete("b", "a", &handoff, 1)).unwrap();
    assert_eq!(world.tasks_seen_by(&a, false), of_a);
    assert_eq!(world.tasks_seen_by(&operator(), false), of_a);
    assert_eq!(world.tasks_seen_by(&b, false), ["t".to_owned()]);
    world.audit("t");
    world.audit("t.1");
}

#[test]
fn an_id_in_use_creates_no_task() {
    let mut world = World::with(&["a", "b", "c"]);
    let mut first = world.creation("a", "t", &a_task("", ""));
    world.sign(&mut first);
    let receipt = world.send_signed(&first).unwrap();
    assert_refused(world.send(world.creation("a", "t", &a_task("", ""))), ErrorCode::TaskExists);
    assert_refused(world.send(world.creation("b", "t", &a_task("", ""))), ErrorCode::NotOwner);
    assert_refused(world.send(world.creation("b", "u", &a_task("", "t"))), ErrorCode::NotOwner);
    assert_refused(world.send(world.creation("a", "baton.x", &a_task("", ""))), ErrorCode::FieldInvalid);
    let ahead = v1::Envelope { epoch: 2, ..world.creation("a", "v", &a_task("", "")) };
    assert_refused(world.send(ahead), ErrorCode::EpochAhead);
    let to_b = v1::Envelope { receiver_id: "b".into(), ..world.creation("a", "v", &a_task("", "")) };
    assert_refused(world.send(to_b), ErrorCode::FieldInvalid);
    world.restart();
    assert_eq!(world.send_signed(&first).unwrap(), receipt, "the same message gets the first receipt");
    // A task that a request has created is no new one either.
    let request = world.request("c", "b", 1);
    world.send(v1::Envelope { task_id: "w".into(), ..request }).unwrap();
    assert_refused(world.send(world.creation("c", "w", &a_task("", ""))), ErrorCode::TaskExists);
    assert_refused(world.send(world.creation("b", "w", &a_task("", ""))), ErrorCode::TaskExists);
}

#[test]
fn a_created_task_is_removed_with_its_places_in_lists() {
    let mut world = World::with(&["a", "b"]);
    world.send(world.creation("a", "t", &a_task("it crashes", ""))).unwrap();
    let done = v1::TaskStatusUpdate { status: v1::TaskStatus::Completed.into(), ..Default::default() };
    let done = world.envelope("a", "", MessageType::TaskStatusUpdate, &done);
    world.send(v1::Envelope { task_id: "t".into(), epoch: 1, ..done }).unwrap();
    assert_eq!(world.tasks_seen_by(&operator(), false), ["t".to_owned()]);
    world.pass(Duration::from_secs(31 * 24 * 60 * 60));
    let left = world.disk.scan(Table::Listings, (Unbounded, Unbounded), Order::Ascending, 9).unwrap();
    assert_eq!(left.len(), 0, "{left:?}");
    assert_eq!(world.tasks_seen_by(&operator(), false), Vec::<String>::new());
    assert_refused(world.send(world.creation("a", "t", &a_task("", ""))), ErrorCode::TaskExists);
    assert_refused(world.send(world.creation("b", "t", &a_task("", ""))), ErrorCode::NotOwner);
}
