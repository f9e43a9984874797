//! The invariants of the engine, asserted after each commit in builds with debug assertions.
//!
//! A check covers the entities, letters and counts that the commit has touched, and reads no store: so it costs little,
//! however large the store is. It must not change what the engine does.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    Engine,
    batch::{PendingReply, PostCommit},
    open_counts::Counted,
};
use crate::{
    domain::{EntityId, mailbox::EnvelopeOwner, mailbox::Letter},
    ids::{AgentId, IdMap},
    records::{EntityRecord, HandoffRecord, TaskRecord},
    store::Conflict,
};

/// A change of an entity. `before` is `None` for a new one.
type Move = (Option<Arc<EntityRecord>>, Arc<EntityRecord>);

/// The entities and letters that a commit has touched, without those of conflicting commands.
#[derive(Debug, Default)]
pub(super) struct Touched {
    moves: Vec<Move>,
    stored: Vec<(AgentId, Letter)>,
    /// The mailboxes of removed letters, one entry a letter.
    removed: Vec<AgentId>,
}

impl Touched {
    /// The part of the commit that the store has applied.
    pub(super) fn of(replies: &[PendingReply], applied: &[Result<(), Conflict>]) -> Self {
        let mut touched = Self::default();
        let kept = replies.iter().filter(|pending| pending.changes.clone().all(|index| applied[index].is_ok()));
        for act in kept.flat_map(|pending| &pending.post_commit) {
            match act {
                PostCommit::EntityMoved { before, after } => touched.moves.push((before.clone(), after.clone())),
                PostCommit::LetterStored { agent, letter } => touched.stored.push((agent.clone(), letter.clone())),
                PostCommit::LetterRemoved { agent, .. } => touched.removed.push(agent.clone()),
                PostCommit::AttemptsEnded { .. }
                | PostCommit::LetterRequeued { .. }
                | PostCommit::MailTimer { .. }
                | PostCommit::EntityTimer { .. }
                | PostCommit::Count(_)
                | PostCommit::LogAccepted(..)
                | PostCommit::OutboxWritten(_)
                | PostCommit::EntityRemoved(_)
                | PostCommit::ExpirationStored { .. }
                | PostCommit::OnRecord { .. }
                | PostCommit::FileRemoved(_)
                | PostCommit::AgentStored(_)
                | PostCommit::SessionsEnded(..)
                | PostCommit::AgentLeft(_)
                | PostCommit::StatisticsStored { .. } => {}
            }
        }
        touched
    }

    /// The latest version of each touched entity.
    fn latest(&self) -> HashMap<EntityId, Arc<EntityRecord>> {
        self.moves.iter().map(|(_, after)| (after.entity().id(), after.clone())).collect()
    }

    /// Every violation of a rule about entities. `cached` gives the record of an entity that the commit has not touched, or
    /// `None` if memory does not have it.
    fn broken_entities(&self, cached: impl Fn(&EntityId) -> Option<Arc<EntityRecord>>) -> Vec<String> {
        let mut broken = Vec::new();
        for (before, after) in &self.moves {
            let found = before.as_ref().and_then(|before| broken_move(before, after));
            broken.extend(found.map(|problem| format!("{}: {problem}", after.entity().id())));
        }
        let latest = self.latest();
        let known = |id: &EntityId| latest.get(id).cloned().or_else(|| cached(id));
        for (id, record) in &latest {
            let found = match &**record {
                EntityRecord::Task(record) => broken_task(record, &latest, known),
                EntityRecord::Handoff(record) => broken_handoff(record, known),
                _ => None,
            };
            broken.extend(found.map(|problem| format!("{id}: {problem}")));
        }
        broken
    }

    /// Every violation of a rule about letters. `next` is the first sequence that is not used yet.
    fn broken_letters(&self, is_known: impl Fn(&AgentId) -> bool, next: u64) -> Vec<String> {
        let mut broken = Vec::new();
        let mut places = BTreeSet::new();
        for (agent, letter) in &self.stored {
            let problem = if !is_known(agent) {
                "its agent was never registered"
            } else if letter.sequence >= next {
                "its sequence is not used yet"
            } else if letter.message_sequence > letter.sequence {
                "its message is later than itself"
            } else if letter.envelope_owner != EnvelopeOwner::Letter && letter.message_sequence != letter.sequence {
                "a letter with a place of its own must own its envelope"
            } else if !places.insert((agent, letter.sequence)) {
                "another letter has its place"
            } else {
                continue;
            };
            broken.push(format!("letter {} to {agent}: {problem}", letter.sequence));
        }
        broken
    }

