"""A broker where only operators register agents: by operator token, by invitation, and by client certificate."""

import datetime
import json

import pytest
from brokers import needs_broker
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from baton import Agent, BatonError, generate_key, public_bytes, v1, vouch

pytestmark = needs_broker


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
        invited = json.loads(broker.cli("agent", "invite", "--for", "bob", "-o", "json", "--token", token))
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
    # A key other than the registered one: it could not sign the challenge.
    async with broker.agent("bob", cert_file=certificate, cert_key_file=key) as bob:
        assert (await bob.connect()).agent_id == "bob"
        with pytest.raises(BatonError) as refused:
            await bob.send(v1.Info(), receiver_id="alice")
        assert refused.value.reason == "SIGNATURE_INVALID", "what it says is still proven by its key alone"


async def test_only_vouched_keys_are_good_where_operators_are_known(broker):
    operator, key = generate_key(), generate_key()
    alices = v1.AgentKey(key_id="k1", public_key=public_bytes(key))
    word = vouch("alice", alices, "ops", operator)
    token = broker.operator_token()
    async with (
        broker.agent("alice", key=key, operator_token=token) as alice,
        broker.agent("mallory") as mallory,
        broker.agent("bob", operator_keys={"ops": public_bytes(operator)}) as bob,
    ):
        for agent in (alice, mallory, bob):
            await agent.register()
            await agent.connect()
        await alice.vouch_for_key("alice", "k1", word)
        await mallory.send(v1.Info(text="I am not vouched for"), receiver_id="bob")
        await alice.send(v1.Info(text="hello"), receiver_id="bob")
        delivery = await anext(bob.deliveries())
        assert delivery.payload.text == "hello"
        await delivery.ack()


async def test_keys_are_added_and_revoked(broker):
    new = generate_key()
    async with broker.agent("alice") as alice, broker.agent("alice", key=new, key_id="k2") as later:
        await alice.register()
        await alice.connect()
        added = v1.AgentKey(key_id="k2", public_key=public_bytes(new))
        agent = await alice.add_key("alice", added, replaces=["k1"], grace=datetime.timedelta(hours=1))
        assert [key.HasField("not_after_time") for key in agent.card.keys] == [True, False]
        await later.connect()
        agent = await later.revoke_key("alice", "k1", "rotated")
        assert agent.card.keys[0].HasField("revoke_time")
        with pytest.raises(BatonError):
            await alice.send(v1.Info(), receiver_id="alice")


async def test_an_invitation_is_made(broker):
    await broker.serve()
    async with broker.agent("ops", operator_token=broker.operator_token()) as operator, broker.agent("bob") as bob:
        invitation = await operator.invite("bob", datetime.timedelta(minutes=1))
        assert (await bob.register(invitation=invitation)).card.agent_id == "bob"


async def test_plaintext_is_for_this_machine_alone(broker):
    with pytest.raises(ValueError, match="is not on this machine"):
        Agent("http://broker.example:22866", "alice", generate_key())
    await broker.serve("allow_plaintext = true")
    async with Agent(f"http://{broker.server}", "alice", generate_key()) as alice:
        with pytest.raises(BatonError) as refused:
            await alice.register()
        assert refused.value.reason in ("IDENTITY_MISSING", "PERMISSION_DENIED"), "it was understood"


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
