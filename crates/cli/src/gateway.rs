//! `baton gateway`: agents over HTTP by keys that they have lent, and the grants of these keys.

pub(super) mod beside;
mod files;
mod grants;
mod pushes;
mod sender;
mod serve;
mod webhooks;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use baton_broker_core::DEFAULT_DATA;
use baton_faces::http::Published;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use self::{
    grants::{Folder, State, Stored},
    webhooks::command::{self as webhook, WebhookArgs},
};
use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    mcp::ToolSet,
    output::{self, Output},
    table::{self, Column},
};
use baton_client::{
    ClientError,
    ids::KeyId,
    proto::v1,
    time::{Clock as _, SystemClock, Timestamp},
};

/// The folder of a gateway's grants.
const FOLDER: &str = "baton-gateway";
/// The folder of the gateway beside a broker, in the broker's data folder.
const FOLDER_BESIDE: &str = "gateway";
/// The most requests at a time, unless a flag has another number.
const REQUESTS_MAX: u32 = 512;
/// The most requests of one agent at a time, unless a flag has another number.
const REQUESTS_PER_AGENT_MAX: u32 = 32;

/// Let programs act as agents over HTTP: serve MCP at /mcp, JSON at /api/v1 and A2A at /a2a, with a bearer token for each agent.
///
/// An agent lends the gateway a key of its own for some days with `baton gateway grant`, which prints the token. The
/// gateway connects to the broker as each of these agents. It keeps nothing but the keys and the addresses of webhooks, and may be
/// killed at any time. `baton dev` has one in its process, and so has `baton serve` with `[gateway] enabled = true`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  baton gateway grant --id alice --key alice.pem --days 30
  baton gateway
  baton gateway --a2a-publish type:billing,alice
  baton gateway --listen 0.0.0.0:443 --tls-cert server.pem --tls-key server.key --allow-host agents.example.com"
)]
pub(super) struct GatewayArgs {
    #[command(subcommand)]
    command: Option<GatewayCommand>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum GatewayCommand {
    Grant(GrantArgs),
    Revoke(RevokeArgs),
    List(ListArgs),
    Webhook(WebhookArgs),
}

#[derive(Debug, Args)]
struct FolderArgs {
    /// The gateway's folder, which has the lent keys. Only its owner can read it. Default: ./baton-data/gateway of `baton dev`,
    /// if it exists and no other broker is named; otherwise ./baton-gateway.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl FolderArgs {
    /// The folder. The gateway of another broker has no use for the keys of this connection.
    fn path(&self, connection: &ConnectionArgs) -> PathBuf {
        let beside = Path::new(DEFAULT_DATA).join(FOLDER_BESIDE);
        match &self.data {
            Some(path) => path.clone(),
            None if beside.is_dir() && connection.is_to_broker_on(Path::new(DEFAULT_DATA)) => beside,
            None => FOLDER.into(),
        }
    }
}

#[derive(Debug, Args)]
struct ServeArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// The address to listen on. Port 0 selects a free port. Other than loopback addresses need --tls-cert.
    #[arg(long, default_value = "127.0.0.1:22869", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The certificate for TLS with its chain, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// A name or address by which clients reach the gateway, without a port. May be repeated. Requests for another host are
    /// refused, and those of pages of another host. localhost, 127.0.0.1 and ::1 are always allowed.
    #[arg(long = "allow-host", value_name = "HOST", value_parser = parse_host)]
    hosts: Vec<String>,
    /// The sets of tools at /mcp, separated by commas. The acts at /api/v1 are all.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "core", value_name = "SETS")]
    tools: Vec<ToolSet>,
    /// What agents that speak A2A reach, separated by commas: an agent's id, or type:NAME for the agents of a type. The card of
    /// each is at /a2a/NAME/.well-known/agent-card.json, for all. Nothing else is served to A2A clients.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = Published::parse)]
    a2a_publish: Vec<Published>,
    /// Let A2A clients name addresses to which each change of their tasks is posted: push notifications. Only https:// of the
    /// internet.
    #[arg(long, requires = "a2a_publish")]
    a2a_push: bool,
    /// Let requests of the gateway itself, as those of webhooks, also go to this machine, over https:// or http://. For trials:
    /// with it, an agent reaches what listens on this machine.
    #[arg(long)]
    allow_local_targets: bool,
    /// The most requests at a time. One over it gets status 503.
    #[arg(long, default_value_t = REQUESTS_MAX, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    requests_max: u32,
    /// The most requests of one agent at a time. One over it gets status 429.
    #[arg(long, default_value_t = REQUESTS_PER_AGENT_MAX, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    requests_per_agent_max: u32,
}

/// Lend the gateway a new key of an agent for some days, and print the bearer token that stands for it.
///
/// The token is printed once; the gateway's folder has its SHA-256 alone. The key is one more key of the agent at the
/// broker, with a name that begins with gateway., which receivers see on each message.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton gateway grant --id alice --key alice.pem --days 30
  baton gateway grant --id alice --key alice.pem --days 1 -o json | jq -r .token > alice.token")]
struct GrantArgs {
    #[command(flatten)]
    folder: FolderArgs,
    #[command(flatten)]
    identity: IdentityArgs,
    /// Validity of key and token in days, 1 to 366.
    #[arg(long, default_value_t = 30, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=366))]
    days: u32,
}

/// End a grant: its token gets status 401 at once, and its key is revoked at the broker.
///
/// The key itself signs for this, so the agent's other keys are not needed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton gateway list
  baton gateway revoke gateway.5f0c2a9d1b7e4c38")]
struct RevokeArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// The name of the lent key, as `baton gateway list` shows it.
    key_id: KeyId,
}

