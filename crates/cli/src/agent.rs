//! `baton agent`: register, update, deregister, invite, list, find, watch, show, serve, exec.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs, read_key},
    duration, exec, find,
    handoff::span,
    json, key,
    output::{self, Output},
    resolve::Prefix,
    table::Column,
    worker,
};
use baton_client::{
    ids::{AgentId, AgentType},
    proto::v1,
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton agent register --id alice --key alice.pem --type support
  baton agent list --type support
  baton agent find --skill finance.tax --explain
  baton agent serve --id bob --key bob.pem
  baton agent exec --id bob --key bob.pem --type reviewer -- ./review.sh")]
pub(super) enum AgentCommand {
    Register(RegisterArgs),
    Update(UpdateArgs),
    /// Deregister an agent for good: its keys are revoked, and its id is never used again. The card stays readable.
    #[command(after_help = "Examples:
  baton agent deregister bob
  baton agent deregister bob --id bob --key bob.pem
  baton agent deregister bob --force --reason \"the host is gone\"")]
    Deregister {
        /// The agent's id.
        id: AgentId,
        /// Deregister the agent although it owns open tasks or has open offers. Needs an operator's token.
        #[arg(long)]
        force: bool,
        /// The reason, for the audit log.
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    List(find::ListArgs),
    Find(find::FindArgs),
    Watch(find::WatchArgs),
    /// Show one agent: its card, keys and presence. The broker itself is the agent "baton".
    #[command(after_help = "Examples:
  baton agent show alice
  baton agent show baton -o json")]
    Show {
        /// The agent's id, or a unique prefix of it.
        id: Prefix,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// List the processes of an agent that are connected, and what each works on.
    #[command(after_help = "Examples:
  baton agent processes bob
  baton agent processes bob -o jsonl")]
    Processes {
        /// The agent's id, or a unique prefix of it.
        id: Prefix,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    Invite(InviteArgs),
    /// Manage an agent's public keys: list, add, rotate, revoke, vouch.
    #[command(subcommand)]
    Key(key::KeyCommand),
    Serve(worker::ServeAgentArgs),
    Exec(exec::ExecArgs),
}

/// Create an invitation, a secret with which one new agent can register once. Needs an operator's token.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton agent invite --for carol --type billing
  baton agent invite --hours 2
  baton agent register --id carol --key carol.pem --invitation invitation-5f3a…")]
pub(super) struct InviteArgs {
    /// The id of the agent that may use the invitation. Default: any new agent.
    #[arg(long = "for", value_name = "AGENT")]
    invited: Option<AgentId>,
    /// A type that the new agent may register under. May be repeated.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<AgentType>,
    /// Lifetime of the invitation in hours, at most 720.
    #[arg(long, default_value_t = 24, value_name = "HOURS")]
    hours: u32,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// Change fields of an agent's card. Flags that are left out keep their fields.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton agent update bob --capacity 8
  baton agent update bob --skill finance.tax.de --skill writing
  baton agent update bob --capacity 8 --id bob --key bob.pem
  baton agent update bob --decides-within 8h
  baton agent update bob --description \"knows taxes\" --etag 1a")]
pub(super) struct UpdateArgs {
    /// The agent's id.
    id: AgentId,
    /// The types of the agent, instead of all former ones. May be repeated.
    #[arg(long = "type", value_name = "TYPE")]
    types: Option<Vec<AgentType>>,
    /// The skills of the agent, instead of all former ones. May be repeated.
    #[arg(long = "skill", value_name = "NAME", conflicts_with = "skills")]
    skill: Option<Vec<String>>,
    /// The skills of the agent as a JSON file: a list of skills with descriptions, tags and languages.
    #[arg(long, value_name = "FILE")]
    skills: Option<PathBuf>,
    /// The description for people.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// The number of tasks that the agent takes at a time. 0 means no stated limit.
    #[arg(long, value_name = "TASKS")]
    capacity: Option<u32>,
    /// The time that the agent needs to decide about an offered handoff, 1s to 7d. none: not stated.
    #[arg(long, value_name = "TIME", value_parser = parse_decision)]
    decides_within: Option<Decision>,
    /// Change the card only if it still has this etag. `baton agent show` prints the etag.
    #[arg(long, value_name = "ETAG", default_value = "", hide_default_value = true)]
    etag: String,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// Register an agent, or replace the card of a registered agent.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton agent register --id alice --key alice.pem --type support
  baton agent register --id bob --public-key 03a107bf…5531b8 --skill rust --capacity 5
  baton agent register --id carol --key carol.pem --decides-within 8h
  baton agent register --card bob.json")]
pub(super) struct RegisterArgs {
    /// The agent's id.
    #[arg(long, value_name = "AGENT", required_unless_present = "card")]
    id: Option<AgentId>,
    /// A type under which others can address the agent, as type:NAME. May be repeated.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<AgentType>,
    /// A skill to list on the card. May be repeated.
    #[arg(long = "skill", value_name = "NAME")]
    skills: Vec<String>,
    /// A description for people.
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
    /// The number of tasks that the agent takes at a time. 0 means no stated limit.
    #[arg(long, default_value_t = 0, value_name = "TASKS")]
    capacity: u32,
    /// The time that the agent needs to decide about an offered handoff, 1s to 7d. Default: the timeout of each request.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    decides_within: Option<Duration>,
    /// The agent's private key, a file from `baton keygen`. Only the public key is sent.
    #[arg(long, value_name = "FILE", conflicts_with = "public_key")]
    key: Option<PathBuf>,
    /// The agent's public key, as 64 hex digits, instead of --key.
    #[arg(long, value_name = "HEX")]
    public_key: Option<String>,
    /// The key's name (key_id).
    #[arg(long, default_value = "k1", value_name = "KEY")]
    key_id: String,
    /// An invitation from `baton agent invite`. Needed if the broker does not let agents register themselves.
    #[arg(long, value_name = "INVITATION", default_value = "", hide_default_value = true)]
    invitation: String,
    /// The complete card as a JSON file, instead of the other flags.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["id", "key", "public_key", "types", "skills", "decides_within"])]
    card: Option<PathBuf>,
}

pub(super) async fn run(command: AgentCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        AgentCommand::Register(args) => register(args, connection, output).await,
        AgentCommand::Update(args) => update(args, connection, output).await,
        AgentCommand::Deregister { id, force, reason, identity } => {
            let client = identity.client(connection).await?;
            let request = v1::DeregisterAgentRequest { agent_id: id.to_string(), force, reason_text: reason };
            let done = client.answer(client.agents().deregister_agent(request).await)?;
            show(&done.agent.unwrap_or_default(), output)
        }
        AgentCommand::List(args) => find::list(args, connection, output).await,
        AgentCommand::Find(args) => find::find(args, connection, output).await,
        AgentCommand::Watch(args) => find::watch(args, connection, output).await,
        AgentCommand::Show { id, identity } => {
            let client = identity.client(connection).await?;
            let request = v1::GetAgentRequest { agent_id: id.agent(&client).await?.to_string() };
            let found = client.answer(client.agents().get_agent(request).await)?;
            show(&found.agent.unwrap_or_default(), output)
        }
        AgentCommand::Processes { id, identity } => {
            let client = identity.client(connection).await?;
            processes(&client.list_processes(&id.agent(&client).await?.to_string()).await?, output)
        }
        AgentCommand::Invite(args) => {
            let client = args.identity.client(connection).await?;
            let lifetime = Some(prost_types::Duration { seconds: i64::from(args.hours) * 3600, nanos: 0 });
            let agent_id = args.invited.map(|id| id.to_string()).unwrap_or_default();
            let agent_types = args.types.iter().map(ToString::to_string).collect();
            let request = v1::CreateInvitationRequest { agent_id, lifetime, agent_types };
            let made = client.answer(client.agents().create_invitation(request).await)?;
            output.one(&made, |made| {
                let until = output::time(made.expire_time.as_ref());
                vec![("invitation".into(), made.invitation.clone()), ("good until".into(), until)]
            })
        }
        AgentCommand::Key(command) => key::run(command, connection, output).await,
        AgentCommand::Serve(args) => worker::run(args, connection).await,
        AgentCommand::Exec(args) => exec::run(args, connection).await,
    }
}

async fn register(args: RegisterArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let card = match &args.card {
        Some(path) => read_card(path)?,
        None => card_of(&args)?,
    };
    let client = connection.client().await?;
    let request = v1::RegisterAgentRequest { card: Some(card), invitation: args.invitation };
    let registered = client.answer(client.agents().register_agent(request).await)?;
    show(&registered.agent.unwrap_or_default(), output)
}

fn read_card(path: &std::path::Path) -> Result<v1::AgentCard, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, error))?;
    let value = serde_json::from_str(&text).map_err(|error| Failure::file(path, error))?;
    json::parse(value)
}

