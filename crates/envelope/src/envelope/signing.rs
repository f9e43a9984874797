//! The byte layouts that are signed or chained: `docs/signing.md` in code. This module must not know the owners of
//! keys, or any rule of the protocol.

use prost_types::Timestamp;
use sha2::{Digest, Sha256};

use crate::proto::v1;

/// A SHA-256 digest, 32 bytes.
pub type Digest32 = [u8; 32];

/// The signing layout that this version writes, and the only one it reads.
pub const SIGNATURE_VERSION: u32 = 1;

const ENVELOPE: &str = "application/vnd.baton.envelope.v1";
const CONTEXT: &str = "application/vnd.baton.context.v1";
const SESSION: &str = "application/vnd.baton.session.v1";
const RECEIPT: &str = "application/vnd.baton.receipt.v1";
const RECEIPT_OF_RESOURCE: &str = "application/vnd.baton.receipt.v2";
const CUSTODY: &str = "application/vnd.baton.custody.v1";
const AUDIT: &str = "application/vnd.baton.audit.v1";
const WORKSPACE: &str = "application/vnd.baton.workspace.v1";
const VOUCHER: &str = "application/vnd.baton.key-voucher.v1";

/// The signed bytes of an envelope: the pre-authentication encoding of its body.
pub fn envelope_input(envelope: &v1::Envelope) -> Vec<u8> {
    let payload_digest = match &envelope.payload {
        Some(payload) => sha256(&[head(&payload.type_url, payload.value.len()).as_bytes(), &payload.value]),
        None => sha256(&[head("", 0).as_bytes()]),
    };
    let mut body = Body::default();
    body.bytes(envelope.message_id.as_bytes());
    body.bytes(envelope.sender_id.as_bytes());
    body.bytes(envelope.receiver_id.as_bytes());
    body.time(envelope.timestamp.as_ref());
    body.number(enum_number(envelope.message_type));
    body.bytes(envelope.correlation_id.as_bytes());
    body.bytes(envelope.task_id.as_bytes());
    body.number(envelope.epoch);
    body.time(envelope.expires_at.as_ref());
    body.bytes(envelope.key_id.as_bytes());
    body.bytes(&payload_digest);
    pre_authentication(ENVELOPE, &body.0)
}

/// The digest of a context: over each section's name and digest, in the byte order of the names.
pub fn context_digest<'a>(sections: impl IntoIterator<Item = (&'a str, Digest32)>) -> Digest32 {
    let mut sections: Vec<_> = sections.into_iter().collect();
    // The digest does not depend on the order in which the sections are sent.
    sections.sort_unstable();
    let mut body = Body::default();
    for (name, digest) in sections {
        body.bytes(name.as_bytes());
        body.bytes(&digest);
    }
    sha256(&[&pre_authentication(CONTEXT, &body.0)])
}

/// The bytes that an agent signs to authenticate.
pub fn session_input(agent_id: &str, key_id: &str, challenge: &[u8]) -> Vec<u8> {
    let mut body = Body::default();
    body.bytes(agent_id.as_bytes());
    body.bytes(key_id.as_bytes());
    body.bytes(challenge);
    pre_authentication(SESSION, &body.0)
}

/// The bytes that the broker signs for a receipt. A receipt that names a resource has the second version of the layout.
pub fn receipt_input(receipt: &v1::Receipt) -> Vec<u8> {
    let mut body = Body::default();
    body.bytes(receipt.message_id.as_bytes());
    body.number(receipt.sequence);
    body.time(receipt.accept_time.as_ref());
    body.bytes(receipt.task_id.as_bytes());
    body.number(enum_number(receipt.task_status));
    body.bytes(receipt.owner_id.as_bytes());
    body.number(receipt.epoch);
    body.bytes(receipt.handoff_id.as_bytes());
    body.number(enum_number(receipt.handoff_state));
    body.bytes(&receipt.custody_hash);
    body.bytes(receipt.key_id.as_bytes());
    if receipt.resource.is_empty() {
        return pre_authentication(RECEIPT, &body.0);
    }
    body.bytes(receipt.resource.as_bytes());
    body.number(receipt.resource_sequence);
    pre_authentication(RECEIPT_OF_RESOURCE, &body.0)
}

