"""A handoff as a tool or an output of Pydantic AI, and its agents as agents of baton. Needs the extra `pydantic-ai`."""

import base64
import dataclasses
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from pydantic_ai import ModelRetry, RunContext, Tool
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
    VideoUrl,
)
from pydantic_ai.tools import ToolDefinition

from baton import Agent, HistoryError, Run, history_section, json_section, v1
from baton.adapters import _routing, _serving
from baton.adapters._lending import (
    FAILURES,
    Loan,
    OnQuestion,
    OnReport,
    conversation_of,
    derived_id,
    failure,
    lend,
    shown,
    summary_of,
    tool_name,
    type_of,
)
from baton.history import Entry, check_history, settled

Handoff = Callable[[RunContext[Any], str, str], Awaitable[dict[str, Any]]]


def handoff_tool(
    agent: Agent,
    receiver_id: str,
    task_type: str = "",
    *,
    name: str = "",
    description: str = "",
    timeout: timedelta | None = None,
    loan_timeout: timedelta | None = None,
    on_question: OnQuestion | None = None,
    on_progress: OnReport | None = None,
) -> Handoff:
    """Returns a function for `tools=[…]`, or for `output_type=[…]` to end the run with the other agent's result.

    The model calls it with `summary` and `details`, and the function delegates a task with these and the run's messages
    as its context: the sections task_description and history_log. It returns `status`, `result` and `details`. If no
    agent takes the task, if it comes back without a result, or if the broker refuses, it raises
    ModelRetry, so that the model continues by other means. By default the task type is the receiver's name, and the
    tool's name `transfer_to_NAME`. `timeout` and `loan_timeout` are those of `Agent.delegate`.

    The id of the task comes from the ids of the run and of the call, so a run that is repeated with the same `run_id`
    finds the first task; a cancelled run takes it back. `on_progress` gets each report of the other agent.
    `on_question` gets a question of it to this agent, and returns a text, or data for programs. Without `on_question`
    and without a handler of `Agent.on_prompt`, the function takes the task back and gives the model the question, for a
    call with the answer.

        pydantic_ai.Agent(model, tools=[handoff_tool(agent, "type:billing", description="Answers on invoices.")])
    """
    kind = type_of(receiver_id, task_type)
    plain = receiver_id.removeprefix("type:")

    async def hand_off(context: RunContext[Any], summary: str, details: str) -> dict[str, Any]:
        # Without the calls that have no result yet: that of this handoff is one of them.
        history = settled(from_pydantic_ai(context.messages))
        asked = {"summary": summary, "details": details}
        loan = Loan(
            agent,
            receiver_id,
            derived_id("tool", agent, receiver_id, kind, context.run_id, context.tool_call_id, asked),
            v1.HandoffRequest(
                task_type=kind,
                reason=v1.HANDOFF_REASON_SKILL,
                initial_context_summary=summary_of(summary),
                conversation_id=conversation_of(context.conversation_id),
            ),
            [history_section(history), json_section("task_description", asked)],
            timeout=timeout,
            loan_timeout=loan_timeout,
            on_question=on_question,
            on_report=on_progress,
        )
        try:
            _, outcome = await lend(loan)
        except FAILURES as error:
            raise ModelRetry(f"the handoff did not succeed: {json.dumps(failure(error))}") from error
        return shown(outcome)

    # The framework makes the tool's name and description of these.
    hand_off.__name__ = hand_off.__qualname__ = name or tool_name(receiver_id)
    hand_off.__doc__ = (
        f"{description or f'Hands a task over to {plain} and returns its result.'}\n\nArgs:\n"
        "    summary: What is to be done, in one or two sentences.\n"
        "    details: Everything that the other agent needs to know for it.\n"
    )
    return hand_off


