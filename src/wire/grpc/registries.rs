//! `RegistryService`.

use tonic::Status;

use super::{call::Call, checked, checked_with, field, page_size, refuse};
use crate::{
    broker::{
        engine::{Command, NameChange},
        queries::NameFilter,
    },
    envelope::Checks,
    ids::AgentId,
    proto::v1,
    records::{RegistrationName, RegistrationRecord, Registry},
};

/// The most bytes of a name in a registry, and of a version of a schema.
const NAME_BYTES_MAX: usize = 128;
/// The most bytes of an owner in a filter: an agent's id, or `operator:` with the `sub` of a token.
const OWNER_BYTES_MAX: usize = 512;

async fn change(
    call: &Call,
    name: RegistrationName,
    change: NameChange,
    etag: String,
) -> Result<Option<v1::Registration>, Status> {
    let changed = call.ask(|caller, reply| Command::ChangeName { name, change, caller, etag, reply }).await?;
    Ok(Some(changed.to_v1()))
}

pub(super) async fn get_registration(
    call: Call,
    request: v1::GetRegistrationRequest,
) -> Result<v1::GetRegistrationResponse, Status> {
    let v1::GetRegistrationRequest { registry, name } = request;
    let mut checks = Checks::default();
    let name = checked_name(&mut checks, registry, name);
    let name = checked_with(checks, name)?;
    let found = call.read_small(move |view| view.registration(&name)).await?;
    Ok(v1::GetRegistrationResponse { registration: Some(found.to_v1()) })
}

pub(super) async fn list_registrations(
    call: Call,
    request: v1::ListRegistrationsRequest,
) -> Result<v1::ListRegistrationsResponse, Status> {
    call.run_large(move |broker, caller| {
        let mut checks = Checks::default();
        let registry = match request.registry {
            0 => None,
            number => checked_registry(&mut checks, number),
        };
        checks.text("owner_id", &request.owner_id, OWNER_BYTES_MAX);
        checked(checks)?;
        let filter = NameFilter { registry, owner: request.owner_id.clone() };
        let size = page_size(request.page_size);
        let page = broker.view(caller).registrations(&filter, size, &request.page_token).map_err(refuse)?;
        let registrations = page.entries.iter().map(RegistrationRecord::to_v1).collect();
        Ok(v1::ListRegistrationsResponse { registrations, next_page_token: page.next_token })
    })
    .await
}

pub(super) async fn transfer_registration(
    call: Call,
    request: v1::TransferRegistrationRequest,
) -> Result<v1::TransferRegistrationResponse, Status> {
    let v1::TransferRegistrationRequest { registry, name, to, etag } = request;
    let mut checks = Checks::default();
    let name = checked_name(&mut checks, registry, name);
    let to = checks.id("to", &to, AgentId::parse);
    check_etag(&mut checks, &etag);
    let (name, to) = checked_with(checks, (name, to))?;
    let registration = change(&call, name, NameChange::Transfer(to), etag).await?;
    Ok(v1::TransferRegistrationResponse { registration })
}

pub(super) async fn retire_registration(
    call: Call,
    request: v1::RetireRegistrationRequest,
) -> Result<v1::RetireRegistrationResponse, Status> {
    let v1::RetireRegistrationRequest { registry, name, etag } = request;
    let mut checks = Checks::default();
    let name = checked_name(&mut checks, registry, name);
    check_etag(&mut checks, &etag);
    let name = checked_with(checks, name)?;
    let registration = change(&call, name, NameChange::Retire, etag).await?;
    Ok(v1::RetireRegistrationResponse { registration })
}

pub(super) async fn remove_registration(
    call: Call,
    request: v1::RemoveRegistrationRequest,
) -> Result<v1::RemoveRegistrationResponse, Status> {
    let v1::RemoveRegistrationRequest { registry, name, schema_version: version, etag } = request;
    let mut checks = Checks::default();
    let name = checked_name(&mut checks, registry, name);
    check_etag(&mut checks, &etag);
    let name = checked_with(checks, name)?;
    match (name.registry == Registry::Schemas, version.is_empty()) {
        (true, true) => return Err(refuse(field("schema_version", "must be set for a schema"))),
        (false, false) => return Err(refuse(field("schema_version", "must be empty, except for a schema"))),
        (true, false) if version.len() > NAME_BYTES_MAX => {
            return Err(refuse(field("schema_version", "must have at most 128 bytes")));
        }
        (true, false) | (false, true) => {}
    }
    let registration = change(&call, name, NameChange::Remove(version), etag).await?;
    Ok(v1::RemoveRegistrationResponse { registration })
}

fn checked_registry(checks: &mut Checks, number: i32) -> Option<Registry> {
    let registry = Registry::from_number(number);
    if registry.is_none() {
        checks.wrong("registry", format!("must be a registry, not {number}"));
    }
    registry
}

fn checked_name(checks: &mut Checks, registry: i32, name: String) -> Option<RegistrationName> {
    let registry = checked_registry(checks, registry);
    let is_permitted = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(|it| it.is_ascii_graphic());
    if !is_permitted {
        checks.wrong("name", "must have 1 to 128 printable ASCII characters without spaces");
    }
    Some(RegistrationName { registry: registry?, name }).filter(|_| is_permitted)
}

/// Checks the length of an etag, which is a number.
pub(super) fn check_etag(checks: &mut Checks, etag: &str) {
    checks.text("etag", etag, 64);
}
