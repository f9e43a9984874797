package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.baton.v1.AuditLogEntry;
import dev.baton.v1.ContextSection;
import dev.baton.v1.DeadLetter;
import dev.baton.v1.DeadLetterFilter;
import dev.baton.v1.DeadLetterState;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.HandoffState;
import dev.baton.v1.Info;
import dev.baton.v1.ListHandoffsRequest;
import dev.baton.v1.ListTasksRequest;
import dev.baton.v1.RedriveDeadLettersRequest;
import dev.baton.v1.Task;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.WatchHandoffsRequest;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** Lists and watches of tasks, handoffs and dead letters, and an operator's acts, against a real broker. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
final class WatchingTest {
    private static final String TASK = "task-1";
    private static final Duration PATIENCE = Duration.ofSeconds(PATIENCE_SECONDS);
    private static final HandoffRequest REQUEST =
            HandoffRequest.newBuilder().setTaskType("support-ticket").build();
    private static final List<ContextSection> SECTIONS =
            List.of(Envelopes.jsonSection("goals", "[\"find the cause\"]"));
    private static final Map<String, Object> DONE = Map.of();

    @TempDir
    Path folder;

    private RealBroker broker;

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
    }

    @AfterEach
    void stop() throws Exception {
        broker.close();
    }

    @Test
    void tasksAndHandoffsAreListedAndWatchedOverARestart() throws Exception {
        BlockingQueue<OwnedTask> owned = new LinkedBlockingQueue<>();
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(offer -> owned.add(offer.accept().complete())))) {
            HandedOver handed = alice.handOver(bob.id(), TASK, 1, REQUEST, SECTIONS);
            OwnedTask task = RealBroker.next(owned);
            var all = ListHandoffsRequest.newBuilder().setTaskId(TASK).build();
            assertEquals(handed.handoffId(), alice.handoffs().list(all).get(0).getHandoffId());
            var bobs = ListTasksRequest.newBuilder().setOwnerId(bob.id()).build();
            assertEquals(List.of(TASK), bob.tasks().list(bobs).stream().map(Task::getTaskId).toList());
            try (var watch = bob.tasks().watch(TASK, 0);
                    var handoff = alice.handoffs().watch(handed.handoffId())) {
                var last = handoff.next(PATIENCE).orElseThrow();
                assertEquals(HandoffState.HANDOFF_STATE_COMPLETED, last.getState());
                RealBroker.until("its end", handoff::isOver);
                long number = watch.next(PATIENCE).orElseThrow().getEntry().getEntry().getNumber();
                assertEquals(1, number);
                broker.kill();
                broker.start();
                task.finish(DONE, "");
                TaskStatus status = TaskStatus.TASK_STATUS_UNSPECIFIED;
                while (!watch.isOver()) {
                    var update = watch.next(PATIENCE);
                    if (update.isPresent()) {
                        var entry = update.get().getEntry().getEntry();
                        number++;
                        assertEquals(number, entry.getNumber());
                        status = entry.getTaskStatus();
                    }
                }
                assertEquals(TaskStatus.TASK_STATUS_COMPLETED, status);
            }
        }
    }

    @Test
    void allHandoffsAreWatchedFromACursorOverARestart() throws Exception {
        AgentBuilder taking = broker.agent("bob").onHandoff(offer -> offer.accept().complete());
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(taking);
                var watch = alice.handoffs().watchAll(WatchHandoffsRequest.getDefaultInstance())) {
            assertTrue(watch.next(PATIENCE).orElseThrow().getCaughtUp());
            String first = alice.handOver(bob.id(), TASK, 1, REQUEST, SECTIONS).handoffId();
            long cursor = awaitCompleted(watch, first);
            broker.kill();
            broker.start();
            String second = alice.handOver(bob.id(), "task-2", 1, REQUEST, SECTIONS).handoffId();
            awaitCompleted(watch, second);
            WatchHandoffsRequest after = WatchHandoffsRequest.newBuilder().setAfterCursor(cursor).build();
            try (var later = alice.handoffs().watchAll(after)) {
                assertEquals(second, later.next(PATIENCE).orElseThrow().getHandoff().getHandoffId());
            }
        }
    }

    private static long awaitCompleted(Watch<dev.baton.v1.WatchHandoffsResponse> watch, String handoffId)
            throws InterruptedException {
        while (true) {
            var event = watch.next(PATIENCE).orElseThrow();
            boolean isCompleted = event.getHandoff().getState() == HandoffState.HANDOFF_STATE_COMPLETED;
            if (isCompleted && event.getHandoff().getHandoffId().equals(handoffId)) {
                return event.getCursor();
            }
        }
    }

    @Test
    void aWatchOfAnEndedTaskAndOneOfNoTaskEnd() throws Exception {
        AgentBuilder finishing = broker.agent("bob").onHandoff(offer -> offer.accept().complete().finish(DONE, ""));
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(finishing)) {
            alice.handOver(bob.id(), TASK, 1, REQUEST, SECTIONS);
            RealBroker.until("the end", () -> bob.getTask(TASK).getStatus() == TaskStatus.TASK_STATUS_COMPLETED);
            long length = bob.getTask(TASK).getCustodyLength();
            try (var late = bob.tasks().watch(TASK, length);
                    var unknown = alice.tasks().watch("none", 0)) {
                RealBroker.until("the end of the watch", late::isOver);
                var refused = assertThrows(BatonException.class, () -> unknown.next(PATIENCE));
                assertFalse(refused.isPassing());
            }
        }
    }

    @Test
    void anOperatorReassignsATaskSettlesDeadLettersAndReadsTheAuditLog() throws Exception {
        BlockingQueue<String> took = new LinkedBlockingQueue<>();
        AgentBuilder operating = broker.agent("olga").operatorToken(broker.operatorToken());
        AgentBuilder refusing = broker.agent("bob")
                .on(Info.class, delivery -> {
                    throw new PoisonException("no words");
                })
                .onHandoff(offer -> offer.accept().complete());
        AgentBuilder carols = broker.agent("carol")
                .onHandoff(offer -> took.add(offer.accept().complete().taskId()));
        try (Agent olga = begin(operating);
                Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(refusing);
                Agent carol = begin(carols)) {
            alice.handOver(bob.id(), TASK, 1, REQUEST, SECTIONS);
            var denied = assertThrows(BatonException.class, () -> alice.tasks().reassign(TASK, 2, carol.id(), ""));
            assertEquals("PERMISSION_DENIED", denied.reason());
            assertEquals(
                    "STALE_EPOCH",
                    assertThrows(BatonException.class, () -> olga.tasks().reassign(TASK, 1, carol.id(), "")).reason());
            assertEquals(3, olga.tasks().reassign(TASK, 2, carol.id(), "bob is ill").getTask().getEpoch());
            assertEquals(TASK, RealBroker.next(took));

            alice.send(bob.id(), Envelopes.About.NOTHING, Info.newBuilder().setText("one").build());
            alice.send(bob.id(), Envelopes.About.NOTHING, Info.newBuilder().setText("two").build());
            DeadLetterFilter bobs = DeadLetterFilter.newBuilder().setAgentId(bob.id()).build();
            RealBroker.until("two dead letters", () -> olga.deadLetters().list(bobs).size() == 2);
            List<DeadLetter> parked = olga.deadLetters().list(bobs);
            String first = parked.get(0).getDeadLetterId();
            String second = parked.get(1).getDeadLetterId();
            assertFalse(olga.deadLetters().get(first).getEnvelopeBytes().isEmpty());
            assertEquals(
                    DeadLetterState.DEAD_LETTER_STATE_DISCARDED,
                    olga.deadLetters().discard(first, "noise").getState());
            assertEquals(
                    DeadLetterState.DEAD_LETTER_STATE_REDRIVEN,
                    olga.deadLetters().redrive(second, alice.id()).getState());
            assertThrows(BatonException.class, () -> alice.deadLetters().discard(second, ""));

            List<AuditLogEntry> all = olga.auditLog(0);
            assertFalse(all.isEmpty());
            long last = all.get(all.size() - 1).getEntry().getNumber();
            assertEquals(List.of(all.get(all.size() - 1)), olga.auditLog(last - 1));
            assertEquals(List.of(), olga.auditLog(last));
            assertThrows(BatonException.class, () -> alice.auditLog(0));
        }
    }

    @Test
    void deadLettersAreExportedAndRedrivenTogether() throws Exception {
        AgentBuilder operating = broker.agent("olga").operatorToken(broker.operatorToken());
        AgentBuilder refusing = broker.agent("bob").on(Info.class, delivery -> {
            throw new PoisonException("no words");
        });
        try (Agent olga = begin(operating);
                Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(refusing)) {
            alice.send(bob.id(), Envelopes.About.NOTHING, Info.newBuilder().setText("one").build());
            alice.send(bob.id(), Envelopes.About.NOTHING, Info.newBuilder().setText("two").build());
            DeadLetterFilter bobs = DeadLetterFilter.newBuilder().setAgentId(bob.id()).build();
            RealBroker.until("two dead letters", () -> olga.deadLetters().list(bobs).size() == 2);
            List<DeadLetter> letters = new ArrayList<>();
            olga.deadLetters().export(bobs, letters::add);
            assertEquals(2, letters.size());
            assertTrue(letters.stream().noneMatch(letter -> letter.getEnvelopeBytes().isEmpty()));
            RedriveDeadLettersRequest.Builder request =
                    RedriveDeadLettersRequest.newBuilder().setFilter(bobs).setToAgentId(alice.id());
            List<DeadLetterState> tried = new ArrayList<>();
            olga.deadLetters()
                    .redriveAll(
                            request.clone().setDryRun(true).build(),
                            answer -> tried.add(answer.getDeadLetter().getState()));
            assertEquals(
                    List.of(DeadLetterState.DEAD_LETTER_STATE_PARKED, DeadLetterState.DEAD_LETTER_STATE_PARKED), tried);

            // A call that is cut off leaves the rest.
            List<String> redriven = new ArrayList<>();
            assertThrows(
                    IllegalStateException.class,
                    () -> olga.deadLetters().redriveAll(request.clone().setMaxPerSecond(0.01).build(), answer -> {
                        redriven.add(answer.getDeadLetter().getDeadLetterId());
                        throw new IllegalStateException("enough");
                    }));
            olga.deadLetters()
                    .redriveAll(
                            request.build(),
                            answer -> redriven.add(answer.getDeadLetter().getDeadLetterId()));
            assertEquals(letters.stream().map(DeadLetter::getDeadLetterId).toList(), redriven);
            var nothing = assertThrows(
                    BatonException.class, () -> olga.deadLetters().redriveAll(request.build(), answer -> {}));
            assertEquals("NOTHING_MATCHES", nothing.reason());
        }
    }
}
