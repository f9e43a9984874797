"""Tasks that an agent begins without a handoff, and lists by their conversation."""

import pytest
from brokers import begin, needs_broker, within

from baton import BatonError, json_section, v1

pytestmark = needs_broker

REQUEST = v1.HandoffRequest(task_type="support-ticket")


async def test_an_agent_begins_a_task_and_goes_on_with_it(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice, bob)
        task = await alice.create_task("whole", "bug", summary="it crashes", conversation_id="chat 7")
        assert (task.epoch, task.status) == (1, v1.TASK_STATUS_CREATED)
        await task.checkpoint([json_section("goals", ["find the cause"])])
        part = await alice.create_task("part", "bug", parent_task_id="whole", conversation_id="chat 7")
        shown = await alice.get_task("whole")
        assert (shown.summary, list(shown.part_task_ids)) == ("it crashes", ["part"])
        listed = [one.task_id async for one in alice.list_tasks(conversation_id="chat 7")]
        assert listed == ["part", "whole"]
        latest = [one.task_id async for one in alice.list_tasks(order=v1.TASK_ORDER_UPDATE)]
        assert latest == ["part", "whole"]
        await part.finish({"fixed": True})
        with pytest.raises(BatonError) as refused:
            await alice.create_task("whole", "bug")
        assert refused.value.reason == "TASK_EXISTS"
        with pytest.raises(BatonError) as refused:
            await bob.create_task("whole", "bug")
        assert refused.value.reason == "NOT_OWNER"


async def test_a_task_that_a_handler_begins_is_a_part_of_the_handlers(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            task = await (await offer.accept()).complete()
            await bob.create_task("inner", "bug")
            await bob.create_task("apart", "bug", parent_task_id="")
            await task.finish()

        await begin(alice, bob)
        await within(alice.delegate("bob", "outer", REQUEST, []))
        parents = [(await bob.get_task(name)).parent_task_id for name in ("inner", "apart")]
        assert parents == ["outer", ""]
