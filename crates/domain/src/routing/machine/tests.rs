//! Tests of runs in virtual time.

#[cfg(test)]
mod edges;

use std::time::Duration;

use proptest::prelude::*;

use super::{
    super::graph::tests::{graph, id},
    *,
};
use crate::{
    codes::Refusal as _,
    handoff::{LoopLimits, TaskStatus},
    ids::{AgentType, MessageId},
    step,
};

const RUN: RunId = RunId(MessageId::from_bytes([1; 16]));

/// The graph of a searcher, a checker with three choices, and a generator.
const STORY: &[&str] = &["searcher: checker", "checker 3: searcher generator", "generator: end"];

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_parts(seconds, 0).unwrap()
}

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

fn turn_id(number: u64) -> TurnId {
    let mut bytes = [2; 16];
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    TurnId(MessageId::from_bytes(bytes))
}

/// The entities of a broker, and the effects of its steps.
#[derive(Default)]
struct World {
    entities: BTreeMap<EntityId, Entity>,
    effects: Vec<Effect>,
    turns: u64,
    now: i64,
    types: BTreeSet<(AgentId, AgentType)>,
}

impl Reader for World {
    fn entity(&mut self, id: &EntityId) -> Result<Option<Entity>, ReadError> {
        Ok(self.entities.get(id).cloned())
    }

    fn is_gone(&mut self, _: &AgentId) -> bool {
        false
    }

    fn is_of_type(&mut self, agent: &AgentId, kind: &AgentType) -> bool {
        self.types.contains(&(agent.clone(), kind.clone()))
    }
}

/// A report of a turn.
fn report(number: u64, node: &str, calls: &[&str]) -> Turn {
    let call =
        |name: &&str| Call { id: format!("call-{name}"), name: (*name).to_owned(), reason: Ok("why".to_owned()) };
    Turn {
        id: turn_id(number),
        digest: [u8::try_from(number % 256).unwrap(); 32],
        node: id(node),
        by: None,
        by_types: Vec::new(),
        calls: calls.iter().map(call).collect(),
        finished: false,
        output: String::new(),
        error: String::new(),
    }
}

impl World {
    fn run_of(lines: &[&str]) -> Self {
        let mut world = Self { now: 1000, ..Self::default() };
        world.register(graph(lines));
        world.start(None, None).unwrap();
        world
    }

    fn apply(&mut self, about: &EntityId, input: Input) -> Result<bool, Rejection> {
        self.input(about, &crate::Input::Routing(input))
    }

    fn input(&mut self, about: &EntityId, input: &crate::Input) -> Result<bool, Rejection> {
        let now = at(self.now);
        match step(about, input, self, now) {
            Ok(made) => {
                let has_changed = !made.is_empty();
                for entity in made.writes {
                    self.entities.insert(entity.id(), entity);
                }
                self.effects.extend(made.effects);
                Ok(has_changed)
            }
            Err(StepError::Routing(rejection)) => Err(rejection),
            Err(other) => panic!("{other}"),
        }
    }

    fn register(&mut self, graph: Graph) {
        self.apply(&EntityId::Graph(graph.id.clone()), Input::Register { graph, removed: 0 }).unwrap();
    }

    fn start(&mut self, by: Option<&str>, task: Option<&str>) -> Result<bool, Rejection> {
        let start = Start {
            graph: GraphId::parse("g").unwrap(),
            by: by.map(agent),
            task: task.map(|task| TaskId::parse(task).unwrap()),
            whole: Duration::from_secs(3600),
        };
        self.apply(&EntityId::Run(RUN), Input::Start(start))
    }

    fn run(&self) -> Run {
        match self.entities.get(&EntityId::Run(RUN)) {
            Some(Entity::Run(run)) => Run::clone(run),
            other => panic!("expected the run, not {other:?}"),
        }
    }

    fn report(&mut self, turn: Turn) -> Result<bool, Rejection> {
        self.apply(&EntityId::Run(RUN), Input::Turn(Box::new(turn)))
    }

