//! `baton profile`: the profiles of the command line, each a broker, credentials, an identity and an output format.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    Failure,
    connection::{ConnectionArgs, read_key},
    output::{Format, Output},
    saved::{self, Name, Saved},
    table::{self, Column},
};
use baton_client::{
    ids::{AgentId, KeyId},
    proto::v1,
};

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
    /// Show one profile: its values, its file, and whether it is in use.
    #[command(after_help = "Examples:
  baton profile show
  baton profile show prod-bob -o json")]
    Show {
        /// The name of the profile. Default: the one in use.
        name: Option<Name>,
    },
    /// Remove profiles. Keys, tokens and certificates stay in their files.
    #[command(
        visible_alias = "remove",
        after_help = "Examples:
  baton profile rm prod-bob"
    )]
    Rm {
        /// The names of the profiles.
        #[arg(required = true)]
        names: Vec<Name>,
    },
    /// Connect with the values of a profile, and prove each identity that it has.
    ///
    /// Flags and the environment do not count.
    #[command(
        after_help = "Exit codes: 3 if a file cannot be used, 8 if the broker does not accept an identity, 9 if no broker answers.

Examples:
  baton profile test
  baton profile test prod-bob -o json"
    )]
    Test {
        /// The name of the profile. Default: the one in use.
        name: Option<Name>,
    },
}

/// Save a broker, credentials, an identity and an output format under a name.
///
/// The broker is that of --server and --ca, the credentials are those of --token-file or of --cert and --cert-key. Paths
/// are saved as absolute paths. The file has mode 0600; private keys and tokens stay in their own files.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton profile add prod-bob --server broker.example:22866 --ca ca.pem --id bob --key bob.pem --use
  baton profile add prod-bob --server broker.example:22866 --format json --replace
  baton profile add prod-ops --server broker.example:22866 --ca ca.pem --token-file operator.token")]
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

pub(super) async fn run(command: ProfileCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        ProfileCommand::Add(args) => add(&args, connection),
        ProfileCommand::Use { name, none: _ } => saved::choose(name.as_ref()),
        ProfileCommand::List => list(*output),
        ProfileCommand::Show { name } => show(name, *output),
        ProfileCommand::Rm { names } => names.iter().try_for_each(saved::remove),
        ProfileCommand::Test { name } => test(name, *output).await,
    }
}

fn add(args: &AddArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    if let Some(key) = &args.key {
        read_key(key)?; // a mistyped path is noticed here, and not by the next command
    }
    let saved = Saved {
        id: args.id.as_ref().map(ToString::to_string),
        key: args.key.as_deref().map(absolute).transpose()?,
        key_id: args.key_id.as_ref().map(ToString::to_string),
        output: args.format.map(|format| format.name().to_owned()),
        ..connection.to_save()?
    };
    if saved == Saved::default() {
        let flags = "--server, --ca, --token-file, --cert with --cert-key, --id with --key, or --format";
        return Err(Failure::usage(format!("nothing to save: give {flags}")));
    }
    let path = saved::save(&args.name, &saved, args.replace)?;
    tell!("wrote {}", path.display());
    if args.is_used { saved::choose(Some(&args.name)) } else { Ok(()) }
}

/// The named profile, or the one in use.
fn chosen(name: Option<Name>) -> Result<Name, Failure> {
    match name {
        Some(name) => Ok(name),
        None => saved::current()?
            .ok_or_else(|| Failure::usage("no profile is in use; name one, or choose one with `baton profile use`")),
    }
}

fn show(name: Option<Name>, output: Output) -> Result<(), Failure> {
    let name = chosen(name)?;
    let saved = saved::read(&name)?;
    let is_used = saved::current()?.as_ref() == Some(&name);
    let document = document(&name, &saved, is_used);
    if !output.is_table() {
        return output.value(&document);
    }
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let lines: [(Cow<'_, str>, String); 11] = [
        ("profile".into(), name.to_string()),
        ("in use".into(), if is_used { "yes" } else { "no" }.to_owned()),
        ("server".into(), text(&saved.server)),
        ("ca".into(), path(&saved.ca)),
        ("token file".into(), path(&saved.token_file)),
        ("certificate".into(), path(&saved.cert)),
        ("its key".into(), path(&saved.cert_key)),
        ("agent".into(), text(&saved.id)),
        ("key".into(), path(&saved.key)),
        ("key id".into(), text(&saved.key_id)),
        ("output".into(), text(&saved.output)),
    ];
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        say!("{name:<14}{value}");
    }
    say!("{:<14}{}", "file", saved::path(&name)?.display());
    Ok(())
}

async fn test(name: Option<Name>, output: Output) -> Result<(), Failure> {
    let name = chosen(name)?;
    let saved = saved::read(&name)?;
    let connection = ConnectionArgs::of_profile(&name, &saved)?;
    let server = connection.options()?.server;
    let agent = connection.prove().await?;
    let has_credentials = saved.token_file.is_some() || saved.cert.is_some();
    if has_credentials || agent.is_none() {
        let client = connection.client().await?;
        // A call that needs an identity: with a token that has ended, or with none, the broker refuses it.
        let request = v1::ListHandoffsRequest { page_size: 1, ..Default::default() };
        client.answer(client.handoffs().list_handoffs(request).await)?;
    }
    let credentials = match (&saved.token_file, &saved.cert) {
        (Some(_), _) => Some("token"),
        (None, Some(_)) => Some("certificate"),
        (None, None) if agent.is_some() => None,
        (None, None) => connection.options()?.token.map(|_| "token of ./baton-data"),
    };
    if !output.is_table() {
        return output.value(&json!({
            "name": name.to_string(), "server": server, "agent": agent.map(|agent| agent.to_string()),
            "credentials": credentials,
        }));
    }
    say!("the broker at {server} answers");
    if let Some(agent) = agent {
        say!("it accepts the key of agent {agent}");
    }
    if let Some(credentials) = credentials {
        say!("it accepts the {credentials}");
    }
    Ok(())
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
    let entry = |(name, saved): &(Name, Saved)| document(name, saved, Some(name) == current.as_ref());
    output.value(&entries.iter().map(entry).collect::<Value>())
}

fn document(name: &Name, saved: &Saved, is_used: bool) -> Value {
    json!({
        "name": name.to_string(), "isUsed": is_used, "server": saved.server, "ca": saved.ca,
        "tokenFile": saved.token_file, "cert": saved.cert, "certKey": saved.cert_key, "id": saved.id,
        "key": saved.key, "keyId": saved.key_id, "output": saved.output,
    })
}
