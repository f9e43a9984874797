package dev.baton;

/** A text is no JSON that a delta or a filter can work on, or a filter does not fit it. */
public class SectionException extends IllegalArgumentException {
    private static final long serialVersionUID = 1;

    SectionException(String message) {
        super(message);
    }
}
