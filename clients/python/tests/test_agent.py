"""The session, against a scripted broker that lies and drops connections."""

import asyncio
import contextlib
import datetime
import functools
import ipaddress
from types import SimpleNamespace

import grpc
import pytest
from brokers import PATIENCE_SECONDS
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

import baton.agent
import baton.dispatch
import baton.handoffs
from baton import (
    Agent,
    BatonError,
    HandoffFailedError,
    VerificationError,
    generate_key,
    json_section,
    make_envelope,
    public_bytes,
    sign_envelope,
    v1,
    verify_envelope,
)
from baton._gen.baton.v1 import agent_service_pb2_grpc, broker_service_pb2_grpc, handoff_service_pb2_grpc
from baton.signing import pae, receipt_body


class LyingBroker(
    broker_service_pb2_grpc.BrokerServiceServicer,
    agent_service_pb2_grpc.AgentServiceServicer,
    handoff_service_pb2_grpc.HandoffServiceServicer,
):
    """A scripted broker: `on_envelope` and `on_acknowledgement` make the frames that answer."""

    def __init__(self):
        self.key = generate_key()
        self.agent_keys = {}
        self.frames = []
        self.on_envelope = lambda frame: [self.receipt(frame)]
        self.on_acknowledgement = self.acknowledged
        self.out = asyncio.Queue()
        self.sessions = 0
        self.refuses_for_good = False
        self.ends_with = None
        self.handoff = v1.Handoff()
        self.looks = 0
        self.looking = asyncio.Event()
        self.is_slow = False

    async def CreateChallenge(self, _request, _context):
        return v1.CreateChallengeResponse(challenge=bytes(32))

    async def CreateToken(self, _request, context):
        if self.refuses_for_good:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "never again")
        return v1.CreateTokenResponse(token="secret")

    async def GetAgent(self, request, context):
        if request.agent_id not in self.agent_keys:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown")
        key = v1.AgentKey(key_id="k1", public_key=public_bytes(self.agent_keys[request.agent_id]))
        return v1.GetAgentResponse(agent=v1.Agent(card=v1.AgentCard(keys=[key])))

    async def GetHandoff(self, _request, context):
        self.looks += 1
        self.looking.set()
        if self.is_slow:
            await asyncio.Event().wait()
        if self.handoff is None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "it is not there, or not alice's")
        return v1.GetHandoffResponse(handoff=self.handoff)

    async def Receive(self, request, context):
        async for response in self.receive(request, context):
            yield response

    async def Connect(self, requests, context):
        assert dict(context.invocation_metadata())["authorization"] == "Bearer secret"
        self.sessions += 1
        out = self.out = asyncio.Queue()
        broker_key = v1.AgentKey(key_id="broker", public_key=public_bytes(self.key))
        beat = Duration(seconds=60)
        welcome = v1.Welcome(broker_id="baton", broker_key=broker_key, heartbeat_interval=beat)
        yield v1.ConnectResponse(welcome=welcome)
        reading = asyncio.create_task(self.read(requests))
        while (frame := await out.get()) is not None:
            yield frame
        reading.cancel()
        if self.ends_with is not None:
            status = status_of(*self.ends_with)
            details = ("grpc-status-details-bin", status.SerializeToString())
            await context.abort(self.ends_with[0], status.message, (details,) if status.details else ())

    async def read(self, requests):
        async for frame in requests:
            self.frames.append(frame)
            match frame.WhichOneof("request"):
                case "hello" | "credit":
                    await self.out.put(v1.ConnectResponse(request_id=frame.request_id, credited=v1.Credited()))
                case "acknowledgement":
                    for answer in self.on_acknowledgement(frame):
                        await self.out.put(answer)
                case "envelope":
                    for answer in self.on_envelope(frame):
                        await self.out.put(answer)
        await self.out.put(None)

    def receipt(self, frame, key=None):
        receipt = v1.Receipt(message_id=frame.envelope.message_id, sequence=1, key_id="broker")
        receipt.signature = (key or self.key).sign(pae("application/vnd.baton.receipt.v1", receipt_body(receipt)))
        return v1.ConnectResponse(request_id=frame.request_id, receipt=receipt)

    def acknowledged(self, frame):
        acknowledged = v1.Acknowledged(delivery_id=frame.acknowledgement.delivery_id)
        return [v1.ConnectResponse(request_id=frame.request_id, acknowledged=acknowledged)]

    def knows_only(self, *delivery_ids):
        """Has the acknowledgement of any other delivery refused as DELIVERY_UNKNOWN."""
        status = status_of(grpc.StatusCode.NOT_FOUND, "DELIVERY_UNKNOWN")

        def answer(frame):
            is_known = frame.acknowledgement.delivery_id in delivery_ids
            refused = v1.ConnectResponse(request_id=frame.request_id, error=status)
            return self.acknowledged(frame) if is_known else [refused]

        self.on_acknowledgement = answer

    async def deliver(self, envelope, delivery_id="", **fields):
        await self.out.put(delivered(envelope, delivery_id, **fields))

    async def has_acknowledgement(self, delivery_id):
        """Waits for the acknowledgement of a delivery."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (told := [one for one in self.acknowledgements() if one.delivery_id == delivery_id]):
                await asyncio.sleep(0.001)
        return told[0]

    def envelopes(self):
        return [frame.envelope for frame in self.frames if frame.HasField("envelope")]

    def acknowledgements(self):
        return [frame.acknowledgement for frame in self.frames if frame.HasField("acknowledgement")]


def status_of(code, reason):
    """The status of a refusal. An empty reason stands for none."""
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="baton"))
    return status_pb2.Status(code=code.value[0], message="as the test wants it", details=[info] if reason else [])


def delivered(envelope, delivery_id="", **fields):
    fields = {"delivery_id": delivery_id or envelope.message_id, "envelope": envelope, "attempt": 1, **fields}
    return v1.ConnectResponse(delivery=v1.Delivery(**fields))


def certificate():
    """A self-signed certificate for 127.0.0.1: the key and the certificate in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, made.public_bytes(Encoding.PEM)


