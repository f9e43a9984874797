"""Lent tasks that come back: by a result, a recall, the loan timeout, or the end of the delegating call."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import grpc
import pytest
from brokers import PATIENCE_SECONDS, begin, needs_broker, within

import baton.handoffs
from baton import (
    BatonError,
    Delivery,
    HandedOver,
    HandoffFailedError,
    RecallReason,
    Rejection,
    TaskRecalledError,
    json_section,
    make_envelope,
    v1,
)
from baton.conversation import Conversation
from baton.loans import outcome

pytestmark = needs_broker

TASK = "ticket-1"
REQUEST = v1.HandoffRequest(task_type="support-ticket")
SECTIONS = [json_section("goals", ["find the cause"])]
SECOND = timedelta(seconds=1)


class Worker:
    """A delegate that takes the task over, and then works without end."""

    def __init__(self, agent):
        self.owned = asyncio.Queue()
        self.stopped = asyncio.Event()
        self.recalled = asyncio.Queue()
        agent.on_handoff(self.take)
        agent.on_recalled(self.told)

    async def take(self, offer):
        self.owned.put_nowait(await (await offer.accept()).complete())
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()

    async def told(self, recalled):
        self.recalled.put_nowait(recalled)

    async def is_stopped(self, epoch):
        recalled = await within(self.recalled.get())
        assert (recalled.task_id, recalled.epoch) == (TASK, epoch)
        await within(self.stopped.wait())
        return recalled


async def is_owned(agent, epoch):
    task = await agent.get_task(TASK)
    assert (task.owner_id, task.epoch, task.open_handoff_id) == (agent.agent_id, epoch, "")
    assert task.status not in (v1.TASK_STATUS_COMPLETED, v1.TASK_STATUS_FAILED, v1.TASK_STATUS_CANCELED)


async def test_the_loan_timeout_brings_the_task_back(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker = Worker(bob)
        await begin(alice, bob)
        with pytest.raises(TaskRecalledError) as back:
            await within(alice.delegate("bob", TASK, REQUEST, SECTIONS, loan_timeout=SECOND))
        assert (back.value.reason, back.value.is_owner, back.value.epoch) == (RecallReason.LOAN_TIMEOUT, True, 3)
        assert (await worker.is_stopped(3)).handoff_id == back.value.handoff_id
        await is_owned(alice, 3)
        with pytest.raises(BatonError, match="STALE_EPOCH"):
            await (await within(worker.owned.get())).finish()


async def test_the_time_limit_of_the_call_recalls_the_task(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker = Worker(bob)
        await begin(alice, bob)
        with pytest.raises(TaskRecalledError) as back:
            await within(alice.delegate("bob", TASK, REQUEST, SECTIONS, timeout=8 * SECOND))
        assert (back.value.reason, back.value.is_owner, back.value.epoch) == (RecallReason.DEADLINE, True, 3)
        await worker.is_stopped(3)
        await is_owned(alice, 3)


async def test_a_time_limit_that_the_loan_timeout_outruns_is_the_reason(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker = Worker(bob)
        await begin(alice, bob)
        send = alice.send

        async def late(payload, **about):
            if isinstance(payload, v1.TaskRecall):
                while (await alice.get_task(TASK)).loans:
                    await asyncio.sleep(0.02)
            return await send(payload, **about)

        alice.send = late
        with pytest.raises(TaskRecalledError) as back:
            await within(alice.delegate("bob", TASK, REQUEST, SECTIONS, timeout=4 * SECOND))
        assert (back.value.reason, back.value.is_owner, back.value.epoch) == (RecallReason.DEADLINE, True, 3)
        await worker.is_stopped(3)
        await is_owned(alice, 3)


async def test_the_time_limit_of_the_call_cancels_an_open_handoff(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await alice.register()
        await bob.register()
        await alice.connect()
        with pytest.raises(HandoffFailedError) as failed:
            await within(alice.delegate("bob", TASK, REQUEST, SECTIONS, timeout=SECOND))
        assert failed.value.reason == "HANDOFF_CANCELLED"
        await is_owned(alice, 1)


async def test_a_cancelled_call_recalls_the_task(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker = Worker(bob)
        await begin(alice, bob)
        lending = asyncio.create_task(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        await within(worker.owned.get())
        lending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(lending)
        await is_owned(alice, 3)
        await worker.is_stopped(3)


async def test_a_cancelled_call_cancels_an_open_handoff(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await alice.register()
        await bob.register()
        await alice.connect()
        lending = asyncio.create_task(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await alice.owned_tasks():
                await asyncio.sleep(0.02)
        lending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(lending)
        await is_owned(alice, 1)


async def test_a_call_that_is_cancelled_at_its_time_limit_takes_back_all_the_same(broker, monkeypatch):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await alice.register()
        await bob.register()
        await alice.connect()
        looking, get_handoff = asyncio.Event(), alice.get_handoff

        async def first_look(_):
            monkeypatch.setattr(alice, "get_handoff", get_handoff)
            looking.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(alice, "get_handoff", first_look)
        lending = asyncio.create_task(alice.delegate("bob", TASK, REQUEST, SECTIONS, timeout=SECOND))
        await within(looking.wait())
        lending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(lending)
        await is_owned(alice, 1)


async def test_a_recall_ends_the_call_and_a_second_one_is_refused(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker = Worker(bob)
        await begin(alice, bob)
        lending = asyncio.create_task(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        await within(worker.owned.get())
        [loan] = (await alice.get_task(TASK)).loans
        with pytest.raises(BatonError, match="NOT_OWNER"):
            await bob.recall(loan.handoff_id)
        task = await within(alice.recall(loan.handoff_id, "done by phone"))
        assert task.epoch == 3
        with pytest.raises(TaskRecalledError) as back:
            await within(lending)
        assert (back.value.reason, back.value.is_owner, back.value.epoch) == (RecallReason.RECALL, True, 3)
        await worker.is_stopped(3)
        with pytest.raises(BatonError) as refused:
            await alice.recall(loan.handoff_id)
        assert refused.value.reason == "NOT_LENT"
        await task.finish()


async def test_an_outer_recall_ends_the_inner_loan(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:
        inner, told = asyncio.Queue(), asyncio.Queue()
        owned = asyncio.Queue()
        worker = Worker(carol)

        @bob.on_handoff
        async def take(offer):
            owned.put_nowait(await (await offer.accept()).complete())

        @bob.on_recalled
        async def read(recalled):
            told.put_nowait(recalled)

        await begin(alice, bob, carol)
        lending = asyncio.create_task(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        task = await within(owned.get())
        inner = asyncio.create_task(task.delegate("carol", REQUEST, SECTIONS))
        await within(worker.owned.get())
        [outer, _] = (await alice.get_task(TASK)).loans
        await within(alice.recall(outer.handoff_id))
        with pytest.raises(TaskRecalledError) as lost:
            await within(inner)
        assert (lost.value.reason, lost.value.is_owner, lost.value.epoch) == (RecallReason.RECALL, False, 4)
        assert (await within(told.get())).epoch == 4
        assert (await worker.is_stopped(4)).handoff_id == outer.handoff_id
        with pytest.raises(TaskRecalledError):
            await within(lending)
        await is_owned(alice, 4)


async def test_a_recall_by_another_process_of_the_delegator_ends_the_call(broker, monkeypatch):
    monkeypatch.setattr(baton.handoffs, "LOOK_SECONDS", 0.2)
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker = Worker(bob)
        await begin(alice, bob)
        lending = asyncio.create_task(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        await within(worker.owned.get())
        [loan] = (await alice.get_task(TASK)).loans
        async with broker.agent("alice", key=alice._key) as other:
            await other.connect()
            await within(other.recall(loan.handoff_id))
            with pytest.raises(TaskRecalledError) as back:
                await within(lending)
        assert (back.value.reason, back.value.is_owner, back.value.epoch) == (RecallReason.RECALL, True, 3)


async def test_without_a_time_limit_the_loan_has_the_default_timeout(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker = Worker(bob)
        await begin(alice, bob)
        lending = asyncio.create_task(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        task = await within(worker.owned.get())
        [loan] = (await alice.get_task(TASK)).loans
        left = loan.due_time.ToDatetime(tzinfo=UTC) - datetime.now(UTC)
        assert timedelta(minutes=50) < left <= timedelta(hours=1, seconds=1)
        await bob.update_status(TASK, task.epoch, v1.TASK_STATUS_FAILED, "no such router")
        outcome = await within(lending)
        assert (outcome.epoch, outcome.status, outcome.details) == (3, v1.TASK_STATUS_FAILED, "no such router")


async def test_the_end_of_a_further_loan_is_not_the_end_of_this_one(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:

        @bob.on_handoff
        async def lend_on(offer):
            task = await (await offer.accept()).complete()
            outcome = await task.delegate("carol", REQUEST, SECTIONS)
            await bob.update_status(TASK, outcome.epoch, v1.TASK_STATUS_COMPLETED, result={"by": "bob"})

        @carol.on_handoff
        async def finish(offer):
            task = await (await offer.accept()).complete()
            await task.finish({"by": "carol"}, receiver_id="alice")

        await begin(alice, bob, carol)
        outcome = await within(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        assert (outcome.epoch, outcome.result) == (5, {"by": "bob"})


async def test_a_status_that_the_call_cannot_judge_goes_to_the_handler(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:
        told = asyncio.Queue()

        @alice.on(v1.TaskStatusUpdate)
        async def read(delivery):
            told.put_nowait(delivery.payload)

        @bob.on_handoff
        async def lend_on(offer):
            task = await (await offer.accept()).complete()
            await task.delegate("carol", REQUEST, SECTIONS)

        @carol.on_handoff
        async def finish(offer):
            task = await (await offer.accept()).complete()
            await task.finish({"by": "carol"}, receiver_id="alice")

        async def fail(_task_id):
            raise BatonError(grpc.StatusCode.UNAVAILABLE, "the connection is lost")

        await begin(alice, bob, carol)
        alice.get_task = fail
        with pytest.raises(BatonError, match="the connection is lost"):
            await within(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        assert (await within(told.get())).result_json == '{"by":"carol"}'


@pytest.mark.parametrize("stalls", ["get_task", "acknowledge"])
async def test_a_time_limit_does_not_lose_the_status_that_has_come(stalls):
    calls = []

    async def stall_once(call, answer):
        calls.append(call)
        if call == stalls and calls.count(call) == 1:
            await asyncio.Event().wait()
        return answer

    agent = SimpleNamespace(
        agent_id="alice",
        get_task=lambda _: stall_once("get_task", v1.Task(owner_id="alice", epoch=5)),
        acknowledge=lambda _: stall_once("acknowledge", v1.Acknowledged()),
        handled=lambda _: None,
        acked=lambda _: None,
        settled=lambda _: None,
    )
    update = v1.TaskStatusUpdate(status=v1.TASK_STATUS_COMPLETED, details="done")
    envelope = make_envelope(update, sender_id="bob", receiver_id="alice", task_id=TASK, epoch=4)
    results = Conversation(TASK, 2)
    results.put(Delivery(v1.Delivery(delivery_id="1", envelope=envelope), update, agent))
    lent = HandedOver("handoff", TASK, "bob", 2, ())
    waiting = asyncio.create_task(outcome(agent, results, lent))
    while stalls not in calls:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    found = await within(outcome(agent, results, lent))
    assert (found.epoch, found.details) == (5, "done")


async def test_a_loan_that_is_rejected_is_a_failed_handoff(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def refuse(offer):
            await offer.reject(v1.REJECT_REASON_NO_SKILL, "routers only")

        await begin(alice, bob)
        with pytest.raises(HandoffFailedError) as failed:
            await within(alice.delegate("bob", TASK, REQUEST, SECTIONS, timeout=60 * SECOND))
        rejected = Rejection("bob", v1.REJECT_REASON_NO_SKILL, "routers only")
        assert (failed.value.reason, failed.value.rejections) == ("NO_CANDIDATE", (rejected,))


async def test_the_sender_sees_its_views_from_the_first_on(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            await (await offer.accept()).complete()

        await begin(alice, bob)
        views = []
        await within(alice.hand_over("bob", TASK, REQUEST, SECTIONS, on_view=views.append))
        names = [v1.SenderView.Name(view).removeprefix("SENDER_VIEW_") for view in views]
        assert names == [
            "IDLE",
            "HANDOFF_INITIATED",
            "AWAITING_HANDOFF_ACCEPT",
            "CONTEXT_PREPARING",
            "AWAITING_CONTEXT_ACK",
            "HANDOFF_COMPLETED",
        ]


async def test_a_second_call_about_a_task_that_is_waited_for_is_refused_and_the_first_gets_its_result(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        may_accept, may_finish, owned = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @bob.on_handoff
        async def take(offer):
            await may_accept.wait()
            task = await (await offer.accept()).complete()
            owned.set()
            await may_finish.wait()
            await task.finish({"cause": "a loose cable"})

        await begin(alice, bob)
        views = []
        first = asyncio.create_task(alice.delegate("bob", TASK, REQUEST, SECTIONS, on_view=views.append))
        for phase in (may_accept, may_finish):  # while the handoff is open, and while bob has the task
            if phase is may_finish:
                await within(owned.wait())
            while v1.SENDER_VIEW_AWAITING_HANDOFF_ACCEPT not in views:
                await asyncio.sleep(0.01)
            seen = len(views)
            for call in (alice.delegate, alice.hand_over):
                with pytest.raises(BatonError, match="another call of this process waits for task") as refused:
                    await within(call("bob", TASK, REQUEST, SECTIONS, on_view=views.append))
                assert refused.value.reason == "HANDOFF_OPEN"
                open_handoff = await anext(alice.list_handoffs(task_id=TASK))
                assert refused.value.metadata == {"handoff_id": open_handoff.handoff_id}
            assert phase is may_finish or len(views) == seen
            phase.set()
        assert (await within(first)).result == {"cause": "a loose cable"}
        # From now on the broker answers.
        with pytest.raises(BatonError) as refused:
            await within(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        assert refused.value.reason == "STALE_EPOCH"


async def test_a_second_hand_over_of_a_task_that_is_waited_for_is_refused(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        may_accept = asyncio.Event()

        @bob.on_handoff
        async def take(offer):
            await may_accept.wait()
            await (await offer.accept()).complete()

        await begin(alice, bob)
        first = asyncio.create_task(alice.hand_over("bob", TASK, REQUEST, SECTIONS))
        await asyncio.sleep(0)
        for call in (alice.delegate, alice.hand_over):
            with pytest.raises(BatonError, match="HANDOFF_OPEN: another call of this process"):
                await within(call("bob", TASK, REQUEST, SECTIONS))
        may_accept.set()
        assert (await within(first)).owner_id == "bob"


async def test_a_task_that_comes_back_inside_its_loan_can_be_handed_on(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:
        owned = asyncio.Queue()

        @alice.on_handoff
        async def hand_on(offer):
            task = await (await offer.accept()).complete()
            # The wait for the result of the outer loan would lose it to a second one.
            with pytest.raises(BatonError, match="HANDOFF_OPEN"):
                await task.delegate("carol", REQUEST, SECTIONS)
            owned.put_nowait(await task.hand_over("carol", REQUEST, SECTIONS))

        @bob.on_handoff
        async def lend_back(offer):
            task = await (await offer.accept()).complete()
            await task.finish((await task.delegate("alice", REQUEST, SECTIONS)).result)

        @carol.on_handoff
        async def finish(offer):
            await (await (await offer.accept()).complete()).finish({"by": "carol"})

        await begin(alice, bob, carol)
        assert (await within(alice.delegate("bob", TASK, REQUEST, SECTIONS))).result == {"by": "carol"}
        assert owned.get_nowait().owner_id == "carol"
