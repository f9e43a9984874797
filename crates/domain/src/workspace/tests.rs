use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::*;
use crate::{
    Effect, Entity, EntityId, Input, ReadError, Reader, Signal, StepError,
    codes::{ErrorCode, Refusal as _},
    handoff::{Loan, LoopLimits, Task, TaskStatus},
    ids::{AgentId, MessageId, TaskId},
    time::Timestamp,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_parts(1_000_000 + seconds, 0).unwrap()
}

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

fn id() -> WorkspaceId {
    WorkspaceId::parse("task:t").unwrap()
}

/// The entities and entries that a step reads, and its effects applied to them.
struct World {
    entities: BTreeMap<EntityId, Entity>,
    entries: BTreeMap<u64, Entry>,
    limits: Limits,
}

impl Reader for World {
    fn entity(&mut self, id: &EntityId) -> Result<Option<Entity>, ReadError> {
        Ok(self.entities.get(id).cloned())
    }

    fn is_gone(&mut self, _agent: &AgentId) -> bool {
        false
    }

    fn entry(&mut self, _workspace: &WorkspaceId, sequence: u64) -> Result<Option<Entry>, ReadError> {
        Ok(self.entries.get(&sequence).cloned())
    }
}

impl World {
    /// A task that olga has lent to alice.
    fn new() -> Self {
        let mut world = Self { entities: BTreeMap::new(), entries: BTreeMap::new(), limits: Limits::default() };
        world.put_task(TaskStatus::InProgress);
        world
    }

    fn put_task(&mut self, status: TaskStatus) {
        let lent = Loan {
            delegator: agent("olga"),
            handoff: MessageId::from_bytes([1; 16]),
            due: None,
            due_max: None,
            silence_timeout: None,
            thread: None,
        };
        let task = Task {
            transfer: None,
            id: TaskId::parse("t").unwrap(),
            task_type: "support".into(),
            owner: agent("alice"),
            epoch: 2,
            status,
            progress: None,
            details: String::new(),
            result: None,
            prompts: Vec::new(),
            parent: None,
            conversation: None,
            created_by: None,
            plan: None,
            open_handoff: None,
            seizures: Vec::new(),
            hops: Vec::new(),
            loans: vec![lent],
            loop_limits: LoopLimits::default(),
            created_at: at(0),
            updated_at: at(0),
        };
        self.entities.insert(EntityId::Task(task.id.clone()), Entity::Task(Arc::new(task)));
    }

    fn step(&mut self, input: &Input, now: Timestamp) -> Result<bool, StepError> {
        let made = step(&id(), input, self, now)?;
        let has_changed = !made.is_empty();
        for entity in made.writes {
            self.entities.insert(entity.id(), entity);
        }
        for effect in made.effects {
            match effect {
                Effect::KeepEntry(entry) => assert!(self.entries.insert(entry.sequence, entry).is_none()),
                Effect::RemoveEntries { first_sequence, last_sequence, .. } => {
                    (first_sequence..=last_sequence).for_each(|sequence| drop(self.entries.remove(&sequence)));
                }
                other => panic!("a workspace has no effect {other:?}"),
            }
        }
        Ok(has_changed)
    }

    fn append(&mut self, topic: &str, size: u64, now: Timestamp) -> Result<u64, StepError> {
        self.append_after(topic, size, None, now)
    }

    fn append_after(
        &mut self,
        topic: &str,
        size: u64,
        expected_last: Option<u64>,
        now: Timestamp,
    ) -> Result<u64, StepError> {
        let append = Append { workspace: id(), topic: Topic::parse(topic).unwrap(), size, expected_last };
        assert!(self.step(&Input::Append { append, limits: self.limits, is_result: false }, now)?);
        Ok(self.workspace().last_sequence)
    }

    fn pass_time(&mut self, now: Timestamp) -> bool {
        self.step(&Input::Time, now).unwrap()
    }

