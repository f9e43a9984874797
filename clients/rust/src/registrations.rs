//! The owners of shared names: of graphs, schemas and specs.

use super::{Client, ClientError};
use crate::proto::v1::{self, Registry};

fn in_answer(registration: Option<v1::Registration>) -> Result<v1::Registration, ClientError> {
    registration.ok_or_else(|| ClientError::Answer("there is no registration in it".to_owned()))
}

impl Client {
    /// A name in a registry, with its owner. The names are listed by [`Link::list`](crate::Link::list) of a
    /// [`ListRegistrationsRequest`](v1::ListRegistrationsRequest).
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `GRAPH_UNKNOWN`, `SCHEMA_UNKNOWN` or `SPEC_UNKNOWN`.
    pub async fn get_registration(&self, registry: Registry, name: &str) -> Result<v1::Registration, ClientError> {
        let request = v1::GetRegistrationRequest { registry: registry.into(), name: name.to_owned() };
        in_answer(self.answer(self.registries().get_registration(request).await)?.registration)
    }

    /// Offers a name of this agent to another one, which takes it by the same call; the owner withdraws the offer by naming
    /// itself. An operator hands the name over at once. The change needs the `etag` with which the name was read, or an
    /// empty one for any.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with `PERMISSION_DENIED`, `AGENT_UNKNOWN` and `CONFLICT`.
    pub async fn transfer_registration(
        &self,
        registry: Registry,
        name: &str,
        to_agent_id: &str,
        etag: &str,
    ) -> Result<v1::Registration, ClientError> {
        let (registry, name) = (registry.into(), name.to_owned());
        let (to, etag) = (to_agent_id.to_owned(), etag.to_owned());
        let request = v1::TransferRegistrationRequest { registry, name, to, etag };
        in_answer(self.answer(self.registries().transfer_registration(request).await)?.registration)
    }

    /// Ends the changes and the new uses of a name for good; what uses it goes on. `etag` is as that of
    /// [`Self::transfer_registration`].
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with `PERMISSION_DENIED` and `CONFLICT`.
    pub async fn retire_registration(
        &self,
        registry: Registry,
        name: &str,
        etag: &str,
    ) -> Result<v1::Registration, ClientError> {
        let (registry, name, etag) = (registry.into(), name.to_owned(), etag.to_owned());
        let request = v1::RetireRegistrationRequest { registry, name, etag };
        in_answer(self.answer(self.registries().retire_registration(request).await)?.registration)
    }

    /// Removes a graph, a spec, or one version of a schema; `schema_version` is empty for a graph and a spec. Only the owner
    /// may register the name again. Runs and threads that use it go on. `etag` is as that of
    /// [`Self::transfer_registration`].
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with `PERMISSION_DENIED` and `CONFLICT`.
    pub async fn remove_registration(
        &self,
        registry: Registry,
        name: &str,
        schema_version: &str,
        etag: &str,
    ) -> Result<v1::Registration, ClientError> {
        let (registry, name) = (registry.into(), name.to_owned());
        let (schema_version, etag) = (schema_version.to_owned(), etag.to_owned());
        let request = v1::RemoveRegistrationRequest { registry, name, schema_version, etag };
        in_answer(self.answer(self.registries().remove_registration(request).await)?.registration)
    }
}
