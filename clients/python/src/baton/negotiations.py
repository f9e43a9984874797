"""Negotiations: ask for offers, counter, award; and on the other side, answer with an offer or a decline."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import grpc

from baton import handoffs, v1
from baton.conversation import Conversation
from baton.delivery import Delivery, duration
from baton.envelopes import make_envelope
from baton.errors import BatonError, NegotiationFailedError
from baton.following import delay_of
from baton.handoffs import HandedOver, Handoffs, OnView, code_of
from baton.messages import NewRequest

_PAGE_SIZE = 200
_STANDING = (v1.BID_STATE_OFFERED, v1.BID_STATE_COUNTERED)
_FINAL = (v1.NEGOTIATION_STATE_SETTLED, v1.NEGOTIATION_STATE_FAILED, v1.NEGOTIATION_STATE_CANCELLED)


@dataclass(frozen=True)
class Bid:
    """An offer of a bidder. It stands until the bidder replaces or withdraws it, or either side declines."""

    negotiation: "Negotiation"
    agent_id: str
    """The bidder."""
    offer_id: str
    """The message_id of the offer."""
    offer: v1.TaskOffer
    """The terms. `conditions` is empty if an earlier process of the requester has read the offer."""

    async def counter(
        self,
        *,
        cost: float | None = None,
        confidence: float | None = None,
        estimated_duration: timedelta | None = None,
        conditions: str = "",
    ) -> v1.Receipt:
        """Makes a counter-offer. What is not named stays as in the offer. The bidder's answer is a further bid.

        Raises BatonError: ROUND_LIMIT after three rounds, OFFER_NOT_STANDING, NEGOTIATION_CLOSED.
        """
        counter = v1.TaskOffer(
            confidence=self.offer.confidence if confidence is None else confidence,
            cost=self.offer.cost if cost is None else cost,
            conditions=conditions,
            round=self.offer.round + 1,
        )
        if estimated_duration is not None:
            counter.estimated_duration.FromTimedelta(estimated_duration)
        elif self.offer.HasField("estimated_duration"):
            counter.estimated_duration.CopyFrom(self.offer.estimated_duration)
        return await self.negotiation._tell(self.agent_id, counter)  # noqa: SLF001

    async def decline(self, text: str = "", reason: v1.RejectReason = v1.REJECT_REASON_OTHER) -> v1.Receipt:
        """Declines the offer, which ends the bidder's part. Raises BatonError."""
        decline = v1.TaskDecline(reason=reason, reason_text=text)
        receipt = await self.negotiation._tell(self.agent_id, decline)  # noqa: SLF001
        self.negotiation.bids.pop(self.agent_id, None)
        return receipt


