"""Watches that continue over lost connections and restarts of the broker."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from baton.connection import Connection
from baton.errors import BatonError, GapError

RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""The delays between attempts without progress, in seconds. The last one repeats."""


def delay_of(attempt: int) -> float:
    """Returns the delay after this attempt, counted from 0, in seconds."""
    return RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]


async def follow(
    connection: Connection, method: Any, request: Message, move: Callable[[Any], None]
) -> AsyncGenerator[Any, None]:
    """Yields the responses of a watch, and calls again after each end of the stream that may pass.

    `move` advances the cursor in `request` to a response. Raises BatonError if the broker refuses.
    """
    attempt = -1
    while True:
        before = request.SerializeToString(deterministic=True)
        delay = 0.0
        try:
            async with contextlib.aclosing(connection.stream(method, request)) as responses:
                async for response in responses:
                    move(response)
                    yield response
        except BatonError as error:
            if not error.is_passing:
                raise
            delay = error.retry_delay or 0.0
        # A watch that made progress starts again soon.
        attempt = 0 if request.SerializeToString(deterministic=True) != before else attempt + 1
        await asyncio.sleep(max(delay, delay_of(attempt)))


async def follow_changes(connection: Connection, method: Any, request: Any) -> AsyncGenerator[Any, None]:
    """As `follow`, for changes after `request.after_cursor`, with one `caught_up`.

    Leaves out events of a later schema.
    """

    def move(response: Any) -> None:
        request.after_cursor = max(request.after_cursor, response.cursor)

    is_caught_up = False
    async with contextlib.aclosing(follow(connection, method, request, move)) as responses:
        async for response in responses:
            event = response.WhichOneof("event")
            if event is None or (event == "caught_up" and is_caught_up):
                continue
            is_caught_up = is_caught_up or event == "caught_up"
            yield response


async def follow_log(connection: Connection, method: Any, request: Any, what: str) -> AsyncGenerator[Any, None]:
    """As `follow`, for a log with numbered entries after `request.after_number`. Raises GapError at a gap."""

    def move(response: Any) -> None:
        if response.WhichOneof("update") == "entry":
            # An entry of a custody log is inside its envelope and receipt.
            entry = response.entry
            request.after_number = entry.entry.number if hasattr(entry, "entry") else entry.number

    async with contextlib.aclosing(follow(connection, method, request, move)) as responses:
        async for response in responses:
            if response.WhichOneof("update") == "gap":
                raise GapError(what, response.gap.first_number, response.gap.last_number)
            yield response


async def follow_to_end(
    stream: AsyncGenerator[Any, None], after_number: int, state: Callable[[], Awaitable[Any]], running: int
) -> AsyncGenerator[Any, None]:
    """Yields the entries of a `follow_log` after this number, until the plan or run of the log has ended.

    `state` returns the plan or run as it is now, and `running` is the state in which its log grows.
    """
    last_number = after_number
    async with contextlib.aclosing(stream) as responses:
        async for response in responses:
            may_be_last = response.HasField("caught_up")
            if response.HasField("entry"):
                last_number = response.entry.number
                may_be_last = response.entry.HasField("ended")
                yield response.entry
            # The end may lie before the first requested entry, and a plan that is retried goes on behind it.
            if may_be_last and await _has_ended(state, running, last_number):
                return


async def _has_ended(state: Callable[[], Awaitable[Any]], running: int, last_number: int) -> bool:
    try:
        now = await state()
    except BatonError as error:
        if not error.is_passing:
            raise
        return False
    # What ended since that entry has further ones.
    ended: bool = now.state != running and now.log_length <= last_number
    return ended
