import hashlib

import pytest
import vectors

from baton import VerificationError, sections, signing, v1

SIGNING = vectors.load("signing-v1.json")
REFUSALS = vectors.load("refusals-v1.json")
DIGESTS = vectors.load("digests-v1.json")


DELTAS = vectors.load("deltas-v1.json")
FILTERS = vectors.load("filters-v1.json")


def named(cases):
    return [pytest.param(case, id=case["name"]) for case in cases]


@pytest.mark.parametrize("case", named(SIGNING["vectors"]))
def test_envelopes_are_signed_as_pinned(case):
    envelope = vectors.envelope(case["envelope"])
    body = signing.envelope_body(envelope)
    assert body.hex() == case["body"]
    signed = signing.pae("application/vnd.baton.envelope.v1", body)
    assert hashlib.sha256(signed).hexdigest() == case["signing_input_sha256"]
    signing.sign_envelope(envelope, "k1", vectors.private_key(SIGNING["private_key_seed"]))
    assert envelope.signature.hex() == case["signature"]
    assert envelope.signature_version == 1
    key = v1.AgentKey(key_id="k1", public_key=bytes.fromhex(SIGNING["public_key"]))
    signing.verify_envelope(envelope, key)


@pytest.mark.parametrize("case", named(REFUSALS["cases"]))
def test_what_must_not_verify_does_not(case):
    envelope = vectors.envelope(case["envelope"])
    envelope.signature = bytes.fromhex(case["signature"])
    envelope.signature_version = case["signature_version"]
    key = v1.AgentKey(
        key_id="k1",
        public_key=bytes.fromhex(case["public_key"]),
        not_before_time=vectors.time(case["not_before"]),
        not_after_time=vectors.time(case["not_after"]),
        revoke_time=vectors.time(case["revoked_at"]),
    )
    if case["expect"] == "valid":
        signing.verify_envelope(envelope, key)
    else:
        with pytest.raises(VerificationError) as refused:
            signing.verify_envelope(envelope, key)
        assert refused.value.reason == case["expect"]


def test_trace_context_is_outside_of_the_signature():
    case = REFUSALS["cases"][0]
    envelope = vectors.envelope(case["envelope"])
    envelope.signature = bytes.fromhex(case["signature"])
    envelope.signature_version = 1
    envelope.trace_context.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    signing.verify_envelope(envelope, v1.AgentKey(public_key=bytes.fromhex(case["public_key"])))


@pytest.mark.parametrize("public_key", [b"", bytes(31), bytes(33), bytes([2]) + bytes(31)])
def test_what_is_no_key_verifies_nothing(public_key):
    case = REFUSALS["cases"][0]
    envelope = vectors.envelope(case["envelope"])
    envelope.signature = bytes.fromhex(case["signature"])
    envelope.signature_version = 1
    with pytest.raises(VerificationError, match="SIGNATURE_INVALID"):
        signing.verify_envelope(envelope, v1.AgentKey(public_key=public_key))


@pytest.mark.parametrize("case", named(DIGESTS["contexts"]))
def test_context_digests(case):
    sections = [section(one) for one in case["sections"]]
    found = {one.name: signing.section_digest(one).hex() for one in sections}
    assert found == case["section_digests"]
    assert signing.context_digest(sections).hex() == case["context_digest"]
    assert signing.context_digest(reversed(sections)).hex() == case["context_digest"]


def section(case):
    match case:
        case {"name": name, "json": text}:
            return v1.ContextSection(name=name, json=text)
        case {"name": name, "bytes": data}:
            return v1.ContextSection(name=name, bytes=v1.ContextBytes(data=bytes.fromhex(data)))
        case {"name": name, "reference_sha256": digest}:
            return v1.ContextSection(name=name, reference=v1.ContextReference(sha256=bytes.fromhex(digest)))
        case {"name": name, "delta_result_sha256": digest}:
            return v1.ContextSection(name=name, delta=v1.ContextDelta(result_sha256=bytes.fromhex(digest)))
    raise AssertionError(case)


def test_a_section_without_content_has_no_digest():
    with pytest.raises(ValueError, match="no content"):
        signing.section_digest(v1.ContextSection(name="goals"))


@pytest.mark.parametrize("case", named(DIGESTS["sessions"]))
def test_proofs_of_identity(case):
    challenge = bytes.fromhex(case["challenge"])
    assert signing.session_body(case["agent_id"], case["key_id"], challenge).hex() == case["body"]
    key = vectors.private_key(DIGESTS["private_key_seed"])
    assert signing.sign_session(case["agent_id"], case["key_id"], challenge, key).hex() == case["signature"]


