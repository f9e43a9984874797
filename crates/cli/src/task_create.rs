//! `baton task create`: a task that the agent owns itself.

use clap::Args;

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    handoff,
    handoff_request::LoopLimitArgs,
    output::{self, Output},
};
use baton_client::{
    About,
    ids::{IdSource as _, SystemIds, TaskId},
    proto::v1::{self, MessageType},
    time::{Clock as _, SystemClock},
};

/// Begin a task that this agent owns, without a handoff.
///
/// The task has epoch 1. Its context (`baton context checkpoint`), workspace, runs and threads can begin at once, and
/// `baton handoff request` can hand it over later.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton task create --id alice --key alice.pem --summary 'crash on start'
  baton task create crash-7 --id alice --key alice.pem --type bug --conversation chat-7
  baton task create crash-7.1 --id alice --key alice.pem --parent crash-7")]
pub(super) struct CreateArgs {
    /// The task's id. Default: a new random id.
    task: Option<TaskId>,
    #[command(flatten)]
    identity: IdentityArgs,
    /// The kind of work.
    #[arg(long = "type", default_value = "task", value_name = "TYPE")]
    task_type: String,
    /// A summary of the work for people.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    summary: String,
    /// The task that the new one is a part of.
    #[arg(long, value_name = "TASK")]
    parent: Option<TaskId>,
    /// The outer conversation that the task belongs to, for example the id of a chat.
    #[arg(long, value_name = "CONVERSATION")]
    conversation: Option<String>,
    #[command(flatten)]
    loop_limits: LoopLimitArgs,
}

pub(super) async fn run(args: CreateArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let (client, composer) = handoff::as_agent(&args.identity, connection).await?;
    let payload = v1::TaskCreate {
        task_type: args.task_type,
        summary: args.summary,
        parent_task_id: args.parent.map(|parent| parent.to_string()).unwrap_or_default(),
        conversation_id: args.conversation.unwrap_or_default(),
        loop_limits: args.loop_limits.to_proto(),
    };
    let task = args.task.map_or_else(|| SystemIds.message_id(SystemClock.now()).to_string(), |task| task.to_string());
    let envelope = composer.encode("", MessageType::TaskCreate, &About::task(&task, 1), &payload);
    let receipt = client.send(envelope).await?;
    output.one(&receipt, |receipt| {
        vec![
            ("task".into(), receipt.task_id.clone()),
            ("owner".into(), receipt.owner_id.clone()),
            ("epoch".into(), receipt.epoch.to_string()),
            ("status".into(), output::short(receipt.task_status().as_str_name(), "TASK_STATUS_")),
            ("custody".into(), hex::encode(&receipt.custody_hash)),
        ]
    })
}
