"""Agents with a real broker."""

import asyncio
import json
from datetime import timedelta

import grpc
import pytest
from brokers import PATIENCE_SECONDS, RealBroker, Relay, begin, needs_broker, within

import baton.connection
import baton.delivery
from baton import (
    BatonError,
    HandoffFailedError,
    PoisonError,
    Rejection,
    RetryLaterError,
    UntrustedError,
    VerificationError,
    generate_key,
    json_section,
    make_envelope,
    public_bytes,
    sign_envelope,
    v1,
)
from baton.custody import check_entry

pytestmark = needs_broker

SECTIONS = [json_section("task_description", {"title": "Router"}), json_section("goals", ["find the cause"])]


def request(**fields):
    return v1.HandoffRequest(task_type="support-ticket", reason=v1.HANDOFF_REASON_SKILL, **fields)


async def dead_letters(broker):
    listed = json.loads(broker.cli("dlq", "list", "-o", "json", "--token", broker.operator_token()))
    return listed if isinstance(listed, list) else listed.get("dead_letters", [])


async def test_a_whole_handoff(broker):
    taken = asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            assert (offer.request.task_type, offer.sender_id, offer.epoch) == ("support-ticket", "alice", 1)
            takeover = await offer.accept(wanted_sections=["goals"])
            task = await takeover.complete()
            await task.report("reading", progress=0.5)
            await task.finish({"cause": "a loose cable"})
            taken.put_nowait((takeover.json("goals"), [one.name for one in takeover.sections], task))

        await begin(alice, bob)
        handed = await within(alice.hand_over("bob", "ticket-1", request(), SECTIONS))
        assert (handed.owner_id, handed.epoch, handed.rejections) == ("bob", 2, ())
        goals, names, owned = await within(taken.get())
        assert (goals, names, owned.epoch) == (["find the cause"], ["goals"], 2)
        task = await alice.get_task("ticket-1")
        assert (task.owner_id, task.epoch, task.status) == ("bob", 2, v1.TASK_STATUS_COMPLETED)
        with pytest.raises(BatonError) as stale:
            await alice.update_status("ticket-1", 1, v1.TASK_STATUS_COMPLETED)
        assert (stale.value.reason, stale.value.metadata["current_epoch"]) == ("STALE_EPOCH", "2")
        log = await alice.verify_custody("ticket-1")
        assert log.entries[task.custody_length - 1].custody_hash == task.custody_hash
        assert log.entries[-1].custody_hash == log.custody_hash


