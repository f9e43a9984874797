//! `baton workspace`: append, list, watch, topics, show.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs, OptionalIdentityArgs},
    duration, handoff, json,
    output::{self, Output},
    table::Column,
};
use baton_client::{
    ids::{IdError, WorkspaceId},
    proto::v1::{
        self, MessageType, watch_entries_response::Update, workspace_append::Entry, workspace_entry::Entry as Content,
    },
    time::{Clock as _, SystemClock},
    {About, Client},
};

/// What the address of a blob begins with.
const BLOB: &str = "baton:blob/";

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton workspace append task:crash-7 findings --id bob --key bob.pem --json '{\"cause\": \"use after free\"}'
  baton workspace list task:crash-7 --topic findings
  baton workspace watch task:crash-7 -o jsonl")]
pub(super) enum WorkspaceCommand {
    Append(Box<AppendArgs>),
    /// List entries, oldest first.
    #[command(after_help = "Examples:
  baton workspace list task:crash-7
  baton workspace list task:crash-7 --topic findings --after 12 --wait 30s -o json")]
    List {
        /// The workspace, for example task:ID.
        workspace: WorkspaceArg,
        /// List only entries of this topic. May be repeated.
        #[arg(long = "topic", value_name = "TOPIC")]
        topics: Vec<String>,
        /// List only entries with a higher number.
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        after: u64,
        /// The most entries to list.
        #[arg(long, default_value_t = 200)]
        limit: u32,
        /// The time to wait for an entry if there is none, at most 60s.
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        wait: Option<std::time::Duration>,
        #[command(flatten)]
        reader: OptionalIdentityArgs,
    },
    /// Print the entries of a workspace as they are appended, until the workspace is closed.
    #[command(after_help = "Examples:
  baton workspace watch task:crash-7
  baton workspace watch task:crash-7 --topic findings --after 12 -o jsonl | jq .entry.json")]
    Watch {
        /// The workspace, for example task:ID.
        workspace: WorkspaceArg,
        /// Print only entries of this topic. May be repeated.
        #[arg(long = "topic", value_name = "TOPIC")]
        topics: Vec<String>,
        /// Start after this number. 0 starts with the first entry.
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        after: u64,
        #[command(flatten)]
        reader: OptionalIdentityArgs,
    },
    /// List the topics of a workspace.
    #[command(after_help = "Examples:
  baton workspace topics task:crash-7")]
    Topics {
        /// The workspace, for example task:ID.
        workspace: WorkspaceArg,
        #[command(flatten)]
        reader: OptionalIdentityArgs,
    },
    /// Show one workspace: its numbers, its size and its limits, and the head of its hash chain.
    #[command(after_help = "Examples:
  baton workspace show task:crash-7")]
    Show {
        /// The workspace, for example task:ID.
        workspace: WorkspaceArg,
        #[command(flatten)]
        reader: OptionalIdentityArgs,
    },
}

/// Append an entry to a workspace. The agent must own the task, have lent it, or have accepted it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton workspace append task:crash-7 findings --id bob --key bob.pem --json '{\"cause\": \"use after free\"}'
  baton workspace append task:crash-7 trace --id bob --key bob.pem --file trace.txt --media-type text/plain
  baton workspace append task:crash-7 state --id bob --key bob.pem --json 7 --expect-last 12")]
pub(super) struct AppendArgs {
    /// The workspace, for example task:ID.
    workspace: WorkspaceArg,
    /// The topic. The broker normalises it: lower case, white space to _.
    topic: String,
    #[command(flatten)]
    identity: IdentityArgs,
    #[command(flatten)]
    entry: EntryArgs,
    /// The media type of the content of --file or --reference.
    #[arg(long, default_value = "application/octet-stream", value_name = "TYPE")]
    media_type: String,
    /// Append only if this is the number of the last entry. 0: only as the first entry.
    #[arg(long, value_name = "NUMBER")]
    expect_last: Option<u64>,
}

