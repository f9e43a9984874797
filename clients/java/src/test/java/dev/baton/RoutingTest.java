package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.baton.v1.GetNodeToolsResponse;
import dev.baton.v1.Graph;
import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.ListRunsRequest;
import dev.baton.v1.Node;
import dev.baton.v1.RecordTurnResponse;
import dev.baton.v1.RunState;
import dev.baton.v1.StartRunRequest;
import dev.baton.v1.ToolCall;
import dev.baton.v1.ToolShape;
import dev.baton.v1.TurnOutcome;
import dev.baton.v1.WatchRunResponse;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.LongStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** A graph in which a triage chooses between billing and support, and its runs. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class RoutingTest {
    private static final Duration PATIENCE = Duration.ofSeconds(PATIENCE_SECONDS);
    private static final Graph GRAPH = Graph.newBuilder()
            .setGraphId("triage")
            .addEntryNodeIds("triage")
            .addNodes(node("triage", "billing", "support", "end").setHandoffs(2))
            .addNodes(node("billing", "end"))
            .addNodes(node("support", "end"))
            .build();
    private static final StartRunRequest START =
            StartRunRequest.newBuilder().setGraphId("triage").build();

    private final ExecutorService threads = Executors.newCachedThreadPool();

    @TempDir
    Path folder;

    private RealBroker broker;
    private Agent alice;
    private Routing routing;

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
        alice = begin(broker.agent("alice"));
        routing = alice.routing();
    }

    @AfterEach
    void stop() throws Exception {
        threads.shutdownNow();
        alice.close();
        broker.close();
    }

    @Test
    void aGraphIsRegisteredOnceAndAWrongOneNamesItsProblems() throws Exception {
        assertEquals(1, routing.registerGraph(GRAPH).getGraph().getRevision());
        assertEquals(1, routing.registerGraph(GRAPH).getGraph().getRevision());
        Graph next = GRAPH.toBuilder().setDescription("tickets").build();
        assertEquals(2, routing.registerGraph(next).getGraph().getRevision());
        assertEquals("tickets", routing.getGraph("triage").getDescription());
        assertEquals(List.of("triage"), routing.graphs().stream().map(Graph::getGraphId).toList());
        Graph wrong = GRAPH.toBuilder().setNodes(1, node("billing", "nowhere")).build();
        assertEquals("OUTPUT_UNKNOWN", routing.validateGraph(wrong).get(0).getCode());
        var invalid = assertThrows(BatonException.class, () -> routing.registerGraph(wrong));
        assertEquals("GRAPH_INVALID", invalid.reason());
        assertTrue(!invalid.fieldViolations().isEmpty());
        assertRefused("GRAPH_UNKNOWN", () -> routing.getGraph("missing"));
    }

    @Test
    void aModelRoutesARun() throws Exception {
        routing.registerGraph(GRAPH);
        Run run = routing.startRun(START);
        GetNodeToolsResponse tools = run.tools("triage", ToolShape.TOOL_SHAPE_ANTHROPIC);
        assertEquals(
                List.of(3, 3, 2), List.of(tools.getToolsCount(), tools.getToolsJsonCount(), tools.getRemaining()));
        RecordTurnResponse wrong = run.turn("triage", transfer("nowhere"));
        assertEquals(TurnOutcome.TURN_OUTCOME_REFUSED, wrong.getOutcome());
        Turn turn = transfer("billing");
        RecordTurnResponse chosen = run.turn("triage", turn);
        assertEquals(List.of("billing"), List.copyOf(chosen.getNextNodeIdsList()));
        assertEquals(chosen.getChoice(), run.turn("triage", turn).getChoice());
        assertRefused("MESSAGE_ID_REUSED", () -> run.turn("triage", turn.finish("another")));
        assertRefused("NODE_NOT_ACTIVE", () -> run.tools("triage", ToolShape.TOOL_SHAPE_OPENAI));
        RecordTurnResponse last = run.turn("billing", Turn.of().finish("paid twice"));
        assertEquals(RunState.RUN_STATE_COMPLETED, last.getRun().getState());
        assertRefused("RUN_FINAL", () -> run.tools("billing", ToolShape.TOOL_SHAPE_OPENAI));
        assertRefused("RUN_FINAL", () -> run.cancel("late"));
        ListRunsRequest ofGraph = ListRunsRequest.newBuilder().setGraphId("triage").build();
        assertEquals(List.of(run.id()), routing.runs(ofGraph).stream().map(one -> one.getRunId()).toList());
        assertRefused("RUN_UNKNOWN", () -> routing.run(Turn.of().id()).state());
        assertRefused("GRAPH_UNKNOWN", () -> routing.startRun(START.toBuilder().setGraphId("missing").build()));
    }

    @Test
    void aRunReadsTheResponseOfAModel() throws Exception {
        routing.registerGraph(GRAPH);
        Run run = routing.startRun(START);
        String called = "{\"type\":\"message\",\"role\":\"assistant\",\"stop_reason\":\"tool_use\",\"content\":[{"
                + "\"type\":\"tool_use\",\"id\":\"c1\",\"name\":\"transfer_to_billing\",\"input\":{\"reason\":\"an invoice\"}}]}";
        TurnAnswer chosen = run.turn("triage", called);
        assertEquals("billing", chosen.answer().getChoice().getTargetNodeId());
        assertEquals("user", chosen.messages().get(0).get("role"));
        String said = "{\"choices\":[{\"finish_reason\":\"stop\",\"message\":{\"content\":\"paid twice\"}}]}";
        TurnAnswer last = run.turn("billing", said);
        assertEquals(List.of(), last.messages());
        assertEquals(RunState.RUN_STATE_COMPLETED, last.answer().getRun().getState());
        assertThrows(IllegalArgumentException.class, () -> run.turn("billing", "{}"));
    }

    @Test
    void aRunIsFollowedOverARestartAndATurnIsRepeated() throws Exception {
        routing.registerGraph(GRAPH);
        Run run = routing.startRun(START);
        try (Watch<WatchRunResponse> watch = run.watch(0)) {
            List<Long> numbers = new ArrayList<>();
            WatchRunResponse update = next(watch);
            for (; !update.hasCaughtUp(); update = next(watch)) {
                numbers.add(update.getEntry().getNumber());
            }
            broker.kill();
            Future<RecordTurnResponse> reporting = threads.submit(() -> run.turn("triage", transfer("end")));
            broker.start();
            reporting.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            for (Optional<WatchRunResponse> one = watch.next(PATIENCE); one.isPresent(); one = watch.next(PATIENCE)) {
                numbers.add(one.get().getEntry().getNumber()); // no second caught_up, which has no number
            }
            long length = run.state().getLogLength();
            assertEquals(LongStream.rangeClosed(1, length).boxed().toList(), numbers);
            try (Watch<WatchRunResponse> ended = run.watch(length)) {
                assertTrue(next(ended).hasCaughtUp());
                assertEquals(Optional.empty(), ended.next(PATIENCE));
            }
        }
    }

    @Test
    void aChoiceOfAnotherAgentsNodeIsAHandoff() throws Exception {
        Graph graph = GRAPH.toBuilder().setNodes(1, node("billing", "end").setAgentId("bob")).build();
        routing.registerGraph(graph);
        begin(broker.agent("carol")).close();
        HandoffRequest request = HandoffRequest.newBuilder().setTaskType("support").build();
        String handoffId = alice.send("carol", Envelopes.About.task("ticket-1", 1), request).getHandoffId();
        alice.send("carol", new Envelopes.About("ticket-1", 1, handoffId), HandoffCancel.getDefaultInstance());
        StartRunRequest over = START.toBuilder().setTaskId("ticket-1").build();
        try (Agent bob = begin(broker.agent("bob").onHandoff(offer -> offer.accept().complete()))) {
            assertRefused("NOT_OWNER", () -> bob.routing().startRun(over));
            Run run = routing.startRun(over);
            RecordTurnResponse choice = run.turn("triage", transfer("billing"));
            assertEquals(TurnOutcome.TURN_OUTCOME_PROPOSED, choice.getOutcome());
            String receiverId = choice.getHandoffReceiverId();
            HandedOver handed = alice.handOver(
                    receiverId,
                    "ticket-1",
                    1,
                    choice.getHandoffProposal(),
                    List.of(Envelopes.jsonSection("goals", "[]")));
            assertEquals("bob", handed.ownerId());
            assertRefused("NOT_OWNER", () -> run.turn("billing", Turn.of()));
            RecordTurnResponse last = bob.routing().run(run.id()).turn("billing", Turn.of().finish(""));
            assertEquals(RunState.RUN_STATE_COMPLETED, last.getRun().getState());
        }
    }

    @Test
    void aPlainEdgeToAnotherAgentsNodeIsAHandoff() throws Exception {
        Graph graph = GRAPH.toBuilder()
                .setNodes(0, node("triage", "billing").build())
                .setNodes(1, node("billing", "end").setAgentId("bob"))
                .build();
        routing.registerGraph(graph);
        begin(broker.agent("carol")).close();
        HandoffRequest request = HandoffRequest.newBuilder().setTaskType("support").build();
        String handoffId = alice.send("carol", Envelopes.About.task("ticket-1", 1), request).getHandoffId();
        alice.send("carol", new Envelopes.About("ticket-1", 1, handoffId), HandoffCancel.getDefaultInstance());
        try (Agent bob = begin(broker.agent("bob").onHandoff(offer -> offer.accept().complete()))) {
            Run run = routing.startRun(START.toBuilder().setTaskId("ticket-1").build());
            RecordTurnResponse step = run.turn("triage", Turn.of().finish("an invoice"));
            assertEquals("bob", step.getHandoffReceiverId());
            assertEquals(0, step.getNextNodeIdsCount());
            assertRefused("NODE_NOT_ACTIVE", () -> run.turn("billing", Turn.of()));
            alice.handOver(
                    step.getHandoffReceiverId(),
                    "ticket-1",
                    1,
                    step.getHandoffProposal(),
                    List.of(Envelopes.jsonSection("goals", "[]")));
            assertRefused("NOT_OWNER", () -> run.turn("billing", Turn.of()));
            RecordTurnResponse last = bob.routing().run(run.id()).turn("billing", Turn.of().finish(""));
            assertEquals(RunState.RUN_STATE_COMPLETED, last.getRun().getState());
        }
    }

    @Test
    void aRunIsCancelled() throws Exception {
        routing.registerGraph(GRAPH);
        Run run = routing.startRun(START);
        assertEquals(RunState.RUN_STATE_CANCELLED, run.cancel("enough").getState());
        assertRefused("RUN_FINAL", () -> run.turn("triage", transfer("end")));
    }

    private static Node.Builder node(String id, String... outputs) {
        return Node.newBuilder().setNodeId(id).setDescription("knows " + id).addAllOutputNodes(List.of(outputs));
    }

    private static Turn transfer(String to) {
        return Turn.of(ToolCall.newBuilder()
                .setCallId("1")
                .setName("transfer_to_" + to)
                .setArgumentsJson("{\"reason\":\"an invoice\"}")
                .build());
    }

    private static WatchRunResponse next(Watch<WatchRunResponse> watch) throws InterruptedException {
        return watch.next(PATIENCE).orElseThrow();
    }

    private static void assertRefused(String reason, Callable<?> call) {
        assertEquals(reason, assertThrows(BatonException.class, call::call).reason());
    }
}
