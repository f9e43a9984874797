//! Runs over graphs: agents start them, report turns, twice or with other content, and carry choices out or give them up.

use std::{sync::Arc, time::Duration};

use baton_broker_core::{
    domain::{
        EntityId, Input,
        routing::{self, Call, Choice, Graph, Node, NodeState, Run, RunId, RunState, Start, Turn, TurnId},
    },
    envelope::signing::sha256,
    ids::{AgentId, AgentType, GraphId, IdSource as _, NodeId},
    proto::v1::{self, MessageType as T},
    time::Timestamp,
};

use super::{Action, Agent, Manner};
use crate::rng::{Ids, Rng};

/// The most runs that are open at once.
const OPEN_MAX: usize = 3;

/// The starts and reports of an agent, for their repeats.
#[derive(Debug, Default)]
pub(super) struct Reports {
    starts: Vec<(RunId, Start)>,
    turns: Vec<(RunId, Turn)>,
}

/// The graph with this place: a checker that sends work back, or two branches at once.
pub(crate) fn graph(place: u64, names: &[String], rng: &mut Rng) -> Graph {
    let mut node = |name: &str, handoffs: Option<u32>, outputs: &[&str]| {
        let agent = rng.once_in(2).then(|| AgentId::parse(&rng.pick(names)).unwrap());
        let is_of_type = agent.is_none() && rng.once_in(3);
        Node {
            id: NodeId::parse(name).unwrap(),
            description: format!("Does the work of {name}."),
            agent,
            agent_type: is_of_type.then(|| AgentType::parse("worker").unwrap()),
            handoffs: handoffs.map(|most| most + u32::from(rng.once_in(2))),
            outputs: outputs.iter().map(|output| NodeId::parse(output).unwrap()).collect(),
        }
    };
    let nodes = match place {
        0 => vec![
            node("searcher", None, &["checker"]),
            node("checker", Some(2), &["searcher", "generator"]),
            node("generator", None, &["end"]),
        ],
        _ => vec![
            node("start", None, &["left", "right"]),
            node("left", Some(1), &["start", "right", "end"]),
            node("right", Some(2), &["left", "end"]),
        ],
    };
    let graph = Graph {
        id: GraphId::parse(&format!("graph-{place}")).unwrap(),
        description: String::new(),
        entries: vec![nodes[0].id.clone()],
        nodes,
        steps_max: if rng.once_in(3) { 4 } else { 20 },
        revision: 0,
    };
    let problems = graph.problems();
    assert!(problems.iter().all(|problem| !problem.is_error()), "{problems:?}");
    graph
}

impl Agent {
    /// Starts a run, reports a turn, or repeats an earlier call. `runs` are all stored ones.
    pub(crate) fn route(&mut self, runs: &[Arc<Run>], names: &[String], ids: &Ids, now: Timestamp) -> Vec<Action> {
        let actions: Vec<Action> = match self.rng.roll(8) {
            0 | 1 => self.start_run(runs, ids, now).into_iter().collect(),
            2 => self.report_again().into_iter().collect(),
            3 => self.end_run_early(runs, names).into_iter().collect(),
            _ => self.take_turn(runs, ids, now),
        };
        // Some agents die between their choice and its report.
        if self.rng.once_in(10) { Vec::new() } else { actions }
    }

    fn start_run(&mut self, runs: &[Arc<Run>], ids: &Ids, now: Timestamp) -> Option<Action> {
        let open = runs.iter().filter(|run| run.state == RunState::Running).count();
        let (id, start) = match self.reports.starts.last() {
            Some(last) if self.rng.once_in(4) => last.clone(),
            _ if open >= OPEN_MAX => return None,
            _ => {
                let task = self.owned.keys().next().filter(|_| self.rng.roll(5) > 0);
                let start = Start {
                    graph: GraphId::parse(&format!("graph-{}", self.rng.roll(2))).unwrap(),
                    by: Some(self.id.clone()),
                    task: task.map(|task| baton_broker_core::ids::TaskId::parse(task).unwrap()),
                    whole: Duration::from_secs(20 + self.rng.roll(400)),
                };
                (RunId(ids.message_id(now)), start)
            }
        };
        self.reports.starts.push((id, start.clone()));
        Some(call(id, routing::Input::Start(start)))
    }

    /// Cancels a run, or registers another revision of a graph while runs over it are open.
    fn end_run_early(&mut self, runs: &[Arc<Run>], names: &[String]) -> Option<Action> {
        if self.rng.once_in(2) {
            let place = self.rng.roll(2);
            let graph = graph(place, names, &mut self.rng);
            let about = EntityId::Graph(graph.id.clone());
            return Some(Action::Call(about, Box::new(Input::Routing(routing::Input::Register { graph, removed: 0 }))));
        }
        let run = runs.iter().find(|run| run.state == RunState::Running)?;
        let cancel = routing::Input::Cancel { by: Some(self.id.clone()), reason: String::new() };
        self.rng.once_in(4).then(|| call(run.id, cancel))
    }

    /// Repeats a report, some with other content.
    fn report_again(&mut self) -> Option<Action> {
        let many = self.reports.turns.len() as u64;
        let place = usize::try_from(self.rng.roll(many.max(1))).unwrap();
        let (run, mut turn) = self.reports.turns.get(place)?.clone();
        if self.rng.once_in(3) {
            turn.finished = !turn.finished;
            turn.digest = digest_of(&turn);
        }
        Some(call(run, routing::Input::Turn(Box::new(turn))))
    }

