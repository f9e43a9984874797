"""JSON Schemas of contexts, also from pydantic."""

import json

import pytest
from brokers import begin, needs_broker

from baton import BatonError, json_section, v1

TICKET = {"type": "object", "properties": {"router": {"type": "integer"}}, "required": ["router"]}


@needs_broker
async def test_a_schema_is_registered_once_shown_listed_and_checked(broker):
    async with broker.agent("alice") as alice:
        await begin(alice)
        first = await alice.register_schema("py.ticket", "1", TICKET)
        assert (first.schema_version, first.schema_json) == ("1", "")
        again = await alice.register_schema("py.ticket", "1", dict(reversed(TICKET.items())))
        assert again == first
        for version, schema, reason in [("1", "true", "SCHEMA_EXISTS"), ("2", {"type": 7}, "SCHEMA_REJECTED")]:
            with pytest.raises(BatonError) as refused:
                await alice.register_schema("py.ticket", version, schema)
            assert refused.value.reason == reason
        await alice.register_schema("py.ticket", "2", "true")
        assert json.loads((await alice.schema("py.ticket", "1")).schema_json) == TICKET
        assert [schema.schema_version async for schema in alice.schemas("py.ticket")] == ["2", "1"]
        assert "py.ticket" in {schema.schema_id async for schema in alice.schemas()}
        [wrong] = await alice.check_schema("py.ticket", "1", {"router": "three"})
        assert wrong.json_pointer == "/router"
        assert not await alice.check_schema("py.ticket", "1", {"router": 3})
        with pytest.raises(BatonError) as unknown:
            await alice.schema("py.ticket", "3")
        assert unknown.value.reason == "SCHEMA_UNKNOWN"


@needs_broker
async def test_formats_recursion_and_missing_members_are_checked(broker):
    schema = {
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {
                    "at": {"type": "string", "format": "date-time"},
                    "phone": {"type": "string", "format": "phone"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                },
                "required": ["at"],
            }
        },
        "$ref": "#/$defs/Node",
    }
    async with broker.agent("alice") as alice:
        await begin(alice)
        registered = await alice.register_schema("py.tree", "1", schema)
        assert list(registered.unchecked_formats) == ["phone"]
        assert list((await alice.schema("py.tree", "1")).unchecked_formats) == ["phone"]
        right = {"at": "2026-11-26T12:00:00Z", "phone": "?", "children": [{"at": "2026-11-26T12:00:00+01:00"}]}
        assert not await alice.check_schema("py.tree", "1", right)
        wrong = {"at": "tomorrow", "children": [{"children": []}]}
        found = await alice.check_schema("py.tree", "1", wrong)
        assert {one.json_pointer for one in found} == {"/at", "/children/0/at"}


@needs_broker
async def test_a_context_is_checked_by_the_schema_of_a_pydantic_model(broker):
    pydantic = pytest.importorskip("pydantic")

    class Router(pydantic.BaseModel):
        name: str

    class Ticket(pydantic.BaseModel):
        routers: list[Router]
        severity: int = pydantic.Field(ge=1, le=5)

    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice)
        await bob.register()
        await alice.register_schema("py.model", "1", Ticket.model_json_schema())
        receipt = await alice.request_handoff("bob", "ticket-8", v1.HandoffRequest(task_type="x"))
        await alice.cancel(receipt, "bob")
        [task] = await alice.owned_tasks()
        section = json_section("ticket", Ticket(routers=[Router(name="a")], severity=2).model_dump())
        section.schema_id, section.schema_version = "py.model", "1"
        await task.checkpoint([section])
        section.json = '{"routers":[{"name":7}],"severity":2}'
        with pytest.raises(BatonError) as refused:
            await task.checkpoint([section])
        assert refused.value.reason == "CONTEXT_SCHEMA_VIOLATION"
        assert "/routers/0/name" in str(refused.value)
