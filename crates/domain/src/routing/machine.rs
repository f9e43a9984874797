//! The machine of graphs and runs: total over every state and input.

mod edges;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use self::edges::{Owner, receiver_of};
use super::{
    Call, CallResult, Choice, Event, Failure, Graph, Input, NodeRun, NodeState, REFUSALS_MAX, Rejection, Run, RunEntry,
    RunId, RunSignal, RunState, RunTurn, Start, TURNS_MAX, Tool, Turn, TurnId, TurnOutcome, TurnRecord, check_handoff,
    is_end, tools,
};
use crate::{
    Effect, Entity, EntityId, Mail, ReadError, Reader, Signal, StepError, Transition,
    codes::ErrorCode,
    handoff::{Advice, Notice, Priority, Task, TaskStatus},
    ids::{AgentId, GraphId, NodeId, TaskId},
    time::Timestamp,
};

/// Applies one input to a graph. Other inputs than a registration change nothing.
pub(crate) fn step_graph(id: &GraphId, input: &crate::Input, read: &mut dyn Reader) -> Result<Transition, StepError> {
    let crate::Input::Routing(Input::Register { graph, removed }) = input else { return Ok(Transition::default()) };
    let known = read_graph(read, id)?;
    // A number stands for one content for ever, so a graph that comes back after its removal does not begin at 1.
    let revision = known.as_ref().map_or(*removed, |known| known.revision);
    let registered = Graph { revision: revision + 1, ..graph.clone() };
    // The same graph again is the same revision, so that a runtime may register its graphs at every start.
    if known.is_some_and(|known| Graph { revision: registered.revision, ..Graph::clone(&known) } == registered) {
        return Ok(Transition::default());
    }
    Ok(Transition { writes: vec![Entity::Graph(Arc::new(registered))], effects: Vec::new() })
}

/// Applies one input to a run.
pub(crate) fn step_run(
    id: RunId,
    input: &crate::Input,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let known = read_run(read, id)?;
    match input {
        crate::Input::Routing(Input::Start(start)) => begin(id, known.as_deref(), start, read, now),
        crate::Input::Routing(Input::Turn(turn)) => take_turn(known, turn, read, now),
        crate::Input::Routing(Input::Cancel { by, reason }) => cancel(known, by.as_ref(), reason, read, now),
        crate::Input::Time => Ok(known.map_or_else(Transition::default, |run| pass_time(&run, now))),
        crate::Input::Signal(Signal::Run(signal)) => on_signal(known, signal, read, now),
        // A graph is registered under its own id, and a run has no mail.
        crate::Input::Routing(Input::Register { .. })
        | crate::Input::Thread(_)
        | crate::Input::Handoff { .. }
        | crate::Input::Append { .. }
        | crate::Input::Negotiation(_)
        | crate::Input::Plan(_)
        | crate::Input::Signal(Signal::Handoff(_) | Signal::Task(_) | Signal::Negotiation(_) | Signal::Plan(_))
        | crate::Input::Acked { .. }
        | crate::Input::Undeliverable { .. }
        | crate::Input::AgentGone => Ok(Transition::default()),
        #[cfg(debug_assertions)]
        crate::Input::Signal(Signal::Probe(_)) => Ok(Transition::default()),
    }
}

fn read_graph(read: &mut dyn Reader, id: &GraphId) -> Result<Option<Arc<Graph>>, ReadError> {
    Ok(match read.entity(&EntityId::Graph(id.clone()))? {
        Some(Entity::Graph(graph)) => Some(graph),
        Some(_) | None => None,
    })
}

fn read_run(read: &mut dyn Reader, id: RunId) -> Result<Option<Arc<Run>>, ReadError> {
    Ok(match read.entity(&EntityId::Run(id))? {
        Some(Entity::Run(run)) => Some(run),
        Some(_) | None => None,
    })
}

fn read_task(read: &mut dyn Reader, id: &TaskId) -> Result<Option<Arc<Task>>, ReadError> {
    Ok(match read.entity(&EntityId::Task(id.clone()))? {
        Some(Entity::Task(task)) => Some(task),
        Some(_) | None => None,
    })
}

