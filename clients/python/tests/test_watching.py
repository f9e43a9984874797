"""Lists and watches of tasks and handoffs, and the progress of a lent task."""

import asyncio
import contextlib

import pytest
from brokers import PATIENCE_SECONDS, begin, needs_broker, within

from baton import BatonError, PoisonError, v1

pytestmark = needs_broker

REQUEST = v1.HandoffRequest(task_type="support-ticket")


def worker(bob):
    @bob.on_handoff
    async def take(offer):
        task = await (await offer.accept()).complete()
        for part in range(3):
            await task.report(f"part {part}", progress=part / 4)
        await task.finish({"x": 1}, "done")


async def test_the_progress_of_a_lent_task_is_told_in_order(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker(bob)
        await begin(alice, bob)
        told = []
        outcome = await within(alice.delegate("bob", "t1", REQUEST, [], on_progress=told.append))
        assert outcome.result == {"x": 1}
        assert [(one.details, one.progress) for one in told[:3]] == [("part 0", 0), ("part 1", 0.25), ("part 2", 0.5)]
        assert (told[3].status, told[3].details, told[3].agent_id) == (v1.TASK_STATUS_COMPLETED, "done", "bob")

        again = []

        async def later(one):
            again.append(one.details)
            raise RuntimeError("an error of the callback")

        outcome = await within(alice.delegate("bob", "t1", REQUEST, [], epoch=outcome.epoch, on_progress=later))
        assert (outcome.epoch, again) == (5, ["part 0"])


async def test_lists_and_watches_go_to_the_end(broker, monkeypatch):
    monkeypatch.setattr("baton.watching._PAGE_SIZE", 2)
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker(bob)
        await begin(alice, bob)
        for number in range(5):
            outcome = await within(alice.delegate("bob", f"t{number}", REQUEST, []))
        names = [task.task_id async for task in alice.list_tasks(owner_id="alice")]
        assert names == [f"t{number}" for number in (4, 3, 2, 1, 0)]
        found = [one async for one in alice.list_handoffs(sender_id="alice")]
        assert len(found) == 5
        assert [one async for one in alice.list_handoffs(open_only=True)] == []
        states = [one.state async for one in alice.watch_handoff(found[0].handoff_id)]
        assert states == [v1.HANDOFF_STATE_COMPLETED]

        watching = asyncio.create_task(all_of(alice.watch_task("t4")))
        await alice.update_status("t4", outcome.epoch, v1.TASK_STATUS_COMPLETED)
        entries = await within(watching)
        assert [one.entry.number for one in entries] == list(range(1, len(entries) + 1))
        assert entries[-1].entry.task_status == v1.TASK_STATUS_COMPLETED

        async for response in alice.watch_handoffs():
            assert response.WhichOneof("event") == "caught_up"
            break
        assert [one async for one in alice.list_dead_letters()] == []


async def all_of(entries):
    return [entry async for entry in entries]


async def test_an_operator_reassigns_discards_and_reads_the_audit_log(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice, bob)
        receipt = await alice.request_handoff("bob", "t1", REQUEST)
        await alice.cancel(receipt, "bob")
        operator = broker.agent("alice", key=alice._key, operator_token=broker.operator_token())
        async with operator:
            task = await operator.reassign_task("t1", 1, "bob", "alice is away")
            assert (task.owner_id, task.epoch) == ("baton.coordinator", 2)
            entries = await all_of(operator.audit_log())
            assert [one.entry.number for one in entries] == list(range(1, len(entries) + 1))
            for call in (operator.get_dead_letter, operator.redrive_dead_letter, operator.discard_dead_letter):
                with pytest.raises(BatonError, match="DEAD_LETTER_UNKNOWN"):
                    await call("999")


async def test_dead_letters_are_exported_and_redriven_together(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        is_mended = False

        @bob.on(v1.Info)
        async def refuse(_delivery):
            if not is_mended:
                raise PoisonError("cannot be read")

        await begin(alice, bob)
        for text in ("first", "second"):
            await alice.send(v1.Info(text=text), receiver_id="bob")
        async with broker.agent("alice", key=alice._key, operator_token=broker.operator_token()) as operator:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(letters := await all_of(operator.export_dead_letters())) < 2:
                    await asyncio.sleep(0.05)
            texts = [
                v1.Info.FromString(v1.Envelope.FromString(letter.envelope_bytes).payload.value).text
                for letter in letters
            ]
            assert texts == ["first", "second"], "the oldest first, with their envelopes"
            assert [one async for one in operator.export_dead_letters(v1.DeadLetterFilter(task_id="none"))] == []
            tried = await all_of(operator.redrive_dead_letters(dry_run=True))
            assert [one.dead_letter.state for one in tried] == [v1.DEAD_LETTER_STATE_PARKED] * 2
            # A message that is refused again would be a further dead letter.
            is_mended = True
            # A call that is cut off leaves the rest.
            async with contextlib.aclosing(operator.redrive_dead_letters(max_per_second=0.01)) as redriven:
                one = await anext(redriven)
            assert one.dead_letter.state == v1.DEAD_LETTER_STATE_REDRIVEN
            [other] = await all_of(operator.redrive_dead_letters(to_agent_id="alice"))
            assert (other.dead_letter.dead_letter_id, other.HasField("error")) == (letters[1].dead_letter_id, False)
        with pytest.raises(BatonError, match="NOTHING_MATCHES"):
            await all_of(alice.redrive_dead_letters(v1.DeadLetterFilter(task_id="none")))
