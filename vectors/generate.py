"""Makes refusals-v1.json and digests-v1.json; the same bytes at every run.

    pip install cryptography
    python3 vectors/generate.py            writes both files beside this one
    python3 vectors/generate.py --check    fails if they are not what it would write

It follows docs/signing.md by itself and imports nothing of baton, so that a mistake in a client cannot hide in its own
vectors. signing-v1.json is not made here: it came first, and this script only checks that it gets the same signatures.
"""

import hashlib
import json
import struct
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

HERE = Path(__file__).parent
SEED = bytes(range(32))
OTHER_SEED = bytes(range(32, 64))
BROKER_SEED = bytes(range(64, 96))

ENVELOPE = "application/vnd.baton.envelope.v1"
CONTEXT = "application/vnd.baton.context.v1"
SESSION = "application/vnd.baton.session.v1"
RECEIPT = "application/vnd.baton.receipt.v1"
RECEIPT_OF_RESOURCE = "application/vnd.baton.receipt.v2"
WORKSPACE = "application/vnd.baton.workspace.v1"
CUSTODY = "application/vnd.baton.custody.v1"
AUDIT = "application/vnd.baton.audit.v1"
VOUCHER = "application/vnd.baton.key-voucher.v1"

NOW = [1700000000, 123456789]
FIELDS = ["message_id", "sender_id", "receiver_id", "timestamp", "message_type", "correlation_id", "task_id", "epoch",
          "expires_at", "key_id", "payload"]


# ------------------------------------------------------------------------------------------------------- the layout

def sha256(data):
    return hashlib.sha256(data).digest()


def pae(kind, body):
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(body), body)


def field(value):
    """One field of a body: text, bytes, a number, or a time as [seconds, nanos] or None."""
    match value:
        case str():
            value = value.encode()
        case int():
            value = struct.pack(">Q", value)
        case [seconds, nanos]:
            value = struct.pack(">qi", seconds, nanos)
        case None:
            value = b""
    return struct.pack(">I", len(value)) + value


def body(*fields):
    return b"".join(field(value) for value in fields)


def envelope_body(envelope):
    payload = envelope["payload"]
    digest = sha256(pae(payload["type_url"], bytes.fromhex(payload["value"])))
    return body(*(envelope[name] for name in FIELDS[:-1]), digest)


def envelope_input(envelope):
    return pae(ENVELOPE, envelope_body(envelope))


def sign(seed, data):
    return Ed25519PrivateKey.from_private_bytes(seed).sign(data)


def public(seed):
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


# ----------------------------------------------------- edwards25519 (RFC 8032), for signatures that no verifier may accept

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
IDENTITY = (0, 1)


def add(a, b):
    (x1, y1), (x2, y2) = a, b
    t = D * x1 * x2 * y1 * y2 % P
    return (x1 * y2 + x2 * y1) * pow(1 + t, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - t, -1, P) % P


def times(number, point):
    result = IDENTITY
    while number:
        if number & 1:
            result = add(result, point)
        point = add(point, point)
        number >>= 1
    return result


def with_y(y, odd):
    """The point of this y whose x is odd or even; None if there is none."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square:
        return None
    return (P - x if x & 1 != odd and x else x), y


def encode(point):
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


BASE = with_y(4 * pow(5, -1, P) % P, 0)


def order_eight():
    """A point of order 8: a random point times L."""
    for y in range(2, 100):
        point = with_y(y, 0)
        if point is not None:
            torsion = times(L, point)
            if times(4, torsion) != IDENTITY:
                return torsion
    raise AssertionError


def scalar_of(seed):
    number = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little")
    return number & (1 << 254) - 8 | 1 << 254


def challenge(r, a, message):
    return int.from_bytes(hashlib.sha512(r + a + message).digest(), "little") % L


def scalar(number):
    return (number % L).to_bytes(32, "little")


def signature_with_r(seed, r, message):
    """A signature whose R is this encoding of the identity: valid to whoever only looks at the equation."""
    return r + scalar(challenge(r, public(seed), message) * scalar_of(seed))


def signature_with_torsion(seed, torsion, message):
    """R has a part of small order: the equation holds only after a multiplication by 8."""
    nonce = 1 + int.from_bytes(sha256(b"nonce"), "little") % (L - 1)
    r = encode(add(times(nonce, BASE), torsion))
    return r + scalar(nonce + challenge(r, public(seed), message) * scalar_of(seed))


def forged(weak, message):
    """A signature under a weak key, made without any private key: R = S B, and the key's own part vanishes."""
    for nonce in range(1, 1000):
        r = encode(times(nonce, BASE))
        if challenge(r, weak, message) % 8 == 0:
            return r + scalar(nonce)
    raise AssertionError


