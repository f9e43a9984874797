"""The scenarios that the clients of all languages run; clients/scenarios/README.md defines their format."""

import asyncio
import base64
import contextlib
import json
import re
import secrets
from datetime import timedelta
from pathlib import Path

import pytest
from brokers import RealBroker, needs_broker
from google.protobuf import json_format

from baton import BatonError, context_digest, generate_key, make_envelope, sign_envelope, v1

FOLDER = Path(__file__).parents[2] / "scenarios"
FILES = sorted(FOLDER.glob("*.json"))
STEP_SECONDS = 300

pytestmark = needs_broker

SEND = {"type", "payload", "id", "to", "task", "epoch", "correlation", "sender", "message_id", "clock_offset_ms"}
SEND |= {"expires_in_ms", "signed_by", "changed"}
RECEIVE = {"type", "from", "to", "task", "epoch", "correlation", "message", "attempt", "payload", "id", "then"}
FIELDS = {"to": "receiver_id", "task": "task_id", "epoch": "epoch", "correlation": "correlation_id"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    broker = RealBroker(tmp_path_factory.mktemp("broker"))
    asyncio.run(broker.start())
    yield broker
    broker.end()


def test_there_are_scenarios():
    assert FILES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_scenario(broker, file):
    scenario = json.loads(file.read_text("utf-8"))
    async with contextlib.AsyncExitStack() as stack:
        playing = Playing(broker, stack)
        await playing.enter(scenario)
        for number, step in enumerate(scenario["steps"], 1):
            try:
                async with asyncio.timeout(STEP_SECONDS):
                    await playing.step(playing.bound(step))
            except Exception as error:
                raise AssertionError(f"step {number}, {step}: {error!r}") from error


class Playing:
    """One run of a scenario."""

    def __init__(self, broker, stack):
        self.broker = broker
        self.stack = stack
        self.names = {}
        self.keys = {}
        self.agents = {}
        self.mail = {}
        self.sent = {}
        self.receipts = {}
        self.received = {}

    async def enter(self, scenario):
        mark = secrets.token_hex(4)
        for name in [*scenario["agents"], *scenario.get("names", [])]:
            self.names[name] = f"{name}-{mark}"
        for name, unbound in scenario["agents"].items():
            options = self.bound(unbound)
            self.keys[name] = generate_key()
            async with self.broker.agent(self.names[name], key=self.keys[name]) as registering:
                await registering.register(agent_types=options.get("types", []))
            if options.get("connected", True):
                await self.connect(name, 16)

    async def connect(self, name, credit):
        agent = self.broker.agent(self.names[name], key=self.keys[name], credit=credit)
        self.agents[name] = await self.stack.enter_async_context(agent)
        self.mail[name] = agent.deliveries()
        await agent.connect()

    async def step(self, step):
        name, expected = step.pop("as"), step.pop("expect", None)
        agent = self.agents.get(name)
        [(key, value)] = step.items()
        match key:
            case "send":
                await self.send(name, value, expected)
            case "repeat":
                await self.answered(agent.send_envelope(self.sent[value]), expected)
            case "receive":
                await self.receive(name, value)
            case "acknowledge":
                await self.answered(then(self.received[value["delivery"]], value["then"]), expected)
            case "connect":
                await self.connect(name, value["credit"])
            case "disconnect":
                await agent.close()
            case "task":
                check(expected, seen_task(await agent.get_task(value)))
            case "handoff":
                check(expected, seen_handoff(await agent.get_handoff(value)))
            case _:
                raise AssertionError(f"there is no step {key}")

    async def send(self, name, what, expected):
        assert not what.keys() - SEND
        payload = json_format.ParseDict(what.get("payload", {}), getattr(v1, what["type"])())
        if isinstance(payload, v1.TaskContextTransfer) and not payload.context_digest:
            payload.context_digest = context_digest(payload.sections)
        envelope = make_envelope(payload, sender_id=what.get("sender", self.names[name]), receiver_id="")
        set_fields(envelope, what)
        envelope.message_id = what.get("message_id", envelope.message_id)
        if "expires_in_ms" in what:
            envelope.expires_at.FromMilliseconds(envelope.timestamp.ToMilliseconds() + what["expires_in_ms"])
        envelope.timestamp.FromNanoseconds(envelope.timestamp.ToNanoseconds() + what.get("clock_offset_ms", 0) * 10**6)
        if signer := what.get("signed_by", name):
            sign_envelope(envelope, "k1", self.keys[signer])
        else:
            envelope.key_id, envelope.signature_version = "k1", 1
        set_fields(envelope, what.get("changed", {}))
        if "id" in what:
            self.sent[what["id"]] = envelope
            self.names[what["id"]] = envelope.message_id
            if isinstance(payload, v1.TaskContextTransfer):
                self.names[f"{what['id']}.digest"] = base64.b64encode(payload.context_digest).decode()
        receipt = await self.answered(self.agents[name].send_envelope(envelope), expected)
        if "id" in what:
            self.receipts[what["id"]] = receipt

    async def receive(self, name, what):
        assert not what.keys() - RECEIVE
        # The client verified the signature with the sender's key.
        delivery = await anext(self.mail[name])
        envelope, payload = delivery.envelope, delivery.payload
        seen = {
            "type": payload.DESCRIPTOR.name,
            "from": envelope.sender_id,
            "to": envelope.receiver_id,
            "task": envelope.task_id,
            "epoch": envelope.epoch,
            "correlation": envelope.correlation_id,
            "message": envelope.message_id,
            "attempt": delivery.attempt,
            "payload": json_format.MessageToDict(payload),
        }
        check({key: value for key, value in what.items() if key not in ("id", "then")}, seen)
        if isinstance(payload, v1.TaskContextTransfer):
            assert payload.context_digest == context_digest(payload.sections)
        if "id" in what:
            self.received[what["id"]] = delivery
        await then(delivery, what.get("then", "ack"))

    async def answered(self, asking, expected):
        """Makes a call and compares the receipt or the refusal with the expected one."""
        expected = expected or {}
        if "error" in expected:
            with pytest.raises(BatonError) as refused:
                await asking
            error = refused.value
            fields = expected.pop("fields", None)
            check(expected, {"error": error.reason, "code": error.code.name, "metadata": error.metadata})
            assert fields is None or {one.field for one in error.field_violations} == set(fields)
            return None
        receipt = await asking
        if "same_receipt_as" in expected:
            assert receipt == self.receipts[expected.pop("same_receipt_as")]
        if expected:
            seen = {
                "state": plain(v1.HandoffState, receipt.handoff_state, "HANDOFF_STATE_"),
                "status": plain(v1.TaskStatus, receipt.task_status, "TASK_STATUS_"),
                "epoch": receipt.epoch,
                "owner": receipt.owner_id,
                "handoff": receipt.handoff_id,
            }
            check(expected, seen)
        return receipt

    def bound(self, value):
        """Returns a copy with every name replaced by its bound value."""
        if isinstance(value, dict):
            return {key: self.bound(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.bound(one) for one in value]
        if isinstance(value, str):
            return re.sub(r"\$\{([^}]+)\}", lambda name: self.names[name[1]], value)
        return value


async def then(delivery, what):
    match what:
        case "ack":
            await delivery.ack()
        case "nothing":
            pass
        case {"extend_ms": milliseconds}:
            await delivery.extend(timedelta(milliseconds=milliseconds))
        case {"nack": cause, **rest}:
            wait = rest.get("retry_after_ms")
            retry_after = None if wait is None else timedelta(milliseconds=wait)
            await delivery.nack(v1.NackCause.Value(f"NACK_CAUSE_{cause}"), retry_after=retry_after)
        case _:
            raise AssertionError(f"there is no {what}")


def check(expected, seen):
    """Compares the named fields: objects by their named keys in turn, lists as a whole."""
    for key, value in expected.items():
        assert key in seen, f"{key} is missing in {seen}"
        if isinstance(value, dict):
            check(value, seen[key])
        else:
            assert seen[key] == value, f"{key}: {seen[key]!r}, expected {value!r}"


def seen_task(task):
    return {
        "owner": task.owner_id,
        "epoch": task.epoch,
        "status": plain(v1.TaskStatus, task.status, "TASK_STATUS_"),
        "open_handoff": task.open_handoff_id,
    }


def seen_handoff(handoff):
    return {
        "state": plain(v1.HandoffState, handoff.state, "HANDOFF_STATE_"),
        "sender_view": plain(v1.SenderView, handoff.sender_view, "SENDER_VIEW_"),
        "receiver_view": plain(v1.ReceiverView, handoff.receiver_view, "RECEIVER_VIEW_"),
        "candidate": handoff.candidate_id,
        "error": plain(v1.ErrorCode, handoff.error_code, "ERROR_CODE_"),
    }


def plain(enum, number, prefix):
    return enum.Name(number).removeprefix(prefix)


def set_fields(envelope, what):
    for key, field in FIELDS.items():
        if key in what:
            setattr(envelope, field, what[key])
