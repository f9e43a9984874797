"""The tool calls in a model's response, and their results in the shape of the same interface."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from baton import v1

TRANSFER_PREFIX = "transfer_to_"
"""The beginning of the names of the broker's tools."""


class Shape(Enum):
    """The interface that a response belongs to."""

    OPENAI_RESPONSES = "OpenAI Responses"
    OPENAI_CHAT = "OpenAI Chat Completions"
    ANTHROPIC = "Anthropic Messages"
    MCP_SAMPLING = "MCP sampling"
    MCP_CALL = "MCP tools/call"


@dataclass(frozen=True)
class ModelTurn:
    """The part of a model's response that a run records."""

    shape: Shape
    calls: tuple[v1.ToolCall, ...]
    output: str
    finished: bool
    """Whether the model ended its turn by itself and without a tool call."""


def read_turn(response: Any) -> ModelTurn:
    """Reads a response: an object of an SDK, or the same as parsed JSON. Raises ValueError if it is no known response.

    Known are a Response and a ChatCompletion of OpenAI, a Message of Anthropic, and of MCP a CreateMessageResult and a
    CallToolRequest, whose call is named `call`.
    """
    match response:
        case _ if _is_list(_get(response, "output")):
            return _of_responses(response)
        case _ if _is_list(_get(response, "choices")):
            return _of_chat(response)
        case _ if _get(_get(response, "params"), "name") is not None:
            return _of_tool_request(_get(response, "params"))
        case _ if _get(response, "role") == "assistant" and _get(response, "content") is not None:
            return _of_message(response)
    raise ValueError(f"{type(response).__name__} is no response of a known interface")


def results_of(shape: Shape, calls: Sequence[v1.ToolCall], results: Sequence[v1.ToolResult]) -> list[dict[str, Any]]:
    """Returns the results of the transfer calls as messages for the model's history.

    The results of all other calls are the runtime's own.
    """
    names = {call.call_id: call.name for call in calls}
    own = [result for result in results if names.get(result.call_id, "").startswith(TRANSFER_PREFIX)]
    match shape:
        case Shape.OPENAI_RESPONSES:
            return [{"type": "function_call_output", "call_id": one.call_id, "output": one.text} for one in own]
        case Shape.OPENAI_CHAT:
            return [{"role": "tool", "tool_call_id": one.call_id, "content": one.text} for one in own]
        case Shape.ANTHROPIC:
            blocks = [
                {"type": "tool_result", "tool_use_id": one.call_id, "content": one.text, "is_error": one.is_error}
                for one in own
            ]
            return [{"role": "user", "content": blocks}] if blocks else []
        case Shape.MCP_SAMPLING:
            blocks = [
                {"type": "tool_result", "toolUseId": one.call_id, "content": _mcp_text(one), "isError": one.is_error}
                for one in own
            ]
            return [{"role": "user", "content": blocks}] if blocks else []
        case Shape.MCP_CALL:
            return [{"content": _mcp_text(one), "isError": one.is_error} for one in own]


def _of_responses(response: Any) -> ModelTurn:
    calls, texts = [], []
    for item in _get(response, "output"):
        match _get(item, "type"):
            case "function_call":
                calls.append(_call(_get(item, "call_id"), _get(item, "name"), _get(item, "arguments")))
            case "custom_tool_call":
                calls.append(_call(_get(item, "call_id"), _get(item, "name"), json.dumps(_get(item, "input"))))
            case "message":
                texts += [_get(part, "text") for part in _get(item, "content") if _get(part, "type") == "output_text"]
    finished = not calls and _get(response, "status") in (None, "completed")
    return ModelTurn(Shape.OPENAI_RESPONSES, tuple(calls), "".join(texts), finished)


def _of_chat(response: Any) -> ModelTurn:
    choices = _get(response, "choices")
    if len(choices) != 1:
        raise ValueError(f"a turn is one choice of the model, not {len(choices)}")
    message = _get(choices[0], "message")
    calls = []
    for call in _get(message, "tool_calls") or ():
        function, custom = _get(call, "function"), _get(call, "custom")
        if function is not None:
            calls.append(_call(_get(call, "id"), _get(function, "name"), _get(function, "arguments")))
        else:
            calls.append(_call(_get(call, "id"), _get(custom, "name"), json.dumps(_get(custom, "input"))))
    finished = not calls and _get(choices[0], "finish_reason") == "stop"
    return ModelTurn(Shape.OPENAI_CHAT, tuple(calls), _get(message, "content") or "", finished)


def _of_message(response: Any) -> ModelTurn:
    """Reads a message of Anthropic or of MCP, which differ in the names of their stop reasons."""
    content = _get(response, "content")
    blocks = content if _is_list(content) else [content]
    calls, texts = [], []
    for block in blocks:
        match _get(block, "type"):
            case "tool_use":
                calls.append(_call(_get(block, "id"), _get(block, "name"), json.dumps(_get(block, "input") or {})))
            case "text":
                texts.append(_get(block, "text"))
    stop = _get(response, "stop_reason") or _get(response, "stopReason")
    is_anthropic = _get(response, "type") == "message"
    finished = not calls and stop in ("end_turn", "stop_sequence", "endTurn", "stopSequence")
    shape = Shape.ANTHROPIC if is_anthropic else Shape.MCP_SAMPLING
    return ModelTurn(shape, tuple(calls), "".join(texts), finished)


def _of_tool_request(params: Any) -> ModelTurn:
    # The request of MCP has no id of the call beside that of the JSON-RPC frame.
    call = _call("call", _get(params, "name"), json.dumps(_get(params, "arguments") or {}))
    return ModelTurn(Shape.MCP_CALL, (call,), "", finished=False)


def _call(call_id: str, name: str, arguments: str) -> v1.ToolCall:
    return v1.ToolCall(call_id=call_id, name=name, arguments_json=arguments or "{}")


def _mcp_text(result: v1.ToolResult) -> list[dict[str, Any]]:
    return [{"type": "text", "text": result.text}]


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
