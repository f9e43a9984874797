"""Several processes of one agent: each gets what it waits for, also where another one has the message."""

# ruff: noqa: SIM117

import asyncio
from types import SimpleNamespace

import pytest
from brokers import begin, needs_broker, within

import baton.handoffs
from baton import RecallReason, TaskRecalledError, json_section, v1
from baton.conversation import Conversation
from baton.questions import answer_to

REQUEST = v1.HandoffRequest(task_type="support-ticket")
SECTIONS = [json_section("goals", ["find the cause"])]


@pytest.fixture
def looks(monkeypatch):
    monkeypatch.setattr(baton.handoffs, "LOOK_SECONDS", 0.3)


class Thief:
    """Another process of an agent. It acks all of the agent's mail that it gets."""

    def __init__(self, agent):
        self.seen = []
        agent.on(v1.TaskStatusUpdate, v1.HandoffAccept, v1.HandoffComplete, v1.ErrorNotification)(self.take)

    async def take(self, delivery):
        self.seen.append(type(delivery.payload))


async def without_mail(agent):
    """Has no delivery reach this process any more."""
    await agent.set_credit(0)


@needs_broker
@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("status", [v1.TASK_STATUS_COMPLETED, v1.TASK_STATUS_FAILED])
async def test_the_result_that_another_process_took_is_returned(broker, status):
    release = asyncio.Event()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        async with broker.agent("alice", key=alice._key) as other:
            thief = Thief(other)

            @bob.on_handoff
            async def take(offer):
                task = await (await offer.accept()).complete()
                await release.wait()
                await task.report("x", receiver_id="")
                await bob.update_status(task.task_id, task.epoch, status, "done", result={"x": [1, "y"]})

            await begin(alice, bob)
            lending = asyncio.create_task(alice.delegate("bob", "ticket-1", REQUEST, SECTIONS))
            async with asyncio.timeout(30):
                while not (await bob.get_task("ticket-1") if bob.work.listed() else None):
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.2)
            await without_mail(alice)
            await other.connect()
            release.set()
            outcome = await within(lending)
            assert (outcome.status, outcome.result, outcome.details) == (status, {"x": [1, "y"]}, "done")
            assert outcome.epoch == 3
            await alice.update_status("ticket-1", outcome.epoch, v1.TASK_STATUS_COMPLETED)
            assert set(thief.seen) <= {v1.TaskStatusUpdate, v1.HandoffComplete}


@needs_broker
@pytest.mark.usefixtures("looks")
async def test_the_reason_of_a_recall_that_another_process_heard_is_told(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        async with broker.agent("alice", key=alice._key) as other:
            Thief(other)
            begun = asyncio.Event()

            @bob.on_handoff
            async def take(offer):
                await (await offer.accept()).complete()
                begun.set()
                await asyncio.Event().wait()

            await begin(alice, bob)
            short = v1.HandoffRequest(task_type="x")
            short.loan_timeout.FromSeconds(2)
            lending = asyncio.create_task(alice.delegate("bob", "ticket-1", short, SECTIONS))
            await within(begun.wait())
            await without_mail(alice)
            await other.connect()
            with pytest.raises(TaskRecalledError) as back:
                await within(lending)
            assert (back.value.reason, back.value.epoch) == (RecallReason.LOAN_TIMEOUT, 3)


@needs_broker
@pytest.mark.usefixtures("looks")
async def test_a_process_that_has_no_mail_hands_over_all_the_same(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        async with broker.agent("alice", key=alice._key) as other:
            Thief(other)

            @bob.on_handoff
            async def take(offer):
                await (await offer.accept()).complete()
                await asyncio.sleep(0)

            await begin(alice, bob)
            await without_mail(alice)
            await other.connect()
            handed = await within(alice.hand_over("bob", "ticket-1", REQUEST, SECTIONS))
            assert (handed.owner_id, handed.epoch) == ("bob", 2)


@needs_broker
@pytest.mark.usefixtures("looks")
async def test_processes_that_lend_at_once_get_all_results(broker):
    async with broker.agent("alice") as one, broker.agent("bob", credit=64) as bob:
        async with broker.agent("alice", key=one._key) as two:

            @bob.on_handoff
            async def take(offer):
                task = await (await offer.accept()).complete()
                await task.finish({"task": task.task_id})

            await begin(one, bob)
            await two.connect()
            names = [(agent, f"{index}-{number}") for index, agent in enumerate((one, two)) for number in range(8)]
            lent = [agent.delegate("bob", name, REQUEST, SECTIONS) for agent, name in names]
            outcomes = await within(asyncio.gather(*lent))
            assert [outcome.result["task"] for outcome in outcomes] == [name for _, name in names]


async def test_the_answer_that_another_process_took_is_returned():
    answer = v1.TaskInput(text="yes", data_json='{"approved":true}')
    prompt = v1.OpenPrompt(message_id="q1", asked_agent_id="boss")
    answered = v1.AnsweredPrompt(question=prompt, answer=answer, answer_id="a1")
    known = []

    async def get_task(_task_id):
        return v1.Task(task_id="ticket-1", last_answer=answered)

    agent = SimpleNamespace(get_task=get_task, _dispatcher=SimpleNamespace(known=known.append))
    mail = Conversation()
    mail.look()
    found = await answer_to(agent, mail, "ticket-1", "q1")
    assert (found.agent_id, found.text, found.data, known) == ("boss", "yes", {"approved": True}, ["a1"])


async def test_a_look_comes_after_the_mail_that_is_there():
    mail = Conversation()
    mail.put("mail")
    mail.look()
    assert [await mail.next_within(30), await mail.next_within(30)] == ["mail", None]
    mail.look()
    mail.put("more")
    assert await mail.next() == "more"
