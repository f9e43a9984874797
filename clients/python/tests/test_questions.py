"""Questions about a task, and their answers."""

import asyncio
from datetime import timedelta

import pytest
from brokers import PATIENCE_SECONDS, begin, needs_broker, within

import baton.handoffs
from baton import BatonError, NoAnswerError, v1

pytestmark = needs_broker

TASK = "ticket-1"
SCHEMA = {"type": "object", "properties": {"router": {"type": "integer"}}, "required": ["router"]}


async def owning(alice, *others):
    """Connects the agents, and returns a task of alice: a handoff that was cancelled created it."""
    await begin(alice)
    for other in others:
        await other.register(agent_types=["support"])
    receipt = await alice.request_handoff("bob", TASK, v1.HandoffRequest(task_type="support-ticket"))
    await alice.cancel(receipt, "bob")
    for other in others:  # an answer of bob before the cancellation would end the handoff
        await other.connect()
    [task] = await alice.owned_tasks()
    return task


async def test_a_question_is_answered_once_and_by_its_schema(broker):
    asked = asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_prompt
        async def reply(question):
            asked.put_nowait(question)
            with pytest.raises(BatonError, match="FIELD_INVALID"):
                await question.answer("the third", {"router": "three"})
            await question.answer("the one in the hall", {"router": 3})

        task = await owning(alice, bob)
        answer = await within(task.ask("Which router?", "bob", schema=SCHEMA, details="there are four"))
        assert (answer.agent_id, answer.text, answer.data) == ("bob", "the one in the hall", {"router": 3})
        question = await within(asked.get())
        assert (question.text, question.details, question.owner_id) == ("Which router?", "there are four", "alice")
        assert (question.task_id, question.schema, question.answer_before) == (TASK, SCHEMA, None)
        with pytest.raises(BatonError, match="INPUT_TAKEN"):
            await question.answer("another one", {"router": 4})
        await task.finish()


async def test_a_question_without_an_answer_expires(broker):
    asked = asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_prompt
        async def read(question):
            asked.put_nowait(question)

        task = await owning(alice, bob)
        with pytest.raises(NoAnswerError) as none:
            await within(task.ask("Which router?", "type:support", within=timedelta(seconds=2)))
        question = await within(asked.get())
        assert (none.value.reason, none.value.question_id) == ("EXPIRED", question.question_id)
        assert question.answer_before is not None
        with pytest.raises(BatonError, match="INPUT_EXPIRED"):
            await bob.answer(TASK, 1, question.question_id, "too late")


async def test_a_later_status_withdraws_a_question(broker, monkeypatch):
    monkeypatch.setattr(baton.handoffs, "LOOK_SECONDS", 0.2)
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        task = await owning(alice, bob)
        asking = asyncio.create_task(task.ask("Which router?", "bob"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await alice.get_task(TASK)).open_prompt.message_id:
                await asyncio.sleep(0.02)
        await task.report("found it")
        with pytest.raises(NoAnswerError) as none:
            await within(asking)
        assert none.value.reason == "WITHDRAWN"


async def test_no_agent_can_be_asked(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        task = await owning(alice, bob)
        with pytest.raises(BatonError, match="RECEIVER_UNKNOWN"):
            await task.ask("Which router?", "type:plumber")
