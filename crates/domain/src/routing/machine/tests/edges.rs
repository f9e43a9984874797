//! Tests of the nodes of other agents in runs over tasks.

use super::*;
use crate::routing::Proposal;

/// A run over a task of alice through this graph, whose nodes have the agents with their names' first words.
fn over_task_of_alice(lines: &[&str]) -> World {
    let mut world = World { now: 1000, ..World::default() };
    let mut graph = graph(lines);
    for node in &mut graph.nodes {
        let name = node.id.as_str().split('-').next().unwrap().to_owned();
        match name.as_str() {
            "any" => {}
            "typed" => node.agent_type = Some(AgentType::parse("writer").unwrap()),
            name => node.agent = Some(agent(name)),
        }
    }
    world.register(graph);
    world.own("t", "alice");
    world.start(Some("alice"), Some("t")).unwrap();
    world
}

fn done(number: u64, by: &str, node: &str) -> Turn {
    let output = format!("by {by}");
    Turn { by: Some(agent(by)), finished: true, output, ..report(number, node, &[]) }
}

fn handoff_id(number: u8) -> MessageId {
    MessageId::from_bytes([number; 16])
}

impl World {
    fn signal(&mut self, signal: RunSignal) -> Result<bool, Rejection> {
        self.input(&EntityId::Run(RUN), &crate::Input::Signal(Signal::Run(signal)))
    }

    /// The proposal of a node, as the run shows it.
    fn proposal_of(&self, node: &str) -> Proposal {
        match &self.run().nodes[&id(node)].state {
            NodeState::Moving(choice) => {
                Proposal { node: id(node), choice: choice.id, receiver: choice.receiver.clone() }
            }
            state => panic!("{node} is {}", state.name()),
        }
    }

    fn begin_handoff(&mut self, node: &str, number: u8) -> TurnId {
        let Proposal { choice, receiver, .. } = self.proposal_of(node);
        let (handoff, task) = (handoff_id(number), TaskId::parse("t").unwrap());
        self.signal(RunSignal::HandoffBegan { choice, handoff, task, receiver }).unwrap();
        choice
    }

    fn end_handoff(&mut self, choice: TurnId, number: u8, owner: Option<&str>) {
        if let Some(owner) = owner {
            self.own("t", owner);
        }
        let signal = RunSignal::HandoffEnded { choice, handoff: handoff_id(number), owner: owner.map(agent) };
        assert!(self.signal(signal).unwrap());
    }

    /// Hands the task over for this node.
    fn hand_over(&mut self, node: &str, number: u8, owner: &str) {
        let choice = self.begin_handoff(node, number);
        self.end_handoff(choice, number, Some(owner));
    }

    /// The receivers and the nodes of the letters since the last call, and whether each is of a proposal.
    fn letters(&mut self) -> Vec<(String, String, bool)> {
        let letter = |effect| match effect {
            Effect::Deliver { to, mail: Mail::Node(letter), .. } => {
                Some((to.to_string(), letter.node.to_string(), letter.proposal.is_some()))
            }
            _ => None,
        };
        std::mem::take(&mut self.effects).into_iter().filter_map(letter).collect()
    }
}

fn letter(to: &str, node: &str, is_proposal: bool) -> (String, String, bool) {
    (to.to_owned(), node.to_owned(), is_proposal)
}

#[test]
fn a_plain_edge_to_another_agents_node_waits_for_the_handoff() {
    let mut world = over_task_of_alice(&["alice-draft: bob-review", "bob-review: end"]);
    world.report(done(1, "alice", "alice-draft")).unwrap();
    let record = world.record(turn_id(1));
    let proposal = world.proposal_of("bob-review");
    assert_eq!((record.outcome, record.active, record.proposal), (TurnOutcome::Finished, vec![], Some(proposal)));
    // Neither agent takes the node's turn.
    assert_eq!(world.report(done(2, "alice", "bob-review")).unwrap_err().code(), ErrorCode::NodeNotActive);
    assert_eq!(world.report(done(2, "bob", "bob-review")).unwrap_err().code(), ErrorCode::NotOwner);
    let choice = world.begin_handoff("bob-review", 1);
    assert_eq!(world.letters(), [], "the answer tells the owner");
    world.end_handoff(choice, 1, Some("bob"));
    assert_eq!(
        (world.active(), world.letters()),
        (vec!["bob-review".to_owned()], vec![letter("bob", "bob-review", false)])
    );
    assert_eq!(world.report(done(2, "alice", "bob-review")).unwrap_err().code(), ErrorCode::NotOwner);
    world.report(done(2, "bob", "bob-review")).unwrap();
    assert_eq!(world.run().state, RunState::Completed);
    world.assert_log_is_dense();
}