    /// The changes of the number of open entities, of each agent that they count for.
    fn open(&self) -> HashMap<(Counted, AgentId), i64> {
        let mut changes = HashMap::new();
        for (before, after) in &self.moves {
            for (record, many) in before.iter().map(|before| (before, -1)).chain([(after, 1)]) {
                let entity = record.entity();
                if let (Some(kind), Some(agent)) = (Counted::of(&entity.id()), entity.counts_for()) {
                    let is_open = match kind {
                        Counted::Handoff | Counted::Plan => !entity.has_ended(),
                        // An awarded negotiation is not final, and counts no longer.
                        Counted::Negotiation | Counted::Run | Counted::Thread => entity.next_deadline().is_some(),
                    };
                    *changes.entry((kind, agent.clone())).or_default() += if is_open { many } else { 0 };
                }
            }
        }
        changes
    }

    /// The changes of the tasks, the offers and the letters of each agent.
    fn loads(&self) -> IdMap<AgentId, Load> {
        let mut changes: IdMap<AgentId, Load> = IdMap::default();
        for (before, after) in &self.moves {
            for (record, many) in before.iter().map(|before| (before, -1)).chain([(after, 1)]) {
                match &**record {
                    EntityRecord::Task(record) if !record.task.status.is_final() => {
                        changes.entry(record.task.owner.clone()).or_default().tasks += many;
                    }
                    EntityRecord::Handoff(record) if record.handoff.has_offer() => {
                        changes.entry(record.handoff.candidate.clone()).or_default().offers += many;
                    }
                    _ => {}
                }
            }
        }
        for (agent, _) in &self.stored {
            changes.entry(agent.clone()).or_default().letters += 1;
        }
        for agent in &self.removed {
            changes.entry(agent.clone()).or_default().letters -= 1;
        }
        changes
    }
}

/// The rule that a step of an entity breaks.
fn broken_move(before: &EntityRecord, after: &EntityRecord) -> Option<&'static str> {
    match (before, after) {
        (EntityRecord::Task(before), EntityRecord::Task(after)) => {
            let (was, is) = (&before.task, &after.task);
            if is.epoch < was.epoch {
                return Some("its epoch has fallen");
            }
            if is.owner != was.owner && is.epoch == was.epoch {
                return Some("its owner has changed within an epoch");
            }
            if was.status.is_final() && is.status != was.status {
                return Some("its final status has changed");
            }
            if after.custody.length < before.custody.length || after.logged_at < before.logged_at {
                return Some("its custody log has gone back");
            }
            None
        }
        (EntityRecord::Handoff(before), EntityRecord::Handoff(after)) => {
            let (was, is) = (&before.handoff, &after.handoff);
            if (&is.task, is.epoch, &is.sender) != (&was.task, was.epoch, &was.sender) {
                return Some("its task, epoch or sender has changed");
            }
            if was.state.is_final() && is.state != was.state {
                return Some("its final state has changed");
            }
            None
        }
        _ => None,
    }
}

/// The rule that a task breaks.
fn broken_task(
    record: &TaskRecord,
    latest: &HashMap<EntityId, Arc<EntityRecord>>,
    known: impl Fn(&EntityId) -> Option<Arc<EntityRecord>>,
) -> Option<&'static str> {
    if let Some(embedded) = &record.handoff
        && let Some(own) = latest.get(&EntityId::Handoff(embedded.handoff.id))
        && own.as_handoff() != Some(embedded)
    {
        return Some("its record has another version of its handoff than the commit");
    }
    let open = record.task.open_handoff?;
    if record.task.status.is_final() {
        return Some("it has ended, and has an open handoff");
    }
    let embedded = record.handoff.as_ref().filter(|embedded| embedded.handoff.id == open);
    let found = known(&EntityId::Handoff(open));
    // Memory may have dropped the record of an open handoff that the commit has not touched.
    let handoff = &embedded.or_else(|| found.as_deref()?.as_handoff())?.handoff;
    if handoff.state.is_final() {
        return Some("its open handoff has ended");
    }
    if handoff.task != record.task.id || handoff.epoch != record.task.epoch {
        return Some("its open handoff is of another task or epoch");
    }
    if handoff.sender != record.task.owner {
        return Some("its open handoff is not its owner's");
    }
    None
}

