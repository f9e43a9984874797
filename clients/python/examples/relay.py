"""The Python agent of the relay test (tests/relay): a task goes from language to language and comes back.

    relay.py SERVER CA.pem ID KEY.pem start TASK NEXT    makes the task, hands it over, and finishes it on return
    relay.py SERVER CA.pem ID KEY.pem route NODE,NODE    starts a run over the task that it takes, and chooses a node
    relay.py SERVER CA.pem ID KEY.pem audit TASK         checks its custody log

Prints each event as a JSON line.
"""

import asyncio
import json
import logging
import sys

from baton import Agent, HandoffFailedError, Offer, bytes_section, context_digest, json_section, load_key, v1


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
    say("handed", receiver=handed.owner_id, epoch=handed.epoch, rejections=list(map(str, handed.rejections)))
    await back.wait()


async def route(agent: Agent, targets: str) -> None:
    """Starts a run over the task that it takes. The nodes are agents. Chooses the next one after a rejection."""
    moved = asyncio.Event()
    chosen = targets.split(",")
    nodes = [v1.Node(node_id=agent.agent_id, description="plans", handoffs=3, output_nodes=[*chosen, "end"])]
    nodes += [v1.Node(node_id=name, description="works", agent_id=name, output_nodes=["end"]) for name in chosen]
    # The model of the last one may go back to the first.
    nodes[-1].handoffs = 1
    nodes[-1].output_nodes[:] = [chosen[0], "end"]

    @agent.on_handoff
    async def take(offer: Offer) -> None:
        takeover = await offer.accept()
        task = await takeover.complete()
        await agent.register_graph(v1.Graph(graph_id="support", entry_node_ids=[agent.agent_id], nodes=nodes))
        run = await agent.start_run("support", task_id=task.task_id)
        say("started", run=run.run_id)
        for target in chosen:
            tools = await run.tools(agent.agent_id)
            arguments = json.dumps({"reason": f"{target} is next"})
            call = v1.ToolCall(call_id="1", name=f"transfer_to_{target}", arguments_json=arguments)
            step = await run.turn(agent.agent_id, calls=[call])
            if step.proposal is None:
                raise SystemExit(f"the choice needs no handoff: {step.answer}")
            try:
                handed = await task.hand_over(step.receiver_id, step.proposal, takeover.sections)
            except HandoffFailedError as failed:
                say("failed", target=target, remaining=tools.remaining, rejections=list(map(str, failed.rejections)))
            else:
                say("handed", receiver=handed.owner_id, epoch=handed.epoch, remaining=tools.remaining)
                moved.set()
                return

    await agent.register(agent_types=["relay"])
    await agent.connect()
    say("ready")
    await moved.wait()


async def audit(agent: Agent, task_id: str) -> None:
    """Verifies the whole custody log and prints the task's state after its last entry."""
    log = await agent.verify_custody(task_id)
    last = v1.CustodyEntry.FromString(log.entries[-1].entry_bytes)
    say("audited", entries=len(log.entries), owner=last.owner_id, epoch=last.epoch)


async def main() -> None:
    """Parses the command line and runs its command."""
    server, ca_file, agent_id, key, command, *arguments = sys.argv[1:]
    async with Agent(server, agent_id, load_key(key), ca_file=ca_file) as agent:
        if command == "start":
            await start(agent, *arguments)
        else:
            await (route if command == "route" else audit)(agent, *arguments)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main())
