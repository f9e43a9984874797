from baton._gen.baton.v1 import broker_service_pb2 as _broker_service_pb2
from baton._gen.baton.v1 import envelope_pb2 as _envelope_pb2
from baton._gen.baton.v1 import plan_pb2 as _plan_pb2
from baton._gen.baton.v1 import task_service_pb2 as _task_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ValidatePlanRequest(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: _plan_pb2.Plan
    def __init__(self, plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ...) -> None: ...

class ValidatePlanResponse(_message.Message):
    __slots__ = ("problems",)
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    problems: _containers.RepeatedCompositeFieldContainer[_plan_pb2.PlanProblem]
    def __init__(self, problems: _Optional[_Iterable[_Union[_plan_pb2.PlanProblem, _Mapping]]] = ...) -> None: ...

class SubmitPlanRequest(_message.Message):
    __slots__ = ("envelope",)
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    envelope: _envelope_pb2.Envelope
    def __init__(self, envelope: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ...) -> None: ...

class SubmitPlanResponse(_message.Message):
    __slots__ = ("receipt", "plan")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    receipt: _broker_service_pb2.Receipt
    plan: _plan_pb2.PlanRun
    def __init__(self, receipt: _Optional[_Union[_broker_service_pb2.Receipt, _Mapping]] = ..., plan: _Optional[_Union[_plan_pb2.PlanRun, _Mapping]] = ...) -> None: ...

class ExtendPlanRequest(_message.Message):
    __slots__ = ("envelope",)
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    envelope: _envelope_pb2.Envelope
    def __init__(self, envelope: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ...) -> None: ...

class ExtendPlanResponse(_message.Message):
    __slots__ = ("receipt", "plan")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    receipt: _broker_service_pb2.Receipt
    plan: _plan_pb2.PlanRun
    def __init__(self, receipt: _Optional[_Union[_broker_service_pb2.Receipt, _Mapping]] = ..., plan: _Optional[_Union[_plan_pb2.PlanRun, _Mapping]] = ...) -> None: ...

class GetPlanRequest(_message.Message):
    __slots__ = ("plan_id", "include_submission", "extension_id")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    EXTENSION_ID_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    include_submission: bool
    extension_id: str
    def __init__(self, plan_id: _Optional[str] = ..., include_submission: bool = ..., extension_id: _Optional[str] = ...) -> None: ...

class GetPlanResponse(_message.Message):
    __slots__ = ("plan", "submission")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    plan: _plan_pb2.PlanRun
    submission: _envelope_pb2.Envelope
    def __init__(self, plan: _Optional[_Union[_plan_pb2.PlanRun, _Mapping]] = ..., submission: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ...) -> None: ...

class ListPlansRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "states")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    states: _containers.RepeatedScalarFieldContainer[_plan_pb2.PlanState]
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., states: _Optional[_Iterable[_Union[_plan_pb2.PlanState, str]]] = ...) -> None: ...

class ListPlansResponse(_message.Message):
    __slots__ = ("plans", "next_page_token")
    PLANS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    plans: _containers.RepeatedCompositeFieldContainer[_plan_pb2.PlanRun]
    next_page_token: str
    def __init__(self, plans: _Optional[_Iterable[_Union[_plan_pb2.PlanRun, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListPlanResultsRequest(_message.Message):
    __slots__ = ("plan_id", "page_size", "page_token")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    page_size: int
    page_token: str
    def __init__(self, plan_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListPlanResultsResponse(_message.Message):
    __slots__ = ("results", "next_page_token")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[_plan_pb2.SubtaskResult]
    next_page_token: str
    def __init__(self, results: _Optional[_Iterable[_Union[_plan_pb2.SubtaskResult, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchPlanRequest(_message.Message):
    __slots__ = ("plan_id", "after_number")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    after_number: int
    def __init__(self, plan_id: _Optional[str] = ..., after_number: _Optional[int] = ...) -> None: ...

class WatchPlanResponse(_message.Message):
    __slots__ = ("entry", "gap", "caught_up")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    entry: _plan_pb2.PlanEntry
    gap: _task_service_pb2.WatchGap
    caught_up: PlanCaughtUp
    def __init__(self, entry: _Optional[_Union[_plan_pb2.PlanEntry, _Mapping]] = ..., gap: _Optional[_Union[_task_service_pb2.WatchGap, _Mapping]] = ..., caught_up: _Optional[_Union[PlanCaughtUp, _Mapping]] = ...) -> None: ...

class PlanCaughtUp(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class CancelPlanRequest(_message.Message):
    __slots__ = ("plan_id", "reason_text")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    reason_text: str
    def __init__(self, plan_id: _Optional[str] = ..., reason_text: _Optional[str] = ...) -> None: ...

class CancelPlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: _plan_pb2.PlanRun
    def __init__(self, plan: _Optional[_Union[_plan_pb2.PlanRun, _Mapping]] = ...) -> None: ...

class RetryPlanRequest(_message.Message):
    __slots__ = ("plan_id",)
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    def __init__(self, plan_id: _Optional[str] = ...) -> None: ...

class RetryPlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: _plan_pb2.PlanRun
    def __init__(self, plan: _Optional[_Union[_plan_pb2.PlanRun, _Mapping]] = ...) -> None: ...

class CancelSubtaskRequest(_message.Message):
    __slots__ = ("plan_id", "subtask_id", "reason_text")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    subtask_id: str
    reason_text: str
    def __init__(self, plan_id: _Optional[str] = ..., subtask_id: _Optional[str] = ..., reason_text: _Optional[str] = ...) -> None: ...

class CancelSubtaskResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: _plan_pb2.PlanRun
    def __init__(self, plan: _Optional[_Union[_plan_pb2.PlanRun, _Mapping]] = ...) -> None: ...

class RetrySubtaskRequest(_message.Message):
    __slots__ = ("plan_id", "subtask_id")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    subtask_id: str
    def __init__(self, plan_id: _Optional[str] = ..., subtask_id: _Optional[str] = ...) -> None: ...

class RetrySubtaskResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: _plan_pb2.PlanRun
    def __init__(self, plan: _Optional[_Union[_plan_pb2.PlanRun, _Mapping]] = ...) -> None: ...

class ReassignSubtaskRequest(_message.Message):
    __slots__ = ("plan_id", "subtask_id", "to", "reason_text")
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    plan_id: str
    subtask_id: str
    to: str
    reason_text: str
    def __init__(self, plan_id: _Optional[str] = ..., subtask_id: _Optional[str] = ..., to: _Optional[str] = ..., reason_text: _Optional[str] = ...) -> None: ...

class ReassignSubtaskResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: _plan_pb2.PlanRun
    def __init__(self, plan: _Optional[_Union[_plan_pb2.PlanRun, _Mapping]] = ...) -> None: ...
