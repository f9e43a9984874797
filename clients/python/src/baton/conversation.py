"""The mail that somebody waits for: that of one handoff, or what comes of a delegated task."""

import asyncio

from baton.delivery import Delivery
from baton.errors import BatonError


class Conversation:
    """A queue of deliveries that can end."""

    def __init__(self) -> None:
        self._mail: asyncio.Queue[Delivery | BatonError] = asyncio.Queue()

    def put(self, delivery: Delivery) -> None:
        """The next one."""
        self._mail.put_nowait(delivery)

    def fail(self, why: BatonError) -> None:
        """There will be no further mail."""
        self._mail.put_nowait(why)

    async def next(self) -> Delivery:
        """Waits for the next one. Raises BatonError if there will be none."""
        delivery = await self._mail.get()
        if isinstance(delivery, BatonError):
            self._mail.put_nowait(delivery)
            raise delivery
        return delivery

    def rest(self) -> list[Delivery]:
        """What nobody has taken."""
        left = [self._mail.get_nowait() for _ in range(self._mail.qsize())]
        return [one for one in left if isinstance(one, Delivery)]
