"""Pydantic AI: an output of the triage agent is a handoff to an agent behind baton."""

from typing import Any

import pydantic_ai
from pydantic_ai.models import Model

from baton import Agent
from baton.adapters.pydantic_ai import handoff_tool


def triage(agent: Agent, model: Model | str) -> pydantic_ai.Agent[None, dict[str, Any] | str]:
    """Returns the triage agent: its output is the result of billing, or its own text."""
    description = "Hands a question about an invoice over to billing."
    billing = handoff_tool(
        agent, "type:billing", "invoice-question", name="hand_over_to_billing", description=description
    )
    return pydantic_ai.Agent(model, output_type=[billing, str])
