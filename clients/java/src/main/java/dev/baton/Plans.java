package dev.baton;

import dev.baton.v1.ListPlansRequest;
import dev.baton.v1.ListPlansResponse;
import dev.baton.v1.PlanProblem;
import dev.baton.v1.PlanRun;
import dev.baton.v1.PlanState;
import dev.baton.v1.PlanSubmission;
import dev.baton.v1.ValidatePlanRequest;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;

/** Plans of subtasks that many agents carry out. {@link Agent#plans} returns it. */
public final class Plans {
    private static final int PAGE_SIZE = 200;

    private final Agent agent;
    private final Connection connection;

    Plans(Agent agent, Connection connection) {
        this.agent = agent;
        this.connection = connection;
    }

    /**
     * Returns all problems of a plan. Without an error among them the plan can be submitted. Throws
     * {@link BatonException}, FIELD_INVALID, if a field has no meaning.
     */
    public List<PlanProblem> validate(dev.baton.v1.Plan plan) {
        ValidatePlanRequest request =
                ValidatePlanRequest.newBuilder().setPlan(plan).build();
        return connection.plans(stub -> stub.validatePlan(request)).getProblemsList();
    }

    /**
     * Signs and submits a plan; an empty plan_id gets a new one. The same plan again is the same plan. Throws
     * {@link BatonException}: PLAN_INVALID, whose field violations name each problem, or PLAN_EXISTS for another plan
     * with the id.
     */
    public Plan submit(dev.baton.v1.Plan plan) throws InterruptedException {
        dev.baton.v1.Plan.Builder whole = plan.toBuilder();
        if (whole.getPlanId().isEmpty()) {
            whole.setPlanId(Envelopes.newMessageId(Instant.now()));
        }
        PlanSubmission submission = PlanSubmission.newBuilder().setPlan(whole).build();
        agent.send("", Envelopes.About.task("", 0), submission);
        return plan(whole.getPlanId());
    }

    /** Returns the plan with this id. Sends nothing. */
    public Plan plan(String planId) {
        return new Plan(agent, connection, planId);
    }

    /** Returns the plans in one of these states, all without states, newest first and without their subtasks. */
    public List<PlanRun> list(PlanState... states) {
        List<PlanRun> plans = new ArrayList<>();
        ListPlansRequest.Builder request =
                ListPlansRequest.newBuilder().setPageSize(PAGE_SIZE).addAllStates(List.of(states));
        do {
            ListPlansRequest asked = request.build();
            ListPlansResponse page = connection.plans(stub -> stub.listPlans(asked));
            plans.addAll(page.getPlansList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return plans;
    }
}
