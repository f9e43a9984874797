"""Data arrives as it was sent: integers of 64 bits, whole numbers, nulls."""

import asyncio
import json

import pytest
from brokers import begin, needs_broker, within

from baton import BatonError, json_object, json_text, plan_of, subtask, v1

pytestmark = needs_broker

BIG = 1234567890123456789
DATA = {"id": BIG, "count": 42, "ratio": 42.0, "none": None, "list": [BIG + 1, {"deep": -BIG}], "most": 2**64 - 1}
TEXT = (
    '{"id":1234567890123456789,"count":42,"ratio":42.0,"none":null,"list":[1234567890123456790,'
    '{"deep":-1234567890123456789}],"most":18446744073709551615}'
)
REQUEST = v1.HandoffRequest(task_type="order")


async def test_a_result_and_an_answer_arrive_as_they_were_sent(broker):
    answers = asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            task = await (await offer.accept()).complete()
            answers.put_nowait(await task.ask("Which order?", "alice"))
            await task.finish(DATA)

        @alice.on_prompt
        async def reply(question):
            with pytest.raises(BatonError, match=r"data_json must have finite numbers only, not nan at /a/0"):
                await question.answer("none", {"a": [float("nan")]})
            await question.answer("this one", DATA)

        await begin(alice, bob)
        outcome = await within(alice.delegate("bob", "order-1", REQUEST, []))
        answer = await within(answers.get())
        assert (json.dumps(outcome.result), json.dumps(answer.data)) == (json.dumps(DATA), json.dumps(DATA))
        task = await alice.get_task("order-1")
        assert (task.result_json, task.last_answer.answer.data_json) == (TEXT, TEXT)


async def test_mail_has_data_as_it_was_sent(broker):
    mail = asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on(v1.Info)
        async def read(delivery):
            mail.put_nowait(delivery.payload.data_json)

        await begin(alice, bob)
        await alice.send(v1.Info(text="the order", data_json=json_text(DATA)), receiver_id="bob")
        assert json_object(await within(mail.get())) == DATA


async def test_the_input_and_the_results_of_a_plan_arrive_as_they_were_sent(broker):
    inputs = asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            takeover = await offer.accept()
            task = await takeover.complete()
            inputs.put_nowait(takeover.subtask)
            await task.finish(takeover.subtask.input)

        await bob.register(agent_types=["worker"])
        await bob.connect()
        await begin(alice)
        first = subtask("first", agent_type="worker", data=DATA)
        second = subtask("second", agent_type="worker", dependencies=["first"], data={"count": 42})
        plan = await alice.submit_plan(plan_of("exact", [first, second], data=DATA))
        assert (await within(plan.finished())).state == v1.PLAN_STATE_COMPLETED
        got = [await within(inputs.get()), await within(inputs.get())]
        assert [json.dumps(one.plan_input) for one in got] == [json.dumps(DATA)] * 2
        assert (json.dumps(got[0].input), json.dumps(got[1].input)) == (json.dumps(DATA), '{"count": 42}')
        results = await plan.results()
        assert json_object(got[1].dependency_results["first"].result_json) == DATA
        assert (results["first"].result_json, results["second"].result_json) == (TEXT, '{"count":42}')
