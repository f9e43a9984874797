//! `baton agent list`, `find` and `watch`: looking agents up.

use clap::{Args, ValueEnum};

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    json,
    output::{self, Output},
    table::Column,
};
use baton_client::{
    ids::{AgentId, AgentType},
    proto::v1::{self, watch_agents_response::Event},
};

/// List registered agents, ordered by id.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton agent list
  baton agent list --type support -o json
  baton agent list --skill finance.tax --presence alive
  baton agent list --id alice --key alice.pem")]
pub(super) struct ListArgs {
    /// List only agents of this type.
    #[arg(long = "type", value_name = "TYPE")]
    agent_type: Option<AgentType>,
    /// List only agents with this skill or a more specific one.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    skill: String,
    /// List only agents with a skill that has this tag.
    #[arg(long, value_name = "TAG", default_value = "", hide_default_value = true)]
    tag: String,
    /// List only agents with a skill in this language.
    #[arg(long, value_name = "LANGUAGE", default_value = "", hide_default_value = true)]
    language: String,
    /// List only agents with a skill for this task type.
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true)]
    task_type: String,
    /// List only agents with this presence.
    #[arg(long)]
    presence: Option<PresenceArg>,
    /// List deregistered agents too.
    #[arg(long)]
    deregistered: bool,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PresenceArg {
    Alive,
    Suspect,
    Gone,
    Unseen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PriorityArg {
    Low,
    Medium,
    High,
    Critical,
}

/// Find the agents that fit a piece of work, best first. Asks no agent.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton agent find --skill finance.tax --explain
  baton agent find --type analyst --prefer writing --priority high
  baton agent find --skill finance.tax --as alice -o json")]
pub(super) struct FindArgs {
    /// A skill that the agent must have, by the same or a more specific name. May be repeated.
    #[arg(long = "skill", value_name = "NAME")]
    required_skills: Vec<String>,
    /// A skill that raises the score of an agent. May be repeated.
    #[arg(long = "prefer", value_name = "NAME")]
    preferred_skills: Vec<String>,
    /// The type that the agent must have.
    #[arg(long = "type", value_name = "TYPE")]
    agent_type: Option<AgentType>,
    /// The task type that a skill of the agent must list.
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true)]
    task_type: String,
    /// A language that the agent's skills must list. May be repeated.
    #[arg(long = "language", value_name = "LANGUAGE")]
    languages: Vec<String>,
    /// A tag that the agent's skills must list. May be repeated.
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// The priority of the work.
    #[arg(long, default_value = "medium")]
    priority: PriorityArg,
    /// Find only agents that this agent may hand a task to. Default: the calling agent.
    #[arg(long = "as", value_name = "AGENT")]
    as_sender: Option<AgentId>,
    /// Include agents that are GONE.
    #[arg(long)]
    gone: bool,
    /// Print each factor of the score with its reason.
    #[arg(long)]
    explain: bool,
    /// The most agents to print.
    #[arg(long, default_value_t = 20, value_name = "NUMBER")]
    limit: u32,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// Follow the agents: those that are registered, then each change.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton agent watch
  baton agent watch --type support --cards-only -o jsonl
  baton agent watch --after 1204")]