class Negotiation:
    """A negotiation of this agent, inside `Agent.negotiate` or `Agent.resume_negotiation`.

    async with alice.negotiate("all:analyst", v1.TaskRequest(description="the sums of march")) as negotiation:
        async for bid in negotiation:  # until no further offers are taken
            if bid.offer.cost > 5 and bid.offer.round == 0:
                await bid.counter(cost=5)
        await negotiation.award(min(negotiation.bids.values(), key=lambda bid: bid.offer.cost))
    """

    def __init__(
        self,
        agent: "Negotiations",
        mail: Conversation,
        negotiation_id: str,
        *,
        task_id: str = "",
        epoch: int = 0,
        terms: v1.HandoffRequest | None = None,
    ) -> None:
        self.negotiation_id = negotiation_id
        """The id of the negotiation: the message_id of the TaskRequest."""
        self.task_id = task_id
        """The task of the negotiation; empty without one."""
        self.bids: dict[str, Bid] = {}
        """The standing offers that have arrived, by bidder."""
        self.declines: dict[str, v1.TaskDecline] = {}
        """The answers of the agents that make no offer, by agent."""
        self._agent = agent
        self._mail = mail
        self._epoch = epoch
        self._terms = terms
        self._seen: set[str] = set()
        self._new: asyncio.Queue[Bid | BaseException | None] = asyncio.Queue()
        self._closed: asyncio.Future[v1.Negotiation] = asyncio.get_running_loop().create_future()
        self._closed.add_done_callback(lambda closed: closed.cancelled() or closed.exception())
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begins to read the mail of the negotiation."""
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends the reading. The negotiation goes on at the broker."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    def __aiter__(self) -> AsyncIterator[Bid]:
        """Yields each offer as it arrives, also one that replaces another, until the negotiation closes."""
        return self

    async def __anext__(self) -> Bid:
        """Waits for the next offer."""
        bid = await self._new.get()
        if isinstance(bid, Bid):
            return bid
        self._new.put_nowait(bid)
        if bid is None:
            raise StopAsyncIteration
        raise bid

    async def closed(self) -> v1.Negotiation:
        """Waits until no further offers are taken. Returns the state then: see `v1.Negotiation.state`."""
        return await asyncio.shield(self._closed)

    async def state(self) -> v1.Negotiation:
        """Returns the present state of the negotiation."""
        return await self._agent.get_negotiation(self.negotiation_id)

    async def award(self, bid: Bid, details: str = "") -> v1.Receipt:
        """Awards the work to an offer, as mail: no task moves. The other bidders are told.

        Raises BatonError: OFFER_NOT_STANDING, NEGOTIATION_CLOSED.
        """
        return await self._tell(bid.agent_id, v1.TaskAccept(offer_id=bid.offer_id, details=details))

    async def hand_over(
        self,
        bid: Bid,
        context: Iterable[v1.ContextSection],
        *,
        terms: v1.HandoffRequest | None = None,
        details: str = "",
        timeout: timedelta | None = None,  # noqa: ASYNC109
        on_view: OnView | None = None,
    ) -> HandedOver:
        """Awards the task of the negotiation to an offer, and hands it over to the bidder: see `Agent.hand_over`.

        `terms` are those of the handoff; by default the ones that the request for offers named.
        """
        terms = terms or self._terms
        if terms is None or not self.task_id:
            raise ValueError("a handoff needs the task of the negotiation and the terms")
        sections = list(context)
        handoffs.check_context(sections)
        envelope = make_envelope(
            v1.TaskAccept(offer_id=bid.offer_id, details=details, handoff=terms),
            sender_id=self._agent.agent_id,
            receiver_id=bid.agent_id,
            task_id=self.task_id,
            epoch=self._epoch,
            correlation_id=self.negotiation_id,
        )
        made, view = NewRequest(envelope, None), on_view or (lambda _: None)
        return await self._agent._hand_over(made, sections, view, timeout)  # noqa: SLF001

    async def handed_over(self, context: Iterable[v1.ContextSection]) -> HandedOver:
        """Waits for the award that the broker makes under the mandate, and gives the context to the agent that accepts.

        Raises NegotiationFailedError if no offer counts at the close, or if there is nothing to hand over;
        HandoffFailedError if no agent takes the task.
        """
        sections = list(context)
        handoffs.check_context(sections)
        state = await self.closed()
        if not state.handoff_id:
            reason = code_of(state.error_code) if state.error_code else v1.NegotiationState.Name(state.state)
            text = state.error_message or "the broker has opened no handoff"
            raise NegotiationFailedError(self.negotiation_id, reason.removeprefix("NEGOTIATION_STATE_"), text)
        return await self._agent.resume_hand_over(state.handoff_id, sections)

    async def cancel(self) -> v1.Negotiation:
        """Cancels the negotiation, and the bidders are told. Raises BatonError, NEGOTIATION_CLOSED."""
        state = await self._agent.cancel_negotiation(self.negotiation_id)
        self._close(state)
        return state

    async def _tell(self, agent_id: str, payload: Any) -> v1.Receipt:
        return await self._agent.send(payload, receiver_id=agent_id, correlation_id=self.negotiation_id)

    async def _read(self) -> None:
        """Takes the mail of the negotiation, and acks it: the broker keeps the bids, and the end."""
        is_late = False
        try:
            while True:
                delivery = await self._mail.next_within(handoffs.LOOK_SECONDS)
                if delivery is not None:
                    self._take(delivery)
                    await delivery.ack_for_sure()
                is_news = delivery is None or isinstance(delivery.payload, v1.NegotiationClosed | v1.ErrorNotification)
                if not self._closed.done() and (is_news or is_late):
                    is_late = await self._look(waits=delivery is not None)
        except BatonError as error:
            if not self._closed.done():
                self._closed.set_exception(error)
                self._new.put_nowait(error)

    def _take(self, delivery: Delivery) -> None:
        agent_id, payload = delivery.envelope.sender_id, delivery.payload
        match payload:
            case v1.TaskOffer(withdrawn=True):
                self.bids.pop(agent_id, None)
            case v1.TaskOffer():
                self._bid(Bid(self, agent_id, delivery.envelope.message_id, payload))
            case v1.TaskDecline():
                self.bids.pop(agent_id, None)
                self.declines[agent_id] = payload

    def _bid(self, bid: Bid) -> None:
        if bid.offer_id not in self._seen:
            self._seen.add(bid.offer_id)
            self.bids[bid.agent_id] = bid
            self._new.put_nowait(bid)

    async def _look(self, *, waits: bool) -> bool:
        """Looks whether the negotiation has closed. Returns whether it has, and the mail of an offer is still due."""
        try:
            state = await self.state()
        except BatonError as error:
            if not error.is_passing:
                raise
            return False
        is_open = state.state == v1.NEGOTIATION_STATE_OPEN
        if is_open and waits:
            return False
        due = [bid for bid in state.bids if bid.state in _STANDING and bid.offer_id not in self._seen]
        if due and waits:
            return True
        for bid in due:
            self._bid(self._of_state(bid))
        if not is_open:
            self._close(state)
        return False

    def resumed(self, state: v1.Negotiation) -> None:
        """Takes over the bids of an earlier process."""
        for bid in state.bids:
            if bid.state in _STANDING:
                self._bid(self._of_state(bid))
        if state.state != v1.NEGOTIATION_STATE_OPEN:
            self._close(state)

    def _of_state(self, bid: v1.NegotiationBid) -> Bid:
        offer = v1.TaskOffer(confidence=bid.confidence, cost=bid.cost, round=bid.round)
        if bid.HasField("estimated_duration"):
            offer.estimated_duration.CopyFrom(bid.estimated_duration)
        if bid.HasField("valid_until"):
            offer.valid_until.CopyFrom(bid.valid_until)
        return Bid(self, bid.agent_id, bid.offer_id, offer)

    def _close(self, state: v1.Negotiation) -> None:
        if not self._closed.done():
            self._closed.set_result(state)
            self._new.put_nowait(None)


@dataclass(frozen=True)
class OfferWanted:
    """A request for an offer, or a counter-offer, for the handler of `Agent.on_task_request`."""

    negotiation_id: str
    requester_id: str
    """The agent that asks."""
    request: v1.TaskRequest | None
    """The request; None for a counter-offer to an offer that an earlier process of this agent made."""
    counter: v1.TaskOffer | None
    """The requester's counter-offer; None for the request itself."""

    @property
    def round(self) -> int:
        """The round of the answer, 0 to 3."""
        return 0 if self.counter is None else self.counter.round


