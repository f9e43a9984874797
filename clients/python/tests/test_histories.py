"""Histories: their schema at the broker, and filters over what is none."""

import json

import pytest
from brokers import begin, needs_broker

from baton import BatonError, HistoryError, history_section, json_section, v1

HISTORY = [
    {"role": "user", "content": "where is order 7?"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "find", "arguments": '{"id":7}'}]},
    {"role": "tool", "content": "SECRET", "tool_call_id": "c1"},
    {"role": "assistant", "content": "It is on its way."},
]
CHAT = [
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {}}]},
    {"role": "tool", "content": "SECRET", "tool_call_id": "c1"},
]
WITHOUT = v1.ContextFilter(history=v1.HISTORY_FILTER_WITHOUT_TOOL_CALLS)


@needs_broker
async def test_a_filter_works_on_a_history_and_serves_nothing_of_another_list(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice)
        await bob.register()
        with pytest.raises(BatonError) as refused:
            await alice.register_schema("baton.history", "2", "true")
        assert (refused.value.reason, refused.value.field_violations[0].field) == ("FIELD_INVALID", "schema.schema_id")
        receipt = await alice.request_handoff("bob", "history-1", v1.HandoffRequest(task_type="x"))
        await alice.cancel(receipt, "bob")
        [task] = await alice.owned_tasks()
        await task.checkpoint([history_section(HISTORY), json_section("chat", CHAT)])
        part = await alice.context_section("history-1", "history_log", part=WITHOUT)
        assert json.loads(part.json) == [HISTORY[0], HISTORY[3]]
        last = v1.ContextFilter(history=v1.HISTORY_FILTER_LAST, last=2)
        assert json.loads((await alice.context_section("history-1", "history_log", part=last)).json) == HISTORY[1:]
        with pytest.raises(BatonError) as refused:
            await alice.context_section("history-1", "chat", part=WITHOUT)
        assert refused.value.reason == "FILTER_NOT_APPLICABLE"
        assert '"/0/tool_calls/0/type"' in refused.value.message
        wrong = json_section("chat", CHAT)
        wrong.schema_id, wrong.schema_version = "baton.history", "1"
        with pytest.raises(BatonError) as refused:
            await task.checkpoint([wrong])
        assert refused.value.reason == "CONTEXT_SCHEMA_VIOLATION"


@needs_broker
async def test_a_section_that_the_wished_filter_does_not_fit_is_not_sent(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        seen = []

        @bob.on_handoff
        async def take(offer):
            wishes = [v1.SectionWish(name=name, filter=WITHOUT) for name in ("history_log", "chat")]
            takeover = await offer.accept(wishes=wishes)
            seen.extend(takeover.sections)
            task = await takeover.complete()
            await task.finish({})

        await begin(alice, bob)
        sections = [history_section(HISTORY), json_section("chat", CHAT)]
        await alice.delegate("bob", "history-2", v1.HandoffRequest(task_type="x"), sections)
        assert [section.name for section in seen] == ["history_log"]
        assert json.loads(seen[0].json) == [HISTORY[0], HISTORY[3]]
        assert (seen[0].schema_id, seen[0].schema_version) == ("baton.history", "1")


def test_a_section_with_another_shape_is_not_made():
    with pytest.raises(HistoryError) as wrong:
        history_section(CHAT)
    assert (wrong.value.pointer, wrong.value.problem) == ("/0/tool_calls/0/type", "is no member of the shape")
