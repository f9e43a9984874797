"""A handoff as a tool or an output of Pydantic AI. Needs `pydantic-ai-slim`, the extra `pydantic-ai` of the package."""

import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from pydantic_ai import ModelRetry

from baton import Agent, HandoffFailedError, TaskRecalledError, json_section, v1
from baton.adapters._outcome import delegate, shown

Handoff = Callable[[str, str], Awaitable[dict[str, Any]]]


def handoff(
    agent: Agent,
    receiver_id: str,
    task_type: str,
    *,
    name: str,
    description: str,
    timeout: timedelta | None = None,
    loan_timeout: timedelta | None = None,
) -> Handoff:
    """Returns a function for `tools=[…]`, or for `output_type=[…]` to end the run with the other agent's result.

    The model calls it with `summary` and `details`, and the function delegates a task with these as its context. It
    returns `status`, `result` and `details`. If no agent takes the task, or it comes back without a result, it raises
    ModelRetry, so that the model continues by other means. `timeout` and `loan_timeout` are those of `Agent.delegate`.

        pydantic_ai.Agent(model, output_type=[handoff(agent, "type:billing", "invoice-question", name="…", …), str])
    """

    async def hand_off(summary: str, details: str) -> dict[str, Any]:
        request = v1.HandoffRequest(
            task_type=task_type, reason=v1.HANDOFF_REASON_SKILL, initial_context_summary=summary
        )
        sections = [json_section("task_description", {"summary": summary, "details": details})]
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
        except (HandoffFailedError, TaskRecalledError) as error:
            raise ModelRetry(f"the handoff did not succeed: {error}") from error
        return shown(outcome)

    # The framework makes the tool's name and description of these.
    hand_off.__name__ = hand_off.__qualname__ = name
    hand_off.__doc__ = (
        f"{description}\n\nArgs:\n"
        "    summary: What is to be done, in one or two sentences.\n"
        "    details: Everything that the other agent needs to know for it.\n"
    )
    return hand_off
