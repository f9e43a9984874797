"""A support agent that hands tickets over or takes them.

    ticket_agent.py --server 127.0.0.1:22866 --ca baton-data/tls/ca.pem --id bob --key bob.pem serve
    ticket_agent.py --server 127.0.0.1:22866 --ca baton-data/tls/ca.pem --id alice --key alice.pem offer --to bob

The agent creates the key file if it does not exist. `offer` ends when bob owns the ticket, or with exit code 1 if the
handoff fails. After a restart the same command with the same `--task` continues the handoff.
"""

import argparse
import asyncio
import logging
import sys
import uuid
from pathlib import Path

from baton import Agent, BatonError, HandoffFailedError, Offer, generate_key, json_section, load_key, save_key, v1


async def offer(agent: Agent, to: str, task_id: str, title: str) -> int:
    """Hands one ticket over and waits for the end of the handoff. Returns the exit code."""
    request = v1.HandoffRequest(
        task_type="support-ticket",
        reason=v1.HANDOFF_REASON_SKILL,
        priority=v1.PRIORITY_HIGH,
        initial_context_summary=title,
    )
    handoff_id = await open_handoff(agent, task_id)
    try:
        if handoff_id:
            print(f"{task_id}: was offered before", flush=True)
            handed = await agent.resume_hand_over(handoff_id, ticket(title))
        else:
            print(f"{task_id}: offered to {to}", flush=True)
            handed = await agent.hand_over(to, task_id, request, ticket(title))
    except HandoffFailedError as error:
        print(f"{task_id}: not handed over: {error}", flush=True)
        return 1
    print(f"{task_id}: handed over, owned by {handed.owner_id} at epoch {handed.epoch}", flush=True)
    return 0


async def open_handoff(agent: Agent, task_id: str) -> str:
    """Returns the handoff of this ticket that an earlier process began; empty without one."""
    open_handoffs = {task.task_id: task.open_handoff_id for task in await agent.owned_tasks()}
    return open_handoffs.get(task_id, "")


def ticket(title: str) -> list[v1.ContextSection]:
    """Returns the context of a ticket."""
    return [
        json_section("task_description", {"title": title, "customer": "4711", "product": "router"}),
        json_section("history_log", [{"who": "customer", "text": title}, {"who": "agent", "text": "Let me see."}]),
        json_section("goals", ["find the cause", "call the customer back"]),
    ]


async def take(offer: Offer) -> None:
    """Takes over an offered ticket."""
    asked = offer.request.initial_context_summary if offer.request else "as before"
    print(f"{offer.task_id}: {offer.sender_id} asks: {asked}", flush=True)
    takeover = await offer.accept()
    task = await takeover.complete()  # verifies the context's digest; on return this agent owns the ticket
    names = ", ".join(section.name for section in takeover.sections)
    print(f"{task.task_id}: taken over from {offer.sender_id} at epoch {task.epoch}, with {names}", flush=True)
    await task.report("reading the history", progress=0.1)
    await task.finish({"cause": "a loose cable"})  # a handler that raises instead ends the ticket as FAILED


async def main() -> int:
    """Parses the command line, registers and connects."""
    parser = argparse.ArgumentParser(description="A support agent that hands tickets over, or takes them.")
    parser.add_argument("--server", default="127.0.0.1:22866", metavar="HOST:PORT", help="the broker (%(default)s)")
    parser.add_argument("--ca", default="baton-data/tls/ca.pem", metavar="FILE", help="its CA (%(default)s)")
    parser.add_argument("--id", required=True, help="the agent's id")
    parser.add_argument("--key", required=True, type=Path, metavar="FILE", help="the agent's key, made if missing")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="take every ticket")
    offering = commands.add_parser("offer", help="hand a ticket over")
    offering.add_argument("--to", required=True, metavar="AGENT", help="to whom: an agent's id or type:NAME")
    offering.add_argument("--task", default=f"ticket-{uuid.uuid4()}", help="the ticket's id (a new one)")
    offering.add_argument("--title", default="Router drops the line every evening.", help="what it is about")
    options = parser.parse_args()
    if not options.key.exists():
        save_key(options.key, generate_key())
    async with Agent(options.server, options.id, load_key(options.key), ca_file=options.ca) as agent:
        agent.on_handoff(take)
        await agent.register(agent_types=["support"], description="Takes and hands over support tickets.")
        await agent.connect()
        if options.command == "serve":
            print(f"{agent.agent_id}: waiting for tickets", flush=True)
            await agent.run(resume=True)
            return 0
        return await offer(agent, options.to, options.task, options.title)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    try:
        sys.exit(asyncio.run(main()))
    except BatonError as error:
        sys.exit(f"ticket_agent: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
