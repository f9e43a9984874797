from baton._gen.baton.v1 import broker_service_pb2 as _broker_service_pb2
from baton._gen.baton.v1 import envelope_pb2 as _envelope_pb2
from baton._gen.baton.v1 import error_pb2 as _error_pb2
from baton._gen.baton.v1 import handoff_pb2 as _handoff_pb2
from baton._gen.baton.v1 import task_pb2 as _task_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HandoffMail(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HANDOFF_MAIL_UNSPECIFIED: _ClassVar[HandoffMail]
    HANDOFF_MAIL_REQUEST: _ClassVar[HandoffMail]
    HANDOFF_MAIL_CONTEXT: _ClassVar[HandoffMail]
    HANDOFF_MAIL_COMPLETION: _ClassVar[HandoffMail]
HANDOFF_MAIL_UNSPECIFIED: HandoffMail
HANDOFF_MAIL_REQUEST: HandoffMail
HANDOFF_MAIL_CONTEXT: HandoffMail
HANDOFF_MAIL_COMPLETION: HandoffMail

class CustodyLogEntry(_message.Message):
    __slots__ = ("entry", "entry_bytes", "custody_hash", "receipt", "envelope")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CUSTODY_HASH_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    entry: CustodyEntry
    entry_bytes: bytes
    custody_hash: bytes
    receipt: _broker_service_pb2.Receipt
    envelope: _envelope_pb2.Envelope
    def __init__(self, entry: _Optional[_Union[CustodyEntry, _Mapping]] = ..., entry_bytes: _Optional[bytes] = ..., custody_hash: _Optional[bytes] = ..., receipt: _Optional[_Union[_broker_service_pb2.Receipt, _Mapping]] = ..., envelope: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ...) -> None: ...

class CustodyEntry(_message.Message):
    __slots__ = ("number", "entry_time", "accepted", "refused", "acked", "given_up", "time", "gone", "redriven", "reassigned", "mail_omitted", "awarded", "cancelled", "silent", "looked", "owner_id", "epoch", "task_status", "handoff_id", "handoff_state", "absent_agent_ids", "full_agent_ids")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_TIME_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    REDRIVEN_FIELD_NUMBER: _ClassVar[int]
    REASSIGNED_FIELD_NUMBER: _ClassVar[int]
    MAIL_OMITTED_FIELD_NUMBER: _ClassVar[int]
    AWARDED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    LOOKED_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TASK_STATUS_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_STATE_FIELD_NUMBER: _ClassVar[int]
    ABSENT_AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    FULL_AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    entry_time: _timestamp_pb2.Timestamp
    accepted: CustodyEnvelope
    refused: CustodyEnvelope
    acked: CustodyDelivery
    given_up: CustodyDelivery
    time: CustodyTime
    gone: CustodyAbsence
    redriven: CustodyRedrive
    reassigned: CustodyReassignment
    mail_omitted: CustodyMailOmitted
    awarded: CustodyAward
    cancelled: CustodyCancellation
    silent: CustodySilence
    looked: CustodyLook
    owner_id: str
    epoch: int
    task_status: _task_pb2.TaskStatus
    handoff_id: str
    handoff_state: _handoff_pb2.HandoffState
    absent_agent_ids: _containers.RepeatedScalarFieldContainer[str]
    full_agent_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., entry_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., accepted: _Optional[_Union[CustodyEnvelope, _Mapping]] = ..., refused: _Optional[_Union[CustodyEnvelope, _Mapping]] = ..., acked: _Optional[_Union[CustodyDelivery, _Mapping]] = ..., given_up: _Optional[_Union[CustodyDelivery, _Mapping]] = ..., time: _Optional[_Union[CustodyTime, _Mapping]] = ..., gone: _Optional[_Union[CustodyAbsence, _Mapping]] = ..., redriven: _Optional[_Union[CustodyRedrive, _Mapping]] = ..., reassigned: _Optional[_Union[CustodyReassignment, _Mapping]] = ..., mail_omitted: _Optional[_Union[CustodyMailOmitted, _Mapping]] = ..., awarded: _Optional[_Union[CustodyAward, _Mapping]] = ..., cancelled: _Optional[_Union[CustodyCancellation, _Mapping]] = ..., silent: _Optional[_Union[CustodySilence, _Mapping]] = ..., looked: _Optional[_Union[CustodyLook, _Mapping]] = ..., owner_id: _Optional[str] = ..., epoch: _Optional[int] = ..., task_status: _Optional[_Union[_task_pb2.TaskStatus, str]] = ..., handoff_id: _Optional[str] = ..., handoff_state: _Optional[_Union[_handoff_pb2.HandoffState, str]] = ..., absent_agent_ids: _Optional[_Iterable[str]] = ..., full_agent_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CustodyLook(_message.Message):
    __slots__ = ("agent_ids",)
    AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    agent_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, agent_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CustodyEnvelope(_message.Message):
    __slots__ = ("message_id", "sequence", "content_digest", "message_type", "sender_id", "resolved_agent_ids", "error_code", "terms", "passed_over", "context_digest")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    sequence: int
    content_digest: bytes
    message_type: _envelope_pb2.MessageType
    sender_id: str
    resolved_agent_ids: _containers.RepeatedScalarFieldContainer[str]
    error_code: _error_pb2.ErrorCode
    terms: CustodyTerms
    passed_over: _containers.RepeatedCompositeFieldContainer[CustodyPassedOver]
    context_digest: bytes
    def __init__(self, message_id: _Optional[str] = ..., sequence: _Optional[int] = ..., content_digest: _Optional[bytes] = ..., message_type: _Optional[_Union[_envelope_pb2.MessageType, str]] = ..., sender_id: _Optional[str] = ..., resolved_agent_ids: _Optional[_Iterable[str]] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ..., terms: _Optional[_Union[CustodyTerms, _Mapping]] = ..., passed_over: _Optional[_Iterable[_Union[CustodyPassedOver, _Mapping]]] = ..., context_digest: _Optional[bytes] = ...) -> None: ...

class CustodyPassedOver(_message.Message):
    __slots__ = ("agent_id", "reason_text")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    reason_text: str
    def __init__(self, agent_id: _Optional[str] = ..., reason_text: _Optional[str] = ...) -> None: ...

class CustodyTerms(_message.Message):
    __slots__ = ("timeouts", "loop_limits")
    TIMEOUTS_FIELD_NUMBER: _ClassVar[int]
    LOOP_LIMITS_FIELD_NUMBER: _ClassVar[int]
    timeouts: _handoff_pb2.HandoffTimeouts
    loop_limits: _handoff_pb2.LoopLimits
    def __init__(self, timeouts: _Optional[_Union[_handoff_pb2.HandoffTimeouts, _Mapping]] = ..., loop_limits: _Optional[_Union[_handoff_pb2.LoopLimits, _Mapping]] = ...) -> None: ...

class CustodyDelivery(_message.Message):
    __slots__ = ("agent_id", "mail", "decides_within")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    MAIL_FIELD_NUMBER: _ClassVar[int]
    DECIDES_WITHIN_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    mail: HandoffMail
    decides_within: _duration_pb2.Duration
    def __init__(self, agent_id: _Optional[str] = ..., mail: _Optional[_Union[HandoffMail, str]] = ..., decides_within: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CustodyTime(_message.Message):
    __slots__ = ("of_task",)
    OF_TASK_FIELD_NUMBER: _ClassVar[int]
    of_task: bool
    def __init__(self, of_task: bool = ...) -> None: ...

class CustodyAbsence(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CustodyRedrive(_message.Message):
    __slots__ = ("dead_letter_id", "former_handoff_id", "handoff_id", "candidate_ids")
    DEAD_LETTER_ID_FIELD_NUMBER: _ClassVar[int]
    FORMER_HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_IDS_FIELD_NUMBER: _ClassVar[int]
    dead_letter_id: str
    former_handoff_id: str
    handoff_id: str
    candidate_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, dead_letter_id: _Optional[str] = ..., former_handoff_id: _Optional[str] = ..., handoff_id: _Optional[str] = ..., candidate_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CustodyMailOmitted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CustodySilence(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CustodyCancellation(_message.Message):
    __slots__ = ("parent_task_id",)
    PARENT_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    parent_task_id: str
    def __init__(self, parent_task_id: _Optional[str] = ...) -> None: ...

class CustodyReassignment(_message.Message):
    __slots__ = ("submitter_id", "receiver_id", "reason_text", "handoff_id")
    SUBMITTER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    submitter_id: str
    receiver_id: str
    reason_text: str
    handoff_id: str
    def __init__(self, submitter_id: _Optional[str] = ..., receiver_id: _Optional[str] = ..., reason_text: _Optional[str] = ..., handoff_id: _Optional[str] = ...) -> None: ...

class CustodyAward(_message.Message):
    __slots__ = ("task_request", "candidate_ids", "terms")
    TASK_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_IDS_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    task_request: _envelope_pb2.Envelope
    candidate_ids: _containers.RepeatedScalarFieldContainer[str]
    terms: CustodyTerms
    def __init__(self, task_request: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ..., candidate_ids: _Optional[_Iterable[str]] = ..., terms: _Optional[_Union[CustodyTerms, _Mapping]] = ...) -> None: ...