async def node_tools(agent: Agent, run: Run, node_id: str) -> list[Tool[Any]]:
    """Returns the tools `transfer_to_NODE` with which a model chooses the next node of a run: see `Agent.start_run`.

    The tools are those of the node's next turn; a node without choices has none. A call of one reports the turn to the
    broker. If the chosen node is another agent's, this agent, which owns the run's task, hands the task over: the
    context is the task's latest one, with the messages of the agent's run as its history_log.

    The model gets `chosen`, `active_nodes`, `next`, and `handoff` with the new owner; or `error` and `message` if the
    choice does not count. Then the run of the agent goes on, and the model may choose again. After the third refused
    choice in a row the node's turn ends, as it does by a choice. The model is told so, and ends the run with an output.

    A run of the agent may end without a choice. The node is active then, and its output is reported as always:

        triage = pydantic_ai.Agent(model, tools=await node_tools(agent, run, "triage"))
        result = await triage.run("…")
        if any(one.node_id == "triage" and one.state == v1.NODE_STATE_ACTIVE for one in (await run.state()).nodes):
            await run.turn("triage", finished=True, output=result.output)

    Raises BatonError, for example NODE_NOT_ACTIVE.
    """
    return [_tool_of(choice) for choice in await _routing.choices_of(agent, run, node_id)]


def _tool_of(choice: _routing.Choice) -> Tool[Any]:
    async def choose(context: RunContext[Any], /, **arguments: Any) -> dict[str, Any]:
        def conversation() -> list[v1.ContextSection]:
            return [history_section(settled(from_pydantic_ai(context.messages)))]

        return await choice.take(context.tool_call_id or "", json.dumps(arguments), conversation)

    async def with_schema(_context: RunContext[Any], tool: ToolDefinition) -> ToolDefinition:
        return dataclasses.replace(tool, parameters_json_schema=choice.parameters)

    return Tool(choose, name=choice.name, description=choice.description, takes_ctx=True, prepare=with_schema)


async def serve(
    agent: Agent,
    worker: AbstractAgent[Any, Any],
    *,
    types: Iterable[str] = (),
    description: str = "",
    deps: Any = None,
    result: Callable[[Any], Mapping[str, Any]] | None = None,
) -> None:
    """Has an agent of Pydantic AI work on the tasks that baton delivers, until the agent is closed.

    Registers the agent with these types; without types its card stays as it is. Each task is a run: the messages are
    those of history_log, without the system prompts of others, and the prompt is the description of the task. Calls of
    tools are reported. The output is the result: an object as it is, a text as `response`, or what `result` makes of
    it. A run that raises ends the task as FAILED. A task of an earlier process runs again, and the run of a recalled
    task is cancelled. `deps` is that of `Agent.run`.

        async with Agent.from_env() as agent:
            await serve(agent, pydantic_ai.Agent(model, instructions="…"), types=["billing"])
    """

    async def work(job: _serving.Job) -> Any:
        history = to_pydantic_ai(job.history)
        prompt = job.prompt if job.prompt or not history else None
        async with worker.iter(prompt, message_history=history, deps=deps) as run:
            async for node in run:
                if worker.is_call_tools_node(node):
                    for call in node.model_response.parts:
                        if isinstance(call, ToolCallPart):
                            await job.report(f"calls {call.tool_name}")
        if run.result is None:
            raise RuntimeError("the run has no result")
        return run.result.output if result is None else result(run.result.output)

    await _serving.serve(agent, work, types, description)


def from_pydantic_ai(messages: Iterable[ModelMessage]) -> list[Entry]:
    """Converts messages of Pydantic AI to a history.

    Reasoning and the parts that only the framework reads are dropped. Raises HistoryError for a content that a history
    has no form for, for example a file that only the provider has.
    """
    history: list[Entry] = []
    for number, message in enumerate(messages):
        if isinstance(message, ModelRequest):
            for index, part in enumerate(message.parts):
                history += _of_request(f"/{number}/parts/{index}", part)
        else:
            texts = [part.content for part in message.parts if isinstance(part, TextPart)]
            calls = [
                {"id": part.tool_call_id, "name": part.tool_name, "arguments": part.args_as_json_str()}
                for part in message.parts
                if isinstance(part, ToolCallPart)
            ]
            if texts or calls:
                entry: Entry = {"role": "assistant", "content": "".join(texts)}
                history.append(entry | ({"tool_calls": calls} if calls else {}))
    return check_history(history)


