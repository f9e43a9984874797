package dev.baton;

/** To be thrown by a listener: the message can never be taken. It becomes a dead letter at once. */
public final class PoisonException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** Says why, in words. */
    public PoisonException(String message) {
        super(message);
    }
}
