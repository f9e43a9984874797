"""Errors: refusals by the broker, failed connections, and messages that do not verify."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Self

import grpc
from google.rpc import error_details_pb2, status_pb2

from baton import v1

_DETAILS = "grpc-status-details-bin"
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
}
# The broker gives every refusal a reason. A status without one comes from the connection or from HTTP/2.
_OF_CONNECTION = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED}


@dataclass(frozen=True)
class FieldViolation:
    """One invalid field of a request."""

    field: str
    """The field's path, for example `envelope.task_id`."""
    description: str
    """The rule that the field breaks."""


class BatonError(Exception):
    """The broker refused and changed nothing, or the connection failed and the outcome is unknown.

    With `code` UNAVAILABLE or DEADLINE_EXCEEDED the outcome is unknown: send the same envelope again, with the same
    message_id, and the broker answers with its first receipt. `reason` is the stable code to branch on; docs/errors.md
    of the broker has a remedy for each. Empty for an error that the broker did not raise, for example a failed
    connection.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        field_violations: Sequence[FieldViolation] = (),
        retry_delay: float | None = None,
    ) -> None:
        super().__init__(f"{reason or code.name}: {message}")
        self.code = code
        """The gRPC status code."""
        self.message = message
        """The explanation, for people."""
        self.reason = reason
        """ErrorInfo.reason, for example `STALE_EPOCH`."""
        self.metadata = dict(metadata or {})
        """ErrorInfo.metadata, for example `current_epoch`."""
        self.field_violations = tuple(field_violations)
        """All invalid fields."""
        self.retry_delay = retry_delay
        """The delay in seconds after which a retry may succeed; None if a retry does not help."""

    @classmethod
    def from_status(cls, status: status_pb2.Status) -> Self:
        """Converts a google.rpc.Status, from a session's frame or the details of a call."""
        info = error_details_pb2.ErrorInfo()
        bad_request = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        retry_delay = None
        for detail in status.details:
            if detail.Is(info.DESCRIPTOR):
                detail.Unpack(info)
            elif detail.Is(bad_request.DESCRIPTOR):
                detail.Unpack(bad_request)
            elif detail.Is(retry.DESCRIPTOR):
                detail.Unpack(retry)
                retry_delay = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
        return cls(
            _CODES.get(status.code, grpc.StatusCode.UNKNOWN),
            status.message,
            reason=info.reason,
            metadata=info.metadata,
            field_violations=[FieldViolation(one.field, one.description) for one in bad_request.field_violations],
            retry_delay=retry_delay,
        )

    @classmethod
    def from_call(cls, error: grpc.aio.AioRpcError) -> "BatonError":
        """Converts the error of a failed call."""
        for name, value in error.trailing_metadata() or ():
            if name == _DETAILS and isinstance(value, bytes):
                return cls.from_status(status_pb2.Status.FromString(value))
        problem = error.details() or "the call failed"
        if "CERTIFICATE_VERIFY_FAILED" in problem or "Peer name" in problem:
            return UntrustedError(error.code(), problem)
        return cls(error.code(), problem)

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed later, unchanged."""
        if self.reason:
            return self.reason == "TOKEN_INVALID" or self.code in _PASSING
        return self.code in _PASSING | _OF_CONNECTION


class UntrustedError(BatonError):
    """The server's certificate is not signed by the trusted CA or has another name. A retry does not help."""

    @property
    def is_passing(self) -> bool:
        """Always False."""
        return False


class ConfigurationError(Exception):
    """What `Agent.from_env` needs is absent or invalid. The text names the variable or the file, and what to do."""


@dataclass(frozen=True)
class Rejection:
    """A candidate's refusal of a handoff. As text: the agent, and its explanation or the reason."""

    agent_id: str
    """The candidate."""
    reason: v1.RejectReason
    """REJECT_REASON_*."""
    text: str
    """The candidate's explanation, for people; may be empty."""

    def __str__(self) -> str:
        """Names the agent, with its explanation, or the reason without one."""
        return f"{self.agent_id}: {self.text or _name_of(self.reason)}"


def _name_of(reason: v1.RejectReason) -> str:
    try:
        return v1.RejectReason.Name(reason).removeprefix("REJECT_REASON_")
    except ValueError:
        return str(reason)  # a reason of a newer schema


