//! The page of an agent: its card and keys, its presence and load, and its mailbox.

use askama::Template;
use axum::{
    Extension,
    extract::{Path, State},
    response::Response,
};

use super::{
    acts::{self, Offered},
    invalid,
    lists::{Content, may_read_some},
    rows::HandoffRow,
    shown,
    tasks::TaskRow,
};
use crate::{
    broker::{
        Broker, BrokerError, RunningProcess,
        access::{Caller, Purpose},
        engine::Command,
        queries::{HandoffFilter, TaskFilter, View},
    },
    domain::handoff::{State as HandoffState, TaskStatus},
    ids::AgentId,
    proto::v1,
    wire::{
        console::Console,
        to_proto::{self, time_text},
    },
};

#[derive(Template)]
#[template(path = "agent.html")]
struct AgentPage {
    who: String,
    id: String,
    types: String,
    /// The time that its card states for decisions about offers. Empty: none.
    decides_within: String,
    description: Content,
    presence: &'static str,
    sessions: u32,
    heartbeat: Option<HeartbeatRow>,
    load: Option<v1::AgentLoad>,
    statistics: Option<v1::AgentStatistics>,
    mailbox: Option<MailboxRow>,
    registered_at: String,
    updated_at: String,
    deregistered_at: String,
    acts: Vec<Offered>,
    /// The used part of the capacity, in percent, at most 100. `None`: no capacity is stated.
    load_part: Option<u32>,
    /// The open tasks that it owns. `None`: the caller may read no task.
    works: Option<Vec<TaskRow>>,
    /// The connected processes.
    processes: Vec<ProcessRow>,
    /// The latest ended handoffs with the agent. `None`: the caller may read no handoff.
    ended: Option<Vec<HandoffRow>>,
    keys: Vec<KeyRow>,
    skills: Vec<SkillRow>,
    metadata: Vec<(String, String)>,
}

struct HeartbeatRow {
    at: String,
    status: String,
    active_tasks: u32,
    queue_length: u32,
}

/// A process with an open session.
struct ProcessRow {
    /// Empty: it has said none.
    instance: String,
    since: String,
    /// The first tasks that it works on, of those that the caller may see. `None`: its process does not list them.
    works_on: Option<Vec<String>>,
    /// The number of further tasks, also of those that the caller may not see.
    more: usize,
}

struct MailboxRow {
    /// `None`: the broker has just started, and still counts.
    letters: Option<u64>,
    oldest: String,
}

struct KeyRow {
    id: String,
    public_key: String,
    from: String,
    until: String,
    revoked_at: String,
    vouchers: usize,
    /// `None`: the key is revoked.
    revoke: Option<Offered>,
}

struct SkillRow {
    name: String,
    description: String,
    tags: String,
    languages: String,
    task_types: String,
}

/// The tasks, and the handoffs, that the page shows. The lists have all.
const LISTED: usize = 8;
/// The most bytes of one text of a card that the page shows.
const TEXT_BYTES_MAX: usize = 100;

pub(super) async fn show(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    let (broker, who) = (console.broker.clone(), caller.to_string());
    let running = running(&broker, &caller, &id).await;
    let show = move |view: View<'_>| {
        let parsed = AgentId::parse(&id);
        // Any caller may read the broker's own card, because receipts are verified with its key.
        if !parsed.as_ref().is_ok_and(|id| *id == AgentId::broker()) {
            view.access.may_see_directory(view.caller)?;
        }
        let id = parsed.map_err(|error| invalid("agent_id", error.to_string()))?;
        let entry = broker.directory().get(&id).ok_or_else(|| BrokerError::AgentUnknown { agent: id.to_string() })?;
        let has_mailbox = id != AgentId::broker() && !id.is_coordinator();
        let mailbox = match has_mailbox {
            true => Some(MailboxRow {
                letters: broker.directory().letters(&id),
                oldest: broker.oldest_letter(&id)?.map(|oldest| oldest.to_string()).unwrap_or_default(),
            }),
            false => None,
        };
        let mut page = AgentPage::new(who, to_proto::agent(broker.directory(), &entry, broker.now()), mailbox);
        page.acts = acts::of_agent(view, &entry);
        if has_mailbox {
            page.works = works(view, &id)?;
            page.processes = running.iter().map(|process| ProcessRow::new(to_proto::process(view, process))).collect();
            page.ended = ended(view, &id)?;
        }
        if has_mailbox {
            for key in page.keys.iter_mut().filter(|key| key.revoked_at.is_empty()) {
                key.revoke = Some(acts::of_key(view, &entry, &key.id));
            }
        }
        Ok(page)
    };
    shown(&console, &caller, show).await
}

/// The connected processes of the agent. The engine alone knows them, so only a caller that may see the page asks it.
async fn running(broker: &Broker, caller: &Caller, id: &str) -> Vec<RunningProcess> {
    let Ok(agent) = AgentId::parse(id) else { return Vec::new() };
    if broker.access().may_see_directory(caller).is_err() || broker.directory().get(&agent).is_none() {
        return Vec::new();
    }
    // A broker that stops shows its pages without them.
    broker.ask(|reply| Command::Processes { agent, reply }).await.unwrap_or_default()
}

