from baton._gen.baton.v1 import context_pb2 as _context_pb2
from baton._gen.baton.v1 import error_pb2 as _error_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HandoffReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HANDOFF_REASON_UNSPECIFIED: _ClassVar[HandoffReason]
    HANDOFF_REASON_SKILL: _ClassVar[HandoffReason]
    HANDOFF_REASON_LOAD: _ClassVar[HandoffReason]
    HANDOFF_REASON_ESCALATION: _ClassVar[HandoffReason]
    HANDOFF_REASON_WORKFLOW: _ClassVar[HandoffReason]
    HANDOFF_REASON_USER_REQUEST: _ClassVar[HandoffReason]
    HANDOFF_REASON_SHUTDOWN: _ClassVar[HandoffReason]
    HANDOFF_REASON_PERMISSION: _ClassVar[HandoffReason]
    HANDOFF_REASON_OTHER: _ClassVar[HandoffReason]

class RejectReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECT_REASON_UNSPECIFIED: _ClassVar[RejectReason]
    REJECT_REASON_NO_SKILL: _ClassVar[RejectReason]
    REJECT_REASON_OVERLOADED: _ClassVar[RejectReason]
    REJECT_REASON_NO_PERMISSION: _ClassVar[RejectReason]
    REJECT_REASON_WRONG_TASK_TYPE: _ClassVar[RejectReason]
    REJECT_REASON_SHUTDOWN: _ClassVar[RejectReason]
    REJECT_REASON_TOO_LITTLE_TIME: _ClassVar[RejectReason]
    REJECT_REASON_OTHER: _ClassVar[RejectReason]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_LOW: _ClassVar[Priority]
    PRIORITY_MEDIUM: _ClassVar[Priority]
    PRIORITY_HIGH: _ClassVar[Priority]
    PRIORITY_CRITICAL: _ClassVar[Priority]

class HandoffMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HANDOFF_MODE_UNSPECIFIED: _ClassVar[HandoffMode]
    HANDOFF_MODE_TRANSFER: _ClassVar[HandoffMode]
    HANDOFF_MODE_DELEGATE: _ClassVar[HandoffMode]

class HandoffOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HANDOFF_OUTCOME_UNSPECIFIED: _ClassVar[HandoffOutcome]
    HANDOFF_OUTCOME_SUCCESS: _ClassVar[HandoffOutcome]
    HANDOFF_OUTCOME_FAILURE: _ClassVar[HandoffOutcome]

class HandoffState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HANDOFF_STATE_UNSPECIFIED: _ClassVar[HandoffState]
    HANDOFF_STATE_REQUESTED: _ClassVar[HandoffState]
    HANDOFF_STATE_DECIDING: _ClassVar[HandoffState]
    HANDOFF_STATE_ACCEPTED: _ClassVar[HandoffState]
    HANDOFF_STATE_CONTEXT_SENT: _ClassVar[HandoffState]
    HANDOFF_STATE_COMPLETED: _ClassVar[HandoffState]
    HANDOFF_STATE_REJECTED: _ClassVar[HandoffState]
    HANDOFF_STATE_FAILED: _ClassVar[HandoffState]
    HANDOFF_STATE_CANCELLED: _ClassVar[HandoffState]

