//! What open work takes: the graphs of runs are stored once, and the open work of an agent is bounded by number and bytes.

use std::{ops::Bound::Unbounded, time::Duration};

use baton_broker_core::{
    Settings,
    codes::ErrorCode,
    domain::{
        EntityId, Input,
        routing::{self, Graph, Node, RunId, Start},
        threads,
    },
    engine::Command,
    ids::{AgentId, GraphId, MessageId, NodeId, SpecId, ThreadId},
    proto::v1,
    store::{Order, Store as _, Table},
};

use crate::world::{Refusal, World, assert_refused, operator};

fn graph(description: &str) -> Graph {
    let node = |id: &str| NodeId::parse(id).unwrap();
    let nodes = vec![Node {
        id: node("only"),
        description: description.repeat(1000),
        agent: None,
        agent_type: None,
        handoffs: None,
        outputs: vec![node("end")],
    }];
    let id = GraphId::parse("g").unwrap();
    Graph { id, description: String::new(), nodes, entries: vec![node("only")], steps_max: 10, revision: 0 }
}

fn run_id(number: u8) -> RunId {
    RunId(MessageId::from_bytes([number; 16]))
}

impl World {
    fn begin_run(&mut self, number: u8, by: Option<&str>) -> Result<bool, Refusal> {
        let start = Start {
            graph: GraphId::parse("g").unwrap(),
            by: by.map(|by| AgentId::parse(by).unwrap()),
            task: None,
            whole: Duration::from_secs(3600),
        };
        let input = Box::new(Input::Routing(routing::Input::Start(start)));
        self.ask(|reply| Command::Apply { about: EntityId::Run(run_id(number)), input, reply })
    }

    fn end_run(&mut self, number: u8) {
        let cancel = routing::Input::Cancel { by: None, reason: String::new() };
        let input = Box::new(Input::Routing(cancel));
        self.ask(|reply| Command::Apply { about: EntityId::Run(run_id(number)), input, reply }).unwrap();
    }

    fn begin_thread(&mut self, name: &str, by: &str) -> Result<bool, Refusal> {
        let create = threads::Create {
            base: SpecId::parse("concierge").unwrap(),
            task: None,
            by: Some(AgentId::parse(by).unwrap()),
            participants: Default::default(),
        };
        let about = EntityId::Thread(ThreadId::parse(name).unwrap());
        let input = Box::new(Input::Thread(threads::Input::Create(create)));
        self.ask(|reply| Command::Apply { about, input, reply })
    }

    fn bytes_of(&self, table: Table) -> usize {
        let rows = self.disk.scan(table, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap();
        rows.iter().map(|(key, record)| key.len() + record.value.len()).sum()
    }

    fn description(&self, number: u8) -> String {
        let run = self.view(&operator()).run(run_id(number)).unwrap();
        run.graph.nodes[0].description[..1].to_owned()
    }
}

#[test]
fn a_revision_of_a_graph_is_stored_once_and_goes_with_the_last_run_that_names_it() {
    let mut world = World::with(&["alice"]);
    world.register_graph(graph("a")).unwrap();
    assert_eq!(world.rows(Table::GraphRevisions), 0, "no run names it");
    for number in 1..=50 {
        world.begin_run(number, Some("alice")).unwrap();
    }
    let (runs, graphs) = (world.bytes_of(Table::Runs), world.bytes_of(Table::GraphRevisions));
    assert!(runs < 50 * 500 && graphs < 1500, "{runs} and {graphs} bytes");
    world.register_graph(graph("b")).unwrap();
    world.begin_run(51, None).unwrap();
    // Each run keeps the revision that it began with, over a restart.
    world.restart();
    assert_eq!((world.description(1), world.description(51)), ("a".to_owned(), "b".to_owned()));
    let page = world.view(&operator()).runs(&Default::default(), 100, "").unwrap();
    assert_eq!(page.entries.len(), 51);
    for number in 1..=50 {
        world.end_run(number);
    }
    world.pass(Duration::from_secs(31 * 24 * 3600));
    assert_eq!(world.rows(Table::Runs), 0, "the last one has ended with its whole time");
    assert_eq!(world.rows(Table::GraphRevisions), 0);
    assert_eq!(world.rows(Table::Graphs), 1, "the registry keeps the latest revision");
}

#[test]
fn a_run_whose_start_fails_to_commit_holds_no_graph() {
    use std::sync::atomic::Ordering::Relaxed;
    let mut world = World::with(&["alice"]);
    world.register_graph(graph("a")).unwrap();
    world.disk.full.store(true, Relaxed);
    assert_refused(world.begin_run(1, None), ErrorCode::StoreUnavailable);
    world.disk.full.store(false, Relaxed);
    world.recover();
    assert_eq!(world.rows(Table::GraphRevisions), 0);
    world.begin_run(1, None).unwrap();
    assert_eq!(world.description(1), "a");
}

#[test]
fn open_runs_and_threads_of_one_agent_are_bounded_also_over_a_restart() {
    let mut settings = Settings::default();
    (settings.limits.open_runs_max, settings.limits.open_threads_max) = (2, 1);
    let mut world = World::with_settings(&["alice", "bob"], settings);
    world.register_graph(graph("a")).unwrap();
    world.put_specs();
    world.begin_run(1, Some("alice")).unwrap();
    world.begin_run(2, Some("alice")).unwrap();
    world.begin_thread("t1", "alice").unwrap();
    world.restart();
    let refusal = assert_refused(world.begin_run(3, Some("alice")), ErrorCode::LimitExceeded);
    assert!(refusal.to_string().contains("too many open runs"), "{refusal}");
    assert!(!world.begin_run(1, Some("alice")).unwrap(), "a repeat begins nothing");
    world.begin_run(3, Some("bob")).unwrap();
    world.begin_run(4, None).unwrap();
    let refusal = assert_refused(world.begin_thread("t2", "alice"), ErrorCode::LimitExceeded);
    assert!(refusal.to_string().contains("too many open threads"), "{refusal}");
    world.end_run(1);
    world.begin_run(5, Some("alice")).unwrap();
}

#[test]
fn open_work_is_bounded_by_bytes_for_one_agent_and_for_all() {
    let request = v1::TaskRequest { task_type: "x".repeat(100), ..Default::default() };
    for of_all in [false, true] {
        let mut settings = Settings::default();
        match of_all {
            true => settings.broker_limits.open_bytes_max = 2500,
            false => settings.limits.open_bytes_max = 2500,
        }
        let mut world = World::with_settings(&["alice", "carol", "bob:analyst"], settings);
        let ask = |world: &mut World, from: &str| {
            let envelope = world.envelope(from, "bob", v1::MessageType::TaskRequest, &request);
            world.send(envelope)
        };
        let mut open = 0;
        let refusal = loop {
            match ask(&mut world, "alice") {
                Ok(_) => open += 1,
                Err((code, refusal)) => {
                    assert_eq!(code, ErrorCode::LimitExceeded);
                    break refusal;
                }
            }
        };
        assert!((1..=4).contains(&open), "{open}");
        assert!(refusal.to_string().contains("too many bytes"), "{refusal}");
        world.restart();
        assert_refused(ask(&mut world, "alice"), ErrorCode::LimitExceeded);
        match of_all {
            true => drop(assert_refused(ask(&mut world, "carol"), ErrorCode::LimitExceeded)),
            false => drop(ask(&mut world, "carol").unwrap()),
        }
        // An end gives the bytes back.
        world.pass(Duration::from_secs(3600));
        ask(&mut world, "alice").unwrap();
    }
}
