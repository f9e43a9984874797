"""A handoff as its two sides live through it: an offer that is taken over, and a task that is handed over."""

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from baton import v1
from baton.conversation import Conversation
from baton.delivery import Delivery
from baton.errors import BatonError, HandoffFailedError
from baton.limits import check_payload
from baton.signing import context_digest

if TYPE_CHECKING:
    from baton.agent import Agent

LOOK_SECONDS = 30.0
"""After how long without mail of a handoff, or of a delegated task, the broker is asked how it stands."""
_OPEN = (
    v1.HANDOFF_STATE_REQUESTED,
    v1.HANDOFF_STATE_DECIDING,
    v1.HANDOFF_STATE_ACCEPTED,
    v1.HANDOFF_STATE_CONTEXT_SENT,
)
# How a broker refuses a step that an earlier process of the agent has done, or whose handoff is over.
_DONE_OR_OVER = {"HANDOFF_STATE", "HANDOFF_FINAL", "HANDOFF_EXPIRED", "STALE_EPOCH"}


class Offer:
    """A task that is offered to this agent: `accept` or `reject` it.

    The handler that gets it works on its own time: what it was handed out with is extended meanwhile. After a crash or
    an exception in the handler the broker delivers again what was not yet answered, and the handler is called anew. An
    offer that an earlier process of this agent accepted has no request, and its `accept` returns the context at once.
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
        """What is asked; None where an earlier process of this agent accepted it."""
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
            await self._request.ack_for_sure()
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
        await self._request.ack_for_sure()
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
            if error.reason not in _DONE_OR_OVER or not await self._is_accepted():
                raise

    async def _is_accepted(self) -> bool:
        """Whether an earlier process of this agent accepted the handoff and did not come to ack its request."""
        handoff = await self._agent.get_handoff(self.handoff_id)
        is_accepted = handoff.state in (v1.HANDOFF_STATE_ACCEPTED, v1.HANDOFF_STATE_CONTEXT_SENT)
        return is_accepted and handoff.candidate_id == self._agent.agent_id

    async def _next_context(self) -> Delivery:
        while True:
            delivery = await self._mail.next_within(LOOK_SECONDS)
            if delivery is None:
                await self._look()
                continue
            match delivery.payload:
                case v1.TaskContextTransfer():
                    return delivery
                case v1.HandoffCancel() as cancel:
                    await delivery.ack_for_sure()
                    raise HandoffFailedError(self.handoff_id, "HANDOFF_CANCELLED", cancel.reason_text or "cancelled")
                case v1.ErrorNotification(next_step=v1.NEXT_STEP_DROP_TASK) as told:
                    await delivery.ack_for_sure()
                    raise HandoffFailedError(self.handoff_id, code_of(told.error_code), told.error_message)
                case _:
                    await delivery.ack_for_sure()

    async def _look(self) -> None:
        """Raises HandoffFailedError if the handoff has ended, or is another candidate's, without a word to this one."""
        try:
            handoff = await self._agent.get_handoff(self.handoff_id)
        except BatonError as error:
            if not error.is_passing:
                raise
            return
        if not is_open(handoff):
            raise HandoffFailedError(self.handoff_id, code_of(handoff.error_code), handoff.error_message)
        if handoff.candidate_id != self._agent.agent_id:
            text = f"the candidate is {handoff.candidate_id} now"
            raise HandoffFailedError(self.handoff_id, "OFFER_WITHDRAWN", text)


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
            owned = OwnedTask(agent, self.task_id, receipt.epoch, receipt.task_status)
        except BatonError as error:
            owned = await self._owned_before(error)
        await self._end()
        return owned

    async def fail(self, details: str) -> None:
        """Refuses the context, with the reason in words: the handoff fails and the sender keeps the task."""
        agent = self.offer._agent  # noqa: SLF001
        await agent.complete(self._delivery, v1.HANDOFF_OUTCOME_FAILURE, details)
        await self._end()

    async def _owned_before(self, error: BatonError) -> "OwnedTask":
        """The task, if an earlier process of this agent completed the handoff and owns it still; else raises."""
        if error.reason not in _DONE_OR_OVER:
            raise error
        agent = self.offer._agent  # noqa: SLF001
        handoff = await agent.get_handoff(self.offer.handoff_id)
        if handoff.state != v1.HANDOFF_STATE_COMPLETED or handoff.candidate_id != agent.agent_id:
            raise error
        task = await agent.get_task(self.task_id)
        if task.owner_id != agent.agent_id or task.epoch != self.offer.epoch + 1:
            raise error  # it has moved on since
        return owned_task(agent, task)

    async def _end(self) -> None:
        self.offer._is_over = True  # noqa: SLF001
        self.offer._context = None  # noqa: SLF001
        await self._delivery.ack_for_sure()