@pytest.fixture
async def broker():
    return LyingBroker()


@pytest.fixture
async def server(broker, tmp_path):
    private, public = certificate()
    server = grpc.aio.server()
    broker_service_pb2_grpc.add_BrokerServiceServicer_to_server(broker, server)
    agent_service_pb2_grpc.add_AgentServiceServicer_to_server(broker, server)
    handoff_service_pb2_grpc.add_HandoffServiceServicer_to_server(broker, server)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(private, public)]))
    await server.start()
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(public)
    yield SimpleNamespace(address=f"127.0.0.1:{port}", ca_file=ca_file)
    await server.stop(None)


@pytest.fixture
async def agent(server):
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file, credit=3) as agent:
        await agent.connect()
        yield agent


def message(broker, text, key=None):
    return of_bob(broker, v1.Info(text=text), key)


def of_bob(broker, payload, key=None, **fields):
    broker.agent_keys.setdefault("bob", generate_key())
    envelope = make_envelope(payload, sender_id="bob", receiver_id="alice", **fields)
    sign_envelope(envelope, "k1", key or broker.agent_keys["bob"])
    return envelope


async def test_answers_find_their_requests_in_any_order(broker, agent):
    asked = []

    def in_pairs_backwards(frame):
        asked.append(frame)
        return [broker.receipt(one) for one in reversed(asked)] if len(asked) == 2 else []

    broker.on_envelope = in_pairs_backwards
    receipts = await asyncio.gather(*(agent.send(v1.Info(), receiver_id="bob") for _ in range(2)))
    assert [one.message_id for one in receipts] == [one.envelope.message_id for one in asked]
    credits_given = [frame.credit.max_outstanding for frame in broker.frames if frame.HasField("credit")]
    assert credits_given == [3]
    assert any(frame.HasField("heartbeat") for frame in broker.frames)


async def test_a_receipt_of_somebody_else_is_none(broker, agent):
    broker.on_envelope = lambda frame: [broker.receipt(frame, generate_key())]
    with pytest.raises(VerificationError, match="SIGNATURE_INVALID"):
        await agent.send(v1.Info(), receiver_id="bob")


async def test_a_receipt_for_another_message_is_none(broker, agent):
    old = []

    def always_the_first(frame):
        old.append(broker.receipt(frame).receipt)
        return [v1.ConnectResponse(request_id=frame.request_id, receipt=old[0])]

    broker.on_envelope = always_the_first
    await agent.send(v1.Info(), receiver_id="bob")
    with pytest.raises(VerificationError, match="another message"):
        await agent.send(v1.Info(), receiver_id="bob")


async def test_a_refusal_leaves_the_session_open(broker, agent):
    status = status_pb2.Status(code=grpc.StatusCode.NOT_FOUND.value[0], message="no")
    refuse = lambda frame: [v1.ConnectResponse(request_id=frame.request_id, error=status)]  # noqa: E731
    broker.on_envelope, take = refuse, broker.on_envelope
    with pytest.raises(BatonError) as refused:
        await agent.send(v1.Info(), receiver_id="bob")
    assert refused.value.code is grpc.StatusCode.NOT_FOUND
    broker.on_envelope = take
    await agent.send(v1.Info(), receiver_id="bob")


async def test_only_what_verifies_is_given_out(broker, agent):
    forged = message(broker, "forged", generate_key())
    stranger = message(broker, "from an unknown sender")
    stranger.sender_id = "unknown"
    unsigned = message(broker, "unsigned")
    unsigned.ClearField("signature")
    mismatched = message(broker, "mismatched")
    mismatched.message_type = v1.MESSAGE_TYPE_DELEGATION
    good = message(broker, "good")
    for envelope in [forged, stranger, unsigned, mismatched, good]:
        await broker.deliver(envelope)
    deliveries = agent.deliveries()
    delivery = await anext(deliveries)
    assert delivery.payload.text == "good"
    await delivery.ack()
    acknowledgements = broker.acknowledgements()
    causes = [one.nack.cause for one in acknowledgements[:-1]]
    poison, failure = v1.NACK_CAUSE_POISON, v1.NACK_CAUSE_FAILURE
    assert causes == [poison, failure, poison, poison]
    assert acknowledgements[-1].delivery_id == good.message_id
    assert acknowledgements[-1].HasField("ack")


