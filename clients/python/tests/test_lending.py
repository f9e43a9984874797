"""One call of a framework is one task: after a crash, a failure, a question and a cancelled call."""

import asyncio
import importlib
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

import pytest
from brokers import needs_broker, within

from baton import HandoffFailedError, TaskRecalledError, generate_key, save_key, v1

pytestmark = needs_broker

LENDER = Path(__file__).parent / "lender.py"
ASKED = {"summary": "What does 4711 owe?", "details": "customer 4711"}
MODULES = {"openai_agents": "agents", "pydantic_ai": "pydantic_ai", "langgraph": "langgraph.checkpoint.sqlite"}
FRAMEWORKS = list(MODULES)


class Bob:
    """The agent of the type billing. Hands each task that it takes over to the test."""

    def __init__(self, agent, accepts=lambda _: True):
        self.agent = agent
        self.tasks = asyncio.Queue()
        self.taken = []
        self.contexts = []
        self.stopped = asyncio.Queue()
        self._accepts = accepts
        agent.on_handoff(self.take)

    async def take(self, offer):
        if not self._accepts(offer):
            await offer.reject(v1.REJECT_REASON_WRONG_TASK_TYPE, "not mine")
            return
        takeover = await offer.accept()
        self.contexts.append({section.name: json.loads(section.json) for section in takeover.sections})
        task = await takeover.complete()
        self.taken.append(task.task_id)
        self.tasks.put_nowait(task)
        try:
            while task.is_here:
                await asyncio.sleep(0.05)
        finally:
            self.stopped.put_nowait(task.task_id)

    async def task(self):
        return await within(self.tasks.get())


@pytest.fixture
async def sides(broker):
    """Yields alice and the agent of billing."""
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        worker = Bob(bob)
        await bob.register(agent_types=["billing"])
        await alice.register()
        await bob.connect()
        await alice.connect()
        yield alice, worker
        assert await alice.owned_tasks() == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_program_that_is_killed_while_it_waits_finds_its_task_again(broker, tmp_path, framework):
    pytest.importorskip(MODULES[framework])
    async with crashing(broker, tmp_path, framework) as (worker, start):
        first = await start()
        task = await worker.task()
        first.kill()
        await first.wait()
        second = await start()
        await asyncio.sleep(0.5)
        await task.finish({"total": 42.5}, "paid")
        told, _ = await within(second.communicate())
        assert {name: json.loads(told)[name] for name in ("status", "result", "details")} == {
            "status": "COMPLETED",
            "result": {"total": 42.5},
            "details": "paid",
        }
        # A further run has the same result, and nobody works again.
        third = await start()
        told, _ = await within(third.communicate())
        assert json.loads(told)["result"] == {"total": 42.5}
        assert len(worker.taken) == 1


async def test_a_graph_ends_at_its_interrupt_and_another_process_resumes_it(broker, tmp_path):
    pytest.importorskip(MODULES["langgraph"])
    async with crashing(broker, tmp_path, "langgraph_interrupt") as (worker, start):
        first = await start()
        task = await worker.task()
        told, _ = await within(first.communicate())
        assert json.loads(told) == {"status": "INTERRUPTED"}
        second = await start()
        await task.finish({"total": 42.5})
        told, _ = await within(second.communicate())
        assert json.loads(told)["result"] == {"total": 42.5}
        assert len(worker.taken) == 1


class crashing:  # noqa: N801
    """The agent of billing, and a function that starts lender.py. At the end alice has no open task, and had one."""

    def __init__(self, broker, folder, framework):
        self.broker, self.folder, self.framework = broker, folder, framework
        self.key = generate_key()
        self.bob = broker.agent("bob")
        self.worker = Bob(self.bob)
        save_key(folder / "alice.pem", self.key)

    async def __aenter__(self):
        await self.bob.register(agent_types=["billing"])
        await self.bob.connect()
        async with self.broker.agent("alice", key=self.key) as alice:
            await alice.register()
        return self.worker, self.start

    async def start(self):
        arguments = [self.framework, self.broker.server, self.broker.ca, self.folder / "alice.pem", self.folder / "db"]
        command = [sys.executable, LENDER, *arguments]
        environment = os.environ | {"PYTHONPATH": ":".join(sys.path)}
        return await asyncio.create_subprocess_exec(*map(str, command), stdout=asyncio.subprocess.PIPE, env=environment)

    async def __aexit__(self, kind, *_):
        async with self.broker.agent("alice", key=self.key) as alice:
            await alice.connect()
            tasks = [task async for task in alice.list_tasks()]
        await self.bob.close()
        if kind is None:
            assert [(task.task_type, task.status) for task in tasks] == [("billing", v1.TASK_STATUS_COMPLETED)]


