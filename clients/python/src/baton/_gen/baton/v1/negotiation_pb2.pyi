from baton._gen.baton.v1 import envelope_pb2 as _envelope_pb2
from baton._gen.baton.v1 import error_pb2 as _error_pb2
from baton._gen.baton.v1 import handoff_pb2 as _handoff_pb2
from google.protobuf import duration_pb2 as _duration_pb2
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
    AWARD_RULE_LOWEST_COST: _ClassVar[AwardRule]

class NegotiationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEGOTIATION_STATE_UNSPECIFIED: _ClassVar[NegotiationState]
    NEGOTIATION_STATE_OPEN: _ClassVar[NegotiationState]
    NEGOTIATION_STATE_DECIDING: _ClassVar[NegotiationState]
    NEGOTIATION_STATE_AWARDED: _ClassVar[NegotiationState]
    NEGOTIATION_STATE_SETTLED: _ClassVar[NegotiationState]
    NEGOTIATION_STATE_FAILED: _ClassVar[NegotiationState]
    NEGOTIATION_STATE_CANCELLED: _ClassVar[NegotiationState]

class BidState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BID_STATE_UNSPECIFIED: _ClassVar[BidState]
    BID_STATE_ASKED: _ClassVar[BidState]
    BID_STATE_OFFERED: _ClassVar[BidState]
    BID_STATE_COUNTERED: _ClassVar[BidState]
    BID_STATE_DECLINED: _ClassVar[BidState]
    BID_STATE_WITHDRAWN: _ClassVar[BidState]
    BID_STATE_UNREACHABLE: _ClassVar[BidState]
    BID_STATE_NOT_REACHED: _ClassVar[BidState]
AWARD_RULE_UNSPECIFIED: AwardRule
AWARD_RULE_HIGHEST_CONFIDENCE: AwardRule
AWARD_RULE_SOONEST: AwardRule
AWARD_RULE_LEAST_LOADED: AwardRule
AWARD_RULE_LOWEST_COST: AwardRule
NEGOTIATION_STATE_UNSPECIFIED: NegotiationState
NEGOTIATION_STATE_OPEN: NegotiationState
NEGOTIATION_STATE_DECIDING: NegotiationState
NEGOTIATION_STATE_AWARDED: NegotiationState
NEGOTIATION_STATE_SETTLED: NegotiationState
NEGOTIATION_STATE_FAILED: NegotiationState
NEGOTIATION_STATE_CANCELLED: NegotiationState
BID_STATE_UNSPECIFIED: BidState
BID_STATE_ASKED: BidState
BID_STATE_OFFERED: BidState
BID_STATE_COUNTERED: BidState
BID_STATE_DECLINED: BidState
BID_STATE_WITHDRAWN: BidState
BID_STATE_UNREACHABLE: BidState
BID_STATE_NOT_REACHED: BidState

