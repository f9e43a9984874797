package dev.baton;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.baton.v1.AnsweredPrompt;
import dev.baton.v1.Heartbeat;
import dev.baton.v1.Hello;
import dev.baton.v1.OpenPrompt;
import dev.baton.v1.Task;
import dev.baton.v1.TaskHop;
import dev.baton.v1.TaskInput;
import dev.baton.v1.TaskPrompt;
import dev.baton.v1.TaskStatus;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The processes of an agent, against a scripted broker. */
final class ProcessesTest {
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

    static <A> A next(BlockingQueue<A> queue) throws InterruptedException {
        A next = queue.poll(RealBroker.PATIENCE_SECONDS, TimeUnit.SECONDS);
        assertNotNull(next, "nothing came");
        return next;
    }

    /** Returns a task that alice took over. */
    static Task owned(String taskId) {
        return Task.newBuilder()
                .setTaskId(taskId)
                .setOwnerId("alice")
                .setEpoch(2)
                .setStatus(TaskStatus.TASK_STATUS_IN_PROGRESS)
                .addHops(TaskHop.newBuilder()
                        .setHandoffId(UUID.randomUUID().toString())
                        .setSenderId("bob")
                        .setReceiverId("alice")
                        .setEpoch(2))
                .build();
    }

    @Test
    void eachSessionBeginsWithTheSameHello() throws Exception {
        try (Agent alice = broker.agent("alice").connect()) {
            Hello hello = Hello.newBuilder()
                    .setInstanceId(UUID.fromString(alice.instanceId()).toString())
                    .setTellsWork(true)
                    .build();
            assertEquals(hello, next(broker.hellos));
            broker.sessions.get(0).onCompleted();
            assertEquals(hello, next(broker.hellos));
        }
    }

    @Test
    void aHeartbeatWithTheTasksGoesOutWhenTheyChange() throws Exception {
        try (Agent alice = broker.agent("alice").connect()) {
            assertEquals(0, next(broker.heartbeats).getWorkingOnCount());
            OwnedTask one = OwnedTask.of(alice, owned("one"));
            OwnedTask other = OwnedTask.of(alice, owned("other"));
            Parents.Scope scope = alice.workOn(one);
            assertEquals(List.of("one"), next(broker.heartbeats).getWorkingOnList());
            long beganNanos = System.nanoTime();
            alice.workOn(other);
            scope.close();
            assertEquals(List.of("other"), next(broker.heartbeats).getWorkingOnList());
            assertTrue(System.nanoTime() - beganNanos > TimeUnit.MILLISECONDS.toNanos(100), "not so soon again");
            other.finish(Map.of(), "");
            assertEquals(List.of(), next(broker.heartbeats).getWorkingOnList());
            for (int i = 0; i < 1000; i++) {
                alice.workOn(one).close();
            }
            assertTrue(broker.heartbeats.size() < 100, broker.heartbeats.size() + " heartbeats");
        }
    }

    @Test
    void aHeartbeatListsAtMost1024Tasks() throws Exception {
        try (Agent alice = broker.agent("alice").connect()) {
            for (int i = 0; i < 1030; i++) {
                alice.workOn(OwnedTask.of(alice, owned("task-" + i)));
            }
            Heartbeat last = next(broker.heartbeats);
            while (last.getWorkingOnCount() < 1024) {
                last = next(broker.heartbeats);
            }
            assertEquals(1024, last.getWorkingOnCount());
        }
    }

    @Test
    void anAnswerThatAnotherProcessGotIsReadFromTheTask() throws Exception {
        AgentBuilder builder = broker.agent("alice");
        builder.lookInterval = Duration.ofMillis(100);
        TaskPrompt prompt = TaskPrompt.newBuilder().setQuestion("Which?").setAnswerBy("bob").build();
        var receipts = broker.onEnvelope;
        broker.onEnvelope = (frame, out) -> {
            OpenPrompt question = OpenPrompt.newBuilder()
                    .setMessageId(frame.getEnvelope().getMessageId())
                    .setAskedAgentId("bob")
                    .build();
            AnsweredPrompt answered = AnsweredPrompt.newBuilder()
                    .setQuestion(question)
                    .setAnswer(TaskInput.newBuilder().setText("the third"))
                    .build();
            broker.task = owned("one").toBuilder().setLastAnswer(answered).build();
            receipts.accept(frame, out);
        };
        try (Agent alice = builder.connect()) {
            Answer answer = alice.ask("one", 2, prompt, "");
            assertEquals(List.of("bob", "the third"), List.of(answer.agentId(), answer.text()));
            assertEquals(answer, alice.resumeAsk("one"));
            broker.task = owned("one");
            assertThrows(NoAnswerException.class, () -> alice.resumeAsk("one"));
        }
    }
}
