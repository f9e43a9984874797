from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEVERITY_UNSPECIFIED: _ClassVar[Severity]
    SEVERITY_INFO: _ClassVar[Severity]
    SEVERITY_WARNING: _ClassVar[Severity]
    SEVERITY_CRITICAL: _ClassVar[Severity]

class NextStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEXT_STEP_UNSPECIFIED: _ClassVar[NextStep]
    NEXT_STEP_KEEP_TASK: _ClassVar[NextStep]
    NEXT_STEP_DROP_TASK: _ClassVar[NextStep]
    NEXT_STEP_RETRY: _ClassVar[NextStep]

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_FIELD_INVALID: _ClassVar[ErrorCode]
    ERROR_CODE_PAYLOAD_TYPE_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_MALFORMED: _ClassVar[ErrorCode]
    ERROR_CODE_PAYLOAD_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_TIMESTAMP_OUTSIDE_WINDOW: _ClassVar[ErrorCode]
    ERROR_CODE_RECEIVER_INVALID: _ClassVar[ErrorCode]
    ERROR_CODE_SIGNATURE_VERSION_UNKNOWN: _ClassVar[ErrorCode]
    ERROR_CODE_CONTEXT_DIGEST_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_KEY_WEAK: _ClassVar[ErrorCode]
    ERROR_CODE_PAGE_TOKEN_INVALID: _ClassVar[ErrorCode]
    ERROR_CODE_SIGNATURE_MISSING: _ClassVar[ErrorCode]
    ERROR_CODE_SIGNATURE_INVALID: _ClassVar[ErrorCode]
    ERROR_CODE_KEY_UNKNOWN: _ClassVar[ErrorCode]
    ERROR_CODE_KEY_NOT_VALID: _ClassVar[ErrorCode]
    ERROR_CODE_IDENTITY_MISSING: _ClassVar[ErrorCode]
    ERROR_CODE_TOKEN_INVALID: _ClassVar[ErrorCode]
    ERROR_CODE_CHALLENGE_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_TLS_REQUIRED: _ClassVar[ErrorCode]
    ERROR_CODE_INVITATION_INVALID: _ClassVar[ErrorCode]
    ERROR_CODE_SENDER_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_OWNER: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_CANDIDATE: _ClassVar[ErrorCode]
    ERROR_CODE_PERMISSION_DENIED: _ClassVar[ErrorCode]
    ERROR_CODE_RECEIVER_UNKNOWN: _ClassVar[ErrorCode]
    ERROR_CODE_AGENT_UNKNOWN: _ClassVar[ErrorCode]
    ERROR_CODE_TASK_UNKNOWN: _ClassVar[ErrorCode]
    ERROR_CODE_HANDOFF_UNKNOWN: _ClassVar[ErrorCode]
    ERROR_CODE_DELIVERY_UNKNOWN: _ClassVar[ErrorCode]
    ERROR_CODE_DEAD_LETTER_UNKNOWN: _ClassVar[ErrorCode]
    ERROR_CODE_NOTHING_MATCHES: _ClassVar[ErrorCode]
    ERROR_CODE_AGENT_KEY_UNKNOWN: _ClassVar[ErrorCode]
    ERROR_CODE_MESSAGE_ID_REUSED: _ClassVar[ErrorCode]
    ERROR_CODE_AGENT_EXISTS: _ClassVar[ErrorCode]
    ERROR_CODE_KEY_TAKEN: _ClassVar[ErrorCode]
    ERROR_CODE_KEY_EXISTS: _ClassVar[ErrorCode]
    ERROR_CODE_HANDOFF_OPEN: _ClassVar[ErrorCode]
    ERROR_CODE_HANDOFF_STATE: _ClassVar[ErrorCode]
    ERROR_CODE_HANDOFF_FINAL: _ClassVar[ErrorCode]
    ERROR_CODE_HANDOFF_EXPIRED: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_EPOCH_AHEAD: _ClassVar[ErrorCode]
    ERROR_CODE_LOOP_LIMIT: _ClassVar[ErrorCode]
    ERROR_CODE_TASK_FINAL: _ClassVar[ErrorCode]
    ERROR_CODE_MESSAGE_EXPIRED: _ClassVar[ErrorCode]
    ERROR_CODE_DEAD_LETTER_SETTLED: _ClassVar[ErrorCode]
    ERROR_CODE_DEAD_LETTER_NOT_A_MESSAGE: _ClassVar[ErrorCode]
    ERROR_CODE_KEY_REVOKED: _ClassVar[ErrorCode]
    ERROR_CODE_CONFLICT: _ClassVar[ErrorCode]
    ERROR_CODE_LIMIT_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_SHUTTING_DOWN: _ClassVar[ErrorCode]
    ERROR_CODE_STORE_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_SUPPORTED: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
    ERROR_CODE_ACCEPT_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_CONTEXT_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_COMPLETE_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_WHOLE_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_NO_CANDIDATE: _ClassVar[ErrorCode]
    ERROR_CODE_TAKEOVER_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_HANDOFF_CANCELLED: _ClassVar[ErrorCode]
    ERROR_CODE_AGENT_ERROR: _ClassVar[ErrorCode]
    ERROR_CODE_OFFER_WITHDRAWN: _ClassVar[ErrorCode]
    ERROR_CODE_HANDOFF_REDRIVEN: _ClassVar[ErrorCode]