fn card_of(args: &RegisterArgs) -> Result<v1::AgentCard, Failure> {
    let public_key = match (&args.key, &args.public_key) {
        (Some(path), _) => read_key(path)?.public().as_bytes().to_vec(),
        (None, Some(hex)) => hex::decode(hex).map_err(|_| Failure::usage("--public-key must have 64 hex digits"))?,
        (None, None) => return Err(Failure::usage("the agent needs a key: --key FILE or --public-key HEX")),
    };
    let key = v1::AgentKey { key_id: args.key_id.clone(), public_key: public_key.into(), ..Default::default() };
    Ok(v1::AgentCard {
        agent_id: args.id.as_ref().map(ToString::to_string).unwrap_or_default(),
        agent_types: args.types.iter().map(ToString::to_string).collect(),
        description: args.description.clone(),
        skills: args.skills.iter().map(|name| skill_named(name)).collect(),
        capacity: args.capacity,
        decides_within: span(args.decides_within)?,
        keys: vec![key],
        ..Default::default()
    })
}

async fn update(args: UpdateArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let mut paths = Vec::new();
    let mut card = v1::AgentCard { agent_id: args.id.to_string(), ..Default::default() };
    if let Some(types) = &args.types {
        paths.push("agent_types".to_owned());
        card.agent_types = types.iter().map(ToString::to_string).collect();
    }
    let named = args.skill.as_ref().map(|names| names.iter().map(|name| skill_named(name)).collect());
    if let Some(skills) = args.skills.as_deref().map(read_skills).transpose()?.or(named) {
        paths.push("skills".to_owned());
        card.skills = skills;
    }
    if let Some(description) = args.description {
        paths.push("description".to_owned());
        card.description = description;
    }
    if let Some(capacity) = args.capacity {
        paths.push("capacity".to_owned());
        card.capacity = capacity;
    }
    if let Some(Decision(within)) = args.decides_within {
        paths.push("decides_within".to_owned());
        card.decides_within = span(within)?;
    }
    // An empty mask would replace every field.
    if paths.is_empty() {
        return Err(Failure::usage(
            "nothing to change: give --type, --skill, --skills, --description, --capacity or --decides-within",
        ));
    }
    let client = args.identity.client(connection).await?;
    let update_mask = Some(prost_types::FieldMask { paths });
    let request = v1::UpdateAgentRequest { card: Some(card), update_mask, etag: args.etag };
    let updated = client.answer(client.agents().update_agent(request).await)?;
    show(&updated.agent.unwrap_or_default(), output)
}

