from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MessageType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGE_TYPE_UNSPECIFIED: _ClassVar[MessageType]
    MESSAGE_TYPE_HANDOFF_REQUEST: _ClassVar[MessageType]
    MESSAGE_TYPE_HANDOFF_ACCEPT: _ClassVar[MessageType]
    MESSAGE_TYPE_HANDOFF_REJECT: _ClassVar[MessageType]
    MESSAGE_TYPE_HANDOFF_CANCEL: _ClassVar[MessageType]
    MESSAGE_TYPE_TASK_CONTEXT_TRANSFER: _ClassVar[MessageType]
    MESSAGE_TYPE_HANDOFF_COMPLETE: _ClassVar[MessageType]
    MESSAGE_TYPE_TASK_STATUS_UPDATE: _ClassVar[MessageType]
    MESSAGE_TYPE_ERROR_NOTIFICATION: _ClassVar[MessageType]
    MESSAGE_TYPE_HEARTBEAT: _ClassVar[MessageType]
    MESSAGE_TYPE_TASK_REQUEST: _ClassVar[MessageType]
    MESSAGE_TYPE_TASK_OFFER: _ClassVar[MessageType]
    MESSAGE_TYPE_TASK_ACCEPT: _ClassVar[MessageType]
    MESSAGE_TYPE_DELEGATION: _ClassVar[MessageType]
    MESSAGE_TYPE_INFO: _ClassVar[MessageType]
    MESSAGE_TYPE_CONTEXT_CHECKPOINT: _ClassVar[MessageType]
    MESSAGE_TYPE_WORKSPACE_APPEND: _ClassVar[MessageType]
    MESSAGE_TYPE_TASK_DECLINE: _ClassVar[MessageType]
    MESSAGE_TYPE_NEGOTIATION_CLOSED: _ClassVar[MessageType]
    MESSAGE_TYPE_PLAN_SUBMISSION: _ClassVar[MessageType]
    MESSAGE_TYPE_TASK_RECALL: _ClassVar[MessageType]
    MESSAGE_TYPE_TASK_INPUT: _ClassVar[MessageType]
    MESSAGE_TYPE_TASK_CREATE: _ClassVar[MessageType]
MESSAGE_TYPE_UNSPECIFIED: MessageType
MESSAGE_TYPE_HANDOFF_REQUEST: MessageType
MESSAGE_TYPE_HANDOFF_ACCEPT: MessageType
MESSAGE_TYPE_HANDOFF_REJECT: MessageType
MESSAGE_TYPE_HANDOFF_CANCEL: MessageType
MESSAGE_TYPE_TASK_CONTEXT_TRANSFER: MessageType
MESSAGE_TYPE_HANDOFF_COMPLETE: MessageType
MESSAGE_TYPE_TASK_STATUS_UPDATE: MessageType
MESSAGE_TYPE_ERROR_NOTIFICATION: MessageType
MESSAGE_TYPE_HEARTBEAT: MessageType
MESSAGE_TYPE_TASK_REQUEST: MessageType
MESSAGE_TYPE_TASK_OFFER: MessageType
MESSAGE_TYPE_TASK_ACCEPT: MessageType
MESSAGE_TYPE_DELEGATION: MessageType
MESSAGE_TYPE_INFO: MessageType
MESSAGE_TYPE_CONTEXT_CHECKPOINT: MessageType
MESSAGE_TYPE_WORKSPACE_APPEND: MessageType
MESSAGE_TYPE_TASK_DECLINE: MessageType
MESSAGE_TYPE_NEGOTIATION_CLOSED: MessageType
MESSAGE_TYPE_PLAN_SUBMISSION: MessageType
MESSAGE_TYPE_TASK_RECALL: MessageType
MESSAGE_TYPE_TASK_INPUT: MessageType
MESSAGE_TYPE_TASK_CREATE: MessageType

class Envelope(_message.Message):
    __slots__ = ("message_id", "sender_id", "receiver_id", "timestamp", "message_type", "correlation_id", "task_id", "epoch", "expires_at", "trace_context", "payload", "key_id", "signature", "signature_version")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_VERSION_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    sender_id: str
    receiver_id: str
    timestamp: _timestamp_pb2.Timestamp
    message_type: MessageType
    correlation_id: str
    task_id: str
    epoch: int
    expires_at: _timestamp_pb2.Timestamp
    trace_context: TraceContext
    payload: _any_pb2.Any
    key_id: str
    signature: bytes
    signature_version: int
    def __init__(self, message_id: _Optional[str] = ..., sender_id: _Optional[str] = ..., receiver_id: _Optional[str] = ..., timestamp: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., message_type: _Optional[_Union[MessageType, str]] = ..., correlation_id: _Optional[str] = ..., task_id: _Optional[str] = ..., epoch: _Optional[int] = ..., expires_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., trace_context: _Optional[_Union[TraceContext, _Mapping]] = ..., payload: _Optional[_Union[_any_pb2.Any, _Mapping]] = ..., key_id: _Optional[str] = ..., signature: _Optional[bytes] = ..., signature_version: _Optional[int] = ...) -> None: ...

class TraceContext(_message.Message):
    __slots__ = ("traceparent", "tracestate")
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    traceparent: str
    tracestate: str
    def __init__(self, traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...
