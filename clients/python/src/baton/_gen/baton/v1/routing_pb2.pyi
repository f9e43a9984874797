from baton._gen.baton.v1 import error_pb2 as _error_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProblemSeverity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROBLEM_SEVERITY_UNSPECIFIED: _ClassVar[ProblemSeverity]
    PROBLEM_SEVERITY_ERROR: _ClassVar[ProblemSeverity]
    PROBLEM_SEVERITY_WARNING: _ClassVar[ProblemSeverity]
    PROBLEM_SEVERITY_INFO: _ClassVar[ProblemSeverity]

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    RUN_STATE_RUNNING: _ClassVar[RunState]
    RUN_STATE_COMPLETED: _ClassVar[RunState]
    RUN_STATE_FAILED: _ClassVar[RunState]
    RUN_STATE_CANCELLED: _ClassVar[RunState]

class NodeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_STATE_UNSPECIFIED: _ClassVar[NodeState]
    NODE_STATE_IDLE: _ClassVar[NodeState]
    NODE_STATE_ACTIVE: _ClassVar[NodeState]
    NODE_STATE_MOVING: _ClassVar[NodeState]
    NODE_STATE_DONE: _ClassVar[NodeState]

class TurnOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TURN_OUTCOME_UNSPECIFIED: _ClassVar[TurnOutcome]
    TURN_OUTCOME_RECORDED: _ClassVar[TurnOutcome]
    TURN_OUTCOME_CHOSEN: _ClassVar[TurnOutcome]
    TURN_OUTCOME_PROPOSED: _ClassVar[TurnOutcome]
    TURN_OUTCOME_FINISHED: _ClassVar[TurnOutcome]
    TURN_OUTCOME_REFUSED: _ClassVar[TurnOutcome]
    TURN_OUTCOME_WITHDRAWN: _ClassVar[TurnOutcome]
PROBLEM_SEVERITY_UNSPECIFIED: ProblemSeverity
PROBLEM_SEVERITY_ERROR: ProblemSeverity
PROBLEM_SEVERITY_WARNING: ProblemSeverity
PROBLEM_SEVERITY_INFO: ProblemSeverity
RUN_STATE_UNSPECIFIED: RunState
RUN_STATE_RUNNING: RunState
RUN_STATE_COMPLETED: RunState
RUN_STATE_FAILED: RunState
RUN_STATE_CANCELLED: RunState
NODE_STATE_UNSPECIFIED: NodeState
NODE_STATE_IDLE: NodeState
NODE_STATE_ACTIVE: NodeState
NODE_STATE_MOVING: NodeState
NODE_STATE_DONE: NodeState
TURN_OUTCOME_UNSPECIFIED: TurnOutcome
TURN_OUTCOME_RECORDED: TurnOutcome
TURN_OUTCOME_CHOSEN: TurnOutcome
TURN_OUTCOME_PROPOSED: TurnOutcome
TURN_OUTCOME_FINISHED: TurnOutcome
TURN_OUTCOME_REFUSED: TurnOutcome
TURN_OUTCOME_WITHDRAWN: TurnOutcome

