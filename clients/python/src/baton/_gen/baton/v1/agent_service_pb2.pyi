from baton._gen.baton.v1 import agent_pb2 as _agent_pb2
from google.protobuf import duration_pb2 as _duration_pb2
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
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: _agent_pb2.Agent
    def __init__(self, agent: _Optional[_Union[_agent_pb2.Agent, _Mapping]] = ...) -> None: ...

class ListAgentsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "agent_type")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AGENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    agent_type: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., agent_type: _Optional[str] = ...) -> None: ...

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