class SenderView(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SENDER_VIEW_UNSPECIFIED: _ClassVar[SenderView]
    SENDER_VIEW_IDLE: _ClassVar[SenderView]
    SENDER_VIEW_HANDOFF_INITIATED: _ClassVar[SenderView]
    SENDER_VIEW_AWAITING_HANDOFF_ACCEPT: _ClassVar[SenderView]
    SENDER_VIEW_CONTEXT_PREPARING: _ClassVar[SenderView]
    SENDER_VIEW_AWAITING_CONTEXT_ACK: _ClassVar[SenderView]
    SENDER_VIEW_HANDOFF_COMPLETED: _ClassVar[SenderView]
    SENDER_VIEW_TASK_FINISHED: _ClassVar[SenderView]
    SENDER_VIEW_HANDOFF_REJECTED: _ClassVar[SenderView]
    SENDER_VIEW_HANDOFF_FAILED: _ClassVar[SenderView]

class ReceiverView(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECEIVER_VIEW_UNSPECIFIED: _ClassVar[ReceiverView]
    RECEIVER_VIEW_IDLE: _ClassVar[ReceiverView]
    RECEIVER_VIEW_HANDOFF_REQUESTED: _ClassVar[ReceiverView]
    RECEIVER_VIEW_AWAITING_DECISION: _ClassVar[ReceiverView]
    RECEIVER_VIEW_AWAITING_CONTEXT_TRANSFER: _ClassVar[ReceiverView]
    RECEIVER_VIEW_CONTEXT_TRANSFERRED: _ClassVar[ReceiverView]
    RECEIVER_VIEW_HANDOFF_COMPLETED: _ClassVar[ReceiverView]
    RECEIVER_VIEW_ACTIVE: _ClassVar[ReceiverView]
    RECEIVER_VIEW_HANDOFF_REJECTED: _ClassVar[ReceiverView]
    RECEIVER_VIEW_HANDOFF_FAILED: _ClassVar[ReceiverView]
    RECEIVER_VIEW_HANDOFF_ACCEPTED: _ClassVar[ReceiverView]

class HandoffCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HANDOFF_CAUSE_UNSPECIFIED: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_REQUESTED: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_DELIVERED: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_ACCEPTED: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_REJECTED: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_ACCEPT_TIMEOUT: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_CONTEXT_STORED: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_CONTEXT_TIMEOUT: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_COMPLETED: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_COMPLETED_FAILURE: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_COMPLETE_TIMEOUT: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_WHOLE_TIMEOUT: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_CANCELLED: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_OWNERSHIP_MOVED: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_EXTENDED: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_UNDELIVERABLE: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_CANDIDATE_GONE: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_RECALLED: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_REASSIGNED: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_HELD: _ClassVar[HandoffCause]
    HANDOFF_CAUSE_TASK_CANCELED: _ClassVar[HandoffCause]

class OfferOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OFFER_OUTCOME_UNSPECIFIED: _ClassVar[OfferOutcome]
    OFFER_OUTCOME_PENDING: _ClassVar[OfferOutcome]
    OFFER_OUTCOME_ACCEPTED: _ClassVar[OfferOutcome]
    OFFER_OUTCOME_REJECTED: _ClassVar[OfferOutcome]
    OFFER_OUTCOME_TIMED_OUT: _ClassVar[OfferOutcome]
    OFFER_OUTCOME_WITHDRAWN: _ClassVar[OfferOutcome]
    OFFER_OUTCOME_UNDELIVERABLE: _ClassVar[OfferOutcome]
    OFFER_OUTCOME_GONE: _ClassVar[OfferOutcome]

class WaitingFor(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAITING_FOR_UNSPECIFIED: _ClassVar[WaitingFor]
    WAITING_FOR_CAPACITY: _ClassVar[WaitingFor]
    WAITING_FOR_RETRY_TIME: _ClassVar[WaitingFor]
    WAITING_FOR_AGENT: _ClassVar[WaitingFor]
    WAITING_FOR_DELIVER_AFTER: _ClassVar[WaitingFor]
HANDOFF_REASON_UNSPECIFIED: HandoffReason
HANDOFF_REASON_SKILL: HandoffReason
HANDOFF_REASON_LOAD: HandoffReason
HANDOFF_REASON_ESCALATION: HandoffReason
HANDOFF_REASON_WORKFLOW: HandoffReason
HANDOFF_REASON_USER_REQUEST: HandoffReason
HANDOFF_REASON_SHUTDOWN: HandoffReason
HANDOFF_REASON_PERMISSION: HandoffReason
HANDOFF_REASON_OTHER: HandoffReason
REJECT_REASON_UNSPECIFIED: RejectReason
REJECT_REASON_NO_SKILL: RejectReason
REJECT_REASON_OVERLOADED: RejectReason
REJECT_REASON_NO_PERMISSION: RejectReason
REJECT_REASON_WRONG_TASK_TYPE: RejectReason
REJECT_REASON_SHUTDOWN: RejectReason
REJECT_REASON_TOO_LITTLE_TIME: RejectReason
REJECT_REASON_OTHER: RejectReason
PRIORITY_UNSPECIFIED: Priority
PRIORITY_LOW: Priority
PRIORITY_MEDIUM: Priority
PRIORITY_HIGH: Priority
PRIORITY_CRITICAL: Priority
HANDOFF_MODE_UNSPECIFIED: HandoffMode
HANDOFF_MODE_TRANSFER: HandoffMode
HANDOFF_MODE_DELEGATE: HandoffMode
HANDOFF_OUTCOME_UNSPECIFIED: HandoffOutcome
HANDOFF_OUTCOME_SUCCESS: HandoffOutcome
HANDOFF_OUTCOME_FAILURE: HandoffOutcome
HANDOFF_STATE_UNSPECIFIED: HandoffState
HANDOFF_STATE_REQUESTED: HandoffState
HANDOFF_STATE_DECIDING: HandoffState
HANDOFF_STATE_ACCEPTED: HandoffState
HANDOFF_STATE_CONTEXT_SENT: HandoffState
HANDOFF_STATE_COMPLETED: HandoffState
HANDOFF_STATE_REJECTED: HandoffState
HANDOFF_STATE_FAILED: HandoffState
HANDOFF_STATE_CANCELLED: HandoffState
SENDER_VIEW_UNSPECIFIED: SenderView
SENDER_VIEW_IDLE: SenderView
SENDER_VIEW_HANDOFF_INITIATED: SenderView
SENDER_VIEW_AWAITING_HANDOFF_ACCEPT: SenderView
SENDER_VIEW_CONTEXT_PREPARING: SenderView
SENDER_VIEW_AWAITING_CONTEXT_ACK: SenderView
SENDER_VIEW_HANDOFF_COMPLETED: SenderView
SENDER_VIEW_TASK_FINISHED: SenderView
SENDER_VIEW_HANDOFF_REJECTED: SenderView
SENDER_VIEW_HANDOFF_FAILED: SenderView
RECEIVER_VIEW_UNSPECIFIED: ReceiverView
RECEIVER_VIEW_IDLE: ReceiverView
RECEIVER_VIEW_HANDOFF_REQUESTED: ReceiverView
RECEIVER_VIEW_AWAITING_DECISION: ReceiverView
RECEIVER_VIEW_AWAITING_CONTEXT_TRANSFER: ReceiverView
RECEIVER_VIEW_CONTEXT_TRANSFERRED: ReceiverView
RECEIVER_VIEW_HANDOFF_COMPLETED: ReceiverView
RECEIVER_VIEW_ACTIVE: ReceiverView
RECEIVER_VIEW_HANDOFF_REJECTED: ReceiverView
RECEIVER_VIEW_HANDOFF_FAILED: ReceiverView
RECEIVER_VIEW_HANDOFF_ACCEPTED: ReceiverView
HANDOFF_CAUSE_UNSPECIFIED: HandoffCause
HANDOFF_CAUSE_REQUESTED: HandoffCause
HANDOFF_CAUSE_DELIVERED: HandoffCause
HANDOFF_CAUSE_ACCEPTED: HandoffCause
HANDOFF_CAUSE_REJECTED: HandoffCause
HANDOFF_CAUSE_ACCEPT_TIMEOUT: HandoffCause
HANDOFF_CAUSE_CONTEXT_STORED: HandoffCause
HANDOFF_CAUSE_CONTEXT_TIMEOUT: HandoffCause
HANDOFF_CAUSE_COMPLETED: HandoffCause
HANDOFF_CAUSE_COMPLETED_FAILURE: HandoffCause
HANDOFF_CAUSE_COMPLETE_TIMEOUT: HandoffCause
HANDOFF_CAUSE_WHOLE_TIMEOUT: HandoffCause
HANDOFF_CAUSE_CANCELLED: HandoffCause
HANDOFF_CAUSE_OWNERSHIP_MOVED: HandoffCause
HANDOFF_CAUSE_EXTENDED: HandoffCause
HANDOFF_CAUSE_UNDELIVERABLE: HandoffCause
HANDOFF_CAUSE_CANDIDATE_GONE: HandoffCause
HANDOFF_CAUSE_RECALLED: HandoffCause
HANDOFF_CAUSE_REASSIGNED: HandoffCause
HANDOFF_CAUSE_HELD: HandoffCause
HANDOFF_CAUSE_TASK_CANCELED: HandoffCause
OFFER_OUTCOME_UNSPECIFIED: OfferOutcome
OFFER_OUTCOME_PENDING: OfferOutcome
OFFER_OUTCOME_ACCEPTED: OfferOutcome
OFFER_OUTCOME_REJECTED: OfferOutcome
OFFER_OUTCOME_TIMED_OUT: OfferOutcome
OFFER_OUTCOME_WITHDRAWN: OfferOutcome
OFFER_OUTCOME_UNDELIVERABLE: OfferOutcome
OFFER_OUTCOME_GONE: OfferOutcome
WAITING_FOR_UNSPECIFIED: WaitingFor
WAITING_FOR_CAPACITY: WaitingFor
WAITING_FOR_RETRY_TIME: WaitingFor
WAITING_FOR_AGENT: WaitingFor
WAITING_FOR_DELIVER_AFTER: WaitingFor

class HandoffRequest(_message.Message):
    __slots__ = ("task_type", "reason", "reason_text", "desired_agent_type", "priority", "initial_context_summary", "required_skills", "fallback_candidates", "timeouts", "mode", "loop_limits", "on_behalf_of", "loan_timeout", "routing", "parent_task_id", "fairness_key", "wait_for_agent", "silence_timeout", "return_when_abandoned", "loan_timeout_max", "deliver_after", "conversation_id", "thread_id")
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    DESIRED_AGENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    INITIAL_CONTEXT_SUMMARY_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_SKILLS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUTS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    LOOP_LIMITS_FIELD_NUMBER: _ClassVar[int]
    ON_BEHALF_OF_FIELD_NUMBER: _ClassVar[int]
    LOAN_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    PARENT_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_KEY_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_AGENT_FIELD_NUMBER: _ClassVar[int]
    SILENCE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    RETURN_WHEN_ABANDONED_FIELD_NUMBER: _ClassVar[int]
    LOAN_TIMEOUT_MAX_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AFTER_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    task_type: str
    reason: HandoffReason
    reason_text: str
    desired_agent_type: str
    priority: Priority
    initial_context_summary: str
    required_skills: _containers.RepeatedScalarFieldContainer[str]
    fallback_candidates: _containers.RepeatedScalarFieldContainer[str]
    timeouts: HandoffTimeouts
    mode: HandoffMode
    loop_limits: LoopLimits
    on_behalf_of: OnBehalfOf
    loan_timeout: _duration_pb2.Duration
    routing: RoutingRef
    parent_task_id: str
    fairness_key: str
    wait_for_agent: bool
    silence_timeout: _duration_pb2.Duration
    return_when_abandoned: bool
    loan_timeout_max: _duration_pb2.Duration
    deliver_after: _timestamp_pb2.Timestamp
    conversation_id: str
    thread_id: str
    def __init__(self, task_type: _Optional[str] = ..., reason: _Optional[_Union[HandoffReason, str]] = ..., reason_text: _Optional[str] = ..., desired_agent_type: _Optional[str] = ..., priority: _Optional[_Union[Priority, str]] = ..., initial_context_summary: _Optional[str] = ..., required_skills: _Optional[_Iterable[str]] = ..., fallback_candidates: _Optional[_Iterable[str]] = ..., timeouts: _Optional[_Union[HandoffTimeouts, _Mapping]] = ..., mode: _Optional[_Union[HandoffMode, str]] = ..., loop_limits: _Optional[_Union[LoopLimits, _Mapping]] = ..., on_behalf_of: _Optional[_Union[OnBehalfOf, _Mapping]] = ..., loan_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., routing: _Optional[_Union[RoutingRef, _Mapping]] = ..., parent_task_id: _Optional[str] = ..., fairness_key: _Optional[str] = ..., wait_for_agent: bool = ..., silence_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., return_when_abandoned: bool = ..., loan_timeout_max: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., deliver_after: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., conversation_id: _Optional[str] = ..., thread_id: _Optional[str] = ...) -> None: ...

class RoutingRef(_message.Message):
    __slots__ = ("run_id", "choice_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    choice_id: str
    def __init__(self, run_id: _Optional[str] = ..., choice_id: _Optional[str] = ...) -> None: ...

class OnBehalfOf(_message.Message):
    __slots__ = ("submitter_id", "plan_id", "subtask_id", "submission_sha256")
    SUBMITTER_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_SHA256_FIELD_NUMBER: _ClassVar[int]
    submitter_id: str
    plan_id: str
    subtask_id: str
    submission_sha256: bytes
    def __init__(self, submitter_id: _Optional[str] = ..., plan_id: _Optional[str] = ..., subtask_id: _Optional[str] = ..., submission_sha256: _Optional[bytes] = ...) -> None: ...

class HandoffAccept(_message.Message):
    __slots__ = ("estimated_handoff_time", "wanted_sections", "wishes")
    ESTIMATED_HANDOFF_TIME_FIELD_NUMBER: _ClassVar[int]
    WANTED_SECTIONS_FIELD_NUMBER: _ClassVar[int]
    WISHES_FIELD_NUMBER: _ClassVar[int]
    estimated_handoff_time: _duration_pb2.Duration
    wanted_sections: _containers.RepeatedScalarFieldContainer[str]
    wishes: _containers.RepeatedCompositeFieldContainer[SectionWish]
    def __init__(self, estimated_handoff_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., wanted_sections: _Optional[_Iterable[str]] = ..., wishes: _Optional[_Iterable[_Union[SectionWish, _Mapping]]] = ...) -> None: ...

class SectionWish(_message.Message):
    __slots__ = ("name", "have_sha256", "filter", "schema_versions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HAVE_SHA256_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    have_sha256: bytes
    filter: _context_pb2.ContextFilter
    schema_versions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., have_sha256: _Optional[bytes] = ..., filter: _Optional[_Union[_context_pb2.ContextFilter, _Mapping]] = ..., schema_versions: _Optional[_Iterable[str]] = ...) -> None: ...

class HandoffReject(_message.Message):
    __slots__ = ("reason", "reason_text", "retry_after", "alternative_agent_suggestions")
    REASON_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVE_AGENT_SUGGESTIONS_FIELD_NUMBER: _ClassVar[int]
    reason: RejectReason
    reason_text: str
    retry_after: _duration_pb2.Duration
    alternative_agent_suggestions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, reason: _Optional[_Union[RejectReason, str]] = ..., reason_text: _Optional[str] = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., alternative_agent_suggestions: _Optional[_Iterable[str]] = ...) -> None: ...

class HandoffCancel(_message.Message):
    __slots__ = ("reason_text",)
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    reason_text: str
    def __init__(self, reason_text: _Optional[str] = ...) -> None: ...

class TaskRecall(_message.Message):
    __slots__ = ("reason_text",)
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    reason_text: str
    def __init__(self, reason_text: _Optional[str] = ...) -> None: ...

class HandoffComplete(_message.Message):
    __slots__ = ("outcome", "context_digest", "details")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    outcome: HandoffOutcome
    context_digest: bytes
    details: str
    def __init__(self, outcome: _Optional[_Union[HandoffOutcome, str]] = ..., context_digest: _Optional[bytes] = ..., details: _Optional[str] = ...) -> None: ...

class HandoffTimeouts(_message.Message):
    __slots__ = ("accept", "context", "complete", "whole")
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    accept: _duration_pb2.Duration
    context: _duration_pb2.Duration
    complete: _duration_pb2.Duration
    whole: _duration_pb2.Duration
    def __init__(self, accept: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., context: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., complete: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., whole: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class LoopLimits(_message.Message):
    __slots__ = ("max_handoffs", "max_handoffs_per_pair")
    MAX_HANDOFFS_FIELD_NUMBER: _ClassVar[int]
    MAX_HANDOFFS_PER_PAIR_FIELD_NUMBER: _ClassVar[int]
    max_handoffs: int
    max_handoffs_per_pair: int
    def __init__(self, max_handoffs: _Optional[int] = ..., max_handoffs_per_pair: _Optional[int] = ...) -> None: ...

class HandoffOffer(_message.Message):
    __slots__ = ("candidate_id", "offer_time", "outcome", "reject_reason", "reason_text", "retry_time", "passed_over")
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFER_TIME_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REJECT_REASON_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    RETRY_TIME_FIELD_NUMBER: _ClassVar[int]
    PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    candidate_id: str
    offer_time: _timestamp_pb2.Timestamp
    outcome: OfferOutcome
    reject_reason: RejectReason
    reason_text: str
    retry_time: _timestamp_pb2.Timestamp
    passed_over: bool
    def __init__(self, candidate_id: _Optional[str] = ..., offer_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., outcome: _Optional[_Union[OfferOutcome, str]] = ..., reject_reason: _Optional[_Union[RejectReason, str]] = ..., reason_text: _Optional[str] = ..., retry_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., passed_over: bool = ...) -> None: ...

class HandoffTransition(_message.Message):
    __slots__ = ("transition_time", "cause", "state", "sender_view", "receiver_view", "candidate_id")
    TRANSITION_TIME_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SENDER_VIEW_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_VIEW_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    transition_time: _timestamp_pb2.Timestamp
    cause: HandoffCause
    state: HandoffState
    sender_view: SenderView
    receiver_view: ReceiverView
    candidate_id: str
    def __init__(self, transition_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., cause: _Optional[_Union[HandoffCause, str]] = ..., state: _Optional[_Union[HandoffState, str]] = ..., sender_view: _Optional[_Union[SenderView, str]] = ..., receiver_view: _Optional[_Union[ReceiverView, str]] = ..., candidate_id: _Optional[str] = ...) -> None: ...

class Handoff(_message.Message):
    __slots__ = ("handoff_id", "task_id", "epoch", "sender_id", "receiver_id", "candidate_id", "state", "sender_view", "receiver_view", "mode", "priority", "task_type", "reason", "deadline", "whole_deadline", "create_time", "update_time", "offers", "next_candidates", "transitions", "wanted_sections", "context_digest", "error_code", "error_message", "redrive_of_handoff_id", "loan_timeout", "initial_context_summary", "reason_text", "desired_agent_type", "estimated_handoff_time", "submitter_id", "routing", "waiting_for", "thread_id")
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SENDER_VIEW_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_VIEW_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    WANTED_SECTIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REDRIVE_OF_HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    LOAN_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    INITIAL_CONTEXT_SUMMARY_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    DESIRED_AGENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_HANDOFF_TIME_FIELD_NUMBER: _ClassVar[int]
    SUBMITTER_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    handoff_id: str
    task_id: str
    epoch: int
    sender_id: str
    receiver_id: str
    candidate_id: str
    state: HandoffState
    sender_view: SenderView
    receiver_view: ReceiverView
    mode: HandoffMode
    priority: Priority
    task_type: str
    reason: HandoffReason
    deadline: _timestamp_pb2.Timestamp
    whole_deadline: _timestamp_pb2.Timestamp
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    offers: _containers.RepeatedCompositeFieldContainer[HandoffOffer]
    next_candidates: _containers.RepeatedScalarFieldContainer[str]
    transitions: _containers.RepeatedCompositeFieldContainer[HandoffTransition]
    wanted_sections: _containers.RepeatedScalarFieldContainer[str]
    context_digest: bytes
    error_code: _error_pb2.ErrorCode
    error_message: str
    redrive_of_handoff_id: str
    loan_timeout: _duration_pb2.Duration
    initial_context_summary: str
    reason_text: str
    desired_agent_type: str
    estimated_handoff_time: _duration_pb2.Duration
    submitter_id: str
    routing: RoutingRef
    waiting_for: WaitingFor
    thread_id: str
    def __init__(self, handoff_id: _Optional[str] = ..., task_id: _Optional[str] = ..., epoch: _Optional[int] = ..., sender_id: _Optional[str] = ..., receiver_id: _Optional[str] = ..., candidate_id: _Optional[str] = ..., state: _Optional[_Union[HandoffState, str]] = ..., sender_view: _Optional[_Union[SenderView, str]] = ..., receiver_view: _Optional[_Union[ReceiverView, str]] = ..., mode: _Optional[_Union[HandoffMode, str]] = ..., priority: _Optional[_Union[Priority, str]] = ..., task_type: _Optional[str] = ..., reason: _Optional[_Union[HandoffReason, str]] = ..., deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., whole_deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., offers: _Optional[_Iterable[_Union[HandoffOffer, _Mapping]]] = ..., next_candidates: _Optional[_Iterable[str]] = ..., transitions: _Optional[_Iterable[_Union[HandoffTransition, _Mapping]]] = ..., wanted_sections: _Optional[_Iterable[str]] = ..., context_digest: _Optional[bytes] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ..., error_message: _Optional[str] = ..., redrive_of_handoff_id: _Optional[str] = ..., loan_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., initial_context_summary: _Optional[str] = ..., reason_text: _Optional[str] = ..., desired_agent_type: _Optional[str] = ..., estimated_handoff_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., submitter_id: _Optional[str] = ..., routing: _Optional[_Union[RoutingRef, _Mapping]] = ..., waiting_for: _Optional[_Union[WaitingFor, str]] = ..., thread_id: _Optional[str] = ...) -> None: ...
