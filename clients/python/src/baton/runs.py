"""Routing by a model: graphs, runs through them, the tools of a node, and the turns of its model."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from baton import v1
from baton.connection import Connection
from baton.delivery import duration
from baton.envelopes import new_message_id
from baton.errors import BatonError
from baton.following import delay_of, follow_log, follow_to_end
from baton.turns import Shape, read_turn, results_of

ToolShape = Literal["openai", "anthropic", "mcp"]
"""The interface that the tools of a node are for: OpenAI Responses (strict), Anthropic Messages, or MCP."""

_SHAPES: dict[str, v1.ToolShape] = {
    "openai": v1.TOOL_SHAPE_OPENAI,
    "anthropic": v1.TOOL_SHAPE_ANTHROPIC,
    "mcp": v1.TOOL_SHAPE_MCP,
}
_PAGE_SIZE = 200


@dataclass(frozen=True)
class NodeTools:
    """The choices of a node's model in its next turn."""

    tools: list[dict[str, Any]]
    """The tools in the requested shape, for the SDK's `tools`. Empty: the node is plain, or has no choice left."""
    inputs: list[v1.NodeOutput]
    """The outputs of the nodes that led to this one."""
    remaining: int
    """The choices that the node has left."""
    answer: v1.GetNodeToolsResponse
    """The whole answer."""


@dataclass(frozen=True)
class Step:
    """What a turn did."""

    answer: v1.RecordTurnResponse
    """The whole answer: `outcome`, `choice`, `tool_results`, and the `run` afterwards."""
    results: list[dict[str, Any]]
    """The results of the transfer calls, in the shape of the response, for the model's history. Each needs one. The
    results of the runtime's own tools are the runtime's."""

    @property
    def next_node_ids(self) -> tuple[str, ...]:
        """The nodes that are active now."""
        return tuple(self.answer.next_node_ids)

    @property
    def refusal(self) -> str:
        """TRANSFER_AMBIGUOUS, TRANSFER_NOT_OFFERED or FIELD_INVALID for a wrong transfer; `results` tell the model."""
        code = self.answer.error_code
        return v1.ErrorCode.Name(code).removeprefix("ERROR_CODE_") if code else ""

    @property
    def proposal(self) -> v1.HandoffRequest | None:
        """The handoff that the next node needs. The owner of the task hands it over to `receiver_id`."""
        return self.answer.handoff_proposal if self.answer.HasField("handoff_proposal") else None

    @property
    def receiver_id(self) -> str:
        """The receiver of the proposed handoff; empty without a proposal."""
        return self.answer.handoff_receiver_id

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.answer.run.state != v1.RUN_STATE_RUNNING


class Run:
    """A run through a graph, made by `Agent.start_run` or `Agent.join_run`.

        run = await agent.start_run("search")
        node = await run.tools("checker", shape="anthropic")
        message = await anthropic.messages.create(tools=node.tools, …)
        step = await run.turn("checker", message)

    All calls raise BatonError if the broker refuses: RUN_UNKNOWN, RUN_FINAL, NODE_NOT_ACTIVE, NOT_OWNER.
    """

    def __init__(self, connection: Connection, run_id: str, turn_timeout: timedelta) -> None:
        self.run_id = run_id
        self._connection = connection
        self._turn_timeout = turn_timeout

    async def tools(self, node_id: str, shape: ToolShape = "openai") -> NodeTools:
        """Returns the tools that the node's model may call in its next turn, and the outputs of the nodes before."""
        request = v1.GetNodeToolsRequest(run_id=self.run_id, node_id=node_id, shape=_SHAPES[shape])
        answer = await self._connection.call(self._connection.routing.GetNodeTools, request)
        tools = [json.loads(tool) for tool in answer.tools_json]
        return NodeTools(tools, list(answer.inputs), answer.remaining, answer)

    async def turn(
        self,
        node_id: str,
        response: Any = None,
        *,
        calls: Sequence[v1.ToolCall] = (),
        finished: bool | None = None,
        output: str | None = None,
        error: str = "",
        turn_id: str = "",
    ) -> Step:
        """Reports a turn of the node's model, whole.

        `response` is the object of the SDK as it is, or the same as parsed JSON: see `read_turn`. It is finished if the
        model ended by itself and called no tool, and its output is then its text, at most 65,536 bytes. `finished`,
        `output` and `calls` replace these; without a response they are the turn. `error` ends the node's work.

        After a lost answer the call repeats the same report for up to the agent's `send_timeout`, which counts once.
        `turn_id`, a UUID, lets a later process repeat it, too. A wrong transfer is no error: see `Step.refusal`. Raises
        BatonError; ValueError if the response is of no known interface.
        """
        told = None if response is None else read_turn(response)
        is_finished = (told.finished if told else False) if finished is None else finished
        said = (told.output if told and is_finished else "") if output is None else output
        made = list(calls) or (list(told.calls) if told else [])
        request = v1.RecordTurnRequest(
            run_id=self.run_id,
            node_id=node_id,
            turn_id=turn_id or new_message_id(),
            calls=made,
            finished=is_finished,
            output=said,
            error=error,
        )
        answer = await self._recorded(request)
        shape = told.shape if told else Shape.OPENAI_RESPONSES
        return Step(answer, results_of(shape, made, answer.tool_results))

    async def state(self) -> v1.Run:
        """Returns the present state of the run."""
        request = v1.GetRunRequest(run_id=self.run_id)
        run: v1.Run = (await self._connection.call(self._connection.routing.GetRun, request)).run
        return run

    async def cancel(self, reason: str = "") -> v1.Run:
        """Cancels the run. An open handoff of its task goes on. Raises BatonError, RUN_FINAL if the run has ended."""
        request = v1.CancelRunRequest(run_id=self.run_id, reason_text=reason)
        run: v1.Run = (await self._connection.call(self._connection.routing.CancelRun, request)).run
        return run

    async def watch(self, after: int = 0) -> AsyncGenerator[v1.RunEntry, None]:
        """Yields the entries of the run's log after this number, and each new one, until the run has ended.

        The watch continues by itself over lost connections and restarts of the broker. Raises GapError if entries are
        missing.
        """
        request = v1.WatchRunRequest(run_id=self.run_id, after_number=after)
        stream = follow_log(self._connection, self._connection.routing.WatchRun, request, f"run {self.run_id}")
        entries = follow_to_end(stream, after, self.state, v1.RUN_STATE_RUNNING)
        async with contextlib.aclosing(entries):
            async for entry in entries:
                yield entry
                if entry.HasField("ended"):
                    return

    async def _recorded(self, request: v1.RecordTurnRequest) -> v1.RecordTurnResponse:
        until = time.monotonic() + self._turn_timeout.total_seconds()
        attempt = 0
        while True:
            try:
                answer: v1.RecordTurnResponse = await self._connection.call(
                    self._connection.routing.RecordTurn, request
                )
            except BatonError as error:
                delay = max(error.retry_delay or 0.0, delay_of(attempt))
                if not error.is_passing or time.monotonic() + delay > until:
                    raise
                attempt += 1
                await asyncio.sleep(delay)
            else:
                return answer


