"""Workspaces: numbered entries that the agents of a task share."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from brokers import begin, needs_broker, within

import baton.workspace
from baton import BatonError, Entry, VerificationError, generate_key, make_envelope, sign_envelope, v1
from baton.workspace import check_entry, normal_topic

TASK = "crash-7"
SECOND = timedelta(seconds=1)


async def shared(alice, bob, **options):
    """Returns the workspace of a task that alice owns."""
    await begin(alice, bob)
    asked = await alice.request_handoff("bob", TASK, v1.HandoffRequest(task_type="support"))
    await alice.cancel(asked, "bob")
    return alice.workspace(f"task:{TASK}", **options)


async def end(alice):
    await alice.update_status(TASK, 1, v1.TASK_STATUS_COMPLETED)


@needs_broker
async def test_entries_are_numbered_listed_and_verified(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        ws = await shared(alice, bob, verify=True)
        assert [entry async for entry in ws] == []
        moment = datetime(2026, 11, 22, tzinfo=UTC)
        data = v1.ContextBytes(media_type="text/plain", data=b"panicked")
        assert await ws.append("Growth  Metrics", {"rate": 1.5}, expected_last_sequence=0, source_time=moment) == 1
        assert await ws.append("log", data) == 2
        assert await ws.append(" growth metrics ", ["größer"], expected_last_sequence=2) == 3
        with pytest.raises(BatonError) as refused:
            await ws.append("log", None, expected_last_sequence=1)
        assert (refused.value.reason, refused.value.metadata["last_sequence"]) == ("SEQUENCE_CONFLICT", "3")
        entries = [entry async for entry in ws]
        assert [(one.sequence, one.topic, one.author_id) for one in entries] == [
            (1, "growth_metrics", "alice"),
            (2, "log", "alice"),
            (3, "growth_metrics", "alice"),
        ]
        assert [one.value for one in entries] == [{"rate": 1.5}, data, ["größer"]]
        assert entries[0].message.source_time.ToDatetime(tzinfo=UTC) == moment
        assert [one.sequence async for one in ws.entries("growth metrics", after=1)] == [3]
        page = await ws.page("log", after=2, wait=SECOND)
        assert (len(page.entries), page.next_after_sequence, page.has_more) == (0, 3, False)
        assert [(one.name, one.entry_count) for one in await ws.topics()] == [("growth_metrics", 2), ("log", 1)]
        state = await ws.state()
        assert (state.last_sequence, state.chain_hash) == (3, entries[2].message.chain_hash)
        await end(alice)
        with pytest.raises(BatonError) as refused:
            await ws.append("log", "too late")
        assert refused.value.reason == "WORKSPACE_CLOSED"


@needs_broker
async def test_what_may_not_be_is_refused(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        ws = await shared(alice, bob)
        with pytest.raises(BatonError) as refused:
            await ws.append("log", "x" * baton.workspace.ENTRY_BYTES_MAX)
        assert refused.value.reason == "ENTRY_TOO_LARGE"
        assert await ws.append("log", "x" * (baton.workspace.ENTRY_BYTES_MAX - 2)) == 1, "the largest one"
        with pytest.raises(BatonError) as refused:
            await ws.append("a topic!", 1)
        assert refused.value.reason == "FIELD_INVALID"
        with pytest.raises(ValueError, match="time zone"):
            await ws.append("log", 1, source_time=datetime(2026, 11, 22))  # noqa: DTZ001
        with pytest.raises(BatonError) as refused:
            await bob.workspace(f"task:{TASK}").append("log", 1)
        assert refused.value.reason == "PERMISSION_DENIED"
        with pytest.raises(BatonError) as refused:
            await within(anext(alice.workspace("task:unknown").watch()))
        assert refused.value.reason in ("WORKSPACE_UNKNOWN", "PERMISSION_DENIED")


@needs_broker
async def test_a_watch_goes_on_after_a_kill_until_the_end(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        ws = await shared(alice, bob, verify=True)
        await ws.append("log", 1)
        entries, updates = ws.watch("log"), ws.updates()
        async with contextlib.aclosing(entries), contextlib.aclosing(updates):
            assert (await within(anext(entries))).value == 1
            kinds = [(await within(anext(updates))).WhichOneof("update") for _ in range(2)]
            assert kinds == ["entry", "caught_up"]
            broker.kill()
            await broker.start()
            await ws.append("other", 2)
            await ws.append("log", 3)
            assert (await within(anext(entries))).sequence == 3
            await end(alice)
            assert [one async for one in entries] == []
            kinds = [update.WhichOneof("update") async for update in updates]
            assert kinds == ["entry", "entry", "closed"], "each once, and one caught_up"


@needs_broker
async def test_topics_are_waited_for(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        ws = await shared(alice, bob)
        waiting = asyncio.create_task(ws.wait_for({"Findings", "verdict"}))
        await ws.append("findings", 1)
        await ws.append("findings", 2)
        await ws.append("verdict", "guilty")
        found = await within(waiting)
        assert {topic: entry.value for topic, entry in found.items()} == {"findings": 1, "verdict": "guilty"}
        assert list(await ws.wait_for(["findings", "motive"], SECOND)) == ["findings"], "the time is over"
        await end(alice)
        assert await within(ws.wait_for(["motive"])) == {}, "closed"


@needs_broker
@pytest.mark.parametrize("is_silent", [True, False])
async def test_topics_are_polled_for_where_streams_cannot_be_had(broker, monkeypatch, is_silent):
    monkeypatch.setattr(baton.workspace, "_SILENCE_SECONDS", 0.2)
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        ws = await shared(alice, bob)
        opened = 0

        async def stream(_method, _request):
            nonlocal opened
            opened += 1
            if is_silent:
                await asyncio.Event().wait()
            raise BatonError(grpc.StatusCode.UNIMPLEMENTED, "no streams through here")
            yield

        alice._connection.stream = stream
        waiting = asyncio.create_task(ws.wait_for(["verdict"]))
        while not opened:
            await asyncio.sleep(0.01)
        await ws.append("verdict", "guilty")
        assert (await within(waiting))["verdict"].value == "guilty"


def test_an_entry_that_differs_from_its_envelope_is_noticed():
    append = v1.WorkspaceAppend(workspace_id="task:a", topic="The Log", json="1")
    envelope = make_envelope(append, sender_id="alice", receiver_id="")
    sign_envelope(envelope, "k1", generate_key())
    shown = v1.WorkspaceEntry(sequence=1, topic="the_log", author_id="alice", json="1", message_id=envelope.message_id)
    shown.envelope.CopyFrom(envelope)
    check_entry("task:a", shown)
    assert Entry.of(shown).value == 1
    changes = [{"json": "2"}, {"topic": "log"}, {"author_id": "bob"}, {"message_id": ""}]
    changes += [{"bytes": v1.ContextBytes(data=b"1")}]
    for change in changes:
        forged = v1.WorkspaceEntry()
        forged.CopyFrom(shown)
        forged.MergeFrom(v1.WorkspaceEntry(**change))
        for name, value in change.items():
            if not value:
                forged.ClearField(name)
        with pytest.raises(VerificationError, match="ENTRY_INVALID"):
            check_entry("task:a", forged)
    with pytest.raises(VerificationError, match="ENTRY_INVALID"):
        check_entry("task:b", shown)


def test_the_white_space_of_a_topic_is_that_of_the_broker():
    white = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
    for space in white + "\u202f\u205f\u3000":
        assert normal_topic(f"{space}A{space}{space}b{space}") == "a_b", hex(ord(space))
    for other in "\x1c\x1d\x1e\x1f\u180e\u200b\ufeff":
        assert normal_topic(f"{other}A{other}b") == f"{other}a{other}b", hex(ord(other))


def test_names_that_normalise_alike_are_one_topic():
    assert {normal_topic(name) for name in ("Growth Metrics", " growth\t metrics\n", "GROWTH_metrics")} == {
        "growth_metrics"
    }