    /// Reports a new turn, and returns its record.
    fn turn(&mut self, node: &str, calls: &[&str], finished: bool) -> Result<TurnRecord, Rejection> {
        self.turns += 1;
        let turn = Turn { finished, ..report(self.turns, node, calls) };
        self.report(turn)?;
        Ok(self.record(turn_id(self.turns)))
    }

    /// The record of a turn.
    fn record(&self, turn: TurnId) -> TurnRecord {
        let Some(Entity::RunTurn(place)) = self.entities.get(&EntityId::RunTurn(RUN, turn)) else { panic!("no turn") };
        match self.entities.get(&EntityId::RunEntry(RUN, place.number)) {
            Some(Entity::RunEntry(entry)) => match &entry.event {
                Event::Turn(record) => TurnRecord::clone(record),
                other => panic!("expected a turn, not {other:?}"),
            },
            other => panic!("expected an entry, not {other:?}"),
        }
    }

    fn finish(&mut self, node: &str) -> TurnRecord {
        self.turn(node, &[], true).unwrap()
    }

    fn active(&self) -> Vec<String> {
        self.run().active().iter().map(ToString::to_string).collect()
    }

    /// The log has every number once.
    fn assert_log_is_dense(&self) {
        let length = self.run().log_length;
        let found = self.entities.keys().filter(|id| matches!(id, EntityId::RunEntry(..))).count() as u64;
        assert_eq!(found, length);
        assert!((1..=length).all(|number| self.entities.contains_key(&EntityId::RunEntry(RUN, number))));
    }

    /// A task with this owner.
    fn own(&mut self, task: &str, owner: &str) {
        let id = TaskId::parse(task).unwrap();
        let task = Task {
            id: id.clone(),
            task_type: "t".to_owned(),
            owner: agent(owner),
            epoch: 1,
            status: TaskStatus::Created,
            progress: None,
            details: String::new(),
            result: None,
            prompts: Vec::new(),
            parent: None,
            conversation: None,
            created_by: None,
            plan: None,
            open_handoff: None,
            hops: Vec::new(),
            loans: Vec::new(),
            transfer: None,
            seizures: Vec::new(),
            loop_limits: LoopLimits::default(),
            created_at: at(1),
            updated_at: at(1),
        };
        self.entities.insert(EntityId::Task(id), Entity::Task(Arc::new(task)));
    }
}

#[test]
fn a_model_that_always_goes_back_ends_with_the_counts_4_4_1() {
    let mut world = World::run_of(STORY);
    let mut counts = BTreeMap::new();
    while world.run().state == RunState::Running {
        let active = world.active();
        assert_eq!(active.len(), 1);
        let node = active[0].clone();
        *counts.entry(node.clone()).or_insert(0) += 1;
        let has_choice = node == "checker" && world.run().remaining(&id("checker")) > 0;
        let calls: &[&str] = if has_choice { &["transfer_to_searcher"] } else { &[] };
        world.turn(&node, calls, true).unwrap();
    }
    assert_eq!(world.run().state, RunState::Completed);
    let counts: Vec<(&str, i32)> = counts.iter().map(|(node, count)| (node.as_str(), *count)).collect();
    assert_eq!(counts, [("checker", 4), ("generator", 1), ("searcher", 4)]);
    world.assert_log_is_dense();
}

#[test]
fn active_nodes_finish_together_and_each_target_is_next_once() {
    let mut world = World::run_of(&["a: b c", "b: d", "c: d", "d: end"]);
    world.finish("a");
    assert_eq!(world.active(), ["b", "c"]);
    let first = world.finish("b");
    assert_eq!(first.active, [id("c")]);
    world.finish("c");
    assert_eq!((world.active(), world.run().step), (vec!["d".to_owned()], 3));
    assert_eq!(world.run().nodes[&id("d")].inputs.len(), 2);
    world.finish("d");
    assert_eq!(world.run().state, RunState::Completed);
}

#[test]
fn the_end_beside_another_target_does_not_end_the_run() {
    let mut world = World::run_of(&["a: b c", "b: end", "c: d", "d: end"]);
    world.finish("a");
    world.finish("b");
    world.finish("c");
    assert_eq!(world.active(), ["d"]);
}

