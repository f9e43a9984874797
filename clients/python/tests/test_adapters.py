"""The adapters with the real frameworks and a real broker. Each test is skipped without its framework."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, TypedDict

import pytest
import vectors
from brokers import PATIENCE_SECONDS, needs_broker

import baton
from baton import HandoffFailedError, v1

FRAMEWORKS = ["openai_agents", "langgraph", "pydantic_ai"]
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    """The modules of the examples."""
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.fixture
async def pair(broker):
    """Yields alice, and the contexts that bob took over. Bob rejects other task types."""
    seen: list[Any] = []
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            if offer.request.task_type != "invoice-question":
                await offer.reject(v1.REJECT_REASON_WRONG_TASK_TYPE, "not mine")
                return
            takeover = await offer.accept()
            seen.append({section.name: json.loads(section.json) for section in takeover.sections})
            task = await takeover.complete()
            await task.finish({"total": 42.5}, "paid")

        for agent in (alice, bob):
            await agent.register(agent_types=["billing"])
            await agent.connect()
        yield alice, seen
        # No adapter leaves a task behind.
        assert await alice.owned_tasks() == []


def test_no_framework_is_imported_with_the_package():
    assert baton.__file__
    code = "import baton, sys; assert not {'agents', 'langgraph', 'langchain_core', 'pydantic_ai'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


@needs_broker
async def test_a_langgraph_node_delegates_the_state(pair):
    graphs = pytest.importorskip("langgraph.graph")
    from langchain_core.messages import HumanMessage

    from baton.adapters.langgraph import handoff_node

    alice, seen = pair

    class State(TypedDict, total=False):
        messages: list[Any]
        customer: str
        handoff: dict[str, Any]

    graph = graphs.StateGraph(State)
    graph.add_node("billing", handoff_node(alice, "type:billing", "invoice-question"))
    graph.add_edge(graphs.START, "billing")
    graph.add_edge("billing", graphs.END)
    state = {"messages": [HumanMessage("What do I owe?")], "customer": "4711"}
    result = await asyncio.wait_for(graph.compile().ainvoke(state), PATIENCE_SECONDS)
    handoff = result["handoff"]
    assert (handoff["status"], handoff["result"], handoff["details"]) == ("COMPLETED", {"total": 42.5}, "paid")
    assert seen[0]["session_variables"] == {"customer": "4711"}
    assert seen[0]["history_log"] == [{"role": "user", "content": "What do I owe?"}]
    task = await alice.get_task(handoff["task_id"])
    assert (task.owner_id, task.epoch, task.status) == ("alice", 3, v1.TASK_STATUS_COMPLETED)
    assert task.result_json == '{"total":42.5}'


@needs_broker
async def test_an_openai_agents_tool_delegates_what_the_model_asks(pair):
    sdk = pytest.importorskip("agents")
    from agents.tool_context import ToolContext

    from baton.adapters._lending import tool_name
    from baton.adapters.openai_agents import handoff_tool

    alice, seen = pair
    tool = handoff_tool(alice, "type:billing", "invoice-question", description="Asks billing.")
    assert isinstance(tool, sdk.FunctionTool)
    assert tool.name == "transfer_to_billing"
    sdk.Agent(name="triage", tools=[tool])
    arguments = json.dumps({"summary": "What does 4711 owe?", "details": "customer 4711"})
    context = ToolContext(context=None, tool_name=tool.name, tool_call_id="1", tool_arguments=arguments)
    told = json.loads(await asyncio.wait_for(tool.on_invoke_tool(context, arguments), PATIENCE_SECONDS))
    assert told == {"status": "COMPLETED", "result": {"total": 42.5}, "details": "paid"}
    assert seen[0]["task_description"]["details"] == "customer 4711"

    other = handoff_tool(alice, "bob", "travel", description="Books a trip.", name="book")
    told = json.loads(await asyncio.wait_for(other.on_invoke_tool(context, arguments), PATIENCE_SECONDS))
    assert (told["error"], told["rejections"]) == ("NO_CANDIDATE", ["bob: not mine"])
    names = [tool_name("type:" + "a" * 60), tool_name("a" * 61)]
    assert [len(name) for name in names] == [40, 40]
    assert names[0] != names[1]
    alike = ["type:finance.tax", "type:finance_tax", "type:finance-tax", "finance.tax"]
    assert len({tool_name(receiver) for receiver in alike}) == len(alike)
    assert tool_name("finance_tax") == "transfer_to_finance_tax"


@pytest.mark.parametrize(
    "arguments", ["", "{}", "[]", '{"details": "d"}', '{"summary": null}', '{"summary": "s",}', '{"summary": "s']
)
async def test_arguments_that_a_model_breaks_are_an_error_for_the_model(arguments):
    pytest.importorskip("agents")
    from baton.adapters.openai_agents import handoff_tool

    # No agent is asked, so none is needed.
    tool = handoff_tool(None, "type:billing", "invoice-question", description="Asks billing.")
    told = json.loads(await tool.on_invoke_tool(None, arguments))
    assert told["error"] == "ARGUMENTS_INVALID"
    assert '"summary"' in told["message"]


def openai_model(sdk, *outputs):
    """A model of the SDK that gives these outputs, one a turn."""
    turns = iter(outputs)

    class Fake(sdk.Model):
        async def get_response(self, *_arguments, **_named):
            return sdk.ModelResponse(output=[next(turns)], usage=sdk.Usage(), response_id=None)

        def stream_response(self, *_arguments, **_named):
            raise NotImplementedError

    return Fake()


@needs_broker
async def test_a_handoff_of_the_openai_agents_sdk_goes_through_baton(pair):
    sdk = pytest.importorskip("agents")
    from openai.types.responses import ResponseFunctionToolCall
    from with_openai_agents import triage

    alice, seen = pair
    sdk.set_tracing_disabled(True)

    def call():
        return ResponseFunctionToolCall(
            arguments="{}", call_id="c1", name="transfer_to_billing", type="function_call", status="completed"
        )

    result = await asyncio.wait_for(
        sdk.Runner.run(triage(alice, openai_model(sdk, call())), "What do I owe?"), PATIENCE_SECONDS
    )
    told = {"status": "COMPLETED", "result": {"total": 42.5}, "details": "paid"}
    assert (result.last_agent.name, json.loads(result.final_output)) == ("billing", told)
    # Without the call of the handoff itself.
    assert seen[0]["history_log"] == [{"content": "What do I owe?", "role": "user"}]
    remote = triage(alice, "unused").handoffs[0]
    streamed = sdk.Runner.run_streamed(remote, "And now?")
    async for _ in streamed.stream_events():
        pass
    assert json.loads(streamed.final_output) == told

    from baton.adapters.openai_agents import remote_agent

    other = remote_agent(alice, "bob", "travel", name="travel", description="Books a trip.")
    with pytest.raises(HandoffFailedError, match="NO_CANDIDATE"):
        await asyncio.wait_for(sdk.Runner.run(other, "To Rome."), PATIENCE_SECONDS)


@needs_broker
@pytest.mark.parametrize("chosen", ["billing", "The desk is open until five."])
async def test_a_langgraph_model_decides_about_the_handoff(pair, chosen):
    pytest.importorskip("langgraph.graph")
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, HumanMessage
    from with_langgraph import triage

    alice, seen = pair
    graph = triage(alice, GenericFakeChatModel(messages=iter([AIMessage(chosen)])))
    state = await asyncio.wait_for(graph.ainvoke({"messages": [HumanMessage("What do I owe?")]}), PATIENCE_SECONDS)
    if chosen == "billing":
        assert state["handoff"]["result"] == {"total": 42.5}
        assert [one["role"] for one in seen[0]["history_log"]] == ["user", "assistant"]
    else:
        assert ("handoff" in state, seen) == (False, [])


@needs_broker
async def test_an_output_of_pydantic_ai_is_a_handoff(pair):
    framework = pytest.importorskip("pydantic_ai")
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel
    from with_pydantic_ai import triage

    from baton.adapters.pydantic_ai import handoff_tool

    alice, seen = pair
    asked = {"summary": "What does 4711 owe?", "details": "customer 4711"}

    def decide(_messages, info):
        [tool] = info.output_tools
        assert tool.description == "Hands a question about an invoice over to billing."
        assert set(tool.parameters_json_schema["required"]) == {"summary", "details"}
        return ModelResponse(parts=[ToolCallPart(tool.name, asked)])

    result = await asyncio.wait_for(triage(alice, FunctionModel(decide)).run("What do I owe?"), PATIENCE_SECONDS)
    assert result.output == {"status": "COMPLETED", "result": {"total": 42.5}, "details": "paid"}
    assert seen == [{"task_description": asked, "history_log": [{"role": "user", "content": "What do I owe?"}]}]

    def give_up(messages, _info):
        returned = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        if returned:
            return ModelResponse(parts=[TextPart(str(returned[0].content))])
        return ModelResponse(parts=[ToolCallPart("book", asked)])

    book = handoff_tool(alice, "bob", "travel", name="book", description="Books a trip.")
    other = framework.Agent(FunctionModel(give_up), tools=[book])
    result = await asyncio.wait_for(other.run("To Rome."), PATIENCE_SECONDS)
    assert "NO_CANDIDATE" in result.output


def test_a_state_of_langgraph_is_converted_whole_or_refused_with_its_key():
    pytest.importorskip("langgraph.graph")
    import dataclasses
    import datetime
    import decimal
    import enum
    import uuid

    from langchain_core.messages import AIMessage, HumanMessage
    from pydantic import BaseModel

    from baton.adapters.langgraph import state_sections

    class Order(BaseModel):
        number: int
        lines: list[str]

    @dataclasses.dataclass
    class Customer:
        name: str

    class Level(enum.Enum):
        HIGH = "high"

    calls = [{"name": "find", "args": {"id": 7}, "id": "c1"}]
    state = {
        "messages": [
            HumanMessage("hi"),
            AIMessage("", tool_calls=calls),
            {"role": "user", "content": "a"},
            ("ai", "b"),
        ],
        "order": Order(number=12345678901234567890, lines=["a"]),
        "customer": [Customer("Ann")],
        "at": datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.UTC),
        "day": datetime.date(2026, 11, 26),
        "id": uuid.UUID(int=7),
        "tags": {"a"},
        "amount": decimal.Decimal("9.90"),
        "level": Level.HIGH,
        "pdf": b"\xff",
        "nothing": None,
    }
    history, variables = state_sections(state)
    assert json.loads(history.json) == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "find", "arguments": '{"id":7}'}]},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    assert history.schema_id == "baton.history"
    assert json.loads(variables.json) == {
        "order": {"number": 12345678901234567890, "lines": ["a"]},
        "customer": [{"name": "Ann"}],
        "at": "2026-11-26T12:00:00Z",
        "day": "2026-11-26",
        "id": "00000000-0000-0000-0000-000000000007",
        "tags": ["a"],
        "amount": "9.90",
        "level": "high",
        "pdf": "_w==",
        "nothing": None,
    }
    assert state_sections(Order(number=1, lines=[]))[0].json == '{"number": 1, "lines": []}'
    for key, value in [("socket", object()), ("rate", float("nan")), ("text", "\ud800"), ("messages", [object()])]:
        with pytest.raises(ValueError, match=f"the key '{key}'"):
            state_sections({key: value})


def test_messages_of_pydantic_ai_become_a_history_and_come_back():
    pytest.importorskip("pydantic_ai")
    from pydantic_ai.messages import (
        BinaryContent,
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UploadedFile,
        UserPromptPart,
    )

    from baton import HistoryError
    from baton.adapters.pydantic_ai import from_pydantic_ai, to_pydantic_ai

    image = BinaryContent(b"hi", media_type="image/png")
    messages = [
        ModelRequest(parts=[SystemPromptPart("be brief"), UserPromptPart(["where is it?", image])]),
        ModelResponse(parts=[ThinkingPart("hm"), TextPart("I look."), ToolCallPart("find", {"id": 7}, "c1")]),
        ModelRequest(parts=[ToolReturnPart("find", {"shelf": 9}, "c1")]),
        ModelResponse(parts=[TextPart("On its way.")]),
    ]
    history = from_pydantic_ai(messages)
    assert history == [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "where is it?"},
                {"type": "image", "data": "aGk=", "media_type": "image/png"},
            ],
        },
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "c1", "name": "find", "arguments": '{"id":7}'}],
        },
        {"role": "tool", "content": '{"shelf":9}', "tool_call_id": "c1"},
        {"role": "assistant", "content": "On its way."},
    ]
    assert from_pydantic_ai(to_pydantic_ai(history)) == history
    uploaded = UploadedFile(file_id="file-1", provider_name="openai")
    with pytest.raises(HistoryError, match="/0/parts/0/content/0"):
        from_pydantic_ai([ModelRequest(parts=[UserPromptPart([uploaded])])])


def frameworks():
    """Functions that write a history as the messages of a framework, and that read those, by the framework."""
    from langchain_core.messages import messages_from_dict
    from openai.types.responses import ResponseInputItemParam
    from pydantic import TypeAdapter

    from baton import shapes
    from baton.adapters.pydantic_ai import from_pydantic_ai, to_pydantic_ai

    items = TypeAdapter(list[ResponseInputItemParam])
    return {
        "openai_agents": (
            lambda history: items.validate_python(shapes.to_openai_responses(history)),
            lambda read: shapes.from_openai_responses(items.dump_python(read, mode="json")),
        ),
        "langgraph": (lambda history: messages_from_dict(shapes.to_langchain(history)), shapes.from_langchain),
        "pydantic_ai": (to_pydantic_ai, from_pydantic_ai),
    }


@pytest.mark.parametrize("second", FRAMEWORKS)
@pytest.mark.parametrize("first", FRAMEWORKS)
def test_a_conversation_is_the_same_after_any_two_frameworks(first, second):
    for name in ("agents", "langgraph", "pydantic_ai"):
        pytest.importorskip(name)
    whole = vectors.load("history-v1.json")["cases"]
    conversation = next(case["history"] for case in whole if case["shape"] == "openai-chat")
    history = conversation
    for framework in (first, second):
        write, read = frameworks()[framework]
        history = read(write(history))
    assert history == conversation
