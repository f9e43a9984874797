package dev.baton;

/** A message fails verification by this client, independent of the broker's checks. */
public final class VerificationException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final String reason;

    VerificationException(String reason, String message) {
        super(reason + ": " + message);
        this.reason = reason;
    }

    /**
     * Returns the broker's reason for the same fault: SIGNATURE_MISSING, SIGNATURE_INVALID, SIGNATURE_VERSION_UNKNOWN,
     * KEY_WEAK, KEY_UNKNOWN, KEY_NOT_VALID, PAYLOAD_TYPE_MISMATCH, MALFORMED or CONTEXT_DIGEST_MISMATCH; or
     * CUSTODY_INVALID, which is the client's own.
     */
    public String reason() {
        return reason;
    }
}