#[test]
fn a_choice_moves_the_run_and_is_counted() {
    let mut world = World::run_of(STORY);
    world.finish("searcher");
    let record = world.turn("checker", &["search", "transfer_to_generator", "transfer_to_generator"], false).unwrap();
    let (target, reason) = (id("generator"), "why".to_owned());
    assert_eq!(record.outcome, TurnOutcome::Chosen { target, reason });
    assert_eq!((record.remaining, record.active), (2, vec![id("generator")]));
    assert_eq!(record.results.iter().map(|result| result.is_error).collect::<Vec<_>>(), [false; 3]);
    assert_eq!(record.results[0].call, "call-search");
}

#[test]
fn the_end_can_be_chosen() {
    let mut world = World::run_of(&["a 1: b end", "b: end"]);
    world.turn("a", &["transfer_to_end"], false).unwrap();
    assert_eq!(world.run().state, RunState::Completed);
}

#[test]
fn two_targets_in_a_turn_are_ambiguous_and_nothing_is_counted() {
    let mut world = World::run_of(STORY);
    world.finish("searcher");
    let record = world.turn("checker", &["transfer_to_searcher", "transfer_to_generator"], true).unwrap();
    assert_eq!(record.outcome, TurnOutcome::Refused { code: ErrorCode::TransferAmbiguous });
    assert_eq!(record.results.len(), 2);
    assert!(record.results.iter().all(|result| result.is_error));
    assert_eq!((record.remaining, world.active()), (3, vec!["checker".to_owned()]));
}

#[test]
fn a_transfer_that_was_not_offered_is_refused_with_the_offered_ones() {
    let mut world = World::run_of(STORY);
    let record = world.turn("searcher", &["transfer_to_checker"], true).unwrap();
    assert_eq!(record.outcome, TurnOutcome::Refused { code: ErrorCode::TransferNotOffered });
    world.finish("searcher");
    let record = world.turn("checker", &["transfer_to_end"], false).unwrap();
    assert_eq!(record.outcome, TurnOutcome::Refused { code: ErrorCode::TransferNotOffered });
    assert!(record.results[0].text.contains("transfer_to_searcher, transfer_to_generator"));
}

#[test]
fn no_transfer_is_offered_once_no_choice_is_left() {
    let mut world = World::run_of(&["a: b", "b 1: a c", "c: end"]);
    world.finish("a");
    world.turn("b", &["transfer_to_a"], false).unwrap();
    world.finish("a");
    let record = world.turn("b", &["transfer_to_a"], true).unwrap();
    assert_eq!(record.outcome, TurnOutcome::Refused { code: ErrorCode::TransferNotOffered });
    assert_eq!(world.finish("b").active, [id("c")]);
}

#[test]
fn the_third_refused_turn_in_a_row_counts_as_one_without_a_choice() {
    let mut world = World::run_of(STORY);
    world.finish("searcher");
    let wrong = |world: &mut World| world.turn("checker", &["transfer_to_nobody"], false).unwrap();
    assert_eq!((wrong(&mut world).active, wrong(&mut world).active), (vec![id("checker")], vec![id("checker")]));
    // A turn that is not refused begins the count anew.
    world.turn("checker", &["search"], false).unwrap();
    assert_eq!((wrong(&mut world).active, wrong(&mut world).active), (vec![id("checker")], vec![id("checker")]));
    let third = wrong(&mut world);
    assert_eq!(third.outcome, TurnOutcome::Refused { code: ErrorCode::TransferNotOffered });
    assert_eq!((third.active, third.remaining), (vec![id("generator")], 3));
    assert_eq!(world.finish("generator").active, []);
    assert_eq!(world.run().state, RunState::Completed);
}

#[test]
fn calls_with_the_same_id_or_none_are_answered_in_their_order() {
    let mut world = World::run_of(STORY);
    world.finish("searcher");
    let mut turn = report(90, "checker", &["search", "Transfer-To-Generator"]);
    for call in &mut turn.calls {
        call.id = String::new();
    }
    world.report(turn).unwrap();
    let record = world.record(turn_id(90));
    assert_eq!(record.outcome, TurnOutcome::Chosen { target: id("generator"), reason: "why".to_owned() });
    let texts: Vec<&str> = record.results.iter().map(|result| result.text.as_str()).collect();
    assert!(texts[0].starts_with("Recorded.") && texts[1] == "Transferred to generator.", "{texts:?}");
}

