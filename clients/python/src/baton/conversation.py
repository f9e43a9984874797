"""A queue of deliveries: the mail of one handoff, the result of a delegated task, or mail without a handler."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from baton.delivery import Delivery


class Conversation:
    """A queue of deliveries that can end with an error."""

    def __init__(self, task_id: str = "", epoch: int = 0, handoff_id: str = "") -> None:
        self.task_id = task_id
        """The task that the waiting call is about; empty for the agent's mail, and for an offer."""
        self.epoch = epoch
        """The lowest epoch of the task whose mail belongs to this queue."""
        self.handoff_id = handoff_id
        """The handoff that the waiting call is about; empty for another matter."""
        # None has the reader look at the state of its matter.
        self._mail: asyncio.Queue[Delivery | Exception | None] = asyncio.Queue()

    def put(self, delivery: Delivery) -> None:
        """Appends a delivery."""
        self._mail.put_nowait(delivery)

    def fail(self, why: Exception) -> None:
        """Ends the queue: `next` raises `why` after the queued deliveries."""
        self._mail.put_nowait(why)

    def look(self) -> None:
        """Ends a present or the next `next_within`, after the queued deliveries, as if its time had passed."""
        self._mail.put_nowait(None)

    async def next(self) -> Delivery:
        """Waits for a delivery and removes it. Raises the error of `fail` at the end of the queue."""
        while (delivery := await self._next()) is None:
            pass
        return delivery

    async def next_within(self, seconds: float) -> Delivery | None:
        """As `next`, but returns None if no delivery arrives in time, or at a `look`."""
        try:
            async with asyncio.timeout(seconds):
                return await self._next()
        except TimeoutError:
            return None

    async def _next(self) -> Delivery | None:
        delivery = await self._mail.get()
        if isinstance(delivery, Exception):
            self._mail.put_nowait(delivery)
            raise delivery
        return delivery

    def take_out(self, is_wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Removes and returns the deliveries that match; the others keep their order."""
        wanted = []
        for _ in range(self._mail.qsize()):
            one = self._mail.get_nowait()
            if isinstance(one, Delivery) and is_wanted(one):
                wanted.append(one)
            else:
                self._mail.put_nowait(one)
        return wanted

    def rest(self) -> list[Delivery]:
        """Removes and returns all deliveries."""
        return self.take_out(lambda _: True)


class Queues(Protocol):
    """Routes mail to the calls that wait for it, each with a queue of its own inside the context manager."""

    def conversation(self, handoff_id: str, task_id: str = "", epoch: int = 0) -> AbstractContextManager[Conversation]:
        """Routes the mail of one handoff. Its sender names the task and its own epoch."""

    def results(self, task_id: str, epoch: int, handoff_id: str) -> AbstractContextManager[Conversation]:
        """Routes the final status, from this epoch on, of a task that this handoff lends."""

    def answers(self, question_id: str) -> AbstractContextManager[Conversation]:
        """Routes the answer to a question."""

    def negotiation(self, negotiation_id: str) -> AbstractContextManager[Conversation]:
        """Routes the mail of a negotiation of this agent."""

    def waited_for(self, task_id: str, epoch: int, *, is_loan: bool) -> str:
        """Returns the handoff of the call that waits for this task, if another call at this epoch would disturb it.

        Empty: none does. There is one wait for the result of a task, so a loan is also disturbed at a later epoch.
        """

    def known(self, message_or_handoff_id: str) -> None:
        """Has a message acked that is still to come: the call that waited for it has read its content at the broker.

        Of a handoff, those that its sender gets.
        """

    def returned(self, task_id: str, handoff_id: str, epoch: int) -> None:
        """Ends the wait for the result of a task that this agent has recalled."""
