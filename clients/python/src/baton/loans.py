"""Lent tasks: the wait for a delegate's result, and the ways in which the task comes back without one."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import grpc

from baton import handoffs, v1
from baton.conversation import Conversation
from baton.errors import BatonError, HandoffFailedError, RecallReason, TaskRecalledError
from baton.handoffs import HandedOver, Handoffs, Handover, OnView
from baton.limits import json_object
from baton.messages import NewRequest
from baton.watching import OnProgress, Watching, drained, tell_progress

_LOG = logging.getLogger("baton")

LOAN_TIMEOUT_DEFAULT = timedelta(hours=1)
"""The loan timeout of `delegate` when the call names neither a loan timeout nor a time limit."""
_LOAN_TIMEOUT_MIN = timedelta(seconds=1)
_LOAN_TIMEOUT_MAX = timedelta(days=30)
_WHOLE_TIMEOUT_DEFAULT = timedelta(seconds=360)
# The broker's own timeouts end a delegation. This is the time for the news of it.
_NEWS_TIME = timedelta(seconds=60)
_REASONS = {
    v1.ERROR_CODE_TASK_RECALLED: RecallReason.RECALL,
    v1.ERROR_CODE_TASK_REASSIGNED: RecallReason.REASSIGNED,
    v1.ERROR_CODE_TASK_ABANDONED: RecallReason.ABANDONED,
    v1.ERROR_CODE_TASK_CANCELED: RecallReason.CANCELED,
}
_TAKE_BACK_SECONDS = 10.0
_TAKE_BACK_ATTEMPTS = 10
_ATTEMPT_SECONDS = 0.2
_LOG_PAGE = 100
# The time that the watch of a lent task gets for its last entries after the result.
_PROGRESS_SECONDS = 2.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a delegated task, which this agent owns again."""

    task_id: str
    epoch: int
    """The epoch that began with its return."""
    status: v1.TaskStatus
    """TASK_STATUS_COMPLETED, FAILED or CANCELED; another status if a handoff returned the task unfinished."""
    result: dict[str, Any]
    details: str


@dataclass(frozen=True)
class Recalled:
    """A task that was taken from this agent: by a recall, at its loan timeout, or by an operator."""

    task_id: str
    handoff_id: str
    """The handoff that lent the task, to this agent or before it."""
    epoch: int
    """The task's epoch after the recall. The broker refuses messages about the task of a lower one."""
    message: str
    """The explanation, for people."""
    is_reassigned: bool = False
    """Whether an operator reassigned the task."""
    reason: RecallReason = RecallReason.RECALL
    """RECALL also at the loan timeout; REASSIGNED, ABANDONED or CANCELED."""


def recalled_by(notice: Any, broker_id: str) -> v1.ErrorNotification | None:
    """Returns the payload of a delivery if it is the broker's notice that a task has left its owner.

    That is a recall, a reassignment, a task without a sign of work, or a task that was cancelled as a part.
    """
    payload = notice.payload
    is_notice = isinstance(payload, v1.ErrorNotification) and payload.error_code in _REASONS
    return payload if is_notice and notice.envelope.sender_id == broker_id else None


def reason_of(told: v1.ErrorNotification) -> RecallReason:
    """Returns the reason that a notice of `recalled_by` gives."""
    return _REASONS[told.error_code]


@dataclass(frozen=True)
class Terms:
    """The terms of a delegation."""

    request: v1.HandoffRequest
    limit: timedelta
    """The time limit of the call."""
    is_one_time: bool
    """Whether the time limit of the call is the loan timeout too."""


@contextlib.contextmanager
def by_limit(*reasons: RecallReason) -> Iterator[None]:
    """Gives a TaskRecalledError of these reasons the reason DEADLINE, if this agent owns the task again."""
    try:
        yield
    except TaskRecalledError as back:
        if back.reason not in reasons or not back.is_owner:
            raise
        deadline, text = RecallReason.DEADLINE, back.message
        raise TaskRecalledError(back.task_id, back.handoff_id, deadline, text, epoch=back.epoch) from None


