"""What the command lines of baton and grpcurl are called with. All flags stand here and nowhere else."""

import os
from pathlib import Path

BATON = str(Path(os.environ.get("BATON_BIN", "target/debug/baton")).resolve())
KEY_ID = "k1"
"""The key id that all commands use unless told otherwise."""


def dev(data: Path) -> list[str]:
    """A broker on any free port. Writes HOST:PORT into data/address when it is ready; its CA is data/tls/ca.pem."""
    return [BATON, "dev", "--data", str(data), "--listen", "127.0.0.1:0"]


def keygen(key: Path) -> list[str]:
    """Makes a key file."""
    return [BATON, "keygen", "--out", str(key)]


def agent_serve(agent_id: str, key: Path, server: str, ca: Path, return_to: str | None = None) -> list[str]:
    """Registers, and takes every handoff; with `return_to` hands each task on to that agent, with a report."""
    command = [BATON, "agent", "serve", "--id", agent_id, "--key", str(key), "--server", server, "--ca", str(ca)]
    return command + (["--return-to", return_to] if return_to else [])


def go_node(agent_id: str, node: str, server: str, ca: Path) -> list[str]:
    """An agent in Go that works at a node of a graph: clients/go/internal/node."""
    return [os.environ["GO_NODE"], "-server", server, "-ca", str(ca), "-id", agent_id, "-node", node]


def envelope_sign(key: Path) -> list[str]:
    """Signs: an envelope as JSON on stdin; on stdout a SendRequest with it, message_id, timestamp and type filled in."""
    return [BATON, "envelope", "sign", "--key", str(key), "--key-id", KEY_ID]


def token(agent_id: str, key: Path, server: str, ca: Path) -> list[str]:
    """Proves an identity; the token on stdout."""
    return [BATON, "token", "--id", agent_id, "--key", str(key), "--server", server, "--ca", str(ca)]


def grpcurl(server: str, ca: Path, *arguments: str, data: str | None = None, token: str | None = None) -> list[str]:
    """One call, or a question to server reflection."""
    options = ["-H", f"authorization: Bearer {token}"] if token else []
    options += ["-d", data] if data is not None else []
    return [os.environ.get("GRPCURL", "grpcurl"), "-cacert", str(ca), "-max-time", "20", *options, server, *arguments]
