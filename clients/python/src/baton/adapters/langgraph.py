"""A handoff as a node of a LangGraph graph, and a graph as an agent of baton. Needs the extra `langgraph`."""

import asyncio
import contextlib
import dataclasses
import inspect
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Protocol

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, ToolMessage, messages_from_dict
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool
from langgraph.config import get_config, get_stream_writer
from langgraph.errors import GraphInterrupt
from langgraph.graph import END
from langgraph.prebuilt import InjectedState, ToolRuntime
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from baton import (
    Agent,
    BatonError,
    HandoffFailedError,
    Progress,
    Run,
    TaskRecalledError,
    history_section,
    json_section,
    v1,
)
from baton.adapters import _routing, _serving
from baton.adapters._lending import (
    FAILURES,
    Asked,
    Found,
    Loan,
    OnQuestion,
    Reply,
    answered,
    conversation_of,
    derived_id,
    end,
    end_with,
    failure,
    hand_on,
    latest,
    lend,
    shown,
    summary_of,
    tool_name,
    type_of,
)
from baton.history import settled
from baton.loans import loan_terms
from baton.shapes import from_langchain, to_langchain
from baton.watching import progress_of

_LOG = logging.getLogger("baton")

_KIND = "langgraph"
_OPEN = (v1.TASK_STATUS_CREATED, v1.TASK_STATUS_IN_PROGRESS, v1.TASK_STATUS_WAITING_FOR_INPUT)
# What the framework computes for a step, where a state has it: it is of no use elsewhere.
_OF_A_STEP = {"remaining_steps", "is_last_step"}
# The answer to an interrupt that only has a node look at its loan again.
_LOOK = {"baton": "look"}


class Node(Protocol):
    """A node of a graph."""

    async def __call__(self, state: Any) -> dict[str, Any]:
        """Returns the update of the state."""


def handoff_node(
    agent: Agent,
    receiver_id: str,
    task_type: str = "",
    *,
    result_key: str = "handoff",
    summary: Callable[[Mapping[str, Any]], str] | None = None,
    timeout: timedelta | None = None,
    loan_timeout: timedelta | None = None,
    wait: Literal["call", "interrupt"] = "call",
    on_failure: Literal["raise", "state"] = "raise",
    on_question: OnQuestion | None = None,
) -> Node:
    """Returns a node that delegates the graph's state as a task and returns the result.

    The state is the context: see `state_sections`, which raises ValueError for what JSON has no form for. The update is
    `{result_key: {"task_id", "status", "result", "details"}}`. By default the task type is the receiver's name. A
    delegation that no agent takes raises HandoffFailedError, one that comes back without a result TaskRecalledError;
    both end the run unless the node has a retry policy or an error handler. With `on_failure="state"` the update is
    `{result_key: {"task_id", "error", "message"}}` instead. `timeout` and `loan_timeout` are those of `Agent.delegate`.

    The id of the task comes from the thread and the place of the call in the graph, so a graph that is resumed in
    another process finds the first task. A cancelled run takes the task back. The thread's id is the task's
    conversation_id. The reports of the other agent go to the stream of the mode `custom`.

    A question of the other agent to this agent goes to `on_question`, to a handler of `Agent.on_prompt`, or interrupts
    the graph: the value is `{"task_id", "agent_id", "question", "schema"}`, and `Command(resume=…)` has the answer, a
    text or an object. Without a thread it ends the call as a failure.

    With `wait="interrupt"` the node lends the task and interrupts the graph, so that the process may end;
    `resume_when_done` resumes the thread. This needs a checkpointer, and no `timeout`.

        graph.add_node("billing", handoff_node(agent, "type:billing"))
    """
    if wait == "interrupt" and timeout is not None:
        raise ValueError("a node that interrupts has no timeout: use loan_timeout")
    kind = type_of(receiver_id, task_type)

    async def node(state: Mapping[str, Any]) -> dict[str, Any]:
        place = _place()
        request = v1.HandoffRequest(
            task_type=kind,
            reason=v1.HANDOFF_REASON_WORKFLOW,
            initial_context_summary=summary_of(summary(state)) if summary else "",
            conversation_id=conversation_of(place.thread_id),
        )
        writer = get_stream_writer()

        def report(progress: Progress) -> None:
            writer(_report_of(progress))

        may_interrupt = place.thread_id is not None and agent._dispatcher.prompt_handler is None  # noqa: SLF001
        loan = Loan(
            agent,
            receiver_id,
            derived_id(_KIND, agent, receiver_id, kind, place.thread_id, place.namespace),
            request,
            state_sections(state),
            timeout=timeout,
            loan_timeout=loan_timeout,
            on_question=on_question or (_interrupted if may_interrupt else None),
            on_report=report,
            keeps=(GraphInterrupt,),
        )
        task_id = loan.task_id
        try:
            task_id, outcome = await (lend(loan) if wait == "call" else _lend_and_interrupt(loan))
        except FAILURES as error:
            if on_failure == "raise":
                raise
            return {result_key: {"task_id": task_id} | failure(error)}
        return {result_key: {"task_id": task_id} | shown(outcome)}

    return node


