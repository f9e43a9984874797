"""The connection and the identity of an agent, from the environment and the profiles of the command line.

A variable takes precedence over the value of the profile, as for `baton`. A profile is a TOML file of `baton profile
add`. It names a private key by its path, and holds no secret.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from baton.errors import ConfigurationError
from baton.keys import load_key

SERVER_DEFAULT = "127.0.0.1:22866"
"""The address of `baton dev`."""
_LOCAL_DATA = Path("baton-data")
_PLAINTEXT = "http://"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# The token, the certificate and the output format are the command line's alone: an agent proves itself by its key.
_FIELDS = {"server", "ca", "token_file", "cert", "cert_key", "id", "key", "key_id", "output"}
_OTHERS = 0o077
_PORT_MAX = 65535


@dataclass(frozen=True)
class Settings:
    """What an agent needs to connect."""

    server: str
    agent_id: str
    key: Ed25519PrivateKey
    key_id: str
    ca_file: Path | None
    """None: the system's CAs."""
    cert_file: Path | None
    cert_key_file: Path | None
    operator_token: str | None


@dataclass(frozen=True)
class _Profile:
    """A profile; without a file an empty one."""

    values: Mapping[str, str]
    file: Path | None = None


def read_settings(profile: str | None = None) -> Settings:
    """Reads the environment, and the profile that is named, or else in use. Raises ConfigurationError.

    `profile` takes precedence over BATON_PROFILE.
    """
    saved = _profile(profile)
    server, source = _either("BATON_SERVER", saved, "server")
    server = _checked_server(server, source) if server else SERVER_DEFAULT
    agent_id, key, key_id = _identity(saved)
    cert_file, cert_key_file = _certificate()
    return Settings(
        server=server,
        agent_id=agent_id,
        key=key,
        key_id=key_id,
        ca_file=_ca_file(saved, server),
        cert_file=cert_file,
        cert_key_file=cert_key_file,
        operator_token=_variable("BATON_TOKEN").strip() or None,
    )


def _variable(name: str) -> str:
    """Returns a variable of the environment. An empty one counts as absent."""
    return os.environ.get(name, "")


def _either(variable: str, saved: _Profile, field: str) -> tuple[str, str]:
    """Returns a value, and where it is from, in words: the variable, else the field of the profile; else empty."""
    if value := _variable(variable):
        return value, variable
    return saved.values.get(field, ""), f"`{field}` of {saved.file}"


# ------------------------------------------------------------------------------------------------------ profiles


def _profile(name: str | None) -> _Profile:
    folder, source = _folder(), "the profile"
    if not name:
        name, source = _variable("BATON_PROFILE"), "BATON_PROFILE"
    if not name and folder is not None:
        name, source = _current(folder / "current"), str(folder / "current")
    if not name:
        return _Profile({})
    # A name becomes part of a path, so it must not lead out of the folder.
    if not _NAME.fullmatch(name):
        rule = "1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or a digit"
        raise ConfigurationError(f"{source}: {name!r} is not a name: {rule}")
    if folder is None:
        raise ConfigurationError(f"{source}: there is no folder for profiles: set HOME or XDG_CONFIG_HOME")
    return _read_profile(folder / f"{name}.toml", f"{source} names {name}")


def _folder() -> Path | None:
    """Returns the folder of all profiles."""
    for variable, below in (("XDG_CONFIG_HOME", ""), ("HOME", ".config")):
        base = Path(_variable(variable))
        if base.is_absolute():
            return base / below / "baton" / "profiles"
    return None


def _current(file: Path) -> str:
    """Returns the profile that `baton profile use` has chosen; empty: none."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: {_reason(error)}; `baton profile use` writes it") from error


def _read_profile(file: Path, source: str) -> _Profile:
    try:
        text = file.read_text()
        mode = file.stat().st_mode & 0o777
        values = tomllib.loads(text)
    except FileNotFoundError as error:
        advice = "`baton profile list` lists the profiles, and `baton profile add` makes one"
        raise ConfigurationError(f"{source}, but there is no {file}; {advice}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{file}: {_reason(error)}; `baton profile add --replace` writes it anew") from error
    # The file decides where this program connects.
    if mode & _OTHERS and os.name == "posix":
        problem = f"other users can read or change this file (mode {mode:04o}); run chmod 600 {file}"
        raise ConfigurationError(f"{file}: {problem}")
    for name, value in values.items():
        # A misspelt name would leave a default in force, for example another broker.
        if name not in _FIELDS or not isinstance(value, str):
            problem = f"`{name}` is not a text" if name in _FIELDS else f"unknown field `{name}`"
            known = ", ".join(sorted(_FIELDS))
            raise ConfigurationError(f"{file}: {problem}; a profile has {known}")
    return _Profile(values, file)


# ------------------------------------------------------------------------------------------- server, CA, identity


def _checked_server(text: str, source: str) -> str:
    """Returns HOST:PORT, or http://HOST:PORT."""
    scheme = _PLAINTEXT if text.startswith(_PLAINTEXT) else ""
    address = text.removeprefix(_PLAINTEXT).removeprefix("https://").rstrip("/")
    host, colon, port = address.rpartition(":")
    is_bare_v6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if is_bare_v6 or address.endswith("]"):
        raise ConfigurationError(f"{source}: {text} needs brackets and a port around IPv6: [::1]:22866")
    if not colon or not host or "@" in host or "/" in address:
        raise ConfigurationError(f"{source}: {text} is not HOST:PORT, for example {SERVER_DEFAULT}")
    if not port.isascii() or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
        raise ConfigurationError(f"{source}: {text} has no port from 1 to 65535; the default of a broker is 22866")
    return scheme + address