#[test]
fn a_node_whose_handoff_fails_is_with_the_present_owner() {
    for way in ["rejected", "refused", "given up", "moved"] {
        let mut world = over_task_of_alice(&["alice-draft: bob-review", "bob-review: end"]);
        world.report(done(1, "alice", "alice-draft")).unwrap();
        let choice = world.proposal_of("bob-review").choice;
        let mut owner = "alice";
        match way {
            "rejected" => {
                world.begin_handoff("bob-review", 1);
                world.end_handoff(choice, 1, None);
            }
            "refused" => {
                let task = TaskId::parse("t").unwrap();
                world.signal(RunSignal::HandoffRefused { choice, task, code: ErrorCode::LoopLimit }).unwrap();
            }
            "given up" => {
                let turn = Turn { error: "no".to_owned(), ..done(2, "alice", "bob-review") };
                world.report(turn).unwrap();
            }
            _ => {
                owner = "carol";
                world.own("t", "carol");
                world.signal(RunSignal::TaskMoved { owner: agent("carol") }).unwrap();
            }
        }
        let told = if way == "given up" { vec![] } else { vec![letter(owner, "bob-review", false)] };
        assert_eq!((world.active(), world.letters()), (vec!["bob-review".to_owned()], told), "{way}");
        let late = RunSignal::HandoffBegan {
            choice,
            handoff: handoff_id(9),
            task: TaskId::parse("t").unwrap(),
            receiver: "bob".to_owned(),
        };
        assert_eq!(world.signal(late).unwrap_err().code(), ErrorCode::NodeNotActive, "{way}");
        world.report(done(3, owner, "bob-review")).unwrap();
        assert_eq!(world.run().state, RunState::Completed, "{way}");
        world.assert_log_is_dense();
    }
}

#[test]
fn parallel_nodes_are_handed_over_one_after_the_other() {
    let lines =
        ["alice-a: alice-b bob-c bob-d carol-e", "alice-b: any-f", "bob-c: any-f", "bob-d: any-f", "carol-e: any-f"];
    let mut world = over_task_of_alice(&[&lines[..], &["any-f: end"]].concat());
    world.report(done(1, "alice", "alice-a")).unwrap();
    // The owner's own node goes on, and nothing is proposed in the answer yet.
    assert_eq!((world.active(), world.record(turn_id(1)).proposal), (vec!["alice-b".to_owned()], None));
    world.report(done(2, "alice", "alice-b")).unwrap();
    assert_eq!(world.record(turn_id(2)).proposal, Some(world.proposal_of("bob-c")));
    // One handoff brings the task to the agent of two nodes.
    world.hand_over("bob-c", 1, "bob");
    assert_eq!(world.active(), ["bob-c", "bob-d"]);
    assert_eq!(world.letters(), [letter("bob", "bob-c", false), letter("bob", "bob-d", false)]);
    world.report(done(3, "bob", "bob-c")).unwrap();
    world.report(done(4, "bob", "bob-d")).unwrap();
    assert_eq!(world.record(turn_id(4)).proposal, Some(world.proposal_of("carol-e")));
    world.hand_over("carol-e", 2, "carol");
    world.report(done(5, "carol", "carol-e")).unwrap();
    // The join has the outputs of all of them, and any agent works there.
    assert_eq!((world.active(), world.run().nodes[&id("any-f")].inputs.len()), (vec!["any-f".to_owned()], 4));
    world.report(done(6, "carol", "any-f")).unwrap();
    assert_eq!(world.run().state, RunState::Completed);
    world.assert_log_is_dense();
}

