package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.baton.v1.ContextSection;
import dev.baton.v1.CreateThreadRequest;
import dev.baton.v1.HandoffMode;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.Task;
import dev.baton.v1.TaskCreate;
import dev.baton.v1.TaskPrompt;
import dev.baton.v1.TaskRequest;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

/** Interrupts of a thread before and within the unary calls that its call of the client makes. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class InterruptsTest {
    private static final String TASK = "ticket-1";
    private static final HandoffRequest REQUEST =
            HandoffRequest.newBuilder().setTaskType("support-ticket").build();
    private static final TaskCreate CREATE =
            TaskCreate.newBuilder().setTaskType("support-ticket").build();
    private static final List<ContextSection> SECTIONS =
            List.of(Envelopes.jsonSection("goals", "[\"find the cause\"]"));

    private final BlockingQueue<OwnedTask> owned = new LinkedBlockingQueue<>();
    private final Interrupting interrupting = new Interrupting();

    @TempDir
    Path folder;

    private RealBroker broker;

    /** Interrupts the thread of the next call of a method, whose request never ends: the broker cannot answer first. */
    private static final class Interrupting implements ClientInterceptor {
        private String method = "";
        private Thread thread;
        private int callsBefore;

        /** Interrupts this thread in its next call of the method, after so many other calls of it. */
        synchronized void next(String name, int before) {
            thread = Thread.currentThread();
            method = name;
            callsBefore = before;
        }

        synchronized boolean isDone() {
            return method.isEmpty();
        }

        @Override
        public <Q, A> ClientCall<Q, A> interceptCall(
                MethodDescriptor<Q, A> called, CallOptions options, Channel next) {
            return new ForwardingClientCall.SimpleForwardingClientCall<>(next.newCall(called, options)) {
                @Override
                public void halfClose() {
                    if (!isInterrupted(called.getBareMethodName())) {
                        super.halfClose();
                    }
                }
            };
        }

        private synchronized boolean isInterrupted(String called) {
            boolean isIt = thread == Thread.currentThread() && called.equals(method) && callsBefore-- == 0;
            if (isIt) {
                method = "";
                thread.interrupt();
            }
            return isIt;
        }
    }

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
    }

    @AfterEach
    void stop() throws Exception {
        broker.close();
    }

    @Test
    void anInterruptWithinAUnaryCallEndsEachCallThatDeclaresIt() throws Exception {
        AgentBuilder builder = broker.agent("alice").interceptor(interrupting);
        builder.lookInterval = Duration.ofMillis(100);
        try (Agent alice = begin(builder);
                Agent bob = begin(broker.agent("bob").onHandoff(this::take))) {
            String lent = requested(alice);
            next();
            assertInterrupted("GetHandoff", () -> alice.waitForLoan(lent));
            assertInterrupted("GetTask", () -> alice.waitForLoan(lent));
            // The look of a wait that hears nothing, after the one read before it.
            assertInterrupted("GetTask", 1, () -> alice.waitForLoan(lent));
            assertInterrupted("GetHandoff", () -> alice.resumeHandOver(lent, SECTIONS));
            assertInterrupted("GetHandoff", () -> alice.recall(lent, ""));
            assertInterrupted("GetTask", () -> alice.resumeAsk(TASK));
            assertInterrupted("CreateThread", () -> alice.threads()
                    .create(CreateThreadRequest.newBuilder().setBaseSpecId("none").build()));
            byte[] data = "found".getBytes(StandardCharsets.UTF_8);
            assertInterrupted("GetBlobWrite", () -> alice.blobs().put(data, "task:" + TASK, "text/plain"));
            OwnedTask asking = alice.createTask("asking", CREATE);
            TaskPrompt prompt = TaskPrompt.newBuilder().setQuestion("Which?").setAnswerBy("bob").build();
            assertInterrupted("GetTask", () -> asking.ask(prompt, "which?"));
            Negotiation negotiation = alice.negotiations()
                    .begin("bob", Envelopes.About.NOTHING, TaskRequest.newBuilder().setTaskType("support-ticket").build());
            try (negotiation) {
                assertInterrupted("GetNegotiation", negotiation::closed);
            }
            // None of them has ended anything.
            assertEquals("bob", alice.getTask(TASK).getOwnerId());
        }
    }

    @Test
    void anInterruptBeforeACallEndsItAndOneThatDoesNotDeclareItKeepsTheStatus() throws Exception {
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(this::take))) {
            String lent = requested(alice);
            next();
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, () -> alice.waitForLoan(lent));
            Thread.currentThread().interrupt();
            var cancelled = assertThrows(BatonException.class, () -> alice.getTask(TASK));
            assertTrue(Thread.interrupted(), "the status is lost");
            assertEquals(Status.Code.CANCELLED, cancelled.code());
        }
        try (Agent carol = broker.agent("carol").build()) {
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, carol::connect);
        }
    }

    @Test
    void aDelegationThatIsInterruptedAtItsLookTakesTheTaskBack() throws Exception {
        AgentBuilder builder = broker.agent("alice").interceptor(interrupting);
        builder.lookInterval = Duration.ofMillis(100);
        try (Agent alice = begin(builder);
                Agent bob = begin(broker.agent("bob").onHandoff(this::take))) {
            assertInterrupted("GetTask", () -> alice.delegate("bob", TASK, 1, REQUEST, SECTIONS));
            Task task = alice.getTask(TASK);
            assertEquals(List.of("alice", 3L, 0), List.of(task.getOwnerId(), task.getEpoch(), task.getLoansCount()));
        }
    }

    @Test
    void anInterruptBeforeANewPartSendsNothing() throws Exception {
        AgentBuilder builder = broker.agent("alice").interceptor(interrupting);
        try (Agent alice = begin(builder);
                Agent bob = begin(broker.agent("bob").onHandoff(this::take))) {
            OwnedTask whole = alice.createTask("whole", CREATE);
            try (Parents.Scope parts = Parents.begin(Optional.of(whole))) {
                assertInterrupted("GetTask", () -> alice.handOver("bob", "part", 1, REQUEST, SECTIONS));
                // On the same session, after all that the call sent.
                whole.report("nothing was sent");
                assertEquals(
                        "TASK_UNKNOWN", assertThrows(BatonException.class, () -> alice.getTask("part")).reason());
            }
        }
    }

    private void assertInterrupted(String method, Executable call) {
        assertInterrupted(method, 0, call);
    }

    private void assertInterrupted(String method, int callsBefore, Executable call) {
        interrupting.next(method, callsBefore);
        assertThrows(InterruptedException.class, call, method);
        assertFalse(Thread.interrupted(), method + ": the status is still set");
        assertTrue(interrupting.isDone(), method + " was not called");
    }

    private void take(Offer offer) throws InterruptedException {
        owned.add(offer.accept().complete());
    }

    private static String requested(Agent agent) throws InterruptedException {
        HandoffRequest request = REQUEST.toBuilder().setMode(HandoffMode.HANDOFF_MODE_DELEGATE).build();
        String handoffId = agent.send("bob", Envelopes.About.task(TASK, 1), request).getHandoffId();
        agent.resumeHandOver(handoffId, SECTIONS);
        return handoffId;
    }

    private void next() throws InterruptedException {
        assertNotNull(owned.poll(PATIENCE_SECONDS, TimeUnit.SECONDS), "nothing came");
    }
}
