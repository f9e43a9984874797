package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import dev.baton.v1.ContextDelta;
import dev.baton.v1.ContextFilter;
import dev.baton.v1.ContextSection;
import dev.baton.v1.ContextVersion;
import dev.baton.v1.GetContextSectionRequest;
import dev.baton.v1.GetContextSectionResponse;
import dev.baton.v1.HandoffAccept;
import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.HistoryFilter;
import dev.baton.v1.SectionOrigin;
import dev.baton.v1.SectionWish;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientStreamTracer;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** Contexts beyond one message: checkpoints, versions, sections on demand. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class ContextsTest {
    private static final String TASK = "ticket-1";
    private static final HandoffRequest REQUEST =
            HandoffRequest.newBuilder().setTaskType("support").build();
    private static final ContextSection GOALS = Envelopes.jsonSection("goals", "[]");

    @TempDir
    Path folder;

    private RealBroker broker;
    private Agent alice;
    private OwnedTask task;

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
        begin(broker.agent("carol")).close();
        alice = begin(broker.agent("alice"));
        String handoffId = alice.send("carol", Envelopes.About.task(TASK, 1), REQUEST).getHandoffId();
        alice.send("carol", new Envelopes.About(TASK, 1, handoffId), HandoffCancel.getDefaultInstance());
        task = alice.ownedTasks().get(0);
    }

    @AfterEach
    void stop() throws Exception {
        alice.close();
        broker.close();
    }

    @Test
    void checkpointsAreVersionsAlsoAfterARestart() throws Exception {
        task.checkpoint(List.of(Envelopes.jsonSection("notes", "{\"n\":1}")));
        broker.kill();
        broker.start();
        task.checkpoint(List.of(Envelopes.jsonSection("notes", "{\"n\":2}"), GOALS));
        Contexts contexts = alice.contexts();
        List<Long> numbers = contexts.versions(TASK, 10).stream().map(ContextVersion::getVersion).toList();
        assertEquals(List.of(2L, 1L), numbers);
        ContextVersion latest = contexts.version(TASK, 0);
        assertEquals(List.of(2, "alice"), List.of(latest.getSectionsCount(), latest.getAuthorId()));
        GetContextSectionRequest notes =
                GetContextSectionRequest.newBuilder().setTaskId(TASK).setName("notes").build();
        GetContextSectionRequest first = notes.toBuilder().setVersion(1).build();
        assertEquals("{\"n\":1}", contexts.section(first).getJson());
        ByteString have = contexts.section(first).getSection().getSha256();
        assertTrue(contexts.section(first.toBuilder().setHaveSha256(have).build()).getNotModified());
        ContextFilter part = ContextFilter.newBuilder().addJsonPointers("/n").build();
        GetContextSectionResponse derived = contexts.section(notes.toBuilder().setFilter(part).build());
        assertEquals(List.of("{\"/n\":2}", true), List.of(derived.getJson(), derived.getDerived()));
        assertRefused("CONTEXT_VERSION_UNKNOWN", () -> contexts.version(TASK, 3));
        assertRefused("EPOCH_AHEAD", () -> alice.checkpoint(TASK, 2, List.of(GOALS)));
        alice.verifyCustody(TASK);
        task.finish(Map.of(), "");
        assertRefused("TASK_FINAL", () -> task.checkpoint(List.of(GOALS)));
    }

    @Test
    void aCandidateGetsWhatItWantsAndFetchesTheRest() throws Exception {
        ContextSection first = Envelopes.jsonSection("notes", "{\"a\":1}");
        task.checkpoint(List.of(first, Envelopes.jsonSection("earlier", "[1]")));
        CompletableFuture<List<ContextSection>> sent = new CompletableFuture<>();
        CompletableFuture<List<Optional<ContextSection>>> fetched = new CompletableFuture<>();
        AgentBuilder taking = broker.agent("bob").onHandoff(offer -> {
            Takeover takeover = offer.accept(HandoffAccept.newBuilder()
                    .addWantedSections("goals")
                    .addWishes(Contexts.want("notes"))
                    .addWishes(Contexts.wantLast("missing", 1))
                    .build());
            sent.complete(takeover.sections());
            fetched.complete(List.of(
                    takeover.fetch("notes"),
                    takeover.fetch("earlier"),
                    takeover.fetch("goals"),
                    takeover.fetch("missing")));
            takeover.complete();
        });
        ContextSection changed = Envelopes.jsonSection("notes", "{\"a\":1,\"b\":2}");
        ContextDelta change = ContextDelta.newBuilder()
                .setBaseSha256(ByteString.copyFrom(Signing.sectionDigest(first)))
                .setMergePatch("{\"b\":2}")
                .setResultSha256(ByteString.copyFrom(Signing.sectionDigest(changed)))
                .build();
        ContextSection delta = ContextSection.newBuilder().setName("notes").setDelta(change).build();
        try (Agent bob = begin(taking)) {
            task.handOver(bob.id(), REQUEST, List.of(delta, GOALS, Envelopes.jsonSection("unwanted", "{}")));
            assertEquals(List.of(delta, GOALS), sent.get(PATIENCE_SECONDS, TimeUnit.SECONDS));
            List<String> contents = fetched.get(PATIENCE_SECONDS, TimeUnit.SECONDS).stream()
                    .map(section -> section.map(ContextSection::getJson).orElse("none"))
                    .toList();
            assertEquals(List.of("{\"a\":1,\"b\":2}", "[1]", "[]", "none"), contents);
        }
    }

    @Test
    void aCheckpointAndAHandoffSendChangesByThemselves() throws Exception {
        Contexts contexts = alice.contexts();
        task.checkpoint(List.of(story(1)));
        task.checkpoint(List.of(story(2)));
        assertEquals(SectionOrigin.SECTION_ORIGIN_DELTA, contexts.version(TASK, 0).getSections(0).getOrigin());
        // Another process of alice has stored a version that this one does not know.
        alice.knownSections().note(TASK, List.of(story(77)));
        task.checkpoint(List.of(story(3)));
        assertEquals(SectionOrigin.SECTION_ORIGIN_VALUE, contexts.version(TASK, 0).getSections(0).getOrigin());
        assertEquals(3, contexts.version(TASK, 0).getVersion());
        HandoffAccept accept = HandoffAccept.newBuilder()
                .addWishes(Contexts.wantChanges(story(3)))
                .addWishes(Contexts.wantLast("history_log", 1))
                .build();
        ContextSection history = Envelopes.jsonSection("history_log", "[{\"role\":\"user\",\"content\":\"a\"}, {\"role\":\"assistant\",\"content\":\"b\"}]");
        CompletableFuture<List<ContextSection>> seen = new CompletableFuture<>();
        try (Agent bob = begin(broker.agent("bob").onHandoff(offer -> {
            Takeover takeover = offer.accept(accept);
            ContextSection whole = takeover.fetch("story").orElseThrow();
            seen.complete(List.of(takeover.section("story"), whole, takeover.section("history_log")));
            takeover.complete();
        }))) {
            task.handOver(bob.id(), REQUEST, List.of(story(4), history, GOALS));
            List<ContextSection> got = seen.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
            assertEquals("{\"count\":4}", got.get(0).getDelta().getMergePatch());
            assertEquals(story(4).getJson(), got.get(1).getJson());
            assertEquals("[{\"content\":\"b\",\"role\":\"assistant\"}]", got.get(2).getJson());
        }
    }

    @Test
    void aBaseThatTheBrokerDoesNotHaveGoesWhole() throws Exception {
        alice.knownSections().note(TASK, List.of(story(77)));
        HandoffAccept accept =
                HandoffAccept.newBuilder().addWishes(Contexts.wantChanges(story(77))).build();
        CompletableFuture<ContextSection> sent = new CompletableFuture<>();
        try (Agent bob = begin(broker.agent("bob").onHandoff(offer -> {
            Takeover takeover = offer.accept(accept);
            sent.complete(takeover.section("story"));
            takeover.complete();
        }))) {
            task.handOver(bob.id(), REQUEST, List.of(story(4)));
            assertEquals(story(4), sent.get(PATIENCE_SECONDS, TimeUnit.SECONDS));
        }
    }

    @Test
    void aContextGoesCompressed() throws Exception {
        AtomicLong length = new AtomicLong();
        AtomicLong wire = new AtomicLong();
        ClientStreamTracer tracer = new ClientStreamTracer() {
            @Override
            public void outboundUncompressedSize(long bytesCount) {
                length.addAndGet(bytesCount);
            }

            @Override
            public void outboundWireSize(long bytesCount) {
                wire.addAndGet(bytesCount);
            }
        };
        ClientStreamTracer.Factory tracers = new ClientStreamTracer.Factory() {
            @Override
            public ClientStreamTracer newClientStreamTracer(ClientStreamTracer.StreamInfo info, Metadata headers) {
                return tracer;
            }
        };
        ClientInterceptor measuring = new ClientInterceptor() {
            @Override
            public <Q, A> ClientCall<Q, A> interceptCall(
                    MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
                return next.newCall(method, options.withStreamTracerFactory(tracers));
            }
        };
        ContextSection notes = Envelopes.jsonSection("notes", "{\"text\":\"" + "baton ".repeat(100_000) + "\"}");
        try (Agent zipping = begin(broker.agent("zoe").gzip().interceptor(measuring))) {
            String handoffId = zipping.send("carol", Envelopes.About.task("zipped", 1), REQUEST).getHandoffId();
            zipping.send("carol", new Envelopes.About("zipped", 1, handoffId), HandoffCancel.getDefaultInstance());
            zipping.ownedTasks().get(0).checkpoint(List.of(notes));
            assertTrue(length.get() > 600_000 && wire.get() < length.get() / 10, wire + " of " + length);
            GetContextSectionRequest request =
                    GetContextSectionRequest.newBuilder().setTaskId("zipped").setName("notes").build();
            assertEquals(notes.getJson(), zipping.contexts().section(request).getJson());
        }
    }

    @Test
    void aSmallChangeIsADeltaAndALargeOneIsNot() {
        String base = story(1).getJson();
        ContextSection change = story(2).toBuilder().setSummary("short").setSecret(true).build();
        Sections.Shortened context = Sections.withDeltas(List.of(change), name -> base);
        ContextSection sent = context.sent().get(0);
        assertEquals("{\"count\":2}", sent.getDelta().getMergePatch());
        assertEquals(List.of("short", true), List.of(sent.getSummary(), sent.getSecret()));
        assertEquals(change, context.whole().get(0));
        ContextSection other = Envelopes.jsonSection("story", "{\"other\":\"" + "y".repeat(2000) + "\"}");
        assertEquals(List.of(other), Sections.withDeltas(List.of(other), name -> base).sent());
        assertEquals(List.of(change), Sections.withDeltas(List.of(change), name -> null).sent());
        assertEquals(Optional.empty(), Sections.deltaBetween("{\"a\":1}", "{\"a\":null}"));
    }

    @Test
    void aSectionThatTheFilterDoesNotFitIsLeftOut() {
        ContextSection goals = Envelopes.jsonSection("goals", "{\"not\":\"a history\"}");
        assertEquals(List.of(), wanted(List.of(goals, story(1)), Contexts.wantLast("goals", 1)));
        ContextSection trace = Envelopes.bytesSection("trace", new byte[3], "text/plain");
        assertEquals(List.of(), wanted(List.of(trace), Contexts.wantLast("trace", 1)));
    }

    @Test
    void aPartOfAnotherShapeNamesNoSchema() {
        ContextSection history = History.section("history_log", List.of(History.Entry.text("user", "hi")));
        SectionWish all = Contexts.wantLast("history_log", 1);
        assertEquals("baton.history", wanted(List.of(history), all).get(0).getSchemaId());
        ContextFilter summary = ContextFilter.newBuilder()
                .setHistory(HistoryFilter.HISTORY_FILTER_SUMMARY)
                .build();
        ContextSection part = wanted(List.of(history), all.toBuilder().setFilter(summary).build()).get(0);
        assertEquals("", part.getSchemaId());
        assertEquals("{\"entries\":1,\"summary\":\"\"}", part.getJson());
    }

    @Test
    void aHistoryIsReadAsItWasWritten() {
        List<Map<String, String>> parts = List.of(
                Map.of("type", "text", "text", "see"),
                Map.of("type", "image", "data", "aGk=", "media_type", "image/png"));
        List<History.Entry> entries = List.of(
                History.Entry.text("system", "be brief"),
                new History.Entry("user", parts, "ann", List.of(), null, null, "2026-11-22T10:00:00Z"),
                History.Entry.calls("", List.of(new History.Call("c1", "find", "{\"id\":7}"))),
                History.Entry.result("c1", "9"));
        assertEquals(entries, History.read(History.section("history_log", entries).getJson()));
        List<History.Entry> bad = List.of(History.Entry.text("agent", "hi"));
        SectionException refused = assertThrows(SectionException.class, () -> History.section("history_log", bad));
        assertTrue(refused.getMessage().contains("\"/0/role\""), refused.getMessage());
        assertThrows(SectionException.class, () -> History.read("[{\"role\":\"tool\",\"content\":\"9\"}]"));
    }

    @Test
    void aSchemaVersionThatIsNotReadIsLeftOut() {
        List<ContextSection> sections =
                List.of(GOALS.toBuilder().setSchemaId("goals").setSchemaVersion("2").build());
        SectionWish first = Contexts.want("goals").toBuilder().addSchemaVersions("1").build();
        assertEquals(List.of(), wanted(sections, first));
        assertEquals(sections, wanted(sections, first.toBuilder().addSchemaVersions("2").build()));
        assertEquals(sections, wanted(sections));
    }

    private static List<ContextSection> wanted(List<ContextSection> sections, SectionWish... wishes) {
        return Sections.forWishes(sections, List.of(), List.of(wishes), (name, sha256) -> null);
    }

    private static ContextSection story(int count) {
        return Envelopes.jsonSection("story", "{\"count\":" + count + ",\"text\":\"" + "x".repeat(2000) + "\"}");
    }

    private static void assertRefused(String reason, Callable<?> call) {
        assertEquals(reason, assertThrows(BatonException.class, call::call).reason());
    }
}
