//! The owners of names, for `baton graph`, `baton schema` and `baton spec`: show, hand over, retire, remove.

use std::borrow::Cow;

use clap::Args;

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    output::{self, Output},
    table::Column,
};
use baton_client::{
    ids::AgentId,
    proto::v1::{self, Registry},
};

/// The arguments of `owners`.
#[derive(Debug, Args)]
pub(super) struct OwnersArgs {
    /// Only names of this owner: an agent's id, or operator:NAME.
    #[arg(long, value_name = "OWNER", default_value = "", hide_default_value = true)]
    owner: String,
    /// The most names to list.
    #[arg(long, default_value_t = 50)]
    limit: u32,
}

/// The arguments of `transfer`.
#[derive(Debug, Args)]
pub(super) struct TransferArgs {
    /// The name.
    name: String,
    /// The agent that gets it.
    to: AgentId,
    #[command(flatten)]
    etag: EtagArg,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// The arguments of `retire` and of `remove`.
#[derive(Debug, Args)]
pub(super) struct NameArgs {
    /// The name.
    name: String,
    #[command(flatten)]
    etag: EtagArg,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// The arguments of `baton schema remove`.
#[derive(Debug, Args)]
pub(super) struct VersionArgs {
    /// The id of the schema.
    name: String,
    /// The version. The removal of the last one removes the name.
    version: String,
    #[command(flatten)]
    etag: EtagArg,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// The etag of a name.
#[derive(Debug, Args)]
pub(super) struct EtagArg {
    /// Make the change only if the name still has this etag. Default: any.
    #[arg(long, value_name = "ETAG", default_value = "", hide_default_value = true)]
    pub(super) etag: String,
}

/// Lists the names of a registry with their owners.
pub(super) async fn owners(
    registry: Registry,
    args: OwnersArgs,
    connection: &ConnectionArgs,
    output: Output,
) -> Result<(), Failure> {
    let client = connection.client().await?;
    let names = output::pages(args.limit, async |page_size, page_token| {
        let (registry, owner_id) = (registry.into(), args.owner.clone());
        let request = v1::ListRegistrationsRequest { page_size, page_token, registry, owner_id };
        let page = client.answer(client.registries().list_registrations(request).await)?;
        Ok((page.registrations, page.next_page_token))
    })
    .await?;
    let columns = [
        Column::Id("NAME"),
        Column::Id("OWNER"),
        Column::Whole("STATE"),
        Column::Whole("ENTRIES"),
        Column::Id("OFFERED TO"),
        Column::Whole("ETAG"),
    ];
    output.list(&columns, &names, |name| {
        vec![
            name.name.clone(),
            name.owner_id.clone(),
            state(name),
            name.entries.to_string(),
            name.offered_to_id.clone(),
            name.etag.clone(),
        ]
    })
}

/// Hands a name over.
pub(super) async fn transfer(
    registry: Registry,
    args: TransferArgs,
    connection: &ConnectionArgs,
    output: &Output,
) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    let (registry, to) = (registry.into(), args.to.to_string());
    let request = v1::TransferRegistrationRequest { registry, name: args.name, to, etag: args.etag.etag };
    let answer = client.answer(client.registries().transfer_registration(request).await)?;
    output.one(&answer.registration.unwrap_or_default(), lines)
}

/// Retires a name.
pub(super) async fn retire(
    registry: Registry,
    args: NameArgs,
    connection: &ConnectionArgs,
    output: &Output,
) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    let request = v1::RetireRegistrationRequest { registry: registry.into(), name: args.name, etag: args.etag.etag };
    let answer = client.answer(client.registries().retire_registration(request).await)?;
    output.one(&answer.registration.unwrap_or_default(), lines)
}

/// Removes a graph or a spec.
pub(super) async fn remove(
    registry: Registry,
    args: NameArgs,
    connection: &ConnectionArgs,
    output: &Output,
) -> Result<(), Failure> {
    let NameArgs { name, etag, identity } = args;
    remove_version(registry, VersionArgs { name, version: String::new(), etag, identity }, connection, output).await
}

/// Removes a version of a schema.
pub(super) async fn remove_version(
    registry: Registry,
    args: VersionArgs,
    connection: &ConnectionArgs,
    output: &Output,
) -> Result<(), Failure> {
    let client = args.identity.client(connection).await?;
    let (registry, etag) = (registry.into(), args.etag.etag);
    let request = v1::RemoveRegistrationRequest { registry, name: args.name, schema_version: args.version, etag };
    let answer = client.answer(client.registries().remove_registration(request).await)?;
    output.one(&answer.registration.unwrap_or_default(), lines)
}

fn state(name: &v1::Registration) -> String {
    output::short(name.state().as_str_name(), "REGISTRATION_STATE_")
}

fn lines(name: &v1::Registration) -> Vec<(Cow<'static, str>, String)> {
    let mut lines = vec![
        ("name".into(), name.name.clone()),
        ("owner".into(), name.owner_id.clone()),
        ("state".into(), state(name)),
        ("entries".into(), name.entries.to_string()),
        ("etag".into(), name.etag.clone()),
    ];
    if !name.offered_to_id.is_empty() {
        lines.push(("offered to".into(), name.offered_to_id.clone()));
    }
    lines
}
