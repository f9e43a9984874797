"""Construction and parsing of envelopes and their payloads."""

import json
import secrets
import time
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from google.protobuf.message import DecodeError, Message

from baton import v1
from baton.errors import VerificationError
from baton.traces import current_trace

_TYPE_URL = "type.googleapis.com/baton.v1."
_MESSAGE_TYPES: Mapping[str, Any] = {
    "".join(word.capitalize() for word in name.removeprefix("MESSAGE_TYPE_").split("_")): v1.MessageType.Value(name)
    for name in v1.MessageType.keys()  # noqa: SIM118
    if name != "MESSAGE_TYPE_UNSPECIFIED"
}
# A checkpoint has the payload of a context, which by itself is that of a handoff.
_PAYLOADS = {
    number: v1.TaskContextTransfer if name == "ContextCheckpoint" else getattr(v1, name)
    for name, number in _MESSAGE_TYPES.items()
}


def new_message_id() -> str:
    """Returns a new UUID of version 7: later ids sort after earlier ones."""
    milliseconds = time.time_ns() // 1_000_000
    number = milliseconds << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=number))


def make_envelope(
    payload: Message,
    *,
    sender_id: str,
    receiver_id: str,
    task_id: str = "",
    epoch: int = 0,
    correlation_id: str = "",
    expires_at: datetime | None = None,
) -> v1.Envelope:
    """Returns an unsigned envelope around a payload: with a new message_id, the time and the present trace context.

    `epoch` is the task's fencing token as known to the sender, 1 for a new task, 0 without a task. `expires_at` needs a
    time zone. Raises ValueError if `payload` is not a payload of baton.v1.
    """
    name = payload.DESCRIPTOR.name
    if payload.DESCRIPTOR.full_name != f"baton.v1.{name}" or name not in _MESSAGE_TYPES:
        raise ValueError(f"{payload.DESCRIPTOR.full_name} is not a payload")
    envelope = v1.Envelope(
        message_id=new_message_id(),
        sender_id=sender_id,
        receiver_id=receiver_id,
        message_type=_MESSAGE_TYPES[name],
        correlation_id=correlation_id,
        task_id=task_id,
        epoch=epoch,
    )
    envelope.timestamp.GetCurrentTime()
    envelope.payload.type_url = _TYPE_URL + name
    envelope.payload.value = payload.SerializeToString()
    trace = current_trace()
    if trace is not None:
        envelope.trace_context.CopyFrom(trace)
    if expires_at is not None:
        if expires_at.tzinfo is None:
            raise ValueError("expires_at needs a time zone")
        envelope.expires_at.FromDatetime(expires_at)
    return envelope


def payload_of(envelope: v1.Envelope) -> Message:
    """Returns the payload as a message of baton.v1.

    Raises VerificationError: PAYLOAD_TYPE_MISMATCH if it differs from message_type, MALFORMED if it does not parse.
    """
    payload_class = _PAYLOADS.get(envelope.message_type)
    expected = None if payload_class is None else _TYPE_URL + payload_class.DESCRIPTOR.name
    if payload_class is None or envelope.payload.type_url != expected:
        problem = f"message_type {envelope.message_type} with a payload of type {envelope.payload.type_url!r}"
        raise VerificationError("PAYLOAD_TYPE_MISMATCH", problem)
    try:
        payload: Message = payload_class.FromString(envelope.payload.value)
    except DecodeError as error:
        raise VerificationError("MALFORMED", f"the payload cannot be parsed: {error}") from error
    return payload


def mandate_of(envelope: v1.Envelope) -> v1.TaskRequest:
    """Returns the request for offers in the envelope that a mandate is. Raises VerificationError."""
    request = payload_of(envelope)
    if not isinstance(request, v1.TaskRequest) or not request.HasField("handoff"):
        raise VerificationError("PAYLOAD_TYPE_MISMATCH", "the message under a mandate is no request with terms")
    return request


def handoff_id_of(envelope: v1.Envelope) -> str:
    """Returns the handoff of an envelope: the message_id of a request, the correlation_id of any other message."""
    if envelope.message_type == v1.MESSAGE_TYPE_HANDOFF_REQUEST:
        return envelope.message_id
    return envelope.correlation_id


def json_section(name: str, value: Mapping[str, Any] | list[Any]) -> v1.ContextSection:
    """Returns a context section with a JSON object or list."""
    return v1.ContextSection(name=name, json=json.dumps(value, ensure_ascii=False, allow_nan=False))


def bytes_section(name: str, data: bytes, media_type: str) -> v1.ContextSection:
    """Returns a context section with bytes of the given media type."""
    return v1.ContextSection(name=name, bytes=v1.ContextBytes(media_type=media_type, data=data))
