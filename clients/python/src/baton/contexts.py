"""Contexts beyond one message: versions, sections on demand, and checkpoints that go as deltas."""

from collections.abc import AsyncGenerator, Iterable

from baton import sections, v1
from baton.connection import Connection
from baton.envelopes import make_envelope
from baton.errors import BatonError, VerificationError
from baton.messages import Messages, context_of
from baton.signing import section_digest

_PAGE_SIZE = 50
_KNOWN_BYTES_MAX = 64 * 1024 * 1024


class KnownSections:
    """The JSON that this process has sent or received, as bases of deltas: the latest of each section of a task."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], str] = {}
        self._bytes = 0

    def get(self, task_id: str, name: str) -> str | None:
        """Returns the latest text of a section."""
        return self._texts.get((task_id, name))

    def find(self, task_id: str, name: str, sha256: bytes) -> str | None:
        """Returns the text with this digest, if no later one exists."""
        text = self.get(task_id, name)
        return text if text is not None and sections.sha256(text) == sha256 else None

    def note(self, task_id: str, context: Iterable[v1.ContextSection]) -> None:
        """Stores the JSON sections of a context. Over 64 Mi characters, all other texts are dropped."""
        for section in context:
            if section.WhichOneof("content") == "json":
                key = (task_id, section.name)
                self._bytes += len(section.json) - len(self._texts.get(key, ""))
                if self._bytes > _KNOWN_BYTES_MAX:
                    self._texts.clear()
                    self._bytes = len(section.json)
                self._texts[key] = section.json

    def forget(self, task_id: str) -> None:
        """Drops the texts of a task."""
        for key in [key for key in self._texts if key[0] == task_id]:
            self._bytes -= len(self._texts.pop(key))


class Contexts(Messages):
    """The calls about contexts: their versions, and checkpoints. `Agent` has them."""

    known_sections: KnownSections
    _connection: Connection

    async def get_context(self, task_id: str, version: int = 0) -> v1.ContextVersion:
        """Returns one version of a task's context, 0 for the latest, without the contents of its sections.

        Raises BatonError: CONTEXT_VERSION_UNKNOWN, TASK_UNKNOWN, PERMISSION_DENIED.
        """
        request = v1.GetContextRequest(task_id=task_id, version=version)
        found: v1.ContextVersion = (await self._connection.call(self._connection.contexts.GetContext, request)).version
        return found

    async def latest_context(self, task_id: str) -> list[v1.ContextSection] | None:
        """Returns the sections of a task's latest context, whole. None: the broker shows none to this agent.

        Raises BatonError if an attempt later can help; VerificationError, CONTEXT_DIGEST_MISMATCH.
        """
        try:
            version = await self.get_context(task_id)
            if version.digests_only:
                return None
            return [await _fetch(self, version, info) for info in version.sections]
        except BatonError as error:
            if error.is_passing:
                raise
            return None

    async def context_versions(self, task_id: str) -> AsyncGenerator[v1.ContextVersion, None]:
        """Yields the versions that this agent may read, the newest first."""
        request = v1.ListContextVersionsRequest(task_id=task_id, page_size=_PAGE_SIZE)
        while True:
            page = await self._connection.call(self._connection.contexts.ListContextVersions, request)
            for version in page.versions:
                yield version
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def context_section(
        self,
        task_id: str,
        name: str,
        *,
        version: int = 0,
        part: v1.ContextFilter | None = None,
        have_sha256: bytes = b"",
    ) -> v1.GetContextSectionResponse:
        """Returns one section of a version, 0 for the latest: whole, a `part` of it, or what `have_sha256` lacks."""
        request = v1.GetContextSectionRequest(
            task_id=task_id, name=name, version=version, filter=part, have_sha256=have_sha256
        )
        answer: v1.GetContextSectionResponse = await self._connection.call(
            self._connection.contexts.GetContextSection, request
        )
        return answer

    async def checkpoint(self, task_id: str, epoch: int, context: Iterable[v1.ContextSection]) -> v1.Receipt:
        """Stores a context of a task that this agent owns, without a handoff: the next owner can go on with it.

        A JSON section of which this process has sent or received an earlier version goes as a delta where that is
        smaller. Raises BatonError, STALE_EPOCH after the task has moved on, TASK_FINAL after it has ended.
        """
        short, whole = sections.with_deltas(context, lambda name: self.known_sections.get(task_id, name))
        try:
            receipt = await self._send_checkpoint(task_id, epoch, short)
        except BatonError as error:
            # The broker has another version than this process: the whole sections need no base.
            if error.reason not in {"CONTEXT_BASE_UNKNOWN", "CONTEXT_DELTA_INVALID"}:
                raise
            self.known_sections.forget(task_id)
            receipt = await self._send_checkpoint(task_id, epoch, whole)
        self.known_sections.note(task_id, whole)
        return receipt

    async def _send_checkpoint(self, task_id: str, epoch: int, context: list[v1.ContextSection]) -> v1.Receipt:
        envelope = make_envelope(
            context_of(context), sender_id=self.agent_id, receiver_id="", task_id=task_id, epoch=epoch
        )
        envelope.message_type = v1.MESSAGE_TYPE_CONTEXT_CHECKPOINT
        return await self._sign_and_send(envelope)


async def fetch_section(
    agent: Contexts, task_id: str, sent: v1.ContextSection | None, name: str
) -> v1.ContextSection | None:
    """Returns a section whole: a delta is resolved, and a section that was not sent is fetched."""
    known = agent.known_sections
    if sent is not None and sent.WhichOneof("content") != "delta":
        return sent
    sha256 = b"" if sent is None else sent.delta.result_sha256
    base = None if sent is None else known.find(task_id, name, sent.delta.base_sha256)
    if sent is not None and base is not None:
        text = sections.apply_delta(base, sent.delta.merge_patch)
        if sections.sha256(text) == sha256:
            section = v1.ContextSection(name=name, json=text)
            known.note(task_id, [section])
            return section
    async for version in agent.context_versions(task_id):
        for info in version.sections:
            if not version.digests_only and info.name == name and sha256 in (b"", info.sha256):
                return await _fetch(agent, version, info)
    return None


async def _fetch(agent: Contexts, version: v1.ContextVersion, info: v1.SectionInfo) -> v1.ContextSection:
    answer = await agent.context_section(version.task_id, info.name, version=version.version)
    section = v1.ContextSection(name=info.name, schema_id=info.schema_id, schema_version=info.schema_version)
    match answer.WhichOneof("content"):
        case "json":
            section.json = answer.json
        case "bytes":
            section.bytes.CopyFrom(answer.bytes)
        case "reference":
            section.reference.CopyFrom(answer.reference)
    if section.WhichOneof("content") is None or section_digest(section) != info.sha256:
        raise VerificationError("CONTEXT_DIGEST_MISMATCH", f"section {info.name} is not the one that was sent")
    agent.known_sections.note(version.task_id, [section])
    return section
