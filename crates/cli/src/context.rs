//! `baton context show`, `get`, `versions`, `checkpoint` and `diff`: the contexts of tasks.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{Args, Subcommand};
use prost::Message as _;

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs, OptionalIdentityArgs},
    handoff,
    output::{self, Output},
    resolve::Prefix,
    table::Column,
};
use baton_client::{
    envelope::sections,
    proto::v1::{
        self, HistoryFilter, MessageType, context_section::Content, get_context_section_response::Content as Answer,
    },
    time::{Clock as _, SystemClock},
    {About, Client, context_of_sections},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton context versions crash-7
  baton context get crash-7 history_log --last 5")]
pub(super) enum ContextCommand {
    /// Show one version of a task's context: its author, its digest and its sections, without their contents.
    #[command(after_help = "Examples:
  baton context show crash-7
  baton context show crash-7 --version 3 -o json")]
    Show {
        /// The task's id, or a unique prefix of it.
        task: Prefix,
        /// The number of the version. 0: the latest.
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        version: u64,
        #[command(flatten)]
        reader: OptionalIdentityArgs,
    },
    Get(GetArgs),
    /// List the versions of a task's context, newest first.
    #[command(after_help = "Examples:
  baton context versions crash-7 --limit 10")]
    Versions {
        /// The task's id, or a unique prefix of it.
        task: Prefix,
        /// The most versions to list.
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        reader: OptionalIdentityArgs,
    },
    Checkpoint(CheckpointArgs),
    /// Show which sections differ between two versions, and the change of those in JSON.
    #[command(after_help = "Examples:
  baton context diff crash-7 1 2
  baton context diff crash-7 1 0 --id bob --key bob.pem")]
    Diff {
        /// The task's id, or a unique prefix of it.
        task: Prefix,
        /// The number of the earlier version.
        from: u64,
        /// The number of the later version. 0: the latest.
        to: u64,
        #[command(flatten)]
        reader: OptionalIdentityArgs,
    },
}

/// Print the content of one section, whole or a part of it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton context get crash-7 collected_data
  baton context get crash-7 history_log --last 5 --without-tool-calls
  baton context get crash-7 collected_data --pointer /log/0 --version 2
  baton context get crash-7 trace --out trace.bin")]
pub(super) struct GetArgs {
    /// The task's id, or a unique prefix of it.
    task: Prefix,
    /// The name of the section.
    section: String,
    /// The number of the version. 0: the latest.
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    version: u64,
    #[command(flatten)]
    part: PartArgs,
    /// A file to write the content to. Needed for content that is no text.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    reader: OptionalIdentityArgs,
}

/// The part of a section.
#[derive(Debug, Args)]
struct PartArgs {
    /// Only the latest entries of a history.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["summary", "pointers"])]
    last: Option<u32>,
    /// Without the tool calls of a history.
    #[arg(long, conflicts_with_all = ["summary", "pointers"])]
    without_tool_calls: bool,
    /// Only the summary of a history, and the number of its entries.
    #[arg(long, conflicts_with = "pointers")]
    summary: bool,
    /// Only the value at this JSON Pointer. May be repeated.
    #[arg(long = "pointer", value_name = "POINTER")]
    pointers: Vec<String>,
}

impl PartArgs {
    fn filter(self) -> Option<v1::ContextFilter> {
        let history = match (self.without_tool_calls, self.last, self.summary) {
            (true, _, _) => HistoryFilter::WithoutToolCalls,
            (false, Some(_), _) => HistoryFilter::Last,
            (false, None, true) => HistoryFilter::Summary,
            (false, None, false) if self.pointers.is_empty() => return None,
            (false, None, false) => HistoryFilter::Unspecified,
        };
        let last = self.last.unwrap_or(0);
        Some(v1::ContextFilter { history: history.into(), last, json_pointers: self.pointers })
    }
}

/// Store a context of a task that the agent owns, without a handoff.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton context checkpoint crash-7 --id bob --key bob.pem --epoch 2 --file context.json
  baton context checkpoint crash-7 --id bob --key bob.pem --epoch 2 --file newer.json --base context.json
  baton context checkpoint crash-7 --id bob --key bob.pem --epoch 2 --file context.json --secret credentials")]
pub(super) struct CheckpointArgs {
    /// The task's id.
    task: baton_client::ids::TaskId,
    #[command(flatten)]
    identity: IdentityArgs,
    /// The epoch at which the agent owns the task.
    #[arg(long, default_value_t = 1)]
    epoch: u64,
    #[command(flatten)]
    context: ContextArgs,
}

/// A context out of files.
#[derive(Debug, Args)]
pub(super) struct ContextArgs {
    /// A JSON file with one object. Each member becomes a section of the context.
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// The file of an earlier version. Sections go as changes to it where that is smaller.
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    /// A section that only the parties of the context may see. May be repeated.
    #[arg(long = "secret", value_name = "SECTION")]
    secrets: Vec<String>,
}

impl ContextArgs {
    /// The context that the files state.
    pub(super) fn read(&self) -> Result<v1::TaskContextTransfer, Failure> {
        of_file(&self.file, self.base.as_deref(), &self.secrets)
    }
}

/// The context of a file with one JSON object. `base`: the file of an earlier version, for changes to it. `secrets`: the
/// names of its secret sections.
pub(super) fn of_file(
    file: &Path,
    base: Option<&Path>,
    secrets: &[String],
) -> Result<v1::TaskContextTransfer, Failure> {
    let base = base.map(members).transpose()?.unwrap_or_default();
    let known: std::collections::BTreeMap<String, String> = base.into_iter().collect();
    let sections = members(file)?.into_iter().map(|(name, text)| {
        let made = known.get(&name).and_then(|base| sections::delta(base, &text));
        let smaller = made.filter(|(delta, _)| delta.merge_patch.len() < text.len());
        let content = smaller.map_or(Content::Json(text), |(delta, _)| Content::Delta(delta));
        let secret = secrets.contains(&name);
        v1::ContextSection { name, content: Some(content), secret, ..Default::default() }
    });
    let sections: Vec<v1::ContextSection> = sections.collect();
    if let Some(name) = secrets.iter().find(|name| !sections.iter().any(|section| section.name == **name)) {
        return Err(Failure::usage(format!("--secret {name} is no section of {}", file.display())));
    }
    Ok(context_of_sections(sections))
}

/// The members of a file as sections: names and canonical JSON, or the JSON of a number that has no canonical form.
fn members(path: &Path) -> Result<Vec<(String, String)>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, error))?;
    let value: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&text).map_err(|error| Failure::file(path, format!("not a JSON object: {error}")))?;
    let section = |(name, value): (String, serde_json::Value)| {
        // A section is an object or a list, so any other value is wrapped.
        let text = match value {
            serde_json::Value::Object(_) | serde_json::Value::Array(_) => value.to_string(),
            other => serde_json::json!({ "value": other }).to_string(),
        };
        let canonical = sections::parse("the section", &text).map(|value| sections::canonical(&value));
        (name, canonical.unwrap_or(text))
    };
    Ok(value.into_iter().map(section).collect())
}