def decode(encoded):
    """The point of an encoding, canonical or not; None if there is none."""
    number = int.from_bytes(encoded, "little")
    return with_y((number & (1 << 255) - 1) % P, number >> 255)


def lax_accepts(key, signature, message):
    """Whether the cofactored equation holds, with nothing else checked: the laxest verifier that is in use."""
    a, r = decode(key), decode(signature[:32])
    if len(signature) != 64 or a is None or r is None:
        return False
    right = add(r, times(challenge(signature[:32], key, message), a))
    return times(8 * int.from_bytes(signature[32:], "little"), BASE) == times(8, right)


def weak_keys():
    """All 14 encodings of points of small order, named; strict parsers refuse the last 6 for their form alone."""
    torsion = order_eight()
    points = [times(number, torsion) for number in range(8)]
    names = ["the identity", "order 8, a", "order 4, a", "order 8, b", "order 2", "order 8, c", "order 4, b", "order 8, d"]
    keys = [(name, encode(point)) for name, point in zip(names, points, strict=True)]
    sign_bit = 1 << 255
    for name, number in [("the identity as p + 1", P + 1), ("the identity with the sign bit", 1 | sign_bit),
                         ("the identity as p + 1 with the sign bit", P + 1 | sign_bit),
                         ("order 2 with the sign bit", P - 1 | sign_bit), ("order 4 as p", P),
                         ("order 4 as p with the sign bit", P | sign_bit)]:
        keys.append((name, number.to_bytes(32, "little")))
    assert len({key for _, key in keys}) == 14
    return keys


# --------------------------------------------------------------------------------------------------- refusals-v1.json

