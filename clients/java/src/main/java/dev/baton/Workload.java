package dev.baton;

import com.google.protobuf.Message;
import dev.baton.v1.HandoffComplete;
import dev.baton.v1.HandoffOutcome;
import dev.baton.v1.Receipt;
import dev.baton.v1.TaskStatusUpdate;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/**
 * The tasks that this process works on, for the heartbeats: those of its running listeners, those that the program took
 * over by hand, and those that {@link Agent#workOn} names.
 */
final class Workload {
    /** The maximum number of tasks that a heartbeat lists. */
    static final int LISTED_MAX = 1024;

    private final Runnable changed;
    private final Set<Tenure> handled = new LinkedHashSet<>();
    private final Set<Tenure> byHand = new LinkedHashSet<>();

    /** {@code changed} runs after each change of the list. It must not block. */
    Workload(Runnable changed) {
        this.changed = changed;
    }

    /** Returns the ids of the tasks, each once, the first {@link #LISTED_MAX}. */
    synchronized List<String> taskIds() {
        Set<String> ids = new LinkedHashSet<>();
        handled.forEach(one -> ids.add(one.taskId()));
        byHand.forEach(one -> ids.add(one.taskId()));
        List<String> all = new ArrayList<>(ids);
        return List.copyOf(all.subList(0, Math.min(all.size(), LISTED_MAX)));
    }

    /** Whether this process works on the task. */
    synchronized boolean hasTask(String taskId) {
        return handled.stream().anyMatch(one -> one.taskId().equals(taskId))
                || byHand.stream().anyMatch(one -> one.taskId().equals(taskId));
    }

    /** A listener begins to work on a task that this agent owns. */
    void begin(Tenure tenure) {
        synchronized (this) {
            byHand.removeIf(one -> isSame(one, tenure.taskId(), tenure.epoch()));
            handled.add(tenure);
        }
        changed.run();
    }

    /** The listener has ended. */
    void end(Tenure tenure) {
        synchronized (this) {
            handled.remove(tenure);
        }
        changed.run();
    }

    /** The program works on the task until {@link #endByHand}, or until the task ends or moves. */
    void beginByHand(Tenure tenure) {
        synchronized (this) {
            byHand.add(tenure);
        }
        changed.run();
    }

    void endByHand(Tenure tenure) {
        boolean wasListed;
        synchronized (this) {
            wasListed = byHand.remove(tenure);
        }
        if (wasListed) {
            changed.run();
        }
    }

    /** Returns what is known of the ownership of a task at this epoch; a new record if nothing is. */
    synchronized Tenure of(String taskId, long epoch) {
        for (Tenure one : handled) {
            if (isSame(one, taskId, epoch)) {
                return one;
            }
        }
        for (Tenure one : byHand) {
            if (isSame(one, taskId, epoch)) {
                return one;
            }
        }
        return new Tenure(taskId, epoch);
    }

    /** Notes a message of this agent that the broker has accepted. */
    void sent(String taskId, long epoch, Message payload, Receipt receipt) {
        if (payload instanceof HandoffComplete complete
                && complete.getOutcome() == HandoffOutcome.HANDOFF_OUTCOME_SUCCESS) {
            beginByHand(new Tenure(taskId, receipt.getEpoch()));
        } else if (payload instanceof TaskStatusUpdate update && Tasks.FINAL.contains(update.getStatus())) {
            over(of(taskId, epoch));
        }
    }

    /** The task has ended or has moved to another agent. */
    void over(Tenure tenure) {
        tenure.over();
        endByHand(tenure);
    }

    /** The broker has taken a task from this agent, by a move to this epoch. */
    void lost(String taskId, long movedTo) {
        List<Tenure> all;
        synchronized (this) {
            all = new ArrayList<>(handled);
            all.addAll(byHand);
        }
        for (Tenure one : all) {
            if (one.taskId().equals(taskId)) {
                one.lost(movedTo);
                if (one.state() == Tenure.State.OVER) {
                    endByHand(one);
                }
            }
        }
    }

    private static boolean isSame(Tenure tenure, String taskId, long epoch) {
        return tenure.taskId().equals(taskId) && tenure.epoch() == epoch;
    }
}
