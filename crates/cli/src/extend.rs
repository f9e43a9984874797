//! `baton task extend`: more time for a task that is lent to this agent.

use std::time::Duration;

use clap::Args;

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    duration, handoff,
    output::{self, Output},
    resolve::Prefix,
};
use baton_client::{
    About,
    proto::v1::{self, MessageType},
};

/// Ask for more time for a task that is lent to this agent: move the end of its loan.
///
/// The loan then ends this long from now, but never after the limit that its lender has set (`baton handoff request
/// --loan-timeout-max`), and never earlier than before. Prints the new end. The status becomes in-progress; progress and
/// details stay.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton task extend crash-7 --by 30m --id bob --key bob.pem")]
pub(super) struct ExtendArgs {
    /// The task's id, or a unique prefix of it.
    task: Prefix,
    /// The time from now at which the loan is to end, for example 30m.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    by: Duration,
    #[command(flatten)]
    identity: IdentityArgs,
}

pub(super) async fn run(args: ExtendArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let (client, composer) = handoff::as_agent(&args.identity, connection).await?;
    let request = v1::GetTaskRequest { task_id: args.task.task(&client).await?.to_string() };
    let task = client.answer(client.tasks().get_task(request.clone()).await)?.task.unwrap_or_default();
    if let Some(open) = &task.open_prompt {
        // Any report of the owner withdraws its question.
        return Err(Failure::usage(format!(
            "task {} waits for an answer of {}, and an extension would withdraw the question",
            task.task_id, open.asked_agent_id
        )));
    }
    let payload = v1::TaskStatusUpdate {
        status: v1::TaskStatus::InProgress.into(),
        progress: task.progress,
        details: task.details,
        extend_by: handoff::span(Some(args.by))?,
        ..Default::default()
    };
    let about = About::task(&task.task_id, task.epoch);
    client.send(composer.encode("", MessageType::TaskStatusUpdate, &about, &payload)).await?;
    let task = client.answer(client.tasks().get_task(request).await)?.task.unwrap_or_default();
    output.one(&task, |task| {
        // The last loan is that of the owner.
        let loan = task.loans.last().cloned().unwrap_or_default();
        vec![
            ("task".into(), task.task_id.clone()),
            ("lent by".into(), loan.delegator_id.clone()),
            ("until".into(), output::time(loan.due_time.as_ref())),
        ]
    })
}
