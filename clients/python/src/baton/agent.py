"""An agent: its session with the broker, the messages it sends, and the routing of its mail to handlers."""

import asyncio
import contextlib
import logging
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self, TypedDict, Unpack

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message

from baton import v1
from baton.blobs import Blobs
from baton.connection import Connection, File, Identity
from baton.contexts import KnownSections
from baton.conversation import Conversation
from baton.custody import VerifiedLog, read_custody_log
from baton.delivery import Delivery, ReadDelivery
from baton.directory import Directory
from baton.dispatch import (
    ContextProvider,
    Dispatcher,
    Handler,
    HandoffHandler,
    PromptHandler,
    RecallHandler,
    Receiver,
    TaskRequestHandler,
)
from baton.envelopes import make_envelope, mandate_of, payload_of
from baton.environment import read_settings
from baton.errors import BatonError, VerificationError
from baton.limits import check_envelope
from baton.link import Link
from baton.registrations import Registrations
from baton.registry import Registry
from baton.resuming import Resumption
from baton.runs import Routing
from baton.schemas import Schemas
from baton.signing import sign_envelope, verify_receipt
from baton.threads import Threads
from baton.work import Work
from baton.workspace import Workspace

_LOG = logging.getLogger("baton")

_HANDLED_MAX = 4096
_SIGN_AGAIN_AFTER = timedelta(seconds=1)
"""The age of a message from which a refusal of its time is due to the wait, and not to a wrong clock."""


class AgentOptions(TypedDict, total=False):
    """The options of an `Agent` that neither the environment nor a profile has."""

    credit: int
    capacity: int
    handler_timeout: timedelta | None
    send_timeout: timedelta
    pinned_keys: Mapping[str, Iterable[v1.AgentKey]] | None
    operator_keys: Mapping[str, bytes] | None


