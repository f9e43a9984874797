"""Agents killed at every step of a handoff: the next process continues without any memory."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from brokers import PATIENCE_SECONDS, needs_broker, within
from mortal import AS_RECEIVER, AS_SENDER, REQUEST, SECTIONS, TASK

import baton.handoffs
from baton import BatonError, Delivery, HandoffFailedError, Rejection, generate_key, load_key, save_key, v1

pytestmark = needs_broker


@pytest.fixture(autouse=True)
async def keys(broker, tmp_path):
    """Registers alice and bob, with keys in files that the processes of a test share."""
    for agent_id in ("alice", "bob"):
        save_key(tmp_path / f"{agent_id}.pem", generate_key())
        async with living(broker, agent_id) as agent:
            await agent.register()


def living(broker, agent_id, **options):
    agent = broker.agent(agent_id, key=load_key(broker.folder / f"{agent_id}.pem"), **options)

    # An agent with a handler: the library settles mail without one.
    @agent.on(v1.Info)
    async def read(_):
        pass

    return agent


def taking(bob):
    """Records bob's handler calls and his tasks."""
    taken = asyncio.Queue()

    @bob.on_handoff
    async def take(offer):
        takeover = await offer.accept()
        assert takeover.json("goals") == ["find the cause"]
        taken.put_nowait(await takeover.complete())

    return taken


async def killed_at(broker, agent_id, step):
    """Runs a process of the agent that dies at this step."""
    arguments = [broker.server, broker.ca, agent_id, broker.folder / f"{agent_id}.pem", step.__name__]
    path = {"PYTHONPATH": str(Path(baton.__file__).parents[1])}
    script = Path(__file__).parent / "mortal.py"
    process = await asyncio.create_subprocess_exec(sys.executable, script, *arguments, env=os.environ | path)
    assert await within(process.wait()) == -signal.SIGKILL


async def until_owned(agent, owner_id):
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (task := await agent.get_task(TASK)).owner_id != owner_id:
            await asyncio.sleep(0.05)
    return task


async def moved_once_and_nothing_is_lost(broker, agent):
    task = await until_owned(agent, "bob")
    assert (task.epoch, len(task.hops), task.open_handoff_id) == (2, 1, "")
    listed = json.loads(broker.cli("dlq", "list", "-o", "json", "--token", broker.operator_token()))
    assert (listed if isinstance(listed, list) else listed.get("dead_letters", [])) == []


async def handoff_of(alice):
    """Returns the handoff of an earlier process, open or not; None if its request was never stored."""
    try:
        task = await alice.get_task(TASK)
    except BatonError as error:
        if error.reason not in ("TASK_UNKNOWN", "PERMISSION_DENIED"):
            raise
        return None
    return task.open_handoff_id or task.hops[-1].handoff_id


@pytest.mark.parametrize("step", AS_SENDER, ids=lambda step: step.__name__)
async def test_a_sender_that_is_killed_resumes_its_handoff(broker, step):
    async with living(broker, "bob") as bob, living(broker, "alice") as alice:
        taking(bob)
        await bob.connect()
        await killed_at(broker, "alice", step)
        await alice.connect()
        handoff_id = await handoff_of(alice)
        if handoff_id is None:
            handed = await within(alice.hand_over("bob", TASK, REQUEST, SECTIONS))
        else:
            handed = await within(alice.resume_hand_over(handoff_id, SECTIONS))
            assert handed.handoff_id == handoff_id
        assert (handed.task_id, handed.owner_id, handed.epoch, handed.rejections) == (TASK, "bob", 2, ())
        await moved_once_and_nothing_is_lost(broker, alice)


@pytest.mark.parametrize("step", AS_SENDER[1:], ids=lambda step: step.__name__)
async def test_a_sender_that_is_killed_provides_the_context_later(broker, step):
    async with living(broker, "bob") as bob, living(broker, "alice") as alice:
        taking(bob)
        await bob.connect()
        await killed_at(broker, "alice", step)

        @alice.context_provider
        async def context_of(wanted):
            assert (wanted.task_id, wanted.epoch, wanted.candidate_id, wanted.wanted_sections) == (TASK, 1, "bob", ())
            return SECTIONS

        await alice.connect()
        await moved_once_and_nothing_is_lost(broker, alice)


