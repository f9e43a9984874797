"""What goes wrong: refusals of the broker, and messages that do not verify."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

import grpc
from google.rpc import error_details_pb2, status_pb2

_DETAILS = "grpc-status-details-bin"
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
}
# A broker says why it refuses. What has no reason comes from the connection, also in the words of HTTP/2.
_OF_CONNECTION = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED}


@dataclass(frozen=True)
class FieldViolation:
    """One field of a request that is wrong."""

    field: str
    """Its path, for example `envelope.task_id`."""
    description: str
    """What it should be."""


class BatonError(Exception):
    """The broker refused, and nothing was changed; or the connection failed, and nobody knows.

    `code` UNAVAILABLE and DEADLINE_EXCEEDED are of the second kind: send the same envelope again, under its old
    message_id, and the broker answers with its first receipt. `reason` is the stable code
    to branch on; the broker's docs/errors.md says what to do about each. It is empty where the error is not the
    broker's own, for example when there is no connection.
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
        """In words, for people."""
        self.reason = reason
        """ErrorInfo.reason, for example `STALE_EPOCH`."""
        self.metadata = dict(metadata or {})
        """ErrorInfo.metadata, for example `current_epoch`."""
        self.field_violations = tuple(field_violations)
        """The fields that are wrong, all of them."""
        self.retry_delay = retry_delay
        """After how many seconds trying again may help; None where it does not."""

    @classmethod
    def from_status(cls, status: status_pb2.Status) -> Self:
        """The error of a google.rpc.Status, as it comes on a session and in the details of a call."""
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
        """The error of a call that failed."""
        for name, value in error.trailing_metadata() or ():
            if name == _DETAILS and isinstance(value, bytes):
                return cls.from_status(status_pb2.Status.FromString(value))
        problem = error.details() or "the call failed"
        if "CERTIFICATE_VERIFY_FAILED" in problem or "Peer name" in problem:
            return UntrustedError(error.code(), problem)
        return cls(error.code(), problem)

    @property
    def is_passing(self) -> bool:
        """Whether the same may work later, without any change."""
        if self.reason:
            return self.reason == "TOKEN_INVALID" or self.code in _PASSING
        return self.code in _PASSING | _OF_CONNECTION


class UntrustedError(BatonError):
    """The server's certificate is not of the CA that is trusted, or not for this name. Trying again does not help."""

    @property
    def is_passing(self) -> bool:
        """Never."""
        return False


class HandoffFailedError(Exception):
    """A handoff ended without moving the task; its sender still owns it, at the same epoch."""

    def __init__(self, handoff_id: str, reason: str, message: str, rejections: Sequence[str] = ()) -> None:
        super().__init__(f"{reason}: {message}")
        self.handoff_id = handoff_id
        """Which one."""
        self.reason = reason
        """The stable code, for example NO_CANDIDATE, ACCEPT_TIMEOUT, HANDOFF_CANCELLED, TAKEOVER_FAILED."""
        self.message = message
        """In words, for people."""
        self.rejections = tuple(rejections)
        """Who rejected it and why, in words, in order; known to its sender."""


class PoisonError(Exception):
    """To be raised by a handler: the message can never be taken. It becomes a dead letter at once."""


class RetryLaterError(Exception):
    """To be raised by a handler: not now. The message is delivered again after `retry_after`."""

    def __init__(self, retry_after: timedelta, message: str = "later") -> None:
        super().__init__(message)
        self.retry_after = retry_after


class VerificationError(Exception):
    """A message does not verify here, whatever the broker says of it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        """The broker's word for the same: SIGNATURE_MISSING, SIGNATURE_INVALID, SIGNATURE_VERSION_UNKNOWN, KEY_WEAK,
        KEY_UNKNOWN, KEY_NOT_VALID, PAYLOAD_TYPE_MISMATCH, MALFORMED or CONTEXT_DIGEST_MISMATCH."""
        self.message = message
        """In words, for people."""
