//! The end of a task that has parts: a cancelled task takes its open parts with it, down the tree.

use baton_broker_core::{
    Reply,
    codes::ErrorCode,
    domain::handoff::{Cause, State, TaskStatus},
    engine::Command,
    ids::AgentId,
    proto::v1::{self, MessageType},
};
use prost::Message as _;

use crate::world::{Session, World, assert_refused};

const DELEGATE: v1::HandoffMode = v1::HandoffMode::Delegate;
const TRANSFER: v1::HandoffMode = v1::HandoffMode::Transfer;

impl World {
    fn request_of(&self, (from, to): (&str, &str), task: &str, parent: &str, mode: v1::HandoffMode) -> v1::Envelope {
        let payload = v1::HandoffRequest {
            task_type: "support".into(),
            parent_task_id: parent.into(),
            mode: mode.into(),
            ..Default::default()
        };
        let envelope = self.envelope(from, to, MessageType::HandoffRequest, &payload);
        v1::Envelope { task_id: task.into(), epoch: 1, ..envelope }
    }

    /// Hands a new task over. Returns the id of the handoff.
    fn give(&mut self, ends: (&str, &str), task: &str, parent: &str, mode: v1::HandoffMode) -> String {
        let (from, to) = ends;
        let of = |envelope: v1::Envelope| v1::Envelope { task_id: task.into(), ..envelope };
        let handoff = self.send(self.request_of(ends, task, parent, mode)).unwrap().handoff_id;
        self.send(of(self.accept(to, from, &handoff, 1))).unwrap();
        self.send(of(self.context(from, to, &handoff, 1))).unwrap();
        self.send(of(self.complete(to, from, &handoff, 1))).unwrap();
        handoff
    }

    /// A new task of an agent, without an open handoff.
    fn own(&mut self, agent: &str, other: &str, task: &str, parent: &str) {
        let handoff = self.send(self.request_of((agent, other), task, parent, TRANSFER)).unwrap().handoff_id;
        let cancel = self.cancel(agent, other, &handoff, 1);
        self.send(v1::Envelope { task_id: task.into(), ..cancel }).unwrap();
    }

    fn end(&self, agent: &str, task: &str, status: v1::TaskStatus, keep_parts: bool) -> v1::Envelope {
        let payload = v1::TaskStatusUpdate { status: status.into(), keep_parts, ..Default::default() };
        let envelope = self.envelope(agent, "", MessageType::TaskStatusUpdate, &payload);
        v1::Envelope { task_id: task.into(), epoch: 1, ..envelope }
    }

    fn status_of(&self, task: &str) -> TaskStatus {
        self.task(task).task.status
    }
}

/// Takes all deliveries. Returns the code, the advice, the task and the handoff of each notification among them.
fn told(world: &mut World, session: &mut Session) -> Vec<(v1::ErrorCode, v1::NextStep, String, String)> {
    let mut told = Vec::new();
    loop {
        let deliveries = session.deliveries();
        if deliveries.is_empty() {
            return told;
        }
        for (delivery, envelope) in deliveries {
            world.ack(session, &delivery);
            if envelope.message_type() == MessageType::ErrorNotification {
                let notice = v1::ErrorNotification::decode(envelope.payload.unwrap().value).unwrap();
                told.push((notice.error_code(), notice.next_step(), envelope.task_id, envelope.correlation_id));
            }
        }
    }
}

fn drop_of(task: &str, handoff: &str) -> (v1::ErrorCode, v1::NextStep, String, String) {
    (v1::ErrorCode::TaskCanceled, v1::NextStep::DropTask, task.to_owned(), handoff.to_owned())
}

