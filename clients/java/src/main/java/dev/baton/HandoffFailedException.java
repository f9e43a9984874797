package dev.baton;

import java.util.List;

/** A handoff ended without moving the task. Its sender still owns it, at the same epoch. */
public final class HandoffFailedException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final String handoffId;
    private final String reason;
    private final transient List<Rejection> rejections;

    HandoffFailedException(String handoffId, String reason, String message, List<Rejection> rejections) {
        super(reason + ": " + message);
        this.handoffId = handoffId;
        this.reason = reason;
        this.rejections = List.copyOf(rejections);
    }

    /** Returns the handoff's id. */
    public String handoffId() {
        return handoffId;
    }

    /** Returns the stable code, for example NO_CANDIDATE, ACCEPT_TIMEOUT, HANDOFF_CANCELLED, TAKEOVER_FAILED. */
    public String reason() {
        return reason;
    }

    /** Returns the agents that did not take the task, in order. Only the sender's side knows them. */
    public List<Rejection> rejections() {
        return rejections;
    }
}