async def test_a_new_key_of_a_known_sender_is_fetched(broker, agent):
    await broker.deliver(message(broker, "one"))
    deliveries = agent.deliveries()
    await anext(deliveries)
    second = message(broker, "two")
    second.key_id = "k2"
    await broker.deliver(second)
    await broker.deliver(message(broker, "three"))
    assert (await anext(deliveries)).payload.text == "three"
    assert "KEY_UNKNOWN" in broker.acknowledgements()[0].nack.reason_text


async def test_mail_ends_when_the_agent_closes(agent):
    closing = asyncio.create_task(agent.close())
    assert [delivery async for delivery in agent.deliveries()] == []
    await closing


async def test_a_call_that_is_under_way_fails_when_the_agent_closes(broker, agent):
    broker.is_slow = True
    looking = asyncio.create_task(agent.get_handoff("h"))
    await asyncio.wait_for(broker.looking.wait(), PATIENCE_SECONDS)
    await agent.close()
    with pytest.raises(BatonError, match="the agent is closed") as failed:
        await asyncio.wait_for(looking, PATIENCE_SECONDS)
    assert failed.value.code is grpc.StatusCode.CANCELLED


async def test_a_call_whose_task_is_cancelled_is_cancelled_also_while_the_agent_closes(broker, agent):
    broker.is_slow = True
    looking = asyncio.create_task(agent.get_handoff("h"))
    await asyncio.wait_for(broker.looking.wait(), PATIENCE_SECONDS)
    looking.cancel()
    await agent.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(looking, PATIENCE_SECONDS)


def go_away(seconds):
    text = "the broker is stopping"
    return v1.ConnectResponse(go_away=v1.GoAway(reason_text=text, reconnect_after=Duration(nanos=int(seconds * 1e9))))


async def test_what_has_no_answer_is_sent_again_on_the_next_session(broker, agent):
    take = broker.on_envelope

    def go_away_once(_frame):
        broker.on_envelope = take
        return [go_away(0.3), None]  # the stream ends without an answer

    broker.on_envelope = go_away_once
    began = asyncio.get_running_loop().time()
    receipt = await agent.send(v1.Info(text="again"), receiver_id="bob")
    waited = asyncio.get_running_loop().time() - began
    assert waited >= 0.3 * 0.8, "as long as the broker asked for"
    first, second = [frame.envelope for frame in broker.frames if frame.HasField("envelope")]
    assert first == second
    assert receipt.message_id == first.message_id
    assert broker.sessions == 2


def refuses_once_as_outside_of_the_window(broker):
    """Has the next envelope refused as TIMESTAMP_OUTSIDE_WINDOW."""
    take, status = broker.on_envelope, status_of(grpc.StatusCode.INVALID_ARGUMENT, "TIMESTAMP_OUTSIDE_WINDOW")

    def refuse(frame):
        broker.on_envelope = take
        return [v1.ConnectResponse(request_id=frame.request_id, error=status)]

    broker.on_envelope = refuse


async def test_a_message_that_has_waited_too_long_is_signed_again(broker, agent, monkeypatch):
    monkeypatch.setattr(baton.agent, "_SIGN_AGAIN_AFTER", datetime.timedelta())
    refuses_once_as_outside_of_the_window(broker)
    receipt = await agent.send(v1.Info(text="late"), receiver_id="bob")
    first, second = broker.envelopes()
    assert first.message_id == second.message_id == receipt.message_id
    assert first.timestamp.ToNanoseconds() < second.timestamp.ToNanoseconds()
    assert first.payload == second.payload
    verify_envelope(second, v1.AgentKey(key_id="k1", public_key=public_bytes(agent._key)))


@pytest.mark.parametrize("is_signed_by_the_caller", [False, True])
async def test_a_message_that_has_not_waited_or_is_to_stay_as_it_is_is_not_signed_again(
    broker, agent, monkeypatch, is_signed_by_the_caller
):
    age = datetime.timedelta() if is_signed_by_the_caller else datetime.timedelta(hours=1)
    monkeypatch.setattr(baton.agent, "_SIGN_AGAIN_AFTER", age)
    refuses_once_as_outside_of_the_window(broker)
    envelope = make_envelope(v1.Info(text="late"), sender_id="alice", receiver_id="bob")
    sign_envelope(envelope, "k1", agent._key)
    by_the_agent = functools.partial(agent.send, v1.Info(text="late"), receiver_id="bob")
    sending = functools.partial(agent.send_envelope, envelope) if is_signed_by_the_caller else by_the_agent
    with pytest.raises(BatonError, match="TIMESTAMP_OUTSIDE_WINDOW"):
        await sending()
    assert len(broker.envelopes()) == 1