/// Checks that the agent owns the task. An agent gets the same answer for an unknown task and for one of another agent.
fn check_owner(read: &mut dyn Reader, task: &TaskId, by: Option<&AgentId>) -> Result<Arc<Task>, StepError> {
    match (read_task(read, task)?, by) {
        (Some(known), Some(by)) if known.owner == *by => Ok(known),
        (None, None) => Err(Rejection::TaskUnknown { task: task.clone() }.into()),
        (Some(_) | None, _) => Err(Rejection::NotOwner { task: task.clone() }.into()),
    }
}

// ------------------------------------------------------------------------------------------------------------ starts

fn begin(
    id: RunId,
    known: Option<&Run>,
    start: &Start,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    // The revision of the graph is not compared: a repeat after a new revision still means the run that has begun.
    let is_same = |known: &Run| known.graph.id == start.graph && known.task == start.task && known.starter == start.by;
    if known.is_some_and(is_same) {
        return Ok(Transition::default());
    }
    let graph =
        read_graph(read, &start.graph)?.ok_or_else(|| Rejection::GraphUnknown { graph: start.graph.clone() })?;
    if let Some(task) = &start.task {
        let known = check_owner(read, task, start.by.as_ref())?;
        if known.status.is_final() {
            return Err(Rejection::TaskFinal { task: task.clone(), status: known.status }.into());
        }
    }
    // Last: a start that cannot succeed does not tell whether the id is in use.
    if known.is_some() {
        return Err(Rejection::RunExists.into());
    }
    // Nodes for a type get their participants when an agent takes one.
    let participants = graph.nodes.iter().filter_map(|node| node.agent.clone()).chain(start.by.clone()).collect();
    let next = graph.entries.iter().map(|entry| (entry.clone(), Vec::new())).collect();
    let run = Run {
        id,
        graph,
        starter: start.by.clone(),
        task: start.task.clone(),
        participants,
        state: RunState::Running,
        failure: None,
        step: 0,
        nodes: BTreeMap::new(),
        next,
        turns: 0,
        log_length: 0,
        created_at: now,
        updated_at: now,
        deadline: now.plus(start.whole),
    };
    let owner = start.by.as_ref().and_then(|by| Owner::of(&run, by, read));
    let mut builder = TransitionBuilder::new(run, now).called_by(start.by.clone()).of(owner);
    builder.log(Event::Started { by: start.by.clone() });
    builder.advance();
    Ok(builder.done())
}

// ------------------------------------------------------------------------------------------------------------- turns

fn take_turn(
    known: Option<Arc<Run>>,
    turn: &Turn,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let run = known.ok_or(Rejection::RunUnknown)?;
    // A repeat gets its first answer, also after the run has ended or the task has moved on.
    if let Some(Entity::RunTurn(first)) = read.entity(&EntityId::RunTurn(run.id, turn.id))? {
        return match first.digest == turn.digest {
            true => Ok(Transition::default()),
            false => Err(Rejection::TurnIdReused { turn: turn.id }.into()),
        };
    }
    // The reporter goes before the state of the run, which an agent without a part in it must not learn.
    check_reporter(&run, turn, read)?;
    check_open(&run, now)?;
    if run.turns >= TURNS_MAX {
        return Err(Rejection::TooManyTurns.into());
    }
    let state = run.nodes.get(&turn.node).map_or(&NodeState::Idle, |node| &node.state);
    let owner = turn.by.as_ref().and_then(|by| Owner::of(&run, by, read));
    let mut builder = TransitionBuilder::new(Run::clone(&run), now).called_by(turn.by.clone()).of(owner);
    match state {
        NodeState::Active => builder.take_turn(turn),
        // A proposal that its handoff has not begun to carry out can be given up by reporting an error.
        NodeState::Moving(Choice { handoff: None, .. }) if !turn.error.is_empty() => builder.withdraw(turn),
        NodeState::Idle | NodeState::Moving(_) | NodeState::Done => {
            return Err(not_active(&run, turn.node.as_str(), state.name()).into());
        }
    }
    Ok(builder.done())
}

