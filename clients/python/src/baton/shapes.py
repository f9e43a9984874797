"""Histories from and to the shapes of models: OpenAI, Anthropic, Gemini and LangChain.

Each `from_` function returns entries of `baton.history`, and takes objects of the SDK or the same as parsed JSON. It
raises HistoryError with the place of what the shape has no form for; it drops reasoning, the ids of messages, and the
calls of tools that the provider runs by itself. Each `to_` function returns the history as parsed JSON, and raises
HistoryError for a part that the interface does not take in that place. `vectors/history-v1.json` has examples.
"""

import base64
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec

from baton.history import Entry, HistoryError, check_history

Message = dict[str, Any]
Part = dict[str, Any]

_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^,]*)?;base64,(.*)", re.DOTALL)
_REASONING = {"thinking", "redacted_thinking", "reasoning", "reasoning_content"}
# Calls that a message of LangChain has a second time in its content.
_REPEATED = {"tool_use", "tool_call", "tool_call_chunk", "function_call", "input_json_delta"}


_Arguments = ParamSpec("_Arguments")


class _Members(dict[str, Any]):
    """An object of a message with its JSON Pointer. A member that is not there, but must be, is a HistoryError."""

    def __init__(self, at: str, members: Mapping[str, Any]) -> None:
        super().__init__(members)
        self.at = at

    def __missing__(self, name: str) -> Any:
        raise HistoryError(f"{self.at}/{name}", "is missing")