/// The rule that a handoff breaks: a task has one open handoff at most, and names it.
fn broken_handoff(
    record: &HandoffRecord,
    known: impl Fn(&EntityId) -> Option<Arc<EntityRecord>>,
) -> Option<&'static str> {
    let task = known(&EntityId::Task(record.handoff.task.clone()))?;
    let named = task.as_task()?.task.open_handoff;
    match (record.handoff.state.is_final(), named == Some(record.handoff.id)) {
        (false, false) => Some("it is open, and is not the open handoff of its task"),
        (true, true) => Some("it has ended, and is the open handoff of its task"),
        (false, true) | (true, false) => None,
    }
}

/// The work of an agent, as entities and letters say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Load {
    tasks: i64,
    offers: i64,
    letters: i64,
}

/// Second counts, from the entities and letters of each commit alone. Those of an agent begin with the first commit that
/// touches its work.
#[derive(Debug, Default)]
pub(super) struct SecondCounts {
    open: HashMap<(Counted, AgentId), i64>,
    loads: IdMap<AgentId, Load>,
}

impl SecondCounts {
    /// Every count of open entities that differs from the engine's, which `counted` gives.
    fn broken_open(&mut self, touched: &Touched, counted: impl Fn(Counted, &AgentId) -> u32) -> Vec<String> {
        let mut broken = Vec::new();
        for ((kind, agent), change) in touched.open() {
            let engines = i64::from(counted(kind, &agent));
            let own = self.open.entry((kind, agent.clone())).and_modify(|count| *count += change).or_insert(engines);
            if *own != engines {
                broken.push(format!("{agent} has {own} open entities ({kind:?}), and the engine counts {engines}"));
            }
        }
        broken
    }

    /// Every load that differs from the directory's, which `counted` gives.
    fn broken_loads(&mut self, touched: &Touched, counted: impl Fn(&AgentId) -> Load) -> Vec<String> {
        let mut broken = Vec::new();
        for (agent, change) in touched.loads() {
            let engines = counted(&agent);
            let own = self.loads.entry(agent.clone()).and_modify(|load| {
                load.tasks += change.tasks;
                load.offers += change.offers;
                load.letters += change.letters;
            });
            let own = own.or_insert(engines);
            if *own != engines {
                broken.push(format!("{agent} has {own:?}, and the engine counts {engines:?}"));
            }
        }
        broken
    }
}

