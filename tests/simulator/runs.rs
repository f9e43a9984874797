//! Law 14: the choices of a node never exceed its `handoffs`; a run moves only to outputs; each turn counts once; each run
//! ends. The checker follows a run by its log alone, and compares the stored run with what it has counted.
//!
//! Law 18: a run is with the owner of its task, and ends with the task. In a run over a task, the agent that the graph names
//! reports the turns of a node, unless the handoff to it has failed or the task has moved outside the run.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use baton_broker_core::{
    codes::ErrorCode,
    domain::{
        EntityId, Input,
        handoff::{State, TaskStatus},
        routing::{
            self, Event, Graph, Node, NodeState, REFUSALS_MAX, Run, RunEntry, RunId, RunState, TurnId, TurnOutcome,
            TurnRecord, is_end,
        },
    },
    ids::{AgentId, MessageId, NodeId, TaskId},
    records::{GraphRevision, RunEntryRecord, RunRecord, RunTurnRecord, TaskRecord},
    store::{Change, Record, Table},
    time::Timestamp,
};

/// The most time from a move or the end of a task to the word to its run, which may wait behind others in the outbox.
const WORD_MAX: Duration = Duration::from_secs(60);

/// The runs as stored, and as their logs tell them.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    runs: BTreeMap<RunId, Followed>,
    /// The graphs that the runs name, by their keys.
    graphs: HashMap<Vec<u8>, Arc<Graph>>,
    /// The owner and the status of each task.
    tasks: HashMap<TaskId, (AgentId, TaskStatus)>,
}

/// A choice that waits for its handoff.
#[derive(Debug)]
struct Waiting {
    node: NodeId,
    target: NodeId,
    /// Whether the node itself needs the handoff, and not a choice of it.
    is_edge: bool,
    handoff: Option<MessageId>,
}

/// A run as its log tells it.
#[derive(Debug)]
struct Followed {
    run: Arc<Run>,
    /// The start, and the unobserved time at the start.
    began: (Timestamp, Duration),
    length: u64,
    step: u32,
    choices: BTreeMap<NodeId, u32>,
    active: BTreeSet<NodeId>,
    next: BTreeSet<NodeId>,
    waiting: BTreeMap<TurnId, Waiting>,
    /// The number of each turn's entry.
    turns: HashMap<TurnId, u64>,
    /// The digest of each turn's report.
    digests: HashMap<TurnId, [u8; 32]>,
    end: Option<RunState>,
    /// The refused turns of each node in a row.
    refusals: BTreeMap<NodeId, u32>,
    /// The nodes of this super-step that are with the owner of the task, whatever agent the graph names.
    with_owner: BTreeSet<NodeId>,
    /// Since when the run does not know of its task what it must, and the unobserved time then.
    behind: Option<(Timestamp, Duration)>,
}