/// The content of an entry.
#[derive(Debug, Args)]
#[group(required = true)]
struct EntryArgs {
    /// The content as JSON: any value.
    #[arg(long, value_name = "JSON", conflicts_with_all = ["file", "reference"])]
    json: Option<String>,
    /// A file with the content.
    #[arg(long, value_name = "FILE", conflicts_with = "reference")]
    file: Option<PathBuf>,
    /// The address of content that is stored elsewhere.
    #[arg(long, value_name = "URI", requires = "sha256")]
    reference: Option<String>,
    /// The SHA-256 of that content, as hex.
    #[arg(long, value_name = "HEX", requires = "reference")]
    sha256: Option<String>,
}

/// The id of a workspace, checked.
#[derive(Debug, Clone)]
pub(super) struct WorkspaceArg(WorkspaceId);

impl std::str::FromStr for WorkspaceArg {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        WorkspaceId::parse(text).map(Self)
    }
}

pub(super) async fn run(
    command: WorkspaceCommand,
    connection: &ConnectionArgs,
    output: &Output,
) -> Result<(), Failure> {
    match command {
        WorkspaceCommand::Append(args) => append(*args, connection, output).await,
        WorkspaceCommand::List { workspace, topics, after, limit, wait, reader } => {
            let client = reader.client(connection).await?;
            let mut request = v1::ListEntriesRequest {
                workspace_id: workspace.0.to_string(),
                topics,
                after_sequence: after,
                wait: wait.and_then(|wait| prost_types::Duration::try_from(wait).ok()),
                ..Default::default()
            };
            let mut entries = Vec::new();
            while let Some(page_size) = output::page_size(limit, entries.len()) {
                request.page_size = page_size;
                let page = client.answer(client.workspaces().list_entries(request.clone()).await)?;
                if let Some(gap) = page.gap {
                    tell!("entries {} to {} have expired", gap.first_number, gap.last_number);
                }
                entries.extend(page.entries);
                (request.after_sequence, request.wait) = (page.next_after_sequence, None);
                if !page.has_more {
                    break;
                }
            }
            let columns = [
                Column::Whole("NUMBER"),
                Column::Whole("TIME"),
                Column::Id("AUTHOR"),
                Column::Text("TOPIC"),
                Column::Text("ENTRY"),
            ];
            let now = SystemClock.now();
            output.list(&columns, &entries, |entry| {
                vec![
                    entry.sequence.to_string(),
                    output::brief(entry.create_time.as_ref(), now),
                    entry.author_id.clone(),
                    entry.topic.clone(),
                    content(entry),
                ]
            })
        }
        WorkspaceCommand::Watch { workspace, topics, after, reader } => {
            let client = reader.client(connection).await?;
            let request = v1::WatchEntriesRequest {
                workspace_id: workspace.0.to_string(),
                topics,
                after_sequence: after,
                include_envelopes: false,
            };
            watch(&client, request, output).await
        }
        WorkspaceCommand::Topics { workspace, reader } => {
            let client = reader.client(connection).await?;
            let request = v1::ListTopicsRequest { workspace_id: workspace.0.to_string() };
            let topics = client.answer(client.workspaces().list_topics(request).await)?.topics;
            let columns = [
                Column::Text("TOPIC"),
                Column::Whole("ENTRIES"),
                Column::Whole("BYTES"),
                Column::Whole("LAST"),
                Column::Whole("UPDATED"),
            ];
            let now = SystemClock.now();
            output.list(&columns, &topics, |topic| {
                vec![
                    topic.name.clone(),
                    topic.entry_count.to_string(),
                    topic.size_bytes.to_string(),
                    topic.last_sequence.to_string(),
                    output::brief(topic.update_time.as_ref(), now),
                ]
            })
        }
        WorkspaceCommand::Show { workspace, reader } => {
            let client = reader.client(connection).await?;
            let request = v1::GetWorkspaceRequest { workspace_id: workspace.0.to_string() };
            let shown = client.answer(client.workspaces().get_workspace(request).await)?.workspace.unwrap_or_default();
            output.one(&shown, lines)
        }
    }
}

