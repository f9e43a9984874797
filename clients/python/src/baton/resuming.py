"""Tasks of this agent that no process works on: after a restart the handler runs again for each."""

import asyncio
import logging
from typing import Protocol

import grpc

from baton import v1
from baton.delivery import ReadDelivery
from baton.errors import BatonError, VerificationError
from baton.tasks import Tasks

_LOG = logging.getLogger("baton")

_RETRY_SECONDS = 1.0
_TASKS_MAX = 1000


class Resumer(Tasks):
    """The agent whose tasks are resumed."""

    instance_id: str


class Workers(Protocol):
    """The handlers of an agent."""

    async def free_slots(self) -> int:
        """Waits until a handler may begin. Returns how many may; 0: the agent is stopping."""

    def take_up(self, task: v1.Task) -> bool:
        """Begins the handler of a task of this agent. Returns False if this process has had the task already."""


class Resumption:
    """Asks for the tasks when a session begins, and again when handlers end, as long as the last answer was full."""

    def __init__(self, agent: Resumer, workers: Workers) -> None:
        self._agent = agent
        self._workers = workers
        self._is_wanted = False
        self._runner: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Asks for tasks: a session has begun."""
        self._is_wanted = True
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Asks for no more tasks."""
        if self._runner is not None:
            self._runner.cancel()

    async def _run(self) -> None:
        while self._is_wanted:
            self._is_wanted = False
            try:
                await self._fill()
            except BatonError as error:
                if error.code is grpc.StatusCode.UNIMPLEMENTED:
                    _LOG.debug("the broker resumes no tasks: %s", error)
                elif error.is_passing:
                    self._is_wanted = True
                    await asyncio.sleep(error.retry_delay or _RETRY_SECONDS)
                else:
                    _LOG.warning("no tasks are resumed in this session: %s", error)

    async def _fill(self) -> None:
        """Takes tasks up until none is left."""
        while (free := min(await self._workers.free_slots(), _TASKS_MAX)) > 0:
            tasks = await self._agent.resume_tasks(self._agent.instance_id, free)
            taken_up = [task for task in tasks if self._workers.take_up(task)]
            if len(tasks) < free or not taken_up:
                return


async def last_context(agent: Tasks, task: v1.Task) -> ReadDelivery:
    """Returns the last context of a task that the broker shows to this agent, as if it had been delivered.

    That is the latest version, which can be a checkpoint, else the context of the last handoff, else an empty one.
    Raises BatonError if an attempt later can help.
    """
    hop = task.hops[-1] if task.hops else v1.TaskHop()
    try:
        sections = await agent.latest_context(task.task_id)
        if sections is None and hop.handoff_id:
            _, envelope = await agent.handoff_with_context(hop.handoff_id)
            if envelope is not None:
                sections = list((await agent.read_delivery(envelope, hop.handoff_id)).payload.sections)
    except (BatonError, VerificationError) as error:
        if isinstance(error, BatonError) and error.is_passing:
            raise
        _LOG.warning("task %s is resumed without a context: %s", task.task_id, error)
        sections = None
    envelope = v1.Envelope(
        message_type=v1.MESSAGE_TYPE_TASK_CONTEXT_TRANSFER,
        sender_id=hop.sender_id,
        receiver_id=agent.agent_id,
        task_id=task.task_id,
        epoch=task.epoch,
        correlation_id=hop.handoff_id,
    )
    delivery = v1.Delivery(envelope=envelope, handoff_id=hop.handoff_id)
    return ReadDelivery(delivery, v1.TaskContextTransfer(sections=sections or ()))
