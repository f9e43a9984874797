"""Agents of the frameworks that work on the tasks that baton delivers."""

import asyncio
import contextlib
import json
from typing import Any, TypedDict

import pytest
from brokers import needs_broker, within

from baton import HandoffFailedError, generate_key, history_section, json_section, v1

pytestmark = needs_broker

REQUEST = v1.HandoffRequest(task_type="billing", initial_context_summary="What does 4711 owe?")
ASKED = json_section("task_description", {"summary": "What does 4711 owe?", "details": "customer 4711"})
HISTORY = history_section(
    [
        {"role": "system", "content": "obey me"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "find", "arguments": "{}"}]},
        {"role": "tool", "content": "4711", "tool_call_id": "c1"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c2", "name": "transfer", "arguments": "{}"}]},
    ]
)


@pytest.fixture
async def alice(broker):
    async with broker.agent("alice") as agent:
        await agent.register()
        await agent.connect()
        yield agent


@contextlib.asynccontextmanager
async def serving(agent, serve, worker, **options):
    """Has an agent of a framework serve, inside the context manager."""
    running = asyncio.create_task(serve(agent, worker, types=["billing"], description="bills", **options))
    try:
        yield running
    finally:
        await agent.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def lent(alice, *sections, task_id="t1", on_progress=None):
    """Lends a task to the type, once an agent of it is there."""
    while not await alice.find_agents(agent_type="billing"):
        await asyncio.sleep(0.02)
    return await within(alice.delegate("type:billing", task_id, REQUEST, sections, on_progress=on_progress))


def openai_worker(*outputs, seen):
    import agents

    turns = iter(outputs)

    class Scripted(agents.Model):
        async def get_response(self, system_instructions, input, *_arguments, **_named):  # noqa: A002
            seen.append((system_instructions, input))
            one = next(turns)
            if isinstance(one, Exception):
                raise one
            return agents.ModelResponse(output=[one], usage=agents.Usage(), response_id=None)

        def stream_response(self, *_arguments, **_named):
            raise NotImplementedError

    @agents.function_tool
    def look_up(customer: str) -> str:
        """Looks a customer up."""
        return f"{customer} owes 42.50"

    agents.set_tracing_disabled(disabled=True)
    return agents.Agent(name="billing", instructions="You bill.", model=Scripted(), tools=[look_up])


def openai_text(text):
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    content = [ResponseOutputText(text=text, type="output_text", annotations=[])]
    return ResponseOutputMessage(id="m", content=content, role="assistant", status="completed", type="message")


async def test_an_agent_of_the_openai_sdk_works_on_a_task(broker, alice):
    pytest.importorskip("agents")
    from openai.types.responses import ResponseFunctionToolCall

    from baton.adapters.openai_agents import serve

    seen, told = [], []
    call = ResponseFunctionToolCall(arguments='{"customer": "4711"}', call_id="x", name="look_up", type="function_call")
    worker = openai_worker(call, openai_text("They owe 42.50."), ValueError("no model"), seen=seen)
    async with serving(broker.agent("bob"), serve, worker):
        back = await lent(alice, HISTORY, ASKED, on_progress=told.append)
        assert (back.status, back.result) == (v1.TASK_STATUS_COMPLETED, {"response": "They owe 42.50."})
        assert [one.details for one in told] == ["calls look_up", ""]
        instructions, given = seen[0]
        assert instructions == "You bill."
        # Without the system prompt of alice, and without the call of the handoff.
        assert [one.get("role", one.get("type")) for one in given] == [
            "user",
            "function_call",
            "function_call_output",
            "user",
        ]
        assert given[-1]["content"] == "What does 4711 owe?\n\ncustomer 4711"
        back = await lent(alice, ASKED, task_id="t2")
        assert (back.status, back.details) == (v1.TASK_STATUS_FAILED, "ValueError: no model")


class State(TypedDict, total=False):
    messages: list[Any]
    customer: str
    total: float


async def test_a_graph_works_on_a_task(broker, alice):
    pytest.importorskip("langgraph.graph")
    from langchain_core.messages import AIMessage
    from langgraph.graph import END, START, StateGraph

    from baton.adapters.langgraph import serve

    seen, told = [], []

    def look_up(state):
        seen.append([(one.type, one.content) for one in state["messages"]])
        return {"total": 42.5}

    def say(state):
        return {"messages": [*state["messages"], AIMessage(f"{state['customer']} owes {state['total']}")]}

    graph = StateGraph(State)
    graph.add_node("look_up", look_up)
    graph.add_node("say", say)
    graph.add_edge(START, "look_up")
    graph.add_edge("look_up", "say")
    graph.add_edge("say", END)
    async with serving(broker.agent("bob"), serve, graph.compile()):
        variables = json_section("session_variables", {"customer": "4711"})
        back = await lent(alice, HISTORY, ASKED, variables, on_progress=told.append)
        assert back.result == {"total": 42.5, "response": "4711 owes 42.5"}
        assert [one.details for one in told] == ["look_up is done", "say is done", ""]
        assert [kind for kind, _ in seen[0]] == ["human", "ai", "tool", "human"]
        assert seen[0][-1][1] == "What does 4711 owe?\n\ncustomer 4711"
        # A node that raises: the state has no customer.
        back = await lent(alice, ASKED, task_id="t2")
        assert (back.status, back.details) == (v1.TASK_STATUS_FAILED, "KeyError: 'customer'")


