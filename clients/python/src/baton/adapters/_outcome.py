"""A task of an adapter: delegated, ended with its outcome, and shown to a model."""

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from baton import Agent, BatonError, HandoffFailedError, Outcome, TaskRecalledError, v1

_LOG = logging.getLogger("baton")
_FINAL = (v1.TASK_STATUS_COMPLETED, v1.TASK_STATUS_FAILED, v1.TASK_STATUS_CANCELED)


async def delegate(
    agent: Agent,
    receiver_id: str,
    task_id: str,
    request: v1.HandoffRequest,
    context: Iterable[v1.ContextSection],
    *,
    timeout: timedelta | None,  # noqa: ASYNC109
    loan_timeout: timedelta | None,
) -> Outcome:
    """Delegates a new task, and ends it: with the delegate's status, or as CANCELED without one."""
    try:
        outcome = await agent.delegate(
            receiver_id, task_id, request, context, timeout=timeout, loan_timeout=loan_timeout
        )
    except HandoffFailedError as error:
        await _end(agent, task_id, 1, v1.TASK_STATUS_CANCELED, str(error))
        raise
    except TaskRecalledError as back:
        if back.is_owner:
            await _end(agent, task_id, back.epoch, v1.TASK_STATUS_CANCELED, str(back))
        raise
    status = outcome.status if outcome.status in _FINAL else v1.TASK_STATUS_CANCELED
    await _end(agent, task_id, outcome.epoch, status, outcome.details)
    return outcome


async def _end(agent: Agent, task_id: str, epoch: int, status: v1.TaskStatus, details: str) -> None:
    """Ends a task of this agent. The task keeps the result that its delegate has reported."""
    try:
        await agent.update_status(task_id, epoch, status, details)
    except BatonError as error:
        _LOG.warning("task %s was not ended: %s", task_id, error)


def shown(outcome: Outcome) -> dict[str, Any]:
    """Returns status, result and details as JSON."""
    status = v1.TaskStatus.Name(outcome.status).removeprefix("TASK_STATUS_")
    return {"status": status, "result": outcome.result, "details": outcome.details}
