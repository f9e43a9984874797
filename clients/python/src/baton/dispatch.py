"""The routing of a delivery: to the handoff that waits for it, to a handler, or to the reader of the mail."""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

from google.protobuf.message import Message

from baton import v1
from baton.conversation import Conversation
from baton.delivery import Delivery
from baton.directory import BROKER_ID
from baton.errors import (
    BatonError,
    HandoffFailedError,
    PoisonError,
    RecallReason,
    RetryLaterError,
    TaskRecalledError,
)
from baton.handoffs import ContextWanted, code_of, give_context, is_open
from baton.limits import DETAILS_BYTES_MAX
from baton.loans import Recalled, reason_of, recalled_by
from baton.negotiations import Negotiations, OfferWanted, is_answered, negotiation_id_of
from baton.questions import Question, is_question
from baton.resuming import Resumer, last_context
from baton.tasks import Offer
from baton.traces import for_handler
from baton.work import CURRENT, Held

_LOG = logging.getLogger("baton")

Handler = Callable[[Delivery], Awaitable[None]]
HandoffHandler = Callable[[Offer], Awaitable[None]]
PromptHandler = Callable[[Question], Awaitable[None]]
RecallHandler = Callable[[Recalled], Awaitable[None]]
TaskRequestHandler = Callable[[OfferWanted], Awaitable[v1.TaskOffer | v1.TaskDecline]]
ContextProvider = Callable[[ContextWanted], Awaitable[Iterable[v1.ContextSection]]]

_OF_A_HANDOFF = (
    v1.TaskContextTransfer,
    v1.HandoffCancel,
    v1.HandoffAccept,
    v1.HandoffReject,
    v1.HandoffComplete,
)
_FINAL = (v1.TASK_STATUS_COMPLETED, v1.TASK_STATUS_FAILED, v1.TASK_STATUS_CANCELED)
# Notices: without a handler they are logged and acked.
_NEWS = (
    v1.ErrorNotification,
    v1.TaskStatusUpdate,
    v1.TaskInput,
    v1.HandoffReject,
    v1.HandoffCancel,
    v1.HandoffComplete,
    v1.NegotiationClosed,
    v1.TaskDecline,
)
_OF_A_NEGOTIATION = (v1.TaskOffer, v1.TaskDecline, v1.NegotiationClosed)
# The requests for offers that are remembered for later counter-offers.
_REQUESTS_MAX = 1024
_KNOWN_MAX = 4096
# The time after a reconnect in which a notice that waits at the broker arrives.
_NEWS_SECONDS = 1.0
# The time that a cancelled handler gets for its cleanup and for the nack of its delivery.
_CANCEL_SECONDS = 10.0
# Steps of an open handoff: one side of it waits for the answer.
_STEPS = (v1.HandoffAccept, v1.TaskContextTransfer)
_WAITED_FOR_SOON = timedelta(seconds=2)
# The handoffs in progress up to which tasks are resumed, for an agent without a capacity.
_RESUMED_MAX = 50
_RETRY_SECONDS = 1.0
_TOO_LATE = {
    "HANDOFF_EXPIRED",
    "HANDOFF_FINAL",
    "HANDOFF_UNKNOWN",
    "INPUT_EXPIRED",
    "INPUT_TAKEN",
    "NEGOTIATION_CLOSED",
    "NEGOTIATION_UNKNOWN",
    "NOT_CANDIDATE",
    "OFFER_NOT_STANDING",
    "STALE_EPOCH",
}


