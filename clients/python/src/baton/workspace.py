"""The workspace of a task: numbered entries in topics, which the agents of the task share."""

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from baton import v1
from baton.connection import Connection
from baton.delivery import duration
from baton.directory import Directory
from baton.envelopes import payload_of
from baton.errors import BatonError, VerificationError
from baton.following import delay_of, follow
from baton.messages import Messages

ENTRY_BYTES_MAX = 1024 * 1024
"""The maximum size of an entry's content, in bytes."""
_PAGE_SIZE = 1000
# A watch begins with an update. A proxy that holds back a stream does not let it through.
_SILENCE_SECONDS = 10.0
# The characters of Unicode's White_Space, as in the broker. `str.split` also splits at U+001C to U+001F.
_WHITE_SPACE = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


@dataclass(frozen=True)
class Entry:
    """An entry of a workspace."""

    sequence: int
    """The number, from 1 and dense over all topics, in the order of commits."""
    topic: str
    """The topic, normalised."""
    author_id: str
    value: Any
    """The JSON value; else the v1.ContextBytes or v1.ContextReference."""
    create_time: datetime
    """The time at which the broker appended the entry, UTC."""
    message: v1.WorkspaceEntry
    """All fields."""

    @classmethod
    def of(cls, entry: v1.WorkspaceEntry) -> "Entry":
        """Converts an entry of the schema."""
        kind = entry.WhichOneof("entry")
        value = json.loads(entry.json) if kind == "json" else getattr(entry, kind) if kind else None
        created = entry.create_time.ToDatetime(tzinfo=UTC)
        return cls(entry.sequence, entry.topic, entry.author_id, value, created, entry)


