"""A handoff as its two sides live through it: an offer that is taken over, and a task that is handed over."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from baton import v1
from baton.conversation import Conversation
from baton.delivery import Delivery
from baton.errors import BatonError, HandoffFailedError, VerificationError

if TYPE_CHECKING:
    from baton.agent import Agent


class Offer:
    """A task that is offered to this agent: `accept` or `reject` it.

    The handler that gets it works on its own time: what it was handed out with is extended meanwhile. After a crash or
    an exception in the handler the broker delivers again what was not yet answered, and the handler is called anew; an
    offer that was accepted before then has its context at once.
    """

    def __init__(self, agent: "Agent", mail: Conversation, delivery: Delivery) -> None:
        envelope = delivery.envelope
        self.handoff_id = delivery.handoff_id
        self.task_id = envelope.task_id
        self.epoch = envelope.epoch
        """The task's epoch at its present owner."""
        self.sender_id = envelope.sender_id
        """Its present owner."""
        is_request = isinstance(delivery.payload, v1.HandoffRequest)
        self.request: v1.HandoffRequest | None = delivery.payload if is_request else None
        """What is asked; None where an earlier life of this agent accepted it."""
        self._agent = agent
        self._mail = mail
        self._request = delivery if is_request else None
        self._context = None if is_request else delivery
        self._is_over = False

    async def accept(self, *, wanted_sections: Iterable[str] = (), estimate: timedelta | None = None) -> "Takeover":
        """Takes it, and waits for the context; `wanted_sections` empty means all of it.

        Raises HandoffFailedError if the handoff ends before the context comes, BatonError if it is too late.
        """
        if self._request is not None:
            await self._say(self._agent.accept(self._request, wanted_sections=wanted_sections, estimate=estimate))
            await self._settle(self._request)
            self._request = None
        if self._context is None:
            self._context = await self._next_context()
        return Takeover(self, self._context)

    async def reject(
        self,
        reason: v1.RejectReason,
        text: str = "",
        *,
        retry_after: timedelta | None = None,
        alternatives: Iterable[str] = (),
    ) -> None:
        """Does not take it, for a reason REJECT_REASON_*. The next candidate is asked, if there is one."""
        if self._request is None:
            raise RuntimeError("it was accepted; a Takeover can be refused by `fail`")
        await self._agent.reject(self._request, reason, text, retry_after=retry_after, alternatives=alternatives)
        self._is_over = True
        await self._settle(self._request)
        self._request = None

    @property
    def in_hand(self) -> Delivery | None:
        """What is not yet acknowledged of it."""
        return self._request or self._context

    @property
    def is_over(self) -> bool:
        """Whether it was rejected, taken over or refused here."""
        return self._is_over

    async def _say(self, accepting: Any) -> None:
        try:
            await accepting
        except BatonError as error:
            # In an earlier life this agent accepted it and did not come to ack the request.
            if not (error.reason == "HANDOFF_STATE" and error.metadata.get("state") in ("ACCEPTED", "CONTEXT_SENT")):
                raise

    async def _next_context(self) -> Delivery:
        while True:
            delivery = await self._mail.next()
            match delivery.payload:
                case v1.TaskContextTransfer():
                    return delivery
                case v1.HandoffCancel() as cancel:
                    await self._settle(delivery)
                    raise HandoffFailedError(self.handoff_id, "HANDOFF_CANCELLED", cancel.reason_text or "cancelled")
                case v1.ErrorNotification(next_step=v1.NEXT_STEP_DROP_TASK) as told:
                    await self._settle(delivery)
                    raise HandoffFailedError(self.handoff_id, code_of(told), told.error_message)
                case _:
                    await self._settle(delivery)

    async def _settle(self, delivery: Delivery) -> None:
        try:
            await delivery.ack()
        except BatonError as error:
            if error.reason != "DELIVERY_UNKNOWN":  # its time was over: it comes again, and is known then
                raise


class Takeover:
    """A context that was handed over: `complete` makes this agent the task's owner, `fail` leaves it where it is."""

    def __init__(self, offer: Offer, delivery: Delivery) -> None:
        self.offer = offer
        self.task_id = offer.task_id
        self.sections: tuple[v1.ContextSection, ...] = tuple(delivery.payload.sections)
        """The context."""
        self._delivery = delivery

    def section(self, name: str) -> v1.ContextSection:
        """One section. Raises KeyError."""
        for section in self.sections:
            if section.name == name:
                return section
        raise KeyError(name)

    def json(self, name: str) -> Any:
        """What is in a JSON section. Raises KeyError; ValueError if it is no JSON."""
        section = self.section(name)
        if section.WhichOneof("content") != "json":
            raise ValueError(f"section {name} is not JSON")
        return json.loads(section.json)

    async def complete(self, details: str = "") -> "OwnedTask":
        """Takes the task over. Raises VerificationError, CONTEXT_DIGEST_MISMATCH; BatonError if it is too late."""
        agent = self.offer._agent  # noqa: SLF001
        try:
            receipt = await agent.complete(self._delivery, details=details)
            epoch = receipt.epoch
        except BatonError as error:
            epoch = await self._epoch_if_done_before(error)
        await self._end()
        return OwnedTask(agent, self.task_id, epoch)

    async def fail(self, details: str) -> None:
        """Refuses the context, with the reason in words: the handoff fails and the sender keeps the task."""
        agent = self.offer._agent  # noqa: SLF001
        await agent.complete(self._delivery, v1.HANDOFF_OUTCOME_FAILURE, details)
        await self._end()

    async def _epoch_if_done_before(self, error: BatonError) -> int:
        """The epoch, if it was an earlier life of this agent that completed the handoff; else raises the error."""
        if error.reason != "HANDOFF_FINAL":
            raise error
        agent = self.offer._agent  # noqa: SLF001
        task = await agent.get_task(self.task_id)
        if not task.hops or task.hops[-1].handoff_id != self.offer.handoff_id or task.owner_id != agent.agent_id:
            raise error
        return task.epoch

    async def _end(self) -> None:
        self.offer._is_over = True  # noqa: SLF001
        self.offer._context = None  # noqa: SLF001
        await self.offer._settle(self._delivery)  # noqa: SLF001


