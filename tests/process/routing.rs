//! Runs and threads outlive brokers that are killed.

use baton::{
    ids::{IdSource as _, MessageId, SystemIds, ThreadId},
    proto::v1::{self, RunState, ToolShape, watch_thread_response::Update, workspace_append::Entry},
    time::{Clock as _, SystemClock},
};
use baton_client::{Client, Run, Turn};
use tokio_stream::StreamExt as _;

use crate::broker::{Broker, exit_of, identity};

fn node(id: &str, handoffs: Option<u32>, outputs: &[&str]) -> v1::Node {
    v1::Node {
        node_id: id.to_owned(),
        description: format!("Does the work of {id}."),
        handoffs,
        output_nodes: outputs.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

/// Reports one turn of the active node, whose model goes back while it can. Returns the node, and what is active then.
async fn goes_back(run: &Run, node: &str) -> Vec<String> {
    let tools = run.tools(node, ToolShape::Openai).await.unwrap();
    let turn = Turn::new(&SystemClock, &SystemIds).finish("done");
    let can = tools.tools.iter().any(|tool| tool.name == "transfer_to_searcher");
    let turn = if can { turn.call("c1", "transfer_to_searcher", r#"{"reason": "one more"}"#) } else { turn };
    let answer = run.turn(node, &turn).await.unwrap();
    let again = run.turn(node, &turn).await.unwrap();
    assert_eq!(
        (answer.outcome, &answer.next_node_ids),
        (again.outcome, &again.next_node_ids),
        "a turn is applied once"
    );
    answer.next_node_ids
}

#[tokio::test]
async fn one_choice_is_left_after_kill_9_at_the_second() {
    let broker = Broker::start();
    let alice = broker.agent("alice").await;
    let graph = v1::Graph {
        graph_id: "search".to_owned(),
        entry_node_ids: vec!["searcher".to_owned()],
        nodes: vec![
            node("searcher", None, &["checker"]),
            node("checker", Some(3), &["searcher", "generator"]),
            node("generator", None, &["end"]),
        ],
        ..Default::default()
    };
    let client = &alice.client;
    let registered =
        client.routing().register_graph(v1::RegisterGraphRequest { graph: Some(graph), ..Default::default() }).await;
    client.answer(registered).unwrap();
    let start = v1::StartRunRequest { graph_id: "search".to_owned(), ..Default::default() };
    let (run, _) = client.start_run(start).await.unwrap();
    let id = MessageId::parse(run.id()).unwrap();
    let (mut active, mut visits, mut choices) = (vec!["searcher".to_owned()], [0; 3], 0);
    let place = |node: &str| ["searcher", "checker", "generator"].iter().position(|name| *name == node).unwrap();
    while choices < 2 {
        let node = active.remove(0);
        visits[place(&node)] += 1;
        choices += u32::from(node == "checker");
        active = goes_back(&run, &node).await;
    }

    let broker = Broker::start_in(broker.kill(), &[]);
    let alice = broker.agent("alice").await;
    let run = alice.client.run(id);
    let state = run.state().await.unwrap();
    let checker = state.nodes.iter().find(|node| node.node_id == "checker").unwrap();
    assert_eq!((checker.choices, checker.remaining, state.state()), (2, 1, RunState::Running));
    while let Some(node) = active.pop() {
        visits[place(&node)] += 1;
        active = goes_back(&run, &node).await;
    }
    assert_eq!(visits, [4, 4, 1]);
    assert_eq!(run.state().await.unwrap().state(), RunState::Completed);
}

async fn put(operator: &Client, spec_id: &str, plugins: &[&str]) {
    let spec = v1::AgentSpec {
        spec_id: spec_id.to_owned(),
        model_id: "large".to_owned(),
        system_prompt: format!("You are the {spec_id}."),
        plugin_ids: plugins.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    let put =
        operator.threads().put_agent_spec(v1::PutAgentSpecRequest { spec: Some(spec), ..Default::default() }).await;
    operator.answer(put).unwrap();
}

async fn says(client: &baton_client::session::Agent, text: &str) -> u64 {
    let append = v1::WorkspaceAppend {
        workspace_id: "thread:support".to_owned(),
        topic: "messages".to_owned(),
        entry: Some(Entry::Bytes(v1::ContextBytes { data: text.as_bytes().to_vec().into(), ..Default::default() })),
        ..Default::default()
    };
    let about = baton_client::About::default();
    let receipt = client.send("", v1::MessageType::WorkspaceAppend, &about, &append).await.unwrap();
    receipt.resource_sequence
}

/// The persona of a conversation changes at a boundary; notes goes off and search goes on. The broker is killed between
/// the request and the boundary, and after the boundary.
#[tokio::test]
async fn a_thread_switches_its_persona_over_kill_9() {
    let broker = Broker::start();
    let operator = broker.operator().await;
    let model = v1::ModelSpec { model_id: "large".to_owned(), model_name: "big".to_owned(), ..Default::default() };
    let made =
        operator.threads().put_model_spec(v1::PutModelSpecRequest { spec: Some(model), ..Default::default() }).await;
    operator.answer(made).unwrap();
    put(&operator, "concierge", &["agent_handoff", "notes"]).await;
    put(&operator, "researcher", &["agent_handoff", "search"]).await;
    let alice = broker.agent("alice").await;
    let action = || SystemIds.message_id(SystemClock.now());
    let create = v1::CreateThreadRequest {
        base_spec_id: "concierge".to_owned(),
        thread_id: "support".to_owned(),
        ..Default::default()
    };
    let (thread, _) = alice.client.create_thread(create).await.unwrap();
    let run_id = action();
    let run = thread.run_as(run_id).await.unwrap();
    assert_eq!((run.step().number, run.step().spec.system_prompt.as_str()), (1, "You are the concierge."));
    assert_eq!(run.step().model.model_name, "big");
    assert_eq!(says(&alice, "hello").await, 1);
    let asked = thread.request("researcher", action()).await.unwrap();
    assert_eq!((asked.warning.as_str(), asked.thread.unwrap().in_force_spec_id.as_str()), ("", "concierge"));

    let broker = Broker::start_in(broker.kill(), &[]);
    let alice = broker.agent("alice").await;
    let thread = alice.client.thread(&ThreadId::parse("support").unwrap());
    // The runner opens its run again: the same call, the same boundary.
    let mut run = thread.run_as(run_id).await.unwrap();
    assert_eq!((run.step().number, run.step().spec.spec_id.as_str()), (1, "concierge"));
    let before = run.clone();
    let step = run.next_step().await.unwrap();
    assert_eq!((step.number, step.spec.spec_id.as_str(), step.switched), (2, "researcher", true));
    assert_eq!(step.deactivate_plugin_ids, ["notes"]);
    assert_eq!(step.activate_plugin_ids, ["search"]);
    assert_eq!(step.request.as_ref().unwrap().outcome(), v1::ThreadRequestOutcome::Promoted);
    let first = step.clone();

    let folder = broker.kill();
    drop(before);
    let broker = Broker::start_in(folder, &[]);
    let alice = broker.agent("alice").await;
    let again = v1::EndStepRequest { thread_id: "support".into(), run_id: run_id.to_string(), step: 1 };
    let again = alice.client.answer(alice.client.threads().end_step(again).await).unwrap();
    assert_eq!((again.switched, again.spec, again.request), (true, Some(first.spec), first.request));
    assert_eq!(says(&alice, "one numbering over all switches").await, 2);
    let other = alice.client.thread(&ThreadId::parse("support").unwrap()).run_as(action()).await.unwrap_err();
    assert!(other.to_string().contains("is open until"), "{other}");
    let ended = v1::EndRunRequest { thread_id: "support".into(), run_id: run_id.to_string() };
    alice.client.answer(alice.client.threads().end_run(ended).await).unwrap();

    let watch = v1::WatchThreadRequest { thread_id: "support".into(), after_number: 0 };
    let mut updates = alice.client.answer(alice.client.threads().watch_thread(watch).await).unwrap();
    let mut numbers = Vec::new();
    loop {
        match updates.next().await.unwrap().unwrap().update.unwrap() {
            Update::Entry(entry) => numbers.push(entry.number),
            Update::Gap(gap) => panic!("{gap:?}"),
            Update::CaughtUp(_) => break,
        }
    }
    // Created, run, boundary, request, its end, boundary, end of the run.
    assert_eq!(numbers, (1..=7).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_command_line_changes_the_persona_of_a_thread() {
    let broker = Broker::start();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let model = file("large.json", r#"{"modelId": "large", "modelName": "big", "parameters": {"temperature": 0.2}}"#);
    let base = file("base.json", r#"{"specId": "base", "modelId": "large", "pluginIds": ["agent_handoff"]}"#);
    let writer = file("writer.json", r#"{"specId": "writer", "modelId": "large", "systemPrompt": "You write."}"#);
    assert_eq!(broker.lines(&["spec", "put", "--model", &model])[0]["modelId"], "large");
    for spec in [&base, &writer] {
        assert_eq!(broker.lines(&["spec", "put", spec])[0]["revision"], "1");
    }
    assert_eq!(broker.lines(&["spec", "list"]).len(), 2);
    assert_eq!(broker.lines(&["spec", "show", "writer"])[0]["systemPrompt"], "You write.");
    assert_eq!(broker.lines(&["thread", "create", "th", "--base", "base"])[0]["inForceSpecId"], "base");
    assert_eq!(broker.lines(&["thread", "request", "th", "unknown"])[0]["requestedAgent"], "unknown");
    assert_eq!(broker.lines(&["thread", "activate", "th", "writer"])[0]["activeAgent"], "writer");
    let cleared = broker.lines(&["thread", "clear", "th"]);
    assert!(cleared[0].get("activeAgent").is_none(), "{cleared:?}");
    assert_eq!(broker.lines(&["thread", "show", "th"])[0]["threadId"], "th");
    assert_eq!(broker.lines(&["thread", "list", "--spec", "base"]).len(), 1);
    // A run with its steps, each begin of which is a boundary.
    broker.lines(&["thread", "request", "th", "unknown"]);
    let run = "0198c0de-1b2a-7c3d-8e4f-5a6b7c8d9e0f";
    let begun = broker.lines(&["thread", "begin", "th", "--run-id", run]);
    assert_eq!((&begun[0]["thread"]["runId"], &begun[0]["thread"]["step"]), (&run.into(), &"1".into()));
    assert_eq!(begun[0]["request"]["outcome"], "THREAD_REQUEST_OUTCOME_FAILED");
    broker.lines(&["thread", "request", "th", "writer"]);
    let next = broker.lines(&["thread", "step", "th", run, "1"]);
    assert_eq!((&next[0]["thread"]["step"], &next[0]["spec"]["specId"]), (&"2".into(), &"writer".into()));
    let again = broker.lines(&["thread", "step", "th", run, "1"]);
    assert_eq!(next[0]["thread"]["logLength"], again[0]["thread"]["logLength"], "the same step again writes nothing");
    assert_eq!((&next[0]["thread"]["step"], &next[0]["spec"]), (&again[0]["thread"]["step"], &again[0]["spec"]));
    let (code, said) = exit_of(&mut broker.command(&["thread", "step", "th", run, "7"]));
    assert!(code != Some(0) && said.contains("the run is at step 2"), "{said}");
    let ended = broker.lines(&["thread", "end", "th", run]);
    assert!(ended[0].get("runId").is_none(), "{ended:?}");
}

/// The agents alice and bob work at the two nodes of a graph by the command line alone.
#[tokio::test]
async fn the_command_line_sends_the_handoff_that_a_run_proposes() {
    let broker = Broker::start();
    let folder = tempfile::tempdir().unwrap();
    let graph = folder.path().join("g.json");
    let text = r#"{"graphId": "g", "entryNodeIds": ["draft"], "nodes": [
        {"nodeId": "draft", "agentId": "alice", "outputNodes": ["review"]},
        {"nodeId": "review", "agentId": "bob", "outputNodes": ["end"]}]}"#;
    std::fs::write(&graph, text).unwrap();
    let key = |name: &str| {
        let path = folder.path().join(format!("{name}.pem"));
        identity(name).key.write(&path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (alice, bob, carol) = (broker.agent("alice").await, broker.agent("bob").await, broker.agent("carol").await);
    let (of_alice, of_bob) = (key("alice"), key("bob"));
    let by = |name: &'static str, key: &str, words: &[&str]| {
        let all = [words, &["--id", name, "--key", key]].concat();
        broker.lines(&all)
    };
    broker.lines(&["graph", "register", graph.to_str().unwrap()]);
    // A first handoff, which alice cancels, makes the task.
    let asked = by("alice", &of_alice, &["handoff", "request", "--to", "carol", "--task", "t", "--task-type", "x"]);
    let asked = asked[0]["handoffId"].as_str().unwrap().to_owned();
    by("alice", &of_alice, &["handoff", "cancel", &asked]);
    let run = by("alice", &of_alice, &["run", "start", "g", "--task", "t"])[0]["runId"].as_str().unwrap().to_owned();
    let refused = ["run", "hand-over", &run, "--id", "alice", "--key", &of_alice];
    let (code, said) = exit_of(&mut broker.command(&refused));
    assert!(code != Some(0) && said.contains("waits for no handoff"), "{said}");
    let turn = by("alice", &of_alice, &["run", "turn", &run, "draft", "--finished", "--text", "a draft"]);
    assert_eq!(turn[0]["handoffReceiverId"], "bob");
    let (code, said) = exit_of(&mut broker.command(&["run", "hand-over", &run, "--id", "bob", "--key", &of_bob]));
    assert!(code != Some(0) && said.contains("RECEIVER_INVALID"), "{said}");
    let handed = by("alice", &of_alice, &["run", "hand-over", &run]);
    assert_eq!((&handed[0]["taskId"], &handed[0]["ownerId"]), (&"t".into(), &"alice".into()));
    let shown = by("alice", &of_alice, &["run", "show", &run]);
    assert_eq!(shown[0]["nodes"][1]["handoffId"], handed[0]["handoffId"]);
    drop((alice, bob, carol));
}

#[tokio::test]
async fn the_command_line_hands_names_over_retires_and_removes_them() {
    let broker = Broker::start();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let alice = broker.agent("alice").await;
    let graph = file(
        "g.json",
        r#"{"graphId": "g", "entryNodeIds": ["n"], "nodes": [{"nodeId": "n", "outputNodes": ["end"]}]}"#,
    );
    assert_eq!(broker.lines(&["graph", "register", &graph])[0]["revision"], "1");
    let owners = broker.lines(&["graph", "owners"]);
    assert_eq!((owners.len(), &owners[0]["state"]), (1, &"REGISTRATION_STATE_ACTIVE".into()));
    let handed = broker.lines(&["graph", "transfer", "g", "alice", "--etag", "1"]);
    assert_eq!((&handed[0]["ownerId"], &handed[0]["etag"]), (&"alice".into(), &"2".into()));
    let owned = broker.lines(&["graph", "owners", "--owner", "alice"]);
    assert_eq!(owned.len(), 1);
    let (code, said) = exit_of(&mut broker.command(&["graph", "register", &graph, "--etag", "1"]));
    assert_eq!(code, Some(0), "the same graph again: {said}");
    assert_eq!(broker.lines(&["graph", "retire", "g"])[0]["state"], "REGISTRATION_STATE_RETIRED");
    let (_, said) = exit_of(&mut broker.command(&["run", "start", "g"]));
    assert!(said.contains("NAME_RETIRED") || said.contains("is retired"), "{said}");
    assert_eq!(broker.lines(&["graph", "remove", "g"])[0]["state"], "REGISTRATION_STATE_REMOVED");

    let schema = file("log.json", "{}");
    broker.lines(&["schema", "register", "log", "1", &schema]);
    assert_eq!(broker.lines(&["schema", "remove", "log", "1"])[0]["state"], "REGISTRATION_STATE_REMOVED");
    let model = file("large.json", r#"{"modelId": "large", "modelName": "big"}"#);
    let writer = file("writer.json", r#"{"specId": "writer", "modelId": "large", "systemPrompt": "You write."}"#);
    broker.lines(&["spec", "put", "--model", &model]);
    broker.lines(&["spec", "put", &writer]);
    let key = folder.path().join("alice.pem");
    identity("alice").key.write(&key).unwrap();
    let key = key.to_str().unwrap();
    let shown = broker.lines(&["spec", "show", "writer", "--id", "alice", "--key", key]);
    assert!(shown[0].get("systemPrompt").is_none(), "{shown:?}");
    assert_eq!(shown[0]["modelId"], "large");
    assert_eq!(broker.lines(&["spec", "owners", "--model"])[0]["name"], "large");
    assert_eq!(broker.lines(&["spec", "remove", "--model", "large"])[0]["state"], "REGISTRATION_STATE_REMOVED");
    assert_eq!(broker.lines(&["spec", "retire", "writer"])[0]["state"], "REGISTRATION_STATE_RETIRED");
    assert_eq!(broker.lines(&["spec", "transfer", "writer", "alice"])[0]["ownerId"], "alice");
    drop(alice);
}