/// A wish for a section: NAME, or NAME:last=5, NAME:without-tool-calls, NAME:summary.
#[derive(Debug, Clone)]
pub(super) struct Want(v1::SectionWish);

impl FromStr for Want {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, part) = text.split_once(':').map_or((text, None), |(name, part)| (name, Some(part)));
        baton_client::ids::check_name(name).map_err(|error| error.to_string())?;
        let history = |history: HistoryFilter, last| {
            Some(v1::ContextFilter { history: history.into(), last, ..Default::default() })
        };
        let filter = match part {
            None => None,
            Some("without-tool-calls") => history(HistoryFilter::WithoutToolCalls, 0),
            Some("summary") => history(HistoryFilter::Summary, 0),
            Some(other) => {
                let last = other.strip_prefix("last=").and_then(|last| last.parse().ok()).filter(|last| *last > 0);
                let last = last.ok_or("must be NAME, NAME:last=NUMBER, NAME:without-tool-calls or NAME:summary")?;
                history(HistoryFilter::Last, last)
            }
        };
        Ok(Self(v1::SectionWish { name: name.to_owned(), filter, ..Default::default() }))
    }
}

impl From<Want> for v1::SectionWish {
    fn from(want: Want) -> Self {
        want.0
    }
}

pub(super) async fn run(command: ContextCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        ContextCommand::Show { task, version, reader } => {
            let client = reader.client(connection).await?;
            let shown = version_of(&client, task.task(&client).await?.as_str(), version).await?;
            output.one(&shown, version_lines)?;
            if output.is_table() {
                for section in &shown.sections {
                    say!("  {}", section_line(section));
                }
            }
            Ok(())
        }
        ContextCommand::Get(args) => get(args, connection, output).await,
        ContextCommand::Versions { task, limit, reader } => {
            let client = reader.client(connection).await?;
            versions(&client, task.task(&client).await?.as_str(), limit, output).await
        }
        ContextCommand::Checkpoint(args) => checkpoint(args, connection, output).await,
        ContextCommand::Diff { task, from, to, reader } => {
            let client = reader.client(connection).await?;
            diff(&client, task.task(&client).await?.as_str(), from, to, output).await
        }
    }
}

