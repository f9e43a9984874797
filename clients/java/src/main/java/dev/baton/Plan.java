package dev.baton;

import dev.baton.v1.CancelPlanRequest;
import dev.baton.v1.CancelSubtaskRequest;
import dev.baton.v1.GetPlanRequest;
import dev.baton.v1.ListPlanResultsRequest;
import dev.baton.v1.ListPlanResultsResponse;
import dev.baton.v1.PlanExtension;
import dev.baton.v1.PlanRun;
import dev.baton.v1.PlanState;
import dev.baton.v1.PlanSubmission;
import dev.baton.v1.ReassignSubtaskRequest;
import dev.baton.v1.RetryPlanRequest;
import dev.baton.v1.RetrySubtaskRequest;
import dev.baton.v1.SubtaskDefaults;
import dev.baton.v1.SubtaskResult;
import dev.baton.v1.WatchPlanRequest;
import dev.baton.v1.WatchPlanResponse;
import java.time.Duration;
import java.util.EnumSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A plan of subtasks that was submitted. {@link Plans#submit} and {@link Plans#plan} return it. */
public final class Plan {
    private static final Set<PlanState> FINAL =
            EnumSet.of(PlanState.PLAN_STATE_COMPLETED, PlanState.PLAN_STATE_FAILED, PlanState.PLAN_STATE_CANCELLED);
    private static final Duration LOOK = Duration.ofMinutes(1);

    private final Agent agent;
    private final Connection connection;
    private final String id;

    Plan(Agent agent, Connection connection, String id) {
        this.agent = agent;
        this.connection = connection;
        this.id = id;
    }

    /** Returns the id of the plan. */
    public String id() {
        return id;
    }

    /** Returns the workspace of the plan, which has the results of the subtasks by topic. */
    public Workspace workspace() {
        return agent.workspace("plan:" + id);
    }

    /** Returns the present state of the plan. Throws {@link BatonException}, PLAN_UNKNOWN. */
    public PlanRun state() {
        GetPlanRequest request = GetPlanRequest.newBuilder().setPlanId(id).build();
        return connection.plans(stub -> stub.getPlan(request)).getPlan();
    }

    /**
     * Follows the log of the plan from after a number: each entry once and in order, or a gap that covers it, and one
     * caught_up after the entries that existed at the start. It is over when the plan has ended.
     */
    public Watch<WatchPlanResponse> watch(long after) {
        return agent.watch("plan " + id, new Entries(after));
    }

    /** Waits for the end of the plan, and returns its state: COMPLETED, FAILED or CANCELLED. */
    public PlanRun ended() throws InterruptedException {
        try (Watch<WatchPlanResponse> watch = watch(0)) {
            while (!watch.isOver()) {
                watch.next(LOOK);
            }
            watch.next(Duration.ZERO); // throws if the watch has failed
        }
        return agent.persist(this::state);
    }

    /** Returns the results of the subtasks that have completed, by their ids. Throws {@link BatonException}. */
    public Map<String, SubtaskResult> results() {
        Map<String, SubtaskResult> results = new LinkedHashMap<>();
        ListPlanResultsRequest.Builder request =
                ListPlanResultsRequest.newBuilder().setPlanId(id);
        do {
            ListPlanResultsRequest asked = request.build();
            ListPlanResultsResponse page = connection.plans(stub -> stub.listPlanResults(asked));
            page.getResultsList().forEach(result -> results.put(result.getSubtaskId(), result));
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return results;
    }

    /**
     * Ends the plan at once, and returns it: its open handoffs are cancelled and its tasks taken back. The reason has at
     * most 1024 bytes. Throws {@link BatonException}, PLAN_FINAL, if the plan has ended otherwise.
     */
    public PlanRun cancel(String reason) {
        CancelPlanRequest request =
                CancelPlanRequest.newBuilder().setPlanId(id).setReasonText(reason).build();
        return connection.plans(stub -> stub.cancelPlan(request)).getPlan();
    }

    /**
     * Signs and adds subtasks to the plan while it runs; they may depend on those that it has. The defaults stand for what
     * they leave out. The same extension again changes nothing. Throws {@link BatonException}: PLAN_INVALID, whose field
     * violations name each problem, PLAN_FINAL if the plan has ended, or CONFLICT if another extension came first.
     */
    public void extend(List<dev.baton.v1.Subtask> subtasks, SubtaskDefaults defaults) throws InterruptedException {
        PlanExtension extension = PlanExtension.newBuilder()
                .setPlanId(id)
                .addAllSubtasks(subtasks)
                .setDefaults(defaults)
                .build();
        agent.send(
                "",
                Envelopes.About.task("", 0),
                PlanSubmission.newBuilder().setExtension(extension).build());
    }

    /**
     * Ends one subtask at once, and returns the plan. The reason has at most 1024 bytes. Throws {@link BatonException}:
     * SUBTASK_UNKNOWN, SUBTASK_STATE if the subtask has ended otherwise, or PLAN_FINAL.
     */
    public PlanRun cancelSubtask(String subtaskId, String reason) {
        CancelSubtaskRequest request = CancelSubtaskRequest.newBuilder()
                .setPlanId(id)
                .setSubtaskId(subtaskId)
                .setReasonText(reason)
                .build();
        return connection.plans(stub -> stub.cancelSubtask(request)).getPlan();
    }

    /**
     * Starts one subtask again that did not complete, and returns the plan. Throws {@link BatonException}:
     * SUBTASK_UNKNOWN, SUBTASK_STATE in another state, or PLAN_FINAL.
     */
    public PlanRun retrySubtask(String subtaskId) {
        RetrySubtaskRequest request = RetrySubtaskRequest.newBuilder()
                .setPlanId(id)
                .setSubtaskId(subtaskId)
                .build();
        return connection.plans(stub -> stub.retrySubtask(request)).getPlan();
    }

    /**
     * Gives one subtask to another agent, or to one of {@code type:NAME}, and returns the plan. Throws
     * {@link BatonException}: SUBTASK_UNKNOWN, SUBTASK_STATE if the subtask has ended, RECEIVER_UNKNOWN, RECEIVER_INVALID
     * if the agent lacks what the subtask demands, AGENT_GONE, or PLAN_FINAL.
     */
    public PlanRun reassignSubtask(String subtaskId, String to, String reason) {
        ReassignSubtaskRequest request = ReassignSubtaskRequest.newBuilder()
                .setPlanId(id)
                .setSubtaskId(subtaskId)
                .setTo(to)
                .setReasonText(reason)
                .build();
        return connection.plans(stub -> stub.reassignSubtask(request)).getPlan();
    }

    /**
     * Starts again what did not complete, and returns the plan. Throws {@link BatonException}: PLAN_RUNNING, or
     * PLAN_FINAL if nothing is left to retry.
     */
    public PlanRun retry() {
        RetryPlanRequest request = RetryPlanRequest.newBuilder().setPlanId(id).build();
        return connection.plans(stub -> stub.retryPlan(request)).getPlan();
    }

    /** The calls of a watch. Only the watch's thread uses it. */
    private final class Entries extends Following<WatchPlanResponse> {
        Entries(long after) {
            super(after);
        }

        @Override
        public Iterator<WatchPlanResponse> open() {
            WatchPlanRequest request = WatchPlanRequest.newBuilder()
                    .setPlanId(id)
                    .setAfterNumber(last())
                    .build();
            return connection.watchPlans(stub -> stub.watchPlan(request));
        }

        @Override
        public boolean take(WatchPlanResponse update) {
            return switch (update.getUpdateCase()) {
                case ENTRY -> entry(update.getEntry().getNumber());
                case GAP -> gap(update.getGap());
                case CAUGHT_UP -> caughtUp();
                case UPDATE_NOT_SET -> false; // of a newer schema
            };
        }

        /** A plan that was retried has the ends of its earlier rounds in the log, so an entry alone is not the end. */
        @Override
        public boolean isOver() {
            PlanRun plan = state();
            return FINAL.contains(plan.getState()) && plan.getLogLength() <= last();
        }
    }
}