#[test]
fn a_cancelled_task_takes_its_open_parts_with_it() {
    let mut world = World::with(&["a", "b", "c", "d"]);
    world.own("a", "b", "whole", "");
    let lent = world.give(("a", "b"), "lent", "whole", DELEGATE);
    let given = world.give(("a", "c"), "given", "whole", TRANSFER);
    let open = world.send(world.request_of(("a", "d"), "open", "whole", TRANSFER)).unwrap().handoff_id;
    world.own("a", "b", "idle", "whole");
    world.own("a", "b", "done", "whole");
    world.send(world.end("a", "done", v1::TaskStatus::Completed, false)).unwrap();
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let (mut c, mut d) = (world.connect("c"), world.connect("d"));
    drop((told(&mut world, &mut a), told(&mut world, &mut b), told(&mut world, &mut c), told(&mut world, &mut d)));

    world.send(world.end("a", "whole", v1::TaskStatus::Canceled, false)).unwrap();
    for part in ["lent", "given", "open", "idle"] {
        assert_eq!(world.status_of(part), TaskStatus::Canceled, "{part}");
        assert!(world.task(part).task.details.contains("cancelled with task whole"));
        world.audit(part);
    }
    assert_eq!(world.status_of("done"), TaskStatus::Completed, "a final status never changes");
    assert_eq!(told(&mut world, &mut b), [drop_of("lent", &lent)]);
    assert_eq!(told(&mut world, &mut c), [drop_of("given", &given)]);
    assert_eq!(told(&mut world, &mut d), [drop_of("open", &open)]);
    // No order holds between the notices of several tasks.
    let mut notices = told(&mut world, &mut a);
    notices.sort_by(|one, other| one.2.cmp(&other.2));
    assert_eq!(notices, [drop_of("idle", ""), drop_of("lent", &lent), drop_of("open", &open)]);

    let part = world.task("lent").task;
    assert_eq!((part.owner.as_str(), part.epoch, part.loans.len()), ("a", 3, 0), "the loan has ended");
    let part = world.task("given").task;
    assert_eq!((part.owner.as_str(), part.epoch), ("c", 2), "a task that was given away has no loan to end");
    let handoff = world.handoff(&open);
    assert_eq!((handoff.state, handoff.steps.last().unwrap().cause), (State::Cancelled, Cause::TaskCanceled));
    assert_eq!(handoff.failure.as_ref().unwrap().code, ErrorCode::TaskCanceled);
    let late = v1::Envelope { epoch: 2, ..world.end("b", "lent", v1::TaskStatus::Completed, false) };
    assert_refused(world.send(late), ErrorCode::StaleEpoch);
    world.audit("whole");
}

#[test]
fn the_parts_of_parts_end_too() {
    let mut world = World::with(&["a", "b", "c"]);
    world.own("a", "b", "whole", "");
    world.give(("a", "b"), "part", "whole", DELEGATE);
    world.give(("b", "c"), "part.1", "part", DELEGATE);
    world.own("c", "a", "leaf", "part.1");
    let (mut b, mut c) = (world.connect("b"), world.connect("c"));
    drop((told(&mut world, &mut b), told(&mut world, &mut c)));
    world.send(world.end("a", "whole", v1::TaskStatus::Canceled, false)).unwrap();
    for part in ["part", "part.1", "leaf"] {
        assert_eq!(world.status_of(part), TaskStatus::Canceled, "{part}");
        world.audit(part);
    }
    assert_eq!(told(&mut world, &mut b).len(), 2, "as the owner of one task, and the delegator of the other");
    assert_eq!(told(&mut world, &mut c).len(), 2);
}

#[test]
fn parts_stay_if_the_owner_says_so_and_after_any_other_end() {
    for (status, keep_parts) in
        [(v1::TaskStatus::Canceled, true), (v1::TaskStatus::Completed, false), (v1::TaskStatus::Failed, false)]
    {
        let mut world = World::with(&["a", "b"]);
        world.own("a", "b", "whole", "");
        world.give(("a", "b"), "lent", "whole", DELEGATE);
        let mut b = world.connect("b");
        drop(told(&mut world, &mut b));
        world.send(world.end("a", "whole", status, keep_parts)).unwrap();
        assert_eq!(world.status_of("lent"), TaskStatus::Created, "{status:?}");
        assert_eq!(told(&mut world, &mut b), []);
    }
}

#[test]
fn only_a_cancelled_task_may_keep_its_parts() {
    let mut world = World::with(&["a", "b"]);
    world.own("a", "b", "whole", "");
    for status in [v1::TaskStatus::InProgress, v1::TaskStatus::Completed, v1::TaskStatus::Failed] {
        let refusal = assert_refused(world.send(world.end("a", "whole", status, true)), ErrorCode::FieldInvalid);
        assert_eq!(refusal.violations()[0].path, "envelope.payload.keep_parts");
    }
}

#[test]
fn a_delegate_that_gives_up_ends_no_parts() {
    let mut world = World::with(&["a", "b", "c"]);
    world.give(("a", "b"), "whole", "", DELEGATE);
    let part = v1::Envelope { epoch: 1, ..world.request_of(("b", "c"), "part", "whole", TRANSFER) };
    world.send(part).unwrap();
    let gives_up = v1::Envelope { epoch: 2, ..world.end("b", "whole", v1::TaskStatus::Canceled, false) };
    world.send(gives_up).unwrap();
    assert_eq!(world.status_of("whole"), TaskStatus::InProgress, "the loan has ended, and not the task");
    assert_eq!(world.status_of("part"), TaskStatus::Created);
}