def loan_terms(
    request: v1.HandoffRequest, timeout: timedelta | None, loan_timeout: timedelta | None, thread_id: str = ""
) -> Terms:
    """Returns the terms of `delegate` with these arguments."""
    is_one_time = timeout is not None and loan_timeout is None and not request.HasField("loan_timeout")
    lent = v1.HandoffRequest()
    lent.CopyFrom(request)
    lent.mode = v1.HANDOFF_MODE_DELEGATE
    lent.thread_id = thread_id or request.thread_id
    if loan_timeout is not None:
        lent.loan_timeout.FromTimedelta(loan_timeout)
    elif not lent.HasField("loan_timeout"):
        # If this process dies, nothing but the loan timeout brings the task back.
        within = min(max(timeout, _LOAN_TIMEOUT_MIN), _LOAN_TIMEOUT_MAX) if timeout else LOAN_TIMEOUT_DEFAULT
        lent.loan_timeout.FromTimedelta(within)
    if timeout is not None:
        return Terms(lent, timeout, is_one_time)
    has_whole = lent.timeouts.HasField("whole")
    whole = lent.timeouts.whole.ToTimedelta() if has_whole else _WHOLE_TIMEOUT_DEFAULT
    return Terms(lent, whole + lent.loan_timeout.ToTimedelta() + _NEWS_TIME, is_one_time)


async def outcome(agent: Handoffs, results: Conversation, lent: HandedOver) -> Outcome:
    """Waits for the final status of a delegated task. Raises TaskRecalledError."""
    is_back = False
    while True:
        delivery = await results.next_within(handoffs.LOOK_SECONDS)
        if delivery is not None:
            envelope, payload = delivery.envelope, delivery.payload
            try:
                is_end = isinstance(payload, v1.ErrorNotification) or await _is_end(agent, lent, envelope.epoch)
                await delivery.ack_for_sure()
            except BaseException:
                results.put(delivery)  # for `end_at_deadline`; the dispatcher settles the rest
                raise
            if not is_end:
                continue
            if isinstance(payload, v1.ErrorNotification):
                reason = reason_of(payload)
                raise TaskRecalledError(
                    envelope.task_id,
                    lent.handoff_id,
                    RecallReason.LOAN_TIMEOUT if reason is RecallReason.RECALL else reason,
                    payload.error_message,
                    epoch=envelope.epoch,
                )
            result = json_object(payload.result_json)
            return Outcome(envelope.task_id, envelope.epoch + 1, payload.status, result, payload.details)
        task = await _look(agent, lent)
        if task is not None and (found := await _end_in_log(agent, lent, task)):
            return found
        if task is not None and is_back:
            return _without_news(agent, lent, task)
        # Mail about the end of the loan would have arrived by the next look.
        is_back = task is not None


async def _is_end(agent: Handoffs, lent: HandedOver, epoch: int) -> bool:
    """Whether a final status of this epoch ended the loan.

    A status of a later epoch may have ended a further loan by the delegate, and name this agent as its receiver.
    """
    if epoch == lent.epoch:
        return True
    task = await agent.get_task(lent.task_id)
    return task.owner_id == agent.agent_id and task.epoch == epoch + 1


async def _look(agent: Handoffs, lent: HandedOver) -> v1.Task | None:
    """Reads the task. Returns it if its loan has ended."""
    try:
        task = await agent.get_task(lent.task_id)
    except BatonError as error:
        if not error.is_passing:
            raise
        return None
    is_lent = any(loan.handoff_id == lent.handoff_id for loan in task.loans)
    return task if not is_lent and task.epoch > lent.epoch else None


