"""A handoff of the OpenAI Agents SDK, or a tool. Needs `openai-agents`, the extra `openai-agents` of the package."""

import hashlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import agents
from agents import FunctionTool, Model, ModelResponse, Usage
from agents.items import TResponseInputItem, TResponseStreamEvent
from openai.types.responses import Response, ResponseCompletedEvent, ResponseOutputMessage, ResponseOutputText

from baton import Agent, BatonError, HandoffFailedError, TaskRecalledError, history_section, json_section, v1
from baton.adapters._outcome import delegate, shown
from baton.history import Entry
from baton.shapes import from_openai_responses

_NAME_CHARACTERS_MAX = 40
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "summary": {"type": "string", "description": "What is to be done, in one or two sentences."},
        "details": {"type": "string", "description": "Everything that the other agent needs to know for it."},
    },
    "required": ["summary", "details"],
    "additionalProperties": False,
}


def remote_agent(
    agent: Agent,
    receiver_id: str,
    task_type: str,
    *,
    name: str,
    description: str,
    timeout: timedelta | None = None,
    loan_timeout: timedelta | None = None,
) -> agents.Agent[Any]:
    """Returns an agent of the SDK for `handoffs=[…]`: a handoff to it is a handoff through baton.

    It delegates the conversation as a task, with the section history_log (`baton.history`), and answers with `status`,
    `result` and `details` as JSON. A delegation that no agent takes raises HandoffFailedError, one that comes back
    without a result TaskRecalledError; both end the run. `timeout` and `loan_timeout` are those of `Agent.delegate`.

        billing = remote_agent(agent, "type:billing", "invoice-question", name="billing", description="…")
        agents.Agent(name="triage", handoffs=[billing])
    """
    model = _Remote(agent, receiver_id, task_type, timeout, loan_timeout)
    return agents.Agent(name=name, handoff_description=description, model=model)


class _Remote(Model):
    """The model of a remote agent: it delegates the conversation."""

    def __init__(
        self,
        agent: Agent,
        receiver_id: str,
        task_type: str,
        timeout: timedelta | None,
        loan_timeout: timedelta | None,
    ) -> None:
        self._agent = agent
        self._receiver_id = receiver_id
        self._task_type = task_type
        self._timeout = timeout
        self._loan_timeout = loan_timeout

    async def get_response(
        self,
        system_instructions: str | None,  # noqa: ARG002
        input: str | list[TResponseInputItem],  # noqa: A002
        *_rest: Any,
        **_more: Any,
    ) -> ModelResponse:
        """Delegates the conversation and returns the result as a message."""
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        history = _without_transfer(from_openai_responses(items))
        request = v1.HandoffRequest(task_type=self._task_type, reason=v1.HANDOFF_REASON_SKILL)
        outcome = await delegate(
            self._agent,
            self._receiver_id,
            f"handoff-{uuid.uuid4()}",
            request,
            [history_section(history)],
            timeout=self._timeout,
            loan_timeout=self._loan_timeout,
        )
        text = ResponseOutputText(text=json.dumps(shown(outcome)), type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id=f"msg_{outcome.task_id}", content=[text], role="assistant", status="completed", type="message"
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    async def stream_response(self, *arguments: Any, **named: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Yields the whole response at its end."""
        answer = await self.get_response(*arguments, **named)
        response = Response(
            id=f"resp_{uuid.uuid4()}",
            created_at=time.time(),
            model=self._receiver_id,
            object="response",
            output=answer.output,
            parallel_tool_calls=False,
            tool_choice="none",
            tools=[],
        )
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)


def _without_transfer(history: list[Entry]) -> list[Entry]:
    """Returns the history without the call of this handoff and its result, which stand at the end."""
    if not history or history[-1]["role"] != "tool":
        return history
    call_id = history[-1]["tool_call_id"]
    for index in reversed(range(len(history))):
        calls = history[index].get("tool_calls", [])
        names = [call["name"] for call in calls if call["id"] == call_id]
        if not names:
            continue
        if not names[0].startswith("transfer_to_"):
            break
        entry = {name: value for name, value in history[index].items() if name != "tool_calls"}
        others = [call for call in calls if call["id"] != call_id]
        kept = [entry | {"tool_calls": others} if others else entry] if others or entry["content"] else []
        return [*history[:index], *kept, *history[index + 1 : -1]]
    return history


def handoff_tool(
    agent: Agent,
    receiver_id: str,
    task_type: str,
    *,
    description: str,
    name: str = "",
    timeout: timedelta | None = None,
    loan_timeout: timedelta | None = None,
) -> FunctionTool:
    """Returns a tool `transfer_to_NAME` that delegates a task and gives the model the result.

    The model gets JSON: `status`, `result` and `details`; or `error` and `message` if no agent took the task, if it
    came back without a result, if the broker refused, or if the model's arguments are not those of the tool, so that it
    can continue by other means. `timeout` and `loan_timeout` are those of `Agent.delegate`. Name the tool by `name` if
    an agent and a type of the same name get a tool each.

        Agent(name="triage", tools=[handoff_tool(agent, "type:billing", "invoice-question", description="…")])
    """

    async def invoke(_context: Any, arguments: str) -> str:
        try:
            asked = _asked(arguments)
        except ValueError as error:
            return json.dumps({"error": "ARGUMENTS_INVALID", "message": str(error)})
        request = v1.HandoffRequest(
            task_type=task_type, reason=v1.HANDOFF_REASON_SKILL, initial_context_summary=asked["summary"]
        )
        sections = [json_section("task_description", asked)]
        try:
            outcome = await delegate(
                agent,
                receiver_id,
                f"tool-{uuid.uuid4()}",
                request,
                sections,
                timeout=timeout,
                loan_timeout=loan_timeout,
            )
        except HandoffFailedError as error:
            rejections = [str(one) for one in error.rejections]
            return json.dumps({"error": error.reason, "message": error.message, "rejections": rejections})
        except TaskRecalledError as error:
            return json.dumps({"error": "TASK_RECALLED", "reason": error.reason, "message": error.message})
        except BatonError as error:
            return json.dumps({"error": error.reason or error.code.name, "message": error.message})
        return json.dumps(shown(outcome))

    return FunctionTool(
        name=name or tool_name(receiver_id),
        description=description,
        params_json_schema=_PARAMETERS,
        on_invoke_tool=invoke,
        strict_json_schema=True,
    )


def _asked(arguments: str) -> dict[str, Any]:
    """Returns the arguments as the model gave them. Raises ValueError with the problem, for the model to read."""
    wanted = 'Nothing was done: the arguments must be a JSON object with the text "summary" and the text "details"'
    try:
        asked = json.loads(arguments)
    except ValueError as error:
        raise ValueError(f"{wanted}, and they are no JSON: {error}.") from error
    if isinstance(asked, dict) and isinstance(asked.get("summary"), str):
        return asked
    raise ValueError(f"{wanted}.")


def tool_name(receiver_id: str) -> str:
    """Returns `transfer_to_NAME` in the characters and the length of a tool's name. A hash marks a changed name.

    Two agents have two names, and two types have two names.
    """
    name = receiver_id.removeprefix("type:")
    plain = "transfer_to_" + re.sub(r"[^a-zA-Z0-9_-]", "_", name)
    if plain == f"transfer_to_{name}" and len(plain) <= _NAME_CHARACTERS_MAX:
        return plain
    mark = hashlib.sha256(receiver_id.encode()).hexdigest()[:8]
    return f"{plain[: _NAME_CHARACTERS_MAX - len(mark) - 1]}_{mark}"
