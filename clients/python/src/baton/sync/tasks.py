"""What handlers and calls of `baton.sync` get: offers, tasks, questions and mail, with calls that block."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from baton import delivery, handoffs, loans, plans, questions, tasks, v1
from baton.sync.background import Calls
from baton.watching import Progress

OnProgress = Callable[[Progress], None]
"""Gets each status update of a lent task, in the thread of the call."""
OnView = Callable[[v1.SenderView], None]
"""Gets each view that the sender has of its handoff, in the thread of the call."""


class Offer:
    """An offer of a task to this agent: `accept` or `reject` it. See `baton.Offer`."""

    def __init__(self, calls: Calls, wrapped: tasks.Offer) -> None:
        self.wrapped = wrapped
        """The same for the event loop."""
        self.handoff_id = wrapped.handoff_id
        self.task_id = wrapped.task_id
        self.epoch = wrapped.epoch
        """The task's epoch at its present owner."""
        self.sender_id = wrapped.sender_id
        """The task's present owner."""
        self.request = wrapped.request
        """The request; None if an earlier process of this agent accepted it."""
        self.resumed = wrapped.resumed
        """Whether an earlier process of this agent took the task over: `accept` and `complete` return at once."""
        self.is_award = wrapped.is_award
        """Whether this is the award of a negotiation."""
        self._calls = calls

    def accept(
        self,
        *,
        wanted_sections: Iterable[str] = (),
        wishes: Iterable[v1.SectionWish] = (),
        estimate: timedelta | None = None,
    ) -> "Takeover":
        """Accepts the handoff and waits for the context. See `baton.Offer.accept`."""
        accepting = self.wrapped.accept
        taken = self._calls.wait(lambda _: accepting(wanted_sections=wanted_sections, wishes=wishes, estimate=estimate))
        return Takeover(self._calls, taken)

    def reject(
        self,
        reason: v1.RejectReason,
        text: str = "",
        *,
        retry_after: timedelta | None = None,
        alternatives: Iterable[str] = (),
    ) -> None:
        """Rejects the handoff with a REJECT_REASON_*. See `baton.Offer.reject`."""
        rejecting = self.wrapped.reject
        self._calls.wait(lambda _: rejecting(reason, text, retry_after=retry_after, alternatives=alternatives))


class Takeover:
    """The context of a handoff. `complete` makes this agent the task's owner. See `baton.Takeover`."""

    def __init__(self, calls: Calls, wrapped: tasks.Takeover) -> None:
        self.wrapped = wrapped
        """The same for the event loop."""
        self.task_id = wrapped.task_id
        self.sections = wrapped.sections
        """The sections of the context."""
        self._calls = calls

    def section(self, name: str) -> v1.ContextSection:
        """Returns one section. Raises KeyError."""
        return self.wrapped.section(name)

    def json(self, name: str) -> Any:
        """Parses a JSON section. Raises KeyError; ValueError if the section is not JSON."""
        return self.wrapped.json(name)

    def fetch_section(self, name: str) -> v1.ContextSection:
        """Returns one section whole, from the message or from the broker. See `baton.Takeover.fetch_section`."""
        return self._calls.wait(lambda _: self.wrapped.fetch_section(name))

    @property
    def subtask(self) -> plans.SubtaskInputs | None:
        """The inputs of a subtask of a plan; None if the handoff carries out no subtask."""
        return self.wrapped.subtask

    def fetch_subtask(self) -> plans.SubtaskInputs | None:
        """Returns `subtask` with all its results. It is called after `complete`."""
        return self._calls.wait(lambda _: self.wrapped.fetch_subtask())

    def complete(self, details: str = "") -> "OwnedTask":
        """Takes ownership. See `baton.Takeover.complete`."""
        return OwnedTask(self._calls, self._calls.wait(lambda _: self.wrapped.complete(details)), self)

    def fail(self, details: str) -> None:
        """Refuses the context for the reason in `details`. The sender keeps the task."""
        self._calls.wait(lambda _: self.wrapped.fail(details))


