//! The estimates of the memory of open work, by which it is bounded, against what an allocator counts.

use std::{ops::Bound::Unbounded, sync::Arc, time::Duration};

use baton_broker_core::{
    domain::{
        EntityId, Input,
        routing::{self, Graph, Node, RunId, Start},
        threads,
    },
    engine::Command,
    ids::{AgentId, GraphId, MessageId, NodeId, PlanId, SpecId, ThreadId},
    proto::v1,
    records::EntityRecord,
    store::{Order, Store as _, Table},
};

use crate::world::{World, operator};

impl World {
    fn rows_of(&self, table: Table) -> Vec<bytes::Bytes> {
        let rows = self.disk.scan(table, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap();
        rows.into_iter().map(|(_, record)| record.value).collect()
    }

    /// Reads a record as the engine does. Returns the estimate of its memory, and what the allocator counts.
    fn estimate_and_count(&self, id: &EntityId, table: Table, rows: Option<Table>) -> (usize, usize) {
        let stored = self.rows_of(table).remove(0);
        let rows = rows.map(|table| self.rows_of(table));
        let mut read = None;
        let counted = allocation_counter::measure(|| {
            let record = EntityRecord::decode(id, &stored).unwrap();
            let record = match &rows {
                Some(rows) => record.with_rows(rows).unwrap(),
                None => record,
            };
            read = Some(Arc::new(record));
        });
        (read.unwrap().memory_bytes(stored.len()), usize::try_from(counted.bytes_current).unwrap())
    }
}

#[track_caller]
fn assert_near(what: &str, (estimate, counted): (usize, usize)) {
    println!("{what}: {estimate} bytes estimated, {counted} counted");
    assert!(estimate <= 2 * counted && counted <= 2 * estimate, "{what}: {estimate} estimated, {counted} counted");
}

#[test]
fn plans_take_about_what_is_estimated() {
    for (many, text) in [(1, 10), (10, 100), (64, 2000), (256, 600), (256, 10)] {
        let mut world = World::with(&["alice", "bob"]);
        let subtask = |number: usize| v1::Subtask {
            id: format!("s{number}"),
            description: "x".repeat(text),
            role: "analyst".to_owned(),
            agent_id: "bob".to_owned(),
            dependencies: (0..number).rev().take(3).map(|number| format!("s{number}")).collect(),
            produces: vec![format!("topic{number}")],
            ..Default::default()
        };
        let plan = v1::Plan { plan_id: "q".into(), subtasks: (0..many).map(subtask).collect(), ..Default::default() };
        let payload = v1::PlanSubmission { plan: Some(plan), ..Default::default() };
        world.send(world.envelope("alice", "", v1::MessageType::PlanSubmission, &payload)).unwrap();
        let id = PlanId::parse("q").unwrap();
        let plan = world.estimate_and_count(&EntityId::Plan(id.clone()), Table::Plans, None);
        assert_near(&format!("a plan of {many} subtasks"), plan);
        let spec = world.estimate_and_count(&EntityId::PlanSpec(id), Table::PlanSpecs, None);
        assert_near(&format!("the spec of {many} subtasks with texts of {text} bytes"), spec);
    }
}

#[test]
fn requests_for_offers_take_about_what_is_estimated() {
    for many in [1, 10, 60, 300] {
        let agents: Vec<String> = (0..many).map(|number| format!("an-agent-{number}:analyst")).collect();
        let all: Vec<&str> = agents.iter().map(String::as_str).chain(["alice"]).collect();
        let mut world = World::with(&all);
        let request = v1::TaskRequest { description: "x".repeat(1000), ..Default::default() };
        let envelope = world.envelope("alice", "all:analyst", v1::MessageType::TaskRequest, &request);
        let id = EntityId::Negotiation(MessageId::parse(&envelope.message_id).unwrap());
        world.send(envelope).unwrap();
        let found = world.estimate_and_count(&id, Table::Negotiations, Some(Table::NegotiationBids));
        assert_near(&format!("a request to {many} agents"), found);
    }
}

#[test]
fn runs_take_about_what_is_estimated() {
    for many in [1, 8, 64, 256] {
        let mut world = World::with(&["alice"]);
        let name = |number: usize| NodeId::parse(&format!("node{number}")).unwrap();
        let node = |number: usize| Node {
            id: name(number),
            description: "x".repeat(100),
            agent: None,
            agent_type: None,
            handoffs: None,
            outputs: vec![if number + 1 < many { name(number + 1) } else { NodeId::parse("end").unwrap() }],
        };
        let graph = Graph {
            id: GraphId::parse("g").unwrap(),
            description: String::new(),
            nodes: (0..many).map(node).collect(),
            entries: vec![name(0)],
            steps_max: 1000,
            revision: 0,
        };
        world.register_graph(graph).unwrap();
        let about = EntityId::Run(RunId(MessageId::from_bytes([1; 16])));
        let start = Start {
            graph: GraphId::parse("g").unwrap(),
            by: AgentId::parse("alice").ok(),
            task: None,
            whole: Duration::from_secs(3600),
        };
        let input = Box::new(Input::Routing(routing::Input::Start(start)));
        world.ask(|reply| Command::Apply { about: about.clone(), input, caller: operator(), reply }).unwrap();
        assert_near(&format!("a run of {many} nodes"), world.estimate_and_count(&about, Table::Runs, None));
    }
}

#[test]
fn threads_take_about_what_is_estimated() {
    for many in [0, 4, 64] {
        let agents: Vec<String> = (0..many).map(|number| format!("participant-{number}")).collect();
        let all: Vec<&str> = agents.iter().map(String::as_str).chain(["alice"]).collect();
        let mut world = World::with(&all);
        world.put_specs();
        let create = threads::Create {
            base: SpecId::parse("concierge").unwrap(),
            task: None,
            by: AgentId::parse("alice").ok(),
            participants: agents.iter().map(|name| AgentId::parse(name).unwrap()).collect(),
        };
        let about = EntityId::Thread(ThreadId::parse("t").unwrap());
        let input = Box::new(Input::Thread(threads::Input::Create(create)));
        world.ask(|reply| Command::Apply { about: about.clone(), input, caller: operator(), reply }).unwrap();
        let found = world.estimate_and_count(&about, Table::Threads, None);
        assert_near(&format!("a thread of {many} participants"), found);
    }
}