/// The next hash of a custody chain.
pub fn custody_hash(previous: &Digest32, entry: &[u8]) -> Digest32 {
    chain_hash(CUSTODY, previous, entry)
}

/// The next hash of the audit log.
pub fn audit_hash(previous: &Digest32, entry: &[u8]) -> Digest32 {
    chain_hash(AUDIT, previous, entry)
}

/// The next hash of a workspace's chain. `envelope` is the SHA-256 of the signed bytes of the entry's envelope.
pub fn workspace_hash(
    previous: &Digest32,
    sequence: u64,
    create_time: Option<&Timestamp>,
    envelope: &Digest32,
) -> Digest32 {
    let mut body = Body::default();
    body.bytes(previous);
    body.number(sequence);
    body.time(create_time);
    body.bytes(envelope);
    sha256(&[&pre_authentication(WORKSPACE, &body.0)])
}

/// The hash of the two fields as a body, without a copy of them: an entry may be long, and each message has one.
fn chain_hash(kind: &str, previous: &Digest32, entry: &[u8]) -> Digest32 {
    let lengths = [field_length(previous), field_length(entry)];
    let head = head(kind, lengths.as_flattened().len() + previous.len() + entry.len());
    sha256(&[head.as_bytes(), &lengths[0], previous, &lengths[1], entry])
}

/// The bytes that an operator signs to vouch for an agent's key. Ignores the voucher's own signature.
pub fn voucher_input(agent_id: &str, key: &v1::AgentKey, voucher: &v1::KeyVoucher) -> Vec<u8> {
    let mut body = Body::default();
    body.bytes(agent_id.as_bytes());
    body.bytes(key.key_id.as_bytes());
    body.bytes(&key.public_key);
    body.bytes(voucher.operator_key_id.as_bytes());
    body.time(voucher.not_after_time.as_ref());
    pre_authentication(VOUCHER, &body.0)
}

/// The SHA-256 over the concatenated parts.
pub fn sha256(parts: &[&[u8]]) -> Digest32 {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// DSSE's pre-authentication encoding.
fn pre_authentication(kind: &str, body: &[u8]) -> Vec<u8> {
    let head = head(kind, body.len());
    let mut encoded = Vec::with_capacity(head.len() + body.len());
    encoded.extend_from_slice(head.as_bytes());
    encoded.extend_from_slice(body);
    encoded
}

/// The bytes before the body in DSSE's pre-authentication encoding.
fn head(kind: &str, body_bytes: usize) -> String {
    format!("DSSEv1 {} {kind} {body_bytes} ", kind.len())
}

/// The signed form of an enum. A negative number, which no enum of the schema has, is sign-extended as in protobuf.
fn enum_number(number: i32) -> u64 {
    i64::from(number).cast_unsigned()
}

/// Fields one behind the other, each with its length in front.
struct Body(Vec<u8>);

/// The bytes before a field.
fn field_length(field: &[u8]) -> [u8; 4] {
    u32::try_from(field.len()).expect("a field of a frame is under 4 GiB").to_be_bytes()
}

impl Default for Body {
    fn default() -> Self {
        Self(Vec::with_capacity(Self::BYTES_USUAL))
    }
}

impl Body {
    /// The bodies of envelopes and receipts are shorter, unless they have long ids.
    const BYTES_USUAL: usize = 512;

    fn bytes(&mut self, bytes: &[u8]) {
        // The length before each field makes the encoding unambiguous: bytes cannot move from one field to the next.
        self.0.extend_from_slice(&field_length(bytes));
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_be_bytes());
    }

    fn time(&mut self, time: Option<&Timestamp>) {
        // An absent time is a field of 0 bytes, which differs from 1970-01-01 with 12.
        let Some(time) = time else { return self.bytes(&[]) };
        let mut encoded = [0; 12];
        encoded[..8].copy_from_slice(&time.seconds.to_be_bytes());
        encoded[8..].copy_from_slice(&time.nanos.to_be_bytes());
        self.bytes(&encoded);
    }
}
