"""Blobs: content too large for a message, written and read with progress, and continued after a break."""

import asyncio
import hashlib
import io
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from baton import v1
from baton.connection import Connection, File
from baton.errors import BatonError, VerificationError
from baton.following import delay_of

OnProgress = Callable[[int, int], None]
"""Gets the bytes that are done, and all bytes."""

_PAGE_SIZE = 200
_PART_BYTES = 256 * 1024
# How often a write or a read is continued after a break without any progress.
_BREAKS_MAX = 5


def blob_reference(blob: v1.Blob) -> v1.ContextReference:
    """Returns the reference to a blob, for a section of a context or an entry of a workspace."""
    return v1.ContextReference(
        uri=f"baton:blob/{blob.sha256.hex()}",
        sha256=blob.sha256,
        size_bytes=blob.size_bytes,
        media_type=blob.media_type,
    )


class Blobs:
    """The calls about blobs. `Agent` has them. They raise BatonError if the broker refuses: BLOB_UNKNOWN."""

    _connection: Connection

    async def put_blob(
        self,
        source: File | bytes,
        workspace_id: str,
        *,
        media_type: str = "application/octet-stream",
        on_progress: OnProgress | None = None,
    ) -> v1.Blob:
        """Writes a file, or bytes, as a blob that the workspace holds from then on, for example `task:crash-7`.

        Continues an unfinished write of the same bytes, also that of an earlier process, and continues by itself after
        a break of the connection. Raises BatonError, for example WORKSPACE_UNKNOWN, PERMISSION_DENIED, QUOTA_EXCEEDED,
        or the last break after five without progress; VerificationError if the file has changed meanwhile; OSError.
        """
        opened = io.BytesIO(source) if isinstance(source, bytes) else await asyncio.to_thread(Path(source).open, "rb")
        with opened as file:
            digest, size = await asyncio.to_thread(_digest_of, file)
            blob = v1.Blob(sha256=digest, size_bytes=size, media_type=media_type)
            progress = on_progress or (lambda _done, _all: None)
            breaks = furthest = 0
            while True:
                try:
                    offset = await self._written(digest)
                    if offset > furthest:
                        breaks, furthest = 0, offset
                    progress(offset, size)
                    first = v1.WriteBlobRequest(blob=blob, workspace_id=workspace_id, write_offset=offset)
                    parts = _parts(file, first, size, progress)
                    answer = await self._connection.upload(self._connection.blobs.WriteBlob, parts)
                except BatonError as error:
                    if breaks >= _BREAKS_MAX or not _can_continue(error):
                        raise
                    await asyncio.sleep(max(error.retry_delay or 0.0, delay_of(breaks)))
                    breaks += 1
                    continue
                if not answer.HasField("blob"):
                    raise VerificationError("BLOB_DIGEST_MISMATCH", "the file has changed while it was written")
                progress(size, size)
                stored: v1.Blob = answer.blob
                return stored

    async def read_blob(self, sha256: bytes, *, offset: int = 0, length: int = 0) -> AsyncGenerator[bytes, None]:
        """Yields the bytes of a blob from `offset` on, `length` of them or all, in parts of at most 256 KiB.

        Continues by itself after a break of the connection. The reader compares the digest: `get_blob` does so. Raises
        BatonError, for example BLOB_OUT_OF_RANGE, or the last break after five without progress.
        """
        done = breaks = 0
        while True:
            request = v1.ReadBlobRequest(
                sha256=sha256, read_offset=offset + done, read_length=length - done if length else 0
            )
            try:
                async for response in self._connection.stream(self._connection.blobs.ReadBlob, request):
                    if response.data:
                        done += len(response.data)
                        breaks = 0
                        yield response.data
            except BatonError as error:
                if breaks >= _BREAKS_MAX or not _can_continue(error):
                    raise
                await asyncio.sleep(max(error.retry_delay or 0.0, delay_of(breaks)))
                breaks += 1
            else:
                return
            if length and done >= length:
                return

    async def get_blob(self, sha256: bytes, *, offset: int = 0, length: int = 0) -> bytes:
        """Returns a blob, or a range of it. Raises as `read_blob`; VerificationError if a whole blob is another one."""
        data = b"".join([part async for part in self.read_blob(sha256, offset=offset, length=length)])
        if not offset and not length:
            _check(hashlib.sha256(data).digest(), sha256)
        return data

    async def get_blob_to(self, sha256: bytes, file: File, *, on_progress: OnProgress | None = None) -> v1.Blob:
        """Reads a blob into a file.

        The bytes go to a file beside it that ends in `.part`, where a later call continues; once they have the digest,
        the file gets its name. Raises as `read_blob`; VerificationError if the bytes have another digest; OSError.
        """
        target = Path(file)
        part = target.with_name(f"{target.name}.part")
        blob = await self.stat_blob(sha256)
        with await asyncio.to_thread(part.open, "ab") as out:
            if out.tell() > blob.size_bytes:
                out.truncate(0)
            done = min(out.tell(), blob.size_bytes) if part.stat().st_size else 0
            progress = on_progress or (lambda _done, _all: None)
            progress(done, blob.size_bytes)
            async for data in self.read_blob(sha256, offset=done):
                await asyncio.to_thread(out.write, data)
                done += len(data)
                progress(done, blob.size_bytes)
        with part.open("rb") as written:
            digest, _ = await asyncio.to_thread(_digest_of, written)
        if digest != sha256:
            part.unlink()
        _check(digest, sha256)
        part.replace(target)
        return blob

    async def stat_blob(self, sha256: bytes) -> v1.Blob:
        """Returns what the broker knows of a blob."""
        request = v1.GetBlobRequest(sha256=sha256)
        blob: v1.Blob = (await self._connection.call(self._connection.blobs.GetBlob, request)).blob
        return blob

    async def missing_blobs(self, sha256s: Iterable[bytes]) -> list[bytes]:
        """Returns those of at most 1000 blobs that this agent cannot read: it writes them before it refers to them."""
        request = v1.FindMissingBlobsRequest(sha256s=sha256s)
        return list((await self._connection.call(self._connection.blobs.FindMissingBlobs, request)).sha256s)

    async def blobs(self, workspace_id: str) -> AsyncGenerator[v1.Blob, None]:
        """Yields the blobs that a workspace holds, by digest."""
        request = v1.ListBlobsRequest(workspace_id=workspace_id, page_size=_PAGE_SIZE)
        while True:
            page = await self._connection.call(self._connection.blobs.ListBlobs, request)
            for blob in page.blobs:
                yield blob
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def delete_blob(self, sha256: bytes, workspace_id: str) -> None:
        """Ends the hold of one workspace. The blob stays while another one holds it."""
        request = v1.DeleteBlobRequest(sha256=sha256, workspace_id=workspace_id)
        await self._connection.call(self._connection.blobs.DeleteBlob, request)

    async def _written(self, sha256: bytes) -> int:
        """Returns the number of bytes that an unfinished write has stored."""
        request = v1.GetBlobWriteRequest(sha256=sha256)
        try:
            answer = await self._connection.call(self._connection.blobs.GetBlobWrite, request)
        except BatonError as error:
            if error.reason != "UPLOAD_UNKNOWN":
                raise
            return 0
        committed: int = answer.committed_bytes
        return committed


def _can_continue(error: BatonError) -> bool:
    """Whether a later attempt may succeed. For the broker the stream before may not have ended yet."""
    return error.reason != "QUOTA_EXCEEDED" and error.is_passing


def _check(digest: bytes, sha256: bytes) -> None:
    if digest != sha256:
        raise VerificationError("BLOB_DIGEST_MISMATCH", f"the bytes have the digest {digest.hex()}")


def _digest_of(file: BinaryIO) -> tuple[bytes, int]:
    """Returns the SHA-256 and the size of a file."""
    file.seek(0)
    hasher, size = hashlib.sha256(), 0
    while data := file.read(_PART_BYTES):
        hasher.update(data)
        size += len(data)
    return hasher.digest(), size


async def _parts(
    file: BinaryIO, first: v1.WriteBlobRequest, size: int, progress: OnProgress
) -> AsyncGenerator[v1.WriteBlobRequest, None]:
    """Yields the messages of a write, from the offset in the first one on."""
    offset = first.write_offset
    file.seek(offset)
    yield first
    while data := await asyncio.to_thread(file.read, _PART_BYTES):
        yield v1.WriteBlobRequest(write_offset=offset, data=data)
        offset += len(data)
        progress(min(offset, size), size)
