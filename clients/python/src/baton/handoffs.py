"""The two sides of a handoff: an offer that is accepted, and a task that is handed over."""

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from baton import v1
from baton.contexts import fetch_section
from baton.conversation import Conversation
from baton.delivery import Delivery
from baton.errors import BatonError, HandoffFailedError
from baton.limits import check_payload
from baton.plans import SubtaskInputs, subtask_of
from baton.sections import for_wishes
from baton.signing import context_digest

if TYPE_CHECKING:
    from baton.agent import Agent
    from baton.loans import Outcome
    from baton.questions import Answer

OnView = Callable[[v1.SenderView], None]
"""Gets each view that the sender has of its handoff: SENDER_VIEW_*, from IDLE to HANDOFF_COMPLETED."""

LOOK_SECONDS = 30.0
"""The silence after which a side asks the broker for the state of its handoff or delegated task, in seconds."""
_OPEN = (
    v1.HANDOFF_STATE_REQUESTED,
    v1.HANDOFF_STATE_DECIDING,
    v1.HANDOFF_STATE_ACCEPTED,
    v1.HANDOFF_STATE_CONTEXT_SENT,
)
# Reasons of a refused step that an earlier process has completed, or whose handoff is over.
_DONE_OR_OVER = {"HANDOFF_STATE", "HANDOFF_FINAL", "HANDOFF_EXPIRED", "STALE_EPOCH"}


