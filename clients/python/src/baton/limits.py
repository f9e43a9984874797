"""The bounds of the schema. The client checks them before it sends."""

import json
import math
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

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
"""The maximum size of a result, in bytes of compact JSON."""
ANSWER_BYTES_MAX = 65_536
"""The maximum size of the data of an answer, in bytes of compact JSON."""
DEPTH_MAX = 100
"""The maximum depth of a result, in nested messages: 3 for an object and 2 for a list. 33 objects in each other fit."""
_OBJECT_DEPTH, _LIST_DEPTH = 3, 2
_INTEGER_MAX = 2.0**53


def json_struct(value: Mapping[str, Any], name: str, bytes_max: int) -> Struct:
    """Converts a JSON object to its protobuf form.

    Raises BatonError, FIELD_INVALID, for what the broker would refuse: NaN and infinities, unpaired surrogates, a
    nesting over DEPTH_MAX, a size over `bytes_max`. Raises ValueError for a value that is not JSON.
    """
    problem = _value_problem(value)
    if problem:
        raise _field_invalid(name, problem)
    made = Struct()
    made.update(value)
    bytes_count = json_bytes(value)
    if bytes_count > bytes_max:
        problem = f"has {bytes_count} bytes as JSON; the limit is {bytes_max}"
        raise _field_invalid(name, f"{problem}. Store it elsewhere, for example as a blob, and send a reference to it")
    return made


def json_bytes(value: Any) -> int:
    """Returns the size of a value as compact JSON, in bytes. Whole floats count as integers, as in protobuf."""
    size, open_values = 0, [value]
    while open_values:
        match open_values.pop():
            case str() as text:
                size += len(json.dumps(text, ensure_ascii=False).encode())
            case bool() as flag:
                size += 4 if flag else 5
            case int() | float() as number:
                size += len(_number(float(number)))
            case Mapping() as fields:
                size += 2 + max(len(fields) - 1, 0) + len(fields)
                open_values += [*fields.keys(), *fields.values()]
            case list() | tuple() as items:
                size += 2 + max(len(items) - 1, 0)
                open_values += items
            case _:
                size += 4
    return size


def _number(number: float) -> str:
    if number.is_integer() and abs(number) < _INTEGER_MAX:
        return str(int(number))
    return repr(number).replace("e+", "e").replace("e-0", "e-")


def _value_problem(value: Any) -> str:
    """Returns why the broker would refuse a JSON value; empty if it would not."""
    open_values: list[tuple[Any, str, int]] = [(value, "", 0)]
    while open_values:
        one, pointer, depth = open_values.pop()
        where = f" at {pointer}" if pointer else ""
        if depth + isinstance(one, Mapping | list | tuple) > DEPTH_MAX:
            return (
                f"is nested too deep at {pointer[:200]}: objects count {_OBJECT_DEPTH} and lists {_LIST_DEPTH}, and the"
                f" limit is {DEPTH_MAX}, as of {DEPTH_MAX // _OBJECT_DEPTH} objects in each other"
            )
        match one:
            case str() if not _is_unicode(one):
                return f"has an unpaired surrogate{where}"
            case int() | float() if not _is_finite(one):
                return f"must have finite numbers only, not {one}{where}"
            case Mapping():
                if names := [name for name in one if isinstance(name, str) and not _is_unicode(name)]:
                    return f"has an unpaired surrogate in the name {names[0]!r}{where}"
                inner = one.items()
                step = _OBJECT_DEPTH
            case list() | tuple():
                inner = enumerate(one)  # type: ignore[assignment]
                step = _LIST_DEPTH
            case _:
                continue
        for name, item in inner:
            token = str(name).replace("~", "~0").replace("/", "~1")
            open_values.append((item, f"{pointer}/{token}", depth + step))
    return ""


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


def _field_invalid(name: str, problem: str) -> BatonError:
    violation = FieldViolation(f"envelope.payload.{name}", problem)
    return _refused(f"{violation.field} {problem}", "FIELD_INVALID", [violation])