class Workspace:
    """A workspace in which this agent takes part, made by `Agent.workspace`.

        ws = agent.workspace("task:crash-7")
        number = await ws.append("findings", {"cause": "use after free"})
        async for entry in ws.watch("findings", after=number):
            print(entry.author_id, entry.value)

    All calls raise BatonError if the broker refuses: WORKSPACE_UNKNOWN, PERMISSION_DENIED, FIELD_INVALID. With
    `verify=True` each read checks the signature of each entry's author, and that the broker shows what the author has
    signed; it raises VerificationError at the first entry that does not verify.
    """

    def __init__(
        self, agent: Messages, connection: Connection, directory: Directory, workspace_id: str, *, verify: bool
    ) -> None:
        self.workspace_id = workspace_id
        """The id, for example `task:crash-7`."""
        self._agent = agent
        self._connection = connection
        self._directory = directory
        self._verifies = verify

    async def append(
        self,
        topic: str,
        value: Any,
        *,
        expected_last_sequence: int | None = None,
        source_time: datetime | None = None,
    ) -> int:
        """Appends an entry and returns its number.

        `value` is a JSON value, or a v1.ContextBytes or v1.ContextReference. After a lost connection the agent sends
        the same message again, which makes one entry. With `expected_last_sequence` the append succeeds only if this is
        the number of the workspace's last entry, 0 for none. `source_time`, with a time zone, is the writer's own time.

        Raises BatonError: SEQUENCE_CONFLICT with the right number as `last_sequence` in the metadata, WORKSPACE_CLOSED,
        QUOTA_EXCEEDED; ENTRY_TOO_LARGE over 1 MiB, before anything is sent.
        """
        append = v1.WorkspaceAppend(
            workspace_id=self.workspace_id, topic=topic, expected_last_sequence=expected_last_sequence
        )
        match value:
            case v1.ContextBytes():
                append.bytes.CopyFrom(value)
                size = len(value.data)
            case v1.ContextReference():
                append.reference.CopyFrom(value)
                size = len(value.uri.encode())
            case _:
                append.json = json.dumps(value, ensure_ascii=False, allow_nan=False)
                size = len(append.json.encode())
        if size > ENTRY_BYTES_MAX:
            text = f"the entry has {size} bytes; the limit is {ENTRY_BYTES_MAX}. Append a reference instead"
            raise BatonError(grpc.StatusCode.INVALID_ARGUMENT, text, reason="ENTRY_TOO_LARGE")
        if source_time is not None:
            append.source_time.CopyFrom(_timestamp(source_time))
        return (await self._agent.send(append)).resource_sequence

    async def page(
        self,
        *topics: str,
        after: int = 0,
        page_size: int = 0,
        wait: timedelta | None = None,
    ) -> v1.ListEntriesResponse:
        """Returns a page of entries with higher numbers than `after`, oldest first; of all topics if none is named.

        `page_size` is at most 1000, 0 for 200. If there is no entry yet, the call waits for one up to `wait`, at most
        60 s. The next page is the one after `next_after_sequence`. `gap` has the numbers that have expired.
        """
        request = v1.ListEntriesRequest(
            workspace_id=self.workspace_id,
            topics=topics,
            after_sequence=after,
            page_size=page_size,
            wait=duration(wait),
            include_envelopes=self._verifies,
        )
        seconds = wait.total_seconds() if wait is not None else 0.0
        connection = self._connection
        page: v1.ListEntriesResponse = await connection.call(connection.workspaces.ListEntries, request, seconds)
        for entry in page.entries:
            await self._check(entry)
        return page

    async def entries(self, *topics: str, after: int = 0) -> AsyncGenerator[Entry, None]:
        """Yields the entries that exist, oldest first, page by page. Expired entries are skipped."""
        while True:
            page = await self.page(*topics, after=after, page_size=_PAGE_SIZE)
            for entry in page.entries:
                yield Entry.of(entry)
            if not page.has_more:
                return
            after = page.next_after_sequence

    def __aiter__(self) -> AsyncIterator[Entry]:
        """Yields all entries that exist: see `entries`."""
        return self.entries()

    async def topics(self) -> list[v1.WorkspaceTopic]:
        """Returns the topics that have entries, by name."""
        request = v1.ListTopicsRequest(workspace_id=self.workspace_id)
        return list((await self._connection.call(self._connection.workspaces.ListTopics, request)).topics)

    async def state(self) -> v1.Workspace:
        """Returns the state of the workspace, with the head of its hash chain."""
        request = v1.GetWorkspaceRequest(workspace_id=self.workspace_id)
        state: v1.Workspace = (await self._connection.call(self._connection.workspaces.GetWorkspace, request)).workspace
        return state

    async def watch(self, *topics: str, after: int = 0) -> AsyncGenerator[Entry, None]:
        """Yields the entries that exist and then each new one, until the workspace is closed.

        The watch continues by itself over lost connections and restarts of the broker, and yields each entry once and
        in order. Expired entries are skipped; `updates` shows the gap.
        """
        async with contextlib.aclosing(self._updates(topics, after)) as updates:
            async for update in updates:
                if update.HasField("entry"):
                    yield Entry.of(update.entry)

    async def updates(self, *topics: str, after: int = 0) -> AsyncGenerator[v1.WatchEntriesResponse, None]:
        """As `watch`, but yields each update: `entry`, `gap`, `caught_up` once, and `closed` at last."""
        async with contextlib.aclosing(self._updates(topics, after)) as updates:
            async for update in updates:
                yield update

    async def _updates(self, topics: Iterable[str], after: int) -> AsyncGenerator[v1.WatchEntriesResponse, None]:
        request = self._watch_request(topics, after)

        def move(update: v1.WatchEntriesResponse) -> None:
            request.after_sequence = _after(update, request.after_sequence)

        is_caught_up = False
        stream = follow(self._connection, self._connection.workspaces.WatchEntries, request, move)
        async with contextlib.aclosing(stream) as updates:
            async for update in updates:
                kind = update.WhichOneof("update")
                if kind is None or (kind == "caught_up" and is_caught_up):
                    continue  # an update of a later schema, or the second beginning of the same watch
                is_caught_up = is_caught_up or kind == "caught_up"
                if kind == "entry":
                    await self._check(update.entry)
                yield update
                if kind == "closed":
                    return

    async def wait_for(
        self,
        topics: Iterable[str],
        timeout: timedelta | None = None,  # noqa: ASYNC109
    ) -> dict[str, Entry]:
        """Waits until each of these topics has an entry. Returns the first one of each, by the topic's normalised name.

        A topic is missing in the answer if `timeout` passes, or if the workspace is closed without it. Where streams
        fail or are held back, the call reads the entries after 1, 2, 4, 8, 16 and then every 30 s.
        """
        waiting = _Waiting(self, list(topics))
        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()) as clock:
                await waiting.run()
        except TimeoutError:
            if not clock.expired():
                raise
        return waiting.found

    def _watch_request(self, topics: Iterable[str], after: int) -> v1.WatchEntriesRequest:
        return v1.WatchEntriesRequest(
            workspace_id=self.workspace_id, topics=topics, after_sequence=after, include_envelopes=self._verifies
        )

    async def _check(self, entry: v1.WorkspaceEntry) -> None:
        """Checks the author's signature, and that it covers what the entry shows, if the workspace verifies."""
        if self._verifies:
            await self._directory.verify(entry.envelope)
            check_entry(self.workspace_id, entry)


