"""A handoff as a node of a LangGraph graph. Needs `langgraph`, the extra `langgraph` of the package."""

import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol

from langchain_core.load import dumpd
from langchain_core.messages import BaseMessage, messages_to_dict

from baton import Agent, json_section, v1
from baton.adapters._outcome import delegate, shown


class Node(Protocol):
    """A node of a graph."""

    async def __call__(self, state: Any) -> dict[str, Any]:
        """Returns the update of the state."""


def handoff_node(
    agent: Agent,
    receiver_id: str,
    task_type: str,
    *,
    result_key: str = "handoff",
    summary: Callable[[Mapping[str, Any]], str] | None = None,
    timeout: timedelta | None = None,
    loan_timeout: timedelta | None = None,
) -> Node:
    """Returns a node that delegates the graph's state as a task and returns the result.

    The state is the context: `messages` as the section history_log, all else as session_variables. The update is
    `{result_key: {"task_id", "status", "result", "details"}}`. A delegation that no agent takes raises
    HandoffFailedError, one that comes back without a result TaskRecalledError; both end the run unless the node has a
    retry policy or an error handler. `timeout` and `loan_timeout` are those of `Agent.delegate`.

        graph.add_node("billing", handoff_node(agent, "type:billing", "invoice-question"))
    """

    async def node(state: Mapping[str, Any]) -> dict[str, Any]:
        request = v1.HandoffRequest(
            task_type=task_type,
            reason=v1.HANDOFF_REASON_WORKFLOW,
            initial_context_summary=summary(state) if summary else "",
        )
        task_id = f"langgraph-{uuid.uuid4()}"
        outcome = await delegate(
            agent, receiver_id, task_id, request, state_sections(state), timeout=timeout, loan_timeout=loan_timeout
        )
        return {result_key: {"task_id": task_id} | shown(outcome)}

    return node


def state_sections(state: Mapping[str, Any]) -> list[v1.ContextSection]:
    """Converts a graph's state to a context: `messages` as history_log, all else as session_variables."""
    messages = state.get("messages", [])
    history = messages_to_dict([one for one in messages if isinstance(one, BaseMessage)])
    variables = {key: dumpd(value) for key, value in state.items() if key != "messages"}
    sections = [json_section("history_log", history)] if history else []
    return [*sections, json_section("session_variables", variables)]
