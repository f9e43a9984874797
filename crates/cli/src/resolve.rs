//! Resolves id prefixes: a command that looks something up accepts a unique prefix of its id.
//!
//! A whole id is looked up first, so it is never mistaken for a prefix of another id. A signed id, and the id
//! of a receiver (`--to`, `agent key vouch`), must be whole.

use std::{collections::BTreeMap, fmt, str::FromStr};

use super::{Failure, exit, table::ELLIPSIS};
use baton_client::{
    ids::{AgentId, MessageId, TaskId},
    proto::v1,
    {Client, ClientError},
};

/// The number of ids that the error for an ambiguous prefix lists.
const NAMED_MAX: usize = 5;
const PAGE: u32 = 1000;

/// An id, or a prefix of it as tables show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prefix(String);

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A prefix may be copied from a table together with its ellipsis.
        let beginning = text.strip_suffix(ELLIPSIS).unwrap_or(text);
        let is_of_id = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
        if beginning.is_empty() || beginning.len() > 128 || !beginning.chars().all(is_of_id) {
            return Err("is not an id or a prefix of one; an id has 1 to 128 of A-Z a-z 0-9 . _ -".to_owned());
        }
        Ok(Self(beginning.to_owned()))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Prefix {
    /// Resolves a handoff that the caller may see. A task id, or a unique prefix of one, resolves to the latest handoff
    /// of the task.
    pub(super) async fn handoff(&self, client: &Client) -> Result<MessageId, Failure> {
        let parse = |id: &str| MessageId::parse(id).map_err(|error| Failure::failed(error.to_string()));
        let whole = MessageId::parse(&self.0).ok();
        // A handoff id is tried first: a task may have any id, even the id of another task's handoff.
        if let Some(id) = whole {
            let request = v1::GetHandoffRequest { handoff_id: id.to_string(), ..Default::default() };
            match client.answer(client.handoffs().get_handoff(request).await) {
                Ok(_) => return Ok(id),
                Err(error @ ClientError::Refused(_)) if !is_of_caller(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match (self.latest_handoff_of_task(client).await?, whole) {
            (Some(latest), _) => return parse(&latest),
            // A whole id cannot be a prefix of another. The command itself then shows the refusal of the broker.
            (None, Some(id)) => return Ok(id),
            (None, None) => {}
        }
        // The broker writes handoff ids in lower case; a task or agent id distinguishes the cases.
        let mut found = Found::new("handoff", &self.0.to_ascii_lowercase());
        let mut of_tasks = BTreeMap::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListHandoffsRequest { page_size: PAGE, page_token, ..Default::default() };
            let page = client.answer(client.handoffs().list_handoffs(request).await)?;
            for handoff in page.handoffs {
                if handoff.task_id.starts_with(&self.0) {
                    // The newest handoff comes first.
                    of_tasks.entry(handoff.task_id).or_insert_with(|| handoff.handoff_id.clone());
                }
                found.take(std::iter::once(handoff.handoff_id));
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                let id = match found.only()? {
                    Some(id) => Some(id),
                    None => {
                        let mut tasks = Found::new("task", &self.0);
                        tasks.take(of_tasks.keys().cloned());
                        tasks.only()?.and_then(|task| of_tasks.remove(&task))
                    }
                };
                break parse(&id.ok_or_else(|| none("handoff", &self.0, None))?);
            }
        }
    }

    /// The latest handoff of the task with this id. `None` if the caller can see none.
    async fn latest_handoff_of_task(&self, client: &Client) -> Result<Option<String>, Failure> {
        let mut page_token = String::new();
        loop {
            let request =
                v1::ListHandoffsRequest { task_id: self.0.clone(), page_size: 1, page_token, ..Default::default() };
            let page = match client.answer(client.handoffs().list_handoffs(request).await) {
                Ok(page) => page,
                Err(error @ ClientError::Refused(_)) if !is_of_caller(&error) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if let Some(latest) = page.handoffs.into_iter().next() {
                return Ok(Some(latest.handoff_id));
            }
            // Also a page before the last one may be empty.
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(None);
            }
        }
    }

    /// Resolves a task that the caller may see.
    pub(super) async fn task(&self, client: &Client) -> Result<TaskId, Failure> {
        let id = self.find_task(client).await?.map_err(|refused| none("task", &self.0, Some(&refused)))?;
        TaskId::parse(&id).map_err(|error| Failure::failed(error.to_string()))
    }

    /// Resolves an agent that the caller may see.
    pub(super) async fn agent(&self, client: &Client) -> Result<AgentId, Failure> {
        let id = self.find_agent(client).await?.map_err(|refused| none("agent", &self.0, Some(&refused)))?;
        AgentId::parse(&id).map_err(|error| Failure::failed(error.to_string()))
    }

    /// Resolves a run that the caller may see. A whole id is not looked up: the command itself shows the refusal.
    pub(super) async fn run(&self, client: &Client) -> Result<MessageId, Failure> {
        if let Ok(id) = MessageId::parse(&self.0) {
            return Ok(id);
        }
        let mut found = Found::new("run", &self.0.to_ascii_lowercase());
        let mut page_token = String::new();
        loop {
            let request = v1::ListRunsRequest { page_size: PAGE, page_token, ..Default::default() };
            let page = client.answer(client.routing().list_runs(request).await)?;
            found.take(page.runs.into_iter().map(|run| run.run_id));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                let id = found.only()?.ok_or_else(|| none("run", &self.0, None))?;
                break MessageId::parse(&id).map_err(|error| Failure::failed(error.to_string()));
            }
        }
    }

    /// The resolved id. The inner error is the broker's refusal of the text as a whole id, if the text is no prefix
    /// either.
    async fn find_task(&self, client: &Client) -> Result<Result<String, ClientError>, Failure> {
        let request = v1::GetTaskRequest { task_id: self.0.clone() };
        let refused = match client.answer(client.tasks().get_task(request).await) {
            Ok(_) => return Ok(Ok(self.0.clone())),
            Err(error @ ClientError::Refused(_)) if !is_of_caller(&error) => error,
            Err(error) => return Err(error.into()),
        };
        let mut found = Found::new("task", &self.0);
        let mut page_token = String::new();
        loop {
            let request = v1::ListTasksRequest { page_size: PAGE, page_token, ..Default::default() };
            let page = client.answer(client.tasks().list_tasks(request).await)?;
            found.take(page.tasks.into_iter().map(|task| task.task_id));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break Ok(found.only()?.ok_or(refused));
            }
        }
    }

    async fn find_agent(&self, client: &Client) -> Result<Result<String, ClientError>, Failure> {
        let request = v1::GetAgentRequest { agent_id: self.0.clone() };
        let refused = match client.answer(client.agents().get_agent(request).await) {
            Ok(_) => return Ok(Ok(self.0.clone())),
            Err(error @ ClientError::Refused(_)) if !is_of_caller(&error) => error,
            Err(error) => return Err(error.into()),
        };
        let mut found = Found::new("agent", &self.0);
        let mut page_token = String::new();
        loop {
            let request = v1::ListAgentsRequest { page_size: PAGE, page_token, ..Default::default() };
            let page = client.answer(client.agents().list_agents(request).await)?;
            found.take(page.agents.into_iter().map(|agent| agent.card.unwrap_or_default().agent_id));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break Ok(found.only()?.ok_or(refused));
            }
        }
    }
}

