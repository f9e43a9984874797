package dev.baton;

import dev.baton.v1.AgentSpec;
import dev.baton.v1.CreateThreadRequest;
import dev.baton.v1.GetAgentSpecRequest;
import dev.baton.v1.ListAgentSpecsRequest;
import dev.baton.v1.ListAgentSpecsResponse;
import dev.baton.v1.ListModelSpecsRequest;
import dev.baton.v1.ListModelSpecsResponse;
import dev.baton.v1.ListThreadsRequest;
import dev.baton.v1.ListThreadsResponse;
import dev.baton.v1.ModelSpec;
import dev.baton.v1.PutAgentSpecRequest;
import dev.baton.v1.PutModelSpecRequest;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;

/**
 * Threads, which are conversations that change their persona, and the specs of personas and models.
 * {@link Agent#threads} returns it.
 */
public final class Threads {
    private static final int PAGE_SIZE = 200;

    private final Agent agent;
    private final Connection connection;

    Threads(Agent agent, Connection connection) {
        this.agent = agent;
        this.connection = connection;
    }

    /**
     * Registers the spec of a persona, or a further revision of it, and returns it with its revision. The same spec
     * again is the same revision. By default only operators may: see {@link AgentBuilder#operatorToken}.
     */
    public AgentSpec putAgentSpec(AgentSpec spec) throws InterruptedException {
        PutAgentSpecRequest request =
                PutAgentSpecRequest.newBuilder().setSpec(spec).build();
        return agent.persist(() -> connection.threads(stub -> stub.putAgentSpec(request)))
                .getSpec();
    }

    /** Returns one revision of the spec of a persona; 0: the latest. Throws {@link BatonException}, SPEC_UNKNOWN. */
    public AgentSpec getAgentSpec(String specId, long revision) {
        GetAgentSpecRequest request = GetAgentSpecRequest.newBuilder()
                .setSpecId(specId)
                .setRevision(revision)
                .build();
        return connection.threads(stub -> stub.getAgentSpec(request)).getSpec();
    }

    /** Returns the latest revisions of the specs of personas, newest first, without their prompts. */
    public List<AgentSpec> agentSpecs() {
        List<AgentSpec> specs = new ArrayList<>();
        ListAgentSpecsRequest.Builder request = ListAgentSpecsRequest.newBuilder().setPageSize(PAGE_SIZE);
        do {
            ListAgentSpecsRequest asked = request.build();
            ListAgentSpecsResponse page = connection.threads(stub -> stub.listAgentSpecs(asked));
            specs.addAll(page.getSpecsList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return specs;
    }

    /** Registers the spec of a model, as {@link #putAgentSpec} that of a persona. */
    public ModelSpec putModelSpec(ModelSpec spec) throws InterruptedException {
        PutModelSpecRequest request =
                PutModelSpecRequest.newBuilder().setSpec(spec).build();
        return agent.persist(() -> connection.threads(stub -> stub.putModelSpec(request)))
                .getSpec();
    }

    /** Returns the latest revisions of the specs of models, newest first, without their parameters. */
    public List<ModelSpec> modelSpecs() {
        List<ModelSpec> specs = new ArrayList<>();
        ListModelSpecsRequest.Builder request = ListModelSpecsRequest.newBuilder().setPageSize(PAGE_SIZE);
        do {
            ListModelSpecsRequest asked = request.build();
            ListModelSpecsResponse page = connection.threads(stub -> stub.listModelSpecs(asked));
            specs.addAll(page.getSpecsList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return specs;
    }

    /**
     * Creates a thread. An empty thread_id gets a new one, so that the call creates one thread, however often it is
     * repeated: it is, until the broker answers, at most for the agent's send timeout. Throws {@link BatonException},
     * among others HANDOFF_RESOLVE_FAILED if the base spec or its model is not there.
     */
    public AgentThread create(CreateThreadRequest request) throws InterruptedException {
        CreateThreadRequest.Builder whole = request.toBuilder();
        if (whole.getThreadId().isEmpty()) {
            whole.setThreadId(Envelopes.newMessageId(Instant.now()));
        }
        CreateThreadRequest asked = whole.build();
        return thread(agent.persist(() -> connection.threads(stub -> stub.createThread(asked)))
                .getThread()
                .getThreadId());
    }

    /** Returns the thread with this id. Sends nothing. */
    public AgentThread thread(String threadId) {
        return new AgentThread(agent, connection, threadId);
    }

    /** Returns the threads that match the request's filters, newest first. */
    public List<dev.baton.v1.Thread> list(ListThreadsRequest filters) {
        List<dev.baton.v1.Thread> threads = new ArrayList<>();
        ListThreadsRequest.Builder request = filters.toBuilder().setPageSize(PAGE_SIZE).clearPageToken();
        do {
            ListThreadsRequest asked = request.build();
            ListThreadsResponse page = connection.threads(stub -> stub.listThreads(asked));
            threads.addAll(page.getThreadsList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return threads;
    }
}