def wire_field(number, value):
    """A protobuf field: a number as varint, text or bytes with their length (under 128)."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    value = value.encode() if isinstance(value, str) else value
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


def handoff_request(task_type, summary):
    """baton.v1.HandoffRequest: task_type, reason SKILL, priority HIGH, summary."""
    return (wire_field(1, task_type) + wire_field(2, 1) + wire_field(5, 3) + wire_field(6, summary)).hex()


BASE_ENVELOPE = {
    "message_id": "0198c0de-0000-7000-8000-000000000001",
    "sender_id": "AgentA_CustomerService",
    "receiver_id": "AgentB_TechnicalSupport",
    "timestamp": NOW,
    "message_type": 1,
    "correlation_id": "",
    "task_id": "ticket-4711",
    "epoch": 1,
    "expires_at": [1700003600, 0],
    "key_id": "k1",
    "payload": {
        "type_url": "type.googleapis.com/baton.v1.HandoffRequest",
        "value": handoff_request("technical_support", "Router drops the line every evening."),
    },
}


def refusals():
    cases = []
    signature = sign(SEED, envelope_input(BASE_ENVELOPE))

    def case(name, expect, note, *, lax=False, envelope=None, signature=signature, version=1, key=public(SEED),
             not_before=None, not_after=None, revoked_at=None):
        assert lax == lax_accepts(key, signature, envelope_input(envelope or BASE_ENVELOPE)), name
        cases.append({
            "name": name, "expect": expect, "accepted_by_lax": lax, "note": note,
            "envelope": envelope or BASE_ENVELOPE, "signature": signature.hex(), "signature_version": version,
            "public_key": key.hex(), "not_before": not_before, "not_after": not_after, "revoked_at": revoked_at,
        })

    case("valid", "valid", "The base of all other cases: everything in order.", lax=True)

    changed = {
        "message_id": "0198c0de-0000-7000-8000-000000000002",
        "sender_id": "AgentC_CustomerService",
        "receiver_id": "AgentC_TechnicalSupport",
        "timestamp": [NOW[0], NOW[1] + 1],
        "message_type": 2,
        "correlation_id": "0198c0de-0000-7000-8000-000000000001",
        "task_id": "ticket-4712",
        "epoch": 2,
        "expires_at": [1700003600, 1],
        "key_id": "k2",
        "payload": {**BASE_ENVELOPE["payload"], "value": handoff_request("technical_support", "Close it.")},
    }
    assert list(changed) == FIELDS
    for name, value in changed.items():
        case(f"{name} changed", "SIGNATURE_INVALID", "The signature is that of the base.",
             envelope={**BASE_ENVELOPE, name: value})
    case("expires_at removed", "SIGNATURE_INVALID", "An absent time is another field than a present one.",
         envelope={**BASE_ENVELOPE, "expires_at": None})
    payload = {**BASE_ENVELOPE["payload"], "type_url": "type.googleapis.com/baton.v1.HandoffCancel"}
    case("payload type swapped", "SIGNATURE_INVALID", "The same payload bytes under another type.",
         envelope={**BASE_ENVELOPE, "payload": payload})
    value = BASE_ENVELOPE["payload"]["value"]
    payload = {"type_url": BASE_ENVELOPE["payload"]["type_url"] + chr(int(value[:2], 16)), "value": value[2:]}
    case("payload boundary shifted", "SIGNATURE_INVALID", "The first byte of the value moved to the end of the type.",
         envelope={**BASE_ENVELOPE, "payload": payload})
    sender, receiver = BASE_ENVELOPE["sender_id"], BASE_ENVELOPE["receiver_id"]
    case("field boundary shifted", "SIGNATURE_INVALID",
         "The last character of sender_id moved to the front of receiver_id: the texts in a row are the same.",
         envelope={**BASE_ENVELOPE, "sender_id": sender[:-1], "receiver_id": sender[-1] + receiver})

    case("signature empty", "SIGNATURE_MISSING", "Not signed at all.", signature=b"")
    case("signature truncated", "SIGNATURE_INVALID", "63 bytes.", signature=signature[:-1])
    case("signature oversized", "SIGNATURE_INVALID", "65 bytes, the first 64 are good.", signature=signature + b"\0")
    case("signature zeroed", "SIGNATURE_INVALID", "64 zero bytes.", signature=bytes(64))
    case("signature bit flipped", "SIGNATURE_INVALID", "One bit of R.",
         signature=bytes([signature[0] ^ 1]) + signature[1:])
    number = int.from_bytes(signature[32:], "little") + L
    case("signature malleated", "SIGNATURE_INVALID",
         "S + L in place of S: the equation still holds; who does not check that S is below L takes it.", lax=True,
         signature=signature[:32] + number.to_bytes(32, "little"))
    message = envelope_input(BASE_ENVELOPE)
    case("R of small order", "SIGNATURE_INVALID",
         "R is the identity, and S made with the private key so that the equation holds. RFC 8032 alone takes it; "
         "strict verification refuses every R of small order.", lax=True,
         signature=signature_with_r(SEED, encode(IDENTITY), message))
    case("R not canonical", "SIGNATURE_INVALID",
         "R is the identity written as p + 1. Who decodes R and compares points takes it.", lax=True,
         signature=signature_with_r(SEED, (P + 1).to_bytes(32, "little"), message))
    case("R not canonical, sign bit", "SIGNATURE_INVALID",
         "R is the identity with the sign bit of its x, which is 0. Who decodes R and compares points takes it.",
         lax=True, signature=signature_with_r(SEED, (1 | 1 << 255).to_bytes(32, "little"), message))
    case("R with a part of small order", "SIGNATURE_INVALID",
         "The equation holds only when it is multiplied by the cofactor 8, as batch verification does.", lax=True,
         signature=signature_with_torsion(SEED, order_eight(), message))
    case("signature of another key", "SIGNATURE_INVALID", "Signed with another private key.",
         signature=sign(OTHER_SEED, message))
    case("signature of another domain", "SIGNATURE_INVALID",
         "The right body and key under the type of a session proof.",
         signature=sign(SEED, pae(SESSION, envelope_body(BASE_ENVELOPE))))
    case("signature without a domain", "SIGNATURE_INVALID", "The right body and key without any encoding around it.",
         signature=sign(SEED, envelope_body(BASE_ENVELOPE)))
    case("signature over the digest", "SIGNATURE_INVALID", "The right key over SHA-256 of what is to be signed.",
         signature=sign(SEED, sha256(message)))

    case("signature_version unknown", "SIGNATURE_VERSION_UNKNOWN", "A later layout; the signature is good by version 1.",
         lax=True, version=2)
    case("signature_version missing", "SIGNATURE_VERSION_UNKNOWN", "0; the signature is good by version 1.", lax=True,
         version=0)

    case("weak key: the identity, R the identity, S 0", "KEY_WEAK",
         "The key is the identity, R the identity, S = 0: valid for every message to who does not look at the key.",
         lax=True, key=encode(IDENTITY), signature=encode(IDENTITY) + bytes(32))
    for name, key in weak_keys():
        case(f"weak key: {name}", "KEY_WEAK",
             "Forged without any private key: S is a number, R = S B, and the key's part vanishes. Only the key is wrong.",
             lax=True, key=key, signature=forged(key, message))

    def window(name, expect, note, **times):
        case(name, expect, note, lax=True, **times)

    before, after = [NOW[0] - 3600, 0], [NOW[0] + 3600, 0]
    window("key within its time", "valid", "not_before and not_after lie around the time.", not_before=before,
           not_after=after)
    window("key at its first moment", "valid", "not_before is the time itself, and belongs to it.", not_before=NOW)
    window("key not yet valid", "KEY_NOT_VALID", "not_before lies after the time.", not_before=after)
    window("key expired", "KEY_NOT_VALID", "not_after lies before the time.", not_before=[0, 0], not_after=before)
    window("key at its end", "KEY_NOT_VALID", "not_after is the time itself, and does not belong to it.", not_after=NOW)
    window("key revoked", "KEY_NOT_VALID", "Revoked before the time.", revoked_at=before)
    window("key revoked later", "KEY_NOT_VALID",
           "Revoked after the time: a revoked key counts for nothing, since who stole it can write any time.",
           revoked_at=after)

    return {
        "about": "One envelope, valid, and what must not verify. Same form as signing-v1.json, and: the public_key with "
                 "which to verify, its not_before, not_after and revoked_at (times as [seconds, nanos] or null); verify "
                 "as of the envelope's timestamp. expect is valid, or the reason (ErrorInfo.reason) of the refusal. "
                 "accepted_by_lax: a verifier that only checks an ed25519 equation takes it; strict ones must not. This "
                 "is about signatures alone: some of these envelopes would be refused for a field before. "
                 "Made by generate.py.",
        "private_key_seed": SEED.hex(),
        "cases": cases,
    }


# ---------------------------------------------------------------------------------------------------- digests-v1.json

def section_digest(section):
    match section:
        case {"json": text}:
            return sha256(text.encode())
        case {"bytes": data}:
            return sha256(bytes.fromhex(data))
        case {"reference_sha256": digest} | {"delta_result_sha256": digest}:
            return bytes.fromhex(digest)
    raise AssertionError


def context(name, note, sections):
    digests = {section["name"]: section_digest(section) for section in sections}
    text = b"".join(field(key) + field(digests[key]) for key in sorted(digests, key=str.encode))
    return {"name": name, "note": note, "sections": sections,
            "section_digests": {key: digest.hex() for key, digest in digests.items()}, "body": text.hex(),
            "context_digest": sha256(pae(CONTEXT, text)).hex()}


def contexts():
    description = {"name": "task_description", "json": '{"title": "Router drops the line"}'}
    return [
        context("no sections", "The digest of an empty body.", []),
        context("one JSON section", "The digest is that of exactly this text.", [description]),
        context("the same JSON with other spaces", "Another text is another digest.",
                [{"name": "task_description", "json": '{"title":"Router drops the line"}'}]),
        context("empty bytes", "SHA-256 of nothing.", [{"name": "attachment", "bytes": ""}]),
        context("every kind", "By value, by reference, and as a delta's result.", [
            description,
            {"name": "attachment", "bytes": "00ff10"},
            {"name": "history_log", "reference_sha256": sha256(b"the log").hex()},
            {"name": "goals", "delta_result_sha256": sha256(b'{"goal":"a stable line"}').hex()},
        ]),
        context("order of names", "Names go by their bytes, in whatever order the sections stand: "
                "- before . before digits before capitals before _ before small letters.", [
                    {"name": name, "json": "{}"} for name in ["b", "_", "a.b", "a-b", "ab", "Z", "a", "0", "aZ", "a_b"]
                ]),
        context("text beyond ASCII", "As UTF-8.", [{"name": "notes", "json": '{"Gruß": "客服"}'}]),
    ]


def sessions():
    result = []
    for name, agent, key_id, proof in [
        ("plain", "AgentA_CustomerService", "k1", bytes(range(32))),
        ("boundary shifted", "AgentA_CustomerServicek", "1", bytes(range(32))),
        ("zero challenge", "a", "k", bytes(32)),
    ]:
        text = body(agent, key_id, proof)
        result.append({"name": name, "agent_id": agent, "key_id": key_id, "challenge": proof.hex(), "body": text.hex(),
                       "signature": sign(SEED, pae(SESSION, text)).hex()})
    return result


RECEIPT_FIELDS = ["message_id", "sequence", "accept_time", "task_id", "task_status", "owner_id", "epoch", "handoff_id",
                  "handoff_state", "custody_hash", "key_id"]


def receipts():
    full = {
        "message_id": "0198c0de-0000-7000-8000-000000000003", "sequence": 42, "accept_time": NOW,
        "task_id": "ticket-4711", "task_status": 2, "owner_id": "AgentB_TechnicalSupport", "epoch": 2,
        "handoff_id": "0198c0de-0000-7000-8000-000000000001", "handoff_state": 5,
        "custody_hash": sha256(b"custody").hex(), "key_id": "broker-0123456789abcdef",
    }
    plain = {**full, "task_id": "", "task_status": 0, "owner_id": "", "epoch": 0, "handoff_id": "", "handoff_state": 0,
             "custody_hash": ""}
    heartbeat = {**plain, "sequence": 0}
    large = {**full, "sequence": 2**63, "epoch": 2**64 - 1}
    result = []
    for name, receipt in [("a completed handoff", full), ("plain mail, without a task", plain),
                          ("a heartbeat, which is not stored", heartbeat), ("large numbers", large)]:
        values = {**receipt, "custody_hash": bytes.fromhex(receipt["custody_hash"])}
        text = body(*(values[key] for key in RECEIPT_FIELDS))
        result.append({"name": name, "receipt": receipt, "body": text.hex(),
                       "signature": sign(BROKER_SEED, pae(RECEIPT, text)).hex()})
    return result


def resource_receipts():
    """Receipts that name a resource: version 2 of the layout."""
    append = {
        "message_id": "0198c0de-0000-7000-8000-000000000003", "sequence": 42, "accept_time": NOW,
        "task_id": "", "task_status": 0, "owner_id": "", "epoch": 0, "handoff_id": "", "handoff_state": 0,
        "custody_hash": "", "key_id": "broker-0123456789abcdef",
        "resource": "workspace:task:ticket-4711", "resource_sequence": 7,
    }
    result = []
    for name, receipt in [("an append to a workspace", append),
                          ("a large number", {**append, "resource_sequence": 2**63}),
                          ("a resource without a number", {**append, "resource_sequence": 0})]:
        values = {**receipt, "custody_hash": bytes.fromhex(receipt["custody_hash"])}
        text = body(*(values[key] for key in RECEIPT_FIELDS + ["resource", "resource_sequence"]))
        result.append({"name": name, "receipt": receipt, "body": text.hex(),
                       "signature": sign(BROKER_SEED, pae(RECEIPT_OF_RESOURCE, text)).hex()})
    return result


def workspace():
    """The chain of a workspace: each entry by its number, its time, and the digest of its envelope's signed bytes."""
    head, entries = bytes(32), []
    for sequence, time, signed in [(1, NOW, b"first"), (2, NOW, b""), (3, [1700000001, 0], bytes(range(256)))]:
        envelope = sha256(signed)
        head = sha256(pae(WORKSPACE, body(head, sequence, time, envelope)))
        entries.append({"sequence": sequence, "create_time": time, "envelope_sha256": envelope.hex(),
                        "hash": head.hex()})
    return entries


