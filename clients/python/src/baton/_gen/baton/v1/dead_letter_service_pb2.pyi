from baton._gen.baton.v1 import dead_letter_pb2 as _dead_letter_pb2
from baton._gen.baton.v1 import envelope_pb2 as _envelope_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeadLetterFilter(_message.Message):
    __slots__ = ("states", "reasons", "agent_id", "sender_id", "task_id", "message_types", "park_time_from", "park_time_before")
    STATES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPES_FIELD_NUMBER: _ClassVar[int]
    PARK_TIME_FROM_FIELD_NUMBER: _ClassVar[int]
    PARK_TIME_BEFORE_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[_dead_letter_pb2.DeadLetterState]
    reasons: _containers.RepeatedScalarFieldContainer[_dead_letter_pb2.DeadLetterReason]
    agent_id: str
    sender_id: str
    task_id: str
    message_types: _containers.RepeatedScalarFieldContainer[_envelope_pb2.MessageType]
    park_time_from: _timestamp_pb2.Timestamp
    park_time_before: _timestamp_pb2.Timestamp
    def __init__(self, states: _Optional[_Iterable[_Union[_dead_letter_pb2.DeadLetterState, str]]] = ..., reasons: _Optional[_Iterable[_Union[_dead_letter_pb2.DeadLetterReason, str]]] = ..., agent_id: _Optional[str] = ..., sender_id: _Optional[str] = ..., task_id: _Optional[str] = ..., message_types: _Optional[_Iterable[_Union[_envelope_pb2.MessageType, str]]] = ..., park_time_from: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., park_time_before: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetDeadLetterRequest(_message.Message):
    __slots__ = ("dead_letter_id",)
    DEAD_LETTER_ID_FIELD_NUMBER: _ClassVar[int]
    dead_letter_id: str
    def __init__(self, dead_letter_id: _Optional[str] = ...) -> None: ...

class GetDeadLetterResponse(_message.Message):
    __slots__ = ("dead_letter",)
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    dead_letter: _dead_letter_pb2.DeadLetter
    def __init__(self, dead_letter: _Optional[_Union[_dead_letter_pb2.DeadLetter, _Mapping]] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "filter")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    filter: DeadLetterFilter
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("dead_letters", "next_page_token")
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    dead_letters: _containers.RepeatedCompositeFieldContainer[_dead_letter_pb2.DeadLetter]
    next_page_token: str
    def __init__(self, dead_letters: _Optional[_Iterable[_Union[_dead_letter_pb2.DeadLetter, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ExportDeadLettersRequest(_message.Message):
    __slots__ = ("filter",)
    FILTER_FIELD_NUMBER: _ClassVar[int]
    filter: DeadLetterFilter
    def __init__(self, filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ...) -> None: ...

class ExportDeadLettersResponse(_message.Message):
    __slots__ = ("dead_letter",)
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    dead_letter: _dead_letter_pb2.DeadLetter
    def __init__(self, dead_letter: _Optional[_Union[_dead_letter_pb2.DeadLetter, _Mapping]] = ...) -> None: ...

class RedriveDeadLetterRequest(_message.Message):
    __slots__ = ("dead_letter_id", "to_agent_id")
    DEAD_LETTER_ID_FIELD_NUMBER: _ClassVar[int]
    TO_AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    dead_letter_id: str
    to_agent_id: str
    def __init__(self, dead_letter_id: _Optional[str] = ..., to_agent_id: _Optional[str] = ...) -> None: ...

class RedriveDeadLetterResponse(_message.Message):
    __slots__ = ("dead_letter",)
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    dead_letter: _dead_letter_pb2.DeadLetter
    def __init__(self, dead_letter: _Optional[_Union[_dead_letter_pb2.DeadLetter, _Mapping]] = ...) -> None: ...

class RedriveDeadLettersRequest(_message.Message):
    __slots__ = ("filter", "to_agent_id", "max_per_second", "dry_run")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    TO_AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    filter: DeadLetterFilter
    to_agent_id: str
    max_per_second: float
    dry_run: bool
    def __init__(self, filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., to_agent_id: _Optional[str] = ..., max_per_second: _Optional[float] = ..., dry_run: bool = ...) -> None: ...

class RedriveDeadLettersResponse(_message.Message):
    __slots__ = ("dead_letter", "error")
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    dead_letter: _dead_letter_pb2.DeadLetter
    error: _status_pb2.Status
    def __init__(self, dead_letter: _Optional[_Union[_dead_letter_pb2.DeadLetter, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class DiscardDeadLetterRequest(_message.Message):
    __slots__ = ("dead_letter_id", "reason_text")
    DEAD_LETTER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    dead_letter_id: str
    reason_text: str
    def __init__(self, dead_letter_id: _Optional[str] = ..., reason_text: _Optional[str] = ...) -> None: ...

class DiscardDeadLetterResponse(_message.Message):
    __slots__ = ("dead_letter",)
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    dead_letter: _dead_letter_pb2.DeadLetter
    def __init__(self, dead_letter: _Optional[_Union[_dead_letter_pb2.DeadLetter, _Mapping]] = ...) -> None: ...
