//! The errors of envelopes that do not parse or do not verify.

use crate::{
    codes::{ErrorCode, FieldViolation, Refusal},
    ids::{AgentId, KeyId},
};

/// A refusal before any state is read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The bytes do not parse.
    #[error("the {part} cannot be parsed: {problem}")]
    Malformed {
        /// The part of the envelope.
        part: &'static str,
        /// The error of the parser.
        problem: String,
    },
    /// Fields are missing, malformed or out of bounds.
    #[error("{}", list(violations))]
    Fields {
        /// The violations; never empty.
        violations: Vec<FieldViolation>,
    },
    /// A field asks for a feature that does not exist yet.
    #[error("{path} asks for a feature that this version does not have")]
    NotSupported {
        /// The path of the field.
        path: String,
    },
    /// message_type and payload do not agree.
    #[error("the payload is {found:?}, but message_type requires {expected}")]
    PayloadTypeMismatch {
        /// The required payload type.
        expected: &'static str,
        /// The type in the payload's type_url.
        found: String,
    },
    /// The payload is too large.
    #[error("the payload has {bytes} bytes; the limit is {}", super::PAYLOAD_BYTES_MAX)]
    PayloadTooLarge {
        /// The size in bytes.
        bytes: usize,
    },
    /// The entry for a workspace is too large.
    #[error(
        "the entry has {bytes} bytes; the limit is {}. Store the content elsewhere, for example as a blob, and append a \
         reference with its address and its SHA-256",
        crate::protocol::ENTRY_BYTES_MAX
    )]
    EntryTooLarge {
        /// The size of the content in bytes; of the payload if that alone is over the limit.
        bytes: usize,
    },
    /// The gRPC message around the envelope is too large. It is refused at its head, which has its size.
    #[error("the gRPC message has {bytes} bytes; the limit is {}", super::FRAME_BYTES_MAX)]
    FrameTooLarge {
        /// The size in bytes.
        bytes: usize,
    },
    /// The compressed gRPC message around the envelope unpacks to more than a gRPC message may have.
    #[error("the gRPC message unpacks to more than {} bytes, the limit of a gRPC message", super::FRAME_BYTES_MAX)]
    UnpacksTooLarge,
    /// The context's digest does not match its sections.
    #[error("context_digest does not match the sections, whose digest is {}", hex::encode(expected))]
    ContextDigestMismatch {
        /// The digest of the sections.
        expected: [u8; 32],
    },
    /// The signing layout is of a later version.
    #[error("signature_version {version} is not supported; this broker supports {}", super::signing::SIGNATURE_VERSION)]
    SignatureVersionUnknown {
        /// The signature_version of the envelope.
        version: u32,
    },
    /// The envelope is not signed.
    #[error("the envelope is not signed")]
    SignatureMissing,
    /// The signature does not verify.
    #[error("the signature does not verify with key {key_id} of {sender}")]
    SignatureInvalid {
        /// The sender_id of the envelope.
        sender: AgentId,
        /// The key_id of the envelope.
        key_id: KeyId,
    },
    /// The sender has no key with this id, or is not registered.
    #[error("agent {sender} has no registered key {key_id}")]
    KeyUnknown {
        /// The sender_id of the envelope.
        sender: AgentId,
        /// The key_id of the envelope.
        key_id: KeyId,
    },
    /// The key is revoked, expired, or not valid yet.
    #[error("key {key_id} of {sender} is revoked, expired or not yet valid")]
    KeyNotValid {
        /// The sender_id of the envelope.
        sender: AgentId,
        /// The key_id of the envelope.
        key_id: KeyId,
    },
}

impl Refusal for EnvelopeError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Malformed { .. } => ErrorCode::Malformed,
            Self::Fields { .. } => ErrorCode::FieldInvalid,
            Self::NotSupported { .. } => ErrorCode::NotSupported,
            Self::PayloadTypeMismatch { .. } => ErrorCode::PayloadTypeMismatch,
            Self::PayloadTooLarge { .. } | Self::FrameTooLarge { .. } | Self::UnpacksTooLarge => {
                ErrorCode::PayloadTooLarge
            }
            Self::EntryTooLarge { .. } => ErrorCode::EntryTooLarge,
            Self::ContextDigestMismatch { .. } => ErrorCode::ContextDigestMismatch,
            Self::SignatureVersionUnknown { .. } => ErrorCode::SignatureVersionUnknown,
            Self::SignatureMissing => ErrorCode::SignatureMissing,
            Self::SignatureInvalid { .. } => ErrorCode::SignatureInvalid,
            Self::KeyUnknown { .. } => ErrorCode::KeyUnknown,
            Self::KeyNotValid { .. } => ErrorCode::KeyNotValid,
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        let (name, most, bytes) = match self {
            Self::NotSupported { path } => return vec![("field", path.clone())],
            Self::UnpacksTooLarge => return vec![("frame_bytes_max", super::FRAME_BYTES_MAX.to_string())],
            Self::PayloadTooLarge { bytes } => ("payload_bytes_max", super::PAYLOAD_BYTES_MAX, bytes),
            Self::EntryTooLarge { bytes } => ("entry_bytes_max", crate::protocol::ENTRY_BYTES_MAX, bytes),
            Self::FrameTooLarge { bytes } => ("frame_bytes_max", super::FRAME_BYTES_MAX, bytes),
            _ => return Vec::new(),
        };
        vec![(name, most.to_string()), ("bytes", bytes.to_string())]
    }

    fn violations(&self) -> &[FieldViolation] {
        match self {
            Self::Fields { violations } => violations,
            _ => &[],
        }
    }
}

fn list(violations: &[FieldViolation]) -> String {
    violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