def _reader(read: Callable[_Arguments, list[Entry]]) -> Callable[_Arguments, list[Entry]]:
    """Makes a HistoryError of what a missing or odd member of a message raises."""

    @functools.wraps(read)
    def checked(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> list[Entry]:
        try:
            return read(*arguments, **named)
        except (KeyError, TypeError, AttributeError) as error:
            raise HistoryError("", f"has a message of an unknown form: {error!r}") from error

    return checked


@_reader
def from_openai_chat(messages: Iterable[Any]) -> list[Entry]:
    """Converts messages of OpenAI Chat Completions."""
    history: list[Entry] = []
    for at, message in _plain(messages):
        role = _role(message, developer="system")
        content = message.get("content")
        entry = _entry(role, _content(at, content if content is not None else message.get("refusal"), _chat_part))
        calls = []
        for call in message.get("tool_calls") or ():
            function, custom = call.get("function"), call.get("custom") or {}
            if function:
                calls.append(_call(call["id"], function["name"], function["arguments"]))
            else:
                calls.append(_call(call["id"], custom.get("name"), _json(custom.get("input"))))
        if message.get("function_call"):
            raise HistoryError(f"{at}/function_call", "has no id: use tool_calls")
        if message.get("name") and role != "tool":
            entry["name"] = message["name"]
        if role == "tool":
            entry["tool_call_id"] = message.get("tool_call_id")
        history.append(_with_calls(entry, calls))
    return check_history(history)


def to_openai_chat(history: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Converts a history to messages of OpenAI Chat Completions."""
    messages: list[Message] = []
    for at, entry in _entries(history):
        only_text = entry["role"] != "user"
        message: Message = {"role": entry["role"], "content": _written(at, entry, _to_chat_part, only_text=only_text)}
        if entry["role"] == "tool":
            message["tool_call_id"] = entry["tool_call_id"]
        elif "name" in entry:
            message["name"] = entry["name"]
        if entry.get("tool_calls"):
            message["content"] = message["content"] or None
            message["tool_calls"] = [
                {"id": one["id"], "type": "function", "function": {"name": one["name"], "arguments": one["arguments"]}}
                for one in entry["tool_calls"]
            ]
        messages.append(message)
    return messages


@_reader
def from_openai_responses(items: Iterable[Any]) -> list[Entry]:
    """Converts items of OpenAI Responses, as the OpenAI Agents SDK has them."""
    history: list[Entry] = []
    for at, item in _plain(items):
        _check_members(at, item, "content" if item.get("type") in (None, "message") else "type")
        match item.get("type") or "message":
            case "message":
                role = _role(item, developer="system")
                history.append(_entry(role, _content(at, item.get("content"), _responses_part)))
            case "function_call":
                _add_call(history, _call(item["call_id"], item["name"], item["arguments"]))
            case "custom_tool_call":
                _add_call(history, _call(item["call_id"], item["name"], _json(item["input"])))
            case "function_call_output" | "custom_tool_call_output":
                content = _content(at, item["output"], _responses_part, "output")
                history.append(_result(item["call_id"], content))
            case "reasoning" | "item_reference" | "compaction":
                pass
            case kind if kind.endswith(("_call", "_call_output")) or kind.startswith("mcp_"):
                pass
            case kind:
                raise _unknown(f"{at}/type", kind)
    return check_history(history)


def to_openai_responses(history: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Converts a history to items of OpenAI Responses."""
    items: list[Message] = []
    for at, entry in _entries(history):
        role = entry["role"]
        if role == "tool":
            content = _written(at, entry, _to_responses_part)
            items.append({"type": "function_call_output", "call_id": entry["tool_call_id"], "output": content})
            continue
        if role == "assistant":
            content = _written(
                at, entry, lambda _, part: {"type": "output_text", "text": _text_of(part)}, only_text=True
            )
        else:
            content = _written(at, entry, _to_responses_part)
        if content or not entry.get("tool_calls"):
            items.append({"role": role, "content": content})
        items += [
            {"type": "function_call", "call_id": one["id"], "name": one["name"], "arguments": one["arguments"]}
            for one in entry.get("tool_calls", ())
        ]
    return items


@_reader
def from_anthropic(messages: Iterable[Any], system: Any = None) -> list[Entry]:
    """Converts messages of Anthropic, and the system prompt, which is beside them."""
    history = [_entry("system", _content("/system", system, _anthropic_part))] if system else []
    for at, message in _plain(messages):
        _check_members(at, message, "content")
        blocks = message["content"]
        if isinstance(blocks, str):
            history.append(_entry(message.get("role"), blocks))
            continue
        parts, calls = [], []
        for index, block in enumerate(blocks or ()):
            match block.get("type"):
                case "tool_use":
                    calls.append(_call(block["id"], block["name"], _json(block.get("input") or {})))
                case "tool_result":
                    place = f"{at}/content/{index}"
                    history.append(
                        _result(block["tool_use_id"], _content(place, block.get("content"), _anthropic_part))
                    )
                case "server_tool_use":
                    pass
                case str(kind) if kind in _REASONING or kind.endswith("_tool_result"):
                    pass
                case _:
                    parts += _anthropic_part(f"{at}/content/{index}", block)
        if parts or calls or not blocks:
            history.append(_with_calls(_entry(message.get("role"), _joined(parts)), calls))
    return check_history(history)


def to_anthropic(history: Sequence[Mapping[str, Any]]) -> tuple[str, list[Message]]:
    """Converts a history to the system prompt, "" without one, and the messages of Anthropic."""
    system: list[str] = []
    messages: list[Message] = []
    results: list[Message] | None = None
    for at, entry in _entries(history):
        if entry["role"] == "system":
            system.append(_only_text(at, entry))
            continue
        content = _written(at, entry, _to_anthropic_part, only_text=entry["role"] == "assistant")
        if entry["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": entry["tool_call_id"], "content": content}
            if results is None:
                results = []
                messages.append({"role": "user", "content": results})
            results.append(block)
            continue
        results = None
        calls = [
            {"type": "tool_use", "id": one["id"], "name": one["name"], "input": _arguments(one)}
            for one in entry.get("tool_calls", ())
        ]
        if calls:
            texts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
            content = [*texts, *calls]
        messages.append({"role": entry["role"], "content": content})
    return "\n\n".join(system), messages


@_reader
def from_gemini(contents: Iterable[Any], system: Any = None) -> list[Entry]:
    """Converts contents of Gemini, and the system instruction, which is beside them.

    A call of Gemini may have no id. Then it gets one by its place, and a result belongs to the first open call of its
    name.
    """
    history: list[Entry] = []
    if system:
        parts = system if isinstance(system, str) else _dumped(system, "/system").get("parts")
        history.append(_entry("system", _content("/system", parts, _gemini_part)))
    open_calls: list[tuple[str, str]] = []
    count = 0
    for at, content in _plain(contents):
        _check_members(at, content, "parts")
        role = "assistant" if content.get("role") == "model" else "user"
        parts, calls = [], []
        found = content["parts"] or ()
        for index, part in enumerate(found):
            call, response = _either(part, "functionCall"), _either(part, "functionResponse")
            if call:
                count += 1
                call_id = call.get("id") or f"call_{count}"
                open_calls.append((call["name"], call_id))
                calls.append(_call(call_id, call["name"], _json(call.get("args") or {})))
            elif response:
                known = next((one for one in open_calls if response.get("id") == one[1]), None)
                known = known or next((one for one in open_calls if response.get("name") == one[0]), None)
                if known is None:
                    raise HistoryError(f"{at}/parts/{index}", "is the result of no call")
                open_calls.remove(known)
                if response.get("parts"):
                    raise HistoryError(f"{response.at}/parts", "are what baton.history has no form for in a result")
                history.append(_result(known[1], _response_text(response.get("response"))))
            else:
                parts += _gemini_part(f"{at}/parts/{index}", part)
        if parts or calls or not found:
            history.append(_with_calls(_entry(role, _joined(parts)), calls))
    return check_history(history)


def to_gemini(history: Sequence[Mapping[str, Any]]) -> tuple[str, list[Message]]:
    """Converts a history to the system instruction, "" without one, and the contents of Gemini."""
    system: list[str] = []
    contents: list[Message] = []
    names: dict[str, str] = {}
    results: list[Message] | None = None
    for at, entry in _entries(history):
        if entry["role"] == "system":
            system.append(_only_text(at, entry))
            continue
        if entry["role"] == "tool":
            name = names.get(entry["tool_call_id"])
            if name is None:
                raise HistoryError(
                    f"{at}/tool_call_id", "is that of no call, and a result of Gemini has the call's name"
                )
            if results is None:
                results = []
                contents.append({"role": "user", "parts": results})
            response = _parsed(_only_text(at, entry))
            answer = response if isinstance(response, dict) else {"result": _only_text(at, entry)}
            results.append({"functionResponse": {"name": name, "response": answer}})
            continue
        results = None
        written = _written(at, entry, _to_gemini_part)
        parts = ([{"text": written}] if written else []) if isinstance(written, str) else written
        for call in entry.get("tool_calls", ()):
            names[call["id"]] = call["name"]
            parts.append({"functionCall": {"name": call["name"], "args": _arguments(call)}})
        contents.append({"role": {"assistant": "model"}.get(entry["role"], "user"), "parts": parts or [{"text": ""}]})
    return "\n\n".join(system), contents


@_reader
def from_langchain(messages: Iterable[Any]) -> list[Entry]:
    """Converts messages of LangChain: objects, dicts of messages_to_dict or with `role`, `(role, text)` and texts."""
    history: list[Entry] = []
    for index, one in enumerate(messages):
        at = f"/{index}"
        message = _langchain(one, at)
        kind, data = message.get("type"), message.get("data")
        if not isinstance(kind, str) or not isinstance(data, dict):
            raise _unknown(at, kind)
        content = _content(at, data.get("content"), _langchain_part)
        match kind:
            case "tool":
                history.append(_result(data.get("tool_call_id"), content))
            case (
                "human" | "ai" | "system" | "developer" | "HumanMessageChunk" | "AIMessageChunk" | "SystemMessageChunk"
            ):
                role = (
                    "user"
                    if kind.lower().startswith("human")
                    else "assistant"
                    if kind[:2].lower() == "ai"
                    else "system"
                )
                entry = _entry(role, content)
                calls = [_call(call["id"], call["name"], _json(call["args"])) for call in data.get("tool_calls") or ()]
                calls += [
                    _call(call["id"], call["name"], call["args"]) for call in data.get("invalid_tool_calls") or ()
                ]
                if data.get("name"):
                    entry["name"] = data["name"]
                history.append(_with_calls(entry, calls))
            case "openai":
                history += _shifted(index, data["message"])
            case _:
                raise _unknown(f"{at}/type", kind)
    return check_history(history)


def to_langchain(history: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Converts a history to what messages_from_dict of LangChain takes."""
    messages: list[Message] = []
    for at, entry in _entries(history):
        kind = {"user": "human", "assistant": "ai"}.get(entry["role"], entry["role"])
        data: Message = {"content": _written(at, entry, _to_langchain_part), "type": kind}
        if "name" in entry and kind != "tool":
            data["name"] = entry["name"]
        if kind == "tool":
            data["tool_call_id"] = entry["tool_call_id"]
        if kind == "ai":
            read = [(one, _parsed(one["arguments"])) for one in entry.get("tool_calls", ())]
            data["tool_calls"] = [
                {"name": one["name"], "args": args, "id": one["id"], "type": "tool_call"}
                for one, args in read
                if isinstance(args, dict)
            ]
            data["invalid_tool_calls"] = [
                {
                    "name": one["name"],
                    "args": one["arguments"],
                    "id": one["id"],
                    "error": None,
                    "type": "invalid_tool_call",
                }
                for one, args in read
                if not isinstance(args, dict)
            ]
        messages.append({"type": kind, "data": data})
    return messages


def _chat_part(at: str, part: Message) -> list[Part]:
    match part.get("type"):
        case "text":
            return [_text(part["text"])]
        case "refusal":
            return [_text(part["refusal"])]
        case "image_url":
            image = part["image_url"]
            return [_media("image", image if isinstance(image, str) else image["url"])]
        case "file" if (part.get("file") or {}).get("file_data"):
            return [_media("file", part["file"]["file_data"], name=part["file"].get("filename"))]
        case "input_audio":
            audio = part["input_audio"]
            return [{"type": "file", "data": audio["data"], "media_type": f"audio/{audio['format']}"}]
    raise _unknown(f"{at}/type", part.get("type"))


def _responses_part(at: str, part: Message) -> list[Part]:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return [_text(part["text"])]
        case "refusal":
            return [_text(part["refusal"])]
        case "input_image" if part.get("image_url"):
            return [_media("image", part["image_url"])]
        case "input_file" if part.get("file_data") or part.get("file_url"):
            return [_media("file", part.get("file_data") or part.get("file_url"), name=part.get("filename"))]
    raise _unknown(f"{at}/type", part.get("type"))


def _anthropic_part(at: str, block: Message) -> list[Part]:
    source = block.get("source") or {}
    kind = {"document": "file"}.get(block.get("type", ""), block.get("type"))
    match kind, source.get("type"):
        case "text", _:
            return [_text(block["text"])]
        case "image" | "file", "base64":
            made = {"type": kind, "data": source["data"], "media_type": source["media_type"]}
            return [made | ({"name": block["title"]} if block.get("title") else {})]
        case "image" | "file", "url":
            return [{"type": kind, "url": source["url"]} | ({"name": block["title"]} if block.get("title") else {})]
        case "file", "text":
            return [_text(source["data"])]
    raise _unknown(f"{at}/type", block.get("type"))


def _gemini_part(at: str, part: Message) -> list[Part]:
    if part.get("thought") or _either(part, "executableCode") or _either(part, "codeExecutionResult"):
        return []
    if part.get("text") is not None:
        return [_text(part["text"])]
    held = _either(part, "inlineData") or _either(part, "fileData")
    if not held:
        raise HistoryError(at, "is no part that baton.history has a form for")
    media_type, name = _either(held, "mimeType") or "", _either(held, "displayName")
    made = {"type": "image" if media_type.startswith("image/") else "file"}
    made |= {"data": held["data"]} if held.get("data") else {"url": _either(held, "fileUri")}
    made |= {"media_type": media_type} if media_type else {}
    return [made | ({"name": name} if name else {})]


def _langchain_part(at: str, part: Message) -> list[Part]:
    kind = part.get("type")
    match kind:
        case "text" | "image_url" | "refusal" | "input_audio":
            return _chat_part(at, part)
        case "input_text" | "output_text":
            return [_text(part["text"])]
        case "image" | "file" | "audio" | "video":
            if part.get("source"):
                return _anthropic_part(at, part)
            media_type = part.get("mime_type") or ""
            kind = "image" if kind == "image" else "file"
            data = part.get("base64") or (part.get("data") if part.get("source_type") == "base64" else None)
            if not data and not part.get("url"):
                raise _unknown(f"{at}/type", kind)
            made = {"type": kind} | ({"data": data} if data else {"url": part["url"]})
            name = part.get("filename") or part.get("name")
            return [made | ({"media_type": media_type} if media_type else {}) | ({"name": name} if name else {})]
        case str() if kind in _REASONING | _REPEATED:
            return []
    raise _unknown(f"{at}/type", kind)


def _to_chat_part(at: str, part: Part) -> Message:
    match part["type"]:
        case "image":
            return {"type": "image_url", "image_url": {"url": _url(part)}}
        case "file" if "data" in part:
            name = {"filename": part["name"]} if "name" in part else {}
            return {"type": "file", "file": name | {"file_data": _url(part)}}
        case "file":
            raise HistoryError(f"{at}/url", "is a file elsewhere, which Chat Completions does not take")
    return _text(_text_of(part))


def _to_responses_part(at: str, part: Part) -> Message:  # noqa: ARG001
    match part["type"]:
        case "image":
            return {"type": "input_image", "image_url": _url(part), "detail": "auto"}
        case "file":
            name = {"filename": part["name"]} if "name" in part else {}
            return {"type": "input_file"} | name | {"file_data" if "data" in part else "file_url": _url(part)}
    return {"type": "input_text", "text": _text_of(part)}


def _to_anthropic_part(at: str, part: Part) -> Message:  # noqa: ARG001
    if part["type"] not in ("image", "file"):
        return _text(_text_of(part))
    source = {"type": "url", "url": part["url"]} if "url" in part else None
    media_type = part.get("media_type", "application/octet-stream")
    source = source or {"type": "base64", "media_type": media_type, "data": part["data"]}
    if part["type"] == "image":
        return {"type": "image", "source": source}
    return {"type": "document", "source": source} | ({"title": part["name"]} if "name" in part else {})


def _to_gemini_part(at: str, part: Part) -> Message:  # noqa: ARG001
    if part["type"] not in ("image", "file"):
        return {"text": _text_of(part)}
    held = {"mimeType": part.get("media_type", "image/png" if part["type"] == "image" else "application/octet-stream")}
    name = {"displayName": part["name"]} if "name" in part else {}
    if "data" in part:
        return {"inlineData": held | {"data": part["data"]} | name}
    return {"fileData": held | {"fileUri": part["url"]} | name}


def _to_langchain_part(at: str, part: Part) -> Message:  # noqa: ARG001
    match part["type"]:
        case "image":
            return {"type": "image_url", "image_url": {"url": _url(part)}}
        case "file":
            held = {"base64": part["data"]} if "data" in part else {"url": part["url"]}
            media_type = {"mime_type": part["media_type"]} if "media_type" in part else {}
            return {"type": "file"} | held | media_type | ({"filename": part["name"]} if "name" in part else {})
    return _text(_text_of(part))


def _written(at: str, entry: Entry, write: Callable[[str, Part], Message], *, only_text: bool = False) -> Any:
    """Returns the content of an entry: the text, or the parts as `write` makes them."""
    if isinstance(entry["content"], str):
        return entry["content"]
    parts = []
    for index, part in enumerate(entry["content"]):
        place = f"{at}/content/{index}"
        if only_text and part["type"] not in ("text", "data"):
            raise HistoryError(
                place, f"is of the type {part['type']}, which the interface does not take from {entry['role']}"
            )
        parts.append(write(place, part))
    return parts


def _only_text(at: str, entry: Entry) -> str:
    if isinstance(entry["content"], str):
        return entry["content"]
    return "".join(_written(at, entry, lambda _, part: _text_of(part), only_text=True))  # type: ignore[arg-type, return-value]


def _text_of(part: Part) -> str:
    return part["text"] if part["type"] == "text" else _json(part.get("data"))


def _content(at: str, content: Any, read: Callable[[str, Message], list[Part]], name: str = "content") -> Any:
    """Returns a content of an entry: of a text, of parts, or "" of none."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        raise HistoryError(f"{at}/{name}", "must be a text or a list")
    parts: list[Part] = []
    for index, part in enumerate(content):
        place = f"{at}/{name}/{index}"
        parts += [_text(part)] if isinstance(part, str) else read(place, _dumped(part, place))
    return _joined(parts)


def _joined(parts: list[Part]) -> Any:
    """Returns the parts, or their text if there is one text alone."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _entry(role: Any, content: Any) -> Entry:
    return {"role": role, "content": content}


def _result(call_id: Any, content: Any) -> Entry:
    return {"role": "tool", "content": content, "tool_call_id": call_id}


def _with_calls(entry: Entry, calls: list[Message]) -> Entry:
    return entry | ({"tool_calls": calls} if calls else {})


def _add_call(history: list[Entry], call: Message) -> None:
    """Adds a call to the assistant's entry that is the last one."""
    if not history or history[-1]["role"] != "assistant":
        history.append(_entry("assistant", ""))
    history[-1].setdefault("tool_calls", []).append(call)


def _call(call_id: Any, name: Any, arguments: Any) -> Message:
    return {"id": call_id, "name": name, "arguments": arguments or "{}"}


def _arguments(call: Message) -> dict[str, Any]:
    """Returns the arguments of a call. A model may write what is no object; its text stays."""
    read = _parsed(call["arguments"])
    return read if isinstance(read, dict) else {"arguments": call["arguments"]}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _response_text(response: Any) -> str:
    if isinstance(response, dict) and len(response) == 1:
        [(name, value)] = response.items()
        if name in ("result", "output") and isinstance(value, str):
            return value
    return _json(response)


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _media(kind: str, url: Any, *, name: Any = None) -> Part:
    found = _DATA_URL.fullmatch(url)
    made: Part = {"type": kind}
    if found:
        made |= {"data": found[2]} | ({"media_type": found[1]} if found[1] else {})
    else:
        made["url"] = url
    return made | ({"name": name} if name else {})


def _url(part: Part) -> str:
    media_type = part.get("media_type", "application/octet-stream")
    return part["url"] if "url" in part else f"data:{media_type};base64,{part['data']}"


def _either(value: Message, name: str) -> Any:
    """Returns a member by its name in JSON, or by its name in Python."""
    snake = re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)
    return value.get(name) if value.get(name) is not None else value.get(snake)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _entries(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, Entry]]:
    return [(f"/{index}", entry) for index, entry in enumerate(check_history([dict(one) for one in history]))]


def _plain(messages: Iterable[Any]) -> list[tuple[str, Message]]:
    """Returns each message as parsed JSON, with its pointer."""
    return [(f"/{index}", _dumped(message, f"/{index}")) for index, message in enumerate(messages)]


def _dumped(value: Any, at: str) -> Any:
    """Returns an object of an SDK as parsed JSON."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, _Members):
        return value
    if isinstance(value, Mapping):
        return _Members(at, {name: _dumped(member, f"{at}/{name}") for name, member in value.items()})
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [_dumped(item, f"{at}/{index}") for index, item in enumerate(value)]
    return value


def _langchain(message: Any, at: str) -> Message:
    """Returns a message in the form of messages_to_dict; one in the form of OpenAI as of the type openai."""
    if isinstance(message, str):
        return {"type": "human", "data": {"content": message}}
    if isinstance(message, tuple | list):
        [role, content] = message
        if role in ("human", "ai"):
            return {"type": role, "data": {"content": content}}
        return {"type": "openai", "data": {"message": {"role": role, "content": content}}}
    if not isinstance(message, Mapping):
        return {"type": getattr(message, "type", type(message).__name__), "data": _dumped(message, at)}
    if "data" in message:
        # An object does not have "data", so places do not name it.
        return {"type": message.get("type"), "data": _dumped(message["data"], at)}
    return {"type": "openai", "data": {"message": _dumped(message, at)}}


def _shifted(index: int, message: Message) -> list[Entry]:
    """Converts one message of OpenAI with its place in the list."""
    role = _role(message, human="user", ai="assistant")
    try:
        return from_openai_chat([message | {"role": role}])
    except HistoryError as error:
        raise HistoryError(re.sub("^/0", f"/{index}", error.pointer), error.problem) from error


def _role(message: Message, **others: str) -> Any:
    """Returns the role of a message, where `others` are the names of roles in its shape."""
    role = message.get("role")
    return others.get(role, role) if isinstance(role, str) else role


def _check_members(at: str, message: Message, needed: str) -> None:
    """Refuses a message of another shape, whose calls or texts would be overlooked."""
    if needed not in message:
        raise HistoryError(f"{at}/{needed}", "is missing")
    if message.get("tool_calls"):
        raise HistoryError(f"{at}/tool_calls", "is of another shape")


def _unknown(pointer: str, kind: Any) -> HistoryError:
    return HistoryError(pointer, f"is {kind!r}, which baton.history has no form for")
