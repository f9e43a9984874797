from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Presence(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRESENCE_UNSPECIFIED: _ClassVar[Presence]
    PRESENCE_ALIVE: _ClassVar[Presence]
    PRESENCE_SUSPECT: _ClassVar[Presence]
    PRESENCE_GONE: _ClassVar[Presence]
    PRESENCE_UNSEEN: _ClassVar[Presence]
PRESENCE_UNSPECIFIED: Presence
PRESENCE_ALIVE: Presence
PRESENCE_SUSPECT: Presence
PRESENCE_GONE: Presence
PRESENCE_UNSEEN: Presence

class AgentCard(_message.Message):
    __slots__ = ("agent_id", "agent_types", "description", "skills", "capacity", "keys", "metadata", "decides_within")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_TYPES_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SKILLS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    DECIDES_WITHIN_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    agent_types: _containers.RepeatedScalarFieldContainer[str]
    description: str
    skills: _containers.RepeatedCompositeFieldContainer[AgentSkill]
    capacity: int
    keys: _containers.RepeatedCompositeFieldContainer[AgentKey]
    metadata: _containers.ScalarMap[str, str]
    decides_within: _duration_pb2.Duration
    def __init__(self, agent_id: _Optional[str] = ..., agent_types: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., skills: _Optional[_Iterable[_Union[AgentSkill, _Mapping]]] = ..., capacity: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[AgentKey, _Mapping]]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., decides_within: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class AgentSkill(_message.Message):
    __slots__ = ("name", "tags", "languages", "task_types", "description", "examples")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPES_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    languages: _containers.RepeatedScalarFieldContainer[str]
    task_types: _containers.RepeatedScalarFieldContainer[str]
    description: str
    examples: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., languages: _Optional[_Iterable[str]] = ..., task_types: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., examples: _Optional[_Iterable[str]] = ...) -> None: ...

class AgentKey(_message.Message):
    __slots__ = ("key_id", "public_key", "not_before_time", "not_after_time", "revoke_time", "vouchers")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    NOT_BEFORE_TIME_FIELD_NUMBER: _ClassVar[int]
    NOT_AFTER_TIME_FIELD_NUMBER: _ClassVar[int]
    REVOKE_TIME_FIELD_NUMBER: _ClassVar[int]
    VOUCHERS_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    public_key: bytes
    not_before_time: _timestamp_pb2.Timestamp
    not_after_time: _timestamp_pb2.Timestamp
    revoke_time: _timestamp_pb2.Timestamp
    vouchers: _containers.RepeatedCompositeFieldContainer[KeyVoucher]
    def __init__(self, key_id: _Optional[str] = ..., public_key: _Optional[bytes] = ..., not_before_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., not_after_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., revoke_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., vouchers: _Optional[_Iterable[_Union[KeyVoucher, _Mapping]]] = ...) -> None: ...

class KeyVoucher(_message.Message):
    __slots__ = ("operator_key_id", "not_after_time", "signature")
    OPERATOR_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    NOT_AFTER_TIME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    operator_key_id: str
    not_after_time: _timestamp_pb2.Timestamp
    signature: bytes
    def __init__(self, operator_key_id: _Optional[str] = ..., not_after_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Agent(_message.Message):
    __slots__ = ("card", "presence", "session_count", "last_heartbeat", "last_heartbeat_time", "create_time", "update_time", "load", "statistics", "etag", "deregister_time", "mailbox", "usage")
    CARD_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARTBEAT_TIME_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    DEREGISTER_TIME_FIELD_NUMBER: _ClassVar[int]
    MAILBOX_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    card: AgentCard
    presence: Presence
    session_count: int
    last_heartbeat: Heartbeat
    last_heartbeat_time: _timestamp_pb2.Timestamp
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    load: AgentLoad
    statistics: AgentStatistics
    etag: str
    deregister_time: _timestamp_pb2.Timestamp
    mailbox: Mailbox
    usage: AgentUsage
    def __init__(self, card: _Optional[_Union[AgentCard, _Mapping]] = ..., presence: _Optional[_Union[Presence, str]] = ..., session_count: _Optional[int] = ..., last_heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., last_heartbeat_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., load: _Optional[_Union[AgentLoad, _Mapping]] = ..., statistics: _Optional[_Union[AgentStatistics, _Mapping]] = ..., etag: _Optional[str] = ..., deregister_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., mailbox: _Optional[_Union[Mailbox, _Mapping]] = ..., usage: _Optional[_Union[AgentUsage, _Mapping]] = ...) -> None: ...

class AgentUsage(_message.Message):
    __slots__ = ("stored_bytes", "stored_bytes_max")
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    stored_bytes: int
    stored_bytes_max: int
    def __init__(self, stored_bytes: _Optional[int] = ..., stored_bytes_max: _Optional[int] = ...) -> None: ...

class Mailbox(_message.Message):
    __slots__ = ("letter_count", "oldest_letter_time")
    LETTER_COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_LETTER_TIME_FIELD_NUMBER: _ClassVar[int]
    letter_count: int
    oldest_letter_time: _timestamp_pb2.Timestamp
    def __init__(self, letter_count: _Optional[int] = ..., oldest_letter_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class AgentLoad(_message.Message):
    __slots__ = ("in_use", "capacity", "owned_tasks", "open_offers", "is_full")
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    OWNED_TASKS_FIELD_NUMBER: _ClassVar[int]
    OPEN_OFFERS_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_FIELD_NUMBER: _ClassVar[int]
    in_use: int
    capacity: int
    owned_tasks: int
    open_offers: int
    is_full: bool
    def __init__(self, in_use: _Optional[int] = ..., capacity: _Optional[int] = ..., owned_tasks: _Optional[int] = ..., open_offers: _Optional[int] = ..., is_full: bool = ...) -> None: ...

class AgentStatistics(_message.Message):
    __slots__ = ("offers", "completed", "median_decision_time")
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_DECISION_TIME_FIELD_NUMBER: _ClassVar[int]
    offers: int
    completed: int
    median_decision_time: _duration_pb2.Duration
    def __init__(self, offers: _Optional[int] = ..., completed: _Optional[int] = ..., median_decision_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("status", "active_tasks", "capacity", "queue_length", "metrics", "working_on")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_TASKS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    WORKING_ON_FIELD_NUMBER: _ClassVar[int]
    status: str
    active_tasks: int
    capacity: int
    queue_length: int
    metrics: _containers.ScalarMap[str, float]
    working_on: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[str] = ..., active_tasks: _Optional[int] = ..., capacity: _Optional[int] = ..., queue_length: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., working_on: _Optional[_Iterable[str]] = ...) -> None: ...
