"""The bounds of the schema. The client checks them before it sends."""

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
