package dev.baton;

import static dev.baton.ProcessesTest.next;
import static dev.baton.ProcessesTest.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.baton.v1.Heartbeat;
import dev.baton.v1.Info;
import dev.baton.v1.ResumeTasksRequest;
import dev.baton.v1.TaskStatusUpdate;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The tasks of an earlier process, against a scripted broker. */
final class ResumeTest {
    @TempDir
    Path folder;

    private LyingBroker broker;

    @BeforeEach
    void start() throws Exception {
        broker = new LyingBroker(folder);
    }

    @AfterEach
    void stop() throws Exception {
        broker.close();
    }

    @Test
    void tasksOfAnEarlierProcessAreResumedAsSlotsGetFree() throws Exception {
        broker.resumable.add(List.of(owned("one"), owned("other")));
        broker.resumable.add(List.of(owned("third")));
        CountDownLatch held = new CountDownLatch(1);
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        AgentBuilder worker = broker.agent("alice").capacity(2).resume(true).onHandoff(offer -> {
            Takeover takeover = offer.accept();
            OwnedTask task = takeover.complete();
            assertEquals(List.of(), takeover.sections());
            assertEquals("bob", offer.senderId());
            assertThrows(IllegalStateException.class, () -> takeover.fail("it is ours"));
            seen.add(task.taskId() + " " + task.epoch() + " " + task.isResumed() + " " + offer.isResumed());
            held.await();
            if (task.taskId().equals("third")) {
                throw new IllegalStateException("no way");
            }
            task.finish(Map.of(), "");
        });
        try (Agent alice = worker.connect()) {
            ResumeTasksRequest asked = next(broker.resumptions);
            assertEquals(List.of(alice.instanceId(), 2), List.of(asked.getInstanceId(), asked.getMaxTasks()));
            assertEquals(
                    List.of("one 2 true true", "other 2 true true"),
                    List.of(next(seen), next(seen)).stream().sorted().toList());
            Heartbeat beat = next(broker.heartbeats);
            while (beat.getWorkingOnCount() < 2) {
                beat = next(broker.heartbeats);
            }
            assertEquals(List.of("one", "other"), beat.getWorkingOnList());
            held.countDown();
            assertEquals("third 2 true true", next(seen));
            RealBroker.until("three ends", () -> broker.envelopes.size() == 3);
            TaskStatusUpdate last = (TaskStatusUpdate) Envelopes.payloadOf(broker.envelopes.get(2));
            assertEquals("IllegalStateException: no way", last.getDetails());
        }
    }

    @Test
    void withoutResumeNoTaskIsAskedFor() throws Exception {
        try (Agent alice = broker.agent("alice").onHandoff(offer -> {}).connect()) {
            alice.send("bob", Envelopes.About.NOTHING, Info.getDefaultInstance());
            assertEquals(0, broker.resumptions.size());
        }
    }
}