fn not_active(run: &Run, node: &str, state: &'static str) -> Rejection {
    Rejection::NodeNotActive {
        node: node.to_owned(),
        state,
        active: run.active().iter().map(ToString::to_string).collect(),
    }
}

/// Checks that the agent reports turns of the node: its agent, which in a run over a task owns the task too. A node whose
/// handoff has failed is with the owner of the task.
fn check_reporter(run: &Run, turn: &Turn, read: &mut dyn Reader) -> Result<(), StepError> {
    if let Some(task) = &run.task {
        check_owner(read, task, turn.by.as_ref())?;
        let is_for_agent =
            |node: &NodeRun| node.state == NodeState::Active && node.for_agent && run.graph.node(&turn.node).is_some();
        // A node that is not active is refused for its state.
        if !run.nodes.get(&turn.node).is_some_and(is_for_agent) {
            return Ok(());
        }
    }
    // The graph of the run decides and not the registry: a later revision changes no run that has begun.
    let Some(node) = run.graph.node(&turn.node) else {
        return Err(not_active(run, turn.node.as_str(), "unknown").into());
    };
    let by = match (&node.agent, &node.agent_type) {
        (Some(agent), _) if turn.by.as_ref() != Some(agent) => agent.to_string(),
        (None, Some(kind)) if !turn.by_types.contains(kind) => format!("agents of type {kind}"),
        (Some(_), _) | (None, Some(_) | None) => return Ok(()),
    };
    Err(Rejection::NodeOfAnother { node: turn.node.clone(), by }.into())
}

/// Refuses an input to an ended run, and to one whose time is up before its timer has fired.
fn check_open(run: &Run, now: Timestamp) -> Result<(), Rejection> {
    if run.state.is_final() {
        return Err(Rejection::RunFinal { state: run.state });
    }
    if now >= run.deadline {
        return Err(Rejection::RunFinal { state: RunState::Failed });
    }
    Ok(())
}

fn cancel(
    known: Option<Arc<Run>>,
    by: Option<&AgentId>,
    reason: &str,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    let run = known.ok_or(Rejection::RunUnknown)?;
    // An operator may always cancel, an agent only what it has started or has to do.
    if by.is_some() && by != run.starter.as_ref() {
        let task = run.task.as_ref().ok_or(Rejection::NotStarter)?;
        check_owner(read, task, by)?;
    }
    // A repeat of the cancellation changes nothing.
    if run.state == RunState::Cancelled {
        return Ok(Transition::default());
    }
    check_open(&run, now)?;
    let by = by.map_or_else(|| "an operator".to_owned(), |agent| format!("agent {agent}"));
    let message = if reason.is_empty() { format!("cancelled by {by}") } else { format!("cancelled by {by}: {reason}") };
    let mut builder = TransitionBuilder::new(Run::clone(&run), now);
    builder.end(RunState::Cancelled, Some(Failure { code: None, message }));
    Ok(builder.done())
}

fn pass_time(run: &Run, now: Timestamp) -> Transition {
    if run.next_deadline().is_none_or(|at| now < at) {
        return Transition::default();
    }
    let mut builder = TransitionBuilder::new(run.clone(), now);
    let message = "the whole time of the run is over".to_owned();
    builder.end(RunState::Failed, Some(Failure { code: Some(ErrorCode::WholeTimeout), message }));
    builder.done()
}

