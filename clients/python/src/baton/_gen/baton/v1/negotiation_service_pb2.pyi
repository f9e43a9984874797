from baton._gen.baton.v1 import negotiation_pb2 as _negotiation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetNegotiationRequest(_message.Message):
    __slots__ = ("negotiation_id",)
    NEGOTIATION_ID_FIELD_NUMBER: _ClassVar[int]
    negotiation_id: str
    def __init__(self, negotiation_id: _Optional[str] = ...) -> None: ...

class GetNegotiationResponse(_message.Message):
    __slots__ = ("negotiation",)
    NEGOTIATION_FIELD_NUMBER: _ClassVar[int]
    negotiation: _negotiation_pb2.Negotiation
    def __init__(self, negotiation: _Optional[_Union[_negotiation_pb2.Negotiation, _Mapping]] = ...) -> None: ...

class ListNegotiationsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "agent_id", "states")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    agent_id: str
    states: _containers.RepeatedScalarFieldContainer[_negotiation_pb2.NegotiationState]
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., agent_id: _Optional[str] = ..., states: _Optional[_Iterable[_Union[_negotiation_pb2.NegotiationState, str]]] = ...) -> None: ...

class ListNegotiationsResponse(_message.Message):
    __slots__ = ("negotiations", "next_page_token")
    NEGOTIATIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    negotiations: _containers.RepeatedCompositeFieldContainer[_negotiation_pb2.Negotiation]
    next_page_token: str
    def __init__(self, negotiations: _Optional[_Iterable[_Union[_negotiation_pb2.Negotiation, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchNegotiationRequest(_message.Message):
    __slots__ = ("negotiation_id",)
    NEGOTIATION_ID_FIELD_NUMBER: _ClassVar[int]
    negotiation_id: str
    def __init__(self, negotiation_id: _Optional[str] = ...) -> None: ...

class WatchNegotiationResponse(_message.Message):
    __slots__ = ("negotiation",)
    NEGOTIATION_FIELD_NUMBER: _ClassVar[int]
    negotiation: _negotiation_pb2.Negotiation
    def __init__(self, negotiation: _Optional[_Union[_negotiation_pb2.Negotiation, _Mapping]] = ...) -> None: ...

class CancelNegotiationRequest(_message.Message):
    __slots__ = ("negotiation_id",)
    NEGOTIATION_ID_FIELD_NUMBER: _ClassVar[int]
    negotiation_id: str
    def __init__(self, negotiation_id: _Optional[str] = ...) -> None: ...

class CancelNegotiationResponse(_message.Message):
    __slots__ = ("negotiation",)
    NEGOTIATION_FIELD_NUMBER: _ClassVar[int]
    negotiation: _negotiation_pb2.Negotiation
    def __init__(self, negotiation: _Optional[_Union[_negotiation_pb2.Negotiation, _Mapping]] = ...) -> None: ...