# What follows is the same for each adapter: a call is made by a function of the framework, and tells what the framework
# is told.


async def call_openai(alice, call_id="c1", **options):
    from agents.tool_context import ToolContext

    from baton.adapters.openai_agents import handoff_tool

    tool = handoff_tool(alice, "type:billing", **options)
    arguments = json.dumps(ASKED)
    context = ToolContext(context=None, tool_name=tool.name, tool_call_id=call_id, tool_arguments=arguments)
    return json.loads(await tool.on_invoke_tool(context, arguments))


async def call_pydantic(alice, call_id="c1", **options):
    from pydantic_ai import ModelRetry, RunContext
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.usage import RunUsage

    from baton.adapters.pydantic_ai import handoff_tool

    context = RunContext(deps=None, model=TestModel(), usage=RunUsage(), run_id="r1", tool_call_id=call_id)
    try:
        return await handoff_tool(alice, "type:billing", **options)(context, **ASKED)
    except ModelRetry as retry:
        return json.loads(retry.message.partition(": ")[2])


async def call_langgraph(alice, call_id="c1", checkpointer=None, **options):
    from langgraph.checkpoint.memory import InMemorySaver

    graph = billing_graph(alice, on_failure="state", **options)
    config = {"configurable": {"thread_id": call_id}}
    return (await graph.compile(checkpointer=checkpointer or InMemorySaver()).ainvoke({"n": 1}, config))["handoff"]


class State(TypedDict, total=False):
    n: int
    handoff: dict[str, Any]


def billing_graph(alice, **options):
    from langgraph.graph import END, START, StateGraph

    from baton.adapters.langgraph import handoff_node

    graph = StateGraph(State)
    graph.add_node("billing", handoff_node(alice, "type:billing", **options))
    graph.add_edge(START, "billing")
    graph.add_edge("billing", END)
    return graph


CALLS = {"openai_agents": call_openai, "pydantic_ai": call_pydantic, "langgraph": call_langgraph}


@pytest.fixture(params=FRAMEWORKS)
def call(request):
    pytest.importorskip(MODULES[request.param])
    return CALLS[request.param]


async def test_no_agent_of_the_type_is_an_error_that_the_framework_is_told(broker, call):
    async with broker.agent("alice") as alice:
        await alice.register()
        await alice.connect()
        assert (await within(call(alice)))["error"] in ("NO_CANDIDATE", "RECEIVER_UNKNOWN")
        assert await alice.owned_tasks() == []


async def test_rejections_and_a_further_attempt_reach_the_framework(sides, call):
    alice, worker = sides
    worker._accepts = lambda _: False
    told = await within(call(alice))
    assert (told["error"], told["rejections"]) == ("NO_CANDIDATE", ["bob: not mine"])
    # The same call again is another attempt, for the first has had no result.
    worker._accepts = lambda _: True
    again = asyncio.create_task(call(alice))
    await (await worker.task()).finish({"total": 1})
    assert (await within(again))["result"] == {"total": 1}


async def test_a_loan_that_is_recalled_or_too_late_reaches_the_framework(sides, call):
    alice, worker = sides
    late = await within(call(alice, timeout=timedelta(seconds=1)))
    assert (late["error"], late["reason"]) == ("TASK_RECALLED", "DEADLINE")
    await worker.task()
    await within(worker.stopped.get())
    running = asyncio.create_task(call(alice, "c2"))
    task = await worker.task()
    [handoff] = [one async for one in alice.list_handoffs(task_id=task.task_id)]
    await alice.recall(handoff.handoff_id)
    told = await within(running)
    assert (told["error"], told["reason"]) == ("TASK_RECALLED", "RECALL")


async def test_a_failed_task_is_its_status_and_not_an_error(sides, call):
    alice, worker = sides
    running = asyncio.create_task(call(alice))
    task = await worker.task()
    await alice.get_task(task.task_id)
    await worker.agent.update_status(task.task_id, task.epoch, v1.TASK_STATUS_FAILED, "no such customer")
    told = await within(running)
    assert (told["status"], told["details"]) == ("FAILED", "no such customer")
    assert (await alice.get_task(task.task_id)).status == v1.TASK_STATUS_FAILED


