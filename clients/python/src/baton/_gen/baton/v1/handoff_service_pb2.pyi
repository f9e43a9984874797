from baton._gen.baton.v1 import envelope_pb2 as _envelope_pb2
from baton._gen.baton.v1 import handoff_pb2 as _handoff_pb2
from baton._gen.baton.v1 import task_service_pb2 as _task_service_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetHandoffRequest(_message.Message):
    __slots__ = ("handoff_id", "include_context")
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    handoff_id: str
    include_context: bool
    def __init__(self, handoff_id: _Optional[str] = ..., include_context: bool = ...) -> None: ...

class GetHandoffResponse(_message.Message):
    __slots__ = ("handoff", "context")
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    handoff: _handoff_pb2.Handoff
    context: _envelope_pb2.Envelope
    def __init__(self, handoff: _Optional[_Union[_handoff_pb2.Handoff, _Mapping]] = ..., context: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ...) -> None: ...

class ListHandoffsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "task_id", "agent_id", "states", "sender_id", "candidate_id", "task_type", "open_only", "deadline_before")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    OPEN_ONLY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    task_id: str
    agent_id: str
    states: _containers.RepeatedScalarFieldContainer[_handoff_pb2.HandoffState]
    sender_id: str
    candidate_id: str
    task_type: str
    open_only: bool
    deadline_before: _timestamp_pb2.Timestamp
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., task_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., states: _Optional[_Iterable[_Union[_handoff_pb2.HandoffState, str]]] = ..., sender_id: _Optional[str] = ..., candidate_id: _Optional[str] = ..., task_type: _Optional[str] = ..., open_only: bool = ..., deadline_before: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListHandoffsResponse(_message.Message):
    __slots__ = ("handoffs", "next_page_token")
    HANDOFFS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    handoffs: _containers.RepeatedCompositeFieldContainer[_handoff_pb2.Handoff]
    next_page_token: str
    def __init__(self, handoffs: _Optional[_Iterable[_Union[_handoff_pb2.Handoff, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchHandoffRequest(_message.Message):
    __slots__ = ("handoff_id",)
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    handoff_id: str
    def __init__(self, handoff_id: _Optional[str] = ...) -> None: ...

class WatchHandoffResponse(_message.Message):
    __slots__ = ("handoff",)
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    handoff: _handoff_pb2.Handoff
    def __init__(self, handoff: _Optional[_Union[_handoff_pb2.Handoff, _Mapping]] = ...) -> None: ...

class WatchHandoffsRequest(_message.Message):
    __slots__ = ("after_cursor", "task_id", "sender_id", "task_type")
    AFTER_CURSOR_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    after_cursor: int
    task_id: str
    sender_id: str
    task_type: str
    def __init__(self, after_cursor: _Optional[int] = ..., task_id: _Optional[str] = ..., sender_id: _Optional[str] = ..., task_type: _Optional[str] = ...) -> None: ...

class WatchHandoffsResponse(_message.Message):
    __slots__ = ("handoff", "gap", "caught_up", "cursor")
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    handoff: _handoff_pb2.Handoff
    gap: _task_service_pb2.WatchGap
    caught_up: bool
    cursor: int
    def __init__(self, handoff: _Optional[_Union[_handoff_pb2.Handoff, _Mapping]] = ..., gap: _Optional[_Union[_task_service_pb2.WatchGap, _Mapping]] = ..., caught_up: bool = ..., cursor: _Optional[int] = ...) -> None: ...
