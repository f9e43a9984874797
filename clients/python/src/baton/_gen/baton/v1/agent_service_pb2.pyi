from baton._gen.baton.v1 import agent_pb2 as _agent_pb2
from baton._gen.baton.v1 import handoff_pb2 as _handoff_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterAgentRequest(_message.Message):
    __slots__ = ("card", "invitation")
    CARD_FIELD_NUMBER: _ClassVar[int]
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    card: _agent_pb2.AgentCard
    invitation: str
    def __init__(self, card: _Optional[_Union[_agent_pb2.AgentCard, _Mapping]] = ..., invitation: _Optional[str] = ...) -> None: ...

class CreateInvitationRequest(_message.Message):
    __slots__ = ("agent_id", "lifetime", "agent_types")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_FIELD_NUMBER: _ClassVar[int]
    AGENT_TYPES_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    lifetime: _duration_pb2.Duration
    agent_types: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, agent_id: _Optional[str] = ..., lifetime: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., agent_types: _Optional[_Iterable[str]] = ...) -> None: ...

class AddAgentKeyRequest(_message.Message):
    __slots__ = ("agent_id", "key", "replaced_key_ids", "grace")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REPLACED_KEY_IDS_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    key: _agent_pb2.AgentKey
    replaced_key_ids: _containers.RepeatedScalarFieldContainer[str]
    grace: _duration_pb2.Duration
    def __init__(self, agent_id: _Optional[str] = ..., key: _Optional[_Union[_agent_pb2.AgentKey, _Mapping]] = ..., replaced_key_ids: _Optional[_Iterable[str]] = ..., grace: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class AddAgentKeyResponse(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: _agent_pb2.Agent
    def __init__(self, agent: _Optional[_Union[_agent_pb2.Agent, _Mapping]] = ...) -> None: ...

class RevokeAgentKeyRequest(_message.Message):
    __slots__ = ("agent_id", "key_id", "reason_text")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    key_id: str
    reason_text: str
    def __init__(self, agent_id: _Optional[str] = ..., key_id: _Optional[str] = ..., reason_text: _Optional[str] = ...) -> None: ...

class RevokeAgentKeyResponse(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: _agent_pb2.Agent
    def __init__(self, agent: _Optional[_Union[_agent_pb2.Agent, _Mapping]] = ...) -> None: ...

class VouchForAgentKeyRequest(_message.Message):
    __slots__ = ("agent_id", "key_id", "voucher")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    VOUCHER_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    key_id: str
    voucher: _agent_pb2.KeyVoucher
    def __init__(self, agent_id: _Optional[str] = ..., key_id: _Optional[str] = ..., voucher: _Optional[_Union[_agent_pb2.KeyVoucher, _Mapping]] = ...) -> None: ...

class VouchForAgentKeyResponse(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: _agent_pb2.Agent
    def __init__(self, agent: _Optional[_Union[_agent_pb2.Agent, _Mapping]] = ...) -> None: ...

class CreateInvitationResponse(_message.Message):
    __slots__ = ("invitation", "expire_time")
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    invitation: str
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, invitation: _Optional[str] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RegisterAgentResponse(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: _agent_pb2.Agent
    def __init__(self, agent: _Optional[_Union[_agent_pb2.Agent, _Mapping]] = ...) -> None: ...

class GetAgentRequest(_message.Message):
    __slots__ = ("agent_id",)
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    def __init__(self, agent_id: _Optional[str] = ...) -> None: ...

class GetAgentResponse(_message.Message):
    __slots__ = ("agent", "broker")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    agent: _agent_pb2.Agent
    broker: BrokerStatus
    def __init__(self, agent: _Optional[_Union[_agent_pb2.Agent, _Mapping]] = ..., broker: _Optional[_Union[BrokerStatus, _Mapping]] = ...) -> None: ...

class ListProcessesRequest(_message.Message):
    __slots__ = ("agent_id",)
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    def __init__(self, agent_id: _Optional[str] = ...) -> None: ...

class ListProcessesResponse(_message.Message):
    __slots__ = ("processes",)
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[Process]
    def __init__(self, processes: _Optional[_Iterable[_Union[Process, _Mapping]]] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("instance_id", "connect_time", "lists_work", "task_ids", "task_count")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECT_TIME_FIELD_NUMBER: _ClassVar[int]
    LISTS_WORK_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    TASK_COUNT_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    connect_time: _timestamp_pb2.Timestamp
    lists_work: bool
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    task_count: int
    def __init__(self, instance_id: _Optional[str] = ..., connect_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., lists_work: bool = ..., task_ids: _Optional[_Iterable[str]] = ..., task_count: _Optional[int] = ...) -> None: ...

class BrokerStatus(_message.Message):
    __slots__ = ("clock_time", "caller", "version", "start_time", "store")
    CLOCK_TIME_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    clock_time: _timestamp_pb2.Timestamp
    caller: str
    version: str
    start_time: _timestamp_pb2.Timestamp
    store: StoreStatus
    def __init__(self, clock_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., caller: _Optional[str] = ..., version: _Optional[str] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., store: _Optional[_Union[StoreStatus, _Mapping]] = ...) -> None: ...

class StoreStatus(_message.Message):
    __slots__ = ("format", "size_bytes", "size_bytes_max")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    format: str
    size_bytes: int
    size_bytes_max: int
    def __init__(self, format: _Optional[str] = ..., size_bytes: _Optional[int] = ..., size_bytes_max: _Optional[int] = ...) -> None: ...

class ListAgentsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "agent_type", "skill", "tag", "language", "task_type", "presence", "include_deregistered")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AGENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SKILL_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_DEREGISTERED_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    agent_type: str
    skill: str
    tag: str
    language: str
    task_type: str
    presence: _agent_pb2.Presence
    include_deregistered: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., agent_type: _Optional[str] = ..., skill: _Optional[str] = ..., tag: _Optional[str] = ..., language: _Optional[str] = ..., task_type: _Optional[str] = ..., presence: _Optional[_Union[_agent_pb2.Presence, str]] = ..., include_deregistered: bool = ...) -> None: ...

class ListAgentsResponse(_message.Message):
    __slots__ = ("agents", "next_page_token")
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedCompositeFieldContainer[_agent_pb2.Agent]
    next_page_token: str
    def __init__(self, agents: _Optional[_Iterable[_Union[_agent_pb2.Agent, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CreateChallengeRequest(_message.Message):
    __slots__ = ("agent_id",)
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    def __init__(self, agent_id: _Optional[str] = ...) -> None: ...

class CreateChallengeResponse(_message.Message):
    __slots__ = ("challenge", "expire_time")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    challenge: bytes
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, challenge: _Optional[bytes] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("agent_id", "key_id", "challenge", "signature")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    key_id: str
    challenge: bytes
    signature: bytes
    def __init__(self, agent_id: _Optional[str] = ..., key_id: _Optional[str] = ..., challenge: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class CreateTokenResponse(_message.Message):
    __slots__ = ("token", "expire_time")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    token: str
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, token: _Optional[str] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class UpdateAgentRequest(_message.Message):
    __slots__ = ("card", "update_mask", "etag")
    CARD_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    card: _agent_pb2.AgentCard
    update_mask: _field_mask_pb2.FieldMask
    etag: str
    def __init__(self, card: _Optional[_Union[_agent_pb2.AgentCard, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., etag: _Optional[str] = ...) -> None: ...

class UpdateAgentResponse(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: _agent_pb2.Agent
    def __init__(self, agent: _Optional[_Union[_agent_pb2.Agent, _Mapping]] = ...) -> None: ...

class DeregisterAgentRequest(_message.Message):
    __slots__ = ("agent_id", "force", "reason_text")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    force: bool
    reason_text: str
    def __init__(self, agent_id: _Optional[str] = ..., force: bool = ..., reason_text: _Optional[str] = ...) -> None: ...

class DeregisterAgentResponse(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: _agent_pb2.Agent
    def __init__(self, agent: _Optional[_Union[_agent_pb2.Agent, _Mapping]] = ...) -> None: ...

class FindAgentsRequest(_message.Message):
    __slots__ = ("agent_type", "required_skills", "preferred_skills", "task_type", "languages", "tags", "priority", "as_sender_id", "include_gone", "page_size", "page_token")
    AGENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_SKILLS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_SKILLS_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    AS_SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_GONE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    agent_type: str
    required_skills: _containers.RepeatedScalarFieldContainer[str]
    preferred_skills: _containers.RepeatedScalarFieldContainer[str]
    task_type: str
    languages: _containers.RepeatedScalarFieldContainer[str]
    tags: _containers.RepeatedScalarFieldContainer[str]
    priority: _handoff_pb2.Priority
    as_sender_id: str
    include_gone: bool
    page_size: int
    page_token: str
    def __init__(self, agent_type: _Optional[str] = ..., required_skills: _Optional[_Iterable[str]] = ..., preferred_skills: _Optional[_Iterable[str]] = ..., task_type: _Optional[str] = ..., languages: _Optional[_Iterable[str]] = ..., tags: _Optional[_Iterable[str]] = ..., priority: _Optional[_Union[_handoff_pb2.Priority, str]] = ..., as_sender_id: _Optional[str] = ..., include_gone: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class FindAgentsResponse(_message.Message):
    __slots__ = ("matches", "next_page_token")
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    matches: _containers.RepeatedCompositeFieldContainer[AgentMatch]
    next_page_token: str
    def __init__(self, matches: _Optional[_Iterable[_Union[AgentMatch, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class AgentMatch(_message.Message):
    __slots__ = ("agent_id", "rank", "score", "presence", "factors", "missing_skills", "load")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    MISSING_SKILLS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    rank: int
    score: float
    presence: _agent_pb2.Presence
    factors: _containers.RepeatedCompositeFieldContainer[MatchFactor]
    missing_skills: _containers.RepeatedScalarFieldContainer[str]
    load: _agent_pb2.AgentLoad
    def __init__(self, agent_id: _Optional[str] = ..., rank: _Optional[int] = ..., score: _Optional[float] = ..., presence: _Optional[_Union[_agent_pb2.Presence, str]] = ..., factors: _Optional[_Iterable[_Union[MatchFactor, _Mapping]]] = ..., missing_skills: _Optional[_Iterable[str]] = ..., load: _Optional[_Union[_agent_pb2.AgentLoad, _Mapping]] = ...) -> None: ...

class MatchFactor(_message.Message):
    __slots__ = ("name", "value", "weight", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    weight: float
    text: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., weight: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class WatchAgentsRequest(_message.Message):
    __slots__ = ("after_cursor", "agent_type", "skill", "cards_only")
    AFTER_CURSOR_FIELD_NUMBER: _ClassVar[int]
    AGENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SKILL_FIELD_NUMBER: _ClassVar[int]
    CARDS_ONLY_FIELD_NUMBER: _ClassVar[int]
    after_cursor: int
    agent_type: str
    skill: str
    cards_only: bool
    def __init__(self, after_cursor: _Optional[int] = ..., agent_type: _Optional[str] = ..., skill: _Optional[str] = ..., cards_only: bool = ...) -> None: ...

class WatchAgentsResponse(_message.Message):
    __slots__ = ("agent", "left_agent_id", "activities", "caught_up", "cursor")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    LEFT_AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIVITIES_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    agent: _agent_pb2.Agent
    left_agent_id: str
    activities: AgentActivities
    caught_up: bool
    cursor: int
    def __init__(self, agent: _Optional[_Union[_agent_pb2.Agent, _Mapping]] = ..., left_agent_id: _Optional[str] = ..., activities: _Optional[_Union[AgentActivities, _Mapping]] = ..., caught_up: bool = ..., cursor: _Optional[int] = ...) -> None: ...

class AgentActivities(_message.Message):
    __slots__ = ("activities",)
    ACTIVITIES_FIELD_NUMBER: _ClassVar[int]
    activities: _containers.RepeatedCompositeFieldContainer[AgentActivity]
    def __init__(self, activities: _Optional[_Iterable[_Union[AgentActivity, _Mapping]]] = ...) -> None: ...

class AgentActivity(_message.Message):
    __slots__ = ("agent_id", "presence", "load")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    presence: _agent_pb2.Presence
    load: _agent_pb2.AgentLoad
    def __init__(self, agent_id: _Optional[str] = ..., presence: _Optional[_Union[_agent_pb2.Presence, str]] = ..., load: _Optional[_Union[_agent_pb2.AgentLoad, _Mapping]] = ...) -> None: ...

class CreateLoginCodeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateLoginCodeResponse(_message.Message):
    __slots__ = ("code", "expire_time")
    CODE_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    code: str
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, code: _Optional[str] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