async def test_an_interrupt_of_a_graph_asks_the_sender_also_after_a_restart(broker, alice):
    pytest.importorskip("langgraph.graph")
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import interrupt

    from baton.adapters.langgraph import serve

    worked = []

    def look_up(_state):
        worked.append(1)
        return {"total": 42.5}

    def confirm(_state):
        return {"customer": interrupt({"question": "Which customer?"})}

    graph = StateGraph(State)
    graph.add_node("look_up", look_up)
    graph.add_node("confirm", confirm)
    graph.add_edge(START, "look_up")
    graph.add_edge("look_up", "confirm")
    graph.add_edge("confirm", END)
    compiled, key = graph.compile(checkpointer=InMemorySaver()), generate_key()
    asked = asyncio.Queue()

    def told(progress):
        if progress.question:
            asked.put_nowait(progress)

    first = broker.agent("bob", key=key)
    running = asyncio.create_task(serve(first, compiled, types=["billing"]))
    call = asyncio.create_task(lent(alice, ASKED, on_progress=told))
    question = await within(asked.get())
    assert question.question == "Which customer?"
    # The first process ends without a word.
    await first._link.close()
    await first._connection.close()
    running.cancel()
    async with serving(broker.agent("bob", key=key), serve, compiled):
        # The question is open, and is not asked twice.
        await alice.answer("t1", question.epoch, question.question_id, "4711")
        assert (await within(call)).result == {"total": 42.5, "customer": "4711"}
    assert (worked, asked.empty()) == ([1], True)


async def test_an_agent_of_pydantic_ai_works_on_a_task(broker, alice):
    framework = pytest.importorskip("pydantic_ai")
    from pydantic import BaseModel
    from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel

    from baton.adapters.pydantic_ai import serve

    class Bill(BaseModel):
        total: float

    told, seen = [], []

    def decide(messages, info):
        seen.append(messages)
        returned = [part for one in messages for part in one.parts if isinstance(part, ToolReturnPart)]
        if any(part.tool_name == "look_up" for part in returned):
            return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"total": 42.5})])
        return ModelResponse(parts=[ToolCallPart("look_up", {"customer": "4711"})])

    worker = framework.Agent(FunctionModel(decide), output_type=Bill, instructions="You bill.")

    @worker.tool_plain
    def look_up(customer: str) -> str:
        if customer != "4711":
            raise KeyError(customer)
        return "42.50"

    async with serving(broker.agent("bob"), serve, worker):
        back = await lent(alice, HISTORY, ASKED, on_progress=told.append)
        assert (back.status, back.result) == (v1.TASK_STATUS_COMPLETED, {"total": 42.5})
        assert told[0].details == "calls look_up"
        kinds = [part.part_kind for message in seen[0] for part in message.parts]
        assert kinds == ["user-prompt", "tool-call", "tool-return", "user-prompt"]


async def test_a_history_of_another_shape_leaves_the_task_with_its_sender(broker, alice):
    pytest.importorskip("agents")
    from baton.adapters.openai_agents import serve

    async with serving(broker.agent("bob"), serve, openai_worker(seen=[])):
        with pytest.raises(HandoffFailedError, match=r"baton\.history"):
            await lent(alice, json_section("history_log", [{"who": "customer", "text": "hello"}]))


async def test_a_recalled_task_stops_its_run(broker, alice):
    framework = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.function import FunctionModel

    from baton.adapters.pydantic_ai import serve

    begun, stopped = asyncio.Event(), asyncio.Event()

    async def decide(_messages, _info):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with serving(broker.agent("bob"), serve, framework.Agent(FunctionModel(decide))):
        call = asyncio.create_task(lent(alice, ASKED))
        await within(begun.wait())
        call.cancel()
        await within(stopped.wait())


async def test_two_frameworks_lend_to_each_other(broker, alice):
    """The whole way: an adapter lends, and the agent of another framework works."""
    pytest.importorskip("agents")
    framework = pytest.importorskip("pydantic_ai")
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from baton.adapters.openai_agents import serve
    from baton.adapters.pydantic_ai import handoff_tool

    seen = []
    asked = {"summary": "What does 4711 owe?", "details": "customer 4711"}

    def decide(_messages, info):
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, asked)])

    worker = openai_worker(openai_text("42.50"), seen=seen)
    async with serving(broker.agent("bob"), serve, worker):
        while not await alice.find_agents(agent_type="billing"):
            await asyncio.sleep(0.02)
        triage = framework.Agent(FunctionModel(decide), output_type=[handoff_tool(alice, "type:billing")])
        output = (await within(triage.run("hello"))).output
        assert (output["status"], output["result"]) == ("COMPLETED", {"response": "42.50"})
        assert json.loads(json.dumps(seen[0][1]))[0] == {"role": "user", "content": "hello"}
