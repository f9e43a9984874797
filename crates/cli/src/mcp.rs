//! `baton mcp`: the agent as a server of the Model Context Protocol, and the configuration of a host that starts it.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::{
    Failure,
    connection::{ConnectionArgs, read_key},
    duration, signals,
};
use baton_client::{
    Identity,
    ids::{AgentId, AgentType, KeyId, MessageId},
};
use baton_faces::{Face, Fixed, acts::Set, mcp};

/// Let a host of the Model Context Protocol act as an agent: serve MCP on standard input and output.
///
/// The host starts the command, and its model gets tools to find agents, lend and give away tasks, take offered tasks,
/// ask and answer. The key stays in this process. The agent registers itself if the broker does not know it. The server
/// starts without a broker, too: its tools then say that the broker is away.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  baton mcp --id alice --key alice.pem
  baton mcp --id alice --key alice.pem --tools core,plans,mail
  baton mcp install --host claude-code --id alice --key alice.pem
  baton mcp install --host codex --write"
)]
pub(super) struct McpArgs {
    #[command(subcommand)]
    command: Option<McpCommand>,
    #[command(flatten)]
    agent: AgentArgs,
}

#[derive(Debug, Subcommand)]
enum McpCommand {
    Install(InstallArgs),
}

/// The agent that the host acts as.
#[derive(Debug, Args)]
struct AgentArgs {
    /// The id of the agent. A profile may have it (`baton profile add`).
    #[arg(id = "acting_id", long = "id", value_name = "AGENT", requires = "acting_key")]
    id: Option<AgentId>,
    /// The agent's private key, a file from `baton keygen`.
    #[arg(id = "acting_key", long = "key", value_name = "FILE", requires = "acting_id")]
    key: Option<PathBuf>,
    /// The key's name among the agent's keys (key_id).
    #[arg(id = "acting_key_id", long = "key-id", default_value = "k1", value_name = "KEY")]
    key_id: KeyId,
    /// A type to register under. May be repeated. Default: the card that the broker has.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<AgentType>,
    /// The time that the agent needs to decide about an offered handoff, 1s to 7d: how seldom the model looks into its inbox.
    /// Default: 24h where this command registers the agent, else the card that the broker has.
    #[arg(long, value_name = "TIME", value_parser = parse_decision_time)]
    decides_within: Option<Duration>,
    /// The sets of tools, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "core", value_name = "SETS")]
    tools: Vec<ToolSet>,
    /// A receiver that the person chooses: the tool transfer_to_NAME gives it a task for good, or with lend: as a loan. May be
    /// repeated.
    #[arg(long = "offer", value_name = "NAME=[lend:]RECEIVER")]
    offers: Vec<Fixed>,
    /// The run whose choices are tools (transfer_to_NODE). Default: all runs in which the agent has an active node.
    #[arg(long, value_name = "RUN")]
    run: Option<MessageId>,
}

/// A set of tools. Each costs the model room in its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ToolSet {
    /// Find agents, lend, give away, take, report, ask, answer.
    Core,
    /// Contexts, and the steps of a takeover one by one.
    Context,
    /// Plans of subtasks.
    Plans,
    /// Requests for offers, offers, awards.
    Offers,
    /// The workspaces of tasks.
    Workspace,
    /// Plain messages.
    Mail,
}

impl ToolSet {
    pub(super) const fn of_face(self) -> Set {
        match self {
            Self::Core => Set::Core,
            Self::Context => Set::Context,
            Self::Plans => Set::Plans,
            Self::Offers => Set::Offers,
            Self::Workspace => Set::Workspace,
            Self::Mail => Set::Mail,
        }
    }
}

/// Print the configuration by which a host starts `baton mcp`, or write it.
///
/// It names the broker and the files of the agent, and has no secret.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton mcp install --host claude-code --id alice --key alice.pem
  baton mcp install --host cursor --id alice --key alice.pem --write
  baton mcp install --host codex --id alice --key alice.pem >> ~/.codex/config.toml")]
struct InstallArgs {
    #[command(flatten)]
    agent: AgentArgs,
    /// The host.
    #[arg(long)]
    host: Host,
    /// Write the configuration into the host's file, beside what it has: .mcp.json in this folder for claude-code, the
    /// user's file for the others.
    #[arg(long)]
    write: bool,
    /// The name of the server in the configuration.
    #[arg(long, default_value = "baton", value_name = "NAME", value_parser = parse_name)]
    name: String,
    /// The file to write, in place of the host's own.
    #[arg(long, value_name = "FILE", requires = "write")]
    file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Host {
    ClaudeCode,
    ClaudeDesktop,
    Cursor,
    Codex,
}

/// Parses the time of a card for decisions. The bounds are those of the broker: without a connection it cannot refuse it.
fn parse_decision_time(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text)?;
    let bounds = Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 60 * 60);
    if bounds.contains(&span) { Ok(span) } else { Err("must be from 1s to 7d".to_owned()) }
}