def vouchers():
    """An operator's word for the public key of SEED, signed with OTHER_SEED."""
    result = []
    for name, agent, key_id, operator, end in [
        ("for good", "AgentA_CustomerService", "k1", "ops-2026", None),
        ("for some time", "AgentA_CustomerService", "k1", "ops-2026", NOW),
        ("boundary shifted", "AgentA_CustomerServicek", "1", "ops-2026", None),
    ]:
        key = public(SEED)
        text = body(agent, key_id, key, operator, end)
        result.append({"name": name, "agent_id": agent, "key_id": key_id, "public_key": key.hex(),
                       "operator_key_id": operator, "not_after_time": end, "body": text.hex(),
                       "signature": sign(OTHER_SEED, pae(VOUCHER, text)).hex()})
    return result


def chain(kind):
    entries = [b"first", b"", bytes(range(256))]
    head, hashes = bytes(32), []
    for entry in entries:
        head = sha256(pae(kind, body(head, entry)))
        hashes.append(head.hex())
    return {"entries": [entry.hex() for entry in entries], "hashes": hashes}


def digests():
    return {
        "about": "docs/signing.md: context digests, proofs of identity, receipts, vouchers for keys, and the "
                 "chains of the custody log, the audit log and a workspace. bytes and hashes as "
                 "hex, times as [seconds, nanos]. A section holds json (text), bytes, or the sha256 of a reference or of "
                 "a delta's result. Made by generate.py.",
        "private_key_seed": SEED.hex(), "public_key": public(SEED).hex(),
        "broker_private_key_seed": BROKER_SEED.hex(), "broker_public_key": public(BROKER_SEED).hex(),
        "operator_private_key_seed": OTHER_SEED.hex(), "operator_public_key": public(OTHER_SEED).hex(),
        "contexts": contexts(), "sessions": sessions(), "receipts": receipts(), "vouchers": vouchers(),
        "custody": chain(CUSTODY), "audit": chain(AUDIT), "resource_receipts": resource_receipts(),
        "workspace": workspace(),
    }


# --------------------------------------------------------------------------------------------------------------- main

def check_signing_vectors():
    known = json.loads((HERE / "signing-v1.json").read_text("utf-8"))
    for vector in known["vectors"]:
        signature = sign(bytes.fromhex(known["private_key_seed"]), envelope_input(vector["envelope"]))
        assert signature.hex() == vector["signature"], vector["name"]


def main():
    check_signing_vectors()
    for name, made in [("refusals-v1.json", refusals()), ("digests-v1.json", digests())]:
        text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
        if "--check" not in sys.argv[1:]:
            (HERE / name).write_text(text, "utf-8")
        elif (HERE / name).read_text("utf-8") != text:
            sys.exit(f"{name} is not what generate.py makes; run it")


if __name__ == "__main__":
    main()
