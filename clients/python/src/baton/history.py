"""The one shape of a chat history: the section schema `baton.history`, version 1.

Filters work on this shape and on no other, because a list of another shape may keep tool calls where a filter does not
know them. `vectors/history-v1.schema.json` is the schema. `baton.shapes` converts from and to the shapes of models.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from baton import v1
from baton.envelopes import json_section

SCHEMA_ID = "baton.history"
"""The id of the schema. Every broker knows it without a registration."""
SCHEMA_VERSION = "1"
"""The version of the schema."""
ROLES = ("system", "user", "assistant", "tool")

Entry = dict[str, Any]
"""An entry of a history: `role`, `content`, and for some roles `tool_calls` or `tool_call_id`."""

_ENTRY = {"role", "content", "name", "tool_calls", "tool_call_id", "agent_id", "time"}
_CALL = {"id", "name", "arguments"}
_MEDIA = {"type", "url", "data", "media_type", "name"}


class HistoryError(ValueError):
    """A value is no history. `pointer` is the JSON Pointer of the part that does not fit."""

    def __init__(self, pointer: str, problem: str) -> None:
        """Names the place and the problem."""
        super().__init__(f'"{pointer}" {problem}')
        self.pointer = pointer
        self.problem = problem


def history_section(entries: Iterable[Mapping[str, Any]], *, name: str = "history_log") -> v1.ContextSection:
    """Returns a section with a history, marked as one of `baton.history`. Raises HistoryError for another shape."""
    section = json_section(name, check_history([dict(entry) for entry in entries]))
    section.schema_id, section.schema_version = SCHEMA_ID, SCHEMA_VERSION
    return section


def check_history(value: Any) -> list[Entry]:
    """Returns the value if it is a history. Raises HistoryError with the first part that does not fit."""
    if not isinstance(value, list):
        raise HistoryError("", "must be a list")
    for index, entry in enumerate(value):
        _check_entry(f"/{index}", entry)
    return value


def latest(entries: list[Entry], last: int) -> list[Entry]:
    """Returns the latest entries: `last`, or more where the first one would be the result of a call before it."""
    start, calls = max(len(entries) - last, 0), _calls_of_results(entries)
    at = len(entries)
    while at > start:
        at -= 1
        start = min(start, calls[at])
    return entries[start:]


def without_tool_calls(entries: list[Entry]) -> list[Entry]:
    """Returns the entries without calls of tools and without their results. An entry that only calls is left out."""
    spoken = (
        entry for entry in entries if entry["role"] != "tool" and (entry["content"] or not entry.get("tool_calls"))
    )
    return [{name: value for name, value in entry.items() if name != "tool_calls"} for entry in spoken]


def settled(entries: list[Entry]) -> list[Entry]:
    """Returns the entries without calls that have no result yet, and without results of unknown calls.

    Interfaces of models refuse such a history. A handoff leaves them: the call of a handoff is open while it is made.
    """
    answered = {entry["tool_call_id"] for entry in entries if entry["role"] == "tool"}
    kept: list[Entry] = []
    known: set[str] = set()
    for entry in entries:
        calls = entry.get("tool_calls", [])
        open_calls = [call for call in calls if call["id"] in answered]
        known.update(call["id"] for call in open_calls)
        if entry["role"] == "tool" and entry["tool_call_id"] not in known:
            continue
        if calls and not open_calls:
            if not entry["content"]:
                continue
            entry = {name: value for name, value in entry.items() if name != "tool_calls"}  # noqa: PLW2901
        elif len(open_calls) < len(calls):
            entry = entry | {"tool_calls": open_calls}  # noqa: PLW2901
        kept.append(entry)
    return kept


def _calls_of_results(entries: list[Entry]) -> list[int]:
    """Returns for each entry the index of its call, or its own index."""
    known: dict[str, int] = {}
    found = []
    for index, entry in enumerate(entries):
        known.update({call["id"]: index for call in entry.get("tool_calls", [])})
        found.append(known.get(entry.get("tool_call_id", ""), index) if entry["role"] == "tool" else index)
    return found


def _check_entry(at: str, entry: Any) -> None:
    role = _object(at, entry, _ENTRY).get("role")
    if role not in ROLES:
        raise HistoryError(f"{at}/role", "must be system, user, assistant or tool")
    _texts(at, entry, "name", "agent_id", "time", "tool_call_id")
    if ("tool_call_id" in entry) != (role == "tool"):
        raise HistoryError(f"{at}/tool_call_id", "is missing" if role == "tool" else "is for the role tool")
    if "tool_calls" in entry:
        if role != "assistant":
            raise HistoryError(f"{at}/tool_calls", "is for the role assistant")
        for index, call in enumerate(_list(f"{at}/tool_calls", entry["tool_calls"])):
            _check_call(f"{at}/tool_calls/{index}", call)
    if "content" not in entry:
        raise HistoryError(f"{at}/content", "is missing")
    if not isinstance(entry["content"], str):
        for index, part in enumerate(_list(f"{at}/content", entry["content"])):
            _check_part(f"{at}/content/{index}", part)


def _check_call(at: str, call: Any) -> None:
    _object(at, call, _CALL)
    for name in sorted(_CALL - set(call)):
        raise HistoryError(f"{at}/{name}", "is missing")
    _texts(at, call, *_CALL)


def _check_part(at: str, part: Any) -> None:
    if not isinstance(part, dict):
        raise HistoryError(at, "must be an object")
    kind = part.get("type")
    match kind:
        case "text" | "data":
            _object(at, part, {"type", kind})
            if kind not in part:
                raise HistoryError(f"{at}/{kind}", "is missing")
            _texts(at, part, "text")
        case "image" | "file":
            _texts(at, _object(at, part, _MEDIA), *_MEDIA)
            if ("url" in part) == ("data" in part):
                raise HistoryError(at, "must have either url or data")
        case _:
            raise HistoryError(f"{at}/type", "must be text, image, file or data")


def _object(at: str, value: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise HistoryError(at, "must be an object")
    for name in value:
        if name not in known:
            escaped = str(name).replace("~", "~0").replace("/", "~1")
            raise HistoryError(f"{at}/{escaped}", "is no member of the shape")
    return value


def _list(at: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise HistoryError(at, "must be a list")
    return value


def _texts(at: str, value: dict[str, Any], *names: str) -> None:
    for name in names:
        if name in value and not isinstance(value[name], str):
            raise HistoryError(f"{at}/{name}", "must be a text")
