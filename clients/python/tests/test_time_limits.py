"""The time limit of `hand_over`: the task moves in time, or the handoff is cancelled and the task stays."""

import asyncio
from datetime import timedelta

import grpc
import pytest
from brokers import needs_broker, within

from baton import BatonError, HandoffFailedError, Rejection, json_section, v1

pytestmark = needs_broker

TASK = "ticket-1"
REQUEST = v1.HandoffRequest(task_type="support-ticket")
SECTIONS = [json_section("goals", ["find the cause"])]
SECOND = timedelta(seconds=1)


async def begin(*agents):
    for agent in agents:
        await agent.register()
    for agent in agents:
        await agent.connect()


async def owner_of(agent):
    task = await agent.get_task(TASK)
    return task.owner_id, task.epoch, task.open_handoff_id


async def test_a_task_moves_within_the_time_limit(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            await (await offer.accept()).complete()

        await begin(alice, bob)
        handed = await within(alice.hand_over("bob", TASK, REQUEST, SECTIONS, timeout=120 * SECOND))
        assert (handed.owner_id, handed.epoch) == ("bob", 2)


async def test_the_time_limit_cancels_the_handoff_and_the_task_stays(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:
        ran = asyncio.Queue()

        @bob.on_handoff
        async def refuse(offer):
            await offer.reject(v1.REJECT_REASON_NO_SKILL, "routers only")

        @carol.on_handoff
        async def take(offer):
            ran.put_nowait(offer.task_id)

        for agent in alice, bob, carol:
            await agent.register()
        await bob.connect()
        await alice.connect()
        request = v1.HandoffRequest(task_type="support-ticket", fallback_candidates=["carol"])
        with pytest.raises(HandoffFailedError) as failed:
            await within(alice.hand_over("bob", TASK, request, SECTIONS, timeout=2 * SECOND))
        assert failed.value.reason == "HANDOFF_CANCELLED"
        assert failed.value.rejections == (Rejection("bob", v1.REJECT_REASON_NO_SKILL, "routers only"),)
        assert await owner_of(alice) == ("alice", 1, "")
        # The request of the cancelled handoff is not in the mailbox of an agent that comes later.
        await carol.connect()
        again = alice.hand_over("carol", "ticket-2", REQUEST, SECTIONS, timeout=SECOND)
        with pytest.raises(HandoffFailedError, match="HANDOFF_CANCELLED"):
            await within(again)
        assert await within(ran.get()) == "ticket-2"


async def test_a_takeover_just_before_the_limit_counts(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        cancelling = asyncio.Event()

        @bob.on_handoff
        async def take(offer):
            takeover = await offer.accept()
            await cancelling.wait()
            await takeover.complete()

        await begin(alice, bob)
        send = alice.send

        async def late(payload, **about):
            if isinstance(payload, v1.HandoffCancel):
                cancelling.set()
                while (await alice.get_task(TASK)).owner_id != "bob":
                    await asyncio.sleep(0.02)
            return await send(payload, **about)

        alice.send = late
        handed = await within(alice.hand_over("bob", TASK, REQUEST, SECTIONS, timeout=4 * SECOND))
        assert cancelling.is_set()
        assert (handed.owner_id, handed.epoch) == ("bob", 2)


async def test_a_handoff_that_cannot_be_cancelled_is_said_to_stay_open(broker, monkeypatch):
    monkeypatch.setattr("baton.handoffs._CANCEL_SECONDS", 0.5)
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await bob.register()
        await begin(alice)
        send = alice.send

        async def never(payload, **about):
            if isinstance(payload, v1.HandoffCancel):
                await asyncio.Event().wait()
            return await send(payload, **about)

        alice.send = never
        with pytest.raises(BatonError, match="could not be cancelled") as failed:
            await within(alice.hand_over("bob", TASK, REQUEST, SECTIONS, timeout=SECOND))
        assert failed.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert (await owner_of(alice))[2]


async def test_an_owned_task_passes_the_time_limit_on(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await bob.register()
        await begin(alice)
        task = await alice.create_task(TASK, "support-ticket")
        with pytest.raises(HandoffFailedError, match="HANDOFF_CANCELLED"):
            await within(task.hand_over("bob", REQUEST, SECTIONS, timeout=SECOND))
        assert await owner_of(alice) == ("alice", 1, "")
