"""The owners of shared names: of graphs, schemas and specs."""

from collections.abc import AsyncGenerator
from typing import Any

from google.protobuf.message import Message

from baton import v1
from baton.connection import Connection

_PAGE_SIZE = 200


class Registrations:
    """The calls about the names in the registries. `Agent` has them.

    `registry` is REGISTRY_GRAPHS, REGISTRY_SCHEMAS, REGISTRY_AGENT_SPECS or REGISTRY_MODEL_SPECS. With `etag` a change
    fails with CONFLICT if the name has changed since it was read with this etag.
    """

    _connection: Connection

    async def registration(self, registry: v1.Registry, name: str) -> v1.Registration:
        """Returns a name with its owner. Raises BatonError: GRAPH_UNKNOWN, SCHEMA_UNKNOWN or SPEC_UNKNOWN."""
        request = v1.GetRegistrationRequest(registry=registry, name=name)
        return await self._registered(self._connection.registries.GetRegistration, request)

    async def registrations(
        self, registry: v1.Registry = v1.REGISTRY_UNSPECIFIED, *, owner_id: str = ""
    ) -> AsyncGenerator[v1.Registration, None]:
        """Yields the names of a registry, or of all, the newest first, with the removed ones. Raises BatonError.

        `owner_id` is an agent's id, or `operator:NAME`; only its names are listed.
        """
        request = v1.ListRegistrationsRequest(page_size=_PAGE_SIZE, registry=registry, owner_id=owner_id)
        while True:
            page = await self._connection.call(self._connection.registries.ListRegistrations, request)
            for registration in page.registrations:
                yield registration
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def transfer_registration(
        self, registry: v1.Registry, name: str, to_agent_id: str, *, etag: str = ""
    ) -> v1.Registration:
        """Offers a name of this agent to another one, which takes it by the same call.

        The owner withdraws the offer by naming itself. An operator hands the name over at once. Raises BatonError, for
        example PERMISSION_DENIED, AGENT_UNKNOWN, CONFLICT.
        """
        request = v1.TransferRegistrationRequest(registry=registry, name=name, to=to_agent_id, etag=etag)
        return await self._registered(self._connection.registries.TransferRegistration, request)

    async def retire_registration(self, registry: v1.Registry, name: str, *, etag: str = "") -> v1.Registration:
        """Ends the changes and the new uses of a name for good; what uses it goes on. Raises BatonError."""
        request = v1.RetireRegistrationRequest(registry=registry, name=name, etag=etag)
        return await self._registered(self._connection.registries.RetireRegistration, request)

    async def remove_registration(
        self, registry: v1.Registry, name: str, *, schema_version: str = "", etag: str = ""
    ) -> v1.Registration:
        """Removes a graph, a spec, or the version `schema_version` of a schema. Raises BatonError.

        Only the owner may register the name again. Runs and threads that use it go on.
        """
        request = v1.RemoveRegistrationRequest(registry=registry, name=name, schema_version=schema_version, etag=etag)
        return await self._registered(self._connection.registries.RemoveRegistration, request)

    async def _registered(self, method: Any, request: Message) -> v1.Registration:
        registration: v1.Registration = (await self._connection.call(method, request)).registration
        return registration