def offer(
    *,
    confidence: float,
    cost: float = 0.0,
    estimated_duration: timedelta | None = None,
    conditions: str = "",
    valid_for: timedelta | None = None,
) -> v1.TaskOffer:
    """Returns an offer. Without `valid_for` it stands until the negotiation ends."""
    made = v1.TaskOffer(
        confidence=confidence, cost=cost, estimated_duration=duration(estimated_duration), conditions=conditions
    )
    if valid_for is not None:
        made.valid_until.FromDatetime(datetime.now(UTC) + valid_for)
    return made


async def is_answered(agent: "Negotiations", delivery: Delivery) -> bool:
    """Whether an earlier delivery of a request or a counter-offer was answered, or needs no answer any more."""
    if delivery.attempt == 1:
        return False
    state = await agent.get_negotiation(negotiation_id_of(delivery))
    if state.state != v1.NEGOTIATION_STATE_OPEN:
        return True
    own = next((bid for bid in state.bids if bid.agent_id == agent.agent_id), v1.NegotiationBid())
    if isinstance(delivery.payload, v1.TaskRequest):
        return own.state not in (v1.BID_STATE_ASKED, v1.BID_STATE_UNREACHABLE)
    return own.state != v1.BID_STATE_COUNTERED or own.counter_offer_id != delivery.envelope.message_id


def negotiation_id_of(delivery: Delivery) -> str:
    """Returns the negotiation of a delivery."""
    is_request = isinstance(delivery.payload, v1.TaskRequest)
    return delivery.envelope.message_id if is_request else delivery.envelope.correlation_id