def _ca_file(saved: _Profile, server: str) -> Path | None:
    """Returns the CA file that is named, else that of ./baton-data for the broker that runs on it."""
    named, source = _either("BATON_CA", saved, "ca")
    if not named:
        return _local_ca(server)
    file = Path(named)
    try:
        text = file.read_bytes()
    except OSError as error:
        advice = "`baton dev` creates a CA in its data folder, tls/ca.pem"
        raise ConfigurationError(f"{source}: {file}: {_reason(error)}; {advice}") from error
    # TLS would accept an empty file and then trust no server.
    if b"-----BEGIN CERTIFICATE-----" not in text:
        raise ConfigurationError(f"{source}: {file} has no certificate; a CA file has a BEGIN CERTIFICATE line")
    return file


def _local_ca(server: str) -> Path | None:
    ca = _LOCAL_DATA / "tls" / "ca.pem"
    try:
        address = (_LOCAL_DATA / "address").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None  # no broker runs on the folder
    return ca.absolute() if ca.exists() and _listens_at(address, server) else None


def _listens_at(address: str, server: str) -> bool:
    """Whether HOST:PORT is this address. No name except localhost is resolved: it may name another machine."""
    (own, _, own_port), (host, _, port) = address.rpartition(":"), server.rpartition(":")
    try:
        listening = ipaddress.ip_address(own.strip("[]"))
    except ValueError:
        return False
    if own_port != port:
        return False
    if host == "localhost":
        return listening.is_loopback or listening.is_unspecified
    try:
        asked = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return asked == listening or (listening.is_unspecified and asked.is_loopback)


def _identity(saved: _Profile) -> tuple[str, Ed25519PrivateKey, str]:
    """Returns the agent's id, its key and the key's id."""
    agent_id, key_file = _variable("BATON_AGENT_ID"), _variable("BATON_AGENT_KEY")
    key_id, source = _variable("BATON_AGENT_KEY_ID"), "BATON_AGENT_KEY"
    # A variable alone does not borrow the other value: the key of a profile is another agent's.
    if not agent_id and not key_file:
        agent_id, key_file = saved.values.get("id", ""), saved.values.get("key", "")
        key_id = key_id or saved.values.get("key_id", "")
        source = f"`key` of {saved.file}"
    if not agent_id or not key_file:
        raise ConfigurationError(_without_identity(saved, agent_id, key_file))
    file = Path(key_file)
    _check_private(file, source)
    try:
        return agent_id, load_key(file), key_id or "k1"
    except (OSError, ValueError, TypeError) as error:
        advice = (
            f"`baton keygen --out {file}` makes a key" if isinstance(error, FileNotFoundError) else "see `baton keygen`"
        )
        raise ConfigurationError(f"{source}: {file}: {_reason(error)}; {advice}") from error


def _without_identity(saved: _Profile, agent_id: str, key_file: str) -> str:
    if agent_id or key_file:
        given, absent = ("id", "key") if agent_id else ("key", "id")
        return f"the agent's {given} is set, but not its {absent}: set both BATON_AGENT_ID and BATON_AGENT_KEY"
    which = f"{saved.file} names no agent" if saved.file else "no agent is named, and no profile is in use"
    profile = "`baton profile add NAME --id AGENT --key FILE --use`"
    return f"{which}: set BATON_AGENT_ID, and BATON_AGENT_KEY to a file of `baton keygen`, or run {profile}"


def _certificate() -> tuple[Path | None, Path | None]:
    certificate, key = _variable("BATON_CERT"), _variable("BATON_CERT_KEY")
    if bool(certificate) != bool(key):
        absent = "BATON_CERT_KEY" if certificate else "BATON_CERT"
        raise ConfigurationError(f"{absent} is absent: set both BATON_CERT and BATON_CERT_KEY, or neither")
    if not certificate:
        return None, None
    for variable in ("BATON_CERT", "BATON_CERT_KEY"):
        file = Path(_variable(variable))
        try:
            text = file.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{variable}: {file}: {_reason(error)}; it names a PEM file") from error
        if b"-----BEGIN " not in text:
            raise ConfigurationError(f"{variable}: {file} is not a PEM file")
    _check_private(Path(key), "BATON_CERT_KEY")
    return Path(certificate), Path(key)


def _check_private(file: Path, source: str) -> None:
    """Refuses the caller's own private key file if other users can read it, as ssh does."""
    try:
        status = file.stat()
    except OSError:
        return  # the read of it says why
    mode = status.st_mode & 0o777
    # Only the owner of a file can change its mode.
    if os.name == "posix" and mode & _OTHERS and status.st_uid == os.geteuid():
        problem = f"other users can read this private key (mode {mode:04o}); run chmod 600 {file}"
        raise ConfigurationError(f"{source}: {file}: {problem}")


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