/// List the grants: agent, key, end.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton gateway list")]
struct ListArgs {
    #[command(flatten)]
    folder: FolderArgs,
}

fn parse_host(text: &str) -> Result<String, String> {
    let bare = text.trim_matches(['[', ']']);
    let is_host = bare.parse::<std::net::IpAddr>().is_ok()
        || text.parse::<http::uri::Authority>().is_ok_and(|authority| authority.host() == text);
    if is_host { Ok(bare.to_owned()) } else { Err("must be a name or an address, without a port".to_owned()) }
}

pub(super) async fn run(args: GatewayArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match args.command {
        None => serve::run(args.serve, connection, output).await,
        Some(GatewayCommand::Grant(args)) => grant(args, connection, output).await,
        Some(GatewayCommand::Revoke(args)) => revoke(args, connection, output).await,
        Some(GatewayCommand::List(args)) => list(&args, connection, output),
        Some(GatewayCommand::Webhook(args)) => webhook::run(args, connection, output),
    }
}

async fn grant(args: GrantArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let folder = Folder::create(&args.folder.path(connection))?;
    let (client, identity) = args.identity.sign_in(connection).await?;
    let (seconds, _) = SystemClock.now().to_parts();
    let not_after = prost_types::Timestamp { seconds: seconds + i64::from(args.days) * 24 * 60 * 60, nanos: 0 };
    let expire_time = Timestamp::from_parts(not_after.seconds, 0)
        .ok_or_else(|| Failure::failed("the clock of this machine is out of bounds"))?;
    let (stored, token) = Stored::draw(&identity.agent, expire_time);
    let lent = stored.identity();
    // The file comes first: a key that the broker knows can always be listed and revoked here.
    let file = folder.add(&stored)?;
    let request = v1::AddAgentKeyRequest {
        agent_id: identity.agent.to_string(),
        key: Some(v1::AgentKey { not_after_time: Some(not_after), ..lent.agent_key() }),
        ..Default::default()
    };
    if let Err(error) = client.answer(client.agents().add_agent_key(request).await) {
        // Without an answer the broker may have the key.
        if matches!(error, ClientError::Refused(_)) && !error.is_passing() {
            file.remove()?;
        }
        return Err(error.into());
    }
    let (agent, key_id) = (identity.agent.to_string(), lent.key_id.to_string());
    if output.is_table() {
        say_lines!("agent    {agent}\nkey      {key_id}\nuntil    {}\ntoken    {token}", expire_time.to_string());
        tell!("the token is shown this once");
        return Ok(());
    }
    output.value(&json!({
        "agentId": agent, "keyId": key_id, "expireTime": expire_time.to_string(), "token": token,
    }))
}

async fn revoke(args: RevokeArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let folder = Folder::open(&args.folder.path(connection))?;
    let unknown = || {
        let text = format!("no grant has the key {}; `baton gateway list` lists them", args.key_id);
        Failure::refused("AGENT_KEY_UNKNOWN", text)
    };
    let (stored, file) = folder.named(&args.key_id)?.ok_or_else(unknown)?;
    // From here on the gateway refuses the token, also if the broker cannot be asked.
    let file = file.mark_as_revoked()?;
    if let Err(error) = revoke_at_broker(&stored, connection).await {
        let advice = "the gateway takes the token no more; run this command again to revoke the key at the broker";
        return Err(error.with_advice(advice));
    }
    file.remove()?;
    match output.is_table() {
        true => say!("revoked {}", args.key_id),
        false => output.value(&json!({"agentId": stored.agent(), "keyId": args.key_id.to_string()}))?,
    }
    Ok(())
}

async fn revoke_at_broker(stored: &Stored, connection: &ConnectionArgs) -> Result<(), Failure> {
    let client = connection.client_without_any_token().await?;
    let lent = stored.identity();
    let client = match client.sign_in(&lent).await {
        Ok(client) => client,
        // The broker has never had the key, or takes it no more.
        Err(error) if error.reason() == Some("CHALLENGE_FAILED") => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let request = v1::RevokeAgentKeyRequest {
        agent_id: lent.agent.to_string(),
        key_id: lent.key_id.to_string(),
        reason_text: "the grant to a gateway was revoked".to_owned(),
    };
    client.answer(client.agents().revoke_agent_key(request).await)?;
    Ok(())
}

fn list(args: &ListArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let now = SystemClock.now();
    let mut all = Folder::open(&args.folder.path(connection))?.all()?;
    all.sort_by_key(|(stored, _)| (stored.agent().to_owned(), stored.key_id().to_owned()));
    let state = |(stored, state): &(Stored, State)| match state {
        State::Revoked => "REVOKED",
        State::Granted if stored.expire_time() <= now => "EXPIRED",
        State::Granted => "GRANTED",
    };
    if output.is_table() {
        let columns = [Column::Id("AGENT"), Column::Whole("KEY"), Column::Whole("UNTIL"), Column::Whole("STATE")];
        let row = |entry: &(Stored, State)| {
            let (stored, _) = entry;
            let until = prost_types::Timestamp::from(stored.expire_time());
            let until = output::brief(Some(&until), now);
            vec![stored.agent().to_owned(), stored.key_id().to_owned(), until, state(entry).to_owned()]
        };
        table::print(&columns, all.iter().map(row));
        return Ok(());
    }
    let document = |entry: &(Stored, State)| {
        let (stored, _) = entry;
        let expire_time = stored.expire_time().to_string();
        json!({
            "agentId": stored.agent(), "keyId": stored.key_id(), "expireTime": expire_time, "state": state(entry),
        })
    };
    output.value(&all.iter().map(document).collect::<Value>())
}