/// A time to decide, or none: the card states none.
#[derive(Debug, Clone, Copy)]
struct Decision(Option<Duration>);

fn parse_decision(text: &str) -> Result<Decision, String> {
    match text {
        "none" => Ok(Decision(None)),
        text => duration::parse(text).map(|span| Decision(Some(span))),
    }
}

fn skill_named(name: &str) -> v1::AgentSkill {
    v1::AgentSkill { name: name.to_owned(), ..Default::default() }
}

fn read_skills(path: &std::path::Path) -> Result<Vec<v1::AgentSkill>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, error))?;
    let values: Vec<serde_json::Value> = serde_json::from_str(&text).map_err(|error| Failure::file(path, error))?;
    values.into_iter().map(json::parse).collect()
}

/// A span of time, as a flag takes it.
fn shown(span: prost_types::Duration) -> String {
    Duration::try_from(span).map_or_else(|_| span.to_string(), |span| humantime::format_duration(span).to_string())
}

/// The number of letters that wait for an agent, and since when the oldest one does.
fn mail(mailbox: Option<&v1::Mailbox>) -> String {
    let Some(mailbox) = mailbox else { return String::new() };
    let letters = mailbox.letter_count.map_or_else(|| "not counted yet".to_owned(), |count| count.to_string());
    match &mailbox.oldest_letter_time {
        Some(oldest) => format!("{letters}, the oldest of {}", output::time(Some(oldest))),
        None => letters,
    }
}

