//! Watchers of handoffs and tasks: their updates and their end. Also the order of outgoing events.

use std::{sync::atomic::Ordering, time::Duration};

use baton_broker_core::{
    Output, Refused, Reply, Update, Updates, WatcherId,
    codes::ErrorCode,
    domain::{EntityId, handoff::State},
    engine::Command,
    ids::{MessageId, TaskId},
};
use tokio::sync::mpsc::{self, error::TryRecvError};

use crate::world::World;

type Received = mpsc::Receiver<Result<Update, Refused>>;

fn handoff(id: &str) -> EntityId {
    EntityId::Handoff(MessageId::parse(id).unwrap())
}

fn task() -> EntityId {
    EntityId::Task(TaskId::parse("t").unwrap())
}

impl World {
    fn watch(&mut self, watcher: u64, entity: EntityId, updates: Updates) {
        self.engine.handle(Command::Watch { watcher: WatcherId(watcher), entity, updates }, self.now);
        self.settle();
    }

    /// Watches a handoff, with room for `waiting_max` updates.
    fn watch_handoff(&mut self, watcher: u64, id: &str, waiting_max: usize) -> Received {
        let (updates, received) = Updates::each(waiting_max);
        self.watch(watcher, handoff(id), updates);
        received
    }
}

/// The states that have arrived, and whether the stream is still open.
fn states(received: &mut Received) -> (Vec<State>, bool) {
    let mut states = Vec::new();
    loop {
        match received.try_recv() {
            Ok(Ok(Update(record))) => states.push(record.as_handoff().expect("a handoff is watched").handoff.state),
            Ok(Err(error)) => panic!("expected a handoff, not {error:?}"),
            Err(end) => return (states, end == TryRecvError::Empty),
        }
    }
}

fn code(received: &mut Received) -> ErrorCode {
    received.try_recv().unwrap().unwrap_err().code()
}

#[test]
fn a_watcher_gets_the_handoff_as_it_is_and_each_step_until_the_last() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let mut first = world.watch_handoff(1, &id, 16);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    let mut second = world.watch_handoff(2, &id, 16);
    world.send(world.context("a", "b", &id, 1)).unwrap();
    assert_eq!(states(&mut first), (vec![State::Requested, State::Accepted, State::ContextSent], true));
    world.send(world.complete("b", "a", &id, 1)).unwrap();
    assert_eq!(states(&mut first), (vec![State::Completed], false));
    assert_eq!(states(&mut second), (vec![State::Accepted, State::ContextSent, State::Completed], false));
    let mut late = world.watch_handoff(3, &id, 16);
    assert_eq!(states(&mut late), (vec![State::Completed], false), "there is nothing to wait for");
    drop((a.deliveries(), b.deliveries()));
}

#[test]
fn a_watcher_that_is_too_slow_ends_before_the_last_step_and_misses_none_in_between() {
    let mut world = World::with(&["a", "b"]);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let mut received = world.watch_handoff(1, &id, 1);
    world.send(world.accept("b", "a", &id, 1)).unwrap(); // the watcher has no room for this update
    assert_eq!(states(&mut received), (vec![State::Requested], false));
    let mut other = world.watch_handoff(2, &id, 1);
    world.send(world.context("a", "b", &id, 1)).unwrap();
    assert_eq!(states(&mut other), (vec![State::Accepted], false));
}

#[test]
fn a_watcher_that_leaves_is_removed_at_once() {
    let mut world = World::with(&["a", "b"]);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let (mut stays, mut leaves) = (world.watch_handoff(1, &id, 4), world.watch_handoff(2, &id, 4));
    world.engine.handle(Command::Unwatch { watcher: WatcherId(2) }, world.now);
    world.settle();
    assert_eq!(states(&mut leaves), (vec![State::Requested], false), "the engine has dropped its way out");
    assert_eq!(states(&mut stays), (vec![State::Requested], true));
    // Watch and unwatch in the same commit batch.
    let (updates, mut hasty) = Updates::each(4);
    world.engine.handle(Command::Watch { watcher: WatcherId(3), entity: handoff(&id), updates }, world.now);
    world.engine.handle(Command::Unwatch { watcher: WatcherId(3) }, world.now);
    world.settle();
    assert_eq!(states(&mut hasty), (vec![], false));
}

#[test]
fn a_watcher_of_a_task_gets_the_latest_length_of_its_log() {
    let mut world = World::with(&["a", "b"]);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let (updates, mut latest) = Updates::latest();
    world.watch(1, task(), updates);
    let mut length = || match &*latest.borrow_and_update() {
        Some(Ok(Update(record))) => record.as_task().expect("a task is watched").custody.length,
        other => panic!("expected a length, not {other:?}"),
    };
    assert_eq!(length(), 1);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    world.send(world.context("a", "b", &id, 1)).unwrap();
    assert_eq!(length(), world.task("t").custody.length);
    assert_eq!(length(), 3);
}

#[test]
fn what_is_not_there_cannot_be_watched() {
    let mut world = World::with(&["a", "b"]);
    let mut received = world.watch_handoff(1, &MessageId::from_bytes([7; 16]).to_string(), 4);
    assert_eq!(code(&mut received), ErrorCode::HandoffUnknown);
    let (updates, mut received) = Updates::each(4);
    world.watch(2, task(), updates);
    assert_eq!(code(&mut received), ErrorCode::TaskUnknown);
}

#[test]
fn watchers_are_told_why_they_end() {
    let mut world = World::with(&["a", "b"]);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    for (begin_again, expected) in [(true, ErrorCode::StoreUnavailable), (false, ErrorCode::ShuttingDown)] {
        let mut of_handoff = world.watch_handoff(1, &id, 4);
        let (updates, mut of_task) = Updates::latest();
        world.watch(2, task(), updates);
        assert_eq!(states(&mut of_handoff), (vec![State::Requested], true));
        if begin_again {
            world.disk.full.store(true, Ordering::Relaxed);
            world.send(world.accept("b", "a", &id, 1)).unwrap_err();
            world.disk.full.store(false, Ordering::Relaxed);
            world.recover();
        } else {
            world.engine.handle(Command::GoAway, world.now);
            world.settle();
        }
        assert_eq!(code(&mut of_handoff), expected);
        assert_eq!(states(&mut of_handoff), (vec![], false));
        let update = of_task.borrow_and_update().clone();
        assert_eq!(update.unwrap().unwrap_err().code(), expected);
        assert!(of_task.has_changed().is_err(), "closed");
    }
}

#[test]
fn watchers_stay_when_the_clock_is_set_back() {
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let mut received = world.watch_handoff(1, &id, 4);
    world.now = world.now.minus(Duration::from_secs(60));
    world.settle();
    assert!(b.was_sent_away());
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    assert_eq!(states(&mut received), (vec![State::Requested, State::Accepted], true));
}

#[test]
fn nothing_goes_out_before_the_commit_and_answers_go_before_mail() {
    let mut world = World::with(&["a", "b"]);
    let _b = world.connect("b");
    let request = world.request("a", "b", 1);
    let message = world.prepared(request).unwrap();
    let (reply, _received) = Reply::once();
    world.engine.handle(Command::Submit { message, is_from_sender: true, reply }, world.now);
    assert!(world.engine.poll_output().is_none(), "it is not stored yet");
    world.engine.finish(world.now);
    let outputs: Vec<Output> = std::iter::from_fn(|| world.engine.poll_output()).collect();
    assert!(matches!(outputs.as_slice(), [Output::Reply(_), Output::Event { .. }]), "{outputs:?}");
}