def receipt_of(case):
    fields = case["receipt"] | {
        "accept_time": vectors.time(case["receipt"]["accept_time"]),
        "custody_hash": bytes.fromhex(case["receipt"]["custody_hash"]),
        "signature": bytes.fromhex(case["signature"]),
    }
    return v1.Receipt(**fields)


def broker_key(case):
    return v1.AgentKey(key_id=case["receipt"]["key_id"], public_key=bytes.fromhex(DIGESTS["broker_public_key"]))


@pytest.mark.parametrize("case", named(DIGESTS["receipts"] + DIGESTS["resource_receipts"]))
def test_receipts(case):
    receipt = receipt_of(case)
    assert signing.receipt_body(receipt).hex() == case["body"]
    signing.verify_receipt(receipt, broker_key(case))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"epoch": 3}, "SIGNATURE_INVALID"),
        ({"owner_id": "AgentC"}, "SIGNATURE_INVALID"),
        ({"custody_hash": bytes(32)}, "SIGNATURE_INVALID"),
        ({"signature": b""}, "SIGNATURE_MISSING"),
        ({"key_id": "another"}, "KEY_UNKNOWN"),
    ],
)
def test_changed_receipts_do_not_verify(change, reason):
    case = DIGESTS["receipts"][0]
    receipt = receipt_of(case)
    for name, value in change.items():
        setattr(receipt, name, value)
    with pytest.raises(VerificationError) as refused:
        signing.verify_receipt(receipt, broker_key(case))
    assert refused.value.reason == reason


@pytest.mark.parametrize("change", [{"resource": ""}, {"resource": "another"}, {"resource_sequence": 8}])
def test_changed_receipts_of_a_resource_do_not_verify(change):
    case = DIGESTS["resource_receipts"][0]
    receipt = receipt_of(case)
    for name, value in change.items():
        setattr(receipt, name, value)
    with pytest.raises(VerificationError, match="SIGNATURE_INVALID"):
        signing.verify_receipt(receipt, broker_key(case))


def test_custody_chain():
    head = bytes(32)
    for entry, expected in zip(DIGESTS["custody"]["entries"], DIGESTS["custody"]["hashes"], strict=True):
        head = signing.custody_hash(head, bytes.fromhex(entry))
        assert head.hex() == expected


def test_audit_chain():
    head = bytes(32)
    for entry, expected in zip(DIGESTS["audit"]["entries"], DIGESTS["audit"]["hashes"], strict=True):
        head = signing.audit_hash(head, bytes.fromhex(entry))
        assert head.hex() == expected


@pytest.mark.parametrize("case", named(DIGESTS["vouchers"]))
def test_vouchers(case):
    key = v1.AgentKey(key_id=case["key_id"], public_key=bytes.fromhex(case["public_key"]))
    operator = v1.AgentKey(key_id=case["operator_key_id"], public_key=bytes.fromhex(DIGESTS["operator_public_key"]))
    not_after, signature = vectors.time(case["not_after_time"]), bytes.fromhex(case["signature"])
    assert signing.voucher_body(case["agent_id"], key, operator.key_id, not_after).hex() == case["body"]
    private = vectors.private_key(DIGESTS["operator_private_key_seed"])
    made = signing.vouch(case["agent_id"], key, operator.key_id, private, not_after)
    assert made.signature.hex() == case["signature"]
    signing.verify_voucher(case["agent_id"], key, operator, not_after, signature)
    with pytest.raises(VerificationError, match="SIGNATURE_INVALID"):
        signing.verify_voucher("AgentB", key, operator, not_after, signature)


@pytest.mark.parametrize("case", named(DELTAS["cases"]))
def test_deltas(case):
    if case["result"] is None:
        with pytest.raises(sections.SectionError):
            sections.apply_delta(case["base"], case["patch"])
        return
    result = sections.apply_delta(case["base"], case["patch"])
    assert (result, sections.sha256(result).hex()) == (case["result"], case["result_sha256"])
    made = sections.delta_between(case["base"], result)
    if made is not None:
        delta, target = made
        assert (sections.apply_delta(case["base"], delta.merge_patch), target) == (result, result)


@pytest.mark.parametrize("case", named(FILTERS["cases"]))
def test_filters(case):
    chosen = dict(case["filter"])
    history = v1.HistoryFilter.Value(f"HISTORY_FILTER_{chosen.pop('history', 'UNSPECIFIED')}")
    part = v1.ContextFilter(history=history, **chosen)
    if case["result"] is None:
        with pytest.raises(sections.SectionError):
            sections.filtered(case["section"], part, case["summary"])
    else:
        assert sections.filtered(case["section"], part, case["summary"]) == case["result"]
