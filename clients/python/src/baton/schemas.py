"""The JSON Schemas of contexts and of their sections."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from baton import v1
from baton.connection import Connection

_PAGE_SIZE = 200


class Schemas:
    """The calls about JSON Schemas. `Agent` has them."""

    _connection: Connection

    async def register_schema(self, schema_id: str, version: str, schema: Mapping[str, Any] | str) -> v1.Schema:
        """Registers a version of a JSON Schema of draft 2020-12, and returns it without its text.

            await alice.register_schema("ticket", "1", Ticket.model_json_schema())  # Ticket is a pydantic model

        The same text again changes nothing. Raises BatonError: SCHEMA_REJECTED for a text that is no schema within the
        bounds, SCHEMA_EXISTS if the version has another text.
        """
        registered = v1.Schema(schema_id=schema_id, schema_version=version, schema_json=_text(schema))
        request = v1.RegisterSchemaRequest(schema=registered)
        answer = await self._connection.call(self._connection.schemas.RegisterSchema, request)
        shown: v1.Schema = answer.schema
        return shown

    async def schema(self, schema_id: str, version: str) -> v1.Schema:
        """Returns one version of a schema with its text. Raises BatonError, SCHEMA_UNKNOWN."""
        request = v1.GetSchemaRequest(schema_id=schema_id, schema_version=version)
        answer = await self._connection.call(self._connection.schemas.GetSchema, request)
        schema: v1.Schema = answer.schema
        return schema

    async def schemas(self, schema_id: str = "") -> AsyncGenerator[v1.Schema, None]:
        """Yields the versions of a schema, or all schemas, the latest registration first, without their texts."""
        request = v1.ListSchemasRequest(schema_id=schema_id, page_size=_PAGE_SIZE)
        while True:
            page = await self._connection.call(self._connection.schemas.ListSchemas, request)
            for schema in page.schemas:
                yield schema
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def check_schema(self, schema_id: str, version: str, data: Any) -> Sequence[v1.SchemaViolation]:
        """Checks data against a registered schema, as the broker checks a context. Empty: the data fits.

        Returns the errors, at most 64. Raises BatonError, SCHEMA_UNKNOWN; TypeError if the data is not JSON.
        """
        request = v1.CheckSchemaRequest(schema_id=schema_id, schema_version=version, data_json=json.dumps(data))
        answer = await self._connection.call(self._connection.schemas.CheckSchema, request)
        violations: Sequence[v1.SchemaViolation] = answer.violations
        return violations


def _text(schema: Mapping[str, Any] | str) -> str:
    # Keys in order, so that the same schema is the same text.
    return schema if isinstance(schema, str) else json.dumps(schema, sort_keys=True, separators=(",", ":"))
