"""A handoff at its receiver: a task that is offered, taken over and owned."""

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from baton import handoffs, v1
from baton.contexts import fetch_section
from baton.conversation import Conversation
from baton.delivery import Delivery, ReadDelivery
from baton.envelopes import payload_of
from baton.errors import BatonError, HandoffFailedError, TaskRecalledError
from baton.handoffs import DONE_OR_OVER, HandedOver, OnView, code_of, is_open
from baton.loans import Loans, Outcome
from baton.plans import Plans, SubtaskInputs, subtask_of
from baton.questions import Answer, Questions
from baton.watching import OnProgress
from baton.work import Handling, parent_here

_PAGE_SIZE = 500
_NOT_FINAL = (v1.TASK_STATUS_CREATED, v1.TASK_STATUS_IN_PROGRESS, v1.TASK_STATUS_WAITING_FOR_INPUT)


class Offer:
    """An offer of a task to this agent: `accept` or `reject` it.

    The agent extends the delivery while the handler works. After a crash, or an exception in the handler, the broker
    redelivers the unacknowledged message and the handler runs again. An offer that an earlier process of this agent
    accepted has no request; its `accept` returns the context at once.
    """

    def __init__(
        self, agent: "Tasks", mail: Conversation, delivery: Delivery, resumed_task: v1.Task | None = None
    ) -> None:
        envelope = delivery.envelope
        self.handoff_id = delivery.handoff_id
        self.task_id = envelope.task_id
        self.epoch = envelope.epoch
        """The task's epoch at its present owner."""
        self.sender_id = delivery.answer_to
        """The task's present owner."""
        self.request = delivery.handoff_request
        """The request; None if an earlier process of this agent accepted it."""
        self.resumed = resumed_task is not None
        """Whether this agent owns the task already: an earlier process took it over, and no process works on it. Then
        `accept` and `complete` return at once, and `epoch` is the task's epoch at this agent."""
        self.resumed_task = resumed_task
        """The resumed task when it was resumed; None for an offer."""
        self.is_award = self.request is not None and not isinstance(delivery.payload, v1.HandoffRequest)
        """Whether this is the award of a negotiation."""
        self._agent = agent
        self._mail = mail
        self._request = delivery if self.request is not None else None
        self._context = None if self.request is not None else delivery
        self._is_over = False
        self._saw_context = False
        self.handling = Handling()
        """The handler of this offer. For the client itself."""

    async def accept(
        self,
        *,
        wanted_sections: Iterable[str] = (),
        wishes: Iterable[v1.SectionWish] = (),
        estimate: timedelta | None = None,
    ) -> "Takeover":
        """Accepts the handoff and waits for the context, by default for all sections.

        `wishes` are sections too, each with a filter, or with the digest of the version that this agent has. Raises
        HandoffFailedError if the handoff ends before the context arrives, BatonError if the accept is too late.
        """
        if self._request is not None:
            accepting = self._agent.accept(
                self._request, wanted_sections=wanted_sections, wishes=wishes, estimate=estimate
            )
            await self._say(accepting)
            await self._request.ack_for_sure()
            self._request = None
        if self._context is None:
            self._context = await self._next_context()
        return Takeover(self, self._context)

    async def reject(
        self,
        reason: v1.RejectReason,
        text: str = "",
        *,
        retry_after: timedelta | None = None,
        alternatives: Iterable[str] = (),
    ) -> None:
        """Rejects the handoff with a REJECT_REASON_*. The broker asks the next candidate, if any."""
        if self._request is None:
            raise RuntimeError("it was accepted; a Takeover can be refused by `fail`")
        await self._agent.reject(self._request, reason, text, retry_after=retry_after, alternatives=alternatives)
        self._is_over = True
        await self._request.ack_for_sure()
        self._request = None

    def taken(self, epoch: int) -> None:
        """Records that this agent owns the task. Called by Takeover."""
        self.handling.held = self._agent.work.took(self.task_id, epoch)

    @property
    def in_hand(self) -> Delivery | None:
        """The unacknowledged delivery of this offer, if any."""
        return self._request or self._context

    @property
    def awaits_context(self) -> bool:
        """Whether the context has not arrived."""
        return self._context is None and not self._is_over

    @property
    def is_over(self) -> bool:
        """Whether this agent has rejected, completed or failed the handoff."""
        return self._is_over

    async def _say(self, accepting: Any) -> None:
        try:
            await accepting
        except BatonError as error:
            if error.reason not in DONE_OR_OVER or not await self._is_accepted():
                raise

    async def _is_accepted(self) -> bool:
        """Whether an earlier process of this agent accepted the handoff but did not ack its request."""
        handoff = await self._agent.get_handoff(self.handoff_id)
        is_accepted = handoff.state in (v1.HANDOFF_STATE_ACCEPTED, v1.HANDOFF_STATE_CONTEXT_SENT)
        return is_accepted and handoff.candidate_id == self._agent.agent_id

    async def _next_context(self) -> Delivery:
        while True:
            delivery = await self._mail.next_within(handoffs.LOOK_SECONDS)
            if delivery is None:
                found = await self._look()
                if found is not None:
                    return found
                continue
            match delivery.payload:
                case v1.TaskContextTransfer():
                    return delivery
                case v1.HandoffCancel() as cancel:
                    await delivery.ack_for_sure()
                    raise HandoffFailedError(self.handoff_id, "HANDOFF_CANCELLED", cancel.reason_text or "cancelled")
                case v1.ErrorNotification(next_step=v1.NEXT_STEP_DROP_TASK) as told:
                    await delivery.ack_for_sure()
                    raise HandoffFailedError(self.handoff_id, code_of(told.error_code), told.error_message)
                case _:
                    await delivery.ack_for_sure()

    async def _look(self) -> Delivery | None:
        """Returns the context if it waits elsewhere: another process of this agent may have the delivery.

        Raises HandoffFailedError if the handoff has ended or has another candidate although no mail said so.
        """
        try:
            handoff, context = await self._agent.handoff_with_context(self.handoff_id)
        except BatonError as error:
            if not error.is_passing:
                raise
            return None
        if not is_open(handoff):
            raise HandoffFailedError(self.handoff_id, code_of(handoff.error_code), handoff.error_message)
        if handoff.candidate_id != self._agent.agent_id:
            text = f"the candidate is {handoff.candidate_id} now"
            raise HandoffFailedError(self.handoff_id, "OFFER_WITHDRAWN", text)
        if context is None or not self._saw_context:
            # The delivery itself would have arrived by the next look.
            self._saw_context = context is not None
            return None
        return await self._agent.read_delivery(context, self.handoff_id)