#[test]
fn wrong_arguments_are_refused_and_the_model_is_told() {
    let mut world = World::run_of(STORY);
    world.finish("searcher");
    let mut turn = report(90, "checker", &["transfer_to_generator"]);
    turn.calls[0].reason = Err("the arguments are no JSON object".to_owned());
    world.report(turn).unwrap();
    let record = world.record(turn_id(90));
    assert_eq!(record.outcome, TurnOutcome::Refused { code: ErrorCode::FieldInvalid });
    assert!(record.results[0].text.contains("no JSON object"));
    assert_eq!(record.remaining, 3);
}

#[test]
fn a_turn_that_goes_on_is_only_recorded() {
    let mut world = World::run_of(STORY);
    let record = world.turn("searcher", &["search"], false).unwrap();
    assert_eq!((record.outcome, record.active), (TurnOutcome::Recorded, vec![id("searcher")]));
}

#[test]
fn an_error_finishes_a_node_without_a_choice() {
    let mut world = World::run_of(STORY);
    world.finish("searcher");
    let turn = Turn { error: "the model is down".to_owned(), ..report(50, "checker", &[]) };
    world.report(turn).unwrap();
    assert_eq!(world.active(), ["generator"]);
}

#[test]
fn a_repeated_turn_changes_nothing_and_another_one_under_its_id_is_refused() {
    let mut world = World::run_of(STORY);
    let turn = Turn { finished: true, ..report(7, "searcher", &[]) };
    assert_eq!(world.report(turn.clone()), Ok(true));
    let after = world.run();
    assert_eq!(world.report(turn.clone()), Ok(false));
    assert_eq!(world.run(), after);
    let other = Turn { digest: [9; 32], ..turn.clone() };
    assert_eq!(world.report(other), Err(Rejection::TurnIdReused { turn: turn_id(7) }));
    // Also once the run has ended.
    world.apply(&EntityId::Run(RUN), Input::Cancel { by: None, reason: String::new() }).unwrap();
    assert_eq!(world.report(turn), Ok(false));
}

#[test]
fn a_turn_of_a_node_that_is_not_active_is_refused() {
    let mut world = World::run_of(STORY);
    let refused = world.turn("generator", &[], true).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NodeNotActive);
    assert!(refused.to_string().contains("active: searcher"), "{refused}");
    assert_eq!(world.turn("nowhere", &[], true).unwrap_err().code(), ErrorCode::NodeNotActive);
}

#[test]
fn a_turn_of_another_agents_node_is_refused() {
    let mut world = World { now: 1000, ..World::default() };
    let mut graph = graph(STORY);
    graph.nodes[0].agent = Some(agent("bob"));
    graph.nodes[1].agent_type = Some(AgentType::parse("checkers").unwrap());
    world.register(graph);
    world.start(Some("alice"), None).unwrap();
    let by = |name: &str, types: &[&str], turn: Turn| Turn {
        by: Some(agent(name)),
        by_types: types.iter().map(|kind| AgentType::parse(kind).unwrap()).collect(),
        finished: true,
        ..turn
    };
    let refused = world.report(by("alice", &[], report(1, "searcher", &[]))).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NotOwner);
    world.report(by("bob", &[], report(2, "searcher", &[]))).unwrap();
    let refused = world.report(by("bob", &[], report(3, "checker", &[]))).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NotOwner);
    world.report(by("eve", &["checkers"], report(4, "checker", &[]))).unwrap();
}

#[test]
fn a_run_ends_once_its_super_steps_are_used_up() {
    let mut world = World { now: 1000, ..World::default() };
    let mut graph = graph(&["a 100: b end", "b: a"]);
    graph.nodes[1].handoffs = Some(100);
    graph.nodes[1].outputs.push(id("end"));
    graph.steps_max = 3;
    world.register(graph);
    world.start(Some("alice"), None).unwrap();
    for node in ["a", "b", "a"] {
        let call = if node == "a" { "transfer_to_b" } else { "transfer_to_a" };
        world.turn(node, &[call], false).unwrap();
    }
    let run = world.run();
    assert_eq!((run.state, run.failure.unwrap().code), (RunState::Failed, Some(ErrorCode::StepsExhausted)));
    assert!(matches!(&world.effects[..], [Effect::Deliver { to, .. }] if *to == agent("alice")));
    assert_eq!(world.turn("a", &[], true), Err(Rejection::RunFinal { state: RunState::Failed }));
}

