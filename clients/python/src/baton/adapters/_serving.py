"""The other side of a handoff: an agent of a framework works on the tasks that baton delivers."""

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_jsonable_python

from baton import Agent, BatonError, HistoryError, Offer, OwnedTask, Takeover, check_history
from baton.history import Entry, settled

_LOG = logging.getLogger("baton")

_HISTORY = "history_log"
_DESCRIPTION = "task_description"
_REPORT_CHARACTERS_MAX = 512


@dataclass(frozen=True)
class Job:
    """A task that was taken over, as an agent of a framework gets it."""

    task: OwnedTask
    sender_id: str
    """The agent that handed the task over."""
    history: list[Entry]
    """The conversation before, without system prompts, which are those of another agent, and without open calls."""
    text: str
    """What is to be done; empty if only the conversation says it."""
    variables: dict[str, Any] = field(default_factory=dict)
    """The other JSON sections of the context, by name."""

    async def report(self, details: str) -> None:
        """Reports a step. A report that the broker does not take is left out."""
        if not self.task.is_here:
            return
        try:
            await self.task.report(details[:_REPORT_CHARACTERS_MAX])
        except BatonError as error:
            _LOG.info("a step of task %s was not reported: %s", self.task.task_id, error)

    @property
    def prompt(self) -> str:
        """The text with the other sections, for a model; empty if there is nothing beside the conversation."""
        more = [f"{name}:\n{json.dumps(value, ensure_ascii=False)}" for name, value in self.variables.items() if value]
        return "\n\n".join([self.text, *more] if self.text else more)


Work = Callable[[Job], Awaitable[Any]]
"""Does a job. Returns its result: a JSON object as it is, anything else as `response`."""


async def serve(agent: Agent, work: Work, types: Iterable[str], description: str) -> None:
    """Registers the agent with these types, if there are any, and works on its tasks until the agent is closed."""

    @agent.on_handoff
    async def take(offer: Offer) -> None:
        takeover = await offer.accept()
        try:
            history = settled(_history_of(takeover))
        except ValueError as error:
            await takeover.fail(f"the context cannot be read: {error}")
            return
        text = _text_of(takeover) or (offer.request.initial_context_summary if offer.request else "")
        others = [one.name for one in takeover.sections if one.WhichOneof("content") == "json"]
        variables = {name: takeover.json(name) for name in others if name not in (_HISTORY, _DESCRIPTION)}
        said = [entry for entry in history if entry["role"] != "system"]
        job = Job(await takeover.complete(), offer.sender_id, said, text, variables)
        await job.task.finish(result_of(await work(job)))

    kinds = list(types)
    if kinds:
        await agent.register(agent_types=kinds, description=description)
    await agent.run(resume=True)


def result_of(output: Any) -> dict[str, Any]:
    """Returns an output as the result of a task."""
    value = to_jsonable_python(output, bytes_mode="base64", serialize_unknown=True)
    return dict(value) if isinstance(value, Mapping) else {"response": value}


def _history_of(takeover: Takeover) -> list[Entry]:
    try:
        return check_history(takeover.json(_HISTORY))
    except KeyError:
        return []
    except HistoryError as error:
        raise ValueError(f"{_HISTORY} is no baton.history: {error}") from error


def _text_of(takeover: Takeover) -> str:
    try:
        found = takeover.json(_DESCRIPTION)
    except KeyError:
        return ""
    if isinstance(found, str):
        return found
    if isinstance(found, dict) and set(found) <= {"summary", "details"}:
        return "\n\n".join(str(found[name]) for name in ("summary", "details") if found.get(name))
    return json.dumps(found, ensure_ascii=False)