async def acked_between_sessions(broker, agent):
    """Acks a delivery while the agent has no session, and waits for the next session. Returns the deliveries."""
    deliveries = agent.deliveries()
    delivery = await anext(deliveries)
    await broker.out.put(None)  # the session ends
    while agent._link.session is not None:
        await asyncio.sleep(0.001)
    await delivery.ack()
    while broker.sessions < 2 or agent._link.session is None:
        await asyncio.sleep(0.001)
    return deliveries


async def test_an_ack_that_was_cut_off_is_made_up_for(broker, agent):
    envelope = message(broker, "one")
    await broker.deliver(envelope)
    deliveries = await acked_between_sessions(broker, agent)
    await broker.deliver(envelope)
    await broker.deliver(message(broker, "two"))
    assert (await anext(deliveries)).payload.text == "two"
    assert broker.acknowledgements()[-1].delivery_id == envelope.message_id


async def test_a_lost_ack_is_not_that_of_the_redriven_handoff(broker, agent):
    request = of_bob(broker, v1.HandoffRequest(task_type="x"), task_id="task", epoch=1)
    await broker.deliver(request)
    deliveries = await acked_between_sessions(broker, agent)
    await broker.deliver(request, "redriven", handoff_id="0198c0de-0000-7000-8000-000000000001")
    redriven = await asyncio.wait_for(anext(deliveries), PATIENCE_SECONDS)
    assert (redriven.delivery_id, redriven.handoff_id) == ("redriven", "0198c0de-0000-7000-8000-000000000001")
    assert broker.acknowledgements() == []


class Worker:
    """An agent whose handler of v1.Info works until `release`."""

    def __init__(self, agent):
        self.calls = asyncio.Queue()
        self._ends = asyncio.Queue()
        agent.on(v1.Info)(self._work)

    async def begun(self):
        return await asyncio.wait_for(self.calls.get(), PATIENCE_SECONDS)

    def release(self, end=None):
        """Ends the work, with `end` if there is any."""
        self._ends.put_nowait(end)

    async def _work(self, delivery):
        self.calls.put_nowait(delivery)
        end = await self._ends.get()
        if end is not None:
            await end()


@pytest.fixture
async def served(server):
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file) as agent:
        worker = Worker(agent)
        await agent.connect()
        yield worker


async def test_a_message_whose_ack_comes_too_late_is_not_handled_twice(broker, served):
    envelope = message(broker, "once")
    await broker.deliver(envelope, "first")
    await served.begun()
    broker.knows_only("third", "next")
    served.release()
    await broker.has_acknowledgement("first")
    for attempt, delivery_id in enumerate(["second", "third"], 2):
        await broker.deliver(envelope, delivery_id, attempt=attempt)
        assert (await broker.has_acknowledgement(delivery_id)).HasField("ack")
    await broker.deliver(message(broker, "two"), "next")
    assert (await served.begun()).payload.text == "two"
    served.release()
    await broker.has_acknowledgement("next")


async def test_a_redelivery_that_crosses_the_ack_is_not_handled(broker, served):
    envelope = message(broker, "once")
    await broker.deliver(envelope, "first")
    await served.begun()
    broker.knows_only("second", "next")
    refuse = broker.on_acknowledgement

    def cross(frame):
        broker.on_acknowledgement = refuse
        return [delivered(envelope, "second", attempt=2), *refuse(frame)]

    broker.on_acknowledgement = cross
    served.release()
    assert (await broker.has_acknowledgement("second")).HasField("ack")
    await broker.deliver(message(broker, "two"), "next")
    assert (await served.begun()).payload.text == "two"
    served.release()


async def test_a_message_is_handled_again_after_a_nack_that_comes_too_late(broker, served):
    envelope = message(broker, "twice")
    await broker.deliver(envelope, "first")
    await served.begun()
    broker.knows_only("second")

    async def fail():
        raise ValueError("no")

    served.release(fail)
    assert (await broker.has_acknowledgement("first")).HasField("nack")
    await broker.deliver(envelope, "second", attempt=2)
    assert (await served.begun()).attempt == 2
    served.release()
    assert (await broker.has_acknowledgement("second")).HasField("ack")


async def test_a_call_that_ends_late_leaves_the_redelivery_to_the_next(broker, served):
    envelope = message(broker, "twice")
    await broker.deliver(envelope, "first")
    delivery = await served.begun()
    broker.knows_only("third")
    is_late = asyncio.Event()

    async def fail_late():
        with pytest.raises(BatonError, match="DELIVERY_UNKNOWN"):
            await delivery.ack()
        await broker.deliver(envelope, "second", attempt=2)
        await is_late.wait()
        raise ValueError("no")

    served.release(fail_late)
    later = await served.begun()
    is_late.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not any(one.HasField("nack") for one in broker.acknowledgements()):
            await asyncio.sleep(0.001)
    await broker.deliver(envelope, "third", attempt=3)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while later.delivery_id != "third":
            await asyncio.sleep(0.001)
    served.release()
    assert (await broker.has_acknowledgement("third")).HasField("ack")
    assert served.calls.empty()


