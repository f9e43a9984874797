package dev.baton;

import static dev.baton.ProcessesTest.next;
import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.baton.v1.Delivery;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.Info;
import dev.baton.v1.ListTasksRequest;
import dev.baton.v1.Task;
import dev.baton.v1.TaskCreate;
import dev.baton.v1.TaskPrompt;
import dev.baton.v1.TaskStatus;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
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
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** Answers that come late, mailboxes that are looked into, and parts of a cancelled whole, against a real broker. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
final class PeopleTest {
    private static final HandoffRequest REQUEST =
            HandoffRequest.newBuilder().setTaskType("support-ticket").build();

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

    /** Makes a task of the agent's: one that nobody took. */
    private static OwnedTask own(Agent agent, String taskId) throws InterruptedException {
        assertThrows(
                HandoffFailedException.class,
                () -> agent.delegate("dora", taskId, 1, REQUEST, List.of(), Duration.ofSeconds(1)));
        return agent.ownedTasks().stream()
                .filter(task -> task.taskId().equals(taskId))
                .findFirst()
                .orElseThrow();
    }

    @Test
    void theNextProcessGetsTheAnswerThatCameMeanwhile() throws Exception {
        BlockingQueue<Question> asked = new LinkedBlockingQueue<>();
        begin(broker.agent("dora")).close();
        AgentBuilder builder = broker.agent("alice");
        TaskPrompt prompt = TaskPrompt.newBuilder().setQuestion("Which router?").setAnswerBy("bob").build();
        try (Agent bob = begin(broker.agent("bob").onPrompt(asked::add))) {
            Agent first = begin(builder);
            OwnedTask task = own(first, "task-1");
            Future<Answer> asking = threads.submit(() -> task.ask(prompt, ""));
            Question question = next(asked);
            first.close(Duration.ZERO);
            assertThrows(ExecutionException.class, () -> asking.get(PATIENCE_SECONDS, TimeUnit.SECONDS));
            try (Agent second = begin(builder)) {
                Future<Answer> resumed = threads.submit(() -> second.resumeAsk("task-1"));
                Thread.sleep(200);
                question.answer("the third");
                assertEquals("the third", resumed.get(PATIENCE_SECONDS, TimeUnit.SECONDS).text());
                assumeTrue(second.getTask("task-1").hasLastAnswer(), "the broker shows no answers");
                assertEquals(List.of(bob.id(), "the third"), List.of(second.resumeAsk("task-1").agentId(), second.resumeAsk("task-1").text()));
            }
        }
    }

    @Test
    void aLookIntoTheMailboxTakesNothing() throws Exception {
        BlockingQueue<String> read = new LinkedBlockingQueue<>();
        AgentBuilder builder = broker.agent("bob").on(Info.class, mail -> read.add(mail.payload().getText()));
        begin(builder).close();
        try (Agent alice = begin(broker.agent("alice"));
                Agent looking = builder.build()) {
            for (String text : List.of("one", "two")) {
                alice.send("bob", Envelopes.About.NOTHING, Info.newBuilder().setText(text).build());
            }
            looking.proveIdentity();
            List<Delivery> waiting;
            try {
                waiting = looking.peek();
            } catch (BatonException e) {
                assumeTrue(!e.isPassing(), "the broker does not peek");
                throw e;
            }
            assertEquals(
                    List.of("one", "two"),
                    waiting.stream()
                            .map(one -> ((Info) Envelopes.payloadOf(one.getEnvelope())).getText())
                            .toList());
            assertEquals(waiting, looking.peek());
            looking.connect();
            assertEquals(List.of("one", "two"), List.of(next(read), next(read)).stream().sorted().toList());
        }
    }

    @Test
    void anAgentBeginsATaskWithoutAHandoff() throws Exception {
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob"))) {
            TaskCreate create = TaskCreate.newBuilder()
                    .setTaskType("bug")
                    .setSummary("it crashes")
                    .setConversationId("chat 7")
                    .build();
            OwnedTask task = alice.createTask("begun", create);
            assertEquals(1, task.epoch());
            alice.createTask("begun-part", create.toBuilder().setParentTaskId("begun").build());
            Task shown = alice.getTask("begun");
            assertEquals("it crashes", shown.getSummary());
            assertEquals(List.of("begun-part"), shown.getPartTaskIdsList());
            ListTasksRequest filter =
                    ListTasksRequest.newBuilder().setConversationId("chat 7").build();
            List<String> listed = new ArrayList<>();
            alice.tasks().list(filter).forEach(one -> listed.add(one.getTaskId()));
            assertEquals(List.of("begun-part", "begun"), listed);
            var again = assertThrows(BatonException.class, () -> alice.createTask("begun", create));
            assertEquals("TASK_EXISTS", again.reason());
            var others = assertThrows(BatonException.class, () -> bob.createTask("begun", create));
            assertEquals("NOT_OWNER", others.reason());
        }
    }

    @Test
    void theEndOfACancelledWholeReachesItsParts() throws Exception {
        begin(broker.agent("dora")).close();
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        AgentBuilder working = broker.agent("bob")
                .onHandoff(offer -> {
                    offer.accept().complete();
                    seen.add("owned");
                    try {
                        new CountDownLatch(1).await();
                    } finally {
                        seen.add("interrupted");
                    }
                })
                .onRecalled(recalled -> seen.add(recalled.code()));
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(working)) {
            OwnedTask whole = own(alice, "whole");
            HandoffRequest part = REQUEST.toBuilder().setParentTaskId("whole").build();
            Future<Outcome> lending = threads.submit(() -> alice.delegate(bob.id(), "part", 1, part, List.of()));
            assertEquals("owned", next(seen));
            whole.cancel("the customer has hung up", false);
            assertEquals(TaskStatus.TASK_STATUS_CANCELED, alice.getTask("whole").getStatus());
            String first = seen.poll(10, TimeUnit.SECONDS);
            assumeTrue(first != null, "the broker does not cancel parts");
            assertEquals(
                    List.of("TASK_CANCELED", "interrupted"),
                    List.of(first, next(seen)).stream().sorted().toList());
            var thrown = assertThrows(
                    ExecutionException.class, () -> lending.get(PATIENCE_SECONDS, TimeUnit.SECONDS));
            TaskRecalledException back = assertInstanceOf(TaskRecalledException.class, thrown.getCause());
            assertEquals(TaskRecalledException.Reason.CANCELED, back.reason());
            assertEquals(TaskStatus.TASK_STATUS_CANCELED, alice.getTask("part").getStatus());
        }
    }
}
