"""The Python agent of the relay test (tests/relay): a task goes from language to language and comes back.

    relay.py SERVER CA.pem ID KEY.pem start TASK NEXT    makes the task, hands it over, and finishes it on return
    relay.py SERVER CA.pem ID KEY.pem audit TASK         checks its custody log

Prints each event as a JSON line.
"""

import asyncio
import json
import logging
import sys

from baton import Agent, Offer, bytes_section, context_digest, json_section, load_key, v1


def say(event: str, **facts: object) -> None:
    """Prints one event as a JSON line for the runner."""
    print(json.dumps({"event": event, **facts}), flush=True)


async def start(agent: Agent, task_id: str, to: str) -> None:
    """Hands the task over, and returns when it has come back and is finished."""
    back = asyncio.Event()

    @agent.on_handoff
    async def take(offer: Offer) -> None:
        takeover = await offer.accept()
        task = await takeover.complete()
        say("taken", sender=offer.sender_id, epoch=task.epoch, digest=context_digest(takeover.sections).hex())
        receipt = await task.finish({"laps": 1})
        say("finished", status=v1.TaskStatus.Name(receipt.task_status), epoch=receipt.epoch)
        back.set()

    await agent.register(agent_types=["relay"])
    await agent.connect()
    say("ready")
    context = [
        json_section("goals", ["once around", "nothing lost"]),
        json_section("history_log", [{"who": "客服", "text": "Grüße, “quoted”"}]),
        bytes_section("picture", bytes(range(256)), "image/png"),
    ]
    say("made", digest=context_digest(context).hex())
    request = v1.HandoffRequest(task_type="relay", initial_context_summary="once around")
    handed = await agent.hand_over(to, task_id, request, context)
    say("handed", receiver=handed.owner_id, epoch=handed.epoch, rejections=list(handed.rejections))
    await back.wait()


async def audit(agent: Agent, task_id: str) -> None:
    """Verifies the whole custody log and prints the task's state after its last entry."""
    log = await agent.verify_custody(task_id)
    last = v1.CustodyEntry.FromString(log.entries[-1].entry_bytes)
    say("audited", entries=len(log.entries), owner=last.owner_id, epoch=last.epoch)


async def main() -> None:
    """Parses the command line and runs its command."""
    server, ca_file, agent_id, key, command, *arguments = sys.argv[1:]
    async with Agent(server, agent_id, load_key(key), ca_file=ca_file) as agent:
        await (start(agent, *arguments) if command == "start" else audit(agent, *arguments))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main())
