"""An agent: its session with the broker, kept up over breaks; what it sends, and who handles what it gets."""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message

from baton import handoffs, v1
from baton.connection import Connection, File, Identity
from baton.conversation import Conversation
from baton.custody import VerifiedLog, read_custody_log
from baton.delivery import Delivery, duration
from baton.directory import Directory
from baton.dispatch import ContextProvider, Dispatcher, Handler, HandoffHandler
from baton.envelopes import make_envelope, payload_of
from baton.errors import BatonError, VerificationError
from baton.handoffs import HandedOver, Handover, Outcome, OwnedTask
from baton.keys import public_bytes
from baton.limits import check_envelope
from baton.link import Link
from baton.messages import Messages
from baton.signing import sign_envelope, verify_receipt

_LOG = logging.getLogger("baton")

_RETURNING_MAX = 4096
_PAGE_SIZE = 500
_NOT_FINAL = (v1.TASK_STATUS_CREATED, v1.TASK_STATUS_IN_PROGRESS, v1.TASK_STATUS_WAITING_FOR_INPUT)


class Agent(Messages):
    """One agent: registers, proves who it is, sends and receives.

        async with Agent("127.0.0.1:22866", "bob", load_key("bob.pem"), ca_file="ca.pem") as bob:

            @bob.on_handoff
            async def take(offer):
                takeover = await offer.accept()
                task = await takeover.complete()
                await task.finish({"answer": 42})

            await bob.register(agent_types=["support"])
            await bob.run()

    `server` is HOST:PORT, and its certificate must be signed by the CA in `ca_file` (PEM; the system's CAs without it);
    or http://HOST:PORT without TLS, to a broker on this machine that takes such connections.
    The agent proves who it is by its key, or by the client certificate in `cert_file` and `cert_key_file` (PEM). An
    `operator_token` goes with all calls but the session's, to register where only operators may.
    `credit` is the most deliveries that are handed out and not yet acknowledged, up to 4096. `capacity` is the most
    handoffs that are worked on at a time, 0 for no limit; what is offered beyond it is rejected as OVERLOADED.
    A handler that takes longer than `handler_timeout` is cancelled. `pinned_keys` are keys of agents, also of the
    broker itself, that are believed instead of the directory's. `operator_keys` are operators' public keys, 32 bytes
    each, by their operator_key_id: if there are any, other agents' keys from the directory are good only with a voucher
    of one of them.
    What is sent waits `send_timeout` for its receipt, over as many sessions as that takes.
    Not for use from several event loops or threads.
    """

    def __init__(
        self,
        server: str,
        agent_id: str,
        key: Ed25519PrivateKey,
        *,
        key_id: str = "k1",
        ca_file: File | None = None,
        cert_file: File | None = None,
        cert_key_file: File | None = None,
        operator_token: str | None = None,
        credit: int = 16,
        capacity: int = 0,
        handler_timeout: timedelta | None = None,
        send_timeout: timedelta = timedelta(seconds=120),
        pinned_keys: Mapping[str, Iterable[v1.AgentKey]] | None = None,
        operator_keys: Mapping[str, bytes] | None = None,
    ) -> None:
        self.agent_id = agent_id
        self.key_id = key_id
        self.capacity = capacity
        self.heartbeat = v1.Heartbeat(status="ok", capacity=capacity)
        """What the agent says of itself at every heartbeat; change it at any time. active_tasks is filled in."""
        self.welcome = v1.Welcome()
        """The broker's first word on the present session: its id, its key and its times."""
        self.ack_wait = timedelta(seconds=30)
        self._key = key
        self._send_timeout = send_timeout
        self._connection = Connection(
            server,
            Identity(agent_id, key_id, key),
            ca_file=ca_file,
            cert_file=cert_file,
            cert_key_file=cert_key_file,
            operator_token=operator_token,
        )
        self._directory = Directory(self.get_agent, pinned_keys or {}, operator_keys or {})
        self._dispatcher = Dispatcher(self, handler_timeout)
        self._link = Link(
            self._connection,
            welcomed=self._welcomed,
            deliver=self._arrived,
            heartbeat=self._beat,
            ended=self._ended,
            credit=credit,
        )
        self._arrivals: asyncio.Queue[v1.Delivery] = asyncio.Queue()
        self._sorter: asyncio.Task[None] | None = None
        self._returning: OrderedDict[str, None] = OrderedDict()
        self._mail = Conversation()

    async def __aenter__(self) -> Self:
        """Nothing yet: `connect` or `run` opens the session."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stops in order, and closes the connection."""
        await self.close()

    # ------------------------------------------------------------------------------------------------ handlers

    def on_handoff(self, handler: HandoffHandler) -> HandoffHandler:
        """Makes this function the one that takes or rejects what is offered: see `Offer`. A decorator."""
        self._before_connect()
        self._dispatcher.handoff_handler = handler
        return handler

    def context_provider(self, provider: ContextProvider) -> ContextProvider:
        """Makes this function the one that returns the context of a handoff that was accepted. A decorator.

            @alice.context_provider
            async def context_of(wanted):
                return [json_section("goals", goals_of(wanted.task_id))]

        It is called for every accept that no `hand_over` or `resume_hand_over` of this process waits for: after a
        restart, or where a handoff begins by `request_handoff`. Without it such an accept is delivered again, every
        2 s, until a `resume_hand_over` takes it or the broker ends the handoff.
        """
        self._before_connect()
        self._dispatcher.context_provider = provider
        return provider

    def on(self, *payload_classes: type[Message]) -> Callable[[Handler], Handler]:
        """Makes a function the handler of these messages, for example v1.Info. A decorator.

        When it returns, the message is acked, unless it did that itself. When it raises, the message is nacked: as
        POISON for a PoisonError, with its time for a RetryLaterError, else as FAILURE.
        """
        self._before_connect()

        def register(handler: Handler) -> Handler:
            self._dispatcher.handlers.update(dict.fromkeys(payload_classes, handler))
            return handler

        return register

    def _before_connect(self) -> None:
        if self._sorter is not None:
            raise RuntimeError("handlers come before connect")

    # ----------------------------------------------------------------------------------------------- who one is

    async def register(
        self,
        *,
        agent_types: Iterable[str] = (),
        description: str = "",
        skills: Iterable[v1.AgentSkill] = (),
        metadata: Mapping[str, str] | None = None,
        invitation: str = "",
    ) -> v1.Agent:
        """Registers this agent's card with its key, or changes it; the same card again is no error.

        An `invitation` lets a new agent in where only operators may register. Raises BatonError, CHALLENGE_FAILED if
        somebody else is registered under this id.
        """
        card = v1.AgentCard(
            agent_id=self.agent_id,
            agent_types=agent_types,
            description=description,
            skills=skills,
            capacity=self.capacity,
            keys=[v1.AgentKey(key_id=self.key_id, public_key=public_bytes(self._key))],
            metadata=metadata,
        )
        request = v1.RegisterAgentRequest(card=card, invitation=invitation)
        try:
            answer = await self._connection.call(self._connection.agents.RegisterAgent, request)
        except BatonError as error:
            if error.reason != "AGENT_EXISTS":
                raise
            # Known with another card: it may change its own, once it has proven who it is.
            await self._connection.prove()
            answer = await self._connection.call(self._connection.agents.RegisterAgent, request)
        agent: v1.Agent = answer.agent
        return agent

    async def prove_identity(self) -> str:
        """Signs a challenge for a token, which later calls carry. `connect` does it by itself. Raises BatonError."""
        return await self._connection.prove()

    async def invite(self, agent_id: str = "", lifetime: timedelta | None = None) -> str:
        """Makes an invitation: whoever has it may register one new agent, `agent_id` or any. Returns the secret."""
        request = v1.CreateInvitationRequest(agent_id=agent_id, lifetime=duration(lifetime))
        invitation: str = (await self._connection.call(self._connection.agents.CreateInvitation, request)).invitation
        return invitation

    async def add_key(
        self, agent_id: str, key: v1.AgentKey, *, replaces: Iterable[str] = (), grace: timedelta | None = None
    ) -> v1.Agent:
        """Adds a key of an agent, or rotates one: those that it replaces stay good for the grace, or else a day."""
        request = v1.AddAgentKeyRequest(agent_id=agent_id, key=key, replaced_key_ids=replaces, grace=duration(grace))
        agent: v1.Agent = (await self._connection.call(self._connection.agents.AddAgentKey, request)).agent
        return agent

    async def revoke_key(self, agent_id: str, key_id: str, reason: str = "") -> v1.Agent:
        """Revokes a key of an agent for good: nothing that is signed by it is taken any more."""
        request = v1.RevokeAgentKeyRequest(agent_id=agent_id, key_id=key_id, reason_text=reason)
        agent: v1.Agent = (await self._connection.call(self._connection.agents.RevokeAgentKey, request)).agent
        return agent

    async def vouch_for_key(self, agent_id: str, key_id: str, voucher: v1.KeyVoucher) -> v1.Agent:
        """Adds an operator's word for a key of an agent: see `vouch`."""
        request = v1.VouchForAgentKeyRequest(agent_id=agent_id, key_id=key_id, voucher=voucher)
        agent: v1.Agent = (await self._connection.call(self._connection.agents.VouchForAgentKey, request)).agent
        return agent

    # ---------------------------------------------------------------------------------------------- the session

    async def connect(self) -> v1.Welcome:
        """Proves who one is and opens the session; deliveries and heartbeats begin. Tries once, and raises BatonError.

        From then on the session is kept up: when it ends, another is opened, after the time that the broker asked for
        or with a backoff of 0.1 to 30 s, and whatever has no answer yet is sent again, byte for byte. Only where the
        broker refuses for good (its reasons: docs/errors.md) or its certificate is not trusted, the agent ends.
        """
        if self._sorter is not None:
            raise RuntimeError("connect is for once")
        self._sorter = asyncio.create_task(self._sort())
        try:
            await self._link.begin()
        except BaseException:
            self._sorter.cancel()
            self._sorter = None
            raise
        return self.welcome

    async def run(self) -> None:
        """Connects, unless that is done, and serves until `close`. Raises BatonError when the agent ends before."""
        if self._sorter is None:
            await self.connect()
        await self._link.over()

    async def close(self, grace: timedelta = timedelta(seconds=10)) -> None:
        """Stops in order: takes nothing more, lets handlers end within the grace, and closes session and connection.

        What a handler was still at after the grace is nacked as SHUTDOWN, and so is mail that nobody has taken.
        """
        if self._link.is_closing:
            return
        await self._link.closing()
        await self._dispatcher.stop(grace)
        if self._link.session is not None:
            with contextlib.suppress(BatonError):
                await self.set_credit(0)
        if self._sorter is not None:
            self._sorter.cancel()
            await asyncio.gather(self._sorter, return_exceptions=True)
        await self._give_back()
        await self._link.close()
        self._ended(self._link.over_by())
        await self._connection.close()

    async def set_credit(self, max_outstanding: int) -> None:
        """Sets how many deliveries may be handed out and not yet acknowledged: 0 (a pause) to 4096."""
        session = await self._link.live()
        await session.ask(v1.ConnectRequest(credit=v1.Credit(max_outstanding=max_outstanding)))
        self._link.credit = max_outstanding

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """The agent's mail, for agents without handlers; to be read by one loop at a time.

        Each sender's signature is checked end to end; a message that does not verify is nacked as POISON, so that the
        broker keeps it as a dead letter, and is not given out. Ends when `close` is called; goes on over sessions that
        end, and raises BatonError when the agent ends.
        """
        if self._dispatcher.has_handlers:
            raise RuntimeError("mail goes to the handlers")
        while True:
            try:
                delivery = await self._mail.next()
            except BatonError:
                if self._link.end is not None:
                    raise
                return
            yield delivery

    # ------------------------------------------------------------------------------------------------- sending

    async def send(
        self,
        payload: Message,
        *,
        receiver_id: str = "",
        task_id: str = "",
        epoch: int = 0,
        correlation_id: str = "",
        expires_at: datetime | None = None,
    ) -> v1.Receipt:
        """Signs and sends a payload of baton.v1. Returns the broker's receipt, its signature checked.

        Over a break the same bytes are sent again, until the broker has answered. Raises BatonError if the broker
        refuses, or has not answered in time; VerificationError if the receipt is not the broker's.
        """
        envelope = make_envelope(
            payload,
            sender_id=self.agent_id,
            receiver_id=receiver_id,
            task_id=task_id,
            epoch=epoch,
            correlation_id=correlation_id,
            expires_at=expires_at,
        )
        sign_envelope(envelope, self.key_id, self._key)
        return await self.send_envelope(envelope)

    async def send_envelope(self, envelope: v1.Envelope) -> v1.Receipt:
        """Sends an envelope as it is. As `send`; the same envelope again gives the first receipt again.

        What is over the bounds of the schema is refused here, with the broker's own reason, and not sent:
        PAYLOAD_TOO_LARGE over 1 MiB, FIELD_INVALID for ids that are too long.
        """
        check_envelope(envelope)
        try:
            async with asyncio.timeout(self._send_timeout.total_seconds()):
                receipt = await self._link.ask_until_answered(envelope)
        except TimeoutError:
            text = f"no receipt for message {envelope.message_id} in time; the broker may or may not have accepted it"
            raise BatonError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None
        verify_receipt(receipt, await self._directory.key(self.welcome.broker_id, receipt.key_id))
        if receipt.message_id != envelope.message_id:
            raise VerificationError("SIGNATURE_INVALID", f"the receipt is for another message, {receipt.message_id}")
        return receipt

    async def hand_over(
        self,
        receiver_id: str,
        task_id: str,
        request: v1.HandoffRequest,
        context: Iterable[v1.ContextSection],
        *,
        epoch: int = 1,
    ) -> HandedOver:
        """Hands a task over, all of it: asks, waits for an agent to take it, sends the context, waits for the end.

        As long as any handoff lasts: at most the request's whole timeout. Raises HandoffFailedError if the task stays
        here; BatonError if the broker does not take the request or the context, or if the context is over 1 MiB: then
        nothing is sent. A caller that cancels this leaves the handoff to its timeouts, or to `resume_hand_over`.
        """
        sections = list(context)
        handoffs.check_context(sections)
        envelope = make_envelope(
            request, sender_id=self.agent_id, receiver_id=receiver_id, task_id=task_id, epoch=epoch
        )
        sign_envelope(envelope, self.key_id, self._key)
        handoff_id = envelope.message_id
        with self._dispatcher.conversation(handoff_id) as mail:
            await self.send_envelope(envelope)
            return await Handover(self, mail, sections, handoff_id=handoff_id, task_id=task_id, epoch=epoch).end()

    async def resume_hand_over(self, handoff_id: str, context: Iterable[v1.ContextSection]) -> HandedOver:
        """Goes on with a handoff that an earlier process of this agent asked for, at whatever step it is, to its end.

        Returns or raises as `hand_over`, also when the handoff ended meanwhile. `owned_tasks` names the handoffs that
        are open. Raises BatonError, NOT_OWNER if another agent asked for it, PERMISSION_DENIED if this one takes no
        part in such a handoff.
        """
        sections = list(context)
        handoffs.check_context(sections)
        with self._dispatcher.conversation(handoff_id) as mail:
            handoff = await self.get_handoff(handoff_id)
            if handoff.sender_id != self.agent_id:
                text = f"handoff {handoff_id} was asked for by {handoff.sender_id}"
                raise BatonError(grpc.StatusCode.PERMISSION_DENIED, text, reason="NOT_OWNER")
            handover = Handover(
                self, mail, sections, handoff_id=handoff_id, task_id=handoff.task_id, epoch=handoff.epoch
            )
            return await handover.go_on_from(handoff) or await handover.end()

    async def delegate(
        self,
        receiver_id: str,
        task_id: str,
        request: v1.HandoffRequest,
        context: Iterable[v1.ContextSection],
        *,
        epoch: int = 1,
    ) -> Outcome:
        """Lends a task and waits for what comes of it: `hand_over` with HANDOFF_MODE_DELEGATE, then the final status.

        With that the task is this agent's again, one epoch on. It takes as long as the delegate takes; bound it with
        `asyncio.timeout`. A caller that stops waiting, also by a restart, finds the task in `owned_tasks` when it is
        back; its final status goes to the handler of TaskStatusUpdate. Raises as `hand_over`.
        """
        lent = v1.HandoffRequest()
        lent.CopyFrom(request)
        lent.mode = v1.HANDOFF_MODE_DELEGATE
        with self._dispatcher.results(task_id, epoch + 1) as results:
            handed = await self.hand_over(receiver_id, task_id, lent, context, epoch=epoch)
            return await handoffs.outcome(self, results, handed)

    # -------------------------------------------------------------------------------------------------- looking

    async def get_agent(self, agent_id: str) -> v1.Agent:
        """An agent as the broker knows it; the broker itself is `baton`. Raises BatonError, AGENT_UNKNOWN."""
        request = v1.GetAgentRequest(agent_id=agent_id)
        agent: v1.Agent = (await self._connection.call(self._connection.agents.GetAgent, request)).agent
        return agent

    async def get_task(self, task_id: str) -> v1.Task:
        """A task. Raises BatonError: PERMISSION_DENIED, or TASK_UNKNOWN if the caller may look at all tasks."""
        request = v1.GetTaskRequest(task_id=task_id)
        task: v1.Task = (await self._connection.call(self._connection.tasks.GetTask, request)).task
        return task

    async def owned_tasks(self) -> list[OwnedTask]:
        """Every task that this agent owns and that is not final, newest first: where an agent goes on after a restart.

        A task with an `open_handoff_id` is on its way to another agent: `resume_hand_over` goes on with that.
        """
        owned: list[OwnedTask] = []
        request = v1.ListTasksRequest(page_size=_PAGE_SIZE, owner_id=self.agent_id, statuses=_NOT_FINAL)
        while True:
            page = await self._connection.call(self._connection.tasks.ListTasks, request)
            owned += (handoffs.owned_task(self, task) for task in page.tasks)
            if not page.next_page_token:
                return owned
            request.page_token = page.next_page_token

    async def get_handoff(self, handoff_id: str) -> v1.Handoff:
        """A handoff with its state, both views and every step. Raises BatonError, HANDOFF_UNKNOWN."""
        request = v1.GetHandoffRequest(handoff_id=handoff_id)
        handoff: v1.Handoff = (await self._connection.call(self._connection.handoffs.GetHandoff, request)).handoff
        return handoff

    async def verify_custody(self, task_id: str) -> VerifiedLog:
        """Reads a task's custody log and checks its chain, its receipts and its envelopes. Raises VerificationError."""
        return await read_custody_log(self._connection, task_id, self._directory)

    # ------------------------------------------------------------------------------------------------- inside

    def acknowledge(self, acknowledgement: v1.Acknowledgement) -> Awaitable[v1.Acknowledged]:
        """For deliveries, which tell the broker through this what became of them."""
        return self._acknowledge(acknowledgement)

    def ack_when_it_returns(self, message_id: str) -> None:
        """For deliveries: this one is done, though the broker could not be told."""
        self._returning[message_id] = None
        if len(self._returning) > _RETURNING_MAX:
            self._returning.popitem(last=False)

    def settled(self, delivery: Delivery) -> None:
        """For deliveries: this one was acked or nacked."""
        self._dispatcher.settled(delivery)

    def leave(self, delivery: Delivery) -> None:
        """For the dispatcher: mail that no handler is for."""
        if delivery.attempt > 1:
            message_id = delivery.envelope.message_id
            self._mail.take_out(lambda earlier: earlier.envelope.message_id == message_id)
        self._mail.put(delivery)

    def take_back(self, is_wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """For the dispatcher: what was left and is now waited for."""
        return self._mail.take_out(is_wanted)

    async def _acknowledge(self, acknowledgement: v1.Acknowledgement) -> v1.Acknowledged:
        return (await self._link.ask(v1.ConnectRequest(acknowledgement=acknowledgement))).acknowledged

    def _welcomed(self, welcome: v1.Welcome) -> None:
        self.welcome = welcome
        self._directory.meet_broker(welcome)
        self.ack_wait = welcome.ack_wait.ToTimedelta() or self.ack_wait

    def _ended(self, why: BatonError) -> None:
        self._dispatcher.fail(why)
        self._mail.fail(why)

    def _beat(self) -> v1.Heartbeat:
        heartbeat = v1.Heartbeat()
        heartbeat.CopyFrom(self.heartbeat)
        heartbeat.active_tasks = heartbeat.active_tasks or self._dispatcher.active_count
        return heartbeat

    def _arrived(self, delivery: v1.Delivery) -> None:
        self._arrivals.put_nowait(delivery)

    async def _sort(self) -> None:
        """Takes deliveries in the order in which they come."""
        while True:
            await self._take(await self._arrivals.get())

    async def _take(self, arrived: v1.Delivery) -> None:
        """Checks a delivery and gives it to whoever is to have it."""
        message_id = arrived.envelope.message_id
        delivery = Delivery(arrived, None, self)
        try:
            if message_id in self._returning:
                del self._returning[message_id]
                await delivery.ack()
            elif not self._dispatcher.renew(arrived):
                await self._check(delivery)
        except BatonError as error:
            _LOG.warning("message %s could not be acknowledged: %s", message_id, error)
        except Exception:  # noqa: BLE001
            # Whatever one message does, the next is taken.
            _LOG.exception("message %s could not be taken", message_id)

    async def _check(self, delivery: Delivery) -> None:
        envelope = delivery.envelope
        try:
            delivery.payload = payload_of(envelope)
            await self._directory.verify(envelope)
        except VerificationError as error:
            _LOG.warning("message %s of %s: %s", envelope.message_id, envelope.sender_id, error)
            await delivery.nack(v1.NACK_CAUSE_POISON, str(error))
        except BatonError as error:
            _LOG.warning("failed to get the keys of %s: %s", envelope.sender_id, error)
            await delivery.nack(v1.NACK_CAUSE_FAILURE, str(error))
        else:
            self._dispatcher.dispatch(delivery)

    async def _give_back(self) -> None:
        for delivery in self._mail.rest():
            with contextlib.suppress(BatonError):
                await delivery.nack(v1.NACK_CAUSE_SHUTDOWN, "the agent is stopping")
