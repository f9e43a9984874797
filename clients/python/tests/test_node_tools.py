"""The tools of a node of a run, with the real frameworks and a real broker. A test is skipped without its framework."""

import asyncio
import contextlib
import json

import pytest
from brokers import begin, needs_broker, within
from test_runs import graph

from baton import BatonError, json_section, v1

pytestmark = needs_broker

REASON = {"reason": "all facts hold"}
QUESTION = "Is it so?"


class OpenAIAgents:
    """An agent of the OpenAI Agents SDK whose model says what the script has."""

    asked_after_choice = 0

    def __init__(self):
        self.sdk = pytest.importorskip("agents")
        self.sdk.set_tracing_disabled(True)
        from baton.adapters import openai_agents

        self.adapter = openai_agents
        self.node_tools = openai_agents.node_tools

    def schemas(self, tools):
        return [tool.params_json_schema for tool in tools]

    async def run(self, tools, *script):
        """Returns what the tools have told the model, and the text of the model that ended the run, if one did."""
        from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

        def output(number, said):
            if isinstance(said, str):
                text = ResponseOutputText(text=said, type="output_text", annotations=[])
                return ResponseOutputMessage(
                    id="m", content=[text], role="assistant", status="completed", type="message"
                )
            name, arguments = said
            return ResponseFunctionToolCall(
                arguments=json.dumps(arguments), call_id=f"c{number}", name=name, type="function_call"
            )

        turns = iter(output(number, said) for number, said in enumerate(script))
        sdk = self.sdk

        class Scripted(sdk.Model):
            async def get_response(self, *_arguments, **_named):
                return sdk.ModelResponse(output=[next(turns)], usage=sdk.Usage(), response_id=None)

            def stream_response(self, *_arguments, **_named):
                raise NotImplementedError

        stop = self.adapter.stop_at_choice
        checker = sdk.Agent(name="checker", model=Scripted(), tools=tools, tool_use_behavior=stop)
        result = await sdk.Runner.run(checker, QUESTION)
        told = [json.loads(one.output) for one in result.new_items if one.type == "tool_call_output_item"]
        assert len(list(turns)) == 0
        return told, "" if told and json.dumps(told[-1]) == result.final_output else result.final_output


class LangGraph:
    """A graph of LangGraph whose model says what the script has."""

    asked_after_choice = 0

    def __init__(self):
        pytest.importorskip("langgraph.graph")
        from baton.adapters import langgraph

        self.node_tools = langgraph.node_tools

    def schemas(self, tools):
        from langchain_core.utils.function_calling import convert_to_openai_tool

        return [convert_to_openai_tool(tool)["function"]["parameters"] for tool in tools]

    async def run(self, tools, *script):
        from langchain_core.messages import AIMessage, HumanMessage
        from langgraph.graph import END, START, MessagesState, StateGraph
        from langgraph.prebuilt import ToolNode

        def output(number, said):
            if isinstance(said, str):
                return AIMessage(said)
            name, arguments = said
            return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"c{number}"}])

        turns = iter(output(number, said) for number, said in enumerate(script))
        built = StateGraph(MessagesState)
        built.add_node("model", lambda _: {"messages": [next(turns)]})
        built.add_node("tools", ToolNode(tools))
        built.add_edge(START, "model")
        built.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
        built.add_conditional_edges("tools", lambda state: "model" if state["messages"][-1].status == "error" else END)
        state = await built.compile().ainvoke({"messages": [HumanMessage(QUESTION)]})
        assert len(list(turns)) == 0
        messages = state["messages"]
        told = [json.loads(one.content) for one in messages if one.type == "tool"]
        return told, messages[-1].content if messages[-1].type == "ai" else ""


class PydanticAI:
    """An agent of Pydantic AI whose model says what the script has."""

    # The framework has no way to end a run by a tool.
    asked_after_choice = 1

    def __init__(self):
        pytest.importorskip("pydantic_ai")
        from baton.adapters import pydantic_ai

        self.node_tools = pydantic_ai.node_tools
        self.offered = []

    def schemas(self, _tools):
        return [tool.parameters_json_schema for tool in self.offered]

    async def run(self, tools, *script):
        import pydantic_ai
        from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
        from pydantic_ai.models.function import FunctionModel

        def output(number, said):
            part = TextPart(said) if isinstance(said, str) else ToolCallPart(*said, tool_call_id=f"c{number}")
            return ModelResponse(parts=[part])

        turns = iter(output(number, said) for number, said in enumerate(script))

        def answer(_messages, info):
            self.offered = info.function_tools
            return next(turns)

        result = await pydantic_ai.Agent(FunctionModel(answer), tools=tools).run(QUESTION)
        assert len(list(turns)) == 0
        parts = [part for message in result.all_messages() for part in message.parts]
        return [part.content for part in parts if isinstance(part, ToolReturnPart)], result.output


