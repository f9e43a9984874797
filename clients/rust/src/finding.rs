//! Finding agents for a piece of work, with the reasons for their order.

use super::{Client, ClientError};
use crate::proto::v1;

/// The most agents of one page.
const PAGE_MAX: usize = 1000;

impl Client {
    /// Finds the agents that fit, best first, at most `limit`. Asks no agent. The paging fields of the request are set
    /// here. The order may change between two pages of 1000 agents; an agent that moves back then occurs twice.
    ///
    /// # Errors
    ///
    /// `FIELD_INVALID` for a field out of its bounds, `SENDER_MISMATCH` if an agent searches as another agent, and
    /// `PERMISSION_DENIED` if the policies do not let the caller read the directory.
    pub async fn find_agents(
        &self,
        mut request: v1::FindAgentsRequest,
        limit: usize,
    ) -> Result<Vec<v1::AgentMatch>, ClientError> {
        let mut found = Vec::new();
        request.page_token = String::new();
        while found.len() < limit {
            request.page_size = u32::try_from((limit - found.len()).min(PAGE_MAX)).unwrap_or(u32::MAX);
            let page = self.answer(self.agents().find_agents(request.clone()).await)?;
            found.extend(page.matches);
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        Ok(found)
    }
}