async fn append(args: AppendArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let (client, composer) = handoff::as_agent(&args.identity, connection).await?;
    let EntryArgs { json, file, reference, sha256 } = args.entry;
    let entry = match (json, file, reference, sha256) {
        (Some(json), ..) => Entry::Json(json),
        (None, Some(path), ..) => {
            let data = std::fs::read(&path).map_err(|error| Failure::file(&path, error))?;
            Entry::Bytes(v1::ContextBytes { media_type: args.media_type, data: data.into() })
        }
        (None, None, uri, sha256) => {
            let sha256 = hex::decode(sha256.unwrap_or_default());
            let sha256 = sha256.map_err(|error| Failure::usage(format!("--sha256 is not hex: {error}")))?;
            let uri = uri.unwrap_or_default();
            // The broker knows the size of a blob, and refuses another one.
            let size_bytes = match (uri.starts_with(BLOB), <&[u8; 32]>::try_from(sha256.as_slice())) {
                (true, Ok(digest)) => client.stat_blob(digest).await?.size_bytes,
                _ => 0,
            };
            Entry::Reference(v1::ContextReference {
                uri,
                sha256: sha256.into(),
                size_bytes,
                media_type: args.media_type,
            })
        }
    };
    let payload = v1::WorkspaceAppend {
        workspace_id: args.workspace.0.to_string(),
        topic: args.topic,
        entry: Some(entry),
        expected_last_sequence: args.expect_last,
        source_time: None,
    };
    let envelope = composer.encode("", MessageType::WorkspaceAppend, &About::default(), &payload);
    let receipt = client.send(envelope).await?;
    output.one(&receipt, |receipt| {
        vec![
            ("workspace".into(), receipt.resource.trim_start_matches("workspace:").to_owned()),
            ("number".into(), receipt.resource_sequence.to_string()),
            ("message".into(), receipt.message_id.clone()),
        ]
    })
}

async fn watch(client: &Client, request: v1::WatchEntriesRequest, output: &Output) -> Result<(), Failure> {
    let mut updates = super::watching::open(client, request).await?;
    while let Some(update) = updates.next().await? {
        match &update.update {
            Some(Update::Entry(entry)) if output.is_table() => {
                let time = output::moment(entry.create_time.as_ref());
                say!("{:>5}  {time}  {}  {}", entry.sequence, entry.author_id, entry.topic);
                say!("{:>5}  {}", "", content(entry));
            }
            Some(Update::Gap(gap)) if output.is_table() => {
                say!("{:>5}  (entries {} to {} have expired)", "", gap.first_number, gap.last_number);
            }
            Some(Update::CaughtUp(_)) if output.is_table() => {}
            Some(Update::Closed(_)) if output.is_table() => say!("{:>5}  (the workspace is closed)", ""),
            Some(_) => output.next(&json::of(&update)?)?,
            // An update of a later version of the schema.
            None => {}
        }
    }
    Ok(())
}

/// The content of an entry in one line: JSON as it is, and the size or the address of any other.
fn content(entry: &v1::WorkspaceEntry) -> String {
    match &entry.entry {
        Some(Content::Json(json)) => json.clone(),
        Some(Content::Bytes(bytes)) => format!("{} bytes of {}", bytes.data.len(), bytes.media_type),
        Some(Content::Reference(reference)) => reference.uri.clone(),
        None => String::new(),
    }
}

fn lines(workspace: &v1::Workspace) -> Vec<(std::borrow::Cow<'static, str>, String)> {
    let limit = |limit: u64| if limit == 0 { "no limit".to_owned() } else { format!("at most {limit}") };
    let entries = workspace.last_sequence + 1 - workspace.first_sequence;
    vec![
        ("workspace".into(), workspace.workspace_id.clone()),
        ("state".into(), if workspace.closed { "closed" } else { "open" }.to_owned()),
        ("last entry".into(), workspace.last_sequence.to_string()),
        ("first entry".into(), workspace.first_sequence.to_string()),
        ("entries".into(), format!("{entries}, {}", limit(workspace.entries_max))),
        ("bytes".into(), format!("{}, {}", workspace.size_bytes, limit(workspace.size_bytes_max))),
        ("topics".into(), format!("{}, {}", workspace.topic_count, limit(u64::from(workspace.topics_max)))),
        ("chain".into(), hex::encode(&workspace.chain_hash)),
    ]
}