/// Follows the run's task, and the handoffs that carry out choices.
fn on_signal(
    known: Option<Arc<Run>>,
    signal: &RunSignal,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    // The run may have ended or been removed before its handoff.
    let Some(run) = known.filter(|run| !run.state.is_final()) else { return Ok(Transition::default()) };
    match signal {
        RunSignal::HandoffBegan { choice, handoff, task, receiver } => {
            // Checked here once more, in the transaction of the request: two requests may carry out the same choice at
            // once, and the second must fail with its handoff.
            check_handoff(&run, *choice, *handoff, task, receiver)?;
            let mut builder = TransitionBuilder::new(Run::clone(&run), now);
            builder.bind(*choice, *handoff);
            Ok(builder.done())
        }
        RunSignal::HandoffEnded { choice, handoff, owner } => {
            // A choice that was withdrawn, or is carried out by another handoff, has nothing to wait for.
            let is_bound = run.moving(*choice).is_some_and(|(_, choice)| choice.handoff == Some(*handoff));
            if !is_bound {
                return Ok(Transition::default());
            }
            let present = match owner {
                Some(owner) => Owner::of(&run, owner, read),
                None => Owner::of_task(&run, read)?,
            };
            let mut builder = TransitionBuilder::new(Run::clone(&run), now).of(present);
            builder.follow(*choice, *handoff, owner.as_ref());
            Ok(builder.done())
        }
        RunSignal::HandoffRefused { choice, task, code } => {
            let waits = run.moving(*choice).is_some_and(|(_, choice)| choice.handoff.is_none());
            if run.task.as_ref() != Some(task) || !waits {
                return Ok(Transition::default());
            }
            let mut builder = TransitionBuilder::new(Run::clone(&run), now).of(Owner::of_task(&run, read)?);
            builder.give_up(|id| id == *choice, Some(*code));
            Ok(builder.done())
        }
        RunSignal::TaskMoved { owner } => {
            let mut builder = TransitionBuilder::new(Run::clone(&run), now).of(Owner::of(&run, owner, read));
            // Every owner of the task takes part in its run (SPEC 10).
            if !owner.is_coordinator() {
                builder.run.participants.insert(owner.clone());
            }
            builder.log(Event::TaskMoved { owner: owner.clone() });
            builder.give_up(|_| true, None);
            builder.leave_with_owner();
            Ok(builder.done())
        }
        RunSignal::TaskEnded { status } => {
            let mut builder = TransitionBuilder::new(Run::clone(&run), now);
            let message = match &run.task {
                Some(task) => format!("task {task} has ended"),
                None => "the task has ended".to_owned(),
            };
            let (state, failure) = match status {
                TaskStatus::Completed => (RunState::Completed, None),
                TaskStatus::Failed => (RunState::Failed, Some(Failure { code: Some(ErrorCode::TaskFinal), message })),
                _ => (RunState::Cancelled, Some(Failure { code: None, message })),
            };
            builder.end(state, failure);
            Ok(builder.done())
        }
    }
}

// ------------------------------------------------------------------------------------------------------- transitions

/// A transition under construction.
struct TransitionBuilder {
    run: Run,
    entries: Vec<RunEntry>,
    turns: Vec<RunTurn>,
    effects: Vec<Effect>,
    now: Timestamp,
    /// The caller of the step, which its answer tells all that a letter would. `None`: an operator, or no call.
    caller: Option<AgentId>,
    /// The owner of the run's task. `None`: not known to the step, or the run is over none.
    owner: Option<Owner>,
    /// The nodes that have become active, or need a handoff, in this step.
    touched: BTreeSet<NodeId>,
}

/// The decision about the routing calls of a turn.
enum Decision {
    None,
    One { output: NodeId, reason: String },
    Refused(ErrorCode),
}

impl TransitionBuilder {
    fn new(run: Run, now: Timestamp) -> Self {
        Self {
            run,
            entries: Vec::new(),
            turns: Vec::new(),
            effects: Vec::new(),
            now,
            caller: None,
            owner: None,
            touched: BTreeSet::new(),
        }
    }

    fn done(mut self) -> Transition {
        self.write_letters();
        let Self { mut run, entries, turns, effects, now, .. } = self;
        run.updated_at = now;
        // A running run waits for a node, and its node for a turn or a handoff (SPEC 12, law 14).
        debug_assert!(
            run.state.is_final()
                || run.nodes.values().any(|node| matches!(node.state, NodeState::Active | NodeState::Moving(_)))
        );
        let mut writes = vec![Entity::Run(Arc::new(run))];
        writes.extend(entries.into_iter().map(|entry| Entity::RunEntry(Arc::new(entry))));
        writes.extend(turns.into_iter().map(|turn| Entity::RunTurn(Arc::new(turn))));
        Transition { writes, effects }
    }

    fn log(&mut self, event: Event) -> u64 {
        self.run.log_length += 1;
        let number = self.run.log_length;
        self.entries.push(RunEntry { run: self.run.id, number, at: self.now, event });
        number
    }

