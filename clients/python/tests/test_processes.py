"""The process behind a session, and the work that its heartbeats list."""

import asyncio
import uuid

import grpc
import pytest
from brokers import PATIENCE_SECONDS
from test_agent import broker, of_bob, server, status_of  # noqa: F401

import baton.session
from baton import Agent, generate_key, v1
from baton.signing import context_digest, pae, receipt_body
from baton.work import CURRENT, WORKING_ON_MAX, Handling, Work, parent_here


def agent_at(server):  # noqa: F811
    return Agent(server.address, "alice", generate_key(), ca_file=server.ca_file)


def frames(broker, name):  # noqa: F811
    return [getattr(frame, name) for frame in broker.frames if frame.HasField(name)]


async def until(condition):
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


async def test_each_session_begins_with_the_same_process(broker, server):  # noqa: F811
    async with agent_at(server) as alice:
        await alice.connect()
        await broker.out.put(None)
        await until(lambda: broker.sessions == 2 and len(frames(broker, "credit")) == 2)
        kinds = [frame.WhichOneof("request") for frame in broker.frames]
        assert [kind for kind in kinds if kind != "heartbeat"] == ["hello", "credit"] * 2
        assert kinds[0] == "hello"
        first, second = frames(broker, "hello")
        assert first == second
        assert (str(uuid.UUID(first.instance_id)), first.tells_work) == (alice.instance_id, True)
        assert agent_at(server).instance_id != alice.instance_id


async def test_a_broker_that_knows_no_processes_is_served(broker, server, monkeypatch):  # noqa: F811
    refused = status_of(grpc.StatusCode.INVALID_ARGUMENT, "NOT_SUPPORTED")
    read = broker.read

    async def refuse(requests):
        async def others():
            async for frame in requests:
                if frame.HasField("hello"):
                    await broker.out.put(v1.ConnectResponse(request_id=frame.request_id, error=refused))
                else:
                    yield frame

        await read(others())

    monkeypatch.setattr(broker, "read", refuse)
    async with agent_at(server) as alice:
        await alice.connect()
        await alice.send(v1.Info(), receiver_id="bob")


async def test_a_heartbeat_tells_the_work_at_once(broker, server):  # noqa: F811
    handoffs, release = {}, asyncio.Event()

    def take(frame):
        envelope = frame.envelope
        receipt = v1.Receipt(message_id=envelope.message_id, task_id=envelope.task_id, owner_id="bob", epoch=1)
        receipt.key_id = "broker"
        if envelope.message_type == v1.MESSAGE_TYPE_HANDOFF_COMPLETE:
            receipt.owner_id, receipt.epoch = "alice", 2
        receipt.signature = broker.key.sign(pae("application/vnd.baton.receipt.v1", receipt_body(receipt)))
        if envelope.message_type == v1.MESSAGE_TYPE_HANDOFF_ACCEPT:
            context = v1.TaskContextTransfer(context_digest=context_digest([]))
            handoffs[envelope.task_id] = of_bob(
                broker, context, task_id=envelope.task_id, epoch=1, correlation_id=envelope.correlation_id
            )
        return [v1.ConnectResponse(request_id=frame.request_id, receipt=receipt)]

    broker.on_envelope = take
    async with agent_at(server) as alice:

        @alice.on_handoff
        async def work(offer):
            await (await offer.accept()).complete()
            await release.wait()

        await alice.connect()
        for task_id in ("t1", "t2"):
            await broker.deliver(of_bob(broker, v1.HandoffRequest(task_type="x"), task_id=task_id, epoch=1))
        await until(lambda: len(handoffs) == 2)
        for context in handoffs.values():
            await broker.deliver(context)
        # The interval of this broker's heartbeats is a minute.
        await until(lambda: set(frames(broker, "heartbeat")[-1].working_on) == {"t1", "t2"})
        release.set()
        await until(lambda: not frames(broker, "heartbeat")[-1].working_on)


