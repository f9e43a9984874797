from baton._gen.baton.v1 import handoff_pb2 as _handoff_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATUS_UNSPECIFIED: _ClassVar[TaskStatus]
    TASK_STATUS_CREATED: _ClassVar[TaskStatus]
    TASK_STATUS_IN_PROGRESS: _ClassVar[TaskStatus]
    TASK_STATUS_WAITING_FOR_INPUT: _ClassVar[TaskStatus]
    TASK_STATUS_COMPLETED: _ClassVar[TaskStatus]
    TASK_STATUS_FAILED: _ClassVar[TaskStatus]
    TASK_STATUS_CANCELED: _ClassVar[TaskStatus]
TASK_STATUS_UNSPECIFIED: TaskStatus
TASK_STATUS_CREATED: TaskStatus
TASK_STATUS_IN_PROGRESS: TaskStatus
TASK_STATUS_WAITING_FOR_INPUT: TaskStatus
TASK_STATUS_COMPLETED: TaskStatus
TASK_STATUS_FAILED: TaskStatus
TASK_STATUS_CANCELED: TaskStatus

class TaskStatusUpdate(_message.Message):
    __slots__ = ("status", "progress", "details", "prompt", "keep_parts", "extend_by", "result_json")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    KEEP_PARTS_FIELD_NUMBER: _ClassVar[int]
    EXTEND_BY_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    status: TaskStatus
    progress: float
    details: str
    prompt: TaskPrompt
    keep_parts: bool
    extend_by: _duration_pb2.Duration
    result_json: str
    def __init__(self, status: _Optional[_Union[TaskStatus, str]] = ..., progress: _Optional[float] = ..., details: _Optional[str] = ..., prompt: _Optional[_Union[TaskPrompt, _Mapping]] = ..., keep_parts: bool = ..., extend_by: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., result_json: _Optional[str] = ...) -> None: ...

class TaskCreate(_message.Message):
    __slots__ = ("task_type", "summary", "parent_task_id", "conversation_id", "loop_limits")
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    PARENT_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    LOOP_LIMITS_FIELD_NUMBER: _ClassVar[int]
    task_type: str
    summary: str
    parent_task_id: str
    conversation_id: str
    loop_limits: _handoff_pb2.LoopLimits
    def __init__(self, task_type: _Optional[str] = ..., summary: _Optional[str] = ..., parent_task_id: _Optional[str] = ..., conversation_id: _Optional[str] = ..., loop_limits: _Optional[_Union[_handoff_pb2.LoopLimits, _Mapping]] = ...) -> None: ...

class TaskPrompt(_message.Message):
    __slots__ = ("question", "answer_by", "answer_before", "answer_schema_json")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BY_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BEFORE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    question: str
    answer_by: str
    answer_before: _timestamp_pb2.Timestamp
    answer_schema_json: str
    def __init__(self, question: _Optional[str] = ..., answer_by: _Optional[str] = ..., answer_before: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., answer_schema_json: _Optional[str] = ...) -> None: ...

