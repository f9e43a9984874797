"""The outcome of a delegated task, as the adapters show it to a model."""

from typing import Any

from baton import Outcome, v1


def shown(outcome: Outcome) -> dict[str, Any]:
    """Returns status, result and details as JSON."""
    status = v1.TaskStatus.Name(outcome.status).removeprefix("TASK_STATUS_")
    return {"status": status, "result": outcome.result, "details": outcome.details}