async def _end_in_log(agent: Handoffs, lent: HandedOver, task: v1.Task) -> Outcome | None:
    """Reads in the custody log how a loan has ended. Returns None if the log does not show it.

    Raises TaskRecalledError for a recalled task.
    """
    if task.owner_id != agent.agent_id:
        return None
    try:
        found = await _first_entry_of(agent, task)
    except BatonError as error:
        if not error.is_passing:
            raise
        return None
    if found is None:
        return None
    envelope, epoch = found.envelope, task.epoch
    if envelope.message_type == v1.MESSAGE_TYPE_TASK_STATUS_UPDATE:
        await agent._directory.verify(envelope)  # noqa: SLF001
        update = v1.TaskStatusUpdate.FromString(envelope.payload.value)
        agent._dispatcher.known(envelope.message_id)  # noqa: SLF001
        return Outcome(task.task_id, epoch, update.status, json_object(update.result_json), update.details)
    reason = RecallReason.RECALL
    if found.entry.HasField("time"):
        reason = RecallReason.LOAN_TIMEOUT
    elif found.entry.HasField("silent"):
        reason = RecallReason.ABANDONED
    elif found.entry.accepted.message_type != v1.MESSAGE_TYPE_TASK_RECALL:
        return None
    text = "the loan has ended without a final status of the delegate"
    raise TaskRecalledError(task.task_id, lent.handoff_id, reason, text, epoch=epoch)


async def _first_entry_of(agent: Handoffs, task: v1.Task) -> v1.CustodyLogEntry | None:
    """Returns the entry that began the present epoch of a task."""
    last = task.custody_length
    while last > 0:
        after = max(last - _LOG_PAGE, 0)
        request = v1.GetCustodyLogRequest(task_id=task.task_id, after_number=after, page_size=last - after)
        entries: list[v1.CustodyLogEntry] = []
        while not entries or entries[-1].entry.number < last:
            page = await agent._connection.call(agent._connection.tasks.GetCustodyLog, request)  # noqa: SLF001
            if not page.entries:
                return None
            entries += page.entries
            request.after_number = entries[-1].entry.number
        for before, entry in itertools.pairwise(entries):
            if before.entry.epoch < task.epoch == entry.entry.epoch:
                return entry
        # The entry before the first one of a page is the last one of the page before.
        last = after + 1 if after else 0
    return None


def _without_news(agent: Handoffs, lent: HandedOver, task: v1.Task) -> Outcome:
    """Returns the outcome of a task that a handoff returned unfinished, or that came back with a result.

    Raises TaskRecalledError for a recalled one.
    """
    last = task.hops[-1] if task.hops else v1.TaskHop()
    is_owner = task.owner_id == agent.agent_id
    if is_owner and last.receiver_id == agent.agent_id and last.epoch == task.epoch:
        return Outcome(task.task_id, task.epoch, task.status, {}, task.details)
    if is_owner and task.result_json and task.epoch == lent.epoch + 1:
        # The log, which cannot be read, has the status of the delegate.
        return Outcome(task.task_id, task.epoch, task.status, json_object(task.result_json), task.details)
    text = "the loan has ended without a final status of the delegate"
    raise TaskRecalledError(
        task.task_id, lent.handoff_id, RecallReason.RECALL, text, epoch=task.epoch, is_owner=is_owner
    )


async def take_back(agent: Handoffs, request: v1.Envelope, reason: str) -> v1.Receipt | None:
    """Cancels the handoff of this request, or recalls the task that it lent.

    Returns the receipt of the recall. None: the task was not lent, or its loan has ended. Raises BatonError if the
    broker cannot be reached within 10 s.
    """
    try:
        async with asyncio.timeout(_TAKE_BACK_SECONDS):
            return await _take_back(agent, request, reason)
    except TimeoutError:
        text = f"task {request.task_id} could not be taken back in time; its loan timeout returns it"
        raise BatonError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None


