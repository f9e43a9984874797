//! Runs through graphs: turns over restarts, runs over tasks, timeouts and retention.

use std::{ops::Bound::Unbounded, time::Duration};

use baton_broker_core::{
    Settings,
    access::Caller,
    codes::{ErrorCode, Refusal as _},
    domain::{
        EntityId, Input,
        routing::{self, Call, Graph, Node, Run, RunId, RunState, Start, Turn, TurnId},
    },
    engine::{Command, Revision},
    ids::{AgentId, AgentType, GraphId, MessageId, NodeId, TaskId},
    proto::v1,
    queries::RunFilter,
    store::{Order, Store as _, Table},
};
use prost::Message as _;

use crate::world::{Refusal, World, assert_refused, caller_of, operator};

pub(crate) const RUN: RunId = RunId(MessageId::from_bytes([7; 16]));
const DAY: Duration = Duration::from_secs(24 * 3600);

fn node(name: &str, agent: Option<&str>, handoffs: Option<u32>, outputs: &[&str]) -> Node {
    Node {
        id: NodeId::parse(name).unwrap(),
        description: format!("Does the work of {name}."),
        agent: agent.map(|agent| AgentId::parse(agent).unwrap()),
        agent_type: None,
        handoffs,
        outputs: outputs.iter().map(|output| NodeId::parse(output).unwrap()).collect(),
    }
}

fn graph(nodes: Vec<Node>) -> Graph {
    let entries = vec![nodes[0].id.clone()];
    let id = GraphId::parse("g").unwrap();
    Graph { id, description: String::new(), nodes, entries, steps_max: 100, revision: 0 }
}

/// A searcher, a checker with three choices, and a generator.
pub(crate) fn story() -> Graph {
    graph(vec![
        node("searcher", None, None, &["checker"]),
        node("checker", None, Some(3), &["searcher", "generator"]),
        node("generator", None, None, &["end"]),
    ])
}

fn turn_id(number: u64) -> TurnId {
    let mut bytes = [8; 16];
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    TurnId(MessageId::from_bytes(bytes))
}

pub(crate) fn turn(number: u64, node: &str, by: Option<&str>, call: Option<&str>) -> Turn {
    let call = call.map(|name| Call { id: "c1".to_owned(), name: name.to_owned(), reason: Ok("why".to_owned()) });
    Turn {
        id: turn_id(number),
        digest: [u8::try_from(number).unwrap(); 32],
        node: NodeId::parse(node).unwrap(),
        by: by.map(|agent| AgentId::parse(agent).unwrap()),
        by_types: Vec::new(),
        calls: call.into_iter().collect(),
        finished: true,
        output: format!("turn {number}"),
        error: String::new(),
    }
}

impl World {
    pub(crate) fn apply(&mut self, about: EntityId, input: routing::Input) -> Result<bool, Refusal> {
        let input = Box::new(Input::Routing(input));
        self.ask(|reply| Command::Apply { about, caller: caller_of(&input), input, reply })
    }

    pub(crate) fn register_graph(&mut self, graph: Graph) -> Result<bool, Refusal> {
        self.register_revision(Revision::Graph(graph))
    }

    pub(crate) fn start_run(&mut self, by: Option<&str>, task: Option<&str>) -> Result<bool, Refusal> {
        let start = Start {
            graph: GraphId::parse("g").unwrap(),
            by: by.map(|agent| AgentId::parse(agent).unwrap()),
            task: task.map(|task| TaskId::parse(task).unwrap()),
            whole: Duration::from_secs(3600),
        };
        self.apply(EntityId::Run(RUN), routing::Input::Start(start))
    }

    /// Starts a run with another id than that of the story.
    pub(crate) fn start_other_run(&mut self, by: Option<&str>) -> Result<bool, Refusal> {
        let start = Start {
            graph: GraphId::parse("g").unwrap(),
            by: by.map(|agent| AgentId::parse(agent).unwrap()),
            task: None,
            whole: Duration::from_secs(3600),
        };
        self.apply(EntityId::Run(RunId(MessageId::from_bytes([9; 16]))), routing::Input::Start(start))
    }

    pub(crate) fn report_turn(&mut self, turn: Turn) -> Result<bool, Refusal> {
        self.apply(EntityId::Run(RUN), routing::Input::Turn(Box::new(turn)))
    }

    pub(crate) fn run(&self) -> Run {
        let caller = operator();
        Run::clone(&self.view(&caller).run(RUN).expect("the run is known"))
    }

    fn active(&self) -> Vec<String> {
        self.run().active().iter().map(ToString::to_string).collect()
    }

    fn recorded(&self, number: u64) -> v1::RunTurn {
        let caller = operator();
        self.view(&caller).run_turn(&self.run(), turn_id(number)).expect("the turn is known")
    }

    /// The log of the run, which has every number once.
    pub(crate) fn log(&self) -> Vec<v1::RunEntry> {
        let caller = operator();
        let page = self.view(&caller).run_log(RUN, 0, 1000).unwrap();
        assert!(page.entries.iter().map(|entry| entry.number).eq(1..=page.length));
        assert_eq!(page.gap, None);
        page.entries
    }