fn parse_name(text: &str) -> Result<String, String> {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    match !text.is_empty() && text.len() <= 64 && text.chars().all(is_of_name) {
        true => Ok(text.to_owned()),
        false => Err("must have 1 to 64 of A-Z a-z 0-9 _ -".to_owned()),
    }
}

pub(super) async fn run(args: McpArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    match args.command {
        None => serve(&args.agent, connection).await,
        Some(McpCommand::Install(args)) => install(&args, connection),
    }
}

impl AgentArgs {
    fn named(&self) -> Result<(&AgentId, &Path), Failure> {
        let advice = "name the agent: --id AGENT --key FILE, or a profile with both (`baton profile add`)";
        self.id.as_ref().zip(self.key.as_deref()).ok_or_else(|| Failure::usage(advice))
    }
}

async fn serve(agent: &AgentArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    let (id, key) = agent.named()?;
    let identity = Identity { agent: id.clone(), key_id: agent.key_id.clone(), key: read_key(key)? };
    let types = agent.types.iter().map(ToString::to_string).collect();
    let face = Face::new(connection.options_of_agent()?, identity, types, agent.decides_within);
    let face = Arc::new(face.of_run(agent.run.as_ref().map(ToString::to_string)));
    let stop = signals::stop_on_signal()?;
    let sets: Vec<Set> = agent.tools.iter().map(|set| set.of_face()).collect();
    mcp::serve(face, &sets, agent.offers.clone(), env!("CARGO_PKG_VERSION"), stop).await.map_err(Failure::failed)
}

fn install(args: &InstallArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    let program = std::env::current_exe()?;
    let arguments = arguments(&args.agent, connection)?;
    let program = text_of(&program)?;
    let (name, is_toml) = (&args.name, args.host == Host::Codex);
    let entry = match is_toml {
        true => toml_entry(name, &program, &arguments),
        false => json!({"mcpServers": {name: {"command": program, "args": arguments}}}),
    };
    let shown = match is_toml {
        true => toml::to_string(&entry).map_err(|error| Failure::failed(error.to_string()))?,
        false => serde_json::to_string_pretty(&entry).map_err(|error| Failure::failed(error.to_string()))?,
    };
    if !args.write {
        say_lines!("{}", shown.trim_end());
        return Ok(());
    }
    let file = args.file.clone().map_or_else(|| args.host.file(), Ok)?;
    let present = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Failure::file(&file, error)),
    };
    let changed = match is_toml {
        true => with_toml(&present, name, &shown),
        false => with_json(&present, name, &entry),
    };
    replace(&file, &changed.map_err(|problem| Failure::file(&file, problem))?)?;
    say!("{}", file.display());
    Ok(())
}

/// The arguments by which the host starts the server. Paths are absolute: a host has a folder of its own.
fn arguments(agent: &AgentArgs, connection: &ConnectionArgs) -> Result<Vec<String>, Failure> {
    let (id, key) = agent.named()?;
    read_key(key)?;
    let options = connection.options_of_agent()?;
    let mut arguments = vec!["mcp".to_owned(), "--server".to_owned(), options.server];
    let mut file = |flag: &str, path: &Path| -> Result<(), Failure> {
        let path = std::path::absolute(path).map_err(|error| Failure::file(path, error))?;
        arguments.extend([flag.to_owned(), text_of(&path)?]);
        Ok(())
    };
    if let Some(ca) = &options.ca {
        file("--ca", ca)?;
    }
    if let Some(certificate) = &options.certificate {
        file("--cert", &certificate.certificate)?;
        file("--cert-key", &certificate.key)?;
    }
    file("--key", key)?;
    arguments.extend(["--id".to_owned(), id.to_string(), "--key-id".to_owned(), agent.key_id.to_string()]);
    for name in &agent.types {
        arguments.extend(["--type".to_owned(), name.to_string()]);
    }
    if let Some(within) = agent.decides_within {
        arguments.extend(["--decides-within".to_owned(), humantime::format_duration(within).to_string()]);
    }
    if agent.tools != [ToolSet::Core] {
        let names = agent.tools.iter().filter_map(|set| set.to_possible_value());
        let names: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
        arguments.extend(["--tools".to_owned(), names.join(",")]);
    }
    for offer in &agent.offers {
        arguments.extend(["--offer".to_owned(), offer.to_string()]);
    }
    if let Some(run) = &agent.run {
        arguments.extend(["--run".to_owned(), run.to_string()]);
    }
    Ok(arguments)
}

fn text_of(path: &Path) -> Result<String, Failure> {
    path.to_str().map(str::to_owned).ok_or_else(|| Failure::file(path, "its name is not UTF-8"))
}