class TaskRequest(_message.Message):
    __slots__ = ("description", "required_skills", "needed_by_time", "task_type", "offers_deadline", "offers_wanted", "award_rule", "preferred_skills", "min_confidence", "max_cost", "handoff", "decision_timeout")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_SKILLS_FIELD_NUMBER: _ClassVar[int]
    NEEDED_BY_TIME_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    OFFERS_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    OFFERS_WANTED_FIELD_NUMBER: _ClassVar[int]
    AWARD_RULE_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_SKILLS_FIELD_NUMBER: _ClassVar[int]
    MIN_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_COST_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    DECISION_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    description: str
    required_skills: _containers.RepeatedScalarFieldContainer[str]
    needed_by_time: _timestamp_pb2.Timestamp
    task_type: str
    offers_deadline: _timestamp_pb2.Timestamp
    offers_wanted: int
    award_rule: AwardRule
    preferred_skills: _containers.RepeatedScalarFieldContainer[str]
    min_confidence: float
    max_cost: float
    handoff: _handoff_pb2.HandoffRequest
    decision_timeout: _duration_pb2.Duration
    def __init__(self, description: _Optional[str] = ..., required_skills: _Optional[_Iterable[str]] = ..., needed_by_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., task_type: _Optional[str] = ..., offers_deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., offers_wanted: _Optional[int] = ..., award_rule: _Optional[_Union[AwardRule, str]] = ..., preferred_skills: _Optional[_Iterable[str]] = ..., min_confidence: _Optional[float] = ..., max_cost: _Optional[float] = ..., handoff: _Optional[_Union[_handoff_pb2.HandoffRequest, _Mapping]] = ..., decision_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TaskOffer(_message.Message):
    __slots__ = ("confidence", "estimated_duration", "cost", "conditions", "round", "withdrawn", "valid_until")
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_DURATION_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    VALID_UNTIL_FIELD_NUMBER: _ClassVar[int]
    confidence: float
    estimated_duration: _duration_pb2.Duration
    cost: float
    conditions: str
    round: int
    withdrawn: bool
    valid_until: _timestamp_pb2.Timestamp
    def __init__(self, confidence: _Optional[float] = ..., estimated_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., cost: _Optional[float] = ..., conditions: _Optional[str] = ..., round: _Optional[int] = ..., withdrawn: bool = ..., valid_until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class TaskDecline(_message.Message):
    __slots__ = ("reason", "reason_text")
    REASON_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    reason: _handoff_pb2.RejectReason
    reason_text: str
    def __init__(self, reason: _Optional[_Union[_handoff_pb2.RejectReason, str]] = ..., reason_text: _Optional[str] = ...) -> None: ...

class TaskAccept(_message.Message):
    __slots__ = ("offer_id", "details", "handoff")
    OFFER_ID_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    offer_id: str
    details: str
    handoff: _handoff_pb2.HandoffRequest
    def __init__(self, offer_id: _Optional[str] = ..., details: _Optional[str] = ..., handoff: _Optional[_Union[_handoff_pb2.HandoffRequest, _Mapping]] = ...) -> None: ...

class NegotiationClosed(_message.Message):
    __slots__ = ("negotiation_id", "state", "winner_id", "offer_id", "handoff_id", "task_request", "error_code")
    NEGOTIATION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WINNER_ID_FIELD_NUMBER: _ClassVar[int]
    OFFER_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    negotiation_id: str
    state: NegotiationState
    winner_id: str
    offer_id: str
    handoff_id: str
    task_request: _envelope_pb2.Envelope
    error_code: _error_pb2.ErrorCode
    def __init__(self, negotiation_id: _Optional[str] = ..., state: _Optional[_Union[NegotiationState, str]] = ..., winner_id: _Optional[str] = ..., offer_id: _Optional[str] = ..., handoff_id: _Optional[str] = ..., task_request: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ...) -> None: ...

class Negotiation(_message.Message):
    __slots__ = ("negotiation_id", "requester_id", "receiver_id", "state", "task_type", "task_id", "award_rule", "offers_wanted", "offers_deadline", "decision_deadline", "bids", "asked", "offer_id", "winner_id", "handoff_id", "error_code", "error_message", "create_time", "close_time", "update_time")
    NEGOTIATION_ID_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    AWARD_RULE_FIELD_NUMBER: _ClassVar[int]
    OFFERS_WANTED_FIELD_NUMBER: _ClassVar[int]
    OFFERS_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    DECISION_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    BIDS_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    OFFER_ID_FIELD_NUMBER: _ClassVar[int]
    WINNER_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    CLOSE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    negotiation_id: str
    requester_id: str
    receiver_id: str
    state: NegotiationState
    task_type: str
    task_id: str
    award_rule: AwardRule
    offers_wanted: int
    offers_deadline: _timestamp_pb2.Timestamp
    decision_deadline: _timestamp_pb2.Timestamp
    bids: _containers.RepeatedCompositeFieldContainer[NegotiationBid]
    asked: int
    offer_id: str
    winner_id: str
    handoff_id: str
    error_code: _error_pb2.ErrorCode
    error_message: str
    create_time: _timestamp_pb2.Timestamp
    close_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    def __init__(self, negotiation_id: _Optional[str] = ..., requester_id: _Optional[str] = ..., receiver_id: _Optional[str] = ..., state: _Optional[_Union[NegotiationState, str]] = ..., task_type: _Optional[str] = ..., task_id: _Optional[str] = ..., award_rule: _Optional[_Union[AwardRule, str]] = ..., offers_wanted: _Optional[int] = ..., offers_deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., decision_deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., bids: _Optional[_Iterable[_Union[NegotiationBid, _Mapping]]] = ..., asked: _Optional[int] = ..., offer_id: _Optional[str] = ..., winner_id: _Optional[str] = ..., handoff_id: _Optional[str] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ..., error_message: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., close_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class NegotiationBid(_message.Message):
    __slots__ = ("agent_id", "state", "offer_id", "confidence", "estimated_duration", "cost", "round", "valid_until", "offer_time", "counter_offer_id")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OFFER_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_DURATION_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VALID_UNTIL_FIELD_NUMBER: _ClassVar[int]
    OFFER_TIME_FIELD_NUMBER: _ClassVar[int]
    COUNTER_OFFER_ID_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    state: BidState
    offer_id: str
    confidence: float
    estimated_duration: _duration_pb2.Duration
    cost: float
    round: int
    valid_until: _timestamp_pb2.Timestamp
    offer_time: _timestamp_pb2.Timestamp
    counter_offer_id: str
    def __init__(self, agent_id: _Optional[str] = ..., state: _Optional[_Union[BidState, str]] = ..., offer_id: _Optional[str] = ..., confidence: _Optional[float] = ..., estimated_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., cost: _Optional[float] = ..., round: _Optional[int] = ..., valid_until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., offer_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., counter_offer_id: _Optional[str] = ...) -> None: ...

class Delegation(_message.Message):
    __slots__ = ("description", "deliver_after", "input_json")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AFTER_FIELD_NUMBER: _ClassVar[int]
    INPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    description: str
    deliver_after: _timestamp_pb2.Timestamp
    input_json: str
    def __init__(self, description: _Optional[str] = ..., deliver_after: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., input_json: _Optional[str] = ...) -> None: ...

class Info(_message.Message):
    __slots__ = ("topic", "text", "deliver_after", "data_json")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AFTER_FIELD_NUMBER: _ClassVar[int]
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    text: str
    deliver_after: _timestamp_pb2.Timestamp
    data_json: str
    def __init__(self, topic: _Optional[str] = ..., text: _Optional[str] = ..., deliver_after: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., data_json: _Optional[str] = ...) -> None: ...
