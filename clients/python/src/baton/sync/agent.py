"""An agent for code without an event loop."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message

from baton import agent, delivery, handoffs, loans, questions, tasks, v1
from baton.connection import File
from baton.sync import background
from baton.sync.background import Calls, in_thread
from baton.sync.tasks import Delivery, Offer, OnProgress, OnView, OwnedTask, Question

T = TypeVar("T")

OfferHandler = Callable[[Offer], None]
TaskHandler = Callable[[OwnedTask], Mapping[str, Any] | None]
QuestionHandler = Callable[[Question], None]
RecalledHandler = Callable[[loans.Recalled], None]
ContextHandler = Callable[[handoffs.ContextWanted], Iterable[v1.ContextSection]]
MessageHandler = Callable[[Delivery], None]


class Agent:
    """An agent of the broker whose calls block: see `baton.Agent`, which has the same calls for an event loop.

        with Agent.from_env() as alice:
            alice.register()
            alice.connect()
            outcome = alice.delegate("type:support", "ticket-7", request, context)

    The arguments are those of `baton.Agent`. All agents of this class share one event loop, in a thread of its own; it
    sends heartbeats and reconnects while the program does other work. Handlers run in a thread each, and the callbacks
    of a call in the thread of the call. An agent may be used by many threads.

    Ctrl-C ends a call as a cancelled one of `baton.Agent`: `delegate` takes the task back first. A second Ctrl-C does
    not wait for that. After `close` each call, also one that another thread waits in, raises BatonError with the code
    CANCELLED, or UNAVAILABLE if it waits for the session.
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
        **options: Unpack[agent.AgentOptions],
    ) -> None:
        self._start(
            lambda: agent.Agent(
                server,
                agent_id,
                key,
                key_id=key_id,
                ca_file=ca_file,
                cert_file=cert_file,
                cert_key_file=cert_key_file,
                operator_token=operator_token,
                **options,
            )
        )

    @classmethod
    def from_env(cls, profile: str | None = None, **options: Unpack[agent.AgentOptions]) -> Self:
        """Makes the agent that the environment names, or a profile of the command line: see `baton.Agent.from_env`."""
        made = cls.__new__(cls)
        made._start(lambda: agent.Agent.from_env(profile, **options))  # noqa: SLF001
        return made

    def _start(self, make: Callable[[], agent.Agent]) -> None:
        self._calls = Calls()

        async def made() -> tuple[agent.Agent, asyncio.Event]:
            # gRPC takes the loop that runs.
            return make(), asyncio.Event()

        try:
            self.wrapped, self._stopped = self._calls.wait(lambda _: made())
        except BaseException:
            self._calls.over()
            raise

    wrapped: agent.Agent
    """The same agent for the event loop, for `wait` and `iterate`."""

    @property
    def agent_id(self) -> str:
        """The agent's id."""
        return self.wrapped.agent_id

    def __enter__(self) -> Self:
        """Returns the agent; `connect` or `serve` opens the session."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the agent: see `close`."""
        self.close()

    def close(self, grace: timedelta = timedelta(seconds=10)) -> None:
        """Accepts no more mail, waits up to `grace` for the handlers, then closes the session and the connection.

        The calls of other threads end with an error. Closing again has no effect. A handler cannot close an agent; it
        calls `stop`.
        """
        if background.is_in_handler():
            raise RuntimeError("a handler cannot close an agent: `stop` ends `serve`")
        if self._calls.is_closing:
            return
        self._calls.is_closing = True
        try:
            self._calls.wait(lambda _: self.wrapped.close(grace))
        finally:
            self._calls.over()

    # -------------------------------------------------------------------------------------- calls of `baton.Agent`

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine of `wrapped` on the event loop, for calls that this class does not have.

        blob = alice.wait(alice.wrapped.put_blob("figures.csv", "task:ticket-7"))
        """
        return self._calls.wait(lambda _: coroutine)

    def iterate(self, stream: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yields what a list or a watch of `wrapped` yields. Closing the generator ends the watch.

        for entry in operator.iterate(operator.wrapped.audit_log()):
            print(entry)
        """
        return self._calls.iterate(stream)

    # --------------------------------------------------------------------------------------------------- the agent

    def register(
        self,
        *,
        agent_types: Iterable[str] = (),
        description: str = "",
        skills: Iterable[v1.AgentSkill] = (),
        metadata: Mapping[str, str] | None = None,
        decides_within: timedelta | None = None,
        invitation: str = "",
    ) -> v1.Agent:
        """Registers this agent's card with its key, or updates it. See `baton.Agent.register`."""
        return self.wait(
            self.wrapped.register(
                agent_types=agent_types,
                description=description,
                skills=skills,
                metadata=metadata,
                decides_within=decides_within,
                invitation=invitation,
            )
        )

    def connect(self, *, resume: bool = False) -> v1.Welcome:
        """Proves the agent's identity and opens the session, and others after it. Tries once; raises BatonError."""
        return self.wait(self.wrapped.connect(resume=resume))

    def get_agent(self, agent_id: str) -> v1.Agent:
        """Returns an agent's registration. Raises BatonError, AGENT_UNKNOWN."""
        return self.wait(self.wrapped.get_agent(agent_id))

    def list_processes(self, agent_id: str) -> list[v1.Process]:
        """Returns the processes of an agent that have an open session. See `baton.Agent.list_processes`."""
        return self.wait(self.wrapped.list_processes(agent_id))

    def find_agents(
        self,
        *,
        agent_type: str = "",
        required_skills: Iterable[str] = (),
        preferred_skills: Iterable[str] = (),
        task_type: str = "",
        limit: int = 50,
    ) -> list[v1.AgentMatch]:
        """Returns the agents that fit, best first, at most `limit`. See `baton.Agent.find_agents`."""
        return self.wait(
            self.wrapped.find_agents(
                agent_type=agent_type,
                required_skills=required_skills,
                preferred_skills=preferred_skills,
                task_type=task_type,
                limit=limit,
            )
        )

    def list_agents(
        self, *, agent_type: str = "", skill: str = "", include_deregistered: bool = False
    ) -> Generator[v1.Agent, None, None]:
        """Yields the agents that match, in the order of their ids. See `baton.Agent.list_agents`."""
        return self.iterate(
            self.wrapped.list_agents(agent_type=agent_type, skill=skill, include_deregistered=include_deregistered)
        )

    def watch_agents(
        self, *, after_cursor: int = 0, agent_type: str = "", skill: str = "", cards_only: bool = False
    ) -> Generator[v1.WatchAgentsResponse, None, None]:
        """Yields the agents, then one `caught_up`, then each change, without end. See `baton.Agent.watch_agents`."""
        return self.iterate(
            self.wrapped.watch_agents(
                after_cursor=after_cursor, agent_type=agent_type, skill=skill, cards_only=cards_only
            )
        )

    # ------------------------------------------------------------------------------------------------ at the sender

    def hand_over(
        self,
        receiver_id: str,
        task_id: str,
        request: v1.HandoffRequest,
        context: Iterable[v1.ContextSection],
        *,
        epoch: int = 1,
        parent_task_id: str | None = None,
        timeout: timedelta | None = None,
        on_view: OnView | None = None,
    ) -> handoffs.HandedOver:
        """Hands a task over, and waits until it has moved. Raises HandoffFailedError. See `baton.Agent.hand_over`.

        At the time limit of the call, `timeout`, the agent cancels the handoff, and the task stays with it.
        A call that Ctrl-C or an exception of `on_view` ends leaves the handoff open, for `resume_hand_over`.
        """
        sections = list(context)
        return self._calls.wait(
            lambda call: self.wrapped.hand_over(
                receiver_id,
                task_id,
                request,
                sections,
                epoch=epoch,
                parent_task_id=parent_task_id,
                timeout=timeout,
                on_view=call.view(on_view),
            )
        )

    def resume_hand_over(self, handoff_id: str, context: Iterable[v1.ContextSection]) -> handoffs.HandedOver:
        """Continues a handoff that an earlier call or process of this agent requested, from any state, to its end."""
        return self.wait(self.wrapped.resume_hand_over(handoff_id, list(context)))

    def delegate(
        self,
        receiver_id: str,
        task_id: str,
        request: v1.HandoffRequest,
        context: Iterable[v1.ContextSection],
        *,
        epoch: int = 1,
        parent_task_id: str | None = None,
        timeout: timedelta | None = None,
        loan_timeout: timedelta | None = None,
        thread_id: str = "",
        on_view: OnView | None = None,
        on_progress: OnProgress | None = None,
    ) -> loans.Outcome:
        """Lends a task, and waits for its final status. Raises TaskRecalledError, HandoffFailedError.

        See `baton.Agent.delegate`. Ctrl-C takes the task back, for at most 10 s. `on_progress` gets each status update
        of the lent task in order, the final one too; an exception of it is logged.
        """
        sections = list(context)
        return self._calls.wait(
            lambda call: self.wrapped.delegate(
                receiver_id,
                task_id,
                request,
                sections,
                epoch=epoch,
                parent_task_id=parent_task_id,
                timeout=timeout,
                loan_timeout=loan_timeout,
                thread_id=thread_id,
                on_view=call.view(on_view),
                on_progress=call.progress(on_progress),
            )
        )

    def wait_for_loan(
        self,
        handoff_id: str,
        context: Iterable[v1.ContextSection] | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> loans.Outcome:
        """Waits for the final status of a task that a handoff of this agent lends, also one of an earlier process.

        See `baton.Agent.wait_for_loan`. Ctrl-C leaves the loan as it is.
        """
        sections = None if context is None else list(context)
        return self._calls.wait(
            lambda call: self.wrapped.wait_for_loan(handoff_id, sections, on_progress=call.progress(on_progress))
        )

    def recall(self, handoff_id: str, reason: str = "") -> OwnedTask:
        """Takes back the task that a handoff of this agent lent. See `baton.Agent.recall`."""
        return OwnedTask(self._calls, self.wait(self.wrapped.recall(handoff_id, reason)))

    def create_task(
        self,
        task_id: str,
        task_type: str,
        *,
        summary: str = "",
        parent_task_id: str | None = None,
        conversation_id: str = "",
        loop_limits: v1.LoopLimits | None = None,
    ) -> OwnedTask:
        """Begins a task that this agent owns, without a handoff. See `baton.Agent.create_task`."""
        created = self.wrapped.create_task(
            task_id,
            task_type,
            summary=summary,
            parent_task_id=parent_task_id,
            conversation_id=conversation_id,
            loop_limits=loop_limits,
        )
        return OwnedTask(self._calls, self.wait(created))

    # ---------------------------------------------------------------------------------------------- at the receiver

    def handle(  # noqa: C901
        self,
        offer: OfferHandler | None = None,
        task: TaskHandler | None = None,
        *,
        question: QuestionHandler | None = None,
        recalled: RecalledHandler | None = None,
        context: ContextHandler | None = None,
        messages: Mapping[type[Message], MessageHandler] | None = None,
    ) -> None:
        """Sets the handlers of this agent, before `connect`. Each call of one runs in a thread of its own.

        - `offer` accepts or rejects each `Offer`. With `task` it may return without either, and the task is taken over.
        - `task` works on each task that was taken over, and returns its result: the task ends as COMPLETED, unless the
          function has ended it or handed it on. An exception ends it as FAILED.
        - `question` answers a `Question`. `recalled` hears of a task that was taken from this agent.
        - `context` returns the context for an accept that no `hand_over` of this process waits for.
        - `messages` has a handler by payload class, for example v1.Info. The message is acked when it returns.

        A handler whose task was taken away, that ran too long, or whose agent closes, is cancelled: its present call
        and the later ones raise asyncio.CancelledError, and `is_cancelled` is true in it.
        """
        client, calls = self.wrapped, self._calls

        async def handoff(offered: tasks.Offer) -> None:
            await in_thread(lambda one: _take(calls, one, offer, task), offered)

        def plain(handler: Callable[[T], Any]) -> Callable[[T], Coroutine[Any, Any, Any]]:
            async def handle(argument: T) -> Any:
                return await in_thread(handler, argument)

            return handle

        def on_question(asked: questions.Question) -> None:
            if question is not None:
                question(Question(calls, asked))

        def on_message(handler: MessageHandler) -> Callable[[delivery.Delivery], None]:
            return lambda arrived: handler(Delivery(calls, arrived))

        async def register() -> None:
            if offer is not None or task is not None:
                client.on_handoff(handoff)
            if question is not None:
                client.on_prompt(plain(on_question))
            if recalled is not None:
                client.on_recalled(plain(recalled))
            if context is not None:
                client.context_provider(plain(context))
            for payload_class, handler in (messages or {}).items():
                client.on(payload_class)(plain(on_message(handler)))

        self.wait(register())

    def serve(
        self,
        offer: OfferHandler | None = None,
        task: TaskHandler | None = None,
        *,
        question: QuestionHandler | None = None,
        recalled: RecalledHandler | None = None,
        context: ContextHandler | None = None,
        messages: Mapping[type[Message], MessageHandler] | None = None,
        resume: bool = False,
    ) -> None:
        """Sets the handlers as `handle` does, connects if not connected, and serves until `stop` or `close`.

            with Agent.from_env(capacity=4) as bob:
                bob.register(agent_types=["support"])
                bob.serve(task=lambda task: {"goals": task.json("goals")}, resume=True)

        With `resume` the handler also gets the tasks of an earlier process: see `baton.Agent.run`. Raises BatonError if
        the agent ends. Ctrl-C raises KeyboardInterrupt; the `close` after it waits for the handlers.
        """
        handlers = (offer, task, question, recalled, context, messages)
        if any(handlers):
            self.handle(offer, task, question=question, recalled=recalled, context=context, messages=messages)
        elif not self.wrapped.has_handlers:
            raise RuntimeError("serve needs a handler")
        self.wait(self._serve(resume=resume))

    async def _serve(self, *, resume: bool) -> None:
        running = asyncio.create_task(self.wrapped.run(resume=resume))
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
        finally:
            for one in (running, stopped):
                one.cancel()
            await asyncio.gather(running, stopped, return_exceptions=True)

    def stop(self) -> None:
        """Has `serve` return, also one that begins later. Any thread, a handler and a signal handler may call it."""
        self._calls.soon(self._stopped.set)

    def owned_tasks(self) -> list[OwnedTask]:
        """Returns the unfinished tasks that this agent owns, newest first: the starting point after a restart."""
        return [OwnedTask(self._calls, task) for task in self.wait(self.wrapped.owned_tasks())]

    def update_status(
        self,
        task_id: str,
        epoch: int,
        status: v1.TaskStatus,
        details: str = "",
        *,
        progress: float | None = None,
        result: Mapping[str, Any] | None = None,
    ) -> v1.Receipt:
        """Reports the status of a task that this agent owns: TASK_STATUS_*. See `baton.Agent.update_status`."""
        return self.wait(self.wrapped.update_status(task_id, epoch, status, details, progress=progress, result=result))

    # --------------------------------------------------------------------------------------------- mail and questions

    def send(
        self,
        payload: Message,
        *,
        receiver_id: str = "",
        task_id: str = "",
        epoch: int = 0,
        correlation_id: str = "",
        expires_at: datetime | None = None,
    ) -> v1.Receipt:
        """Signs and sends a payload of baton.v1. Returns the broker's receipt, its signature verified."""
        return self.wait(
            self.wrapped.send(
                payload,
                receiver_id=receiver_id,
                task_id=task_id,
                epoch=epoch,
                correlation_id=correlation_id,
                expires_at=expires_at,
            )
        )

    def receive(self, within: timedelta | None = None) -> Delivery | None:
        """Waits for the next message of an agent without handlers. None: none came within this time.

        The sender's signature is verified. The message must be acked, or it comes again.
        """
        arrived = self.wait(self._receive(within))
        return None if arrived is None else Delivery(self._calls, arrived)

    async def _receive(self, within: timedelta | None) -> delivery.Delivery | None:
        try:
            async with asyncio.timeout(None if within is None else within.total_seconds()) as clock:
                async with contextlib.aclosing(self.wrapped.deliveries()) as mail:
                    async for arrived in mail:
                        return arrived
        except TimeoutError:
            if not clock.expired():
                raise
            return None
        raise background.closed()

    def deliveries(self) -> Generator[Delivery, None, None]:
        """Yields the mail of an agent without handlers until `close`. Each message must be acked."""
        for arrived in self.iterate(self.wrapped.deliveries()):
            yield Delivery(self._calls, arrived)

    def ask(
        self,
        task_id: str,
        epoch: int,
        question: str,
        answer_by: str,
        *,
        within: timedelta | None = None,
        schema: Mapping[str, Any] | None = None,
        details: str = "",
    ) -> questions.Answer:
        """Asks a question about a task that this agent owns, and waits for the answer. Raises NoAnswerError.

        See `baton.Agent.ask`. Ctrl-C leaves the question open, for `resume_ask`.
        """
        return self.wait(
            self.wrapped.ask(task_id, epoch, question, answer_by, within=within, schema=schema, details=details)
        )

    def resume_ask(self, task_id: str) -> questions.Answer:
        """Goes on waiting for the answer to the task's open question. See `baton.Agent.resume_ask`."""
        return self.wait(self.wrapped.resume_ask(task_id))

    def answer(
        self, task_id: str, epoch: int, question_id: str, text: str = "", data: Mapping[str, Any] | None = None
    ) -> v1.Receipt:
        """Answers a question to this agent. `question_id` names the status update that asks."""
        return self.wait(self.wrapped.answer(task_id, epoch, question_id, text, data))

    # ------------------------------------------------------------------------------------------- tasks and handoffs

    def get_task(self, task_id: str) -> v1.Task:
        """Returns a task. Raises BatonError."""
        return self.wait(self.wrapped.get_task(task_id))

    def get_handoff(self, handoff_id: str) -> v1.Handoff:
        """Returns a handoff: its state, the view of either side, and each step. Raises BatonError, HANDOFF_UNKNOWN."""
        return self.wait(self.wrapped.get_handoff(handoff_id))

    def list_tasks(
        self,
        *,
        owner_id: str = "",
        statuses: Iterable[v1.TaskStatus] = (),
        parent_task_id: str = "",
        asked_agent_id: str = "",
        order: v1.TaskOrder = v1.TASK_ORDER_UNSPECIFIED,
        conversation_id: str = "",
    ) -> Generator[v1.Task, None, None]:
        """Yields the tasks that match all filters, the newest first. Raises BatonError, PERMISSION_DENIED."""
        return self.iterate(
            self.wrapped.list_tasks(
                owner_id=owner_id,
                statuses=statuses,
                parent_task_id=parent_task_id,
                asked_agent_id=asked_agent_id,
                order=order,
                conversation_id=conversation_id,
            )
        )

    def list_handoffs(
        self,
        *,
        task_id: str = "",
        agent_id: str = "",
        states: Iterable[v1.HandoffState] = (),
        sender_id: str = "",
        candidate_id: str = "",
        task_type: str = "",
        open_only: bool = False,
        deadline_before: datetime | None = None,
    ) -> Generator[v1.Handoff, None, None]:
        """Yields the handoffs that match all filters, the newest first. Raises BatonError."""
        return self.iterate(
            self.wrapped.list_handoffs(
                task_id=task_id,
                agent_id=agent_id,
                states=states,
                sender_id=sender_id,
                candidate_id=candidate_id,
                task_type=task_type,
                open_only=open_only,
                deadline_before=deadline_before,
            )
        )

    def watch_task(self, task_id: str, *, after_number: int = 0) -> Generator[v1.CustodyLogEntry, None, None]:
        """Yields the entries of a task's custody log until its end. See `baton.Agent.watch_task`."""
        return self.iterate(self.wrapped.watch_task(task_id, after_number=after_number))

    def watch_handoff(self, handoff_id: str) -> Generator[v1.Handoff, None, None]:
        """Yields a handoff at each change until its end. See `baton.Agent.watch_handoff`."""
        return self.iterate(self.wrapped.watch_handoff(handoff_id))

    def watch_handoffs(
        self, *, after_cursor: int = 0, task_id: str = "", sender_id: str = "", task_type: str = ""
    ) -> Generator[v1.WatchHandoffsResponse, None, None]:
        """Yields the handoffs, then one `caught_up`, then each change. See `baton.Agent.watch_handoffs`."""
        return self.iterate(
            self.wrapped.watch_handoffs(
                after_cursor=after_cursor, task_id=task_id, sender_id=sender_id, task_type=task_type
            )
        )


def _take(calls: Calls, offered: tasks.Offer, offer: OfferHandler | None, task: TaskHandler | None) -> None:
    """Handles an offer in the handler's thread."""
    one = Offer(calls, offered)
    # An earlier process has accepted what has no request.
    if offer is not None and (task is None or offered.request is not None):
        offer(one)
    if task is None or offered.is_over:
        return
    owned = one.accept().complete()
    result = task(owned)
    if owned.is_here:
        owned.finish(result)
