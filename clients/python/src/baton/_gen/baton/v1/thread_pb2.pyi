from baton._gen.baton.v1 import error_pb2 as _error_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ThreadRequestOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    THREAD_REQUEST_OUTCOME_UNSPECIFIED: _ClassVar[ThreadRequestOutcome]
    THREAD_REQUEST_OUTCOME_PROMOTED: _ClassVar[ThreadRequestOutcome]
    THREAD_REQUEST_OUTCOME_REPLACED: _ClassVar[ThreadRequestOutcome]
    THREAD_REQUEST_OUTCOME_CLEARED: _ClassVar[ThreadRequestOutcome]
    THREAD_REQUEST_OUTCOME_FAILED: _ClassVar[ThreadRequestOutcome]

class ThreadUnresolved(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    THREAD_UNRESOLVED_UNSPECIFIED: _ClassVar[ThreadUnresolved]
    THREAD_UNRESOLVED_NO_SPEC: _ClassVar[ThreadUnresolved]
    THREAD_UNRESOLVED_NO_MODEL: _ClassVar[ThreadUnresolved]
THREAD_REQUEST_OUTCOME_UNSPECIFIED: ThreadRequestOutcome
THREAD_REQUEST_OUTCOME_PROMOTED: ThreadRequestOutcome
THREAD_REQUEST_OUTCOME_REPLACED: ThreadRequestOutcome
THREAD_REQUEST_OUTCOME_CLEARED: ThreadRequestOutcome
THREAD_REQUEST_OUTCOME_FAILED: ThreadRequestOutcome
THREAD_UNRESOLVED_UNSPECIFIED: ThreadUnresolved
THREAD_UNRESOLVED_NO_SPEC: ThreadUnresolved
THREAD_UNRESOLVED_NO_MODEL: ThreadUnresolved

class AgentSpec(_message.Message):
    __slots__ = ("spec_id", "model_id", "system_prompt", "allowed_tools", "excluded_tools", "plugin_ids", "hook_filter", "overlay", "revision", "description", "sections_json")
    SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_PROMPT_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOOLS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_TOOLS_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_IDS_FIELD_NUMBER: _ClassVar[int]
    HOOK_FILTER_FIELD_NUMBER: _ClassVar[int]
    OVERLAY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    spec_id: str
    model_id: str
    system_prompt: str
    allowed_tools: ToolList
    excluded_tools: _containers.RepeatedScalarFieldContainer[str]
    plugin_ids: _containers.RepeatedScalarFieldContainer[str]
    hook_filter: _containers.RepeatedScalarFieldContainer[str]
    overlay: AgentOverlay
    revision: int
    description: str
    sections_json: str
    def __init__(self, spec_id: _Optional[str] = ..., model_id: _Optional[str] = ..., system_prompt: _Optional[str] = ..., allowed_tools: _Optional[_Union[ToolList, _Mapping]] = ..., excluded_tools: _Optional[_Iterable[str]] = ..., plugin_ids: _Optional[_Iterable[str]] = ..., hook_filter: _Optional[_Iterable[str]] = ..., overlay: _Optional[_Union[AgentOverlay, _Mapping]] = ..., revision: _Optional[int] = ..., description: _Optional[str] = ..., sections_json: _Optional[str] = ...) -> None: ...

class ToolList(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class AgentOverlay(_message.Message):
    __slots__ = ("settings_json",)
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    settings_json: str
    def __init__(self, settings_json: _Optional[str] = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ("model_id", "provider", "model_name", "revision", "parameters_json")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    provider: str
    model_name: str
    revision: int
    parameters_json: str
    def __init__(self, model_id: _Optional[str] = ..., provider: _Optional[str] = ..., model_name: _Optional[str] = ..., revision: _Optional[int] = ..., parameters_json: _Optional[str] = ...) -> None: ...

class Thread(_message.Message):
    __slots__ = ("thread_id", "base_spec_id", "active_agent", "requested_agent", "in_force_spec_id", "run_id", "step", "lease_deadline", "log_length", "task_id", "in_force_revision", "in_force_model_id", "in_force_model_revision", "creator_id", "participant_ids", "runner_id", "first_number", "create_time", "update_time")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_AGENT_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_AGENT_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LEASE_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    LOG_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    CREATOR_ID_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANT_IDS_FIELD_NUMBER: _ClassVar[int]
    RUNNER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    base_spec_id: str
    active_agent: str
    requested_agent: str
    in_force_spec_id: str
    run_id: str
    step: int
    lease_deadline: _timestamp_pb2.Timestamp
    log_length: int
    task_id: str
    in_force_revision: int
    in_force_model_id: str
    in_force_model_revision: int
    creator_id: str
    participant_ids: _containers.RepeatedScalarFieldContainer[str]
    runner_id: str
    first_number: int
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    def __init__(self, thread_id: _Optional[str] = ..., base_spec_id: _Optional[str] = ..., active_agent: _Optional[str] = ..., requested_agent: _Optional[str] = ..., in_force_spec_id: _Optional[str] = ..., run_id: _Optional[str] = ..., step: _Optional[int] = ..., lease_deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., log_length: _Optional[int] = ..., task_id: _Optional[str] = ..., in_force_revision: _Optional[int] = ..., in_force_model_id: _Optional[str] = ..., in_force_model_revision: _Optional[int] = ..., creator_id: _Optional[str] = ..., participant_ids: _Optional[_Iterable[str]] = ..., runner_id: _Optional[str] = ..., first_number: _Optional[int] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ThreadRequestEnded(_message.Message):
    __slots__ = ("request_number", "spec_id", "outcome", "error_message", "error_code", "unresolved")
    REQUEST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    UNRESOLVED_FIELD_NUMBER: _ClassVar[int]
    request_number: int
    spec_id: str
    outcome: ThreadRequestOutcome
    error_message: str
    error_code: _error_pb2.ErrorCode
    unresolved: ThreadUnresolved
    def __init__(self, request_number: _Optional[int] = ..., spec_id: _Optional[str] = ..., outcome: _Optional[_Union[ThreadRequestOutcome, str]] = ..., error_message: _Optional[str] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ..., unresolved: _Optional[_Union[ThreadUnresolved, str]] = ...) -> None: ...

class ThreadBoundary(_message.Message):
    __slots__ = ("run_id", "step", "spec_id", "revision", "model_id", "model_revision", "switched", "deactivate_plugin_ids", "activate_plugin_ids", "request")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    SWITCHED_FIELD_NUMBER: _ClassVar[int]
    DEACTIVATE_PLUGIN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATE_PLUGIN_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    step: int
    spec_id: str
    revision: int
    model_id: str
    model_revision: int
    switched: bool
    deactivate_plugin_ids: _containers.RepeatedScalarFieldContainer[str]
    activate_plugin_ids: _containers.RepeatedScalarFieldContainer[str]
    request: ThreadRequestEnded
    def __init__(self, run_id: _Optional[str] = ..., step: _Optional[int] = ..., spec_id: _Optional[str] = ..., revision: _Optional[int] = ..., model_id: _Optional[str] = ..., model_revision: _Optional[int] = ..., switched: bool = ..., deactivate_plugin_ids: _Optional[_Iterable[str]] = ..., activate_plugin_ids: _Optional[_Iterable[str]] = ..., request: _Optional[_Union[ThreadRequestEnded, _Mapping]] = ...) -> None: ...

class ThreadCreated(_message.Message):
    __slots__ = ("base_spec_id", "creator_id")
    BASE_SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    CREATOR_ID_FIELD_NUMBER: _ClassVar[int]
    base_spec_id: str
    creator_id: str
    def __init__(self, base_spec_id: _Optional[str] = ..., creator_id: _Optional[str] = ...) -> None: ...

class ThreadAction(_message.Message):
    __slots__ = ("spec_id", "actor_id", "warning")
    SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    spec_id: str
    actor_id: str
    warning: str
    def __init__(self, spec_id: _Optional[str] = ..., actor_id: _Optional[str] = ..., warning: _Optional[str] = ...) -> None: ...

class ThreadRunBegan(_message.Message):
    __slots__ = ("run_id", "runner_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RUNNER_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    runner_id: str
    def __init__(self, run_id: _Optional[str] = ..., runner_id: _Optional[str] = ...) -> None: ...

class ThreadRunEnded(_message.Message):
    __slots__ = ("run_id", "lease_over")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_OVER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    lease_over: bool
    def __init__(self, run_id: _Optional[str] = ..., lease_over: bool = ...) -> None: ...

class ThreadEntry(_message.Message):
    __slots__ = ("number", "entry_time", "created", "requested", "request_ended", "activated", "cleared", "run_began", "boundary", "run_ended")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_TIME_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ENDED_FIELD_NUMBER: _ClassVar[int]
    ACTIVATED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    RUN_BEGAN_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    RUN_ENDED_FIELD_NUMBER: _ClassVar[int]
    number: int
    entry_time: _timestamp_pb2.Timestamp
    created: ThreadCreated
    requested: ThreadAction
    request_ended: ThreadRequestEnded
    activated: ThreadAction
    cleared: ThreadAction
    run_began: ThreadRunBegan
    boundary: ThreadBoundary
    run_ended: ThreadRunEnded
    def __init__(self, number: _Optional[int] = ..., entry_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., created: _Optional[_Union[ThreadCreated, _Mapping]] = ..., requested: _Optional[_Union[ThreadAction, _Mapping]] = ..., request_ended: _Optional[_Union[ThreadRequestEnded, _Mapping]] = ..., activated: _Optional[_Union[ThreadAction, _Mapping]] = ..., cleared: _Optional[_Union[ThreadAction, _Mapping]] = ..., run_began: _Optional[_Union[ThreadRunBegan, _Mapping]] = ..., boundary: _Optional[_Union[ThreadBoundary, _Mapping]] = ..., run_ended: _Optional[_Union[ThreadRunEnded, _Mapping]] = ...) -> None: ...
