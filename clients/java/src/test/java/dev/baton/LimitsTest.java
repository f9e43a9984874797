package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.baton.v1.ContextSection;
import dev.baton.v1.Envelope;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.RejectReason;
import dev.baton.v1.Task;
import dev.baton.v1.TaskCreate;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** The time limit of handOver: the task moves in time, or the handoff is cancelled and the task stays. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class LimitsTest {
    private static final String TASK = "ticket-1";
    private static final HandoffRequest REQUEST =
            HandoffRequest.newBuilder().setTaskType("support-ticket").build();
    private static final List<ContextSection> SECTIONS =
            List.of(Envelopes.jsonSection("goals", "[\"find the cause\"]"));

    @TempDir
    Path folder;

    private RealBroker broker;

    @BeforeEach
    void startBroker() throws Exception {
        broker = new RealBroker(folder).start();
    }

    @AfterEach
    void stopBroker() throws Exception {
        broker.close();
    }

    private static void assertOwned(Agent alice, String taskId) throws Exception {
        Task task = alice.getTask(taskId);
        assertEquals(
                List.of(alice.id(), 1L, ""), List.of(task.getOwnerId(), task.getEpoch(), task.getOpenHandoffId()));
    }

    @Test
    void aTaskMovesWithinTheLimit() throws Exception {
        HandoffListener take = offer -> offer.accept().complete();
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(take))) {
            HandedOver handed = alice.handOver("bob", TASK, 1, REQUEST, SECTIONS, Duration.ofMinutes(2));
            assertEquals(List.of(bob.id(), 2L), List.of(handed.ownerId(), handed.epoch()));
        }
    }

    @Test
    void theLimitCancelsTheHandoffAndTheTaskStays() throws Exception {
        BlockingQueue<String> ran = new LinkedBlockingQueue<>();
        HandoffListener refuse = offer -> offer.reject(RejectReason.REJECT_REASON_NO_SKILL, "routers only");
        AgentBuilder carols = broker.agent("carol");
        begin(carols).close();
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(refuse))) {
            HandoffRequest request = REQUEST.toBuilder().addFallbackCandidates("carol").build();
            Duration limit = Duration.ofSeconds(2);
            var failed = assertThrows(
                    HandoffFailedException.class, () -> alice.handOver(bob.id(), TASK, 1, request, SECTIONS, limit));
            assertEquals("HANDOFF_CANCELLED", failed.reason());
            assertEquals(
                    List.of(new Rejection("bob", RejectReason.REJECT_REASON_NO_SKILL, "routers only")),
                    failed.rejections());
            assertOwned(alice, TASK);
            // The request of the cancelled handoff is not in the mailbox of an agent that comes later.
            HandoffListener take = offer -> ran.add(offer.taskId());
            try (Agent carol = carols.onHandoff(take).connect()) {
                var later = assertThrows(
                        HandoffFailedException.class,
                        () -> alice.handOver(carol.id(), "ticket-2", 1, REQUEST, SECTIONS, Duration.ofSeconds(1)));
                assertEquals("HANDOFF_CANCELLED", later.reason());
                assertEquals("ticket-2", ran.poll(PATIENCE_SECONDS, TimeUnit.SECONDS));
            }
        }
    }

    @Test
    void aTakeoverJustBeforeTheLimitCounts() throws Exception {
        HandoffListener take = offer -> offer.accept().complete();
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(take))) {
            HandedOver moved = alice.handOver(bob.id(), TASK, 1, REQUEST, SECTIONS);
            Envelope request = Envelope.newBuilder()
                    .setMessageId(moved.handoffId())
                    .setTaskId(TASK)
                    .setEpoch(1)
                    .build();
            HandedOver handed = new Handover(alice, null, SECTIONS, request).endAtLimit();
            assertEquals(List.of(bob.id(), 2L), List.of(handed.ownerId(), handed.epoch()));
        }
    }

    @Test
    void anOwnedTaskPassesTheLimitOn() throws Exception {
        begin(broker.agent("bob")).close();
        try (Agent alice = begin(broker.agent("alice"))) {
            OwnedTask task = alice.createTask(
                    TASK, TaskCreate.newBuilder().setTaskType("support-ticket").build());
            var failed = assertThrows(
                    HandoffFailedException.class,
                    () -> task.handOver("bob", REQUEST, SECTIONS, Duration.ofSeconds(1)));
            assertEquals("HANDOFF_CANCELLED", failed.reason());
            assertOwned(alice, TASK);
        }
    }
}
