package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.baton.TaskRecalledException.Reason;
import dev.baton.v1.ContextSection;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.RejectReason;
import dev.baton.v1.SenderView;
import dev.baton.v1.Task;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.TaskStatusUpdate;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
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
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

/** Lent tasks that come back: by a result, a recall, the loan timeout, or the end of the delegating call. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class LoansTest {
    private static final String TASK = "ticket-1";
    private static final HandoffRequest REQUEST =
            HandoffRequest.newBuilder().setTaskType("support-ticket").build();
    private static final List<ContextSection> SECTIONS =
            List.of(Envelopes.jsonSection("goals", "[\"find the cause\"]"));

    private final ExecutorService threads = Executors.newCachedThreadPool();

    @TempDir
    Path folder;

    private RealBroker broker;

    /** A delegate that takes the task over, and then works until it is stopped. */
    private static final class Worker {
        final BlockingQueue<OwnedTask> owned = new LinkedBlockingQueue<>();
        final BlockingQueue<Recalled> recalled = new LinkedBlockingQueue<>();
        final CountDownLatch stopped = new CountDownLatch(1);

        AgentBuilder of(AgentBuilder builder) {
            return builder.onHandoff(this::take).onRecalled(recalled::add);
        }

        private void take(Offer offer) throws InterruptedException {
            owned.add(offer.accept().complete());
            try {
                new CountDownLatch(1).await();
            } finally {
                stopped.countDown();
            }
        }

        Recalled isStopped(long epoch) throws InterruptedException {
            Recalled one = next(recalled);
            assertEquals(List.of(TASK, epoch), List.of(one.taskId(), one.epoch()));
            assertTrue(stopped.await(PATIENCE_SECONDS, TimeUnit.SECONDS));
            return one;
        }
    }

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
    void theLoanTimeoutBringsTheTaskBack() throws Exception {
        Worker worker = new Worker();
        HandoffRequest request = REQUEST.toBuilder()
                .setLoanTimeout(Times.ofDuration(Duration.ofSeconds(1)))
                .build();
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(worker.of(broker.agent("bob")))) {
            var back = assertThrows(
                    TaskRecalledException.class, () -> alice.delegate(bob.id(), TASK, 1, request, SECTIONS));
            assertRecalled(Reason.LOAN_TIMEOUT, 3, true, back);
            assertEquals(back.handoffId(), worker.isStopped(3).handoffId());
            assertOwned(alice, 3);
            OwnedTask late = next(worker.owned);
            var stale = assertThrows(BatonException.class, () -> late.finish(Map.of(), ""));
            assertEquals("STALE_EPOCH", stale.reason());
        }
    }

    @Test
    void theLimitOfTheCallRecallsTheTask() throws Exception {
        Worker worker = new Worker();
        Duration limit = Duration.ofSeconds(8);
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(worker.of(broker.agent("bob")))) {
            var back = assertThrows(
                    TaskRecalledException.class, () -> alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS, limit));
            assertRecalled(Reason.DEADLINE, 3, true, back);
            worker.isStopped(3);
            assertOwned(alice, 3);
        }
    }

    @Test
    void whereTheLoanTimeoutIsTheLimitTheReasonIsTheDeadline() {
        var byTimeout = new TaskRecalledException(TASK, "h", Reason.LOAN_TIMEOUT, "over", 3, true);
        var byLimit = Loan.byLimit(byTimeout, Reason.LOAN_TIMEOUT);
        assertRecalled(Reason.DEADLINE, 3, true, byLimit);
        assertEquals(List.of("DEADLINE: over", byTimeout), List.of(byLimit.getMessage(), byLimit.getCause()));
        assertRecalled(Reason.LOAN_TIMEOUT, 3, true, Loan.byLimit(byTimeout, Reason.RECALL));
        var lost = new TaskRecalledException(TASK, "h", Reason.RECALL, "taken", 3, false);
        assertRecalled(Reason.RECALL, 3, false, Loan.byLimit(lost, Reason.RECALL));
    }

    @Test
    void theLimitOfTheCallCancelsAnOpenHandoff() throws Exception {
        begin(broker.agent("bob")).close();
        Duration limit = Duration.ofSeconds(1);
        try (Agent alice = begin(broker.agent("alice"))) {
            var failed = assertThrows(
                    HandoffFailedException.class, () -> alice.delegate("bob", TASK, 1, REQUEST, SECTIONS, limit));
            assertEquals("HANDOFF_CANCELLED", failed.reason());
            assertOwned(alice, 1);
        }
    }

    @Test
    void anInterruptedCallRecallsTheTask() throws Exception {
        Worker worker = new Worker();
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(worker.of(broker.agent("bob")))) {
            Interruptible lending = lend(alice, bob.id());
            lending.until("the loan", () -> !worker.owned.isEmpty());
            lending.interrupt();
            assertOwned(alice, 3);
            worker.isStopped(3);
        }
    }

    @Test
    void anInterruptedCallCancelsAnOpenHandoff() throws Exception {
        begin(broker.agent("bob")).close();
        try (Agent alice = begin(broker.agent("alice"))) {
            Interruptible lending = lend(alice, "bob");
            lending.until("the request", () -> !alice.ownedTasks().isEmpty());
            lending.interrupt();
            assertOwned(alice, 1);
        }
    }

    @Test
    void aRecallEndsTheCallAndASecondOneIsRefused() throws Exception {
        Worker worker = new Worker();
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(worker.of(broker.agent("bob")))) {
            Future<Outcome> lending = soon(() -> alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS));
            next(worker.owned);
            String handoffId = alice.getTask(TASK).getLoans(0).getHandoffId();
            var stranger = assertThrows(BatonException.class, () -> bob.recall(handoffId, ""));
            assertEquals("NOT_OWNER", stranger.reason());
            OwnedTask task = alice.recall(handoffId, "done by phone");
            assertEquals(3, task.epoch());
            assertRecalled(Reason.RECALL, 3, true, thrownBy(lending));
            worker.isStopped(3);
            var refused = assertThrows(BatonException.class, () -> alice.recall(handoffId, ""));
            assertEquals("NOT_LENT", refused.reason());
            task.finish(Map.of(), "");
        }
    }

    @Test
    void anOuterRecallEndsTheInnerLoan() throws Exception {
        Worker worker = new Worker();
        BlockingQueue<OwnedTask> owned = new LinkedBlockingQueue<>();
        BlockingQueue<Recalled> told = new LinkedBlockingQueue<>();
        AgentBuilder lender = broker.agent("bob")
                .onHandoff(offer -> owned.add(offer.accept().complete()))
                .onRecalled(told::add);
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(lender);
                Agent carol = begin(worker.of(broker.agent("carol")))) {
            Future<Outcome> lending = soon(() -> alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS));
            OwnedTask task = next(owned);
            Future<Outcome> inner = soon(() -> task.delegate(carol.id(), REQUEST, SECTIONS));
            next(worker.owned);
            String outer = alice.getTask(TASK).getLoans(0).getHandoffId();
            alice.recall(outer, "");
            assertRecalled(Reason.RECALL, 4, false, thrownBy(inner));
            assertEquals(4, next(told).epoch());
            assertEquals(outer, worker.isStopped(4).handoffId());
            assertRecalled(Reason.RECALL, 4, true, thrownBy(lending));
            assertOwned(alice, 4);
        }
    }

    @Test
    void aRecallByAnotherProcessOfTheDelegatorEndsTheCall() throws Exception {
        Worker worker = new Worker();
        AgentBuilder builder = broker.agent("alice");
        builder.lookInterval = Duration.ofMillis(200);
        try (Agent alice = begin(builder);
                Agent bob = begin(worker.of(broker.agent("bob")));
                Agent other = begin(builder)) {
            Future<Outcome> lending = soon(() -> alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS));
            next(worker.owned);
            other.recall(alice.getTask(TASK).getLoans(0).getHandoffId(), "");
            assertRecalled(Reason.RECALL, 3, true, thrownBy(lending));
        }
    }

    @Test
    void withoutALimitTheLoanHasTheDefaultTimeout() throws Exception {
        Worker worker = new Worker();
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(worker.of(broker.agent("bob")))) {
            Future<Outcome> lending = soon(() -> alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS));
            OwnedTask task = next(worker.owned);
            long due = alice.getTask(TASK).getLoans(0).getDueTime().getSeconds();
            long left = due - Instant.now().getEpochSecond();
            assertTrue(left > 3000 && left <= Agent.LOAN_TIMEOUT.toSeconds() + 1, left + " s");
            task.update(TaskStatusUpdate.newBuilder()
                    .setStatus(TaskStatus.TASK_STATUS_FAILED)
                    .setDetails("no such router")
                    .build());
            Outcome outcome = lending.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            Map<String, Object> nothing = Map.of();
            assertEquals(new Outcome(TASK, 3, TaskStatus.TASK_STATUS_FAILED, nothing, "no such router"), outcome);
        }
    }

    @Test
    void theEndOfAFurtherLoanIsNotTheEndOfThisOne() throws Exception {
        HandoffListener lendOn = offer -> {
            OwnedTask task = offer.accept().complete();
            long epoch = task.delegate("carol", REQUEST, SECTIONS).epoch();
            task.agent().send("", Envelopes.About.task(TASK, epoch), finished("bob"));
        };
        HandoffListener finish = offer -> {
            OwnedTask task = offer.accept().complete();
            task.agent().send("alice", Envelopes.About.task(TASK, task.epoch()), finished("carol"));
        };
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(lendOn));
                Agent carol = begin(broker.agent("carol").onHandoff(finish))) {
            assertNotNull(carol);
            Outcome outcome = alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS);
            assertEquals(List.of(5L, Map.of("by", "bob")), List.of(outcome.epoch(), outcome.result()));
        }
    }

    @Test
    void aLoanThatIsRejectedIsAFailedHandoff() throws Exception {
        HandoffListener refuse = offer -> offer.reject(RejectReason.REJECT_REASON_NO_SKILL, "routers only");
        Duration limit = Duration.ofSeconds(60);
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(refuse))) {
            var failed = assertThrows(
                    HandoffFailedException.class,
                    () -> alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS, limit));
            assertEquals("NO_CANDIDATE", failed.reason());
            var rejection = new Rejection("bob", RejectReason.REJECT_REASON_NO_SKILL, "routers only");
            assertEquals(List.of(rejection), failed.rejections());
        }
    }

    private static void assertWaitedFor(String name, Executable call) {
        var refused = assertThrows(WaitedForException.class, call);
        assertTrue(refused.getMessage().endsWith(name), refused.getMessage());
    }

    @Test
    void aSecondCallForATaskThatIsLentIsRefusedAtOnce() throws Exception {
        Worker worker = new Worker();
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(worker.of(broker.agent("bob")))) {
            Future<Outcome> lending = soon(() -> alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS));
            OwnedTask task = next(worker.owned);
            assertWaitedFor(TASK, () -> alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS));
            assertWaitedFor(TASK, () -> alice.delegate(bob.id(), TASK, 3, REQUEST, SECTIONS));
            assertWaitedFor(TASK, () -> alice.handOver(bob.id(), TASK, 1, REQUEST, SECTIONS));
            task.finish(Map.of("by", "bob"), "");
            // The first call has lost nothing.
            Outcome outcome = lending.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            assertEquals(List.of(3L, Map.of("by", "bob")), List.of(outcome.epoch(), outcome.result()));
            assertEquals(bob.id(), alice.handOver(bob.id(), TASK, 3, REQUEST, SECTIONS).ownerId());
        }
    }

    @Test
    void aSecondCallForATaskThatIsHandedOverIsRefusedAtOnce() throws Exception {
        BlockingQueue<Offer> offers = new LinkedBlockingQueue<>();
        CountDownLatch refusal = new CountDownLatch(1);
        HandoffListener refuseLater = offer -> {
            offers.add(offer);
            refusal.await();
            offer.reject(RejectReason.REJECT_REASON_NO_SKILL, "routers only");
        };
        HandoffListener take = offer -> offer.accept().complete();
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(refuseLater));
                Agent carol = begin(broker.agent("carol").onHandoff(take))) {
            Future<HandedOver> handing = soon(() -> alice.handOver(bob.id(), TASK, 1, REQUEST, SECTIONS));
            String handoffId = next(offers).handoffId();
            assertWaitedFor(TASK, () -> alice.handOver(carol.id(), TASK, 1, REQUEST, SECTIONS));
            assertWaitedFor(TASK, () -> alice.delegate(carol.id(), TASK, 1, REQUEST, SECTIONS));
            Future<HandedOver> resuming = soon(() -> alice.resumeHandOver(handoffId, SECTIONS));
            assertInstanceOf(WaitedForException.class, thrownBy(resuming));
            refusal.countDown();
            var failed = assertInstanceOf(HandoffFailedException.class, thrownBy(handing));
            assertEquals("NO_CANDIDATE", failed.reason());
            // The task is alice's to hand over again.
            assertEquals(carol.id(), alice.handOver(carol.id(), TASK, 1, REQUEST, SECTIONS).ownerId());
        }
    }

    @Test
    void anAgentHandsOnATaskThatComesBackWhileItsCallStillWaits() throws Exception {
        BlockingQueue<String> handed = new LinkedBlockingQueue<>();
        AgentBuilder builder = broker.agent("alice").onHandoff(offer -> {
            OwnedTask task = offer.accept().complete();
            handed.add(task.handOver("carol", REQUEST, SECTIONS).ownerId());
        });
        builder.lookInterval = Duration.ofSeconds(2);
        HandoffListener giveBack = offer -> offer.accept().complete().handOver("alice", REQUEST, SECTIONS);
        try (Agent alice = begin(builder);
                Agent bob = begin(broker.agent("bob").onHandoff(giveBack));
                Agent carol = begin(new Worker().of(broker.agent("carol")))) {
            Future<Outcome> lending = soon(() -> alice.delegate(bob.id(), TASK, 1, REQUEST, SECTIONS));
            assertEquals(carol.id(), next(handed));
            // The handoff to alice has ended the loan, without a result.
            try {
                lending.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            } catch (ExecutionException e) {
                assertInstanceOf(TaskRecalledException.class, e.getCause());
            }
        }
    }

    @Test
    void theSenderSeesItsViewsFromTheFirstOn() throws Exception {
        List<SenderView> views = new ArrayList<>();
        AgentBuilder builder = broker.agent("alice").onView((handoffId, view) -> views.add(view));
        try (Agent alice = begin(builder);
                Agent bob = begin(broker.agent("bob").onHandoff(offer -> offer.accept().complete()))) {
            alice.handOver(bob.id(), TASK, 1, REQUEST, SECTIONS);
            List<SenderView> expected = List.of(
                    SenderView.SENDER_VIEW_IDLE,
                    SenderView.SENDER_VIEW_HANDOFF_INITIATED,
                    SenderView.SENDER_VIEW_AWAITING_HANDOFF_ACCEPT,
                    SenderView.SENDER_VIEW_CONTEXT_PREPARING,
                    SenderView.SENDER_VIEW_AWAITING_CONTEXT_ACK,
                    SenderView.SENDER_VIEW_HANDOFF_COMPLETED);
            assertEquals(expected, views);
        }
    }

    private static Interruptible lend(Agent alice, String to) {
        return new Interruptible(() -> alice.delegate(to, TASK, 1, REQUEST, SECTIONS));
    }

    private static TaskStatusUpdate finished(String by) {
        return TaskStatusUpdate.newBuilder()
                .setStatus(TaskStatus.TASK_STATUS_COMPLETED)
                .setResultJson(Json.text(Map.of("by", by)))
                .build();
    }

    private static void assertRecalled(Reason reason, long epoch, boolean isOwner, Throwable thrown) {
        TaskRecalledException back = assertInstanceOf(TaskRecalledException.class, thrown);
        assertEquals(List.of(reason, epoch, isOwner), List.of(back.reason(), back.epoch(), back.isOwner()));
    }

    private static void assertOwned(Agent agent, long epoch) {
        Task task = agent.getTask(TASK);
        List<Object> seen = List.of(task.getOwnerId(), task.getEpoch(), task.getOpenHandoffId());
        assertEquals(List.of(agent.id(), epoch, ""), seen);
    }

    private static Throwable thrownBy(Future<?> call) {
        var failed = assertThrows(ExecutionException.class, () -> call.get(PATIENCE_SECONDS, TimeUnit.SECONDS));
        return failed.getCause();
    }

    private <A> Future<A> soon(Callable<A> work) {
        return threads.submit(work);
    }

    private static <A> A next(BlockingQueue<A> queue) throws InterruptedException {
        A next = queue.poll(PATIENCE_SECONDS, TimeUnit.SECONDS);
        assertNotNull(next, "nothing came");
        return next;
    }
}