@dataclass(frozen=True)
class OwnedTask:
    """A task that this agent owns at this epoch. Once it has gone, what is said of it is refused with STALE_EPOCH."""

    agent: "Agent"
    task_id: str
    epoch: int

    async def report(
        self,
        details: str,
        *,
        progress: float | None = None,
        status: v1.TaskStatus = v1.TASK_STATUS_IN_PROGRESS,
        receiver_id: str = "",
    ) -> v1.Receipt:
        """Says how it is going."""
        return await self.agent.update_status(
            self.task_id, self.epoch, status, details, progress=progress, receiver_id=receiver_id
        )

    async def finish(
        self, result: Mapping[str, Any] | None = None, details: str = "", *, receiver_id: str = ""
    ) -> v1.Receipt:
        """It is done, for good. The result of a delegated task goes to the delegator, who owns the task again."""
        return await self.agent.update_status(
            self.task_id, self.epoch, v1.TASK_STATUS_COMPLETED, details, result=result, receiver_id=receiver_id
        )

    async def hand_over(
        self, receiver_id: str, request: v1.HandoffRequest, context: Iterable[v1.ContextSection]
    ) -> "HandedOver":
        """Hands it on: as `Agent.hand_over`."""
        return await self.agent.hand_over(receiver_id, self.task_id, request, context, epoch=self.epoch)


@dataclass(frozen=True)
class HandedOver:
    """A task that has gone to another agent."""

    handoff_id: str
    task_id: str
    owner_id: str
    """Who owns it now."""
    epoch: int
    """The epoch that began with it."""
    rejections: tuple[str, ...]
    """Who did not take it before, and why, in words."""


@dataclass(frozen=True)
class Outcome:
    """How a delegated task ended. It is this agent's again."""

    task_id: str
    epoch: int
    """The epoch that began with it."""
    status: v1.TaskStatus
    """TASK_STATUS_COMPLETED, FAILED or CANCELED."""
    result: dict[str, Any]
    details: str


async def hand_over(
    agent: "Agent",
    mail: Conversation,
    request: v1.Receipt,
    context: Iterable[v1.ContextSection],
) -> HandedOver:
    """Goes through a handoff that was asked for, to its end. Raises HandoffFailedError."""
    sections = list(context)
    rejections: list[str] = []
    while True:
        delivery = await mail.next()
        sender_id = delivery.envelope.sender_id
        match delivery.payload:
            case v1.HandoffAccept():
                await _send_context(agent, request, delivery, sections)
            case v1.HandoffReject() as reject:
                rejections.append(f"{sender_id}: {reject.reason_text or v1.RejectReason.Name(reject.reason)}")
            case v1.HandoffComplete(outcome=v1.HANDOFF_OUTCOME_SUCCESS):
                await delivery.ack()
                epoch = request.epoch + 1
                return HandedOver(request.handoff_id, request.task_id, sender_id, epoch, tuple(rejections))
            case v1.ErrorNotification(next_step=v1.NEXT_STEP_KEEP_TASK) as told:
                await delivery.ack()
                raise HandoffFailedError(request.handoff_id, code_of(told), told.error_message, rejections)
        await delivery.ack()


async def outcome(results: Conversation) -> Outcome:
    """Waits for the final status of a delegated task."""
    delivery = await results.next()
    await delivery.ack()
    envelope, update = delivery.envelope, delivery.payload
    result = json_format.MessageToDict(update.result)
    return Outcome(envelope.task_id, envelope.epoch + 1, update.status, result, update.details)


async def _send_context(
    agent: "Agent", request: v1.Receipt, accept: Delivery, sections: list[v1.ContextSection]
) -> None:
    try:
        await agent.send_context(accept, sections)
    except BatonError as error:
        if error.reason in ("HANDOFF_STATE", "HANDOFF_FINAL", "HANDOFF_EXPIRED"):
            return  # sent before, or over: the next mail says how it ended
        await _take_back(agent, request, accept, str(error))
        raise
    except (ValueError, VerificationError) as error:
        await _take_back(agent, request, accept, str(error))
        raise


async def _take_back(agent: "Agent", request: v1.Receipt, accept: Delivery, why: str) -> None:
    await agent.cancel(request, accept.envelope.sender_id, f"there is no context: {why}"[:1024])
    await accept.ack()


def code_of(told: v1.ErrorNotification) -> str:
    """The stable code of an ErrorNotification, as ErrorInfo.reason has it."""
    try:
        return v1.ErrorCode.Name(told.error_code).removeprefix("ERROR_CODE_")
    except ValueError:
        return str(told.error_code)  # of a newer schema
