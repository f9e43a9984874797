//! `RegistryService`.

use tonic::{Request, Response, Status};

use super::{auth, checked, checked_with, field, page_size, read_small, refuse, refuse_shared, run_large};
use crate::{
    broker::{
        Broker,
        access::{Caller, Purpose},
        engine::{Command, NameChange},
        queries::NameFilter,
    },
    envelope::Checks,
    ids::AgentId,
    proto::v1::{self, registry_service_server::RegistryService},
    records::{RegistrationName, RegistrationRecord, Registry},
};

/// The most bytes of a name in a registry, and of a version of a schema.
const NAME_BYTES_MAX: usize = 128;
/// The most bytes of an owner in a filter: an agent's id, or `operator:` with the `sub` of a token.
const OWNER_BYTES_MAX: usize = 512;

pub(super) struct Registries {
    broker: Broker,
}

impl Registries {
    pub(super) fn new(broker: Broker) -> Self {
        Self { broker }
    }

    /// Admits a caller that changes a name. A number that is no registry is refused only then.
    fn admitted<T>(&self, request: &Request<T>, registry: i32) -> Result<Caller, Status> {
        let purpose = Registry::from_number(registry).map_or(Purpose::RegisterGraph, Purpose::of_registering);
        let caller = auth::admitted(&self.broker, request, purpose)?;
        self.broker.count_name_change(&caller).map_err(refuse)?;
        Ok(caller)
    }

    async fn change(
        &self,
        caller: Caller,
        name: RegistrationName,
        change: NameChange,
        etag: String,
    ) -> Result<Option<v1::Registration>, Status> {
        let changed = self.broker.ask(|reply| Command::ChangeName { name, change, caller, etag, reply }).await;
        Ok(Some(changed.map_err(refuse_shared)?.to_v1()))
    }
}

#[tonic::async_trait]
impl RegistryService for Registries {
    async fn get_registration(
        &self,
        request: Request<v1::GetRegistrationRequest>,
    ) -> Result<Response<v1::GetRegistrationResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadRegistrations)?;
        let v1::GetRegistrationRequest { registry, name } = request.into_inner();
        let mut checks = Checks::default();
        let name = checked_name(&mut checks, registry, name);
        let name = checked_with(checks, name)?;
        let found = read_small(&self.broker, &caller, move |view| view.registration(&name));
        let registration = Some(found.await.map_err(refuse)?.to_v1());
        Ok(Response::new(v1::GetRegistrationResponse { registration }))
    }

    async fn list_registrations(
        &self,
        request: Request<v1::ListRegistrationsRequest>,
    ) -> Result<Response<v1::ListRegistrationsResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadRegistrations)?;
        let listed = run_large(&self.broker, &caller, move |broker, caller| {
            let request = request.get_ref();
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
        });
        listed.await.map(Response::new)
    }

    async fn transfer_registration(
        &self,
        request: Request<v1::TransferRegistrationRequest>,
    ) -> Result<Response<v1::TransferRegistrationResponse>, Status> {
        let caller = self.admitted(&request, request.get_ref().registry)?;
        let v1::TransferRegistrationRequest { registry, name, to, etag } = request.into_inner();
        let mut checks = Checks::default();
        let name = checked_name(&mut checks, registry, name);
        let to = checks.id("to", &to, AgentId::parse);
        check_etag(&mut checks, &etag);
        let (name, to) = checked_with(checks, (name, to))?;
        let registration = self.change(caller, name, NameChange::Transfer(to), etag).await?;
        Ok(Response::new(v1::TransferRegistrationResponse { registration }))
    }

    async fn retire_registration(
        &self,
        request: Request<v1::RetireRegistrationRequest>,
    ) -> Result<Response<v1::RetireRegistrationResponse>, Status> {
        let caller = self.admitted(&request, request.get_ref().registry)?;
        let v1::RetireRegistrationRequest { registry, name, etag } = request.into_inner();
        let mut checks = Checks::default();
        let name = checked_name(&mut checks, registry, name);
        check_etag(&mut checks, &etag);
        let name = checked_with(checks, name)?;
        let registration = self.change(caller, name, NameChange::Retire, etag).await?;
        Ok(Response::new(v1::RetireRegistrationResponse { registration }))
    }

    async fn remove_registration(
        &self,
        request: Request<v1::RemoveRegistrationRequest>,
    ) -> Result<Response<v1::RemoveRegistrationResponse>, Status> {
        let caller = self.admitted(&request, request.get_ref().registry)?;
        let v1::RemoveRegistrationRequest { registry, name, schema_version: version, etag } = request.into_inner();
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
        let registration = self.change(caller, name, NameChange::Remove(version), etag).await?;
        Ok(Response::new(v1::RemoveRegistrationResponse { registration }))
    }
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