async def test_an_accept_that_no_call_waits_for_is_kept_until_a_resume(broker, monkeypatch):
    accepted, given_back = asyncio.Event(), asyncio.Queue()
    nack = Delivery.nack

    async def watched(self, cause, *rest, **options):
        await nack(self, cause, *rest, **options)
        assert cause == v1.NACK_CAUSE_SHUTDOWN
        given_back.put_nowait(self.payload)

    monkeypatch.setattr(Delivery, "nack", watched)
    async with living(broker, "bob") as bob, living(broker, "alice") as alice:

        @bob.on_handoff
        async def take(offer):
            accepting = asyncio.create_task(offer.accept())
            while (await bob.get_handoff(offer.handoff_id)).state != v1.HANDOFF_STATE_ACCEPTED:
                await asyncio.sleep(0.02)
            accepted.set()
            await (await accepting).complete()

        await bob.connect()
        await killed_at(broker, "alice", AS_SENDER[1])
        await alice.connect()
        await within(accepted.wait())
        [owned] = await alice.owned_tasks()
        assert (owned.task_id, owned.epoch, owned.status) == (TASK, 1, v1.TASK_STATUS_CREATED)
        await within(given_back.get())
        await within(alice.resume_hand_over(owned.open_handoff_id, SECTIONS))
        await moved_once_and_nothing_is_lost(broker, alice)
        assert await alice.owned_tasks() == []


async def test_an_accept_that_was_left_unread_goes_to_the_resume(broker):
    alice_key = load_key(broker.folder / "alice.pem")
    await killed_at(broker, "alice", AS_SENDER[1])
    async with broker.agent("alice", key=alice_key) as alice, living(broker, "bob") as bob:
        taking(bob)
        await alice.connect()
        await bob.connect()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not alice._mail._mail.qsize():
                await asyncio.sleep(0.02)
        assert (await within(alice.resume_hand_over(await handoff_of(alice), SECTIONS))).owner_id == "bob"
        assert alice._mail.rest() == []
        await moved_once_and_nothing_is_lost(broker, alice)


@pytest.mark.parametrize("step", AS_RECEIVER[:-1], ids=lambda step: step.__name__)
async def test_a_receiver_that_is_killed_takes_over_later(broker, step):
    async with living(broker, "alice") as alice, living(broker, "bob") as bob:
        await alice.connect()
        handing = asyncio.create_task(alice.hand_over("bob", TASK, REQUEST, SECTIONS))
        await killed_at(broker, "bob", step)
        taken = taking(bob)
        await bob.connect()
        handed = await within(handing)
        assert (handed.owner_id, handed.epoch) == ("bob", 2)
        task = await within(taken.get())
        assert (task.task_id, task.epoch) == (TASK, 2)
        await task.finish()
        assert taken.empty(), "taken over once"
        await moved_once_and_nothing_is_lost(broker, alice)


async def test_an_owner_that_is_killed_finds_its_task(broker):
    async with living(broker, "alice") as alice, living(broker, "bob") as bob:
        await alice.connect()
        handing = asyncio.create_task(alice.hand_over("bob", TASK, REQUEST, SECTIONS))
        await killed_at(broker, "bob", AS_RECEIVER[-1])
        await within(handing)
        await bob.connect()
        [task] = await bob.owned_tasks()
        assert (task.task_id, task.epoch, task.open_handoff_id) == (TASK, 2, "")
        await task.finish({"cause": "a loose cable"})
        assert await bob.owned_tasks() == []


