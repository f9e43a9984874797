"""The choices of a node in a run over a graph of the broker, as the adapters offer them to the node's model."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from baton import Agent, HandedOver, Run, Step, v1
from baton.adapters._lending import FAILURES, failure

Sections = Callable[[], list[v1.ContextSection]]
"""Makes the sections of the conversation that has led to a choice."""

_OVER = "active_nodes"


@dataclass(frozen=True)
class Choice:
    """A tool with which the model of a node chooses the next node."""

    agent: Agent
    run: Run
    node_id: str
    task_id: str
    """The task of the run; empty if the run is over none."""
    name: str
    """The name of the tool: `transfer_to_NODE`."""
    description: str
    parameters: dict[str, Any]
    """The JSON Schema of the arguments."""

    async def take(self, call_id: str, arguments_json: str, conversation: Sections) -> dict[str, Any]:
        """Reports the turn with this call, and hands the task over if the run goes on at another agent.

        The context of the handoff is the latest one of the task; the sections of the conversation replace those of the
        same names. Returns what the model is told: see `is_over`.
        """
        sections = conversation() if self.task_id else []
        # A message cannot carry half of a surrogate pair.
        arguments = arguments_json.encode(errors="replace").decode()
        call = v1.ToolCall(call_id=call_id, name=self.name, arguments_json=arguments)
        try:
            step = await self.run.turn(self.node_id, calls=[call])
            handed = None if step.proposal is None else await self._hand_over(step, step.proposal, sections)
        except FAILURES as error:
            return failure(error)
        return self._told(step, handed)

    async def _hand_over(self, step: Step, proposal: v1.HandoffRequest, said: list[v1.ContextSection]) -> HandedOver:
        task = await self.agent.get_task(self.task_id)
        sections = {one.name: one for one in await self.agent.latest_context(self.task_id) or []}
        sections |= {one.name: one for one in said}
        return await self.agent.hand_over(step.receiver_id, self.task_id, proposal, sections.values(), epoch=task.epoch)

    def _told(self, step: Step, handed: HandedOver | None) -> dict[str, Any]:
        told: dict[str, Any] = {"chosen": step.answer.choice.target_node_id}
        if step.refusal:
            told = {"error": step.refusal, "message": step.answer.tool_results[0].text}
            here = [node.state for node in step.answer.run.nodes if node.node_id == self.node_id]
            if here == [v1.NODE_STATE_ACTIVE]:
                return told
        told[_OVER] = list(step.next_node_ids)
        if handed is not None:
            told["handoff"] = {"task_id": self.task_id, "owner": handed.owner_id}
            where = f": {handed.owner_id} has the task now"
        elif step.is_over:
            where = ": the run has ended"
        else:
            where = f": the run is at {', '.join(step.next_node_ids)}" if step.next_node_ids else ""
        return told | {"next": f"Your turn is over{where}. Do nothing more."}


async def choices_of(agent: Agent, run: Run, node_id: str) -> list[Choice]:
    """Returns the choices of a node's model in its next turn. Raises BatonError: see `Run.tools`."""
    tools = (await run.tools(node_id, "openai")).tools
    task_id = (await run.state()).task_id if tools else ""
    return [
        Choice(agent, run, node_id, task_id, tool["name"], tool["description"], tool["parameters"]) for tool in tools
    ]


def is_over(told: Any) -> bool:
    """Returns whether the answer to a choice, as JSON or as its text, ends the turn of the node's model.

    A turn ends by a choice that counts, and by the third refused one in a row.
    """
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return False
    return isinstance(told, dict) and _OVER in told
