"""OpenAI Agents SDK: the triage agent hands invoices over to an agent behind baton."""

import agents

from baton import Agent
from baton.adapters.openai_agents import remote_agent


def triage(agent: Agent, model: agents.Model | str) -> agents.Agent[None]:
    """Returns the triage agent, for `agents.Runner.run`."""
    billing = remote_agent(
        agent, "type:billing", "invoice-question", name="billing", description="Answers questions about invoices."
    )
    return agents.Agent(name="triage", instructions="Hand over what is not yours.", model=model, handoffs=[billing])
