package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Duration;
import dev.baton.v1.Compensation;
import dev.baton.v1.Condition;
import dev.baton.v1.ForEach;
import dev.baton.v1.Plan.Builder;
import dev.baton.v1.PlanMode;
import dev.baton.v1.PlanRun;
import dev.baton.v1.PlanState;
import dev.baton.v1.SubtaskDefaults;
import dev.baton.v1.SubtaskState;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.TaskStatusUpdate;
import dev.baton.v1.WatchPlanResponse;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import java.util.stream.LongStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** Plans: a report from two calculations. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class PlansTest {
    private static final dev.baton.v1.Plan REPORT = plan()
            .setPlanId("report")
            .addSubtasks(subtask("growth").addProduces("figures"))
            .addSubtasks(subtask("margin"))
            .addSubtasks(subtask("report")
                    .setRole("author")
                    .addDependencies("growth")
                    .addDependencies("margin")
                    .addConsumes("figures"))
            .build();

    private final List<Agent> agents = new ArrayList<>();
    private final BlockingQueue<Subtask> subtasks = new LinkedBlockingQueue<>();

    @TempDir
    Path folder;

    private RealBroker broker;
    private Plans plans;

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
        agents.add(begin(broker.agent("alice")));
        plans = agents.get(0).plans();
    }

    @AfterEach
    void stop() throws Exception {
        agents.forEach(Agent::close);
        broker.close();
    }

    @Test
    void aConditionLeavesABranchOut() throws Exception {
        work(subtask -> Optional.of(subtask.subtaskId().equals("check") ? "0.7" : "done"));
        Condition less = Condition.newBuilder()
                .setSubtaskId("check")
                .setPointer("/numeric_value")
                .setLess(0.5)
                .build();
        Plan plan = plans.submit(plan().addSubtasks(subtask("check"))
                .addSubtasks(subtask("mend").addDependencies("check").setWhen(less))
                .addSubtasks(subtask("publish")
                        .addDependencies("check")
                        .setWhen(less.toBuilder().setNegate(true)))
                .build());
        assertEquals(PlanState.PLAN_STATE_COMPLETED, plan.ended().getState());
        assertEquals(Set.of("check", "publish"), plan.results().keySet());
    }

    @Test
    void aPlanGivesTypedInputsAndFailsAndIsRetriedOverARestart() throws Exception {
        AtomicBoolean hasFailed = new AtomicBoolean();
        work(subtask -> switch (subtask.subtaskId()) {
            case "growth" -> Optional.of("增长率15.3%");
            case "margin" -> hasFailed.getAndSet(true) ? Optional.of("a margin of 7.2 %") : Optional.empty();
            default -> Optional.of("done");
        });
        Plan plan = plans.submit(REPORT);
        PlanRun failed = plan.ended();
        assertEquals(PlanState.PLAN_STATE_FAILED, failed.getState());
        assertEquals(SubtaskState.SUBTASK_STATE_SKIPPED, failed.getSubtasks(2).getState());
        plan.retry();
        broker.kill();
        broker.start();
        PlanRun ended = plan.ended();
        assertEquals(PlanState.PLAN_STATE_COMPLETED, ended.getState());
        assertEquals(2, ended.getRound());
        Subtask inputs = last();
        assertEquals(15.3, inputs.previousResults().get("growth").getNumericValue());
        assertEquals(7.2, inputs.dependencyResults().get("margin").getNumericValue());
        assertEquals(Set.of("growth"), inputs.consumed().get("figures").keySet());
        assertEquals(
                List.of("report", "report", "author", "the report", 1L),
                List.of(inputs.planId(), inputs.subtaskId(), inputs.role(), inputs.description(), inputs.attempt()));
        assertEquals(Set.of("growth", "margin", "report"), plan.results().keySet());
        List<Long> numbers = new ArrayList<>();
        try (Watch<WatchPlanResponse> watch = plan.watch(0)) {
            while (!watch.isOver()) {
                watch.next(java.time.Duration.ofSeconds(PATIENCE_SECONDS))
                        .filter(WatchPlanResponse::hasEntry)
                        .ifPresent(update -> numbers.add(update.getEntry().getNumber()));
            }
        }
        assertEquals(LongStream.rangeClosed(1, ended.getLogLength()).boxed().toList(), numbers);
        assertRefused("PLAN_FINAL", () -> plan.cancel("late"));
        List<PlanRun> completed = plans.list(PlanState.PLAN_STATE_COMPLETED);
        assertEquals(List.of("report"), completed.stream().map(PlanRun::getPlanId).toList());
    }

    @Test
    void aFailingPlanUndoesWhatHasCompleted() throws Exception {
        work(subtask -> subtask.subtaskId().equals("pay") ? Optional.empty() : Optional.of("204"));
        Builder plan = plan().setPlanId("trip")
                .addSubtasks(subtask("room")
                        .setCompensate(Compensation.newBuilder()
                                .setAgentType("analyst")
                                .setDescription("cancel the room")))
                .addSubtasks(subtask("pay").addDependencies("room"));
        PlanRun ended = plans.submit(plan.build()).ended();
        assertEquals(PlanState.PLAN_STATE_FAILED, ended.getState());
        assertEquals(
                SubtaskState.SUBTASK_STATE_COMPLETED,
                ended.getSubtasks(0).getCompensation().getState());
        List<Subtask> undone = subtasks.stream().filter(Subtask::isCompensation).toList();
        assertEquals(List.of("cancel the room"), undone.stream().map(Subtask::description).toList());
        assertEquals("204", undone.get(0).dependencyResults().get("room").getResponse());
    }

    @Test
    void aWholeResultIsFetchedThatTheContextHadNoRoomFor() throws Exception {
        String text = "x".repeat(230 * 1024);
        work(subtask -> Optional.of(text));
        Builder plan = plan().setMode(PlanMode.PLAN_MODE_SEQUENTIAL);
        for (String id : List.of("one", "two", "three", "four", "report")) {
            plan.addSubtasks(subtask(id));
        }
        assertEquals(PlanState.PLAN_STATE_COMPLETED, plans.submit(plan.build()).ended().getState());
        Subtask inputs = last();
        assertEquals(Set.of(), inputs.omitted());
        assertEquals(4, inputs.previousResults().size());
        inputs.previousResults().values().forEach(result -> assertEquals(text, result.getResponse()));
    }

    @Test
    void aPlanGrowsAndItsSubtasksChange() throws Exception {
        CountDownLatch extended = new CountDownLatch(1);
        work(subtask -> {
            try {
                extended.await();
            } catch (InterruptedException e) {
                return Optional.empty();
            }
            return Optional.of("found");
        });
        agents.add(begin(broker.agent("silent").credit(0), "idle"));
        Builder growth = plan().setPlanId("growth")
                .addSubtasks(subtask("find"))
                .addSubtasks(subtask("wait").setAgentType("idle").setOptional(true));
        Plan plan = plans.submit(growth.build());
        dev.baton.v1.Subtask look = dev.baton.v1.Subtask.newBuilder()
                .setId("look")
                .addDependencies("find")
                .setForEach(ForEach.newBuilder().setSubtaskId("find").setPointer("/result/all"))
                .build();
        SubtaskDefaults defaults =
                SubtaskDefaults.newBuilder().setAgentType("analyst").build();
        plan.extend(List.of(look), defaults);
        plan.extend(List.of(look), defaults);
        assertRefused("PLAN_INVALID", () -> {
            plan.extend(List.of(subtask("find").build()), defaults);
            return null;
        });
        assertRefused("SUBTASK_UNKNOWN", () -> plan.cancelSubtask("missing", ""));
        assertRefused("SUBTASK_STATE", () -> plan.retrySubtask("wait"));
        assertRefused("RECEIVER_INVALID", () -> plan.reassignSubtask("wait", "alice", ""));
        PlanRun given = plan.reassignSubtask("wait", "type:idle", "no answer");
        assertEquals("type:idle", given.getSubtasks(1).getAssignedTo());
        plan.cancelSubtask("wait", "enough");
        assertEquals(2, plan.retrySubtask("wait").getRound());
        plan.cancelSubtask("wait", "enough");
        extended.countDown();
        assertEquals(PlanState.PLAN_STATE_COMPLETED, plan.ended().getState());
        Map<String, Object> listed = Json.object(plan.results().get("look").getResultJson());
        assertEquals(2, ((List<?>) listed.get("results")).size());
        List<Subtask.Element> elements = subtasks.stream()
                .flatMap(one -> one.element().stream())
                .sorted(Comparator.comparing(Subtask.Element::index))
                .toList();
        assertEquals(List.of("x", Map.of("y", 1L)), elements.stream().map(Subtask.Element::value).toList());
    }

    @Test
    void aWrongPlanNamesItsProblemsAndAPlanIsCancelled() throws Exception {
        Builder wrong = REPORT.toBuilder();
        wrong.getSubtasksBuilder(0).addDependencies("report");
        List<String> codes = plans.validate(wrong.build()).stream().map(one -> one.getCode()).toList();
        assertTrue(codes.contains("CYCLE"), codes::toString);
        assertRefused("PLAN_INVALID", () -> plans.submit(wrong.build()));
        assertRefused("PLAN_UNKNOWN", () -> plans.plan("missing").state());
        agents.add(begin(broker.agent("silent").credit(0), "analyst"));
        Plan plan = plans.submit(REPORT);
        assertEquals("report", plans.submit(REPORT).id());
        assertRefused(
                "PLAN_EXISTS", () -> plans.submit(REPORT.toBuilder().setDescription("another").build()));
        assertRefused("PLAN_RUNNING", plan::retry);
        assertEquals(PlanState.PLAN_STATE_CANCELLED, plan.cancel("enough").getState());
    }

    /** Adds an analyst that carries out subtasks with this response. Without a response the subtask fails. */
    private void work(Function<Subtask, Optional<String>> response) throws Exception {
        AgentBuilder builder = broker.agent("worker").onHandoff(offer -> {
            assertEquals(0, offer.subtask().orElseThrow().attempt());
            Takeover takeover = offer.accept();
            OwnedTask task = takeover.complete();
            Subtask subtask = takeover.wholeSubtask().orElseThrow();
            subtasks.add(subtask);
            Optional<String> text = response.apply(subtask);
            if (text.isEmpty()) {
                task.update(TaskStatusUpdate.newBuilder()
                        .setStatus(TaskStatus.TASK_STATUS_FAILED)
                        .setDetails("no data")
                        .build());
                return;
            }
            Object place = subtask.element().map(Subtask.Element::value).orElse("");
            task.finish(Map.of("response", text.get(), "all", List.of("x", Map.of("y", 1)), "value", place), "");
        });
        agents.add(begin(builder, "analyst"));
    }

    /** Returns the inputs of the report. */
    private Subtask last() throws Exception {
        Subtask subtask;
        do {
            subtask = subtasks.poll(PATIENCE_SECONDS, TimeUnit.SECONDS);
        } while (!subtask.subtaskId().equals("report"));
        return subtask;
    }

    private static Builder plan() {
        return dev.baton.v1.Plan.newBuilder()
                .setWholeTimeout(Duration.newBuilder().setSeconds(PATIENCE_SECONDS));
    }

    private static dev.baton.v1.Subtask.Builder subtask(String id) {
        return dev.baton.v1.Subtask.newBuilder()
                .setId(id)
                .setDescription("the " + id)
                .setAgentType("analyst");
    }

    private static void assertRefused(String reason, Callable<?> call) {
        assertEquals(reason, assertThrows(BatonException.class, call::call).reason());
    }
}
