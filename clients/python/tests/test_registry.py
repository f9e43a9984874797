"""The directory of agents: find, change, deregister, watch."""

import asyncio
import contextlib
from datetime import timedelta

import pytest
from brokers import begin, needs_broker, within

from baton import BatonError, explain, v1


def test_an_explanation_has_a_line_for_each_factor():
    found = v1.AgentMatch(agent_id="bob", rank=1, score=0.5875, presence=v1.PRESENCE_ALIVE)
    found.load.is_full = True
    found.factors.add(name="skill cover", value=1, weight=0.4, text="1 of 1 skills")
    found.factors.add(name="free capacity", value=0.75, weight=0.25, text="1 of 4 in use")
    assert explain(found).splitlines() == [
        "1. bob: 0.588, ALIVE, full",
        "   skill cover    1.00 x 0.40 = 0.400  1 of 1 skills",
        "   free capacity  0.75 x 0.25 = 0.188  1 of 4 in use",
    ]


@needs_broker
async def test_agents_are_found_best_first_with_reasons(broker):
    skills = [v1.AgentSkill(name="finance.tax.de"), v1.AgentSkill(name="writing")]
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:
        await begin(alice)
        await bob.register(agent_types=["clerk"], skills=skills[:1])
        await carol.register(agent_types=["clerk"], skills=skills)
        for agent in (bob, carol):
            await agent.connect()
        asked = {"required_skills": ["finance.tax"], "preferred_skills": ["writing"]}
        found = await alice.find_agents(**asked, agent_type="clerk")
        assert [(one.agent_id, one.rank, list(one.missing_skills)) for one in found] == [
            ("carol", 1, []),
            ("bob", 2, ["writing"]),
        ]
        assert "1 of 2 skills, without writing" in explain(found[1])
        assert [one.agent_id for one in await alice.find_agents(**asked, limit=1)] == ["carol"]
        assert await alice.find_agents(required_skills=["plumbing"]) == []
        with pytest.raises(BatonError) as refused:
            await alice.find_agents(as_sender_id="bob")
        assert refused.value.reason == "SENDER_MISMATCH"


@needs_broker
async def test_the_processes_of_an_agent_are_listed(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice, bob)
        # The first frame of a session names its process.
        while not (process := (await alice.list_processes("bob"))[0]).instance_id:
            await asyncio.sleep(0.01)
        assert (process.lists_work, list(process.task_ids), process.task_count) == (True, [], 0)
        with pytest.raises(BatonError) as refused:
            await alice.list_processes("nobody")
        assert refused.value.reason == "AGENT_UNKNOWN"


@needs_broker
async def test_agents_are_listed_by_their_ids_over_all_pages(broker, monkeypatch):
    monkeypatch.setattr("baton.registry._PAGE_SIZE", 1)
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:
        await begin(alice)
        for agent in (carol, bob):
            await agent.register(agent_types=["clerk"], skills=[v1.AgentSkill(name="finance.tax.de")])
        assert [one.card.agent_id async for one in alice.list_agents(agent_type="clerk")] == ["bob", "carol"]
        assert [one.card.agent_id async for one in alice.list_agents(skill="finance.tax")] == ["bob", "carol"]
        await bob.prove_identity()
        await bob.deregister()
        assert [one.card.agent_id async for one in alice.list_agents(agent_type="clerk")] == ["carol"]
        listed = [one.card.agent_id async for one in alice.list_agents(include_deregistered=True)]
        assert [one for one in listed if one in ("alice", "bob", "carol")] == ["alice", "bob", "carol"]
        with pytest.raises(BatonError) as refused:
            await anext(alice.list_agents(agent_type="no type"))
        assert refused.value.reason == "FIELD_INVALID"


@needs_broker
async def test_a_card_changes_by_field_and_etag(broker):
    async with broker.agent("alice", capacity=2) as alice:
        await begin(alice)
        before = await alice.get_agent("alice")
        hours = timedelta(hours=8)
        after = await alice.update_agent(
            description="taxes", metadata={"desk": "4"}, decides_within=hours, etag=before.etag
        )
        card = after.card
        assert card.decides_within.ToTimedelta() == hours
        assert (card.description, dict(card.metadata)) == ("taxes", {"desk": "4"})
        assert (card.capacity, list(card.agent_types)) == (2, ["support"]), "fields that are not named stay"
        with pytest.raises(BatonError) as refused:
            await alice.update_agent(capacity=3, etag=before.etag)
        assert refused.value.reason == "CONFLICT"
        assert (await alice.update_agent(capacity=0)).card.capacity == 0, "a zero is a value"
        with pytest.raises(BatonError) as refused:
            await alice.update_agent(decides_within=timedelta(days=8))
        assert refused.value.reason == "FIELD_INVALID"
        with pytest.raises(ValueError, match="at least one field"):
            await alice.update_agent()
        with pytest.raises(BatonError) as refused:
            await alice.update_agent("baton", description="mine")
        assert refused.value.reason in ("PERMISSION_DENIED", "AGENT_UNKNOWN")


@needs_broker
async def test_an_agent_deregisters_once_it_owns_nothing(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice, bob)
        asked = await alice.request_handoff("bob", "ticket-1", v1.HandoffRequest(task_type="support"))
        with pytest.raises(BatonError) as refused:
            await alice.deregister()
        assert refused.value.reason == "AGENT_BUSY"
        await alice.cancel(asked, "bob")
        await alice.update_status("ticket-1", 1, v1.TASK_STATUS_CANCELED)
        assert (await alice.deregister(reason="moved away")).HasField("deregister_time")
        with pytest.raises(BatonError):
            await alice.register(agent_types=["sales"])


@needs_broker
async def test_a_watch_of_agents_goes_on_after_a_kill(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice)
        changes = alice.watch_agents(agent_type="support", cards_only=True)
        async with contextlib.aclosing(changes):
            first = await within(anext(changes))
            assert first.agent.card.agent_id == "alice"
            assert (await within(anext(changes))).caught_up
            broker.kill()
            await broker.start()
            await bob.register(agent_types=["support"])
            change = await within(anext(changes))
            assert (change.agent.card.agent_id, change.cursor > first.cursor) == ("bob", True)
        await bob.prove_identity()
        await bob.update_agent(agent_types=["sales"])
        later = alice.watch_agents(after_cursor=change.cursor, agent_type="support", cards_only=True)
        async with contextlib.aclosing(later):
            assert (await within(anext(later))).left_agent_id == "bob"
        with pytest.raises(BatonError) as refused:
            await within(anext(alice.watch_agents(agent_type="no type")))
        assert refused.value.reason == "FIELD_INVALID"
