"""The event loop in a thread, and the calls that other threads make on it."""

import asyncio
import contextlib
import contextvars
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

import grpc

from baton.errors import BatonError
from baton.handoffs import OnView
from baton.watching import Progress

_LOG = logging.getLogger("baton")
T = TypeVar("T")
A = TypeVar("A")

# The time that the thread of a cancelled handler gets for its end. The dispatcher waits a little longer.
_THREAD_SECONDS = 8.0


class _Loop:
    """An event loop in a thread. All agents of this module share one, as gRPC works best with one loop."""

    _lock = threading.Lock()
    _shared: "_Loop | None" = None

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._users = 0
        self.thread = threading.Thread(target=self._run, name="baton.sync", daemon=True)
        self.thread.start()

    @classmethod
    def borrow(cls) -> "_Loop":
        """Returns the shared loop, which runs until each borrower has given it back."""
        with cls._lock:
            shared = cls._shared
            # A forked process has the object, and no thread.
            if shared is None or not shared.thread.is_alive():
                shared = cls._shared = cls()
            shared._users += 1
            return shared

    def give_back(self) -> None:
        """Ends the loop and its thread after the last borrower."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            if _Loop._shared is self:
                _Loop._shared = None
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            while left := asyncio.all_tasks(self.loop):
                for task in left:
                    task.cancel()
                self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()


class Call(Generic[T]):
    """One coroutine on the loop, and the thread that waits for it. Its callbacks run in this thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Callbacks to run; None after the end.
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False

    def start(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Begins the coroutine. Called in the loop."""
        self._task = self._loop.create_task(coroutine)
        self._task.add_done_callback(lambda _: self._jobs.put(None))
        if self._is_cancelled:
            self._task.cancel()

    def result(self) -> T:
        """Runs the callbacks until the end, and returns or raises what the coroutine did."""
        while (job := self._jobs.get()) is not None:
            job()
        if self._task is None:
            raise AssertionError("a call ends after its begin")
        return self._task.result()

    def cancel(self) -> None:
        """Cancels the coroutine; the waiting thread raises CancelledError. Called by any thread."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def abandon(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Cancels the coroutine unless it has ended, and waits for its end, without its callbacks.

        Ctrl-C may come at any place, also while the coroutine is given to the loop.
        """
        if self._task is None or not self._task.done():
            self._loop.call_soon_threadsafe(self._give_up, coroutine)
            while self._jobs.get() is not None:
                pass
        if self._task is not None and not self._task.cancelled():
            self._task.exception()  # no other code looks at it

    def _give_up(self, coroutine: Coroutine[Any, Any, T]) -> None:
        # The loop calls in the order of the asking, so `start` has been called, or never is.
        if self._task is not None:
            self._task.cancel()
        else:
            coroutine.close()
            self._jobs.put(None)

    def view(self, on_view: Callable[[Any], None] | None) -> OnView | None:
        """Returns the callback for the coroutine that has the waiting thread call this one."""
        if on_view is None:
            return None
        return lambda view: self._jobs.put(lambda: on_view(view))

    def progress(
        self, on_progress: Callable[[Progress], None] | None
    ) -> Callable[[Progress], Coroutine[Any, Any, None]] | None:
        """As `view`, for progress: the coroutine waits until the callback has returned, and gets its exception."""
        if on_progress is None:
            return None

        async def tell(progress: Progress) -> None:
            told: asyncio.Future[None] = self._loop.create_future()

            def settle(error: Exception | None) -> None:
                if told.done():
                    return  # the call has ended meanwhile
                if error is None:
                    told.set_result(None)
                else:
                    told.set_exception(error)

            def job() -> None:
                error: Exception | None = None
                try:
                    on_progress(progress)
                except Exception as raised:  # noqa: BLE001
                    error = raised
                self._loop.call_soon_threadsafe(settle, error)

            self._jobs.put(job)
            await told

        return tell


class Calls:
    """Makes the calls of one agent on the shared loop."""

    def __init__(self) -> None:
        self._shared = _Loop.borrow()
        self._lock = threading.Lock()
        self._open: set[Call[Any]] = set()
        self._is_over = False
        self.is_closing = False
        """Whether the agent closes or is closed: a call that is cut off by that raises BatonError."""

    def wait(self, make: Callable[[Call[T]], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine on the loop, and returns or raises what it does.

        An exception in the waiting thread, for example KeyboardInterrupt, cancels the coroutine, waits for its end and
        is raised again.
        """
        call: Call[T] = Call(self._shared.loop)
        handler = _HANDLER.get() or Handler()
        coroutine = make(call)
        try:
            self._check_thread()
            handler.begin(call)
        except BaseException:
            coroutine.close()
            raise
        try:
            try:
                self._begin(call, coroutine)
                return call.result()
            except BaseException as error:
                if call in self._open:
                    call.abandon(coroutine)
                else:  # the loop never gets it
                    coroutine.close()
                # gRPC, too, ends a call by CancelledError when the connection closes.
                if isinstance(error, asyncio.CancelledError) and self.is_closing and not handler.is_cancelled:
                    raise closed() from None
                raise
        finally:
            handler.end(call)
            with self._lock:
                self._open.discard(call)

    def _check_thread(self) -> None:
        if threading.current_thread() is self._shared.thread:
            raise RuntimeError("this thread runs the event loop; a call of baton.sync would block it")
        if not self._shared.thread.is_alive() and not self._is_over:
            raise RuntimeError("the thread of this agent is gone, for example by a fork; make another agent")

    def _begin(self, call: Call[T], coroutine: Coroutine[Any, Any, T]) -> None:
        # With the lock, `over` cannot stop the loop between the two.
        with self._lock:
            if self._is_over:
                raise closed()
            self._open.add(call)
            # The context has the running handler and its trace.
            self._shared.loop.call_soon_threadsafe(call.start, coroutine, context=contextvars.copy_context())

    def iterate(self, stream: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yields what the stream yields. `close` of the generator ends the stream."""
        try:
            while True:
                try:
                    item = self.wait(lambda _: _next(stream))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._end(stream)

    def _end(self, stream: AsyncGenerator[T, None]) -> None:
        # A generator that is dropped may be closed by any thread, also that of the loop.
        if threading.current_thread() is self._shared.thread:
            self._shared.loop.create_task(stream.aclose())
        else:
            with contextlib.suppress(BatonError):  # the agent is closed, and the stream over
                self.wait(lambda _: _aclose(stream))

    def soon(self, function: Callable[[], object]) -> None:
        """Has the loop call a function. Returns at once; may be called by any thread, and by a signal handler."""
        with contextlib.suppress(RuntimeError):  # the loop is over, and with it what the function is for
            self._shared.loop.call_soon_threadsafe(function)

    def over(self) -> None:
        """Ends the calls of other threads with an error, and gives the loop back. Later calls are refused."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            calls = list(self._open)
        for call in calls:
            call.cancel()
        # The loop ends each call before it stops.
        self._shared.give_back()


async def _next(stream: AsyncGenerator[T, None]) -> T:
    return await anext(stream)


async def _aclose(stream: AsyncGenerator[Any, None]) -> None:
    await stream.aclose()


def closed() -> BatonError:
    """Returns the error of a call after the end of its agent."""
    return BatonError(grpc.StatusCode.CANCELLED, "the agent was closed")


# ------------------------------------------------------------------------------------------------------- handlers


class Handler:
    """A handler that runs in a thread of its own, and its present call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: set[Call[Any]] = set()
        self.is_cancelled = False
        """Whether the handler should end: its task was taken from it, it ran too long, or the agent is closing."""

    def begin(self, call: Call[Any]) -> None:
        """Records a call. Raises CancelledError in a cancelled handler."""
        with self._lock:
            if self.is_cancelled:
                raise asyncio.CancelledError
            self._calls.add(call)

    def end(self, call: Call[Any]) -> None:
        """Forgets a call."""
        with self._lock:
            self._calls.discard(call)

    def cancel(self) -> None:
        """Has the present call, and each later one, raise CancelledError."""
        with self._lock:
            self.is_cancelled = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()


_HANDLER: contextvars.ContextVar[Handler | None] = contextvars.ContextVar("baton.sync.handler", default=None)


def is_cancelled() -> bool:
    """Whether the handler that calls this should end.

    Its task was taken from it, it ran longer than the agent's `handler_timeout`, or the agent is closing. The present
    and the later calls of such a handler raise asyncio.CancelledError. Work without calls has to look here.
    """
    handler = _HANDLER.get()
    return handler is not None and handler.is_cancelled


def is_in_handler() -> bool:
    """Whether this code runs in a handler."""
    return _HANDLER.get() is not None


async def in_thread(function: Callable[[A], T], argument: A) -> T:
    """Runs a handler in a thread of its own. A cancelled one is told, and waited for a short time."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    handler, context = Handler(), contextvars.copy_context()
    context.run(_HANDLER.set, handler)

    def settle(settling: Callable[[Any], None], outcome: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed before this thread ended
            loop.call_soon_threadsafe(settling, outcome)

    def run() -> None:
        try:
            result = context.run(function, argument)
        except BaseException as raised:  # noqa: BLE001
            is_of_handler = isinstance(raised, Exception | asyncio.CancelledError)
            if is_of_handler and not isinstance(raised, StopIteration):
                settle(done.set_exception, raised)
                return
            # SystemExit would end the loop, and with it every agent. A future refuses StopIteration.
            settle(done.set_exception, RuntimeError(f"the handler raised {raised!r}"))
        else:
            settle(done.set_result, result)

    threading.Thread(target=run, name="baton.sync handler", daemon=True).start()
    try:
        await asyncio.wait([done])
    except asyncio.CancelledError:
        handler.cancel()
        _, left = await asyncio.wait([done], timeout=_THREAD_SECONDS)
        if left:
            _LOG.warning("a handler goes on although it was cancelled")
        else:
            done.exception()  # no other code looks at it
        raise
    return done.result()
