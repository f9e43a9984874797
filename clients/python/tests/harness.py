"""The program for `baton conformance --client`; docs/conformance-client.md defines its protocol."""

import asyncio
import contextlib
import json
import sys
from datetime import timedelta
from typing import Any

from baton import (
    Agent,
    BatonError,
    Bid,
    ContextWanted,
    HandoffFailedError,
    Negotiation,
    Offer,
    OfferWanted,
    OwnedTask,
    PoisonError,
    Recalled,
    RetryLaterError,
    TaskRecalledError,
    UntrustedError,
    VerificationError,
    json_section,
    load_key,
    offer,
    v1,
)
from baton.delivery import Delivery


def say(event: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def account(error: Exception) -> dict[str, Any]:
    """Converts an error to the protocol's JSON form."""
    message = str(error)
    match error:
        case UntrustedError():
            return {"kind": "untrusted", "message": message}
        case BatonError() if error.reason:
            delay = error.retry_delay
            return {
                "kind": "refused",
                "reason": error.reason,
                "code": error.code.name,
                "metadata": error.metadata,
                "retry_delay_ms": None if delay is None else round(delay * 1000),
                "message": message,
            }
        case BatonError():
            return {"kind": "unavailable", "message": message}
        case VerificationError() | HandoffFailedError():
            kind = "unverified" if isinstance(error, VerificationError) else "handoff_failed"
            return {"kind": kind, "reason": error.reason, "message": message}
        case TaskRecalledError():
            return {"kind": "recalled", "reason": error.reason.value, "epoch": error.epoch, "message": message}
    return {"kind": "other", "message": f"{type(error).__name__}: {message}"}


def sections_of(context: dict[str, Any]) -> list[v1.ContextSection]:
    return [json_section(name, value) for name, value in context.items()]


def milliseconds(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(milliseconds=value)


class Harness:
    def __init__(self) -> None:
        self.agent: Agent | None = None
        self.grace = timedelta()
        self.context: list[v1.ContextSection] = []
        self.how: dict[str, dict[str, Any]] = {}
        self.released = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        self.calls: dict[int, asyncio.Task[None]] = {}
        self.reading = contextlib.AsyncExitStack()
        self.negotiation: Negotiation | None = None
        self.bids: dict[str, Bid] = {}

    async def run(self) -> None:
        say("hello", protocol=1, language="python", library="baton-client")
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command = json.loads(line)
            task = asyncio.create_task(self.obey(command))
            self.tasks.add(task)
            self.calls[command["id"]] = task
            task.add_done_callback(self.tasks.discard)
            if command["command"] in ("handle", "release"):
                await task

    async def obey(self, command: dict[str, Any]) -> None:
        try:
            facts = await getattr(self, command["command"])(command)
        except asyncio.CancelledError:
            say("failed", id=command["id"], kind="cancelled", message="the call was cancelled")
        except Exception as error:  # noqa: BLE001
            say("failed", id=command["id"], **account(error))
        else:
            say("done", id=command["id"], **(facts or {}))

    async def connect(self, command: dict[str, Any]) -> None:
        self.grace = timedelta(milliseconds=command["stop_grace_ms"])
        self.agent = agent = Agent(
            command["server"],
            command["agent_id"],
            load_key(command["key"]),
            key_id=command["key_id"],
            ca_file=command["ca"],
            credit=command["credit"],
            handler_timeout=milliseconds(command.get("handler_timeout_ms")),
        )
        agent.on_handoff(self.take)
        agent.on_recalled(self.recalled)
        agent.on_task_request(self.bid)
        agent.on(v1.Info, v1.TaskAccept, v1.NegotiationClosed)(self.read)
        if "context" in command:
            self.context = sections_of(command["context"])
            agent.context_provider(self.provide)
        await agent.connect(resume=command.get("resume", False))
        watching = asyncio.create_task(self.watch(agent))
        self.tasks.add(watching)

    async def watch(self, agent: Agent) -> None:
        try:
            await agent.run()
        except BatonError as error:
            say("ended", **account(error))

    async def take(self, offer: Offer) -> None:
        if offer.resumed:
            task = await (await offer.accept()).complete()
            say("resumed", task_id=task.task_id, epoch=task.epoch)
            await self.work(task)
            return
        say("handling", type="HandoffRequest", handoff_id=offer.handoff_id, task_id=offer.task_id)
        if await self.does("HandoffRequest") == "reject":
            await offer.reject(v1.REJECT_REASON_NO_SKILL, "told to reject")
            return
        task = await (await offer.accept()).complete()
        say("owned", task_id=task.task_id, handoff_id=offer.handoff_id, epoch=task.epoch)
        await self.work(task)

    async def work(self, task: OwnedTask) -> None:
        """Does with a task what the instructions for handoffs say."""
        told = self.how.get("HandoffRequest", {})
        match told.get("as"):
            case "work":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    say("stopped", task_id=task.task_id)
                    raise
            case "finish":
                await task.finish({"text": "x" * told["bytes"]} if "bytes" in told else told["result"])
            case "fail":
                raise RuntimeError("told to fail")

    async def recalled(self, recalled: Recalled) -> None:
        say("recalled", task_id=recalled.task_id, handoff_id=recalled.handoff_id, epoch=recalled.epoch)

    async def provide(self, _: ContextWanted) -> list[v1.ContextSection]:
        return self.context

    async def read(self, delivery: Delivery) -> None:
        envelope = delivery.envelope
        kind = type(delivery.payload).__name__
        facts: dict[str, Any] = {"sender_id": envelope.sender_id, "attempt": delivery.attempt}
        if isinstance(delivery.payload, v1.NegotiationClosed):
            facts["winner_id"] = delivery.payload.winner_id
        say("handling", type=kind, message_id=envelope.message_id, **facts)
        await self.does(kind)

    async def bid(self, wanted: OfferWanted) -> v1.TaskOffer | v1.TaskDecline:
        kind = "TaskRequest" if wanted.counter is None else "TaskOffer"
        say("handling", type=kind, negotiation_id=wanted.negotiation_id)
        how = await self.does(kind)
        if how == "decline":
            return v1.TaskDecline(reason=v1.REJECT_REASON_OVERLOADED, reason_text="told to decline")
        if how == "withdraw":
            return v1.TaskOffer(withdrawn=True)
        return offer(confidence=0.9, cost=5 if wanted.counter is None else wanted.counter.cost)

    async def does(self, kind: str) -> str:
        """Returns the instructions for a handler of this message type; the caller handles the rest."""
        how: str = self.how.get(kind, {}).get("as", "")
        match how:
            case "throw":
                raise RuntimeError("told to throw")
            case "poison":
                raise PoisonError("told that it is poison")
            case "later":
                raise RetryLaterError(timedelta(seconds=7))
            case "wait":
                await self.released.wait()
        return how

    async def handle(self, command: dict[str, Any]) -> None:
        self.how[command["type"]] = command

    async def release(self, _: dict[str, Any]) -> None:
        self.released.set()
        self.released = asyncio.Event()

    async def send(self, command: dict[str, Any]) -> dict[str, Any]:
        text = "x" * command["bytes"] if "bytes" in command else command["text"]
        receipt = await self.connected.send(v1.Info(text=text), receiver_id=command["to"])
        return {"message_id": receipt.message_id}

    async def hand_over(self, command: dict[str, Any]) -> dict[str, Any]:
        request = v1.HandoffRequest(task_type=command["task_type"])
        context = sections_of(command["context"])
        handed = await self.connected.hand_over(
            command["to"],
            command["task_id"],
            request,
            context,
            epoch=command["epoch"],
            timeout=milliseconds(command.get("timeout_ms")),
        )
        return {"owner_id": handed.owner_id, "epoch": handed.epoch}

    async def resume(self, command: dict[str, Any]) -> dict[str, Any]:
        handed = await self.connected.resume_hand_over(command["handoff_id"], sections_of(command["context"]))
        return {"owner_id": handed.owner_id, "epoch": handed.epoch}

    async def delegate(self, command: dict[str, Any]) -> dict[str, Any]:
        request = v1.HandoffRequest(task_type=command["task_type"])
        context = sections_of(command["context"])
        outcome = await self.connected.delegate(
            command["to"],
            command["task_id"],
            request,
            context,
            epoch=command["epoch"],
            timeout=milliseconds(command.get("timeout_ms")),
            loan_timeout=milliseconds(command.get("loan_timeout_ms")),
        )
        status = v1.TaskStatus.Name(outcome.status).removeprefix("TASK_STATUS_")
        return {"epoch": outcome.epoch, "status": status, "result": outcome.result}

    async def recall(self, command: dict[str, Any]) -> dict[str, Any]:
        task = await self.connected.recall(command["handoff_id"], command["text"])
        return {"epoch": task.epoch}

    async def cancel(self, command: dict[str, Any]) -> None:
        self.calls[command["call"]].cancel()

    async def owned_tasks(self, _: dict[str, Any]) -> dict[str, Any]:
        owned = await self.connected.owned_tasks()
        tasks = [{"task_id": one.task_id, "epoch": one.epoch, "handoff_id": one.open_handoff_id} for one in owned]
        return {"tasks": tasks}

    async def negotiate(self, command: dict[str, Any]) -> dict[str, Any]:
        request = v1.TaskRequest(description=command["text"])
        self.negotiation = await self.reading.enter_async_context(self.connected.negotiate(command["to"], request))
        self.tasks.add(asyncio.create_task(self.say_offers(self.negotiation)))
        return {"negotiation_id": self.negotiation.negotiation_id}

    async def say_offers(self, negotiation: Negotiation) -> None:
        async for bid in negotiation:
            self.bids[bid.offer_id] = bid
            terms = {"cost": bid.offer.cost, "round": bid.offer.round}
            facts = {"agent_id": bid.agent_id, "offer_id": bid.offer_id, **terms}
            say("offered", negotiation_id=negotiation.negotiation_id, **facts)
        closed = await negotiation.closed()
        state = v1.NegotiationState.Name(closed.state).removeprefix("NEGOTIATION_STATE_")
        say("closed", negotiation_id=negotiation.negotiation_id, state=state)

    async def counter(self, command: dict[str, Any]) -> None:
        await self.bids[command["offer_id"]].counter(cost=command["cost"])

    async def award(self, command: dict[str, Any]) -> None:
        assert self.negotiation is not None
        await self.negotiation.award(self.bids[command["offer_id"]], command["text"])

    async def close(self, _: dict[str, Any]) -> None:
        await self.connected.close(self.grace)

    @property
    def connected(self) -> Agent:
        assert self.agent is not None
        return self.agent


if __name__ == "__main__":
    asyncio.run(Harness().run())
