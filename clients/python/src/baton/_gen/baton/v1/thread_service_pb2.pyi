from baton._gen.baton.v1 import registry_service_pb2 as _registry_service_pb2
from baton._gen.baton.v1 import task_service_pb2 as _task_service_pb2
from baton._gen.baton.v1 import thread_pb2 as _thread_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PutAgentSpecRequest(_message.Message):
    __slots__ = ("spec", "etag")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    spec: _thread_pb2.AgentSpec
    etag: str
    def __init__(self, spec: _Optional[_Union[_thread_pb2.AgentSpec, _Mapping]] = ..., etag: _Optional[str] = ...) -> None: ...

class PutAgentSpecResponse(_message.Message):
    __slots__ = ("spec", "registration")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    spec: _thread_pb2.AgentSpec
    registration: _registry_service_pb2.Registration
    def __init__(self, spec: _Optional[_Union[_thread_pb2.AgentSpec, _Mapping]] = ..., registration: _Optional[_Union[_registry_service_pb2.Registration, _Mapping]] = ...) -> None: ...

class GetAgentSpecRequest(_message.Message):
    __slots__ = ("spec_id", "revision")
    SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    spec_id: str
    revision: int
    def __init__(self, spec_id: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class GetAgentSpecResponse(_message.Message):
    __slots__ = ("spec", "prompt_hidden")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PROMPT_HIDDEN_FIELD_NUMBER: _ClassVar[int]
    spec: _thread_pb2.AgentSpec
    prompt_hidden: bool
    def __init__(self, spec: _Optional[_Union[_thread_pb2.AgentSpec, _Mapping]] = ..., prompt_hidden: bool = ...) -> None: ...

class ListAgentSpecsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListAgentSpecsResponse(_message.Message):
    __slots__ = ("specs", "next_page_token")
    SPECS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    specs: _containers.RepeatedCompositeFieldContainer[_thread_pb2.AgentSpec]
    next_page_token: str
    def __init__(self, specs: _Optional[_Iterable[_Union[_thread_pb2.AgentSpec, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class PutModelSpecRequest(_message.Message):
    __slots__ = ("spec", "etag")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    spec: _thread_pb2.ModelSpec
    etag: str
    def __init__(self, spec: _Optional[_Union[_thread_pb2.ModelSpec, _Mapping]] = ..., etag: _Optional[str] = ...) -> None: ...

class PutModelSpecResponse(_message.Message):
    __slots__ = ("spec", "registration")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    spec: _thread_pb2.ModelSpec
    registration: _registry_service_pb2.Registration
    def __init__(self, spec: _Optional[_Union[_thread_pb2.ModelSpec, _Mapping]] = ..., registration: _Optional[_Union[_registry_service_pb2.Registration, _Mapping]] = ...) -> None: ...

class ListModelSpecsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListModelSpecsResponse(_message.Message):
    __slots__ = ("specs", "next_page_token")
    SPECS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    specs: _containers.RepeatedCompositeFieldContainer[_thread_pb2.ModelSpec]
    next_page_token: str
    def __init__(self, specs: _Optional[_Iterable[_Union[_thread_pb2.ModelSpec, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CreateThreadRequest(_message.Message):
    __slots__ = ("base_spec_id", "thread_id", "task_id", "participant_ids")
    BASE_SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANT_IDS_FIELD_NUMBER: _ClassVar[int]
    base_spec_id: str
    thread_id: str
    task_id: str
    participant_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, base_spec_id: _Optional[str] = ..., thread_id: _Optional[str] = ..., task_id: _Optional[str] = ..., participant_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateThreadResponse(_message.Message):
    __slots__ = ("thread",)
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: _thread_pb2.Thread
    def __init__(self, thread: _Optional[_Union[_thread_pb2.Thread, _Mapping]] = ...) -> None: ...

class GetThreadRequest(_message.Message):
    __slots__ = ("thread_id",)
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    def __init__(self, thread_id: _Optional[str] = ...) -> None: ...

class GetThreadResponse(_message.Message):
    __slots__ = ("thread",)
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: _thread_pb2.Thread
    def __init__(self, thread: _Optional[_Union[_thread_pb2.Thread, _Mapping]] = ...) -> None: ...

class ListThreadsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "task_id", "in_force_spec_id")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    task_id: str
    in_force_spec_id: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., task_id: _Optional[str] = ..., in_force_spec_id: _Optional[str] = ...) -> None: ...

class ListThreadsResponse(_message.Message):
    __slots__ = ("threads", "next_page_token")
    THREADS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    threads: _containers.RepeatedCompositeFieldContainer[_thread_pb2.Thread]
    next_page_token: str
    def __init__(self, threads: _Optional[_Iterable[_Union[_thread_pb2.Thread, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchThreadRequest(_message.Message):
    __slots__ = ("thread_id", "after_number")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    after_number: int
    def __init__(self, thread_id: _Optional[str] = ..., after_number: _Optional[int] = ...) -> None: ...

class WatchThreadResponse(_message.Message):
    __slots__ = ("entry", "gap", "caught_up")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    entry: _thread_pb2.ThreadEntry
    gap: _task_service_pb2.WatchGap
    caught_up: ThreadCaughtUp
    def __init__(self, entry: _Optional[_Union[_thread_pb2.ThreadEntry, _Mapping]] = ..., gap: _Optional[_Union[_task_service_pb2.WatchGap, _Mapping]] = ..., caught_up: _Optional[_Union[ThreadCaughtUp, _Mapping]] = ...) -> None: ...

class ThreadCaughtUp(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class ApplyHandoffActionRequest(_message.Message):
    __slots__ = ("thread_id", "action_id", "request_spec_id", "activate_spec_id", "clear")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIVATE_SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    action_id: str
    request_spec_id: str
    activate_spec_id: str
    clear: bool
    def __init__(self, thread_id: _Optional[str] = ..., action_id: _Optional[str] = ..., request_spec_id: _Optional[str] = ..., activate_spec_id: _Optional[str] = ..., clear: bool = ...) -> None: ...

class ApplyHandoffActionResponse(_message.Message):
    __slots__ = ("thread", "warning")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    thread: _thread_pb2.Thread
    warning: str
    def __init__(self, thread: _Optional[_Union[_thread_pb2.Thread, _Mapping]] = ..., warning: _Optional[str] = ...) -> None: ...

class BeginRunRequest(_message.Message):
    __slots__ = ("thread_id", "run_id")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    run_id: str
    def __init__(self, thread_id: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class BeginRunResponse(_message.Message):
    __slots__ = ("thread", "switched", "spec", "model", "deactivate_plugin_ids", "activate_plugin_ids", "request")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    SWITCHED_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEACTIVATE_PLUGIN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATE_PLUGIN_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    thread: _thread_pb2.Thread
    switched: bool
    spec: _thread_pb2.AgentSpec
    model: _thread_pb2.ModelSpec
    deactivate_plugin_ids: _containers.RepeatedScalarFieldContainer[str]
    activate_plugin_ids: _containers.RepeatedScalarFieldContainer[str]
    request: _thread_pb2.ThreadRequestEnded
    def __init__(self, thread: _Optional[_Union[_thread_pb2.Thread, _Mapping]] = ..., switched: bool = ..., spec: _Optional[_Union[_thread_pb2.AgentSpec, _Mapping]] = ..., model: _Optional[_Union[_thread_pb2.ModelSpec, _Mapping]] = ..., deactivate_plugin_ids: _Optional[_Iterable[str]] = ..., activate_plugin_ids: _Optional[_Iterable[str]] = ..., request: _Optional[_Union[_thread_pb2.ThreadRequestEnded, _Mapping]] = ...) -> None: ...

class EndStepRequest(_message.Message):
    __slots__ = ("thread_id", "run_id", "step")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    run_id: str
    step: int
    def __init__(self, thread_id: _Optional[str] = ..., run_id: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class EndStepResponse(_message.Message):
    __slots__ = ("thread", "switched", "spec", "model", "deactivate_plugin_ids", "activate_plugin_ids", "request")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    SWITCHED_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEACTIVATE_PLUGIN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATE_PLUGIN_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    thread: _thread_pb2.Thread
    switched: bool
    spec: _thread_pb2.AgentSpec
    model: _thread_pb2.ModelSpec
    deactivate_plugin_ids: _containers.RepeatedScalarFieldContainer[str]
    activate_plugin_ids: _containers.RepeatedScalarFieldContainer[str]
    request: _thread_pb2.ThreadRequestEnded
    def __init__(self, thread: _Optional[_Union[_thread_pb2.Thread, _Mapping]] = ..., switched: bool = ..., spec: _Optional[_Union[_thread_pb2.AgentSpec, _Mapping]] = ..., model: _Optional[_Union[_thread_pb2.ModelSpec, _Mapping]] = ..., deactivate_plugin_ids: _Optional[_Iterable[str]] = ..., activate_plugin_ids: _Optional[_Iterable[str]] = ..., request: _Optional[_Union[_thread_pb2.ThreadRequestEnded, _Mapping]] = ...) -> None: ...

class EndRunRequest(_message.Message):
    __slots__ = ("thread_id", "run_id")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    run_id: str
    def __init__(self, thread_id: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class EndRunResponse(_message.Message):
    __slots__ = ("thread",)
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: _thread_pb2.Thread
    def __init__(self, thread: _Optional[_Union[_thread_pb2.Thread, _Mapping]] = ...) -> None: ...
