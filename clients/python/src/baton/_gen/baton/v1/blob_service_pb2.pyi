from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Blob(_message.Message):
    __slots__ = ("sha256", "size_bytes", "media_type", "writer_id", "create_time")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size_bytes: int
    media_type: str
    writer_id: str
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., media_type: _Optional[str] = ..., writer_id: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class WriteBlobRequest(_message.Message):
    __slots__ = ("blob", "workspace_id", "write_offset", "data")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    WRITE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    blob: Blob
    workspace_id: str
    write_offset: int
    data: bytes
    def __init__(self, blob: _Optional[_Union[Blob, _Mapping]] = ..., workspace_id: _Optional[str] = ..., write_offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteBlobResponse(_message.Message):
    __slots__ = ("committed_bytes", "blob")
    COMMITTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    committed_bytes: int
    blob: Blob
    def __init__(self, committed_bytes: _Optional[int] = ..., blob: _Optional[_Union[Blob, _Mapping]] = ...) -> None: ...

class GetBlobWriteRequest(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    def __init__(self, sha256: _Optional[bytes] = ...) -> None: ...

class GetBlobWriteResponse(_message.Message):
    __slots__ = ("committed_bytes", "size_bytes", "expire_time")
    COMMITTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    committed_bytes: int
    size_bytes: int
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, committed_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReadBlobRequest(_message.Message):
    __slots__ = ("sha256", "read_offset", "read_length")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    READ_OFFSET_FIELD_NUMBER: _ClassVar[int]
    READ_LENGTH_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    read_offset: int
    read_length: int
    def __init__(self, sha256: _Optional[bytes] = ..., read_offset: _Optional[int] = ..., read_length: _Optional[int] = ...) -> None: ...

class ReadBlobResponse(_message.Message):
    __slots__ = ("data", "blob")
    DATA_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    blob: Blob
    def __init__(self, data: _Optional[bytes] = ..., blob: _Optional[_Union[Blob, _Mapping]] = ...) -> None: ...

class GetBlobRequest(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    def __init__(self, sha256: _Optional[bytes] = ...) -> None: ...

class GetBlobResponse(_message.Message):
    __slots__ = ("blob",)
    BLOB_FIELD_NUMBER: _ClassVar[int]
    blob: Blob
    def __init__(self, blob: _Optional[_Union[Blob, _Mapping]] = ...) -> None: ...

class FindMissingBlobsRequest(_message.Message):
    __slots__ = ("sha256s",)
    SHA256S_FIELD_NUMBER: _ClassVar[int]
    sha256s: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, sha256s: _Optional[_Iterable[bytes]] = ...) -> None: ...

class FindMissingBlobsResponse(_message.Message):
    __slots__ = ("sha256s",)
    SHA256S_FIELD_NUMBER: _ClassVar[int]
    sha256s: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, sha256s: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ListBlobsRequest(_message.Message):
    __slots__ = ("workspace_id", "page_size", "page_token")
    WORKSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    workspace_id: str
    page_size: int
    page_token: str
    def __init__(self, workspace_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListBlobsResponse(_message.Message):
    __slots__ = ("blobs", "next_page_token")
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    blobs: _containers.RepeatedCompositeFieldContainer[Blob]
    next_page_token: str
    def __init__(self, blobs: _Optional[_Iterable[_Union[Blob, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteBlobRequest(_message.Message):
    __slots__ = ("sha256", "workspace_id")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    workspace_id: str
    def __init__(self, sha256: _Optional[bytes] = ..., workspace_id: _Optional[str] = ...) -> None: ...

class DeleteBlobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