class Negotiations(Handoffs):
    """The calls about negotiations. `Agent` has them."""

    @contextlib.asynccontextmanager
    async def negotiate(
        self, receiver_id: str, request: v1.TaskRequest, *, task_id: str = "", epoch: int = 0
    ) -> AsyncIterator[Negotiation]:
        """Asks the agents of `all:NAME`, one of `type:NAME`, or one agent for offers: see `Negotiation`.

        With `task_id` the award hands over this task, at `epoch`, by default 1. The broker awards by `award_rule` if
        the request has one; with its `handoff` it hands the task over itself, and `handed_over` gives the context.
        Leaving the context manager does not end the negotiation: `resume_negotiation` takes it up again. Raises
        BatonError, for example RECEIVER_UNKNOWN if no agent can be asked, FIELD_INVALID, STALE_EPOCH.
        """
        epoch = epoch or (1 if task_id else 0)
        envelope = make_envelope(
            request, sender_id=self.agent_id, receiver_id=receiver_id, task_id=task_id, epoch=epoch
        )
        terms = request.handoff if request.HasField("handoff") else None
        negotiation_id = envelope.message_id
        with self._dispatcher.negotiation(negotiation_id) as mail:
            await self._sign_and_send(envelope)
            async with Negotiation(
                self, mail, negotiation_id, task_id=task_id, epoch=epoch, terms=terms
            ) as negotiation:
                yield negotiation

    @contextlib.asynccontextmanager
    async def resume_negotiation(self, negotiation_id: str, *, epoch: int = 1) -> AsyncIterator[Negotiation]:
        """Continues a negotiation that an earlier process of this agent began. Its standing offers come first.

        Raises BatonError, NOT_OWNER if another agent asked for the offers, PERMISSION_DENIED if this agent has no part.
        """
        with self._dispatcher.negotiation(negotiation_id) as mail:
            state = await self.get_negotiation(negotiation_id)
            if state.requester_id != self.agent_id:
                text = f"the offers of {negotiation_id} were asked for by {state.requester_id}"
                raise BatonError(grpc.StatusCode.PERMISSION_DENIED, text, reason="NOT_OWNER")
            negotiation = Negotiation(self, mail, negotiation_id, task_id=state.task_id, epoch=epoch)
            negotiation.resumed(state)
            async with negotiation:
                yield negotiation

    async def get_negotiation(self, negotiation_id: str) -> v1.Negotiation:
        """Returns a negotiation. A bidder sees its own bid alone. Raises BatonError, PERMISSION_DENIED."""
        request = v1.GetNegotiationRequest(negotiation_id=negotiation_id)
        answer = await self._connection.call(self._connection.negotiations.GetNegotiation, request)
        negotiation: v1.Negotiation = answer.negotiation
        return negotiation

    async def negotiations(
        self, *, agent_id: str = "", states: Sequence[v1.NegotiationState] = ()
    ) -> AsyncGenerator[v1.Negotiation, None]:
        """Yields the negotiations that match all filters, the newest first, without their bids."""
        request = v1.ListNegotiationsRequest(page_size=_PAGE_SIZE, agent_id=agent_id, states=states)
        while True:
            page = await self._connection.call(self._connection.negotiations.ListNegotiations, request)
            for negotiation in page.negotiations:
                yield negotiation
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def watch_negotiation(self, negotiation_id: str) -> AsyncGenerator[v1.Negotiation, None]:
        """Yields the present negotiation, and its state after each step, until a final one.

        After a lost connection the watch begins again with the present state.
        """
        request = v1.WatchNegotiationRequest(negotiation_id=negotiation_id)
        attempt = 0
        while True:
            delay = 0.0
            try:
                stream = self._connection.stream(self._connection.negotiations.WatchNegotiation, request)
                async with contextlib.aclosing(stream) as responses:
                    async for response in responses:
                        yield response.negotiation
                        attempt = 0
                        if response.negotiation.state in _FINAL:
                            return
            except BatonError as error:
                if not error.is_passing:
                    raise
                delay = error.retry_delay or 0.0
            await asyncio.sleep(max(delay, delay_of(attempt)))
            attempt += 1

    async def cancel_negotiation(self, negotiation_id: str) -> v1.Negotiation:
        """Cancels a negotiation of this agent that is not awarded. Raises BatonError, NEGOTIATION_CLOSED."""
        request = v1.CancelNegotiationRequest(negotiation_id=negotiation_id)
        answer = await self._connection.call(self._connection.negotiations.CancelNegotiation, request)
        negotiation: v1.Negotiation = answer.negotiation
        return negotiation
