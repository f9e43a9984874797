package dev.baton;

import dev.baton.v1.BeginRunRequest;
import dev.baton.v1.BeginRunResponse;
import dev.baton.v1.EndRunRequest;
import dev.baton.v1.EndStepRequest;
import dev.baton.v1.EndStepResponse;
import java.util.List;
import java.util.Optional;

/**
 * An open run of a thread, which works one step after the other. {@link AgentThread#run()} returns it. One thread at a
 * time uses it.
 *
 * <p>The lease of the run lasts 60 s from the begin of a step. A longer step calls {@link #keep} within it.
 */
public final class ThreadRun {
    private final Agent agent;
    private final Connection connection;
    private final String threadId;
    private final String id;
    private Step step;

    ThreadRun(Agent agent, Connection connection, String threadId, String id) throws InterruptedException {
        this.agent = agent;
        this.connection = connection;
        this.threadId = threadId;
        this.id = id;
        this.step = begin();
    }

    /** Returns the id of the run. */
    public String id() {
        return id;
    }

    /** Returns the present step. */
    public Step step() {
        return step;
    }

    /**
     * Ends the present step, begins the next one and returns it. Throws {@link BatonException}: RUN_FINAL if the lease is
     * over, RUN_OPEN if another run has begun since.
     */
    public Step nextStep() throws InterruptedException {
        step = endStep(step.number());
        return step;
    }

    /** Renews the lease within a long step. Throws as {@link #nextStep}. */
    public void keep() throws InterruptedException {
        if (step.number() > 1) {
            endStep(step.number() - 1);
        } else {
            begin();
        }
    }

    /** Ends the run, and returns the thread. Throws as {@link #nextStep}. */
    public dev.baton.v1.Thread end() throws InterruptedException {
        EndRunRequest request = EndRunRequest.newBuilder()
                .setThreadId(threadId)
                .setRunId(id)
                .build();
        return agent.persist(() -> connection.threads(stub -> stub.endRun(request)))
                .getThread();
    }

    private Step begin() throws InterruptedException {
        BeginRunRequest request = BeginRunRequest.newBuilder()
                .setThreadId(threadId)
                .setRunId(id)
                .build();
        BeginRunResponse begun = agent.persist(() -> connection.threads(stub -> stub.beginRun(request)));
        return new Step(
                Math.max(1, begun.getThread().getStep()),
                begun.getSpec(),
                begun.getModel(),
                begun.getSwitched(),
                List.copyOf(begun.getDeactivatePluginIdsList()),
                List.copyOf(begun.getActivatePluginIdsList()),
                begun.hasRequest() ? Optional.of(begun.getRequest()) : Optional.empty());
    }

    private Step endStep(long number) throws InterruptedException {
        EndStepRequest request = EndStepRequest.newBuilder()
                .setThreadId(threadId)
                .setRunId(id)
                .setStep(number)
                .build();
        EndStepResponse ended = agent.persist(() -> connection.threads(stub -> stub.endStep(request)));
        return new Step(
                number + 1,
                ended.getSpec(),
                ended.getModel(),
                ended.getSwitched(),
                List.copyOf(ended.getDeactivatePluginIdsList()),
                List.copyOf(ended.getActivatePluginIdsList()),
                ended.hasRequest() ? Optional.of(ended.getRequest()) : Optional.empty());
    }
}