class Offer:
    """An offer of a task to this agent: `accept` or `reject` it.

    The agent extends the delivery while the handler works. After a crash, or an exception in the handler, the broker
    redelivers the unacknowledged message and the handler runs again. An offer that an earlier process of this agent
    accepted has no request; its `accept` returns the context at once.
    """

    def __init__(self, agent: "Agent", mail: Conversation, delivery: Delivery) -> None:
        envelope = delivery.envelope
        self.handoff_id = delivery.handoff_id
        self.task_id = envelope.task_id
        self.epoch = envelope.epoch
        """The task's epoch at its present owner."""
        self.sender_id = delivery.answer_to
        """The task's present owner."""
        self.request = delivery.handoff_request
        """The request; None if an earlier process of this agent accepted it."""
        self.is_award = self.request is not None and not isinstance(delivery.payload, v1.HandoffRequest)
        """Whether this is the award of a negotiation."""
        self._agent = agent
        self._mail = mail
        self._request = delivery if self.request is not None else None
        self._context = None if self.request is not None else delivery
        self._is_over = False

    async def accept(
        self,
        *,
        wanted_sections: Iterable[str] = (),
        wishes: Iterable[v1.SectionWish] = (),
        estimate: timedelta | None = None,
    ) -> "Takeover":
        """Accepts the handoff and waits for the context, by default for all sections.

        `wishes` are sections too, each with a filter, or with the digest of the version that this agent has. Raises
        HandoffFailedError if the handoff ends before the context arrives, BatonError if the accept is too late.
        """
        if self._request is not None:
            accepting = self._agent.accept(
                self._request, wanted_sections=wanted_sections, wishes=wishes, estimate=estimate
            )
            await self._say(accepting)
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
        """Rejects the handoff with a REJECT_REASON_*. The broker asks the next candidate, if any."""
        if self._request is None:
            raise RuntimeError("it was accepted; a Takeover can be refused by `fail`")
        await self._agent.reject(self._request, reason, text, retry_after=retry_after, alternatives=alternatives)
        self._is_over = True
        await self._request.ack_for_sure()
        self._request = None

    @property
    def in_hand(self) -> Delivery | None:
        """The unacknowledged delivery of this offer, if any."""
        return self._request or self._context

    @property
    def awaits_context(self) -> bool:
        """Whether the context has not arrived."""
        return self._context is None and not self._is_over

    @property
    def is_over(self) -> bool:
        """Whether this agent has rejected, completed or failed the handoff."""
        return self._is_over

    async def _say(self, accepting: Any) -> None:
        try:
            await accepting
        except BatonError as error:
            if error.reason not in _DONE_OR_OVER or not await self._is_accepted():
                raise

    async def _is_accepted(self) -> bool:
        """Whether an earlier process of this agent accepted the handoff but did not ack its request."""
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
        """Raises HandoffFailedError if the handoff has ended or has another candidate although no mail said so."""
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
    """The context of a handoff. `complete` makes this agent the task's owner; `fail` leaves it with the sender."""

    def __init__(self, offer: Offer, delivery: Delivery) -> None:
        self.offer = offer
        self.task_id = offer.task_id
        self.sections: tuple[v1.ContextSection, ...] = tuple(delivery.payload.sections)
        """The sections of the context."""
        self._delivery = delivery
        offer._agent.known_sections.note(self.task_id, self.sections)  # noqa: SLF001

    def section(self, name: str) -> v1.ContextSection:
        """Returns one section. Raises KeyError."""
        for section in self.sections:
            if section.name == name:
                return section
        raise KeyError(name)

    def json(self, name: str) -> Any:
        """Parses a JSON section. Raises KeyError; ValueError if the section is not JSON."""
        section = self.section(name)
        if section.WhichOneof("content") != "json":
            raise ValueError(f"section {name} is not JSON")
        return json.loads(section.json)

    async def fetch_section(self, name: str) -> v1.ContextSection:
        """Returns one section whole, from the message or from the broker.

        A delta is resolved; the result has the digest that the sender has signed. A section that the message does not
        have is taken from the latest earlier version that has it, and its digest is the broker's word. Raises KeyError
        if no version that this agent may read has it; BatonError; VerificationError, CONTEXT_DIGEST_MISMATCH.
        """
        sent = next((section for section in self.sections if section.name == name), None)
        found = await fetch_section(self.offer._agent, self.task_id, sent, name)  # noqa: SLF001
        if found is None:
            raise KeyError(name)
        return found

    @property
    def subtask(self) -> SubtaskInputs | None:
        """The inputs of a subtask of a plan; None if the handoff carries out no subtask."""
        return subtask_of(self.sections)

    async def fetch_subtask(self) -> SubtaskInputs | None:
        """Returns `subtask` with the whole of the results that the context had no room for.

        It is called after `complete`: from then on the broker shows the plan to this agent. Raises BatonError,
        PERMISSION_DENIED before.
        """
        inputs = self.subtask
        if inputs is None or not inputs.omitted:
            return inputs
        return inputs.filled(await self.offer._agent.join_plan(inputs.plan_id).results())  # noqa: SLF001

    async def complete(self, details: str = "") -> "OwnedTask":
        """Takes ownership. Raises VerificationError, CONTEXT_DIGEST_MISMATCH; BatonError if it is too late."""
        agent = self.offer._agent  # noqa: SLF001
        try:
            receipt = await agent.complete(self._delivery, details=details)
            owned = OwnedTask(agent, self.task_id, receipt.epoch, receipt.task_status)
        except BatonError as error:
            owned = await self._owned_before(error)
        await self._end()
        return owned

    async def fail(self, details: str) -> None:
        """Refuses the context for the reason in `details`. The handoff fails and the sender keeps the task."""
        agent = self.offer._agent  # noqa: SLF001
        await agent.complete(self._delivery, v1.HANDOFF_OUTCOME_FAILURE, details)
        await self._end()

    async def _owned_before(self, error: BatonError) -> "OwnedTask":
        """Returns the task if an earlier process completed the handoff and still owns it; otherwise raises `error`."""
        if error.reason not in _DONE_OR_OVER:
            raise error
        agent = self.offer._agent  # noqa: SLF001
        handoff = await agent.get_handoff(self.offer.handoff_id)
        if handoff.state != v1.HANDOFF_STATE_COMPLETED or handoff.candidate_id != agent.agent_id:
            raise error
        task = await agent.get_task(self.task_id)
        if task.owner_id != agent.agent_id or task.epoch != self.offer.epoch + 1:
            raise error  # the task has changed hands or epoch since
        return owned_task(agent, task)

    async def _end(self) -> None:
        self.offer._is_over = True  # noqa: SLF001
        self.offer._context = None  # noqa: SLF001
        await self._delivery.ack_for_sure()