async fn version_of(client: &Client, task: &str, version: u64) -> Result<v1::ContextVersion, Failure> {
    let request = v1::GetContextRequest { task_id: task.to_owned(), version };
    Ok(client.answer(client.contexts().get_context(request).await)?.version.unwrap_or_default())
}

async fn section(
    client: &Client,
    request: v1::GetContextSectionRequest,
) -> Result<v1::GetContextSectionResponse, Failure> {
    Ok(client.answer(client.contexts().get_context_section(request).await)?)
}

async fn get(args: GetArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let client = args.reader.client(connection).await?;
    let request = v1::GetContextSectionRequest {
        task_id: args.task.task(&client).await?.to_string(),
        name: args.section,
        version: args.version,
        filter: args.part.filter(),
        ..Default::default()
    };
    let answer = section(&client, request).await?;
    let bytes: &[u8] = match &answer.content {
        Some(Answer::Json(text)) => text.as_bytes(),
        Some(Answer::Bytes(bytes)) => &bytes.data,
        Some(Answer::Reference(reference)) => {
            tell!("the content is stored elsewhere, with the SHA-256 {}", hex::encode(&reference.sha256));
            return output.one(reference, |reference| vec![("uri".into(), reference.uri.clone())]);
        }
        Some(Answer::Delta(_) | Answer::NotModified(_)) | None => {
            return Err(Failure::failed("the answer has no content".to_owned()));
        }
    };
    if let Some(path) = &args.out {
        return std::fs::write(path, bytes).map_err(|error| Failure::file(path, error));
    }
    match (&answer.content, std::str::from_utf8(bytes)) {
        (Some(Answer::Json(text)), _) => output::say_json_text(text),
        (_, Ok(text)) => output::say_text(text),
        (_, Err(_)) => return Err(Failure::usage("the content is no text; name a file with --out".to_owned())),
    }
    Ok(())
}

async fn versions(client: &Client, task: &str, limit: u32, output: &Output) -> Result<(), Failure> {
    let found = output::pages(limit, async |page_size, page_token| {
        let request = v1::ListContextVersionsRequest { task_id: task.to_owned(), page_size, page_token };
        let page = client.answer(client.contexts().list_context_versions(request).await)?;
        Ok((page.versions, page.next_page_token))
    })
    .await?;
    let columns = [
        Column::Whole("VERSION"),
        Column::Whole("TIME"),
        Column::Id("AUTHOR"),
        Column::Id("RECEIVER"),
        Column::Whole("EPOCH"),
        Column::Whole("SECTIONS"),
        Column::Whole("BYTES"),
    ];
    let now = SystemClock.now();
    output.list(&columns, &found, |version| {
        vec![
            version.version.to_string(),
            output::brief(version.create_time.as_ref(), now),
            version.author_id.clone(),
            if version.receiver_id.is_empty() { "(checkpoint)".to_owned() } else { version.receiver_id.clone() },
            version.epoch.to_string(),
            version.sections.len().to_string(),
            version.sections.iter().map(|section| section.size_bytes).sum::<u64>().to_string(),
        ]
    })
}

