//! Building and signing envelopes, for the broker's own messages and for the Rust client.

use prost::{Message, Name};

use super::{keys::PrivateKey, signing};
use crate::{ids::KeyId, proto, proto::v1};

/// Encodes a payload as an `Any`.
pub fn payload_of<M: Message + Name>(message: &M) -> proto::Any {
    proto::Any { type_url: M::type_url(), value: message.encode_to_vec().into() }
}

/// Signs the envelope: sets its key, version and signature.
pub fn sign(envelope: &mut v1::Envelope, key_id: &KeyId, key: &PrivateKey) {
    envelope.key_id = key_id.to_string();
    envelope.signature_version = signing::SIGNATURE_VERSION;
    envelope.signature = key.sign(&signing::envelope_input(envelope)).to_vec().into();
}
