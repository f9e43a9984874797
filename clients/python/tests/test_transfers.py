"""A model of LangGraph that hands the conversation over for good, with a real broker. Skipped without the framework."""

import asyncio
import json
from typing import Any

import pytest
from brokers import needs_broker, within

from baton import v1

pytest.importorskip("langgraph.prebuilt")

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent

from baton.adapters.langgraph import transfer_tool

pytestmark = needs_broker

CALL = {"name": "transfer_to_billing", "args": {"summary": "What does 4711 owe?"}, "id": "call_7", "type": "tool_call"}
ASKED = {"messages": [HumanMessage("What do I owe?")]}


class Scripted(BaseChatModel):
    """A model that calls the tool first, and then repeats what the tool said."""

    def bind_tools(self, tools, **_options):  # noqa: ARG002
        return self

    def _generate(self, messages, stop=None, run_manager=None, **_options):  # noqa: ARG002
        last = messages[-1]
        said = AIMessage(last.content) if isinstance(last, ToolMessage) else AIMessage("", tool_calls=[CALL])
        return ChatResult(generations=[ChatGeneration(message=said)])

    @property
    def _llm_type(self):
        return "scripted"


class Desk(MessagesState, total=False):
    active_agent: str
    customer: str


def own_graph(agent):
    """A graph of one's own, which goes back to the model only after a tool that failed."""
    graph = StateGraph(Desk)
    graph.add_node("model", lambda state: {"messages": [Scripted().invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([transfer_tool(agent, "type:billing")]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    failed = lambda state: "model" if state["messages"][-1].status == "error" else END  # noqa: E731
    graph.add_conditional_edges("tools", failed, ["model", END])
    return graph.compile()


def ready_made(agent):
    """An agent of the framework's as the node of a graph."""
    graph = StateGraph(Desk)
    graph.add_node("desk", create_react_agent(Scripted(), [transfer_tool(agent, "type:billing", in_parent=True)]))
    graph.add_edge(START, "desk")
    return graph.compile()


@pytest.fixture
async def sides(broker):
    """Yields alice, the agent of billing, and the contexts that it took over. It takes questions only."""
    seen: list[Any] = []
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            if not offer.request.initial_context_summary.endswith("?"):
                await offer.reject(v1.REJECT_REASON_WRONG_TASK_TYPE, "no question")
                return
            takeover = await offer.accept()
            seen.append({section.name: json.loads(section.json) for section in takeover.sections})
            await takeover.complete()

        await alice.register()
        await alice.connect()
        await bob.register(agent_types=["billing"])
        yield alice, bob, seen
        assert await alice.owned_tasks() == []


async def tasks_of(bob):
    return [one.task_id for one in await bob.owned_tasks()]


@pytest.mark.parametrize("build", [ready_made, own_graph])
async def test_a_conversation_is_handed_over_for_good_and_the_graph_ends(sides, build):
    alice, bob, seen = sides
    await bob.connect()
    config = {"configurable": {"thread_id": "thread-7"}}
    state = await within(build(alice).ainvoke(ASKED | {"customer": "4711"}, config))
    told = json.loads(state["messages"][-1].content)
    assert (told["owner"], await tasks_of(bob)) == ("bob", [told["task_id"]])
    # The open call of the transfer is in no history.
    assert seen[0]["history_log"] == [{"role": "user", "content": "What do I owe?"}]
    assert [type(message) for message in state["messages"]] == [HumanMessage, AIMessage, ToolMessage]
    assert state["active_agent"] == "bob"
    # What the framework computes for a step is not handed over.
    assert seen[0]["session_variables"] == ({"customer": "4711"} if build is own_graph else {})
    task = await bob.get_task(told["task_id"])
    assert (task.owner_id, task.epoch, task.conversation_id) == ("bob", 2, "thread-7")


@pytest.mark.parametrize("build", [ready_made, own_graph])
async def test_a_model_is_told_that_nobody_takes_the_conversation_and_goes_on(sides, build, monkeypatch):
    alice, bob, seen = sides
    await bob.connect()
    monkeypatch.setitem(CALL, "args", {"summary": "Billing."})
    state = await within(build(alice).ainvoke(ASKED))
    last = state["messages"][-1]
    assert isinstance(last, AIMessage), "the model has had a further turn"
    told = json.loads(last.content)
    assert (told["error"], told["rejections"], seen) == ("NO_CANDIDATE", ["bob: no question"], [])
    assert "active_agent" not in state
    [task] = [one async for one in alice.list_tasks()]
    assert (task.owner_id, task.status) == ("alice", v1.TASK_STATUS_CANCELED)


async def test_a_graph_that_is_cut_off_finds_the_first_handoff(sides):
    alice, bob, seen = sides
    config = {"configurable": {"thread_id": "thread-7"}}
    first = asyncio.create_task(own_graph(alice).ainvoke(ASKED, config))
    while not [one async for one in alice.list_tasks()]:
        await asyncio.sleep(0.02)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    # The same call again, as a resumed process makes it; and once more when the task has moved.
    second = asyncio.create_task(own_graph(alice).ainvoke(ASKED, config))
    await bob.connect()
    states = [await within(second), await within(own_graph(alice).ainvoke(ASKED, config))]
    [task_id] = await tasks_of(bob)
    told = {"task_id": task_id, "owner": "bob"}
    assert [json.loads(state["messages"][-1].content) for state in states] == [told, told]
    assert len(seen) == 1
