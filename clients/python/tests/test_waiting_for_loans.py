"""The wait of a later process for a loan that an earlier one has begun."""

import asyncio
from datetime import timedelta

import pytest
from brokers import begin, needs_broker, within

from baton import BatonError, HandoffFailedError, RecallReason, TaskRecalledError, generate_key, json_section, v1

pytestmark = needs_broker

TASK = "ticket-1"
REQUEST = v1.HandoffRequest(task_type="support-ticket")
SECTIONS = [json_section("goals", ["find the cause"])]
LENT = v1.HandoffRequest(task_type="support-ticket", mode=v1.HANDOFF_MODE_DELEGATE)


async def restarted(broker, agent, key):
    """Ends a process of alice without a word, and starts the next."""
    await agent._link.close()
    await agent._connection.close()
    later = broker.agent("alice", key=key)
    await later.connect()
    return later


class Bob:
    """A worker that takes tasks over, and hands each to the test."""

    def __init__(self, agent):
        self.owned = asyncio.Queue()
        self.decide = asyncio.Event()
        self.decide.set()
        agent.on_handoff(self.take)

    async def take(self, offer):
        await self.decide.wait()
        self.owned.put_nowait(await (await offer.accept()).complete())
        await asyncio.Event().wait()


async def begun(alice):
    """Begins a loan as a process that is about to die does. Returns the call and the handoff."""
    call = asyncio.create_task(alice.delegate("bob", TASK, REQUEST, SECTIONS, take_back_on_cancel=False))
    while True:
        task = [one async for one in alice.list_handoffs(task_id=TASK)]
        if task:
            return call, task[0].handoff_id
        await asyncio.sleep(0.01)


async def left(call):
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def test_a_later_process_gets_the_result_whenever_it_comes(broker):
    key = generate_key()
    async with broker.agent("bob") as bob:
        worker, alice = Bob(bob), broker.agent("alice", key=key)
        await begin(alice, bob)
        call, handoff_id = await begun(alice)
        task = await within(worker.owned.get())
        await left(call)
        # The cancelled call has left the loan as it is.
        assert (await alice.get_task(TASK)).owner_id == "bob"
        async with await restarted(broker, alice, key) as later:
            told = []
            waiting = asyncio.create_task(later.wait_for_loan(handoff_id, on_progress=told.append))
            await task.report("half of it", progress=0.5)
            await task.finish({"cause": "a loose cable"}, "found")
            back = await within(waiting)
            assert (back.status, back.result, back.details) == (
                v1.TASK_STATUS_COMPLETED,
                {"cause": "a loose cable"},
                "found",
            )
            assert [one.details for one in told] == ["half of it", "found"]
            # The same again, from the records alone.
            again = await within(later.wait_for_loan(handoff_id))
            assert again == back
            await later.update_status(TASK, back.epoch, v1.TASK_STATUS_COMPLETED)
            assert await within(later.wait_for_loan(handoff_id)) == back


async def test_a_later_process_sends_the_context_of_an_open_handoff(broker):
    key = generate_key()
    async with broker.agent("bob") as bob:
        worker, alice = Bob(bob), broker.agent("alice", key=key)
        worker.decide.clear()
        await begin(alice, bob)
        call, handoff_id = await begun(alice)
        await left(call)
        async with await restarted(broker, alice, key) as later:
            waiting = asyncio.create_task(later.wait_for_loan(handoff_id, SECTIONS))
            worker.decide.set()
            await (await within(worker.owned.get())).finish({"n": 1})
            assert (await within(waiting)).result == {"n": 1}


async def test_a_wait_without_a_context_leaves_it_to_the_provider(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker = Bob(bob)

        @alice.context_provider
        async def provide(_wanted):
            return SECTIONS

        await begin(alice, bob)
        receipt = await alice.request_handoff("bob", TASK, LENT)
        waiting = asyncio.create_task(alice.wait_for_loan(receipt.handoff_id))
        await (await within(worker.owned.get())).finish({"n": 1})
        assert (await within(waiting)).result == {"n": 1}


async def test_a_wait_ends_as_the_loan_and_a_cancelled_wait_ends_nothing(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker = Bob(bob)
        await begin(alice, bob)
        call, handoff_id = await begun(alice)
        await within(worker.owned.get())
        with pytest.raises(BatonError) as second:
            await alice.wait_for_loan(handoff_id)
        assert second.value.reason == "HANDOFF_OPEN"
        await left(call)
        waiting = asyncio.create_task(alice.wait_for_loan(handoff_id))
        await asyncio.sleep(0)
        await left(waiting)
        assert (await alice.get_task(TASK)).owner_id == "bob"
        waiting = asyncio.create_task(alice.wait_for_loan(handoff_id))
        while not alice._dispatcher._results:
            await asyncio.sleep(0.01)
        owned = await alice.recall(handoff_id)
        with pytest.raises(TaskRecalledError) as back:
            await within(waiting)
        assert (back.value.reason, back.value.epoch) == (RecallReason.RECALL, owned.epoch)
        with pytest.raises(TaskRecalledError):
            await within(alice.wait_for_loan(handoff_id))


async def test_a_wait_for_what_is_no_loan_of_this_agent_is_refused(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:
        worker = Bob(bob)
        for agent in (alice, bob, carol):
            await agent.register(agent_types=["support"])
            await agent.connect()

        async def refused(agent, handoff_id):
            with pytest.raises(BatonError) as error:
                await within(agent.wait_for_loan(handoff_id, SECTIONS))
            return error.value.reason

        given = await alice.hand_over("bob", "given", REQUEST, SECTIONS)
        await within(worker.owned.get())
        assert await refused(alice, given.handoff_id) == "NOT_LENT"
        assert await refused(bob, given.handoff_id) == "NOT_OWNER"
        assert await refused(alice, "00000000-0000-4000-8000-000000000000") == "HANDOFF_UNKNOWN"
        # The loan has ended, and the task was lent again.
        call, handoff_id = await begun(alice)
        await (await within(worker.owned.get())).finish({"n": 1})
        first = await within(call)
        call = asyncio.create_task(alice.delegate("bob", TASK, REQUEST, SECTIONS, epoch=first.epoch))
        await (await within(worker.owned.get())).finish({"n": 2})
        await within(call)
        assert await refused(alice, handoff_id) == "NOT_LENT"


async def test_a_wait_for_a_handoff_that_fails_raises_its_end(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def refuse(offer):
            await offer.reject(v1.REJECT_REASON_OTHER, "not mine")

        await begin(alice, bob)
        with pytest.raises(HandoffFailedError):
            await within(alice.delegate("bob", TASK, REQUEST, SECTIONS, timeout=timedelta(minutes=1)))
        [handoff] = [one async for one in alice.list_handoffs(task_id=TASK)]
        with pytest.raises(HandoffFailedError) as error:
            await within(alice.wait_for_loan(handoff.handoff_id, SECTIONS))
        assert (error.value.reason, [str(one) for one in error.value.rejections]) == ("NO_CANDIDATE", ["bob: not mine"])