    fn node(&mut self, id: &NodeId) -> &mut NodeRun {
        self.run.nodes.entry(id.clone()).or_default()
    }

    fn take_turn(&mut self, turn: &Turn) {
        let graph = self.run.graph.clone();
        let node = graph.node(&turn.node).expect("an active node is in the graph");
        // Without a choice left no tool is offered, so every routing call of the turn is refused (SPEC 12, law 14).
        let offered = if self.run.remaining(&turn.node) > 0 { graph.tools(node) } else { Vec::new() };
        let number = self.run.log_length + 1;
        let decision = decide(&turn.calls, &offered);
        let refusals = match decision {
            Decision::Refused(_) => self.node(&turn.node).refusals + 1,
            Decision::One { .. } | Decision::None => 0,
        };
        self.node(&turn.node).refusals = refusals % REFUSALS_MAX;
        let outcome = match decision {
            Decision::Refused(code) => {
                if refusals >= REFUSALS_MAX {
                    self.finish(&turn.node, graph.outputs_without_choice(node), number);
                }
                TurnOutcome::Refused { code }
            }
            Decision::One { output, reason } => {
                // Counted before the handoff, and kept if it fails: otherwise a model could try without end.
                self.node(&turn.node).choices += 1;
                match self.receiver_of(&output, turn) {
                    Some(receiver) => {
                        let (id, target) = (turn.id, output.clone());
                        let (receiver_id, is_edge) = (receiver.clone(), false);
                        let choice =
                            Choice { id, entry: number, target, is_edge, receiver: receiver_id, handoff: None };
                        self.node(&turn.node).state = NodeState::Moving(choice);
                        TurnOutcome::Proposed { target: output, reason, receiver }
                    }
                    None => {
                        self.finish(&turn.node, [&output], number);
                        TurnOutcome::Chosen { target: output, reason }
                    }
                }
            }
            // A failed turn goes on by the forward outputs too: a run must not stand still because of one node.
            Decision::None if turn.finished || !turn.error.is_empty() => {
                self.finish(&turn.node, graph.outputs_without_choice(node), number);
                TurnOutcome::Finished
            }
            Decision::None => TurnOutcome::Recorded,
        };
        self.record(turn, outcome, &offered);
    }

    /// The receiver of the handoff that the choice of this output needs. `None`: the task stays where it is.
    fn receiver_of(&self, output: &NodeId, turn: &Turn) -> Option<String> {
        self.run.task.as_ref()?;
        let target = self.run.graph.node(output)?;
        // The owner need not hand the task over to itself.
        let is_own = match (&target.agent, &target.agent_type) {
            (Some(agent), _) => turn.by.as_ref() == Some(agent),
            (None, Some(kind)) => turn.by_types.contains(kind),
            (None, None) => true,
        };
        if is_own { None } else { receiver_of(target) }
    }

    /// Gives up a choice whose handoff has not begun. The choice stays counted.
    fn withdraw(&mut self, turn: &Turn) {
        self.take_back(&turn.node);
        self.record(turn, TurnOutcome::Withdrawn, &[]);
    }

    /// Adds the turn with its answer to the log, then the super-step that it may begin.
    fn record(&mut self, turn: &Turn, outcome: TurnOutcome, offered: &[Tool]) {
        // A node by its type names no agent, so its participant is known only now.
        self.run.participants.extend(turn.by.clone());
        let results = results(&turn.calls, &outcome, offered);
        let remaining = self.run.remaining(&turn.node);
        let record = TurnRecord {
            id: turn.id,
            node: turn.node.clone(),
            by: turn.by.clone(),
            calls: turn.calls.iter().map(|call| (call.id.clone(), call.name.clone())).collect(),
            finished: turn.finished,
            output: turn.output.clone(),
            error: turn.error.clone(),
            outcome,
            results,
            remaining,
            active: Vec::new(),
            proposal: None,
        };
        let number = self.log(Event::Turn(Box::new(record)));
        let turn_place = RunTurn { run: self.run.id, turn: turn.id, number, digest: turn.digest };
        self.turns.push(turn_place);
        self.run.turns += 1;
        self.advance();
        // The turn's entry shows the nodes after the super-step that it began, so it is filled in after `advance`.
        let active = if self.run.state.is_final() { Vec::new() } else { self.run.active() };
        let proposal = if active.is_empty() { self.next_proposal() } else { None };
        if let Some(Event::Turn(record)) = self.entries.first_mut().map(|entry| &mut entry.event) {
            (record.active, record.proposal) = (active, proposal);
        }
    }

