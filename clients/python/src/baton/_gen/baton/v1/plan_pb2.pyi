from baton._gen.baton.v1 import error_pb2 as _error_pb2
from baton._gen.baton.v1 import handoff_pb2 as _handoff_pb2
from baton._gen.baton.v1 import routing_pb2 as _routing_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PlanMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAN_MODE_UNSPECIFIED: _ClassVar[PlanMode]
    PLAN_MODE_SEQUENTIAL: _ClassVar[PlanMode]
    PLAN_MODE_PARALLEL: _ClassVar[PlanMode]
    PLAN_MODE_HYBRID: _ClassVar[PlanMode]

class DataFlowCheck(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_FLOW_CHECK_UNSPECIFIED: _ClassVar[DataFlowCheck]
    DATA_FLOW_CHECK_STRICT: _ClassVar[DataFlowCheck]
    DATA_FLOW_CHECK_LENIENT: _ClassVar[DataFlowCheck]

class PlanState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAN_STATE_UNSPECIFIED: _ClassVar[PlanState]
    PLAN_STATE_RUNNING: _ClassVar[PlanState]
    PLAN_STATE_COMPLETED: _ClassVar[PlanState]
    PLAN_STATE_FAILED: _ClassVar[PlanState]
    PLAN_STATE_CANCELLED: _ClassVar[PlanState]

class SubtaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBTASK_STATE_UNSPECIFIED: _ClassVar[SubtaskState]
    SUBTASK_STATE_PENDING: _ClassVar[SubtaskState]
    SUBTASK_STATE_READY: _ClassVar[SubtaskState]
    SUBTASK_STATE_HANDING_OFF: _ClassVar[SubtaskState]
    SUBTASK_STATE_RUNNING: _ClassVar[SubtaskState]
    SUBTASK_STATE_COMPLETED: _ClassVar[SubtaskState]
    SUBTASK_STATE_FAILED: _ClassVar[SubtaskState]
    SUBTASK_STATE_TIMED_OUT: _ClassVar[SubtaskState]
    SUBTASK_STATE_SKIPPED: _ClassVar[SubtaskState]
    SUBTASK_STATE_CANCELLED: _ClassVar[SubtaskState]
PLAN_MODE_UNSPECIFIED: PlanMode
PLAN_MODE_SEQUENTIAL: PlanMode
PLAN_MODE_PARALLEL: PlanMode
PLAN_MODE_HYBRID: PlanMode
DATA_FLOW_CHECK_UNSPECIFIED: DataFlowCheck
DATA_FLOW_CHECK_STRICT: DataFlowCheck
DATA_FLOW_CHECK_LENIENT: DataFlowCheck
PLAN_STATE_UNSPECIFIED: PlanState
PLAN_STATE_RUNNING: PlanState
PLAN_STATE_COMPLETED: PlanState
PLAN_STATE_FAILED: PlanState
PLAN_STATE_CANCELLED: PlanState
SUBTASK_STATE_UNSPECIFIED: SubtaskState
SUBTASK_STATE_PENDING: SubtaskState
SUBTASK_STATE_READY: SubtaskState
SUBTASK_STATE_HANDING_OFF: SubtaskState
SUBTASK_STATE_RUNNING: SubtaskState
SUBTASK_STATE_COMPLETED: SubtaskState
SUBTASK_STATE_FAILED: SubtaskState
SUBTASK_STATE_TIMED_OUT: SubtaskState
SUBTASK_STATE_SKIPPED: SubtaskState
SUBTASK_STATE_CANCELLED: SubtaskState

class PlanSubmission(_message.Message):
    __slots__ = ("plan", "extension")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    EXTENSION_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    extension: PlanExtension
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ..., extension: _Optional[_Union[PlanExtension, _Mapping]] = ...) -> None: ...

