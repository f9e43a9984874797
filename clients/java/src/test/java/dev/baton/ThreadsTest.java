package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.baton.v1.AgentSpec;
import dev.baton.v1.CreateThreadRequest;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.ListEntriesRequest;
import dev.baton.v1.ListEntriesResponse;
import dev.baton.v1.ListThreadsRequest;
import dev.baton.v1.ModelSpec;
import dev.baton.v1.WatchThreadResponse;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.stream.LongStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** Threads: a conversation that changes its persona at step boundaries. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class ThreadsTest {
    private static final CreateThreadRequest SUPPORT =
            CreateThreadRequest.newBuilder().setBaseSpecId("router").build();

    @TempDir
    Path folder;

    private RealBroker broker;
    private Agent alice;
    private Threads threads;

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
        alice = begin(broker.agent("alice"));
        threads = alice.threads();
        try (Agent operator = begin(broker.agent("operator").operatorToken(broker.operatorToken()))) {
            ModelSpec model = ModelSpec.newBuilder().setModelId("model").setModelName("large").build();
            assertEquals(1, operator.threads().putModelSpec(model).getRevision());
            assertEquals(1, operator.threads().putAgentSpec(spec("router", "memory")).getRevision());
            assertEquals(1, operator.threads().putAgentSpec(spec("expert", "search")).getRevision());
            assertEquals(1, operator.threads().putAgentSpec(spec("expert", "search")).getRevision());
        }
    }

    @AfterEach
    void stop() throws Exception {
        alice.close();
        broker.close();
    }

    @Test
    void aThreadChangesItsPersonaAtABoundary() throws Exception {
        AgentThread thread = threads.create(SUPPORT);
        ThreadRun run = thread.run();
        assertEquals(List.of(1L, "router", "large"), shown(run.step()));
        assertRefused("RUN_OPEN", thread::run);
        thread.request("expert");
        run.keep();
        assertEquals("router", run.step().spec().getSpecId());
        broker.kill();
        broker.start();
        Step step = run.nextStep();
        assertEquals(List.of(2L, "expert", "large"), shown(step));
        assertTrue(step.isSwitched() && step.request().isPresent());
        assertEquals(List.of("memory"), step.deactivatePluginIds());
        assertEquals(List.of("search"), step.activatePluginIds());
        run.keep();
        thread.clear();
        assertEquals(List.of(3L, "router", "large"), shown(run.nextStep()));
        dev.baton.v1.Thread ended = run.end();
        assertEquals(List.of("", "router"), List.of(ended.getRunId(), ended.getInForceSpecId()));
        assertRefused("RUN_FINAL", () -> thread.run(run.id()));
        assertRefused("RUN_FINAL", run::nextStep);
        thread.activate("expert");
        assertEquals("expert", thread.run().step().spec().getSpecId());
        List<Long> numbers = new ArrayList<>();
        try (Watch<WatchThreadResponse> watch = thread.watch(0)) {
            WatchThreadResponse update = next(watch);
            for (; !update.hasCaughtUp(); update = next(watch)) {
                numbers.add(update.getEntry().getNumber());
            }
        }
        assertEquals(LongStream.rangeClosed(1, thread.state().getLogLength()).boxed().toList(), numbers);
        ListThreadsRequest ofExpert =
                ListThreadsRequest.newBuilder().setInForceSpecId("expert").build();
        assertEquals(
                List.of(thread.id()),
                threads.list(ofExpert).stream().map(one -> one.getThreadId()).toList());
    }

    @Test
    void aThreadNeedsSpecsThatAreThere() throws Exception {
        CreateThreadRequest missing = SUPPORT.toBuilder().setBaseSpecId("missing").build();
        assertRefused("HANDOFF_RESOLVE_FAILED", () -> threads.create(missing));
        AgentThread thread = threads.create(SUPPORT);
        assertRefused("HANDOFF_RESOLVE_FAILED", () -> thread.activate("missing"));
        assertFalse(thread.request("missing").getWarning().isEmpty());
        assertRefused("PERMISSION_DENIED", () -> threads.putAgentSpec(spec("own", "search")));
        assertRefused("PERMISSION_DENIED", () -> threads.thread("missing").state());
        assertEquals("router", threads.getAgentSpec("router", 1).getSpecId());
        assertEquals(
                List.of("expert", "router"),
                threads.agentSpecs().stream().map(AgentSpec::getSpecId).toList());
        assertEquals("model", threads.modelSpecs().get(0).getModelId());
    }

    @Test
    void theResultOfADelegationIsInItsThread() throws Exception {
        AgentThread thread = threads.create(SUPPORT);
        HandoffRequest request = HandoffRequest.newBuilder()
                .setTaskType("support")
                .setThreadId(thread.id())
                .build();
        try (Agent bob = begin(broker.agent("bob")
                .onHandoff(offer -> offer.accept().complete().finish(Map.of("answer", 42), "")))) {
            Outcome outcome = alice.delegate(bob.id(), "ticket", 1, request, List.of());
            assertEquals(3, outcome.epoch());
        }
        ListEntriesResponse page = thread.workspace()
                .verifying()
                .list(ListEntriesRequest.newBuilder().addTopics("messages").build());
        assertEquals(1, page.getEntriesCount());
        String message = page.getEntries(0).getJson();
        assertTrue(message.contains("\"task_id\":\"ticket\"") && message.contains("\"result\":{\"answer\":42}"), message);
    }

    private static AgentSpec spec(String id, String plugin) {
        return AgentSpec.newBuilder()
                .setSpecId(id)
                .setModelId("model")
                .addPluginIds("agent_handoff")
                .addPluginIds(plugin)
                .build();
    }

    private static List<Object> shown(Step step) {
        return List.of(step.number(), step.spec().getSpecId(), step.model().getModelName());
    }

    private static WatchThreadResponse next(Watch<WatchThreadResponse> watch) throws InterruptedException {
        return watch.next(Duration.ofSeconds(PATIENCE_SECONDS)).orElseThrow();
    }

    private static void assertRefused(String reason, Callable<?> call) {
        assertEquals(reason, assertThrows(BatonException.class, call::call).reason());
    }
}
