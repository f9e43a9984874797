"""A support agent that hands tickets over, or takes them.

    ticket_agent.py --server 127.0.0.1:22866 --ca baton-data/tls/ca.pem --id bob --key bob.pem serve
    ticket_agent.py --server 127.0.0.1:22866 --ca baton-data/tls/ca.pem --id alice --key alice.pem offer --to bob

The key file is made if it is not there. `offer` ends when the ticket is bob's, or with exit code 1 when it is not.
"""

import argparse
import asyncio
import sys
import uuid
from pathlib import Path

from baton import Agent, BatonError, Delivery, VerificationError, generate_key, json_section, load_key, save_key, v1


async def offer(agent: Agent, to: str, task_id: str, title: str) -> int:
    """Hands one ticket over and waits until it is gone. Returns the exit code."""
    request = v1.HandoffRequest(
        task_type="support-ticket",
        reason=v1.HANDOFF_REASON_SKILL,
        priority=v1.PRIORITY_HIGH,
        initial_context_summary=title,
    )
    receipt = await agent.request_handoff(to, task_id, request)
    handoff_id = receipt.handoff_id
    print(f"{task_id}: offered to {to}, handoff {handoff_id}", flush=True)
    async for delivery in agent.deliveries():
        code = None
        if delivery.envelope.correlation_id == handoff_id:
            code = await answer(agent, delivery, task_id, title)
        await delivery.ack()
        if code is not None:
            return code
    return 1


async def answer(agent: Agent, delivery: Delivery, task_id: str, title: str) -> int | None:
    """Takes one message of the handoff that we asked for. Returns the exit code once it is over."""
    sender = delivery.envelope.sender_id
    match delivery.payload:
        case v1.HandoffAccept():
            await agent.send_context(delivery, ticket(title))
            print(f"{task_id}: {sender} accepted, context sent", flush=True)
        case v1.HandoffReject() as reject:
            print(f"{task_id}: {sender} does not take it: {reject.reason_text}", flush=True)
        case v1.HandoffComplete(outcome=v1.HANDOFF_OUTCOME_SUCCESS):
            task = await agent.get_task(task_id)
            print(f"{task_id}: handed over, owned by {task.owner_id} at epoch {task.epoch}", flush=True)
            return 0
        case v1.ErrorNotification() as error:
            print(f"{task_id}: not handed over: {error.error_message}", flush=True)
            return 1
    return None


def ticket(title: str) -> list[v1.ContextSection]:
    """What the next agent needs to know."""
    return [
        json_section("task_description", {"title": title, "customer": "4711", "product": "router"}),
        json_section("history_log", [{"who": "customer", "text": title}, {"who": "agent", "text": "Let me see."}]),
        json_section("goals", ["find the cause", "call the customer back"]),
    ]


async def serve(agent: Agent) -> None:
    """Takes every handoff, until stopped."""
    print(f"{agent.agent_id}: waiting for tickets", flush=True)
    async for delivery in agent.deliveries():
        try:
            await take(agent, delivery)
        except (BatonError, VerificationError) as error:
            # The handoff has gone on without us, or this delivery is a repeat: there is nothing left to do about it.
            print(f"{delivery.envelope.task_id}: {error}", flush=True)
        await delivery.ack()


async def take(agent: Agent, delivery: Delivery) -> None:
    """Takes one message of a handoff to us."""
    task_id, sender = delivery.envelope.task_id, delivery.envelope.sender_id
    match delivery.payload:
        case v1.HandoffRequest() as request:
            print(f"{task_id}: {sender} asks: {request.initial_context_summary}", flush=True)
            await agent.accept(delivery)
        case v1.TaskContextTransfer() as context:
            receipt = await agent.complete(delivery)  # checks the digest of the context
            names = ", ".join(section.name for section in context.sections)
            print(f"{task_id}: taken over from {sender} at epoch {receipt.epoch}, with {names}", flush=True)
            await agent.update_status(
                task_id, receipt.epoch, v1.TASK_STATUS_IN_PROGRESS, "reading the history", receiver_id=sender
            )
        case v1.ErrorNotification(next_step=v1.NEXT_STEP_DROP_TASK) as error:
            print(f"{task_id}: dropped: {error.error_message}", flush=True)


async def main() -> int:
    """Reads the command line, registers and connects."""
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
        await agent.register(agent_types=["support"], description="Takes and hands over support tickets.")
        await agent.connect()
        if options.command == "serve":
            await serve(agent)
            return 0
        return await offer(agent, options.to, options.task, options.title)


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except BatonError as error:
        sys.exit(f"ticket_agent: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
