"""A handoff as a tool of the OpenAI Agents SDK. Needs `openai-agents`: pip install baton-client[openai-agents]."""

import hashlib
import json
import re
import uuid
from datetime import timedelta
from typing import Any

from agents import FunctionTool

from baton import Agent, BatonError, HandoffFailedError, TaskRecalledError, json_section, v1

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
    came back without a result, or if the broker refused, so that it can continue by other means. `timeout` and
    `loan_timeout` are those of `Agent.delegate`.

        Agent(name="triage", tools=[handoff_tool(agent, "type:billing", "invoice-question", description="…")])
    """

    async def invoke(_context: Any, arguments: str) -> str:
        asked = json.loads(arguments)
        request = v1.HandoffRequest(
            task_type=task_type, reason=v1.HANDOFF_REASON_SKILL, initial_context_summary=asked["summary"]
        )
        sections = [json_section("task_description", asked)]
        try:
            outcome = await agent.delegate(
                receiver_id, f"tool-{uuid.uuid4()}", request, sections, timeout=timeout, loan_timeout=loan_timeout
            )
        except HandoffFailedError as error:
            return json.dumps({"error": error.reason, "message": error.message, "rejections": error.rejections})
        except TaskRecalledError as error:
            return json.dumps({"error": "TASK_RECALLED", "reason": error.reason, "message": error.message})
        except BatonError as error:
            return json.dumps({"error": error.reason or error.code.name, "message": error.message})
        status = v1.TaskStatus.Name(outcome.status).removeprefix("TASK_STATUS_")
        return json.dumps({"status": status, "result": outcome.result, "details": outcome.details})

    return FunctionTool(
        name=name or tool_name(receiver_id),
        description=description,
        params_json_schema=_PARAMETERS,
        on_invoke_tool=invoke,
        strict_json_schema=True,
    )


def tool_name(receiver_id: str) -> str:
    """Returns `transfer_to_NAME` in the characters and the length of a tool's name. A hash marks a cut name."""
    plain = "transfer_to_" + re.sub(r"[^a-zA-Z0-9_-]", "_", receiver_id.removeprefix("type:"))
    if len(plain) <= _NAME_CHARACTERS_MAX:
        return plain
    mark = hashlib.sha256(receiver_id.encode()).hexdigest()[:8]
    return f"{plain[: _NAME_CHARACTERS_MAX - len(mark) - 1]}_{mark}"
