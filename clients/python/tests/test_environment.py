"""`Agent.from_env`: the variables, and the profiles that `baton profile add` writes."""

import os
import subprocess

import pytest
from brokers import BATON, begin, needs_broker, within
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from baton import Agent, ConfigurationError, generate_key, json_section, public_bytes, save_key, v1
from baton.environment import _listens_at, read_settings


@pytest.fixture(autouse=True)
def _nothing_set(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("BATON_") and name != "BATON_BIN"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def keys(tmp_path):
    """Key files of alice and bob."""
    for name in ("alice", "bob"):
        save_key(tmp_path / f"{name}.pem", generate_key())
    return tmp_path


def profile(*arguments):
    done = subprocess.run([str(BATON), "profile", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def fails(*parts):
    with pytest.raises(ConfigurationError) as error:
        read_settings()
    missing = [part for part in parts if str(part) not in str(error.value)]
    assert not missing, f"{missing} not in {error.value}"


@needs_broker
@pytest.mark.usefixtures("keys")
async def test_a_profile_of_the_command_line_is_all_that_an_agent_needs(broker):
    for name in ("alice", "bob"):
        connection = ("--server", broker.server, "--ca", str(broker.ca))
        profile("add", name, "--id", name, "--key", f"{name}.pem", *connection)
    profile("use", "alice")
    async with Agent.from_env() as alice, Agent.from_env("bob", capacity=2) as bob:
        assert (alice.agent_id, bob.agent_id, bob.capacity) == ("alice", "bob", 2)

        @bob.on_handoff
        async def take(offer):
            await (await offer.accept()).complete()

        await begin(alice, bob)
        request = v1.HandoffRequest(task_type="support-ticket")
        handed = await within(alice.hand_over("bob", "ticket-1", request, [json_section("goals", [])]))
        assert handed.owner_id == "bob"


@needs_broker
async def test_the_local_broker_needs_no_ca_and_a_token_permits_the_registration(broker, keys, monkeypatch):
    await broker.serve()
    broker.data.rename(keys / "baton-data")
    (keys / "data").symlink_to(keys / "baton-data")
    monkeypatch.setenv("BATON_SERVER", broker.server)
    monkeypatch.setenv("BATON_AGENT_ID", "bob")
    monkeypatch.setenv("BATON_AGENT_KEY", "bob.pem")
    assert read_settings().ca_file == keys / "baton-data" / "tls" / "ca.pem"
    assert read_settings().operator_token is None
    monkeypatch.setenv("BATON_TOKEN", f"{broker.operator_token()}\n")
    async with Agent.from_env() as bob:
        await bob.register()
        await bob.connect()
        assert (await bob.get_agent("bob")).card.agent_id == "bob"
    monkeypatch.setenv("BATON_SERVER", "127.0.0.2:" + broker.server.rpartition(":")[2])
    assert read_settings().ca_file is None


@needs_broker
def test_a_variable_takes_precedence_over_the_profile(keys, monkeypatch):
    (keys / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    (keys / "other.pem").write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    connection = ("--server", "broker.example:1", "--format", "json")
    profile("add", "alice", "--id", "alice", "--key", "alice.pem", "--key-id", "k7", *connection)
    profile("add", "bob", "--id", "bob", "--key", "bob.pem", "--server", "broker.example:2", "--use")
    (keys / "baton-data" / "tls").mkdir(parents=True)

    def shown():
        found = read_settings()
        return found.server, found.agent_id, found.key_id, found.ca_file

    assert shown() == ("broker.example:2", "bob", "k1", None)
    monkeypatch.setenv("BATON_PROFILE", "alice")
    assert shown() == ("broker.example:1", "alice", "k7", None)
    assert read_settings("bob").agent_id == "bob"
    monkeypatch.setenv("BATON_SERVER", "https://broker.example:3/")
    monkeypatch.setenv("BATON_CA", "ca.pem")
    assert shown() == ("broker.example:3", "alice", "k7", (keys / "ca.pem").relative_to(keys))
    for empty in ("BATON_SERVER", "BATON_CA"):
        monkeypatch.setenv(empty, "")
    assert shown() == ("broker.example:1", "alice", "k7", None)
    # The name belongs to the saved key, and not to another key.
    monkeypatch.setenv("BATON_AGENT_ID", "bob")
    fails("id is set, but not its key", "BATON_AGENT_KEY")
    monkeypatch.setenv("BATON_AGENT_KEY", "bob.pem")
    assert shown() == ("broker.example:1", "bob", "k1", None)
    assert isinstance(read_settings().key, Ed25519PrivateKey)
    monkeypatch.setenv("BATON_AGENT_KEY_ID", "k2")
    assert shown()[2] == "k2"
    monkeypatch.delenv("BATON_AGENT_ID")
    fails("key is set, but not its id", "BATON_AGENT_ID")


def test_without_an_agent_the_error_says_how_to_name_one():
    fails("no agent is named", "BATON_AGENT_ID", "BATON_AGENT_KEY", "baton profile add")


@needs_broker
def test_a_profile_that_cannot_be_used_says_why(keys, monkeypatch):
    folder = keys / "config" / "baton" / "profiles"
    monkeypatch.setenv("BATON_PROFILE", "nowhere")
    fails("BATON_PROFILE names nowhere", folder / "nowhere.toml", "baton profile list")
    monkeypatch.setenv("BATON_PROFILE", "../up")
    fails("BATON_PROFILE", "../up", "is not a name")
    monkeypatch.setenv("BATON_PROFILE", "broker")
    profile("add", "broker", "--server", "127.0.0.1:1")
    file = folder / "broker.toml"
    fails(file, "names no agent", "BATON_AGENT_ID")
    file.chmod(0o640)
    fails(file, "other users", "chmod 600")
    file.chmod(0o600)
    for text, problem in (
        ('sever = "x"', "unknown field `sever`"),
        ("server = 1", "`server` is not a text"),
        ("[", ""),
    ):
        file.write_text(text)
        fails(file, problem)
    profile("add", "alice", "--id", "alice", "--key", "alice.pem", "--server", "127.0.0.1:1", "--use")
    monkeypatch.delenv("BATON_PROFILE")
    (keys / "alice.pem").unlink()
    fails("`key` of", folder / "alice.toml", keys / "alice.pem", "No such file", "baton keygen")


def test_a_file_that_cannot_be_used_is_named_with_its_variable(keys, monkeypatch):
    monkeypatch.setenv("BATON_AGENT_ID", "bob")
    monkeypatch.setenv("BATON_AGENT_KEY", "bob.pem")
    assert public_bytes(read_settings().key)
    (keys / "bob.pem").chmod(0o644)
    fails("BATON_AGENT_KEY: bob.pem", "chmod 600")
    (keys / "bob.pem").chmod(0o600)
    (keys / "bob.pem").write_text("no key")
    fails("BATON_AGENT_KEY: bob.pem")
    (keys / "bob.pem").write_bytes((keys / "alice.pem").read_bytes())
    monkeypatch.setenv("BATON_CA", "absent.pem")
    fails("BATON_CA: absent.pem", "No such file", "tls/ca.pem")
    (keys / "absent.pem").write_text("")
    fails("BATON_CA: absent.pem has no certificate")
    monkeypatch.delenv("BATON_CA")
    monkeypatch.setenv("BATON_CERT", "cert.pem")
    fails("BATON_CERT_KEY is absent")
    monkeypatch.setenv("BATON_CERT_KEY", "cert.key")
    fails("BATON_CERT: cert.pem", "No such file")
    (keys / "cert.pem").write_text("-----BEGIN CERTIFICATE-----")
    (keys / "cert.key").write_text("-----BEGIN PRIVATE KEY-----")
    (keys / "cert.key").chmod(0o640)
    fails("BATON_CERT_KEY: cert.key", "chmod 600")
    (keys / "cert.key").chmod(0o600)
    found = read_settings()
    assert (str(found.cert_file), str(found.cert_key_file)) == ("cert.pem", "cert.key")


@pytest.mark.parametrize("server", ["broker", "broker:", ":1", "broker:0", "broker:65536", "::1", "[::1]", "a@b:1"])
@pytest.mark.usefixtures("keys")
def test_a_server_that_is_no_address_is_refused(monkeypatch, server):
    monkeypatch.setenv("BATON_AGENT_ID", "bob")
    monkeypatch.setenv("BATON_AGENT_KEY", "bob.pem")
    monkeypatch.setenv("BATON_SERVER", server)
    fails("BATON_SERVER", server)


def test_only_the_address_that_the_folder_names_is_its_broker():
    here = "127.0.0.1:22866"
    assert _listens_at(here, here)
    assert _listens_at(here, "localhost:22866")
    others = ("127.0.0.1:22867", "127.0.0.2:22866", "broker.example:22866", "http://127.0.0.1:22866", "127.0.0.1")
    assert not any(_listens_at(here, server) for server in others)
    assert _listens_at("[::]:1", "[::1]:1")
    assert _listens_at("0.0.0.0:1", "127.0.0.1:1")
    assert not _listens_at("0.0.0.0:1", "10.0.0.1:1")
