"""A collector of OpenTelemetry for the relay: takes spans by OTLP over gRPC, and keeps them.

Reads only the fields of a span that the relay checks, by a schema of its own with the numbers of
opentelemetry/proto/trace/v1/trace.proto.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SCHEMA: dict[str, list[tuple[str, int, str]]] = {
    "Request": [("resources", 1, "Resource*")],
    "Resource": [("scopes", 2, "Scope*")],
    "Scope": [("spans", 2, "Span*")],
    "Span": [
        ("trace_id", 1, "bytes"),
        ("span_id", 2, "bytes"),
        ("parent_id", 4, "bytes"),
        ("name", 5, "string"),
        ("attributes", 9, "Attribute*"),
    ],
    "Attribute": [("key", 1, "string"), ("value", 2, "Value")],
    "Value": [("text", 1, "string")],
}
"""The fields of each message: name, number, type; * is repeated."""


def _request_class() -> Any:
    """The class of ExportTraceServiceRequest."""
    field_types = descriptor_pb2.FieldDescriptorProto
    plain = {"bytes": field_types.TYPE_BYTES, "string": field_types.TYPE_STRING}
    file = descriptor_pb2.FileDescriptorProto(name="collector.proto", package="relay", syntax="proto3")
    for message, fields in _SCHEMA.items():
        described = file.message_type.add(name=message)
        for name, number, kind in fields:
            label = field_types.LABEL_REPEATED if kind.endswith("*") else field_types.LABEL_OPTIONAL
            field = described.field.add(name=name, number=number, label=label)
            field.type = plain.get(kind, field_types.TYPE_MESSAGE)
            if kind not in plain:
                field.type_name = f".relay.{kind.rstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("relay.Request"))


@dataclass(frozen=True)
class Span:
    """What the relay checks of a span."""

    trace_id: str
    span_id: str
    parent_id: str
    """Empty: a root."""
    name: str
    attributes: dict[str, str]
    """Those that are texts."""


class Collector:
    """The server, on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._arrived = asyncio.Condition()
        self._server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._export, request_deserializer=_request_class().FromString, response_serializer=bytes
        )
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    async def __aenter__(self) -> "Collector":
        """Starts it."""
        await self._server.start()
        return self

    async def __aexit__(self, *ended: object) -> None:
        """Ends it."""
        await self._server.stop(None)

    async def _export(self, request: Any, _context: Any) -> bytes:
        found = [span for resource in request.resources for scope in resource.scopes for span in scope.spans]
        async with self._arrived:
            for span in found:
                attributes = {each.key: each.value.text for each in span.attributes if each.value.text}
                ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_id.hex())
                self.spans.append(Span(*ids, span.name, attributes))
            self._arrived.notify_all()
        return b""

    async def handoffs(self, task: str, many: int, patience_seconds: float) -> list[Span]:
        """The spans of this task's handoffs, once there are so many."""

        def found() -> list[Span]:
            return [
                span for span in self.spans if span.name == "handoff" and span.attributes.get("baton.task.id") == task
            ]

        async with self._arrived:
            await asyncio.wait_for(self._arrived.wait_for(lambda: len(found()) >= many), patience_seconds)
        return found()