async def test_a_message_that_comes_again_before_its_handler_begins_is_handled_once(broker, served):
    envelope = message(broker, "one")
    for number in range(20):
        await broker.deliver(envelope, f"delivery {number}")
    await broker.deliver(message(broker, "two"), "other")
    calls = [await served.begun(), await served.begun()]
    assert sorted(call.payload.text for call in calls) == ["one", "two"]
    for _ in range(20):
        served.release()  # more than the calls, so that no further one waits
    acks = [await broker.has_acknowledgement(delivery_id) for delivery_id in ("delivery 19", "other")]
    assert all(one.HasField("ack") for one in acks)
    assert len(broker.acknowledgements()) == 2
    assert served.calls.empty()


async def test_a_request_that_could_not_be_rejected_comes_again(broker, server):
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file) as agent:
        agent.on(v1.Info)(lambda delivery: delivery.ack())
        await agent.connect()
        take, status = broker.on_envelope, status_of(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
        broker.on_envelope = lambda frame: [v1.ConnectResponse(request_id=frame.request_id, error=status)]
        request = of_bob(broker, v1.HandoffRequest(task_type="x"), task_id="task", epoch=1)
        await broker.deliver(request, "first")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not broker.envelopes() or agent._dispatcher._held:
                await asyncio.sleep(0.001)
        broker.on_envelope = take
        await broker.deliver(request, "second", attempt=2)
        assert (await broker.has_acknowledgement("second")).HasField("ack")
        assert [one.message_type for one in broker.envelopes()] == [v1.MESSAGE_TYPE_HANDOFF_REJECT] * 2


async def test_unread_mail_is_given_back_all_at_once(broker, agent):
    for text in ("one", "two", "three"):
        await broker.deliver(message(broker, text))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while agent._mail._mail.qsize() < 3:
            await asyncio.sleep(0.001)
    asked, waiting = [], []

    def answer_at_the_third(frame):
        asked.append(frame)
        if len(asked) < 3:
            return []
        waiting.extend(agent._link.session._answers)
        return [answer for one in asked for answer in broker.acknowledged(one)]

    broker.on_acknowledgement = answer_at_the_third
    await asyncio.wait_for(agent.close(), PATIENCE_SECONDS)
    assert all(frame.acknowledgement.nack.cause == v1.NACK_CAUSE_SHUTDOWN for frame in asked)
    assert waiting == [frame.request_id for frame in asked], "each waits for its answer when the last one comes"


async def test_a_handler_that_ignores_its_cancellation_does_not_hold_up_the_close(broker, server, monkeypatch):
    monkeypatch.setattr(baton.dispatch, "_CANCEL_SECONDS", 0.1)
    begun, released = asyncio.Event(), asyncio.Event()
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file) as agent:

        @agent.on(v1.Info)
        async def work(_delivery):
            begun.set()
            while not released.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await released.wait()

        await agent.connect()
        await broker.deliver(message(broker, "one"))
        await asyncio.wait_for(begun.wait(), PATIENCE_SECONDS)
        closing = asyncio.create_task(agent.close(datetime.timedelta()))
        closed, _ = await asyncio.wait([closing], timeout=PATIENCE_SECONDS)
        released.set()
        await closing
        assert closed