class Receiver(Resumer, Negotiations):
    """The agent whose mail a dispatcher routes."""

    capacity: int
    welcome: v1.Welcome

    def leave(self, delivery: Delivery) -> None:
        """Queues mail that has no handler."""
        raise NotImplementedError

    def take_back(self, is_wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Removes and returns queued mail that a call now waits for."""
        raise NotImplementedError


class Dispatcher:
    """Gives each delivery to its handler, extends it meanwhile, and acks or nacks it by the handler's outcome."""

    def __init__(self, agent: Receiver, handler_timeout: timedelta | None) -> None:
        self.handlers: dict[type[Message], Handler] = {}
        self.handoff_handler: HandoffHandler | None = None
        self.context_provider: ContextProvider | None = None
        self.recall_handler: RecallHandler | None = None
        self.prompt_handler: PromptHandler | None = None
        self.task_request_handler: TaskRequestHandler | None = None
        self.active_count = 0
        """The number of handoffs in progress."""
        self._agent = agent
        self._timeout = None if handler_timeout is None else handler_timeout.total_seconds()
        self._conversations: dict[str, Conversation] = {}
        self._results: dict[str, Conversation] = {}
        self._answers: dict[str, Conversation] = {}
        self._negotiations: dict[str, Conversation] = {}
        self._task_requests: OrderedDict[str, v1.TaskRequest] = OrderedDict()
        self._offers: dict[str, tuple[Offer, asyncio.Task[Any] | None]] = {}
        self._recalled: set[asyncio.Task[Any]] = set()
        self._held: dict[tuple[str, str], Delivery] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._is_stopping = False
        self._ended_one = asyncio.Event()
        # The messages and handoffs whose content a call has read at the broker; their mail has no reader.
        self._known: OrderedDict[str, None] = OrderedDict()

    @property
    def has_handlers(self) -> bool:
        """Whether any handler is registered."""
        roles = (
            self.handoff_handler,
            self.context_provider,
            self.recall_handler,
            self.prompt_handler,
            self.task_request_handler,
        )
        return bool(self.handlers) or any(roles)

    def conversation(
        self, handoff_id: str, task_id: str = "", epoch: int = 0
    ) -> contextlib.AbstractContextManager[Conversation]:
        """Routes the mail of one handoff to a queue, inside the context manager.

        Its sender names the task and its own epoch, so that a recall of the task ends the queue.
        """
        return self._waiting(self._conversations, handoff_id, task_id, epoch, handoff_id)

    def answers(self, question_id: str) -> contextlib.AbstractContextManager[Conversation]:
        """Routes the answer to a question to a queue, inside the context manager."""
        return self._waiting(self._answers, question_id)

    def negotiation(self, negotiation_id: str) -> contextlib.AbstractContextManager[Conversation]:
        """Routes the mail of a negotiation of this agent to a queue, inside the context manager."""
        return self._waiting(self._negotiations, negotiation_id)

    def results(self, task_id: str, epoch: int, handoff_id: str) -> contextlib.AbstractContextManager[Conversation]:
        """Routes the final status of a lent task from this epoch on to a queue, inside the context manager."""
        return self._waiting(self._results, task_id, task_id, epoch, handoff_id)

    def waited_for(self, task_id: str, epoch: int, *, is_loan: bool) -> str:
        """Returns the handoff of the call that waits for this task, if another call at this epoch would disturb it."""
        results = self._results.get(task_id)
        # The result of a loan has an epoch above that of the call.
        if results is not None and (is_loan or epoch < results.epoch):
            return results.handoff_id
        calls = (mail for mail in self._conversations.values() if mail.task_id == task_id and epoch <= mail.epoch)
        return next((mail.handoff_id for mail in calls), "")

    @contextlib.contextmanager
    def _waiting(
        self, waiting: dict[str, Conversation], name: str, task_id: str = "", epoch: int = 0, handoff_id: str = ""
    ) -> Iterator[Conversation]:
        mail = waiting[name] = Conversation(task_id, epoch, handoff_id)
        for left in self._agent.take_back(lambda delivery: self._waiting_for(delivery) is mail):
            self._hold(left)
            mail.put(left)
        try:
            yield mail
        finally:
            if waiting.get(name) is mail:
                del waiting[name]
            for delivery in mail.rest():
                if not delivery.is_settled:
                    self.dispatch(delivery)

    def fail(self, why: BatonError) -> None:
        """Ends every queue with this error."""
        for mail in self._waiting_calls():
            mail.fail(why)

    def look_soon(self) -> None:
        """Has every waiting call read the state of its matter after 1 s: a message may have gone elsewhere."""
        loop = asyncio.get_running_loop()
        for mail in self._waiting_calls():
            loop.call_later(_NEWS_SECONDS, mail.look)

    def _waiting_calls(self) -> list[Conversation]:
        waiting = (self._conversations, self._results, self._answers, self._negotiations)
        return [mail for calls in waiting for mail in calls.values()]

    def known(self, message_or_handoff_id: str) -> None:
        """Has a message acked that is still to come; of a handoff, those that its sender gets."""
        self._known[message_or_handoff_id] = None
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    def _is_known(self, delivery: Delivery) -> bool:
        of_sender = isinstance(delivery.payload, v1.HandoffAccept | v1.HandoffReject | v1.HandoffComplete)
        return delivery.envelope.message_id in self._known or (of_sender and delivery.handoff_id in self._known)

    def returned(self, task_id: str, handoff_id: str, epoch: int) -> None:
        """Ends the wait for the result of a task that this agent has recalled."""
        results = self._results.get(task_id)
        if results is not None and epoch > results.epoch:
            text = "this agent recalled the task"
            results.fail(TaskRecalledError(task_id, handoff_id, RecallReason.RECALL, text, epoch=epoch))

    def _stop_work(self, delivery: Delivery) -> None:
        """If the broker took a task from this agent: ends the calls and cancels the handlers that work on it."""
        told, envelope = recalled_by(delivery, self._agent.welcome.broker_id), delivery.envelope
        if told is None or told.next_step != v1.NEXT_STEP_DROP_TASK:
            return
        task_id, epoch, text = envelope.task_id, envelope.epoch, told.error_message
        self._agent.work.taken(task_id, epoch)
        for handoff_id, mail in self._conversations.items():
            if mail.task_id == task_id and mail.epoch < epoch:
                mail.fail(HandoffFailedError(handoff_id, code_of(told.error_code), text))
        results = self._results.get(task_id)
        if results is not None and results.epoch <= epoch:
            reason = reason_of(told)
            results.fail(TaskRecalledError(task_id, delivery.handoff_id, reason, text, epoch=epoch, is_owner=False))
        for offer, handling in self._offers.values():
            is_of_task = offer.task_id == task_id and offer.epoch < epoch and not offer.awaits_context
            if handling is not None and is_of_task:
                self._recalled.add(handling)
                handling.cancel()

    def renew(self, key: tuple[str, str], arrived: v1.Delivery) -> bool:
        """Gives a redelivery to the holder of the same message. Returns whether there was a holder."""
        held = self._held.get(key)
        if held is None:
            return False
        held.renew(arrived)
        return True

    def settled(self, delivery: Delivery) -> None:
        """Forgets a delivery that was acked or nacked."""
        # A handler whose own ack was refused may end while another call of it holds the redelivery.
        if self._held.get(delivery.key) is delivery:
            del self._held[delivery.key]

    def dispatch(self, delivery: Delivery) -> None:
        """Passes a delivery to its queue, its handler or the agent's mail."""
        self._stop_work(delivery)
        if self.has_handlers or self._waiting_for(delivery) is not None or self._is_known(delivery):
            self._hold(delivery)  # before the next delivery is processed, which may be of the same message
            task = asyncio.create_task(self._give(delivery), context=for_handler(delivery.trace_context))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        else:
            self._leave(delivery)

    async def _give(self, delivery: Delivery) -> None:
        try:
            await self._route(delivery)
        except BatonError as error:
            self._let_go(delivery)  # it comes again
            _LOG.warning("what became of %r could not be told: %s", delivery, error)
        except BaseException:
            self._let_go(delivery)
            raise

    async def _route(self, delivery: Delivery) -> None:  # noqa: C901
        payload = delivery.payload
        mail = self._waiting_for(delivery)
        handler = self.handlers.get(type(payload))
        if mail is not None:
            mail.put(delivery)
        elif self._is_known(delivery):
            await delivery.ack_for_sure()
        elif self._is_stopping:
            await delivery.nack(v1.NACK_CAUSE_SHUTDOWN, "the agent is stopping")
        elif self.handoff_handler and (isinstance(payload, v1.TaskContextTransfer) or delivery.handoff_request):
            await self._offer(delivery, self.handoff_handler)
        elif self.context_provider and isinstance(payload, v1.HandoffAccept):
            await self._provide(delivery, payload, self.context_provider)
        elif self.task_request_handler and isinstance(payload, v1.TaskRequest | v1.TaskOffer):
            await self._handle(delivery, self._bid)
        elif self.prompt_handler and is_question(payload):
            await self._handle(delivery, self._put_question)
        elif self.recall_handler and self._takes_task(delivery):
            await self._handle(delivery, self._tell_recalled)
        elif handler is not None:
            await self._handle(delivery, handler)
        elif self.has_handlers:
            await self._by_default(delivery)
        else:
            self._leave(delivery)

    def _leave(self, delivery: Delivery) -> None:
        self._let_go(delivery)
        self._agent.leave(delivery)

    async def stop(self, grace: timedelta) -> None:
        """Waits up to `grace` for the running handlers and for the mail they wait for, then cancels the rest.

        The deliveries of cancelled handlers, and mail that arrives meanwhile, are nacked as SHUTDOWN. A handler that
        does not end when it is cancelled is left behind.
        """
        self._is_stopping = True
        running = {
            task for task in self._running if task is not asyncio.current_task()
        }  # excludes a handler that closes its agent
        if running:
            _, late = await asyncio.wait(running, timeout=grace.total_seconds())
            for task in late:
                task.cancel()
            if late:
                _, left = await asyncio.wait(late, timeout=_CANCEL_SECONDS)
                if left:
                    _LOG.warning("%d handlers go on although they were cancelled", len(left))

    def _waiting_for(self, delivery: Delivery) -> Conversation | None:
        payload, envelope = delivery.payload, delivery.envelope
        if isinstance(payload, v1.TaskStatusUpdate) and payload.status in _FINAL:
            results = self._results.get(envelope.task_id)
            # The status of an earlier loan is a notice. In this queue it would hold back all later mail of the task.
            return results if results is not None and envelope.epoch >= results.epoch else None
        if isinstance(payload, v1.TaskInput):
            return self._answers.get(envelope.correlation_id)
        if isinstance(payload, _OF_A_NEGOTIATION):
            return None if delivery.handoff_request else self._negotiations.get(envelope.correlation_id)
        if isinstance(payload, v1.ErrorNotification):
            is_of_broker = envelope.sender_id == self._agent.welcome.broker_id
            return self._waiting_for_notice(delivery, payload) if is_of_broker else None
        return self._conversations.get(delivery.handoff_id) if isinstance(payload, _OF_A_HANDOFF) else None

    def _waiting_for_notice(self, delivery: Delivery, told: v1.ErrorNotification) -> Conversation | None:
        envelope, handoff_id = delivery.envelope, delivery.handoff_id
        if told.error_code == v1.ERROR_CODE_INPUT_EXPIRED:
            return self._answers.get(envelope.correlation_id)
        if recalled_by(delivery, envelope.sender_id) is None:
            return self._conversations.get(handoff_id) or self._negotiations.get(envelope.correlation_id)
        if told.next_step == v1.NEXT_STEP_KEEP_TASK:
            results = self._results.get(envelope.task_id)
            return results if results is not None and envelope.epoch > results.epoch else None
        offer, _ = self._offers.get(handoff_id, (None, None))
        # A handler that has the context does not read this queue; it is cancelled.
        is_waiting = offer is not None and offer.awaits_context
        return self._conversations.get(handoff_id) if is_waiting else None

    def _takes_task(self, delivery: Delivery) -> bool:
        told = recalled_by(delivery, self._agent.welcome.broker_id)
        return told is not None and told.next_step == v1.NEXT_STEP_DROP_TASK

    async def _tell_recalled(self, delivery: Delivery) -> None:
        if self.recall_handler is not None:
            envelope, told = delivery.envelope, delivery.payload
            reason = reason_of(told)
            is_reassigned = reason is RecallReason.REASSIGNED
            recalled = Recalled(
                envelope.task_id, delivery.handoff_id, envelope.epoch, told.error_message, is_reassigned, reason
            )
            await self.recall_handler(recalled)

    async def _put_question(self, delivery: Delivery) -> None:
        if self.prompt_handler is not None:
            await self.prompt_handler(Question(self._agent, delivery))

    def _hold(self, delivery: Delivery) -> None:
        self._held[delivery.key] = delivery
        delivery.keep()

    def _let_go(self, delivery: Delivery) -> None:
        self.settled(delivery)
        delivery.let_go()

    async def _offer(self, delivery: Delivery, handler: HandoffHandler) -> None:
        capacity = self._agent.capacity
        if delivery.handoff_request and 0 < capacity <= self.active_count:
            await self._reject(delivery, v1.REJECT_REASON_OVERLOADED, f"works on {capacity} handoffs already")
            return
        self.active_count += 1
        offer: Offer | None = None
        try:
            with self.conversation(delivery.handoff_id) as mail:
                offer = Offer(self._agent, mail, delivery)
                failure = await self._guarded(lambda: offer.in_hand, offer.handoff_id, self._decided(offer, handler))
                await self._end_work(offer, failure)
        finally:
            self._ended_work(None if offer is None else offer.handling.held)

    def _ended_work(self, held: Held | None) -> None:
        self.active_count -= 1
        if held is not None:
            self._agent.work.release(held)
        self._ended_one.set()

    async def free_slots(self) -> int:
        """Waits until a handler of handoffs may begin. Returns how many may; 0: the agent is stopping."""
        while not self._is_stopping:
            self._ended_one.clear()
            free = (self._agent.capacity or _RESUMED_MAX) - self.active_count
            if free > 0:
                return free
            await self._ended_one.wait()
        return 0

    def take_up(self, task: v1.Task) -> bool:
        """Begins the handler of a task of this agent. Returns False if this process has had the task already."""
        handler = self.handoff_handler
        is_offered = any(offer.task_id == task.task_id for offer, _ in self._offers.values())
        if self._is_stopping or handler is None or is_offered or self._agent.work.had(task.task_id, task.epoch):
            return False
        self.active_count += 1
        # From now on the heartbeats list it.
        held = self._agent.work.took(task.task_id, task.epoch)
        running = asyncio.create_task(self._resume(task, held, handler), context=for_handler(None))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return True

    async def _resume(self, task: v1.Task, held: Held, handler: HandoffHandler) -> None:
        try:
            context = await self._context_of(task)
            if not held.is_here:
                return
            offer = Offer(self._agent, Conversation(), context, task)
            offer.handling.held = held
            what = f"the resumed task {task.task_id}"
            failure = await self._guarded(lambda: offer.in_hand, what, self._decided(offer, handler))
            await self._end_work(offer, failure)
        finally:
            self._ended_work(held)

    async def _context_of(self, task: v1.Task) -> Delivery:
        while True:
            try:
                return await last_context(self._agent, task)
            except BatonError as error:
                await asyncio.sleep(error.retry_delay or _RETRY_SECONDS)

    async def _decided(self, offer: Offer, handler: HandoffHandler) -> None:
        self._offers[offer.handoff_id] = (offer, asyncio.current_task())
        handling = CURRENT.set(offer.handling)
        try:
            await handler(offer)
        finally:
            CURRENT.reset(handling)
            del self._offers[offer.handoff_id]
        if not offer.is_over:
            raise RuntimeError("the handler has neither rejected nor completed the handoff")

    async def _end_work(self, offer: Offer, failure: BaseException | None) -> None:
        """Ends the task of a handler that failed after the takeover as FAILED, with the words of the failure."""
        held = offer.handling.held
        if failure is None or held is None:
            return
        details = _words(failure).encode()[:DETAILS_BYTES_MAX].decode(errors="ignore")
        while held.is_here:
            try:
                await self._agent.update_status(held.task_id, held.epoch, v1.TASK_STATUS_FAILED, details)
            except BatonError as error:
                if error.reason != "HANDOFF_OPEN":
                    _LOG.warning("the failed task %s was not ended: %s", held.task_id, error)
                    return
                # The handler has left a handoff open: the task goes on with it, or stays here.
                await asyncio.sleep(_WAITED_FOR_SOON.total_seconds())
            else:
                return

    async def _bid(self, delivery: Delivery) -> None:
        """Answers a request for offers, or a counter-offer, by the handler's offer or decline."""
        if self.task_request_handler is None or await is_answered(self._agent, delivery):
            return
        negotiation_id, payload = negotiation_id_of(delivery), delivery.payload
        if isinstance(payload, v1.TaskRequest):
            self._task_requests[negotiation_id] = payload
            if len(self._task_requests) > _REQUESTS_MAX:
                self._task_requests.popitem(last=False)
        wanted = OfferWanted(
            negotiation_id,
            delivery.envelope.sender_id,
            self._task_requests.get(negotiation_id),
            payload if isinstance(payload, v1.TaskOffer) else None,
        )
        answer = await self.task_request_handler(wanted)
        if isinstance(answer, v1.TaskOffer):
            answer.round = wanted.round
        await self._agent.send(answer, receiver_id=wanted.requester_id, correlation_id=negotiation_id)

    async def _reject(self, request: Delivery, reason: v1.RejectReason, text: str) -> None:
        try:
            await self._agent.reject(request, reason, text)
        except BatonError as error:
            if error.reason not in _TOO_LATE:
                raise
        await request.ack_for_sure()

    async def _provide(self, delivery: Delivery, accept: v1.HandoffAccept, provider: ContextProvider) -> None:
        envelope = delivery.envelope
        wanted = ContextWanted(
            delivery.handoff_id,
            envelope.task_id,
            envelope.epoch,
            envelope.sender_id,
            tuple(accept.wanted_sections),
            tuple(accept.wishes),
        )

        async def run() -> None:
            sections = await provider(wanted)
            try:
                await give_context(self._agent, wanted, sections)
            except (BatonError, ValueError) as error:
                if isinstance(error, BatonError) and error.is_passing:
                    raise
                _LOG.error("handoff %s is cancelled, for its context cannot be sent: %s", wanted.handoff_id, error)
            await delivery.ack_for_sure()

        await self._guarded(lambda: delivery, f"the accept of handoff {delivery.handoff_id}", run())

    async def _handle(self, delivery: Delivery, handler: Handler) -> None:
        async def run() -> None:
            await handler(delivery)
            if not delivery.is_settled:
                await delivery.ack_for_sure()

        await self._guarded(lambda: delivery, delivery.envelope.message_id, run())

    async def _guarded(  # noqa: C901
        self, in_hand: Callable[[], Delivery | None], what: str, handling: Awaitable[None]
    ) -> BaseException | None:
        """Awaits a handler; an exception of it becomes a nack of the delivery in hand.

        Returns the exception. None: there was none, the agent is stopping, or the task was taken from the handler.
        """
        failure: BaseException | None = None
        clock = asyncio.timeout(self._timeout)
        try:
            async with clock:
                await handling
        except asyncio.CancelledError as error:
            verdict: v1.Nack | None = v1.Nack(cause=v1.NACK_CAUSE_SHUTDOWN, reason_text="the agent is stopping")
            task = asyncio.current_task()
            if task in self._recalled:
                task.uncancel()
                verdict = None
                _LOG.info("the task of %s was recalled from its handler", what)
            elif task is None or not task.cancelling():
                verdict = _verdict(error, what)  # the handler awaited something that was cancelled
                failure = error
            elif not self._is_stopping:
                if (delivery := in_hand()) is not None:
                    self._let_go(delivery)
                raise
        except Exception as error:  # noqa: BLE001
            failure = error
            if isinstance(error, TimeoutError) and clock.expired():
                failure = TimeoutError(f"the handler ran longer than {self._timeout} s")
            verdict = _verdict(failure, what)
        else:
            return None
        finally:
            self._recalled.discard(asyncio.current_task())
        delivery = in_hand()
        if delivery is None or delivery.is_settled:
            return failure
        if verdict is None:
            await delivery.ack_for_sure()
        else:
            retry_after = verdict.retry_after.ToTimedelta() if verdict.HasField("retry_after") else None
            await delivery.nack(verdict.cause, verdict.reason_text, retry_after=retry_after)
        return failure

    async def _by_default(self, delivery: Delivery) -> None:
        payload, envelope = delivery.payload, delivery.envelope
        kind = type(payload).__name__
        if delivery.handoff_request:
            await self._reject(delivery, v1.REJECT_REASON_NO_SKILL, "this agent takes no handoffs")
        elif isinstance(payload, v1.TaskRequest):
            await self._decline(delivery)
        elif isinstance(payload, v1.TaskOffer):
            await self._wait_for_a_reader(delivery)
        elif isinstance(payload, _STEPS):
            await self._wait_for_a_taker(delivery)
        elif isinstance(payload, _NEWS) or (isinstance(payload, v1.Info) and envelope.sender_id == BROKER_ID):
            _LOG.info("%s of %s about task %s, which no handler is for", kind, envelope.sender_id, envelope.task_id)
            await delivery.ack()
        else:
            _LOG.warning("%s %s of %s, which no handler is for", kind, envelope.message_id, envelope.sender_id)
            await delivery.nack(v1.NACK_CAUSE_POISON, f"this agent has no handler for {kind}")

    async def _wait_for_a_taker(self, delivery: Delivery) -> None:
        """Nacks a step that an earlier process was working on, with a delay, until a call takes it or it is over."""
        if await self._is_open(delivery.handoff_id):
            text = "no call of this process waits for this handoff"
            await delivery.nack(v1.NACK_CAUSE_SHUTDOWN, text, retry_after=_WAITED_FOR_SOON)
        else:
            await delivery.ack()

    async def _decline(self, request: Delivery) -> None:
        decline = v1.TaskDecline(reason=v1.REJECT_REASON_NO_SKILL, reason_text="this agent makes no offers")
        envelope = request.envelope
        try:
            await self._agent.send(decline, receiver_id=envelope.sender_id, correlation_id=envelope.message_id)
        except BatonError as error:
            if error.reason not in _TOO_LATE:
                raise
        await request.ack_for_sure()

    async def _wait_for_a_reader(self, delivery: Delivery) -> None:
        """Nacks an offer with a delay, until `resume_negotiation` takes it or the negotiation has closed."""
        try:
            state = (await self._agent.get_negotiation(delivery.envelope.correlation_id)).state
            is_open = state == v1.NEGOTIATION_STATE_OPEN
        except BatonError as error:
            is_open = error.is_passing
        if is_open:
            text = "no call of this process waits for offers"
            await delivery.nack(v1.NACK_CAUSE_SHUTDOWN, text, retry_after=_WAITED_FOR_SOON)
        else:
            await delivery.ack()

    async def _is_open(self, handoff_id: str) -> bool:
        try:
            return is_open(await self._agent.get_handoff(handoff_id))
        except BatonError as error:
            return error.is_passing  # any other refusal: the task has ended and was removed


def _words(error: BaseException) -> str:
    """Returns type and message of an exception, in characters that a message can carry."""
    return f"{type(error).__name__}: {error}".encode(errors="replace").decode()


def _verdict(error: BaseException, what: str) -> v1.Nack | None:
    """Returns the nack for a handler's exception, or None to ack: a retry cannot help."""
    text = _words(error)
    failure = v1.Nack(cause=v1.NACK_CAUSE_FAILURE, reason_text=text)
    match error:
        case PoisonError():
            return v1.Nack(cause=v1.NACK_CAUSE_POISON, reason_text=text)
        case RetryLaterError():
            failure.retry_after.FromTimedelta(error.retry_after)
        case HandoffFailedError():
            _LOG.info("handoff %s has ended: %s", error.handoff_id, error)
        case BatonError() if error.reason in _TOO_LATE:
            _LOG.warning("the work has gone on without the handler of %s: %s", what, error)
            return None
        case _:
            _LOG.error("the handler of %s failed", what, exc_info=error)
    return failure
