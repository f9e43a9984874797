"""The trace context of messages: what a message sent now carries, and what the handler of a delivery continues.

A context is a `v1.TraceContext`, in the form of W3C Trace Context. Where the package `opentelemetry-api` is installed,
it is the active span of OpenTelemetry. Otherwise it is passed on as it came.
"""

import contextlib
import contextvars
import re
from collections.abc import Iterator
from typing import Any

from baton import v1

try:
    from opentelemetry import context as _otel_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    _w3c: TraceContextTextMapPropagator | None = TraceContextTextMapPropagator()
except ImportError:  # OpenTelemetry is not needed
    _w3c = None

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_continued: contextvars.ContextVar[v1.TraceContext | None] = contextvars.ContextVar("baton.trace", default=None)


def current_trace() -> v1.TraceContext | None:
    """Returns the context that a message sent now carries: the active span, or what is continued here."""
    if _w3c is not None:
        carrier: dict[str, str] = {}
        _w3c.inject(carrier)
        if carrier:
            return v1.TraceContext(**carrier)
    return _continued.get()


@contextlib.contextmanager
def in_trace(context: v1.TraceContext | None) -> Iterator[None]:
    """Continues a context, for example that of a delivery: the messages sent and the spans begun inside belong to it.

    None: they belong to no trace.
    """
    token, attached = _continued.set(context), _attach(context)
    try:
        yield
    finally:
        if attached is not None:
            _otel_context.detach(attached)
        _continued.reset(token)


def of_delivery(delivery: v1.Delivery) -> v1.TraceContext | None:
    """Returns the context that the receiver of a delivery continues. None: it has none, or one that is not valid."""
    context: v1.TraceContext = delivery.trace_context
    return context if _TRACEPARENT.fullmatch(context.traceparent) else None


def for_handler(context: v1.TraceContext | None) -> contextvars.Context:
    """Returns the variables of a new task that continues a context, and no span of the task that starts it."""
    variables = contextvars.copy_context()
    variables.run(_continued.set, context)
    variables.run(_attach, context)
    return variables


def _attach(context: v1.TraceContext | None) -> Any:
    if _w3c is None:
        return None
    carrier = {} if context is None else {"traceparent": context.traceparent, "tracestate": context.tracestate}
    # Without the span that is active here: a message without a context continues nothing.
    return _otel_context.attach(_w3c.extract(carrier, context=_otel_context.Context()))