async def _take_back(agent: Handoffs, request: v1.Envelope, reason: str) -> v1.Receipt | None:
    last: BatonError | None = None
    for _ in range(_TAKE_BACK_ATTEMPTS):
        try:
            handoff = await agent.get_handoff(request.message_id)
            if handoff.state == v1.HANDOFF_STATE_COMPLETED:
                return await _recall(agent, request, reason)
            if not handoffs.is_open(handoff):
                return None
            await agent.send(
                v1.HandoffCancel(reason_text=reason),
                receiver_id=handoff.candidate_id,
                task_id=request.task_id,
                epoch=request.epoch,
                correlation_id=request.message_id,
            )
        except BatonError as error:
            # The request may still be on its way, or the handoff has moved on since the look.
            _LOG.debug("task %s is not back yet: %s", request.task_id, error)
            last = error
            await asyncio.sleep(_ATTEMPT_SECONDS)
        else:
            return None
    if last is not None and last.is_passing:
        raise last
    return None


async def _recall(agent: Handoffs, request: v1.Envelope, reason: str) -> v1.Receipt | None:
    recall = v1.TaskRecall(reason_text=reason)
    try:
        return await agent.send(recall, task_id=request.task_id, epoch=request.epoch, correlation_id=request.message_id)
    except BatonError as error:
        if error.is_passing:
            raise
        return None  # the loan has ended


async def take_back_of_cancelled(agent: Handoffs, request: v1.Envelope) -> None:
    """As `take_back`, for a cancelled call, which has no more use for the outcome."""
    try:
        receipt = await take_back(agent, request, "the delegating call was cancelled")
        if receipt is not None:
            agent.work.back(request.task_id, receipt.epoch)
    except BatonError as error:
        _LOG.warning("the loan of task %s ends by its timeout: %s", request.task_id, error)


async def end_at_deadline(agent: Handoffs, results: Conversation, request: v1.Envelope) -> Outcome:
    """Takes the task back at the time limit of a call. Returns the delegate's result if it came first.

    Raises TaskRecalledError, or HandoffFailedError if the task was not lent.
    """
    text = "the time limit of the delegating call passed"
    receipt = await take_back(agent, request, text)
    handoff_id, task_id = request.message_id, request.task_id
    if receipt is not None:
        raise TaskRecalledError(task_id, handoff_id, RecallReason.DEADLINE, text, epoch=receipt.epoch)
    try:
        handoff = await agent.get_handoff(handoff_id)
    except BatonError as error:
        if error.is_passing:
            raise
        # The request was not stored.
        raise HandoffFailedError(handoff_id, "HANDOFF_CANCELLED", text) from error
    if handoffs.is_open(handoff):
        raise BatonError(grpc.StatusCode.DEADLINE_EXCEEDED, f"{text}, and the handoff could not be cancelled")
    handover = Handover(agent, results, [], handoff_id=handoff_id, task_id=task_id, epoch=request.epoch)
    lent = await handover.go_on_from(handoff)
    if lent is None:
        raise AssertionError(f"handoff {handoff_id} is final and has no end")
    try:
        async with asyncio.timeout(_TAKE_BACK_SECONDS):
            results.look()
            return await outcome(agent, results, lent)
    except TimeoutError:
        task = await agent.get_task(task_id)
        return _without_news(agent, lent, task)


def _check_loan(agent: Handoffs, handoff: v1.Handoff) -> None:
    """Raises BatonError for a handoff that is no loan of this agent."""
    if handoff.sender_id != agent.agent_id:
        text = f"handoff {handoff.handoff_id} was asked for by {handoff.sender_id}"
        raise BatonError(grpc.StatusCode.PERMISSION_DENIED, text, reason="NOT_OWNER")
    if handoff.mode != v1.HANDOFF_MODE_DELEGATE:
        text = f"handoff {handoff.handoff_id} hands the task over for good"
        raise BatonError(grpc.StatusCode.FAILED_PRECONDITION, text, reason="NOT_LENT")