class Takeover:
    """The context of a handoff. `complete` makes this agent the task's owner; `fail` leaves it with the sender."""

    def __init__(self, offer: Offer, delivery: Delivery) -> None:
        self.offer = offer
        self.task_id = offer.task_id
        self.sections: tuple[v1.ContextSection, ...] = tuple(delivery.payload.sections)
        """The sections of the context."""
        self._delivery = delivery
        offer._agent.known_sections.note(self.task_id, self.sections)  # noqa: SLF001

    def section(self, name: str) -> v1.ContextSection:
        """Returns one section. Raises KeyError."""
        for section in self.sections:
            if section.name == name:
                return section
        raise KeyError(name)

    def json(self, name: str) -> Any:
        """Parses a JSON section. Raises KeyError; ValueError if the section is not JSON."""
        section = self.section(name)
        if section.WhichOneof("content") != "json":
            raise ValueError(f"section {name} is not JSON")
        return json.loads(section.json)

    async def fetch_section(self, name: str) -> v1.ContextSection:
        """Returns one section whole, from the message or from the broker.

        A delta is resolved; the result has the digest that the sender has signed. A section that the message does not
        have is taken from the latest earlier version that has it, and its digest is the broker's word. Raises KeyError
        if no version that this agent may read has it; BatonError; VerificationError, CONTEXT_DIGEST_MISMATCH.
        """
        sent = next((section for section in self.sections if section.name == name), None)
        found = await fetch_section(self.offer._agent, self.task_id, sent, name)  # noqa: SLF001
        if found is None:
            raise KeyError(name)
        return found

    @property
    def subtask(self) -> SubtaskInputs | None:
        """The inputs of a subtask of a plan; None if the handoff carries out no subtask."""
        return subtask_of(self.sections)

    async def fetch_subtask(self) -> SubtaskInputs | None:
        """Returns `subtask` with the whole of the results that the context had no room for.

        It is called after `complete`: from then on the broker shows the plan to this agent. Raises BatonError,
        PERMISSION_DENIED before.
        """
        inputs = self.subtask
        if inputs is None or not inputs.omitted:
            return inputs
        return inputs.filled(await self.offer._agent.join_plan(inputs.plan_id).results())  # noqa: SLF001

    async def complete(self, details: str = "") -> "OwnedTask":
        """Takes ownership. Raises VerificationError, CONTEXT_DIGEST_MISMATCH; BatonError if it is too late.

        Of a resumed task it returns the task, with `resumed`, and sends nothing.
        """
        agent = self.offer._agent  # noqa: SLF001
        if self.offer.resumed_task is not None:
            await self._end()
            return owned_task(agent, self.offer.resumed_task, resumed=True)
        try:
            receipt = await agent.complete(self._delivery, details=details)
            owned = OwnedTask(agent, self.task_id, receipt.epoch, receipt.task_status)
        except BatonError as error:
            owned = await self._owned_before(error)
        self.offer.taken(owned.epoch)
        await self._end()
        return owned

    async def fail(self, details: str) -> None:
        """Refuses the context for the reason in `details`. The handoff fails and the sender keeps the task.

        A resumed task ends as FAILED.
        """
        agent = self.offer._agent  # noqa: SLF001
        if self.offer.resumed:
            await (await self.complete()).report(details, status=v1.TASK_STATUS_FAILED)
            return
        await agent.complete(self._delivery, v1.HANDOFF_OUTCOME_FAILURE, details)
        await self._end()

    async def _owned_before(self, error: BatonError) -> "OwnedTask":
        """Returns the task if an earlier process completed the handoff and still owns it; otherwise raises `error`."""
        if error.reason not in DONE_OR_OVER:
            raise error
        agent = self.offer._agent  # noqa: SLF001
        handoff = await agent.get_handoff(self.offer.handoff_id)
        if handoff.state != v1.HANDOFF_STATE_COMPLETED or handoff.candidate_id != agent.agent_id:
            raise error
        task = await agent.get_task(self.task_id)
        if task.owner_id != agent.agent_id or task.epoch != self.offer.epoch + 1:
            raise error  # the task has changed hands or epoch since
        return owned_task(agent, task)

    async def _end(self) -> None:
        self.offer._is_over = True  # noqa: SLF001
        self.offer._context = None  # noqa: SLF001
        await self._delivery.ack_for_sure()


