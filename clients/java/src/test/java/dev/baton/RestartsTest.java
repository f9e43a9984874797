package dev.baton;

import static dev.baton.Mortal.REQUEST;
import static dev.baton.Mortal.SECTIONS;
import static dev.baton.Mortal.TASK;
import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.baton.Envelopes.About;
import dev.baton.Mortal.Step;
import dev.baton.v1.AgentCard;
import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffMode;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.HandoffState;
import dev.baton.v1.Info;
import dev.baton.v1.Receipt;
import dev.baton.v1.RejectReason;
import dev.baton.v1.Task;
import dev.baton.v1.TaskStatus;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
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
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Agents killed at every step of a handoff: the next process continues without any memory. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class RestartsTest {
    private static final Set<TaskStatus> FINAL = Set.of(
            TaskStatus.TASK_STATUS_COMPLETED, TaskStatus.TASK_STATUS_FAILED, TaskStatus.TASK_STATUS_CANCELED);
    /** Short, for tests of changes without mail. */
    private static final Duration LOOK = Duration.ofMillis(200);

    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final BlockingQueue<OwnedTask> taken = new LinkedBlockingQueue<>();

    @TempDir
    Path folder;

    private RealBroker broker;

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
        for (String id : List.of("alice", "bob")) {
            Keys.save(keyOf(id), Keys.generate());
            try (Agent agent = living(id).build()) {
                agent.register(AgentCard.getDefaultInstance());
            }
        }
    }

    @AfterEach
    void stop() throws Exception {
        threads.shutdownNow();
        broker.close();
    }

    @ParameterizedTest
    @EnumSource(names = {"REQUEST_STORED", "ACCEPT_DELIVERED", "CONTEXT_STORED", "COMPLETION_DELIVERED"})
    void aSenderThatIsKilledResumesItsHandoff(Step step) throws Exception {
        try (Agent bob = living("bob").onHandoff(this::take).connect()) {
            killAt("alice", step);
            try (Agent alice = living("alice").connect()) {
                String handoffId = handoffOf(alice);
                HandedOver handed = within(() -> alice.resumeHandOver(handoffId, SECTIONS));
                assertEquals(new HandedOver(handoffId, TASK, bob.id(), 2, List.of()), handed);
                assertMovedOnceAndNothingIsLost(alice);
            }
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"REQUEST_STORED", "ACCEPT_DELIVERED", "CONTEXT_STORED", "COMPLETION_DELIVERED"})
    void aSenderThatIsKilledProvidesTheContextLater(Step step) throws Exception {
        BlockingQueue<ContextWanted> asked = new LinkedBlockingQueue<>();
        ContextProvider provider = wanted -> {
            asked.add(wanted);
            return SECTIONS;
        };
        try (Agent bob = living("bob").onHandoff(this::take).connect()) {
            killAt("alice", step);
            try (Agent alice = living("alice").contextProvider(provider).connect()) {
                assertMovedOnceAndNothingIsLost(alice);
                ContextWanted expected = new ContextWanted(handoffOf(alice), TASK, 1, bob.id(), List.of(), List.of());
                assertTrue(asked.stream().allMatch(expected::equals), asked.toString());
            }
        }
    }

    @Test
    void anAcceptThatNoCallWaitsForIsKeptUntilAResume() throws Exception {
        killAt("alice", Step.REQUEST_STORED);
        try (Agent alice = living("alice").connect();
                Agent bob = living("bob").onHandoff(this::take).connect()) {
            OwnedTask owned = alice.ownedTasks().get(0);
            String handoffId = owned.openHandoffId();
            List<Object> seen = List.of(owned.taskId(), owned.epoch(), owned.status(), owned.openHandoffId());
            assertEquals(List.of(TASK, 1L, TaskStatus.TASK_STATUS_CREATED, handoffId), seen);
            RealBroker.until("the accept", () -> alice.getHandoff(handoffId).getState()
                    == HandoffState.HANDOFF_STATE_ACCEPTED);
            assertEquals(bob.id(), within(() -> alice.resumeHandOver(handoffId, SECTIONS)).ownerId());
            assertMovedOnceAndNothingIsLost(alice);
            assertEquals(List.of(), alice.ownedTasks());
        }
    }

    @Test
    void anAcceptThatWasLeftUnreadGoesToTheResume() throws Exception {
        killAt("alice", Step.REQUEST_STORED);
        // Without a listener the mail stays for poll().
        try (Agent alice = broker.agent("alice").key(Keys.load(keyOf("alice"))).connect();
                Agent bob = living("bob").onHandoff(this::take).connect()) {
            BlockingQueue<Delivery<?>> seen = new LinkedBlockingQueue<>();
            RealBroker.until("the accept", () -> {
                alice.takeBack(seen::add);
                return !seen.isEmpty();
            });
            seen.forEach(alice::leave);
            assertEquals(bob.id(), within(() -> alice.resumeHandOver(handoffOf(alice), SECTIONS)).ownerId());
            assertTrue(alice.poll(Duration.ZERO).isEmpty());
            assertMovedOnceAndNothingIsLost(alice);
        }
    }

    @ParameterizedTest
    @EnumSource(
            names = {"OFFER_DELIVERED", "ACCEPT_STORED", "OFFER_ACCEPTED", "CONTEXT_DELIVERED", "COMPLETION_STORED"})
    void aReceiverThatIsKilledTakesOverLater(Step step) throws Exception {
        try (Agent alice = living("alice").connect()) {
            Future<HandedOver> handing = soon(() -> alice.handOver("bob", TASK, 1, REQUEST, SECTIONS));
            killAt("bob", step);
            try (Agent bob = living("bob").onHandoff(this::take).connect()) {
                HandedOver handed = within(handing);
                assertEquals(List.of(bob.id(), 2L), List.of(handed.ownerId(), handed.epoch()));
                OwnedTask task = next(taken);
                assertEquals(2, task.epoch());
                task.finish(Map.of(), "done");
                assertNull(taken.poll(), "taken over once");
                assertMovedOnceAndNothingIsLost(alice);
            }
        }
    }

    @Test
    void anOwnerThatIsKilledFindsItsTask() throws Exception {
        try (Agent alice = living("alice").connect()) {
            Future<HandedOver> handing = soon(() -> alice.handOver("bob", TASK, 1, REQUEST, SECTIONS));
            killAt("bob", Step.TASK_OWNED);
            within(handing);
            try (Agent bob = living("bob").connect()) {
                List<OwnedTask> owned = bob.ownedTasks();
                assertEquals(1, owned.size());
                assertEquals(List.of(TASK, 2L, ""), List.of(
                        owned.get(0).taskId(), owned.get(0).epoch(), owned.get(0).openHandoffId()));
                owned.get(0).finish(Map.of(), "done");
                assertEquals(List.of(), bob.ownedTasks());
            }
        }
    }

    @Test
    void aResumedHandoffFailsAsItHasFailed() throws Exception {
        HandoffListener refuse = offer -> offer.reject(RejectReason.REJECT_REASON_NO_SKILL, "routers only");
        try (Agent alice = living("alice").connect();
                Agent bob = living("bob").onHandoff(refuse).connect()) {
            Receipt receipt = alice.send(bob.id(), About.task(TASK, 1), REQUEST);
            for (int i = 0; i < 2; i++) { // while it is open or after its end, and once more
                var failed = assertThrows(
                        HandoffFailedException.class, () -> alice.resumeHandOver(receipt.getHandoffId(), SECTIONS));
                assertEquals("NO_CANDIDATE", failed.reason());
                var rejection = new Rejection("bob", RejectReason.REJECT_REASON_NO_SKILL, "routers only");
                assertEquals(List.of(rejection), failed.rejections());
            }
            var refused = assertThrows(
                    BatonException.class, () -> bob.resumeHandOver(receipt.getHandoffId(), SECTIONS));
            assertEquals("NOT_OWNER", refused.reason());
        }
    }

    @Test
    void aHandoffThatIsCancelledElsewhereEndsTheWait() throws Exception {
        try (Agent alice = living("alice", LOOK).connect()) {
            Future<HandedOver> handing = soon(() -> alice.handOver("bob", TASK, 1, REQUEST, SECTIONS));
            RealBroker.until("the request", () -> !alice.ownedTasks().isEmpty());
            alice.send("bob", new About(TASK, 1, handoffOf(alice)), HandoffCancel.getDefaultInstance());
            var ended = assertThrows(ExecutionException.class, () -> within(handing));
            assertEquals("HANDOFF_CANCELLED", ((HandoffFailedException) ended.getCause()).reason());
        }
    }

    @Test
    void aLoanThatIsGivenBackUnfinishedEndsTheWait() throws Exception {
        try (Agent alice = living("alice", LOOK).onHandoff(offer -> offer.accept().complete()).connect();
                Agent bob = living("bob").onHandoff(this::take).connect()) {
            Future<Outcome> lending = soon(() -> alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS));
            next(taken).handOver(alice.id(), REQUEST, SECTIONS);
            Outcome outcome = within(lending);
            assertEquals(List.of(3L, Map.of()), List.of(outcome.epoch(), outcome.result()));
            assertFalse(FINAL.contains(outcome.status()), outcome.status().name());
        }
    }

    @Test
    void theStatusOfAnEarlierLoanIsNotThatOfThisOne() throws Exception {
        try (Agent bob = living("bob").onHandoff(this::take).connect()) {
            try (Agent alice = living("alice").connect()) {
                HandoffRequest lent =
                        REQUEST.toBuilder().setMode(HandoffMode.HANDOFF_MODE_DELEGATE).build();
                alice.handOver(bob.id(), TASK, 1, lent, SECTIONS);
            }
            next(taken).finish(loan(1), "");
            try (Agent alice = living("alice").credit(0).connect()) {
                OwnedTask task = alice.ownedTasks().get(0);
                Duration wait = Duration.ofSeconds(PATIENCE_SECONDS);
                Future<Outcome> lending = soon(() -> task.delegate(bob.id(), REQUEST, SECTIONS, wait));
                RealBroker.until("the request", () -> !alice.getTask(TASK).getOpenHandoffId().isEmpty());
                alice.setCredit(16); // the first loan's status comes while the second is waited for
                next(taken).finish(loan(2), "");
                Outcome outcome = within(lending);
                Outcome expected = new Outcome(TASK, 5, TaskStatus.TASK_STATUS_COMPLETED, loan(2), "");
                assertEquals(expected, outcome);
            }
        }
    }

    @Test
    void aCallerThatIsInterruptedLeavesTheHandoffToAResume() throws Exception {
        try (Agent alice = living("alice").connect()) {
            Interruptible handing = new Interruptible(() -> alice.handOver("bob", TASK, 1, REQUEST, SECTIONS));
            handing.until("the request", () -> !alice.ownedTasks().isEmpty());
            handing.interrupt();
            try (Agent bob = living("bob").onHandoff(this::take).connect()) {
                String handoffId = handoffOf(alice);
                assertEquals(bob.id(), within(() -> alice.resumeHandOver(handoffId, SECTIONS)).ownerId());
            }
        }
    }

    /** An agent with a listener: the library settles mail without one. */
    private AgentBuilder living(String id) throws Exception {
        return broker.agent(id).key(Keys.load(keyOf(id))).on(Info.class, delivery -> {});
    }

    private AgentBuilder living(String id, Duration lookInterval) throws Exception {
        AgentBuilder builder = living(id);
        builder.lookInterval = lookInterval;
        return builder;
    }

    private Path keyOf(String id) {
        return folder.resolve(id + ".pem");
    }

    private void take(Offer offer) throws InterruptedException {
        Takeover takeover = offer.accept();
        assertEquals(SECTIONS, takeover.sections());
        taken.add(takeover.complete());
    }

    /** Runs a process of the agent, and kills it at this step. */
    private void killAt(String id, Step step) throws Exception {
        Process process = new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "-cp",
                        System.getProperty("java.class.path"),
                        "-XX:TieredStopAtLevel=1",
                        Mortal.class.getName(),
                        broker.server,
                        broker.ca().toString(),
                        id,
                        keyOf(id).toString(),
                        step.name())
                .redirectError(ProcessBuilder.Redirect.appendTo(folder.resolve("mortal.log").toFile()))
                .start();
        RealBroker.limit(process);
        try (BufferedReader out =
                new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
            assertEquals("there", out.readLine());
        } finally {
            process.destroyForcibly();
        }
        assertTrue(process.waitFor(PATIENCE_SECONDS, TimeUnit.SECONDS));
    }

    /** Returns the handoff of an earlier process, open or not. */
    private static String handoffOf(Agent alice) {
        Task task = alice.getTask(TASK);
        return task.getOpenHandoffId().isEmpty() ? task.getHops(0).getHandoffId() : task.getOpenHandoffId();
    }

    private void assertMovedOnceAndNothingIsLost(Agent agent) throws Exception {
        RealBroker.until("bob's", () -> agent.getTask(TASK).getOwnerId().equals("bob"));
        Task task = agent.getTask(TASK);
        assertEquals(List.of(2L, 1, ""), List.of(task.getEpoch(), task.getHopsCount(), task.getOpenHandoffId()));
        assertEquals(0, broker.deadLetters().size());
    }

    private static Map<String, Object> loan(long number) {
        return Map.of("loan", number);
    }

    private <A> Future<A> soon(Callable<A> work) {
        return threads.submit(work);
    }

    private static <A> A within(Future<A> work) throws Exception {
        return work.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }

    private <A> A within(Callable<A> work) throws Exception {
        return within(soon(work));
    }

    private static <A> A next(BlockingQueue<A> queue) throws InterruptedException {
        A next = queue.poll(PATIENCE_SECONDS, TimeUnit.SECONDS);
        assertNotNull(next, "nothing came");
        return next;
    }
}
