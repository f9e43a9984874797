"""A message that the broker delivered to this agent, and its acknowledgement."""

import asyncio
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from google.protobuf.duration_pb2 import Duration

from baton import v1
from baton.envelopes import handoff_id_of, mandate_of
from baton.errors import BatonError
from baton.session import SessionEndedError
from baton.traces import of_delivery

_LOG = logging.getLogger("baton")


class Acknowledger(Protocol):
    """Reports the acknowledgements of deliveries to the broker."""

    ack_wait: timedelta
    """The time that a delivery may stay unacknowledged."""

    def acknowledge(self, acknowledgement: v1.Acknowledgement) -> Awaitable[v1.Acknowledged]:
        """Sends an acknowledgement to the broker. Raises BatonError."""

    def handled(self, delivery: "Delivery") -> None:
        """Records that a message is handled although the broker has no ack yet; its redelivery is acked."""

    def acked(self, delivery: "Delivery") -> None:
        """Records that the broker has the ack of a message."""

    def not_acked(self, delivery: "Delivery") -> bool:
        """Forgets that the message is handled. Returns False, and forgets nothing, if a redelivery was acked since."""

    def settled(self, delivery: "Delivery") -> None:
        """Records that a delivery was acked or nacked."""


class Delivery:
    """A message with a verified signature. It must be acked, nacked or extended before ack_deadline."""

    def __init__(self, delivery: v1.Delivery, payload: Any, acknowledger: Acknowledger) -> None:
        self.envelope = delivery.envelope
        """The envelope as its sender sent it."""
        self.payload = payload
        """The payload as the message of baton.v1 that message_type names, for example v1.HandoffRequest."""
        self.sequence = delivery.sequence
        """The message's position in the order of everything that the broker stored."""
        self.handoff_id = delivery.handoff_id or handoff_id_of(delivery.envelope)
        """The handoff that the message belongs to, if any. For a redriven request it differs from the message_id."""
        self.trace_context = of_delivery(delivery)
        """The trace context that the receiver continues, as the handler of the message does. None: none is known."""
        self.is_settled = False
        """Whether this delivery was acked or nacked by this process."""
        self._acknowledger = acknowledger
        self._extending: asyncio.Task[None] | None = None
        self.renew(delivery)

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the message over its redeliveries. A redriven request is another handoff, and another message."""
        return self.envelope.message_id, self.handoff_id

    @property
    def handoff_request(self) -> v1.HandoffRequest | None:
        """The terms, if this message asks the agent to take a task over: a request, an award, or a mandate's award."""
        match self.payload:
            case v1.HandoffRequest() as request:
                return request
            case v1.TaskAccept() as award if award.HasField("handoff"):
                return award.handoff
            case v1.NegotiationClosed() as closed if closed.HasField("task_request"):
                return mandate_of(closed.task_request).handoff
        return None

    @property
    def answer_to(self) -> str:
        """The agent that gets an answer: the sender, or for an award under a mandate the requester."""
        is_mandate = isinstance(self.payload, v1.NegotiationClosed) and self.payload.HasField("task_request")
        sender_id: str = self.payload.task_request.sender_id if is_mandate else self.envelope.sender_id
        return sender_id

    def renew(self, delivery: v1.Delivery) -> None:
        """Takes over the delivery_id of a redelivery of the same message."""
        self.delivery_id = delivery.delivery_id
        """Identifies this delivery attempt."""
        self.attempt = delivery.attempt
        """The delivery attempt, starting at 1. From 2 on the message may have been handled before."""
        self.ack_deadline = delivery.ack_deadline.ToDatetime(tzinfo=UTC)
        """The time of redelivery if the message is not acknowledged, UTC."""

    async def ack(self) -> None:
        """Acks the message: the broker never delivers it again. Raises BatonError, DELIVERY_UNKNOWN after ack_deadline.

        After an error the message comes again. If the session ends before the broker confirms the ack, the agent acks
        the redelivery.
        """
        try:
            await self._ack()
        except SessionEndedError:
            pass
        except BatonError:
            if self._acknowledger.not_acked(self):
                self.is_settled = False
                raise
        except asyncio.CancelledError:
            self._acknowledger.not_acked(self)  # the caller does not know either
            raise

    async def ack_for_sure(self) -> None:
        """Acks a handled message. If the broker cannot take the ack now, the agent acks the redelivery."""
        try:
            await self._ack()
        except BatonError as error:
            _LOG.info("message %s is acked when it comes again: %s", self.envelope.message_id, error)

    async def nack(self, cause: v1.NackCause, text: str = "", *, retry_after: timedelta | None = None) -> None:
        """Nacks the message with a NACK_CAUSE_*. It is redelivered after `retry_after`, or by the broker's backoff.

        NACK_CAUSE_POISON makes it a dead letter at once. `text` is cut to 4096 bytes. Raises BatonError.
        """
        cut = text.encode()[:4096].decode(errors="ignore")
        nack = v1.Nack(cause=cause, reason_text=cut, retry_after=duration(retry_after))
        await self._settle(v1.Acknowledgement(delivery_id=self.delivery_id, nack=nack))

    async def extend(self, extension: timedelta | None = None) -> datetime:
        """Extends the deadline from now, by at most 10 minutes (default: the ack wait). Returns the new one, UTC."""
        extend = v1.Extend(extension=duration(extension))
        acknowledgement = v1.Acknowledgement(delivery_id=self.delivery_id, extend=extend)
        answer = await self._acknowledger.acknowledge(acknowledgement)
        self.ack_deadline = answer.ack_deadline.ToDatetime(tzinfo=UTC)
        return self.ack_deadline

    def keep(self) -> None:
        """Extends the delivery periodically until it is acked or nacked, or until `let_go`."""
        if self._extending is None and not self.is_settled:
            self._extending = asyncio.create_task(self._keep())

    def let_go(self) -> None:
        """Stops the periodic extension."""
        if self._extending is not None:
            self._extending.cancel()
            self._extending = None

    async def _keep(self) -> None:
        while True:
            # Uses the local monotonic clock, which is independent of the broker's wall clock.
            await asyncio.sleep(self._acknowledger.ack_wait.total_seconds() / 3)
            try:
                await self.extend()
            except BatonError as error:
                # After the session's end the broker redelivers the message, and `renew` sets its new delivery_id.
                _LOG.debug("delivery of message %s was not extended: %s", self.envelope.message_id, error)

    async def _ack(self) -> None:
        # A redelivery may arrive before the answer to this ack.
        self._acknowledger.handled(self)
        await self._settle(v1.Acknowledgement(delivery_id=self.delivery_id, ack=v1.Ack()))
        self._acknowledger.acked(self)

    async def _settle(self, acknowledgement: v1.Acknowledgement) -> None:
        self.is_settled = True
        self.let_go()
        self._acknowledger.settled(self)
        await self._acknowledger.acknowledge(acknowledgement)

    def __repr__(self) -> str:
        """Names the message type and the sender, without the content."""
        kind = type(self.payload).__name__
        return f"<Delivery {kind} {self.envelope.message_id} of {self.envelope.sender_id}, attempt {self.attempt}>"


class _Nobody:
    """Acknowledges nothing: the message has no delivery."""

    ack_wait = timedelta(seconds=30)

    async def acknowledge(self, acknowledgement: v1.Acknowledgement) -> v1.Acknowledged:
        return v1.Acknowledged(delivery_id=acknowledgement.delivery_id)

    def handled(self, delivery: Delivery) -> None:
        pass

    def acked(self, delivery: Delivery) -> None:
        pass

    def not_acked(self, delivery: Delivery) -> bool:
        return bool(delivery)

    def settled(self, delivery: Delivery) -> None:
        pass


class ReadDelivery(Delivery):
    """A message that was read at the broker instead of delivered: nothing is outstanding, and an ack has no effect."""

    def __init__(self, delivery: v1.Delivery, payload: Any) -> None:
        super().__init__(delivery, payload, _Nobody())


def duration(span: timedelta | None) -> Duration | None:
    """Converts a time span to its protobuf form."""
    if span is None:
        return None
    made = Duration()
    made.FromTimedelta(span)
    return made
