"""The contents of context sections: canonical JSON, deltas and filters, as vectors/ has them for every language."""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

from baton import v1
from baton.history import HistoryError, check_history, latest, without_tool_calls

_LOG = logging.getLogger("baton")
_NUMBER_MAX = 2**53 - 1
_LEVELS_MAX = 127
_POINTERS_MAX = 64
_POINTER_BYTES_MAX = 1024
# The bytes that a delta has besides its patch.
_DELTA_BYTES = 96
_BAD_ESCAPE = re.compile(r"~(?![01])")


class SectionError(ValueError):
    """A text is no JSON that a delta or a filter can work on, or a filter does not fit it."""


def canonical(value: Any) -> str:
    """Returns the canonical JSON of a parsed value (RFC 8785). Raises SectionError over 127 levels."""
    return _canonical(value, 0)


def apply_delta(base: str, patch: str) -> str:
    """Applies a JSON Merge Patch (RFC 7396). Returns the result as canonical JSON. Raises SectionError."""
    result = _merge(parse(base), parse(patch))
    if not isinstance(result, dict | list):
        raise SectionError("the result must be a JSON object or list")
    return canonical(result)


def delta_between(base: str, target: str) -> tuple[v1.ContextDelta, str] | None:
    """Returns the delta from a base to a target, and the target as canonical JSON.

    None: no merge patch gives the target, for a changed object of it has a member that is null; or one of the two is no
    JSON that a delta can work on.
    """
    try:
        from_value, to_value = parse(base), parse(target)
        patch, result = canonical(_patch(from_value, to_value)), canonical(to_value)
        if apply_delta(base, patch) != result:
            return None
    except SectionError:
        return None
    return v1.ContextDelta(base_sha256=sha256(base), merge_patch=patch, result_sha256=sha256(result)), result


def filtered(text: str, chosen: v1.ContextFilter, summary: str = "") -> str:
    """Returns the part of a JSON section that a filter keeps, as canonical JSON. Raises SectionError."""
    _check_filter(chosen)
    value = parse(text)
    if chosen.json_pointers:
        found = ((pointer, _resolve(value, pointer)) for pointer in chosen.json_pointers)
        return canonical({pointer: part[0] for pointer, part in found if part})
    try:
        entries = check_history(value)
    except HistoryError as error:
        raise SectionError(f"a history filter needs a baton.history of version 1: {error}") from error
    match chosen.history:
        case v1.HISTORY_FILTER_LAST:
            return canonical(latest(entries, chosen.last))
        case v1.HISTORY_FILTER_WITHOUT_TOOL_CALLS:
            kept = without_tool_calls(entries)
            return canonical(latest(kept, chosen.last or len(kept)))
        case v1.HISTORY_FILTER_SUMMARY:
            return canonical({"summary": summary, "entries": len(entries)})
    return canonical(entries)


def for_wishes(
    sections: Iterable[v1.ContextSection], accept: v1.HandoffAccept, known: Callable[[str, bytes], str | None]
) -> list[v1.ContextSection]:
    """Returns the sections that a candidate has asked for: the named ones, filtered, and as deltas where smaller.

    `known` finds the base that the candidate has by its name and digest. A section that the filter does not fit is left
    out: whole it would have what the filter is to keep back.
    """
    wanted, wishes = set(accept.wanted_sections), {wish.name: wish for wish in accept.wishes}
    if not wanted and not wishes:
        return list(sections)
    chosen = []
    for section in sections:
        wish = wishes.get(section.name)
        if wish is None and section.name not in wanted:
            continue
        if wish is not None:
            if section.schema_id and wish.schema_versions and section.schema_version not in wish.schema_versions:
                continue
            try:
                section = _for_wish(section, wish, known)  # noqa: PLW2901
            except SectionError as error:
                _LOG.warning("section %s is left out, for the filter does not fit: %s", section.name, error)
                continue
        chosen.append(section)
    return chosen


def with_deltas(
    sections: Iterable[v1.ContextSection], known: Callable[[str], str | None]
) -> tuple[list[v1.ContextSection], list[v1.ContextSection]]:
    """Returns the sections with deltas where smaller, and whole, with the contents that the deltas give."""
    short, whole = [], []
    for section in sections:
        base = known(section.name) if section.WhichOneof("content") == "json" else None
        made = None if base is None else _smaller(base, section.json)
        if made is None:
            short.append(section)
            whole.append(section)
        else:
            delta, result = made
            short.append(_with(section, delta=delta))
            whole.append(_with(section, json=result))
    return short, whole


def sha256(text: str) -> bytes:
    """Returns the digest of a text."""
    return hashlib.sha256(text.encode()).digest()


