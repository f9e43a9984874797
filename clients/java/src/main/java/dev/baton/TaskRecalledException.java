package dev.baton;

/** A lent task was taken back before its delegate reported a final status. */
public final class TaskRecalledException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final String taskId;
    private final String handoffId;
    private final Reason reason;
    private final long epoch;
    private final boolean isOwner;
    private final String text;

    /** The reason why a lent task came back without a result. */
    public enum Reason {
        /** The loan timeout passed, and the broker recalled the task. */
        LOAN_TIMEOUT,
        /** The time limit of {@link Agent#delegate} passed, and the client recalled the task. */
        DEADLINE,
        /** A {@link Agent#recall} by this agent, or by an agent that had lent the task to it. */
        RECALL,
        /** An operator reassigned the task. */
        REASSIGNED,
        /** The delegate gave no sign of work for the request's silence_timeout, or was gone, and the broker took it back. */
        ABANDONED,
        /** The task was cancelled, with the task that it is a part of or for lack of use: it has ended. */
        CANCELED
    }

    TaskRecalledException(String taskId, String handoffId, Reason reason, String message, long epoch, boolean isOwner) {
        super(reason + ": " + message);
        this.taskId = taskId;
        this.handoffId = handoffId;
        this.reason = reason;
        this.epoch = epoch;
        this.isOwner = isOwner;
        this.text = message;
    }

    /** Returns this end of a loan with another reason. */
    TaskRecalledException as(Reason other) {
        TaskRecalledException changed = new TaskRecalledException(taskId, handoffId, other, text, epoch, isOwner);
        changed.initCause(this);
        return changed;
    }

    /** Returns the task's id. */
    public String taskId() {
        return taskId;
    }

    /** Returns the handoff that lent the task. */
    public String handoffId() {
        return handoffId;
    }

    /** Returns the reason. */
    public Reason reason() {
        return reason;
    }

    /** Returns the task's epoch after the recall. */
    public long epoch() {
        return epoch;
    }

    /**
     * Returns whether this agent owns the task again. False: an agent that had lent the task to this one, or an
     * operator, took it.
     */
    public boolean isOwner() {
        return isOwner;
    }
}
