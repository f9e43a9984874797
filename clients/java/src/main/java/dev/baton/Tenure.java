package dev.baton;

/** This agent's ownership of a task as this process knows it: the epoch, which follows the task's loans, and the end. */
final class Tenure {
    /** What this process knows of the ownership. */
    enum State {
        /** This agent owns the task at the epoch. */
        OWNED,
        /** A handoff or a loan of the task is open, or its end is not known. */
        AWAY,
        /** The task has ended, or another agent owns it for good. */
        OVER
    }

    private final String taskId;
    private long epoch;
    private State state = State.OWNED;

    Tenure(String taskId, long epoch) {
        this.taskId = taskId;
        this.epoch = epoch;
    }

    String taskId() {
        return taskId;
    }

    synchronized long epoch() {
        return epoch;
    }

    synchronized State state() {
        return state;
    }

    /** The agent owns the task at this epoch. */
    synchronized void owned(long present) {
        epoch = present;
        state = State.OWNED;
    }

    /** A handoff or a loan of the task begins. */
    synchronized void away() {
        if (state == State.OWNED) {
            state = State.AWAY;
        }
    }

    /** A handoff of the task ended without moving it. */
    synchronized void kept() {
        if (state == State.AWAY) {
            state = State.OWNED;
        }
    }

    /** The task has ended or has moved. */
    synchronized void over() {
        state = State.OVER;
    }

    /** The broker took the task by a move to this epoch. A task that is lent comes back, or not, by its loan's end. */
    synchronized void lost(long movedTo) {
        if (state == State.OWNED && epoch < movedTo) {
            state = State.OVER;
        }
    }
}
