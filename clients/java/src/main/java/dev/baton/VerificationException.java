package dev.baton;

/** A message does not verify here, whatever the broker says of it. */
public final class VerificationException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final String reason;

    VerificationException(String reason, String message) {
        super(reason + ": " + message);
        this.reason = reason;
    }

    /**
     * The broker's word for the same: SIGNATURE_MISSING, SIGNATURE_INVALID, SIGNATURE_VERSION_UNKNOWN, KEY_WEAK,
     * KEY_UNKNOWN, KEY_NOT_VALID, PAYLOAD_TYPE_MISMATCH, MALFORMED or CONTEXT_DIGEST_MISMATCH; or CUSTODY_BROKEN.
     */
    public String reason() {
        return reason;
    }
}
