from baton._gen.baton.v1 import audit_pb2 as _audit_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListAuditEntriesRequest(_message.Message):
    __slots__ = ("page_size", "after_number")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    AFTER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    after_number: int
    def __init__(self, page_size: _Optional[int] = ..., after_number: _Optional[int] = ...) -> None: ...

class ListAuditEntriesResponse(_message.Message):
    __slots__ = ("entries", "log_length", "first_number", "hash_before_first")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LOG_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    HASH_BEFORE_FIRST_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[_audit_pb2.AuditLogEntry]
    log_length: int
    first_number: int
    hash_before_first: bytes
    def __init__(self, entries: _Optional[_Iterable[_Union[_audit_pb2.AuditLogEntry, _Mapping]]] = ..., log_length: _Optional[int] = ..., first_number: _Optional[int] = ..., hash_before_first: _Optional[bytes] = ...) -> None: ...
