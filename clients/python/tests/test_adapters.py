"""The adapters with the real frameworks and a real broker. Each test is skipped without its framework."""

import asyncio
import json
import subprocess
import sys
from typing import Any, TypedDict

import pytest
from brokers import PATIENCE_SECONDS, RealBroker, needs_broker

import baton
from baton import v1


@pytest.fixture
async def broker(tmp_path):
    broker = RealBroker(tmp_path)
    await broker.start()
    yield broker
    broker.stop()


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


def test_no_framework_is_imported_with_the_package():
    assert baton.__file__
    code = "import baton, sys; assert not {'agents', 'langgraph', 'langchain_core'} & set(sys.modules)"
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
    assert seen[0]["history_log"][0]["data"]["content"] == "What do I owe?"
    task = await alice.get_task(handoff["task_id"])
    assert (task.owner_id, task.epoch) == ("alice", 3)


@needs_broker
async def test_an_openai_agents_tool_delegates_what_the_model_asks(pair):
    sdk = pytest.importorskip("agents")
    from agents.tool_context import ToolContext

    from baton.adapters.openai_agents import handoff_tool, tool_name

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
