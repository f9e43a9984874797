"""An agent's session with the broker."""

import asyncio
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from baton import v1
from baton.envelopes import handoff_id_of, make_envelope, payload_of
from baton.errors import BatonError, VerificationError
from baton.keys import public_bytes
from baton.signing import context_digest, sign_envelope, sign_session, verify_envelope, verify_receipt

_LOG = logging.getLogger("baton")

CALL_TIMEOUT_SECONDS = 30.0
"""How long a call or an answer on the session may take."""
KEY_CACHE_SECONDS = 60.0
"""How long another agent's keys are believed before they are fetched again, and so how late a revocation is noticed."""
_CLOSE_SECONDS = 5.0
_FRAME_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True)
class Delivery:
    """A message handed out to this agent, its signature checked. To be acked, nacked or extended by ack_deadline."""

    envelope: v1.Envelope
    """As its sender sent it."""
    payload: Any
    """The payload as the message of baton.v1 that message_type names, for example v1.HandoffRequest."""
    delivery_id: str
    """Names this handing-out."""
    attempt: int
    """The how-manieth handing-out it is; more than 1 means that the message may be known already."""
    sequence: int
    """The message's place in the order of everything that the broker stored."""
    ack_deadline: datetime
    """When it is delivered again unless acknowledged, UTC."""
    handoff_id: str
    """The handoff that it belongs to, if any. Of a request that was redriven this is not the message_id."""
    _agent: "Agent" = field(repr=False, compare=False)

    async def ack(self) -> None:
        """Takes it: it is never delivered again. Raises BatonError, DELIVERY_UNKNOWN if its time was over."""
        await self._acknowledge(v1.Acknowledgement(delivery_id=self.delivery_id, ack=v1.Ack()))

    async def nack(self, cause: v1.NackCause, text: str = "", *, retry_after: timedelta | None = None) -> None:
        """Does not take it, for a cause NACK_CAUSE_*. Delivered again after `retry_after`, or by the broker's backoff.

        NACK_CAUSE_POISON makes a dead letter of it at once. `text` is at most 4096 bytes. Raises BatonError.
        """
        nack = v1.Nack(cause=cause, reason_text=text, retry_after=_duration(retry_after))
        await self._acknowledge(v1.Acknowledgement(delivery_id=self.delivery_id, nack=nack))

    async def extend(self, extension: timedelta | None = None) -> datetime:
        """Asks for more time, from now: at most 10 minutes, by default the ack wait. Returns the new deadline, UTC."""
        extend = v1.Extend(extension=_duration(extension))
        answer = await self._acknowledge(v1.Acknowledgement(delivery_id=self.delivery_id, extend=extend))
        return answer.ack_deadline.ToDatetime(tzinfo=UTC)

    async def _acknowledge(self, acknowledgement: v1.Acknowledgement) -> v1.Acknowledged:
        answer = await self._agent._ask(v1.ConnectRequest(acknowledgement=acknowledgement))  # noqa: SLF001
        return answer.acknowledged