async def test_an_audit_notices_a_forged_log(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            await (await offer.accept()).complete()

        await begin(alice, bob)
        await within(alice.hand_over("bob", "ticket-1", request(), SECTIONS))
        whole = await alice.verify_custody("ticket-1")
        heads = [bytes(32), *(entry.custody_hash for entry in whole.entries)]
        kinds = [v1.CustodyEntry.FromString(entry.entry_bytes).accepted.message_type for entry in whole.entries]
        asked, sent = kinds.index(v1.MESSAGE_TYPE_HANDOFF_REQUEST), kinds.index(v1.MESSAGE_TYPE_TASK_CONTEXT_TRANSFER)

        async def check(at, forge):
            entry = v1.CustodyLogEntry()
            entry.CopyFrom(whole.entries[at])
            forge(entry)
            return await check_entry(entry, at + 1, heads[at], alice._directory)

        def other_envelope(entry):
            sign_envelope(entry.envelope, "k1", alice._key)
            entry.envelope.correlation_id = whole.entries[0].envelope.message_id
            sign_envelope(entry.envelope, "k1", alice._key)

        assert await check(sent, lambda entry: entry.ClearField("envelope")) == heads[sent + 1], "a withheld context"
        for at, forge in [
            (asked, lambda entry: entry.ClearField("envelope")),
            (asked, lambda entry: entry.ClearField("receipt")),
            (asked, lambda entry: entry.receipt.CopyFrom(whole.entries[sent].receipt)),
            (asked, other_envelope),
            (asked, lambda entry: entry.MergeFrom(v1.CustodyLogEntry(entry_bytes=entry.entry_bytes + b"\x08\x07"))),
        ]:
            with pytest.raises(VerificationError, match="CUSTODY_INVALID"):
                await check(at, forge)


async def test_a_rejected_handoff_is_offered_again(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob, broker.agent("carol") as carol:

        @bob.on_handoff
        async def refuse(offer):
            await offer.reject(v1.REJECT_REASON_OVERLOADED, "too much to do", alternatives=["carol"])

        @carol.on_handoff
        async def take(offer):
            await (await offer.accept()).complete()

        await begin(alice, bob, carol)
        handed = await within(alice.hand_over("bob", "ticket-1", request(), SECTIONS))
        rejected = Rejection("bob", v1.REJECT_REASON_OVERLOADED, "too much to do")
        assert (handed.owner_id, handed.rejections) == ("carol", (rejected,))
        assert str(rejected) == "bob: too much to do"


async def test_a_handoff_that_nobody_takes_fails(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def refuse(offer):
            await offer.reject(v1.REJECT_REASON_NO_SKILL)

        await begin(alice, bob)
        with pytest.raises(HandoffFailedError) as failed:
            await within(alice.hand_over("bob", "ticket-1", request(), SECTIONS))
        rejected = Rejection("bob", v1.REJECT_REASON_NO_SKILL, "")
        assert (failed.value.reason, failed.value.rejections) == ("NO_CANDIDATE", (rejected,))
        assert str(rejected) == "bob: NO_SKILL"
        assert (await alice.get_task("ticket-1")).owner_id == "alice"


async def test_beyond_its_capacity_an_agent_is_waited_for(broker):
    working, go_on, count = asyncio.Event(), asyncio.Event(), 0
    async with broker.agent("alice") as alice, broker.agent("bob", capacity=1) as bob:

        @bob.on_handoff
        async def take(offer):
            nonlocal count
            count += 1
            working.set()
            await go_on.wait()
            # Its owner has no room as long as the task is open.
            await (await (await offer.accept()).complete()).finish()

        await begin(alice, bob)
        first = asyncio.create_task(alice.hand_over("bob", "ticket-1", request(), SECTIONS))
        await within(working.wait())
        second = asyncio.create_task(alice.hand_over("bob", "ticket-2", request(), SECTIONS))
        while not [one async for one in alice.list_handoffs(open_only=True) if one.waiting_for]:
            await asyncio.sleep(0.01)
        assert (count, second.done()) == (1, False)
        go_on.set()
        assert [(await within(each)).owner_id for each in (first, second)] == ["bob", "bob"]


async def test_a_takeover_that_fails_leaves_the_task(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            await (await offer.accept()).fail("the disk is full")

        await begin(alice, bob)
        with pytest.raises(HandoffFailedError, match="the disk is full") as failed:
            await within(alice.hand_over("bob", "ticket-1", request(), SECTIONS))
        assert failed.value.reason == "TAKEOVER_FAILED"


async def test_a_cancelled_handoff_ends_the_wait_for_its_context(broker):
    told = asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            try:
                await offer.accept()
            except HandoffFailedError as error:
                told.put_nowait(error.reason)
                raise

        await begin(alice, bob)
        receipt = await alice.request_handoff("bob", "ticket-1", request())
        accept = await within(anext(alice.deliveries()))
        await alice.cancel(receipt, "bob", "changed my mind")
        await accept.ack()
        assert await within(told.get()) == "HANDOFF_CANCELLED"


async def test_a_handler_that_raises_nacks_and_is_called_again(broker):
    attempts = []
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            attempts.append(offer.request is not None)
            if len(attempts) == 1:
                raise ValueError("before the accept")
            takeover = await offer.accept()
            if len(attempts) == 2:
                raise ValueError("before the completion")
            await takeover.complete()

        await begin(alice, bob)
        handed = await within(alice.hand_over("bob", "ticket-1", request(), SECTIONS))
        assert handed.owner_id == "bob"
        assert attempts == [True, True, False], "the request twice, then only the context"


async def test_plain_mail_by_how_its_handler_ends(broker):
    seen = asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on(v1.Info)
        async def read(delivery):
            seen.put_nowait((delivery.payload.text, delivery.attempt))
            if delivery.attempt == 1 and delivery.payload.text == "later":
                raise RetryLaterError(timedelta(milliseconds=200))
            if delivery.payload.text == "poison":
                raise PoisonError("cannot be read")

        await begin(alice, bob)
        for text in ["later", "poison"]:
            await alice.send(v1.Info(text=text), receiver_id="bob")
        await alice.send(v1.Delegation(description="no handler for this"), receiver_id="bob")
        found = [await within(seen.get()) for _ in range(3)]
        assert sorted(found) == [("later", 1), ("later", 2), ("poison", 1)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(letters := await dead_letters(broker)) < 2:
                await asyncio.sleep(0.05)
        assert {letter["reason"] for letter in letters} == {"DEAD_LETTER_REASON_POISON"}


async def test_a_handler_that_never_returns_is_extended_until_its_timeout(broker, monkeypatch):
    extended, calls = [], []
    original = baton.delivery.Delivery.extend

    async def counted(self, extension=None):
        deadline = await original(self, extension)
        extended.append(deadline)
        return deadline

    monkeypatch.setattr(baton.delivery.Delivery, "extend", counted)
    timeout = timedelta(seconds=3)
    async with broker.agent("alice") as alice, broker.agent("bob", handler_timeout=timeout) as bob:

        @bob.on_handoff
        async def take(offer):
            calls.append(offer.handoff_id)
            await asyncio.Event().wait()

        await begin(alice, bob)
        bob.ack_wait = timedelta(milliseconds=300)  # stands for a broker with this short ack wait
        terms = v1.HandoffTimeouts()
        terms.whole.FromTimedelta(timedelta(seconds=6))
        with pytest.raises(HandoffFailedError, match="WHOLE_TIMEOUT"):
            await within(alice.hand_over("bob", "ticket-1", request(timeouts=terms), SECTIONS))
        assert len(extended) >= 3
        assert extended == sorted(extended)
        assert calls, "it was called"


async def test_what_a_stopping_agent_was_at_goes_to_its_next_life(broker):
    working, taken, key = asyncio.Event(), asyncio.Event(), generate_key()
    async with broker.agent("alice") as alice:
        first, second = broker.agent("bob", key=key), broker.agent("bob", key=key)

        @first.on_handoff
        async def hang(_offer):
            working.set()
            await asyncio.Event().wait()

        @second.on_handoff
        async def take(offer):
            await (await offer.accept()).complete()
            taken.set()

        await begin(alice, first)
        handing = asyncio.create_task(alice.hand_over("bob", "ticket-1", request(), SECTIONS))
        await within(working.wait())
        await first.close(grace=timedelta(milliseconds=50))
        async with second:
            await second.connect()
            assert (await within(handing)).owner_id == "bob"
            await within(taken.wait())


@pytest.mark.parametrize("is_completed", [False, True])
async def test_what_an_earlier_life_said_and_did_not_ack_counts(broker, is_completed):
    key, owned = generate_key(), asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob", key=key) as second:
        async with broker.agent("bob", key=key) as first:
            await begin(alice, first)
            handing = asyncio.create_task(alice.hand_over("bob", "ticket-1", request(), SECTIONS))
            mail = first.deliveries()
            asked = await within(anext(mail))
            await first.accept(asked)
            if is_completed:
                await asked.ack()
                await first.complete(await within(anext(mail)))

        calls = []

        @second.on_handoff
        async def take(offer):
            calls.append(offer.handoff_id)
            owned.put_nowait(await (await offer.accept()).complete())

        await second.connect()
        assert (await within(handing)).owner_id == "bob"
        assert (await within(owned.get())).epoch == 2
        assert len(calls) == 1, "it is no failure"


async def test_a_broker_that_is_killed_in_mid_handoff(broker):
    accepted, told, calls = asyncio.Event(), asyncio.Event(), []
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            calls.append(offer.handoff_id)
            takeover = await offer.accept()
            accepted.set()
            await told.wait()
            await takeover.complete()

        @bob.on(v1.Info)
        async def read(_delivery):
            told.set()  # arrives after the redelivered context

        await begin(alice, bob)
        handing = asyncio.create_task(alice.hand_over("bob", "ticket-1", request(), SECTIONS))
        await within(accepted.wait())
        broker.kill()
        sending = asyncio.create_task(alice.send(v1.Info(text="meanwhile"), receiver_id="bob"))
        await asyncio.sleep(0)
        assert not sending.done()
        await broker.start()
        handed = await within(handing)
        assert (handed.owner_id, handed.epoch) == ("bob", 2)
        assert (await within(sending)).sequence > 0
        told.clear()
        # Mail of the same task waits until the mail before it is acked.
        await alice.send(v1.Info(text="afterwards"), receiver_id="bob", task_id="ticket-1", epoch=2)
        await within(told.wait())
        assert calls == [handed.handoff_id], "what came again goes on in the same hands"
        task = await alice.get_task("ticket-1")
        assert (task.owner_id, task.epoch) == ("bob", 2)


async def test_a_broker_that_stops_in_order(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice, bob)
        first = make_envelope(v1.Info(text="one"), sender_id="alice", receiver_id="bob")
        sign_envelope(first, "k1", alice._key)
        receipt = await alice.send_envelope(first)
        broker.stop()
        again = asyncio.create_task(alice.send_envelope(first))
        await broker.start()
        assert await within(again) == receipt, "the same bytes have the same receipt"


async def test_a_token_that_is_over_is_replaced(broker):
    async with broker.agent("alice") as alice:
        await alice.register()
        await alice.prove_identity()
        broker.kill()
        await broker.start()  # tokens do not outlive the broker
        assert (await alice.get_agent("alice")).card.agent_id == "alice"
    async with broker.agent("alice", operator_token="eyJhbGciOiJub25lIn0.e30.") as operator:
        with pytest.raises(BatonError) as refused:
            await operator.get_agent("alice")
        assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.UNAUTHENTICATED, "TOKEN_INVALID")


async def test_a_wrong_key_is_refused(broker):
    async with broker.agent("alice") as alice, broker.agent("alice") as thief:
        await alice.register()
        with pytest.raises(BatonError) as refused:
            await thief.connect()
        assert refused.value.reason == "CHALLENGE_FAILED"
        assert not refused.value.is_passing


async def test_a_wrong_ca_is_not_trusted(broker, tmp_path):
    other = RealBroker(tmp_path / "other")
    other.folder.mkdir()
    await other.start()
    other.end()
    async with broker.agent("alice", ca_file=other.ca) as alice:
        with pytest.raises(UntrustedError) as refused:
            await within(alice.connect())
        assert not refused.value.is_passing


async def test_a_clock_that_is_off_by_an_hour(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice, bob)
        for offset in (-3600, 3600):
            late = make_envelope(v1.Info(text="late"), sender_id="alice", receiver_id="bob")
            late.timestamp.seconds += offset
            sign_envelope(late, "k1", alice._key)
            with pytest.raises(BatonError) as refused:
                await alice.send_envelope(late)
            assert refused.value.reason == "TIMESTAMP_OUTSIDE_WINDOW"


async def test_envelopes_of_a_newer_schema(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice, bob)
        envelope = make_envelope(v1.Info(text="new"), sender_id="alice", receiver_id="bob")
        sign_envelope(envelope, "k1", alice._key)
        raw = envelope.SerializeToString() + b"\xc2\x3e\x03new"  # field 1000
        await alice.send_envelope(v1.Envelope.FromString(raw))
        delivery = await within(anext(bob.deliveries()))
        assert delivery.envelope.SerializeToString() == raw, "forwarded untouched, and verified"
        await delivery.ack()
        unknown = make_envelope(v1.Info(text="new"), sender_id="alice", receiver_id="bob")
        unknown.message_type = 99
        sign_envelope(unknown, "k1", alice._key)
        with pytest.raises(BatonError) as refused:
            await alice.send_envelope(unknown)
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.reason in ("FIELD_INVALID", "PAYLOAD_TYPE_MISMATCH")


async def test_pinned_keys_are_believed_instead_of_the_directory(broker):
    alice_key = generate_key()
    pinned = {"alice": [v1.AgentKey(key_id="k1", public_key=public_bytes(generate_key()))]}
    async with broker.agent("alice", key=alice_key) as alice, broker.agent("bob", pinned_keys=pinned) as bob:
        await begin(alice, bob)
        await alice.send(v1.Info(text="hello"), receiver_id="bob")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (letters := await dead_letters(broker)):
                await asyncio.sleep(0.05)
        assert letters[0]["reason"] == "DEAD_LETTER_REASON_POISON"
    pinned = {"baton": [v1.AgentKey(key_id="another", public_key=public_bytes(generate_key()))]}
    async with broker.agent("alice", key=alice_key, pinned_keys=pinned) as alice:
        await alice.connect()
        with pytest.raises(VerificationError, match="KEY_UNKNOWN"):
            await alice.send(v1.Info(text="hello"), receiver_id="bob")


async def test_heartbeats_say_how_the_agent_is_doing(broker):
    async with broker.agent("alice") as alice:
        alice.heartbeat.status = "busy"
        alice.heartbeat.metrics["temperature"] = 36.6
        await begin(alice)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await alice.get_agent("alice")).last_heartbeat.status != "busy":
                await asyncio.sleep(0.02)
        assert (await alice.get_agent("alice")).presence == v1.PRESENCE_ALIVE


async def test_a_session_ends_with_a_connection_that_is_silently_gone(broker, monkeypatch):
    monkeypatch.setattr(baton.connection, "KEEPALIVE_TIME_MS", 500)
    # Long enough for the connections that work, also on a busy machine.
    monkeypatch.setattr(baton.connection, "KEEPALIVE_TIMEOUT_MS", 4000)
    async with Relay(broker.server) as relay, broker.agent_through(relay, "alice") as alice:
        await begin(alice)
        session = await alice._link.live()
        relay.fall_silent()
        sending = asyncio.create_task(alice.send(v1.Info(text="into the silence"), receiver_id="alice-2"))
        assert "ping timeout" in str(await within(session.ended()))
        with pytest.raises(BatonError, match="RECEIVER_UNKNOWN"):  # the answer of the next session
            await within(sending)
