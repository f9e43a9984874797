//! Ends the tasks of A2A clients that have come back to the agent that lent them, whether a client looks or not.

use std::time::Duration;

use baton_client::proto::v1::{self, TaskStatus};
use tokio::time::sleep;

use super::{TASK_PREFIX, records};
use crate::{ActError, Face};

/// How often the agent's tasks are looked through.
const LOOK_EVERY: Duration = Duration::from_secs(3);
const TASKS_A_PAGE: u32 = 500;

/// Ends them all, also those of an earlier process, and goes on for ever.
pub(crate) async fn close_all(face: &Face) {
    loop {
        if let Err(error) = close(face).await {
            tracing::debug!(%error, "tasks that have come back are looked for again");
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn close(face: &Face) -> Result<(), ActError> {
    let client = face.client().await?;
    let open = [TaskStatus::Created, TaskStatus::InProgress, TaskStatus::WaitingForInput];
    let mut request = v1::ListTasksRequest {
        page_size: TASKS_A_PAGE,
        owner_id: face.id().to_owned(),
        statuses: open.map(i32::from).to_vec(),
        ..Default::default()
    };
    loop {
        let page = client.answer(client.tasks().list_tasks(request.clone()).await)?;
        for task in page.tasks.into_iter().filter(|task| is_back(face, task)) {
            // A list has no results.
            let closing = async { records::view(face, face.task(&task.task_id).await?).await };
            // Without its handoff the task is no client's, in spite of its id.
            if let Err(error) = closing.await
                && !error.is_absent()
            {
                tracing::warn!(task_id = %task.task_id, %error, "the task is not ended");
            }
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok(());
        }
    }
}

/// Whether this agent has lent the task for an A2A client, and has no open handoff of it.
fn is_back(face: &Face, task: &v1::Task) -> bool {
    let began = task.hops.first().is_none_or(|hop| hop.sender_id == face.id());
    task.task_id.starts_with(TASK_PREFIX) && task.open_handoff_id.is_empty() && began
}
