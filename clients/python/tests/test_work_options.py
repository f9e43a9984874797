"""Calls about the work after a takeover: more time for a loan, the parts of a cancelled task, an open question."""

import asyncio
from datetime import timedelta

import pytest
from brokers import needs_broker, within
from test_questions import TASK, owning

from baton import Agent, NoAnswerError, OwnedTask, generate_key, v1


class Sent:
    """An agent whose messages are kept instead of sent."""

    def __init__(self):
        self.agent = Agent("127.0.0.1:1", "bob", generate_key())
        self.agent.send = self.send
        self.payloads = []

    async def send(self, payload, **_):
        self.payloads.append(payload)
        return v1.Receipt()


async def test_a_delegate_asks_for_more_time():
    sent = Sent()
    await OwnedTask(sent.agent, TASK, 2).extend(timedelta(minutes=5), "one more page")
    [update] = sent.payloads
    assert (update.status, update.details) == (v1.TASK_STATUS_IN_PROGRESS, "one more page")
    assert update.extend_by.ToTimedelta() == timedelta(minutes=5)
    await OwnedTask(sent.agent, TASK, 2).report("at work")
    assert not sent.payloads[1].HasField("extend_by")
    await sent.agent.close()


async def test_a_cancelled_task_can_keep_its_parts():
    sent = Sent()
    await OwnedTask(sent.agent, TASK, 2).cancel("not needed", keep_parts=True)
    await OwnedTask(sent.agent, TASK, 2).cancel()
    assert [update.keep_parts for update in sent.payloads] == [True, False]
    assert {update.status for update in sent.payloads} == {v1.TASK_STATUS_CANCELED}
    await sent.agent.close()


@needs_broker
async def test_another_call_goes_on_with_an_open_question(broker):
    asked = asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_prompt
        async def read(question):
            asked.put_nowait(question)

        task = await owning(alice, bob)
        call = asyncio.create_task(task.ask("Which router?", "bob"))
        question = await within(asked.get())
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        again = asyncio.create_task(alice.resume_ask(TASK))
        async with asyncio.timeout(30):
            while not alice._dispatcher._answers:
                await asyncio.sleep(0.01)
        await question.answer("the one in the hall")
        assert (await within(again)).text == "the one in the hall"


async def test_the_latest_answer_is_read_where_no_question_is_open():
    agent = Agent("127.0.0.1:1", "alice", generate_key())
    answered = v1.AnsweredPrompt(question=v1.OpenPrompt(message_id="q1", asked_agent_id="bob"))
    answered.answer.text = "the one in the hall"
    answered.answer.data_json = '{"router": 3}'
    tasks = [v1.Task(last_answer=answered), v1.Task()]

    async def get_task(_task_id):
        return tasks.pop(0)

    agent.get_task = get_task
    answer = await agent.resume_ask(TASK)
    assert (answer.agent_id, answer.text, answer.data) == ("bob", "the one in the hall", {"router": 3})
    with pytest.raises(NoAnswerError, match="WITHDRAWN"):
        await agent.resume_ask(TASK)
    await agent.close()