def transfer_tool(
    agent: Agent,
    receiver_id: str,
    task_type: str = "",
    *,
    name: str = "",
    description: str = "",
    timeout: timedelta | None = None,
    in_parent: bool = False,
) -> BaseTool:
    """Returns a tool with which a model hands the conversation over for good, and which ends the graph.

    The state of the graph is the context of a task, as with `handoff_node`; the call itself is not in it. The model
    gives `summary`, the request's summary. Once the other agent owns the task, the state has its id under
    `active_agent`, if the graph has that key, and the graph goes to END. The task and its result are the other agent's
    from then on: this agent does not wait for it. If no agent takes the task, or if the broker refuses, the model is
    told `error` and `message`, and the graph goes on. By default the task type is the receiver's name, and the tool's
    name is `transfer_to_NAME`. `timeout` is that of `Agent.hand_over`.

    The tool is for a `ToolNode`. LangGraph follows an edge from there back to the model all the same, so a graph of
    one's own goes back only if the last message has the status `error`. An agent that is made by the framework always
    goes back: make it a node of a graph, and end that graph with `in_parent`. The id of the task comes from the thread
    and the call, so a graph that is resumed in another process finds the first handoff.

        graph.add_node("tools", ToolNode([transfer_tool(agent, "type:billing", description="Answers on invoices.")]))
    """
    kind = type_of(receiver_id, task_type)
    plain = receiver_id.removeprefix("type:")

    async def transfer(
        summary: Annotated[str, "What is to be done, in one or two sentences."],
        state: Annotated[Any, InjectedState],
        tool_call_id: Annotated[str, InjectedToolCallId],
    ) -> Command[Any] | ToolMessage:
        place = _place()
        request = v1.HandoffRequest(
            task_type=kind,
            reason=v1.HANDOFF_REASON_SKILL,
            initial_context_summary=summary_of(summary),
            conversation_id=conversation_of(place.thread_id),
        )
        task_id = derived_id(_KIND, agent, receiver_id, kind, place.thread_id or place.namespace, tool_call_id)
        terms = Loan(agent, receiver_id, task_id, request, _sections_of(state, is_settled=True), timeout=timeout)
        try:
            task_id, owner_id = await hand_on(terms)
        except FAILURES as error:
            return ToolMessage(json.dumps(failure(error)), tool_call_id=tool_call_id, status="error")
        told = ToolMessage(json.dumps({"task_id": task_id, "owner": owner_id}), tool_call_id=tool_call_id)
        # What a node has said so far is not in the state of its graph yet.
        said = _members(state).get("messages", []) if in_parent else []
        update = {"active_agent": owner_id, "messages": [*said, told]}
        return Command(goto=END, update=update, graph=Command.PARENT if in_parent else None)

    return StructuredTool.from_function(
        coroutine=transfer,
        name=name or tool_name(receiver_id),
        description=description or f"Hands the conversation over to {plain}, which goes on with it.",
    )


async def node_tools(agent: Agent, run: Run, node_id: str) -> list[BaseTool]:
    """Returns the tools `transfer_to_NODE` with which a model chooses the next node of a run: see `Agent.start_run`.

    The tools are those of the node's next turn; a node without choices has none. A call of one reports the turn to the
    broker. If the chosen node is another agent's, this agent, which owns the run's task, hands the task over: the
    context is the task's latest one, with that of the state: see `state_sections`.

    The tools are for a `ToolNode`. The model gets JSON: `chosen`, `active_nodes`, `next`, and `handoff` with the new
    owner; or `error` and `message` if the choice does not count. Then the message has the status `error`, and the model
    may choose again. After the third refused choice in a row the node's turn ends, as it does by a choice, and the
    graph of the framework goes to END. LangGraph follows an edge back to the model all the same: see `transfer_tool`.

    A graph of the framework may end without a choice. The node is active then, and its output is reported as always:

        graph.add_node("tools", ToolNode(await node_tools(agent, run, "triage")))
        graph.add_conditional_edges("tools", lambda state: "model" if state["messages"][-1].status == "error" else END)
        state = await graph.compile().ainvoke({"messages": […]})
        if any(one.node_id == "triage" and one.state == v1.NODE_STATE_ACTIVE for one in (await run.state()).nodes):
            await run.turn("triage", finished=True, output=state["messages"][-1].text)

    Raises BatonError, for example NODE_NOT_ACTIVE.
    """
    return [_tool_of(choice) for choice in await _routing.choices_of(agent, run, node_id)]


