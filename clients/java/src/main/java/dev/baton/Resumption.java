package dev.baton;

import dev.baton.v1.ResumeTasksRequest;
import dev.baton.v1.Task;
import io.grpc.Status;
import java.lang.System.Logger.Level;
import java.util.List;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;

/**
 * The tasks of this agent that no process works on, for the listener of handoffs: asked for when a session begins, and
 * when slots get free while the broker may have more of them.
 */
final class Resumption {
    private static final System.Logger LOG = System.getLogger("dev.baton");
    /** The number of tasks that an agent without a capacity asks for at a time. */
    private static final int BATCH = 50;

    private static final int TASKS_MAX = 1000;
    private static final long AGAIN_MILLIS = 1000;

    private final Agent agent;
    private final Dispatcher dispatcher;
    private final Executor executor;
    private boolean isAsking;
    private boolean isAskedAgain;
    private boolean isMore;

    Resumption(Agent agent, Dispatcher dispatcher, Executor executor) {
        this.agent = agent;
        this.dispatcher = dispatcher;
        this.executor = executor;
    }

    /** A session has begun. */
    void begin() {
        synchronized (this) {
            isMore = true;
        }
        freed();
    }

    /** A slot has got free. */
    void freed() {
        synchronized (this) {
            if (!isMore) {
                return;
            }
            isAskedAgain = isAsking;
            if (isAsking) {
                return;
            }
            isAsking = true;
        }
        try {
            executor.execute(this::ask);
        } catch (RejectedExecutionException e) {
            // The agent is closed.
        }
    }

    private void ask() {
        boolean goesOn = true;
        while (goesOn) {
            boolean wasFull = false;
            try {
                wasFull = askOnce();
            } catch (BatonException e) {
                refused(e);
            }
            synchronized (this) {
                goesOn = isMore && (isAskedAgain || wasFull && dispatcher.freeSlots(BATCH) > 0);
                isAskedAgain = false;
                isAsking = goesOn;
            }
        }
    }

    /** Asks for as many tasks as there are free slots. Returns whether it got as many. */
    private boolean askOnce() {
        int free = Math.min(dispatcher.freeSlots(BATCH), TASKS_MAX);
        if (free <= 0) {
            return false;
        }
        ResumeTasksRequest request = ResumeTasksRequest.newBuilder()
                .setInstanceId(agent.instanceId())
                .setMaxTasks(free)
                .build();
        List<Task> tasks =
                agent.connection().tasks(stub -> stub.resumeTasks(request)).getTasksList();
        boolean isFull = tasks.size() >= free;
        synchronized (this) {
            isMore = isFull;
        }
        tasks.forEach(dispatcher::resume);
        return isFull;
    }

    private void refused(BatonException why) {
        boolean isUnknown = why.code() == Status.Code.UNIMPLEMENTED || why.reason().equals("NOT_SUPPORTED");
        synchronized (this) {
            isMore = why.isPassing();
        }
        if (why.isPassing()) {
            LOG.log(Level.INFO, "the tasks to resume are asked for again: {0}", why.getMessage());
            try {
                agent.scheduler().schedule(this::freed, AGAIN_MILLIS, TimeUnit.MILLISECONDS);
            } catch (RejectedExecutionException e) {
                // The agent is closed.
            }
        } else {
            Level level = isUnknown ? Level.DEBUG : Level.WARNING;
            LOG.log(level, "no tasks are resumed: {0}", why.getMessage());
        }
    }
}
