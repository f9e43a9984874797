"""A handoff as a node of a LangGraph graph. Needs `langgraph`, the extra `langgraph` of the package."""

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Protocol

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from baton import Agent, history_section, json_section, v1
from baton.adapters._outcome import delegate, shown
from baton.shapes import from_langchain


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

    The state is the context: see `state_sections`, which raises ValueError for what JSON has no form for. The update is
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


def state_sections(state: Any) -> list[v1.ContextSection]:
    """Converts a graph's state to a context: `messages` as history_log, all else as session_variables.

    Messages may be objects, dicts, tuples and texts, as a graph takes them; history_log is a `baton.history`. Models,
    dataclasses, enums, dates, UUIDs, decimals and sets become JSON. Raises ValueError, with the key of the state, for
    what cannot.
    """
    members = _members(state)
    sections = []
    if members.get("messages"):
        with _of_key("messages"):
            messages = members["messages"]
            sections.append(history_section(from_langchain(messages if isinstance(messages, list) else [messages])))
    variables = {}
    for key, value in members.items():
        if key != "messages":
            with _of_key(key):
                variables[str(key)] = to_jsonable_python(value, bytes_mode="base64")
                # What JSON has no form for: a number that is none, or half of a character.
                json.dumps(variables[str(key)], ensure_ascii=False, allow_nan=False).encode()
    return [*sections, json_section("session_variables", variables)]


def _members(state: Any) -> Mapping[str, Any]:
    """Returns the keys of a state, which may be a model or a dataclass."""
    if isinstance(state, Mapping):
        return state
    if isinstance(state, BaseModel):
        return {key: getattr(state, key) for key in type(state).model_fields}
    if dataclasses.is_dataclass(state):
        return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    raise ValueError(f"the state is a {type(state).__name__}, and not a dict, a model or a dataclass")


@contextlib.contextmanager
def _of_key(key: str) -> Iterator[None]:
    """Names the key of the state in an error of its conversion."""
    try:
        yield
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise ValueError(f"the state cannot be handed over: the key {key!r}: {error}") from error
