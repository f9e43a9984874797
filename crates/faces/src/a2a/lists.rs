//! `ListTasks`.

use a2a::{ListTasksRequest, ListTasksResponse};
use baton_client::proto::v1::{self, TaskOrder};

use super::{
    Failure, Modes, Reached,
    records::{self, time_of},
    sending::{check_length, check_tenant},
};
use crate::ActError;

/// The tasks of a page: at most, and by default.
const PAGE_MAX: i32 = 100;
const PAGE: i32 = 50;
/// The pages of the broker that are read for one answer, and for the number of all tasks.
const PAGES_READ_MAX: usize = 20;
const COUNTED_A_PAGE: u32 = 1000;

impl Reached {
    /// The caller's tasks here, the latest change first.
    pub(crate) async fn list(&self, request: &ListTasksRequest) -> Result<ListTasksResponse, Failure> {
        check_tenant(request.tenant.as_deref())?;
        check_length("historyLength", request.history_length)?;
        let page_size = request.page_size.unwrap_or(PAGE);
        if !(1..=PAGE_MAX).contains(&page_size) {
            return Err(Failure::invalid("pageSize", format!("must be 1 to {PAGE_MAX}")));
        }
        let wanted = usize::try_from(page_size).unwrap_or(usize::MAX);
        let mut tasks = Vec::new();
        let mut page_token = request.page_token.clone().unwrap_or_default();
        let is_first = page_token.is_empty();
        for _ in 0..PAGES_READ_MAX {
            let left = u32::try_from(wanted - tasks.len()).unwrap_or(1);
            let page = self.page(request, left, page_token).await?;
            page_token = page.next_page_token;
            let mut is_older = false;
            for task in page.tasks {
                if !self.has(&task) {
                    continue;
                }
                is_older = request.status_timestamp_after.is_some_and(|after| time_of(task.update_time) < Some(after));
                if is_older {
                    break;
                }
                let has_artifacts = request.include_artifacts == Some(true);
                // A list has no results.
                let task = if has_artifacts { self.face.task(&task.task_id).await? } else { task };
                let view = records::view(&self.face, task).await?;
                if request.status.as_ref().is_none_or(|status| *status == view.state) {
                    let mut shown = view.task(Modes::ALL);
                    shown.artifacts = has_artifacts.then(|| shown.artifacts.unwrap_or_default());
                    tasks.push(shown);
                }
            }
            if is_older {
                // All that follow are older still.
                page_token.clear();
            }
            if page_token.is_empty() || tasks.len() >= wanted {
                break;
            }
        }
        let total = match is_first && page_token.is_empty() {
            true => tasks.len(),
            false => self.count(request).await?,
        };
        Ok(ListTasksResponse {
            tasks,
            next_page_token: page_token,
            page_size,
            total_size: i32::try_from(total).unwrap_or(i32::MAX),
        })
    }

    async fn page(
        &self,
        request: &ListTasksRequest,
        page_size: u32,
        page_token: String,
    ) -> Result<v1::ListTasksResponse, Failure> {
        let client = self.face.client().await?;
        let context_id = request.context_id.as_deref().filter(|id| !id.is_empty());
        let asked = v1::ListTasksRequest {
            page_size,
            page_token,
            order: TaskOrder::Update.into(),
            conversation_id: context_id.map(|id| self.conversation_of(id)).unwrap_or_default(),
            ..Default::default()
        };
        client.answer(client.tasks().list_tasks(asked).await).map_err(|error| match error.reason() {
            Some("PAGE_TOKEN_INVALID" | "FIELD_INVALID") => Failure::invalid("pageToken", "is of no page of this list"),
            _ => ActError::from(error).into(),
        })
    }

    /// The number of the caller's tasks here in the wanted context, with any status. At most those of some pages.
    async fn count(&self, request: &ListTasksRequest) -> Result<usize, Failure> {
        let (mut count, mut page_token) = (0, String::new());
        for _ in 0..PAGES_READ_MAX {
            let page = self.page(request, COUNTED_A_PAGE, page_token).await?;
            count += page.tasks.iter().filter(|task| self.has(task)).count();
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        Ok(count)
    }
}
