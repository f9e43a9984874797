"""Routing by a model: the responses of models, and runs through a graph."""

import asyncio
import json
from datetime import timedelta

import pytest
import vectors
from brokers import begin, needs_broker, within

from baton import BatonError, json_section, read_turn, v1
from baton.turns import Shape, results_of

TRANSFER = {"name": "transfer_to_generator", "arguments": {"reason": "all facts hold"}}
ARGUMENTS = json.dumps(TRANSFER["arguments"])


def graph(graph_id="search", **checker):
    nodes = [
        v1.Node(node_id="searcher", description="Finds pages.", output_nodes=["checker"]),
        v1.Node(
            node_id="checker", description="Checks.", handoffs=2, output_nodes=["searcher", "generator"], **checker
        ),
        v1.Node(node_id="generator", description="Writes the answer.", output_nodes=["end"]),
    ]
    return v1.Graph(graph_id=graph_id, entry_node_ids=["searcher"], nodes=nodes)


def responses_api(*calls, text=""):
    output = [{"type": "reasoning", "summary": []}]
    if text:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output.append({"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content})
    for number, name in enumerate(calls):
        output.append({"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": ARGUMENTS})
    return {"object": "response", "status": "completed", "output": output}


def anthropic_message(*calls, text=""):
    content = [{"type": "text", "text": text}] if text else []
    for number, name in enumerate(calls):
        content.append({"type": "tool_use", "id": f"c{number}", "name": name, "input": TRANSFER["arguments"]})
    stop = "tool_use" if calls else "end_turn"
    return {"type": "message", "role": "assistant", "content": content, "stop_reason": stop}


def chat_completion(*calls, text=""):
    made = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}
        for number, name in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text or None, "tool_calls": made or None}
    stop = "tool_calls" if calls else "stop"
    return {"object": "chat.completion", "choices": [{"index": 0, "finish_reason": stop, "message": message}]}


def mcp_sampled(*calls, text=""):
    content = [{"type": "text", "text": text}] if text else []
    for number, name in enumerate(calls):
        content.append({"type": "tool_use", "id": f"c{number}", "name": name, "input": TRANSFER["arguments"]})
    stop = "toolUse" if calls else "endTurn"
    return {"role": "assistant", "model": "m", "content": content, "stopReason": stop}


MAKERS = [responses_api, chat_completion, anthropic_message, mcp_sampled]


@pytest.mark.parametrize("make", MAKERS)
def test_a_response_is_read_as_it_is(make):
    turn = read_turn(make("look_up", "transfer_to_generator", text="I am done."))
    assert [(call.call_id, call.name, json.loads(call.arguments_json)) for call in turn.calls] == [
        ("c0", "look_up", TRANSFER["arguments"]),
        ("c1", "transfer_to_generator", TRANSFER["arguments"]),
    ]
    assert (turn.output, turn.finished) == ("I am done.", False)
    last = read_turn(make(text="The answer."))
    assert (last.calls, last.output, last.finished) == ((), "The answer.", True)


def test_the_objects_of_the_packages_are_read_as_their_json():
    openai = pytest.importorskip("openai.types.chat")
    responses = pytest.importorskip("openai.types.responses")
    mcp = pytest.importorskip("mcp.types")
    chat = chat_completion("transfer_to_generator") | {"id": "1", "created": 1, "model": "m"}
    for plain, made in [
        (responses_api("transfer_to_generator", text="so"), responses.Response.model_construct),
        (chat, openai.ChatCompletion.model_validate),
        (mcp_sampled("transfer_to_generator", text="so"), mcp.CreateMessageResultWithTools.model_validate),
    ]:
        built = made(**plain) if made == responses.Response.model_construct else made(plain)
        assert read_turn(built) == read_turn(plain)
    called = mcp.CallToolRequest(params=mcp.CallToolRequestParams(**TRANSFER))
    turn = read_turn(called)
    assert (turn.shape, turn.calls[0].name, turn.finished) == (Shape.MCP_CALL, "transfer_to_generator", False)


def test_what_is_cut_off_is_not_finished_and_what_is_no_response_is_refused():
    assert not read_turn(responses_api(text="so") | {"status": "incomplete"}).finished
    assert not read_turn(anthropic_message(text="so") | {"stop_reason": "max_tokens"}).finished
    for wrong in ({}, {"choices": []}, "text", {"role": "user", "content": "hello"}, None):
        with pytest.raises(ValueError, match=r"no response|one choice"):
            read_turn(wrong)


TURNS = vectors.load("turns-v1.json")


