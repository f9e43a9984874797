from baton._gen.baton.v1 import broker_service_pb2 as _broker_service_pb2
from baton._gen.baton.v1 import context_pb2 as _context_pb2
from baton._gen.baton.v1 import envelope_pb2 as _envelope_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetContextRequest(_message.Message):
    __slots__ = ("task_id", "version")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    version: int
    def __init__(self, task_id: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class GetContextResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: _context_pb2.ContextVersion
    def __init__(self, version: _Optional[_Union[_context_pb2.ContextVersion, _Mapping]] = ...) -> None: ...

class GetContextSectionRequest(_message.Message):
    __slots__ = ("task_id", "name", "version", "have_sha256", "filter")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HAVE_SHA256_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    name: str
    version: int
    have_sha256: bytes
    filter: _context_pb2.ContextFilter
    def __init__(self, task_id: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[int] = ..., have_sha256: _Optional[bytes] = ..., filter: _Optional[_Union[_context_pb2.ContextFilter, _Mapping]] = ...) -> None: ...

class GetContextSectionResponse(_message.Message):
    __slots__ = ("section", "version", "json", "bytes", "reference", "delta", "not_modified", "derived")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    NOT_MODIFIED_FIELD_NUMBER: _ClassVar[int]
    DERIVED_FIELD_NUMBER: _ClassVar[int]
    section: _context_pb2.SectionInfo
    version: int
    json: str
    bytes: _context_pb2.ContextBytes
    reference: _context_pb2.ContextReference
    delta: _context_pb2.ContextDelta
    not_modified: bool
    derived: bool
    def __init__(self, section: _Optional[_Union[_context_pb2.SectionInfo, _Mapping]] = ..., version: _Optional[int] = ..., json: _Optional[str] = ..., bytes: _Optional[_Union[_context_pb2.ContextBytes, _Mapping]] = ..., reference: _Optional[_Union[_context_pb2.ContextReference, _Mapping]] = ..., delta: _Optional[_Union[_context_pb2.ContextDelta, _Mapping]] = ..., not_modified: bool = ..., derived: bool = ...) -> None: ...

class ListContextVersionsRequest(_message.Message):
    __slots__ = ("task_id", "page_size", "page_token")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    page_size: int
    page_token: str
    def __init__(self, task_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListContextVersionsResponse(_message.Message):
    __slots__ = ("versions", "next_page_token")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[_context_pb2.ContextVersion]
    next_page_token: str
    def __init__(self, versions: _Optional[_Iterable[_Union[_context_pb2.ContextVersion, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CheckpointContextRequest(_message.Message):
    __slots__ = ("envelope",)
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    envelope: _envelope_pb2.Envelope
    def __init__(self, envelope: _Optional[_Union[_envelope_pb2.Envelope, _Mapping]] = ...) -> None: ...

class CheckpointContextResponse(_message.Message):
    __slots__ = ("receipt", "version")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    receipt: _broker_service_pb2.Receipt
    version: _context_pb2.ContextVersion
    def __init__(self, receipt: _Optional[_Union[_broker_service_pb2.Receipt, _Mapping]] = ..., version: _Optional[_Union[_context_pb2.ContextVersion, _Mapping]] = ...) -> None: ...
