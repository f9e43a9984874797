"""A handoff as a tool or an output of Pydantic AI. Needs `pydantic-ai-slim`, the extra `pydantic-ai` of the package."""

import base64
import json
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from pydantic_ai import ModelRetry, RunContext
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

from baton import Agent, HandoffFailedError, HistoryError, TaskRecalledError, history_section, json_section, v1
from baton.adapters._outcome import delegate, shown
from baton.history import Entry, check_history, settled

Handoff = Callable[[RunContext[Any], str, str], Awaitable[dict[str, Any]]]


def handoff(
    agent: Agent,
    receiver_id: str,
    task_type: str,
    *,
    name: str,
    description: str,
    timeout: timedelta | None = None,
    loan_timeout: timedelta | None = None,
) -> Handoff:
    """Returns a function for `tools=[…]`, or for `output_type=[…]` to end the run with the other agent's result.

    The model calls it with `summary` and `details`, and the function delegates a task with these and the run's messages
    as its context: the sections task_description and history_log. It returns `status`, `result` and `details`. If no
    agent takes the task, or it comes back without a result, it raises
    ModelRetry, so that the model continues by other means. `timeout` and `loan_timeout` are those of `Agent.delegate`.

        pydantic_ai.Agent(model, output_type=[handoff(agent, "type:billing", "invoice-question", name="…", …), str])
    """

    async def hand_off(context: RunContext[Any], summary: str, details: str) -> dict[str, Any]:
        request = v1.HandoffRequest(
            task_type=task_type, reason=v1.HANDOFF_REASON_SKILL, initial_context_summary=summary
        )
        # Without the calls that have no result yet: that of this handoff is one of them.
        history = settled(from_pydantic_ai(context.messages))
        asked = {"summary": summary, "details": details}
        sections = [history_section(history), json_section("task_description", asked)]
        try:
            outcome = await delegate(
                agent,
                receiver_id,
                f"tool-{uuid.uuid4()}",
                request,
                sections,
                timeout=timeout,
                loan_timeout=loan_timeout,
            )
        except (HandoffFailedError, TaskRecalledError) as error:
            raise ModelRetry(f"the handoff did not succeed: {error}") from error
        return shown(outcome)

    # The framework makes the tool's name and description of these.
    hand_off.__name__ = hand_off.__qualname__ = name
    hand_off.__doc__ = (
        f"{description}\n\nArgs:\n"
        "    summary: What is to be done, in one or two sentences.\n"
        "    details: Everything that the other agent needs to know for it.\n"
    )
    return hand_off


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
