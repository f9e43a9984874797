from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AwardRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AWARD_RULE_UNSPECIFIED: _ClassVar[AwardRule]
    AWARD_RULE_HIGHEST_CONFIDENCE: _ClassVar[AwardRule]
    AWARD_RULE_SOONEST: _ClassVar[AwardRule]
    AWARD_RULE_LEAST_LOADED: _ClassVar[AwardRule]
AWARD_RULE_UNSPECIFIED: AwardRule
AWARD_RULE_HIGHEST_CONFIDENCE: AwardRule
AWARD_RULE_SOONEST: AwardRule
AWARD_RULE_LEAST_LOADED: AwardRule

class TaskRequest(_message.Message):
    __slots__ = ("description", "required_skills", "needed_by_time", "task_type", "offers_deadline", "offers_wanted", "award_rule")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_SKILLS_FIELD_NUMBER: _ClassVar[int]
    NEEDED_BY_TIME_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    OFFERS_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    OFFERS_WANTED_FIELD_NUMBER: _ClassVar[int]
    AWARD_RULE_FIELD_NUMBER: _ClassVar[int]
    description: str
    required_skills: _containers.RepeatedScalarFieldContainer[str]
    needed_by_time: _timestamp_pb2.Timestamp
    task_type: str
    offers_deadline: _timestamp_pb2.Timestamp
    offers_wanted: int
    award_rule: AwardRule
    def __init__(self, description: _Optional[str] = ..., required_skills: _Optional[_Iterable[str]] = ..., needed_by_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., task_type: _Optional[str] = ..., offers_deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., offers_wanted: _Optional[int] = ..., award_rule: _Optional[_Union[AwardRule, str]] = ...) -> None: ...

class TaskOffer(_message.Message):
    __slots__ = ("confidence", "estimated_duration", "cost", "conditions", "round")
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_DURATION_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    confidence: float
    estimated_duration: _duration_pb2.Duration
    cost: float
    conditions: str
    round: int
    def __init__(self, confidence: _Optional[float] = ..., estimated_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., cost: _Optional[float] = ..., conditions: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class TaskAccept(_message.Message):
    __slots__ = ("offer_id", "details")
    OFFER_ID_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    offer_id: str
    details: str
    def __init__(self, offer_id: _Optional[str] = ..., details: _Optional[str] = ...) -> None: ...

class Delegation(_message.Message):
    __slots__ = ("description", "input")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    description: str
    input: _struct_pb2.Struct
    def __init__(self, description: _Optional[str] = ..., input: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Info(_message.Message):
    __slots__ = ("topic", "text", "data")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    topic: str
    text: str
    data: _struct_pb2.Struct
    def __init__(self, topic: _Optional[str] = ..., text: _Optional[str] = ..., data: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...