class OwnedTask:
    """A task that this agent owns. Its epoch follows the loans of this agent that come back.

    After the task has moved on to another agent, calls raise STALE_EPOCH.
    """

    def __init__(
        self,
        agent: "Tasks",
        task_id: str,
        epoch: int,
        status: v1.TaskStatus = v1.TASK_STATUS_UNSPECIFIED,
        open_handoff_id: str = "",
        *,
        resumed: bool = False,
    ) -> None:
        self.agent = agent
        self.task_id = task_id
        self.status = status
        """The task's status when this object was made: TASK_STATUS_*."""
        self.open_handoff_id = open_handoff_id
        """The handoff that was open at that time, for `Agent.resume_hand_over`; empty without one."""
        self.resumed = resumed
        """Whether an earlier process of this agent took the task over: see `resume` of `Agent.run`. What that process
        did before it ended may be done already."""
        self._held = agent.work.of(task_id, epoch)

    @property
    def epoch(self) -> int:
        """The task's epoch at this agent: that of the takeover, or of the latest loan that came back."""
        return self._held.epoch

    @property
    def is_here(self) -> bool:
        """Whether this agent still has the task, as far as this process knows: not ended, and not handed on or lent."""
        return self._held.is_here

    def __repr__(self) -> str:
        """Names the task and its epoch."""
        return f"<OwnedTask {self.task_id} at epoch {self.epoch}>"

    async def report(
        self,
        details: str,
        *,
        progress: float | None = None,
        status: v1.TaskStatus = v1.TASK_STATUS_IN_PROGRESS,
        receiver_id: str = "",
    ) -> v1.Receipt:
        """Reports the task's progress."""
        return await self.agent.update_status(
            self.task_id, self.epoch, status, details, progress=progress, receiver_id=receiver_id
        )

    async def extend(self, by: timedelta, details: str = "") -> v1.Receipt:
        """Asks that the loan by which this agent has the task is due `by` later than now, with an IN_PROGRESS status.

        The limit is the request's `loan_timeout_max`, from the takeover on; a longer time counts as that limit, and a
        time that is no later changes nothing. Raises BatonError if the loan cannot be extended.
        """
        return await self.agent.update_status(
            self.task_id, self.epoch, v1.TASK_STATUS_IN_PROGRESS, details, extend_by=by
        )

    async def cancel(self, details: str = "", *, keep_parts: bool = False) -> v1.Receipt:
        """Ends the task as CANCELED. Its open parts are cancelled with it, down the tree, unless `keep_parts`."""
        return await self.agent.update_status(
            self.task_id, self.epoch, v1.TASK_STATUS_CANCELED, details, keep_parts=keep_parts
        )

    async def checkpoint(self, context: Iterable[v1.ContextSection]) -> v1.Receipt:
        """Stores a context of the task without a handoff: see `Agent.checkpoint`."""
        return await self.agent.checkpoint(self.task_id, self.epoch, context)

    async def ask(
        self,
        question: str,
        answer_by: str,
        *,
        within: timedelta | None = None,
        schema: Mapping[str, Any] | None = None,
        details: str = "",
    ) -> Answer:
        """Asks one agent a question about the task, and waits for its answer: see `Agent.ask`."""
        return await self.agent.ask(
            self.task_id, self.epoch, question, answer_by, within=within, schema=schema, details=details
        )

    async def finish(
        self, result: Mapping[str, Any] | None = None, details: str = "", *, receiver_id: str = ""
    ) -> v1.Receipt:
        """Completes the task. The result of a delegated task goes to the delegator, which owns the task again."""
        return await self.agent.update_status(
            self.task_id, self.epoch, v1.TASK_STATUS_COMPLETED, details, result=result, receiver_id=receiver_id
        )

    async def hand_over(
        self,
        receiver_id: str,
        request: v1.HandoffRequest,
        context: Iterable[v1.ContextSection],
        *,
        timeout: timedelta | None = None,  # noqa: ASYNC109
        on_view: OnView | None = None,
    ) -> HandedOver:
        """Hands the task over: see `Agent.hand_over`."""
        return await self.agent.hand_over(
            receiver_id, self.task_id, request, context, epoch=self.epoch, timeout=timeout, on_view=on_view
        )

    async def delegate(
        self,
        receiver_id: str,
        request: v1.HandoffRequest,
        context: Iterable[v1.ContextSection],
        *,
        timeout: timedelta | None = None,  # noqa: ASYNC109
        loan_timeout: timedelta | None = None,
        thread_id: str = "",
        on_view: OnView | None = None,
        on_progress: OnProgress | None = None,
    ) -> Outcome:
        """Lends the task: see `Agent.delegate`. Once it is back, the next calls have its new epoch."""
        try:
            outcome = await self.agent.delegate(
                receiver_id,
                self.task_id,
                request,
                context,
                epoch=self.epoch,
                timeout=timeout,
                loan_timeout=loan_timeout,
                thread_id=thread_id,
                on_view=on_view,
                on_progress=on_progress,
            )
        except TaskRecalledError as back:
            if back.is_owner:
                self._held.back(back.epoch)
            raise
        self._held.back(outcome.epoch)
        return outcome


