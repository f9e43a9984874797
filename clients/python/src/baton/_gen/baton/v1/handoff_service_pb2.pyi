from baton._gen.baton.v1 import handoff_pb2 as _handoff_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetHandoffRequest(_message.Message):
    __slots__ = ("handoff_id",)
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    handoff_id: str
    def __init__(self, handoff_id: _Optional[str] = ...) -> None: ...

class GetHandoffResponse(_message.Message):
    __slots__ = ("handoff",)
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    handoff: _handoff_pb2.Handoff
    def __init__(self, handoff: _Optional[_Union[_handoff_pb2.Handoff, _Mapping]] = ...) -> None: ...

class ListHandoffsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "task_id", "agent_id", "states")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    task_id: str
    agent_id: str
    states: _containers.RepeatedScalarFieldContainer[_handoff_pb2.HandoffState]
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., task_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., states: _Optional[_Iterable[_Union[_handoff_pb2.HandoffState, str]]] = ...) -> None: ...

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