@pytest.fixture(params=[OpenAIAgents, LangGraph, PydanticAI])
def framework(request):
    return request.param()


@pytest.fixture
async def alice(broker):
    async with broker.agent("alice") as agent:

        @agent.on_handoff
        async def take(offer):
            await (await offer.accept()).complete()

        await begin(agent)
        await agent.register_graph(graph())
        yield agent


async def at_checker(agent, **options):
    """Returns a run that is at the node checker."""
    run = await agent.start_run("search", **options)
    await run.turn("searcher", finished=True, output="three pages")
    return run


async def turn_of(node_id, run):
    """Returns the first turn of a node in the run's log."""
    async with contextlib.aclosing(run.watch()) as entries:
        turns = (entry.turn async for entry in entries if entry.HasField("turn"))
        return await within(anext(turn async for turn in turns if turn.node_id == node_id))


async def active(run):
    return [node.node_id for node in (await run.state()).nodes if node.state == v1.NODE_STATE_ACTIVE]


def ending(framework):
    """What a model says after a choice, where it is asked once more."""
    return ["I have chosen."] * framework.asked_after_choice


async def test_a_choice_moves_the_run(framework, alice):
    run = await at_checker(alice)
    tools = await framework.node_tools(alice, run, "checker")
    given = (await run.tools("checker")).tools
    assert [(tool.name, tool.description) for tool in tools] == [(one["name"], one["description"]) for one in given]
    told, text = await within(framework.run(tools, ("transfer_to_generator", REASON), *ending(framework)))
    assert told == [
        {
            "chosen": "generator",
            "active_nodes": ["generator"],
            "next": "Your turn is over: the run is at generator. Do nothing more.",
        }
    ]
    assert ([text] if text else [], await active(run)) == (ending(framework), ["generator"])
    assert framework.schemas(tools) == [one["parameters"] for one in given]
    entry = await turn_of("checker", run)
    assert [(call.call_id, call.name) for call in entry.calls] == [("c0", "transfer_to_generator")]
    assert entry.choice.reason == "all facts hold"
    assert await framework.node_tools(alice, run, "generator") == []


async def test_of_two_choices_in_one_response_one_counts(alice):
    sdk = pytest.importorskip("agents")
    from agents.tool_context import ToolContext

    from baton.adapters.openai_agents import node_tools

    run = await at_checker(alice)
    tools = await node_tools(alice, run, "checker")
    assert all(isinstance(tool, sdk.FunctionTool) for tool in tools)
    arguments = json.dumps(REASON)
    calls = [
        tool.on_invoke_tool(
            ToolContext(context=None, tool_name=tool.name, tool_call_id=tool.name, tool_arguments=arguments), arguments
        )
        for tool in tools
    ]
    told = [json.loads(one) for one in await within(asyncio.gather(*calls))]
    assert sorted(one.get("error", "") for one in told) == ["", "NODE_NOT_ACTIVE"]
    [chosen] = [one["chosen"] for one in told if "chosen" in one]
    assert await active(run) == [chosen]


@pytest.mark.parametrize("arguments", ["", '{"reason": ', "[]", '{"reason": "\\ud800"}', '"\ud800"'])
async def test_arguments_that_a_model_breaks_are_told(alice, arguments):
    pytest.importorskip("agents")
    from agents.tool_context import ToolContext

    from baton.adapters.openai_agents import node_tools

    run = await at_checker(alice)
    [_, tool] = await node_tools(alice, run, "checker")
    context = ToolContext(context=None, tool_name=tool.name, tool_call_id="c0", tool_arguments=arguments)
    told = json.loads(await within(tool.on_invoke_tool(context, arguments)))
    # Missing arguments are an empty reason.
    if arguments:
        assert (told["error"], await active(run)) == ("FIELD_INVALID", ["checker"])
    else:
        assert (told["chosen"], await active(run)) == ("generator", ["generator"])


async def test_the_end_of_the_run_is_told(framework, alice):
    over = graph("short")
    over.nodes[1].output_nodes[:] = ["generator", "end"]
    await alice.register_graph(over)
    run = await alice.start_run("short")
    await run.turn("searcher", finished=True)
    tools = await framework.node_tools(alice, run, "checker")
    told, _ = await within(framework.run(tools, ("transfer_to_end", REASON), *ending(framework)))
    assert [told[0][key] for key in ("chosen", "active_nodes")] == ["end", []]
    assert told[0]["next"] == "Your turn is over: the run has ended. Do nothing more."
    assert (await run.state()).state == v1.RUN_STATE_COMPLETED


