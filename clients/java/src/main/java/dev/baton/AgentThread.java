package dev.baton;

import dev.baton.v1.ApplyHandoffActionRequest;
import dev.baton.v1.ApplyHandoffActionResponse;
import dev.baton.v1.GetThreadRequest;
import dev.baton.v1.WatchThreadRequest;
import dev.baton.v1.WatchThreadResponse;
import java.time.Instant;
import java.util.Iterator;

/**
 * One conversation that changes its persona at step boundaries. {@link Threads#create} and {@link Threads#thread} return
 * it.
 */
public final class AgentThread {
    private final Agent agent;
    private final Connection connection;
    private final String id;

    AgentThread(Agent agent, Connection connection, String id) {
        this.agent = agent;
        this.connection = connection;
        this.id = id;
    }

    /** Returns the id of the thread. */
    public String id() {
        return id;
    }

    /** Returns the workspace of the thread. */
    public Workspace workspace() {
        return agent.workspace("thread:" + id);
    }

    /** Returns the present state of the thread. Throws {@link BatonException}, THREAD_UNKNOWN or PERMISSION_DENIED. */
    public dev.baton.v1.Thread state() {
        GetThreadRequest request = GetThreadRequest.newBuilder().setThreadId(id).build();
        return connection.threads(stub -> stub.getThread(request)).getThread();
    }

    /**
     * Requests another persona for the next boundary, in place of an earlier request. The answer warns if the spec does
     * not resolve at present. Throws {@link BatonException}, HANDOFF_PLUGIN_MISSING, if the spec in force does not permit
     * actions.
     */
    public ApplyHandoffActionResponse request(String specId) throws InterruptedException {
        return act(ApplyHandoffActionRequest.newBuilder().setRequestSpecId(specId));
    }

    /**
     * Makes a spec active, which is in force from the next boundary on. Throws as {@link #request}, and
     * HANDOFF_RESOLVE_FAILED if the spec or its model is not there.
     */
    public ApplyHandoffActionResponse activate(String specId) throws InterruptedException {
        return act(ApplyHandoffActionRequest.newBuilder().setActivateSpecId(specId));
    }

    /** Returns to the base spec from the next boundary on. Throws as {@link #request}. */
    public ApplyHandoffActionResponse clear() throws InterruptedException {
        return act(ApplyHandoffActionRequest.newBuilder().setClear(true));
    }

    private ApplyHandoffActionResponse act(ApplyHandoffActionRequest.Builder action) throws InterruptedException {
        // The id lets the broker recognise a repeat.
        ApplyHandoffActionRequest request = action.setThreadId(id)
                .setActionId(Envelopes.newMessageId(Instant.now()))
                .build();
        return agent.persist(() -> connection.threads(stub -> stub.applyHandoffAction(request)));
    }

    /**
     * Opens a run under a new id, with its first step. Throws {@link BatonException}, RUN_OPEN, while another run holds
     * its lease, at most 60 s after its last boundary.
     */
    public ThreadRun run() throws InterruptedException {
        return run(Envelopes.newMessageId(Instant.now()));
    }

    /**
     * As {@link #run()}, under this id, a UUID. The same id again, before its first step has ended, opens no second run.
     * Throws {@link BatonException}, RUN_FINAL, if the run with this id has ended.
     */
    public ThreadRun run(String runId) throws InterruptedException {
        return new ThreadRun(agent, connection, id, runId);
    }

    /**
     * Follows the log of the thread from after a number: each entry once and in order, or a gap that covers it, and one
     * caught_up after the entries that existed at the start. It goes on until it is closed.
     */
    public Watch<WatchThreadResponse> watch(long after) {
        return agent.watch("thread " + id, new Entries(after));
    }

    /** The calls of a watch. Only the watch's thread uses it. */
    private final class Entries extends Following<WatchThreadResponse> {
        Entries(long after) {
            super(after);
        }

        @Override
        public Iterator<WatchThreadResponse> open() {
            WatchThreadRequest request = WatchThreadRequest.newBuilder()
                    .setThreadId(id)
                    .setAfterNumber(last())
                    .build();
            return connection.watchThreads(stub -> stub.watchThread(request));
        }

        @Override
        public boolean take(WatchThreadResponse update) {
            return switch (update.getUpdateCase()) {
                case ENTRY -> entry(update.getEntry().getNumber());
                case GAP -> gap(update.getGap());
                case CAUGHT_UP -> caughtUp();
                case UPDATE_NOT_SET -> false; // of a newer schema
            };
        }
    }
}
