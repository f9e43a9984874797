"""Handoffs of the OpenAI Agents SDK, and its agents as agents of baton. Needs the extra `openai-agents`."""

import asyncio
import dataclasses
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal

import agents
from agents import FunctionTool, FunctionToolResult, Model, ModelResponse, ToolsToFinalOutputResult, Usage
from agents.items import TResponseInputItem, TResponseStreamEvent
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from baton import Agent, Progress, Run, history_section, json_section, v1
from baton.adapters import _routing, _serving
from baton.adapters._lending import (
    FAILURES,
    Loan,
    OnQuestion,
    OnReport,
    derived_id,
    failure,
    lend,
    shown,
    summary_of,
    tool_name,
    type_of,
)
from baton.history import Entry, settled
from baton.shapes import from_openai_responses, to_openai_responses
from baton.turns import TRANSFER_PREFIX
from baton.work import FINAL

_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "summary": {"type": "string", "description": "What is to be done, in one or two sentences."},
        "details": {"type": "string", "description": "Everything that the other agent needs to know for it."},
    },
    "required": ["summary", "details"],
    "additionalProperties": False,
}


def remote_agent(
    agent: Agent,
    receiver_id: str,
    task_type: str = "",
    *,
    name: str = "",
    description: str = "",
    timeout: timedelta | None = None,
    loan_timeout: timedelta | None = None,
    on_failure: Literal["raise", "message"] = "raise",
    on_question: OnQuestion | None = None,
) -> agents.Agent[Any]:
    """Returns an agent of the SDK for `handoffs=[…]`: a handoff to it is a handoff through baton.

    It delegates the conversation as a task, with the section history_log (`baton.history`), and answers with `status`,
    `result` and `details` as JSON. A streamed run gets the progress of the task as text deltas. By default the task
    type and the name are the receiver's name. With `on_failure="message"` it answers with `error` and `message` if no
    agent takes the task, or if it comes back without a result; by default it raises HandoffFailedError,
    TaskRecalledError or BatonError, which end the run.

    The id of the task comes from the call id of the transfer, so the same conversation in another process finds the
    first task. `timeout` and `loan_timeout` are those of `Agent.delegate`. `on_question` answers the questions of the
    other agent: see `handoff_tool`.

        agents.Agent(name="triage", handoffs=[remote_agent(agent, "type:billing")])
    """
    plain = receiver_id.removeprefix("type:")
    request = v1.HandoffRequest(task_type=type_of(receiver_id, task_type), reason=v1.HANDOFF_REASON_SKILL)
    terms = Loan(
        agent,
        receiver_id,
        "",
        request,
        [],
        timeout=timeout,
        loan_timeout=loan_timeout,
        on_question=on_question,
    )
    model = _Remote(terms, raises=on_failure == "raise")
    return agents.Agent(
        name=name or plain, handoff_description=description or f"Takes over what is for {plain}.", model=model
    )


