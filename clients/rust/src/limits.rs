//! The limits of the schema, checked before sending: the client sends nothing that every broker of this schema refuses.

use bytes::Bytes;

use super::{ClientError, error::Refused};
use crate::envelope::UnverifiedEnvelope;

/// Checks an envelope as a broker does on receipt: the fields and their bounds, the payload (at most 1,048,576 bytes)
/// and its digest. Does not check the signature, nor anything that needs the broker's state.
///
/// # Errors
///
/// [`ClientError::Refused`] with the reason that the broker would give: `PAYLOAD_TOO_LARGE`, `FIELD_INVALID` with the
/// fields, `PAYLOAD_TYPE_MISMATCH`, `CONTEXT_DIGEST_MISMATCH`, or `MALFORMED`.
pub(super) fn check_envelope(envelope: &Bytes) -> Result<(), ClientError> {
    match UnverifiedEnvelope::parse(envelope.clone()) {
        Ok(_) => Ok(()),
        Err(error) => Err(Refused::before_sending(&error).into()),
    }
}
