"""Reading and following tasks and handoffs; dead letters; the audit log."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from google.protobuf.message import Message

from baton import v1
from baton.connection import Connection
from baton.following import follow, follow_changes, follow_log
from baton.work import FINAL

_LOG = logging.getLogger("baton")
_PAGE_SIZE = 200
_OVER = (
    v1.HANDOFF_STATE_COMPLETED,
    v1.HANDOFF_STATE_REJECTED,
    v1.HANDOFF_STATE_FAILED,
    v1.HANDOFF_STATE_CANCELLED,
)


@dataclass(frozen=True)
class Progress:
    """A status update of a task."""

    task_id: str
    agent_id: str
    """The agent that reports."""
    epoch: int
    status: v1.TaskStatus
    """TASK_STATUS_*."""
    progress: float | None
    """From 0 to 1; None: not reported."""
    details: str
    question: str
    """The question that the agent asks; empty: none."""
    question_id: str = ""
    """The message_id of the status update, which an answer names; empty without a question."""
    asked_agent_id: str = ""
    """The agent that is asked; empty without a question."""


OnProgress = Callable[[Progress], Awaitable[None] | None]


def progress_of(entry: v1.CustodyLogEntry) -> Progress | None:
    """Returns the status update of a custody entry; None if the entry is another event."""
    envelope = entry.envelope
    if not entry.entry.HasField("accepted") or envelope.message_type != v1.MESSAGE_TYPE_TASK_STATUS_UPDATE:
        return None
    update = v1.TaskStatusUpdate.FromString(envelope.payload.value)
    progress = update.progress if update.HasField("progress") else None
    asked = entry.entry.accepted.resolved_agent_ids if update.HasField("prompt") else ()
    return Progress(
        envelope.task_id,
        envelope.sender_id,
        envelope.epoch,
        update.status,
        progress,
        update.details,
        update.prompt.question,
        envelope.message_id if asked else "",
        asked[0] if asked else "",
    )


async def tell_progress(watch: AsyncGenerator[v1.CustodyLogEntry, None], epoch: int, on_progress: OnProgress) -> None:
    """Passes the status updates of a lent task to a callback, from this epoch on. Ends at the final one.

    An error of the watch or of the callback is logged.
    """
    try:
        async with contextlib.aclosing(watch) as entries:
            async for entry in entries:
                told = progress_of(entry)
                if told is None or told.epoch < epoch:
                    continue
                done = on_progress(told)
                if inspect.isawaitable(done):
                    await done
                if told.status in FINAL:
                    return
    except Exception:  # noqa: BLE001
        _LOG.exception("the progress of a task could not be told")


class Watching:
    """The calls that list and follow. `Agent` has them. Lists go over all pages, watches over restarts."""

    _connection: Connection

    async def list_tasks(
        self,
        *,
        owner_id: str = "",
        statuses: Iterable[v1.TaskStatus] = (),
        parent_task_id: str = "",
        asked_agent_id: str = "",
        order: v1.TaskOrder = v1.TASK_ORDER_UNSPECIFIED,
        conversation_id: str = "",
    ) -> AsyncGenerator[v1.Task, None]:
        """Yields the tasks that match all filters, the newest first. Raises BatonError, PERMISSION_DENIED."""
        request = v1.ListTasksRequest(
            page_size=_PAGE_SIZE,
            owner_id=owner_id,
            statuses=statuses,
            parent_task_id=parent_task_id,
            asked_agent_id=asked_agent_id,
            order=order,
            conversation_id=conversation_id,
        )
        while True:
            page = await self._connection.call(self._connection.tasks.ListTasks, request)
            for task in page.tasks:
                yield task
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def list_handoffs(
        self,
        *,
        task_id: str = "",
        agent_id: str = "",
        states: Iterable[v1.HandoffState] = (),
        sender_id: str = "",
        candidate_id: str = "",
        task_type: str = "",
        open_only: bool = False,
        deadline_before: datetime | None = None,
    ) -> AsyncGenerator[v1.Handoff, None]:
        """Yields the handoffs that match all filters, the newest first. Raises BatonError."""
        request = v1.ListHandoffsRequest(
            page_size=_PAGE_SIZE,
            task_id=task_id,
            agent_id=agent_id,
            states=states,
            sender_id=sender_id,
            candidate_id=candidate_id,
            task_type=task_type,
            open_only=open_only,
        )
        if deadline_before is not None:
            request.deadline_before.FromDatetime(deadline_before)
        while True:
            page = await self._connection.call(self._connection.handoffs.ListHandoffs, request)
            for handoff in page.handoffs:
                yield handoff
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def watch_task(self, task_id: str, *, after_number: int = 0) -> AsyncGenerator[v1.CustodyLogEntry, None]:
        """Yields the entries of a task's custody log after this number, until the task has ended.

        `progress_of` reads the status updates. Raises GapError where entries are missing; BatonError if the broker
        refuses.
        """
        request = v1.WatchTaskRequest(task_id=task_id, after_number=after_number)
        what = f"the custody log of task {task_id}"
        stream = follow_log(self._connection, self._connection.tasks.WatchTask, request, what)
        async with contextlib.aclosing(stream) as responses:
            async for response in responses:
                if not response.HasField("entry"):
                    continue
                yield response.entry
                if response.entry.entry.task_status in FINAL:
                    return

    async def watch_handoff(self, handoff_id: str) -> AsyncGenerator[v1.Handoff, None]:
        """Yields a handoff as it is now and after each step, until its end. Raises BatonError, HANDOFF_UNKNOWN.

        After a lost connection the first one is the present state, which may be one that was yielded before.
        """
        request = v1.WatchHandoffRequest(handoff_id=handoff_id)
        stream = follow(self._connection, self._connection.handoffs.WatchHandoff, request, lambda _: None)
        async with contextlib.aclosing(stream) as responses:
            async for response in responses:
                yield response.handoff
                if response.handoff.state in _OVER:
                    return

    async def watch_handoffs(
        self, *, after_cursor: int = 0, task_id: str = "", sender_id: str = "", task_type: str = ""
    ) -> AsyncGenerator[v1.WatchHandoffsResponse, None]:
        """Yields the open handoffs, then one `caught_up`, then each change, without end.

        `response.WhichOneof("event")` is `handoff`, `gap` or `caught_up`. A later process continues with the last
        `response.cursor` as `after_cursor`. Raises BatonError if the broker refuses.
        """
        request = v1.WatchHandoffsRequest(
            after_cursor=after_cursor, task_id=task_id, sender_id=sender_id, task_type=task_type
        )

        stream = follow_changes(self._connection, self._connection.handoffs.WatchHandoffs, request)
        async with contextlib.aclosing(stream) as responses:
            async for response in responses:
                yield response

    async def reassign_task(self, task_id: str, expected_epoch: int, to: str, reason: str = "") -> v1.Task:
        """Takes a task from its owner and hands it to another agent or `type:NAME`. For operators.

        Returns the task, which baton.coordinator owns until the new agent takes it. Raises BatonError, for example
        STALE_EPOCH, PERMISSION_DENIED.
        """
        request = v1.ReassignTaskRequest(task_id=task_id, expected_epoch=expected_epoch, to=to, reason_text=reason)
        task: v1.Task = (await self._connection.call(self._connection.tasks.ReassignTask, request)).task
        return task

    async def list_dead_letters(
        self, letters: v1.DeadLetterFilter | None = None
    ) -> AsyncGenerator[v1.DeadLetter, None]:
        """Yields the dead letters that match, by default all PARKED ones, the newest first, without envelopes."""
        request = v1.ListDeadLettersRequest(page_size=_PAGE_SIZE, filter=letters)
        while True:
            page = await self._connection.call(self._connection.dead_letters.ListDeadLetters, request)
            for letter in page.dead_letters:
                yield letter
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def get_dead_letter(self, dead_letter_id: str) -> v1.DeadLetter:
        """Returns a dead letter with its envelope. Raises BatonError."""
        return await self._letter("GetDeadLetter", v1.GetDeadLetterRequest(dead_letter_id=dead_letter_id))

    async def redrive_dead_letter(self, dead_letter_id: str, to_agent_id: str = "") -> v1.DeadLetter:
        """Puts a dead letter on its way again, to its agent or another one. Raises BatonError."""
        request = v1.RedriveDeadLetterRequest(dead_letter_id=dead_letter_id, to_agent_id=to_agent_id)
        return await self._letter("RedriveDeadLetter", request)

    async def discard_dead_letter(self, dead_letter_id: str, reason: str = "") -> v1.DeadLetter:
        """Gives a dead letter up for good. `reason` is for people. Raises BatonError."""
        request = v1.DiscardDeadLetterRequest(dead_letter_id=dead_letter_id, reason_text=reason)
        return await self._letter("DiscardDeadLetter", request)

    async def export_dead_letters(
        self, letters: v1.DeadLetterFilter | None = None
    ) -> AsyncGenerator[v1.DeadLetter, None]:
        """Yields the dead letters that match, by default all PARKED ones, the oldest first, with their envelopes.

        Raises BatonError.
        """
        request = v1.ExportDeadLettersRequest(filter=letters)
        stream = self._connection.stream(self._connection.dead_letters.ExportDeadLetters, request)
        async with contextlib.aclosing(stream) as responses:
            async for response in responses:
                yield response.dead_letter

    async def redrive_dead_letters(
        self,
        letters: v1.DeadLetterFilter | None = None,
        *,
        to_agent_id: str = "",
        max_per_second: float = 0.0,
        dry_run: bool = False,
    ) -> AsyncGenerator[v1.RedriveDeadLettersResponse, None]:
        """Redrives the PARKED dead letters that match, the oldest first, and yields each with its result.

        `response.error` is set for a dead letter that could not be redriven. `dry_run` changes nothing. To stop, close
        the generator; the same call again continues with the rest. Raises BatonError.
        """
        request = v1.RedriveDeadLettersRequest(
            filter=letters, to_agent_id=to_agent_id, max_per_second=max_per_second, dry_run=dry_run
        )
        stream = self._connection.stream(self._connection.dead_letters.RedriveDeadLetters, request)
        async with contextlib.aclosing(stream) as responses:
            async for response in responses:
                yield response

    async def _letter(self, method: str, request: Message) -> v1.DeadLetter:
        answer = await self._connection.call(getattr(self._connection.dead_letters, method), request)
        letter: v1.DeadLetter = answer.dead_letter
        return letter

    async def audit_log(self, *, after_number: int = 0) -> AsyncGenerator[v1.AuditLogEntry, None]:
        """Yields the entries of the audit log after this number, oldest first. For operators. Raises BatonError."""
        request = v1.ListAuditEntriesRequest(page_size=_PAGE_SIZE, after_number=after_number)
        while True:
            page = await self._connection.call(self._connection.audit.ListAuditEntries, request)
            for entry in page.entries:
                yield entry
            if not page.entries:
                return
            request.after_number = page.entries[-1].entry.number


async def drained(telling: "asyncio.Task[None]", seconds: float) -> None:
    """Waits a short time for the last progress of a task, and ends the watch."""
    await asyncio.wait([telling], timeout=seconds)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
