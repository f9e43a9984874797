from baton._gen.baton.v1 import custody_pb2 as _custody_pb2
from baton._gen.baton.v1 import handoff_pb2 as _handoff_pb2
from baton._gen.baton.v1 import task_pb2 as _task_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_ORDER_UNSPECIFIED: _ClassVar[TaskOrder]
    TASK_ORDER_UPDATE: _ClassVar[TaskOrder]
TASK_ORDER_UNSPECIFIED: TaskOrder
TASK_ORDER_UPDATE: TaskOrder

class ResumeTasksRequest(_message.Message):
    __slots__ = ("instance_id", "max_tasks")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_TASKS_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    max_tasks: int
    def __init__(self, instance_id: _Optional[str] = ..., max_tasks: _Optional[int] = ...) -> None: ...

class ResumeTasksResponse(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[_task_pb2.Task]
    def __init__(self, tasks: _Optional[_Iterable[_Union[_task_pb2.Task, _Mapping]]] = ...) -> None: ...

class GetTaskRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class GetTaskResponse(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: _task_pb2.Task
    def __init__(self, task: _Optional[_Union[_task_pb2.Task, _Mapping]] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "owner_id", "statuses", "parent_task_id", "asked_agent_id", "order", "conversation_id")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    PARENT_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ASKED_AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    owner_id: str
    statuses: _containers.RepeatedScalarFieldContainer[_task_pb2.TaskStatus]
    parent_task_id: str
    asked_agent_id: str
    order: TaskOrder
    conversation_id: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., owner_id: _Optional[str] = ..., statuses: _Optional[_Iterable[_Union[_task_pb2.TaskStatus, str]]] = ..., parent_task_id: _Optional[str] = ..., asked_agent_id: _Optional[str] = ..., order: _Optional[_Union[TaskOrder, str]] = ..., conversation_id: _Optional[str] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks", "next_page_token")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[_task_pb2.Task]
    next_page_token: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[_task_pb2.Task, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetCustodyLogRequest(_message.Message):
    __slots__ = ("task_id", "after_number", "page_size", "include_envelopes")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    after_number: int
    page_size: int
    include_envelopes: bool
    def __init__(self, task_id: _Optional[str] = ..., after_number: _Optional[int] = ..., page_size: _Optional[int] = ..., include_envelopes: bool = ...) -> None: ...

class GetCustodyLogResponse(_message.Message):
    __slots__ = ("entries", "custody_length", "gap")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CUSTODY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[_custody_pb2.CustodyLogEntry]
    custody_length: int
    gap: WatchGap
    def __init__(self, entries: _Optional[_Iterable[_Union[_custody_pb2.CustodyLogEntry, _Mapping]]] = ..., custody_length: _Optional[int] = ..., gap: _Optional[_Union[WatchGap, _Mapping]] = ...) -> None: ...

class WatchTaskRequest(_message.Message):
    __slots__ = ("task_id", "after_number")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    after_number: int
    def __init__(self, task_id: _Optional[str] = ..., after_number: _Optional[int] = ...) -> None: ...

class WatchTaskResponse(_message.Message):
    __slots__ = ("entry", "gap")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    entry: _custody_pb2.CustodyLogEntry
    gap: WatchGap
    def __init__(self, entry: _Optional[_Union[_custody_pb2.CustodyLogEntry, _Mapping]] = ..., gap: _Optional[_Union[WatchGap, _Mapping]] = ...) -> None: ...

class WatchGap(_message.Message):
    __slots__ = ("first_number", "last_number")
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    LAST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    first_number: int
    last_number: int
    def __init__(self, first_number: _Optional[int] = ..., last_number: _Optional[int] = ...) -> None: ...

class ReassignTaskRequest(_message.Message):
    __slots__ = ("task_id", "expected_epoch", "to", "reason_text")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    expected_epoch: int
    to: str
    reason_text: str
    def __init__(self, task_id: _Optional[str] = ..., expected_epoch: _Optional[int] = ..., to: _Optional[str] = ..., reason_text: _Optional[str] = ...) -> None: ...

class ReassignTaskResponse(_message.Message):
    __slots__ = ("task", "handoff")
    TASK_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    task: _task_pb2.Task
    handoff: _handoff_pb2.Handoff
    def __init__(self, task: _Optional[_Union[_task_pb2.Task, _Mapping]] = ..., handoff: _Optional[_Union[_handoff_pb2.Handoff, _Mapping]] = ...) -> None: ...
