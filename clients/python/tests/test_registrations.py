"""The owners of shared names."""

import pytest
from brokers import begin, needs_broker

from baton import BatonError, v1

pytestmark = needs_broker

SCHEMAS = v1.REGISTRY_SCHEMAS


async def refusal(call):
    with pytest.raises(BatonError) as refused:
        await call
    return refused.value.reason


async def test_a_name_is_handed_over_retired_and_removed(broker, monkeypatch):
    monkeypatch.setattr("baton.registrations._PAGE_SIZE", 1)
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice, bob)
        for version in ("1", "2"):
            await alice.register_schema("py.name", version, {"maxLength": int(version)})
        await alice.register_schema("py.other", "1", "true")
        first = await alice.registration(SCHEMAS, "py.name")
        assert (first.owner_id, first.entries, first.state) == ("alice", 2, v1.REGISTRATION_STATE_ACTIVE)
        names = [one.name async for one in bob.registrations(SCHEMAS, owner_id="alice")]
        assert sorted(names) == ["py.name", "py.other"]
        assert [one async for one in bob.registrations(v1.REGISTRY_GRAPHS)] == []

        # Another agent cannot take a name that it was not offered.
        assert await refusal(bob.transfer_registration(SCHEMAS, "py.name", "bob")) == "PERMISSION_DENIED"
        offered = await alice.transfer_registration(SCHEMAS, "py.name", "bob", etag=first.etag)
        assert (offered.owner_id, offered.offered_to_id) == ("alice", "bob")
        stale = alice.transfer_registration(SCHEMAS, "py.name", "alice", etag=first.etag)
        assert await refusal(stale) == "CONFLICT"
        taken = await bob.transfer_registration(SCHEMAS, "py.name", "bob")
        assert (taken.owner_id, taken.offered_to_id) == ("bob", "")

        assert await refusal(alice.retire_registration(SCHEMAS, "py.name")) == "PERMISSION_DENIED"
        retired = await bob.retire_registration(SCHEMAS, "py.name")
        assert retired.state == v1.REGISTRATION_STATE_RETIRED
        left = await bob.remove_registration(SCHEMAS, "py.name", schema_version="1", etag=retired.etag)
        assert (left.entries, left.state) == (1, v1.REGISTRATION_STATE_RETIRED)
        gone = await bob.remove_registration(SCHEMAS, "py.name", schema_version="2")
        assert (gone.entries, gone.state) == (0, v1.REGISTRATION_STATE_REMOVED)
        assert await refusal(alice.registration(SCHEMAS, "py.unknown")) == "SCHEMA_UNKNOWN"