class Agent(Receiver, Registry, Registrations, Routing, Threads, Blobs, Schemas):
    """An agent of the broker: registers, proves its identity, sends messages and handles its mail.

        async with Agent("127.0.0.1:22866", "bob", load_key("bob.pem"), ca_file="ca.pem") as bob:

            @bob.on_handoff
            async def take(offer):
                takeover = await offer.accept()
                task = await takeover.complete()
                await task.finish({"answer": 42})

            await bob.register(agent_types=["support"])
            await bob.run()

    `server` is HOST:PORT with TLS, or http://HOST:PORT without TLS for a broker on the same machine. The server's
    certificate must be signed by the CA in `ca_file` (PEM; default: the system's CAs). The agent authenticates by its
    key, or by the client certificate in `cert_file` and `cert_key_file` (PEM). `operator_token` is sent with every call
    except the session's; it permits registration where only operators may register agents. `credit` is the maximum
    number of unacknowledged deliveries, 0 to 4096. `capacity` is the maximum number of handoffs in progress, 0 for no
    limit; a further offer is rejected as OVERLOADED. A handler that runs longer than `handler_timeout` is cancelled.
    `pinned_keys` are keys by agent id, also of the broker itself; they replace the directory's keys of that agent.
    `operator_keys` are operators' public keys, 32 bytes each, by operator_key_id. If any are set, a key from the
    directory is valid only with a voucher of one of these operators. `send_timeout` bounds the wait for a receipt, over
    all the sessions that the wait spans. An agent belongs to one event loop and is not thread-safe.
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
        """The payload of the agent's heartbeats. It may be changed at any time; the agent sets active_tasks and
        working_on itself."""
        self.welcome = v1.Welcome()
        """The broker's welcome on the present session: its id, its key and its timing parameters."""
        self.ack_wait = timedelta(seconds=30)
        self.known_sections = KnownSections()
        """The contents that this process has sent or received, as bases of deltas. For the client itself."""
        self.instance_id = str(uuid.uuid4())
        """The id of this process of the agent, a UUID. What answers this process comes to it while it is connected."""
        self.work = Work(agent_id, self._work_changed)
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
        self._dispatcher: Dispatcher = Dispatcher(self, handler_timeout)
        self._link = Link(
            self._connection,
            welcomed=self._welcomed,
            deliver=self._arrived,
            heartbeat=self._beat,
            ended=self._ended,
            credit=credit,
            instance_id=self.instance_id,
        )
        self._resumption = Resumption(self, self._dispatcher)
        self._resumes = False
        self._arrivals: asyncio.Queue[v1.Delivery] = asyncio.Queue()
        self._sorter: asyncio.Task[None] | None = None
        self._is_being_closed = False
        # The messages that are handled and whose ack the broker may not have, with the delivery_id of the latest ack.
        self._handled: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._mail = Conversation()

    @classmethod
    def from_env(cls, profile: str | None = None, **options: Unpack[AgentOptions]) -> Self:
        """Makes the agent that the environment names, or a profile of the command line.

            async with Agent.from_env(capacity=8) as bob:
                await bob.run()

        A variable takes precedence over the value of the profile, and an empty one counts as absent:

        - BATON_SERVER is the broker's address, 127.0.0.1:22866 by default.
        - BATON_CA is the CA file. Default: ./baton-data/tls/ca.pem for the broker that runs on ./baton-data, otherwise
          the system's CAs.
        - BATON_AGENT_ID and BATON_AGENT_KEY are the agent's id and the file of its key, both or neither.
          BATON_AGENT_KEY_ID is the key's id, `k1` by default.
        - BATON_TOKEN is `operator_token`.
        - BATON_CERT and BATON_CERT_KEY are the files of a client certificate, both or neither.

        `profile`, else BATON_PROFILE, names a profile of `baton profile add`; by default it is the one of `baton
        profile use`, if any. Raises ConfigurationError if no agent is named or a named file cannot be used: its text
        has the variable or the file, and what to do.
        """
        found = read_settings(profile)
        return cls(
            found.server,
            found.agent_id,
            found.key,
            key_id=found.key_id,
            ca_file=found.ca_file,
            cert_file=found.cert_file,
            cert_key_file=found.cert_key_file,
            operator_token=found.operator_token,
            **options,
        )

    async def __aenter__(self) -> Self:
        """Returns the agent; `connect` or `run` opens the session."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the agent: see `close`."""
        await self.close()

    # ------------------------------------------------------------------------------------------------ handlers

    def on_handoff(self, handler: HandoffHandler) -> HandoffHandler:
        """Decorator: registers the handler of offered handoffs, which accepts or rejects each `Offer`."""
        self._before_connect()
        self._dispatcher.handoff_handler = handler
        return handler

    def context_provider(self, provider: ContextProvider) -> ContextProvider:
        """Decorator: registers the function that returns the context of an accepted handoff.

            @alice.context_provider
            async def context_of(wanted):
                return [json_section("goals", goals_of(wanted.task_id))]

        The agent calls it for each accept that no `hand_over` or `resume_hand_over` of this process waits for: after a
        restart, or for a handoff that began with `request_handoff`. Without a provider the agent nacks the accept with
        a retry after 2 s, until a `resume_hand_over` takes it or the broker ends the handoff.
        """
        self._before_connect()
        self._dispatcher.context_provider = provider
        return provider

    def on_recalled(self, handler: RecallHandler) -> RecallHandler:
        """Decorator: registers the handler of tasks that were taken from this agent: see `Recalled`.

            @bob.on_recalled
            async def stop(recalled):
                print(recalled.task_id, "is not ours any more:", recalled.message)

        The agent that lent the task has recalled it, its loan timeout passed, or an operator reassigned it. The agent
        cancels the handler of
        `on_handoff` that works on the task, before it calls this one, and ends its calls `hand_over` and `delegate` of
        the task. Without a handler here the notice goes to the handler of v1.ErrorNotification.
        """
        self._before_connect()
        self._dispatcher.recall_handler = handler
        return handler

    def on_prompt(self, handler: PromptHandler) -> PromptHandler:
        """Decorator: registers the handler of questions to this agent: see `Question`.

            @alice.on_prompt
            async def reply(question):
                await question.answer("the one in the hall", {"router": 3})

        A handler that returns without an answer leaves the question open; `answer` answers it later. Without a handler
        here a question goes to the handler of v1.TaskStatusUpdate.
        """
        self._before_connect()
        self._dispatcher.prompt_handler = handler
        return handler

    def on_task_request(self, handler: TaskRequestHandler) -> TaskRequestHandler:
        """Decorator: registers the handler of requests for offers, and of counter-offers: see `OfferWanted`.

            @bob.on_task_request
            async def bid(wanted):
                if wanted.counter and wanted.counter.cost < 3:
                    return v1.TaskDecline(reason=v1.REJECT_REASON_OTHER, reason_text="3 at least")
                return offer(confidence=0.9, cost=5 - wanted.round)

        It returns the offer or the decline; the agent sets the round. An award with a task goes to the handler of
        `on_handoff`; the others go to those of v1.TaskAccept and v1.NegotiationClosed. Without a handler here the
        agent declines as NO_SKILL.
        """
        self._before_connect()
        self._dispatcher.task_request_handler = handler
        return handler

    def on(self, *payload_classes: type[Message]) -> Callable[[Handler], Handler]:
        """Decorator: registers a handler for these payload classes, for example v1.Info.

        When the handler returns, the agent acks the message unless the handler has settled it. When it raises, the
        agent nacks the message: a PoisonError as POISON, a RetryLaterError as FAILURE with its delay, any other
        exception as FAILURE.
        """
        self._before_connect()

        def register(handler: Handler) -> Handler:
            self._dispatcher.handlers.update(dict.fromkeys(payload_classes, handler))
            return handler

        return register

    @property
    def has_handlers(self) -> bool:
        """Whether any handler is registered."""
        return self._dispatcher.has_handlers

    def _before_connect(self) -> None:
        if self._sorter is not None:
            raise RuntimeError("handlers come before connect")

    # ---------------------------------------------------------------------------------------------- the session

    async def connect(self, *, resume: bool = False) -> v1.Welcome:
        """Proves the agent's identity and opens the session. Tries once; raises BatonError.

        Deliveries and heartbeats begin. When the session ends, the agent opens another, after the delay that the broker
        named or with a backoff of 0.1 to 30 s, and sends every unanswered envelope again, byte for byte. The agent ends
        only when the broker refuses permanently (docs/errors.md lists the reasons) or its certificate is not trusted.
        `resume` is that of `run`.
        """
        if self._sorter is not None:
            raise RuntimeError("connect is for once")
        if resume:
            self._resume()
        self._sorter = asyncio.create_task(self._sort())
        try:
            await self._link.begin()
        except BaseException:
            self._sorter.cancel()
            self._sorter = None
            raise
        return self.welcome

    async def run(self, *, resume: bool = False) -> None:
        """Connects if not connected, and serves until `close`. Raises BatonError if the agent ends before.

        With `resume` the handler of `on_handoff` also gets the tasks of this agent that no connected process works on,
        for example after a restart: as an `Offer` with `resumed`, with the last context that the broker has. Its
        `accept` and `complete` return at once, and the task has `resumed` too. The agent asks for such tasks when a
        session begins, and when handlers end. It resumes as many as `capacity` has room for, at most 50 at a time
        without one. A broker that cannot resume tasks is served without it.
        """
        if self._sorter is None:
            await self.connect(resume=resume)
        elif resume and not self._resumes:
            self._resume()
            if self._link.session is not None:
                self._resumption.begin()
        await self._link.over()

    def _resume(self) -> None:
        if self._dispatcher.handoff_handler is None:
            raise RuntimeError("only an agent with a handler of handoffs can resume tasks")
        self._resumes = True

    async def close(self, grace: timedelta = timedelta(seconds=10)) -> None:
        """Accepts no more mail, waits up to `grace` for the handlers, then closes the session and the connection.

        Deliveries that a handler still holds after `grace`, and mail that was never read, are nacked as SHUTDOWN. If
        the call is cancelled, another call goes on with it. While a call is under way, another returns at once.
        """
        if self._is_being_closed:
            return
        self._is_being_closed = True
        try:
            await self._close(grace)
        except BaseException:
            self._is_being_closed = False
            raise

    async def _close(self, grace: timedelta) -> None:
        await self._link.closing()
        self._resumption.stop()
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
        """Sets the maximum number of unacknowledged deliveries: 0 (a pause) to 4096."""
        session = await self._link.live()
        await session.ask(v1.ConnectRequest(credit=v1.Credit(max_outstanding=max_outstanding)))
        self._link.credit = max_outstanding

    async def deliveries(self) -> AsyncGenerator[Delivery, None]:
        """Yields the agent's mail, for agents without handlers. One loop may read it at a time.

        Each sender's signature is verified end to end. A message that does not verify is not yielded: the agent nacks
        it as POISON, and the broker keeps it as a dead letter. The iterator continues over reconnects and ends when
        `close` is called. Raises BatonError when the agent ends.
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

    async def peek(self) -> list[Delivery]:
        """Returns what waits in the mailbox now, in order, and leaves it there: nothing is outstanding after the call.

        No attempt counts. The agent needs no session. A delivery of the list cannot be acked or nacked. A message that
        does not verify is left out. Raises BatonError.
        """
        waiting: list[Delivery] = []
        request = v1.ReceiveRequest(peek=True, instance_id=self.instance_id)
        if not self._connection.has_token:
            await self._connection.prove()
        async with contextlib.aclosing(
            self._connection.stream(self._connection.broker.Receive, request, as_agent=True)
        ) as responses:
            async for response in responses:
                envelope = response.delivery.envelope
                try:
                    await self._directory.verify(envelope)
                    waiting.append(ReadDelivery(response.delivery, payload_of(envelope)))
                except VerificationError as error:
                    _LOG.warning("message %s of %s: %s", envelope.message_id, envelope.sender_id, error)
        return waiting

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
        """Signs and sends a payload of baton.v1. Returns the broker's receipt, its signature verified.

        After a lost connection the agent sends the same bytes again, until the broker answers. If the message has
        waited longer than the broker's clock window, the agent signs it again, with the present time and the same id.
        Raises BatonError if the broker refuses or does not answer in time; VerificationError if the broker did not sign
        the receipt.
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
        return await self._sign_and_send(envelope)

    async def _sign_and_send(self, envelope: v1.Envelope) -> v1.Receipt:
        """Sends an envelope of this agent as `send` does."""
        sign_envelope(envelope, self.key_id, self._key)
        check_envelope(envelope)
        return await self._receipt(envelope, self._ask_and_sign_again(envelope))

    async def _ask_and_sign_again(self, envelope: v1.Envelope) -> v1.Receipt:
        try:
            return await self._link.ask_until_answered(envelope)
        except BatonError as error:
            age = datetime.now(UTC) - envelope.timestamp.ToDatetime(tzinfo=UTC)
            if error.reason != "TIMESTAMP_OUTSIDE_WINDOW" or age < _SIGN_AGAIN_AFTER:
                raise
        # The broker detects a repeat before it checks the time, so it has not accepted the message.
        envelope.timestamp.GetCurrentTime()
        sign_envelope(envelope, self.key_id, self._key)
        return await self._link.ask_until_answered(envelope)

    async def send_envelope(self, envelope: v1.Envelope) -> v1.Receipt:
        """Sends a signed envelope unchanged; otherwise as `send`. A repeated envelope gets its first receipt again.

        An envelope outside the schema's bounds is not sent. Raises the BatonError that the broker would return:
        PAYLOAD_TOO_LARGE over 1 MiB, FIELD_INVALID for an overlong id.
        """
        check_envelope(envelope)
        return await self._receipt(envelope, self._link.ask_until_answered(envelope))

    async def _receipt(self, envelope: v1.Envelope, asking: Awaitable[v1.Receipt]) -> v1.Receipt:
        """Waits up to the send timeout for the receipt of an envelope, and verifies it."""
        try:
            async with asyncio.timeout(self._send_timeout.total_seconds()):
                receipt = await asking
        except TimeoutError:
            text = f"no receipt for message {envelope.message_id} in time; the broker may or may not have accepted it"
            raise BatonError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None
        verify_receipt(receipt, await self._directory.key(self.welcome.broker_id, receipt.key_id))
        if receipt.message_id != envelope.message_id:
            raise VerificationError("SIGNATURE_INVALID", f"the receipt is for another message, {receipt.message_id}")
        self.work.told(envelope, receipt)
        return receipt

    # -------------------------------------------------------------------------------------------------- looking

    def workspace(self, workspace_id: str, *, verify: bool = False) -> Workspace:
        """Returns the workspace with this id, for example `task:crash-7`, without asking the broker.

        With `verify` each read checks the authors' signatures.
        """
        return Workspace(self, self._connection, self._directory, workspace_id, verify=verify)

    async def verify_custody(self, task_id: str) -> VerifiedLog:
        """Reads a task's custody log; verifies its chain, receipts and envelopes. Raises VerificationError."""
        return await read_custody_log(self._connection, task_id, self._directory)

    # ------------------------------------------------------------------------------------------------- inside

    def acknowledge(self, acknowledgement: v1.Acknowledgement) -> Awaitable[v1.Acknowledged]:
        """Sends the acknowledgement of a delivery. Called by Delivery."""
        return self._acknowledge(acknowledgement)

    def handled(self, delivery: Delivery) -> None:
        """Records that a message is handled although the broker has no ack yet. Called by Delivery."""
        self._handled[delivery.key] = delivery.delivery_id
        if len(self._handled) > _HANDLED_MAX:
            self._handled.popitem(last=False)

    def acked(self, delivery: Delivery) -> None:
        """Records that the broker has the ack of a message. Called by Delivery."""
        self._handled.pop(delivery.key, None)

    def not_acked(self, delivery: Delivery) -> bool:
        """Forgets that a message is handled, unless a redelivery was acked since. Called by Delivery."""
        is_latest = self._handled.get(delivery.key) == delivery.delivery_id
        if is_latest:
            del self._handled[delivery.key]
        return is_latest

    def settled(self, delivery: Delivery) -> None:
        """Records that a delivery was acked or nacked. Called by Delivery."""
        self._dispatcher.settled(delivery)

    def leave(self, delivery: Delivery) -> None:
        """Queues mail that has no handler. Called by the dispatcher."""
        if delivery.attempt > 1:
            self._mail.take_out(lambda earlier: earlier.key == delivery.key)
        self._mail.put(delivery)

    def take_back(self, is_wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Removes and returns queued mail that a call now waits for. Called by the dispatcher."""
        return self._mail.take_out(is_wanted)

    async def _acknowledge(self, acknowledgement: v1.Acknowledgement) -> v1.Acknowledged:
        return (await self._link.ask(v1.ConnectRequest(acknowledgement=acknowledgement))).acknowledged

    def _welcomed(self, welcome: v1.Welcome) -> None:
        if self.welcome.broker_id:
            self._dispatcher.look_soon()
        self.welcome = welcome
        self._directory.meet_broker(welcome)
        self.ack_wait = welcome.ack_wait.ToTimedelta() or self.ack_wait
        if self._resumes:
            self._resumption.begin()

    def _ended(self, why: BatonError) -> None:
        self._resumption.stop()
        self._dispatcher.fail(why)
        self._mail.fail(why)

    def _beat(self) -> v1.Heartbeat:
        heartbeat = v1.Heartbeat()
        heartbeat.CopyFrom(self.heartbeat)
        heartbeat.active_tasks = heartbeat.active_tasks or self._dispatcher.active_count
        heartbeat.working_on[:] = self.work.listed()
        return heartbeat

    def _work_changed(self) -> None:
        if self._link.session is not None:
            self._link.session.beat_soon()

    def _arrived(self, delivery: v1.Delivery) -> None:
        self._arrivals.put_nowait(delivery)

    async def _sort(self) -> None:
        """Processes deliveries in the order of arrival."""
        while True:
            await self._take(await self._arrivals.get())

    async def _take(self, arrived: v1.Delivery) -> None:
        """Verifies a delivery and passes it to the dispatcher."""
        message_id = arrived.envelope.message_id
        delivery = Delivery(arrived, None, self)
        try:
            if delivery.key in self._handled:
                await delivery.ack_for_sure()
            elif not self._dispatcher.renew(delivery.key, arrived):
                await self._check(delivery)
        except BatonError as error:
            _LOG.warning("message %s could not be acknowledged: %s", message_id, error)
        except Exception:  # noqa: BLE001
            # A message that fails must not stop the ones after it.
            _LOG.exception("message %s could not be taken", message_id)

    async def _check(self, delivery: Delivery) -> None:
        envelope = delivery.envelope
        try:
            delivery.payload = payload_of(envelope)
            await self._directory.verify(envelope)
            await self._check_mandate(delivery)
        except VerificationError as error:
            _LOG.warning("message %s of %s: %s", envelope.message_id, envelope.sender_id, error)
            await delivery.nack(v1.NACK_CAUSE_POISON, str(error))
        except BatonError as error:
            _LOG.warning("failed to get the keys of %s: %s", envelope.sender_id, error)
            await delivery.nack(v1.NACK_CAUSE_FAILURE, str(error))
        else:
            self._dispatcher.dispatch(delivery)

    async def _check_mandate(self, delivery: Delivery) -> None:
        """Checks that the requester of a negotiation has signed the award that the broker makes in its name."""
        closed = delivery.payload
        if not isinstance(closed, v1.NegotiationClosed) or not closed.HasField("task_request"):
            return
        mandate, envelope = closed.task_request, delivery.envelope
        mandate_of(mandate)
        signed = (mandate.message_id, mandate.task_id, mandate.epoch)
        if signed != (closed.negotiation_id, envelope.task_id, envelope.epoch):
            raise VerificationError("SIGNATURE_INVALID", "the mandate is of another negotiation or task")
        await self._directory.verify(mandate)

    async def _give_back(self) -> None:
        # All at once: a broker that does not answer is waited for once, and not once for each message.
        text = "the agent is stopping"
        nacks = (delivery.nack(v1.NACK_CAUSE_SHUTDOWN, text) for delivery in self._mail.rest())
        await asyncio.gather(*nacks, return_exceptions=True)