/// The open tasks that the agent owns, as far as the caller may see them.
fn works(view: View<'_>, agent: &AgentId) -> Result<Option<Vec<TaskRow>>, BrokerError> {
    if !may_read_some(view, Purpose::ReadTasks) {
        return Ok(None);
    }
    let statuses = vec![TaskStatus::Created, TaskStatus::InProgress, TaskStatus::WaitingForInput];
    let filter = TaskFilter { owner: Some(agent.clone()), statuses, ..TaskFilter::default() };
    let found = view.tasks(&filter, LISTED, "")?;
    found.entries.iter().map(|record| TaskRow::new(view, record)).collect::<Result<_, _>>().map(Some)
}

/// The latest ended handoffs from the agent and to it, as far as the caller may see them.
fn ended(view: View<'_>, agent: &AgentId) -> Result<Option<Vec<HandoffRow>>, BrokerError> {
    if !may_read_some(view, Purpose::ReadHandoffs) {
        return Ok(None);
    }
    let states = HandoffState::ALL.into_iter().filter(|state| state.is_final()).collect();
    let filter = HandoffFilter { agent: Some(agent.clone()), states, ..HandoffFilter::default() };
    let found = view.handoffs(&filter, LISTED, "")?;
    found.entries.iter().map(|handoff| HandoffRow::new(view, handoff)).collect::<Result<_, _>>().map(Some)
}

impl AgentPage {
    fn new(who: String, agent: v1::Agent, mailbox: Option<MailboxRow>) -> Self {
        let presence = agent.presence().as_str_name().trim_start_matches("PRESENCE_");
        let card = agent.card.unwrap_or_default();
        let within = card.decides_within.and_then(|within| std::time::Duration::try_from(within).ok());
        let at = agent.last_heartbeat_time;
        let heartbeat = agent.last_heartbeat.map(|heartbeat| HeartbeatRow {
            at: time_text(at.as_ref()),
            status: cut(&heartbeat.status),
            active_tasks: heartbeat.active_tasks,
            queue_length: heartbeat.queue_length,
        });
        let mut metadata: Vec<(String, String)> =
            card.metadata.iter().map(|(name, value)| (name.clone(), cut(value))).collect();
        metadata.sort();
        Self {
            who,
            id: card.agent_id,
            types: card.agent_types.join(", "),
            decides_within: within.map(|within| humantime::format_duration(within).to_string()).unwrap_or_default(),
            description: Content::new(&card.description),
            presence,
            sessions: agent.session_count,
            heartbeat,
            load: agent.load,
            statistics: agent.statistics,
            mailbox,
            registered_at: time_text(agent.create_time.as_ref()),
            updated_at: time_text(agent.update_time.as_ref()),
            deregistered_at: time_text(agent.deregister_time.as_ref()),
            acts: Vec::new(),
            load_part: agent.load.filter(|load| load.capacity > 0).map(|load| {
                u32::try_from(u64::from(load.in_use) * 100 / u64::from(load.capacity)).unwrap_or(100).min(100)
            }),
            works: None,
            processes: Vec::new(),
            ended: None,
            keys: card.keys.iter().map(KeyRow::new).collect(),
            skills: card.skills.iter().map(SkillRow::new).collect(),
            metadata,
        }
    }
}

fn cut(text: &str) -> String {
    Content::of_at_most(text, TEXT_BYTES_MAX).with_ellipsis()
}

impl ProcessRow {
    fn new(process: v1::Process) -> Self {
        let mut tasks = process.task_ids;
        tasks.truncate(LISTED);
        Self {
            instance: process.instance_id,
            since: time_text(process.connect_time.as_ref()),
            more: (process.task_count as usize).saturating_sub(tasks.len()),
            works_on: process.lists_work.then_some(tasks),
        }
    }
}

impl KeyRow {
    fn new(key: &v1::AgentKey) -> Self {
        Self {
            id: key.key_id.clone(),
            public_key: hex::encode(&key.public_key),
            from: time_text(key.not_before_time.as_ref()),
            until: time_text(key.not_after_time.as_ref()),
            revoked_at: time_text(key.revoke_time.as_ref()),
            vouchers: key.vouchers.len(),
            revoke: None,
        }
    }
}

impl SkillRow {
    fn new(skill: &v1::AgentSkill) -> Self {
        Self {
            name: skill.name.clone(),
            description: cut(&skill.description),
            tags: cut(&skill.tags.join(", ")),
            languages: cut(&skill.languages.join(", ")),
            task_types: cut(&skill.task_types.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ProcessRow, v1};

    fn row(lists_work: bool, seen: usize, task_count: u32) -> (Option<usize>, usize) {
        let task_ids = (0..seen).map(|number| format!("build-{number}")).collect();
        let row = ProcessRow::new(v1::Process { lists_work, task_ids, task_count, ..Default::default() });
        (row.works_on.map(|tasks| tasks.len()), row.more)
    }

    #[test]
    fn a_process_has_eight_tasks_on_the_page_and_a_count_of_all_others() {
        assert_eq!(row(false, 0, 0), (None, 0));
        assert_eq!(row(true, 0, 0), (Some(0), 0));
        assert_eq!(row(true, 8, 8), (Some(8), 0));
        assert_eq!(row(true, 20, 25), (Some(8), 17));
        assert_eq!(row(true, 0, 1), (Some(0), 1), "a task that the caller may not see is counted");
    }
}
