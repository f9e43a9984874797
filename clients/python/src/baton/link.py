"""An agent's link to its broker: one session after the other, for the lifetime of the agent."""

import asyncio
import logging
import random
import time
from collections.abc import Callable

import grpc

from baton import v1
from baton.connection import Connection
from baton.errors import BatonError, UntrustedError
from baton.session import Session, SessionEndedError

_LOG = logging.getLogger("baton")

_BACKOFF_SECONDS_MIN = 0.1
_BACKOFF_SECONDS_MAX = 30.0
_STEADY_SECONDS = 5.0
"""The age in seconds from which a session counts as stable and resets the backoff."""
_REFUSALS_MAX = 3
"""The number of consecutive refusals to reconnect after which the agent ends."""


class Link:
    """Opens a session and replaces it when it ends, after the delay that the broker named or with a backoff.

    The link ends when it is closed, when the server is no longer trusted, or when the broker has refused several times
    in a row for a reason that does not pass.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        welcomed: Callable[[v1.Welcome], None],
        deliver: Callable[[v1.Delivery], None],
        heartbeat: Callable[[], v1.Heartbeat],
        ended: Callable[[BatonError], None],
        credit: int,
        instance_id: str,
    ) -> None:
        self.credit = credit
        """The maximum number of unacknowledged deliveries, for this session and all later ones."""
        self.end: BatonError | None = None
        """The reason that there will be no further session; None if the link was closed."""
        self.session: Session | None = None
        """The present session."""
        self.is_closing = False
        self._hello = v1.Hello(instance_id=instance_id, tells_work=True)
        self._connection = connection
        self._welcomed = welcomed
        self._deliver = deliver
        self._heartbeat = heartbeat
        self._ended = ended
        self._changed = asyncio.Condition()
        self._keeper: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Opens the first session. Tries once; raises BatonError."""
        self._keeper = asyncio.create_task(self._keep_up(await self._open()))

    async def live(self) -> Session:
        """Returns the present session, or waits for the next. Raises BatonError after the link's end."""
        if self._keeper is None and self.session is None:
            raise RuntimeError("connect first")
        async with self._changed:
            await self._changed.wait_for(lambda: self.session or self.end or self.is_closing)
        if self.session is None:
            raise self.over_by()
        return self.session

    async def ask(self, frame: v1.ConnectRequest) -> v1.ConnectResponse:
        """Sends one frame on the present session and waits for its answer. Raises BatonError."""
        if self.session is None:
            raise self.over_by()
        return await self.session.ask(frame)

    async def ask_until_answered(self, envelope: v1.Envelope) -> v1.Receipt:
        """Sends the same bytes on each session until the broker answers. Raises BatonError.

        Raises the refusal if the session ended because of this envelope's size.
        """
        while True:
            session = await self.live()
            try:
                return (await session.ask(v1.ConnectRequest(envelope=envelope), seconds_max=None)).receipt
            except SessionEndedError as ended:
                if self.session is session:
                    self.session = None
                if ended.refusal is not None:
                    raise ended.refusal from ended
            except BatonError as error:
                if error.code is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(error.retry_delay or 1.0)

    async def over(self) -> None:
        """Waits for `closing` or for the link's end; raises BatonError on the latter."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_closing or self.end)
        if self.end is not None:
            raise self.end

    async def closing(self) -> None:
        """Prevents a further session."""
        self.is_closing = True
        await self._tell()

    async def close(self) -> None:
        """Closes the session."""
        if self.session is not None:
            await self.session.close()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    def over_by(self) -> BatonError:
        """Returns the error for calls after the link's end."""
        return self.end or SessionEndedError(grpc.StatusCode.UNAVAILABLE, "the session has ended")

    async def _open(self) -> Session:
        metadata = await self._connection.for_session()
        session = await Session.open(self._connection.broker, metadata, self._deliver, self._heartbeat)
        try:
            await self._greet(session)
        except BatonError:
            await session.close()
            raise
        session.begin_beats()
        self._welcomed(session.welcome)
        self.session = session
        try:
            await session.ask(v1.ConnectRequest(credit=v1.Credit(max_outstanding=self.credit)))
        except BatonError:
            self.session = None
            await session.close()
            raise
        return session

    async def _greet(self, session: Session) -> None:
        """Names the process behind the session. A broker that knows no processes is served without it."""
        try:
            await session.ask(v1.ConnectRequest(hello=self._hello))
        except BatonError as error:
            if error.reason != "NOT_SUPPORTED":
                raise
            _LOG.debug("the broker knows no processes: %s", error)

    async def _keep_up(self, session: Session) -> None:
        backoff = _BACKOFF_SECONDS_MIN
        while True:
            await self._tell()
            began = time.monotonic()
            ended = await session.ended()
            self.session = None
            if self.is_closing:
                return
            _LOG.warning("the session has ended: %s", ended)
            if time.monotonic() - began >= _STEADY_SECONDS:
                backoff = _BACKOFF_SECONDS_MIN
            try:
                session, backoff = await self._open_again(ended, backoff)
            except BatonError as error:
                _LOG.error("there will be no further session: %s", error)
                self.end = error
                self._ended(error)
                await self._tell()
                return
            _LOG.info("connected again")

    async def _open_again(self, ended: BatonError, backoff: float) -> tuple[Session, float]:
        refusals, delay = 0, ended.retry_delay
        while True:
            await asyncio.sleep((backoff if delay is None else delay) * random.uniform(0.8, 1.2))  # noqa: S311
            backoff = min(backoff * 2, _BACKOFF_SECONDS_MAX)
            try:
                return await self._open(), backoff
            except BatonError as error:
                _LOG.info("could not connect: %s", error)
                refusals = 0 if error.is_passing else refusals + 1
                if refusals >= _REFUSALS_MAX or isinstance(error, UntrustedError):
                    raise
                delay = error.retry_delay

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
