"""The connection to a broker: TLS, the caller's identity, and the calls outside the session."""

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message

from baton import v1
from baton.errors import BatonError
from baton.limits import FRAME_BYTES_MAX
from baton.session import CALL_TIMEOUT_SECONDS
from baton.signing import sign_session

KEEPALIVE_TIME_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
_PLAINTEXT = "http://"

File = str | os.PathLike[str]
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Identity:
    """An agent's id, and the key that proves it."""

    agent_id: str
    key_id: str
    key: Ed25519PrivateKey


class Connection:
    """A channel with the services of baton.v1.

    Calls authenticate by the client certificate if one is set, otherwise by the token that `prove` obtains. An
    operator's token is sent with every call except the session, which always has the agent's own identity.
    """

    def __init__(
        self,
        server: str,
        identity: Identity,
        *,
        ca_file: File | None,
        cert_file: File | None,
        cert_key_file: File | None,
        operator_token: str | None,
    ) -> None:
        self._identity = identity
        self._is_certified = cert_file is not None
        self._operator_token = operator_token
        self._token = ""
        self._is_closed = False
        options = [
            ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
            ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            # This alone does not end a silent connection: gRPC also has a timeout for pings, one minute by default.
            ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            # The agent has its own backoff; gRPC's must not delay an attempt.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 1_000),
            ("grpc.max_reconnect_backoff_ms", 1_000),
        ]
        if server.startswith(_PLAINTEXT):
            self._channel = grpc.aio.insecure_channel(_here(server), options=options)
        else:
            credentials = grpc.ssl_channel_credentials(_read(ca_file), _read(cert_key_file), _read(cert_file))
            self._channel = grpc.aio.secure_channel(server, credentials, options=options)
        self.broker = v1.BrokerServiceStub(self._channel)
        self.agents = v1.AgentServiceStub(self._channel)
        self.handoffs = v1.HandoffServiceStub(self._channel)
        self.tasks = v1.TaskServiceStub(self._channel)
        self.workspaces = v1.WorkspaceServiceStub(self._channel)
        self.routing = v1.RoutingServiceStub(self._channel)
        self.contexts = v1.ContextServiceStub(self._channel)
        self.schemas = v1.SchemaServiceStub(self._channel)
        self.blobs = v1.BlobServiceStub(self._channel)
        self.threads = v1.ThreadServiceStub(self._channel)
        self.plans = v1.PlanServiceStub(self._channel)
        self.dead_letters = v1.DeadLetterServiceStub(self._channel)
        self.audit = v1.AuditServiceStub(self._channel)
        self.negotiations = v1.NegotiationServiceStub(self._channel)
        self.registries = v1.RegistryServiceStub(self._channel)

    async def prove(self) -> str:
        """Signs a challenge to obtain the token that later calls carry. Raises BatonError."""
        identity = self._identity
        request = v1.CreateChallengeRequest(agent_id=identity.agent_id)
        challenge = (await self._once(self.agents.CreateChallenge, request, ())).challenge
        proof = v1.CreateTokenRequest(
            agent_id=identity.agent_id,
            key_id=identity.key_id,
            challenge=challenge,
            signature=sign_session(identity.agent_id, identity.key_id, challenge, identity.key),
        )
        self._token = (await self._once(self.agents.CreateToken, proof, ())).token
        return self._token

    async def for_session(self) -> Metadata:
        """Returns the session's metadata: a fresh token, or nothing with a client certificate."""
        return () if self._is_certified else _bearer(await self.prove())

    async def call(self, method: Any, request: Message, more_seconds: float = 0.0, *, as_agent: bool = False) -> Any:
        """Makes one unary call, and renews an expired token once. Raises BatonError.

        The time limit is 30 s, and `more_seconds` for a call that waits at the broker. With `as_agent` the call has the
        agent's token also if there is an operator's.
        """
        try:
            return await self._once(method, request, self._caller(as_agent=as_agent), more_seconds)
        except BatonError as error:
            if not self._is_renewable(error, as_agent=as_agent):
                raise
        return await self._once(method, request, _bearer(await self.prove()), more_seconds)

    async def stream(self, method: Any, request: Message, *, as_agent: bool = False) -> AsyncGenerator[Any, None]:
        """Yields the responses of one call, and renews an expired token once: see `call`. Raises BatonError."""
        is_renewed = False
        while True:
            call = method(request, metadata=self._caller(as_agent=as_agent))
            try:
                with self._failures():
                    async for response in call:
                        yield response
            except BatonError as error:
                if is_renewed or not self._is_renewable(error, as_agent=as_agent):
                    raise
            else:
                return
            finally:
                call.cancel()
            await self.prove()
            is_renewed = True

    async def upload(self, method: Any, requests: AsyncIterator[Message]) -> Any:
        """Makes one call with a stream of requests, and without a time limit. Raises BatonError."""
        with self._failures():
            return await method(requests, metadata=self._caller())

    @property
    def has_token(self) -> bool:
        """Whether the agent has proved its identity: by a token, or by its client certificate."""
        return self._is_certified or bool(self._token)

    async def close(self) -> None:
        """Closes the channel. Calls that are under way, and later ones, raise BatonError."""
        self._is_closed = True
        await self._channel.close()

    def _caller(self, *, as_agent: bool = False) -> Metadata:
        return _bearer(self._token if as_agent else self._operator_token or self._token)

    def _is_renewable(self, error: BatonError, *, as_agent: bool = False) -> bool:
        is_of_agent = as_agent or not self._operator_token
        return error.reason == "TOKEN_INVALID" and is_of_agent and bool(self._token)

    async def _once(self, method: Any, request: Message, metadata: Metadata, more_seconds: float = 0.0) -> Any:
        call: Awaitable[Any] = method(request, metadata=metadata, timeout=CALL_TIMEOUT_SECONDS + more_seconds)
        with self._failures():
            return await call

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Turns the failure of a call into BatonError."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise BatonError.from_call(error) from error
        except asyncio.CancelledError as error:
            # The close of the channel cancels its calls. A cancellation of the caller's own task goes on.
            task = asyncio.current_task()
            if not self._is_closed or (task is not None and task.cancelling()):
                raise
            raise BatonError(grpc.StatusCode.CANCELLED, "the agent is closed") from error


def _here(server: str) -> str:
    """Returns the address of a server without TLS. Refuses one off this machine: the calls carry tokens."""
    address = server.removeprefix(_PLAINTEXT)
    host = address.rpartition(":")[0].strip("[]")
    try:
        is_here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = False
    if not is_here:
        raise ValueError(f"{server} is not on this machine: it takes TLS, without http://")
    return address


def _bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),) if token else ()


def _read(file: File | None) -> bytes | None:
    return None if file is None else Path(file).read_bytes()
