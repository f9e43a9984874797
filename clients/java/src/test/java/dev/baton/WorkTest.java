package dev.baton;

import static dev.baton.ProcessesTest.next;
import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.baton.v1.ContextSection;
import dev.baton.v1.CustodyLogEntry;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.Info;
import dev.baton.v1.PlanState;
import dev.baton.v1.RejectReason;
import dev.baton.v1.Task;
import dev.baton.v1.TaskPrompt;
import dev.baton.v1.TaskStatus;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** The work between a takeover and the end of a task, against a real broker. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
final class WorkTest {
    private static final String TASK = "task-1";
    private static final HandoffRequest REQUEST =
            HandoffRequest.newBuilder().setTaskType("support-ticket").build();
    private static final List<ContextSection> SECTIONS =
            List.of(Envelopes.jsonSection("goals", "[\"find the cause\"]"));
    private static final Map<String, Object> DONE = Map.of("a", "done");

    private final ExecutorService threads = Executors.newCachedThreadPool();

    @TempDir
    Path folder;

    private RealBroker broker;

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
    }

    @AfterEach
    void stop() throws Exception {
        threads.shutdownNow();
        broker.close();
    }

    /** Lends the task to bob, whose listener does this after the takeover. */
    private Outcome lend(Worker worker) throws Exception {
        HandoffListener listener = offer -> worker.work(offer.accept().complete());
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(listener))) {
            return soon(() -> alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS)).get(PATIENCE_SECONDS, TimeUnit.SECONDS);
        }
    }

    private interface Worker {
        void work(OwnedTask task) throws Exception;
    }

    @Test
    void aListenerThatThrowsAfterTheTakeoverEndsTheTaskAsFailedWithItsWords() throws Exception {
        Outcome outcome = lend(task -> {
            throw new IllegalStateException("the model answered 500");
        });
        assertEquals(TaskStatus.TASK_STATUS_FAILED, outcome.status());
        assertEquals("IllegalStateException: the model answered 500", outcome.details());
    }

    @Test
    void theWordsOfAFailureAreCutAtTheLimit() throws Exception {
        Outcome outcome = lend(task -> {
            throw new IllegalStateException("é".repeat(20_000));
        });
        String expected = "IllegalStateException: " + "é".repeat((Failure.DETAILS_BYTES_MAX - 23) / 2);
        assertEquals(expected, outcome.details());
    }

    @Test
    void aResultThatTheBrokerWouldRefuseEndsTheTaskAsFailedWithTheLimit() throws Exception {
        Map<String, Object> large = Map.of("a", "x".repeat(300 * 1024));
        Outcome outcome = lend(task -> task.finish(large, ""));
        assertEquals(TaskStatus.TASK_STATUS_FAILED, outcome.status());
        assertTrue(outcome.details().contains("over the limit of 262144"), outcome.details());
    }

    @Test
    void theDeepestResultThatTheClientSendsIsTakenByTheBroker() throws Exception {
        Map<String, Object> deep = PayloadCheckTest.nested(Json.LEVELS_MAX);
        assertEquals(deep, lend(task -> task.finish(deep, "")).result());
    }

    @Test
    void aResultAnAnswerAndMailArriveAsTheyWereSent() throws Exception {
        Map<String, Object> sent = Json.object(PayloadCheckTest.TEXT);
        BlockingQueue<Map<String, Object>> got = new LinkedBlockingQueue<>();
        BlockingQueue<BatonException> refused = new LinkedBlockingQueue<>();
        AgentBuilder asked = broker.agent("alice").onPrompt(question -> {
            Map<String, Object> wrong = Map.of("a", List.of(Double.NaN));
            refused.add(assertThrows(BatonException.class, () -> question.answer("none", wrong)));
            question.answer("this one", sent);
        });
        AgentBuilder working = broker.agent("bob")
                .on(Info.class, delivery -> got.add(Json.object(delivery.payload().getDataJson())))
                .onHandoff(offer -> {
                    OwnedTask task = offer.accept().complete();
                    TaskPrompt prompt = TaskPrompt.newBuilder()
                            .setQuestion("Which order?")
                            .setAnswerBy("alice")
                            .build();
                    got.add(task.ask(prompt, "").data());
                    task.finish(sent, "");
                });
        try (Agent alice = begin(asked);
                Agent bob = begin(working)) {
            Info info = Info.newBuilder().setDataJson(Json.text(sent)).build();
            alice.send(bob.id(), Envelopes.About.NOTHING, info);
            assertEquals(sent, next(got));
            assertEquals(sent, alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS).result());
            assertEquals(sent, next(got));
            String message = next(refused).getMessage();
            assertTrue(message.contains("data_json must have finite numbers only, not NaN (at /a/0)"), message);
            Task task = alice.getTask(TASK);
            String answered = task.getLastAnswer().getAnswer().getDataJson();
            assertEquals(
                    List.of(PayloadCheckTest.TEXT, PayloadCheckTest.TEXT), List.of(task.getResultJson(), answered));
        }
    }

    @Test
    void theInputAndTheResultsOfAPlanArriveAsTheyWereSent() throws Exception {
        Map<String, Object> sent = Json.object(PayloadCheckTest.TEXT);
        BlockingQueue<Subtask> got = new LinkedBlockingQueue<>();
        AgentBuilder working = broker.agent("bob").onHandoff(offer -> {
            Takeover takeover = offer.accept();
            OwnedTask task = takeover.complete();
            Subtask subtask = takeover.subtask().orElseThrow();
            got.add(subtask);
            task.finish(subtask.input(), "");
        });
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(working)) {
            dev.baton.v1.Subtask.Builder first = dev.baton.v1.Subtask.newBuilder()
                    .setId("first")
                    .setAgentId(bob.id())
                    .setInputJson(PayloadCheckTest.TEXT);
            dev.baton.v1.Subtask.Builder second = dev.baton.v1.Subtask.newBuilder()
                    .setId("second")
                    .setAgentId(bob.id())
                    .addDependencies("first")
                    .setInputJson("{\"count\":42}");
            Plan plan = alice.plans().submit(dev.baton.v1.Plan.newBuilder()
                    .setPlanId("exact")
                    .setInputJson(PayloadCheckTest.TEXT)
                    .addSubtasks(first)
                    .addSubtasks(second)
                    .build());
            assertEquals(PlanState.PLAN_STATE_COMPLETED, plan.ended().getState());
            assertEquals(sent, next(got).input());
            Subtask last = next(got);
            assertEquals(List.of(sent, Map.of("count", 42L)), List.of(last.planInput(), last.input()));
            assertEquals(sent, Json.object(last.dependencyResults().get("first").getResultJson()));
            assertEquals(PayloadCheckTest.TEXT, plan.results().get("first").getResultJson());
            assertEquals("{\"count\":42}", plan.results().get("second").getResultJson());
        }
    }

    @Test
    void aListenerThatTakesTooLongEndsTheTaskAsFailed() throws Exception {
        AgentBuilder slow = broker.agent("bob").listenerTimeout(Duration.ofSeconds(2)).onHandoff(offer -> {
            offer.accept().complete();
            new CountDownLatch(1).await();
        });
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(slow)) {
            Outcome outcome = alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS);
            assertEquals(TaskStatus.TASK_STATUS_FAILED, outcome.status());
            assertEquals("TimeoutException: the listener took too long", outcome.details());
        }
    }

    @Test
    void aTaskThatHasEndedOrWasHandedOnIsNotFailed() throws Exception {
        AgentBuilder ending = broker.agent("bob").onHandoff(offer -> {
            OwnedTask task = offer.accept().complete();
            if (task.taskId().equals(TASK)) {
                task.finish(DONE, "");
            } else {
                task.handOver("carol", REQUEST, SECTIONS);
            }
            throw new IllegalStateException("after the end");
        });
        CountDownLatch held = new CountDownLatch(1);
        AgentBuilder holding = broker.agent("carol").onHandoff(offer -> {
            offer.accept().complete();
            held.await();
        });
        try (Agent alice = begin(broker.agent("alice"));
                Agent carol = begin(holding)) {
            try (Agent bob = begin(ending)) {
                assertEquals(DONE, alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS).result());
                alice.handOver(bob.id(), "task-2", 1, REQUEST, SECTIONS);
                RealBroker.until("carol's", () -> alice.getTask("task-2").getOwnerId().equals(carol.id()));
            } // bob's listeners have ended
            assertEquals(TaskStatus.TASK_STATUS_CREATED, alice.getTask("task-2").getStatus());
            List<String> tasks = List.of(TASK, "task-2");
            for (String task : tasks) {
                for (CustodyLogEntry entry : alice.verifyCustody(task).entries()) {
                    assertFalse(entry.getEntry().hasRefused(), entry.toString());
                }
            }
            held.countDown();
        }
    }

    @Test
    void theStopOfAnAgentIsNoFailureOfItsTasks() throws Exception {
        CountDownLatch owned = new CountDownLatch(1);
        HandoffListener working = offer -> {
            offer.accept().complete();
            owned.countDown();
            new CountDownLatch(1).await();
        };
        try (Agent alice = begin(broker.agent("alice"))) {
            Agent bob = begin(broker.agent("bob").onHandoff(working));
            alice.handOver(bob.id(), TASK, 1, REQUEST, SECTIONS);
            assertTrue(owned.await(PATIENCE_SECONDS, TimeUnit.SECONDS));
            bob.close(Duration.ZERO);
            assertEquals(TaskStatus.TASK_STATUS_CREATED, alice.getTask(TASK).getStatus());
        }
    }

    @Test
    void theTaskFollowsItsEpochOverLoansThatComeBack() throws Exception {
        HandoffListener lendOn = offer -> {
            OwnedTask task = offer.accept().complete();
            assertEquals(2, task.epoch());
            Outcome outcome = task.delegate("carol", REQUEST, SECTIONS);
            assertEquals(List.of(4L, 4L), List.of(outcome.epoch(), task.epoch()));
            task.report("one part is done");
            assertThrows(
                    TaskRecalledException.class,
                    () -> task.delegate("dave", REQUEST, SECTIONS, Duration.ofSeconds(4)));
            task.report("another one took too long");
            assertThrows(HandoffFailedException.class, () -> task.delegate("erin", REQUEST, SECTIONS));
            assertTrue(task.isOwned());
            task.finish(outcome.result(), "at epoch " + task.epoch());
            assertFalse(task.isOwned());
        };
        HandoffListener refuse = offer -> offer.reject(RejectReason.REJECT_REASON_NO_SKILL, "");
        HandoffListener sleep = offer -> {
            offer.accept().complete();
            new CountDownLatch(1).await();
        };
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(lendOn));
                Agent carol = begin(broker.agent("carol").onHandoff(finishing()));
                Agent dave = begin(broker.agent("dave").onHandoff(sleep));
                Agent erin = begin(broker.agent("erin").onHandoff(refuse))) {
            assertNotNull(List.of(carol, dave, erin));
            Outcome outcome = alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS);
            assertEquals("at epoch 6", outcome.details());
            assertEquals(DONE, outcome.result());
        }
    }

    @Test
    void newTasksOfAListenerArePartsOfItsTaskUnlessItSaysOtherwise() throws Exception {
        List<String> parents = new ArrayList<>();
        HandoffListener splitting = offer -> {
            OwnedTask task = offer.accept().complete();
            Agent bob = task.agent();
            for (String part : List.of("part", "alone", "other")) {
                HandoffRequest request = part.equals("other")
                        ? REQUEST.toBuilder().setParentTaskId("bobs").build()
                        : REQUEST;
                Optional<OwnedTask> parent = part.equals("alone") ? Optional.empty() : Parents.current();
                try (Parents.Scope scope = Parents.begin(parent)) {
                    bob.delegate("carol", part, 1, request, SECTIONS);
                }
                parents.add(bob.getTask(part).getParentTaskId());
            }
            bob.handOver("carol", "bobs", 1, REQUEST, SECTIONS); // it exists, without a parent
            task.finish(DONE, "");
            bob.delegate("carol", "late", 1, REQUEST, SECTIONS);
            parents.add(bob.getTask("late").getParentTaskId());
        };
        HandoffListener refuse = offer -> offer.reject(RejectReason.REJECT_REASON_NO_SKILL, "");
        try (Agent alice = begin(broker.agent("alice"));
                Agent carol = begin(broker.agent("carol").onHandoff(finishing()));
                Agent dave = begin(broker.agent("dave").onHandoff(refuse))) {
            assertNotNull(List.of(carol, dave));
            try (Agent bob = begin(broker.agent("bob").onHandoff(splitting))) {
                assertThrows(
                        HandoffFailedException.class, () -> bob.handOver("dave", "bobs", 1, REQUEST, SECTIONS));
                assertEquals(DONE, alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS).result());
            }
        }
        assertEquals(List.of(TASK, "", "bobs", ""), parents);
    }

    @Test
    void theProgressOfALentTaskReachesTheLenderInOrder() throws Exception {
        List<String> seen = new CopyOnWriteArrayList<>();
        HandoffListener reporting = offer -> {
            OwnedTask task = offer.accept().complete();
            for (int i = 0; i < 3; i++) {
                task.report("part " + i, i / 4.0);
            }
            task.finish(DONE, "");
        };
        ProgressListener listener = progress -> {
            seen.add(progress.agentId() + " " + progress.details() + " " + progress.progress().orElse(-1));
            throw new IllegalStateException("a listener's exception does not end the call");
        };
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(reporting))) {
            Outcome outcome = alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS, null, listener);
            assertEquals(DONE, outcome.result());
            assertEquals(List.of("bob part 0 0.0", "bob part 1 0.25", "bob part 2 0.5"), seen);
        }
    }

    @Test
    void eachOfTwoProcessesGetsAllOfItsOwnResults() throws Exception {
        int each = 6;
        AgentBuilder builder = broker.agent("alice");
        builder.lookInterval = Duration.ofMillis(500);
        HandoffListener naming = offer -> offer.accept()
                .complete()
                .finish(Map.of("a", offer.taskId()), "by bob");
        try (Agent one = begin(builder);
                Agent other = begin(builder);
                Agent bob = begin(broker.agent("bob").onHandoff(naming))) {
            assertFalse(one.instanceId().equals(other.instanceId()));
            List<Future<Outcome>> calls = new ArrayList<>();
            for (int i = 0; i < 2 * each; i++) {
                Agent process = i % 2 == 0 ? one : other;
                String task = "task-" + i;
                calls.add(soon(() -> process.delegate(bob.id(), task, 1, REQUEST, SECTIONS)));
            }
            for (int i = 0; i < 2 * each; i++) {
                Outcome outcome = calls.get(i).get(PATIENCE_SECONDS, TimeUnit.SECONDS);
                Map<String, Object> result = Map.of("a", "task-" + i);
                assertEquals(
                        new Outcome("task-" + i, 3, TaskStatus.TASK_STATUS_COMPLETED, result, "by bob"), outcome);
            }
        }
    }

    private static HandoffListener finishing() {
        return offer -> offer.accept().complete().finish(DONE, "");
    }

    private <A> Future<A> soon(Callable<A> work) {
        return threads.submit(work);
    }
}