/// The bytes that an agent stores, and its share.
fn stored(usage: Option<&v1::AgentUsage>) -> String {
    match usage {
        None => String::new(),
        Some(v1::AgentUsage { stored_bytes, stored_bytes_max: 0 }) => format!("{stored_bytes} bytes"),
        Some(v1::AgentUsage { stored_bytes, stored_bytes_max }) => {
            format!("{stored_bytes} of {stored_bytes_max} bytes")
        }
    }
}

fn processes(processes: &[v1::Process], output: &Output) -> Result<(), Failure> {
    let columns = [Column::Whole("PROCESS"), Column::Whole("CONNECTED SINCE"), Column::Text("WORKS ON")];
    output.list(&columns, processes, |process| {
        let more = (process.task_count as usize).saturating_sub(process.task_ids.len());
        let mut tasks = process.task_ids.clone();
        if more > 0 {
            tasks.push(format!("{more} more"));
        }
        let works_on = match process.lists_work {
            true if tasks.is_empty() => "nothing".to_owned(),
            true => tasks.join(", "),
            false => "does not tell".to_owned(),
        };
        vec![process.instance_id.clone(), output::time(process.connect_time.as_ref()), works_on]
    })
}

fn show(agent: &v1::Agent, output: &Output) -> Result<(), Failure> {
    output.one(agent, |agent| {
        let card = agent.card.clone().unwrap_or_default();
        let mut lines = vec![
            ("agent".into(), card.agent_id.clone()),
            ("types".into(), card.agent_types.join(", ")),
            ("description".into(), card.description.clone()),
            ("skills".into(), card.skills.iter().map(|skill| skill.name.as_str()).collect::<Vec<_>>().join(", ")),
            ("capacity".into(), card.capacity.to_string()),
        ];
        if let Some(within) = &card.decides_within {
            lines.push(("decides in".into(), shown(*within)));
        }
        let key = |key: &v1::AgentKey| (format!("key {}", key.key_id).into(), hex::encode(&key.public_key));
        lines.extend(card.keys.iter().map(key));
        lines.extend([
            ("presence".into(), output::short(agent.presence().as_str_name(), "PRESENCE_")),
            ("sessions".into(), agent.session_count.to_string()),
            ("load".into(), find::load(agent.load.as_ref())),
            ("mail".into(), mail(agent.mailbox.as_ref())),
            ("stored".into(), stored(agent.usage.as_ref())),
            ("etag".into(), agent.etag.clone()),
            ("registered".into(), output::time(agent.create_time.as_ref())),
        ]);
        if agent.deregister_time.is_some() {
            lines.push(("deregistered".into(), output::time(agent.deregister_time.as_ref())));
        }
        lines
    })
}