async def test_a_resumed_handoff_fails_as_it_has_failed(broker):
    async with living(broker, "alice") as alice, living(broker, "bob") as bob:

        @bob.on_handoff
        async def refuse(offer):
            await offer.reject(v1.REJECT_REASON_NO_SKILL, "routers only")

        await bob.connect()
        await alice.connect()
        receipt = await alice.request_handoff("bob", TASK, REQUEST)
        for _ in range(2):  # while it is open or after its end, and once more
            with pytest.raises(HandoffFailedError) as failed:
                await within(alice.resume_hand_over(receipt.handoff_id, SECTIONS))
            assert failed.value.reason == "NO_CANDIDATE"
            assert failed.value.rejections == (Rejection("bob", v1.REJECT_REASON_NO_SKILL, "routers only"),)
        with pytest.raises(BatonError, match="NOT_OWNER"):
            await bob.resume_hand_over(receipt.handoff_id, SECTIONS)


async def test_a_handoff_that_is_cancelled_elsewhere_ends_the_wait(broker, monkeypatch):
    monkeypatch.setattr(baton.handoffs, "LOOK_SECONDS", 0.2)
    async with living(broker, "alice") as alice:
        await alice.connect()
        handing = asyncio.create_task(alice.hand_over("bob", TASK, REQUEST, SECTIONS))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (handoff_id := await handoff_of(alice)):
                await asyncio.sleep(0.02)
        cancel = v1.HandoffCancel(reason_text="changed my mind")
        await alice.send(cancel, receiver_id="bob", task_id=TASK, epoch=1, correlation_id=handoff_id)
        with pytest.raises(HandoffFailedError, match="HANDOFF_CANCELLED"):
            await within(handing)


async def test_a_loan_that_is_given_back_unfinished_ends_the_wait(broker, monkeypatch):
    monkeypatch.setattr(baton.handoffs, "LOOK_SECONDS", 0.2)
    async with living(broker, "alice") as alice, living(broker, "bob") as bob:
        back, taken = taking(alice), taking(bob)
        await bob.connect()
        await alice.connect()
        lending = asyncio.create_task(alice.delegate("bob", TASK, REQUEST, SECTIONS))
        lent = await within(taken.get())
        await within(lent.hand_over("alice", REQUEST, SECTIONS))
        outcome = await within(lending)
        assert (outcome.epoch, outcome.result) == (3, {})
        assert outcome.status not in (v1.TASK_STATUS_COMPLETED, v1.TASK_STATUS_FAILED, v1.TASK_STATUS_CANCELED)
        assert (await within(back.get())).epoch == 3


async def test_the_status_of_an_earlier_loan_is_not_that_of_this_one(broker):
    async with living(broker, "bob") as bob:
        taken = taking(bob)
        await bob.connect()
        async with living(broker, "alice") as alice:
            await alice.connect()
            lent = v1.HandoffRequest(task_type="support-ticket", mode=v1.HANDOFF_MODE_DELEGATE)
            await within(alice.hand_over("bob", TASK, lent, SECTIONS))
        await (await within(taken.get())).finish({"loan": 1})
        async with living(broker, "alice", credit=0) as alice:
            await alice.connect()
            [task] = await alice.owned_tasks()
            lending = asyncio.create_task(task.delegate("bob", REQUEST, SECTIONS))
            lent_again = asyncio.create_task(within(taken.get()))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not (await alice.get_task(TASK)).open_handoff_id:
                    await asyncio.sleep(0.02)
            await alice.set_credit(16)  # the first loan's status comes while the second is waited for
            await (await lent_again).finish({"loan": 2})
            outcome = await within(lending)
            assert (outcome.epoch, outcome.status, outcome.result) == (5, v1.TASK_STATUS_COMPLETED, {"loan": 2})


async def test_a_caller_that_stops_waiting_leaves_the_handoff_to_a_resume(broker):
    async with living(broker, "alice") as alice, living(broker, "bob") as bob:
        await alice.connect()
        handing = asyncio.create_task(alice.hand_over("bob", TASK, REQUEST, SECTIONS))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await alice.owned_tasks():
                await asyncio.sleep(0.02)
        handing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handing
        taking(bob)
        await bob.connect()
        [owned] = await alice.owned_tasks()
        assert (await within(alice.resume_hand_over(owned.open_handoff_id, SECTIONS))).owner_id == "bob"