impl Engine {
    /// Asserts the invariants over what a commit has touched.
    pub(super) fn assert_invariants(&mut self, touched: &Touched) {
        let cached = |id: &EntityId| self.entities.get(&EntityRecord::key(id)).map(|stored| stored.record.clone());
        let mut broken = touched.broken_entities(cached);
        let directory = &self.env.directory;
        let is_known = |agent: &AgentId| directory.get(agent).is_some();
        broken.extend(touched.broken_letters(is_known, self.batch.head.next_sequence));
        let counted = |kind, agent: &AgentId| self.entities.open.of(kind, agent);
        broken.extend(self.second_counts.broken_open(touched, counted));
        let is_exact = self.loads.is_exact() && directory.letters(&AgentId::broker()).is_some();
        if is_exact {
            let counted = |agent: &AgentId| {
                let (tasks, offers) = directory.counts(agent);
                let letters = directory.letters(agent).unwrap_or_default();
                Load { tasks: tasks.into(), offers: offers.into(), letters: letters.try_into().unwrap_or(i64::MAX) }
            };
            broken.extend(self.second_counts.broken_loads(touched, counted));
        } else {
            // The engine counts again, part by part.
            self.second_counts.loads.clear();
        }
        assert!(broken.is_empty(), "a commit has broken the invariants of the engine:\n{}", broken.join("\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BrokerIdentity, Settings, Signer,
        domain::{
            Entity, Input, ReadError, Reader,
            handoff::{self, Handoff, LoopLimits, Mode, Priority, Request, State, Task, TaskStatus, Timeouts},
            mailbox::Flow,
            step,
        },
        envelope::keys::PrivateKey,
        ids::{KeyId, MessageId, SystemIds, TaskId},
        records::{LogClock, RequestPlace, WriteFacts},
        store::MemoryStore,
        time::Timestamp,
    };

    const HANDOFF: MessageId = MessageId::from_bytes([7; 16]);

    struct Nothing;

    impl Reader for Nothing {
        fn entity(&mut self, _id: &EntityId) -> Result<Option<Entity>, ReadError> {
            Ok(None)
        }

        fn is_gone(&mut self, _agent: &AgentId) -> bool {
            false
        }
    }

    fn agent(name: &str) -> AgentId {
        AgentId::parse(name).unwrap()
    }

    fn now() -> Timestamp {
        Timestamp::from_parts(1000, 0).unwrap()
    }

    /// The commit in which agent a asks agent b to take the new task t.
    fn begun() -> Touched {
        let task = TaskId::parse("t").unwrap();
        let request = Request {
            id: HANDOFF,
            task: task.clone(),
            from: agent("a"),
            epoch: 1,
            receiver: "b".to_owned(),
            candidates: vec![agent("b")],
            passed_over: Vec::new(),
            task_type: "support".to_owned(),
            reason: 0,
            mode: Mode::Transfer,
            loan_timeout: None,
            work: crate::domain::handoff::WorkTerms::default(),
            submitter: None,
            plan: None,
            routing: None,
            priority: Priority::default(),
            fairness_key: None,
            timeouts: Timeouts::default(),
            loop_limits: LoopLimits::default(),
            parent: None,
            conversation: None,
            wait_for_agent: false,
            thread: None,
            deliver_after: None,
            negotiation: None,
        };
        let input = Input::Handoff { task, input: handoff::Input::Request(request) };
        let made = step(&EntityId::Handoff(HANDOFF), &input, &mut Nothing, now()).unwrap();
        let facts = WriteFacts {
            sender: None,
            sequence: 1,
            opening: Some(RequestPlace { message: HANDOFF, sequence: 1, expires_at: None }),
            log_clock: LogClock { logged_at: now(), set_back: std::time::Duration::ZERO },
            envelope: None,
            trace: None,
            graph: None,
            changed: 1,
        };
        let record = |entity| Arc::new(EntityRecord::after(entity, None, facts.clone()));
        let moves = made.writes.into_iter().map(|entity| (None, record(entity))).collect();
        Touched {
            moves,
            stored: vec![(agent("b"), Letter::new(1, HANDOFF, Flow::of(agent("a")), now()))],
            removed: Vec::new(),
        }
    }

    fn change_task(touched: &mut Touched, change: impl Fn(&mut Task)) {
        for (_, after) in &mut touched.moves {
            if let EntityRecord::Task(record) = Arc::make_mut(after) {
                change(Arc::make_mut(&mut record.task));
            }
        }
    }

    fn change_handoff(touched: &mut Touched, change: impl Fn(&mut Handoff)) {
        for (_, after) in &mut touched.moves {
            if let EntityRecord::Handoff(record) = Arc::make_mut(after) {
                change(Arc::make_mut(&mut record.handoff));
            }
        }
    }

    /// A further step of the commit, which changes the task.
    fn move_task(touched: &mut Touched, change: impl Fn(&mut Task)) {
        let of_task = touched.moves.iter().find(|(_, after)| after.as_task().is_some());
        let before = of_task.expect("the commit writes a task").1.clone();
        let mut further = Touched { moves: vec![(Some(before.clone()), before)], ..Touched::default() };
        change_task(&mut further, change);
        touched.moves.append(&mut further.moves);
    }

    fn broken(touched: &Touched) -> String {
        let known = [agent("a"), agent("b")];
        let mut broken = touched.broken_entities(|_| None);
        broken.extend(touched.broken_letters(|agent| known.contains(agent), 100));
        broken.join("\n")
    }

    #[test]
    fn a_sound_commit_breaks_no_invariant() {
        assert_eq!(broken(&begun()), "");
    }

    #[test]
    fn each_planted_inconsistency_is_found() {
        type Plant = fn(&mut Touched);
        let cases: [(&str, Plant); 13] = [
            ("its epoch has fallen", |touched| move_task(touched, |task| task.epoch = 0)),
            ("its owner has changed within an epoch", |touched| move_task(touched, |task| task.owner = agent("b"))),
            ("its open handoff is not its owner's", |touched| {
                move_task(touched, |task| (task.owner, task.epoch) = (agent("b"), 2));
                change_handoff(touched, |handoff| handoff.epoch = 2);
            }),
            ("its open handoff is of another task or epoch", |touched| change_task(touched, |task| task.epoch = 2)),
            ("it has ended, and has an open handoff", |touched| {
                change_task(touched, |task| task.status = TaskStatus::Completed);
            }),
            ("its final status has changed", |touched| {
                change_task(touched, |task| task.status = TaskStatus::Completed);
                move_task(touched, |task| task.status = TaskStatus::InProgress);
            }),
            ("its open handoff has ended", |touched| change_handoff(touched, |handoff| handoff.state = State::Failed)),
            ("it has ended, and is the open handoff", |touched| {
                change_handoff(touched, |handoff| handoff.state = State::Failed);
            }),
            ("it is open, and is not the open handoff", |touched| {
                change_task(touched, |task| task.open_handoff = None);
            }),
            ("its agent was never registered", |touched| touched.stored[0].0 = agent("c")),
            ("its sequence is not used yet", |touched| touched.stored[0].1.sequence = 100),
            ("must own its envelope", |touched| {
                touched.stored[0].1.sequence = 2;
                touched.stored[0].1.envelope_owner = EnvelopeOwner::Log;
            }),
            ("another letter has its place", |touched| touched.stored.extend_from_within(..)),
        ];
        for (problem, plant) in cases {
            let mut touched = begun();
            plant(&mut touched);
            assert!(broken(&touched).contains(problem), "{problem}: {}", broken(&touched));
        }
    }

    #[test]
    fn a_count_that_does_not_follow_a_commit_is_found() {
        let mut second = SecondCounts::default();
        let one = |_, _: &AgentId| 1;
        assert_eq!(second.broken_open(&begun(), one), Vec::<String>::new(), "the first count is taken over");
        assert_eq!(second.broken_open(&begun(), |_, _: &AgentId| 2), Vec::<String>::new());
        let found = second.broken_open(&begun(), |_, _: &AgentId| 2);
        assert_eq!(found, ["a has 3 open entities (Handoff), and the engine counts 2"]);
        let load = |offers| {
            move |name: &AgentId| match name.as_str() {
                "a" => Load { tasks: 1, ..Load::default() },
                _ => Load { offers, letters: 1, ..Load::default() },
            }
        };
        assert_eq!(second.broken_loads(&begun(), load(1)), Vec::<String>::new());
        assert_eq!(second.broken_loads(&begun(), load(1)).len(), 2, "the work of both agents has grown");
    }

    #[test]
    #[should_panic(expected = "a commit has broken the invariants of the engine")]
    fn the_engine_stops_at_a_broken_invariant() {
        let identity = BrokerIdentity {
            key_id: KeyId::parse("k1").unwrap(),
            key: PrivateKey::from_seed(&[1; 32]),
            coordinator: Signer::new(PrivateKey::from_seed(&[77; 32])),
        };
        let (store, settings) = (Arc::new(MemoryStore::default()), Arc::new(Settings::default()));
        let mut engine =
            Engine::open(store, identity, settings, crate::Resources::default(), Arc::new(SystemIds), now()).unwrap();
        let mut touched = begun();
        touched.stored.clear();
        change_task(&mut touched, |task| task.owner = agent("b"));
        engine.assert_invariants(&touched);
    }
}
