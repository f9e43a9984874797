"""Verification of a task's custody log: its chain, the broker's receipts, and the envelopes."""

from dataclasses import dataclass

from baton import v1
from baton.connection import Connection
from baton.directory import Directory
from baton.errors import VerificationError
from baton.signing import custody_hash, verify_receipt

_PAGE_SIZE = 200


@dataclass(frozen=True)
class VerifiedLog:
    """A custody log in which every entry follows from the entry before."""

    entries: tuple[v1.CustodyLogEntry, ...]
    custody_hash: bytes
    """The head of the chain, 32 bytes; equal to the hash in the task and in its latest receipt."""


async def read_custody_log(connection: Connection, task_id: str, directory: Directory) -> VerifiedLog:
    """Reads and verifies the whole log. Raises VerificationError; BatonError if it cannot be read."""
    entries: list[v1.CustodyLogEntry] = []
    head, length = bytes(32), 1
    while len(entries) < length:
        request = v1.GetCustodyLogRequest(
            task_id=task_id, after_number=len(entries), page_size=_PAGE_SIZE, include_envelopes=True
        )
        page = await connection.call(connection.tasks.GetCustodyLog, request)
        length = page.custody_length
        if not page.entries and len(entries) < length:
            raise VerificationError("CUSTODY_BROKEN", f"entries after {len(entries)} are missing")
        for entry in page.entries:
            head = await _checked(entry, len(entries) + 1, head, directory)
            entries.append(entry)
    return VerifiedLog(tuple(entries), head)


async def _checked(entry: v1.CustodyLogEntry, number: int, head: bytes, directory: Directory) -> bytes:
    head = custody_hash(head, entry.entry_bytes)
    if entry.custody_hash != head or v1.CustodyEntry.FromString(entry.entry_bytes).number != number:
        raise VerificationError("CUSTODY_BROKEN", f"entry {number} does not follow from the one before")
    if entry.HasField("receipt"):
        verify_receipt(entry.receipt, await directory.key("baton", entry.receipt.key_id))
        if entry.receipt.custody_hash != head:
            raise VerificationError("CUSTODY_BROKEN", f"the receipt of entry {number} is for another head")
    if entry.HasField("envelope"):
        await directory.verify(entry.envelope)
    return head