class Loans(Handoffs, Watching):
    """The calls about lent tasks. `Agent` has them."""

    async def delegate(
        self,
        receiver_id: str,
        task_id: str,
        request: v1.HandoffRequest,
        context: Iterable[v1.ContextSection],
        *,
        epoch: int = 1,
        parent_task_id: str | None = None,
        timeout: timedelta | None = None,  # noqa: ASYNC109
        loan_timeout: timedelta | None = None,
        thread_id: str = "",
        on_view: OnView | None = None,
        on_progress: OnProgress | None = None,
        take_back_on_cancel: bool = True,
    ) -> Outcome:
        """Lends a task, and waits for its final status: `hand_over` with HANDOFF_MODE_DELEGATE, then the result.

        On return this agent owns the task again, at the next epoch. `loan_timeout`, 1 s to 30 days, is the time after
        the completion at which the broker returns the task without a result. Default: the request's, else `timeout`,
        else 1 h. `timeout` limits the whole call. At that time, and when the caller cancels the call, the agent takes
        the task back: it recalls it, or cancels a handoff that is still open, for at most 10 s. Without
        `take_back_on_cancel` a cancelled call leaves the task to `wait_for_loan`. Without `timeout` the
        whole timeout of the handoff and the loan timeout limit the call. `parent_task_id` is as for `hand_over`.
        `thread_id` names a thread in which this agent takes part: at the end the broker appends one message to its
        history. `on_progress`, a function or a coroutine function, gets each status update of the lent task in order,
        the final one too. An error of that watch does not end the call.

        Raises TaskRecalledError if the task came back without a result: its `reason` is LOAN_TIMEOUT, DEADLINE or
        RECALL; DEADLINE where `timeout` is the loan timeout too. Raises HandoffFailedError if the task was not lent:
        `reason` is NO_CANDIDATE after rejections, HANDOFF_CANCELLED at the time limit, and others as for `hand_over`.
        After a restart `wait_for_loan` goes on with the wait; without it, `owned_tasks` lists the task once it is back,
        and the TaskStatusUpdate handler gets its final status. Raises BatonError, HANDOFF_OPEN, and sends nothing,
        while another call of this process waits for the task.
        """
        sections = list(context)
        handoffs.check_context(sections)
        terms = loan_terms(request, timeout, loan_timeout, thread_id)
        self._refuse_second(task_id, epoch, is_loan=True)
        made = self.new_request(terms.request, receiver_id, task_id, epoch, parent_task_id)
        try:
            back = await self._delegate(
                made,
                sections,
                terms,
                on_view=on_view or (lambda _: None),
                on_progress=on_progress,
                take_back_on_cancel=take_back_on_cancel,
            )
        except TaskRecalledError as recalled:
            if recalled.is_owner:
                self.work.back(task_id, recalled.epoch)
            raise
        self.work.back(task_id, back.epoch)
        return back

    async def wait_for_loan(
        self,
        handoff_id: str,
        context: Iterable[v1.ContextSection] | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> Outcome:
        """Waits for the final status of a task that a handoff of this agent lends, also one of an earlier process.

        Returns or raises as `delegate`, also when the loan has ended meanwhile. Of a handoff that is still open,
        `context` is sent to the agent that accepts; without it the context provider does that, or another call. The end
        of this wait ends nothing: a cancelled call leaves the loan as it is, and the call has no time limit of its own.
        `on_progress` gets each status update of the lent task from the first one on, the final one too.

        Raises BatonError: HANDOFF_UNKNOWN; NOT_OWNER if another agent requested the handoff; NOT_LENT if it lends
        nothing, or if the task has been handed on since the loan ended; HANDOFF_OPEN while another call of this process
        waits for the task.
        """
        sections = None if context is None else list(context)
        if sections is not None:
            handoffs.check_context(sections)
        handoff = await self.get_handoff(handoff_id)
        _check_loan(self, handoff)
        task_id, epoch = handoff.task_id, handoff.epoch
        self._refuse_second(task_id, epoch, is_loan=True)
        with self._dispatcher.results(task_id, epoch + 1, handoff_id) as results:
            lent = await self._lent_by(handoff, sections)
            try:
                await self._check_latest(lent)
                results.look()
                async with self._progress_of(lent, on_progress):
                    back = await outcome(self, results, lent)
            except TaskRecalledError as recalled:
                if recalled.is_owner:
                    self.work.back(task_id, recalled.epoch)
                raise
        self.work.back(task_id, back.epoch)
        return back

    async def _lent_by(self, handoff: v1.Handoff, sections: list[v1.ContextSection] | None) -> HandedOver:
        """Goes on with a handoff until it has lent the task. Raises HandoffFailedError."""
        handoff_id, task_id, epoch = handoff.handoff_id, handoff.task_id, handoff.epoch
        if sections is not None and handoffs.is_open(handoff):
            return await self.resume_hand_over(handoff_id, sections)
        if handoffs.is_open(handoff):
            async with contextlib.aclosing(self.watch_handoff(handoff_id)) as steps:
                async for step in steps:
                    handoff = step
        self._dispatcher.known(handoff_id)
        over = Handover(self, Conversation(), [], handoff_id=handoff_id, task_id=task_id, epoch=epoch)
        lent = await over.go_on_from(handoff)
        if lent is None:
            raise AssertionError(f"handoff {handoff_id} is final and has no end")
        return lent

    async def _check_latest(self, lent: HandedOver) -> None:
        """Raises BatonError, NOT_LENT if this agent has handed the task on after the loan ended."""
        task = await self.get_task(lent.task_id)
        is_lent = any(loan.handoff_id == lent.handoff_id for loan in task.loans)
        later = [hop for hop in task.hops if hop.sender_id == self.agent_id and hop.epoch > lent.epoch]
        if later and not is_lent:
            text = f"handoff {lent.handoff_id} lends nothing any more: {later[-1].handoff_id} has moved the task since"
            raise BatonError(grpc.StatusCode.FAILED_PRECONDITION, text, reason="NOT_LENT")

    @contextlib.asynccontextmanager
    async def _progress_of(self, lent: HandedOver, on_progress: OnProgress | None) -> AsyncIterator[None]:
        """Passes the progress of a lent task to a callback, inside the context manager."""
        if on_progress is None:
            yield
            return
        telling = asyncio.create_task(tell_progress(self.watch_task(lent.task_id), lent.epoch, on_progress))
        try:
            yield
        except BaseException:
            await drained(telling, 0)
            raise
        await drained(telling, _PROGRESS_SECONDS)

    async def _delegate(
        self,
        made: NewRequest,
        sections: list[v1.ContextSection],
        terms: Terms,
        *,
        on_view: OnView,
        on_progress: OnProgress | None,
        take_back_on_cancel: bool,
    ) -> Outcome:
        # A limit that is the loan timeout too races with it: either may end the loan, and the limit is the reason.
        of_limit = {RecallReason.LOAN_TIMEOUT} if terms.is_one_time else set()
        envelope = made.envelope
        task_id, epoch = envelope.task_id, envelope.epoch
        with self._dispatcher.results(task_id, epoch + 1, envelope.message_id) as results:
            try:
                try:
                    async with asyncio.timeout(terms.limit.total_seconds()) as clock:
                        handed = await self._hand_over(made, sections, on_view)
                        async with self._progress_of(handed, on_progress):
                            with by_limit(*of_limit):
                                return await outcome(self, results, handed)
                except TimeoutError:
                    if not clock.expired():
                        raise
                # A loan that has ended by now without news has ended by the limit.
                with by_limit(*of_limit, RecallReason.RECALL):
                    return await end_at_deadline(self, results, envelope)
            except asyncio.CancelledError:
                if take_back_on_cancel:
                    await take_back_of_cancelled(self, envelope)
                raise
