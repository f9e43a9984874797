"""Verification of a task's custody log: its chain, the broker's receipts, and the envelopes."""

import hashlib
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from baton import v1
from baton.connection import Connection
from baton.directory import BROKER_ID, Directory
from baton.errors import VerificationError
from baton.signing import custody_hash, envelope_input, verify_receipt

_PAGE_SIZE = 200
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class VerifiedLog:
    """A custody log in which every entry follows from the entry before, and every accepted envelope is its sender's."""

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
            raise _invalid(len(entries) + 1, "it is missing")
        for entry in page.entries:
            head = await check_entry(entry, len(entries) + 1, head, directory)
            entries.append(entry)
    return VerifiedLog(tuple(entries), head)


async def check_entry(found: v1.CustodyLogEntry, number: int, head: bytes, directory: Directory) -> bytes:
    """Verifies the entry with this number, which follows this head. Returns the next head. Raises VerificationError."""
    head = custody_hash(head, found.entry_bytes)
    try:
        entry = v1.CustodyEntry.FromString(found.entry_bytes)
    except DecodeError as error:
        raise _invalid(number, "it does not parse") from error
    if found.custody_hash != head or entry.number != number:
        raise _invalid(number, "it does not follow from the one before")
    if entry.HasField("accepted"):
        await _check_accepted(found, number, entry.accepted, directory)
    elif found.HasField("envelope"):
        await directory.verify(found.envelope)
    return head


async def _check_accepted(
    found: v1.CustodyLogEntry, number: int, accepted: v1.CustodyEnvelope, directory: Directory
) -> None:
    receipt = found.receipt
    if receipt.message_id != accepted.message_id or receipt.custody_hash != found.custody_hash:
        raise _invalid(number, "the receipt is not its own")
    verify_receipt(receipt, await directory.key(BROKER_ID, receipt.key_id))
    if not found.HasField("envelope") and _is_hidden(accepted):
        return
    if hashlib.sha256(envelope_input(found.envelope)).digest() != accepted.content_digest:
        raise _invalid(number, "the envelope is not its own")
    await directory.verify(found.envelope)


def _is_hidden(accepted: v1.CustodyEnvelope) -> bool:
    """Whether the log may leave the envelope out: a context, which this agent may not read. Its digest is there."""
    contexts = (v1.MESSAGE_TYPE_TASK_CONTEXT_TRANSFER, v1.MESSAGE_TYPE_CONTEXT_CHECKPOINT)
    is_context = accepted.message_type in contexts
    return is_context and len(accepted.context_digest) == _DIGEST_BYTES


def _invalid(number: int, problem: str) -> VerificationError:
    return VerificationError("CUSTODY_INVALID", f"entry {number}: {problem}")
