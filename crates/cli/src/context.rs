//! `baton context`: saved connections of the command line, and the contexts of tasks (`task_context`).

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    Failure,
    connection::{ConnectionArgs, read_key},
    output::{Format, Output},
    saved::{self, Name, Saved},
    table::{self, Column},
    task_context::{self, TaskContextCommand},
};
use baton_client::ids::{AgentId, KeyId};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton context add prod-bob --server broker.example:22866 --id bob --key bob.pem --use
  baton context list
  baton inbox
  baton context versions crash-7
  baton context get crash-7 history_log --last 5")]
pub(super) enum ContextCommand {
    Add(AddArgs),
    /// Connections: use a saved connection in all later commands.
    ///
    /// A flag or an environment variable takes precedence over the value that is saved. --context and BATON_CONTEXT name
    /// another connection for one command.
    #[command(after_help = "Examples:
  baton context use prod-bob
  baton context use --none")]
    Use {
        /// The name of the connection.
        #[arg(required_unless_present = "none", conflicts_with = "none")]
        name: Option<Name>,
        /// Use no saved connection.
        #[arg(long)]
        none: bool,
    },
    /// Connections: list the saved connections. The one in use has a *.
    #[command(after_help = "Examples:
  baton context list
  baton context list -o json")]
    List,
    #[command(flatten)]
    OfTask(TaskContextCommand),
}

/// Connections: save a broker, an identity and an output format under a name.
///
/// The broker is that of --server and --ca. Paths are saved as absolute paths. The file has mode 0600, and the private
/// key stays in its own file.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton context add prod-bob --server broker.example:22866 --ca ca.pem --id bob --key bob.pem --use
  baton context add prod-bob --server broker.example:22866 --format json --replace")]
pub(super) struct AddArgs {
    /// The name of the connection.
    name: Name,
    /// The id of the agent that commands act as.
    #[arg(long, value_name = "AGENT", requires = "key")]
    id: Option<AgentId>,
    /// The agent's private key, a file from `baton keygen`.
    #[arg(long, value_name = "FILE", requires = "id")]
    key: Option<PathBuf>,
    /// The key's name among the agent's keys (key_id).
    #[arg(long, value_name = "KEY", requires = "key")]
    key_id: Option<KeyId>,
    /// The output format of commands. Default: table on a terminal, otherwise json.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Use the connection in all later commands.
    #[arg(long = "use")]
    is_used: bool,
    /// Replace the connection that has this name.
    #[arg(long)]
    replace: bool,
}

impl ContextCommand {
    /// Whether the command is about saved connections themselves, and so uses none.
    pub(super) fn is_about_connections(&self) -> bool {
        match self {
            Self::Add(_) | Self::Use { .. } | Self::List => true,
            Self::OfTask(_) => false,
        }
    }
}

pub(super) async fn run(command: ContextCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        ContextCommand::Add(args) => add(&args, connection),
        ContextCommand::Use { name, none: _ } => saved::choose(name.as_ref()),
        ContextCommand::List => list(*output),
        ContextCommand::OfTask(command) => task_context::run(command, connection, output).await,
    }
}

fn add(args: &AddArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    let (server, ca) = connection.server_and_ca()?;
    if let Some(key) = &args.key {
        read_key(key)?; // a mistyped path is noticed here, and not by the next command
    }
    let saved = Saved {
        server,
        ca: ca.as_deref().map(absolute).transpose()?,
        id: args.id.as_ref().map(ToString::to_string),
        key: args.key.as_deref().map(absolute).transpose()?,
        key_id: args.key_id.as_ref().map(ToString::to_string),
        output: args.format.map(|format| format.name().to_owned()),
    };
    if saved == Saved::default() {
        return Err(Failure::usage("nothing to save: give --server, --ca, --id with --key, or --format"));
    }
    let path = saved::save(&args.name, &saved, args.replace)?;
    tell!("wrote {}", path.display());
    if args.is_used { saved::choose(Some(&args.name)) } else { Ok(()) }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::file(path, error))
}

fn list(output: Output) -> Result<(), Failure> {
    let current = saved::current()?;
    let entries = saved::all()?;
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    if output.is_table() {
        let columns = [
            Column::Whole(""),
            Column::Whole("NAME"),
            Column::Text("SERVER"),
            Column::Text("AGENT"),
            Column::Text("KEY"),
        ];
        let row = |(name, saved): &(Name, Saved)| {
            let mark = if Some(name) == current.as_ref() { "*" } else { "" };
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            vec![mark.to_owned(), name.to_string(), text(&saved.server), text(&saved.id), path(&saved.key)]
        };
        table::print(&columns, entries.iter().map(row));
        return Ok(());
    }
    let entry = |(name, saved): &(Name, Saved)| {
        json!({
            "name": name.to_string(), "isUsed": Some(name) == current.as_ref(), "server": saved.server,
            "ca": saved.ca, "id": saved.id, "key": saved.key, "keyId": saved.key_id, "output": saved.output,
        })
    };
    output.value(&entries.iter().map(entry).collect::<Value>())
}
