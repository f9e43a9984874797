from baton._gen.baton.v1 import registry_service_pb2 as _registry_service_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Schema(_message.Message):
    __slots__ = ("schema_id", "schema_version", "schema_json", "sha256", "size_bytes", "registrar", "create_time", "unchecked_formats")
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REGISTRAR_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UNCHECKED_FORMATS_FIELD_NUMBER: _ClassVar[int]
    schema_id: str
    schema_version: str
    schema_json: str
    sha256: bytes
    size_bytes: int
    registrar: str
    create_time: _timestamp_pb2.Timestamp
    unchecked_formats: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, schema_id: _Optional[str] = ..., schema_version: _Optional[str] = ..., schema_json: _Optional[str] = ..., sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., registrar: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., unchecked_formats: _Optional[_Iterable[str]] = ...) -> None: ...

class RegisterSchemaRequest(_message.Message):
    __slots__ = ("schema", "etag")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    schema: Schema
    etag: str
    def __init__(self, schema: _Optional[_Union[Schema, _Mapping]] = ..., etag: _Optional[str] = ...) -> None: ...

class RegisterSchemaResponse(_message.Message):
    __slots__ = ("schema", "registration")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    schema: Schema
    registration: _registry_service_pb2.Registration
    def __init__(self, schema: _Optional[_Union[Schema, _Mapping]] = ..., registration: _Optional[_Union[_registry_service_pb2.Registration, _Mapping]] = ...) -> None: ...

class GetSchemaRequest(_message.Message):
    __slots__ = ("schema_id", "schema_version")
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    schema_id: str
    schema_version: str
    def __init__(self, schema_id: _Optional[str] = ..., schema_version: _Optional[str] = ...) -> None: ...

class GetSchemaResponse(_message.Message):
    __slots__ = ("schema",)
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    schema: Schema
    def __init__(self, schema: _Optional[_Union[Schema, _Mapping]] = ...) -> None: ...

class ListSchemasRequest(_message.Message):
    __slots__ = ("schema_id", "page_size", "page_token")
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    schema_id: str
    page_size: int
    page_token: str
    def __init__(self, schema_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSchemasResponse(_message.Message):
    __slots__ = ("schemas", "next_page_token")
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    schemas: _containers.RepeatedCompositeFieldContainer[Schema]
    next_page_token: str
    def __init__(self, schemas: _Optional[_Iterable[_Union[Schema, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CheckSchemaRequest(_message.Message):
    __slots__ = ("schema_id", "schema_version", "schema_json", "data_json")
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    DATA_JSON_FIELD_NUMBER: _ClassVar[int]
    schema_id: str
    schema_version: str
    schema_json: str
    data_json: str
    def __init__(self, schema_id: _Optional[str] = ..., schema_version: _Optional[str] = ..., schema_json: _Optional[str] = ..., data_json: _Optional[str] = ...) -> None: ...

class CheckSchemaResponse(_message.Message):
    __slots__ = ("violations",)
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    violations: _containers.RepeatedCompositeFieldContainer[SchemaViolation]
    def __init__(self, violations: _Optional[_Iterable[_Union[SchemaViolation, _Mapping]]] = ...) -> None: ...

class SchemaViolation(_message.Message):
    __slots__ = ("json_pointer", "problem")
    JSON_POINTER_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    json_pointer: str
    problem: str
    def __init__(self, json_pointer: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...