async def test_a_close_that_was_cancelled_can_be_called_again(broker, server):
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file) as agent:
        worker = Worker(agent)
        await agent.connect()
        await broker.deliver(message(broker, "one"), "first")
        await worker.begun()
        closing = asyncio.create_task(agent.close(datetime.timedelta(seconds=PATIENCE_SECONDS)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not agent._dispatcher._is_stopping:
                await asyncio.sleep(0.001)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        worker.release()
        await asyncio.wait_for(agent.close(), PATIENCE_SECONDS)
        assert broker.acknowledgements()[0].HasField("ack")
        with pytest.raises(BatonError, match="the session has ended"):
            await agent.send(v1.Info(), receiver_id="bob")


async def test_an_ack_that_is_refused_lets_the_message_come_again(broker, agent):
    envelope = message(broker, "twice")
    await broker.deliver(envelope, "first")
    deliveries = agent.deliveries()
    delivery = await anext(deliveries)
    broker.knows_only("second")
    with pytest.raises(BatonError, match="DELIVERY_UNKNOWN"):
        await delivery.ack()
    await broker.deliver(envelope, "second", attempt=2)
    again = await asyncio.wait_for(anext(deliveries), PATIENCE_SECONDS)
    assert again.delivery_id == "second"
    await again.ack()


async def test_an_ack_that_the_caller_cancels_lets_the_message_come_again(broker, agent):
    envelope = message(broker, "twice")
    await broker.deliver(envelope, "first")
    deliveries = agent.deliveries()
    delivery = await anext(deliveries)
    broker.on_acknowledgement = lambda _: []
    acking = asyncio.create_task(delivery.ack())
    await broker.has_acknowledgement("first")
    acking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acking
    await broker.deliver(envelope, "second", attempt=2)
    assert (await asyncio.wait_for(anext(deliveries), PATIENCE_SECONDS)).delivery_id == "second"


async def test_an_ack_that_crosses_a_redelivery_is_no_error(broker, agent):
    envelope = message(broker, "once")
    await broker.deliver(envelope, "first")
    deliveries = agent.deliveries()
    delivery = await anext(deliveries)
    broker.knows_only("second")
    refuse, waiting = broker.on_acknowledgement, []

    def cross(frame):
        waiting.append(frame)
        if len(waiting) == 1:
            return [delivered(envelope, "second", attempt=2)]
        return [answer for frame in waiting for answer in refuse(frame)]

    broker.on_acknowledgement = cross
    await asyncio.wait_for(delivery.ack(), PATIENCE_SECONDS)
    assert [one.delivery_id for one in broker.acknowledgements()] == ["first", "second"]
    await broker.deliver(message(broker, "two"))
    assert (await asyncio.wait_for(anext(deliveries), PATIENCE_SECONDS)).payload.text == "two"


async def test_a_redriven_request_is_not_the_one_in_work(broker, server):
    handed = asyncio.Queue()
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file) as agent:

        @agent.on_handoff
        async def take(offer):
            handed.put_nowait(offer.handoff_id)
            if offer.handoff_id == request.message_id:
                await asyncio.Event().wait()

        await agent.connect()
        request = of_bob(broker, v1.HandoffRequest(task_type="x"), task_id="task", epoch=1)
        await broker.deliver(request, "first")
        assert await asyncio.wait_for(handed.get(), PATIENCE_SECONDS) == request.message_id
        redriven = "0198c0de-0000-7000-8000-000000000001"
        await broker.deliver(request, "redriven", handoff_id=redriven)
        assert await asyncio.wait_for(handed.get(), PATIENCE_SECONDS) == redriven
        await agent.close(datetime.timedelta())


async def test_a_handler_that_awaits_something_cancelled_has_failed(broker, served):
    async def await_cancelled():
        child = asyncio.ensure_future(asyncio.Event().wait())
        child.cancel()
        await child

    await broker.deliver(message(broker, "one"), "first")
    await served.begun()
    served.release(await_cancelled)
    nack = (await broker.has_acknowledgement("first")).nack
    assert (nack.cause, nack.reason_text) == (v1.NACK_CAUSE_FAILURE, "CancelledError: ")


async def test_a_handler_that_is_cancelled_lets_its_message_go(broker, served):
    async def cancel_itself():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    envelope = message(broker, "one")
    await broker.deliver(envelope, "first")
    delivery = await served.begun()
    served.release(cancel_itself)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while delivery._extending is not None:
            await asyncio.sleep(0.001)
    await broker.deliver(envelope, "second", attempt=2)
    assert (await served.begun()).delivery_id == "second"
    served.release()
    assert (await broker.has_acknowledgement("second")).HasField("ack")


async def test_an_agent_that_is_refused_for_good_ends(broker, agent):
    broker.refuses_for_good = True
    await broker.out.put(None)
    with pytest.raises(BatonError, match="never again"):
        await agent.run()
    for _ in range(2):
        with pytest.raises(BatonError, match="never again"):
            await anext(agent.deliveries())
    with pytest.raises(BatonError, match="never again"):
        await agent.send(v1.Info(), receiver_id="bob")


async def test_fields_of_a_newer_schema_do_not_break_the_signature(broker, agent):
    envelope = message(broker, "new")
    # Field 1000 of the envelope and of the payload, unknown to this schema.
    raw = bytearray(envelope.SerializeToString()) + b"\xc2\x3e\x03new"
    await broker.deliver(v1.Envelope.FromString(bytes(raw)))
    newer = make_envelope(v1.Info(text="newer"), sender_id="bob", receiver_id="alice")
    newer.payload.value += b"\xc2\x3e\x03new"
    sign_envelope(newer, "k1", broker.agent_keys["bob"])
    await broker.deliver(newer)
    deliveries = agent.deliveries()
    first, second = await anext(deliveries), await anext(deliveries)
    assert (first.payload.text, second.payload.text) == ("new", "newer")
    assert second.envelope.payload.value == newer.payload.value
    assert first.envelope.SerializeToString() == bytes(raw), "it is forwarded untouched"


async def test_a_message_type_of_a_newer_schema_is_kept_as_a_dead_letter(broker, agent):
    envelope = message(broker, "strange")
    envelope.message_type = 99
    sign_envelope(envelope, "k1", broker.agent_keys["bob"])
    await broker.deliver(envelope)
    await broker.deliver(message(broker, "two"))
    assert (await anext(agent.deliveries())).payload.text == "two"
    nack = broker.acknowledgements()[0].nack
    assert nack.cause == v1.NACK_CAUSE_POISON
    assert "PAYLOAD_TYPE_MISMATCH" in nack.reason_text


async def test_whoever_waits_for_a_handoff_hears_of_the_end(broker, agent):
    broker.agent_keys["bob"] = generate_key()
    handing = asyncio.create_task(agent.hand_over("bob", "task", v1.HandoffRequest(task_type="x"), []))
    while not any(frame.HasField("envelope") for frame in broker.frames):
        await asyncio.sleep(0.001)
    broker.refuses_for_good = True
    await broker.out.put(None)
    with pytest.raises(BatonError, match="never again"):
        await asyncio.wait_for(handing, PATIENCE_SECONDS)


async def test_an_agent_connects_once(agent):
    with pytest.raises(RuntimeError):
        await agent.connect()


async def test_nobody_there():
    async with Agent("127.0.0.1:1", "alice", generate_key()) as agent:
        with pytest.raises(BatonError) as failed:
            await agent.connect()
        assert failed.value.code is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(RuntimeError):
            await agent.send(v1.Info(), receiver_id="bob")


async def test_a_handler_can_close_its_agent(broker, server):
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file) as agent:

        @agent.on(v1.Info)
        async def stop(delivery):
            await delivery.ack()
            await agent.close()

        await agent.connect()
        await broker.deliver(message(broker, "stop"))
        await asyncio.wait_for(agent.run(), PATIENCE_SECONDS)


