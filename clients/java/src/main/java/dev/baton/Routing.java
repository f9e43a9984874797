package dev.baton;

import dev.baton.v1.GetGraphRequest;
import dev.baton.v1.Graph;
import dev.baton.v1.GraphProblem;
import dev.baton.v1.ListGraphsRequest;
import dev.baton.v1.ListGraphsResponse;
import dev.baton.v1.ListRunsRequest;
import dev.baton.v1.ListRunsResponse;
import dev.baton.v1.RegisterGraphRequest;
import dev.baton.v1.RegisterGraphResponse;
import dev.baton.v1.StartRunRequest;
import dev.baton.v1.ValidateGraphRequest;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;

/** Graphs of nodes whose models choose the next node, and the runs through them. {@link Agent#routing} returns it. */
public final class Routing {
    private static final int PAGE_SIZE = 200;

    private final Agent agent;
    private final Connection connection;

    Routing(Agent agent, Connection connection) {
        this.agent = agent;
        this.connection = connection;
    }

    /**
     * Registers a graph, or a further revision of it, and returns it with its revision and the warnings. The same graph
     * again is the same revision. Throws {@link BatonException}, GRAPH_INVALID, whose field violations name each
     * problem.
     */
    public RegisterGraphResponse registerGraph(Graph graph) throws InterruptedException {
        RegisterGraphRequest request =
                RegisterGraphRequest.newBuilder().setGraph(graph).build();
        return agent.persist(() -> connection.routing(stub -> stub.registerGraph(request)));
    }

    /** Returns all problems of a graph. Without an error among them the graph can be registered. */
    public List<GraphProblem> validateGraph(Graph graph) {
        ValidateGraphRequest request =
                ValidateGraphRequest.newBuilder().setGraph(graph).build();
        return connection.routing(stub -> stub.validateGraph(request)).getProblemsList();
    }

    /** Returns the latest revision of a graph. Throws {@link BatonException}, GRAPH_UNKNOWN. */
    public Graph getGraph(String graphId) {
        GetGraphRequest request = GetGraphRequest.newBuilder().setGraphId(graphId).build();
        return connection.routing(stub -> stub.getGraph(request)).getGraph();
    }

    /** Returns the graphs, newest first and without their nodes. */
    public List<Graph> graphs() {
        List<Graph> graphs = new ArrayList<>();
        ListGraphsRequest.Builder request = ListGraphsRequest.newBuilder().setPageSize(PAGE_SIZE);
        do {
            ListGraphsRequest asked = request.build();
            ListGraphsResponse page = connection.routing(stub -> stub.listGraphs(asked));
            graphs.addAll(page.getGraphsList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return graphs;
    }

    /** Returns the runs that match the request's filters, newest first, each with its graph without nodes. */
    public List<dev.baton.v1.Run> runs(ListRunsRequest filters) {
        List<dev.baton.v1.Run> runs = new ArrayList<>();
        ListRunsRequest.Builder request = filters.toBuilder().setPageSize(PAGE_SIZE).clearPageToken();
        do {
            ListRunsRequest asked = request.build();
            ListRunsResponse page = connection.routing(stub -> stub.listRuns(asked));
            runs.addAll(page.getRunsList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return runs;
    }

    /**
     * Starts a run through a graph. An empty run_id gets a new one, so that the call starts one run, however often it is
     * repeated: it is, until the broker answers, at most for the agent's send timeout. Throws {@link BatonException},
     * among others GRAPH_UNKNOWN, and NOT_OWNER if this agent does not own the task.
     */
    public Run startRun(StartRunRequest request) throws InterruptedException {
        StartRunRequest.Builder whole = request.toBuilder();
        if (whole.getRunId().isEmpty()) {
            whole.setRunId(Envelopes.newMessageId(Instant.now()));
        }
        StartRunRequest asked = whole.build();
        return run(agent.persist(() -> connection.routing(stub -> stub.startRun(asked)))
                .getRun()
                .getRunId());
    }

    /** Returns the run with this id. Sends nothing. */
    public Run run(String runId) {
        return new Run(agent, connection, runId);
    }
}
