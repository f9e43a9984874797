//! `baton spec`: register, list and show the specs of personas and models.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    json,
    output::{self, Output},
    registration::{self, EtagArg, NameArgs, OwnersArgs, TransferArgs},
    table::Column,
};
use baton_client::{
    Client,
    ids::SpecId,
    proto::v1::{self, Registry},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton spec put --model large.json
  baton spec put writer.json
  baton spec show writer")]
pub(super) enum SpecCommand {
    /// Register the spec of a persona or a model, or a further revision of it.
    #[command(after_help = "The file has a spec as JSON, of a persona
  {\"specId\": \"writer\", \"modelId\": \"large\", \"systemPrompt\": \"You write.\",
   \"pluginIds\": [\"agent_handoff\", \"spelling\"]}
or, with --model, of a model:
  {\"modelId\": \"large\", \"provider\": \"anthropic\", \"modelName\": \"claude\"}

Examples:
  baton spec put --model large.json
  baton spec put writer.json")]
    Put(PutArgs),
    /// List the specs of personas or models, newest first.
    #[command(after_help = "Examples:
  baton spec list
  baton spec list --models")]
    List {
        /// List the specs of models.
        #[arg(long)]
        models: bool,
        /// The most specs to list.
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Show the spec of a persona.
    #[command(after_help = "Examples:
  baton spec show writer
  baton spec show writer --revision 2 -o json
  baton spec show writer --id alice --key alice.pem")]
    Show {
        /// The id of the spec.
        id: SpecId,
        /// The revision. 0: the latest.
        #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "NUMBER")]
        revision: u64,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// List the owners of specs, with those of removed names.
    #[command(after_help = "Examples:
  baton spec owners
  baton spec owners --owner alice")]
    Owners(SpecOwnersArgs),
    /// Offer a spec to another agent, which takes it by the same command. An operator hands it over at once.
    #[command(after_help = "Examples:
  baton spec transfer writer bob --id alice --key alice.pem
  baton spec transfer writer bob --id bob --key bob.pem")]
    Transfer(SpecTransferArgs),
    /// Retire a spec: no further revision, and no further thread or request with it. Threads that have it go on.
    #[command(after_help = "Examples:
  baton spec retire writer")]
    Retire(SpecNameArgs),
    /// Remove a spec. Threads that have it in force go on; the name stays with its owner.
    #[command(after_help = "Examples:
  baton spec remove writer")]
    Remove(SpecNameArgs),
}

/// A spec in a file, and the caller.
#[derive(Debug, Args)]
pub(super) struct PutArgs {
    /// A spec as JSON.
    file: PathBuf,
    /// The file has the spec of a model.
    #[arg(long)]
    model: bool,
    #[command(flatten)]
    etag: EtagArg,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// The kind of the spec that a command is about.
#[derive(Debug, Args)]
pub(super) struct KindArg {
    /// The spec is of a model.
    #[arg(long)]
    model: bool,
}

impl KindArg {
    fn registry(&self) -> Registry {
        if self.model { Registry::ModelSpecs } else { Registry::AgentSpecs }
    }
}

/// The arguments of `baton spec owners`.
#[derive(Debug, Args)]
pub(super) struct SpecOwnersArgs {
    #[command(flatten)]
    kind: KindArg,
    #[command(flatten)]
    names: OwnersArgs,
}

/// The arguments of `baton spec transfer`.
#[derive(Debug, Args)]
pub(super) struct SpecTransferArgs {
    #[command(flatten)]
    kind: KindArg,
    #[command(flatten)]
    name: TransferArgs,
}

/// The arguments of `baton spec retire` and `baton spec remove`.
#[derive(Debug, Args)]
pub(super) struct SpecNameArgs {
    #[command(flatten)]
    kind: KindArg,
    #[command(flatten)]
    name: NameArgs,
}

pub(super) async fn run(command: SpecCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        SpecCommand::Put(args) if args.model => {
            let spec = Some(read(&args.file)?);
            let client = args.identity.client(connection).await?;
            let request = v1::PutModelSpecRequest { spec, etag: args.etag.etag };
            let answer = client.answer(client.threads().put_model_spec(request).await)?;
            output.one(&answer.spec.unwrap_or_default(), model_lines)
        }
        SpecCommand::Put(args) => {
            let spec = Some(read(&args.file)?);
            let client = args.identity.client(connection).await?;
            let request = v1::PutAgentSpecRequest { spec, etag: args.etag.etag };
            let answer = client.answer(client.threads().put_agent_spec(request).await)?;
            output.one(&answer.spec.unwrap_or_default(), lines)
        }
        SpecCommand::Owners(args) => registration::owners(args.kind.registry(), args.names, connection, *output).await,
        SpecCommand::Transfer(args) => {
            registration::transfer(args.kind.registry(), args.name, connection, output).await
        }
        SpecCommand::Retire(args) => registration::retire(args.kind.registry(), args.name, connection, output).await,
        SpecCommand::Remove(args) => registration::remove(args.kind.registry(), args.name, connection, output).await,
        SpecCommand::List { models, limit, identity } => {
            let client = identity.client(connection).await?;
            if models { list_models(&client, limit, *output).await } else { list(&client, limit, *output).await }
        }
        SpecCommand::Show { id, revision, identity } => {
            let client = identity.client(connection).await?;
            let request = v1::GetAgentSpecRequest { spec_id: id.to_string(), revision };
            let answer = client.answer(client.threads().get_agent_spec(request).await)?;
            let is_hidden = answer.prompt_hidden;
            output.one(&answer.spec.unwrap_or_default(), |spec| {
                let mut lines = lines(spec);
                if is_hidden {
                    lines.pop();
                    lines.push(("prompt".into(), "hidden: needs the right readSpec".to_owned()));
                }
                lines
            })
        }
    }
}

fn read<M: prost::Message + prost::Name + Default>(path: &Path) -> Result<M, Failure> {
    let mut value = json::read_file(path)?;
    let mut texts = || {
        json::object_as_text(&mut value, "sections")?;
        json::object_as_text(&mut value, "parameters")?;
        value.get_mut("overlay").map_or(Ok(()), |overlay| json::object_as_text(overlay, "settings"))
    };
    texts().map_err(|error: Failure| Failure::file(path, error.message()))?;
    json::parse(value).map_err(|error| Failure::file(path, error.message()))
}

async fn list(client: &Client, limit: u32, output: Output) -> Result<(), Failure> {
    let specs = output::pages(limit, async |page_size, page_token| {
        let request = v1::ListAgentSpecsRequest { page_size, page_token };
        let page = client.answer(client.threads().list_agent_specs(request).await)?;
        Ok((page.specs, page.next_page_token))
    })
    .await?;
    let columns = [
        Column::Id("SPEC"),
        Column::Whole("REVISION"),
        Column::Id("MODEL"),
        Column::Text("PLUGINS"),
        Column::Text("DESCRIPTION"),
    ];
    output.list(&columns, &specs, |spec| {
        vec![
            spec.spec_id.clone(),
            spec.revision.to_string(),
            spec.model_id.clone(),
            spec.plugin_ids.join(", "),
            spec.description.clone(),
        ]
    })
}

async fn list_models(client: &Client, limit: u32, output: Output) -> Result<(), Failure> {
    let specs = output::pages(limit, async |page_size, page_token| {
        let request = v1::ListModelSpecsRequest { page_size, page_token };
        let page = client.answer(client.threads().list_model_specs(request).await)?;
        Ok((page.specs, page.next_page_token))
    })
    .await?;
    let columns = [Column::Id("MODEL"), Column::Whole("REVISION"), Column::Text("PROVIDER"), Column::Text("NAME")];
    output.list(&columns, &specs, |spec| {
        vec![spec.model_id.clone(), spec.revision.to_string(), spec.provider.clone(), spec.model_name.clone()]
    })
}

fn lines(spec: &v1::AgentSpec) -> Vec<(Cow<'static, str>, String)> {
    let allowed = spec.allowed_tools.as_ref().map_or_else(|| "all".to_owned(), |tools| tools.names.join(", "));
    vec![
        ("spec".into(), spec.spec_id.clone()),
        ("revision".into(), spec.revision.to_string()),
        ("description".into(), spec.description.clone()),
        ("model".into(), spec.model_id.clone()),
        ("tools".into(), allowed),
        ("without tools".into(), spec.excluded_tools.join(", ")),
        ("plugins".into(), spec.plugin_ids.join(", ")),
        ("hook filter".into(), spec.hook_filter.join(", ")),
        ("prompt".into(), spec.system_prompt.clone()),
    ]
}

fn model_lines(spec: &v1::ModelSpec) -> Vec<(Cow<'static, str>, String)> {
    vec![
        ("model".into(), spec.model_id.clone()),
        ("revision".into(), spec.revision.to_string()),
        ("provider".into(), spec.provider.clone()),
        ("name".into(), spec.model_name.clone()),
    ]
}
