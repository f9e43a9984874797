"""Threads: one conversation whose persona changes at step boundaries, and the specs of personas and models."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Self

from google.protobuf.message import Message

from baton import v1
from baton.connection import Connection
from baton.envelopes import new_message_id
from baton.errors import BatonError
from baton.following import delay_of, follow_log

_LOG = logging.getLogger("baton")

_PAGE_SIZE = 200
_LEASE_SECONDS = 60.0
_KEEP_SECONDS = 20.0
# The runner repeats a call whose answer is lost. These refusals are answers.
_ANSWERS = {"RUN_OPEN", "SEQUENCE_CONFLICT"}


@dataclass(frozen=True)
class ThreadStep:
    """A step of a run with its spec and model, to its end."""

    number: int
    """The number, starting at 1."""
    spec: v1.AgentSpec
    """The spec of the persona in force."""
    model: v1.ModelSpec
    """The spec of its model."""
    switched: bool
    """Whether another spec or revision than before is in force."""
    deactivate_plugin_ids: tuple[str, ...]
    """The plugins to turn off before the step."""
    activate_plugin_ids: tuple[str, ...]
    """The plugins to turn on before the step."""
    request: v1.ThreadRequestEnded | None
    """The request that ended at the begin of the step; None: none waited."""


class ThreadRun:
    """A run of a thread, inside `Thread.run`, which works one step after the other.

        async with thread.run() as run:
            async for step in run:  # each turn of the loop ends the step before
                said = await model(step.spec, step.model)
                if said.is_done:
                    break

    The client renews the lease of 60 s while a step takes longer. Calls raise BatonError: RUN_FINAL after the lease,
    RUN_OPEN if another run has begun since.
    """

    def __init__(self, thread: "Thread", run_id: str) -> None:
        self.thread = thread
        self.run_id = run_id
        self._step: ThreadStep | None = None
        self._is_begun = False
        self._turn = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Opens the run with its first step. Raises BatonError, RUN_OPEN while another run holds the lease."""
        self._step = await self._begin()
        self._keeper = asyncio.create_task(self._keep_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends the run."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        request = v1.EndRunRequest(thread_id=self.thread.thread_id, run_id=self.run_id)
        try:
            async with self._turn:
                await self.thread._repeat("EndRun", request)  # noqa: SLF001
        except BatonError as error:
            if error.reason != "RUN_FINAL":
                raise
            _LOG.warning("run %s of thread %s has lost its lease", self.run_id, self.thread.thread_id)

    @property
    def step(self) -> ThreadStep:
        """The present step."""
        if self._step is None:
            raise RuntimeError("the run is opened by `async with`")
        return self._step

    def __aiter__(self) -> AsyncIterator[ThreadStep]:
        """Yields the first step, and then the steps that `next_step` begins, without end."""
        return self

    async def __anext__(self) -> ThreadStep:
        """Ends the step before, if any, and returns the next one."""
        if self._is_begun:
            return await self.next_step()
        self._is_begun = True
        return self.step

    async def next_step(self) -> ThreadStep:
        """Ends the present step, and begins the next one. A lost answer is asked for again."""
        async with self._turn:
            self._step = await self._end_step(self.step.number)
        self._is_begun = True
        return self._step

    async def keep(self) -> None:
        """Renews the lease. The client does so every 20 s."""
        async with self._turn:
            number = self.step.number
            await (self._begin() if number == 1 else self._end_step(number - 1))

    async def _keep_on(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_SECONDS)
            try:
                await self.keep()
            except BatonError as error:
                _LOG.warning("the lease of run %s was not renewed: %s", self.run_id, error)

    async def _begin(self) -> ThreadStep:
        request = v1.BeginRunRequest(thread_id=self.thread.thread_id, run_id=self.run_id)
        answer = await self.thread._repeat("BeginRun", request)  # noqa: SLF001
        return _step_of(answer, answer.thread.step)

    async def _end_step(self, number: int) -> ThreadStep:
        request = v1.EndStepRequest(thread_id=self.thread.thread_id, run_id=self.run_id, step=number)
        return _step_of(await self.thread._repeat("EndStep", request), number + 1)  # noqa: SLF001


def _step_of(answer: Any, number: int) -> ThreadStep:
    return ThreadStep(
        number,
        answer.spec,
        answer.model,
        answer.switched,
        tuple(answer.deactivate_plugin_ids),
        tuple(answer.activate_plugin_ids),
        answer.request if answer.HasField("request") else None,
    )


class Thread:
    """A thread, made by `Agent.create_thread` or `Agent.join_thread`.

    Its history is the topic `messages` of the workspace `thread:ID`. All calls raise BatonError if the broker refuses:
    THREAD_UNKNOWN, PERMISSION_DENIED.
    """

    def __init__(self, connection: Connection, thread_id: str) -> None:
        self.thread_id = thread_id
        self._connection = connection

    async def state(self) -> v1.Thread:
        """Returns the present state of the thread."""
        request = v1.GetThreadRequest(thread_id=self.thread_id)
        thread: v1.Thread = (await self._connection.call(self._connection.threads.GetThread, request)).thread
        return thread

    async def watch(self, after: int = 0) -> AsyncGenerator[v1.ThreadEntry, None]:
        """Yields the entries of the thread's log after this number, and each new one, without end.

        The watch continues by itself over lost connections and restarts of the broker. The log keeps the last 1000
        entries: raises GapError if earlier ones are missing.
        """
        request = v1.WatchThreadRequest(thread_id=self.thread_id, after_number=after)
        stream = follow_log(self._connection, self._connection.threads.WatchThread, request, f"thread {self.thread_id}")
        async with contextlib.aclosing(stream) as responses:
            async for response in responses:
                if response.HasField("entry"):
                    yield response.entry

    async def request(self, spec_id: str, *, action_id: str = "") -> v1.ApplyHandoffActionResponse:
        """Requests another persona for the next boundary. A further request takes its place.

        `warning` of the answer says why the spec does not resolve at present. Raises BatonError, HANDOFF_PLUGIN_MISSING
        if the spec in force does not permit actions. `action_id` is a UUID; the same action with it counts once.
        """
        return await self._act(v1.ApplyHandoffActionRequest(request_spec_id=spec_id, action_id=action_id))

    async def activate(self, spec_id: str, *, action_id: str = "") -> v1.ApplyHandoffActionResponse:
        """Makes a spec active, which is in force from the next boundary on.

        Raises BatonError as `request`, and HANDOFF_RESOLVE_FAILED if the spec or its model is not registered.
        """
        return await self._act(v1.ApplyHandoffActionRequest(activate_spec_id=spec_id, action_id=action_id))

    async def clear(self, *, action_id: str = "") -> v1.ApplyHandoffActionResponse:
        """Returns to the base spec from the next boundary on. Raises BatonError as `request`."""
        return await self._act(v1.ApplyHandoffActionRequest(clear=True, action_id=action_id))

    def run(self, run_id: str = "") -> ThreadRun:
        """Returns a run, which `async with` opens. `run_id` is a UUID; the same run is opened once."""
        return ThreadRun(self, run_id or new_message_id())

    async def _act(self, action: v1.ApplyHandoffActionRequest) -> v1.ApplyHandoffActionResponse:
        action.thread_id = self.thread_id
        action.action_id = action.action_id or new_message_id()
        answer: v1.ApplyHandoffActionResponse = await self._repeat("ApplyHandoffAction", action)
        return answer

    async def _repeat(self, method: str, request: Message) -> Any:
        """Makes a call that counts once. Repeats it while its answer is lost, within the time of a lease."""
        until = time.monotonic() + _LEASE_SECONDS
        attempt = 0
        while True:
            try:
                return await self._connection.call(getattr(self._connection.threads, method), request)
            except BatonError as error:
                delay = max(error.retry_delay or 0.0, delay_of(attempt))
                if not error.is_passing or error.reason in _ANSWERS or time.monotonic() + delay > until:
                    raise
                attempt += 1
                await asyncio.sleep(delay)


class Threads:
    """The calls about threads and their specs. `Agent` has them. By default only operators change specs."""

    _connection: Connection

    async def put_agent_spec(self, spec: v1.AgentSpec) -> v1.AgentSpec:
        """Registers the spec of a persona, or a further revision of it. The same spec again is the same revision."""
        request = v1.PutAgentSpecRequest(spec=spec)
        stored: v1.AgentSpec = (await self._connection.call(self._connection.threads.PutAgentSpec, request)).spec
        return stored

    async def get_agent_spec(self, spec_id: str, revision: int = 0) -> v1.AgentSpec:
        """Returns a revision of a spec, 0 for the latest. Raises BatonError, SPEC_UNKNOWN."""
        request = v1.GetAgentSpecRequest(spec_id=spec_id, revision=revision)
        spec: v1.AgentSpec = (await self._connection.call(self._connection.threads.GetAgentSpec, request)).spec
        return spec

    async def agent_specs(self) -> AsyncGenerator[v1.AgentSpec, None]:
        """Yields the latest revisions, the newest spec first, without prompt, sections and overlay."""
        request = v1.ListAgentSpecsRequest(page_size=_PAGE_SIZE)
        while True:
            page = await self._connection.call(self._connection.threads.ListAgentSpecs, request)
            for spec in page.specs:
                yield spec
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def put_model_spec(self, spec: v1.ModelSpec) -> v1.ModelSpec:
        """Registers the spec of a model, or a further revision of it. The same spec again is the same revision."""
        request = v1.PutModelSpecRequest(spec=spec)
        stored: v1.ModelSpec = (await self._connection.call(self._connection.threads.PutModelSpec, request)).spec
        return stored

    async def model_specs(self) -> AsyncGenerator[v1.ModelSpec, None]:
        """Yields the latest revisions, the newest spec first, without their parameters."""
        request = v1.ListModelSpecsRequest(page_size=_PAGE_SIZE)
        while True:
            page = await self._connection.call(self._connection.threads.ListModelSpecs, request)
            for spec in page.specs:
                yield spec
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def create_thread(
        self, base_spec_id: str, *, thread_id: str = "", task_id: str = "", participant_ids: Iterable[str] = ()
    ) -> Thread:
        """Creates a thread. The same `thread_id` again, with the same base spec, task and creator, returns the thread.

        `task_id` names a task of this agent. Raises BatonError, HANDOFF_RESOLVE_FAILED if the base spec or its model is
        not registered.
        """
        request = v1.CreateThreadRequest(
            base_spec_id=base_spec_id, thread_id=thread_id, task_id=task_id, participant_ids=participant_ids
        )
        thread = (await self._connection.call(self._connection.threads.CreateThread, request)).thread
        return self.join_thread(thread.thread_id)

    def join_thread(self, thread_id: str) -> Thread:
        """Returns the thread with this id, without asking the broker."""
        return Thread(self._connection, thread_id)

    async def threads(self, *, task_id: str = "", in_force_spec_id: str = "") -> AsyncGenerator[v1.Thread, None]:
        """Yields the threads that match all filters and name this agent as a participant, the newest first."""
        request = v1.ListThreadsRequest(page_size=_PAGE_SIZE, task_id=task_id, in_force_spec_id=in_force_spec_id)
        while True:
            page = await self._connection.call(self._connection.threads.ListThreads, request)
            for thread in page.threads:
                yield thread
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