async fn checkpoint(args: CheckpointArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let (client, composer) = handoff::as_agent(&args.identity, connection).await?;
    let payload = args.context.read()?;
    let about = About::task(args.task.as_str(), args.epoch);
    let envelope = composer.encode("", MessageType::ContextCheckpoint, &about, &payload);
    tell!("the context takes {} bytes", payload.encoded_len());
    let request = v1::CheckpointContextRequest { envelope };
    let answer = client.answer(client.contexts().checkpoint_context(request).await)?;
    output.one(&answer.version.unwrap_or_default(), version_lines)
}

async fn diff(client: &Client, task: &str, from: u64, to: u64, output: &Output) -> Result<(), Failure> {
    let (old, new) = (version_of(client, task, from).await?, version_of(client, task, to).await?);
    let mut lines = Vec::new();
    let mut found = serde_json::Map::new();
    for section in &old.sections {
        if !new.sections.iter().any(|other| other.name == section.name) {
            lines.push(format!("- {}", section_line(section)));
            found.insert(section.name.clone(), serde_json::json!({"change": "removed"}));
        }
    }
    for section in &new.sections {
        match old.sections.iter().find(|other| other.name == section.name) {
            None => {
                lines.push(format!("+ {}", section_line(section)));
                found.insert(section.name.clone(), serde_json::json!({"change": "added"}));
            }
            Some(before) if before.sha256 == section.sha256 => {}
            Some(before) => {
                let change = change_of(client, task, before, section, (old.version, new.version)).await?;
                lines.push(format!("~ {}: {} to {} bytes", section.name, before.size_bytes, section.size_bytes));
                lines.extend(change.as_ref().map(|patch| format!("    {patch}")));
                let patch = change.and_then(|patch| serde_json::from_str::<serde_json::Value>(&patch).ok());
                found.insert(section.name.clone(), serde_json::json!({"change": "changed", "merge_patch": patch}));
            }
        }
    }
    if !output.is_table() {
        return output.value(&serde_json::Value::Object(found));
    }
    if lines.is_empty() {
        say!("versions {} and {} are the same", old.version, new.version);
    }
    for line in lines {
        say!("{line}");
    }
    Ok(())
}

/// The JSON Merge Patch between two contents of a section. `None`: they are not both JSON, or no patch gives the later one.
async fn change_of(
    client: &Client,
    task: &str,
    before: &v1::SectionInfo,
    after: &v1::SectionInfo,
    (from, to): (u64, u64),
) -> Result<Option<String>, Failure> {
    const JSON: &str = "application/json";
    let is_json = |section: &v1::SectionInfo| section.media_type == JSON && section.uri.is_empty();
    // The contents of a secret section stay off the console.
    if !is_json(before) || !is_json(after) || before.secret || after.secret {
        return Ok(None);
    }
    let text = async |version| {
        let name = after.name.clone();
        let request = v1::GetContextSectionRequest { task_id: task.to_owned(), name, version, ..Default::default() };
        Ok::<_, Failure>(match section(client, request).await?.content {
            Some(Answer::Json(text)) => text,
            _ => String::new(),
        })
    };
    let (old, new) = (text(from).await?, text(to).await?);
    Ok(sections::delta(&old, &new).map(|(delta, _)| delta.merge_patch))
}

fn version_lines(version: &v1::ContextVersion) -> Vec<(std::borrow::Cow<'static, str>, String)> {
    let receiver = if version.receiver_id.is_empty() { "(checkpoint)" } else { &version.receiver_id };
    vec![
        ("task".into(), format!("{} at epoch {}", version.task_id, version.epoch)),
        ("version".into(), version.version.to_string()),
        ("author".into(), version.author_id.clone()),
        ("receiver".into(), receiver.to_owned()),
        ("handoff".into(), version.handoff_id.clone()),
        ("stored".into(), output::time(version.create_time.as_ref())),
        ("digest".into(), hex::encode(&version.context_digest)),
        ("contents".into(), if version.digests_only { "digests only".to_owned() } else { String::new() }),
    ]
}

fn section_line(section: &v1::SectionInfo) -> String {
    let origin = output::short(section.origin().as_str_name(), "SECTION_ORIGIN_").to_lowercase();
    let secret = if section.secret { ", secret" } else { "" };
    let digest = &hex::encode(&section.sha256)[..section.sha256.len().min(8) * 2];
    format!("{}: {} bytes of {}, {origin}{secret}, {digest}", section.name, section.size_bytes, section.media_type)
}
