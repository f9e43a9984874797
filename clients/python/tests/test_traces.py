"""One trace over all agents, with OpenTelemetry and without it."""

import asyncio
import subprocess
import sys

import pytest
from brokers import begin, needs_broker, within

from baton import current_trace, in_trace, make_envelope, v1
from baton.traces import of_delivery

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONTEXT = v1.TraceContext(traceparent=PARENT, tracestate="rojo=1")


def sent():
    """The context of a message that is made now."""
    return make_envelope(v1.Info(), sender_id="a", receiver_id="b").trace_context


def test_a_message_carries_the_context_that_is_continued():
    assert sent() == v1.TraceContext()
    with in_trace(CONTEXT):
        assert sent() == CONTEXT
        with in_trace(None):
            assert sent() == v1.TraceContext()
        assert sent() == CONTEXT
    assert current_trace() is None


@pytest.mark.parametrize(
    "wrong",
    ["", "00-aa-bb-01", PARENT + "-x", PARENT.upper(), PARENT.replace("00-", "ff-"), f"00-{'0' * 32}-{'1' * 16}-01"],
)
def test_a_context_that_is_not_valid_counts_as_none(wrong):
    assert of_delivery(v1.Delivery(trace_context=v1.TraceContext(traceparent=wrong))) is None
    assert of_delivery(v1.Delivery(trace_context=CONTEXT)) == CONTEXT


def test_a_message_carries_the_active_span_of_opentelemetry():
    trace = pytest.importorskip("opentelemetry.trace")
    context = trace.SpanContext(5, 7, is_remote=False, trace_flags=trace.TraceFlags(1))
    with in_trace(CONTEXT):
        remote = trace.get_current_span().get_span_context()
        assert (f"{remote.trace_id:032x}", f"{remote.span_id:016x}") == (PARENT[3:35], PARENT[36:52])
        assert remote.is_remote
        with trace.use_span(trace.NonRecordingSpan(context)):
            assert sent().traceparent == f"00-{5:032x}-{7:016x}-01"
        assert sent() == CONTEXT
    assert not trace.get_current_span().get_span_context().is_valid


def test_opentelemetry_is_not_needed():
    program = f"""
import sys
sys.modules["opentelemetry"] = None
from baton import in_trace, make_envelope, v1
with in_trace(v1.TraceContext(traceparent="{PARENT}")):
    assert make_envelope(v1.Info(), sender_id="a", receiver_id="b").trace_context.traceparent == "{PARENT}"
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})


@needs_broker
async def test_a_handler_continues_the_context_of_its_delivery(broker):
    continued, answered = asyncio.Queue(), asyncio.Queue()
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on(v1.Info)
        async def answer(delivery):
            continued.put_nowait((delivery.trace_context, current_trace()))
            await bob.send(v1.Info(text="yes"), receiver_id="alice")

        @alice.on(v1.Info)
        async def read(delivery):
            answered.put_nowait(delivery.envelope.trace_context)

        with in_trace(CONTEXT):  # what is active where an agent connects is not its messages' affair
            await begin(alice, bob)
            await alice.send(v1.Info(text="ready?"), receiver_id="bob")
        assert await within(continued.get()) == (CONTEXT, CONTEXT)
        assert await within(answered.get()) == CONTEXT
        await alice.send(v1.Info(text="and now?"), receiver_id="bob")
        assert await within(continued.get()) == (None, None)
        assert await within(answered.get()) == v1.TraceContext()
