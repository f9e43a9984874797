"""The byte layouts that are signed or hashed, as docs/signing.md of the broker defines them.

Verification is as strict as the broker's: canonical encodings only, no weak (small-order) key, no small-order R.
"""

import hashlib
import struct
from collections.abc import Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.timestamp_pb2 import Timestamp

from baton import v1
from baton.errors import VerificationError

SIGNATURE_VERSION = 1
"""The signature layout that this client writes, and the only one that it accepts."""

_ENVELOPE = "application/vnd.baton.envelope.v1"
_CONTEXT = "application/vnd.baton.context.v1"
_SESSION = "application/vnd.baton.session.v1"
_RECEIPT = "application/vnd.baton.receipt.v1"
_RECEIPT_OF_RESOURCE = "application/vnd.baton.receipt.v2"
_CUSTODY = "application/vnd.baton.custody.v1"
_AUDIT = "application/vnd.baton.audit.v1"
_VOUCHER = "application/vnd.baton.key-voucher.v1"

_KEY_BYTES = 32
_SIGNATURE_BYTES = 64
_P = 2**255 - 19
# The y of the 8 points of small order: the identity, orders 2 and 4, and the two of order 8.
_Y_8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022
_SMALL_ORDER_Y = {1, _P - 1, 0, _Y_8, _P - _Y_8}


def pae(kind: str, body: bytes) -> bytes:
    """DSSE's pre-authentication encoding of a body."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(body), body)


# ------------------------------------------------------------------------------------------------------------ envelope


def envelope_body(envelope: v1.Envelope) -> bytes:
    """Returns the signed bytes of an envelope: all fields but trace context, signature and signature version."""
    payload_digest = hashlib.sha256(pae(envelope.payload.type_url, envelope.payload.value)).digest()
    return b"".join(
        [
            _bytes(envelope.message_id.encode()),
            _bytes(envelope.sender_id.encode()),
            _bytes(envelope.receiver_id.encode()),
            _time(envelope.timestamp if envelope.HasField("timestamp") else None),
            _number(envelope.message_type),
            _bytes(envelope.correlation_id.encode()),
            _bytes(envelope.task_id.encode()),
            _number(envelope.epoch),
            _time(envelope.expires_at if envelope.HasField("expires_at") else None),
            _bytes(envelope.key_id.encode()),
            _bytes(payload_digest),
        ]
    )


def envelope_input(envelope: v1.Envelope) -> bytes:
    """Returns the ed25519 input of an envelope. Its SHA-256 is the content_digest in a custody log."""
    return pae(_ENVELOPE, envelope_body(envelope))


def sign_envelope(envelope: v1.Envelope, key_id: str, key: Ed25519PrivateKey) -> None:
    """Signs the envelope in place: sets its key_id, signature_version and signature."""
    envelope.key_id = key_id
    envelope.signature_version = SIGNATURE_VERSION
    envelope.signature = key.sign(envelope_input(envelope))


def verify_envelope(envelope: v1.Envelope, key: v1.AgentKey) -> None:
    """Verifies the envelope's signature with this key, which must be valid at the envelope's timestamp.

    The caller decides whether the key is the sender's. Raises VerificationError: SIGNATURE_MISSING,
    SIGNATURE_VERSION_UNKNOWN, KEY_NOT_VALID, KEY_WEAK or SIGNATURE_INVALID.
    """
    if not envelope.signature:
        raise VerificationError("SIGNATURE_MISSING", "the envelope is not signed")
    if envelope.signature_version != SIGNATURE_VERSION:
        raise VerificationError("SIGNATURE_VERSION_UNKNOWN", f"signature_version {envelope.signature_version}")
    check_key(key, envelope.timestamp)
    _verify(key, envelope_input(envelope), envelope.signature)


def check_key(key: v1.AgentKey, at: Timestamp) -> None:
    """Checks that the key is valid at this time: at or after not_before_time, and before not_after_time.

    A revoked key is invalid at every time, also for older signatures: its thief can choose any timestamp. Raises
    VerificationError: KEY_NOT_VALID.
    """
    moment = _order(at)
    if (
        key.HasField("revoke_time")
        or (key.HasField("not_before_time") and moment < _order(key.not_before_time))
        or (key.HasField("not_after_time") and moment >= _order(key.not_after_time))
    ):
        raise VerificationError("KEY_NOT_VALID", f"key {key.key_id} is revoked, or not valid at this time")


def is_weak(public_key: bytes) -> bool:
    """Whether the key encodes a point of small order, canonically or not. Signatures by this key can be forged."""
    y = int.from_bytes(public_key, "little") & (1 << 255) - 1
    return y % _P in _SMALL_ORDER_Y


# ------------------------------------------------------------------------------------------------------------- context


def section_digest(section: v1.ContextSection) -> bytes:
    """Returns a section's digest, 32 bytes: of its text or bytes, or the digest in its reference or delta."""
    match section.WhichOneof("content"):
        case "json":
            return hashlib.sha256(section.json.encode()).digest()
        case "bytes":
            return hashlib.sha256(section.bytes.data).digest()
        case "reference":
            return section.reference.sha256
        case "delta":
            return section.delta.result_sha256
    raise ValueError(f"section {section.name!r} has no content")


def context_digest(sections: Iterable[v1.ContextSection]) -> bytes:
    """Returns the digest of a context, 32 bytes. The order of the sections does not matter."""
    named = sorted((section.name.encode(), section_digest(section)) for section in sections)
    body = b"".join(_bytes(name) + _bytes(digest) for name, digest in named)
    return hashlib.sha256(pae(_CONTEXT, body)).digest()