    fn workspace(&self) -> Arc<Workspace> {
        match self.entities.get(&EntityId::Workspace(id())) {
            Some(Entity::Workspace(workspace)) => workspace.clone(),
            other => panic!("there is no workspace but {other:?}"),
        }
    }
}

fn rejected(outcome: Result<u64, StepError>) -> Rejection {
    match outcome {
        Err(StepError::Workspace(rejection)) => rejection,
        other => panic!("expected a rejection, not {other:?}"),
    }
}

#[test]
fn numbers_are_dense_over_all_topics() {
    let mut world = World::new();
    for (number, topic) in (1..).zip(["a", "b", "A ", "c", "b"]) {
        assert_eq!(world.append(topic, 10, at(number)).unwrap(), number.cast_unsigned());
    }
    let workspace = world.workspace();
    assert_eq!((workspace.bytes, workspace.entries(), workspace.topics.len()), (50, 5, 3));
    let a = &workspace.topics[&Topic::parse("a").unwrap()];
    assert_eq!((a.entries, a.first_sequence, a.last_sequence, a.updated_at), (2, 1, 3, at(3)));
}

#[test]
fn the_participants_are_the_owner_and_the_delegators() {
    let mut world = World::new();
    let owner = owner(&id(), &mut world).unwrap().unwrap();
    assert_eq!(owner, Owner { participants: vec![agent("alice"), agent("olga")], is_open: true });
}

#[test]
fn a_workspace_exists_and_closes_with_its_owner() {
    let mut world = World::new();
    world.append("a", 1, at(1)).unwrap();
    world.put_task(TaskStatus::Completed);
    assert_eq!(rejected(world.append("a", 1, at(2))), Rejection::Closed { workspace: id() });
    assert!(!world.pass_time(at(3)), "its entries stay until they expire");
    world.entities.remove(&EntityId::Task(TaskId::parse("t").unwrap()));
    assert_eq!(rejected(world.append("a", 1, at(4))), Rejection::Unknown { workspace: id() });
    for other in ["plan:t", "thread:t", "run:t"] {
        assert_eq!(super::owner(&WorkspaceId::parse(other).unwrap(), &mut world), Ok(None), "{other}");
    }
}

#[test]
fn an_append_after_another_one_is_told_the_right_number() {
    let mut world = World::new();
    assert_eq!(world.append_after("a", 1, Some(0), at(1)).unwrap(), 1);
    let rejection = rejected(world.append_after("a", 1, Some(0), at(2)));
    assert_eq!(rejection, Rejection::SequenceConflict { expected: 0, last: 1 });
    assert_eq!(rejection.code(), ErrorCode::SequenceConflict);
    assert_eq!(rejection.metadata(), [("last_sequence", "1".to_owned())]);
    assert_eq!(world.append_after("a", 1, Some(1), at(3)).unwrap(), 2);
    rejected(world.append_after("a", 1, Some(3), at(3)));
    rejected(world.append_after("a", 1, Some(u64::MAX), at(3)));
}

#[test]
fn each_quota_refuses_and_says_when_to_try_again() {
    let mut world = World::new();
    world.limits = Limits { bytes_max: 100, entries_max: 4, topics_max: 2, ..Limits::default() };
    world.append("a", 60, at(0)).unwrap();
    let retry_after = 2 * DAY - Duration::from_secs(10);
    let full = rejected(world.append("a", 41, at(10)));
    assert_eq!(full, Rejection::QuotaExceeded { what: "bytes", limit: 100, retry_after });
    assert_eq!(full.retry_after(), Some(retry_after));
    world.append("b", 40, at(10)).unwrap();
    let full = rejected(world.append("c", 0, at(10)));
    assert_eq!(full, Rejection::QuotaExceeded { what: "topics", limit: 2, retry_after });
    world.append("a", 0, at(10)).unwrap();
    world.append("b", 0, at(10)).unwrap();
    let full = rejected(world.append("b", 0, at(10)));
    assert_eq!(full, Rejection::QuotaExceeded { what: "entries", limit: 4, retry_after });
    assert_eq!(world.workspace().last_sequence, 4);
}