async def test_a_cancelled_call_takes_the_task_back_and_ends_it(sides, call):
    alice, worker = sides
    running = asyncio.create_task(call(alice))
    task = await worker.task()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(running)
    assert await within(worker.stopped.get()) == task.task_id
    ended = await alice.get_task(task.task_id)
    assert (ended.owner_id, ended.status) == ("alice", v1.TASK_STATUS_CANCELED)


async def test_a_question_is_answered_by_the_callback(sides, call):
    alice, worker = sides
    asked = []

    async def answer(question):
        asked.append(question)
        return {"invoice": 9} if question.schema else "the ninth"

    running = asyncio.create_task(call(alice, on_question=answer))
    task = await worker.task()
    first = await within(task.ask("Which invoice?", "alice"))
    schema = {"type": "object", "required": ["invoice"]}
    second = await within(task.ask("Its number?", "alice", schema=schema))
    assert (first.text, second.data) == ("the ninth", {"invoice": 9})
    await task.finish({"total": 1})
    assert (await within(running))["status"] == "COMPLETED"
    assert [(one.agent_id, one.text) for one in asked] == [("bob", "Which invoice?"), ("bob", "Its number?")]


@pytest.mark.parametrize("name", ["openai_agents", "pydantic_ai"])
async def test_a_question_without_a_callback_goes_to_the_model_and_the_task_comes_back(sides, name):
    pytest.importorskip(MODULES[name])
    alice, worker = sides
    running = asyncio.create_task(CALLS[name](alice))
    task = await worker.task()
    asking = asyncio.create_task(task.ask("Which invoice?", "alice"))
    told = await within(running)
    assert (told["error"], told["question"]) == ("INPUT_NEEDED", "Which invoice?")
    await within(worker.stopped.get())
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert (await alice.get_task(task.task_id)).status == v1.TASK_STATUS_CANCELED


@pytest.mark.parametrize("name", ["openai_agents", "pydantic_ai"])
async def test_reports_reach_the_callback(sides, name):
    pytest.importorskip(MODULES[name])
    alice, worker = sides
    told = []
    running = asyncio.create_task(CALLS[name](alice, on_progress=told.append))
    task = await worker.task()
    await task.report("half of it", progress=0.5)
    await task.finish({}, "done")
    await within(running)
    assert [(one.details, one.progress) for one in told] == [("half of it", 0.5), ("done", None)]


async def test_a_streamed_run_of_a_remote_agent_tells_the_reports(sides):
    sdk = pytest.importorskip("agents")
    from baton.adapters.openai_agents import remote_agent

    alice, worker = sides
    sdk.set_tracing_disabled(disabled=True)
    streamed = sdk.Runner.run_streamed(remote_agent(alice, "type:billing"), "What do I owe?")
    deltas = []

    async def read():
        raw = [event.data async for event in streamed.stream_events() if event.type == "raw_response_event"]
        deltas.extend(data.delta for data in raw if data.type == "response.output_text.delta")

    reading = asyncio.create_task(read())
    task = await worker.task()
    await task.report("looks it up")
    await task.finish({"total": 1})
    await within(reading)
    assert deltas == ["looks it up\n"]
    assert json.loads(streamed.final_output)["result"] == {"total": 1}


async def test_a_remote_agent_raises_its_failure_or_answers_with_it(sides):
    sdk = pytest.importorskip("agents")
    from baton.adapters.openai_agents import remote_agent

    alice, worker = sides
    sdk.set_tracing_disabled(disabled=True)
    worker._accepts = lambda _: False
    with pytest.raises(HandoffFailedError):
        await within(sdk.Runner.run(remote_agent(alice, "type:billing"), "What do I owe?"))
    told = await within(sdk.Runner.run(remote_agent(alice, "type:billing", on_failure="message"), "What do I owe?"))
    assert json.loads(told.final_output)["error"] == "NO_CANDIDATE"