class Graph(_message.Message):
    __slots__ = ("graph_id", "description", "nodes", "entry_node_ids", "steps_max", "revision")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ENTRY_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_MAX_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    graph_id: str
    description: str
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    entry_node_ids: _containers.RepeatedScalarFieldContainer[str]
    steps_max: int
    revision: int
    def __init__(self, graph_id: _Optional[str] = ..., description: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., entry_node_ids: _Optional[_Iterable[str]] = ..., steps_max: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("node_id", "description", "agent_id", "agent_type", "handoffs", "output_nodes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    HANDOFFS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_NODES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    description: str
    agent_id: str
    agent_type: str
    handoffs: int
    output_nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node_id: _Optional[str] = ..., description: _Optional[str] = ..., agent_id: _Optional[str] = ..., agent_type: _Optional[str] = ..., handoffs: _Optional[int] = ..., output_nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class GraphProblem(_message.Message):
    __slots__ = ("severity", "code", "field", "node_ids", "message")
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    severity: ProblemSeverity
    code: str
    field: str
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    message: str
    def __init__(self, severity: _Optional[_Union[ProblemSeverity, str]] = ..., code: _Optional[str] = ..., field: _Optional[str] = ..., node_ids: _Optional[_Iterable[str]] = ..., message: _Optional[str] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("run_id", "graph", "state", "step", "nodes", "starter_id", "task_id", "error_code", "error_message", "turns", "log_length", "create_time", "update_time", "deadline")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    STARTER_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    LOG_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    graph: Graph
    state: RunState
    step: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeRun]
    starter_id: str
    task_id: str
    error_code: _error_pb2.ErrorCode
    error_message: str
    turns: int
    log_length: int
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    deadline: _timestamp_pb2.Timestamp
    def __init__(self, run_id: _Optional[str] = ..., graph: _Optional[_Union[Graph, _Mapping]] = ..., state: _Optional[_Union[RunState, str]] = ..., step: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeRun, _Mapping]]] = ..., starter_id: _Optional[str] = ..., task_id: _Optional[str] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ..., error_message: _Optional[str] = ..., turns: _Optional[int] = ..., log_length: _Optional[int] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., deadline: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class NodeRun(_message.Message):
    __slots__ = ("node_id", "state", "choices", "remaining", "choice_id", "handoff_id", "handoff_receiver_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    CHOICE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    state: NodeState
    choices: int
    remaining: int
    choice_id: str
    handoff_id: str
    handoff_receiver_id: str
    def __init__(self, node_id: _Optional[str] = ..., state: _Optional[_Union[NodeState, str]] = ..., choices: _Optional[int] = ..., remaining: _Optional[int] = ..., choice_id: _Optional[str] = ..., handoff_id: _Optional[str] = ..., handoff_receiver_id: _Optional[str] = ...) -> None: ...

class NodeTool(_message.Message):
    __slots__ = ("name", "node_id", "description")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    node_id: str
    description: str
    def __init__(self, name: _Optional[str] = ..., node_id: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class NodeOutput(_message.Message):
    __slots__ = ("node_id", "output", "error", "entry_number", "omitted")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ENTRY_NUMBER_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    output: str
    error: str
    entry_number: int
    omitted: bool
    def __init__(self, node_id: _Optional[str] = ..., output: _Optional[str] = ..., error: _Optional[str] = ..., entry_number: _Optional[int] = ..., omitted: bool = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("call_id", "name", "arguments_json")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    name: str
    arguments_json: str
    def __init__(self, call_id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class ToolResult(_message.Message):
    __slots__ = ("call_id", "is_error", "text")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    is_error: bool
    text: str
    def __init__(self, call_id: _Optional[str] = ..., is_error: bool = ..., text: _Optional[str] = ...) -> None: ...

class RoutingChoice(_message.Message):
    __slots__ = ("choice_id", "node_id", "target_node_id", "reason", "handoff_receiver_id")
    CHOICE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    choice_id: str
    node_id: str
    target_node_id: str
    reason: str
    handoff_receiver_id: str
    def __init__(self, choice_id: _Optional[str] = ..., node_id: _Optional[str] = ..., target_node_id: _Optional[str] = ..., reason: _Optional[str] = ..., handoff_receiver_id: _Optional[str] = ...) -> None: ...

class RunProposal(_message.Message):
    __slots__ = ("node_id", "choice_id", "handoff_receiver_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    choice_id: str
    handoff_receiver_id: str
    def __init__(self, node_id: _Optional[str] = ..., choice_id: _Optional[str] = ..., handoff_receiver_id: _Optional[str] = ...) -> None: ...

class RunTurn(_message.Message):
    __slots__ = ("turn_id", "node_id", "reporter_id", "calls", "finished", "output", "error", "outcome", "choice", "error_code", "results", "remaining", "active_node_ids", "proposal")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REPORTER_ID_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    node_id: str
    reporter_id: str
    calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    finished: bool
    output: str
    error: str
    outcome: TurnOutcome
    choice: RoutingChoice
    error_code: _error_pb2.ErrorCode
    results: _containers.RepeatedCompositeFieldContainer[ToolResult]
    remaining: int
    active_node_ids: _containers.RepeatedScalarFieldContainer[str]
    proposal: RunProposal
    def __init__(self, turn_id: _Optional[str] = ..., node_id: _Optional[str] = ..., reporter_id: _Optional[str] = ..., calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., finished: bool = ..., output: _Optional[str] = ..., error: _Optional[str] = ..., outcome: _Optional[_Union[TurnOutcome, str]] = ..., choice: _Optional[_Union[RoutingChoice, _Mapping]] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ..., results: _Optional[_Iterable[_Union[ToolResult, _Mapping]]] = ..., remaining: _Optional[int] = ..., active_node_ids: _Optional[_Iterable[str]] = ..., proposal: _Optional[_Union[RunProposal, _Mapping]] = ...) -> None: ...

class RunStarted(_message.Message):
    __slots__ = ("starter_id",)
    STARTER_ID_FIELD_NUMBER: _ClassVar[int]
    starter_id: str
    def __init__(self, starter_id: _Optional[str] = ...) -> None: ...

class RunStepBegan(_message.Message):
    __slots__ = ("step", "node_ids")
    STEP_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    step: int
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, step: _Optional[int] = ..., node_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RunHandoff(_message.Message):
    __slots__ = ("node_id", "choice_id", "handoff_id", "owner_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    choice_id: str
    handoff_id: str
    owner_id: str
    def __init__(self, node_id: _Optional[str] = ..., choice_id: _Optional[str] = ..., handoff_id: _Optional[str] = ..., owner_id: _Optional[str] = ...) -> None: ...

class RunChoiceGivenUp(_message.Message):
    __slots__ = ("node_id", "choice_id", "error_code")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    choice_id: str
    error_code: _error_pb2.ErrorCode
    def __init__(self, node_id: _Optional[str] = ..., choice_id: _Optional[str] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ...) -> None: ...

class RunTaskMoved(_message.Message):
    __slots__ = ("owner_id",)
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    owner_id: str
    def __init__(self, owner_id: _Optional[str] = ...) -> None: ...

class RunEnded(_message.Message):
    __slots__ = ("state", "error_code", "error_message")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    state: RunState
    error_code: _error_pb2.ErrorCode
    error_message: str
    def __init__(self, state: _Optional[_Union[RunState, str]] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class RunEntry(_message.Message):
    __slots__ = ("number", "entry_time", "started", "step_began", "turn", "handoff_began", "handoff_ended", "ended", "choice_given_up", "task_moved", "handoff_proposed")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_TIME_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    STEP_BEGAN_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_BEGAN_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ENDED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    TASK_MOVED_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_PROPOSED_FIELD_NUMBER: _ClassVar[int]
    number: int
    entry_time: _timestamp_pb2.Timestamp
    started: RunStarted
    step_began: RunStepBegan
    turn: RunTurn
    handoff_began: RunHandoff
    handoff_ended: RunHandoff
    ended: RunEnded
    choice_given_up: RunChoiceGivenUp
    task_moved: RunTaskMoved
    handoff_proposed: RunProposal
    def __init__(self, number: _Optional[int] = ..., entry_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., started: _Optional[_Union[RunStarted, _Mapping]] = ..., step_began: _Optional[_Union[RunStepBegan, _Mapping]] = ..., turn: _Optional[_Union[RunTurn, _Mapping]] = ..., handoff_began: _Optional[_Union[RunHandoff, _Mapping]] = ..., handoff_ended: _Optional[_Union[RunHandoff, _Mapping]] = ..., ended: _Optional[_Union[RunEnded, _Mapping]] = ..., choice_given_up: _Optional[_Union[RunChoiceGivenUp, _Mapping]] = ..., task_moved: _Optional[_Union[RunTaskMoved, _Mapping]] = ..., handoff_proposed: _Optional[_Union[RunProposal, _Mapping]] = ...) -> None: ...
