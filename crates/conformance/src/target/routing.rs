//! SPEC 10: graphs, and the runs through them.

use std::collections::BTreeMap;

use tonic::Code;

use super::{
    check::{Answer, Checks, NoAnswer, Refusal, Verdict, answered, fail, refused, same},
    story::{Stage, Story, a_request, give},
    world::{Actor, World},
};
use baton_client::{
    About, Run, Turn,
    codes::ErrorCode,
    ids::SystemIds,
    proto::v1::{self, RunState, ToolShape},
    time::SystemClock,
};

cases! {
    "routing.invalid-graph-is-refused" "10"
        "A graph with errors is refused with GRAPH_INVALID, whose BadRequest names each problem at once."
        invalid_graph;
    "routing.choices-are-counted" "10"
        "A model that always goes back ends: with three choices the counts of searcher, checker and generator are 4, 4, 1."
        choices_are_counted;
    "routing.wrong-transfers-count-nothing" "10"
        "Two targets are TRANSFER_AMBIGUOUS, a tool that is not offered is TRANSFER_NOT_OFFERED, and arguments that are no object are FIELD_INVALID; each call gets a result, and nothing is counted."
        wrong_transfers;
    "routing.turn-is-applied-once" "10"
        "The same turn again gets its first answer; another turn with its id is refused with MESSAGE_ID_REUSED."
        applied_once;
    "routing.turns-are-bounded" "10"
        "A turn with 10,000 calls, of an inactive node, of an unknown run and of an ended run is refused."
        bounded;
    "routing.tools-have-each-shape" "10"
        "A node's tools come in the shapes of OpenAI, Anthropic and MCP, and none is offered once no choice is left."
        shapes;
    "routing.run-follows-its-handoff" "10"
        "A choice of another agent's node is a proposal; the run moves when the handoff that names the choice is COMPLETED."
        follows_handoff;
    "routing.third-refusal-is-no-choice" "10"
        "The third refused turn of a node in a row counts as one without a choice: its forward outputs are next."
        third_refusal;
    "routing.models-write-as-they-do" "10"
        "A transfer without arguments, with a provider's prefix, in another case, or without a call id is taken as it is meant."
        as_models_write;
    "routing.run-follows-its-task" "10"
        "A run goes on with the owner that its task has got outside of it, and ends with the task."
        follows_task;
    "routing.plain-edge-hands-over" "10"
        "A plain edge to another agent's node is a proposal: the node is MOVING, then its agent alone reports its turn, and is told by mail with the inputs. A refused handoff leaves the node with the owner."
        plain_edge;
}