@dataclass(frozen=True)
class OwnedTask:
    """A task that this agent owns at this epoch. Once it has gone, what is said of it is refused with STALE_EPOCH."""

    agent: "Agent"
    task_id: str
    epoch: int
    status: v1.TaskStatus = v1.TASK_STATUS_UNSPECIFIED
    """How it was doing when this was made: TASK_STATUS_*."""
    open_handoff_id: str = ""
    """The handoff that was open then, for `Agent.resume_hand_over`; empty if there was none."""

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

    async def delegate(
        self, receiver_id: str, request: v1.HandoffRequest, context: Iterable[v1.ContextSection]
    ) -> "Outcome":
        """Lends it: as `Agent.delegate`."""
        return await self.agent.delegate(receiver_id, self.task_id, request, context, epoch=self.epoch)


def owned_task(agent: "Agent", task: v1.Task) -> OwnedTask:
    """A task of this agent as the broker shows it."""
    return OwnedTask(agent, task.task_id, task.epoch, task.status, task.open_handoff_id)


@dataclass(frozen=True)
class ContextWanted:
    """A handoff of this agent that was accepted: the candidate waits for the context."""

    handoff_id: str
    task_id: str
    epoch: int
    """The task's epoch at this agent."""
    candidate_id: str
    """The agent that accepted."""
    wanted_sections: tuple[str, ...]
    """The names of the sections that it asks for; empty means all. What it does not want is left out by itself."""


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
    """The agents that did not take it before, and why, in words."""


@dataclass(frozen=True)
class Outcome:
    """How a delegated task ended. It is this agent's again."""

    task_id: str
    epoch: int
    """The epoch that began with it."""
    status: v1.TaskStatus
    """TASK_STATUS_COMPLETED, FAILED or CANCELED; any other where the task was given back by a handoff, not finished."""
    result: dict[str, Any]
    details: str


class Handover:
    """A handoff that this agent asked for, from the request's receipt to its end."""

    def __init__(
        self,
        agent: "Agent",
        mail: Conversation,
        sections: list[v1.ContextSection],
        *,
        handoff_id: str,
        task_id: str,
        epoch: int,
    ) -> None:
        self._agent = agent
        self._mail = mail
        self._sections = sections
        self._handoff_id = handoff_id
        self._task_id = task_id
        self._epoch = epoch
        self._is_context_sent = False
        self._rejections: dict[str, str] = {}

    async def end(self) -> HandedOver:
        """Goes on with each mail of the handoff, to its end. Raises HandoffFailedError."""
        while True:
            delivery = await self._mail.next_within(LOOK_SECONDS)
            if delivery is None:
                ended = await self._look()
            else:
                ended = await self._take(delivery)
            if ended is not None:
                return ended

    async def go_on_from(self, handoff: v1.Handoff) -> HandedOver | None:
        """Does what is to be done in this state. None: it is still open. Raises HandoffFailedError."""
        for offer in handoff.offers:
            if offer.outcome == v1.OFFER_OUTCOME_REJECTED:
                self._rejected(offer.candidate_id, offer.reject_reason, offer.reason_text)
        match handoff.state:
            case v1.HANDOFF_STATE_ACCEPTED:
                await self._send_context(handoff.candidate_id, handoff.wanted_sections)
            case v1.HANDOFF_STATE_CONTEXT_SENT:
                self._is_context_sent = True
            case v1.HANDOFF_STATE_COMPLETED:
                return self._completed(handoff.candidate_id)
            case _ if handoff.state not in _OPEN:
                raise self._failed(handoff.error_code, handoff.error_message)
        return None

    async def _look(self) -> HandedOver | None:
        """A handoff can end without a word to its sender, for example when the sender itself cancels it."""
        try:
            handoff = await self._agent.get_handoff(self._handoff_id)
        except BatonError as error:
            if not error.is_passing:
                raise
            return None
        return await self.go_on_from(handoff)

    async def _take(self, delivery: Delivery) -> HandedOver | None:
        try:
            ended = await self._go_on(delivery)
        except BaseException:
            self._mail.put(delivery)  # for the dispatcher, which settles what no conversation waits for
            raise
        await delivery.ack_for_sure()
        return ended

    async def _go_on(self, delivery: Delivery) -> HandedOver | None:
        sender_id = delivery.envelope.sender_id
        match delivery.payload:
            case v1.HandoffAccept() as accept:
                return await self._send_context(sender_id, accept.wanted_sections)
            case v1.HandoffReject() as reject:
                self._rejected(sender_id, reject.reason, reject.reason_text)
            case v1.HandoffComplete(outcome=v1.HANDOFF_OUTCOME_SUCCESS):
                return self._completed(sender_id)
            case v1.ErrorNotification(next_step=v1.NEXT_STEP_KEEP_TASK) as told:
                raise self._failed(told.error_code, told.error_message)
        return None

    async def _send_context(self, candidate_id: str, wanted_sections: Iterable[str]) -> HandedOver | None:
        if self._is_context_sent:
            return None  # an accept that came again
        wanted = ContextWanted(self._handoff_id, self._task_id, self._epoch, candidate_id, tuple(wanted_sections))
        handoff = await give_context(self._agent, wanted, self._sections)
        self._is_context_sent = True
        return None if handoff is None else await self.go_on_from(handoff)

    def _rejected(self, candidate_id: str, reason: v1.RejectReason, text: str) -> None:
        self._rejections[candidate_id] = f"{candidate_id}: {text or v1.RejectReason.Name(reason)}"

    def _completed(self, owner_id: str) -> HandedOver:
        rejections = tuple(self._rejections.values())
        return HandedOver(self._handoff_id, self._task_id, owner_id, self._epoch + 1, rejections)

    def _failed(self, code: v1.ErrorCode, message: str) -> HandoffFailedError:
        return HandoffFailedError(self._handoff_id, code_of(code), message, tuple(self._rejections.values()))