def _tool_of(choice: _routing.Choice) -> BaseTool:
    async def choose(runtime: ToolRuntime[Any, Any], **arguments: Any) -> Command[Any] | ToolMessage:
        def conversation() -> list[v1.ContextSection]:
            return _sections_of(runtime.state, is_settled=True)

        call_id = runtime.tool_call_id or ""
        told = await choice.take(call_id, json.dumps(arguments), conversation)
        text = json.dumps(told)
        if not _routing.is_over(told):
            return ToolMessage(text, tool_call_id=call_id, status="error")
        return Command(goto=END, update={"messages": [ToolMessage(text, tool_call_id=call_id)]})

    return StructuredTool.from_function(
        coroutine=choose, name=choice.name, description=choice.description, args_schema=choice.parameters
    )


@dataclasses.dataclass(frozen=True)
class _Place:
    """The place of a call in a graph. It is the same when the graph is resumed, and no other call has it."""

    thread_id: str | None
    namespace: str


def _place() -> _Place:
    configurable = get_config().get("configurable", {})
    thread_id = configurable.get("thread_id")
    return _Place(None if thread_id is None else str(thread_id), configurable.get("checkpoint_ns") or str(uuid.uuid4()))


def _report_of(progress: Progress) -> dict[str, Any]:
    status = v1.TaskStatus.Name(progress.status).removeprefix("TASK_STATUS_")
    return {
        "task_id": progress.task_id,
        "agent_id": progress.agent_id,
        "status": status,
        "progress": progress.progress,
        "details": progress.details,
        "question": progress.question,
    }


def _interrupted(asked: Asked) -> Reply:
    """Interrupts the graph with a question. Returns the answer when it is resumed."""
    reply = _next_of(
        {"task_id": asked.task_id, "agent_id": asked.agent_id, "question": asked.text, "schema": asked.schema}
    )
    if isinstance(reply, str | Mapping):
        return reply
    return json.dumps(to_jsonable_python(reply), ensure_ascii=False)


def _next_of(value: Mapping[str, Any]) -> Any:
    """Returns the next answer to an interrupt of the node that is not a mere look."""
    while (reply := interrupt(value)) == _LOOK:
        pass
    return reply


async def _lend_and_interrupt(loan: Loan) -> tuple[str, Any]:
    """Lends the task, or looks at the loan of an earlier call, and interrupts the graph while it is lent."""
    agent = loan.agent
    task_id, found = await latest(loan)
    if found is None or not found.is_over:
        handoff_id = await _lent(loan, task_id, found)
        found = Found(await agent.get_task(task_id), handoff_id, is_over=False)
        is_lent = any(one.handoff_id == handoff_id for one in found.task.loans)
        if is_lent:
            await _answer_questions(loan, found)
            waits = {"task_id": task_id, "handoff_id": handoff_id, "waits_for": loan.receiver_id}
            while True:  # each resumption that came before now has an answer, and the next one ends the call
                interrupt(waits)
    try:
        outcome = await agent.wait_for_loan(found.handoff_id)
    except (HandoffFailedError, TaskRecalledError) as error:
        await end(agent, task_id, v1.TASK_STATUS_CANCELED, str(error))
        raise
    await end_with(agent, outcome)
    return task_id, outcome


async def _lent(loan: Loan, task_id: str, found: Found | None) -> str:
    """Returns the handoff that lends the task, once it is lent. Raises HandoffFailedError."""
    agent = loan.agent
    try:
        if found is None or not found.handoff_id:
            terms = loan_terms(loan.request, None, loan.loan_timeout)
            epoch = 1 if found is None else found.task.epoch
            handed = await agent.hand_over(loan.receiver_id, task_id, terms.request, loan.context, epoch=epoch)
            return handed.handoff_id
        if found.task.open_handoff_id == found.handoff_id:
            await agent.resume_hand_over(found.handoff_id, loan.context)
    except HandoffFailedError as error:
        await end(agent, task_id, v1.TASK_STATUS_CANCELED, str(error))
        raise
    return found.handoff_id