@dataclass(frozen=True)
class OwnedTask:
    """A task that this agent owns at this epoch. After the task has moved on, calls raise STALE_EPOCH."""

    agent: "Agent"
    task_id: str
    epoch: int
    status: v1.TaskStatus = v1.TASK_STATUS_UNSPECIFIED
    """The task's status when this object was made: TASK_STATUS_*."""
    open_handoff_id: str = ""
    """The handoff that was open at that time, for `Agent.resume_hand_over`; empty without one."""

    async def report(
        self,
        details: str,
        *,
        progress: float | None = None,
        status: v1.TaskStatus = v1.TASK_STATUS_IN_PROGRESS,
        receiver_id: str = "",
    ) -> v1.Receipt:
        """Reports the task's progress."""
        return await self.agent.update_status(
            self.task_id, self.epoch, status, details, progress=progress, receiver_id=receiver_id
        )

    async def checkpoint(self, context: Iterable[v1.ContextSection]) -> v1.Receipt:
        """Stores a context of the task without a handoff: see `Agent.checkpoint`."""
        return await self.agent.checkpoint(self.task_id, self.epoch, context)

    async def ask(
        self,
        question: str,
        answer_by: str,
        *,
        within: timedelta | None = None,
        schema: Mapping[str, Any] | None = None,
        details: str = "",
    ) -> "Answer":
        """Asks one agent a question about the task, and waits for its answer: see `Agent.ask`."""
        return await self.agent.ask(
            self.task_id, self.epoch, question, answer_by, within=within, schema=schema, details=details
        )

    async def finish(
        self, result: Mapping[str, Any] | None = None, details: str = "", *, receiver_id: str = ""
    ) -> v1.Receipt:
        """Completes the task. The result of a delegated task goes to the delegator, which owns the task again."""
        return await self.agent.update_status(
            self.task_id, self.epoch, v1.TASK_STATUS_COMPLETED, details, result=result, receiver_id=receiver_id
        )

    async def hand_over(
        self,
        receiver_id: str,
        request: v1.HandoffRequest,
        context: Iterable[v1.ContextSection],
        *,
        on_view: OnView | None = None,
    ) -> "HandedOver":
        """Hands the task over: see `Agent.hand_over`."""
        return await self.agent.hand_over(
            receiver_id, self.task_id, request, context, epoch=self.epoch, on_view=on_view
        )

    async def delegate(
        self,
        receiver_id: str,
        request: v1.HandoffRequest,
        context: Iterable[v1.ContextSection],
        *,
        timeout: timedelta | None = None,  # noqa: ASYNC109
        loan_timeout: timedelta | None = None,
        on_view: OnView | None = None,
    ) -> "Outcome":
        """Lends the task: see `Agent.delegate`."""
        return await self.agent.delegate(
            receiver_id,
            self.task_id,
            request,
            context,
            epoch=self.epoch,
            timeout=timeout,
            loan_timeout=loan_timeout,
            on_view=on_view,
        )


def owned_task(agent: "Agent", task: v1.Task) -> OwnedTask:
    """Converts a task of this agent from its protobuf form."""
    return OwnedTask(agent, task.task_id, task.epoch, task.status, task.open_handoff_id)


@dataclass(frozen=True)
class ContextWanted:
    """An accepted handoff of this agent, whose candidate waits for the context."""

    handoff_id: str
    task_id: str
    epoch: int
    """The task's epoch at this agent."""
    candidate_id: str
    """The agent that accepted."""
    wanted_sections: tuple[str, ...]
    """The names of the requested sections; empty for all. The agent leaves out the others itself."""
    wishes: tuple[v1.SectionWish, ...] = ()
    """Further requested sections, with filters and bases. The agent makes the parts and the deltas itself."""


@dataclass(frozen=True)
class HandedOver:
    """A task that has moved to another agent."""

    handoff_id: str
    task_id: str
    owner_id: str
    """The task's new owner."""
    epoch: int
    """The epoch that began with the new owner."""
    rejections: tuple[str, ...]
    """The agents that did not take the task before, each as text with the reason."""