impl Runs {
    /// Checks a durable change at this real time, with this sum of unobserved times. `handoffs` are the ended ones.
    pub(crate) fn see_change(
        &mut self,
        change: &Change,
        befores: &[Option<Record>],
        handoffs: &HashMap<MessageId, State>,
        began: (Timestamp, Duration),
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let mut entries: BTreeMap<RunId, Vec<RunEntry>> = BTreeMap::new();
        let mut places = BTreeMap::new();
        let mut written = Vec::new();
        for (write, before) in change.writes.iter().zip(befores) {
            let key = &write.key.key;
            match (write.key.table, &write.record) {
                (Table::GraphRevisions, Some(record)) if key.len() == 16 => {
                    self.graphs.insert(key.to_vec(), GraphRevision::decode(&record.value).unwrap());
                }
                (Table::Runs, Some(record)) => {
                    let record = RunRecord::decode(&record.value).unwrap();
                    let graph = self.graphs.get(&*record.graph.key().key);
                    let of_change = change.writes.iter().find(|write| write.key == record.graph.key());
                    let of_change = || GraphRevision::decode(&of_change?.record.as_ref()?.value).ok();
                    let graph = graph.cloned().or_else(of_change).expect("a run has its graph");
                    written.push(record.with_graph(graph).run);
                }
                (Table::Tasks, Some(record)) => {
                    let task = TaskRecord::decode(&record.value).unwrap().task;
                    self.tasks.insert(task.id.clone(), (task.owner.clone(), task.status));
                }
                (Table::Runs, None) => {
                    let gone = self.runs.remove(&run_of(key)).expect("only what is there is removed");
                    assert!(gone.end.is_some(), "law 14: run {} was removed before its end", gone.run.id);
                    *counts.entry("runs removed").or_default() += 1;
                }
                (Table::RunLog, Some(record)) => {
                    assert!(before.is_none(), "law 14: an entry of a run's log was written again");
                    let entry = RunEntryRecord::decode(run_of(key), &record.value).unwrap().0;
                    entries.entry(entry.run).or_default().push(RunEntry::clone(&entry));
                }
                (Table::RunTurns, Some(record)) => {
                    assert!(before.is_none(), "law 14: a turn of a run was recorded twice");
                    let turn = TurnId(MessageId::from_bytes(*key.last_chunk().unwrap()));
                    let turn = RunTurnRecord::decode(run_of(key), turn, &record.value).unwrap().0;
                    places.insert((turn.run, turn.turn), turn);
                }
                _ => {}
            }
        }
        for run in written {
            let entries = entries.remove(&run.id).unwrap_or_default();
            let followed = self.runs.entry(run.id).or_insert_with(|| Followed::new(run.clone(), began));
            followed.run = run;
            let task = followed.run.task.as_ref().and_then(|task| self.tasks.get(task)).cloned();
            for entry in &entries {
                followed.see_entry(entry, handoffs, task.as_ref(), counts);
            }
            followed.check();
        }
        assert!(entries.is_empty(), "law 14: an entry of a run without its run: {entries:?}");
        for ((run, id), place) in places {
            let followed = self.runs.get_mut(&run).expect("a turn is of a run");
            assert_eq!(followed.turns.get(&id), Some(&place.number), "law 14: turn {id} is at another entry");
            followed.digests.insert(id, place.digest);
        }
        for followed in self.runs.values_mut() {
            let task = followed.run.task.as_ref().and_then(|task| self.tasks.get(task));
            let knows = |(owner, status): &(AgentId, TaskStatus)| {
                !status.is_final() && (owner.is_coordinator() || followed.run.participants.contains(owner))
            };
            match followed.end.is_some() || task.is_none_or(knows) {
                true => followed.behind = None,
                false => drop(followed.behind.get_or_insert(began)),
            }
        }
    }

    /// Checks an answered call: a turn with an answer is on record, with the content that the agent reported.
    pub(crate) fn see_answer(&self, about: &EntityId, input: &Input) {
        let (EntityId::Run(run), Input::Routing(routing::Input::Turn(turn))) = (about, input) else { return };
        let Some(followed) = self.runs.get(run) else { return };
        let recorded = followed.digests.get(&turn.id);
        assert_eq!(recorded, Some(&turn.digest), "law 14: turn {} has an answer, and is not on record", turn.id);
    }

    /// Checks that no run has outlived its whole time, at this real time with this sum of unobserved times.
    pub(crate) fn see_time(&self, (real, unseen): (Timestamp, Duration)) {
        let is_late = |followed: &&Followed| {
            let (began, unseen_then) = followed.began;
            let whole = followed.run.deadline.since(followed.run.created_at);
            followed.end.is_none() && began.plus(whole).plus(unseen - unseen_then) <= real
        };
        let late = self.runs.values().find(is_late).map(|followed| followed.run.id);
        assert_eq!(late, None, "law 14: a run has outlived its whole time");
        let is_behind = |followed: &&Followed| {
            followed.behind.is_some_and(|(since, then)| since.plus(WORD_MAX).plus(unseen - then) <= real)
        };
        let behind = self.runs.values().find(is_behind).map(|followed| followed.run.id);
        assert_eq!(behind, None, "law 18: a run is not with the owner of its task, or has outlived it");
    }

    /// Checks long after the last fault that every run has ended.
    pub(crate) fn see_end(&self) {
        let open = self.runs.values().find(|followed| followed.end.is_none()).map(|followed| followed.run.id);
        assert_eq!(open, None, "law 14: a run goes on for ever");
    }

    /// The stored runs.
    pub(crate) fn known(&self) -> Vec<Arc<Run>> {
        self.runs.values().map(|followed| followed.run.clone()).collect()
    }
}

