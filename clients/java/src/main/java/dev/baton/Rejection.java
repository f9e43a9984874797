package dev.baton;

import dev.baton.v1.RejectReason;

/**
 * A candidate's refusal of a handoff.
 *
 * @param agentId the candidate
 * @param reason the reason; UNRECOGNIZED for one of a newer schema
 * @param text the explanation; empty if the candidate gave none
 */
public record Rejection(String agentId, RejectReason reason, String text) {
    private static final String PREFIX = "REJECT_REASON_";

    /** Returns the candidate with its explanation, or with its reason if it gave none. */
    @Override
    public String toString() {
        String name = reason.name();
        String code = name.startsWith(PREFIX) ? name.substring(PREFIX.length()) : name;
        return agentId + ": " + (text.isEmpty() ? code : text);
    }
}
