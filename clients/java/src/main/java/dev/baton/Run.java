package dev.baton;

import dev.baton.v1.CancelRunRequest;
import dev.baton.v1.GetNodeToolsRequest;
import dev.baton.v1.GetNodeToolsResponse;
import dev.baton.v1.GetRunRequest;
import dev.baton.v1.RecordTurnRequest;
import dev.baton.v1.RecordTurnResponse;
import dev.baton.v1.RunState;
import dev.baton.v1.ToolCall;
import dev.baton.v1.ToolShape;
import dev.baton.v1.WatchRunRequest;
import dev.baton.v1.WatchRunResponse;
import java.util.EnumSet;
import java.util.Iterator;
import java.util.Set;

/**
 * A run through a graph: the tools of its nodes, and the turns of their models. {@link Routing#startRun} and
 * {@link Routing#run} return it.
 */
public final class Run {
    private static final Set<RunState> FINAL =
            EnumSet.of(RunState.RUN_STATE_COMPLETED, RunState.RUN_STATE_FAILED, RunState.RUN_STATE_CANCELLED);

    private final Agent agent;
    private final Connection connection;
    private final String id;

    Run(Agent agent, Connection connection, String id) {
        this.agent = agent;
        this.connection = connection;
        this.id = id;
    }

    /** Returns the id of the run. */
    public String id() {
        return id;
    }

    /** Returns the present state of the run. Throws {@link BatonException}, RUN_UNKNOWN. */
    public dev.baton.v1.Run state() {
        GetRunRequest request = GetRunRequest.newBuilder().setRunId(id).build();
        return connection.routing(stub -> stub.getRun(request)).getRun();
    }

    /**
     * Returns the tools that the node's model may call in its next turn, in this shape, and what the nodes before it
     * gave. Throws {@link BatonException}: NODE_NOT_ACTIVE, and RUN_FINAL once the run has ended.
     */
    public GetNodeToolsResponse tools(String nodeId, ToolShape shape) {
        GetNodeToolsRequest request = GetNodeToolsRequest.newBuilder()
                .setRunId(id)
                .setNodeId(nodeId)
                .setShape(shape)
                .build();
        return connection.routing(stub -> stub.getNodeTools(request));
    }

    /**
     * Reports a turn of the node's model. The same turn again gets its first answer, so the call repeats the report
     * until the broker answers, at most for the agent's send timeout. A wrong transfer is no error: the answer's
     * error_code names the rule, and its tool results are for the model. If the answer has a handoff_proposal, the
     * task's owner hands the task over with it, to its handoff_receiver_id. Throws {@link BatonException}:
     * NODE_NOT_ACTIVE, NOT_OWNER, RUN_FINAL or MESSAGE_ID_REUSED.
     */
    public RecordTurnResponse turn(String nodeId, Turn turn) throws InterruptedException {
        RecordTurnRequest request = RecordTurnRequest.newBuilder()
                .setRunId(id)
                .setNodeId(nodeId)
                .setTurnId(turn.id())
                .addAllCalls(turn.calls())
                .setFinished(turn.isFinished())
                .setOutput(turn.output())
                .setError(turn.error())
                .build();
        return agent.persist(() -> connection.routing(stub -> stub.recordTurn(request)));
    }

    /**
     * Reports a response of the node's model as it is: see {@link ModelTurn#read}. The turn has the calls of the response,
     * and its text as the output of the node if the model has finished. Throws IllegalArgumentException if the object is
     * no response of a known interface, and {@link BatonException} as {@link #turn(String, Turn)}.
     */
    public TurnAnswer turn(String nodeId, Object response) throws InterruptedException {
        ModelTurn read = ModelTurn.read(response);
        Turn turn = Turn.of(read.calls().toArray(ToolCall[]::new));
        RecordTurnResponse answer = turn(nodeId, read.isFinished() ? turn.finish(read.output()) : turn);
        return new TurnAnswer(answer, read.messages(answer.getToolResultsList()));
    }

    /**
     * Cancels the run and returns it. An open handoff of its task goes on. The reason has at most 4096 bytes. Throws
     * {@link BatonException}, RUN_FINAL, if the run has ended otherwise.
     */
    public dev.baton.v1.Run cancel(String reason) {
        CancelRunRequest request =
                CancelRunRequest.newBuilder().setRunId(id).setReasonText(reason).build();
        return connection.routing(stub -> stub.cancelRun(request)).getRun();
    }

    /**
     * Follows the log of the run from after a number: each entry once and in order, or a gap that covers it, and one
     * caught_up after the entries that existed at the start. The last update is the entry with the run's end.
     */
    public Watch<WatchRunResponse> watch(long after) {
        return agent.watch("run " + id, new Entries(after));
    }

    /** The calls of a watch. Only the watch's thread uses it. */
    private final class Entries extends Following<WatchRunResponse> {
        Entries(long after) {
            super(after);
        }

        @Override
        public Iterator<WatchRunResponse> open() {
            WatchRunRequest request =
                    WatchRunRequest.newBuilder().setRunId(id).setAfterNumber(last()).build();
            return connection.watchRouting(stub -> stub.watchRun(request));
        }

        @Override
        public boolean take(WatchRunResponse update) {
            return switch (update.getUpdateCase()) {
                case ENTRY -> entry(update.getEntry().getNumber());
                case GAP -> gap(update.getGap());
                case CAUGHT_UP -> caughtUp();
                case UPDATE_NOT_SET -> false; // of a newer schema
            };
        }

        @Override
        public boolean isLast(WatchRunResponse update) {
            return update.hasEntry() && update.getEntry().hasEnded();
        }

        @Override
        public boolean isOver() {
            dev.baton.v1.Run run = state();
            // A run that ended while the stream was broken has further entries.
            return FINAL.contains(run.getState()) && run.getLogLength() <= last();
        }
    }
}