SEVERITY_UNSPECIFIED: Severity
SEVERITY_INFO: Severity
SEVERITY_WARNING: Severity
SEVERITY_CRITICAL: Severity
NEXT_STEP_UNSPECIFIED: NextStep
NEXT_STEP_KEEP_TASK: NextStep
NEXT_STEP_DROP_TASK: NextStep
NEXT_STEP_RETRY: NextStep
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_FIELD_INVALID: ErrorCode
ERROR_CODE_PAYLOAD_TYPE_MISMATCH: ErrorCode
ERROR_CODE_MALFORMED: ErrorCode
ERROR_CODE_PAYLOAD_TOO_LARGE: ErrorCode
ERROR_CODE_TIMESTAMP_OUTSIDE_WINDOW: ErrorCode
ERROR_CODE_RECEIVER_INVALID: ErrorCode
ERROR_CODE_SIGNATURE_VERSION_UNKNOWN: ErrorCode
ERROR_CODE_CONTEXT_DIGEST_MISMATCH: ErrorCode
ERROR_CODE_KEY_WEAK: ErrorCode
ERROR_CODE_PAGE_TOKEN_INVALID: ErrorCode
ERROR_CODE_SIGNATURE_MISSING: ErrorCode
ERROR_CODE_SIGNATURE_INVALID: ErrorCode
ERROR_CODE_KEY_UNKNOWN: ErrorCode
ERROR_CODE_KEY_NOT_VALID: ErrorCode
ERROR_CODE_IDENTITY_MISSING: ErrorCode
ERROR_CODE_TOKEN_INVALID: ErrorCode
ERROR_CODE_CHALLENGE_FAILED: ErrorCode
ERROR_CODE_TLS_REQUIRED: ErrorCode
ERROR_CODE_INVITATION_INVALID: ErrorCode
ERROR_CODE_SENDER_MISMATCH: ErrorCode
ERROR_CODE_NOT_OWNER: ErrorCode
ERROR_CODE_NOT_CANDIDATE: ErrorCode
ERROR_CODE_PERMISSION_DENIED: ErrorCode
ERROR_CODE_RECEIVER_UNKNOWN: ErrorCode
ERROR_CODE_AGENT_UNKNOWN: ErrorCode
ERROR_CODE_TASK_UNKNOWN: ErrorCode
ERROR_CODE_HANDOFF_UNKNOWN: ErrorCode
ERROR_CODE_DELIVERY_UNKNOWN: ErrorCode
ERROR_CODE_DEAD_LETTER_UNKNOWN: ErrorCode
ERROR_CODE_NOTHING_MATCHES: ErrorCode
ERROR_CODE_AGENT_KEY_UNKNOWN: ErrorCode
ERROR_CODE_MESSAGE_ID_REUSED: ErrorCode
ERROR_CODE_AGENT_EXISTS: ErrorCode
ERROR_CODE_KEY_TAKEN: ErrorCode
ERROR_CODE_KEY_EXISTS: ErrorCode
ERROR_CODE_HANDOFF_OPEN: ErrorCode
ERROR_CODE_HANDOFF_STATE: ErrorCode
ERROR_CODE_HANDOFF_FINAL: ErrorCode
ERROR_CODE_HANDOFF_EXPIRED: ErrorCode
ERROR_CODE_STALE_EPOCH: ErrorCode
ERROR_CODE_EPOCH_AHEAD: ErrorCode
ERROR_CODE_LOOP_LIMIT: ErrorCode
ERROR_CODE_TASK_FINAL: ErrorCode
ERROR_CODE_MESSAGE_EXPIRED: ErrorCode
ERROR_CODE_DEAD_LETTER_SETTLED: ErrorCode
ERROR_CODE_DEAD_LETTER_NOT_A_MESSAGE: ErrorCode
ERROR_CODE_KEY_REVOKED: ErrorCode
ERROR_CODE_CONFLICT: ErrorCode
ERROR_CODE_LIMIT_EXCEEDED: ErrorCode
ERROR_CODE_SHUTTING_DOWN: ErrorCode
ERROR_CODE_STORE_UNAVAILABLE: ErrorCode
ERROR_CODE_NOT_SUPPORTED: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
ERROR_CODE_ACCEPT_TIMEOUT: ErrorCode
ERROR_CODE_CONTEXT_TIMEOUT: ErrorCode
ERROR_CODE_COMPLETE_TIMEOUT: ErrorCode
ERROR_CODE_WHOLE_TIMEOUT: ErrorCode
ERROR_CODE_NO_CANDIDATE: ErrorCode
ERROR_CODE_TAKEOVER_FAILED: ErrorCode
ERROR_CODE_HANDOFF_CANCELLED: ErrorCode
ERROR_CODE_AGENT_ERROR: ErrorCode
ERROR_CODE_OFFER_WITHDRAWN: ErrorCode
ERROR_CODE_HANDOFF_REDRIVEN: ErrorCode

class ErrorNotification(_message.Message):
    __slots__ = ("error_code", "error_message", "severity", "origin_agent_id", "next_step", "next_step_text")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_TEXT_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    severity: Severity
    origin_agent_id: str
    next_step: NextStep
    next_step_text: str
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., severity: _Optional[_Union[Severity, str]] = ..., origin_agent_id: _Optional[str] = ..., next_step: _Optional[_Union[NextStep, str]] = ..., next_step_text: _Optional[str] = ...) -> None: ...
