//! A second implementation of the signed layouts, written only from `docs/signing.md`, to compare with.

use prost_types::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::proto::v1;

fn pre_authentication(kind: &str, body: &[u8]) -> Vec<u8> {
    let mut text = b"DSSEv1 ".to_vec();
    for (place, part) in [kind.as_bytes(), body].into_iter().enumerate() {
        if place > 0 {
            text.push(b' ');
        }
        text.extend(part.len().to_string().bytes());
        text.push(b' ');
        text.extend(part);
    }
    text
}

fn time(time: Option<&Timestamp>) -> Vec<u8> {
    time.map_or(Vec::new(), |time| [&time.seconds.to_be_bytes()[..], &time.nanos.to_be_bytes()].concat())
}

/// The upper half of the ten-byte varint range: protobuf sign-extends a negative number to 64 bits.
fn sign_extended(number: i32) -> Vec<u8> {
    let mut bytes = vec![if number < 0 { 0xff } else { 0 }; 4];
    bytes.extend(number.to_be_bytes());
    bytes
}

fn fields(fields: &[Vec<u8>]) -> Vec<u8> {
    let mut body = Vec::new();
    for field in fields {
        body.extend(u32::try_from(field.len()).expect("it was under 4 GiB").to_be_bytes());
        body.extend(field);
    }
    body
}

pub(super) fn envelope_input(envelope: &v1::Envelope) -> Vec<u8> {
    let (type_url, value) = match &envelope.payload {
        Some(payload) => (payload.type_url.as_str(), &payload.value[..]),
        None => ("", &[][..]),
    };
    let body = fields(&[
        envelope.message_id.clone().into_bytes(),
        envelope.sender_id.clone().into_bytes(),
        envelope.receiver_id.clone().into_bytes(),
        time(envelope.timestamp.as_ref()),
        sign_extended(envelope.message_type),
        envelope.correlation_id.clone().into_bytes(),
        envelope.task_id.clone().into_bytes(),
        envelope.epoch.to_be_bytes().to_vec(),
        time(envelope.expires_at.as_ref()),
        envelope.key_id.clone().into_bytes(),
        Sha256::digest(pre_authentication(type_url, value)).to_vec(),
    ]);
    pre_authentication("application/vnd.baton.envelope.v1", &body)
}

pub(super) fn receipt_input(receipt: &v1::Receipt) -> Vec<u8> {
    let mut body = fields(&[
        receipt.message_id.clone().into_bytes(),
        receipt.sequence.to_be_bytes().to_vec(),
        time(receipt.accept_time.as_ref()),
        receipt.task_id.clone().into_bytes(),
        sign_extended(receipt.task_status),
        receipt.owner_id.clone().into_bytes(),
        receipt.epoch.to_be_bytes().to_vec(),
        receipt.handoff_id.clone().into_bytes(),
        sign_extended(receipt.handoff_state),
        receipt.custody_hash.to_vec(),
        receipt.key_id.clone().into_bytes(),
    ]);
    if receipt.resource.is_empty() {
        return pre_authentication("application/vnd.baton.receipt.v1", &body);
    }
    body.extend(fields(&[receipt.resource.clone().into_bytes(), receipt.resource_sequence.to_be_bytes().to_vec()]));
    pre_authentication("application/vnd.baton.receipt.v2", &body)
}

/// Reads the fields back from a signing input. `None` if it has another form.
pub(super) fn read_fields(input: &[u8], kind: &str, count: usize) -> Option<Vec<Vec<u8>>> {
    let rest = input.strip_prefix(format!("DSSEv1 {} {kind} ", kind.len()).as_bytes())?;
    let end = rest.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    let mut body = &rest[end + 1..];
    if body.len() != length {
        return None;
    }
    let mut fields = Vec::new();
    for _ in 0..count {
        let (length, after) = body.split_first_chunk::<4>()?;
        let (field, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        fields.push(field.to_vec());
        body = after;
    }
    body.is_empty().then_some(fields)
}