def owned_task(agent: "Tasks", task: v1.Task, *, resumed: bool = False) -> OwnedTask:
    """Converts a task of this agent from its protobuf form."""
    return OwnedTask(agent, task.task_id, task.epoch, task.status, task.open_handoff_id, resumed=resumed)


class Tasks(Loans, Questions, Plans):
    """The calls about the tasks that this agent owns. `Agent` has them."""

    async def recall(self, handoff_id: str, reason: str = "") -> OwnedTask:
        """Takes back the task that a handoff of this agent lent. This agent owns it from the receipt on.

        The loans within this one end too, and an open handoff of the task is cancelled. The broker tells the agents
        that work on the task. Raises BatonError, NOT_LENT if the loan has ended or the handoff did not lend the task,
        NOT_OWNER if another agent lent it.
        """
        handoff = await self.get_handoff(handoff_id)
        receipt = await self.send(
            v1.TaskRecall(reason_text=reason), task_id=handoff.task_id, epoch=handoff.epoch, correlation_id=handoff_id
        )
        self.work.back(handoff.task_id, receipt.epoch)
        self._dispatcher.returned(handoff.task_id, handoff_id, receipt.epoch)
        return OwnedTask(self, handoff.task_id, receipt.epoch, receipt.task_status)

    async def create_task(
        self,
        task_id: str,
        task_type: str,
        *,
        summary: str = "",
        parent_task_id: str | None = None,
        conversation_id: str = "",
        loop_limits: v1.LoopLimits | None = None,
    ) -> OwnedTask:
        """Begins a task that this agent owns, at epoch 1 and without a handoff.

        Its context, workspace, runs and threads can begin at once, and it can be handed over later. Inside a handler of
        handoffs the new task is a part of the handler's, unless `parent_task_id` names another parent, or an empty one.
        Raises BatonError, TASK_EXISTS if this agent takes part in a task with this id, NOT_OWNER if only others do.
        """
        parent = parent_here(self.agent_id, task_id) if parent_task_id is None else parent_task_id
        create = v1.TaskCreate(
            task_type=task_type,
            summary=summary,
            parent_task_id=parent,
            conversation_id=conversation_id,
            loop_limits=loop_limits,
        )
        receipt = await self.send(create, task_id=task_id, epoch=1)
        return OwnedTask(self, task_id, receipt.epoch, receipt.task_status)

    async def handoff_with_context(self, handoff_id: str) -> tuple[v1.Handoff, v1.Envelope | None]:
        """Returns a handoff, and the envelope of its context if the broker has it and this agent may read it.

        Raises BatonError, HANDOFF_UNKNOWN.
        """
        request = v1.GetHandoffRequest(handoff_id=handoff_id, include_context=True)
        answer = await self._connection.call(self._connection.handoffs.GetHandoff, request)
        return answer.handoff, answer.context if answer.HasField("context") else None

    async def read_delivery(self, envelope: v1.Envelope, handoff_id: str) -> ReadDelivery:
        """Verifies an envelope that was read at the broker. Raises VerificationError, BatonError."""
        await self._directory.verify(envelope)
        return ReadDelivery(v1.Delivery(envelope=envelope, handoff_id=handoff_id), payload_of(envelope))

    async def resume_tasks(self, instance_id: str, max_tasks: int) -> list[v1.Task]:
        """Gives a process of this agent tasks that no connected process works on. For the client itself.

        The tasks came by a handoff, have not ended and have no open handoff; oldest first. Raises BatonError.
        """
        request = v1.ResumeTasksRequest(instance_id=instance_id, max_tasks=max_tasks)
        answer = await self._connection.call(self._connection.tasks.ResumeTasks, request, as_agent=True)
        return list(answer.tasks)

    async def owned_tasks(self) -> list[OwnedTask]:
        """Returns the unfinished tasks that this agent owns, newest first: the starting point after a restart.

        `open_handoff_id` of a task names its handoff in progress, which `resume_hand_over` continues.
        """
        owned: list[OwnedTask] = []
        request = v1.ListTasksRequest(page_size=_PAGE_SIZE, owner_id=self.agent_id, statuses=_NOT_FINAL)
        while True:
            page = await self._connection.call(self._connection.tasks.ListTasks, request)
            owned += (owned_task(self, task) for task in page.tasks)
            if not page.next_page_token:
                return owned
            request.page_token = page.next_page_token
