package dev.baton;

import static dev.baton.ProcessesTest.next;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.protobuf.Message;
import dev.baton.TaskRecalledException.Reason;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorCode;
import dev.baton.v1.ErrorNotification;
import dev.baton.v1.Handoff;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.HandoffState;
import dev.baton.v1.NextStep;
import dev.baton.v1.Severity;
import dev.baton.v1.Task;
import java.nio.file.Path;
import java.security.KeyPair;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Tasks that the broker takes from a silent owner, or cancels, against a scripted broker. */
final class TakenTest {
    private static final String TASK = "task-1";
    private static final HandoffRequest REQUEST =
            HandoffRequest.newBuilder().setTaskType("support-ticket").build();

    private final ExecutorService threads = Executors.newCachedThreadPool();

    @TempDir
    Path folder;

    private LyingBroker broker;

    @BeforeEach
    void start() throws Exception {
        broker = new LyingBroker(folder);
    }

    @AfterEach
    void stop() throws Exception {
        threads.shutdownNow();
        broker.close();
    }

    @ParameterizedTest
    @CsvSource({
        "ERROR_CODE_TASK_ABANDONED, NEXT_STEP_KEEP_TASK, ABANDONED, true",
        "ERROR_CODE_TASK_CANCELED, NEXT_STEP_DROP_TASK, CANCELED, false"
    })
    void theCallThatLentTheTaskEndsWithTheReason(ErrorCode code, NextStep step, Reason reason, boolean isOwner)
            throws Exception {
        AgentBuilder builder = broker.agent("alice");
        builder.lookInterval = Duration.ofMillis(100);
        broker.task = Task.getDefaultInstance(); // its loan is not seen to end
        broker.handoff = Handoff.newBuilder()
                .setState(HandoffState.HANDOFF_STATE_COMPLETED)
                .setCandidateId("bob")
                .build();
        try (Agent alice = builder.connect()) {
            OwnedTask task = OwnedTask.of(alice, ProcessesTest.owned(TASK));
            Future<Outcome> call = threads.submit(() -> task.delegate("bob", REQUEST, List.of()));
            RealBroker.until("the request", () -> broker.envelopes.size() == 1);
            String handoffId = broker.envelopes.get(0).getMessageId();
            // The call ends as a failed handoff until it has seen the completion by its look.
            RealBroker.until("a look", () -> broker.looks.get() > 0);
            Thread.sleep(300);
            deliverNotice(code, step, handoffId, 4);
            var thrown = assertThrows(
                    ExecutionException.class, () -> call.get(RealBroker.PATIENCE_SECONDS, TimeUnit.SECONDS));
            TaskRecalledException back = assertInstanceOf(TaskRecalledException.class, thrown.getCause());
            assertEquals(List.of(reason, isOwner, 4L), List.of(back.reason(), back.isOwner(), back.epoch()));
            assertEquals(isOwner, task.isOwned());
            if (isOwner) {
                assertEquals(4, task.epoch());
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"ERROR_CODE_TASK_ABANDONED, 3", "ERROR_CODE_TASK_CANCELED, 2"})
    void theListenerThatWorksOnTheTaskIsInterruptedAndNothingIsSaidOfIt(ErrorCode code, long epoch) throws Exception {
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        AgentBuilder builder = broker.agent("alice")
                .onHandoff(offer -> {
                    offer.accept().complete();
                    seen.add("owned");
                    try {
                        new CountDownLatch(1).await();
                    } finally {
                        seen.add("interrupted");
                    }
                })
                .onRecalled(recalled -> seen.add(recalled.code() + " " + recalled.epoch()));
        try (Agent alice = builder.connect()) {
            String handoffId = UUID.randomUUID().toString();
            Envelope request = sign(REQUEST, "bob", new Envelopes.About(TASK, 1, ""), broker.bob, "k1");
            broker.deliver(request, "d1", handoffId);
            RealBroker.until("the accept", () -> broker.envelopes.size() == 1);
            var about = new Envelopes.About(TASK, 1, handoffId);
            broker.deliver(sign(Handover.contextOf(List.of()), "bob", about, broker.bob, "k1"), "d2", handoffId);
            assertEquals("owned", next(seen));
            deliverNotice(code, NextStep.NEXT_STEP_DROP_TASK, handoffId, epoch);
            List<String> both = List.of(next(seen), next(seen)).stream().sorted().toList();
            String name = code.name().replace("ERROR_CODE_", "");
            assertEquals(List.of(name + " " + epoch, "interrupted"), both);
            RealBroker.until("nothing is worked on", () -> alice.workload().taskIds().isEmpty());
            assertEquals(2, broker.envelopes.size(), "the accept and the completion");
        }
    }

    private void deliverNotice(ErrorCode code, NextStep step, String handoffId, long epoch) {
        ErrorNotification notice = ErrorNotification.newBuilder()
                .setErrorCode(code)
                .setErrorMessage("told")
                .setSeverity(Severity.SEVERITY_WARNING)
                .setNextStep(step)
                .build();
        var about = new Envelopes.About(TASK, epoch, handoffId);
        broker.deliver(sign(notice, Agent.BROKER_ID, about, broker.key, "broker"), "d3", handoffId);
    }

    private static Envelope sign(
            Message payload, String sender, Envelopes.About about, KeyPair key, String keyId) {
        return Signing.sign(Envelopes.make(payload, sender, "alice", about, Instant.now()), keyId, key);
    }
}