async def test_many_short_tasks_share_heartbeats(broker, server):  # noqa: F811
    async with agent_at(server) as alice:
        await alice.connect()
        began = asyncio.get_running_loop().time()
        for number in range(1000):
            alice.work.release(alice.work.took(f"t{number}", 2))
            if number % 100 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(3 * baton.session.BEAT_SECONDS_MIN)
        took = asyncio.get_running_loop().time() - began
        assert 2 <= len(frames(broker, "heartbeat")) <= 2 + took / baton.session.BEAT_SECONDS_MIN


def told(work, kind, at_epoch, **receipt):
    envelope = v1.Envelope(message_type=kind, task_id="t", epoch=at_epoch)
    work.told(envelope, v1.Receipt(task_id="t", **receipt))


@pytest.fixture
def work():
    changes = []
    work = Work("alice", lambda: changes.append(1))
    told(work, v1.MESSAGE_TYPE_HANDOFF_COMPLETE, 1, owner_id="alice", epoch=2)
    assert (work.listed(), changes) == (["t"], [1])
    return work


def test_a_task_is_listed_until_it_ends(work):
    told(work, v1.MESSAGE_TYPE_TASK_STATUS_UPDATE, 2, owner_id="alice", epoch=2, task_status=2)
    assert work.listed() == ["t"]
    told(work, v1.MESSAGE_TYPE_TASK_STATUS_UPDATE, 2, owner_id="bob", epoch=3, task_status=2)
    assert work.listed() == []


def test_a_lent_task_is_listed_again_when_it_is_back(work):
    held = work.of("t", 2)
    work.handed("t", 3)
    assert (work.listed(), work.has("t")) == ([], True)
    work.back("t", 4)
    assert (work.listed(), held.epoch) == (["t"], 4)


def test_a_task_that_was_taken_is_not_listed_and_does_not_follow_its_next_takeover(work):
    held = work.of("t", 2)
    work.taken("t", 2)
    assert work.listed() == ["t"], "that is the epoch of the takeover itself"
    work.taken("t", 3)
    assert (work.listed(), held.is_over) == ([], True)
    again = work.took("t", 4)
    work.release(held)
    assert (work.listed(), held.epoch, again.epoch) == (["t"], 2, 4)


def test_a_heartbeat_lists_so_many_tasks_at_most(work):
    for number in range(WORKING_ON_MAX):
        work.took(f"t{number}", 2)
    assert len(work.listed()) == WORKING_ON_MAX


def test_the_task_of_the_handler_is_the_parent(work):
    held = work.of("t", 2)
    token = CURRENT.set(Handling(held))
    try:
        assert parent_here("alice", "part") == "t"
        assert parent_here("alice", "t") == ""
        assert parent_here("bob", "part") == "", "another agent of the process"
        work.handed("t", 3)
        assert parent_here("alice", "part") == "", "it is lent"
        work.back("t", 4)
        assert parent_here("alice", "part") == "t"
        work.taken("t", 5)
        assert parent_here("alice", "part") == ""
    finally:
        CURRENT.reset(token)


async def test_a_look_into_the_mailbox_takes_nothing(broker, server):  # noqa: F811
    asked = []

    async def receive(request, context):
        asked.append((request, dict(context.invocation_metadata())["authorization"]))
        yield v1.ReceiveResponse(delivery=v1.Delivery(envelope=of_bob(broker, v1.Info(text="hello"))))
        forged = of_bob(broker, v1.Info(text="hello"))
        forged.signature = bytes(64)
        yield v1.ReceiveResponse(delivery=v1.Delivery(envelope=forged))

    broker.receive = receive
    async with Agent(server.address, "alice", generate_key(), ca_file=server.ca_file) as alice:
        [waiting] = await alice.peek()
        assert (waiting.payload.text, waiting.envelope.sender_id) == ("hello", "bob")
    [(request, token)] = asked
    assert (request.peek, request.instance_id, token) == (True, alice.instance_id, "Bearer secret")
    assert broker.sessions == 0
