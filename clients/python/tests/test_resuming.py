"""Tasks that an earlier process of the worker took over and did not end."""

import asyncio
from datetime import timedelta

import pytest
from brokers import begin, needs_broker, within

from baton import Agent, generate_key, json_section, v1

TASK = "ticket-1"
REQUEST = v1.HandoffRequest(task_type="support-ticket")
SECTIONS = [json_section("goals", ["find the cause"])]


class Resumes:
    """The call ResumeTasks over a broker that has every other one. Each answer gives at most `max_tasks`."""

    def __init__(self, agent, *tasks):
        self.left = list(tasks)
        self.asked = []
        agent._connection.tasks.ResumeTasks = self

    async def __call__(self, request, *, metadata, timeout):  # noqa: ASYNC109
        assert metadata
        assert timeout
        self.asked.append(request)
        given, self.left = self.left[: request.max_tasks], self.left[request.max_tasks :]
        return v1.ResumeTasksResponse(tasks=given)


async def bobs(broker, alice, key, *task_ids, checkpoint=None):
    """Has a process of bob take tasks over, and end without more. Returns the tasks."""
    async with broker.agent("bob", key=key) as bob:

        @bob.on_handoff
        async def take(offer):
            task = await (await offer.accept()).complete()
            if checkpoint is not None:
                await task.checkpoint(checkpoint)

        await begin(alice, bob)
        for task_id in task_ids:
            await within(alice.hand_over("bob", task_id, REQUEST, SECTIONS))
    return [await alice.get_task(task_id) for task_id in task_ids]


async def ended(agent, task_id):
    async with asyncio.timeout(30):
        while (task := await agent.get_task(task_id)).status not in (v1.TASK_STATUS_COMPLETED, v1.TASK_STATUS_FAILED):
            await asyncio.sleep(0.02)
    return task


@needs_broker
async def test_a_restarted_worker_resumes_its_task(broker):
    key, seen = generate_key(), []
    async with broker.agent("alice") as alice:
        [task] = await bobs(broker, alice, key, TASK)
        async with broker.agent("bob", key=key) as bob:

            @bob.on_handoff
            async def take(offer):
                assert offer.request is None
                takeover = await offer.accept()
                owned = await takeover.complete()
                seen.append((offer.resumed, owned.resumed, owned.epoch, takeover.json("goals"), bob.work.listed()))
                await owned.finish({"cause": "a loose cable"})

            resumes = Resumes(bob, task)
            await bob.connect(resume=True)
            assert (await ended(alice, TASK)).result_json == '{"cause":"a loose cable"}'
        assert seen == [(True, True, 2, ["find the cause"], [TASK])]
        assert [(one.instance_id, one.max_tasks) for one in resumes.asked] == [(bob.instance_id, 50)]


@needs_broker
async def test_a_task_is_resumed_with_its_latest_checkpoint(broker):
    key, seen = generate_key(), []
    async with broker.agent("alice") as alice:
        [task] = await bobs(broker, alice, key, TASK, checkpoint=[json_section("notes", ["half done"])])
        async with broker.agent("bob", key=key) as bob:

            @bob.on_handoff
            async def take(offer):
                takeover = await offer.accept()
                seen.append([section.json for section in takeover.sections])
                await (await takeover.complete()).finish()

            Resumes(bob, task)
            await bob.connect(resume=True)
            await ended(alice, TASK)
        assert seen == [['["half done"]']]


@needs_broker
async def test_a_resumed_task_whose_handler_raises_has_failed(broker):
    key = generate_key()
    async with broker.agent("alice") as alice:
        [task] = await bobs(broker, alice, key, TASK)
        async with broker.agent("bob", key=key) as bob:

            @bob.on_handoff
            async def take(offer):
                await offer.accept()
                raise RuntimeError("told to fail")

            Resumes(bob, task)
            await bob.connect(resume=True)
            assert (await ended(alice, TASK)).details == "RuntimeError: told to fail"


@needs_broker
async def test_more_tasks_are_resumed_as_handlers_end(broker):
    key, running, most = generate_key(), set(), []
    names = [f"ticket-{number}" for number in range(5)]
    async with broker.agent("alice") as alice:
        tasks = await bobs(broker, alice, key, *names)
        async with broker.agent("bob", key=key, capacity=2) as bob:

            @bob.on_handoff
            async def take(offer):
                task = await (await offer.accept()).complete()
                running.add(task.task_id)
                most.append(len(running))
                await asyncio.sleep(0.05)
                running.discard(task.task_id)
                await task.finish()

            resumes = Resumes(bob, *tasks)
            await bob.connect(resume=True)
            for name in names:
                await ended(alice, name)
        assert max(most) == 2
        assert all(1 <= one.max_tasks <= 2 for one in resumes.asked)


@needs_broker
async def test_a_task_that_a_handler_left_open_is_not_resumed_by_its_process(broker):
    key, seen = generate_key(), []
    async with broker.agent("alice") as alice:
        [task] = await bobs(broker, alice, key, TASK)
        async with broker.agent("bob", key=key) as bob:

            @bob.on_handoff
            async def take(offer):
                seen.append(await (await offer.accept()).complete())

            resumes = Resumes(bob, task)
            await bob.connect(resume=True)
            async with asyncio.timeout(30):
                while not seen or bob.work.listed():
                    await asyncio.sleep(0.02)
            resumes.left.append(task)
            bob._resumption.begin()
            async with asyncio.timeout(30):
                while resumes.left:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)
        assert len(seen) == 1


@needs_broker
async def test_a_shutdown_leaves_a_resumed_task_as_it_is(broker):
    key, begun = generate_key(), asyncio.Event()
    async with broker.agent("alice") as alice:
        [task] = await bobs(broker, alice, key, TASK)
        async with broker.agent("bob", key=key) as bob:

            @bob.on_handoff
            async def take(offer):
                await (await offer.accept()).complete()
                begun.set()
                await asyncio.Event().wait()

            Resumes(bob, task)
            await bob.connect(resume=True)
            await within(begun.wait())
            await bob.close(timedelta())
        assert (await alice.get_task(TASK)).status == v1.TASK_STATUS_CREATED


@needs_broker
async def test_a_broker_that_resumes_nothing_is_served(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            await (await (await offer.accept()).complete()).finish({"x": 1})

        await alice.register()
        await alice.connect()
        await bob.register()
        await bob.connect(resume=True)
        assert (await within(alice.delegate("bob", TASK, REQUEST, SECTIONS))).result == {"x": 1}


async def test_only_a_worker_resumes():
    agent = Agent("127.0.0.1:1", "bob", generate_key(), ca_file=None)
    with pytest.raises(RuntimeError, match="handler of handoffs"):
        await agent.connect(resume=True)
    await agent.close()
