//! `baton task`: list, show.

use clap::Subcommand;

use super::{
    Failure,
    connection::ConnectionArgs,
    output::{self, Output},
};
use crate::{
    ids::{AgentId, TaskId},
    proto::v1,
};

#[derive(Debug, Subcommand)]
pub(super) enum TaskCommand {
    /// List tasks, newest first.
    List {
        /// Only those that this agent owns.
        #[arg(long, value_name = "AGENT")]
        owner: Option<AgentId>,
        /// At most this many.
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// Show one task: who owns it, at which epoch, and how it came there.
    Show {
        /// Which.
        id: TaskId,
    },
}

pub(super) async fn run(command: TaskCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let client = connection.client().await?;
    match command {
        TaskCommand::List { owner, limit } => {
            let owner_id = owner.map(|owner| owner.to_string()).unwrap_or_default();
            let request = v1::ListTasksRequest { page_size: limit.min(1000), owner_id, ..Default::default() };
            let page = client.answer(client.tasks().list_tasks(request).await)?;
            output.list(&["TASK", "TYPE", "OWNER", "EPOCH", "STATUS", "HANDOFFS", "UPDATED"], &page.tasks, |task| {
                vec![
                    task.task_id.clone(),
                    task.task_type.clone(),
                    task.owner_id.clone(),
                    task.epoch.to_string(),
                    output::short(task.status().as_str_name(), "TASK_STATUS_"),
                    task.hops.len().to_string(),
                    output::time(task.update_time.as_ref()),
                ]
            })
        }
        TaskCommand::Show { id } => {
            let request = v1::GetTaskRequest { task_id: id.to_string() };
            let task = client.answer(client.tasks().get_task(request).await)?.task.unwrap_or_default();
            output.one(&task, lines)
        }
    }
}

fn lines(task: &v1::Task) -> Vec<(&'static str, String)> {
    let mut chain = task.hops.first().map(|hop| hop.sender_id.clone()).unwrap_or_default();
    for hop in &task.hops {
        chain.push_str(&format!(" → {}", hop.receiver_id));
    }
    vec![
        ("task", task.task_id.clone()),
        ("type", task.task_type.clone()),
        ("owner", task.owner_id.clone()),
        ("epoch", task.epoch.to_string()),
        ("status", output::short(task.status().as_str_name(), "TASK_STATUS_")),
        ("details", task.details.clone()),
        ("open handoff", task.open_handoff_id.clone()),
        ("chain", chain),
        ("custody", format!("{} entries, {}", task.custody_length, hex::encode(&task.custody_hash))),
        ("created", output::time(task.create_time.as_ref())),
        ("updated", output::time(task.update_time.as_ref())),
    ]
}