impl Host {
    /// The host's file.
    fn file(self) -> Result<PathBuf, Failure> {
        let home = || {
            let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
            home.ok_or_else(|| Failure::usage("HOME is not set: name the file with --file"))
        };
        Ok(match self {
            Self::ClaudeCode => PathBuf::from(".mcp.json"),
            Self::ClaudeDesktop if cfg!(target_os = "macos") => {
                home()?.join("Library/Application Support/Claude/claude_desktop_config.json")
            }
            Self::ClaudeDesktop => home()?.join(".config/Claude/claude_desktop_config.json"),
            Self::Cursor => home()?.join(".cursor/mcp.json"),
            Self::Codex => home()?.join(".codex/config.toml"),
        })
    }
}

/// The entry of a TOML file. A wait of a tool takes up to 240 s, and the host would cut it after 60 s.
fn toml_entry(name: &str, program: &str, arguments: &[String]) -> Value {
    json!({"mcp_servers": {name: {"command": program, "args": arguments, "tool_timeout_sec": 300}}})
}

/// The text with the entry, in place of an earlier one of the same name.
fn with_json(present: &str, name: &str, entry: &Value) -> Result<String, String> {
    let mut whole: Value = match present.trim() {
        "" => json!({}),
        text => serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?,
    };
    let members = whole.as_object_mut().ok_or("it is no JSON object")?;
    let servers = members.entry("mcpServers").or_insert_with(|| json!({}));
    let servers = servers.as_object_mut().ok_or("its mcpServers is no JSON object")?;
    servers.insert(name.to_owned(), entry["mcpServers"][name].clone());
    let text = serde_json::to_string_pretty(&whole).map_err(|error| error.to_string())?;
    Ok(format!("{text}\n"))
}

/// The text with the entry behind it: comments stay. An earlier entry of the name is not touched.
fn with_toml(present: &str, name: &str, shown: &str) -> Result<String, String> {
    let parsed: toml::Table = present.parse().map_err(|error| format!("it is not TOML: {error}"))?;
    let servers = parsed.get("mcp_servers").and_then(toml::Value::as_table);
    if servers.is_some_and(|servers| servers.contains_key(name)) {
        return Err(format!("it has mcp_servers.{name} already; remove that, or choose another --name"));
    }
    let line = if present.is_empty() || present.ends_with('\n') { "" } else { "\n" };
    let changed = format!("{present}{line}\n{shown}");
    match changed.parse::<toml::Table>() {
        Ok(_) => Ok(changed),
        Err(error) => Err(format!("the entry cannot stand behind what it has: {error}")),
    }
}

/// Writes the file whole or not at all.
fn replace(file: &Path, text: &str) -> Result<(), Failure> {
    let wrong = |error: std::io::Error| Failure::file(file, error);
    // A host may have made its file a link.
    let target = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(wrong)?;
    let mut new = tempfile::NamedTempFile::new_in(folder).map_err(wrong)?;
    new.write_all(text.as_bytes()).map_err(wrong)?;
    let mode = std::fs::metadata(&target).map(|present| present.permissions());
    if let Ok(permissions) = mode {
        new.as_file().set_permissions(permissions).map_err(wrong)?;
    }
    new.as_file().sync_all().map_err(wrong)?;
    new.persist(&target).map_err(|error| wrong(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stands_beside_what_the_file_has() {
        let entry = json!({"mcpServers": {"baton": {"command": "b", "args": []}}});
        let text = with_json(r#"{"theme": 1, "mcpServers": {"other": {}, "baton": 7}}"#, "baton", &entry).unwrap();
        let whole: Value = serde_json::from_str(&text).unwrap();
        let expected = json!({"theme": 1, "mcpServers": {"other": {}, "baton": {"command": "b", "args": []}}});
        assert_eq!(whole, expected);
        assert!(with_json("", "baton", &entry).is_ok());
        assert!(with_json("{", "baton", &entry).unwrap_err().contains("not JSON"));
        assert!(with_json("[]", "baton", &entry).unwrap_err().contains("no JSON object"));
        assert!(with_json(r#"{"mcpServers": 1}"#, "baton", &entry).unwrap_err().contains("mcpServers"));

        let shown = toml::to_string(&toml_entry("baton", "b", &["mcp".to_owned()])).unwrap();
        let text = with_toml("# mine\nmodel = \"m\"\n[mcp_servers.other]\ncommand = \"o\"", "baton", &shown).unwrap();
        assert!(text.starts_with("# mine\n"), "{text}");
        let whole: toml::Table = text.parse().unwrap();
        assert_eq!(whole["mcp_servers"]["baton"]["args"][0].as_str(), Some("mcp"));
        assert_eq!(whole["mcp_servers"]["other"]["command"].as_str(), Some("o"));
        assert!(with_toml(&text, "baton", &shown).unwrap_err().contains("already"));
        assert!(with_toml("=", "baton", &shown).unwrap_err().contains("not TOML"));
    }
}
