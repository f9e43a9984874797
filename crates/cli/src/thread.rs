//! `baton thread`: create, show, list and watch threads, change the persona of one, and run one step by step.

use std::borrow::Cow;

use clap::{Args, Subcommand};

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    json,
    output::{self, Output},
    table::Column,
};
use baton_client::{
    Client,
    ids::{AgentId, IdSource as _, MessageId, SpecId, SystemIds, TaskId, ThreadId},
    proto::v1::{self, thread_entry::Event, watch_thread_response::Update},
    time::{Clock as _, SystemClock},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton thread create support --base concierge --participant alice
  baton thread request support writer
  baton thread watch support")]
pub(super) enum ThreadCommand {
    /// Create a thread with a base spec.
    #[command(after_help = "Examples:
  baton thread create support --base concierge --participant alice
  baton thread create --base concierge --task crash-7 --id alice --key alice.pem")]
    Create(CreateArgs),
    /// Show one thread.
    #[command(after_help = "Examples:
  baton thread show support")]
    Show {
        /// The id of the thread.
        id: ThreadId,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// List threads, newest first.
    #[command(after_help = "Examples:
  baton thread list --spec writer")]
    List {
        /// List only threads of this task.
        #[arg(long, value_name = "TASK")]
        task: Option<TaskId>,
        /// List only threads with this spec in force.
        #[arg(long, value_name = "SPEC")]
        spec: Option<SpecId>,
        /// The most threads to list.
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Print the entries of a thread's log as they are written.
    #[command(after_help = "Examples:
  baton thread watch support
  baton thread watch support --after 4 -o jsonl")]
    Watch {
        /// The id of the thread.
        id: ThreadId,
        /// Start after this entry of the log. 0 starts with the first.
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        after: u64,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Request another persona for the next boundary.
    #[command(after_help = "Examples:
  baton thread request support writer")]
    Request(SpecArgs),
    /// Make a persona active, from the next boundary on.
    #[command(after_help = "Examples:
  baton thread activate support writer")]
    Activate(SpecArgs),
    /// Return to the base spec, from the next boundary on.
    #[command(after_help = "Examples:
  baton thread clear support")]
    Clear(ActionArgs),
    /// Open a run of a thread, and print what its first step works with.
    #[command(after_help = "Examples:
  baton thread begin support --id alice --key alice.pem")]
    Begin {
        /// The id of the thread.
        thread: ThreadId,
        /// The id of the run, a UUID. The same id again opens no second run.
        #[arg(long, value_name = "UUID")]
        run_id: Option<MessageId>,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// End a step of a run, and print what the next step works with. The same step again renews the lease.
    #[command(after_help = "Examples:
  baton thread step support 0198c0de-1b2a-7c3d-8e4f-5a6b7c8d9e0f 1 --id alice --key alice.pem")]
    Step {
        /// The id of the thread.
        thread: ThreadId,
        /// The id of the run, a UUID.
        run: MessageId,
        /// The step that has ended, starting at 1.
        step: u64,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// End the run of a thread.
    #[command(after_help = "Examples:
  baton thread end support 0198c0de-1b2a-7c3d-8e4f-5a6b7c8d9e0f --id alice --key alice.pem")]
    End {
        /// The id of the thread.
        thread: ThreadId,
        /// The id of the run, a UUID.
        run: MessageId,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
}

/// The terms of a new thread.
#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// The id of the new thread. Without one the broker makes one.
    thread: Option<ThreadId>,
    /// The spec that is in force while no other one is active.
    #[arg(long, value_name = "SPEC")]
    base: SpecId,
    /// The task that the thread belongs to. The calling agent owns it.
    #[arg(long, value_name = "TASK")]
    task: Option<TaskId>,
    /// An agent that takes part. May be repeated.
    #[arg(long = "participant", value_name = "AGENT")]
    participants: Vec<AgentId>,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// A thread, and the caller.
#[derive(Debug, Args)]
pub(super) struct ActionArgs {
    /// The id of the thread.
    thread: ThreadId,
    /// The id of the action, a UUID. The same action again counts once.
    #[arg(long, value_name = "UUID")]
    action_id: Option<MessageId>,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// A thread and a spec, and the caller.
#[derive(Debug, Args)]
pub(super) struct SpecArgs {
    /// The id of the thread.
    thread: ThreadId,
    /// The spec.
    spec: SpecId,
    /// The id of the action, a UUID. The same action again counts once.
    #[arg(long, value_name = "UUID")]
    action_id: Option<MessageId>,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

pub(super) async fn run(command: ThreadCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        ThreadCommand::Create(args) => create(args, connection, *output).await,
        ThreadCommand::Show { id, identity } => {
            let client = identity.client(connection).await?;
            output.one(&client.thread(&id).state().await?, lines)
        }
        ThreadCommand::List { task, spec, limit, identity } => {
            let client = identity.client(connection).await?;
            let filter = v1::ListThreadsRequest {
                task_id: task.map(|id| id.to_string()).unwrap_or_default(),
                in_force_spec_id: spec.map(|id| id.to_string()).unwrap_or_default(),
                ..Default::default()
            };
            list(&client, &filter, limit, *output).await
        }
        ThreadCommand::Watch { id, after, identity } => {
            let client = identity.client(connection).await?;
            let request = v1::WatchThreadRequest { thread_id: id.to_string(), after_number: after };
            watch(&client, request, *output).await
        }
        ThreadCommand::Request(args) => {
            let client = args.identity.client(connection).await?;
            let thread = client.thread(&args.thread);
            let done = thread.request(args.spec.as_str(), action_id(args.action_id)).await?;
            if !done.warning.is_empty() {
                tell!("warning: {}", done.warning);
            }
            output.one(&done.thread.unwrap_or_default(), lines)
        }
        ThreadCommand::Activate(args) => {
            let client = args.identity.client(connection).await?;
            let thread = client.thread(&args.thread);
            let done = thread.activate(args.spec.as_str(), action_id(args.action_id)).await?;
            output.one(&done.thread.unwrap_or_default(), lines)
        }
        ThreadCommand::Clear(args) => {
            let client = args.identity.client(connection).await?;
            let done = client.thread(&args.thread).clear(action_id(args.action_id)).await?;
            output.one(&done.thread.unwrap_or_default(), lines)
        }
        ThreadCommand::Begin { thread, run_id, identity } => {
            let client = identity.client(connection).await?;
            let request = v1::BeginRunRequest { thread_id: thread.to_string(), run_id: action_id(run_id).to_string() };
            let begun = client.answer(client.threads().begin_run(request).await)?;
            output.one(&begun, |begun| {
                let plugins = (&begun.deactivate_plugin_ids[..], &begun.activate_plugin_ids[..]);
                step_lines(begun.thread.as_ref(), begun.switched, begun.model.as_ref(), plugins, begun.request.as_ref())
            })
        }
        ThreadCommand::Step { thread, run, step, identity } => {
            let client = identity.client(connection).await?;
            let request = v1::EndStepRequest { thread_id: thread.to_string(), run_id: run.to_string(), step };
            let ended = client.answer(client.threads().end_step(request).await)?;
            output.one(&ended, |ended| {
                let plugins = (&ended.deactivate_plugin_ids[..], &ended.activate_plugin_ids[..]);
                step_lines(ended.thread.as_ref(), ended.switched, ended.model.as_ref(), plugins, ended.request.as_ref())
            })
        }
        ThreadCommand::End { thread, run, identity } => {
            let client = identity.client(connection).await?;
            let request = v1::EndRunRequest { thread_id: thread.to_string(), run_id: run.to_string() };
            let ended = client.answer(client.threads().end_run(request).await)?;
            output.one(&ended.thread.unwrap_or_default(), lines)
        }
    }
}

fn action_id(given: Option<MessageId>) -> MessageId {
    given.unwrap_or_else(|| SystemIds.message_id(SystemClock.now()))
}

async fn create(args: CreateArgs, connection: &ConnectionArgs, output: Output) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    let request = v1::CreateThreadRequest {
        base_spec_id: args.base.to_string(),
        thread_id: args.thread.map(|id| id.to_string()).unwrap_or_default(),
        task_id: args.task.map(|id| id.to_string()).unwrap_or_default(),
        participant_ids: args.participants.iter().map(ToString::to_string).collect(),
    };
    let (_, thread) = client.create_thread(request).await?;
    output.one(&thread, lines)
}

async fn list(client: &Client, filter: &v1::ListThreadsRequest, limit: u32, output: Output) -> Result<(), Failure> {
    let threads = output::pages(limit, async |page_size, page_token| {
        let request = v1::ListThreadsRequest { page_size, page_token, ..filter.clone() };
        let page = client.answer(client.threads().list_threads(request).await)?;
        Ok((page.threads, page.next_page_token))
    })
    .await?;
    let columns = [
        Column::Id("THREAD"),
        Column::Id("IN FORCE"),
        Column::Id("REQUESTED"),
        Column::Id("TASK"),
        Column::Id("RUNNER"),
        Column::Whole("STEP"),
        Column::Whole("UPDATED"),
    ];
    let now = SystemClock.now();
    output.list(&columns, &threads, |thread| {
        vec![
            thread.thread_id.clone(),
            thread.in_force_spec_id.clone(),
            thread.requested_agent.clone(),
            thread.task_id.clone(),
            thread.runner_id.clone(),
            thread.step.to_string(),
            output::brief(thread.update_time.as_ref(), now),
        ]
    })
}

fn lines(thread: &v1::Thread) -> Vec<(Cow<'static, str>, String)> {
    let mut lines = vec![
        ("thread".into(), thread.thread_id.clone()),
        ("task".into(), thread.task_id.clone()),
        ("base".into(), thread.base_spec_id.clone()),
        ("active".into(), thread.active_agent.clone()),
        ("requested".into(), thread.requested_agent.clone()),
        ("in force".into(), format!("{}, revision {}", thread.in_force_spec_id, thread.in_force_revision)),
        ("model".into(), format!("{}, revision {}", thread.in_force_model_id, thread.in_force_model_revision)),
        ("participants".into(), thread.participant_ids.join(", ")),
    ];
    if !thread.run_id.is_empty() {
        lines.push(("run".into(), format!("{}, step {}", thread.run_id, thread.step)));
        lines.push(("runner".into(), thread.runner_id.clone()));
        lines.push(("lease until".into(), output::time(thread.lease_deadline.as_ref())));
    }
    lines.push(("log".into(), format!("{} entries", thread.log_length)));
    lines.push(("created".into(), output::time(thread.create_time.as_ref())));
    lines.push(("updated".into(), output::time(thread.update_time.as_ref())));
    lines
}

/// What a step works with, after the boundary that began it.
fn step_lines(
    thread: Option<&v1::Thread>,
    switched: bool,
    model: Option<&v1::ModelSpec>,
    (deactivate, activate): (&[String], &[String]),
    request: Option<&v1::ThreadRequestEnded>,
) -> Vec<(Cow<'static, str>, String)> {
    let thread = thread.cloned().unwrap_or_default();
    let switched = if switched { ", switched" } else { "" };
    let model = model.map(|model| format!("{} of {}", model.model_name, model.provider)).unwrap_or_default();
    let mut lines = vec![
        ("run".into(), thread.run_id.clone()),
        ("step".into(), thread.step.to_string()),
        ("in force".into(), format!("{}, revision {}{switched}", thread.in_force_spec_id, thread.in_force_revision)),
        ("model".into(), model),
        ("turn off".into(), deactivate.join(", ")),
        ("turn on".into(), activate.join(", ")),
    ];
    if let Some(ended) = request {
        lines.push(("request".into(), say_request(ended)));
    }
    lines.push(("lease until".into(), output::time(thread.lease_deadline.as_ref())));
    lines
}

fn say_request(ended: &v1::ThreadRequestEnded) -> String {
    let outcome = output::short(ended.outcome().as_str_name(), "THREAD_REQUEST_OUTCOME_");
    let colon = if ended.error_message.is_empty() { "" } else { ": " };
    format!("request {} for {} {outcome}{colon}{}", ended.request_number, ended.spec_id, ended.error_message)
}

async fn watch(client: &Client, request: v1::WatchThreadRequest, output: Output) -> Result<(), Failure> {
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
fn say_entry(entry: &v1::ThreadEntry) {
    let by = |agent: &str| if agent.is_empty() { "an operator".to_owned() } else { agent.to_owned() };
    let what = match &entry.event {
        Some(Event::Created(created)) => {
            format!("created by {}, base {}", by(&created.creator_id), created.base_spec_id)
        }
        Some(Event::Requested(action)) if action.warning.is_empty() => {
            format!("{} requests {}", by(&action.actor_id), action.spec_id)
        }
        Some(Event::Requested(action)) => {
            format!("{} requests {}: {}", by(&action.actor_id), action.spec_id, action.warning)
        }
        Some(Event::RequestEnded(ended)) => say_request(ended),
        Some(Event::Activated(action)) => format!("{} activates {}", by(&action.actor_id), action.spec_id),
        Some(Event::Cleared(action)) => format!("{} returns to the base", by(&action.actor_id)),
        Some(Event::RunBegan(began)) => format!("run {} of {}", began.run_id, by(&began.runner_id)),
        Some(Event::Boundary(boundary)) => {
            let switched = if boundary.switched { ", switched" } else { "" };
            format!("step {}: {}, revision {}{switched}", boundary.step, boundary.spec_id, boundary.revision)
        }
        Some(Event::RunEnded(ended)) if ended.lease_over => format!("run {} ended: its lease is over", ended.run_id),
        Some(Event::RunEnded(ended)) => format!("run {} ended", ended.run_id),
        None => String::new(),
    };
    say!("{:>5}  {}  {what}", entry.number, output::moment(entry.entry_time.as_ref()));
}
