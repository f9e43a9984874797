"""The vectors that every language's tests run."""

import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.timestamp_pb2 import Timestamp

from baton import v1

FOLDER = Path(__file__).parents[3] / "vectors"


def load(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / name).read_text("utf-8"))


def private_key(seed: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed))


def time(parts: list[int] | None) -> Timestamp | None:
    return None if parts is None else Timestamp(seconds=parts[0], nanos=parts[1])


def envelope(fields: dict[str, Any]) -> v1.Envelope:
    fields = dict(fields)
    payload = fields.pop("payload")
    made = v1.Envelope(**fields | {"timestamp": time(fields["timestamp"]), "expires_at": time(fields["expires_at"])})
    made.payload.type_url = payload["type_url"]
    made.payload.value = bytes.fromhex(payload["value"])
    return made