# --------------------------------------------------------------------------------------- identity, receipts and custody


def session_body(agent_id: str, key_id: str, challenge: bytes) -> bytes:
    """Returns the signed bytes of a proof of identity."""
    return _bytes(agent_id.encode()) + _bytes(key_id.encode()) + _bytes(challenge)


def sign_session(agent_id: str, key_id: str, challenge: bytes, key: Ed25519PrivateKey) -> bytes:
    """Signs the proof of identity for AgentService.CreateToken, 64 bytes."""
    return key.sign(pae(_SESSION, session_body(agent_id, key_id, challenge)))


def receipt_body(receipt: v1.Receipt) -> bytes:
    """Returns the signed bytes of a receipt: all fields but the signature."""
    fields = [
        _bytes(receipt.message_id.encode()),
        _number(receipt.sequence),
        _time(receipt.accept_time if receipt.HasField("accept_time") else None),
        _bytes(receipt.task_id.encode()),
        _number(receipt.task_status),
        _bytes(receipt.owner_id.encode()),
        _number(receipt.epoch),
        _bytes(receipt.handoff_id.encode()),
        _number(receipt.handoff_state),
        _bytes(receipt.custody_hash),
        _bytes(receipt.key_id.encode()),
    ]
    if receipt.resource:
        fields += [_bytes(receipt.resource.encode()), _number(receipt.resource_sequence)]
    return b"".join(fields)


def verify_receipt(receipt: v1.Receipt, broker_key: v1.AgentKey) -> None:
    """Verifies the broker's signature on a receipt.

    Raises VerificationError: KEY_UNKNOWN if another key signed it, SIGNATURE_MISSING, KEY_WEAK or SIGNATURE_INVALID.
    """
    if not receipt.signature:
        raise VerificationError("SIGNATURE_MISSING", "the receipt is not signed")
    if receipt.key_id != broker_key.key_id:
        raise VerificationError("KEY_UNKNOWN", f"the receipt is signed with {receipt.key_id}, not {broker_key.key_id}")
    kind = _RECEIPT_OF_RESOURCE if receipt.resource else _RECEIPT
    _verify(broker_key, pae(kind, receipt_body(receipt)), receipt.signature)


def custody_hash(previous: bytes, entry: bytes) -> bytes:
    """Returns the next hash of a custody chain, 32 bytes. The first follows 32 zero bytes."""
    return hashlib.sha256(pae(_CUSTODY, _bytes(previous) + _bytes(entry))).digest()


def audit_hash(previous: bytes, entry: bytes) -> bytes:
    """Returns the next hash of the administrative chain, 32 bytes. The first follows 32 zero bytes."""
    return hashlib.sha256(pae(_AUDIT, _bytes(previous) + _bytes(entry))).digest()


def voucher_body(agent_id: str, key: v1.AgentKey, operator_key_id: str, not_after: Timestamp | None) -> bytes:
    """Returns the signed bytes of a key voucher. `not_after` is its expiry, if it has one."""
    named = [agent_id.encode(), key.key_id.encode(), key.public_key, operator_key_id.encode()]
    return b"".join(map(_bytes, named)) + _time(not_after)


def vouch(
    agent_id: str,
    key: v1.AgentKey,
    operator_key_id: str,
    operator: Ed25519PrivateKey,
    not_after: Timestamp | None = None,
) -> v1.KeyVoucher:
    """Signs a voucher that the key is the agent's. `not_after` is its expiry; None for no expiry."""
    signed = pae(_VOUCHER, voucher_body(agent_id, key, operator_key_id, not_after))
    return v1.KeyVoucher(operator_key_id=operator_key_id, not_after_time=not_after, signature=operator.sign(signed))


def verify_voucher(
    agent_id: str, key: v1.AgentKey, operator_key: v1.AgentKey, not_after: Timestamp | None, signature: bytes
) -> None:
    """Verifies an operator's signature on the voucher for an agent's key.

    The caller checks the voucher's expiry. Raises VerificationError: KEY_WEAK or SIGNATURE_INVALID.
    """
    _verify(operator_key, pae(_VOUCHER, voucher_body(agent_id, key, operator_key.key_id, not_after)), signature)


# ------------------------------------------------------------------------------------------------------------- helpers


def _verify(key: v1.AgentKey, signed: bytes, signature: bytes) -> None:
    if len(key.public_key) == _KEY_BYTES and is_weak(key.public_key):
        raise VerificationError("KEY_WEAK", f"key {key.key_id} is weak: signatures can be forged under it")
    invalid = VerificationError("SIGNATURE_INVALID", f"the signature does not verify with key {key.key_id}")
    # The library refuses an S of L or more and every R but the computed one. It accepts a small-order R.
    if len(signature) != _SIGNATURE_BYTES or is_weak(signature[:32]):
        raise invalid
    try:
        Ed25519PublicKey.from_public_bytes(key.public_key).verify(signature, signed)
    except (InvalidSignature, ValueError):
        raise invalid from None


def _bytes(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def _number(value: int) -> bytes:
    # A negative value, which no enum of the schema has, is sign-extended as protobuf does.
    return _bytes(struct.pack(">Q", value & 2**64 - 1))


def _time(value: Timestamp | None) -> bytes:
    return _bytes(b"" if value is None else struct.pack(">qi", value.seconds, value.nanos))


def _order(value: Timestamp) -> tuple[int, int]:
    return value.seconds, value.nanos