impl Followed {
    fn new(run: Arc<Run>, began: (Timestamp, Duration)) -> Self {
        let next = run.graph.entries.iter().cloned().collect();
        Self {
            run,
            began,
            length: 0,
            step: 0,
            choices: BTreeMap::new(),
            active: BTreeSet::new(),
            next,
            waiting: BTreeMap::new(),
            turns: HashMap::new(),
            digests: HashMap::new(),
            end: None,
            refusals: BTreeMap::new(),
            with_owner: BTreeSet::new(),
            behind: None,
        }
    }

    fn see_entry(
        &mut self,
        entry: &RunEntry,
        handoffs: &HashMap<MessageId, State>,
        task: Option<&(AgentId, TaskStatus)>,
        counts: &mut BTreeMap<&'static str, u64>,
    ) {
        let id = self.run.id;
        self.length += 1;
        assert_eq!(entry.number, self.length, "law 14: the log of run {id} has a gap or an entry twice");
        assert_eq!(self.end, None, "law 4: run {id} goes on after its end");
        match &entry.event {
            Event::Started { .. } => assert_eq!(entry.number, 1, "law 14: run {id} starts twice"),
            Event::StepBegan { step, nodes } => {
                let idle = self.active.is_empty() && self.waiting.is_empty();
                assert!(idle, "law 14: run {id} goes on before all active nodes have finished");
                assert_eq!(*step, self.step + 1, "law 14: the super-steps of run {id}");
                assert!(*step <= self.run.graph.steps_max, "law 14: run {id} has too many super-steps");
                let targets: BTreeSet<NodeId> = nodes.iter().cloned().collect();
                self.next.retain(|target| !is_end(target));
                assert_eq!((targets.len(), &targets), (nodes.len(), &self.next), "law 14: the targets of run {id}");
                self.step = *step;
                self.refusals.clear();
                self.with_owner.clear();
                self.active = std::mem::take(&mut self.next);
            }
            Event::Turn(record) => self.see_turn(record, entry.number, counts),
            Event::HandoffProposed(proposal) => {
                let node = self.run.graph.node(&proposal.node).expect("law 14: a proposal for no node");
                let named = node.agent.as_ref().map(ToString::to_string);
                let named = named.or_else(|| node.agent_type.as_ref().map(|kind| format!("type:{kind}")));
                assert_eq!(named.as_ref(), Some(&proposal.receiver), "law 14: a proposal of run {id} to another agent");
                assert!(self.run.task.is_some(), "law 14: a proposal of run {id}, which is over no task");
                assert!(self.active.remove(&node.id), "law 14: a proposal for a node of run {id} that is not active");
                let (node, target, is_edge) = (node.id.clone(), node.id.clone(), true);
                self.waiting.insert(proposal.choice, Waiting { node, target, is_edge, handoff: None });
                *counts.entry("edge: PROPOSED").or_default() += 1;
            }
            Event::HandoffBegan { node, choice, handoff } => {
                let waiting = self.waiting.get_mut(choice).expect("law 14: a handoff for no choice");
                assert_eq!((&waiting.node, waiting.handoff), (node, None), "law 14: two handoffs for one choice");
                waiting.handoff = Some(*handoff);
            }
            Event::HandoffEnded { node, choice, handoff, owner } => {
                let waiting = self.waiting.remove(choice).expect("law 14: the end of a handoff for no choice");
                // A handoff for one node brings the task to its agent, whose other nodes wait no more.
                let is_carried_along = waiting.is_edge && waiting.handoff.is_none() && owner.is_some();
                let of_handoff = if is_carried_along { Some(*handoff) } else { waiting.handoff };
                assert_eq!((&waiting.node, of_handoff), (node, Some(*handoff)), "law 14: another handoff ended");
                let is_edge = waiting.is_edge;
                let is_completed = handoffs.get(handoff) == Some(&State::Completed);
                assert_eq!(owner.is_some(), is_completed, "law 14: run {id} moves by a handoff that did not complete");
                match owner {
                    Some(owner) if waiting.is_edge => {
                        // The request may name further candidates, and one of them has taken the task.
                        let node = self.run.graph.node(&waiting.node);
                        if node.and_then(|node| node.agent.as_ref()) != Some(owner) {
                            self.with_owner.insert(waiting.node.clone());
                        }
                        self.active.insert(waiting.node);
                    }
                    Some(_) => {
                        self.next.insert(waiting.target);
                    }
                    None => self.take_back(waiting),
                }
                let what = match (is_completed, is_edge) {
                    (true, false) => "run: MOVED",
                    (false, false) => "run: NOT MOVED",
                    (true, true) => "edge: MOVED",
                    (false, true) => "edge: NOT MOVED",
                };
                *counts.entry(what).or_default() += 1;
            }
            Event::ChoiceGivenUp { node, choice, code } => {
                let waiting = self.waiting.remove(choice).expect("law 14: a choice is given up that did not wait");
                assert_eq!(
                    (&waiting.node, waiting.handoff),
                    (node, None),
                    "law 14: a choice with a handoff is given up"
                );
                let why = match (waiting.is_edge, code.is_some()) {
                    (false, true) => "choice: REFUSED",
                    (false, false) => "choice: TASK MOVED",
                    (true, true) => "edge: REFUSED",
                    (true, false) => "edge: TASK MOVED",
                };
                self.take_back(waiting);
                *counts.entry(why).or_default() += 1;
            }
            Event::TaskMoved { owner } => {
                let takes_part = owner.is_coordinator() || self.run.participants.contains(owner);
                assert!(takes_part, "law 18: {owner} owns the task of run {id} and takes no part in it");
                // The word follows a choice that is given up, which is on record after it.
                self.with_owner.extend(self.run.nodes.keys().cloned());
                *counts.entry("run: TASK MOVED").or_default() += 1;
            }
            Event::Ended { state, failure } => {
                let idle = self.active.is_empty() && self.waiting.is_empty();
                let code = failure.as_ref().and_then(|failure| failure.code);
                let with_task = match task.map(|(_, status)| *status) {
                    Some(TaskStatus::Completed) => (*state, code) == (RunState::Completed, None),
                    Some(TaskStatus::Failed) => (*state, code) == (RunState::Failed, Some(ErrorCode::TaskFinal)),
                    Some(TaskStatus::Canceled) => (*state, code) == (RunState::Cancelled, None),
                    Some(_) | None => false,
                };
                let is_explained = match (state, code) {
                    _ if with_task => true,
                    (RunState::Completed, _) => idle && self.next.iter().all(is_end),
                    (RunState::Failed, Some(ErrorCode::StepsExhausted)) => self.step == self.run.graph.steps_max,
                    (RunState::Failed, code) => code == Some(ErrorCode::WholeTimeout),
                    (RunState::Cancelled, code) => code.is_none(),
                    (RunState::Running, _) => false,
                };
                assert!(is_explained, "law 14: run {id} ended {state:?} with {failure:?}: {self:?}");
                self.end = Some(*state);
                *counts.entry(end_of(*state)).or_default() += 1;
            }
        }
    }