    /// Ends the node's part of the super-step, with these targets.
    fn finish<'a>(&mut self, node: &NodeId, targets: impl IntoIterator<Item = &'a NodeId>, entry: u64) {
        self.node(node).state = NodeState::Done;
        for target in targets {
            self.run.next.entry(target.clone()).or_default().push(entry);
        }
    }

    /// Begins the next super-step once every active node has finished, or ends the run.
    fn advance(&mut self) {
        let is_open = |node: &NodeRun| matches!(node.state, NodeState::Active | NodeState::Moving(_));
        if self.run.nodes.values().any(is_open) {
            return;
        }
        let mut next = std::mem::take(&mut self.run.next);
        // END is no node. A run ends once no other target is left, not with the first branch that reaches END.
        next.retain(|target, _| !is_end(target));
        if next.is_empty() {
            return self.end(RunState::Completed, None);
        }
        let most = self.run.graph.steps_max;
        // Bounds a run whose choices and cycles would go on for ever.
        if self.run.step >= most {
            let message = format!("the run has made {most} super-steps, the most that its graph allows");
            return self.end(RunState::Failed, Some(Failure { code: Some(ErrorCode::StepsExhausted), message }));
        }
        self.run.step += 1;
        // All nodes of the former super-step first: a target may be one of them, and becomes active below.
        for node in self.run.nodes.values_mut() {
            (node.state, node.inputs, node.refusals) = (NodeState::Idle, Vec::new(), 0);
        }
        let (step, nodes) = (self.run.step, next.keys().cloned().collect());
        for (id, inputs) in next {
            let node = self.node(&id);
            (node.state, node.inputs, node.for_agent) = (NodeState::Active, inputs, true);
            self.touched.insert(id);
        }
        self.log(Event::StepBegan { step, nodes });
        self.propose();
    }

    fn end(&mut self, state: RunState, failure: Option<Failure>) {
        self.run.state = state;
        self.run.failure.clone_from(&failure);
        // Targets of a run that has ended would show as if they were still to come.
        self.run.next.clear();
        // The agent that started the run may not be the one whose turn ended it.
        if let (Some(Failure { code: Some(code), message }), Some(starter)) = (&failure, &self.run.starter) {
            let message = format!("run {} of graph {} has failed: {message}", self.run.id, self.run.graph.id);
            let notice = Notice { code: *code, message, advice: Advice::None, is_critical: false };
            let mail = Mail::Notice { notice, about: None, task: None };
            let (to, priority) = (starter.clone(), Priority::default());
            self.effects.push(Effect::Deliver { to, mail, priority, report_to: None });
        }
        self.log(Event::Ended { state, failure });
    }

    /// Makes the nodes active again whose choice waits for a request of a handoff. The choices stay counted.
    fn give_up(&mut self, which: impl Fn(TurnId) -> bool, code: Option<ErrorCode>) {
        let waiting = |(node, of): (&NodeId, &NodeRun)| match &of.state {
            NodeState::Moving(Choice { id, handoff: None, .. }) if which(*id) => Some((node.clone(), *id)),
            NodeState::Moving(_) | NodeState::Idle | NodeState::Active | NodeState::Done => None,
        };
        let waiting: Vec<(NodeId, TurnId)> = self.run.nodes.iter().filter_map(waiting).collect();
        for (node, choice) in waiting {
            self.take_back(&node);
            self.log(Event::ChoiceGivenUp { node, choice, code });
        }
    }

    fn bind(&mut self, choice: TurnId, handoff: crate::ids::MessageId) {
        let node = self.run.moving(choice).expect("checked before").0.clone();
        if let NodeState::Moving(moving) = &mut self.node(&node).state {
            moving.handoff = Some(handoff);
        }
        self.log(Event::HandoffBegan { node, choice, handoff });
    }

    fn follow(&mut self, choice: TurnId, handoff: crate::ids::MessageId, owner: Option<&AgentId>) {
        let (node, moved) =
            self.run.moving(choice).map(|(node, choice)| (node.clone(), choice.clone())).expect("bound");
        self.log(Event::HandoffEnded { node: node.clone(), choice, handoff, owner: owner.cloned() });
        match owner {
            Some(owner) => {
                // A target by type names no agent, so its participant is known only now.
                self.run.participants.insert(owner.clone());
                match moved.is_edge {
                    true => self.arrive(&node),
                    false => self.finish(&node, [&moved.target], moved.entry),
                }
                self.arrive_with(handoff, owner);
                self.propose();
            }
            // The choice has failed, and stays counted.
            None => self.take_back(&node),
        }
        self.advance();
    }
}