class OwnedTask:
    """A task that this agent owns. See `baton.OwnedTask`."""

    def __init__(self, calls: Calls, wrapped: tasks.OwnedTask, takeover: Takeover | None = None) -> None:
        self.wrapped = wrapped
        """The same for the event loop."""
        self.takeover = takeover
        """The context that came with the task; None for a task of `owned_tasks` or `recall`."""
        self.task_id = wrapped.task_id
        self.status = wrapped.status
        """The task's status when this object was made: TASK_STATUS_*."""
        self.open_handoff_id = wrapped.open_handoff_id
        """The handoff that was open at that time, for `Agent.resume_hand_over`; empty without one."""
        self.resumed = wrapped.resumed
        """Whether an earlier process of this agent took the task over."""
        self._calls = calls

    @property
    def epoch(self) -> int:
        """The task's epoch at this agent: that of the takeover, or of the latest loan that came back."""
        return self.wrapped.epoch

    def __repr__(self) -> str:
        """Names the task and its epoch."""
        return repr(self.wrapped)

    def json(self, name: str) -> Any:
        """Parses a JSON section of the context that came with the task. Raises KeyError; ValueError."""
        if self.takeover is None:
            raise KeyError(name)
        return self.takeover.json(name)

    def report(
        self,
        details: str,
        *,
        progress: float | None = None,
        status: v1.TaskStatus = v1.TASK_STATUS_IN_PROGRESS,
        receiver_id: str = "",
    ) -> v1.Receipt:
        """Reports the task's progress."""
        reporting = self.wrapped.report
        return self._calls.wait(lambda _: reporting(details, progress=progress, status=status, receiver_id=receiver_id))

    def extend(self, by: timedelta, details: str = "") -> v1.Receipt:
        """Asks that the loan by which this agent has the task is due `by` later than now."""
        return self._calls.wait(lambda _: self.wrapped.extend(by, details))

    def cancel(self, details: str = "", *, keep_parts: bool = False) -> v1.Receipt:
        """Ends the task as CANCELED. Its open parts are cancelled with it, down the tree, unless `keep_parts`."""
        return self._calls.wait(lambda _: self.wrapped.cancel(details, keep_parts=keep_parts))

    def checkpoint(self, context: Iterable[v1.ContextSection]) -> v1.Receipt:
        """Stores a context of the task without a handoff."""
        sections = list(context)
        return self._calls.wait(lambda _: self.wrapped.checkpoint(sections))

    def ask(
        self,
        question: str,
        answer_by: str,
        *,
        within: timedelta | None = None,
        schema: Mapping[str, Any] | None = None,
        details: str = "",
    ) -> questions.Answer:
        """Asks one agent a question about the task, and waits for its answer. Raises NoAnswerError."""
        asking = self.wrapped.ask
        return self._calls.wait(lambda _: asking(question, answer_by, within=within, schema=schema, details=details))

    def finish(
        self, result: Mapping[str, Any] | None = None, details: str = "", *, receiver_id: str = ""
    ) -> v1.Receipt:
        """Completes the task. The result of a delegated task goes to the delegator, which owns the task again."""
        return self._calls.wait(lambda _: self.wrapped.finish(result, details, receiver_id=receiver_id))

    def hand_over(
        self,
        receiver_id: str,
        request: v1.HandoffRequest,
        context: Iterable[v1.ContextSection],
        *,
        timeout: timedelta | None = None,
        on_view: OnView | None = None,
    ) -> handoffs.HandedOver:
        """Hands the task over. See `Agent.hand_over`."""
        handing_over, sections = self.wrapped.hand_over, list(context)
        return self._calls.wait(
            lambda call: handing_over(receiver_id, request, sections, timeout=timeout, on_view=call.view(on_view))
        )

    def delegate(
        self,
        receiver_id: str,
        request: v1.HandoffRequest,
        context: Iterable[v1.ContextSection],
        *,
        timeout: timedelta | None = None,
        loan_timeout: timedelta | None = None,
        thread_id: str = "",
        on_view: OnView | None = None,
        on_progress: OnProgress | None = None,
    ) -> loans.Outcome:
        """Lends the task. Once it is back, the next calls have its new epoch. See `Agent.delegate`."""
        sections = list(context)
        return self._calls.wait(
            lambda call: self.wrapped.delegate(
                receiver_id,
                request,
                sections,
                timeout=timeout,
                loan_timeout=loan_timeout,
                thread_id=thread_id,
                on_view=call.view(on_view),
                on_progress=call.progress(on_progress),
            )
        )

    @property
    def is_here(self) -> bool:
        """Whether this agent still has the task, as far as this process knows: not ended, and not handed on or lent."""
        return self.wrapped.is_here


