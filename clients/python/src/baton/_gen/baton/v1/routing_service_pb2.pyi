from baton._gen.baton.v1 import error_pb2 as _error_pb2
from baton._gen.baton.v1 import handoff_pb2 as _handoff_pb2
from baton._gen.baton.v1 import registry_service_pb2 as _registry_service_pb2
from baton._gen.baton.v1 import routing_pb2 as _routing_pb2
from baton._gen.baton.v1 import task_service_pb2 as _task_service_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToolShape(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_SHAPE_UNSPECIFIED: _ClassVar[ToolShape]
    TOOL_SHAPE_OPENAI: _ClassVar[ToolShape]
    TOOL_SHAPE_ANTHROPIC: _ClassVar[ToolShape]
    TOOL_SHAPE_MCP: _ClassVar[ToolShape]
TOOL_SHAPE_UNSPECIFIED: ToolShape
TOOL_SHAPE_OPENAI: ToolShape
TOOL_SHAPE_ANTHROPIC: ToolShape
TOOL_SHAPE_MCP: ToolShape

class RegisterGraphRequest(_message.Message):
    __slots__ = ("graph", "etag")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    graph: _routing_pb2.Graph
    etag: str
    def __init__(self, graph: _Optional[_Union[_routing_pb2.Graph, _Mapping]] = ..., etag: _Optional[str] = ...) -> None: ...

class RegisterGraphResponse(_message.Message):
    __slots__ = ("graph", "problems", "registration")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    graph: _routing_pb2.Graph
    problems: _containers.RepeatedCompositeFieldContainer[_routing_pb2.GraphProblem]
    registration: _registry_service_pb2.Registration
    def __init__(self, graph: _Optional[_Union[_routing_pb2.Graph, _Mapping]] = ..., problems: _Optional[_Iterable[_Union[_routing_pb2.GraphProblem, _Mapping]]] = ..., registration: _Optional[_Union[_registry_service_pb2.Registration, _Mapping]] = ...) -> None: ...

class ValidateGraphRequest(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: _routing_pb2.Graph
    def __init__(self, graph: _Optional[_Union[_routing_pb2.Graph, _Mapping]] = ...) -> None: ...

class ValidateGraphResponse(_message.Message):
    __slots__ = ("problems",)
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    problems: _containers.RepeatedCompositeFieldContainer[_routing_pb2.GraphProblem]
    def __init__(self, problems: _Optional[_Iterable[_Union[_routing_pb2.GraphProblem, _Mapping]]] = ...) -> None: ...

class GetGraphRequest(_message.Message):
    __slots__ = ("graph_id",)
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    graph_id: str
    def __init__(self, graph_id: _Optional[str] = ...) -> None: ...

class GetGraphResponse(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: _routing_pb2.Graph
    def __init__(self, graph: _Optional[_Union[_routing_pb2.Graph, _Mapping]] = ...) -> None: ...

class ListGraphsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListGraphsResponse(_message.Message):
    __slots__ = ("graphs", "next_page_token")
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    graphs: _containers.RepeatedCompositeFieldContainer[_routing_pb2.Graph]
    next_page_token: str
    def __init__(self, graphs: _Optional[_Iterable[_Union[_routing_pb2.Graph, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class StartRunRequest(_message.Message):
    __slots__ = ("graph_id", "run_id", "task_id", "whole_timeout")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WHOLE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    graph_id: str
    run_id: str
    task_id: str
    whole_timeout: _duration_pb2.Duration
    def __init__(self, graph_id: _Optional[str] = ..., run_id: _Optional[str] = ..., task_id: _Optional[str] = ..., whole_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class StartRunResponse(_message.Message):
    __slots__ = ("run", "handoff_proposal", "handoff_receiver_id")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    run: _routing_pb2.Run
    handoff_proposal: _handoff_pb2.HandoffRequest
    handoff_receiver_id: str
    def __init__(self, run: _Optional[_Union[_routing_pb2.Run, _Mapping]] = ..., handoff_proposal: _Optional[_Union[_handoff_pb2.HandoffRequest, _Mapping]] = ..., handoff_receiver_id: _Optional[str] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run", "handoff_proposal", "handoff_receiver_id")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    run: _routing_pb2.Run
    handoff_proposal: _handoff_pb2.HandoffRequest
    handoff_receiver_id: str
    def __init__(self, run: _Optional[_Union[_routing_pb2.Run, _Mapping]] = ..., handoff_proposal: _Optional[_Union[_handoff_pb2.HandoffRequest, _Mapping]] = ..., handoff_receiver_id: _Optional[str] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "graph_id", "task_id", "states")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    graph_id: str
    task_id: str
    states: _containers.RepeatedScalarFieldContainer[_routing_pb2.RunState]
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., graph_id: _Optional[str] = ..., task_id: _Optional[str] = ..., states: _Optional[_Iterable[_Union[_routing_pb2.RunState, str]]] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[_routing_pb2.Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[_routing_pb2.Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("run_id", "after_number")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    after_number: int
    def __init__(self, run_id: _Optional[str] = ..., after_number: _Optional[int] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("entry", "gap", "caught_up")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    entry: _routing_pb2.RunEntry
    gap: _task_service_pb2.WatchGap
    caught_up: RunCaughtUp
    def __init__(self, entry: _Optional[_Union[_routing_pb2.RunEntry, _Mapping]] = ..., gap: _Optional[_Union[_task_service_pb2.WatchGap, _Mapping]] = ..., caught_up: _Optional[_Union[RunCaughtUp, _Mapping]] = ...) -> None: ...

class RunCaughtUp(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("run_id", "reason_text")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    reason_text: str
    def __init__(self, run_id: _Optional[str] = ..., reason_text: _Optional[str] = ...) -> None: ...

class CancelRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _routing_pb2.Run
    def __init__(self, run: _Optional[_Union[_routing_pb2.Run, _Mapping]] = ...) -> None: ...

class GetNodeToolsRequest(_message.Message):
    __slots__ = ("run_id", "node_id", "shape")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    node_id: str
    shape: ToolShape
    def __init__(self, run_id: _Optional[str] = ..., node_id: _Optional[str] = ..., shape: _Optional[_Union[ToolShape, str]] = ...) -> None: ...

class GetNodeToolsResponse(_message.Message):
    __slots__ = ("tools", "tools_json", "remaining", "inputs", "tools_digest")
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    tools: _containers.RepeatedCompositeFieldContainer[_routing_pb2.NodeTool]
    tools_json: _containers.RepeatedScalarFieldContainer[str]
    remaining: int
    inputs: _containers.RepeatedCompositeFieldContainer[_routing_pb2.NodeOutput]
    tools_digest: str
    def __init__(self, tools: _Optional[_Iterable[_Union[_routing_pb2.NodeTool, _Mapping]]] = ..., tools_json: _Optional[_Iterable[str]] = ..., remaining: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[_routing_pb2.NodeOutput, _Mapping]]] = ..., tools_digest: _Optional[str] = ...) -> None: ...

class RecordTurnRequest(_message.Message):
    __slots__ = ("run_id", "node_id", "turn_id", "calls", "finished", "output", "error")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    node_id: str
    turn_id: str
    calls: _containers.RepeatedCompositeFieldContainer[_routing_pb2.ToolCall]
    finished: bool
    output: str
    error: str
    def __init__(self, run_id: _Optional[str] = ..., node_id: _Optional[str] = ..., turn_id: _Optional[str] = ..., calls: _Optional[_Iterable[_Union[_routing_pb2.ToolCall, _Mapping]]] = ..., finished: bool = ..., output: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class RecordTurnResponse(_message.Message):
    __slots__ = ("run", "choice", "tool_results", "next_node_ids", "handoff_proposal", "outcome", "error_code", "handoff_receiver_id")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESULTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    run: _routing_pb2.Run
    choice: _routing_pb2.RoutingChoice
    tool_results: _containers.RepeatedCompositeFieldContainer[_routing_pb2.ToolResult]
    next_node_ids: _containers.RepeatedScalarFieldContainer[str]
    handoff_proposal: _handoff_pb2.HandoffRequest
    outcome: _routing_pb2.TurnOutcome
    error_code: _error_pb2.ErrorCode
    handoff_receiver_id: str
    def __init__(self, run: _Optional[_Union[_routing_pb2.Run, _Mapping]] = ..., choice: _Optional[_Union[_routing_pb2.RoutingChoice, _Mapping]] = ..., tool_results: _Optional[_Iterable[_Union[_routing_pb2.ToolResult, _Mapping]]] = ..., next_node_ids: _Optional[_Iterable[str]] = ..., handoff_proposal: _Optional[_Union[_handoff_pb2.HandoffRequest, _Mapping]] = ..., outcome: _Optional[_Union[_routing_pb2.TurnOutcome, str]] = ..., error_code: _Optional[_Union[_error_pb2.ErrorCode, str]] = ..., handoff_receiver_id: _Optional[str] = ...) -> None: ...