class HandoffFailedError(Exception):
    """A handoff ended without moving the task. Its sender still owns it, at the same epoch."""

    def __init__(self, handoff_id: str, reason: str, message: str, rejections: Sequence[Rejection] = ()) -> None:
        super().__init__(f"{reason}: {message}")
        self.handoff_id = handoff_id
        """The handoff's id."""
        self.reason = reason
        """The stable code, for example NO_CANDIDATE, ACCEPT_TIMEOUT, HANDOFF_CANCELLED, TAKEOVER_FAILED."""
        self.message = message
        """The explanation, for people."""
        self.rejections = tuple(rejections)
        """The agents that did not take the task, in order. Only the sender's side knows them."""


class RecallReason(StrEnum):
    """The reason why a lent task came back without a result."""

    LOAN_TIMEOUT = "LOAN_TIMEOUT"
    """The loan timeout passed, and the broker recalled the task."""
    DEADLINE = "DEADLINE"
    """The time limit of `delegate` passed, and the client recalled the task."""
    RECALL = "RECALL"
    """A `recall` of this agent, or of an agent that had lent the task to it."""
    REASSIGNED = "REASSIGNED"
    """An operator reassigned the task."""
    ABANDONED = "ABANDONED"
    """The delegate gave no sign of work for the silence timeout, or was GONE, and the broker recalled the task."""
    CANCELED = "CANCELED"
    """The task was cancelled with the task that it is a part of."""


class TaskRecalledError(Exception):
    """A lent task was taken back before its delegate reported a final status."""

    def __init__(
        self, task_id: str, handoff_id: str, reason: RecallReason, message: str, *, epoch: int, is_owner: bool = True
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.task_id = task_id
        self.handoff_id = handoff_id
        """The handoff that lent the task."""
        self.reason = reason
        self.message = message
        """The explanation, for people."""
        self.epoch = epoch
        """The task's epoch after the recall."""
        self.is_owner = is_owner
        """Whether this agent owns the task again. False: an operator, or an agent that had lent it to this one, has it.
        """


class NoAnswerError(Exception):
    """A question about a task ended without an answer."""

    def __init__(self, question_id: str, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.question_id = question_id
        self.reason = reason
        """EXPIRED: no answer before the deadline. WITHDRAWN: a later status update or a move of the task closed the
        question, or another process of this agent got the answer."""
        self.message = message
        """The explanation, for people."""


class NegotiationFailedError(Exception):
    """A negotiation ended without an award."""

    def __init__(self, negotiation_id: str, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.negotiation_id = negotiation_id
        self.reason = reason
        """NO_OFFER, NEGOTIATION_EXPIRED or another code of the broker; CANCELLED, or the state for an award as mail."""
        self.message = message
        """The explanation, for people."""


class GapError(Exception):
    """The log that a watch follows has lost entries: they were removed, or the log is shorter after a restore.

    To go on behind the gap, watch again after `last_number`.
    """

    def __init__(self, what: str, first_number: int, last_number: int) -> None:
        super().__init__(f"entries {first_number} to {last_number} of {what} do not exist")
        self.first_number = first_number
        """The number of the first missing entry."""
        self.last_number = last_number
        """The number of the last missing entry."""


class PoisonError(Exception):
    """Raised by a handler for a message that can never be handled. It becomes a dead letter at once."""


class RetryLaterError(Exception):
    """Raised by a handler that cannot handle the message now. It is redelivered after `retry_after`."""

    def __init__(self, retry_after: timedelta, message: str = "later") -> None:
        super().__init__(message)
        self.retry_after = retry_after


class VerificationError(Exception):
    """A message fails verification by this client, independent of the broker's checks."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        """The broker's reason for the same fault: SIGNATURE_MISSING, SIGNATURE_INVALID, SIGNATURE_VERSION_UNKNOWN,
        KEY_WEAK, KEY_UNKNOWN, KEY_NOT_VALID, PAYLOAD_TYPE_MISMATCH, MALFORMED or CONTEXT_DIGEST_MISMATCH.
        CUSTODY_INVALID is the client's own."""
        self.message = message
        """The explanation, for people."""