    fn see_turn(&mut self, record: &TurnRecord, number: u64, counts: &mut BTreeMap<&'static str, u64>) {
        let (id, graph) = (self.run.id, self.run.graph.clone());
        assert_eq!(self.turns.insert(record.id, number), None, "law 14: turn {} of run {id} counts twice", record.id);
        assert_eq!(record.results.len(), record.calls.len(), "law 14: each call of a turn has a result");
        let node = graph.node(&record.node).expect("law 14: a turn of a node that the graph does not have");
        if record.outcome == TurnOutcome::Withdrawn {
            let is_given_up = |waiting: &Waiting| waiting.node == node.id && waiting.handoff.is_none();
            let choice = self.waiting.iter().find(|(_, waiting)| is_given_up(waiting)).map(|(choice, _)| *choice);
            let waiting = self.waiting.remove(&choice.expect("law 14: a choice was withdrawn that did not wait"));
            self.take_back(waiting.expect("found above"));
            *counts.entry("turn: WITHDRAWN").or_default() += 1;
            return;
        }
        assert!(self.active.contains(&node.id), "law 14: a turn of node {} of run {id}, which is not active", node.id);
        if self.run.task.is_some() && node.agent.is_some() && !self.with_owner.contains(&node.id) {
            assert_eq!(record.by, node.agent, "law 18: a turn of {} of run {id}, by another agent", node.id);
            *counts.entry("turn: BY THE AGENT OF THE NODE").or_default() += 1;
        }
        let refusals = self.refusals.entry(node.id.clone()).or_default();
        *refusals = if matches!(record.outcome, TurnOutcome::Refused { .. }) { *refusals + 1 } else { 0 };
        if *refusals == REFUSALS_MAX {
            *refusals = 0;
            self.active.remove(&node.id);
            self.next.extend(goes_on_to(&graph, node));
            *counts.entry("turn: REFUSED THREE TIMES").or_default() += 1;
        }
        let outcome = match &record.outcome {
            TurnOutcome::Recorded => "turn: RECORDED",
            TurnOutcome::Refused { .. } => "turn: REFUSED",
            TurnOutcome::Finished => {
                self.active.remove(&node.id);
                self.next.extend(goes_on_to(&graph, node));
                "turn: FINISHED"
            }
            TurnOutcome::Chosen { target, .. } => {
                self.choose(node, target);
                self.next.insert(target.clone());
                "turn: CHOSEN"
            }
            TurnOutcome::Proposed { target, .. } => {
                assert!(self.run.task.is_some(), "law 14: a proposal of run {id}, which is over no task");
                self.choose(node, target);
                let (from, target) = (node.id.clone(), target.clone());
                let waiting = Waiting { node: from, target, is_edge: false, handoff: None };
                self.waiting.insert(record.id, waiting);
                "turn: PROPOSED"
            }
            TurnOutcome::Withdrawn => unreachable!("handled above"),
        };
        *counts.entry(outcome).or_default() += 1;
    }

