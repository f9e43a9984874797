from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AuditAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIT_ACTION_UNSPECIFIED: _ClassVar[AuditAction]
    AUDIT_ACTION_AGENT_REGISTERED: _ClassVar[AuditAction]
    AUDIT_ACTION_AGENT_CHANGED: _ClassVar[AuditAction]
    AUDIT_ACTION_INVITATION_CREATED: _ClassVar[AuditAction]
    AUDIT_ACTION_KEY_ADDED: _ClassVar[AuditAction]
    AUDIT_ACTION_KEY_REVOKED: _ClassVar[AuditAction]
    AUDIT_ACTION_KEY_VOUCHED: _ClassVar[AuditAction]
    AUDIT_ACTION_DEAD_LETTER_REDRIVEN: _ClassVar[AuditAction]
    AUDIT_ACTION_DEAD_LETTER_DISCARDED: _ClassVar[AuditAction]
    AUDIT_ACTION_POLICY_LOADED: _ClassVar[AuditAction]
    AUDIT_ACTION_POLICY_REFUSED: _ClassVar[AuditAction]
    AUDIT_ACTION_CERTIFICATES_LOADED: _ClassVar[AuditAction]
    AUDIT_ACTION_CERTIFICATES_REFUSED: _ClassVar[AuditAction]
    AUDIT_ACTION_OPERATOR_KEYS_LOADED: _ClassVar[AuditAction]
    AUDIT_ACTION_OPERATOR_KEYS_REFUSED: _ClassVar[AuditAction]
    AUDIT_ACTION_AGENT_DEREGISTERED: _ClassVar[AuditAction]
    AUDIT_ACTION_NAME_REGISTERED: _ClassVar[AuditAction]
    AUDIT_ACTION_NAME_TRANSFERRED: _ClassVar[AuditAction]
    AUDIT_ACTION_NAME_RETIRED: _ClassVar[AuditAction]
    AUDIT_ACTION_NAME_REMOVED: _ClassVar[AuditAction]
    AUDIT_ACTION_TASK_REASSIGNED: _ClassVar[AuditAction]
    AUDIT_ACTION_SUBTASK_CANCELLED: _ClassVar[AuditAction]
    AUDIT_ACTION_SUBTASK_RETRIED: _ClassVar[AuditAction]
    AUDIT_ACTION_SUBTASK_REASSIGNED: _ClassVar[AuditAction]
    AUDIT_ACTION_PLAN_CANCELLED: _ClassVar[AuditAction]
    AUDIT_ACTION_PLAN_RETRIED: _ClassVar[AuditAction]
    AUDIT_ACTION_RUN_STARTED: _ClassVar[AuditAction]
    AUDIT_ACTION_TURN_RECORDED: _ClassVar[AuditAction]
    AUDIT_ACTION_RUN_CANCELLED: _ClassVar[AuditAction]
    AUDIT_ACTION_THREAD_CREATED: _ClassVar[AuditAction]
    AUDIT_ACTION_THREAD_CHANGED: _ClassVar[AuditAction]
    AUDIT_ACTION_BLOB_DELETED: _ClassVar[AuditAction]
    AUDIT_ACTION_TOOK_OVER: _ClassVar[AuditAction]
AUDIT_ACTION_UNSPECIFIED: AuditAction
AUDIT_ACTION_AGENT_REGISTERED: AuditAction
AUDIT_ACTION_AGENT_CHANGED: AuditAction
AUDIT_ACTION_INVITATION_CREATED: AuditAction
AUDIT_ACTION_KEY_ADDED: AuditAction
AUDIT_ACTION_KEY_REVOKED: AuditAction
AUDIT_ACTION_KEY_VOUCHED: AuditAction
AUDIT_ACTION_DEAD_LETTER_REDRIVEN: AuditAction
AUDIT_ACTION_DEAD_LETTER_DISCARDED: AuditAction
AUDIT_ACTION_POLICY_LOADED: AuditAction
AUDIT_ACTION_POLICY_REFUSED: AuditAction
AUDIT_ACTION_CERTIFICATES_LOADED: AuditAction
AUDIT_ACTION_CERTIFICATES_REFUSED: AuditAction
AUDIT_ACTION_OPERATOR_KEYS_LOADED: AuditAction
AUDIT_ACTION_OPERATOR_KEYS_REFUSED: AuditAction
AUDIT_ACTION_AGENT_DEREGISTERED: AuditAction
AUDIT_ACTION_NAME_REGISTERED: AuditAction
AUDIT_ACTION_NAME_TRANSFERRED: AuditAction
AUDIT_ACTION_NAME_RETIRED: AuditAction
AUDIT_ACTION_NAME_REMOVED: AuditAction
AUDIT_ACTION_TASK_REASSIGNED: AuditAction
AUDIT_ACTION_SUBTASK_CANCELLED: AuditAction
AUDIT_ACTION_SUBTASK_RETRIED: AuditAction
AUDIT_ACTION_SUBTASK_REASSIGNED: AuditAction
AUDIT_ACTION_PLAN_CANCELLED: AuditAction
AUDIT_ACTION_PLAN_RETRIED: AuditAction
AUDIT_ACTION_RUN_STARTED: AuditAction
AUDIT_ACTION_TURN_RECORDED: AuditAction
AUDIT_ACTION_RUN_CANCELLED: AuditAction
AUDIT_ACTION_THREAD_CREATED: AuditAction
AUDIT_ACTION_THREAD_CHANGED: AuditAction
AUDIT_ACTION_BLOB_DELETED: AuditAction
AUDIT_ACTION_TOOK_OVER: AuditAction

class AuditEntry(_message.Message):
    __slots__ = ("number", "entry_time", "actor", "action", "subject", "details")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_TIME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    number: int
    entry_time: _timestamp_pb2.Timestamp
    actor: str
    action: AuditAction
    subject: str
    details: str
    def __init__(self, number: _Optional[int] = ..., entry_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., actor: _Optional[str] = ..., action: _Optional[_Union[AuditAction, str]] = ..., subject: _Optional[str] = ..., details: _Optional[str] = ...) -> None: ...

class AuditLogEntry(_message.Message):
    __slots__ = ("entry", "entry_bytes", "chain_hash")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHAIN_HASH_FIELD_NUMBER: _ClassVar[int]
    entry: AuditEntry
    entry_bytes: bytes
    chain_hash: bytes
    def __init__(self, entry: _Optional[_Union[AuditEntry, _Mapping]] = ..., entry_bytes: _Optional[bytes] = ..., chain_hash: _Optional[bytes] = ...) -> None: ...
