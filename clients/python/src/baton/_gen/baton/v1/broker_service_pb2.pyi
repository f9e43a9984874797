from baton._gen.baton.v1 import agent_pb2 as _agent_pb2
from baton._gen.baton.v1 import envelope_pb2 as _envelope_pb2
from baton._gen.baton.v1 import handoff_pb2 as _handoff_pb2
from baton._gen.baton.v1 import task_pb2 as _task_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NackCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NACK_CAUSE_UNSPECIFIED: _ClassVar[NackCause]
    NACK_CAUSE_POISON: _ClassVar[NackCause]
    NACK_CAUSE_FAILURE: _ClassVar[NackCause]
    NACK_CAUSE_SHUTDOWN: _ClassVar[NackCause]
NACK_CAUSE_UNSPECIFIED: NackCause
NACK_CAUSE_POISON: NackCause
NACK_CAUSE_FAILURE: NackCause
NACK_CAUSE_SHUTDOWN: NackCause

class ConnectRequest(_message.Message):
    __slots__ = ("request_id", "envelope", "acknowledgement", "credit", "heartbeat", "hello")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    envelope: _envelope_pb2.Envelope
    acknowledgement: Acknowledgement
    credit: Credit
    heartbeat: _agent_pb2.Heartbeat
    hello: Hello
    def __init__(self, request_id: _Optional[int] = ..., envelope: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ..., acknowledgement: _Optional[_Union[Acknowledgement, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., heartbeat: _Optional[_Union[_agent_pb2.Heartbeat, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("instance_id", "tells_work")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    TELLS_WORK_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    tells_work: bool
    def __init__(self, instance_id: _Optional[str] = ..., tells_work: bool = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("request_id", "welcome", "receipt", "delivery", "acknowledged", "credited", "error", "go_away")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    CREDITED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    welcome: Welcome
    receipt: Receipt
    delivery: Delivery
    acknowledged: Acknowledged
    credited: Credited
    error: _status_pb2.Status
    go_away: GoAway
    def __init__(self, request_id: _Optional[int] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ..., acknowledged: _Optional[_Union[Acknowledged, _Mapping]] = ..., credited: _Optional[_Union[Credited, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("session_id", "agent_id", "broker_id", "broker_key", "ack_wait", "heartbeat_interval", "presence_lease", "payload_bytes_max", "frame_bytes_max")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_KEY_FIELD_NUMBER: _ClassVar[int]
    ACK_WAIT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_LEASE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    agent_id: str
    broker_id: str
    broker_key: _agent_pb2.AgentKey
    ack_wait: _duration_pb2.Duration
    heartbeat_interval: _duration_pb2.Duration
    presence_lease: _duration_pb2.Duration
    payload_bytes_max: int
    frame_bytes_max: int
    def __init__(self, session_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., broker_id: _Optional[str] = ..., broker_key: _Optional[_Union[_agent_pb2.AgentKey, _Mapping]] = ..., ack_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., heartbeat_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., presence_lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., payload_bytes_max: _Optional[int] = ..., frame_bytes_max: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("max_outstanding",)
    MAX_OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    max_outstanding: int
    def __init__(self, max_outstanding: _Optional[int] = ...) -> None: ...

class Credited(_message.Message):
    __slots__ = ("max_outstanding",)
    MAX_OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    max_outstanding: int
    def __init__(self, max_outstanding: _Optional[int] = ...) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("reconnect_after", "reason_text")
    RECONNECT_AFTER_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    reconnect_after: _duration_pb2.Duration
    reason_text: str
    def __init__(self, reconnect_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., reason_text: _Optional[str] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("delivery_id", "envelope", "attempt", "sequence", "ack_deadline", "handoff_id", "trace_context")
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ACK_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    delivery_id: str
    envelope: _envelope_pb2.Envelope
    attempt: int
    sequence: int
    ack_deadline: _timestamp_pb2.Timestamp
    handoff_id: str
    trace_context: _envelope_pb2.TraceContext
    def __init__(self, delivery_id: _Optional[str] = ..., envelope: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ..., attempt: _Optional[int] = ..., sequence: _Optional[int] = ..., ack_deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., handoff_id: _Optional[str] = ..., trace_context: _Optional[_Union[_envelope_pb2.TraceContext, _Mapping]] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("delivery_id", "ack", "nack", "extend")
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    delivery_id: str
    ack: Ack
    nack: Nack
    extend: Extend
    def __init__(self, delivery_id: _Optional[str] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., nack: _Optional[_Union[Nack, _Mapping]] = ..., extend: _Optional[_Union[Extend, _Mapping]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Nack(_message.Message):
    __slots__ = ("cause", "retry_after", "reason_text")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    cause: NackCause
    retry_after: _duration_pb2.Duration
    reason_text: str
    def __init__(self, cause: _Optional[_Union[NackCause, str]] = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., reason_text: _Optional[str] = ...) -> None: ...

class Extend(_message.Message):
    __slots__ = ("extension",)
    EXTENSION_FIELD_NUMBER: _ClassVar[int]
    extension: _duration_pb2.Duration
    def __init__(self, extension: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ("delivery_id", "ack_deadline")
    DELIVERY_ID_FIELD_NUMBER: _ClassVar[int]
    ACK_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    delivery_id: str
    ack_deadline: _timestamp_pb2.Timestamp
    def __init__(self, delivery_id: _Optional[str] = ..., ack_deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("message_id", "sequence", "accept_time", "task_id", "task_status", "owner_id", "epoch", "handoff_id", "handoff_state", "custody_hash", "key_id", "signature", "resource", "resource_sequence")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_TIME_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_STATUS_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_STATE_FIELD_NUMBER: _ClassVar[int]
    CUSTODY_HASH_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    sequence: int
    accept_time: _timestamp_pb2.Timestamp
    task_id: str
    task_status: _task_pb2.TaskStatus
    owner_id: str
    epoch: int
    handoff_id: str
    handoff_state: _handoff_pb2.HandoffState
    custody_hash: bytes
    key_id: str
    signature: bytes
    resource: str
    resource_sequence: int
    def __init__(self, message_id: _Optional[str] = ..., sequence: _Optional[int] = ..., accept_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., task_id: _Optional[str] = ..., task_status: _Optional[_Union[_task_pb2.TaskStatus, str]] = ..., owner_id: _Optional[str] = ..., epoch: _Optional[int] = ..., handoff_id: _Optional[str] = ..., handoff_state: _Optional[_Union[_handoff_pb2.HandoffState, str]] = ..., custody_hash: _Optional[bytes] = ..., key_id: _Optional[str] = ..., signature: _Optional[bytes] = ..., resource: _Optional[str] = ..., resource_sequence: _Optional[int] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("envelope", "instance_id")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    envelope: _envelope_pb2.Envelope
    instance_id: str
    def __init__(self, envelope: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ..., instance_id: _Optional[str] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("receipt",)
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    receipt: Receipt
    def __init__(self, receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("max_outstanding", "max_deliveries", "instance_id", "peek")
    MAX_OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PEEK_FIELD_NUMBER: _ClassVar[int]
    max_outstanding: int
    max_deliveries: int
    instance_id: str
    peek: bool
    def __init__(self, max_outstanding: _Optional[int] = ..., max_deliveries: _Optional[int] = ..., instance_id: _Optional[str] = ..., peek: bool = ...) -> None: ...

class ReceiveResponse(_message.Message):
    __slots__ = ("delivery",)
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    delivery: Delivery
    def __init__(self, delivery: _Optional[_Union[Delivery, _Mapping]] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("acknowledgement",)
    ACKNOWLEDGEMENT_FIELD_NUMBER: _ClassVar[int]
    acknowledgement: Acknowledgement
    def __init__(self, acknowledgement: _Optional[_Union[Acknowledgement, _Mapping]] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ("acknowledged",)
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    acknowledged: Acknowledged
    def __init__(self, acknowledged: _Optional[_Union[Acknowledged, _Mapping]] = ...) -> None: ...
