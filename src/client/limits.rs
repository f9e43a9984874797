//! What the schema allows, checked before anything is sent: what no broker of this schema would take is not sent at all.

use bytes::Bytes;

use super::{ClientError, error::Refused};
use crate::envelope::UnverifiedEnvelope;

/// Checks an envelope as a broker does when it comes: the fields and their bounds, the payload (at most 1,048,576 bytes)
/// and its digest. Not the signature, and not what only the broker knows.
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
