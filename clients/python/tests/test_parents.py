"""A task that a handler creates is a part of the handler's task."""

import asyncio

from brokers import begin, needs_broker, within

from baton import v1

pytestmark = needs_broker

REQUEST = v1.HandoffRequest(task_type="support-ticket")


async def test_a_new_task_of_a_handler_is_a_part_unless_told_otherwise(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:

        @bob.on_handoff
        async def take(offer):
            task = await (await offer.accept()).complete()
            await bob.delegate("carol", "part", REQUEST, [])
            await bob.delegate("carol", "apart", REQUEST, [], parent_task_id="")
            # This one is there already, and has no parent.
            await bob.hand_over("carol", "before", REQUEST, [])
            await asyncio.create_task(bob.hand_over("carol", "spawned", REQUEST, []))
            await task.finish()
            await bob.hand_over("carol", "after", REQUEST, [])

        @carol.on_handoff
        async def work(offer):
            await (await (await offer.accept()).complete()).finish()

        await begin(alice, bob, carol)
        receipt = await bob.request_handoff("alice", "before", REQUEST)
        await bob.cancel(receipt, "alice")
        outcome = await within(alice.delegate("bob", "whole", REQUEST, []))
        assert outcome.status == v1.TASK_STATUS_COMPLETED, outcome.details
        await bob.close()
        names = ("part", "spawned", "apart", "before", "after")
        parents = [(await carol.get_task(name)).parent_task_id for name in names]
        assert parents == ["whole", "whole", "", "", ""]
