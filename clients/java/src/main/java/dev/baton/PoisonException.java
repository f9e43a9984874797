package dev.baton;

/** Thrown by a listener for a message that can never be handled. It becomes a dead letter at once. */
public final class PoisonException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** Takes the explanation, which goes into the nack. */
    public PoisonException(String message) {
        super(message);
    }
}
