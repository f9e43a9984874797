"""A broker where only operators register agents: by their token, by an invitation, and certificates as proof."""

import datetime
import json

import pytest
from brokers import RealBroker, needs_broker
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from baton import BatonError, generate_key, v1

pytestmark = needs_broker


@pytest.fixture
async def broker(tmp_path):
    broker = RealBroker(tmp_path)
    await broker.start()
    yield broker
    broker.stop()


async def test_by_an_operator_or_by_an_invitation(broker):
    await broker.serve()
    token = broker.operator_token()
    async with broker.agent("alice", operator_token=token) as alice, broker.agent("bob") as bob:
        assert (await alice.register()).card.agent_id == "alice"
        with pytest.raises(BatonError) as refused:
            await bob.register()
        assert refused.value.reason in ("IDENTITY_MISSING", "PERMISSION_DENIED")
        with pytest.raises(BatonError) as refused:
            await bob.register(invitation="invitation-0000")
        assert refused.value.reason == "INVITATION_INVALID"
        invited = json.loads(broker.cli("agent", "invite", "--id", "bob", "-o", "json", "--token", token))
        await bob.register(invitation=invited["invitation"])
        await bob.connect()
        await alice.connect()
        await alice.send(v1.Info(text="welcome"), receiver_id="bob")
        delivery = await anext(bob.deliveries())
        await delivery.ack()


async def test_an_agent_that_starts_anew_may_change_its_card(broker):
    key = generate_key()
    async with broker.agent("bob", key=key) as bob:
        await bob.register(agent_types=["support"])
    async with broker.agent("bob", key=key, capacity=8) as bob:
        card = (await bob.register(agent_types=["support", "sales"])).card
        assert (list(card.agent_types), card.capacity) == (["support", "sales"], 8)
    async with broker.agent("bob") as stranger:
        with pytest.raises(BatonError) as refused:
            await stranger.register()
        assert refused.value.reason == "CHALLENGE_FAILED"


async def test_a_client_certificate_proves_who_one_is(broker, tmp_path):
    certificate, key = tmp_path / "bob.crt", tmp_path / "bob.key"
    make_certificate("bob", certificate, key)
    await broker.serve(f'client_ca = "{certificate}"')
    async with broker.agent("bob", operator_token=broker.operator_token()) as operator:
        await operator.register()
    # Another key than the registered one: the challenge could not be signed.
    async with broker.agent("bob", cert_file=certificate, cert_key_file=key) as bob:
        assert (await bob.connect()).agent_id == "bob"
        with pytest.raises(BatonError) as refused:
            await bob.send(v1.Info(), receiver_id="alice")
        assert refused.value.reason == "SIGNATURE_INVALID", "what it says is still proven by its key alone"


def make_certificate(agent_id, certificate, key):
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, agent_id)])
    uri = x509.UniformResourceIdentifier(f"urn:baton:agent:{agent_id}")
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .sign(private, hashes.SHA256())
    )
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