    fn take_turn(&mut self, runs: &[Arc<Run>], ids: &Ids, now: Timestamp) -> Vec<Action> {
        let mut open: Vec<(Arc<Run>, NodeId)> = Vec::new();
        for run in runs.iter().filter(|run| run.state == RunState::Running) {
            let is_own = |node: &NodeId| match &run.task {
                Some(task) => self.owned.contains_key(task.as_str()),
                None => run.graph.node(node).is_some_and(|node| node.agent.as_ref().is_none_or(|of| *of == self.id)),
            };
            let is_open = |state: &NodeState| !matches!(state, NodeState::Idle | NodeState::Done);
            let nodes = run.nodes.iter().filter(|(id, node)| is_open(&node.state) && is_own(id));
            open.extend(nodes.map(|(id, _)| (run.clone(), id.clone())));
        }
        // A liar reports turns of any node of any run.
        if self.manner == Manner::Liar
            && let Some(run) = runs.last()
        {
            open.extend(run.graph.nodes.iter().map(|node| (run.clone(), node.id.clone())));
        }
        if open.is_empty() {
            return Vec::new();
        }
        // A run over a task goes first: its owner alone can take its turns.
        let over_tasks: Vec<_> = open.iter().filter(|(run, _)| run.task.is_some()).cloned().collect();
        let (run, node) = self.rng.pick(if over_tasks.is_empty() { &open } else { &over_tasks });
        if let Some(choice) = moving(&run, &node)
            && self.rng.roll(4) > 0
        {
            return self.carry_choice_out(&run, &choice, ids, now).into_iter().collect();
        }
        let turn = self.a_turn(&run, &node, ids, now);
        self.reports.turns.push((run.id, turn.clone()));
        let report = || call(run.id, routing::Input::Turn(Box::new(turn.clone())));
        let mut actions = vec![report()];
        if self.manner == Manner::Double {
            actions.push(Action::Later(self.rng.roll(30_000), Box::new(report())));
        }
        // A second runtime of the same node races with the first, and has chosen something else.
        if self.rng.once_in(5) {
            let other = self.a_turn(&run, &node, ids, now);
            self.reports.turns.push((run.id, other.clone()));
            actions.push(call(run.id, routing::Input::Turn(Box::new(other))));
        }
        actions
    }

    fn a_turn(&mut self, run: &Run, node: &NodeId, ids: &Ids, now: Timestamp) -> Turn {
        let outputs = run.graph.node(node).map(|node| node.outputs.clone()).unwrap_or_default();
        let tool = |target: &str| Call {
            id: format!("call-{target}"),
            name: format!("transfer_to_{target}"),
            reason: Ok("so".to_owned()),
        };
        let one = self.rng.pick(&outputs);
        let calls = match self.rng.roll(12) {
            0 => outputs.iter().map(|output| tool(output.as_str())).collect(),
            1 => vec![tool("nowhere")],
            2 => vec![Call { reason: Err("no JSON".to_owned()), ..tool(one.as_str()) }],
            3 => vec![Call { name: "look_up".to_owned(), ..tool("x") }],
            4 => vec![],
            5 => vec![tool(one.as_str()), tool(one.as_str())],
            // Also where no choice is left: the model has not looked.
            _ if run.graph.node(node).is_some_and(|node| node.handoffs.is_some()) => vec![tool(one.as_str())],
            _ => vec![],
        };
        let is_moving = moving(run, node).is_some();
        let mut turn = Turn {
            id: TurnId(ids.message_id(now)),
            digest: [0; 32],
            node: node.clone(),
            by: Some(self.id.clone()),
            by_types: vec![AgentType::parse("worker").unwrap()],
            calls,
            finished: self.rng.roll(4) > 0,
            output: "out".to_owned(),
            error: if is_moving || self.rng.once_in(15) { "it broke".to_owned() } else { String::new() },
        };
        turn.digest = digest_of(&turn);
        turn
    }

    /// Requests the handoff of a choice; some agents name another receiver.
    fn carry_choice_out(&mut self, run: &Run, choice: &Choice, ids: &Ids, now: Timestamp) -> Option<Action> {
        let task = run.task.as_ref()?.to_string();
        let request = v1::HandoffRequest {
            task_type: "x".into(),
            routing: Some(v1::RoutingRef { run_id: run.id.to_string(), choice_id: choice.id.to_string() }),
            ..Default::default()
        };
        let to = if self.rng.once_in(10) { "b".to_owned() } else { choice.receiver.clone() };
        let epoch = self.owned.get(&task).copied().unwrap_or(1);
        Some(Action::Send(self.make(&to, T::HandoffRequest, &task, "", epoch, &request, ids, now)))
    }
}

/// The choice of the node that waits for its handoff.
fn moving(run: &Run, node: &NodeId) -> Option<Choice> {
    match &run.nodes.get(node)?.state {
        NodeState::Moving(choice) => Some(choice.clone()),
        NodeState::Idle | NodeState::Active | NodeState::Done => None,
    }
}

fn digest_of(turn: &Turn) -> [u8; 32] {
    let content = format!("{:?}", Turn { digest: [0; 32], ..turn.clone() });
    sha256(&[content.as_bytes()])
}

fn call(run: RunId, input: routing::Input) -> Action {
    Action::Call(EntityId::Run(run), Box::new(Input::Routing(input)))
}
