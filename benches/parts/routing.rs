//! The cost of a turn of a run, beside that of a message with its receipt, and of the tools of a node.

use std::{sync::Arc, time::Duration};

use baton::{
    broker::engine::Revision,
    domain::{
        EntityId, Input,
        routing::{self, Call, Graph, Node, RunId, Start, Turn, TurnId},
    },
    ids::{GraphId, IdSource as _, NodeId, SystemIds},
    proto::v1::{self, MessageType, ToolShape},
    store::MemoryStore,
    time::Timestamp,
    wire::grpc::tool_json,
};

use super::{
    Part,
    room::{ALICE, About, BATCH, BOB, Room},
};

/// The choices of the checker. Each sends the run back to the searcher.
const CHOICES: u32 = 100;
/// The turns of a run: of the searcher and the checker until no choice is left, and of the generator.
const TURNS: usize = 2 * (CHOICES as usize + 1) + 1;
const OUTPUTS: usize = 32;

pub(crate) fn parts() -> Vec<Part> {
    let (mut messages, mut turns) = (None, None);
    let all = TURNS as u64;
    let wide = wide_graph();
    vec![
        Part::many("routing/message", all, move || send(messages.get_or_insert_with(room))),
        Part::many("routing/turn", all, move || take_turns(turns.get_or_insert_with(room_with_graph))),
        Part::one("routing/tools-of-32-outputs", move || {
            let tools = wide.tools(&wide.nodes[0]);
            let shaped = tools.iter().filter_map(|tool| tool_json(tool, ToolShape::Openai));
            assert_eq!(std::hint::black_box(shaped.collect::<Vec<String>>()).len(), OUTPUTS);
        }),
    ]
}

fn room() -> Room {
    Room::over(Arc::new(MemoryStore::default()))
}

fn room_with_graph() -> Room {
    let mut room = room();
    let graph = graph(vec![
        node("searcher", None, vec!["checker".to_owned()]),
        node("checker", Some(CHOICES), vec!["searcher".to_owned(), "generator".to_owned()]),
        node("generator", None, vec!["end".to_owned()]),
    ]);
    room.register_revision(Revision::Graph(graph));
    room.finish();
    room
}

fn id(name: &str) -> NodeId {
    NodeId::parse(name).expect("it is a name")
}

fn node(name: &str, handoffs: Option<u32>, outputs: Vec<String>) -> Node {
    Node {
        id: id(name),
        description: format!("Does the work of {name}, and says what it has found."),
        agent: None,
        agent_type: None,
        handoffs,
        outputs: outputs.iter().map(|output| id(output)).collect(),
    }
}

fn graph(nodes: Vec<Node>) -> Graph {
    let entries = vec![nodes[0].id.clone()];
    let graph = GraphId::parse("g").expect("it is a name");
    Graph { id: graph, description: String::new(), nodes, entries, steps_max: 1000, revision: 0 }
}

/// A node with 32 outputs, half of which have ids that are too long for the name of a tool.
fn wide_graph() -> Graph {
    let long = |number| format!("department-{number}.with-a-name-that-is-too-long");
    let name = |number| if number % 2 == 0 { format!("agent-{number}") } else { long(number) };
    let names: Vec<String> = (0..OUTPUTS).map(name).collect();
    let outputs = names.iter().map(|name| node(name, None, vec!["end".to_owned()]));
    graph([node("triage", Some(100), names.clone())].into_iter().chain(outputs).collect())
}

/// As many messages as a run has turns, in as many commits.
fn send(room: &mut Room) {
    let mut receipts = Vec::with_capacity(TURNS);
    for number in 0..TURNS {
        let info = v1::Info { text: format!("turn {number}"), ..Default::default() };
        receipts.push(room.submit(ALICE, BOB, MessageType::Info, About::default(), &info).1);
        if number % BATCH == BATCH - 1 {
            room.finish();
        }
    }
    room.finish();
    assert!(receipts.iter_mut().all(|receipt| receipt.try_recv().expect("the batch is committed").is_ok()));
}

/// A whole run of a model that always goes back.
fn take_turns(room: &mut Room) {
    let fresh = || SystemIds.message_id(Timestamp::default());
    let about = EntityId::Run(RunId(fresh()));
    let by_no_agent = None;
    let start = Start {
        graph: GraphId::parse("g").expect("it is a name"),
        by: by_no_agent,
        task: None,
        whole: Duration::from_secs(3600),
    };
    room.apply(about.clone(), Input::Routing(routing::Input::Start(start)));
    room.finish();
    let mut answers = Vec::with_capacity(TURNS);
    for number in 0..TURNS {
        let (name, goes_back) = match number {
            last if last == TURNS - 1 => ("generator", false),
            even if even % 2 == 0 => ("searcher", false),
            odd => ("checker", odd < 2 * CHOICES as usize),
        };
        let call =
            || Call { id: "c".to_owned(), name: "transfer_to_searcher".to_owned(), reason: Ok("why".to_owned()) };
        let turn = Turn {
            id: TurnId(fresh()),
            digest: [number as u8; 32],
            node: id(name),
            by: None,
            by_types: Vec::new(),
            calls: goes_back.then(call).into_iter().collect(),
            finished: true,
            output: format!("turn {number}"),
            error: String::new(),
        };
        answers.push(room.apply(about.clone(), Input::Routing(routing::Input::Turn(Box::new(turn)))));
        if number % BATCH == BATCH - 1 {
            room.finish();
        }
    }
    room.finish();
    for answer in &mut answers {
        assert_eq!(answer.try_recv().expect("the batch is committed").ok(), Some(true), "each turn is recorded");
    }
}