/// Resolves the task id of a list filter; empty without a filter. An unresolved text is kept, because dead letters
/// outlive their task.
pub(super) async fn task_filter(filter: Option<&Prefix>, client: &Client) -> Result<String, Failure> {
    let Some(prefix) = filter else { return Ok(String::new()) };
    Ok(prefix.find_task(client).await?.unwrap_or_else(|_| prefix.0.clone()))
}

/// Resolves the agent id of a list filter in the same way.
pub(super) async fn agent_filter(filter: Option<&Prefix>, client: &Client) -> Result<String, Failure> {
    let Some(prefix) = filter else { return Ok(String::new()) };
    Ok(prefix.find_agent(client).await?.unwrap_or_else(|_| prefix.0.clone()))
}

/// The failure for an unresolved text. `refused` is the broker's refusal of the text as a whole id.
fn none(what: &str, beginning: &str, refused: Option<&ClientError>) -> Failure {
    let none = format!("no {what} that you may see has the id {beginning} or an id that starts with it");
    match refused {
        Some(refused) => {
            let reason = refused.reason().unwrap_or("REFUSED").to_owned();
            Failure::refused(reason, none).with_advice(&exit::describe(refused))
        }
        None => Failure::refused(format!("{}_UNKNOWN", what.to_uppercase()), none),
    }
}