def parse(text: str) -> Any:
    """Parses JSON without duplicate names, and without numbers beyond 2^53 - 1. Raises SectionError."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise SectionError("a name occurs twice")
        return found

    def number(value: float) -> float:
        if not -_NUMBER_MAX <= value <= _NUMBER_MAX:
            raise SectionError("a number is beyond 2^53 - 1")
        return value

    def constant(name: str) -> Any:
        raise SectionError(f"{name} is no JSON")

    try:
        value = json.loads(
            text,
            object_pairs_hook=members,
            parse_int=lambda digits: number(int(digits)),
            parse_float=lambda digits: number(float(digits)),
            parse_constant=constant,
        )
        canonical(value).encode()  # fails for half of a character, and over the levels
    except (ValueError, RecursionError) as error:
        raise SectionError(str(error)) from error
    return value


def _for_wish(
    section: v1.ContextSection, wish: v1.SectionWish, known: Callable[[str, bytes], str | None]
) -> v1.ContextSection:
    if section.WhichOneof("content") != "json":
        if wish.HasField("filter"):
            raise SectionError("the section is not JSON by value")
        return section
    text = section.json
    if wish.HasField("filter"):
        text = filtered(text, wish.filter, section.summary)
        if wish.filter.json_pointers or wish.filter.history == v1.HISTORY_FILTER_SUMMARY:
            # The schema is not about a part of another shape.
            section = _with(section, json=text)
            section.schema_id = section.schema_version = ""
    base = known(section.name, wish.have_sha256) if wish.have_sha256 else None
    made = None if base is None else _smaller(base, text)
    return _with(section, json=text) if made is None else _with(section, delta=made[0])


def _smaller(base: str, text: str) -> tuple[v1.ContextDelta, str] | None:
    made = delta_between(base, text)
    return made if made and len(made[0].merge_patch.encode()) + _DELTA_BYTES < len(text.encode()) else None


def _with(section: v1.ContextSection, **content: Any) -> v1.ContextSection:
    made = v1.ContextSection(**content)
    made.name, made.summary, made.secret = section.name, section.summary, section.secret
    made.schema_id, made.schema_version = section.schema_id, section.schema_version
    return made


def _patch(base: Any, target: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(target, dict):
        return target
    patch: dict[str, Any] = {name: None for name in base if name not in target}
    for name, value in target.items():
        if name not in base:
            patch[name] = value
        elif canonical(base[name]) != canonical(value):
            patch[name] = _patch(base[name], value)
    return patch


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value)
    return merged


def _resolve(value: Any, pointer: str) -> list[Any]:
    """Returns the value at a JSON Pointer (RFC 6901), in a list; an empty list without a value."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and re.fullmatch("0|[1-9][0-9]{0,9}", name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return []
    return [value]


def _check_filter(chosen: v1.ContextFilter) -> None:
    pointers, history = list(chosen.json_pointers), chosen.history
    takes_last = history in (v1.HISTORY_FILTER_LAST, v1.HISTORY_FILTER_WITHOUT_TOOL_CALLS)
    bad = (
        history not in v1.HistoryFilter.values()
        or bool(pointers) == (history != v1.HISTORY_FILTER_UNSPECIFIED)
        or (history == v1.HISTORY_FILTER_LAST and not chosen.last)
        or (chosen.last and not takes_last)
        or len(pointers) > _POINTERS_MAX
        or len(set(pointers)) < len(pointers)
        or any(_is_bad_pointer(pointer) for pointer in pointers)
    )
    if bad:
        raise SectionError("the filter breaks a rule of its form")


def _is_bad_pointer(pointer: str) -> bool:
    is_pointer = not pointer or pointer.startswith("/")
    return not is_pointer or len(pointer.encode()) > _POINTER_BYTES_MAX or bool(_BAD_ESCAPE.search(pointer))


def _canonical(value: Any, level: int) -> str:
    if level > _LEVELS_MAX:
        raise SectionError(f"the JSON nests deeper than {_LEVELS_MAX} levels")
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list):
        return "[" + ",".join(_canonical(item, level + 1) for item in value) + "]"
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{_canonical(name, level)}:{_canonical(value[name], level + 1)}" for name in names) + "}"
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """Returns a number as ECMAScript writes it. Numbers of 2^53 and above do not occur."""
    if value == int(value):
        return str(int(value))
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        return mantissa
    if int(exponent) > -7:  # noqa: PLR2004
        sign, digits = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
        return f"{sign}0.{'0' * (-int(exponent) - 1)}{digits.replace('.', '')}"
    return f"{mantissa}e{int(exponent)}"
