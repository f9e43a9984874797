//! A task that no agent works on ends after a long time.

use std::time::Duration;

use baton_broker_core::{Retention, Settings, domain::handoff::TaskStatus, proto::v1};
use prost::Message as _;

use crate::world::World;

#[test]
fn an_idle_task_is_cancelled_and_its_owner_is_told() {
    const DAYS: Duration = Duration::from_secs(24 * 3600);
    let mut world = World::with(&["a", "b"]);
    // One task without a handoff, one that its owner works on, and one with an owner that stays connected.
    let idle = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.send(world.cancel("a", "b", &idle, 1)).unwrap();
    let of = |task: &str, envelope: v1::Envelope| v1::Envelope { task_id: task.into(), ..envelope };
    for (task, owner, other) in [("busy", "a", "b"), ("kept", "b", "a")] {
        let request = of(task, world.request(owner, other, 1));
        let handoff = world.send(request).unwrap().handoff_id;
        let cancel = of(task, world.cancel(owner, other, &handoff, 1));
        world.send(cancel).unwrap();
    }
    world.send(of("busy", world.status("a", "", 1, v1::TaskStatus::InProgress))).unwrap();
    let mut b = world.connect("b");
    drop(b.deliveries());
    world.pass(29 * DAYS);
    assert_eq!(world.task("t").task.status, TaskStatus::Created);
    world.pass(2 * DAYS);
    assert_eq!(world.task("t").task.status, TaskStatus::Canceled);
    assert_eq!(world.task("busy").task.status, TaskStatus::InProgress);
    assert_eq!(world.task("kept").task.status, TaskStatus::Created, "its owner has a session");
    world.audit("t");
    let mut a = world.connect("a");
    let told = a.deliveries().into_iter().map(|(_, envelope)| envelope).find(|envelope| envelope.task_id == "t");
    let told = v1::ErrorNotification::decode(told.expect("the owner is told").payload.unwrap().value).unwrap();
    assert_eq!((told.error_code(), told.next_step()), (v1::ErrorCode::TaskCanceled, v1::NextStep::DropTask));
}

#[test]
fn idle_tasks_stay_where_the_operator_keeps_them() {
    let retention = Retention { idle_tasks: None, ..Default::default() };
    let mut world = World::with_settings(&["a", "b"], Settings { retention, ..Settings::default() });
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.send(world.cancel("a", "b", &handoff, 1)).unwrap();
    world.pass(Duration::from_secs(90 * 24 * 3600));
    assert_eq!(world.task("t").task.status, TaskStatus::Created);
}
