from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskContextTransfer(_message.Message):
    __slots__ = ("sections", "context_digest")
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    sections: _containers.RepeatedCompositeFieldContainer[ContextSection]
    context_digest: bytes
    def __init__(self, sections: _Optional[_Iterable[_Union[ContextSection, _Mapping]]] = ..., context_digest: _Optional[bytes] = ...) -> None: ...

class ContextSection(_message.Message):
    __slots__ = ("name", "schema_id", "schema_version", "json", "bytes", "reference", "delta")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema_id: str
    schema_version: str
    json: str
    bytes: ContextBytes
    reference: ContextReference
    delta: ContextDelta
    def __init__(self, name: _Optional[str] = ..., schema_id: _Optional[str] = ..., schema_version: _Optional[str] = ..., json: _Optional[str] = ..., bytes: _Optional[_Union[ContextBytes, _Mapping]] = ..., reference: _Optional[_Union[ContextReference, _Mapping]] = ..., delta: _Optional[_Union[ContextDelta, _Mapping]] = ...) -> None: ...

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