pub(super) struct WatchArgs {
    /// Show only changes after this cursor, which every line shows.
    #[arg(long, default_value_t = 0, value_name = "CURSOR")]
    after: u64,
    /// Show only agents of this type.
    #[arg(long = "type", value_name = "TYPE")]
    agent_type: Option<AgentType>,
    /// Show only agents with this skill or a more specific one.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    skill: String,
    /// Show no changes of presence and load.
    #[arg(long)]
    cards_only: bool,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

impl PresenceArg {
    const fn to_proto(self) -> v1::Presence {
        match self {
            Self::Alive => v1::Presence::Alive,
            Self::Suspect => v1::Presence::Suspect,
            Self::Gone => v1::Presence::Gone,
            Self::Unseen => v1::Presence::Unseen,
        }
    }
}

impl PriorityArg {
    const fn to_proto(self) -> v1::Priority {
        match self {
            Self::Low => v1::Priority::Low,
            Self::Medium => v1::Priority::Medium,
            Self::High => v1::Priority::High,
            Self::Critical => v1::Priority::Critical,
        }
    }
}

fn text(agent_type: Option<AgentType>) -> String {
    agent_type.map(|agent_type| agent_type.to_string()).unwrap_or_default()
}

pub(super) fn presence(presence: v1::Presence) -> String {
    output::short(presence.as_str_name(), "PRESENCE_")
}

/// A load for people, such as "1 of 4".
pub(super) fn load(load: Option<&v1::AgentLoad>) -> String {
    match load {
        None => String::new(),
        Some(load) if load.capacity == 0 => load.in_use.to_string(),
        Some(load) => format!("{} of {}", load.in_use, load.capacity),
    }
}

pub(super) async fn list(args: ListArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    let request = v1::ListAgentsRequest {
        agent_type: text(args.agent_type),
        skill: args.skill,
        tag: args.tag,
        language: args.language,
        task_type: args.task_type,
        presence: args.presence.map_or(0, |presence| presence.to_proto().into()),
        include_deregistered: args.deregistered,
        ..Default::default()
    };
    let agents = output::pages(u32::MAX, async |page_size, page_token| {
        let request = v1::ListAgentsRequest { page_size, page_token, ..request.clone() };
        let page = client.answer(client.agents().list_agents(request).await)?;
        Ok((page.agents, page.next_page_token))
    })
    .await?;
    let columns = [
        Column::Id("AGENT"),
        Column::Text("TYPES"),
        Column::Text("SKILLS"),
        Column::Whole("PRESENCE"),
        Column::Whole("SESSIONS"),
        Column::Text("KEYS"),
    ];
    output.list(&columns, &agents, |agent| {
        let card = agent.card.clone().unwrap_or_default();
        vec![
            card.agent_id,
            card.agent_types.join(", "),
            card.skills.iter().map(|skill| skill.name.as_str()).collect::<Vec<_>>().join(", "),
            presence(agent.presence()),
            agent.session_count.to_string(),
            card.keys.iter().map(|key| key.key_id.as_str()).collect::<Vec<_>>().join(", "),
        ]
    })
}

pub(super) async fn find(args: FindArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    let request = v1::FindAgentsRequest {
        agent_type: text(args.agent_type),
        required_skills: args.required_skills,
        preferred_skills: args.preferred_skills,
        task_type: args.task_type,
        languages: args.languages,
        tags: args.tags,
        priority: args.priority.to_proto().into(),
        as_sender_id: args.as_sender.map(|agent| agent.to_string()).unwrap_or_default(),
        include_gone: args.gone,
        ..Default::default()
    };
    let matches = output::pages(args.limit, async |page_size, page_token| {
        // A page token continues a search with pages of any size.
        let request = v1::FindAgentsRequest { page_size, page_token, ..request.clone() };
        let page = client.answer(client.agents().find_agents(request).await)?;
        Ok((page.matches, page.next_page_token))
    })
    .await?;
    if output.is_table() && args.explain {
        matches.iter().for_each(|found| say_lines!("{}", found.explain()));
        return Ok(());
    }
    let columns = [
        Column::Whole("RANK"),
        Column::Id("AGENT"),
        Column::Whole("SCORE"),
        Column::Whole("PRESENCE"),
        Column::Text("LOAD"),
        Column::Text("WITHOUT"),
    ];
    output.list(&columns, &matches, |found| {
        vec![
            found.rank.to_string(),
            found.agent_id.clone(),
            format!("{:.3}", found.score),
            presence(found.presence()),
            load(found.load.as_ref()),
            found.missing_skills.join(", "),
        ]
    })
}

pub(super) async fn watch(args: WatchArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    let request = v1::WatchAgentsRequest {
        after_cursor: args.after,
        agent_type: text(args.agent_type),
        skill: args.skill,
        cards_only: args.cards_only,
    };
    let mut updates = super::watching::open(&client, request).await?;
    while let Some(update) = updates.next().await? {
        match &update.event {
            Some(event) if output.is_table() => say_event(update.cursor, event),
            Some(_) => output.next(&json::of(&update)?)?,
            // An event of a later version of the schema.
            None => {}
        }
    }
    Ok(())
}

fn say_event(cursor: u64, event: &Event) {
    match event {
        Event::Agent(agent) => {
            let id = agent.card.as_ref().map(|card| card.agent_id.as_str()).unwrap_or_default();
            let left = if agent.deregister_time.is_some() { "  deregistered" } else { "" };
            say!("{cursor:>8}  {id}  {}  {}{left}", presence(agent.presence()), load(agent.load.as_ref()));
        }
        Event::LeftAgentId(id) => say!("{cursor:>8}  {id}  does not match any more"),
        Event::Activities(all) => {
            for one in &all.activities {
                say!("{:>8}  {}  {}  {}", "", one.agent_id, presence(one.presence()), load(one.load.as_ref()));
            }
        }
        Event::CaughtUp(_) => say!("{cursor:>8}  (up to date)"),
    }
}
