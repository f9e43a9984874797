package dev.baton;

/** A question ended without an answer. */
public final class NoAnswerException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final String questionId;
    private final Reason reason;

    /** The reason why a question ended without an answer. */
    public enum Reason {
        /** The question's deadline passed. */
        EXPIRED,
        /** The next status update of the task or a move of the task withdrew the question, or the task had none. */
        WITHDRAWN
    }

    NoAnswerException(String questionId, Reason reason, String message) {
        super(reason + ": " + message);
        this.questionId = questionId;
        this.reason = reason;
    }

    /** Returns the message_id of the status update that asked. */
    public String questionId() {
        return questionId;
    }

    /** Returns the reason. */
    public Reason reason() {
        return reason;
    }
}
