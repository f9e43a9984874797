"""Contexts: checkpoints that go as deltas, sections on demand, and wishes."""

import asyncio
import json

import pytest
from brokers import begin, needs_broker, within

from baton import BatonError, history_section, json_section, sections, v1

STORY = {"title": "march", "text": "x" * 2000, "count": 0}


def story(count):
    return json_section("story", STORY | {"count": count})


def test_a_small_change_goes_as_a_delta_and_a_large_one_whole():
    base = story(1).json
    [short], [whole] = sections.with_deltas([story(2)], lambda _: base)
    assert (short.delta.merge_patch, json.loads(whole.json)) == ('{"count":2}', STORY | {"count": 2})
    assert sections.sha256(whole.json) == short.delta.result_sha256
    other = json_section("story", {"other": "y" * 2000})
    assert sections.with_deltas([other], lambda _: base)[0] == [other]
    assert sections.with_deltas([story(2)], lambda _: None)[0] == [story(2)]
    assert sections.delta_between('{"a":1}', '{"a":null}') is None
    assert sections.delta_between('{"a":1}', '{"a":true}')[0].merge_patch == '{"a":true}'


def test_wishes_select_filter_and_shorten():
    history = history_section([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    last = v1.ContextFilter(history=v1.HISTORY_FILTER_LAST, last=1)
    wishes = [
        v1.SectionWish(name="history_log", filter=last),
        v1.SectionWish(name="story", have_sha256=sections.sha256(story(1).json)),
        v1.SectionWish(name="goals", filter=last),
    ]
    goals, other = json_section("goals", {"not": "a history"}), json_section("other", [])
    sent = sections.for_wishes(
        [history, story(2), goals, other], v1.HandoffAccept(wishes=wishes), lambda _name, _sha256: story(1).json
    )
    # Goals are no history, so nothing of them is sent.
    assert [section.name for section in sent] == ["history_log", "story"]
    assert (sent[0].json, sent[1].delta.merge_patch) == ('[{"content":"b","role":"assistant"}]', '{"count":2}')
    assert (sent[0].schema_id, sent[0].schema_version) == ("baton.history", "1")
    summary = v1.SectionWish(name="history_log", filter=v1.ContextFilter(history=v1.HISTORY_FILTER_SUMMARY))
    [short] = sections.for_wishes([history], v1.HandoffAccept(wishes=[summary]), lambda _name, _sha256: None)
    assert (short.json, short.schema_id) == ('{"entries":2,"summary":""}', "")
    reference = v1.ContextSection(name="history_log", reference=v1.ContextReference(uri="https://example.com/a"))
    wish = v1.HandoffAccept(wishes=[wishes[0]])
    assert sections.for_wishes([reference], wish, lambda _name, _sha256: None) == []
    assert len(sections.for_wishes([history, other], v1.HandoffAccept(), lambda _name, _sha256: None)) == 2


@needs_broker
async def test_a_checkpoint_goes_as_a_delta_and_the_next_owner_fetches_what_it_lacks(broker):
    found = asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            wish = v1.SectionWish(name="story", have_sha256=sections.sha256(sections.canonical(STORY | {"count": 2})))
            takeover = await offer.accept(wishes=[wish])
            whole = {name: await takeover.fetch_section(name) for name in ("story", "notes")}
            with pytest.raises(KeyError):
                await takeover.fetch_section("nothing")
            task = await takeover.complete()
            await task.checkpoint([json_section("story", json.loads(whole["story"].json) | {"count": 4})])
            found.put_nowait((takeover.sections, whole, task))

        await begin(alice)
        await bob.register()
        receipt = await alice.request_handoff("bob", "ticket-2", v1.HandoffRequest(task_type="x"))
        await alice.cancel(receipt, "bob")
        await bob.connect()  # an accept before the cancellation would wait in alice's mail
        [task] = await alice.owned_tasks()
        notes = json_section("notes", ["by hand"])
        await task.checkpoint([story(1), notes])
        await task.checkpoint([story(2)])
        latest = await alice.get_context("ticket-2")
        [info] = latest.sections
        assert (latest.version, info.origin) == (2, v1.SECTION_ORIGIN_DELTA)
        assert json.loads((await alice.context_section("ticket-2", "story")).json)["count"] == 2
        pointers = v1.ContextFilter(json_pointers=["/count"])
        part = await alice.context_section("ticket-2", "story", version=1, part=pointers)
        assert (json.loads(part.json), part.derived) == ({"/count": 1}, True)
        # Another process of alice has stored a version, which this one does not know as a base.
        alice.known_sections.note("ticket-2", [story(77)])
        await task.checkpoint([story(2)])
        assert [one.version async for one in alice.context_versions("ticket-2")] == [3, 2, 1]
        handed = await within(task.hand_over("bob", v1.HandoffRequest(task_type="x"), [story(3), notes]))
        assert handed.owner_id == "bob"
        sent, whole, owned = await within(found.get())
        assert [(section.name, section.WhichOneof("content")) for section in sent] == [("story", "delta")]
        assert (json.loads(whole["story"].json)["count"], json.loads(whole["notes"].json)) == (3, ["by hand"])
        assert (await bob.get_context("ticket-2")).sections[0].origin == v1.SECTION_ORIGIN_DELTA
        with pytest.raises(BatonError, match=r"STALE_EPOCH|NOT_OWNER"):
            await task.checkpoint([story(5)])
        assert owned.epoch == 2