    /// Appends to the workspace of the run. Returns the number of the entry.
    fn append_to_run(&mut self, from: &str) -> Result<u64, Refusal> {
        let append = v1::WorkspaceAppend {
            workspace_id: format!("run:{RUN}"),
            topic: "notes".to_owned(),
            entry: Some(v1::workspace_append::Entry::Bytes(v1::ContextBytes {
                data: vec![1].into(),
                ..Default::default()
            })),
            ..Default::default()
        };
        let envelope = self.envelope(from, "", v1::MessageType::WorkspaceAppend, &append);
        self.send(envelope).map(|receipt| receipt.resource_sequence)
    }

    fn rows_of_runs(&self, table: Table) -> usize {
        self.disk.scan(table, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap().len()
    }
}

/// Reports turns of a model that always goes back, and counts the visits of each node.
fn go_back(world: &mut World, visits: &mut [u32; 3], number: &mut u64) {
    let node = world.active().remove(0);
    let place = ["searcher", "checker", "generator"].iter().position(|name| **name == *node).unwrap();
    visits[place] += 1;
    *number += 1;
    let goes_back = place == 1 && world.run().remaining(&NodeId::parse("checker").unwrap()) > 0;
    let call = goes_back.then_some("transfer_to_searcher");
    assert!(world.report_turn(turn(*number, &node, None, call)).unwrap());
}

#[test]
fn a_model_that_always_goes_back_ends_with_the_counts_4_4_1_over_a_kill() {
    let mut world = World::with(&["a"]);
    world.register_graph(story()).unwrap();
    world.start_run(None, None).unwrap();
    let (mut visits, mut number) = ([0; 3], 0);
    let checker = NodeId::parse("checker").unwrap();
    while world.run().remaining(&checker) > 1 || !world.run().nodes.contains_key(&checker) {
        go_back(&mut world, &mut visits, &mut number);
    }
    // The broker dies after the second choice, and one is left.
    world.restart();
    assert_eq!((world.run().remaining(&checker), world.active()), (1, vec!["searcher".to_owned()]));
    while world.run().state == RunState::Running {
        go_back(&mut world, &mut visits, &mut number);
    }
    assert_eq!(visits, [4, 4, 1]);
    assert_eq!(world.run().state, RunState::Completed);
    let log = world.log();
    assert!(matches!(log.last().unwrap().event, Some(v1::run_entry::Event::Ended(_))));
}

#[test]
fn a_turn_is_applied_once_over_a_kill() {
    let mut world = World::with(&["a"]);
    world.register_graph(story()).unwrap();
    world.start_run(None, None).unwrap();
    assert!(world.report_turn(turn(1, "searcher", None, None)).unwrap());
    let first = world.recorded(1);
    world.restart();
    assert!(!world.report_turn(turn(1, "searcher", None, None)).unwrap());
    assert_eq!(world.recorded(1), first);
    let other = Turn { digest: [99; 32], ..turn(1, "searcher", None, None) };
    assert_refused(world.report_turn(other), ErrorCode::MessageIdReused);
    assert_eq!(world.active(), ["checker"]);
}

#[test]
fn a_turn_whose_commit_fails_leaves_nothing() {
    let mut world = World::with(&["a"]);
    world.register_graph(story()).unwrap();
    world.start_run(None, None).unwrap();
    world.disk.full.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_refused(world.report_turn(turn(1, "searcher", None, None)), ErrorCode::StoreUnavailable);
    assert_refused(world.report_turn(turn(1, "searcher", None, None)), ErrorCode::StoreUnavailable);
    world.disk.full.store(false, std::sync::atomic::Ordering::Relaxed);
    world.recover();
    assert_eq!(world.active(), ["searcher"]);
    assert!(world.report_turn(turn(1, "searcher", None, None)).unwrap());
}

#[test]
fn a_registered_graph_is_listed_with_its_latest_revision() {
    let mut world = World::with(&["a"]);
    assert!(world.register_graph(story()).unwrap());
    assert!(!world.register_graph(story()).unwrap(), "the same graph is the same revision");
    let mut changed = story();
    changed.steps_max = 7;
    assert!(world.register_graph(changed).unwrap());
    world.restart();
    let caller = operator();
    let page = world.view(&caller).graphs(10, "").unwrap();
    let found: Vec<(u64, u32)> = page.entries.iter().map(|graph| (graph.revision, graph.steps_max)).collect();
    assert_eq!(found, [(2, 7)]);
}

#[test]
fn the_registry_has_at_most_a_thousand_graphs() {
    let mut world = World::with(&["a"]);
    for number in 0..1000 {
        let id = GraphId::parse(&format!("g{number}")).unwrap();
        world.register_graph(Graph { id, ..story() }).unwrap();
    }
    assert_refused(world.register_graph(story()), ErrorCode::LimitExceeded);
    // A further revision adds no graph.
    let id = GraphId::parse("g0").unwrap();
    assert!(world.register_graph(Graph { id, steps_max: 3, ..story() }).unwrap());
}

#[test]
fn a_run_fails_at_its_whole_time_over_a_restart_and_its_starter_is_told() {
    let mut world = World::with(&["a"]);
    let mut a = world.connect("a");
    world.register_graph(story()).unwrap();
    world.start_run(Some("a"), None).unwrap();
    world.pass(Duration::from_secs(1800));
    world.restart();
    world.pass(Duration::from_secs(1799));
    assert_eq!(world.run().state, RunState::Running);
    let mut again = world.connect("a");
    world.pass(Duration::from_secs(1));
    let run = world.run();
    assert_eq!((run.state, run.failure.unwrap().code), (RunState::Failed, Some(ErrorCode::WholeTimeout)));
    drop(a.deliveries());
    let (_, envelope) = again.delivery();
    let notice = v1::ErrorNotification::decode(envelope.payload.unwrap().value).unwrap();
    assert_eq!(notice.error_code(), v1::ErrorCode::WholeTimeout);
    assert_refused(world.report_turn(turn(1, "searcher", Some("a"), None)), ErrorCode::RunFinal);
}

#[test]
fn an_ended_run_is_removed_whole() {
    let mut world = World::with(&["a"]);
    world.register_graph(story()).unwrap();
    world.start_run(Some("a"), None).unwrap();
    for number in 1..200 {
        let turn = Turn { finished: false, ..turn(number, "searcher", Some("a"), None) };
        world.report_turn(turn).unwrap();
    }
    let cancel = routing::Input::Cancel { by: None, reason: String::new() };
    world.apply(EntityId::Run(RUN), cancel).unwrap();
    world.pass(29 * DAY);
    assert_eq!(world.rows_of_runs(Table::RunLog), 202);
    world.pass(2 * DAY);
    let left = [Table::Runs, Table::RunLog, Table::RunTurns, Table::Expirations, Table::Timers];
    assert_eq!(left.map(|table| world.rows_of_runs(table)), [0; 5]);
    assert_eq!(world.rows_of_runs(Table::Listings), 2, "only the graph and its name");
    let caller = operator();
    assert_eq!(world.view(&caller).run(RUN).unwrap_err().to_string(), format!("run {RUN} does not exist"));
}

#[test]
fn an_agent_reads_the_runs_in_which_it_takes_part() {
    let mut world = World::with(&["a", "b", "c"]);
    let mut graph = story();
    graph.nodes[0].agent = Some(AgentId::parse("b").unwrap());
    world.register_graph(graph).unwrap();
    world.start_run(Some("a"), None).unwrap();
    for (agent, count) in [("a", 1), ("b", 1), ("c", 0)] {
        let caller = Caller::Agent(AgentId::parse(agent).unwrap());
        let view = world.view(&caller);
        assert_eq!(view.runs(&RunFilter::default(), 10, "").unwrap().entries.len(), count, "{agent}");
        assert_eq!(view.run(RUN).is_ok(), count == 1, "{agent}");
    }
}

// --------------------------------------------------------------------------------------------------- runs over a task

/// A run over task "t" of a, whose draft b reviews. The review is proposed by the choice with this turn.
fn over_a_task() -> World {
    let mut world = World::with(&["a", "b", "c"]);
    let draft = node("draft", None, Some(2), &["review", "end"]);
    let review = node("review", Some("b"), Some(1), &["draft", "end"]);
    world.register_graph(graph(vec![draft, review])).unwrap();
    // A first handoff that c rejects creates the task, and leaves it with a.
    let handoff = world.send(world.request("a", "c", 1)).unwrap().handoff_id;
    world.send(world.reject("c", "a", &handoff, &[])).unwrap();
    // Mail of a task waits for the mail before it, so all of it is acked.
    for agent in ["a", "c"] {
        let mut session = world.connect(agent);
        loop {
            let deliveries = session.deliveries();
            if deliveries.is_empty() {
                break;
            }
            deliveries.iter().for_each(|(delivery, _)| world.ack(&session, delivery));
        }
        world.disconnect(session);
    }
    world.start_run(Some("a"), Some("t")).unwrap();
    world
}

fn carrying_out(run: RunId, choice: TurnId) -> v1::HandoffRequest {
    v1::HandoffRequest {
        task_type: "support".into(),
        routing: Some(v1::RoutingRef { run_id: run.to_string(), choice_id: choice.to_string() }),
        ..Default::default()
    }
}

#[test]
fn a_choice_of_another_agents_node_moves_the_run_with_the_handoff() {
    let mut world = over_a_task();
    assert_refused(world.report_turn(turn(1, "draft", Some("b"), None)), ErrorCode::NotOwner);
    world.report_turn(turn(1, "draft", Some("a"), Some("transfer_to_review"))).unwrap();
    assert_eq!(world.recorded(1).choice.unwrap().handoff_receiver_id, "b");
    assert!(world.active().is_empty());
    world.restart();
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let request = world.request_with("a", "b", 1, &carrying_out(RUN, turn_id(1)));
    let handoff = world.hand_over_with(&mut a, &mut b, 1, request);
    assert_eq!(world.handoff(&handoff).routing.unwrap().run, RUN);
    assert_eq!(world.active(), ["review"]);
    // The task's owner is b now, and only b reports turns.
    assert_refused(world.report_turn(turn(2, "review", Some("a"), None)), ErrorCode::NotOwner);
    world.report_turn(turn(2, "review", Some("b"), Some("transfer_to_end"))).unwrap();
    assert_eq!(world.run().state, RunState::Completed);
    world.audit("t");
    let caller = Caller::Agent(AgentId::parse("b").unwrap());
    assert_eq!(world.view(&caller).runs(&RunFilter::default(), 10, "").unwrap().entries.len(), 1);
}

#[test]
fn a_rejected_handoff_makes_the_node_active_again_and_counts_the_choice() {
    let mut world = over_a_task();
    world.report_turn(turn(1, "draft", Some("a"), Some("transfer_to_review"))).unwrap();
    let handoff = world.send(world.request_with("a", "b", 1, &carrying_out(RUN, turn_id(1)))).unwrap().handoff_id;
    world.restart();
    world.send(world.reject("b", "a", &handoff, &[])).unwrap();
    assert_eq!(world.active(), ["draft"]);
    assert_eq!(world.run().remaining(&NodeId::parse("draft").unwrap()), 1);
    let ended = world.log().into_iter().filter_map(|entry| match entry.event {
        Some(v1::run_entry::Event::HandoffEnded(ended)) => Some((ended.handoff_id, ended.owner_id)),
        _ => None,
    });
    assert_eq!(ended.collect::<Vec<_>>(), [(handoff, String::new())]);
    // The choice has failed, so no further handoff carries it out.
    let again = world.request_with("a", "b", 1, &carrying_out(RUN, turn_id(1)));
    assert_refused(world.send(again), ErrorCode::NodeNotActive);
    world.audit("t");
}

#[test]
fn a_handoff_that_times_out_makes_the_node_active_again() {
    let mut world = over_a_task();
    world.report_turn(turn(1, "draft", Some("a"), Some("transfer_to_review"))).unwrap();
    world.send(world.request_with("a", "b", 1, &carrying_out(RUN, turn_id(1)))).unwrap();
    world.pass(Duration::from_secs(361));
    assert_eq!(world.active(), ["draft"]);
}

/// The owners that moves outside a run have given to its task, and the choices that were given up with their codes.
fn moves_outside(world: &World) -> (Vec<String>, Vec<(String, v1::ErrorCode)>) {
    let (mut owners, mut given_up) = (Vec::new(), Vec::new());
    for entry in world.log() {
        match entry.event {
            Some(v1::run_entry::Event::TaskMoved(moved)) => owners.push(moved.owner_id),
            Some(v1::run_entry::Event::ChoiceGivenUp(choice)) => {
                given_up.push((choice.node_id.clone(), choice.error_code()));
            }
            _ => {}
        }
    }
    (owners, given_up)
}

#[test]
fn a_run_follows_its_task_to_an_owner_outside_its_graph() {
    let mut world = over_a_task();
    world.report_turn(turn(1, "draft", Some("a"), Some("transfer_to_review"))).unwrap();
    world.restart();
    // The owner hands the task to c in place of the proposed handoff to b.
    let (mut a, mut c) = (world.connect("a"), world.connect("c"));
    let request = world.request("a", "c", 1);
    world.hand_over_with(&mut a, &mut c, 1, request);
    assert_eq!(moves_outside(&world), (vec!["c".into()], vec![("draft".into(), v1::ErrorCode::Unspecified)]));
    assert_eq!(world.active(), ["draft"]);
    // The given-up choice stays counted, and no later handoff carries it out.
    assert_eq!(world.run().remaining(&NodeId::parse("draft").unwrap()), 1);
    let late = world.request_with("c", "b", 2, &carrying_out(RUN, turn_id(1)));
    assert_refused(world.send(late), ErrorCode::NodeNotActive);
    // The new owner reads the run and goes on with it, and the former one does not.
    assert_refused(world.report_turn(turn(2, "draft", Some("a"), None)), ErrorCode::NotOwner);
    world.restart();
    let caller = Caller::Agent(AgentId::parse("c").unwrap());
    assert_eq!(world.view(&caller).run(RUN).unwrap().id, RUN);
    assert_eq!(world.view(&caller).runs(&RunFilter::default(), 10, "").unwrap().entries.len(), 1);
    world.report_turn(turn(2, "draft", Some("c"), Some("transfer_to_end"))).unwrap();
    assert_eq!(world.run().state, RunState::Completed);
    world.audit("t");
}

#[test]
fn a_run_goes_on_with_the_agent_that_an_operator_gives_its_task_to() {
    let mut world = over_a_task();
    let (mut a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    let request = world.request("a", "c", 1);
    world.hand_over_with(&mut a, &mut c, 1, request);
    let handoff = world.reassign("b", 2).unwrap().handoff.id.to_string();
    world.take_and_ack(&mut b);
    world.send(world.accept("b", "baton.coordinator", &handoff, 3)).unwrap();
    world.take_and_ack(&mut b);
    world.send(world.complete("b", "baton.coordinator", &handoff, 3)).unwrap();
    assert_eq!(moves_outside(&world).0, ["c", "baton.coordinator", "b"]);
    assert_refused(world.report_turn(turn(1, "draft", Some("c"), None)), ErrorCode::NotOwner);
    world.report_turn(turn(1, "draft", Some("b"), Some("transfer_to_end"))).unwrap();
    assert_eq!(world.run().state, RunState::Completed);
}

#[test]
fn a_choice_whose_request_is_refused_by_the_loop_guard_is_given_up() {
    let mut world = over_a_task();
    // The run of the task would write to each new owner.
    world.apply(EntityId::Run(RUN), routing::Input::Cancel { by: None, reason: String::new() }).unwrap();
    let (mut a, mut c) = (world.connect("a"), world.connect("c"));
    for (epoch, from_a) in [(1, true), (2, false), (3, true), (4, false), (5, true), (6, false), (7, true), (8, false)]
    {
        let (from, to) = if from_a { (&mut a, &mut c) } else { (&mut c, &mut a) };
        let names = if from_a { ("a", "c") } else { ("c", "a") };
        let request = world.request(names.0, names.1, epoch);
        world.hand_over_with(from, to, epoch, request);
    }
    // A handoff from a to c is one too many now, and so is a choice of the graph that needs it.
    world
        .register_graph(graph(vec![
            node("draft", None, Some(2), &["check", "end"]),
            node("check", Some("c"), None, &["end"]),
        ]))
        .unwrap();
    let start = Start {
        graph: GraphId::parse("g").unwrap(),
        by: Some(AgentId::parse("a").unwrap()),
        task: Some(TaskId::parse("t").unwrap()),
        whole: Duration::from_secs(3600),
    };
    let second = RunId(MessageId::from_bytes([6; 16]));
    world.apply(EntityId::Run(second), routing::Input::Start(start)).unwrap();
    let choice = turn(1, "draft", Some("a"), Some("transfer_to_check"));
    world.apply(EntityId::Run(second), routing::Input::Turn(Box::new(choice))).unwrap();
    let request = world.request_with("a", "c", 9, &carrying_out(second, turn_id(1)));
    assert_refused(world.send(request), ErrorCode::LoopLimit);
    world.restart();
    let caller = operator();
    let view = world.view(&caller);
    let run = view.run(second).unwrap();
    assert_eq!(run.active().iter().map(ToString::to_string).collect::<Vec<_>>(), ["draft"]);
    let log = view.run_log(second, 0, 1000).unwrap().entries;
    let given_up = log.into_iter().find_map(|entry| match entry.event {
        Some(v1::run_entry::Event::ChoiceGivenUp(choice)) => Some(choice.error_code()),
        _ => None,
    });
    assert_eq!(given_up, Some(v1::ErrorCode::LoopLimit));
}

#[test]
fn the_end_of_a_task_ends_its_run() {
    use v1::TaskStatus::{Canceled, Completed, Failed};
    let ends = [(Completed, RunState::Completed), (Failed, RunState::Failed), (Canceled, RunState::Cancelled)];
    for (status, state) in ends {
        let mut world = over_a_task();
        world.send(world.status("a", "", 1, status)).unwrap();
        world.restart();
        let run = world.run();
        assert_eq!(run.state, state);
        let words = run.failure.map(|failure| failure.message).unwrap_or_default();
        assert!(state == RunState::Completed || words == "task t has ended", "{words:?}");
        assert_refused(world.report_turn(turn(1, "draft", Some("a"), None)), ErrorCode::RunFinal);
        world.audit("t");
    }
}

#[test]
fn a_task_has_at_most_sixteen_open_runs() {
    let mut world = over_a_task();
    let start = |number: u8| {
        let start = Start {
            graph: GraphId::parse("g").unwrap(),
            by: Some(AgentId::parse("a").unwrap()),
            task: Some(TaskId::parse("t").unwrap()),
            whole: Duration::from_secs(3600),
        };
        (EntityId::Run(RunId(MessageId::from_bytes([100 + number; 16]))), routing::Input::Start(start))
    };
    for number in 1..16 {
        let (about, input) = start(number);
        world.apply(about, input).unwrap();
    }
    let (about, input) = start(16);
    assert_refused(world.apply(about.clone(), input), ErrorCode::LimitExceeded);
    world.apply(EntityId::Run(RUN), routing::Input::Cancel { by: None, reason: String::new() }).unwrap();
    world.apply(about, start(16).1).unwrap();
}

#[test]
fn a_handoff_that_does_not_carry_out_its_choice_is_refused() {
    let mut world = over_a_task();
    world.report_turn(turn(1, "draft", Some("a"), Some("transfer_to_review"))).unwrap();
    let cases = [
        ("c", RUN, turn_id(1), ErrorCode::NodeNotActive),
        ("b", RUN, turn_id(9), ErrorCode::NodeNotActive),
        ("b", RunId(MessageId::from_bytes([1; 16])), turn_id(1), ErrorCode::RunUnknown),
    ];
    for (to, run, choice, code) in cases {
        assert_refused(world.send(world.request_with("a", to, 1, &carrying_out(run, choice))), code);
    }
    assert!(world.task("t").task.open_handoff.is_none());
    let mut other_task = world.request_with("a", "b", 1, &carrying_out(RUN, turn_id(1)));
    other_task.task_id = "u".into();
    assert_refused(world.send(other_task), ErrorCode::RunUnknown);
    // A stranger learns nothing of the run from a request about its task.
    for run in [RUN, RunId(MessageId::from_bytes([1; 16]))] {
        let of_stranger = world.request_with("c", "b", 1, &carrying_out(run, turn_id(1)));
        assert_refused(world.send(of_stranger), ErrorCode::NotOwner);
    }
}

#[test]
fn a_turn_costs_a_bounded_number_of_records() {
    let mut world = World::with(&["a"]);
    world.register_graph(story()).unwrap();
    world.start_run(Some("a"), None).unwrap();
    let before = world.disk.written.lock().unwrap().len();
    world.report_turn(Turn { finished: false, ..turn(1, "searcher", Some("a"), None) }).unwrap();
    let written = world.disk.written.lock().unwrap();
    let tables: Vec<&str> = written[before..].iter().flatten().map(|record| record.key.table.name()).collect();
    let count = |table: &str| tables.iter().filter(|written| **written == table).count();
    assert_eq!(["runs", "run_log", "run_turns"].map(count), [1; 3], "{tables:?}");
    assert_eq!(tables.len(), 5, "and the sequence, and what the starter has stored: {tables:?}");
}

#[test]
fn the_participants_of_a_run_share_a_workspace_until_its_end() {
    let mut world = World::with(&["a", "b", "c"]);
    world.register_graph(graph(vec![node("n", Some("b"), None, &["end"])])).unwrap();
    world.start_run(Some("a"), None).unwrap();
    assert_eq!((world.append_to_run("a").unwrap(), world.append_to_run("b").unwrap()), (1, 2));
    assert_refused(world.append_to_run("c"), ErrorCode::PermissionDenied);
    world.report_turn(turn(1, "n", Some("b"), None)).unwrap();
    assert_refused(world.append_to_run("a"), ErrorCode::WorkspaceClosed);
    world.pass(40 * DAY);
    assert_eq!((world.rows_of_runs(Table::Runs), world.rows_of_runs(Table::Workspaces)), (0, 0));
    assert_eq!(world.rows_of_runs(Table::WorkspaceEntries), 0);
}

#[test]
fn an_agent_that_works_at_a_node_by_its_type_takes_part() {
    let mut world = World::with(&["a", "b:writer"]);
    let mut graph = graph(vec![node("n", None, None, &["end"])]);
    graph.nodes[0].agent_type = Some(AgentType::parse("writer").unwrap());
    world.register_graph(graph).unwrap();
    world.start_run(Some("a"), None).unwrap();
    let by_types = vec![AgentType::parse("writer").unwrap()];
    world.report_turn(Turn { by_types, finished: false, ..turn(1, "n", Some("b"), None) }).unwrap();
    assert_eq!(world.append_to_run("b").unwrap(), 1);
    let b = Caller::Agent(AgentId::parse("b").unwrap());
    assert_eq!(world.view(&b).runs(&RunFilter::default(), 10, "").unwrap().entries.len(), 1);
}

#[test]
fn a_turn_a_graph_and_the_type_of_a_task_are_shown_to_callers_with_a_right() {
    let mut world = World::with(&["a", "b", "c"]);
    world.send(world.request("a", "b", 1)).unwrap();
    world.register_graph(story()).unwrap();
    world.start_run(Some("a"), Some("t")).unwrap();
    world.report_turn(turn(1, "searcher", Some("a"), None)).unwrap();
    let (run, graph) = (world.run(), GraphId::parse("g").unwrap());
    let (starter, stranger) =
        (Caller::Agent(AgentId::parse("a").unwrap()), Caller::Agent(AgentId::parse("c").unwrap()));
    assert_eq!(world.view(&starter).run_turn(&run, turn_id(1)).unwrap().output, "turn 1");
    assert!(world.view(&starter).run_entry(&run, 2).is_ok());
    assert_eq!(world.view(&starter).task_type_of_run(&run).unwrap(), "support");
    assert_eq!(world.view(&operator()).registered_graph(&graph).unwrap().id, graph);
    for (caller, code) in [(stranger, ErrorCode::PermissionDenied), (Caller::Anonymous, ErrorCode::IdentityMissing)] {
        assert_eq!(world.view(&caller).run_turn(&run, turn_id(1)).unwrap_err().code(), code);
        assert_eq!(world.view(&caller).run_entry(&run, 2).unwrap_err().code(), code);
        assert_eq!(world.view(&caller).task_type_of_run(&run).unwrap_err().code(), code);
    }
    let nameless = world.view(&Caller::Anonymous).registered_graph(&graph);
    assert_eq!(nameless.unwrap_err().code(), ErrorCode::IdentityMissing, "agents may register it");
}

// ------------------------------------------------------------------------------------- plain edges of runs over tasks

/// A run over task "t" of a, whose plain draft leads to the review of b.
fn with_a_plain_edge() -> World {
    let mut world = over_a_task();
    world.apply(EntityId::Run(RUN), routing::Input::Cancel { by: None, reason: String::new() }).unwrap();
    let draft = node("draft", Some("a"), None, &["review"]);
    world.register_graph(graph(vec![draft, node("review", Some("b"), None, &["end"])])).unwrap();
    world.start_plain_run("a");
    world
}

const PLAIN: RunId = RunId(MessageId::from_bytes([6; 16]));

impl World {
    fn start_plain_run(&mut self, by: &str) {
        let start = Start {
            graph: GraphId::parse("g").unwrap(),
            by: Some(AgentId::parse(by).unwrap()),
            task: Some(TaskId::parse("t").unwrap()),
            whole: Duration::from_secs(3600),
        };
        self.apply(EntityId::Run(PLAIN), routing::Input::Start(start)).unwrap();
    }

    fn report_plain(&mut self, turn: Turn) -> Result<bool, Refusal> {
        self.apply(EntityId::Run(PLAIN), routing::Input::Turn(Box::new(turn)))
    }

    fn plain_run(&self) -> Run {
        Run::clone(&self.view(&operator()).run(PLAIN).expect("the run is known"))
    }

    fn plain_active(&self) -> Vec<String> {
        self.plain_run().active().iter().map(ToString::to_string).collect()
    }

    /// The request of the handoff that the run proposes.
    fn proposed_request(&self) -> v1::HandoffRequest {
        let run = self.plain_run();
        carrying_out(PLAIN, run.proposed().expect("the run proposes a handoff").1.id)
    }

    /// The letters about nodes of runs that wait for the agent: the topic and the data of each.
    fn node_letters(&mut self, of: &str) -> Vec<(String, serde_json::Value)> {
        let mut session = self.connect(of);
        let mut letters = Vec::new();
        loop {
            let deliveries = session.deliveries();
            if deliveries.is_empty() {
                break;
            }
            for (delivery, envelope) in deliveries {
                self.ack(&session, &delivery);
                if envelope.message_type() == v1::MessageType::Info {
                    assert_eq!(envelope.sender_id, AgentId::broker().to_string());
                    let info = v1::Info::decode(envelope.payload.unwrap().value).unwrap();
                    letters.push((info.topic, serde_json::from_str(&info.data_json).unwrap()));
                }
            }
        }
        self.disconnect(session);
        letters
    }
}

#[test]
fn a_plain_edge_to_another_agents_node_hands_the_task_over_and_the_agent_is_told() {
    let mut world = with_a_plain_edge();
    world.report_plain(turn(1, "draft", Some("a"), None)).unwrap();
    let proposal = world.view(&operator()).run_turn(&world.plain_run(), turn_id(1)).unwrap().proposal.unwrap();
    assert_eq!((proposal.node_id.as_str(), proposal.handoff_receiver_id.as_str()), ("review", "b"));
    assert!(world.plain_active().is_empty());
    // Neither the owner nor the node's agent takes the node's turn before the task has moved.
    assert_refused(world.report_plain(turn(2, "review", Some("a"), None)), ErrorCode::NodeNotActive);
    assert_refused(world.report_plain(turn(2, "review", Some("b"), None)), ErrorCode::NotOwner);
    assert_eq!(world.node_letters("b"), []);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let request = world.request_with("a", "b", 1, &world.proposed_request());
    world.hand_over_with(&mut a, &mut b, 1, request);
    world.disconnect(a);
    world.disconnect(b);
    assert_eq!(world.plain_active(), ["review"]);
    world.restart();
    let letters = world.node_letters("b");
    let (topic, data) = letters.first().expect("a letter");
    assert_eq!((letters.len(), topic.as_str()), (1, "run.node_active"));
    assert_eq!((&data["run_id"], &data["node_id"]), (&PLAIN.to_string().into(), &"review".into()));
    assert_eq!((&data["task_id"], &data["graph_id"]), (&"t".into(), &"g".into()));
    assert_eq!((&data["inputs"][0]["node_id"], &data["inputs"][0]["output"]), (&"draft".into(), &"turn 1".into()));
    assert_refused(world.report_plain(turn(2, "review", Some("a"), None)), ErrorCode::NotOwner);
    world.report_plain(turn(2, "review", Some("b"), None)).unwrap();
    assert_eq!(world.plain_run().state, RunState::Completed);
    world.audit("t");
}

#[test]
fn a_plain_edge_goes_on_over_a_kill_of_the_broker_while_its_handoff_is_open() {
    let mut world = with_a_plain_edge();
    world.report_plain(turn(1, "draft", Some("a"), None)).unwrap();
    world.restart();
    // The same turn again begins no second handoff.
    assert!(!world.report_plain(turn(1, "draft", Some("a"), None)).unwrap());
    let request = world.proposed_request();
    let handoff = world.send(world.request_with("a", "b", 1, &request)).unwrap().handoff_id;
    world.restart();
    assert!(world.plain_active().is_empty());
    assert_refused(world.report_plain(turn(2, "review", Some("a"), None)), ErrorCode::NodeNotActive);
    assert_refused(world.send(world.request_with("a", "b", 1, &request)), ErrorCode::NodeNotActive);
    world.send(world.reject("b", "a", &handoff, &[])).unwrap();
    world.restart();
    // The handoff has failed: the node is with the owner of the task, and the run ends.
    assert_eq!(world.plain_active(), ["review"]);
    assert_refused(world.send(world.request_with("a", "b", 1, &request)), ErrorCode::NodeNotActive);
    assert_refused(world.report_plain(turn(2, "review", Some("b"), None)), ErrorCode::NotOwner);
    world.report_plain(turn(2, "review", Some("a"), None)).unwrap();
    assert_eq!(world.plain_run().state, RunState::Completed);
    world.audit("t");
}

#[test]
fn a_plain_edge_whose_request_the_loop_guard_refuses_is_given_up() {
    let mut world = over_a_task();
    // The run of the task would write to each new owner.
    world.apply(EntityId::Run(RUN), routing::Input::Cancel { by: None, reason: String::new() }).unwrap();
    let (mut a, mut c) = (world.connect("a"), world.connect("c"));
    for epoch in 1..=8 {
        let (from, to) = if epoch % 2 == 1 { (&mut a, &mut c) } else { (&mut c, &mut a) };
        let names = if epoch % 2 == 1 { ("a", "c") } else { ("c", "a") };
        let request = world.request(names.0, names.1, epoch);
        world.hand_over_with(from, to, epoch, request);
    }
    world.disconnect(a);
    world.disconnect(c);
    let draft = node("draft", None, None, &["check"]);
    world.register_graph(graph(vec![draft, node("check", Some("c"), None, &["end"])])).unwrap();
    world.start_plain_run("a");
    world.report_plain(turn(1, "draft", Some("a"), None)).unwrap();
    let request = world.request_with("a", "c", 9, &world.proposed_request());
    assert_refused(world.send(request), ErrorCode::LoopLimit);
    world.restart();
    assert_eq!(world.plain_active(), ["check"]);
    assert_eq!(world.node_letters("a").len(), 1, "the owner is told that the node is with it");
    world.report_plain(turn(2, "check", Some("a"), None)).unwrap();
    assert_eq!(world.plain_run().state, RunState::Completed);
}

#[test]
fn an_agent_is_told_of_its_node_in_a_run_over_no_task() {
    let mut world = World::with(&["a", "b"]);
    let (start, next) = (node("start", Some("a"), None, &["next", "gone"]), node("next", Some("b"), None, &["end"]));
    let gone = node("gone", Some("nobody"), None, &["end"]);
    world.register_graph(graph(vec![start, next, gone])).unwrap();
    world.start_run(Some("a"), None).unwrap();
    world.report_turn(turn(1, "start", Some("a"), None)).unwrap();
    assert_eq!(world.active(), ["gone", "next"]);
    let letters = world.node_letters("b");
    assert_eq!((letters.len(), &letters[0].1["task_id"]), (1, &"".into()));
    assert_refused(world.report_turn(turn(2, "next", Some("a"), None)), ErrorCode::NotOwner);
    world.report_turn(turn(2, "next", Some("b"), None)).unwrap();
}

#[test]
fn a_letter_leaves_out_what_is_too_large() {
    let mut world = World::with(&["a", "b"]);
    let nodes = [
        node("start", None, None, &["left", "right"]),
        node("left", None, None, &["next"]),
        node("right", None, None, &["next"]),
        node("next", Some("b"), None, &["end"]),
    ];
    world.register_graph(graph(nodes.to_vec())).unwrap();
    world.start_run(Some("a"), None).unwrap();
    world.report_turn(turn(1, "start", Some("a"), None)).unwrap();
    for (number, place) in [(2, "left"), (3, "right")] {
        let output = "x".repeat(40_000);
        world.report_turn(Turn { output, ..turn(number, place, Some("a"), None) }).unwrap();
    }
    let inputs = world.node_letters("b").remove(0).1["inputs"].clone();
    let seen = |place: usize| (inputs[place]["omitted"].clone(), inputs[place]["output"].as_str().unwrap().len());
    assert_eq!((seen(0), seen(1)), ((false.into(), 40_000), (true.into(), 0)));
}

#[test]
fn a_full_mailbox_costs_the_letter_and_not_the_turn() {
    let mut settings = Settings::default();
    settings.limits.mailbox_max = 2;
    let mut world = World::with_settings(&["a", "b"], settings);
    let nodes = ["b1", "b2", "b3"].map(|name| node(name, Some("b"), None, &["end"]));
    let start = node("start", Some("a"), None, &["b1", "b2", "b3"]);
    world.register_graph(graph([&[start][..], &nodes].concat())).unwrap();
    world.start_run(Some("a"), None).unwrap();
    world.start_other_run(Some("a")).unwrap();
    // Letters of the batch in hand are not counted, so the limit takes effect with the next run.
    world.report_turn(turn(1, "start", Some("a"), None)).unwrap();
    let other = EntityId::Run(RunId(MessageId::from_bytes([9; 16])));
    world.apply(other, routing::Input::Turn(Box::new(turn(2, "start", Some("a"), None)))).unwrap();
    assert_eq!(world.active(), ["b1", "b2", "b3"]);
    assert_eq!(world.node_letters("b").len(), 3);
}