MIB = 1024 * 1024


@pytest.mark.parametrize("size", [MIB + 1, 2 * MIB, 5 * MIB])
async def test_too_large_a_payload_is_refused_here_and_not_sent(broker, agent, size):
    with pytest.raises(BatonError) as refused:
        await agent.send(v1.Info(text="x" * size), receiver_id="bob")
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PAYLOAD_TOO_LARGE")
    await agent.send(v1.Info(text="small"), receiver_id="bob")
    assert [len(one.payload.value) for one in broker.envelopes()] == [len("small") + 2]
    assert broker.sessions == 1


async def test_the_largest_payload_is_sent(broker, agent):
    await agent.send(v1.Info(text="x" * (MIB - 4)), receiver_id="bob")
    assert [len(one.payload.value) for one in broker.envelopes()] == [MIB]


async def test_too_large_a_context_is_refused_before_the_handoff_is_asked_for(broker, agent):
    context = [json_section("goals", ["x" * MIB])]
    for handing in [
        agent.hand_over("bob", "task", v1.HandoffRequest(task_type="x"), context),
        agent.delegate("bob", "task", v1.HandoffRequest(task_type="x"), context),
        agent.resume_hand_over("0198c0de-0000-7000-8000-000000000001", context),
    ]:
        with pytest.raises(BatonError, match="PAYLOAD_TOO_LARGE"):
            await handing
    assert broker.envelopes() == []


@pytest.mark.parametrize(
    ("field", "receiver_id", "fields"),
    [
        ("task_id", "bob", {"task_id": "t" * 129}),
        ("receiver_id", "b" * 129, {}),
        ("receiver_id", "type:" + "b" * 129, {}),
        ("correlation_id", "bob", {"correlation_id": "c" * 37}),
    ],
)
async def test_too_long_an_id_is_refused_here_and_not_sent(broker, agent, field, receiver_id, fields):
    with pytest.raises(BatonError) as refused:
        await agent.send(v1.Info(), receiver_id=receiver_id, **fields)
    assert refused.value.reason == "FIELD_INVALID"
    assert [one.field for one in refused.value.field_violations] == [f"envelope.{field}"]
    assert broker.envelopes() == []
    await agent.send(v1.Info(), receiver_id="type:" + "b" * 128, task_id="t" * 128)


async def test_too_large_a_frame_is_not_sent(broker, agent):
    envelope = message(broker, "small")
    raw = envelope.SerializeToString() + b"\xc2\x3e\x80\x80\x80\x02" + bytes(4 * MIB)  # field 1000
    with pytest.raises(BatonError) as refused:
        await agent.send_envelope(v1.Envelope.FromString(raw))
    assert refused.value.code is grpc.StatusCode.OUT_OF_RANGE
    assert broker.envelopes() == []
    assert broker.sessions == 1


TOO_LARGE = [(grpc.StatusCode.OUT_OF_RANGE, ""), (grpc.StatusCode.INVALID_ARGUMENT, "PAYLOAD_TOO_LARGE")]


@pytest.mark.parametrize(("code", "reason"), TOO_LARGE)
async def test_a_message_that_ends_the_session_is_not_sent_again(broker, agent, code, reason):
    take = broker.on_envelope
    broker.ends_with, broker.on_envelope = (code, reason), lambda _: [None]
    with pytest.raises(BatonError) as refused:
        await agent.send(v1.Info(text="bad"), receiver_id="bob")
    assert refused.value.code is code
    broker.ends_with, broker.on_envelope = None, take
    await agent.send(v1.Info(text="good"), receiver_id="bob")
    assert [v1.Info.FromString(one.payload.value).text for one in broker.envelopes()] == ["bad", "good"]
    assert broker.sessions == 2


@pytest.mark.parametrize(("code", "reason"), TOO_LARGE)
async def test_of_the_messages_that_wait_when_the_session_ends_the_largest_is_refused(broker, agent, code, reason):
    take, asked = broker.on_envelope, []

    def end_at_the_third(frame):
        asked.append(frame)
        if len(asked) < 3:
            return []
        broker.on_envelope = take
        return [None]

    broker.ends_with, broker.on_envelope = (code, reason), end_at_the_third
    texts = ["small", "x" * 1000, "another"]
    sending = [asyncio.create_task(agent.send(v1.Info(text=text), receiver_id="bob")) for text in texts]
    with pytest.raises(BatonError) as refused:
        await asyncio.wait_for(sending[1], PATIENCE_SECONDS)
    assert refused.value.code is code
    broker.ends_with = None
    await asyncio.wait_for(asyncio.gather(sending[0], sending[2]), PATIENCE_SECONDS)
    sent = [v1.Info.FromString(one.payload.value).text for one in broker.envelopes()]
    assert (sent[:3], sorted(sent[3:])) == (texts, ["another", "small"])