#[test]
fn zero_is_no_limit() {
    let mut world = World::new();
    world.limits = Limits { bytes_max: 0, entries_max: 0, topics_max: 0, ..Limits::default() };
    for number in 0..300 {
        world.append(&format!("topic-{number}"), 1 << 20, at(number)).unwrap();
    }
}

#[test]
fn entries_expire_one_by_one_and_leave_a_gap() {
    let mut world = World::new();
    for (number, topic) in [(1, "a"), (2, "b"), (3, "a")] {
        world.append(topic, 10, at(number)).unwrap();
    }
    assert_eq!(world.workspace().next_expiry, Some(at(1).plus(2 * DAY)));
    assert!(!world.pass_time(at(0).plus(2 * DAY)), "nothing is due");
    assert!(world.pass_time(at(2).plus(2 * DAY)));
    let workspace = world.workspace();
    assert_eq!((workspace.first_sequence, workspace.last_sequence, workspace.bytes), (3, 3, 10));
    assert_eq!(workspace.next_expiry, Some(at(3).plus(2 * DAY)));
    assert_eq!(workspace.topics.keys().map(Topic::as_str).collect::<Vec<_>>(), ["a"], "b has no entry any more");
    assert_eq!(workspace.topics[&Topic::parse("a").unwrap()].entries, 1);
    assert_eq!(
        [0, 1, 2, 3, 4].map(|after| workspace.gap_after(after)),
        [Some((1, 2)), Some((2, 2)), None, None, Some((4, 4))]
    );
    assert!(world.pass_time(at(9).plus(2 * DAY)));
    let workspace = world.workspace();
    assert_eq!((workspace.entries(), workspace.bytes, workspace.next_expiry), (0, 0, None));
    assert_eq!(world.append("a", 1, at(10).plus(2 * DAY)).unwrap(), 4, "no number is given twice");
}

#[test]
fn a_step_removes_a_bounded_number_of_entries() {
    let mut world = World::new();
    let many = EXPIRED_A_STEP * 2 + 1;
    for _ in 0..many {
        world.append("a", 1, at(0)).unwrap();
    }
    let after = at(0).plus(2 * DAY);
    assert!(world.pass_time(after));
    assert_eq!(world.workspace().first_sequence, EXPIRED_A_STEP + 1);
    assert_eq!(world.workspace().next_expiry, Some(after), "the rest is due at once");
    assert!(world.pass_time(after) && world.pass_time(after) && !world.pass_time(after));
    assert!(world.entries.is_empty() && world.workspace().topics.is_empty());
}

#[test]
fn a_missing_entry_does_not_stop_the_expiry() {
    let mut world = World::new();
    for _ in 0..3 {
        world.append("a", 5, at(0)).unwrap();
    }
    world.entries.remove(&2);
    assert!(world.pass_time(at(0).plus(2 * DAY)));
    let workspace = world.workspace();
    assert_eq!((workspace.entries(), workspace.bytes, workspace.topics.len()), (0, 0, 0));
}

#[test]
fn every_other_input_changes_nothing() {
    use crate::{handoff::Acked, probe::ProbeSignal};
    let mut world = World::new();
    assert!(!world.pass_time(at(0)), "there is no record yet");
    world.append("a", 1, at(1)).unwrap();
    let (by, role) = (agent("alice"), Acked::Request);
    for input in [
        Input::Acked { by: by.clone(), role, decides_within: None },
        Input::Undeliverable { to: by, role },
        Input::AgentGone,
        Input::Signal(Signal::Probe(ProbeSignal::Answer { number: 1 })),
    ] {
        assert!(!world.step(&input, at(2)).unwrap(), "{input:?}");
    }
}
