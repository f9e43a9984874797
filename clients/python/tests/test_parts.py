import re
import stat
import uuid
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2

from baton import (
    BatonError,
    FieldViolation,
    VerificationError,
    generate_key,
    handoff_id_of,
    json_section,
    load_key,
    make_envelope,
    payload_of,
    public_bytes,
    save_key,
    v1,
    vouch,
)
from baton.directory import Directory
from baton.envelopes import new_message_id

# Made by `openssl genpkey -algorithm ed25519`; the broker's `baton keygen` writes the same form.
OPENSSL_PEM = """-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f
-----END PRIVATE KEY-----
"""


SCHEMA = Path(__file__).parents[3] / "proto" / "baton" / "v1"


def any_of(message):
    packed = Any()
    packed.Pack(message)
    return packed


def test_an_error_says_all_that_the_status_does():
    bad_request = error_details_pb2.BadRequest()
    bad_request.field_violations.add(field="envelope.task_id", description="must not be empty")
    status = status_pb2.Status(
        code=grpc.StatusCode.INVALID_ARGUMENT.value[0],
        message="envelope.task_id must not be empty",
        details=[
            any_of(error_details_pb2.ErrorInfo(reason="FIELD_INVALID", domain="baton", metadata={"a": "b"})),
            any_of(bad_request),
            any_of(error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000))),
            any_of(error_details_pb2.Help()),
        ],
    )
    trailers = grpc.aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))
    call = grpc.aio.AioRpcError(grpc.StatusCode.INVALID_ARGUMENT, grpc.aio.Metadata(), trailers, "short")
    for error in [BatonError.from_status(status), BatonError.from_call(call)]:
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert error.reason == "FIELD_INVALID"
        assert error.metadata == {"a": "b"}
        assert error.field_violations == (FieldViolation("envelope.task_id", "must not be empty"),)
        assert error.retry_delay == 1.5
        assert str(error) == "FIELD_INVALID: envelope.task_id must not be empty"


def test_an_error_without_details_has_its_code():
    call = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "no connection")
    error = BatonError.from_call(call)
    assert (error.code, error.reason, error.retry_delay) == (grpc.StatusCode.UNAVAILABLE, "", None)
    assert str(error) == "UNAVAILABLE: no connection"