class _Waiting:
    """The first entries of some topics, as they are found."""

    def __init__(self, workspace: Workspace, topics: list[str]) -> None:
        self.found: dict[str, Entry] = {}
        self._workspace = workspace
        self._topics = topics
        self._wanted = {normal_topic(topic) for topic in topics}
        self._after = 0
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        return self._is_closed or self.found.keys() >= self._wanted

    async def run(self) -> None:
        can_watch = True
        for attempt in itertools.count():
            if can_watch:
                can_watch = await self._watch()
            if not self.is_over:
                await self._poll()
            if self.is_over:
                return
            await asyncio.sleep(delay_of(attempt))

    async def _watch(self) -> bool:
        """Watches until the end of the stream. Returns False if the stream was held back."""
        workspace = self._workspace
        connection, request = workspace._connection, workspace._watch_request(self._topics, self._after)  # noqa: SLF001
        try:
            async with (
                asyncio.timeout(_SILENCE_SECONDS) as silence,
                contextlib.aclosing(connection.stream(connection.workspaces.WatchEntries, request)) as updates,
            ):
                async for update in updates:
                    silence.reschedule(None)
                    await self._take(update)
                    if self.is_over:
                        break
        except TimeoutError:
            if not silence.expired():
                raise
            return False
        except BatonError as error:
            # An error without a reason is not the broker's, but of what lies between.
            if error.reason and not error.is_passing:
                raise
        return True

    async def _take(self, update: v1.WatchEntriesResponse) -> None:
        if update.HasField("entry"):
            await self._workspace._check(update.entry)  # noqa: SLF001
            self.found.setdefault(update.entry.topic, Entry.of(update.entry))
        self._is_closed = update.HasField("closed")
        self._after = _after(update, self._after)

    async def _poll(self) -> None:
        try:
            while True:
                page = await self._workspace.page(*self._topics, after=self._after, page_size=_PAGE_SIZE)
                for entry in page.entries:
                    self.found.setdefault(entry.topic, Entry.of(entry))
                self._after = page.next_after_sequence
                if not page.has_more:
                    self._is_closed = page.closed
                    return
        except BatonError as error:
            if not error.is_passing:
                raise


def normal_topic(name: str) -> str:
    """Returns a topic's name as the broker normalises it: trimmed, in lower case, each run of white space one `_`."""
    return "_".join(word for word in _WHITE_SPACE.split(name.lower()) if word)


def check_entry(workspace_id: str, entry: v1.WorkspaceEntry) -> None:
    """Checks that the entry shows what its envelope says. The caller verifies the latter. Raises VerificationError."""
    append = payload_of(entry.envelope)
    kind = entry.WhichOneof("entry")
    is_shown = (
        isinstance(append, v1.WorkspaceAppend)
        and kind is not None
        and append.workspace_id == workspace_id
        and normal_topic(append.topic) == entry.topic
        and entry.envelope.sender_id == entry.author_id
        and entry.envelope.message_id == entry.message_id
        and append.WhichOneof("entry") == kind
        and getattr(append, kind) == getattr(entry, kind)
        and append.source_time == entry.source_time
    )
    if not is_shown:
        raise VerificationError("ENTRY_INVALID", f"entry {entry.sequence} differs from its envelope")


def _after(update: v1.WatchEntriesResponse, after: int) -> int:
    """Returns the number after which a watch goes on."""
    match update.WhichOneof("update"):
        case "entry":
            return update.entry.sequence
        case "gap":
            return max(after, update.gap.last_number)
        case "caught_up":
            # Entries of other topics need not be looked at again.
            return max(after, update.caught_up.last_sequence)
    return after


def _timestamp(moment: datetime) -> Timestamp:
    if moment.tzinfo is None:
        raise ValueError("source_time needs a time zone")
    made = Timestamp()
    made.FromDatetime(moment)
    return made
