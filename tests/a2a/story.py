"""What an agent does with the official Python client of A2A: card, stream, wait, get, list, cancel, in both bindings.

story.py URL CA TOKEN, where URL is that of a published agent. Its adder.sh adds numbers, or waits.
"""

import asyncio
import ssl
import sys
import uuid

import httpx
from a2a.client import ClientConfig, create_client
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError
from google.protobuf import json_format

BINDINGS = ["JSONRPC", "HTTP+JSON"]
SUBMITTED, WORKING = a2a.TASK_STATE_SUBMITTED, a2a.TASK_STATE_WORKING
COMPLETED, CANCELED = a2a.TASK_STATE_COMPLETED, a2a.TASK_STATE_CANCELED


def message(text, numbers=None):
    parts = [a2a.Part(text=text)]
    if numbers is not None:
        parts.append(json_format.ParseDict({"data": {"numbers": numbers}}, a2a.Part()))
    return a2a.Message(message_id=str(uuid.uuid4()), role=a2a.ROLE_USER, parts=parts)


def sum_of(artifact):
    return json_format.MessageToDict(artifact.parts[0])["data"]["sum"]


async def raises(error, awaitable):
    try:
        await awaitable
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


async def story(url, http, binding):
    def client(**options):
        config = ClientConfig(
            httpx_client=http, supported_protocol_bindings=[binding], use_client_preference=True, **options
        )
        return create_client(url, config)

    # A stream: the task, its way, the result, the end.
    async with await client() as streaming:
        request = a2a.SendMessageRequest(message=message("add", [40, 2]))
        events = [event async for event in streaming.send_message(request)]
        kinds = [event.WhichOneof("payload") for event in events]
        assert kinds[0] == "task" and kinds[-2:] == ["artifact_update", "status_update"], kinds
        assert events[-1].status_update.status.state == COMPLETED
        assert sum_of(events[-2].artifact_update.artifact) == 42
        first = events[0].task
        got = await streaming.get_task(a2a.GetTaskRequest(id=first.id))
        assert got.status.state == COMPLETED and sum_of(got.artifacts[0]) == 42

        # Cancel what another stream follows.
        request = a2a.SendMessageRequest(message=message("wait"))
        stream = streaming.send_message(request)
        waiting = (await anext(stream)).task
        async for event in stream:
            if event.status_update.status.state == WORKING and "waiting" in str(event.status_update.status.message):
                break
        follower = streaming.subscribe(a2a.SubscribeToTaskRequest(id=waiting.id))
        assert (await anext(follower)).task.status.state == WORKING
        cancelled = await streaming.cancel_task(a2a.CancelTaskRequest(id=waiting.id))
        assert cancelled.status.state == CANCELED
        for told in (stream, follower):
            assert [event async for event in told][-1].status_update.status.state == CANCELED
        await raises(TaskNotCancelableError, streaming.cancel_task(a2a.CancelTaskRequest(id=waiting.id)))
        await raises(TaskNotFoundError, streaming.get_task(a2a.GetTaskRequest(id="a2a-none")))

    # Without a stream: the message waits for the end. The same message again finds the same task.
    async with await client(streaming=False) as blocking:
        asked = message("add", [1, 2])
        asked.context_id = f"sums-{uuid.uuid4()}"
        ids = set()
        for _ in range(2):
            done = [event async for event in blocking.send_message(a2a.SendMessageRequest(message=asked))]
            assert len(done) == 1 and done[0].task.status.state == COMPLETED, done
            assert sum_of(done[0].task.artifacts[0]) == 3
            ids.add(done[0].task.id)
        assert len(ids) == 1
        listed = await blocking.list_tasks(a2a.ListTasksRequest(context_id=asked.context_id))
        assert [task.id for task in listed.tasks] == list(ids) and listed.total_size == 1
        everything = await blocking.list_tasks(a2a.ListTasksRequest(page_size=1, include_artifacts=True))
        assert len(everything.tasks) == 1 and everything.next_page_token and everything.total_size >= 3

    async with await client(streaming=False, polling=True) as polling:
        begun = [event async for event in polling.send_message(a2a.SendMessageRequest(message=message("add", [5])))]
        assert begun[0].task.status.state in (SUBMITTED, WORKING, COMPLETED)
        while (task := await polling.get_task(a2a.GetTaskRequest(id=begun[0].task.id))).status.state != COMPLETED:
            await asyncio.sleep(0.1)
        assert sum_of(task.artifacts[0]) == 5


async def main(url, ca, token):
    verify = ssl.create_default_context(cafile=ca)
    for binding in BINDINGS:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(verify=verify, headers=headers, timeout=60) as http:
            await story(url, http, binding)
        async with httpx.AsyncClient(verify=verify, timeout=60) as http:
            config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding], use_client_preference=True)
            async with await create_client(url, config) as stranger:
                await raises(A2AClientError, stranger.get_task(a2a.GetTaskRequest(id="a2a-none")))
        print(f"a2a-sdk, {binding}: works")


asyncio.run(main(*sys.argv[1:]))
