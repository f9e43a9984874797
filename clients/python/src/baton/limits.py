"""The bounds of the schema. The client checks them before it sends."""

import json
import math
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import Message

from baton import v1
from baton.errors import BatonError, FieldViolation

PAYLOAD_BYTES_MAX = 1024 * 1024
"""The maximum size of a payload's value, in bytes."""
APPEND_BYTES_MAX = PAYLOAD_BYTES_MAX + 4096
"""The maximum size of the payload of an append to a workspace, in bytes: an entry of 1 MiB, and its topic."""
FRAME_BYTES_MAX = 4 * 1024 * 1024
"""The maximum size of a message on a connection, in bytes. A longer message ends its session."""
NAME_LENGTH_MAX = 128
"""The maximum length of an agent, task or key id, and of NAME in `type:NAME` and `all:NAME`, in characters."""
UUID_LENGTH = 36
_TRACEPARENT_LENGTH_MAX = 55
_TRACESTATE_LENGTH_MAX = 512


def check_envelope(envelope: v1.Envelope) -> None:
    """Raises the BatonError of the broker: FIELD_INVALID for an overlong id, or PAYLOAD_TOO_LARGE."""
    kind, colon, name = envelope.receiver_id.partition(":")
    is_typed = colon and kind in ("type", "all")
    bounds = (
        ("message_id", envelope.message_id, UUID_LENGTH),
        ("sender_id", envelope.sender_id, NAME_LENGTH_MAX),
        ("receiver_id", name if is_typed else envelope.receiver_id, NAME_LENGTH_MAX),
        ("correlation_id", envelope.correlation_id, UUID_LENGTH),
        ("task_id", envelope.task_id, NAME_LENGTH_MAX),
        ("key_id", envelope.key_id, NAME_LENGTH_MAX),
        ("trace_context.traceparent", envelope.trace_context.traceparent, _TRACEPARENT_LENGTH_MAX),
        ("trace_context.tracestate", envelope.trace_context.tracestate, _TRACESTATE_LENGTH_MAX),
    )
    violations = [
        FieldViolation(f"envelope.{field}", f"must have at most {most} characters")
        for field, text, most in bounds
        if len(text) > most
    ]
    if violations:
        problem = "; ".join(f"{one.field} {one.description}" for one in violations)
        raise _refused(problem, "FIELD_INVALID", violations)
    is_append = envelope.message_type == v1.MESSAGE_TYPE_WORKSPACE_APPEND
    check_payload(len(envelope.payload.value), APPEND_BYTES_MAX if is_append else PAYLOAD_BYTES_MAX)


def check_payload(bytes_count: int, bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
    """Raises BatonError, PAYLOAD_TOO_LARGE."""
    if bytes_count > bytes_max:
        problem = f"the payload has {bytes_count} bytes; the limit is {bytes_max}"
        raise _refused(problem, "PAYLOAD_TOO_LARGE")


def check_frame(frame: Message) -> None:
    """Raises BatonError with OUT_OF_RANGE and no reason: the transport's answer to an oversized frame."""
    if (bytes_count := frame.ByteSize()) > FRAME_BYTES_MAX:
        problem = f"the frame has {bytes_count} bytes; the limit is {FRAME_BYTES_MAX}"
        raise BatonError(grpc.StatusCode.OUT_OF_RANGE, problem)


def _refused(problem: str, reason: str, violations: list[FieldViolation] | None = None) -> BatonError:
    code = grpc.StatusCode.INVALID_ARGUMENT
    return BatonError(code, problem, reason=reason, field_violations=violations or ())


DETAILS_BYTES_MAX = 16_384
"""The maximum size of the details of a status update, in bytes."""
RESULT_BYTES_MAX = 262_144
"""The maximum size of a result, in bytes of JSON text."""
ANSWER_BYTES_MAX = 65_536
"""The maximum size of the data of an answer, in bytes of JSON text."""
DEPTH_MAX = 128
"""The maximum number of objects and lists that are in each other."""
_POINTER_SHOWN_MAX = 200


def json_text(value: Mapping[str, Any], name: str = "value", bytes_max: int = PAYLOAD_BYTES_MAX) -> str:
    """Returns the JSON text of an object: a result, the data of an answer, an input, a section, a setting, a parameter.

    It arrives as it was sent: integers of any size, 42 and 42.0, null. Raises BatonError, FIELD_INVALID, with the
    pointer of what is wrong: NaN and infinities, unpaired surrogates, names that are no strings, values that JSON does
    not have, a nesting over DEPTH_MAX, a size over `bytes_max`.
    """
    if not isinstance(value, Mapping):
        raise _field_invalid(name, f"must be a JSON object, not a {type(value).__name__}")
    problem = _value_problem(value)
    if problem:
        raise _field_invalid(name, problem)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=dict)
    bytes_count = len(text.encode())
    if bytes_count > bytes_max:
        problem = f"has {bytes_count} bytes as JSON; the limit is {bytes_max}"
        raise _field_invalid(name, f"{problem}. Store it elsewhere, for example as a blob, and send a reference to it")
    return text


def json_object(text: str) -> dict[str, Any]:
    """Parses the JSON text of a message; an empty text is an empty object."""
    value: dict[str, Any] = json.loads(text or "{}")
    return value


def _value_problem(value: Any) -> str:
    """Returns why a value is no JSON that the broker takes; empty if it is."""
    open_values: list[tuple[Any, str, int]] = [(value, "", 0)]
    while open_values:
        one, pointer, depth = open_values.pop()
        if isinstance(one, Mapping):
            inner = list(one.items())
            problem = next((found for name in one if (found := _name_problem(name))), "")
        elif isinstance(one, list | tuple):
            inner, problem = list(enumerate(one)), ""
        else:
            inner, problem = [], _scalar_problem(one)
        if depth == DEPTH_MAX and isinstance(one, Mapping | list | tuple):
            problem = f"is nested too deep: the limit is {DEPTH_MAX} objects and lists in each other,"
        if problem:
            return f"{problem} at {pointer[:_POINTER_SHOWN_MAX]}" if pointer else problem
        for name, item in inner:
            token = str(name).replace("~", "~0").replace("/", "~1")
            open_values.append((item, f"{pointer}/{token}", depth + 1))
    return ""


def _name_problem(name: Any) -> str:
    if not isinstance(name, str):
        return f"must have strings as names, not {name!r},"
    return "" if _is_unicode(name) else f"has an unpaired surrogate in the name {name!r}"


def _scalar_problem(value: Any) -> str:
    match value:
        case str():
            return "" if _is_unicode(value) else "has an unpaired surrogate"
        case int() | float():
            return "" if _is_finite(value) else f"must have finite numbers only, not {_number(value)}"
        case None:
            return ""
    return f"must be JSON, which has no {type(value).__name__}"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond the floats
        return False


def _number(number: float) -> str:
    return str(number) if isinstance(number, float) else "an integer beyond 1.8e308"


def _field_invalid(name: str, problem: str) -> BatonError:
    violation = FieldViolation(f"envelope.payload.{name}", problem)
    return _refused(f"{violation.field} {problem}", "FIELD_INVALID", [violation])