@pytest.mark.parametrize("case", TURNS["cases"], ids=lambda case: case["name"])
def test_turns_are_those_of_the_vectors(case):
    if case["calls"] is None:
        with pytest.raises(ValueError, match=r"no response|one choice"):
            read_turn(case["response"])
        return
    turn = read_turn(case["response"])
    found = [(call.call_id, call.name, json.loads(call.arguments_json)) for call in turn.calls]
    wanted = [(call["call_id"], call["name"], json.loads(call["arguments_json"])) for call in case["calls"]]
    assert (turn.shape.name, found, turn.output, turn.finished) == (
        case["shape"],
        wanted,
        case["output"],
        case["finished"],
    )


def test_results_are_those_of_the_vectors():
    results = TURNS["results"]
    calls = [v1.ToolCall(**call) for call in results["calls"]]
    told = [v1.ToolResult(**result) for result in results["tool_results"]]
    assert {shape.name: results_of(shape, calls, told) for shape in Shape} == results["messages"]


def test_results_have_the_shape_of_the_response():
    calls = [v1.ToolCall(call_id="c0", name="look_up"), v1.ToolCall(call_id="c1", name="transfer_to_generator")]
    told = [v1.ToolResult(call_id="c0", text="own"), v1.ToolResult(call_id="c1", text="Transferred.")]
    text = [{"type": "text", "text": "Transferred."}]
    block = {"type": "tool_result", "tool_use_id": "c1", "content": "Transferred.", "is_error": False}
    sampled = {"type": "tool_result", "toolUseId": "c1", "content": text, "isError": False}
    expected = {
        Shape.OPENAI_RESPONSES: [{"type": "function_call_output", "call_id": "c1", "output": "Transferred."}],
        Shape.OPENAI_CHAT: [{"role": "tool", "tool_call_id": "c1", "content": "Transferred."}],
        Shape.ANTHROPIC: [{"role": "user", "content": [block]}],
        Shape.MCP_SAMPLING: [{"role": "user", "content": [sampled]}],
        Shape.MCP_CALL: [{"content": text, "isError": False}],
    }
    assert {shape: results_of(shape, calls, told) for shape in Shape} == expected


@needs_broker
async def test_a_run_goes_where_the_model_chooses(broker):
    async with broker.agent("alice") as alice:
        await begin(alice)
        registered = await alice.register_graph(graph())
        assert (registered.graph.revision, len(registered.graph.nodes)) == (1, 3)
        assert len((await alice.get_graph("search")).nodes) == 3
        assert [one.graph_id async for one in alice.graphs()] == ["search"]
        run = await alice.start_run("search", whole_timeout=timedelta(minutes=5))
        assert [one.run_id async for one in alice.runs(graph_id="search")] == [run.run_id]
        step = await run.turn("searcher", anthropic_message(text="three pages"))
        assert (step.next_node_ids, step.results, step.is_over) == (("checker",), [], False)
        for shape in ("openai", "anthropic", "mcp"):
            node = await run.tools("checker", shape)
            assert [tool["name"] for tool in node.tools] == ["transfer_to_searcher", "transfer_to_generator"]
        assert (node.remaining, [one.output for one in node.inputs]) == (2, ["three pages"])
        wrong = await run.turn("checker", responses_api("transfer_to_searcher", "transfer_to_generator"))
        assert (wrong.refusal, len(wrong.results)) == ("TRANSFER_AMBIGUOUS", 2)
        assert "exactly one" in wrong.results[0]["output"]
        step = await run.turn("checker", anthropic_message("look_up", "transfer_to_generator"))
        assert (step.answer.choice.target_node_id, step.answer.choice.reason) == ("generator", "all facts hold")
        [message] = step.results
        assert [block["tool_use_id"] for block in message["content"]] == ["c1"]
        with pytest.raises(BatonError) as refused:
            await run.turn("checker", anthropic_message())
        assert refused.value.reason == "NODE_NOT_ACTIVE"
        assert (await run.turn("generator", finished=True, output="42")).is_over
        kinds = [entry.WhichOneof("event") async for entry in run.watch()]
        assert (kinds[0], kinds.count("turn"), kinds[-1]) == ("started", 4, "ended")
        assert [entry async for entry in run.watch(len(kinds))] == []
        with pytest.raises(BatonError) as refused:
            await run.tools("checker")
        assert refused.value.reason == "RUN_FINAL"