#[test]
fn a_run_fails_when_its_whole_time_is_over() {
    let mut world = World::run_of(STORY);
    assert_eq!(world.run().next_deadline(), Some(at(4600)));
    world.now = 4599;
    assert_eq!(world.input(&EntityId::Run(RUN), &crate::Input::Time), Ok(false));
    world.now = 4600;
    // The turn meets the deadline before the timer has fired.
    assert_eq!(world.turn("searcher", &[], true), Err(Rejection::RunFinal { state: RunState::Failed }));
    assert_eq!(world.input(&EntityId::Run(RUN), &crate::Input::Time), Ok(true));
    assert_eq!(world.run().failure.unwrap().code, Some(ErrorCode::WholeTimeout));
    assert_eq!(world.input(&EntityId::Run(RUN), &crate::Input::Time), Ok(false));
    world.assert_log_is_dense();
}

#[test]
fn a_cancelled_run_takes_no_turn_and_stays_cancelled() {
    let mut world = World { now: 1000, ..World::default() };
    world.register(graph(STORY));
    world.start(Some("alice"), None).unwrap();
    let stranger = Input::Cancel { by: Some(agent("eve")), reason: String::new() };
    assert_eq!(world.apply(&EntityId::Run(RUN), stranger), Err(Rejection::NotStarter));
    let cancel = || Input::Cancel { by: Some(agent("alice")), reason: "enough".to_owned() };
    assert_eq!(world.apply(&EntityId::Run(RUN), cancel()), Ok(true));
    assert_eq!(world.apply(&EntityId::Run(RUN), cancel()), Ok(false));
    assert_eq!(world.run().failure.unwrap().message, "cancelled by agent alice: enough");
    assert_eq!(world.turn("searcher", &[], true), Err(Rejection::RunFinal { state: RunState::Cancelled }));
    let mut completed = World::run_of(&["a: end"]);
    completed.finish("a");
    let cancel = Input::Cancel { by: None, reason: String::new() };
    let refused = completed.apply(&EntityId::Run(RUN), cancel);
    assert_eq!(refused, Err(Rejection::RunFinal { state: RunState::Completed }));
}

#[test]
fn a_run_keeps_the_graph_of_its_start() {
    let mut world = World::run_of(STORY);
    world.register(graph(&["other: end"]));
    assert_eq!(world.run().graph.revision, 1);
    world.finish("searcher");
    assert_eq!(world.active(), ["checker"]);
    let known = graph(&["other: end"]);
    let about = EntityId::Graph(known.id.clone());
    assert_eq!(world.apply(&about, Input::Register { graph: known, removed: 0 }), Ok(false), "the same revision");
}

#[test]
fn a_graph_that_comes_back_goes_on_with_its_numbers() {
    let mut world = World::default();
    let back = graph(&["n: end"]);
    let about = EntityId::Graph(back.id.clone());
    assert_eq!(world.apply(&about, Input::Register { graph: back, removed: 4 }), Ok(true));
    let Some(Entity::Graph(known)) = world.entities.get(&about) else { panic!("it is registered") };
    assert_eq!(known.revision, 5);
}

#[test]
fn a_start_is_repeated_and_not_reused() {
    let mut world = World::run_of(STORY);
    assert_eq!(world.start(None, None), Ok(false));
    assert_eq!(world.start(Some("alice"), None), Err(Rejection::RunExists));
    // What would be refused of a new run is refused of a known one in the same words.
    let not_owner = Err(Rejection::NotOwner { task: TaskId::parse("t").unwrap() });
    let mut other = World { now: 1000, ..World::default() };
    other.register(graph(STORY));
    assert_eq!(
        (world.start(Some("alice"), Some("t")), other.start(Some("alice"), Some("t"))),
        (not_owner.clone(), not_owner)
    );
    let mut empty = World::default();
    assert_eq!(empty.start(None, None).unwrap_err().code(), ErrorCode::GraphUnknown);
}