/// The decision of the routing calls: exactly one distinct output, or a refusal of all of them.
fn decide(calls: &[Call], offered: &[Tool]) -> Decision {
    let routing: Vec<&Call> = calls.iter().filter(|call| tools::is_routing(offered, &call.name)).collect();
    let find = |call: &Call| tools::find(offered, &call.name);
    // One wrong call refuses the turn, right ones included: the broker would have to guess which of them the model
    // meant.
    if routing.iter().any(|call| find(call).is_none()) {
        return Decision::Refused(ErrorCode::TransferNotOffered);
    }
    let outputs: BTreeSet<&NodeId> = routing.iter().filter_map(|call| find(call)).map(|tool| &tool.output).collect();
    // Two calls of the same tool are one decision; models repeat themselves.
    if outputs.len() > 1 {
        return Decision::Refused(ErrorCode::TransferAmbiguous);
    }
    if routing.iter().any(|call| call.reason.is_err()) {
        return Decision::Refused(ErrorCode::FieldInvalid);
    }
    match (outputs.first(), routing.first()) {
        (Some(output), Some(call)) => {
            Decision::One { output: (*output).clone(), reason: call.reason.clone().unwrap_or_default() }
        }
        (None, _) | (_, None) => Decision::None,
    }
}

/// One result for each call, so that the history of the model stays valid.
fn results(calls: &[Call], outcome: &TurnOutcome, offered: &[Tool]) -> Vec<CallResult> {
    let names: Vec<&str> = offered.iter().map(|tool| tool.name.as_str()).collect();
    let of_call = |call: &Call| -> (bool, String) {
        if !tools::is_routing(offered, &call.name) {
            return (false, "Recorded. This tool does not route; its own result is the runtime's.".to_owned());
        }
        match outcome {
            TurnOutcome::Chosen { target, .. } if is_end(target) => (false, "The run ends here.".to_owned()),
            TurnOutcome::Chosen { target, .. } => (false, format!("Transferred to {target}.")),
            TurnOutcome::Proposed { target, receiver, .. } => {
                (false, format!("The task is handed over to {receiver} for {target}."))
            }
            TurnOutcome::Refused { code: ErrorCode::TransferAmbiguous } => (
                true,
                "Nothing was done: the turn names more than one target. Call exactly one transfer tool.".to_owned(),
            ),
            TurnOutcome::Refused { code: ErrorCode::TransferNotOffered } => match names.is_empty() {
                true => (true, "Nothing was done: no transfer is left. Finish without one.".to_owned()),
                false => (true, format!("Nothing was done: the offered transfers are {}.", names.join(", "))),
            },
            TurnOutcome::Refused { .. } => {
                let problem = call.reason.as_ref().err().map_or("another call of the turn was wrong", String::as_str);
                (true, format!("Nothing was done: {problem}."))
            }
            TurnOutcome::Recorded | TurnOutcome::Finished | TurnOutcome::Withdrawn => {
                (true, "Nothing was done: the node's choice was withdrawn.".to_owned())
            }
        }
    };
    calls
        .iter()
        .map(|call| {
            let (is_error, text) = of_call(call);
            CallResult { call: call.id.clone(), is_error, text }
        })
        .collect()
}

#[cfg(test)]
mod tests;
