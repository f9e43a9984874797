//! What open work takes: the graphs of runs are stored once, and the open work of an agent is bounded by number and bytes.

use std::{collections::BTreeMap, ops::Bound::Unbounded, time::Duration};

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
    records::{DeadLetterRecord, MessageRecord, RunRecord, ThreadRecord, UsageRecord},
    store::{Order, Store as _, Table},
};

use crate::world::{Refusal, World, assert_refused, caller_of, operator};

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
        self.ask(|reply| Command::Apply {
            about: EntityId::Run(run_id(number)),
            caller: caller_of(&input),
            input,
            reply,
        })
    }

    fn end_run(&mut self, number: u8) {
        let cancel = routing::Input::Cancel { by: None, reason: String::new() };
        let input = Box::new(Input::Routing(cancel));
        self.ask(|reply| Command::Apply { about: EntityId::Run(run_id(number)), input, caller: operator(), reply })
            .unwrap();
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
        self.ask(|reply| Command::Apply { about, caller: caller_of(&input), input, reply })
    }

    fn all(&self, table: Table) -> Vec<(Vec<u8>, bytes::Bytes)> {
        let rows = self.disk.scan(table, (Unbounded, Unbounded), Order::Ascending, usize::MAX).unwrap();
        rows.into_iter().map(|(key, record)| (key.to_vec(), record.value)).collect()
    }

    /// The counts that the broker has, after a comparison with what the store has.
    fn usage(&self) -> BTreeMap<String, u64> {
        let mut expected: BTreeMap<String, u64> = BTreeMap::new();
        let mut envelopes: Vec<bytes::Bytes> = self.all(Table::Envelopes).into_iter().map(|(_, value)| value).collect();
        for (_, value) in self.all(Table::Messages) {
            let message = MessageRecord::decode(&value).unwrap();
            envelopes.extend(message.logged().and_then(|logged| logged.envelope.clone()));
        }
        for envelope in envelopes {
            let sender = <v1::Envelope as prost::Message>::decode(envelope.clone()).unwrap().sender_id;
            *expected.entry(sender).or_default() += envelope.len() as u64;
        }
        let (runs, threads) = (self.all(Table::Runs), self.all(Table::Threads));
        for (key, value) in self.all(Table::RunLog) {
            let (_, run) = runs.iter().find(|(id, _)| key.starts_with(id)).unwrap();
            let starter = RunRecord::decode(run).unwrap().run.starter.clone();
            *expected.entry(starter.map(|id| id.to_string()).unwrap_or_default()).or_default() += value.len() as u64;
        }
        for (key, value) in self.all(Table::ThreadLog) {
            let (_, thread) = threads.iter().find(|(id, _)| key.starts_with(id)).unwrap();
            let creator = ThreadRecord::decode(thread).unwrap().thread.creator.clone();
            *expected.entry(creator.map(|id| id.to_string()).unwrap_or_default()).or_default() += value.len() as u64;
        }
        expected.retain(|agent, bytes| !agent.is_empty() && !agent.starts_with("baton") && *bytes > 0);
        let rows = self.all(Table::AgentUsage).into_iter().map(|(key, value)| {
            let agent = UsageRecord::agent(&key).unwrap();
            let bytes = UsageRecord::decode(&value).unwrap().stored_bytes;
            assert_eq!(self.engine.directory().stored_bytes(&agent), bytes);
            (agent.to_string(), bytes)
        });
        let counted: BTreeMap<String, u64> = rows.collect();
        assert_eq!(counted, expected);
        counted
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

#[test]
fn what_an_agent_stores_is_counted_exactly_until_it_is_removed() {
    let mut world = World::with(&["alice", "bob", "carol:analyst", "dave:analyst"]);
    let (mut alice, mut bob) = (world.connect("alice"), world.connect("bob"));
    assert!(world.usage().is_empty());
    world.hand_over(&mut alice, &mut bob, 1);
    let of_task = world.usage();
    assert!(of_task["alice"] > of_task["bob"], "the context is the largest of the messages");
    // Mail counts until it is acked, for its sender and once for all receivers.
    world.send(world.info("alice", "bob", &"x".repeat(1000))).unwrap();
    assert!(world.usage()["alice"] > of_task["alice"] + 1000);
    world.take_and_ack(&mut bob);
    assert_eq!(world.usage()["alice"], of_task["alice"]);
    world.send(world.info("alice", "all:analyst", &"x".repeat(1000))).unwrap();
    assert!(world.usage()["alice"] < of_task["alice"] + 2000);
    world.restart();
    assert!(world.usage()["alice"] > of_task["alice"] + 1000);
    let (mut carol, mut dave) = (world.connect("carol"), world.connect("dave"));
    world.take_and_ack(&mut carol);
    world.usage();
    let (delivery, _) = dave.delivery();
    world.acknowledge(&dave, &delivery, baton_broker_core::engine::Fate::Poison { text: String::new() }).unwrap();
    // A dead letter has a copy, which counts until it is removed.
    let dead: Vec<DeadLetterRecord> = world.dead_letters();
    assert_eq!(dead.len(), 1);
    assert!(world.usage()["alice"] > of_task["alice"] + 1000);
    world.discard(dead[0].number).unwrap();
    // Runs and threads count for the agents that began them.
    world.register_graph(graph("a")).unwrap();
    world.begin_run(1, Some("bob")).unwrap();
    world.put_specs();
    world.begin_thread("t1", "bob").unwrap();
    assert!(world.usage()["bob"] > of_task["bob"]);
    world.end_run(1);
    world.send(world.status("bob", "alice", 2, v1::TaskStatus::Completed)).unwrap();
    world.usage();
    for agent in ["alice", "bob"] {
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
    let parked = world.dead_letters().len();
    world.pass(Duration::from_secs(100 * 24 * 3600));
    let dead = world.dead_letters();
    assert!(dead.is_empty() && parked == 1, "the discarded one is removed, and no other one follows: {dead:?}");
    assert_eq!(world.usage(), BTreeMap::new(), "all of it is removed");
}

#[test]
fn an_agent_that_stores_its_share_is_refused_and_others_are_not() {
    let mut settings = Settings::default();
    settings.limits.stored_bytes_max = 5000;
    let mut world = World::with_settings(&["alice", "bob", "carol"], settings);
    let text = "x".repeat(1500);
    for _ in 0..2 {
        world.send(world.info("alice", "bob", &text)).unwrap();
    }
    let refusal = assert_refused(world.send(world.info("alice", "bob", &text)), ErrorCode::LimitExceeded);
    assert!(refusal.to_string().contains("too many bytes"), "{refusal}");
    world.restart();
    assert_refused(world.send(world.info("alice", "bob", &text)), ErrorCode::LimitExceeded);
    world.send(world.info("carol", "bob", &text)).unwrap();
    // A call about a run counts for its starter.
    world.register_graph(graph("a")).unwrap();
    world.begin_run(1, Some("carol")).unwrap();
    let mut bob = world.connect("bob");
    for (delivery, _) in bob.deliveries() {
        world.ack(&bob, &delivery);
    }
    world.send(world.info("alice", "bob", &text)).unwrap();
}