fn node(id: &str, handoffs: Option<u32>, outputs: &[&str]) -> v1::Node {
    v1::Node {
        node_id: id.to_owned(),
        description: format!("Does the work of {id}."),
        handoffs,
        output_nodes: outputs.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

/// A searcher, a checker with three choices, and a generator.
fn story(world: &World) -> v1::Graph {
    v1::Graph {
        graph_id: world.id("graph"),
        entry_node_ids: vec!["searcher".to_owned()],
        nodes: vec![
            node("searcher", None, &["checker"]),
            node("checker", Some(3), &["searcher", "generator"]),
            node("generator", None, &["end"]),
        ],
        ..Default::default()
    }
}

async fn register(who: &Actor, graph: v1::Graph) -> Answer<v1::RegisterGraphResponse> {
    let request = v1::RegisterGraphRequest { graph: Some(graph), ..Default::default() };
    who.call(async { who.client.answer(who.client.routing().register_graph(request).await) }).await
}

/// Registers the graph, and starts a run through it.
async fn start(who: &Actor, graph: v1::Graph, task_id: &str) -> Verdict<Run> {
    let graph_id = graph.graph_id.clone();
    answered("a graph is registered", register(who, graph).await)?;
    let request = v1::StartRunRequest { graph_id, task_id: task_id.to_owned(), ..Default::default() };
    Ok(answered("a run is started", who.call(who.client.start_run(request)).await)?.0)
}

fn turn() -> Turn {
    Turn::new(&SystemClock, &SystemIds)
}

/// A turn that calls these tools, each with a reason.
fn calling(names: &[&str]) -> Turn {
    let add =
        |turn: Turn, (number, name): (usize, &&str)| turn.call(&format!("c{number}"), name, r#"{"reason": "why"}"#);
    names.iter().enumerate().fold(turn(), add)
}

async fn report(who: &Actor, run: &Run, node: &str, turn: &Turn) -> Answer<v1::RecordTurnResponse> {
    who.call(run.turn(node, turn)).await
}

/// Reports a turn that the broker must record.
async fn take(who: &Actor, run: &Run, node: &str, turn: &Turn) -> Verdict<v1::RecordTurnResponse> {
    answered(&format!("a turn of {node} is reported"), report(who, run, node, turn).await)
}

fn state(answer: &v1::RecordTurnResponse) -> RunState {
    answer.run.as_ref().map_or(RunState::Unspecified, v1::Run::state)
}

async fn invalid_graph(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let mut graph = story(&world);
    graph.nodes[0].output_nodes.push("checker".to_owned());
    graph.nodes[1].handoffs = Some(101);
    graph.nodes[2] = node("generator", Some(0), &["nowhere"]);
    let invalid = Refusal(Code::InvalidArgument, "GRAPH_INVALID");
    let step = "a graph with five errors is registered";
    let refusal = refused(step, register(&alice, graph.clone()).await, invalid)?;
    let mut checks = Checks::of(step);
    let named: Vec<&str> =
        refusal.violations.iter().filter_map(|(_, problem)| Some(problem.split_once(':')?.0)).collect();
    let expected =
        ["OUTPUT_DOUBLED", "HANDOFFS_OUT_OF_RANGE", "OUTPUT_UNKNOWN", "HANDOFFS_OUT_OF_RANGE", "TOO_FEW_OUTPUTS"];
    checks.same("problems", &expected[..], &named);
    let mut round = story(&world);
    round.nodes[2].output_nodes = vec!["generator".to_owned()];
    let answer = register(&alice, round).await;
    let says_round = match &answer {
        Err(NoAnswer::Refused(refused)) => refused.message.contains("generator → generator"),
        Ok(_) | Err(NoAnswer::Other(_)) => false,
    };
    checks.refused("a graph that goes round without a choice", answer, invalid);
    checks.holds("the cycle", says_round, "generator → generator", says_round);
    let request = v1::GetGraphRequest { graph_id: graph.graph_id };
    let got = alice.call(async { alice.client.answer(alice.client.routing().get_graph(request).await) }).await;
    checks.refused("it is read", got, Refusal(Code::NotFound, "GRAPH_UNKNOWN"));
    checks.done()
}

async fn choices_are_counted(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let run = start(&alice, story(&world), "").await?;
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let mut active = vec!["searcher".to_owned()];
    // More visits than any run of this graph has.
    for _ in 0..20 {
        let Some(node) = active.first().cloned() else { break };
        *counts.entry(node.clone()).or_default() += 1;
        let tools = answered("its tools are read", alice.call(run.tools(&node, ToolShape::Unspecified)).await)?;
        let goes_back = tools.tools.iter().any(|tool| tool.name == "transfer_to_searcher");
        let turn = if goes_back { calling(&["transfer_to_searcher"]) } else { turn() };
        active = take(&alice, &run, &node, &turn.finish("done")).await?.next_node_ids;
    }
    let counts: Vec<(&str, u32)> = counts.iter().map(|(node, count)| (node.as_str(), *count)).collect();
    same("the run ends", "visits", vec![("checker", 4), ("generator", 1), ("searcher", 4)], counts)?;
    let run = answered("it is read", alice.call(run.state()).await)?;
    same("the run has ended", "state", RunState::Completed, run.state())
}

fn turn_of_searcher() -> Turn {
    turn().finish("pages")
}

/// A run whose checker is active.
async fn at_checker(world: &World) -> Verdict<(Actor, Run)> {
    let alice = world.agent("alice").await?;
    let run = start(&alice, story(world), "").await?;
    take(&alice, &run, "searcher", &turn_of_searcher()).await?;
    Ok((alice, run))
}

async fn wrong_transfers(world: World) -> Verdict {
    let (alice, run) = at_checker(&world).await?;
    let mut checks = Checks::of("wrong transfers are reported");
    let both = calling(&["transfer_to_searcher", "transfer_to_generator", "search"]);
    let cases = [
        (both, ErrorCode::TransferAmbiguous, 3),
        (calling(&["transfer_to_end"]), ErrorCode::TransferNotOffered, 1),
        (turn().call("c1", "transfer_to_searcher", "because"), ErrorCode::FieldInvalid, 1),
        (turn().call("c1", "transfer_to_searcher", "[]"), ErrorCode::FieldInvalid, 1),
    ];
    for (turn, code, results) in cases {
        // Three refusals in a row would end the node's part.
        take(&alice, &run, "checker", &calling(&["search"])).await?;
        let answer = take(&alice, &run, "checker", &turn).await?;
        checks.same(code.name(), code.number(), answer.error_code);
        checks.same("tool_results", results, answer.tool_results.len());
        checks.holds("choice", answer.choice.is_none(), "none", &answer.choice);
        checks.same("next_node_ids", vec!["checker".to_owned()], answer.next_node_ids);
    }
    let tools = answered("its tools are read", alice.call(run.tools("checker", ToolShape::Unspecified)).await)?;
    checks.same("remaining", 3, tools.remaining);
    checks.done()
}

async fn applied_once(world: World) -> Verdict {
    let (alice, run) = at_checker(&world).await?;
    let turn = calling(&["transfer_to_searcher"]);
    let first = take(&alice, &run, "checker", &turn).await?;
    let again = take(&alice, &run, "checker", &turn).await?;
    same("the same turn is reported again", "answer", &first, &again)?;
    let node = again.run.and_then(|run| run.nodes.into_iter().find(|node| node.node_id == "checker"));
    same("the choice is counted once", "choices", Some(1), node.map(|node| node.choices))?;
    let other = Turn { output: "other".to_owned(), ..turn };
    let answer = report(&alice, &run, "checker", &other).await;
    refused("another turn has its id", answer, Refusal(Code::AlreadyExists, "MESSAGE_ID_REUSED")).map(drop)
}

async fn bounded(world: World) -> Verdict {
    let (alice, run) = at_checker(&world).await?;
    let mut checks = Checks::of("turns that cannot be recorded");
    let invalid = Refusal(Code::InvalidArgument, "FIELD_INVALID");
    let names: Vec<String> = (0..10_000).map(|number| format!("tool{number}")).collect();
    let many = calling(&names.iter().map(String::as_str).collect::<Vec<_>>());
    checks.refused("10,000 calls", report(&alice, &run, "checker", &many).await, invalid);
    let large = turn().finish(&"x".repeat(65_537));
    checks.refused("an output over 64 KiB", report(&alice, &run, "checker", &large).await, invalid);
    let unnamed = Turn { id: "first".to_owned(), ..turn() };
    checks.refused("a turn_id that is no UUID", report(&alice, &run, "checker", &unnamed).await, invalid);
    let both = Turn { error: "failed".to_owned(), ..calling(&["transfer_to_searcher"]) };
    checks.refused("an error and a transfer", report(&alice, &run, "checker", &both).await, invalid);
    let not_active = Refusal(Code::FailedPrecondition, "NODE_NOT_ACTIVE");
    checks.refused("an inactive node", report(&alice, &run, "searcher", &turn()).await, not_active);
    checks.refused("its tools", alice.call(run.tools("searcher", ToolShape::Mcp)).await, not_active);
    let bob = world.agent("bob").await?;
    let strange = bob.client.run(run.id().parse().unwrap_or_else(|_| unreachable!("the broker has given it")));
    let answer = report(&bob, &strange, "checker", &turn()).await;
    checks.refused_as_absent("a run of another agent", answer, Refusal(Code::PermissionDenied, "PERMISSION_DENIED"));
    answered("the run is cancelled", alice.call(run.cancel("enough")).await)?;
    let ended = Refusal(Code::FailedPrecondition, "RUN_FINAL");
    checks.refused("an ended run", report(&alice, &run, "checker", &turn()).await, ended);
    checks.done()
}

async fn shapes(world: World) -> Verdict {
    let (alice, run) = at_checker(&world).await?;
    let mut checks = Checks::of("the tools of a node are read");
    let fields =
        [(ToolShape::Openai, "parameters"), (ToolShape::Anthropic, "input_schema"), (ToolShape::Mcp, "inputSchema")];
    for (shape, schema) in fields {
        let answer = answered("the tools are read", alice.call(run.tools("checker", shape)).await)?;
        let shaped: Vec<serde_json::Value> =
            answer.tools_json.iter().filter_map(|tool| serde_json::from_str(tool).ok()).collect();
        checks.same("tools_json", 2, shaped.len());
        for (tool, shaped) in answer.tools.iter().zip(&shaped) {
            checks.same("name", Some(tool.name.as_str()), shaped["name"].as_str());
            checks.same("required", &serde_json::json!(["reason"]), &shaped[schema]["required"]);
        }
        let output = answer.inputs.first().map(|input| (input.node_id.clone(), input.output.clone()));
        checks.same("inputs", Some(("searcher".to_owned(), "pages".to_owned())), output);
    }
    for _ in 0..3 {
        take(&alice, &run, "checker", &calling(&["transfer_to_searcher"])).await?;
        take(&alice, &run, "searcher", &turn().finish("pages")).await?;
    }
    let last = answered("the tools are read", alice.call(run.tools("checker", ToolShape::Openai)).await)?;
    checks.same("remaining", 0, last.remaining);
    checks.same("tools once no choice is left", 0, last.tools.len());
    checks.done()
}

async fn follows_handoff(world: World) -> Verdict {
    // Alice owns the task again after the delegation of the story has been cancelled.
    let story = Story::at(&world, Stage::Requested).await?;
    answered("alice cancels the first handoff", story.cancel().await)?;
    let (alice, bob) = (&story.alice, &story.bob);
    let review = v1::Node { agent_id: bob.id().to_owned(), ..node("review", Some(1), &["draft", "end"]) };
    let graph = v1::Graph {
        graph_id: world.id("graph"),
        entry_node_ids: vec!["draft".to_owned()],
        nodes: vec![node("draft", Some(2), &["review", "end"]), review],
        ..Default::default()
    };
    let run = start(alice, graph, &story.task).await?;
    let answer = take(alice, &run, "draft", &calling(&["transfer_to_review"])).await?;
    let Some(proposal) = answer.handoff_proposal else {
        return fail("a node of another agent is chosen", "handoff_proposal", "a request", "none");
    };
    let choice = answer.choice.unwrap_or_default();
    same("a node of another agent is chosen", "handoff_receiver_id", bob.id(), &choice.handoff_receiver_id)?;
    let about = About::task(&story.task, 1);
    let unfit = Refusal(Code::FailedPrecondition, "NODE_NOT_ACTIVE");
    let mut wrong = proposal.clone();
    if let Some(routing) = &mut wrong.routing {
        routing.choice_id =
            baton_client::ids::IdSource::message_id(&SystemIds, baton_client::time::Clock::now(&SystemClock))
                .to_string();
    }
    refused("a request names another choice", alice.say(bob.id(), &about, &wrong).await, unfit)?;
    let request = v1::HandoffRequest { routing: proposal.routing, ..a_request() };
    let receipt = alice.tell(bob.id(), &about, &request).await?;
    let about = About::handoff(&story.task, 1, &receipt.handoff_id);
    bob.tell(alice.id(), &about, &v1::HandoffAccept::default()).await?;
    alice.tell(bob.id(), &about, &story.context).await?;
    let context_digest = story.context.context_digest.clone();
    let outcome = v1::HandoffOutcome::Success.into();
    bob.tell(alice.id(), &about, &v1::HandoffComplete { outcome, context_digest, ..Default::default() }).await?;
    let of_bob = bob.client.run(run.id().parse().unwrap_or_else(|_| unreachable!("the broker has given it")));
    let last = take(bob, &of_bob, "review", &calling(&["transfer_to_end"])).await?;
    same("bob ends the run", "state", RunState::Completed, state(&last))?;
    let refusal = Refusal(Code::PermissionDenied, "NOT_OWNER");
    let late = report(alice, &run, "draft", &turn()).await;
    refused("alice reports a turn", late, refusal).map(drop)
}

async fn third_refusal(world: World) -> Verdict {
    let (alice, run) = at_checker(&world).await?;
    let mut checks = Checks::of("a model repeats a transfer that is not offered");
    for next in ["checker", "checker", "generator"] {
        let answer = take(&alice, &run, "checker", &calling(&["transfer_to_nobody"])).await?;
        checks.same("error_code", ErrorCode::TransferNotOffered.number(), answer.error_code);
        checks.same("next_node_ids", vec![next.to_owned()], answer.next_node_ids);
    }
    checks.done()
}

async fn as_models_write(world: World) -> Verdict {
    let mut checks = Checks::of("a model writes a transfer in its own way");
    let ways = [
        ("no arguments", turn().call("c1", "transfer_to_generator", "")),
        ("an empty object", turn().call("c1", "transfer_to_generator", "{}")),
        ("a prefix", turn().call("c1", "functions.transfer_to_generator", r#"{"reason": "why"}"#)),
        ("another case", turn().call("c1", "transferToGenerator", r#"{"reason": "why"}"#)),
        ("no call id, twice", turn().call("", "search", "{}").call("", "transfer_to_generator", "{}")),
    ];
    let alice = world.agent("alice").await?;
    for (way, turn) in ways {
        let run = start(&alice, story(&world), "").await?;
        take(&alice, &run, "searcher", &turn_of_searcher()).await?;
        let calls = turn.calls.len();
        let answer = take(&alice, &run, "checker", &turn).await?;
        checks.same(way, vec!["generator".to_owned()], answer.next_node_ids);
        checks.same("tool_results", calls, answer.tool_results.len());
    }
    checks.done()
}

/// Takes deliveries until the letter about a node comes. Returns its topic and data.
async fn told_of_node(who: &Actor) -> Verdict<(String, serde_json::Value)> {
    loop {
        let delivered = who.next("the letter about the node comes").await?;
        // An offer that has ended is withdrawn, also from the one that holds it: there is nothing left to ack then.
        let _ = who.ack(&delivered).await;
        if delivered.kind() == v1::MessageType::Info {
            let info = delivered.payload::<v1::Info>();
            return Ok((info.topic, serde_json::from_str(&info.data_json).unwrap_or_default()));
        }
    }
}

async fn plain_edge(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Requested).await?;
    answered("alice cancels the first handoff", story.cancel().await)?;
    let (alice, bob) = (&story.alice, &story.bob);
    let graph = v1::Graph {
        graph_id: world.id("graph"),
        entry_node_ids: vec!["draft".to_owned()],
        nodes: vec![
            v1::Node { agent_id: alice.id().to_owned(), ..node("draft", None, &["review"]) },
            v1::Node { agent_id: bob.id().to_owned(), ..node("review", None, &["end"]) },
        ],
        ..Default::default()
    };
    let mut checks = Checks::of("a plain edge leads to a node of another agent");
    let run = start(alice, graph.clone(), &story.task).await?;
    let answer = take(alice, &run, "draft", &turn().finish("a draft")).await?;
    checks.same("handoff_receiver_id", bob.id(), &answer.handoff_receiver_id);
    checks.same("next_node_ids", Vec::<String>::new(), answer.next_node_ids.clone());
    let of_bob = bob.client.run(run.id().parse().unwrap_or_else(|_| unreachable!("the broker has given it")));
    let not_active = Refusal(Code::FailedPrecondition, "NODE_NOT_ACTIVE");
    let not_owner = Refusal(Code::PermissionDenied, "NOT_OWNER");
    checks.refused("the owner reports its turn", report(alice, &run, "review", &turn()).await, not_active);
    checks.refused("bob reports its turn", report(bob, &of_bob, "review", &turn()).await, not_owner);
    let Some(proposal) = answer.handoff_proposal else {
        return fail("a plain edge leads to a node of another agent", "handoff_proposal", "a request", "none");
    };
    // A handoff that bob refuses leaves the node with alice.
    let about = About::task(&story.task, 1);
    let first = v1::HandoffRequest { routing: proposal.routing, ..a_request() };
    let handoff = alice.tell(bob.id(), &about, &first).await?.handoff_id;
    let no = v1::HandoffReject { reason: v1::RejectReason::Other.into(), ..Default::default() };
    bob.tell(alice.id(), &About::handoff(&story.task, 1, &handoff), &no).await?;
    let (topic, data) = told_of_node(alice).await?;
    checks.same("topic", "run.node_active", topic.as_str());
    checks.same("node_id", Some("review"), data["node_id"].as_str());
    let last = take(alice, &run, "review", &turn().finish("")).await?;
    checks.same("alice ends the run", RunState::Completed, state(&last));
    // A handoff that bob completes makes him the one who reports the turn.
    let run = start(alice, graph, &story.task).await?;
    let answer = take(alice, &run, "draft", &turn().finish("a draft")).await?;
    let routing = answer.handoff_proposal.and_then(|proposal| proposal.routing);
    give(alice, bob, &story.task, &v1::HandoffRequest { routing, ..a_request() }).await?;
    let (topic, data) = told_of_node(bob).await?;
    checks.same("topic", "run.node_active", topic.as_str());
    checks.same("run_id", Some(run.id()), data["run_id"].as_str());
    checks.same("inputs", Some("a draft"), data["inputs"][0]["output"].as_str());
    checks.refused("alice reports its turn", report(alice, &run, "review", &turn()).await, not_owner);
    let of_bob = bob.client.run(run.id().parse().unwrap_or_else(|_| unreachable!("the broker has given it")));
    let last = take(bob, &of_bob, "review", &turn().finish("")).await?;
    checks.same("bob ends the run", RunState::Completed, state(&last));
    checks.done()
}

async fn follows_task(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Requested).await?;
    answered("alice cancels the first handoff", story.cancel().await)?;
    let (alice, bob) = (&story.alice, &story.bob);
    let graph = v1::Graph {
        graph_id: world.id("graph"),
        entry_node_ids: vec!["draft".to_owned()],
        nodes: vec![node("draft", Some(2), &["review", "end"]), node("review", Some(1), &["draft", "end"])],
        ..Default::default()
    };
    let run = start(alice, graph, &story.task).await?;
    give(alice, bob, &story.task, &a_request()).await?;
    let of_bob = bob.client.run(run.id().parse().unwrap_or_else(|_| unreachable!("the broker has given it")));
    answered("bob reads the run", bob.call(of_bob.state()).await)?;
    let late = report(alice, &run, "draft", &turn()).await;
    refused("alice reports a turn", late, Refusal(Code::PermissionDenied, "NOT_OWNER"))?;
    let answer = take(bob, &of_bob, "draft", &calling(&["transfer_to_review"])).await?;
    same("bob reports a turn", "next_node_ids", vec!["review".to_owned()], answer.next_node_ids)?;
    let done = v1::TaskStatusUpdate { status: v1::TaskStatus::Completed.into(), ..Default::default() };
    bob.tell("", &About::task(&story.task, 2), &done).await?;
    let ended = answered("bob reads the run", bob.call(of_bob.state()).await)?;
    same("the task has ended", "state", RunState::Completed, ended.state())
}