class TaskInput(_message.Message):
    __slots__ = ("text", "data_json")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    text: str
    data_json: str
    def __init__(self, text: _Optional[str] = ..., data_json: _Optional[str] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task_id", "task_type", "owner_id", "epoch", "status", "progress", "details", "open_handoff_id", "hops", "delegator_ids", "custody_length", "custody_hash", "create_time", "update_time", "open_prompt", "parent_task_id", "loans", "part_task_ids", "seizures", "unrecorded_mail_count", "last_answer", "silence_timeout", "result_json", "conversation_id", "summary")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    OPEN_HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    DELEGATOR_IDS_FIELD_NUMBER: _ClassVar[int]
    CUSTODY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CUSTODY_HASH_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    OPEN_PROMPT_FIELD_NUMBER: _ClassVar[int]
    PARENT_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    LOANS_FIELD_NUMBER: _ClassVar[int]
    PART_TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    SEIZURES_FIELD_NUMBER: _ClassVar[int]
    UNRECORDED_MAIL_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_ANSWER_FIELD_NUMBER: _ClassVar[int]
    SILENCE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    task_type: str
    owner_id: str
    epoch: int
    status: TaskStatus
    progress: float
    details: str
    open_handoff_id: str
    hops: _containers.RepeatedCompositeFieldContainer[TaskHop]
    delegator_ids: _containers.RepeatedScalarFieldContainer[str]
    custody_length: int
    custody_hash: bytes
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    open_prompt: OpenPrompt
    parent_task_id: str
    loans: _containers.RepeatedCompositeFieldContainer[TaskLoan]
    part_task_ids: _containers.RepeatedScalarFieldContainer[str]
    seizures: _containers.RepeatedCompositeFieldContainer[TaskSeizure]
    unrecorded_mail_count: int
    last_answer: AnsweredPrompt
    silence_timeout: _duration_pb2.Duration
    result_json: str
    conversation_id: str
    summary: str
    def __init__(self, task_id: _Optional[str] = ..., task_type: _Optional[str] = ..., owner_id: _Optional[str] = ..., epoch: _Optional[int] = ..., status: _Optional[_Union[TaskStatus, str]] = ..., progress: _Optional[float] = ..., details: _Optional[str] = ..., open_handoff_id: _Optional[str] = ..., hops: _Optional[_Iterable[_Union[TaskHop, _Mapping]]] = ..., delegator_ids: _Optional[_Iterable[str]] = ..., custody_length: _Optional[int] = ..., custody_hash: _Optional[bytes] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., open_prompt: _Optional[_Union[OpenPrompt, _Mapping]] = ..., parent_task_id: _Optional[str] = ..., loans: _Optional[_Iterable[_Union[TaskLoan, _Mapping]]] = ..., part_task_ids: _Optional[_Iterable[str]] = ..., seizures: _Optional[_Iterable[_Union[TaskSeizure, _Mapping]]] = ..., unrecorded_mail_count: _Optional[int] = ..., last_answer: _Optional[_Union[AnsweredPrompt, _Mapping]] = ..., silence_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., result_json: _Optional[str] = ..., conversation_id: _Optional[str] = ..., summary: _Optional[str] = ...) -> None: ...

class AnsweredPrompt(_message.Message):
    __slots__ = ("question", "answer_id", "answer", "answer_time")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ANSWER_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_TIME_FIELD_NUMBER: _ClassVar[int]
    question: OpenPrompt
    answer_id: str
    answer: TaskInput
    answer_time: _timestamp_pb2.Timestamp
    def __init__(self, question: _Optional[_Union[OpenPrompt, _Mapping]] = ..., answer_id: _Optional[str] = ..., answer: _Optional[_Union[TaskInput, _Mapping]] = ..., answer_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class TaskSeizure(_message.Message):
    __slots__ = ("owner_id", "epoch", "handoff_id")
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    owner_id: str
    epoch: int
    handoff_id: str
    def __init__(self, owner_id: _Optional[str] = ..., epoch: _Optional[int] = ..., handoff_id: _Optional[str] = ...) -> None: ...

class OpenPrompt(_message.Message):
    __slots__ = ("message_id", "asked_agent_id", "prompt", "ask_time")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ASKED_AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ASK_TIME_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    asked_agent_id: str
    prompt: TaskPrompt
    ask_time: _timestamp_pb2.Timestamp
    def __init__(self, message_id: _Optional[str] = ..., asked_agent_id: _Optional[str] = ..., prompt: _Optional[_Union[TaskPrompt, _Mapping]] = ..., ask_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class TaskLoan(_message.Message):
    __slots__ = ("delegator_id", "handoff_id", "due_time", "latest_due_time")
    DELEGATOR_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    DUE_TIME_FIELD_NUMBER: _ClassVar[int]
    LATEST_DUE_TIME_FIELD_NUMBER: _ClassVar[int]
    delegator_id: str
    handoff_id: str
    due_time: _timestamp_pb2.Timestamp
    latest_due_time: _timestamp_pb2.Timestamp
    def __init__(self, delegator_id: _Optional[str] = ..., handoff_id: _Optional[str] = ..., due_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., latest_due_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class TaskHop(_message.Message):
    __slots__ = ("handoff_id", "sender_id", "receiver_id", "epoch")
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    handoff_id: str
    sender_id: str
    receiver_id: str
    epoch: int
    def __init__(self, handoff_id: _Optional[str] = ..., sender_id: _Optional[str] = ..., receiver_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...
