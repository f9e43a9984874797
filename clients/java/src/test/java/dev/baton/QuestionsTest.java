package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.TaskInput;
import dev.baton.v1.TaskPrompt;
import dev.baton.v1.TaskStatusUpdate;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.Optional;
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

/** Questions about a task, and their answers. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class QuestionsTest {
    private static final String TASK = "ticket-1";
    private static final String SCHEMA =
            "{\"type\":\"object\",\"properties\":{\"router\":{\"type\":\"integer\"}},\"required\":[\"router\"]}";
    private static final TaskPrompt PROMPT =
            TaskPrompt.newBuilder().setQuestion("Which router?").setAnswerBy("bob").build();

    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final BlockingQueue<Question> asked = new LinkedBlockingQueue<>();

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
    void aQuestionIsAnsweredOnceAndByItsSchema() throws Exception {
        AgentBuilder answering = broker.agent("bob").onPrompt(question -> {
            Map<String, Object> wrong = Map.of("router", "three");
            assertRefused("FIELD_INVALID", () -> question.answer("the third", wrong));
            question.answer("the one in the hall", Map.of("router", 3L));
            asked.add(question);
        });
        try (Agent alice = owner(broker.agent("alice"));
                Agent bob = begin(answering)) {
            OwnedTask task = owned(alice);
            Answer answer = task.ask(PROMPT.toBuilder().setAnswerSchemaJson(SCHEMA).build(), "there are four");
            Map<String, Object> data = Map.of("router", 3L);
            assertEquals(new Answer(bob.id(), "the one in the hall", data), answer);
            Question question = next(asked);
            List<String> texts = List.of(question.text(), question.details(), question.ownerId(), question.taskId());
            assertEquals(List.of("Which router?", "there are four", "alice", TASK), texts);
            assertEquals(Optional.of(SCHEMA), question.schemaJson());
            assertEquals(Optional.empty(), question.answerBefore());
            assertRefused("INPUT_TAKEN", () -> question.answer("another one", data));
            task.finish(Map.of(), "");
        }
    }

    @Test
    void aQuestionWithoutAnAnswerExpires() throws Exception {
        try (Agent alice = owner(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onPrompt(asked::add))) {
            Instant end = Instant.now().plus(Duration.ofSeconds(2));
            TaskPrompt prompt = PROMPT.toBuilder().setAnswerBefore(Times.ofInstant(end)).build();
            OwnedTask task = owned(alice);
            var none = assertThrows(NoAnswerException.class, () -> task.ask(prompt, ""));
            Question question = next(asked);
            assertEquals(NoAnswerException.Reason.EXPIRED, none.reason());
            assertEquals(question.questionId(), none.questionId());
            assertEquals(Optional.of(end), question.answerBefore());
            assertRefused("INPUT_EXPIRED", () -> question.answer("too late"));
        }
    }

    @Test
    void aLaterStatusWithdrawsAQuestion() throws Exception {
        AgentBuilder builder = broker.agent("alice");
        builder.lookInterval = Duration.ofMillis(200);
        try (Agent alice = owner(builder);
                Agent bob = begin(broker.agent("bob").onPrompt(asked::add))) {
            OwnedTask task = owned(alice);
            Future<Answer> asking = soon(() -> task.ask(PROMPT, ""));
            next(asked);
            task.report("found it");
            var none = assertInstanceOf(NoAnswerException.class, thrownBy(asking));
            assertEquals(NoAnswerException.Reason.WITHDRAWN, none.reason());
        }
    }

    @Test
    void anInterruptedCallLeavesTheQuestionOpenAlsoOverARestart() throws Exception {
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        AgentBuilder listening = broker.agent("alice")
                .on(TaskInput.class, delivery -> told.add(delivery.payload().getText()));
        try (Agent alice = owner(listening);
                Agent bob = begin(broker.agent("bob").onPrompt(asked::add))) {
            OwnedTask task = owned(alice);
            Future<Answer> asking = soon(() -> task.ask(PROMPT, ""));
            Question question = next(asked);
            broker.kill();
            assertTrue(asking.cancel(true));
            broker.start();
            question.answer("the third");
            assertEquals("the third", next(told));
        }
    }

    @Test
    void anAnswerArrivesAfterTheBrokersRestart() throws Exception {
        try (Agent alice = owner(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onPrompt(asked::add))) {
            OwnedTask task = owned(alice);
            Future<Answer> asking = soon(() -> task.ask(PROMPT, ""));
            Question question = next(asked);
            broker.kill();
            broker.start();
            question.answer("the third");
            assertEquals("the third", asking.get(PATIENCE_SECONDS, TimeUnit.SECONDS).text());
        }
    }

    @Test
    void noAgentCanBeAsked() throws Exception {
        begin(broker.agent("bob")).close();
        try (Agent alice = owner(broker.agent("alice"))) {
            OwnedTask task = owned(alice);
            TaskPrompt prompt = PROMPT.toBuilder().setAnswerBy("type:plumber").build();
            assertRefused("RECEIVER_UNKNOWN", () -> task.ask(prompt, ""));
            TaskPrompt empty = PROMPT.toBuilder().clearQuestion().build();
            assertRefused("FIELD_INVALID", () -> task.ask(empty, ""));
        }
    }

    /** Returns an agent with a listener: the news of a cancelled handoff comes before the mail of its task. */
    private static Agent owner(AgentBuilder builder) throws Exception {
        return begin(builder.on(TaskStatusUpdate.class, delivery -> {}));
    }

    /** Returns a task of the agent: a handoff that was cancelled created it. */
    private static OwnedTask owned(Agent agent) throws InterruptedException {
        HandoffRequest request = HandoffRequest.newBuilder().setTaskType("support-ticket").build();
        String handoffId = agent.send("bob", Envelopes.About.task(TASK, 1), request).getHandoffId();
        try {
            agent.send("bob", new Envelopes.About(TASK, 1, handoffId), HandoffCancel.getDefaultInstance());
        } catch (BatonException e) {
            assertEquals("HANDOFF_FINAL", e.reason()); // bob has rejected it already
        }
        return agent.ownedTasks().get(0);
    }

    private static void assertRefused(String reason, Callable<?> call) {
        assertEquals(reason, assertThrows(BatonException.class, call::call).reason());
    }

    private static Throwable thrownBy(Future<?> call) {
        return assertThrows(ExecutionException.class, () -> call.get(PATIENCE_SECONDS, TimeUnit.SECONDS))
                .getCause();
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