class Agent:
    """One agent: registers, proves who it is, sends and receives.

        async with Agent("127.0.0.1:22866", "alice", load_key("alice.pem"), ca_file="ca.pem") as alice:
            await alice.register(agent_types=["support"])
            await alice.connect()
            async for delivery in alice.deliveries():
                ...
                await delivery.ack()

    `server` is HOST:PORT, and its certificate must be signed by the CA in `ca_file` (PEM; the system's CAs without it).
    `credit` is the most deliveries that are handed out and not yet acknowledged, up to 4096. Not for use from several
    event loops or threads.
    """

    def __init__(
        self,
        server: str,
        agent_id: str,
        key: Ed25519PrivateKey,
        *,
        key_id: str = "k1",
        ca_file: str | os.PathLike[str] | None = None,
        credit: int = 16,
    ) -> None:
        self.agent_id = agent_id
        self.key_id = key_id
        self.heartbeat = v1.Heartbeat(status="ok")
        """What the agent says of itself at every heartbeat; change it at any time."""
        self.welcome = v1.Welcome()
        """The broker's first word on this session: its id, its key and its times."""
        self._key = key
        self._credit = credit
        root = None if ca_file is None else Path(ca_file).read_bytes()
        self._channel = grpc.aio.secure_channel(
            server,
            grpc.ssl_channel_credentials(root),
            options=[("grpc.max_receive_message_length", _FRAME_BYTES_MAX)],
        )
        self._broker = v1.BrokerServiceStub(self._channel)
        self._agents = v1.AgentServiceStub(self._channel)
        self._handoffs = v1.HandoffServiceStub(self._channel)
        self._tasks = v1.TaskServiceStub(self._channel)
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._keys: dict[str, tuple[float, dict[str, v1.AgentKey]]] = {}
        self._call: Any = None
        self._background: list[asyncio.Task[None]] = []
        self._writing = asyncio.Lock()
        self._request_ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[v1.ConnectResponse]] = {}
        self._mail: asyncio.Queue[v1.Delivery | None] = asyncio.Queue()
        self._end: BatonError | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        """Nothing yet: `connect` opens the session."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the session and the connection."""
        await self.close()

    # ----------------------------------------------------------------------------------------------- who one is

    async def register(
        self,
        *,
        agent_types: Iterable[str] = (),
        description: str = "",
        skills: Iterable[v1.AgentSkill] = (),
        capacity: int = 0,
        metadata: Mapping[str, str] | None = None,
    ) -> v1.Agent:
        """Registers this agent's card with its key; the same card again is no error.

        To change a card, connect first. Raises BatonError, AGENT_EXISTS if another card is registered under this id.
        """
        card = v1.AgentCard(
            agent_id=self.agent_id,
            agent_types=agent_types,
            description=description,
            skills=skills,
            capacity=capacity,
            keys=[v1.AgentKey(key_id=self.key_id, public_key=public_bytes(self._key))],
            metadata=metadata,
        )
        answer = await self._unary(self._agents.RegisterAgent, v1.RegisterAgentRequest(card=card))
        agent: v1.Agent = answer.agent
        return agent

    async def prove_identity(self) -> str:
        """Signs a challenge for a token, which later calls carry. `connect` does it by itself. Raises BatonError."""
        self._metadata = ()
        request = v1.CreateChallengeRequest(agent_id=self.agent_id)
        challenge = (await self._unary(self._agents.CreateChallenge, request)).challenge
        proof = v1.CreateTokenRequest(
            agent_id=self.agent_id,
            key_id=self.key_id,
            challenge=challenge,
            signature=sign_session(self.agent_id, self.key_id, challenge, self._key),
        )
        token: str = (await self._unary(self._agents.CreateToken, proof)).token
        self._metadata = (("authorization", f"Bearer {token}"),)
        return token

    # ---------------------------------------------------------------------------------------------- the session

    async def connect(self) -> v1.Welcome:
        """Proves who one is and opens the session; deliveries and heartbeats begin.

        Once for each Agent: after the session's end make a new one. Raises BatonError.
        """
        if self._call is not None:
            raise RuntimeError("connect is for once; make a new Agent")
        await self.prove_identity()
        self._call = self._broker.Connect(metadata=self._metadata)
        try:
            first = await asyncio.wait_for(self._call.read(), CALL_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise BatonError.from_call(error) from error
        except TimeoutError:
            raise _no_answer() from None
        if first is grpc.aio.EOF or not first.HasField("welcome"):
            raise BatonError(grpc.StatusCode.UNAVAILABLE, "the session ended before it began")
        self.welcome = first.welcome
        self._background = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]
        await self.set_credit(self._credit)
        return self.welcome

    async def close(self) -> None:
        """Ends the session and the connection. What is not acknowledged will be delivered again."""
        self._closed = True
        if self._background:
            reader, beat = self._background
            beat.cancel()
            try:
                await self._call.done_writing()
                await asyncio.wait_for(asyncio.shield(reader), _CLOSE_SECONDS)
            except (TimeoutError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.AioRpcError):
                self._call.cancel()
            await asyncio.gather(reader, beat, return_exceptions=True)
        await self._channel.close()

    async def set_credit(self, max_outstanding: int) -> None:
        """Sets how many deliveries may be handed out and not yet acknowledged: 0 (a pause) to 4096."""
        await self._ask(v1.ConnectRequest(credit=v1.Credit(max_outstanding=max_outstanding)))
        self._credit = max_outstanding

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """The agent's mail, for as long as the session lasts; to be read by one loop at a time.

        Each sender's signature is checked end to end; a message that does not verify is nacked as POISON, so that the
        broker keeps it as a dead letter, and is not given out. Ends when `close` is called; raises BatonError when the
        broker or the network ended the session.
        """
        while (delivery := await self._mail.get()) is not None:
            try:
                payload = payload_of(delivery.envelope)
                await self._verify(delivery.envelope)
            except VerificationError as error:
                _LOG.warning("message %s of %s: %s", delivery.envelope.message_id, delivery.envelope.sender_id, error)
                await self._made(delivery, None).nack(v1.NACK_CAUSE_POISON, str(error))
            except BatonError as error:
                _LOG.warning("failed to get the keys of %s: %s", delivery.envelope.sender_id, error)
                await self._made(delivery, None).nack(v1.NACK_CAUSE_FAILURE, str(error))
            else:
                yield self._made(delivery, payload)
        self._mail.put_nowait(None)  # for whoever asks again
        if self._end is not None and not self._closed:
            raise self._end

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

        Raises BatonError if the broker refuses or the session ends, VerificationError if the receipt is not the
        broker's. To be able to repeat a message after UNAVAILABLE, make it with `make_envelope` and `send_envelope`.
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
        """Sends an envelope as it is. As `send`; the same envelope again gives the first receipt again."""
        receipt: v1.Receipt = (await self._ask(v1.ConnectRequest(envelope=envelope))).receipt
        verify_receipt(receipt, self.welcome.broker_key)
        if receipt.message_id != envelope.message_id:
            raise VerificationError("SIGNATURE_INVALID", f"the receipt is for another message, {receipt.message_id}")
        return receipt

    # ------------------------------------------------------------------------------------------------ handoffs

    async def request_handoff(
        self, receiver_id: str, task_id: str, request: v1.HandoffRequest, *, epoch: int = 1
    ) -> v1.Receipt:
        """Asks an agent, or any able one of `type:NAME`, to take a task. The receipt's handoff_id names the handoff.

        A task_id that is new makes the task, owned by this agent at epoch 1. Raises BatonError, for example
        HANDOFF_OPEN, STALE_EPOCH, LOOP_LIMIT, RECEIVER_UNKNOWN.
        """
        return await self.send(request, receiver_id=receiver_id, task_id=task_id, epoch=epoch)

    async def accept(
        self, request: Delivery, *, wanted_sections: Iterable[str] = (), estimate: timedelta | None = None
    ) -> v1.Receipt:
        """Takes the handoff of a delivered HandoffRequest; `wanted_sections` empty means the whole context."""
        accept = v1.HandoffAccept(estimated_handoff_time=_duration(estimate), wanted_sections=wanted_sections)
        return await self._reply(request, accept)

    async def reject(
        self,
        request: Delivery,
        reason: v1.RejectReason,
        text: str = "",
        *,
        retry_after: timedelta | None = None,
        alternatives: Iterable[str] = (),
    ) -> v1.Receipt:
        """Does not take the handoff of a delivered HandoffRequest, for a reason REJECT_REASON_*."""
        reject = v1.HandoffReject(
            reason=reason,
            reason_text=text,
            retry_after=_duration(retry_after),
            alternative_agent_suggestions=alternatives,
        )
        return await self._reply(request, reject)

    async def cancel(self, request: v1.Receipt, candidate_id: str, text: str = "") -> v1.Receipt:
        """Takes back a handoff that this agent asked for, before it is complete. `request` is the request's receipt."""
        return await self.send(
            v1.HandoffCancel(reason_text=text),
            receiver_id=candidate_id,
            task_id=request.task_id,
            epoch=request.epoch,
            correlation_id=request.handoff_id,
        )

    async def send_context(self, accept: Delivery, sections: Iterable[v1.ContextSection]) -> v1.Receipt:
        """Hands the context over, to the candidate of a delivered HandoffAccept: the sections that it wants, or all."""
        wanted = set(accept.payload.wanted_sections)
        chosen = [section for section in sections if not wanted or section.name in wanted]
        context = v1.TaskContextTransfer(sections=chosen, context_digest=context_digest(chosen))
        return await self._reply(accept, context)

    async def complete(
        self, context: Delivery, outcome: v1.HandoffOutcome = v1.HANDOFF_OUTCOME_SUCCESS, details: str = ""
    ) -> v1.Receipt:
        """Ends the handoff of a delivered TaskContextTransfer.

        By SUCCESS this agent owns the task from the receipt on, at the receipt's epoch; not before. The digest is
        computed from the sections: raises VerificationError, CONTEXT_DIGEST_MISMATCH if it is not what the sender said.
        """
        digest = context_digest(context.payload.sections)
        if outcome == v1.HANDOFF_OUTCOME_SUCCESS and digest != context.payload.context_digest:
            raise VerificationError("CONTEXT_DIGEST_MISMATCH", f"the sections have the digest {digest.hex()}")
        complete = v1.HandoffComplete(outcome=outcome, context_digest=digest, details=details)
        return await self._reply(context, complete)

    async def update_status(
        self,
        task_id: str,
        epoch: int,
        status: v1.TaskStatus,
        details: str = "",
        *,
        progress: float | None = None,
        result: Mapping[str, Any] | None = None,
        receiver_id: str = "",
        handoff_id: str = "",
    ) -> v1.Receipt:
        """Says how a task is doing that this agent owns: TASK_STATUS_*, progress from 0 to 1; a final status is final.

        With `handoff_id` and IN_PROGRESS, the side of an open handoff that is on turn gets more time.
        """
        update = v1.TaskStatusUpdate(status=status, details=details, progress=progress)
        if result is not None:
            update.result.update(result)
        return await self.send(update, receiver_id=receiver_id, task_id=task_id, epoch=epoch, correlation_id=handoff_id)

    # -------------------------------------------------------------------------------------------------- looking

    async def get_agent(self, agent_id: str) -> v1.Agent:
        """An agent as the broker knows it; the broker itself is `baton`. Raises BatonError, AGENT_UNKNOWN."""
        answer = await self._unary(self._agents.GetAgent, v1.GetAgentRequest(agent_id=agent_id))
        agent: v1.Agent = answer.agent
        return agent

    async def get_task(self, task_id: str) -> v1.Task:
        """A task. Raises BatonError, TASK_UNKNOWN."""
        answer = await self._unary(self._tasks.GetTask, v1.GetTaskRequest(task_id=task_id))
        task: v1.Task = answer.task
        return task

    async def get_handoff(self, handoff_id: str) -> v1.Handoff:
        """A handoff with its state, both views and every step. Raises BatonError, HANDOFF_UNKNOWN."""
        answer = await self._unary(self._handoffs.GetHandoff, v1.GetHandoffRequest(handoff_id=handoff_id))
        handoff: v1.Handoff = answer.handoff
        return handoff

    # ------------------------------------------------------------------------------------------------- inside

    async def _reply(self, to: Delivery, payload: Message) -> v1.Receipt:
        """Sends to the other side of the handoff, at the same task and epoch."""
        return await self.send(
            payload,
            receiver_id=to.envelope.sender_id,
            task_id=to.envelope.task_id,
            epoch=to.envelope.epoch,
            correlation_id=to.handoff_id,
        )

    def _made(self, delivery: v1.Delivery, payload: Message | None) -> Delivery:
        return Delivery(
            envelope=delivery.envelope,
            payload=payload,
            delivery_id=delivery.delivery_id,
            attempt=delivery.attempt,
            sequence=delivery.sequence,
            ack_deadline=delivery.ack_deadline.ToDatetime(tzinfo=UTC),
            handoff_id=delivery.handoff_id or handoff_id_of(delivery.envelope),
            _agent=self,
        )

    async def _verify(self, envelope: v1.Envelope) -> None:
        verify_envelope(envelope, await self._key_of(envelope.sender_id, envelope.key_id))

    async def _key_of(self, agent_id: str, key_id: str) -> v1.AgentKey:
        broker_key = self.welcome.broker_key
        if agent_id == self.welcome.broker_id and key_id == broker_key.key_id:
            return broker_key
        fetched_at, keys = self._keys.get(agent_id, (0.0, {}))
        if key_id not in keys or time.monotonic() - fetched_at > KEY_CACHE_SECONDS:
            card = (await self.get_agent(agent_id)).card
            keys = {key.key_id: key for key in card.keys}
            self._keys[agent_id] = (time.monotonic(), keys)
        if key_id not in keys:
            raise VerificationError("KEY_UNKNOWN", f"{agent_id} has no key {key_id}")
        return keys[key_id]

    async def _unary(self, method: Any, request: Message) -> Any:
        call: Awaitable[Any] = method(request, metadata=self._metadata, timeout=CALL_TIMEOUT_SECONDS)
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise BatonError.from_call(error) from error

    async def _ask(self, frame: v1.ConnectRequest) -> v1.ConnectResponse:
        """Sends one frame and waits for its answer."""
        frame.request_id = next(self._request_ids)
        answer = asyncio.get_running_loop().create_future()
        self._answers[frame.request_id] = answer
        try:
            await self._write(frame)
            response: v1.ConnectResponse = await asyncio.wait_for(answer, CALL_TIMEOUT_SECONDS)
        except TimeoutError:
            raise _no_answer() from None
        finally:
            del self._answers[frame.request_id]
        if response.HasField("error"):
            raise BatonError.from_status(response.error)
        return response

    async def _write(self, frame: v1.ConnectRequest) -> None:
        if self._call is None:
            raise RuntimeError("connect first")
        if self._end is not None:
            raise self._end
        async with self._writing:
            try:
                await self._call.write(frame)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                raise self._end or _ended() from error

    async def _read(self) -> None:
        """Gives every frame to whoever waits for it, until the session's end."""
        end = _ended()
        try:
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                if frame.HasField("go_away"):
                    wait = frame.go_away.reconnect_after
                    end = _ended(frame.go_away.reason_text, "SHUTTING_DOWN", wait.seconds + wait.nanos / 1e9)
                else:
                    self._take(frame)
        except grpc.aio.AioRpcError as error:
            end = BatonError.from_call(error)
        except asyncio.CancelledError:
            pass  # by close, of the call under it
        self._end = end
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(end)
        self._mail.put_nowait(None)

    def _take(self, frame: v1.ConnectResponse) -> None:
        answer = self._answers.get(frame.request_id)
        if frame.HasField("delivery"):
            self._mail.put_nowait(frame.delivery)
        elif answer is not None and not answer.done():
            answer.set_result(frame)
        elif frame.HasField("error"):
            _LOG.warning("the broker refused a frame that nobody waits for: %s", frame.error.message)

    async def _beat(self) -> None:
        """Says that the agent is there, as often as the broker wants."""
        interval = self.welcome.heartbeat_interval
        seconds = max(interval.seconds + interval.nanos / 1e9, 0.1)
        while True:
            try:
                await self._write(v1.ConnectRequest(heartbeat=self.heartbeat))
            except BatonError:
                return  # the session has ended, and whoever uses it learns that by itself
            await asyncio.sleep(seconds)


def _ended(text: str = "the session has ended", reason: str = "", retry_delay: float = 1.0) -> BatonError:
    return BatonError(grpc.StatusCode.UNAVAILABLE, text, reason=reason, retry_delay=retry_delay)


def _no_answer() -> BatonError:
    return BatonError(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {CALL_TIMEOUT_SECONDS:g} s")


def _duration(span: timedelta | None) -> Duration | None:
    if span is None:
        return None
    duration = Duration()
    duration.FromTimedelta(span)
    return duration
