//! `baton agent`: register, invite, list, show, serve.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{
    Failure,
    connection::{ConnectionArgs, read_key},
    json, key,
    output::{self, Output},
    resolve::Prefix,
    table::Column,
    worker,
};
use crate::{
    ids::{AgentId, AgentType},
    proto::v1,
};

#[derive(Debug, Subcommand)]
pub(super) enum AgentCommand {
    Register(RegisterArgs),
    /// List agents, by id.
    List {
        /// Only of this type.
        #[arg(long = "type", value_name = "TYPE")]
        agent_type: Option<AgentType>,
    },
    /// Show one agent. The broker itself is "baton".
    Show {
        /// Its id, or a beginning that no other has.
        id: Prefix,
    },
    Invite(InviteArgs),
    /// List, add, rotate, revoke and vouch for an agent's keys.
    #[command(subcommand)]
    Key(key::KeyCommand),
    Serve(worker::ServeAgentArgs),
}

/// Make an invitation: it lets one new agent register, once. For an operator.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton agent invite --id carol --type billing
  baton agent invite --hours 2
  baton agent register --id carol --key carol.pem --invitation invitation-5f3a…")]
pub(super) struct InviteArgs {
    /// Whom it is for; without it, any new agent.
    #[arg(long, value_name = "AGENT")]
    id: Option<AgentId>,
    /// A type that the new agent may have; can be given several times.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<AgentType>,
    /// For how many hours it is good; at most 720.
    #[arg(long, default_value_t = 24, value_name = "HOURS")]
    hours: u32,
}

/// Register an agent, or change its card.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton agent register --id alice --key alice.pem --type support
  baton agent register --id bob --public-key 03a107bf…5531b8 --skill rust --capacity 5
  baton agent register --card bob.json")]
pub(super) struct RegisterArgs {
    /// The agent's id.
    #[arg(long, value_name = "AGENT", required_unless_present = "card")]
    id: Option<AgentId>,
    /// A type it can be addressed by; may be repeated.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<AgentType>,
    /// A skill; may be repeated.
    #[arg(long = "skill", value_name = "NAME")]
    skills: Vec<String>,
    /// In words.
    #[arg(long, default_value = "")]
    description: String,
    /// How many tasks it takes at a time.
    #[arg(long, default_value_t = 0, value_name = "TASKS")]
    capacity: u32,
    /// Its private key's file; only the public half is sent.
    #[arg(long, value_name = "FILE", conflicts_with = "public_key")]
    key: Option<PathBuf>,
    /// Its public key, in hex.
    #[arg(long, value_name = "HEX")]
    public_key: Option<String>,
    /// The name of the key.
    #[arg(long, default_value = "k1", value_name = "KEY")]
    key_id: String,
    /// An invitation, where an operator must otherwise register agents.
    #[arg(long, value_name = "INVITATION", default_value = "")]
    invitation: String,
    /// The whole card as a JSON file, instead of all other flags.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["id", "key", "public_key", "types", "skills"])]
    card: Option<PathBuf>,
}

pub(super) async fn run(command: AgentCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        AgentCommand::Register(args) => register(args, connection, output).await,
        AgentCommand::List { agent_type } => list(agent_type, connection, output).await,
        AgentCommand::Show { id } => {
            let client = connection.client().await?;
            let request = v1::GetAgentRequest { agent_id: id.agent(&client).await?.to_string() };
            let found = client.answer(client.agents().get_agent(request).await)?;
            show(&found.agent.unwrap_or_default(), output)
        }
        AgentCommand::Invite(args) => {
            let client = connection.client().await?;
            let lifetime = Some(prost_types::Duration { seconds: i64::from(args.hours) * 3600, nanos: 0 });
            let agent_id = args.id.map(|id| id.to_string()).unwrap_or_default();
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
        (None, Some(hex)) => hex::decode(hex).map_err(|_| Failure::usage("--public-key must be 64 hex digits"))?,
        (None, None) => return Err(Failure::usage("name the agent's key with --key FILE or --public-key HEX")),
    };
    let key = v1::AgentKey { key_id: args.key_id.clone(), public_key: public_key.into(), ..Default::default() };
    let skill = |name: &String| v1::AgentSkill { name: name.clone(), ..Default::default() };
    Ok(v1::AgentCard {
        agent_id: args.id.as_ref().map(ToString::to_string).unwrap_or_default(),
        agent_types: args.types.iter().map(ToString::to_string).collect(),
        description: args.description.clone(),
        skills: args.skills.iter().map(skill).collect(),
        capacity: args.capacity,
        keys: vec![key],
        ..Default::default()
    })
}

async fn list(agent_type: Option<AgentType>, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let client = connection.client().await?;
    let agent_type = agent_type.map(|agent_type| agent_type.to_string()).unwrap_or_default();
    let mut agents = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListAgentsRequest { page_size: 1000, page_token, agent_type: agent_type.clone() };
        let page = client.answer(client.agents().list_agents(request).await)?;
        agents.extend(page.agents);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
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
            output::short(agent.presence().as_str_name(), "PRESENCE_"),
            agent.session_count.to_string(),
            card.keys.iter().map(|key| key.key_id.as_str()).collect::<Vec<_>>().join(", "),
        ]
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
        let key = |key: &v1::AgentKey| (format!("key {}", key.key_id).into(), hex::encode(&key.public_key));
        lines.extend(card.keys.iter().map(key));
        lines.extend([
            ("presence".into(), output::short(agent.presence().as_str_name(), "PRESENCE_")),
            ("sessions".into(), agent.session_count.to_string()),
            ("registered".into(), output::time(agent.create_time.as_ref())),
        ]);
        lines
    })
}