    /// The handoff has failed or is given up. A node that needed it itself is with the owner of the task.
    fn take_back(&mut self, waiting: Waiting) {
        if waiting.is_edge {
            self.with_owner.insert(waiting.node.clone());
        }
        self.active.insert(waiting.node);
    }

    fn choose(&mut self, node: &Node, target: &NodeId) {
        assert!(node.outputs.contains(target), "law 14: {} is no output of {}", target, node.id);
        let choices = self.choices.entry(node.id.clone()).or_default();
        *choices += 1;
        let most = node.handoffs.unwrap_or(0);
        assert!(*choices <= most, "law 14: {choices} choices of {}, which has {most}", node.id);
        self.active.remove(&node.id);
    }

    /// Compares the stored run with its log.
    fn check(&self) {
        let run = &self.run;
        assert_eq!(run.log_length, self.length, "law 14: the log of run {} is as long as the run says", run.id);
        assert_eq!(run.turns as usize, self.turns.len(), "law 14: the turns of run {}", run.id);
        assert_eq!(run.state, self.end.unwrap_or(RunState::Running), "law 14: the state of run {}", run.id);
        for (id, node) in &run.nodes {
            let choices = self.choices.get(id).copied().unwrap_or(0);
            assert_eq!(node.choices, choices, "law 14: the choices of node {id} of run {}", run.id);
            if self.end.is_none() {
                let is_active = node.state == NodeState::Active;
                assert_eq!(is_active, self.active.contains(id), "law 14: whether {id} of run {} is active", run.id);
            }
        }
    }
}

/// The nodes that follow without a choice: all outputs of a plain node, else those that lead away from the entries.
fn goes_on_to(graph: &Graph, node: &Node) -> BTreeSet<NodeId> {
    let mut distances: BTreeMap<&NodeId, u32> = BTreeMap::new();
    let mut queue: VecDeque<_> = graph.entries.iter().map(|entry| (entry, 0)).collect();
    while let Some((id, distance)) = queue.pop_front() {
        if !distances.contains_key(id) {
            distances.insert(id, distance);
            queue
                .extend(graph.node(id).into_iter().flat_map(|node| &node.outputs).map(|output| (output, distance + 1)));
        }
    }
    let leads_away = |output: &&NodeId| is_end(output) || distances[*output] > distances[&node.id];
    node.outputs.iter().filter(|output| node.handoffs.is_none() || leads_away(output)).cloned().collect()
}

const fn end_of(state: RunState) -> &'static str {
    match state {
        RunState::Running => "run: RUNNING",
        RunState::Completed => "run: COMPLETED",
        RunState::Failed => "run: FAILED",
        RunState::Cancelled => "run: CANCELLED",
    }
}

fn run_of(key: &[u8]) -> RunId {
    RunId(MessageId::from_bytes(*key.first_chunk().unwrap()))
}