/// Whether the refusal concerns the caller. Another id would then be refused in the same way.
fn is_of_caller(error: &ClientError) -> bool {
    matches!(error.reason(), Some("IDENTITY_MISSING" | "TOKEN_INVALID" | "LIMIT_EXCEEDED" | "SHUTTING_DOWN"))
}

/// The ids that start with the given prefix.
struct Found {
    what: &'static str,
    beginning: String,
    ids: Vec<String>,
    count: usize,
}

impl Found {
    fn new(what: &'static str, beginning: &str) -> Self {
        Self { what, beginning: beginning.to_owned(), ids: Vec::new(), count: 0 }
    }

    fn take(&mut self, ids: impl Iterator<Item = String>) {
        for id in ids.filter(|id| id.starts_with(&self.beginning)) {
            // Every match counts, and only a few are kept: the failure names these, and says how many there are.
            self.count += 1;
            if self.ids.len() < NAMED_MAX {
                self.ids.push(id);
            }
        }
    }

    /// The only match; `None` without a match. Several matches are an error.
    fn only(self) -> Result<Option<String>, Failure> {
        let Self { what, beginning, mut ids, count } = self;
        if count < 2 {
            return Ok(ids.pop());
        }
        let more = if count > ids.len() { ", …" } else { "" };
        let named = ids.join(", ");
        Err(Failure::usage(format!(
            "{count} {what}s have ids that start with {beginning}; choose one of {named}{more}"
        ))
        .named("ID_AMBIGUOUS"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ids: &[&str], beginning: &str) -> Result<Option<String>, Failure> {
        let mut found = Found::new("task", beginning);
        found.take(ids.iter().map(ToString::to_string));
        found.only()
    }

    #[test]
    fn a_beginning_that_one_id_has_is_that_id() {
        assert_eq!(found(&["ab-1", "ab-2", "b"], "ab-1").unwrap().as_deref(), Some("ab-1"));
        let several = found(&["ab-1", "ab-2", "b"], "ab").unwrap_err();
        assert_eq!(
            (several.code, several.to_string().as_str()),
            (2, "failed: ID_AMBIGUOUS: 2 tasks have ids that start with ab; choose one of ab-1, ab-2")
        );
        let many: Vec<String> = (0..9).map(|number| format!("x{number}")).collect();
        let many = found(&many.iter().map(String::as_str).collect::<Vec<_>>(), "x").unwrap_err().to_string();
        assert!(many.contains("9 tasks") && many.contains("x4, …"), "{many}");
        assert_eq!(found(&["b"], "a").unwrap(), None);
        let none = none("task", "a", None);
        assert_eq!(
            (none.code, none.to_string().as_str()),
            (8, "refused: TASK_UNKNOWN: no task that you may see has the id a or an id that starts with it")
        );
    }

    #[test]
    fn a_beginning_may_stand_as_tables_show_it() {
        assert_eq!("01a1fc69…".parse::<Prefix>().unwrap().to_string(), "01a1fc69");
        for bad in ["", "…", "a b", "a\u{1b}"] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad:?}");
        }
    }
}
