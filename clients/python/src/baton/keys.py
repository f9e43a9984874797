"""ed25519 keys and their files: PKCS#8 PEM, the format of `baton keygen` and `openssl genpkey -algorithm ed25519`."""

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)


def generate_key() -> Ed25519PrivateKey:
    """Returns a new key from the operating system's random number generator."""
    return Ed25519PrivateKey.generate()


def load_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """Reads a key file. Raises OSError if it cannot be read, ValueError if it is not an ed25519 key in PKCS#8 PEM."""
    key = load_pem_private_key(Path(path).read_bytes(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{path} is not an ed25519 private key")  # noqa: TRY004
    return key


def save_key(path: str | os.PathLike[str], key: Ed25519PrivateKey) -> None:
    """Writes a new key file, readable only by its owner. Raises FileExistsError: no file is overwritten."""
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """Returns the public half, 32 bytes, as in an AgentCard."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