class Question:
    """A question to this agent about another agent's task: `answer` answers it once. See `baton.Question`."""

    def __init__(self, calls: Calls, wrapped: questions.Question) -> None:
        self.wrapped = wrapped
        """The same for the event loop."""
        self.question_id = wrapped.question_id
        """The message_id of the status update that asks, for `Agent.answer`."""
        self.task_id = wrapped.task_id
        self.epoch = wrapped.epoch
        """The task's epoch at its owner."""
        self.owner_id = wrapped.owner_id
        """The task's owner, which asks."""
        self.text = wrapped.text
        """The question, for people."""
        self.details = wrapped.details
        """The details of the status update, for people."""
        self.schema = wrapped.schema
        """The JSON Schema that the answer's data must fit; None: any data."""
        self.answer_before = wrapped.answer_before
        """The time at which the question expires, UTC; None: never."""
        self._calls = calls

    def answer(self, text: str = "", data: Mapping[str, Any] | None = None) -> v1.Receipt:
        """Answers the question. The first answer counts."""
        return self._calls.wait(lambda _: self.wrapped.answer(text, data))


class Delivery:
    """A message of this agent's mail. It must be acked, nacked or extended before ack_deadline."""

    def __init__(self, calls: Calls, wrapped: delivery.Delivery) -> None:
        self.wrapped = wrapped
        """The same for the event loop."""
        self.envelope = wrapped.envelope
        """The envelope as its sender sent it."""
        self.payload = wrapped.payload
        """The payload as the message of baton.v1 that message_type names, for example v1.Info."""
        self.sequence = wrapped.sequence
        """The message's position in the order of everything that the broker stored."""
        self.handoff_id = wrapped.handoff_id
        """The handoff that the message belongs to, if any."""
        self._calls = calls

    @property
    def attempt(self) -> int:
        """The delivery attempt, starting at 1. From 2 on the message may have been handled before."""
        return self.wrapped.attempt

    @property
    def ack_deadline(self) -> datetime:
        """The time of redelivery if the message is not acknowledged, UTC."""
        return self.wrapped.ack_deadline

    def ack(self) -> None:
        """Acks the message: the broker never delivers it again. See `baton.Delivery.ack`."""
        self._calls.wait(lambda _: self.wrapped.ack())

    def nack(self, cause: v1.NackCause, text: str = "", *, retry_after: timedelta | None = None) -> None:
        """Nacks the message with a NACK_CAUSE_*. See `baton.Delivery.nack`."""
        self._calls.wait(lambda _: self.wrapped.nack(cause, text, retry_after=retry_after))

    def extend(self, extension: timedelta | None = None) -> datetime:
        """Extends the deadline from now, by at most 10 minutes (default: the ack wait). Returns the new one, UTC."""
        return self._calls.wait(lambda _: self.wrapped.extend(extension))

    def __repr__(self) -> str:
        """Names the message type and the sender, without the content."""
        return repr(self.wrapped)