async def test_refused_arguments_are_told_and_the_third_ends_the_turn(framework, alice):
    wrong = ("transfer_to_generator", {"reason": 7})
    run = await at_checker(alice)
    tools = await framework.node_tools(alice, run, "checker")
    right = ("transfer_to_generator", REASON)
    told, _ = await within(framework.run(tools, wrong, right, *ending(framework)))
    assert [one.get("error") for one in told] == ["FIELD_INVALID", None]
    assert (list(told[0]), told[1]["chosen"]) == (["error", "message"], "generator")
    assert "reason" in told[0]["message"]

    run = await at_checker(alice)
    tools = await framework.node_tools(alice, run, "checker")
    told, _ = await within(framework.run(tools, wrong, wrong, wrong, *ending(framework)))
    assert [one["error"] for one in told] == ["FIELD_INVALID"] * 3
    assert (["active_nodes" in one for one in told], told[2]["active_nodes"]) == ([False, False, True], ["generator"])
    assert await active(run) == ["generator"]


async def test_a_turn_of_a_node_that_is_not_active_is_told(framework, alice):
    run = await at_checker(alice)
    tools = await framework.node_tools(alice, run, "checker")
    await run.turn("checker", finished=True)
    told, text = await within(framework.run(tools, ("transfer_to_searcher", REASON), "I stop."))
    assert ([one["error"] for one in told], text) == (["NODE_NOT_ACTIVE"], "I stop.")
    assert await active(run) == ["generator"]
    with pytest.raises(BatonError) as refused:
        await framework.node_tools(alice, run, "checker")
    assert refused.value.reason == "NODE_NOT_ACTIVE"


async def test_without_a_choice_the_text_is_the_output(framework, alice):
    run = await at_checker(alice)
    tools = await framework.node_tools(alice, run, "checker")
    told, text = await within(framework.run(tools, "All of it is so."))
    assert (told, text, await active(run)) == ([], "All of it is so.", ["checker"])
    step = await run.turn("checker", finished=True, output=text)
    assert step.next_node_ids == ("generator",)
    assert [one.output for one in (await run.tools("generator")).inputs] == ["All of it is so."]


@pytest.fixture
async def bob(broker, alice):
    """Yields bob, who works on the node generator. Carol has given the task ticket-1 to alice."""
    over = graph()
    over.nodes[2].agent_id = "bob"
    async with broker.agent("bob") as agent, broker.agent("carol") as carol:
        await agent.register()
        await alice.register_graph(over)
        await begin(carol)
        request = v1.HandoffRequest(task_type="support")
        await within(carol.hand_over("alice", "ticket-1", request, [json_section("goals", ["write"])]))
        yield agent


async def test_a_choice_of_another_agents_node_hands_the_task_over(framework, alice, bob):
    seen, rejects = [], True

    @bob.on_handoff
    async def take(offer):
        nonlocal rejects
        if rejects:
            rejects = False
            await offer.reject(v1.REJECT_REASON_WRONG_TASK_TYPE, "not mine")
            return
        takeover = await offer.accept()
        seen.append({section.name: json.loads(section.json) for section in takeover.sections})
        await takeover.complete()

    await bob.connect()
    run = await at_checker(alice, task_id="ticket-1")
    tools = await framework.node_tools(alice, run, "checker")
    choice = ("transfer_to_generator", REASON)
    told, _ = await within(framework.run(tools, choice, choice, *ending(framework)))
    assert (told[0]["error"], told[0]["rejections"]) == ("NO_CANDIDATE", ["bob: not mine"])
    assert told[1]["handoff"] == {"task_id": "ticket-1", "owner": "bob"}
    assert told[1]["next"] == "Your turn is over: bob has the task now. Do nothing more."
    assert seen[0]["goals"] == ["write"]
    assert seen[0]["history_log"][0] == {"role": "user", "content": QUESTION}
    assert ((await alice.get_task("ticket-1")).owner_id, await active(run)) == ("bob", ["generator"])


async def test_a_run_that_is_cancelled_leaves_its_handoff_open(framework, alice, bob):
    asked, go = asyncio.Event(), asyncio.Event()

    @bob.on_handoff
    async def take(offer):
        asked.set()
        await go.wait()
        await (await offer.accept()).complete()

    await bob.connect()
    run = await at_checker(alice, task_id="ticket-1")
    tools = await framework.node_tools(alice, run, "checker")
    running = asyncio.create_task(framework.run(tools, ("transfer_to_generator", REASON)))
    await within(asked.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(running)
    [moving] = [node for node in (await run.state()).nodes if node.state == v1.NODE_STATE_MOVING]
    go.set()
    handed = await within(alice.resume_hand_over(moving.handoff_id, [json_section("goals", ["write"])]))
    assert (handed.owner_id, await active(run)) == ("bob", ["generator"])