#[test]
fn a_node_that_its_agent_has_not_finished_waits_for_the_task_to_come_back() {
    let mut world = over_task_of_alice(&["alice-a: alice-b bob-c", "alice-b: end", "bob-c: end"]);
    world.report(done(1, "alice", "alice-a")).unwrap();
    world.hand_over("bob-c", 1, "bob");
    assert_eq!(world.active(), ["bob-c"]);
    assert_eq!(world.letters(), [letter("bob", "alice-b", true), letter("bob", "bob-c", false)]);
    world.report(done(2, "bob", "bob-c")).unwrap();
    assert_eq!(world.record(turn_id(2)).proposal, Some(world.proposal_of("alice-b")));
    world.hand_over("alice-b", 2, "alice");
    world.report(done(3, "alice", "alice-b")).unwrap();
    assert_eq!(world.run().state, RunState::Completed);
}

#[test]
fn an_entry_of_another_agent_is_proposed_at_the_start() {
    let mut world = over_task_of_alice(&["bob-draft: alice-review", "alice-review: end"]);
    assert_eq!(world.run().proposed().map(|(node, choice)| (node.clone(), choice.entry)), Some((id("bob-draft"), 0)));
    world.hand_over("bob-draft", 1, "bob");
    world.report(done(1, "bob", "bob-draft")).unwrap();
    world.hand_over("alice-review", 2, "alice");
    world.report(done(2, "alice", "alice-review")).unwrap();
    assert_eq!(world.run().state, RunState::Completed);
}

#[test]
fn a_node_of_a_type_waits_for_an_agent_of_the_type() {
    let mut world = over_task_of_alice(&["alice-a: typed-b", "typed-b: typed-c", "typed-c: end"]);
    world.types.insert((agent("bob"), AgentType::parse("writer").unwrap()));
    world.report(done(1, "alice", "alice-a")).unwrap();
    assert_eq!(world.proposal_of("typed-b").receiver, "type:writer");
    world.hand_over("typed-b", 1, "bob");
    let of_writer =
        |number, node: &str| Turn { by_types: vec![AgentType::parse("writer").unwrap()], ..done(number, "bob", node) };
    assert_eq!(world.report(done(2, "bob", "typed-b")).unwrap_err().code(), ErrorCode::NotOwner);
    world.report(of_writer(2, "typed-b")).unwrap();
    assert_eq!(world.active(), ["typed-c"], "the owner has the type");
    world.report(of_writer(3, "typed-c")).unwrap();
    assert_eq!(world.run().state, RunState::Completed);
}

#[test]
fn an_agent_that_has_lost_the_type_keeps_the_node_that_it_has_taken() {
    let mut world = over_task_of_alice(&["alice-a: typed-b", "typed-b: end"]);
    world.report(done(1, "alice", "alice-a")).unwrap();
    world.hand_over("typed-b", 1, "bob");
    assert_eq!(world.active(), ["typed-b"]);
    world.report(done(2, "bob", "typed-b")).unwrap();
    assert_eq!(world.run().state, RunState::Completed);
}

#[test]
fn the_agent_of_a_node_is_told_in_a_run_over_no_task() {
    let mut world = World { now: 1000, ..World::default() };
    let mut graph = graph(&["a: b c", "b: end", "c: end"]);
    (graph.nodes[0].agent, graph.nodes[1].agent) = (Some(agent("alice")), Some(agent("bob")));
    world.register(graph);
    world.start(Some("alice"), None).unwrap();
    assert_eq!(world.letters(), [], "the answer to the start tells alice");
    world.report(done(1, "alice", "a")).unwrap();
    assert_eq!(
        (world.active(), world.letters()),
        (vec!["b".to_owned(), "c".to_owned()], vec![letter("bob", "b", false)])
    );
    assert_eq!(world.record(turn_id(1)).proposal, None);
}

#[test]
fn no_two_proposals_of_a_run_have_one_id() {
    let mut world = over_task_of_alice(&["alice-a: bob-b carol-c", "bob-b: end", "carol-c: end"]);
    world.report(done(1, "alice", "alice-a")).unwrap();
    let (first, second) = (world.proposal_of("bob-b").choice, world.proposal_of("carol-c").choice);
    assert_ne!(first, second);
    assert!(MessageId::parse(&first.to_string()).is_ok());
}