async def test_a_graph_streams_reports_and_is_interrupted_by_questions(sides):
    pytest.importorskip("langgraph.graph")
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command

    alice, worker = sides
    graph = billing_graph(alice).compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t1"}}
    told = []

    async def run(given):
        async for mode, one in graph.astream(given, config, stream_mode=["custom", "values"]):
            if mode == "custom":
                told.append(one["details"] or one["question"])
        return await graph.aget_state(config)

    running = asyncio.create_task(run({"n": 1}))
    task = await worker.task()
    assert (await alice.get_task(task.task_id)).conversation_id == "t1"
    await task.report("looks it up")
    for number, answer in enumerate(["the ninth", {"number": 9}, "yes"]):
        asking = asyncio.create_task(task.ask(f"question {number}", "alice"))
        state = await within(running)
        [interrupted] = state.interrupts
        assert interrupted.value == {
            "task_id": task.task_id,
            "agent_id": "bob",
            "question": f"question {number}",
            "schema": None,
        }
        # The loan goes on while the graph does not run.
        assert (await alice.get_task(task.task_id)).owner_id == "bob"
        running = asyncio.create_task(run(Command(resume=answer)))
        answered = await within(asking)
        assert (answered.data or answered.text) == answer
    await task.finish({"total": 1})
    state = await within(running)
    assert state.values["handoff"]["result"] == {"total": 1}
    assert told[:2] == ["looks it up", "question 0"]
    assert len(worker.taken) == 1


async def test_a_node_that_interrupts_asks_and_ends(sides):
    pytest.importorskip("langgraph.graph")
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command

    from baton.adapters.langgraph import resume_when_done

    alice, worker = sides
    graph = billing_graph(alice, wait="interrupt").compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t1"}}
    states = asyncio.Queue()
    every = timedelta(milliseconds=100)

    async def interrupted_with(name):
        # A look of resume_when_done may run at the moment.
        while True:
            state = await graph.aget_state(config)
            if found := [one.value[name] for one in state.interrupts if name in one.value]:
                return found[0]
            await asyncio.sleep(0.05)

    follow = asyncio.create_task(resume_when_done(alice, graph, every=every, on_state=states.put_nowait))
    await within(graph.ainvoke({"n": 1}, config))
    task = await worker.task()
    assert await within(interrupted_with("waits_for")) == "type:billing"
    asking = asyncio.create_task(task.ask("Which invoice?", "alice"))
    assert await within(interrupted_with("question")) == "Which invoice?"
    await within(graph.ainvoke(Command(resume="the ninth"), config))
    assert (await within(asking)).text == "the ninth"
    # A resumption that is none of resume_when_done only looks.
    await within(graph.ainvoke(Command(resume="now?"), config))
    assert await within(interrupted_with("waits_for")) == "type:billing"
    await task.finish({"total": 1})
    # A look before the end shows the thread as it waits.
    state = await within(states.get())
    while "result" not in (state.get("handoff") or {}):
        state = await within(states.get())
    assert state["handoff"]["result"] == {"total": 1}
    follow.cancel()
    assert len(worker.taken) == 1
    with pytest.raises(ValueError, match="loan_timeout"):
        billing_graph(alice, wait="interrupt", timeout=timedelta(minutes=1))


async def test_a_node_that_interrupts_raises_the_failure_of_its_loan(sides):
    pytest.importorskip("langgraph.graph")
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command

    alice, worker = sides
    graph = billing_graph(alice, wait="interrupt").compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t1"}}
    await within(graph.ainvoke({"n": 1}, config))
    task = await worker.task()
    [handoff] = [one async for one in alice.list_handoffs(task_id=task.task_id)]
    await alice.recall(handoff.handoff_id)
    with pytest.raises(TaskRecalledError):
        await within(graph.ainvoke(Command(resume="now?"), config))


async def test_two_calls_of_a_graph_are_two_tasks(sides):
    pytest.importorskip("langgraph.graph")
    from langgraph.graph import END, START, StateGraph

    from baton.adapters.langgraph import handoff_node

    alice, worker = sides
    graph = StateGraph(State)
    graph.add_node("billing", handoff_node(alice, "type:billing"))
    graph.add_node("count", lambda state: {"n": state["n"] + 1})
    graph.add_edge(START, "billing")
    graph.add_edge("billing", "count")
    graph.add_conditional_edges("count", lambda state: END if state["n"] == 2 else "billing", ["billing", END])
    running = asyncio.create_task(graph.compile().ainvoke({"n": 0}))
    for number in range(2):
        await (await worker.task()).finish({"n": number})
    assert (await within(running))["handoff"]["result"] == {"n": 1}
    assert len(set(worker.taken)) == 2


def test_the_lender_has_a_function_for_each_framework():
    lender = importlib.import_module("lender")
    assert all(hasattr(lender, name) for name in FRAMEWORKS)
