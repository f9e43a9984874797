"""Blobs: progress, ranges, and writes and reads that continue after a break."""

import asyncio
import hashlib
import secrets

import pytest
from brokers import begin, needs_broker, within

from baton import BatonError, VerificationError, blob_reference, json_section, v1

pytestmark = needs_broker

TASK = "ticket-1"
HELD = f"task:{TASK}"
MIB = 1024 * 1024


async def owning(broker, alice):
    """Connects alice, and gives her a task: a handoff that was cancelled created it."""
    async with broker.agent("dora") as dora:
        await dora.register()
    await begin(alice)
    receipt = await alice.request_handoff("dora", TASK, v1.HandoffRequest(task_type="support-ticket"))
    await alice.cancel(receipt, "dora")


def content(size):
    return secrets.token_bytes(size)


async def test_a_blob_is_written_read_and_referred_to(broker, tmp_path):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            takeover = await offer.accept()
            data.append(await bob.get_blob(takeover.section("figures").reference.sha256))
            await takeover.complete()

        data = []
        await begin(bob)
        await owning(broker, alice)
        whole, seen = content(3 * MIB + 7), []
        digest = hashlib.sha256(whole).digest()
        assert await alice.missing_blobs([digest]) == [digest]
        (tmp_path / "figures").write_bytes(whole)
        blob = await alice.put_blob(
            tmp_path / "figures", HELD, media_type="text/csv", on_progress=lambda *done: seen.append(done)
        )
        assert (blob.sha256, blob.size_bytes, blob.media_type) == (digest, len(whole), "text/csv")
        assert (seen[0], seen[-1], seen == sorted(seen)) == ((0, len(whole)), (len(whole), len(whole)), True)
        assert (await alice.put_blob(whole, HELD)).sha256 == digest
        assert await alice.missing_blobs([digest]) == []
        assert [one.sha256 async for one in alice.blobs(HELD)] == [digest]
        assert await alice.get_blob(digest, offset=MIB - 1, length=5) == whole[MIB - 1 : MIB + 4]
        assert await alice.get_blob(digest, offset=len(whole) - 3) == whole[-3:]
        with pytest.raises(BatonError, match="BLOB_OUT_OF_RANGE"):
            await alice.get_blob(digest, offset=len(whole) + 1)
        with pytest.raises(BatonError, match=r"BLOB_UNKNOWN|PERMISSION_DENIED"):
            await bob.get_blob(digest)
        figures = v1.ContextSection(name="figures", reference=blob_reference(blob))
        await within(
            alice.hand_over("bob", TASK, v1.HandoffRequest(task_type="x"), [figures, json_section("goals", [])])
        )
        assert data == [whole]
        empty = await bob.put_blob(b"", HELD)
        assert (empty.size_bytes, await bob.get_blob(empty.sha256)) == (0, b"")
        await bob.delete_blob(empty.sha256, HELD)
        assert empty.sha256 not in [one.sha256 async for one in bob.blobs(HELD)]


async def test_a_write_and_a_read_continue_after_a_kill(broker, tmp_path):
    async with broker.agent("alice") as alice:
        await owning(broker, alice)
        whole, seen, kills = content(12 * MIB), [], []

        def until(kill_at):
            def progress(done, _):
                seen.append(done)
                if done >= kill_at and not kills:
                    broker.kill()
                    kills.append(asyncio.create_task(broker.start()))

            return progress

        blob = await within(alice.put_blob(whole, HELD, on_progress=until(8 * MIB)))
        await kills.pop()
        turn = next(at for at in range(1, len(seen)) if seen[at] < seen[at - 1])
        assert (blob.size_bytes, 0 < seen[turn] <= 8 * MIB) == (len(whole), True)
        seen.clear()
        target = tmp_path / "copy"
        await within(alice.get_blob_to(blob.sha256, target, on_progress=until(2 * MIB)))
        await kills.pop()
        assert (target.read_bytes() == whole, seen == sorted(seen), (tmp_path / "copy.part").exists()) == (
            True,
            True,
            False,
        )


async def test_a_read_into_a_file_continues_where_it_stopped(broker, tmp_path):
    async with broker.agent("alice") as alice:
        await owning(broker, alice)
        whole, seen = content(2 * MIB), []
        blob = await alice.put_blob(whole, HELD)
        (tmp_path / "copy.part").write_bytes(whole[:MIB])
        await alice.get_blob_to(blob.sha256, tmp_path / "copy", on_progress=lambda done, _: seen.append(done))
        assert (seen[0], (tmp_path / "copy").read_bytes() == whole) == (MIB, True)
        for wrong in (bytes(MIB), bytes(3 * MIB)):
            (tmp_path / "copy.part").write_bytes(wrong)
            if len(wrong) < len(whole):
                with pytest.raises(VerificationError, match="BLOB_DIGEST_MISMATCH"):
                    await alice.get_blob_to(blob.sha256, tmp_path / "copy")
            else:
                await alice.get_blob_to(blob.sha256, tmp_path / "copy")
            assert not (tmp_path / "copy.part").exists()
        assert (tmp_path / "copy").read_bytes() == whole


async def test_a_workspace_of_others_takes_no_blob(broker):
    async with broker.agent("alice") as alice, broker.agent("mallory") as mallory:
        await begin(mallory)
        await owning(broker, alice)
        with pytest.raises(BatonError, match=r"PERMISSION_DENIED|WORKSPACE_UNKNOWN"):
            await mallory.put_blob(b"mine", HELD)
