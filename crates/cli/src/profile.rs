//! `baton profile`: the profiles of the command line, each a broker, an identity and an output format.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    Failure,
    connection::{ConnectionArgs, read_key},
    output::{Format, Output},
    saved::{self, Name, Saved},
    table::{self, Column},
};
use baton_client::ids::{AgentId, KeyId};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton profile add prod-bob --server broker.example:22866 --id bob --key bob.pem --use
  baton profile list
  baton inbox")]
pub(super) enum ProfileCommand {
    Add(AddArgs),
    /// Use a profile in all later commands.
    ///
    /// A flag or an environment variable takes precedence over the value that is saved. --profile and BATON_PROFILE name
    /// another one for one command.
    #[command(after_help = "Examples:
  baton profile use prod-bob
  baton profile use --none")]
    Use {
        /// The name of the profile.
        #[arg(required_unless_present = "none", conflicts_with = "none")]
        name: Option<Name>,
        /// Use no profile.
        #[arg(long)]
        none: bool,
    },
    /// List the profiles. The one in use has a *.
    #[command(after_help = "Examples:
  baton profile list
  baton profile list -o json")]
    List,
}

/// Save a broker, an identity and an output format under a name.
///
/// The broker is that of --server and --ca. Paths are saved as absolute paths. The file has mode 0600, and the private
/// key stays in its own file.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton profile add prod-bob --server broker.example:22866 --ca ca.pem --id bob --key bob.pem --use
  baton profile add prod-bob --server broker.example:22866 --format json --replace")]
pub(super) struct AddArgs {
    /// The name of the profile.
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
    /// Use the profile in all later commands.
    #[arg(long = "use")]
    is_used: bool,
    /// Replace the profile that has this name.
    #[arg(long)]
    replace: bool,
}

pub(super) fn run(command: ProfileCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        ProfileCommand::Add(args) => add(&args, connection),
        ProfileCommand::Use { name, none: _ } => saved::choose(name.as_ref()),
        ProfileCommand::List => list(*output),
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