class PlanExtension(_message.Message):
    __slots__ = ("plan_id", "subtasks", "defaults")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    subtasks: _containers.RepeatedCompositeFieldContainer[Subtask]
    defaults: SubtaskDefaults
    def __init__(self, plan_id: _Optional[str] = ..., subtasks: _Optional[_Iterable[_Union[Subtask, _Mapping]]] = ..., defaults: _Optional[_Union[SubtaskDefaults, _Mapping]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("plan_id", "description", "subtasks", "mode", "max_concurrency", "dependency_timeout", "whole_timeout", "pass_results", "pass_dependency_results", "extract_numeric", "data_flow_check", "priority", "input_json", "defaults", "topic_schemas")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCY_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    WHOLE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    PASS_RESULTS_FIELD_NUMBER: _ClassVar[int]
    PASS_DEPENDENCY_RESULTS_FIELD_NUMBER: _ClassVar[int]
    EXTRACT_NUMERIC_FIELD_NUMBER: _ClassVar[int]
    DATA_FLOW_CHECK_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    INPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    description: str
    subtasks: _containers.RepeatedCompositeFieldContainer[Subtask]
    mode: PlanMode
    max_concurrency: int
    dependency_timeout: _duration_pb2.Duration
    whole_timeout: _duration_pb2.Duration
    pass_results: bool
    pass_dependency_results: bool
    extract_numeric: bool
    data_flow_check: DataFlowCheck
    priority: _handoff_pb2.Priority
    input_json: str
    defaults: SubtaskDefaults
    topic_schemas: _containers.RepeatedCompositeFieldContainer[TopicSchema]
    def __init__(self, plan_id: _Optional[str] = ..., description: _Optional[str] = ..., subtasks: _Optional[_Iterable[_Union[Subtask, _Mapping]]] = ..., mode: _Optional[_Union[PlanMode, str]] = ..., max_concurrency: _Optional[int] = ..., dependency_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., whole_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., pass_results: bool = ..., pass_dependency_results: bool = ..., extract_numeric: bool = ..., data_flow_check: _Optional[_Union[DataFlowCheck, str]] = ..., priority: _Optional[_Union[_handoff_pb2.Priority, str]] = ..., input_json: _Optional[str] = ..., defaults: _Optional[_Union[SubtaskDefaults, _Mapping]] = ..., topic_schemas: _Optional[_Iterable[_Union[TopicSchema, _Mapping]]] = ...) -> None: ...

class TopicSchema(_message.Message):
    __slots__ = ("topic", "schema_json")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    schema_json: str
    def __init__(self, topic: _Optional[str] = ..., schema_json: _Optional[str] = ...) -> None: ...

class SubtaskDefaults(_message.Message):
    __slots__ = ("agent_id", "agent_type", "required_skills", "timeout", "attempts_max")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_SKILLS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_MAX_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    agent_type: str
    required_skills: _containers.RepeatedScalarFieldContainer[str]
    timeout: _duration_pb2.Duration
    attempts_max: int
    def __init__(self, agent_id: _Optional[str] = ..., agent_type: _Optional[str] = ..., required_skills: _Optional[_Iterable[str]] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., attempts_max: _Optional[int] = ...) -> None: ...

class Subtask(_message.Message):
    __slots__ = ("id", "description", "role", "agent_id", "agent_type", "required_skills", "dependencies", "produces", "consumes", "task_type", "timeout", "attempts_max", "optional", "handoff_timeouts", "fallback_candidates", "silence_timeout", "input_json", "when", "compensate", "for_each")
    ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_SKILLS_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCIES_FIELD_NUMBER: _ClassVar[int]
    PRODUCES_FIELD_NUMBER: _ClassVar[int]
    CONSUMES_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_MAX_FIELD_NUMBER: _ClassVar[int]
    OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_TIMEOUTS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    SILENCE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    INPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    COMPENSATE_FIELD_NUMBER: _ClassVar[int]
    FOR_EACH_FIELD_NUMBER: _ClassVar[int]
    id: str
    description: str
    role: str
    agent_id: str
    agent_type: str
    required_skills: _containers.RepeatedScalarFieldContainer[str]
    dependencies: _containers.RepeatedScalarFieldContainer[str]
    produces: _containers.RepeatedScalarFieldContainer[str]
    consumes: _containers.RepeatedScalarFieldContainer[str]
    task_type: str
    timeout: _duration_pb2.Duration
    attempts_max: int
    optional: bool
    handoff_timeouts: _handoff_pb2.HandoffTimeouts
    fallback_candidates: _containers.RepeatedScalarFieldContainer[str]
    silence_timeout: _duration_pb2.Duration
    input_json: str
    when: Condition
    compensate: Compensation
    for_each: ForEach
    def __init__(self, id: _Optional[str] = ..., description: _Optional[str] = ..., role: _Optional[str] = ..., agent_id: _Optional[str] = ..., agent_type: _Optional[str] = ..., required_skills: _Optional[_Iterable[str]] = ..., dependencies: _Optional[_Iterable[str]] = ..., produces: _Optional[_Iterable[str]] = ..., consumes: _Optional[_Iterable[str]] = ..., task_type: _Optional[str] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., attempts_max: _Optional[int] = ..., optional: bool = ..., handoff_timeouts: _Optional[_Union[_handoff_pb2.HandoffTimeouts, _Mapping]] = ..., fallback_candidates: _Optional[_Iterable[str]] = ..., silence_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., input_json: _Optional[str] = ..., when: _Optional[_Union[Condition, _Mapping]] = ..., compensate: _Optional[_Union[Compensation, _Mapping]] = ..., for_each: _Optional[_Union[ForEach, _Mapping]] = ...) -> None: ...

class ForEach(_message.Message):
    __slots__ = ("subtask_id", "pointer")
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    POINTER_FIELD_NUMBER: _ClassVar[int]
    subtask_id: str
    pointer: str
    def __init__(self, subtask_id: _Optional[str] = ..., pointer: _Optional[str] = ...) -> None: ...

class Compensation(_message.Message):
    __slots__ = ("description", "role", "agent_id", "agent_type", "required_skills", "task_type", "timeout", "attempts_max", "handoff_timeouts", "fallback_candidates", "silence_timeout", "input_json")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_SKILLS_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_MAX_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_TIMEOUTS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    SILENCE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    INPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    description: str
    role: str
    agent_id: str
    agent_type: str
    required_skills: _containers.RepeatedScalarFieldContainer[str]
    task_type: str
    timeout: _duration_pb2.Duration
    attempts_max: int
    handoff_timeouts: _handoff_pb2.HandoffTimeouts
    fallback_candidates: _containers.RepeatedScalarFieldContainer[str]
    silence_timeout: _duration_pb2.Duration
    input_json: str
    def __init__(self, description: _Optional[str] = ..., role: _Optional[str] = ..., agent_id: _Optional[str] = ..., agent_type: _Optional[str] = ..., required_skills: _Optional[_Iterable[str]] = ..., task_type: _Optional[str] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., attempts_max: _Optional[int] = ..., handoff_timeouts: _Optional[_Union[_handoff_pb2.HandoffTimeouts, _Mapping]] = ..., fallback_candidates: _Optional[_Iterable[str]] = ..., silence_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., input_json: _Optional[str] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("subtask_id", "pointer", "equal_json", "less", "present", "negate")
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    POINTER_FIELD_NUMBER: _ClassVar[int]
    EQUAL_JSON_FIELD_NUMBER: _ClassVar[int]
    LESS_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    NEGATE_FIELD_NUMBER: _ClassVar[int]
    subtask_id: str
    pointer: str
    equal_json: str
    less: float
    present: bool
    negate: bool
    def __init__(self, subtask_id: _Optional[str] = ..., pointer: _Optional[str] = ..., equal_json: _Optional[str] = ..., less: _Optional[float] = ..., present: bool = ..., negate: bool = ...) -> None: ...

class PlanProblem(_message.Message):
    __slots__ = ("severity", "code", "field", "subtask_ids", "topic", "message")
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_IDS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    severity: _routing_pb2.ProblemSeverity
    code: str
    field: str
    subtask_ids: _containers.RepeatedScalarFieldContainer[str]
    topic: str
    message: str
    def __init__(self, severity: _Optional[_Union[_routing_pb2.ProblemSeverity, str]] = ..., code: _Optional[str] = ..., field: _Optional[str] = ..., subtask_ids: _Optional[_Iterable[str]] = ..., topic: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class PlanRun(_message.Message):
    __slots__ = ("plan_id", "submitter_id", "submission_id", "submission_sha256", "state", "reason", "round", "subtasks", "log_length", "create_time", "update_time", "deadline", "end_time", "extension_ids")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    SUBMITTER_ID_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_SHA256_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    LOG_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    EXTENSION_IDS_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    submitter_id: str
    submission_id: str
    submission_sha256: bytes
    state: PlanState
    reason: str
    round: int
    subtasks: _containers.RepeatedCompositeFieldContainer[SubtaskStatus]
    log_length: int
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    deadline: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    extension_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, plan_id: _Optional[str] = ..., submitter_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., submission_sha256: _Optional[bytes] = ..., state: _Optional[_Union[PlanState, str]] = ..., reason: _Optional[str] = ..., round: _Optional[int] = ..., subtasks: _Optional[_Iterable[_Union[SubtaskStatus, _Mapping]]] = ..., log_length: _Optional[int] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., extension_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class SubtaskStatus(_message.Message):
    __slots__ = ("id", "state", "task_id", "attempts", "handoff_id", "agent_id", "numeric_value", "error_code", "cause", "waiting_for", "start_time", "end_time", "deadline", "result_entry", "progress", "details", "turn_agent_id", "turn_deadline", "compensation", "elements", "element_count", "assigned_to")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMERIC_VALUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    RESULT_ENTRY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    TURN_AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    COMPENSATION_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_TO_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: SubtaskState
    task_id: str
    attempts: int
    handoff_id: str
    agent_id: str
    numeric_value: float
    error_code: _error_pb2.ErrorCode
    cause: str
    waiting_for: _containers.RepeatedScalarFieldContainer[str]
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    deadline: _timestamp_pb2.Timestamp
    result_entry: int
    progress: float
    details: str
    turn_agent_id: str
    turn_deadline: _timestamp_pb2.Timestamp
    compensation: SubtaskStatus
    elements: _containers.RepeatedCompositeFieldContainer[SubtaskStatus]
    element_count: int
    assigned_to: str
    def __init__(self, id: _Optional[str] = ..., state: _Optional[_Union[SubtaskState, str]] = ..., task_id: _Optional[str] = ..., attempts: _Optional[int] = ..., handoff_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., numeric_value: _Optional[float] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ..., cause: _Optional[str] = ..., waiting_for: _Optional[_Iterable[str]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., result_entry: _Optional[int] = ..., progress: _Optional[float] = ..., details: _Optional[str] = ..., turn_agent_id: _Optional[str] = ..., turn_deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., compensation: _Optional[_Union[SubtaskStatus, _Mapping]] = ..., elements: _Optional[_Iterable[_Union[SubtaskStatus, _Mapping]]] = ..., element_count: _Optional[int] = ..., assigned_to: _Optional[str] = ...) -> None: ...

class SubtaskResult(_message.Message):
    __slots__ = ("subtask_id", "response", "tokens", "success", "tools_used", "numeric_value", "result_json", "summary")
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_USED_FIELD_NUMBER: _ClassVar[int]
    NUMERIC_VALUE_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    subtask_id: str
    response: str
    tokens: int
    success: bool
    tools_used: _containers.RepeatedScalarFieldContainer[str]
    numeric_value: float
    result_json: str
    summary: str
    def __init__(self, subtask_id: _Optional[str] = ..., response: _Optional[str] = ..., tokens: _Optional[int] = ..., success: bool = ..., tools_used: _Optional[_Iterable[str]] = ..., numeric_value: _Optional[float] = ..., result_json: _Optional[str] = ..., summary: _Optional[str] = ...) -> None: ...

class PlanEntry(_message.Message):
    __slots__ = ("number", "time", "submitted", "subtask", "not_appended", "retried", "ended", "compensation", "extended", "element", "reassigned")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_FIELD_NUMBER: _ClassVar[int]
    NOT_APPENDED_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    COMPENSATION_FIELD_NUMBER: _ClassVar[int]
    EXTENDED_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    REASSIGNED_FIELD_NUMBER: _ClassVar[int]
    number: int
    time: _timestamp_pb2.Timestamp
    submitted: PlanSubmitted
    subtask: SubtaskChanged
    not_appended: ResultNotAppended
    retried: PlanRetried
    ended: PlanEnded
    compensation: SubtaskChanged
    extended: PlanExtended
    element: SubtaskChanged
    reassigned: SubtaskReassigned
    def __init__(self, number: _Optional[int] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., submitted: _Optional[_Union[PlanSubmitted, _Mapping]] = ..., subtask: _Optional[_Union[SubtaskChanged, _Mapping]] = ..., not_appended: _Optional[_Union[ResultNotAppended, _Mapping]] = ..., retried: _Optional[_Union[PlanRetried, _Mapping]] = ..., ended: _Optional[_Union[PlanEnded, _Mapping]] = ..., compensation: _Optional[_Union[SubtaskChanged, _Mapping]] = ..., extended: _Optional[_Union[PlanExtended, _Mapping]] = ..., element: _Optional[_Union[SubtaskChanged, _Mapping]] = ..., reassigned: _Optional[_Union[SubtaskReassigned, _Mapping]] = ...) -> None: ...

class PlanSubmitted(_message.Message):
    __slots__ = ("submitter_id",)
    SUBMITTER_ID_FIELD_NUMBER: _ClassVar[int]
    submitter_id: str
    def __init__(self, submitter_id: _Optional[str] = ...) -> None: ...

class PlanExtended(_message.Message):
    __slots__ = ("message_id", "content_sha256", "subtask_ids")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_IDS_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    content_sha256: bytes
    subtask_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, message_id: _Optional[str] = ..., content_sha256: _Optional[bytes] = ..., subtask_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class SubtaskChanged(_message.Message):
    __slots__ = ("subtask_id", "state", "attempt", "task_round", "handoff_id", "agent_id", "error_code", "cause", "result", "element")
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TASK_ROUND_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    subtask_id: str
    state: SubtaskState
    attempt: int
    task_round: int
    handoff_id: str
    agent_id: str
    error_code: _error_pb2.ErrorCode
    cause: str
    result: SubtaskResult
    element: int
    def __init__(self, subtask_id: _Optional[str] = ..., state: _Optional[_Union[SubtaskState, str]] = ..., attempt: _Optional[int] = ..., task_round: _Optional[int] = ..., handoff_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ..., cause: _Optional[str] = ..., result: _Optional[_Union[SubtaskResult, _Mapping]] = ..., element: _Optional[int] = ...) -> None: ...

class ResultNotAppended(_message.Message):
    __slots__ = ("subtask_id", "topic", "error_code", "text")
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    subtask_id: str
    topic: str
    error_code: _error_pb2.ErrorCode
    text: str
    def __init__(self, subtask_id: _Optional[str] = ..., topic: _Optional[str] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ..., text: _Optional[str] = ...) -> None: ...

class PlanRetried(_message.Message):
    __slots__ = ("round", "caller", "subtask_id")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    round: int
    caller: str
    subtask_id: str
    def __init__(self, round: _Optional[int] = ..., caller: _Optional[str] = ..., subtask_id: _Optional[str] = ...) -> None: ...

class SubtaskReassigned(_message.Message):
    __slots__ = ("subtask_id", "to", "caller", "reason_text")
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    subtask_id: str
    to: str
    caller: str
    reason_text: str
    def __init__(self, subtask_id: _Optional[str] = ..., to: _Optional[str] = ..., caller: _Optional[str] = ..., reason_text: _Optional[str] = ...) -> None: ...

class PlanEnded(_message.Message):
    __slots__ = ("state", "reason")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    state: PlanState
    reason: str
    def __init__(self, state: _Optional[_Union[PlanState, str]] = ..., reason: _Optional[str] = ...) -> None: ...
