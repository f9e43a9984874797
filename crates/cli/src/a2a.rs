//! `baton a2a connect`: an agent of baton whose work is done by a remote agent that speaks A2A 1.0.
//!
//! `card` decides whether the remote agent can be used, `remote` makes the calls of A2A over `http`, `view` has the remote
//! task as its events show it, and `course` the work on one task. The runner owns the agent.

mod card;
mod course;
mod events;
mod http;
mod parts;
mod past;
mod remote;
mod view;
mod work;

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, Subcommand};
use serde_json::json;

use self::{
    card::Card,
    http::Http,
    remote::{Place, Remote},
    work::Connector,
};
use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    runner::{self, Settings},
    signals,
    worker::{register_card, say},
};
use baton_client::{Identity, ids::AgentType, proto::v1};

/// The time in which the last messages of a stopping agent are sent.
const STOP_GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton a2a connect --card https://agents.example.com --id bob --key bob.pem --type billing")]
pub(super) enum A2aCommand {
    Connect(ConnectArgs),
}

/// Run an agent whose work is done by a remote agent that speaks A2A 1.0.
///
/// Each task becomes one message to the remote agent: its words, its context as data, and its bytes. Events of the remote
/// task become progress, its artifacts the result; a result of over 256 KiB is stored as a blob. A question of the remote
/// agent is asked of the agent that the task came from, and the answer is the next message. A recall cancels the remote
/// task. A task that the remote agent rejects, cancels or fails is FAILED, with its words.
///
/// The remote agent must offer version 1.0 and the binding JSONRPC or HTTP+JSON. The skills of its card become those of
/// the agent. On SIGINT or SIGTERM the agent takes no more tasks and exits with code 0; the next process of the agent
/// goes on with its tasks. It repeats a message only with the same id, so a remote agent that honours the ids of
/// messages has at most one task for each of baton.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton a2a connect --card https://agents.example.com --id bob --key bob.pem --type billing
  baton a2a connect --card https://agents.example.com/a2a/bill/card.json --bearer-file bill.token \\
    --id bob --key bob.pem --type billing --concurrency 4
  baton a2a connect --card http://127.0.0.1:9000 --allow-local-targets --id bob --key bob.pem")]
pub(super) struct ConnectArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// The address of the remote agent's card. Of an origin, as https://agents.example.com, the card is at
    /// /.well-known/agent-card.json.
    #[arg(long, value_name = "URL")]
    card: String,
    /// A type to register under. May be repeated.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<AgentType>,
    /// The file of the bearer token for the remote agent, which only its owner can read. Each request reads it anew.
    #[arg(long, value_name = "FILE")]
    bearer_file: Option<PathBuf>,
    /// A further origin to which requests may go, as https://api.example.com, if the card names another one than its own.
    /// May be repeated.
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    origins: Vec<String>,
    /// Let requests also go to this machine, over https:// or http://. For trials.
    #[arg(long)]
    allow_local_targets: bool,
    /// The number of tasks that the agent takes at a time. Further tasks wait at the broker.
    #[arg(long, default_value_t = 16, value_name = "TASKS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: u32,
}

pub(super) async fn run(command: A2aCommand, connection: &ConnectionArgs) -> Result<(), Failure> {
    match command {
        A2aCommand::Connect(args) => connect(args, connection).await,
    }
}

async fn connect(args: ConnectArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    let identity = args.identity.load()?;
    let http = Http::new(args.allow_local_targets, args.bearer_file.clone())?;
    let origins = args.origins.iter().map(|origin| {
        http.target(origin).map_err(|problem| Failure::usage(format!("--allow-origin {origin} {problem}")))
    });
    let origins: Vec<_> = origins.collect::<Result<_, _>>()?;
    let card = card::fetch(&http, &args.card, &origins).await?;
    enroll(&args, &card, &identity, connection).await?;
    let stop = signals::stop_on_signal()?;
    let place = card.place.clone();
    let Place { target, binding, streams, .. } = &place;
    let facts =
        json!({"name": card.name, "address": target.uri.to_string(), "binding": binding.name(), "streams": streams});
    say("found", &facts);
    let connector = Connector::new(Remote { http, place }, card, stop.clone());
    let settings =
        Settings { identity: &args.identity, connection, concurrency: args.concurrency, stop_grace: STOP_GRACE, stop };
    runner::run(Arc::new(connector), &identity, settings).await
}

/// Registers the agent with the skills of the remote one, and brings those of a registered agent up to date.
async fn enroll(
    args: &ConnectArgs,
    card: &Card,
    identity: &Identity,
    connection: &ConnectionArgs,
) -> Result<(), Failure> {
    let types = args.types.iter().map(ToString::to_string).collect();
    let shown = v1::AgentCard {
        agent_id: identity.agent.to_string(),
        agent_types: types,
        capacity: args.concurrency,
        keys: vec![identity.agent_key()],
        ..card.at_broker()
    };
    if register_card(shown.clone(), connection).await? {
        return Ok(());
    }
    let (client, _) = args.identity.sign_in(connection).await?;
    let shown = v1::AgentCard { keys: Vec::new(), ..shown };
    if let Err(error) = client.update_agent(shown, &["skills", "description"], "").await {
        // Where only operators write cards, the present one counts.
        tracing::warn!(%error, "the skills of the remote agent are not on the agent's card");
    }
    Ok(())
}