async def _answer_questions(loan: Loan, found: Found) -> None:
    """Answers the open question to this agent. The earlier ones have taken the earlier answers to interrupts."""
    last = found.task.custody_length
    async with contextlib.aclosing(loan.agent.watch_task(found.task.task_id)) as entries:
        async for entry in entries:
            told = progress_of(entry)
            if told is not None and told.question_id and told.asked_agent_id == loan.agent.agent_id:
                await answered(loan, told)
            if entry.entry.number >= last:
                return


async def resume_when_done(
    agent: Agent, graph: Any, *, every: timedelta = timedelta(seconds=5), on_state: Callable[[Any], Any] | None = None
) -> None:
    """Resumes the threads of a graph whose nodes wait with `wait="interrupt"`, until the call is cancelled.

    A thread is resumed when its loan has ended, or when the other agent asks a question, which then interrupts the
    graph. Looks at the broker's records each time `every` has passed. `on_state` gets the state of each thread after
    it was resumed. An error of a graph is logged. One process at a time does this for a graph.
    """
    while True:
        try:
            tasks = await _tasks_to_look_at(agent)
        except BatonError as error:
            if not error.is_passing:
                raise
            _LOG.info("the loans of a graph could not be looked at: %s", error)
            tasks = []
        for task in tasks:
            try:
                await _resume(graph, task, on_state)
            except Exception:  # noqa: BLE001
                _LOG.exception("thread %s could not be resumed", task.conversation_id)
        await asyncio.sleep(every.total_seconds())


async def _resume(graph: Any, task: v1.Task, on_state: Callable[[Any], Any] | None) -> None:
    """Has the nodes that wait for a task look at it, if there are any."""
    config = {"configurable": {"thread_id": task.conversation_id}}
    state = await graph.aget_state(config)
    waiting = [one.id for one in state.interrupts if _waits_for(one.value, task.task_id)]
    if not waiting:
        return
    values = await graph.ainvoke(Command(resume=dict.fromkeys(waiting, _LOOK)), config)
    done = None if on_state is None else on_state(values)
    if inspect.isawaitable(done):
        await done


async def _tasks_to_look_at(agent: Agent) -> list[v1.Task]:
    """Returns the tasks of nodes that are back, or in which the other agent asks this one."""
    found = [task async for task in agent.list_tasks(owner_id=agent.agent_id, statuses=_OPEN)]
    asked = [task.task_id async for task in agent.list_tasks(asked_agent_id=agent.agent_id)]
    found += [await agent.get_task(task_id) for task_id in asked]
    return [task for task in found if task.task_id.startswith(f"{_KIND}-") and task.conversation_id and task.hops]


def _waits_for(value: Any, task_id: str) -> bool:
    return isinstance(value, Mapping) and "waits_for" in value and value.get("task_id") == task_id