// --------------------------------------------------------------------------------------------------- runs over a task

/// A run over a task of alice, in which bob's agent checks.
fn over_a_task() -> World {
    let mut world = World { now: 1000, ..World::default() };
    let mut graph = graph(&["draft 2: review end", "review 1: draft end"]);
    graph.nodes[1].agent = Some(agent("bob"));
    world.register(graph);
    world.own("t", "alice");
    world.start(Some("alice"), Some("t")).unwrap();
    world
}

fn by_alice(number: u64, calls: &[&str]) -> Turn {
    Turn { by: Some(agent("alice")), ..report(number, "draft", calls) }
}

const HANDOFF: MessageId = MessageId::from_bytes([5; 16]);

impl World {
    fn began(&mut self, task: &str, receiver: &str) -> Result<bool, Rejection> {
        let (task, receiver) = (TaskId::parse(task).unwrap(), receiver.to_owned());
        let signal = RunSignal::HandoffBegan { choice: turn_id(1), handoff: HANDOFF, task, receiver };
        self.input(&EntityId::Run(RUN), &crate::Input::Signal(Signal::Run(signal)))
    }

    fn ended(&mut self, owner: Option<&str>) -> bool {
        let signal = RunSignal::HandoffEnded { choice: turn_id(1), handoff: HANDOFF, owner: owner.map(agent) };
        self.input(&EntityId::Run(RUN), &crate::Input::Signal(Signal::Run(signal))).unwrap()
    }
}

#[test]
fn only_the_owner_of_the_task_reports_turns_and_starts_the_run() {
    let mut world = over_a_task();
    let refused = world.report(Turn { by: Some(agent("bob")), ..by_alice(1, &[]) });
    assert_eq!(refused.unwrap_err().code(), ErrorCode::NotOwner);
    let mut other = World { now: 1000, ..World::default() };
    other.register(graph(STORY));
    assert_eq!(other.start(None, Some("t")).unwrap_err().code(), ErrorCode::TaskUnknown);
    assert_eq!(other.start(Some("alice"), Some("t")).unwrap_err().code(), ErrorCode::NotOwner, "as for a foreign one");
    other.own("t", "bob");
    assert_eq!(other.start(Some("alice"), Some("t")).unwrap_err().code(), ErrorCode::NotOwner);
}

#[test]
fn a_choice_of_another_agents_node_waits_for_the_handoff() {
    let mut world = over_a_task();
    world.report(by_alice(1, &["transfer_to_review"])).unwrap();
    let record = world.record(turn_id(1));
    assert!(matches!(&record.outcome, TurnOutcome::Proposed { receiver, .. } if receiver == "bob"));
    assert_eq!((record.remaining, world.active()), (1, Vec::new()));
    assert_eq!(world.report(by_alice(2, &[])).unwrap_err().code(), ErrorCode::NodeNotActive);
    assert_eq!(world.began("t", "eve").unwrap_err().code(), ErrorCode::NodeNotActive);
    assert_eq!(world.began("u", "bob").unwrap_err().code(), ErrorCode::RunUnknown);
    assert!(world.began("t", "bob").unwrap());
    assert!(world.ended(Some("bob")));
    assert_eq!(world.active(), ["review"]);
    assert!(world.run().participants.contains(&agent("bob")));
    world.assert_log_is_dense();
}

#[test]
fn a_handoff_that_fails_makes_the_node_active_again_and_the_choice_stays_counted() {
    let mut world = over_a_task();
    world.report(by_alice(1, &["transfer_to_review"])).unwrap();
    world.began("t", "bob").unwrap();
    assert!(world.ended(None));
    assert!(!world.ended(None), "a repeat changes nothing");
    assert_eq!((world.active(), world.run().remaining(&id("draft"))), (vec!["draft".to_owned()], 1));
}