class Routing:
    """The calls about graphs and runs. `Agent` has them."""

    _connection: Connection
    _send_timeout: timedelta

    async def register_graph(self, graph: v1.Graph) -> v1.RegisterGraphResponse:
        """Registers a graph, or a further revision of it. The same graph again is the same revision.

        The answer has the revision and the warnings. Raises BatonError, GRAPH_INVALID with each problem in
        `field_violations`.
        """
        request = v1.RegisterGraphRequest(graph=graph)
        answer: v1.RegisterGraphResponse = await self._connection.call(self._connection.routing.RegisterGraph, request)
        return answer

    async def validate_graph(self, graph: v1.Graph) -> list[v1.GraphProblem]:
        """Returns all problems of a graph, and registers nothing."""
        request = v1.ValidateGraphRequest(graph=graph)
        return list((await self._connection.call(self._connection.routing.ValidateGraph, request)).problems)

    async def get_graph(self, graph_id: str) -> v1.Graph:
        """Returns the latest revision of a graph. Raises BatonError, GRAPH_UNKNOWN."""
        request = v1.GetGraphRequest(graph_id=graph_id)
        graph: v1.Graph = (await self._connection.call(self._connection.routing.GetGraph, request)).graph
        return graph

    async def graphs(self) -> AsyncGenerator[v1.Graph, None]:
        """Yields the graphs, the newest first, without their nodes."""
        request = v1.ListGraphsRequest(page_size=_PAGE_SIZE)
        while True:
            page = await self._connection.call(self._connection.routing.ListGraphs, request)
            for graph in page.graphs:
                yield graph
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def start_run(
        self,
        graph_id: str,
        *,
        task_id: str = "",
        run_id: str = "",
        whole_timeout: timedelta | None = None,
    ) -> Run:
        """Starts a run, over a task of this agent or over none.

        `run_id` is a UUID; starting the same run again returns it. The run fails after `whole_timeout`, 1 s to 7 days,
        by default 1 hour. Raises BatonError, for example GRAPH_UNKNOWN, NOT_OWNER.
        """
        request = v1.StartRunRequest(
            graph_id=graph_id,
            run_id=run_id or new_message_id(),
            task_id=task_id,
            whole_timeout=duration(whole_timeout),
        )
        run = (await self._connection.call(self._connection.routing.StartRun, request)).run
        return self.join_run(run.run_id)

    def join_run(self, run_id: str) -> Run:
        """Returns the run with this id, without asking the broker."""
        return Run(self._connection, run_id, self._send_timeout)

    async def runs(
        self, *, graph_id: str = "", task_id: str = "", states: Sequence[v1.RunState] = ()
    ) -> AsyncGenerator[v1.Run, None]:
        """Yields the runs that match all filters, the newest first, each with its graph without nodes."""
        request = v1.ListRunsRequest(page_size=_PAGE_SIZE, graph_id=graph_id, task_id=task_id, states=states)
        while True:
            page = await self._connection.call(self._connection.routing.ListRuns, request)
            for run in page.runs:
                yield run
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