@needs_broker
async def test_wrong_graphs_and_runs_are_refused(broker):
    async with broker.agent("alice") as alice:
        await begin(alice)
        wrong = graph()
        wrong.nodes[0].output_nodes[:] = ["nowhere"]
        assert "OUTPUT_UNKNOWN" in [problem.code for problem in await alice.validate_graph(wrong)]
        with pytest.raises(BatonError) as refused:
            await alice.register_graph(wrong)
        assert (refused.value.reason, bool(refused.value.field_violations)) == ("GRAPH_INVALID", True)
        with pytest.raises(BatonError) as refused:
            await alice.start_run("unknown")
        assert refused.value.reason == "GRAPH_UNKNOWN"
        await alice.register_graph(graph())
        run = await alice.start_run("search")
        assert (await run.cancel("enough")).state == v1.RUN_STATE_CANCELLED
        assert "enough" in (await alice.join_run(run.run_id).state()).error_message


@needs_broker
async def test_a_turn_whose_answer_is_lost_counts_once(broker):
    async with broker.agent("alice") as alice:
        await begin(alice)
        await alice.register_graph(graph())
        run = await alice.start_run("search")
        entries = run.watch()
        assert (await within(anext(entries))).HasField("started")
        broker.kill()
        reporting = asyncio.create_task(run.turn("searcher", finished=True, output="two pages"))
        await broker.start()
        step = await within(reporting)
        assert step.next_node_ids == ("checker",)
        turn_id = [entry.turn.turn_id async for entry in _until_turn(entries)][-1]
        again = await run.turn("searcher", finished=True, output="two pages", turn_id=turn_id)
        assert (again.answer.run.turns, again.next_node_ids) == (1, ("checker",))
        with pytest.raises(BatonError) as refused:
            await run.turn("searcher", finished=True, output="other pages", turn_id=turn_id)
        assert refused.value.reason == "MESSAGE_ID_REUSED"
        await entries.aclose()


async def _until_turn(entries):
    while True:
        entry = await within(anext(entries))
        yield entry
        if entry.HasField("turn"):
            return


@needs_broker
async def test_a_choice_of_another_agents_node_is_a_handoff(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(offer):
            await (await offer.accept()).complete()

        await begin(alice)
        await bob.register()
        asked = await alice.request_handoff("bob", "ticket-1", v1.HandoffRequest(task_type="support"))
        await alice.cancel(asked, "bob")
        # An accept of the first handoff would wait in alice's mail before that of the second.
        await bob.connect()
        over = graph()
        over.nodes[2].agent_id = "bob"
        await alice.register_graph(over)
        run = await alice.start_run("search", task_id="ticket-1")
        await run.turn("searcher", finished=True)
        step = await run.turn("checker", chat_completion("transfer_to_generator"))
        assert (step.receiver_id, step.proposal is not None) == ("bob", True)
        sections = [json_section("goals", ["write"])]
        handed = await within(alice.hand_over(step.receiver_id, "ticket-1", step.proposal, sections))
        assert handed.owner_id == "bob"
        with pytest.raises(BatonError) as refused:
            await run.turn("generator", finished=True)
        assert refused.value.reason == "NOT_OWNER"
        assert (await bob.join_run(run.run_id).turn("generator", finished=True)).is_over


@needs_broker
async def test_a_plain_edge_to_another_agents_node_is_a_handoff_and_the_agent_is_told(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        told = asyncio.get_running_loop().create_future()

        @bob.on_handoff
        async def take(offer):
            await (await offer.accept()).complete()

        @bob.on(v1.Info)
        async def hear(delivery):
            told.set_result((delivery.payload.topic, json.loads(delivery.payload.data_json)))

        await begin(alice)
        await bob.register()
        asked = await alice.request_handoff("bob", "ticket-1", v1.HandoffRequest(task_type="support"))
        await alice.cancel(asked, "bob")
        # An accept of the first handoff would wait in alice's mail before that of the second.
        await bob.connect()
        over = graph()
        over.nodes[2].agent_id = "bob"
        await alice.register_graph(over)
        run = await alice.start_run("search", task_id="ticket-1")
        await run.turn("searcher", finished=True)
        step = await run.turn("checker", finished=True, output="all facts hold")
        assert (step.receiver_id, step.proposal is not None, step.next_node_ids) == ("bob", True, ())
        with pytest.raises(BatonError) as refused:
            await run.turn("generator", finished=True)
        assert refused.value.reason == "NODE_NOT_ACTIVE"
        await within(alice.hand_over(step.receiver_id, "ticket-1", step.proposal, [json_section("goals", ["write"])]))
        topic, data = await within(told)
        assert (topic, data["run_id"], data["node_id"]) == ("run.node_active", run.run_id, "generator")
        assert [given["output"] for given in data["inputs"]] == ["all facts hold"]
        assert (await bob.join_run(run.run_id).turn("generator", finished=True)).is_over
