from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Registry(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REGISTRY_UNSPECIFIED: _ClassVar[Registry]
    REGISTRY_GRAPHS: _ClassVar[Registry]
    REGISTRY_SCHEMAS: _ClassVar[Registry]
    REGISTRY_AGENT_SPECS: _ClassVar[Registry]
    REGISTRY_MODEL_SPECS: _ClassVar[Registry]

class RegistrationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REGISTRATION_STATE_UNSPECIFIED: _ClassVar[RegistrationState]
    REGISTRATION_STATE_ACTIVE: _ClassVar[RegistrationState]
    REGISTRATION_STATE_RETIRED: _ClassVar[RegistrationState]
    REGISTRATION_STATE_REMOVED: _ClassVar[RegistrationState]
REGISTRY_UNSPECIFIED: Registry
REGISTRY_GRAPHS: Registry
REGISTRY_SCHEMAS: Registry
REGISTRY_AGENT_SPECS: Registry
REGISTRY_MODEL_SPECS: Registry
REGISTRATION_STATE_UNSPECIFIED: RegistrationState
REGISTRATION_STATE_ACTIVE: RegistrationState
REGISTRATION_STATE_RETIRED: RegistrationState
REGISTRATION_STATE_REMOVED: RegistrationState

class Registration(_message.Message):
    __slots__ = ("registry", "name", "owner_id", "offered_to_id", "state", "entries", "etag", "create_time", "update_time")
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    OFFERED_TO_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    registry: Registry
    name: str
    owner_id: str
    offered_to_id: str
    state: RegistrationState
    entries: int
    etag: str
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    def __init__(self, registry: _Optional[_Union[Registry, str]] = ..., name: _Optional[str] = ..., owner_id: _Optional[str] = ..., offered_to_id: _Optional[str] = ..., state: _Optional[_Union[RegistrationState, str]] = ..., entries: _Optional[int] = ..., etag: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetRegistrationRequest(_message.Message):
    __slots__ = ("registry", "name")
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    registry: Registry
    name: str
    def __init__(self, registry: _Optional[_Union[Registry, str]] = ..., name: _Optional[str] = ...) -> None: ...

class GetRegistrationResponse(_message.Message):
    __slots__ = ("registration",)
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    registration: Registration
    def __init__(self, registration: _Optional[_Union[Registration, _Mapping]] = ...) -> None: ...

class ListRegistrationsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "registry", "owner_id")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    registry: Registry
    owner_id: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., registry: _Optional[_Union[Registry, str]] = ..., owner_id: _Optional[str] = ...) -> None: ...

class ListRegistrationsResponse(_message.Message):
    __slots__ = ("registrations", "next_page_token")
    REGISTRATIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    registrations: _containers.RepeatedCompositeFieldContainer[Registration]
    next_page_token: str
    def __init__(self, registrations: _Optional[_Iterable[_Union[Registration, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class TransferRegistrationRequest(_message.Message):
    __slots__ = ("registry", "name", "to", "etag")
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    registry: Registry
    name: str
    to: str
    etag: str
    def __init__(self, registry: _Optional[_Union[Registry, str]] = ..., name: _Optional[str] = ..., to: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...

class TransferRegistrationResponse(_message.Message):
    __slots__ = ("registration",)
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    registration: Registration
    def __init__(self, registration: _Optional[_Union[Registration, _Mapping]] = ...) -> None: ...

class RetireRegistrationRequest(_message.Message):
    __slots__ = ("registry", "name", "etag")
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    registry: Registry
    name: str
    etag: str
    def __init__(self, registry: _Optional[_Union[Registry, str]] = ..., name: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...

class RetireRegistrationResponse(_message.Message):
    __slots__ = ("registration",)
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    registration: Registration
    def __init__(self, registration: _Optional[_Union[Registration, _Mapping]] = ...) -> None: ...

class RemoveRegistrationRequest(_message.Message):
    __slots__ = ("registry", "name", "schema_version", "etag")
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    registry: Registry
    name: str
    schema_version: str
    etag: str
    def __init__(self, registry: _Optional[_Union[Registry, str]] = ..., name: _Optional[str] = ..., schema_version: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...

class RemoveRegistrationResponse(_message.Message):
    __slots__ = ("registration",)
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    registration: Registration
    def __init__(self, registration: _Optional[_Union[Registration, _Mapping]] = ...) -> None: ...