async def give_context(
    agent: "Agent", wanted: ContextWanted, sections: Iterable[v1.ContextSection]
) -> v1.Handoff | None:
    """Sends the context of a handoff that was accepted.

    Returns the handoff as it stands where the broker wants no context: an earlier process of this agent sent it, or the
    handoff is over. Where there is no context that can be sent, the handoff is cancelled, and the error raised.
    """
    try:
        await agent.send(
            context_for(sections, wanted.wanted_sections),
            receiver_id=wanted.candidate_id,
            task_id=wanted.task_id,
            epoch=wanted.epoch,
            correlation_id=wanted.handoff_id,
        )
    except BatonError as error:
        if error.reason in _DONE_OR_OVER:
            return await agent.get_handoff(wanted.handoff_id)
        # After any other error that passes nobody knows, and the handoff stays open for `resume_hand_over`.
        if not error.is_passing:
            await _take_back(agent, wanted, str(error))
        raise
    except ValueError as error:
        await _take_back(agent, wanted, str(error))
        raise
    return None


def context_for(sections: Iterable[v1.ContextSection], wanted: Iterable[str] = ()) -> v1.TaskContextTransfer:
    """The context of the sections that are wanted, all if none are named. Raises ValueError for an empty one."""
    names = set(wanted)
    chosen = [section for section in sections if not names or section.name in names]
    return v1.TaskContextTransfer(sections=chosen, context_digest=context_digest(chosen))


def check_context(sections: list[v1.ContextSection]) -> None:
    """Raises what sending all of them would: ValueError, or BatonError, PAYLOAD_TOO_LARGE."""
    check_payload(context_for(sections).ByteSize())


async def _take_back(agent: "Agent", wanted: ContextWanted, why: str) -> None:
    cancel = v1.HandoffCancel(reason_text=f"there is no context: {why}"[:1024])
    with contextlib.suppress(BatonError):  # the handoff ends by its timeout
        await agent.send(
            cancel,
            receiver_id=wanted.candidate_id,
            task_id=wanted.task_id,
            epoch=wanted.epoch,
            correlation_id=wanted.handoff_id,
        )


async def outcome(agent: "Agent", results: Conversation, lent: HandedOver) -> Outcome:
    """Waits for the final status of a delegated task."""
    is_back = False
    while True:
        delivery = await results.next_within(LOOK_SECONDS)
        if delivery is not None:
            await delivery.ack_for_sure()
            envelope, update = delivery.envelope, delivery.payload
            result = json_format.MessageToDict(update.result)
            return Outcome(envelope.task_id, envelope.epoch + 1, update.status, result, update.details)
        if (task := await _returned(agent, lent)) is not None:
            # A final status would be on its way by now: the task was given back by a handoff.
            if is_back:
                return Outcome(task.task_id, task.epoch, task.status, {}, task.details)
            is_back = True


async def _returned(agent: "Agent", lent: HandedOver) -> v1.Task | None:
    try:
        task = await agent.get_task(lent.task_id)
    except BatonError as error:
        if not error.is_passing:
            raise
        return None
    return task if task.owner_id == agent.agent_id and task.epoch > lent.epoch else None


def is_open(handoff: v1.Handoff) -> bool:
    """Whether the handoff has not ended."""
    return handoff.state in _OPEN


def code_of(code: v1.ErrorCode) -> str:
    """A stable code by its number, as ErrorInfo.reason has it."""
    try:
        return v1.ErrorCode.Name(code).removeprefix("ERROR_CODE_")
    except ValueError:
        return str(code)  # of a newer schema
