from baton._gen.baton.v1 import envelope_pb2 as _envelope_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeliveryEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELIVERY_END_UNSPECIFIED: _ClassVar[DeliveryEnd]
    DELIVERY_END_NO_ACK: _ClassVar[DeliveryEnd]
    DELIVERY_END_FAILURE: _ClassVar[DeliveryEnd]
    DELIVERY_END_POISON: _ClassVar[DeliveryEnd]
    DELIVERY_END_SHUTDOWN: _ClassVar[DeliveryEnd]
    DELIVERY_END_SESSION_ENDED: _ClassVar[DeliveryEnd]
    DELIVERY_END_REJECTED: _ClassVar[DeliveryEnd]
    DELIVERY_END_UNDECIDED: _ClassVar[DeliveryEnd]
    DELIVERY_END_GONE: _ClassVar[DeliveryEnd]
    DELIVERY_END_UNDELIVERABLE: _ClassVar[DeliveryEnd]

class DeadLetterReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEAD_LETTER_REASON_UNSPECIFIED: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_DELIVERY_ATTEMPTS_EXHAUSTED: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_POISON: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_EXPIRED: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_ACCEPT_TIMEOUT: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_NO_CANDIDATE: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_MALFORMED: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_SCHEMA_INVALID: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_RECEIVER_GONE: _ClassVar[DeadLetterReason]

class DeadLetterState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEAD_LETTER_STATE_UNSPECIFIED: _ClassVar[DeadLetterState]
    DEAD_LETTER_STATE_PARKED: _ClassVar[DeadLetterState]
    DEAD_LETTER_STATE_REDRIVEN: _ClassVar[DeadLetterState]
    DEAD_LETTER_STATE_DISCARDED: _ClassVar[DeadLetterState]
DELIVERY_END_UNSPECIFIED: DeliveryEnd
DELIVERY_END_NO_ACK: DeliveryEnd
DELIVERY_END_FAILURE: DeliveryEnd
DELIVERY_END_POISON: DeliveryEnd
DELIVERY_END_SHUTDOWN: DeliveryEnd
DELIVERY_END_SESSION_ENDED: DeliveryEnd
DELIVERY_END_REJECTED: DeliveryEnd
DELIVERY_END_UNDECIDED: DeliveryEnd
DELIVERY_END_GONE: DeliveryEnd
DELIVERY_END_UNDELIVERABLE: DeliveryEnd
DEAD_LETTER_REASON_UNSPECIFIED: DeadLetterReason
DEAD_LETTER_REASON_DELIVERY_ATTEMPTS_EXHAUSTED: DeadLetterReason
DEAD_LETTER_REASON_POISON: DeadLetterReason
DEAD_LETTER_REASON_EXPIRED: DeadLetterReason
DEAD_LETTER_REASON_ACCEPT_TIMEOUT: DeadLetterReason
DEAD_LETTER_REASON_NO_CANDIDATE: DeadLetterReason
DEAD_LETTER_REASON_MALFORMED: DeadLetterReason
DEAD_LETTER_REASON_SCHEMA_INVALID: DeadLetterReason
DEAD_LETTER_REASON_RECEIVER_GONE: DeadLetterReason
DEAD_LETTER_STATE_UNSPECIFIED: DeadLetterState
DEAD_LETTER_STATE_PARKED: DeadLetterState
DEAD_LETTER_STATE_REDRIVEN: DeadLetterState
DEAD_LETTER_STATE_DISCARDED: DeadLetterState

class DeadLetter(_message.Message):
    __slots__ = ("dead_letter_id", "reason", "reason_text", "state", "park_time", "agent_id", "message_id", "sender_id", "message_type", "task_id", "handoff_id", "sequence", "traceparent", "attempts", "handout_count", "failure_count", "settle_time", "settle_text", "redriven_to_agent_id", "redriven_handoff_id", "envelope_bytes", "context_digest")
    DEAD_LETTER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PARK_TIME_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    HANDOUT_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SETTLE_TIME_FIELD_NUMBER: _ClassVar[int]
    SETTLE_TEXT_FIELD_NUMBER: _ClassVar[int]
    REDRIVEN_TO_AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    REDRIVEN_HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    dead_letter_id: str
    reason: DeadLetterReason
    reason_text: str
    state: DeadLetterState
    park_time: _timestamp_pb2.Timestamp
    agent_id: str
    message_id: str
    sender_id: str
    message_type: _envelope_pb2.MessageType
    task_id: str
    handoff_id: str
    sequence: int
    traceparent: str
    attempts: _containers.RepeatedCompositeFieldContainer[DeliveryAttempt]
    handout_count: int
    failure_count: int
    settle_time: _timestamp_pb2.Timestamp
    settle_text: str
    redriven_to_agent_id: str
    redriven_handoff_id: str
    envelope_bytes: bytes
    context_digest: bytes
    def __init__(self, dead_letter_id: _Optional[str] = ..., reason: _Optional[_Union[DeadLetterReason, str]] = ..., reason_text: _Optional[str] = ..., state: _Optional[_Union[DeadLetterState, str]] = ..., park_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., agent_id: _Optional[str] = ..., message_id: _Optional[str] = ..., sender_id: _Optional[str] = ..., message_type: _Optional[_Union[_envelope_pb2.MessageType, str]] = ..., task_id: _Optional[str] = ..., handoff_id: _Optional[str] = ..., sequence: _Optional[int] = ..., traceparent: _Optional[str] = ..., attempts: _Optional[_Iterable[_Union[DeliveryAttempt, _Mapping]]] = ..., handout_count: _Optional[int] = ..., failure_count: _Optional[int] = ..., settle_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., settle_text: _Optional[str] = ..., redriven_to_agent_id: _Optional[str] = ..., redriven_handoff_id: _Optional[str] = ..., envelope_bytes: _Optional[bytes] = ..., context_digest: _Optional[bytes] = ...) -> None: ...

class DeliveryAttempt(_message.Message):
    __slots__ = ("handout_time", "end_time", "end", "reason_text", "agent_id")
    HANDOUT_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    handout_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    end: DeliveryEnd
    reason_text: str
    agent_id: str
    def __init__(self, handout_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end: _Optional[_Union[DeliveryEnd, str]] = ..., reason_text: _Optional[str] = ..., agent_id: _Optional[str] = ...) -> None: ...
