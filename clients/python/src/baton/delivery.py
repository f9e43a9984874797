"""A message that was handed out to an agent, and what becomes of it."""

import asyncio
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from google.protobuf.duration_pb2 import Duration

from baton import v1
from baton.envelopes import handoff_id_of
from baton.errors import BatonError
from baton.session import SessionEndedError

_LOG = logging.getLogger("baton")


class Acknowledger(Protocol):
    """Tells the broker what became of a delivery."""

    ack_wait: timedelta
    """How long a delivery may stay unacknowledged."""

    def acknowledge(self, acknowledgement: v1.Acknowledgement) -> Awaitable[v1.Acknowledged]:
        """Tells the broker. Raises BatonError."""

    def ack_when_it_returns(self, message_id: str) -> None:
        """Remembers that this message is done, though the broker could not be told yet."""

    def settled(self, delivery: "Delivery") -> None:
        """It was acked or nacked."""


class Delivery:
    """A message handed out to this agent, its signature checked. To be acked, nacked or extended by ack_deadline."""

    def __init__(self, delivery: v1.Delivery, payload: Any, acknowledger: Acknowledger) -> None:
        self.envelope = delivery.envelope
        """As its sender sent it."""
        self.payload = payload
        """The payload as the message of baton.v1 that message_type names, for example v1.HandoffRequest."""
        self.sequence = delivery.sequence
        """The message's place in the order of everything that the broker stored."""
        self.handoff_id = delivery.handoff_id or handoff_id_of(delivery.envelope)
        """The handoff that it belongs to, if any. Of a request that was redriven this is not the message_id."""
        self.is_settled = False
        """Whether it was acked or nacked here."""
        self._acknowledger = acknowledger
        self._extending: asyncio.Task[None] | None = None
        self.renew(delivery)

    def renew(self, delivery: v1.Delivery) -> None:
        """The same message was handed out anew, to be acknowledged under another id."""
        self.delivery_id = delivery.delivery_id
        """Names this handing-out."""
        self.attempt = delivery.attempt
        """The how-manieth handing-out it is; more than 1 means that the message may be known already."""
        self.ack_deadline = delivery.ack_deadline.ToDatetime(tzinfo=UTC)
        """When it is delivered again unless acknowledged, UTC."""

    async def ack(self) -> None:
        """Takes it: it is never delivered again. Raises BatonError, DELIVERY_UNKNOWN if its time was over.

        Where the session ends before the broker has said so, the message is acked as soon as it comes again.
        """
        try:
            await self._settle(v1.Acknowledgement(delivery_id=self.delivery_id, ack=v1.Ack()))
        except SessionEndedError:
            self._acknowledger.ack_when_it_returns(self.envelope.message_id)

    async def ack_for_sure(self) -> None:
        """Acks what is handled: where the broker does not take the ack now, as soon as the message comes again."""
        try:
            await self.ack()
        except BatonError as error:
            _LOG.info("message %s is acked when it comes again: %s", self.envelope.message_id, error)
            self._acknowledger.ack_when_it_returns(self.envelope.message_id)

    async def nack(self, cause: v1.NackCause, text: str = "", *, retry_after: timedelta | None = None) -> None:
        """Does not take it, for a cause NACK_CAUSE_*. Delivered again after `retry_after`, or by the broker's backoff.

        NACK_CAUSE_POISON makes a dead letter of it at once. `text` is cut to 4096 bytes. Raises BatonError.
        """
        cut = text.encode()[:4096].decode(errors="ignore")
        nack = v1.Nack(cause=cause, reason_text=cut, retry_after=duration(retry_after))
        await self._settle(v1.Acknowledgement(delivery_id=self.delivery_id, nack=nack))

    async def extend(self, extension: timedelta | None = None) -> datetime:
        """Asks for more time, from now: at most 10 minutes, by default the ack wait. Returns the new deadline, UTC."""
        extend = v1.Extend(extension=duration(extension))
        acknowledgement = v1.Acknowledgement(delivery_id=self.delivery_id, extend=extend)
        answer = await self._acknowledger.acknowledge(acknowledgement)
        self.ack_deadline = answer.ack_deadline.ToDatetime(tzinfo=UTC)
        return self.ack_deadline

    def keep(self) -> None:
        """Extends it again and again from now on, until it is acked or nacked, or `let_go` is called."""
        if self._extending is None and not self.is_settled:
            self._extending = asyncio.create_task(self._keep())

    def let_go(self) -> None:
        """Extends it no more."""
        if self._extending is not None:
            self._extending.cancel()
            self._extending = None

    async def _keep(self) -> None:
        while True:
            # By this machine's own monotonic clock: it need not agree with the broker's on what time it is.
            await asyncio.sleep(self._acknowledger.ack_wait.total_seconds() / 3)
            try:
                await self.extend()
            except BatonError as error:
                # Where the session has ended, the message comes again and goes on under its new delivery_id.
                _LOG.debug("delivery of message %s was not extended: %s", self.envelope.message_id, error)

    async def _settle(self, acknowledgement: v1.Acknowledgement) -> None:
        self.is_settled = True
        self.let_go()
        self._acknowledger.settled(self)
        await self._acknowledger.acknowledge(acknowledgement)

    def __repr__(self) -> str:
        """What and from whom, without the content."""
        kind = type(self.payload).__name__
        return f"<Delivery {kind} {self.envelope.message_id} of {self.envelope.sender_id}, attempt {self.attempt}>"


def duration(span: timedelta | None) -> Duration | None:
    """A span of time as protobuf has it."""
    if span is None:
        return None
    made = Duration()
    made.FromTimedelta(span)
    return made