def test_key_files(tmp_path):
    key = generate_key()
    path = tmp_path / "agent.pem"
    save_key(path, key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert public_bytes(load_key(path)) == public_bytes(key)
    with pytest.raises(FileExistsError):
        save_key(path, generate_key())
    assert public_bytes(load_key(path)) == public_bytes(key)


def test_key_files_of_others(tmp_path):
    path = tmp_path / "agent.pem"
    path.write_text(OPENSSL_PEM)
    assert public_bytes(load_key(path)).hex() == "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
    path.write_text("no key")
    with pytest.raises(ValueError):  # noqa: PT011 (its text is cryptography's)
        load_key(path)


def test_message_ids_are_uuids_of_version_7():
    before = datetime.now(UTC).timestamp()
    message_id = uuid.UUID(new_message_id())
    assert (message_id.version, message_id.variant) == (7, uuid.RFC_4122)
    assert abs((message_id.int >> 80) / 1000 - before) < 5
    assert len({new_message_id() for _ in range(100)}) == 100


# A checkpoint has the payload of a context, which by itself is that of a handoff.
_WITHOUT_PAYLOAD = ("MESSAGE_TYPE_UNSPECIFIED", "MESSAGE_TYPE_CONTEXT_CHECKPOINT")


@pytest.mark.parametrize("name", [name for name in v1.MessageType.keys() if name not in _WITHOUT_PAYLOAD])  # noqa: SIM118
def test_every_message_type_has_its_payload(name):
    payload_name = "".join(word.capitalize() for word in name.removeprefix("MESSAGE_TYPE_").split("_"))
    payload = getattr(v1, payload_name)()
    envelope = make_envelope(payload, sender_id="a", receiver_id="b")
    assert envelope.message_type == v1.MessageType.Value(name)
    assert envelope.payload.type_url == f"type.googleapis.com/baton.v1.{payload_name}"
    assert payload_of(envelope) == payload


def test_a_checkpoint_has_the_payload_of_a_context():
    envelope = make_envelope(v1.TaskContextTransfer(), sender_id="a", receiver_id="")
    envelope.message_type = v1.MESSAGE_TYPE_CONTEXT_CHECKPOINT
    assert payload_of(envelope) == v1.TaskContextTransfer()


@pytest.mark.parametrize(
    ("file", "prefix", "enum"),
    [("error.proto", "ERROR_CODE", v1.ErrorCode), ("envelope.proto", "MESSAGE_TYPE", v1.MessageType)],
)
def test_the_client_knows_every_number_of_the_schema(file, prefix, enum):
    found = re.findall(rf"^  ({prefix}_\w+) = (\d+);", (SCHEMA / file).read_text("utf-8"), re.MULTILINE)
    assert len(found) > 10
    assert {name: int(number) for name, number in found} == dict(enum.items())


def test_an_envelope_carries_what_it_is_given():
    until = datetime(2030, 1, 1, tzinfo=UTC)
    payload = v1.HandoffRequest(task_type="support")
    envelope = make_envelope(payload, sender_id="a", receiver_id="b", task_id="t", epoch=2, expires_at=until)
    assert (envelope.task_id, envelope.epoch, envelope.expires_at.seconds) == ("t", 2, 1893456000)
    assert handoff_id_of(envelope) == envelope.message_id
    answer = make_envelope(v1.HandoffAccept(), sender_id="b", receiver_id="a", correlation_id=envelope.message_id)
    assert handoff_id_of(answer) == envelope.message_id


def test_what_is_no_envelope():
    with pytest.raises(ValueError, match="not a payload"):
        make_envelope(v1.Envelope(), sender_id="a", receiver_id="b")
    with pytest.raises(ValueError, match="time zone"):
        make_envelope(v1.Info(), sender_id="a", receiver_id="b", expires_at=datetime(2030, 1, 1))  # noqa: DTZ001
    envelope = make_envelope(v1.Info(text="hello"), sender_id="a", receiver_id="b")
    envelope.message_type = v1.MESSAGE_TYPE_DELEGATION
    with pytest.raises(VerificationError, match="PAYLOAD_TYPE_MISMATCH"):
        payload_of(envelope)
    envelope.message_type = v1.MESSAGE_TYPE_INFO
    envelope.payload.value = b"\xff"
    with pytest.raises(VerificationError, match="MALFORMED"):
        payload_of(envelope)


def test_json_sections_are_utf8_text():
    assert json_section("notes", {"Gruß": [1, None]}).json == '{"Gruß": [1, null]}'
    with pytest.raises(ValueError, match="JSON"):
        json_section("notes", [float("nan")])


async def test_where_operators_are_known_a_key_needs_the_word_of_one():
    operator, agent = generate_key(), generate_key()
    key = v1.AgentKey(key_id="k1", public_key=public_bytes(agent))
    past, future = Timestamp(seconds=1), Timestamp(seconds=2**33)

    async def refusal(*vouchers, pinned=None):
        async def get_agent(agent_id):
            vouched = v1.AgentKey(key_id="k1", public_key=public_bytes(agent), vouchers=vouchers)
            return v1.Agent(card=v1.AgentCard(agent_id=agent_id, keys=[vouched]))

        directory = Directory(get_agent, pinned or {}, {"ops": public_bytes(operator)})
        try:
            await directory.key("alice", "k1")
        except VerificationError as error:
            return error.reason

    assert await refusal(vouch("alice", key, "ops", operator)) is None
    assert await refusal(vouch("alice", key, "ops", operator, future)) is None
    assert await refusal(pinned={"alice": [key]}) is None, "pinned keys need no voucher"
    assert await refusal() == "KEY_UNKNOWN"
    for bad in [
        vouch("alice", key, "others", operator),
        vouch("alice", key, "ops", generate_key()),
        vouch("bob", key, "ops", operator),
        vouch("alice", v1.AgentKey(key_id="k2", public_key=key.public_key), "ops", operator),
        vouch("alice", key, "ops", operator, past),
        v1.KeyVoucher(operator_key_id="ops", signature=vouch("alice", key, "ops", operator, past).signature),
    ]:
        assert await refusal(bad) == "KEY_UNKNOWN"