#[test]
fn a_proposal_without_a_handoff_can_be_given_up_by_an_error() {
    let mut world = over_a_task();
    world.report(by_alice(1, &["transfer_to_review"])).unwrap();
    world.report(Turn { error: "refused".to_owned(), ..by_alice(2, &[]) }).unwrap();
    assert_eq!(world.record(turn_id(2)).outcome, TurnOutcome::Withdrawn);
    assert_eq!((world.active(), world.run().remaining(&id("draft"))), (vec!["draft".to_owned()], 1));
    assert_eq!(world.began("t", "bob").unwrap_err().code(), ErrorCode::NodeNotActive);
}

#[test]
fn a_handoff_after_the_end_of_the_run_changes_nothing() {
    let mut world = over_a_task();
    world.report(by_alice(1, &["transfer_to_review"])).unwrap();
    world.began("t", "bob").unwrap();
    world.apply(&EntityId::Run(RUN), Input::Cancel { by: None, reason: String::new() }).unwrap();
    assert!(!world.ended(Some("bob")));
}

// ------------------------------------------------------------------------------------------------------ all stories

/// Graphs of up to six nodes with random outputs and choices.
fn any_graph() -> impl Strategy<Value = Graph> {
    let node = (prop::option::of(1u32..4), prop::collection::btree_set(0usize..7, 1..5));
    prop::collection::vec(node, 1..6).prop_map(|nodes| {
        let name = |place: usize, count: usize| if place < count { format!("n{place}") } else { "end".to_owned() };
        let count = nodes.len();
        let lines: Vec<String> = nodes
            .into_iter()
            .enumerate()
            .map(|(place, (handoffs, outputs))| {
                // Most plain nodes lead forward only, so that most graphs are valid.
                let handoffs = handoffs.filter(|_| outputs.len() > 1);
                let later = |output: usize| if handoffs.is_none() { output.max(place + 1) } else { output };
                let outputs: BTreeSet<String> = outputs.into_iter().map(|output| name(later(output), count)).collect();
                let outputs: Vec<String> = outputs.into_iter().collect();
                let handoffs = handoffs.map_or_else(String::new, |handoffs| format!(" {handoffs}"));
                format!("n{place}{handoffs}: {}", outputs.join(" "))
            })
            .collect();
        graph(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, max_global_rejects: 5000, ..ProptestConfig::default() })]

    /// Law 14: a node's choices never exceed its handoffs, a run only moves to outputs, and every run ends.
    #[test]
    fn every_run_ends_within_its_choices(graph in any_graph(), choices in prop::collection::vec(0usize..9, 0..400)) {
        prop_assume!(!graph.problems().iter().any(super::super::Problem::is_error));
        let mut world = World { now: 1000, ..World::default() };
        world.register(graph.clone());
        world.start(None, None).unwrap();
        let mut choices = choices.into_iter().cycle();
        let most: u32 = graph.nodes.iter().filter_map(|node| node.handoffs).sum();
        let mut turns = 0;
        while world.run().state == RunState::Running {
            turns += 1;
            prop_assert!(turns <= (most as usize + 2) * graph.nodes.len() * 3, "the run goes on");
            let before = world.run();
            let node = before.active()[0].clone();
            let tools = graph.tools(graph.node(&node).unwrap());
            let chosen = choices.next().and_then(|choice| tools.get(choice));
            let calls: Vec<&str> = chosen.iter().map(|tool| tool.name.as_str()).collect();
            let record = world.turn(node.as_str(), &calls, true).unwrap();
            let run = world.run();
            for (id, counted) in &run.nodes {
                prop_assert!(counted.choices <= graph.node(id).unwrap().handoffs.unwrap_or(0));
            }
            if run.step > before.step {
                // The active nodes are outputs of nodes of the step before.
                let outputs: BTreeSet<&NodeId> =
                    before.nodes.iter().filter(|(_, node)| node.state != NodeState::Idle)
                        .flat_map(|(id, _)| &graph.node(id).unwrap().outputs).collect();
                prop_assert!(run.active().iter().all(|id| outputs.contains(id)));
            }
            if let TurnOutcome::Refused { .. } = record.outcome {
                world.finish(node.as_str());
            }
        }
        prop_assert_eq!(world.run().state, RunState::Completed);
        world.assert_log_is_dense();
    }
}