class Handover:
    """A handoff that this agent requested, from the request's receipt to its end."""

    def __init__(
        self,
        agent: "Agent",
        mail: Conversation,
        sections: list[v1.ContextSection],
        *,
        handoff_id: str,
        task_id: str,
        epoch: int,
        on_view: OnView | None = None,
    ) -> None:
        self._agent = agent
        self._mail = mail
        self._sections = sections
        self._on_view = on_view or (lambda _: None)
        self._handoff_id = handoff_id
        self._task_id = task_id
        self._epoch = epoch
        self._is_context_sent = False
        self._rejections: dict[str, str] = {}

    async def end(self) -> HandedOver:
        """Processes the mail of the handoff to its end. Raises HandoffFailedError."""
        while True:
            delivery = await self._mail.next_within(LOOK_SECONDS)
            if delivery is None:
                ended = await self._look()
            else:
                ended = await self._take(delivery)
            if ended is not None:
                return ended

    async def go_on_from(self, handoff: v1.Handoff) -> HandedOver | None:
        """Takes the step that the state asks for. Returns None while it is open. Raises HandoffFailedError."""
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
        """Reads the handoff's state: it can end without mail to its sender, for example when the sender cancels it."""
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
            self._mail.put(delivery)  # the dispatcher settles the rest
            raise
        await delivery.ack_for_sure()
        return ended

    async def _go_on(self, delivery: Delivery) -> HandedOver | None:
        sender_id = delivery.envelope.sender_id
        match delivery.payload:
            case v1.HandoffAccept() as accept:
                return await self._send_context(sender_id, accept.wanted_sections, accept.wishes)
            case v1.HandoffReject() as reject:
                self._rejected(sender_id, reject.reason, reject.reason_text)
            case v1.HandoffComplete(outcome=v1.HANDOFF_OUTCOME_SUCCESS):
                return self._completed(sender_id)
            case v1.ErrorNotification(next_step=v1.NEXT_STEP_KEEP_TASK) as told:
                raise self._failed(told.error_code, told.error_message)
        return None

    async def _send_context(
        self, candidate_id: str, wanted_sections: Iterable[str], wishes: Iterable[v1.SectionWish] = ()
    ) -> HandedOver | None:
        if self._is_context_sent:
            return None  # a redelivered accept
        self._on_view(v1.SENDER_VIEW_CONTEXT_PREPARING)
        wanted = ContextWanted(
            self._handoff_id, self._task_id, self._epoch, candidate_id, tuple(wanted_sections), tuple(wishes)
        )
        handoff = await give_context(self._agent, wanted, self._sections)
        self._is_context_sent = True
        self._on_view(v1.SENDER_VIEW_AWAITING_CONTEXT_ACK)
        return None if handoff is None else await self.go_on_from(handoff)

    def _rejected(self, candidate_id: str, reason: v1.RejectReason, text: str) -> None:
        self._rejections[candidate_id] = f"{candidate_id}: {text or v1.RejectReason.Name(reason)}"

    def _completed(self, owner_id: str) -> HandedOver:
        self._on_view(v1.SENDER_VIEW_HANDOFF_COMPLETED)
        rejections = tuple(self._rejections.values())
        return HandedOver(self._handoff_id, self._task_id, owner_id, self._epoch + 1, rejections)

    def _failed(self, code: v1.ErrorCode, message: str) -> HandoffFailedError:
        return HandoffFailedError(self._handoff_id, code_of(code), message, tuple(self._rejections.values()))


async def give_context(
    agent: "Agent", wanted: ContextWanted, sections: Iterable[v1.ContextSection]
) -> v1.Handoff | None:
    """Sends the context of an accepted handoff.

    Returns the handoff's state if the broker expects no context: an earlier process of this agent has sent it, or the
    handoff is over. If no valid context can be sent, cancels the handoff and raises the error.
    """
    whole = list(sections)
    accept = v1.HandoffAccept(wanted_sections=wanted.wanted_sections, wishes=wanted.wishes)
    known = agent.known_sections
    try:
        await agent.send(
            context_of(for_wishes(whole, accept, lambda name, sha256: known.find(wanted.task_id, name, sha256))),
            receiver_id=wanted.candidate_id,
            task_id=wanted.task_id,
            epoch=wanted.epoch,
            correlation_id=wanted.handoff_id,
        )
    except BatonError as error:
        if error.reason in _DONE_OR_OVER:
            return await agent.get_handoff(wanted.handoff_id)
        # After a passing error the outcome is unknown, so the handoff stays open for `resume_hand_over`.
        if not error.is_passing:
            await _take_back(agent, wanted, str(error))
        raise
    except ValueError as error:
        await _take_back(agent, wanted, str(error))
        raise
    known.note(wanted.task_id, whole)
    return None


def context_of(sections: Iterable[v1.ContextSection]) -> v1.TaskContextTransfer:
    """Returns the context of these sections. Raises ValueError if one has no content."""
    chosen = list(sections)
    return v1.TaskContextTransfer(sections=chosen, context_digest=context_digest(chosen))


def check_context(sections: list[v1.ContextSection]) -> None:
    """Raises the error of sending all sections: ValueError, or BatonError, PAYLOAD_TOO_LARGE."""
    check_payload(context_of(sections).ByteSize())


async def _take_back(agent: "Agent", wanted: ContextWanted, why: str) -> None:
    cancel = v1.HandoffCancel(reason_text=f"there is no context: {why}"[:1024])
    with contextlib.suppress(BatonError):  # otherwise the handoff ends by its timeout
        await agent.send(
            cancel,
            receiver_id=wanted.candidate_id,
            task_id=wanted.task_id,
            epoch=wanted.epoch,
            correlation_id=wanted.handoff_id,
        )


def is_open(handoff: v1.Handoff) -> bool:
    """Whether the handoff is still open."""
    return handoff.state in _OPEN


def code_of(code: v1.ErrorCode) -> str:
    """Returns the name of an error code, as in ErrorInfo.reason."""
    try:
        return v1.ErrorCode.Name(code).removeprefix("ERROR_CODE_")
    except ValueError:
        return str(code)  # a code of a newer schema
