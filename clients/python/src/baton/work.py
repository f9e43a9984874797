"""The tasks that this process works on: at which epoch it has each, and what its heartbeats list."""

import contextvars
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from baton import v1

WORKING_ON_MAX = 1024
"""The maximum number of tasks that a heartbeat lists."""
_LEFT_MAX = 4096
FINAL = (v1.TASK_STATUS_COMPLETED, v1.TASK_STATUS_FAILED, v1.TASK_STATUS_CANCELED)
"""The statuses that end a task, or the loan by which the agent has it."""


@dataclass(eq=False)
class Held:
    """One time of a task at this agent, from the takeover on. A later takeover of the task is another one."""

    agent_id: str
    task_id: str
    epoch: int
    """The task's epoch. It follows the loans of this agent that come back."""
    is_away: bool = False
    """Whether the task is lent or handed over to another agent."""
    is_over: bool = False
    """Whether the task has ended, or was taken away."""

    @property
    def is_here(self) -> bool:
        """Whether the agent owns the task, as far as this process knows."""
        return not (self.is_away or self.is_over)

    def back(self, epoch: int) -> None:
        """Records that the task came back to this agent with this epoch."""
        if epoch > self.epoch and not self.is_over:
            self.epoch, self.is_away = epoch, False


@dataclass
class Handling:
    """A running handler, and the task that it has taken over, if any."""

    held: Held | None = None


CURRENT: contextvars.ContextVar[Handling | None] = contextvars.ContextVar("baton.handling", default=None)
"""The handler of handoffs whose code runs here."""


@dataclass
class Work:
    """The tasks that this process has taken over, and has neither ended nor handed on."""

    agent_id: str
    changed: Callable[[], None] = field(default=lambda: None)
    """Called when the set of the tasks has changed."""
    _held: dict[str, Held] = field(default_factory=dict)
    # The epochs of the tasks that a handler of this process has left open.
    _left: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def took(self, task_id: str, epoch: int) -> Held:
        """Records a takeover. Repeated for the same epoch, returns the same."""
        held = self._held.get(task_id)
        if held is None or held.epoch != epoch or not held.is_here:
            held = self._held[task_id] = Held(self.agent_id, task_id, epoch)
            self.changed()
        return held

    def of(self, task_id: str, epoch: int) -> Held:
        """Returns what is recorded of a task at this epoch, else a record that the heartbeats do not list."""
        held = self._held.get(task_id)
        return held if held is not None and held.epoch == epoch else Held(self.agent_id, task_id, epoch)

    def release(self, held: Held) -> None:
        """Forgets a task whose handler has ended, except that the task was here."""
        if held.is_here:
            self._left[held.task_id] = held.epoch
            if len(self._left) > _LEFT_MAX:
                self._left.popitem(last=False)
        if self._held.get(held.task_id) is held:
            del self._held[held.task_id]
            self.changed()

    def handed(self, task_id: str, epoch: int) -> None:
        """Records that the task went to another agent, at whom it has this epoch."""
        held = self._held.get(task_id)
        if held is not None and held.epoch < epoch:
            held.is_away = True
            self.changed()

    def back(self, task_id: str, epoch: int) -> None:
        """Records that a loan has ended, and that this agent owns the task again at this epoch."""
        held = self._held.get(task_id)
        if held is not None:
            held.back(epoch)
            self.changed()

    def taken(self, task_id: str, epoch: int) -> None:
        """Records that the broker took the task from this agent, and that it has this epoch or a later one now."""
        held = self._held.get(task_id)
        if held is not None and held.epoch < epoch:
            held.is_over = True
            self.release(held)

    def told(self, envelope: v1.Envelope, receipt: v1.Receipt) -> None:
        """Notes what the receipt of a message of this agent says about its task."""
        if not receipt.task_id:
            return
        if envelope.message_type == v1.MESSAGE_TYPE_HANDOFF_COMPLETE and receipt.owner_id == self.agent_id:
            self.took(receipt.task_id, receipt.epoch)
        held = self._held.get(receipt.task_id)
        is_end = receipt.task_status in FINAL or receipt.owner_id != self.agent_id
        of_owner = envelope.message_type == v1.MESSAGE_TYPE_TASK_STATUS_UPDATE
        if held is not None and of_owner and is_end and held.epoch == envelope.epoch:
            held.is_over = True
            self.release(held)

    def listed(self) -> list[str]:
        """Returns the ids of the tasks that this process works on, at most 1024, the oldest first."""
        return [task_id for task_id, held in self._held.items() if held.is_here][:WORKING_ON_MAX]

    def has(self, task_id: str) -> bool:
        """Whether this process has taken the task over and works on it."""
        held = self._held.get(task_id)
        return held is not None and not held.is_over

    def had(self, task_id: str, epoch: int) -> bool:
        """Whether this process works on the task, or a handler of it has left the task open at this epoch."""
        return self.has(task_id) or self._left.get(task_id) == epoch


def parent_here(agent_id: str, task_id: str) -> str:
    """Returns the task that a new task of this agent is a part of: that of the running handler. Empty: none."""
    handling = CURRENT.get()
    held = handling.held if handling is not None else None
    if held is None or not held.is_here or held.agent_id != agent_id or held.task_id == task_id:
        return ""
    return held.task_id
