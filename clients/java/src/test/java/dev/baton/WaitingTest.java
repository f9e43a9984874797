package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.baton.v1.ContextSection;
import dev.baton.v1.HandoffMode;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.RejectReason;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.TaskStatusUpdate;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
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

/** The wait for a loan that an earlier process of the agent has begun. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class WaitingTest {
    private static final String TASK = "ticket-1";
    private static final HandoffRequest REQUEST =
            HandoffRequest.newBuilder().setTaskType("support-ticket").build();
    private static final List<ContextSection> SECTIONS =
            List.of(Envelopes.jsonSection("goals", "[\"find the cause\"]"));

    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final BlockingQueue<OwnedTask> owned = new LinkedBlockingQueue<>();

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

    @Test
    void aLaterProcessGetsTheResultWheneverItComes() throws Exception {
        var key = Keys.generate();
        try (Agent bob = begin(broker.agent("bob").onHandoff(this::take))) {
            String handoffId;
            try (Agent before = begin(broker.agent("alice").key(key))) {
                handoffId = requested(before, TASK);
            }
            try (Agent alice = broker.agent("alice").key(key).connect()) {
                List<String> reports = new CopyOnWriteArrayList<>();
                Future<Outcome> waiting = soon(
                        () -> alice.waitForLoan(handoffId, SECTIONS, told -> reports.add(told.details())));
                OwnedTask task = next();
                task.report("half of it");
                task.finish(Map.of("cause", "a loose cable"), "found");
                Outcome outcome = waiting.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
                assertEquals(new Outcome(
                        TASK, 3, TaskStatus.TASK_STATUS_COMPLETED, Map.of("cause", "a loose cable"), "found"), outcome);
                assertEquals("half of it", reports.get(0));
                // From the records alone, also once the task has ended.
                assertEquals(outcome, alice.waitForLoan(handoffId));
                TaskStatusUpdate end = TaskStatusUpdate.newBuilder()
                        .setStatus(TaskStatus.TASK_STATUS_COMPLETED)
                        .build();
                alice.send("", Envelopes.About.task(TASK, 3), end);
                assertEquals(outcome, alice.waitForLoan(handoffId, SECTIONS, null));
            }
        }
    }

    @Test
    void theEndOfAWaitEndsNothingAndARecallEndsTheWait() throws Exception {
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(this::take))) {
            String handoffId = requested(alice, TASK);
            Interruptible first = new Interruptible(() -> alice.waitForLoan(handoffId, SECTIONS, null));
            first.until("the loan", () -> !owned.isEmpty());
            assertThrows(WaitedForException.class, () -> alice.waitForLoan(handoffId));
            first.interrupt();
            assertEquals("bob", alice.getTask(TASK).getOwnerId());
            Future<Outcome> second = soon(() -> alice.waitForLoan(handoffId));
            alice.recall(handoffId, "");
            assertRecalled(second);
            assertRecalled(soon(() -> alice.waitForLoan(handoffId)));
        }
    }

    @Test
    void aWaitForWhatIsNoLoanOfThisAgentIsRefused() throws Exception {
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(this::take))) {
            String given = alice.handOver("bob", "given", 1, REQUEST, SECTIONS).handoffId();
            next();
            assertRefused("NOT_LENT", alice, given);
            assertRefused("NOT_OWNER", bob, given);
            assertRefused("HANDOFF_UNKNOWN", alice, "00000000-0000-4000-8000-000000000000");
            String lent = requested(alice, TASK);
            Future<Outcome> waiting = soon(() -> alice.waitForLoan(lent, SECTIONS, null));
            next().finish(Map.of(), "");
            long epoch = waiting.get(PATIENCE_SECONDS, TimeUnit.SECONDS).epoch();
            Future<Outcome> again = soon(() -> alice.delegate("bob", TASK, epoch, REQUEST, SECTIONS));
            next().finish(Map.of(), "");
            again.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            assertRefused("NOT_LENT", alice, lent);
        }
    }

    @Test
    void aWaitForAHandoffThatFailsThrowsItsEndAndOneWithoutAContextLeavesItToTheProvider() throws Exception {
        BlockingQueue<Boolean> rejects = new LinkedBlockingQueue<>(List.of(true, false));
        try (Agent alice = begin(broker.agent("alice").contextProvider(wanted -> SECTIONS));
                Agent bob = begin(broker.agent("bob").onHandoff(offer -> {
                    if (rejects.take()) {
                        offer.reject(RejectReason.REJECT_REASON_OTHER, "not mine");
                    } else {
                        offer.accept().complete().finish(Map.of(), "");
                    }
                }))) {
            String failing = requested(alice, "other");
            var failed = assertThrows(HandoffFailedException.class, () -> alice.waitForLoan(failing));
            assertEquals("not mine", failed.rejections().get(0).text());
            assertEquals(TaskStatus.TASK_STATUS_COMPLETED, alice.waitForLoan(requested(alice, TASK)).status());
        }
    }

    private void take(Offer offer) throws InterruptedException {
        owned.add(offer.accept().complete());
        new CountDownLatch(1).await();
    }

    /** Begins a loan as a process that is about to die does: it sends the request, and no more. */
    private static String requested(Agent agent, String taskId) throws InterruptedException {
        HandoffRequest request = REQUEST.toBuilder().setMode(HandoffMode.HANDOFF_MODE_DELEGATE).build();
        return agent.send("bob", Envelopes.About.task(taskId, 1), request).getHandoffId();
    }

    private static void assertRefused(String reason, Agent agent, String handoffId) {
        assertEquals(reason, assertThrows(BatonException.class, () -> agent.waitForLoan(handoffId)).reason());
    }

    private static void assertRecalled(Future<Outcome> call) {
        var failed = assertThrows(ExecutionException.class, () -> call.get(PATIENCE_SECONDS, TimeUnit.SECONDS));
        var back = assertInstanceOf(TaskRecalledException.class, failed.getCause());
        assertEquals(List.of(TaskRecalledException.Reason.RECALL, 3L), List.of(back.reason(), back.epoch()));
    }

    private <A> Future<A> soon(Callable<A> work) {
        return threads.submit(work);
    }

    private OwnedTask next() throws InterruptedException {
        OwnedTask next = owned.poll(PATIENCE_SECONDS, TimeUnit.SECONDS);
        assertNotNull(next, "nothing came");
        return next;
    }
}
