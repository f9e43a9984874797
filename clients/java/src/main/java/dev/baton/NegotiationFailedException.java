package dev.baton;

/** A negotiation ended without a handoff. */
public final class NegotiationFailedException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final String negotiationId;
    private final String reason;

    NegotiationFailedException(String negotiationId, String reason, String message) {
        super(reason + ": " + message);
        this.negotiationId = negotiationId;
        this.reason = reason;
    }

    /** Returns the negotiation's id. */
    public String negotiationId() {
        return negotiationId;
    }

    /**
     * Returns the stable code, for example NO_OFFER; CANCELLED for a cancelled negotiation, SETTLED if its work is no
     * task.
     */
    public String reason() {
        return reason;
    }
}