class _Remote(Model):
    """The model of a remote agent: it delegates the conversation."""

    def __init__(self, terms: Loan, *, raises: bool) -> None:
        self._terms = terms
        self._raises = raises

    async def get_response(
        self,
        system_instructions: str | None,  # noqa: ARG002
        input: str | list[TResponseInputItem],  # noqa: A002
        *_rest: Any,
        **_more: Any,
    ) -> ModelResponse:
        """Delegates the conversation and returns the result as a message."""
        return await self._answer(input, None)

    async def _answer(self, asked: str | list[TResponseInputItem], on_report: OnReport | None) -> ModelResponse:
        items = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
        whole = from_openai_responses(items)
        history = _without_transfer(whole)
        # Without a transfer at the end it is a further turn of the agent, and each turn is a task.
        call_id = whole[-1]["tool_call_id"] if len(history) < len(whole) else str(uuid.uuid4())
        terms = self._terms
        task_id = derived_id("handoff", terms.agent, terms.receiver_id, terms.request.task_type, call_id, history)
        loan = dataclasses.replace(terms, task_id=task_id, context=[history_section(history)], on_report=on_report)
        try:
            task_id, outcome = await lend(loan)
            told = shown(outcome)
        except FAILURES as error:
            if self._raises:
                raise
            told = failure(error)
        text = ResponseOutputText(text=json.dumps(told), type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id=f"msg_{task_id}", content=[text], role="assistant", status="completed", type="message"
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    async def stream_response(
        self,
        system_instructions: str | None,  # noqa: ARG002
        input: str | list[TResponseInputItem],  # noqa: A002
        *_rest: Any,
        **_more: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Yields the reports of the other agent as text deltas, and at the end the whole response."""
        reports: asyncio.Queue[str | None] = asyncio.Queue()

        def report(progress: Progress) -> None:
            if progress.details and progress.status not in FINAL:
                reports.put_nowait(progress.details)

        answering = asyncio.create_task(self._answer(input, report))
        answering.add_done_callback(lambda _: reports.put_nowait(None))
        number = 0
        try:
            while (details := await reports.get()) is not None:
                yield ResponseTextDeltaEvent(
                    type="response.output_text.delta",
                    delta=f"{details}\n",
                    item_id="progress",
                    output_index=0,
                    content_index=0,
                    logprobs=[],
                    sequence_number=number,
                )
                number += 1
            answer = await answering
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        response = Response(
            id=f"resp_{uuid.uuid4()}",
            created_at=time.time(),
            model=self._terms.receiver_id,
            object="response",
            output=answer.output,
            parallel_tool_calls=False,
            tool_choice="none",
            tools=[],
        )
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=number)


def _without_transfer(history: list[Entry]) -> list[Entry]:
    """Returns the history without the call of this handoff and its result, which stand at the end."""
    if not history or history[-1]["role"] != "tool":
        return history
    call_id = history[-1]["tool_call_id"]
    for index in reversed(range(len(history))):
        calls = history[index].get("tool_calls", [])
        names = [call["name"] for call in calls if call["id"] == call_id]
        if not names:
            continue
        if not names[0].startswith("transfer_to_"):
            break
        entry = {name: value for name, value in history[index].items() if name != "tool_calls"}
        others = [call for call in calls if call["id"] != call_id]
        kept = [entry | {"tool_calls": others} if others else entry] if others or entry["content"] else []
        return [*history[:index], *kept, *history[index + 1 : -1]]
    return history


def handoff_tool(
    agent: Agent,
    receiver_id: str,
    task_type: str = "",
    *,
    description: str = "",
    name: str = "",
    timeout: timedelta | None = None,
    loan_timeout: timedelta | None = None,
    on_question: OnQuestion | None = None,
    on_progress: OnReport | None = None,
) -> FunctionTool:
    """Returns a tool `transfer_to_NAME` that delegates a task and gives the model the result.

    The model gets JSON: `status`, `result` and `details`; or `error` and `message` if no agent took the task, if it
    came back without a result, if the broker refused, or if the model's arguments are not those of the tool, so that it
    can continue by other means. By default the task type is the receiver's name. `timeout` and `loan_timeout` are those
    of `Agent.delegate`. Name the tool by `name` if an agent and a type of the same name get a tool each.

    The id of the task comes from the id of the model's call and its arguments, so a repeated call finds the first task;
    a cancelled one takes it back. `on_progress` gets each report of the other agent. `on_question` gets a question of
    it to this agent, and returns a text, or data for programs. Without `on_question` and without a handler of
    `Agent.on_prompt`, the tool takes the task back and gives the model the question, for a call with the answer.

        Agent(name="triage", tools=[handoff_tool(agent, "type:billing", description="Answers questions on invoices.")])
    """
    kind = type_of(receiver_id, task_type)
    plain = receiver_id.removeprefix("type:")

    async def invoke(context: Any, arguments: str) -> str:
        try:
            asked = _asked(arguments)
        except ValueError as error:
            return json.dumps({"error": "ARGUMENTS_INVALID", "message": str(error)})
        # A name of a model that gives no ids would find another call.
        call_id = getattr(context, "tool_call_id", None) or str(uuid.uuid4())
        loan = Loan(
            agent,
            receiver_id,
            derived_id("tool", agent, receiver_id, kind, call_id, asked),
            v1.HandoffRequest(
                task_type=kind, reason=v1.HANDOFF_REASON_SKILL, initial_context_summary=summary_of(asked["summary"])
            ),
            [json_section("task_description", asked)],
            timeout=timeout,
            loan_timeout=loan_timeout,
            on_question=on_question,
            on_report=on_progress,
        )
        try:
            _, outcome = await lend(loan)
        except FAILURES as error:
            return json.dumps(failure(error))
        return json.dumps(shown(outcome))

    return FunctionTool(
        name=name or tool_name(receiver_id),
        description=description or f"Hands a task over to {plain} and returns its result.",
        params_json_schema=_PARAMETERS,
        on_invoke_tool=invoke,
        strict_json_schema=True,
    )


async def node_tools(agent: Agent, run: Run, node_id: str) -> list[FunctionTool]:
    """Returns the tools `transfer_to_NODE` with which a model chooses the next node of a run: see `Agent.start_run`.

    The tools are those of the node's next turn; a node without choices has none. A call of one reports the turn to the
    broker. If the chosen node is another agent's, this agent, which owns the run's task, hands the task over: the
    context is the task's latest one, with the input of the turn as its history_log.

    The model gets JSON: `chosen`, `active_nodes`, `next`, and `handoff` with the new owner; or `error` and `message` if
    the choice does not count. Then the run of the SDK goes on, and the model may choose again. After the third refused
    choice in a row the node's turn ends, as it does by a choice; `stop_at_choice` ends the run of the SDK there.

    A run of the SDK may end without a choice. The node is active then, and its output is reported as always:

        triage = agents.Agent(
            name="triage", tools=await node_tools(agent, run, "triage"), tool_use_behavior=stop_at_choice
        )
        result = await agents.Runner.run(triage, "…")
        if any(one.node_id == "triage" and one.state == v1.NODE_STATE_ACTIVE for one in (await run.state()).nodes):
            await run.turn("triage", finished=True, output=result.final_output)

    Raises BatonError, for example NODE_NOT_ACTIVE.
    """
    return [_tool_of(choice) for choice in await _routing.choices_of(agent, run, node_id)]


def _tool_of(choice: _routing.Choice) -> FunctionTool:
    async def invoke(context: Any, arguments: str) -> str:
        items: list[Any] = context.turn_input

        def conversation() -> list[v1.ContextSection]:
            return [history_section(settled(from_openai_responses(items)))] if items else []

        return json.dumps(await choice.take(context.tool_call_id, arguments, conversation))

    return FunctionTool(
        name=choice.name,
        description=choice.description,
        params_json_schema=choice.parameters,
        on_invoke_tool=invoke,
        strict_json_schema=True,
    )


def stop_at_choice(context: Any, results: list[FunctionToolResult]) -> ToolsToFinalOutputResult:  # noqa: ARG001
    """Ends a run of the SDK once a tool of `node_tools` has ended the node's turn: for `tool_use_behavior` of an agent.

    The final output is the answer of the tool.
    """
    for result in results:
        if result.tool.name.startswith(TRANSFER_PREFIX) and _routing.is_over(result.output):
            return ToolsToFinalOutputResult(is_final_output=True, final_output=result.output)
    return ToolsToFinalOutputResult(is_final_output=False)


async def serve(
    agent: Agent,
    worker: agents.Agent[Any],
    *,
    types: Iterable[str] = (),
    description: str = "",
    context: Any = None,
    max_turns: int = 10,
    result: Callable[[Any], Mapping[str, Any]] | None = None,
) -> None:
    """Has an agent of the SDK work on the tasks that baton delivers, until the agent is closed.

    Registers the agent with these types; without types its card stays as it is. Each task is a run: the input is
    the history_log, without the system prompts of others, and the description of the task. Calls of tools and handoffs
    of the run are reported. The final output is the result: an object as it is, a text as `response`, or what `result`
    makes of it. A run that raises ends the task as FAILED. A task of an earlier process runs again, and the run of a
    recalled task is cancelled. `context` and `max_turns` are those of `Runner.run`.

        async with Agent.from_env() as agent:
            await serve(agent, agents.Agent(name="billing", instructions="…"), types=["billing"])
    """

    async def work(job: _serving.Job) -> Any:
        items: list[Any] = to_openai_responses(job.history)
        if job.prompt or not items:
            items.append({"role": "user", "content": job.prompt})
        run = await agents.Runner.run(worker, items, context=context, max_turns=max_turns, hooks=_Reports(job))
        return run.final_output if result is None else result(run.final_output)

    await _serving.serve(agent, work, types, description)


class _Reports(agents.RunHooks[Any]):
    """Reports the steps of a run."""

    def __init__(self, job: _serving.Job) -> None:
        self._job = job

    async def on_tool_start(self, context: Any, agent: Any, tool: agents.Tool) -> None:  # noqa: ARG002
        await self._job.report(f"calls {tool.name}")

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:  # noqa: ARG002
        await self._job.report(f"goes on with {to_agent.name}")


def _asked(arguments: str) -> dict[str, Any]:
    """Returns the arguments as the model gave them. Raises ValueError with the problem, for the model to read."""
    wanted = 'Nothing was done: the arguments must be a JSON object with the text "summary" and the text "details"'
    try:
        asked = json.loads(arguments)
        # What can be read and not be sent: a number that is none, or half of a character.
        json.dumps(asked, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{wanted}, and they are no JSON: {error}.") from error
    if isinstance(asked, dict) and isinstance(asked.get("summary"), str):
        return asked
    raise ValueError(f"{wanted}.")
