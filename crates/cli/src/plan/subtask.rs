//! `baton plan subtask`: cancel, retry, reassign.

use clap::{Args, Subcommand};

use super::lines;
use crate::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    output::Output,
};
use baton_client::{ids::PlanId, proto::v1};

#[derive(Debug, Subcommand)]
pub(crate) enum SubtaskCommand {
    /// End one subtask at once: take its task back.
    #[command(after_help = "Examples:
  baton plan subtask cancel report growth --id alice --key alice.pem
  baton plan subtask cancel report growth --reason 'no longer needed'")]
    Cancel {
        #[command(flatten)]
        subtask: SubtaskArgs,
        /// The reason, for people to read.
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
    },
    /// Start one subtask again that did not complete.
    #[command(after_help = "Examples:
  baton plan subtask retry report growth --id alice --key alice.pem")]
    Retry(SubtaskArgs),
    /// Give one subtask to another agent.
    #[command(after_help = "Examples:
  baton plan subtask reassign report growth --to bob --id alice --key alice.pem
  baton plan subtask reassign report growth --to type:analyst --reason 'no answer'")]
    Reassign {
        #[command(flatten)]
        subtask: SubtaskArgs,
        /// The agent, or type:NAME.
        #[arg(long, value_name = "AGENT|type:NAME")]
        to: String,
        /// The reason, for people to read.
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
    },
}

/// A subtask of a plan, and the caller.
#[derive(Debug, Args)]
pub(crate) struct SubtaskArgs {
    /// The id of the plan.
    plan: PlanId,
    /// The id of the subtask.
    subtask: String,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

pub(super) async fn run(command: SubtaskCommand, connection: &ConnectionArgs, output: Output) -> Result<(), Failure> {
    let plan = match command {
        SubtaskCommand::Cancel { subtask, reason } => {
            let client = subtask.identity.client(connection).await?;
            let (plan_id, subtask_id) = (subtask.plan.to_string(), subtask.subtask);
            let request = v1::CancelSubtaskRequest { plan_id, subtask_id, reason_text: reason };
            client.answer(client.plans().cancel_subtask(request).await)?.plan
        }
        SubtaskCommand::Retry(subtask) => {
            let client = subtask.identity.client(connection).await?;
            let request = v1::RetrySubtaskRequest { plan_id: subtask.plan.to_string(), subtask_id: subtask.subtask };
            client.answer(client.plans().retry_subtask(request).await)?.plan
        }
        SubtaskCommand::Reassign { subtask, to, reason } => {
            let client = subtask.identity.client(connection).await?;
            let (plan_id, subtask_id) = (subtask.plan.to_string(), subtask.subtask);
            let request = v1::ReassignSubtaskRequest { plan_id, subtask_id, to, reason_text: reason };
            client.answer(client.plans().reassign_subtask(request).await)?.plan
        }
    };
    output.one(&plan.unwrap_or_default(), lines)
}
