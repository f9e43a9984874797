"""A large backlog, sent and drained by stock grpcio alone: one stream each, and as many acks ahead as the credit allows."""

import queue
from collections.abc import Iterator
from typing import Any

import grpc

from baton import make_envelope, sign_envelope, v1

CREDIT = 4096
"""The largest that a session may ask for."""


def send(stub: Any, metadata: Any, key: Any, key_id: str, sender_id: str, receiver_id: str, count: int) -> v1.Receipt:
    """Sends so many letters on one session without waiting for receipts. Returns that of the last one."""

    def frames() -> Iterator[v1.ConnectRequest]:
        for number in range(1, count + 1):
            envelope = make_envelope(v1.Info(topic=str(number)), sender_id=sender_id, receiver_id=receiver_id)
            sign_envelope(envelope, key_id, key)
            # Without a request_id only an error is answered.
            yield v1.ConnectRequest(request_id=int(number == count), envelope=envelope)
        answered.get()  # the stream stays open until the last one has its receipt

    answered: queue.SimpleQueue[None] = queue.SimpleQueue()
    call = stub.Connect(frames(), metadata=metadata)
    try:
        for frame in call:
            if frame.HasField("error"):
                raise AssertionError(f"a letter was refused: {frame.error.message}")
            if frame.HasField("receipt"):
                return frame.receipt
    finally:
        answered.put(None)
        call.cancel()
    raise AssertionError("the session has ended")


def drain(stub: Any, metadata: Any, count: int) -> tuple[int, list[int]]:
    """Acks so many letters on one session as they come. Returns the granted credit, and the letters' numbers."""
    frames: queue.SimpleQueue[v1.ConnectRequest | None] = queue.SimpleQueue()
    frames.put(v1.ConnectRequest(request_id=1, credit=v1.Credit(max_outstanding=CREDIT)))
    call = stub.Connect(iter(frames.get, None), metadata=metadata)
    granted, numbers = 0, []
    try:
        for frame in call:
            if frame.HasField("error"):
                raise AssertionError(f"a frame was refused: {frame.error.message}")
            if frame.HasField("credited"):
                granted = frame.credited.max_outstanding
            if frame.HasField("delivery"):
                letter = v1.Info()
                frame.delivery.envelope.payload.Unpack(letter)
                numbers.append(int(letter.topic))
                ack = v1.Acknowledgement(delivery_id=frame.delivery.delivery_id, ack=v1.Ack())
                last = len(numbers) == count
                frames.put(v1.ConnectRequest(request_id=2 * last, acknowledgement=ack))
            if frame.HasField("acknowledged"):
                return granted, numbers
    finally:
        frames.put(None)
        call.cancel()
    raise AssertionError("the session has ended")


def channel(server: str, ca: bytes) -> grpc.Channel:
    """A connection with nothing set that stock grpcio does not set by itself."""
    return grpc.secure_channel(server, grpc.ssl_channel_credentials(ca))