async def serve(
    agent: Agent,
    graph: Any,
    *,
    types: Iterable[str] = (),
    description: str = "",
    config: Mapping[str, Any] | None = None,
    result: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> None:
    """Has a compiled graph work on the tasks that baton delivers, until the agent is closed.

    Registers the agent with these types; without types its card stays as it is. Each task is a thread with the task's
    id. The input is `messages`, from history_log and the description of the task, without the system prompts of others,
    and the values of session_variables. Each node that ends is reported. The result has the values that are not
    those of the input, and `response`, the text of the last message of a model; or it is what `result` makes of the
    state. A run that raises ends the task as FAILED, and the run of a recalled task is cancelled. With a checkpointer a
    task of an earlier process goes on where it was, and an interrupt of the graph asks the agent that handed the task
    over.

        async with Agent.from_env() as agent:
            await serve(agent, graph.compile(), types=["billing"])
    """

    async def work(job: _serving.Job) -> Any:
        settings = dict(config or {})
        settings["configurable"] = {"thread_id": job.task.task_id} | dict(settings.get("configurable", {}))
        begun = _input_of(job)
        given: Any = begun
        values: Mapping[str, Any] = {}
        is_again = job.task.resumed and bool(graph.checkpointer)
        if is_again:
            state = await graph.aget_state(settings)
            values = state.values
            given = None if state.next else begun
            if values and not state.next:
                return _output(begun, values, result)  # the earlier process has come to its end
        while True:
            asked: list[Any] = []
            async for mode, one in graph.astream(given, settings, stream_mode=["updates", "values"]):
                if mode == "values":
                    values = one
                    continue
                asked += one.pop("__interrupt__", ())
                for name in one:
                    await job.report(f"{name} is done")
            if not asked:
                return _output(begun, values, result)
            given = Command(resume={one.id: await _answer(job, one.value, is_again=is_again) for one in asked})
            is_again = False

    await _serving.serve(agent, work, types, description)


def _input_of(job: _serving.Job) -> dict[str, Any]:
    messages: list[BaseMessage] = messages_from_dict(to_langchain(job.history))
    variables = dict(job.variables)
    state = variables.pop("session_variables", {})
    text = dataclasses.replace(job, variables=variables).prompt
    if text or not messages:
        messages.append(HumanMessage(text))
    return (state if isinstance(state, dict) else {}) | {"messages": messages}


async def _answer(job: _serving.Job, value: Any, *, is_again: bool) -> Any:
    """Asks the agent that handed the task over for the answer to an interrupt.

    After a restart the question may be open already, or answered, and is not asked twice.
    """
    plain = to_jsonable_python(value, serialize_unknown=True)
    question = plain.get("question") if isinstance(plain, dict) else None
    text = question if isinstance(question, str) and question else json.dumps(plain, ensure_ascii=False)
    agent, task_id = job.task.agent, job.task.task_id
    if is_again:
        task = await agent.get_task(task_id)
        earlier = task.open_prompt if task.HasField("open_prompt") else task.last_answer.question
        if earlier.prompt.question == text:
            answer = await agent.resume_ask(task_id)
            return answer.data or answer.text
    answer = await job.task.ask(text, job.sender_id)
    return answer.data or answer.text


def _output(
    begun: Mapping[str, Any],
    values: Mapping[str, Any],
    result: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None,
) -> Mapping[str, Any]:
    """Returns the result of a run: the values that are not those of the input, and what a model said last."""
    if result is not None:
        return result(values)
    plain = {key: to_jsonable_python(value, bytes_mode="base64") for key, value in values.items() if key != "messages"}
    found = {key: value for key, value in plain.items() if key not in begun or begun[key] != value}
    messages: list[AnyMessage] = [one for one in values.get("messages", []) if getattr(one, "type", "") == "ai"]
    return found | ({"response": messages[-1].text} if messages else {})


def state_sections(state: Any) -> list[v1.ContextSection]:
    """Converts a graph's state to a context: `messages` as history_log, all else as session_variables.

    Messages may be objects, dicts, tuples and texts, as a graph takes them; history_log is a `baton.history`. Models,
    dataclasses, enums, dates, UUIDs, decimals and sets become JSON. Left out are `remaining_steps` and `is_last_step`,
    which LangGraph computes for a step. Raises ValueError, with the key of the state, for
    what cannot.
    """
    return _sections_of(state, is_settled=False)


def _sections_of(state: Any, *, is_settled: bool) -> list[v1.ContextSection]:
    """Converts a state; `is_settled` leaves out the calls of tools that have no result yet."""
    members = _members(state)
    sections = []
    if members.get("messages"):
        with _of_key("messages"):
            messages = members["messages"]
            history = from_langchain(messages if isinstance(messages, list) else [messages])
            sections.append(history_section(settled(history) if is_settled else history))
    variables = {}
    for key, value in members.items():
        if key != "messages" and key not in _OF_A_STEP:
            with _of_key(key):
                variables[str(key)] = to_jsonable_python(value, bytes_mode="base64")
                # What JSON has no form for: a number that is none, or half of a character.
                json.dumps(variables[str(key)], ensure_ascii=False, allow_nan=False).encode()
    return [*sections, json_section("session_variables", variables)]


def _members(state: Any) -> Mapping[str, Any]:
    """Returns the keys of a state, which may be a model or a dataclass."""
    if isinstance(state, Mapping):
        return state
    if isinstance(state, BaseModel):
        return {key: getattr(state, key) for key in type(state).model_fields}
    if dataclasses.is_dataclass(state):
        return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    raise ValueError(f"the state is a {type(state).__name__}, and not a dict, a model or a dataclass")


@contextlib.contextmanager
def _of_key(key: str) -> Iterator[None]:
    """Names the key of the state in an error of its conversion."""
    try:
        yield
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise ValueError(f"the state cannot be handed over: the key {key!r}: {error}") from error
