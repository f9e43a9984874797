from baton._gen.baton.v1 import context_pb2 as _context_pb2
from baton._gen.baton.v1 import envelope_pb2 as _envelope_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkspaceAppend(_message.Message):
    __slots__ = ("workspace_id", "topic", "json", "bytes", "reference", "expected_last_sequence", "source_time")
    WORKSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TIME_FIELD_NUMBER: _ClassVar[int]
    workspace_id: str
    topic: str
    json: str
    bytes: _context_pb2.ContextBytes
    reference: _context_pb2.ContextReference
    expected_last_sequence: int
    source_time: _timestamp_pb2.Timestamp
    def __init__(self, workspace_id: _Optional[str] = ..., topic: _Optional[str] = ..., json: _Optional[str] = ..., bytes: _Optional[_Union[_context_pb2.ContextBytes, _Mapping]] = ..., reference: _Optional[_Union[_context_pb2.ContextReference, _Mapping]] = ..., expected_last_sequence: _Optional[int] = ..., source_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class WorkspaceEntry(_message.Message):
    __slots__ = ("sequence", "topic", "author_id", "create_time", "source_time", "json", "bytes", "reference", "message_id", "envelope", "expire_time", "chain_hash")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TIME_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    CHAIN_HASH_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    topic: str
    author_id: str
    create_time: _timestamp_pb2.Timestamp
    source_time: _timestamp_pb2.Timestamp
    json: str
    bytes: _context_pb2.ContextBytes
    reference: _context_pb2.ContextReference
    message_id: str
    envelope: _envelope_pb2.Envelope
    expire_time: _timestamp_pb2.Timestamp
    chain_hash: bytes
    def __init__(self, sequence: _Optional[int] = ..., topic: _Optional[str] = ..., author_id: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., source_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., json: _Optional[str] = ..., bytes: _Optional[_Union[_context_pb2.ContextBytes, _Mapping]] = ..., reference: _Optional[_Union[_context_pb2.ContextReference, _Mapping]] = ..., message_id: _Optional[str] = ..., envelope: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., chain_hash: _Optional[bytes] = ...) -> None: ...

class WorkspaceTopic(_message.Message):
    __slots__ = ("name", "entry_count", "first_sequence", "last_sequence", "size_bytes", "update_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    entry_count: int
    first_sequence: int
    last_sequence: int
    size_bytes: int
    update_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., entry_count: _Optional[int] = ..., first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., size_bytes: _Optional[int] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Workspace(_message.Message):
    __slots__ = ("workspace_id", "last_sequence", "first_sequence", "topic_count", "size_bytes", "closed", "chain_hash", "size_bytes_max", "entries_max", "topics_max")
    WORKSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    CHAIN_HASH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    TOPICS_MAX_FIELD_NUMBER: _ClassVar[int]
    workspace_id: str
    last_sequence: int
    first_sequence: int
    topic_count: int
    size_bytes: int
    closed: bool
    chain_hash: bytes
    size_bytes_max: int
    entries_max: int
    topics_max: int
    def __init__(self, workspace_id: _Optional[str] = ..., last_sequence: _Optional[int] = ..., first_sequence: _Optional[int] = ..., topic_count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., closed: bool = ..., chain_hash: _Optional[bytes] = ..., size_bytes_max: _Optional[int] = ..., entries_max: _Optional[int] = ..., topics_max: _Optional[int] = ...) -> None: ...
