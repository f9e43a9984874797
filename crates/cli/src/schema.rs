//! `baton schema`: register, list, show and check the schemas of contexts.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    output::{self, Output},
    registration::{self, EtagArg, NameArgs, OwnersArgs, TransferArgs, VersionArgs},
    table::Column,
};
use baton_client::{
    Client,
    proto::v1::{self, Registry},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton schema register log 1.0 log.schema.json
  baton schema check log 1.0 --data log.json
  baton schema list")]
pub(super) enum SchemaCommand {
    /// Register a version of a schema. It never changes.
    #[command(after_help = "The file has a JSON Schema of draft 2020-12 without references to other documents.

Examples:
  baton schema register log 1.0 log.schema.json
  baton schema register https://example.com/log 2 log.schema.json --id alice --key alice.pem")]
    Register(RegisterArgs),
    /// List schemas, the latest registration first.
    #[command(after_help = "Examples:
  baton schema list
  baton schema list --schema log")]
    List {
        /// Only the versions of this schema.
        #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
        schema: String,
        /// The most schemas to list.
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Show one version of a schema with its text.
    #[command(after_help = "Examples:
  baton schema show log 1.0
  baton schema show log 1.0 -o json | jq -r .schemaJson")]
    Show {
        /// The id of the schema.
        schema: String,
        /// The version.
        version: String,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Check JSON data against a registered schema, or a schema in a file.
    #[command(after_help = "Exit code 1 if the data does not fit.

Examples:
  baton schema check log 1.0 --data log.json
  baton schema check --file log.schema.json
  baton schema check --file log.schema.json --data log.json")]
    Check(CheckArgs),
    /// List the owners of schemas, with those of removed names.
    #[command(after_help = "Examples:
  baton schema owners
  baton schema owners --owner alice")]
    Owners(OwnersArgs),
    /// Offer a schema to another agent, which takes it by the same command. An operator hands it over at once.
    #[command(after_help = "Examples:
  baton schema transfer log bob --id alice --key alice.pem
  baton schema transfer log bob --id bob --key bob.pem")]
    Transfer(TransferArgs),
    /// Retire a schema: no further version. Contexts are checked as before.
    #[command(after_help = "Examples:
  baton schema retire log")]
    Retire(NameArgs),
    /// Remove a version of a schema. The name stays with its owner.
    #[command(after_help = "Examples:
  baton schema remove log 1.0")]
    Remove(VersionArgs),
}

/// The arguments of `baton schema register`.
#[derive(Debug, Args)]
pub(super) struct RegisterArgs {
    /// The id of the schema: 1 to 128 printable ASCII characters without spaces.
    schema: String,
    /// The version, of the same form.
    version: String,
    /// A JSON Schema of draft 2020-12, at most 256 KiB.
    file: PathBuf,
    #[command(flatten)]
    etag: EtagArg,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// The arguments of `baton schema check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The id of a registered schema.
    #[arg(required_unless_present = "file", requires = "version")]
    schema: Option<String>,
    /// The version of the registered schema.
    version: Option<String>,
    /// A schema that need not be registered.
    #[arg(long, conflicts_with_all = ["schema", "version"])]
    file: Option<PathBuf>,
    /// The JSON data to check. Without it, only the schema is checked.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

pub(super) async fn run(command: SchemaCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        SchemaCommand::Register(args) => {
            let text = read(&args.file)?;
            let client = args.identity.client(connection).await?;
            let schema = v1::Schema {
                schema_id: args.schema,
                schema_version: args.version,
                schema_json: text,
                ..Default::default()
            };
            let request = v1::RegisterSchemaRequest { schema: Some(schema), etag: args.etag.etag };
            let answer = client.answer(client.schemas().register_schema(request).await)?;
            output.one(&answer.schema.unwrap_or_default(), lines)
        }
        SchemaCommand::Owners(args) => registration::owners(Registry::Schemas, args, connection, *output).await,
        SchemaCommand::Transfer(args) => registration::transfer(Registry::Schemas, args, connection, output).await,
        SchemaCommand::Retire(args) => registration::retire(Registry::Schemas, args, connection, output).await,
        SchemaCommand::Remove(args) => registration::remove_version(Registry::Schemas, args, connection, output).await,
        SchemaCommand::List { schema, limit, identity } => {
            list(&identity.client(connection).await?, schema, limit, *output).await
        }
        SchemaCommand::Show { schema, version, identity } => {
            let schema = identity.client(connection).await?.schema(&schema, &version).await?;
            output.one(&schema, |schema| {
                let mut lines = lines(schema);
                lines.push(("text".into(), schema.schema_json.clone()));
                lines
            })
        }
        SchemaCommand::Check(args) => check(args, connection, *output).await,
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::file(path, error))
}

async fn check(args: CheckArgs, connection: &ConnectionArgs, output: Output) -> Result<(), Failure> {
    let text = |path: &Option<PathBuf>| path.as_deref().map(read).transpose().map(Option::unwrap_or_default);
    let request = v1::CheckSchemaRequest {
        schema_json: text(&args.file)?,
        data_json: text(&args.data)?,
        schema_id: args.schema.unwrap_or_default(),
        schema_version: args.version.unwrap_or_default(),
    };
    let client = args.identity.client(connection).await?;
    let violations = client.answer(client.schemas().check_schema(request).await)?.violations;
    let columns = [Column::Whole("POINTER"), Column::Text("PROBLEM")];
    output.list(&columns, &violations, |violation| vec![violation.json_pointer.clone(), violation.problem.clone()])?;
    match violations.len() {
        0 => Ok(()),
        1 => Err(Failure::failed("the data has 1 error").named("DATA_INVALID")),
        many => Err(Failure::failed(format!("the data has {many} errors")).named("DATA_INVALID")),
    }
}

async fn list(client: &Client, schema_id: String, limit: u32, output: Output) -> Result<(), Failure> {
    let schemas = output::pages(limit, async |page_size, page_token| {
        let request = v1::ListSchemasRequest { schema_id: schema_id.clone(), page_size, page_token };
        let page = client.answer(client.schemas().list_schemas(request).await)?;
        Ok((page.schemas, page.next_page_token))
    })
    .await?;
    let columns = [Column::Id("SCHEMA"), Column::Whole("VERSION"), Column::Whole("BYTES"), Column::Text("REGISTRAR")];
    output.list(&columns, &schemas, |schema| {
        vec![
            schema.schema_id.clone(),
            schema.schema_version.clone(),
            schema.size_bytes.to_string(),
            schema.registrar.clone(),
        ]
    })
}

fn lines(schema: &v1::Schema) -> Vec<(Cow<'static, str>, String)> {
    let mut lines = vec![
        ("schema".into(), schema.schema_id.clone()),
        ("version".into(), schema.schema_version.clone()),
        ("sha256".into(), hex::encode(&schema.sha256)),
        ("bytes".into(), schema.size_bytes.to_string()),
        ("registrar".into(), schema.registrar.clone()),
    ];
    if !schema.unchecked_formats.is_empty() {
        lines.push(("formats not checked".into(), schema.unchecked_formats.join(", ")));
    }
    lines
}
