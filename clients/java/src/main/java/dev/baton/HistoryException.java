package dev.baton;

/** A value is no history of the shape {@code baton.history}, version 1, or has no form in the other shape. */
public final class HistoryException extends SectionException {
    private static final long serialVersionUID = 1;

    /** The JSON Pointer. */
    private final String pointer;
    /** What is wrong. */
    private final String problem;

    HistoryException(String pointer, String problem) {
        super("no " + History.SCHEMA_ID + " of version " + History.SCHEMA_VERSION + ": \"" + pointer + "\" " + problem);
        this.pointer = pointer;
        this.problem = problem;
    }

    /** Returns the JSON Pointer of the part that does not fit, in the value that was read. */
    public String pointer() {
        return pointer;
    }

    /** Returns what is wrong with it. */
    public String problem() {
        return problem;
    }
}
