//! `baton gateway webhook`: the webhooks of a gateway, added, removed and listed.

use std::{fs, path::PathBuf};

use baton_client::{
    ids::AgentId,
    time::{Clock as _, SystemClock},
};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    super::{FolderArgs, grants::Folder},
    signature::Secret,
    store::{Kind, State, Store, Webhook},
};
use crate::{
    Failure,
    connection::{ConnectionArgs, check_private},
    outgoing::Target,
    output::Output,
    table::{self, Column},
};

/// Post what waits for an agent to an address, for agents that cannot keep a session: functions that start for a request.
///
/// The agent lends the gateway a key by `baton gateway grant`. A running `baton gateway` then posts offers and tasks to the
/// address, signed as Standard Webhooks has it, and the answers decide.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton gateway grant --id reviewer --key reviewer.pem
  baton gateway webhook add reviewer https://functions.example.com/review
  baton gateway")]
pub(in super::super) struct WebhookArgs {
    #[command(subcommand)]
    command: WebhookCommand,
}

#[derive(Debug, Subcommand)]
enum WebhookCommand {
    Add(AddArgs),
    Remove(RemoveArgs),
    List(ListArgs),
}

/// Add the webhook of an agent, and print the secret by which its receiver knows the gateway.
///
/// A running gateway begins within a second. An agent has one webhook.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton gateway webhook add reviewer https://functions.example.com/review
  baton gateway webhook add reviewer https://functions.example.com/wake --kind wake -o json | jq -r .secret")]
struct AddArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// The agent, which has lent the gateway a key.
    agent: AgentId,
    /// The address, https://. For trials, http:// of this machine: see --allow-local-targets of `baton gateway`.
    url: String,
    /// tasks: offers and tasks, and their answers decide. wake: only that something waits, and how much.
    #[arg(long, value_enum, default_value = "tasks", value_name = "KIND")]
    kind: Kind,
    /// A file with the secret: whsec_ and 24 to 64 bytes in base64. Default: a new one.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

/// Remove the webhook of an agent. Its tasks stay the agent's.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton gateway webhook remove reviewer")]
struct RemoveArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// The agent.
    agent: AgentId,
}

/// List the webhooks: agent, kind, state, requests that were given up, address.
///
/// OFF: the receiver has answered with status 410, and gets no more requests; remove the webhook and add it again. NO_GRANT:
/// no grant of the agent holds.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton gateway webhook list")]
struct ListArgs {
    #[command(flatten)]
    folder: FolderArgs,
}

pub(in super::super) fn run(args: WebhookArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match args.command {
        WebhookCommand::Add(args) => add(args, connection, output),
        WebhookCommand::Remove(args) => remove(&args, connection, output),
        WebhookCommand::List(args) => list(&args, connection, output),
    }
}

fn add(args: AddArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let folder = Folder::open(&args.folder.path(connection))?;
    let target = Target::parse(&args.url, true).map_err(|problem| Failure::usage(format!("the address {problem}")))?;
    let secret = match &args.secret_file {
        None => Secret::draw(),
        Some(path) => {
            check_private(path)?;
            let text = fs::read_to_string(path).map_err(|error| Failure::file(path, error))?;
            Secret::parse(&text).map_err(|problem| Failure::file(path, problem))?
        }
    };
    let agent = args.agent;
    if !folder.identities(SystemClock.now())?.contains_key(&agent) {
        let text = format!("{agent} has lent this gateway no key; `baton gateway grant --id {agent}` does");
        return Err(Failure::refused("AGENT_KEY_UNKNOWN", text));
    }
    let webhook = Webhook::new(agent, args.url, args.kind, secret);
    if !Store::within(folder.path()).add(&webhook)? {
        let agent = &webhook.agent;
        let text = format!("{agent} has a webhook; `baton gateway webhook remove {agent}` removes it");
        return Err(Failure::failed(text).named("WEBHOOK_EXISTS"));
    }
    if target.is_local() {
        tell!("only a gateway with --allow-local-targets, as that of `baton dev`, posts to this machine");
    }
    let (agent, url, secret) = (webhook.agent.as_str(), &webhook.url, webhook.secret.text());
    if output.is_table() {
        say_lines!("agent    {agent}\nurl      {url}\nsecret   {secret}");
        return Ok(());
    }
    output.value(&json!({"agentId": agent, "url": url, "kind": webhook.kind, "secret": secret}))
}

fn remove(args: &RemoveArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let folder = Folder::open(&args.folder.path(connection))?;
    let agent = &args.agent;
    if !Store::within(folder.path()).remove(agent)? {
        let text = format!("{agent} has no webhook; `baton gateway webhook list` lists them");
        return Err(Failure::failed(text).named("WEBHOOK_UNKNOWN"));
    }
    match output.is_table() {
        true => say!("removed {agent}"),
        false => output.value(&json!({"agentId": agent.as_str()}))?,
    }
    Ok(())
}

fn list(args: &ListArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let folder = Folder::open(&args.folder.path(connection))?;
    let identities = folder.identities(SystemClock.now())?;
    let mut all = Vec::new();
    for (webhook, state) in Store::within(folder.path()).all()? {
        let name = match (&state.off_time, identities.contains_key(&webhook.agent)) {
            (Some(_), _) => "OFF",
            (None, false) => "NO_GRANT",
            (None, true) => "ON",
        };
        all.push((webhook, state, name));
    }
    if output.is_table() {
        let columns = [
            Column::Id("AGENT"),
            Column::Whole("KIND"),
            Column::Whole("STATE"),
            Column::Whole("GIVEN UP"),
            Column::Whole("URL"),
        ];
        let row = |(webhook, state, name): &(Webhook, State, &str)| {
            let kind = json!(webhook.kind).as_str().unwrap_or_default().to_owned();
            let given_up = state.given_up.to_string();
            vec![webhook.agent.to_string(), kind, (*name).to_owned(), given_up, webhook.url.clone()]
        };
        table::print(&columns, all.iter().map(row));
        return Ok(());
    }
    let document = |(webhook, state, name): &(Webhook, State, &str)| {
        json!({
            "agentId": webhook.agent.as_str(), "url": webhook.url, "kind": webhook.kind, "state": name,
            "offTime": state.off_time, "givenUp": state.given_up,
        })
    };
    output.value(&all.iter().map(document).collect::<Value>())
}