async def test_a_session_that_ends_for_another_reason_refuses_no_message(broker, agent):
    take = broker.on_envelope

    def end_once(_frame):
        broker.on_envelope = take
        return [None]

    broker.ends_with, broker.on_envelope = (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED"), end_once
    await asyncio.wait_for(agent.send(v1.Info(text="again"), receiver_id="bob"), PATIENCE_SECONDS)
    assert [v1.Info.FromString(one.payload.value).text for one in broker.envelopes()] == ["again", "again"]


async def test_too_large_a_heartbeat_goes_without_its_content(broker, server):
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file) as agent:
        agent.heartbeat.status = "x" * (4 * MIB)
        await agent.connect()
        await agent.send(v1.Info(), receiver_id="bob")
        assert [frame.heartbeat for frame in broker.frames if frame.HasField("heartbeat")] == [v1.Heartbeat()]
        assert broker.sessions == 1


@pytest.mark.parametrize("payload", [v1.HandoffAccept(), v1.TaskContextTransfer()])
@pytest.mark.parametrize("state", [v1.HANDOFF_STATE_ACCEPTED, v1.HANDOFF_STATE_CANCELLED])
async def test_a_step_of_a_handoff_that_no_call_waits_for_is_no_poison(broker, server, payload, state):
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file) as agent:
        agent.on(v1.Info)(lambda delivery: delivery.ack())
        await agent.connect()
        broker.handoff = v1.Handoff(sender_id="alice", state=state)
        await broker.deliver(of_bob(broker, payload, task_id="task", epoch=1, correlation_id="handoff"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (told := broker.acknowledgements()):
                await asyncio.sleep(0.001)
        if state == v1.HANDOFF_STATE_ACCEPTED:
            assert (told[0].nack.cause, told[0].nack.retry_after.seconds) == (v1.NACK_CAUSE_SHUTDOWN, 2)
        else:
            assert told[0].HasField("ack"), "it is over"


async def test_a_step_of_a_handoff_that_is_not_there_any_more_is_acked(broker, server):
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file) as agent:
        agent.on(v1.Info)(lambda delivery: delivery.ack())
        await agent.connect()
        broker.handoff = None
        await broker.deliver(of_bob(broker, v1.HandoffAccept(), task_id="task", epoch=1, correlation_id="handoff"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (told := broker.acknowledgements()):
                await asyncio.sleep(0.001)
        assert told[0].HasField("ack")


@pytest.mark.parametrize(
    ("handoff", "reason"),
    [
        (v1.Handoff(state=v1.HANDOFF_STATE_FAILED, error_code=v1.ERROR_CODE_CONTEXT_TIMEOUT), "CONTEXT_TIMEOUT"),
        (v1.Handoff(state=v1.HANDOFF_STATE_REQUESTED, candidate_id="carol"), "OFFER_WITHDRAWN"),
    ],
)
async def test_an_offer_that_ends_without_a_word_ends_the_wait(broker, server, monkeypatch, handoff, reason):
    monkeypatch.setattr(baton.handoffs, "LOOK_SECONDS", 0.1)
    told = asyncio.Queue()
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file) as agent:

        @agent.on_handoff
        async def take(offer):
            try:
                await offer.accept()
            except HandoffFailedError as error:
                told.put_nowait(error.reason)

        await agent.connect()
        broker.handoff = v1.Handoff(state=v1.HANDOFF_STATE_ACCEPTED, candidate_id="alice")
        await broker.deliver(of_bob(broker, v1.HandoffRequest(task_type="x"), task_id="task", epoch=1))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while broker.looks < 2:
                await asyncio.sleep(0.001)
        assert told.empty(), "a look changes nothing by itself"
        broker.handoff = handoff
        assert await asyncio.wait_for(told.get(), PATIENCE_SECONDS) == reason


async def test_a_context_that_cannot_be_sent_cancels_the_handoff(broker, server):
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file) as agent:

        @agent.context_provider
        async def too_much(_wanted):
            return [json_section("goals", ["x" * MIB])]

        await agent.connect()
        await broker.deliver(of_bob(broker, v1.HandoffAccept(), task_id="task", epoch=1, correlation_id="handoff"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (told := broker.acknowledgements()):
                await asyncio.sleep(0.001)
        assert told[0].HasField("ack")
        [cancel] = broker.envelopes()
        assert cancel.message_type == v1.MESSAGE_TYPE_HANDOFF_CANCEL
        assert (cancel.receiver_id, cancel.task_id, cancel.correlation_id) == ("bob", "task", "handoff")
