"""One session with the broker: a `Connect` stream, its frames and its heartbeats. A session is used once."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Any

import grpc

from baton import v1
from baton.errors import BatonError
from baton.limits import check_frame

_LOG = logging.getLogger("baton")

CALL_TIMEOUT_SECONDS = 30.0
"""The time limit of a call, or of an answer on the session, in seconds."""
_CLOSE_SECONDS = 5.0
BEAT_SECONDS_MIN = 0.2
"""The minimum time between two heartbeats, in seconds."""


class SessionEndedError(BatonError):
    """The session ended with its open questions. The broker may or may not have taken them."""

    refusal: BatonError | None = None
    """The refusal of this frame for its size, if that ended the session. Sent again, it would end the next one too."""


class Session:
    """An open session, made by `open`."""

    def __init__(
        self,
        call: Any,
        welcome: v1.Welcome,
        deliver: Callable[[v1.Delivery], None],
        heartbeat: Callable[[], v1.Heartbeat],
    ) -> None:
        self.welcome = welcome
        self._call = call
        self._deliver = deliver
        self._heartbeat = heartbeat
        self._is_news = asyncio.Event()
        self._request_ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[v1.ConnectResponse]] = {}
        # By request id, the bytes of each frame that the broker has not answered, even if its caller has given up.
        self._unanswered: dict[int, int] = {}
        self._refused_id = 0
        self._refusal: BatonError | None = None
        self._writing = asyncio.Lock()
        self._end: SessionEndedError | None = None
        self._reader = asyncio.create_task(self._read())
        self._beater: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        broker: Any,
        metadata: tuple[tuple[str, str], ...],
        deliver: Callable[[v1.Delivery], None],
        heartbeat: Callable[[], v1.Heartbeat],
    ) -> "Session":
        """Opens the stream and waits for the broker's welcome. Raises BatonError."""
        call = broker.Connect(metadata=metadata)
        try:
            first = await asyncio.wait_for(call.read(), CALL_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise BatonError.from_call(error) from error
        except TimeoutError:
            call.cancel()
            raise no_answer() from None
        if first is grpc.aio.EOF or not first.HasField("welcome"):
            call.cancel()
            raise BatonError(grpc.StatusCode.UNAVAILABLE, "the session ended before it began")
        return cls(call, first.welcome, deliver, heartbeat)

    async def ended(self) -> SessionEndedError:
        """Waits for the session's end and returns its reason. retry_delay is the broker's reconnect delay."""
        await asyncio.wait([self._reader])
        assert self._end is not None  # noqa: S101
        return self._end

    async def ask(
        self, frame: v1.ConnectRequest, *, seconds_max: float | None = CALL_TIMEOUT_SECONDS
    ) -> v1.ConnectResponse:
        """Sends one frame and waits for its answer.

        Raises BatonError; SessionEndedError if the session ends first; OUT_OF_RANGE if the frame is too large. If the
        broker ended the session because of a frame's size, the largest sent one without an answer has the `refusal`.
        """
        frame.request_id = next(self._request_ids)
        answer = asyncio.get_running_loop().create_future()
        self._answers[frame.request_id] = answer
        try:
            async with asyncio.timeout(seconds_max):
                await self._write(frame)
                response: v1.ConnectResponse = await answer
        except TimeoutError:
            raise no_answer() from None
        except SessionEndedError as ended:
            if frame.request_id != self._refused_id:
                raise
            refused = _ended(ended.message, ended.reason, ended.retry_delay)
            refused.refusal = self._refusal
            raise refused from ended
        finally:
            del self._answers[frame.request_id]
            answer.cancel()
        if response.HasField("error"):
            raise BatonError.from_status(response.error)
        return response

    def begin_beats(self) -> None:
        """Begins to send heartbeats, the first one at once."""
        if self._end is None:
            self._beater = asyncio.create_task(self._beat())

    def beat_soon(self) -> None:
        """Has the next heartbeat sent at once, but not within 0.2 s of the one before."""
        self._is_news.set()

    async def close(self) -> None:
        """Half-closes the stream and reads the remaining frames."""
        self._stop_beats()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._call.done_writing()
                await asyncio.wait([self._reader])
        except (TimeoutError, asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.AioRpcError):
            pass
        self._call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    def _stop_beats(self) -> None:
        if self._beater is not None:
            self._beater.cancel()

    async def _write(self, frame: v1.ConnectRequest) -> None:
        check_frame(frame)
        # A cancelled write ends the whole stream, so the write outlives a caller that stops waiting.
        writing = asyncio.ensure_future(self._write_in_turn(frame))
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(writing)

    async def _write_in_turn(self, frame: v1.ConnectRequest) -> None:
        async with self._writing:
            if self._end is not None:
                raise _ended()  # this frame did not end it
            if frame.request_id:
                self._unanswered[frame.request_id] = frame.ByteSize()
            try:
                await self._call.write(frame)
            except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
                await asyncio.wait([self._reader], timeout=_CLOSE_SECONDS)  # the reader gets the reason
                raise self._end or _ended() from error

    async def _read(self) -> None:
        """Passes each frame to its waiting caller, until the session's end."""
        end = _ended()
        try:
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                if frame.HasField("go_away"):
                    wait = frame.go_away.reconnect_after
                    end = _ended(frame.go_away.reason_text, "SHUTTING_DOWN", wait.seconds + wait.nanos / 1e9)
                else:
                    self._take(frame)
        except grpc.aio.AioRpcError as error:
            if not end.reason:
                broken = BatonError.from_call(error)
                end = _ended(broken.message, broken.reason, broken.retry_delay)
                # An older broker and a proxy give no reason.
                is_too_large = broken.code is grpc.StatusCode.OUT_OF_RANGE or broken.reason == "PAYLOAD_TOO_LARGE"
                if is_too_large and self._unanswered:
                    self._refused_id = max(self._unanswered, key=self._unanswered.__getitem__)
                    self._refusal = broken
        except asyncio.CancelledError:
            pass  # `close` cancelled the underlying call
        finally:
            self._end = end
            self._stop_beats()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(end)

    def _take(self, frame: v1.ConnectResponse) -> None:
        self._unanswered.pop(frame.request_id, None)
        answer = self._answers.get(frame.request_id)
        if frame.HasField("delivery"):
            self._deliver(frame.delivery)
        elif answer is not None and not answer.done():
            answer.set_result(frame)
        elif frame.HasField("error"):
            _LOG.warning("the broker refused a frame that no call waits for: %s", frame.error.message)

    async def _beat(self) -> None:
        """Sends a heartbeat at the broker's interval, and when there is news."""
        interval = self.welcome.heartbeat_interval
        seconds = max(interval.seconds + interval.nanos / 1e9, 0.1)
        while True:
            self._is_news.clear()
            try:
                await self._write_heartbeat(self._heartbeat())
            except SessionEndedError:
                return
            await asyncio.sleep(min(BEAT_SECONDS_MIN, seconds))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(seconds - BEAT_SECONDS_MIN, 0)):
                    await self._is_news.wait()

    async def _write_heartbeat(self, heartbeat: v1.Heartbeat) -> None:
        try:
            await self._write(v1.ConnectRequest(heartbeat=heartbeat))
        except SessionEndedError:
            raise
        except BatonError as error:
            _LOG.warning("the heartbeat goes without its content: %s", error)
            await self._write(v1.ConnectRequest(heartbeat=v1.Heartbeat()))


def _ended(
    text: str = "the session has ended", reason: str = "", retry_delay: float | None = None
) -> SessionEndedError:
    return SessionEndedError(grpc.StatusCode.UNAVAILABLE, text, reason=reason, retry_delay=retry_delay)


def no_answer() -> BatonError:
    """Returns the error for a missing answer, whose outcome is unknown."""
    return BatonError(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time")
