"""Histories in the shapes of models, by the vectors."""

import pytest
import vectors

from baton import HistoryError, shapes
from baton.history import latest, settled

CASES = vectors.load("history-v1.json")["cases"]
READ = {
    "openai-chat": shapes.from_openai_chat,
    "openai-responses": shapes.from_openai_responses,
    "anthropic": shapes.from_anthropic,
    "gemini": shapes.from_gemini,
    "langchain": shapes.from_langchain,
}
WRITE = {
    "openai-chat": shapes.to_openai_chat,
    "openai-responses": shapes.to_openai_responses,
    "anthropic": shapes.to_anthropic,
    "gemini": shapes.to_gemini,
    "langchain": shapes.to_langchain,
}
CONVERSATION = next(case["history"] for case in CASES if case["shape"] == "openai-chat")


def name_of(case):
    return f"{case['shape']}: {case['name']}"


@pytest.mark.parametrize("case", [case for case in CASES if case["history"]], ids=name_of)
def test_a_history_comes_from_a_shape_and_goes_back(case):
    read, system = READ[case["shape"]], case.get("system")
    history = read(case["messages"], system) if system else read(case["messages"])
    assert history == case["history"]
    back, written = case.get("back", case["messages"]), WRITE[case["shape"]](history)
    assert written == ((case.get("back_system", system), back) if system else back)
    if case["shape"] != "gemini":  # whose calls have no ids
        assert (read(written[1], written[0]) if system else read(written))[1:] == history[1:]


@pytest.mark.parametrize("case", [case for case in CASES if not case["history"]], ids=name_of)
def test_what_has_no_form_is_refused_with_its_place(case):
    with pytest.raises(HistoryError) as wrong:
        READ[case["shape"]](case["messages"])
    assert wrong.value.pointer == case["pointer"]


@pytest.mark.parametrize("second", WRITE)
@pytest.mark.parametrize("first", WRITE)
def test_a_conversation_is_the_same_after_any_two_shapes(first, second):
    history = CONVERSATION
    for shape in (first, second):
        written = WRITE[shape](history)
        history = READ[shape](written[1], written[0]) if isinstance(written, tuple) else READ[shape](written)
    ids = {call["id"]: f"c{number}" for number, call in enumerate(history[2]["tool_calls"], 1)}
    for entry in history:
        entry.update({"tool_call_id": ids[entry["tool_call_id"]]} if "tool_call_id" in entry else {})
        for call in entry.get("tool_calls", ()):
            call["id"] = ids[call["id"]]
    assert history == CONVERSATION


def test_a_part_that_an_interface_does_not_take_is_refused():
    image = [{"type": "image", "url": "https://example.com/a.png"}]
    for write in (shapes.to_openai_chat, shapes.to_openai_responses, shapes.to_anthropic):
        with pytest.raises(HistoryError) as wrong:
            write([{"role": "assistant", "content": image}])
        assert wrong.value.pointer == "/0/content/0"
    with pytest.raises(HistoryError):
        shapes.to_gemini([{"role": "tool", "content": "a", "tool_call_id": "c"}])


@pytest.mark.parametrize("read", READ.values())
@pytest.mark.parametrize(
    "messages", [[7], [{}], [{"role": "assistant", "tool_calls": [{}]}], [{"role": "user", "content": 7}]]
)
def test_what_is_no_message_is_refused(read, messages):
    with pytest.raises(HistoryError):
        read(messages)


def test_open_calls_and_lost_results_are_left_out():
    calls = [{"id": name, "name": "f", "arguments": "{}"} for name in ("c1", "c2")]
    result = {"role": "tool", "content": "1", "tool_call_id": "c1"}
    lost = {"role": "tool", "content": "0", "tool_call_id": "c0"}
    entry = {"role": "assistant", "content": "", "tool_calls": calls}
    assert settled([lost, entry, result]) == [entry | {"tool_calls": calls[:1]}, result]
    assert settled([entry]) == []
    assert settled([entry | {"content": "I look"}]) == [{"role": "assistant", "content": "I look"}]
    assert latest([entry, result], 1) == [entry, result]
