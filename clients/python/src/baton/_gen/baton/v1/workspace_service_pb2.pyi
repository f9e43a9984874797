from baton._gen.baton.v1 import broker_service_pb2 as _broker_service_pb2
from baton._gen.baton.v1 import envelope_pb2 as _envelope_pb2
from baton._gen.baton.v1 import task_service_pb2 as _task_service_pb2
from baton._gen.baton.v1 import workspace_pb2 as _workspace_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AppendEntryRequest(_message.Message):
    __slots__ = ("envelope",)
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    envelope: _envelope_pb2.Envelope
    def __init__(self, envelope: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ...) -> None: ...

class AppendEntryResponse(_message.Message):
    __slots__ = ("receipt", "entry")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    receipt: _broker_service_pb2.Receipt
    entry: _workspace_pb2.WorkspaceEntry
    def __init__(self, receipt: _Optional[_Union[_broker_service_pb2.Receipt, _Mapping]] = ..., entry: _Optional[_Union[_workspace_pb2.WorkspaceEntry, _Mapping]] = ...) -> None: ...

class ListEntriesRequest(_message.Message):
    __slots__ = ("workspace_id", "topics", "after_sequence", "page_size", "wait", "include_envelopes")
    WORKSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    workspace_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    after_sequence: int
    page_size: int
    wait: _duration_pb2.Duration
    include_envelopes: bool
    def __init__(self, workspace_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., after_sequence: _Optional[int] = ..., page_size: _Optional[int] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., include_envelopes: bool = ...) -> None: ...

class ListEntriesResponse(_message.Message):
    __slots__ = ("entries", "next_after_sequence", "has_more", "gap", "last_sequence", "closed")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[_workspace_pb2.WorkspaceEntry]
    next_after_sequence: int
    has_more: bool
    gap: _task_service_pb2.WatchGap
    last_sequence: int
    closed: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[_workspace_pb2.WorkspaceEntry, _Mapping]]] = ..., next_after_sequence: _Optional[int] = ..., has_more: bool = ..., gap: _Optional[_Union[_task_service_pb2.WatchGap, _Mapping]] = ..., last_sequence: _Optional[int] = ..., closed: bool = ...) -> None: ...

class WatchEntriesRequest(_message.Message):
    __slots__ = ("workspace_id", "topics", "after_sequence", "include_envelopes")
    WORKSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    workspace_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    after_sequence: int
    include_envelopes: bool
    def __init__(self, workspace_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., after_sequence: _Optional[int] = ..., include_envelopes: bool = ...) -> None: ...

class WatchEntriesResponse(_message.Message):
    __slots__ = ("entry", "gap", "caught_up", "closed")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    entry: _workspace_pb2.WorkspaceEntry
    gap: _task_service_pb2.WatchGap
    caught_up: CaughtUp
    closed: WorkspaceClosed
    def __init__(self, entry: _Optional[_Union[_workspace_pb2.WorkspaceEntry, _Mapping]] = ..., gap: _Optional[_Union[_task_service_pb2.WatchGap, _Mapping]] = ..., caught_up: _Optional[_Union[CaughtUp, _Mapping]] = ..., closed: _Optional[_Union[WorkspaceClosed, _Mapping]] = ...) -> None: ...

class CaughtUp(_message.Message):
    __slots__ = ("last_sequence",)
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    last_sequence: int
    def __init__(self, last_sequence: _Optional[int] = ...) -> None: ...

class WorkspaceClosed(_message.Message):
    __slots__ = ("last_sequence",)
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    last_sequence: int
    def __init__(self, last_sequence: _Optional[int] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("workspace_id",)
    WORKSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    workspace_id: str
    def __init__(self, workspace_id: _Optional[str] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "last_sequence")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[_workspace_pb2.WorkspaceTopic]
    last_sequence: int
    def __init__(self, topics: _Optional[_Iterable[_Union[_workspace_pb2.WorkspaceTopic, _Mapping]]] = ..., last_sequence: _Optional[int] = ...) -> None: ...

class GetWorkspaceRequest(_message.Message):
    __slots__ = ("workspace_id",)
    WORKSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    workspace_id: str
    def __init__(self, workspace_id: _Optional[str] = ...) -> None: ...

class GetWorkspaceResponse(_message.Message):
    __slots__ = ("workspace",)
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    workspace: _workspace_pb2.Workspace
    def __init__(self, workspace: _Optional[_Union[_workspace_pb2.Workspace, _Mapping]] = ...) -> None: ...
