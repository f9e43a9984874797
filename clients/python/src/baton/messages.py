"""The messages of a handoff as calls."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from google.protobuf.message import Message

from baton import v1
from baton.delivery import Delivery, duration
from baton.envelopes import make_envelope
from baton.errors import BatonError, VerificationError
from baton.limits import ANSWER_BYTES_MAX, RESULT_BYTES_MAX, json_text
from baton.sections import for_wishes
from baton.signing import context_digest
from baton.work import Work, parent_here

_PARENT_IS_GONE = {"NOT_OWNER", "TASK_FINAL"}


@dataclass(frozen=True)
class NewRequest:
    """A request of a handoff that is to be sent."""

    envelope: v1.Envelope
    without_parent: v1.HandoffRequest | None
    """The request without the parent that the client has added; None if it has added none."""


class Messages:
    """The steps of a handoff, each as a call that returns the broker's receipt. Raises BatonError if it refuses."""

    agent_id: str
    work: Work
    """The tasks that this process works on. For the client itself."""

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
        """Signs and sends a payload of baton.v1."""
        raise NotImplementedError

    async def _sign_and_send(self, envelope: v1.Envelope) -> v1.Receipt:
        """Sends an envelope of this agent as `send` does."""
        raise NotImplementedError

    async def reply(self, to: Delivery, payload: Message) -> v1.Receipt:
        """Sends a payload to the sender of a message, with the same task, epoch and handoff."""
        return await self.send(
            payload,
            receiver_id=to.answer_to,
            task_id=to.envelope.task_id,
            epoch=to.envelope.epoch,
            correlation_id=to.handoff_id,
        )

    async def request_handoff(
        self,
        receiver_id: str,
        task_id: str,
        request: v1.HandoffRequest,
        *,
        epoch: int = 1,
        parent_task_id: str | None = None,
    ) -> v1.Receipt:
        """Requests a handoff to an agent, or to any agent of `type:NAME`. The receipt has the handoff_id.

        An unknown `task_id` creates the task, owned by this agent at epoch 1. Inside a handler of handoffs the new task
        is a part of the handler's, unless the request or `parent_task_id` names another parent, or an empty one. Raises
        BatonError, for example HANDOFF_OPEN, STALE_EPOCH, LOOP_LIMIT, RECEIVER_UNKNOWN.
        """
        made = self.new_request(request, receiver_id, task_id, epoch, parent_task_id)
        return await self._send_request(made)

    def new_request(
        self, request: v1.HandoffRequest, receiver_id: str, task_id: str, epoch: int, parent_task_id: str | None
    ) -> "NewRequest":
        """Returns the envelope of a request, with the parent of a new task. For the client itself."""
        plain = v1.HandoffRequest()
        plain.CopyFrom(request)
        if parent_task_id is not None:
            plain.parent_task_id = parent_task_id
        is_open = epoch == 1 and parent_task_id is None and not plain.parent_task_id
        parent = parent_here(self.agent_id, task_id) if is_open else ""
        part = v1.HandoffRequest()
        part.CopyFrom(plain)
        part.parent_task_id = parent or plain.parent_task_id
        envelope = make_envelope(part, sender_id=self.agent_id, receiver_id=receiver_id, task_id=task_id, epoch=epoch)
        return NewRequest(envelope, plain if parent else None)

    async def _send_request(self, made: "NewRequest") -> v1.Receipt:
        """Sends a request. If it is of a task that is there already, its parent by default is left out."""
        try:
            return await self._sign_and_send(made.envelope)
        except BatonError as error:
            if made.without_parent is None or not await self._is_of_known_task(made.envelope.task_id, error):
                raise
        # The broker has refused the first one, and so does not know its id.
        made.envelope.payload.value = made.without_parent.SerializeToString()
        return await self._sign_and_send(made.envelope)

    async def _is_of_known_task(self, task_id: str, refusal: BatonError) -> bool:
        """Whether a parent by default was refused: the task has another one or none, or the parent has moved on."""
        if refusal.reason in _PARENT_IS_GONE:
            return True
        if not any(one.field.endswith("parent_task_id") for one in refusal.field_violations):
            return False
        try:
            await self.get_task(task_id)
        except BatonError:
            return False
        return True

    async def get_task(self, task_id: str) -> v1.Task:
        """Returns a task."""
        raise NotImplementedError

    async def accept(
        self,
        request: Delivery,
        *,
        wanted_sections: Iterable[str] = (),
        wishes: Iterable[v1.SectionWish] = (),
        estimate: timedelta | None = None,
    ) -> v1.Receipt:
        """Accepts the handoff of a delivered HandoffRequest. Without sections and wishes it asks for all sections."""
        accept = v1.HandoffAccept(
            estimated_handoff_time=duration(estimate), wanted_sections=wanted_sections, wishes=wishes
        )
        return await self.reply(request, accept)

    async def reject(
        self,
        request: Delivery,
        reason: v1.RejectReason,
        text: str = "",
        *,
        retry_after: timedelta | None = None,
        alternatives: Iterable[str] = (),
    ) -> v1.Receipt:
        """Rejects the handoff of a delivered HandoffRequest with a REJECT_REASON_*."""
        reject = v1.HandoffReject(
            reason=reason,
            reason_text=text,
            retry_after=duration(retry_after),
            alternative_agent_suggestions=alternatives,
        )
        return await self.reply(request, reject)

    async def cancel(self, request: v1.Receipt, candidate_id: str, text: str = "") -> v1.Receipt:
        """Cancels an open handoff that this agent requested. `request` is the request's receipt."""
        return await self.send(
            v1.HandoffCancel(reason_text=text),
            receiver_id=candidate_id,
            task_id=request.task_id,
            epoch=request.epoch,
            correlation_id=request.handoff_id,
        )

    async def send_context(self, accept: Delivery, sections: Iterable[v1.ContextSection]) -> v1.Receipt:
        """Sends the context to the candidate of a delivered HandoffAccept: the sections that it wants, or all."""
        return await self.reply(accept, context_of(for_wishes(sections, accept.payload, lambda _name, _sha256: None)))

    async def complete(
        self, context: Delivery, outcome: v1.HandoffOutcome = v1.HANDOFF_OUTCOME_SUCCESS, details: str = ""
    ) -> v1.Receipt:
        """Ends the handoff of a delivered TaskContextTransfer.

        With SUCCESS this agent owns the task from the receipt on, at the receipt's epoch. Verifies the digest of the
        sections first: raises VerificationError, CONTEXT_DIGEST_MISMATCH if it differs from the sender's.
        """
        digest = context_digest(context.payload.sections)
        if outcome == v1.HANDOFF_OUTCOME_SUCCESS and digest != context.payload.context_digest:
            raise VerificationError("CONTEXT_DIGEST_MISMATCH", f"the sections have the digest {digest.hex()}")
        complete = v1.HandoffComplete(outcome=outcome, context_digest=digest, details=details)
        return await self.reply(context, complete)

    async def answer(
        self, task_id: str, epoch: int, question_id: str, text: str = "", data: Mapping[str, Any] | None = None
    ) -> v1.Receipt:
        """Answers a question to this agent: see `Question.answer`. `question_id` names the status update that asks."""
        answer = v1.TaskInput(text=text)
        if data is not None:
            answer.data_json = json_text(data, "data_json", ANSWER_BYTES_MAX)
        return await self.send(answer, task_id=task_id, epoch=epoch, correlation_id=question_id)

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
        extend_by: timedelta | None = None,
        keep_parts: bool = False,
    ) -> v1.Receipt:
        """Reports the status of a task that this agent owns: TASK_STATUS_*, with `progress` from 0 to 1.

        A final status cannot be changed. With `handoff_id` and IN_PROGRESS, the side of the open handoff whose step is
        due gets more time. `result` is JSON of at most 262144 bytes and 128 levels; it arrives as it was sent. Another
        one is not sent: raises BatonError, FIELD_INVALID, with what is wrong. `extend_by` asks that the loan of the
        task is due this much later than now: see `OwnedTask.extend`. With CANCELED the open parts of the task are
        cancelled too, down the tree, unless `keep_parts`.
        """
        update = v1.TaskStatusUpdate(
            status=status,
            details=details,
            progress=progress,
            extend_by=duration(extend_by),
            keep_parts=keep_parts,
        )
        if result is not None:
            update.result_json = json_text(result, "result_json", RESULT_BYTES_MAX)
        return await self.send(update, receiver_id=receiver_id, task_id=task_id, epoch=epoch, correlation_id=handoff_id)


def context_of(sections: Iterable[v1.ContextSection]) -> v1.TaskContextTransfer:
    """Returns the context of these sections. Raises ValueError if one has no content."""
    chosen = list(sections)
    return v1.TaskContextTransfer(sections=chosen, context_digest=context_digest(chosen))
