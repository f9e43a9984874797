from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HistoryFilter(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HISTORY_FILTER_UNSPECIFIED: _ClassVar[HistoryFilter]
    HISTORY_FILTER_FULL: _ClassVar[HistoryFilter]
    HISTORY_FILTER_LAST: _ClassVar[HistoryFilter]
    HISTORY_FILTER_WITHOUT_TOOL_CALLS: _ClassVar[HistoryFilter]
    HISTORY_FILTER_SUMMARY: _ClassVar[HistoryFilter]

class SectionOrigin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SECTION_ORIGIN_UNSPECIFIED: _ClassVar[SectionOrigin]
    SECTION_ORIGIN_VALUE: _ClassVar[SectionOrigin]
    SECTION_ORIGIN_REFERENCE: _ClassVar[SectionOrigin]
    SECTION_ORIGIN_DELTA: _ClassVar[SectionOrigin]
HISTORY_FILTER_UNSPECIFIED: HistoryFilter
HISTORY_FILTER_FULL: HistoryFilter
HISTORY_FILTER_LAST: HistoryFilter
HISTORY_FILTER_WITHOUT_TOOL_CALLS: HistoryFilter
HISTORY_FILTER_SUMMARY: HistoryFilter
SECTION_ORIGIN_UNSPECIFIED: SectionOrigin
SECTION_ORIGIN_VALUE: SectionOrigin
SECTION_ORIGIN_REFERENCE: SectionOrigin
SECTION_ORIGIN_DELTA: SectionOrigin

class TaskContextTransfer(_message.Message):
    __slots__ = ("sections", "context_digest", "schema_id", "schema_version")
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    sections: _containers.RepeatedCompositeFieldContainer[ContextSection]
    context_digest: bytes
    schema_id: str
    schema_version: str
    def __init__(self, sections: _Optional[_Iterable[_Union[ContextSection, _Mapping]]] = ..., context_digest: _Optional[bytes] = ..., schema_id: _Optional[str] = ..., schema_version: _Optional[str] = ...) -> None: ...

class ContextSection(_message.Message):
    __slots__ = ("name", "schema_id", "schema_version", "json", "bytes", "reference", "delta", "secret", "summary")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema_id: str
    schema_version: str
    json: str
    bytes: ContextBytes
    reference: ContextReference
    delta: ContextDelta
    secret: bool
    summary: str
    def __init__(self, name: _Optional[str] = ..., schema_id: _Optional[str] = ..., schema_version: _Optional[str] = ..., json: _Optional[str] = ..., bytes: _Optional[_Union[ContextBytes, _Mapping]] = ..., reference: _Optional[_Union[ContextReference, _Mapping]] = ..., delta: _Optional[_Union[ContextDelta, _Mapping]] = ..., secret: bool = ..., summary: _Optional[str] = ...) -> None: ...

class ContextBytes(_message.Message):
    __slots__ = ("media_type", "data")
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    media_type: str
    data: bytes
    def __init__(self, media_type: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class ContextReference(_message.Message):
    __slots__ = ("uri", "sha256", "size_bytes", "media_type")
    URI_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    uri: str
    sha256: bytes
    size_bytes: int
    media_type: str
    def __init__(self, uri: _Optional[str] = ..., sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., media_type: _Optional[str] = ...) -> None: ...

class ContextDelta(_message.Message):
    __slots__ = ("base_sha256", "merge_patch", "result_sha256")
    BASE_SHA256_FIELD_NUMBER: _ClassVar[int]
    MERGE_PATCH_FIELD_NUMBER: _ClassVar[int]
    RESULT_SHA256_FIELD_NUMBER: _ClassVar[int]
    base_sha256: bytes
    merge_patch: str
    result_sha256: bytes
    def __init__(self, base_sha256: _Optional[bytes] = ..., merge_patch: _Optional[str] = ..., result_sha256: _Optional[bytes] = ...) -> None: ...

class ContextFilter(_message.Message):
    __slots__ = ("history", "last", "json_pointers")
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    JSON_POINTERS_FIELD_NUMBER: _ClassVar[int]
    history: HistoryFilter
    last: int
    json_pointers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, history: _Optional[_Union[HistoryFilter, str]] = ..., last: _Optional[int] = ..., json_pointers: _Optional[_Iterable[str]] = ...) -> None: ...

class ContextVersion(_message.Message):
    __slots__ = ("task_id", "version", "epoch", "author_id", "handoff_id", "message_id", "context_digest", "sections", "create_time", "receiver_id", "digests_only")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_ID_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_ONLY_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    version: int
    epoch: int
    author_id: str
    handoff_id: str
    message_id: str
    context_digest: bytes
    sections: _containers.RepeatedCompositeFieldContainer[SectionInfo]
    create_time: _timestamp_pb2.Timestamp
    receiver_id: str
    digests_only: bool
    def __init__(self, task_id: _Optional[str] = ..., version: _Optional[int] = ..., epoch: _Optional[int] = ..., author_id: _Optional[str] = ..., handoff_id: _Optional[str] = ..., message_id: _Optional[str] = ..., context_digest: _Optional[bytes] = ..., sections: _Optional[_Iterable[_Union[SectionInfo, _Mapping]]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., receiver_id: _Optional[str] = ..., digests_only: bool = ...) -> None: ...

class SectionInfo(_message.Message):
    __slots__ = ("name", "sha256", "size_bytes", "media_type", "origin", "uri", "schema_id", "schema_version", "schema_checked", "secret", "summary", "base_sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_CHECKED_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    BASE_SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: bytes
    size_bytes: int
    media_type: str
    origin: SectionOrigin
    uri: str
    schema_id: str
    schema_version: str
    schema_checked: bool
    secret: bool
    summary: str
    base_sha256: bytes
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., media_type: _Optional[str] = ..., origin: _Optional[_Union[SectionOrigin, str]] = ..., uri: _Optional[str] = ..., schema_id: _Optional[str] = ..., schema_version: _Optional[str] = ..., schema_checked: bool = ..., secret: bool = ..., summary: _Optional[str] = ..., base_sha256: _Optional[bytes] = ...) -> None: ...
