"""A handoff at its sender: a task that is handed over."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

import grpc

from baton import v1
from baton.contexts import Contexts
from baton.conversation import Conversation, Queues
from baton.delivery import Delivery
from baton.directory import Directory
from baton.errors import BatonError, HandoffFailedError, Rejection
from baton.limits import check_payload
from baton.messages import NewRequest, context_of
from baton.sections import for_wishes

OnView = Callable[[v1.SenderView], None]
"""Gets each view that the sender has of its handoff: SENDER_VIEW_*, from IDLE to HANDOFF_COMPLETED."""

LOOK_SECONDS = 5.0
"""The silence after which a side asks the broker for the state of its handoff or delegated task, in seconds."""
_OPEN = (
    v1.HANDOFF_STATE_REQUESTED,
    v1.HANDOFF_STATE_DECIDING,
    v1.HANDOFF_STATE_ACCEPTED,
    v1.HANDOFF_STATE_CONTEXT_SENT,
)
DONE_OR_OVER = {"HANDOFF_STATE", "HANDOFF_FINAL", "HANDOFF_EXPIRED", "STALE_EPOCH"}
"""Reasons of a refused step that an earlier process has completed, or whose handoff is over."""
_CANCEL_SECONDS = 10.0
_CANCEL_ATTEMPTS = 10
_ATTEMPT_SECONDS = 0.2


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
    rejections: tuple[Rejection, ...]
    """The agents that did not take the task before, in order."""


class Handover:
    """A handoff that this agent requested, from the request's receipt to its end."""

    def __init__(
        self,
        agent: "Handoffs",
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
        self._rejections: dict[str, Rejection] = {}

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

    async def end_at_limit(self) -> HandedOver:
        """Cancels the handoff at the time limit of its call, for at most 10 s.

        Returns if the task has moved before. Raises HandoffFailedError; BatonError if the handoff may still be open.
        """
        text = "the time limit of the call passed"
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                handoff = await self._cancelled(text)
        except TimeoutError:
            open_text = f"{text}, and handoff {self._handoff_id} could not be cancelled; its timeouts end it"
            raise BatonError(grpc.StatusCode.DEADLINE_EXCEEDED, open_text) from None
        if handoff is None:
            rejections = tuple(self._rejections.values())
            raise HandoffFailedError(self._handoff_id, "HANDOFF_CANCELLED", text, rejections)
        self._agent._dispatcher.known(self._handoff_id)  # noqa: SLF001
        ended = await self.go_on_from(handoff)
        if ended is None:
            raise AssertionError(f"handoff {self._handoff_id} is final and has no end")
        return ended

    async def _cancelled(self, text: str) -> v1.Handoff | None:
        """Cancels the handoff unless it has ended. Returns its end; None if the broker has not stored the request."""
        last: BatonError | None = None
        is_stored = False
        for _ in range(_CANCEL_ATTEMPTS):
            try:
                handoff = await self._agent.get_handoff(self._handoff_id)
                is_stored = True
                if not is_open(handoff):
                    return handoff
                await self._agent.send(
                    v1.HandoffCancel(reason_text=text),
                    receiver_id=handoff.candidate_id,
                    task_id=self._task_id,
                    epoch=self._epoch,
                    correlation_id=self._handoff_id,
                )
            except BatonError as error:
                # The request may still be on its way, or the handoff has moved on since the look.
                last = error
                await asyncio.sleep(_ATTEMPT_SECONDS)
        if is_stored or last is None or last.is_passing:
            raise last or BatonError(grpc.StatusCode.DEADLINE_EXCEEDED, f"{text}, and the handoff stays open")
        return None

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
        if not is_open(handoff):
            self._agent._dispatcher.known(self._handoff_id)  # noqa: SLF001
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
        self._rejections[candidate_id] = Rejection(candidate_id, reason, text)

    def _completed(self, owner_id: str) -> HandedOver:
        self._on_view(v1.SENDER_VIEW_HANDOFF_COMPLETED)
        self._agent.work.handed(self._task_id, self._epoch + 1)
        rejections = tuple(self._rejections.values())
        return HandedOver(self._handoff_id, self._task_id, owner_id, self._epoch + 1, rejections)

    def _failed(self, code: v1.ErrorCode, message: str) -> HandoffFailedError:
        return HandoffFailedError(self._handoff_id, code_of(code), message, tuple(self._rejections.values()))


class Handoffs(Contexts):
    """The calls about handoffs and their tasks. `Agent` has them."""

    _dispatcher: Queues
    _directory: Directory

    async def hand_over(
        self,
        receiver_id: str,
        task_id: str,
        request: v1.HandoffRequest,
        context: Iterable[v1.ContextSection],
        *,
        epoch: int = 1,
        parent_task_id: str | None = None,
        timeout: timedelta | None = None,  # noqa: ASYNC109
        on_view: OnView | None = None,
    ) -> HandedOver:
        """Hands a task over: sends the request, waits for an accept, sends the context and waits for the end.

        Returns within the request's whole timeout. `timeout` limits the call: at that time the agent cancels the
        handoff, for at most 10 s, and the task stays with it, unless the task has moved just before. `on_view` gets
        each view that this agent has of the handoff, as SENDER_VIEW_*: IDLE and HANDOFF_INITIATED before the request is
        stored, then those that `get_handoff` shows. Inside a handler of handoffs a new task is a part of the handler's,
        unless the request or `parent_task_id` names another parent, or an empty one.

        Raises HandoffFailedError if the task stays with this agent, HANDOFF_CANCELLED at the time limit; BatonError if
        the broker refuses the request or the context, or if the context is over 1 MiB, in which case nothing is sent.
        The same for HANDOFF_OPEN while another call of this process hands over or lends the task at this epoch. If the
        caller cancels the call, the handoff stays open for `resume_hand_over` until its timeouts.
        """
        sections = list(context)
        check_context(sections)
        self._refuse_second(task_id, epoch, is_loan=False)
        made = self.new_request(request, receiver_id, task_id, epoch, parent_task_id)
        return await self._hand_over(made, sections, on_view or (lambda _: None), timeout)

    def _refuse_second(self, task_id: str, epoch: int, *, is_loan: bool) -> None:
        """Refuses a call about a task that another call of this process waits for."""
        handoff_id = self._dispatcher.waited_for(task_id, epoch, is_loan=is_loan)
        if handoff_id:
            text = f"another call of this process waits for task {task_id}, by handoff {handoff_id}"
            metadata = {"handoff_id": handoff_id}
            raise BatonError(grpc.StatusCode.FAILED_PRECONDITION, text, reason="HANDOFF_OPEN", metadata=metadata)

    async def _hand_over(
        self,
        made: NewRequest,
        sections: list[v1.ContextSection],
        on_view: OnView,
        limit: timedelta | None = None,
    ) -> HandedOver:
        request = made.envelope
        handoff_id, task_id, epoch = request.message_id, request.task_id, request.epoch
        on_view(v1.SENDER_VIEW_IDLE)
        on_view(v1.SENDER_VIEW_HANDOFF_INITIATED)
        with self._dispatcher.conversation(handoff_id, task_id, epoch) as mail:
            handover = Handover(
                self, mail, sections, handoff_id=handoff_id, task_id=task_id, epoch=epoch, on_view=on_view
            )
            try:
                async with asyncio.timeout(None if limit is None else limit.total_seconds()) as clock:
                    await self._send_request(made)
                    on_view(v1.SENDER_VIEW_AWAITING_HANDOFF_ACCEPT)
                    return await handover.end()
            except TimeoutError:
                if not clock.expired():
                    raise
            return await handover.end_at_limit()

    async def resume_hand_over(self, handoff_id: str, context: Iterable[v1.ContextSection]) -> HandedOver:
        """Continues a handoff that an earlier process of this agent requested, from any state, to its end.

        Returns or raises as `hand_over`, also when the handoff has ended meanwhile. `owned_tasks` lists the open
        handoffs. Raises BatonError, NOT_OWNER if another agent requested the handoff, PERMISSION_DENIED if this agent
        is not a party of it.
        """
        sections = list(context)
        check_context(sections)
        with self._dispatcher.conversation(handoff_id) as mail:
            handoff = await self.get_handoff(handoff_id)
            mail.task_id, mail.epoch = handoff.task_id, handoff.epoch
            if handoff.sender_id != self.agent_id:
                text = f"handoff {handoff_id} was asked for by {handoff.sender_id}"
                raise BatonError(grpc.StatusCode.PERMISSION_DENIED, text, reason="NOT_OWNER")
            handover = Handover(
                self, mail, sections, handoff_id=handoff_id, task_id=handoff.task_id, epoch=handoff.epoch
            )
            return await handover.go_on_from(handoff) or await handover.end()

    async def get_task(self, task_id: str) -> v1.Task:
        """Returns a task. Raises BatonError, PERMISSION_DENIED; TASK_UNKNOWN if the caller may read all tasks."""
        request = v1.GetTaskRequest(task_id=task_id)
        task: v1.Task = (await self._connection.call(self._connection.tasks.GetTask, request)).task
        return task

    async def get_handoff(self, handoff_id: str) -> v1.Handoff:
        """Returns a handoff: its state, the view of either side, and each step. Raises BatonError, HANDOFF_UNKNOWN."""
        request = v1.GetHandoffRequest(handoff_id=handoff_id)
        handoff: v1.Handoff = (await self._connection.call(self._connection.handoffs.GetHandoff, request)).handoff
        return handoff


async def give_context(
    agent: Handoffs, wanted: ContextWanted, sections: Iterable[v1.ContextSection]
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
        if error.reason in DONE_OR_OVER:
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


def check_context(sections: list[v1.ContextSection]) -> None:
    """Raises the error of sending all sections: ValueError, or BatonError, PAYLOAD_TOO_LARGE."""
    check_payload(context_of(sections).ByteSize())


async def _take_back(agent: Handoffs, wanted: ContextWanted, why: str) -> None:
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