#[test]
fn a_kill_between_the_steps_leaves_no_part_open() {
    const PARTS: usize = 150;
    let mut world = World::with(&["a", "b"]);
    world.own("a", "b", "whole", "");
    for part in 0..PARTS {
        world.own("a", "b", &format!("part-{part}"), "whole");
    }
    world.own("a", "b", "leaf", "part-149");
    let message = world.prepared(world.end("a", "whole", v1::TaskStatus::Canceled, false)).unwrap();
    let (reply, _receiver) = Reply::once();
    world.engine.handle(Command::Submit { message, is_from_sender: true, reply }, world.now);
    let mut kills = 0;
    loop {
        world.finish();
        let open = (0..PARTS).filter(|part| world.status_of(&format!("part-{part}")) == TaskStatus::Created);
        if open.count() == 0 && world.status_of("leaf") == TaskStatus::Canceled {
            break;
        }
        kills += 1;
        assert!(kills < 200, "the cancellation goes on after each start");
        world.restart();
    }
    assert!(kills > 2, "the work is bounded: it took {kills} commits");
    world.settle();
    for part in ["part-0", "part-149", "leaf"] {
        let cancelled = world.custody(part).into_iter().filter(|entry| {
            matches!(entry.entry.as_ref().unwrap().event, Some(v1::custody_entry::Event::Cancelled(_)))
        });
        assert_eq!(cancelled.count(), 1, "each part ends once");
        world.audit(part);
    }
    assert_eq!(world.task("whole").task.owner, AgentId::parse("a").unwrap());
}

/// Lends a new task, which is a part of the last one, from one agent to the other and back, until the loop guard refuses.
/// Returns the number of tasks, and the refusal.
fn mutual(world: &mut World, limits: Option<v1::LoopLimits>) -> (usize, crate::world::Refusal) {
    let (mut from, mut to, mut parent) = ("a", "b", String::new());
    for number in 1..=40 {
        let task = format!("level-{number}");
        let mut request = world.request_of((from, to), &task, &parent, DELEGATE);
        if number == 1 {
            let payload = v1::HandoffRequest {
                task_type: "support".into(),
                mode: DELEGATE.into(),
                loop_limits: limits,
                ..Default::default()
            };
            request = world.request_with(from, to, 1, &payload);
            request.task_id.clone_from(&task);
        }
        let handoff = match world.send(request) {
            Ok(receipt) => receipt.handoff_id,
            Err(refusal) => return (number - 1, refusal),
        };
        let of = |envelope: v1::Envelope| v1::Envelope { task_id: task.clone(), ..envelope };
        world.send(of(world.accept(to, from, &handoff, 1))).unwrap();
        world.send(of(world.context(from, to, &handoff, 1))).unwrap();
        world.send(of(world.complete(to, from, &handoff, 1))).unwrap();
        (from, to, parent) = (to, from, task);
    }
    panic!("the loop guard lets two agents go on");
}

#[test]
fn agents_that_lend_each_other_new_tasks_come_to_an_end() {
    let mut world = World::with(&["a", "b", "c"]);
    let (tasks, (code, refusal)) = mutual(&mut world, None);
    assert_eq!((tasks, code), (8, ErrorCode::LoopLimit), "four times along each pair");
    let metadata = refusal.metadata();
    assert_eq!(metadata[0], ("limit", "handoffs_per_pair_max".to_owned()));
    assert_eq!(metadata[2], ("chain", "a → b → a → b → a → b → a → b → a".to_owned()));
    // The task itself is not created, and another agent can still have it.
    let other = world.request_of(("a", "c"), "level-9", "level-8", DELEGATE);
    world.send(other).unwrap();
    for number in 1..=9 {
        world.audit(&format!("level-{number}"));
    }
}

#[test]
fn a_limit_of_the_first_task_holds_along_its_chain() {
    let limits = |max_handoffs, max_handoffs_per_pair| Some(v1::LoopLimits { max_handoffs, max_handoffs_per_pair });
    let (tasks, (_, refusal)) = mutual(&mut World::with(&["a", "b"]), limits(0, 1));
    assert_eq!((tasks, refusal.metadata()[0].1.as_str()), (2, "handoffs_per_pair_max"));
    let (tasks, (_, refusal)) = mutual(&mut World::with(&["a", "b"]), limits(3, 0));
    assert_eq!((tasks, refusal.metadata()[0].1.as_str()), (3, "handoffs_max"));
}

#[test]
fn a_known_part_is_not_handed_on_along_a_pair_that_its_chain_has_used_up() {
    let mut world = World::with(&["a", "b", "c"]);
    let (tasks, _) = mutual(&mut world, None);
    assert_eq!(tasks, 8);
    // "a" makes a part for "c", which rejects and suggests "b".
    let handoff = world.send(world.request_of(("a", "c"), "last", "level-8", TRANSFER)).unwrap().handoff_id;
    let reject = world.reject("c", "a", &handoff, &["b"]);
    world.send(v1::Envelope { task_id: "last".into(), ..reject }).unwrap();
    assert_eq!(world.handoff(&handoff).state, State::Rejected, "the suggested agent is not asked");
    let again = world.request_of(("a", "b"), "last", "", TRANSFER);
    assert_refused(world.send(again), ErrorCode::LoopLimit);
    world.send(world.request_of(("a", "c"), "last", "", TRANSFER)).unwrap();
    world.audit("last");
}
