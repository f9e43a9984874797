//! `baton run`: start runs, read the tools of a node, report turns, show, list, watch, cancel.

use std::{borrow::Cow, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs, OptionalIdentityArgs},
    duration, handoff, json,
    output::{self, Output},
    resolve::Prefix,
    table::Column,
};
use baton_client::{
    About,
    ids::{GraphId, MessageId, NodeId, SystemIds, TaskId},
    proto::v1::{self, MessageType, run_entry::Event, watch_run_response::Update},
    time::{Clock as _, SystemClock},
    {Client, Turn},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton run start search
  baton run tools 0198c0de searcher --shape openai
  baton run turn 0198c0de checker --call transfer_to_end='all facts hold'
  baton run watch 0198c0de")]
pub(super) enum RunCommand {
    /// Start a run through a graph.
    #[command(after_help = "Examples:
  baton run start search
  baton run start search --task crash-7 --id alice --key alice.pem")]
    Start(StartArgs),
    /// Print the tools that a node's model may call in its next turn.
    #[command(after_help = "Examples:
  baton run tools 0198c0de checker
  baton run tools 0198c0de checker --shape anthropic")]
    Tools(ToolsArgs),
    /// Report a turn of a node's model.
    #[command(after_help = "Examples:
  baton run turn 0198c0de searcher --finished --text 'three pages'
  baton run turn 0198c0de checker --call transfer_to_searcher='one page is missing'")]
    Turn(TurnArgs),
    /// Send the handoff that a run proposes, because another agent works at its next node. Its task's owner does this.
    #[command(after_help = "Examples:
  baton run hand-over 0198c0de --id alice --key alice.pem")]
    HandOver {
        /// The id of the run, or a unique prefix of it.
        id: Prefix,
        #[command(flatten)]
        identity: IdentityArgs,
    },
    /// Show one run.
    #[command(after_help = "Examples:
  baton run show 0198c0de")]
    Show {
        /// The id of the run, or a unique prefix of it.
        id: Prefix,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// List runs, newest first.
    #[command(after_help = "Examples:
  baton run list --graph search")]
    List {
        /// List only runs of this graph.
        #[arg(long, value_name = "GRAPH")]
        graph: Option<GraphId>,
        /// List only runs over this task.
        #[arg(long, value_name = "TASK")]
        task: Option<TaskId>,
        /// The most runs to list.
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Print the entries of a run's log as they are written, until the run ends.
    #[command(after_help = "Examples:
  baton run watch 0198c0de
  baton run watch 0198c0de --after 4 -o jsonl")]
    Watch {
        /// The id of the run, or a unique prefix of it.
        id: Prefix,
        /// Start after this entry of the log. 0 starts with the first.
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        after: u64,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Cancel a run.
    #[command(after_help = "Examples:
  baton run cancel 0198c0de --reason 'no longer needed'")]
    Cancel {
        /// The id of the run, or a unique prefix of it.
        id: Prefix,
        /// The reason, for people to read.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
}

/// The graph and the terms of a run.
#[derive(Debug, Args)]
pub(super) struct StartArgs {
    /// The id of the graph.
    graph: GraphId,
    /// The task that the run is over. The caller owns it.
    #[arg(long, value_name = "TASK")]
    task: Option<TaskId>,
    /// The id of the new run, a UUID. The same id again starts no second run.
    #[arg(long, value_name = "UUID")]
    run_id: Option<MessageId>,
    /// The time after which the run fails, 1s to 7d.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration::parse)]
    whole_timeout: Duration,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// A node of a run.
#[derive(Debug, Args)]
pub(super) struct ToolsArgs {
    /// The id of the run, or a unique prefix of it.
    run: Prefix,
    /// The node.
    node: NodeId,
    /// Print the tools as JSON in the shape of this interface.
    #[arg(long, value_name = "SHAPE")]
    shape: Option<Shape>,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// The interface that tools are shaped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Shape {
    /// A function tool of the OpenAI Responses API, strict.
    Openai,
    /// A tool of the Anthropic Messages API.
    Anthropic,
    /// A tool of the Model Context Protocol.
    Mcp,
}

/// A turn of a node's model.
#[derive(Debug, Args)]
pub(super) struct TurnArgs {
    /// The id of the run, or a unique prefix of it.
    run: Prefix,
    /// The node.
    node: NodeId,
    /// A tool call: the name of the tool, and for a transfer the reason. May be repeated.
    #[arg(long = "call", value_name = "TOOL[=REASON]")]
    calls: Vec<String>,
    /// The model has finished.
    #[arg(long)]
    finished: bool,
    /// The output of the node for the nodes that follow.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    text: String,
    /// The error that ended the node's work.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    error: String,
    /// The id of the turn, a UUID. The same turn again gets its first answer.
    #[arg(long, value_name = "UUID")]
    turn_id: Option<MessageId>,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

pub(super) async fn run(command: RunCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        RunCommand::Start(args) => start(args, connection, *output).await,
        RunCommand::Tools(args) => tools(args, connection, *output).await,
        RunCommand::Turn(args) => turn(args, connection, *output).await,
        RunCommand::HandOver { id, identity } => hand_over(&id, &identity, connection, output).await,
        RunCommand::Show { id, identity } => {
            let client = identity.client(connection).await?;
            let run = client.run(id.run(&client).await?).state().await?;
            output.one(&run, lines)
        }
        RunCommand::List { graph, task, limit, identity } => {
            let client = identity.client(connection).await?;
            let text = |id: Option<String>| id.unwrap_or_default();
            let filter = v1::ListRunsRequest {
                graph_id: text(graph.map(|id| id.to_string())),
                task_id: text(task.map(|id| id.to_string())),
                ..Default::default()
            };
            list(&client, &filter, limit, *output).await
        }
        RunCommand::Watch { id, after, identity } => {
            let client = identity.client(connection).await?;
            let request = v1::WatchRunRequest { run_id: id.run(&client).await?.to_string(), after_number: after };
            watch(&client, request, *output).await
        }
        RunCommand::Cancel { id, reason, identity } => {
            let client = identity.client(connection).await?;
            let run = client.run(id.run(&client).await?).cancel(&reason).await?;
            output.one(&run, lines)
        }
    }
}

async fn start(args: StartArgs, connection: &ConnectionArgs, output: Output) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    let whole_timeout = prost_types::Duration::try_from(args.whole_timeout)
        .map_err(|_| Failure::usage("--whole-timeout is too long".to_owned()))?;
    let request = v1::StartRunRequest {
        graph_id: args.graph.to_string(),
        run_id: args.run_id.map(|id| id.to_string()).unwrap_or_default(),
        task_id: args.task.map(|id| id.to_string()).unwrap_or_default(),
        whole_timeout: Some(whole_timeout),
    };
    let (_, run) = client.start_run(request).await?;
    output.one(&run, lines)
}

async fn tools(args: ToolsArgs, connection: &ConnectionArgs, output: Output) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    let run = client.run(args.run.run(&client).await?);
    let shape = match args.shape {
        None => v1::ToolShape::Unspecified,
        Some(Shape::Openai) => v1::ToolShape::Openai,
        Some(Shape::Anthropic) => v1::ToolShape::Anthropic,
        Some(Shape::Mcp) => v1::ToolShape::Mcp,
    };
    let answer = run.tools(args.node.as_str(), shape).await?;
    if args.shape.is_some() {
        let tools = answer.tools_json.iter().map(|tool| serde_json::from_str(tool));
        let tools = tools.collect::<Result<Vec<serde_json::Value>, _>>();
        return output.value(&tools.map_err(|error| Failure::failed(error.to_string()))?.into());
    }
    output.one(&answer, |answer| {
        let mut lines: Vec<(Cow<'static, str>, String)> = vec![("choices left".into(), answer.remaining.to_string())];
        lines.extend(answer.tools.iter().map(|tool| ("tool".into(), format!("{}: {}", tool.name, tool.description))));
        let text = |input: &v1::NodeOutput| {
            let text = if input.error.is_empty() { &input.output } else { &input.error };
            format!("from {}: {text}", input.node_id)
        };
        lines.extend(answer.inputs.iter().map(|input| ("input".into(), text(input))));
        lines
    })
}

async fn turn(args: TurnArgs, connection: &ConnectionArgs, output: Output) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    let run = client.run(args.run.run(&client).await?);
    let mut turn =
        Turn { finished: args.finished, output: args.text, error: args.error, ..Turn::new(&SystemClock, &SystemIds) };
    if let Some(id) = args.turn_id {
        turn.id = id.to_string();
    }
    for (number, call) in (1..).zip(&args.calls) {
        let (name, reason) = call.split_once('=').unwrap_or((call, ""));
        let arguments = serde_json::json!({ "reason": reason }).to_string();
        turn = turn.call(&format!("call-{number}"), name, &arguments);
    }
    let answer = run.turn(args.node.as_str(), &turn).await?;
    output.one(&answer, |answer| {
        let mut lines: Vec<(Cow<'static, str>, String)> = vec![
            ("turn".into(), turn.id.clone()),
            ("outcome".into(), output::short(answer.outcome().as_str_name(), "TURN_OUTCOME_")),
        ];
        if answer.error_code() != v1::ErrorCode::Unspecified {
            lines.push(("code".into(), output::short(answer.error_code().as_str_name(), "ERROR_CODE_")));
        }
        if let Some(choice) = &answer.choice {
            lines.push(("choice".into(), format!("{} → {}", choice.node_id, choice.target_node_id)));
        }
        if !answer.handoff_receiver_id.is_empty() {
            lines.push(("hand over to".into(), answer.handoff_receiver_id.clone()));
        }
        lines.extend(answer.tool_results.iter().map(|result| ("result".into(), result.text.clone())));
        lines.push(("next".into(), answer.next_node_ids.join(", ")));
        let state = answer.run.as_ref().map_or(v1::RunState::Unspecified, v1::Run::state);
        lines.push(("run".into(), output::short(state.as_str_name(), "RUN_STATE_")));
        lines
    })
}

async fn hand_over(
    id: &Prefix,
    identity: &IdentityArgs,
    connection: &ConnectionArgs,
    output: &Output,
) -> Result<(), Failure> {
    let (client, composer) = handoff::as_agent(identity, connection).await?;
    let id = id.run(&client).await?;
    let request = v1::GetRunRequest { run_id: id.to_string() };
    let answer = client.answer(client.routing().get_run(request).await)?;
    let Some(payload) = answer.handoff_proposal else {
        return Err(Failure::failed(format!("run {id} waits for no handoff")));
    };
    let task = answer.run.unwrap_or_default().task_id;
    let request = v1::GetTaskRequest { task_id: task.clone() };
    let epoch = client.answer(client.tasks().get_task(request).await)?.task.unwrap_or_default().epoch;
    let (to, about) = (answer.handoff_receiver_id, About::task(&task, epoch));
    handoff::send(&client, &composer, &to, MessageType::HandoffRequest, &about, &payload, output).await
}

async fn list(client: &Client, filter: &v1::ListRunsRequest, limit: u32, output: Output) -> Result<(), Failure> {
    let runs = output::pages(limit, async |page_size, page_token| {
        let request = v1::ListRunsRequest { page_size, page_token, ..filter.clone() };
        let page = client.answer(client.routing().list_runs(request).await)?;
        Ok((page.runs, page.next_page_token))
    })
    .await?;
    let columns = [
        Column::Id("RUN"),
        Column::Id("GRAPH"),
        Column::Id("TASK"),
        Column::Whole("STATE"),
        Column::Whole("STEP"),
        Column::Whole("TURNS"),
        Column::Whole("UPDATED"),
    ];
    let now = SystemClock.now();
    output.list(&columns, &runs, |run| {
        vec![
            run.run_id.clone(),
            run.graph.as_ref().map(|graph| graph.graph_id.clone()).unwrap_or_default(),
            run.task_id.clone(),
            output::short(run.state().as_str_name(), "RUN_STATE_"),
            run.step.to_string(),
            run.turns.to_string(),
            output::brief(run.update_time.as_ref(), now),
        ]
    })
}

fn lines(run: &v1::Run) -> Vec<(Cow<'static, str>, String)> {
    let graph = run.graph.clone().unwrap_or_default();
    let mut lines = vec![
        ("run".into(), run.run_id.clone()),
        ("graph".into(), format!("{}, revision {}", graph.graph_id, graph.revision)),
        ("task".into(), run.task_id.clone()),
        ("started by".into(), run.starter_id.clone()),
        ("state".into(), output::short(run.state().as_str_name(), "RUN_STATE_")),
        ("step".into(), format!("{} of at most {}", run.step, graph.steps_max)),
    ];
    for node in &run.nodes {
        let state = output::short(node.state().as_str_name(), "NODE_STATE_");
        let choices = format!("{} choices made, {} left", node.choices, node.remaining);
        lines.push(("node".into(), format!("{} {state}, {choices}", node.node_id)));
    }
    if !run.error_message.is_empty() {
        lines.push(("reason".into(), run.error_message.clone()));
    }
    lines.push(("turns".into(), run.turns.to_string()));
    lines.push(("created".into(), output::time(run.create_time.as_ref())));
    lines.push(("deadline".into(), output::time(run.deadline.as_ref())));
    lines
}

async fn watch(client: &Client, request: v1::WatchRunRequest, output: Output) -> Result<(), Failure> {
    let mut updates = super::watching::open(client, request).await?;
    while let Some(update) = updates.next().await? {
        match &update.update {
            Some(Update::Entry(entry)) if output.is_table() => say_entry(entry),
            Some(Update::Gap(gap)) if output.is_table() => {
                say!("{:>5}  (entries {} to {} are missing)", "", gap.first_number, gap.last_number);
            }
            Some(Update::CaughtUp(_)) if output.is_table() => {}
            Some(_) => output.next(&json::of(&update)?)?,
            // An update of a later version of the schema.
            None => {}
        }
    }
    Ok(())
}

/// Prints an entry on one line: number, time and event.
fn say_entry(entry: &v1::RunEntry) {
    let what = match &entry.event {
        Some(Event::Started(started)) if started.starter_id.is_empty() => "started by an operator".to_owned(),
        Some(Event::Started(started)) => format!("started by {}", started.starter_id),
        Some(Event::StepBegan(began)) => format!("super-step {}: {}", began.step, began.node_ids.join(", ")),
        Some(Event::Turn(turn)) => {
            let outcome = output::short(turn.outcome().as_str_name(), "TURN_OUTCOME_");
            let choice = turn.choice.as_ref();
            let choice =
                choice.map_or(String::new(), |choice| format!(" {}: {}", choice.target_node_id, choice.reason));
            format!("{} {outcome}{choice}, {} choices left", turn.node_id, turn.remaining)
        }
        Some(Event::HandoffBegan(handoff)) => format!("{} is handed over by {}", handoff.node_id, handoff.handoff_id),
        Some(Event::HandoffEnded(handoff)) if handoff.owner_id.is_empty() => {
            format!("the handoff {} for {} did not complete", handoff.handoff_id, handoff.node_id)
        }
        Some(Event::HandoffEnded(handoff)) => format!("{} owns the task", handoff.owner_id),
        Some(Event::ChoiceGivenUp(given_up)) => {
            let why = match given_up.error_code() {
                v1::ErrorCode::Unspecified => "the task has moved".to_owned(),
                code => format!("its request was refused with {}", output::short(code.as_str_name(), "ERROR_CODE_")),
            };
            format!("{} is active again, its choice given up: {why}", given_up.node_id)
        }
        Some(Event::HandoffProposed(proposal)) => {
            format!("{} needs a handoff to {}", proposal.node_id, proposal.handoff_receiver_id)
        }
        Some(Event::TaskMoved(moved)) => format!("{} owns the task, by no choice of the run", moved.owner_id),
        Some(Event::Ended(ended)) => {
            let state = output::short(ended.state().as_str_name(), "RUN_STATE_");
            let colon = if ended.error_message.is_empty() { "" } else { ": " };
            format!("{state}{colon}{}", ended.error_message)
        }
        None => String::new(),
    };
    say!("{:>5}  {}  {what}", entry.number, output::moment(entry.entry_time.as_ref()));
}
