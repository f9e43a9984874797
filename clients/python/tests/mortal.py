"""An agent that dies at the step on its command line, as by kill -9: see test_restarts.py.

mortal.py SERVER CA.pem ID KEY.pem STEP
"""

import asyncio
import os
import signal
import sys

from baton import Agent, json_section, load_key, v1

TASK = "ticket-1"
SECTIONS = [json_section("goals", ["find the cause"])]
REQUEST = v1.HandoffRequest(task_type="support-ticket")


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


async def request_written(alice):
    session = await alice._link.live()
    write = session._write

    async def write_and_die(frame):
        await write(frame)
        die()

    session._write = write_and_die
    await request_stored(alice)


async def request_stored(alice):
    await alice.request_handoff("bob", TASK, REQUEST)


async def accept_delivered(alice):
    await request_stored(alice)
    return await anext(alice.deliveries())


async def context_stored(alice):
    accept = await accept_delivered(alice)
    await alice.send_context(accept, SECTIONS)
    return accept


async def completion_delivered(alice):
    await (await context_stored(alice)).ack()
    await anext(alice.deliveries())


async def offer_delivered(bob):
    return await anext(bob.deliveries())


async def accept_stored(bob):
    request = await offer_delivered(bob)
    await bob.accept(request)
    return request


async def offer_accepted(bob):
    await (await accept_stored(bob)).ack()


async def context_delivered(bob):
    await offer_accepted(bob)
    return await anext(bob.deliveries())


async def completion_stored(bob):
    context = await context_delivered(bob)
    await bob.complete(context)
    return context


async def task_owned(bob):
    await (await completion_stored(bob)).ack()


AS_SENDER = [request_written, request_stored, accept_delivered, context_stored, completion_delivered]
AS_RECEIVER = [offer_delivered, accept_stored, offer_accepted, context_delivered, completion_stored, task_owned]


async def main():
    server, ca, agent_id, key, step = sys.argv[1:]
    async with Agent(server, agent_id, load_key(key), ca_file=ca) as agent:
        await agent.connect()
        await globals()[step](agent)
        die()


if __name__ == "__main__":
    asyncio.run(main())