def to_pydantic_ai(history: Sequence[Mapping[str, Any]]) -> list[ModelMessage]:
    """Converts a history to messages of Pydantic AI, for `message_history=…` of a run."""
    messages: list[ModelMessage] = []
    requested: list[ModelRequestPart] = []
    names: dict[str, str] = {}
    for entry in check_history([dict(one) for one in history]):
        if entry["role"] != "assistant":
            requested.append(_to_request(entry, names))
            continue
        if requested:
            messages.append(ModelRequest(parts=requested))
            requested = []
        parts: list[ModelResponsePart] = [TextPart(_text(entry))] if entry["content"] else []
        for call in entry.get("tool_calls", ()):
            names[call["id"]] = call["name"]
            parts.append(ToolCallPart(call["name"], call["arguments"], tool_call_id=call["id"]))
        messages.append(ModelResponse(parts=parts))
    return [*messages, ModelRequest(parts=requested)] if requested else messages


def _of_request(at: str, part: ModelRequestPart) -> list[Entry]:
    match part:
        case SystemPromptPart():
            return [{"role": "system", "content": part.content}]
        case UserPromptPart(content=str(text)):
            return [{"role": "user", "content": text}]
        case UserPromptPart():
            found = [_of_content(f"{at}/content/{index}", one) for index, one in enumerate(part.content)]
            return [{"role": "user", "content": [one for one in found if one]}]
        case ToolReturnPart():
            return [{"role": "tool", "content": part.model_response_str(), "tool_call_id": part.tool_call_id}]
        case RetryPromptPart():
            text = part.model_response()
            is_result = part.tool_name is not None
            entry: Entry = {"role": "tool" if is_result else "user", "content": text}
            return [entry | ({"tool_call_id": part.tool_call_id} if is_result else {})]
    return []


def _of_content(at: str, content: UserContent) -> Any:
    """Returns a part of a history, or None of what only the framework reads."""
    if isinstance(content, str):
        return {"type": "text", "text": content}
    if isinstance(content, BinaryContent):
        data, media_type = base64.b64encode(content.data).decode(), content.media_type
        return {"type": "image" if content.is_image else "file", "data": data, "media_type": media_type}
    if isinstance(content, ImageUrl | AudioUrl | VideoUrl | DocumentUrl):
        return {"type": "image" if isinstance(content, ImageUrl) else "file", "url": content.url}
    match content.kind:
        case "text-content":
            return {"type": "text", "text": content.content}
        case "cache-point":
            return None
    raise HistoryError(at, f"is of the kind {content.kind!r}, which baton.history has no form for")


def _to_request(entry: Entry, names: Mapping[str, str]) -> ModelRequestPart:
    match entry["role"]:
        case "system":
            return SystemPromptPart(_text(entry))
        case "tool":
            call_id = entry["tool_call_id"]
            return ToolReturnPart(names.get(call_id, "tool"), _text(entry), call_id)
    if isinstance(entry["content"], str):
        return UserPromptPart(entry["content"])
    return UserPromptPart([_to_content(part) for part in entry["content"]])


def _to_content(part: Mapping[str, Any]) -> UserContent:
    if part["type"] in ("text", "data"):
        return _text({"content": [part]})
    if "data" in part:
        media_type = part.get("media_type", "application/octet-stream")
        return BinaryContent(base64.b64decode(part["data"]), media_type=media_type)
    return ImageUrl(part["url"]) if part["type"] == "image" else DocumentUrl(part["url"])


def _text(entry: Mapping[str, Any]) -> str:
    """Returns the text of a content. Raises HistoryError for an image or a file, which only a user has here."""
    content = entry["content"]
    if isinstance(content, str):
        return content
    for part in content:
        if part["type"] in ("image", "file"):
            raise HistoryError("", f"is of the type {part['type']}, which Pydantic AI takes of a user only")
    return "".join(part["text"] if part["type"] == "text" else json.dumps(part["data"]) for part in content)
