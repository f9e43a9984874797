//! `baton blob`: put, get, stat, list, rm.

use std::{borrow::Cow, path::PathBuf, str::FromStr};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs, OptionalIdentityArgs},
    output::{self, Output},
    table::Column,
};
use baton_client::{
    ids::{IdError, WorkspaceId},
    proto::v1,
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton blob put crash.core --for task:crash-7 --id alice --key alice.pem
  baton blob get 9f86…0a08 --out crash.core --id bob --key bob.pem")]
pub(super) enum BlobCommand {
    /// Write a file as a blob, or continue an unfinished write of it.
    #[command(after_help = "The answer has the reference for a section of a context or an entry of a workspace:
baton:blob/ and the SHA-256 in hex.

Examples:
  baton blob put crash.core --for task:crash-7 --id alice --key alice.pem
  baton blob put page.png --for task:crash-7 --media-type image/png --id alice --key alice.pem -o json")]
    Put(PutArgs),
    /// Read a blob into a file, or continue an unfinished read.
    #[command(after_help = "Unfinished bytes are in FILE.part, where the same command continues.

Examples:
  baton blob get 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 --out crash.core \\
    --id bob --key bob.pem")]
    Get {
        /// The SHA-256 of the blob in hex.
        sha256: Digest,
        /// The file to write. An existing one is replaced.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Show what the broker knows of a blob.
    #[command(after_help = "Examples:
  baton blob stat 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 --id bob --key bob.pem")]
    Stat {
        /// The SHA-256 of the blob in hex.
        sha256: Digest,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// List the blobs that a workspace holds, by digest.
    #[command(after_help = "Examples:
  baton blob list task:crash-7 --id bob --key bob.pem")]
    List {
        /// The workspace, for example task:ID.
        workspace: WorkspaceArg,
        /// The most blobs to list.
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// End the hold of a workspace. A blob is removed 24 hours after its last hold has ended.
    #[command(after_help = "Examples:
  baton blob rm 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 --for task:crash-7 \\
    --id alice --key alice.pem")]
    Rm {
        /// The SHA-256 of the blob in hex.
        sha256: Digest,
        /// The workspace whose hold ends, for example task:ID.
        #[arg(long = "for", value_name = "WORKSPACE")]
        workspace: WorkspaceArg,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
}

/// The arguments of `baton blob put`.
#[derive(Debug, Args)]
pub(super) struct PutArgs {
    /// The file to write, at most 1 GiB.
    file: PathBuf,
    /// The workspace that holds the blob, for example task:ID.
    #[arg(long = "for", value_name = "WORKSPACE")]
    workspace: WorkspaceArg,
    /// The media type.
    #[arg(long, default_value = "application/octet-stream", value_name = "TYPE")]
    media_type: String,
    #[command(flatten)]
    identity: IdentityArgs,
}

/// A SHA-256 in hex.
#[derive(Debug, Clone, Copy)]
pub(super) struct Digest([u8; 32]);

impl FromStr for Digest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut digest = [0; 32];
        // The reference of a blob is its digest after this scheme.
        let text = text.strip_prefix("baton:blob/").unwrap_or(text);
        hex::decode_to_slice(text, &mut digest).map_err(|_| "must be a SHA-256: 64 digits of hex")?;
        Ok(Self(digest))
    }
}

/// The id of a workspace.
#[derive(Debug, Clone)]
pub(super) struct WorkspaceArg(WorkspaceId);

impl FromStr for WorkspaceArg {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        WorkspaceId::parse(text).map(Self)
    }
}

pub(super) async fn run(command: BlobCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        BlobCommand::Put(args) => {
            let (client, _) = args.identity.sign_in(connection).await?;
            let bar = bar();
            let progress = |done, all| show(&bar, done, all);
            let blob = client.put_blob(&args.file, &args.media_type, &args.workspace.0, &progress).await;
            bar.finish_and_clear();
            output.one(&blob?, lines)
        }
        BlobCommand::Get { sha256, out, identity } => {
            let client = identity.client(connection).await?;
            let bar = bar();
            let progress = |done, all| show(&bar, done, all);
            let blob = client.get_blob_to(&sha256.0, &out, &progress).await;
            bar.finish_and_clear();
            output.one(&blob?, lines)
        }
        BlobCommand::Stat { sha256, identity } => {
            let client = identity.client(connection).await?;
            output.one(&client.stat_blob(&sha256.0).await?, lines)
        }
        BlobCommand::List { workspace, limit, identity } => {
            let client = identity.client(connection).await?;
            let page = async |page_size, page_token| {
                let workspace_id = workspace.0.to_string();
                let request = v1::ListBlobsRequest { workspace_id, page_size, page_token };
                let page = client.answer(client.blobs().list_blobs(request).await)?;
                Ok((page.blobs, page.next_page_token))
            };
            let blobs = output::pages(limit, page).await?;
            let columns =
                [Column::Whole("SHA256"), Column::Whole("BYTES"), Column::Id("WRITER"), Column::Text("MEDIA TYPE")];
            output.list(&columns, &blobs, |blob| {
                let size = blob.size_bytes.to_string();
                vec![hex::encode(&blob.sha256), size, blob.writer_id.clone(), blob.media_type.clone()]
            })
        }
        BlobCommand::Rm { sha256, workspace, identity } => {
            let client = identity.client(connection).await?;
            let request =
                v1::DeleteBlobRequest { sha256: sha256.0.to_vec().into(), workspace_id: workspace.0.to_string() };
            client.answer(client.blobs().delete_blob(request).await)?;
            Ok(())
        }
    }
}

/// A bar on stderr, drawn only if that is a terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
    bar
}

fn show(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all);
    bar.set_position(done);
}

fn lines(blob: &v1::Blob) -> Vec<(Cow<'static, str>, String)> {
    let sha256 = hex::encode(&blob.sha256);
    vec![
        ("reference".into(), format!("baton:blob/{sha256}")),
        ("sha256".into(), sha256),
        ("bytes".into(), blob.size_bytes.to_string()),
        ("media type".into(), blob.media_type.clone()),
        ("writer".into(), blob.writer_id.clone()),
    ]
}
