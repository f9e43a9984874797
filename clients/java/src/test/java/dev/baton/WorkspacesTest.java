package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import dev.baton.v1.ContextBytes;
import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.ListEntriesRequest;
import dev.baton.v1.WatchEntriesResponse;
import dev.baton.v1.WorkspaceAppend;
import dev.baton.v1.WorkspaceEntry;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Flow;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** The entries of a workspace: appended, listed, followed, waited for and verified. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class WorkspacesTest {
    private static final Duration PATIENCE = Duration.ofSeconds(PATIENCE_SECONDS);
    private static final ListEntriesRequest ALL = ListEntriesRequest.getDefaultInstance();

    @TempDir
    Path folder;

    private RealBroker broker;
    private Agent alice;
    private OwnedTask task;
    private Workspace workspace;

    /** A subscriber that asks for one update after the other. */
    private static final class Collecting implements Flow.Subscriber<WatchEntriesResponse> {
        final BlockingQueue<WatchEntriesResponse> updates = new LinkedBlockingQueue<>();
        final CompletableFuture<Throwable> end = new CompletableFuture<>();
        Flow.Subscription subscription;

        @Override
        public void onSubscribe(Flow.Subscription subscription) {
            this.subscription = subscription;
            subscription.request(1);
        }

        @Override
        public void onNext(WatchEntriesResponse update) {
            updates.add(update);
            subscription.request(1);
        }

        @Override
        public void onError(Throwable failure) {
            end.complete(failure);
        }

        @Override
        public void onComplete() {
            end.complete(null);
        }

        Throwable end() throws Exception {
            return end.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
        }
    }

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
        begin(broker.agent("bob")).close();
        alice = begin(broker.agent("alice"));
        HandoffRequest request = HandoffRequest.newBuilder().setTaskType("support").build();
        String handoffId = alice.send("bob", Envelopes.About.task("ticket-1", 1), request).getHandoffId();
        alice.send("bob", new Envelopes.About("ticket-1", 1, handoffId), HandoffCancel.getDefaultInstance());
        task = alice.ownedTasks().get(0);
        workspace = task.workspace();
    }

    @AfterEach
    void stop() throws Exception {
        alice.close();
        broker.close();
    }

    @Test
    void entriesAreAppendedInOrderAndListed() throws Exception {
        assertEquals("task:ticket-1", workspace.id());
        assertEquals(1, workspace.append("Growth Metrics", "{\"rate\": 0.4}"));
        ContextBytes hello = ContextBytes.newBuilder()
                .setMediaType("text/plain")
                .setData(ByteString.copyFromUtf8("hello"))
                .build();
        assertEquals(2, workspace.append(WorkspaceAppend.newBuilder().setTopic("raw").setBytes(hello).build()));
        assertEquals(3, workspace.appendAfter(2, "raw", "1"));
        var conflict = assertThrows(BatonException.class, () -> workspace.appendAfter(2, "raw", "1"));
        assertEquals(List.of("SEQUENCE_CONFLICT", "3"), List.of(conflict.reason(), conflict.metadata().get("last_sequence")));
        for (Workspace reading : List.of(workspace, workspace.verifying())) {
            List<WorkspaceEntry> found = reading.list(ALL.toBuilder().addTopics("raw").build()).getEntriesList();
            assertEquals(List.of(2L, 3L), found.stream().map(WorkspaceEntry::getSequence).toList());
            assertEquals(hello, found.get(0).getBytes());
        }
        ListEntriesRequest later = ALL.toBuilder()
                .setAfterSequence(3)
                .setWait(Times.ofDuration(Duration.ofMillis(1)))
                .build();
        assertEquals(0, workspace.list(later).getEntriesCount());
        assertEquals(List.of("growth_metrics", "raw"), workspace.topics().stream().map(one -> one.getName()).toList());
        assertEquals(3, workspace.show().getLastSequence());
    }

    @Test
    void anEntryThatMayNotBeIsRefused() throws Exception {
        assertRefused("ENTRY_TOO_LARGE", () -> workspace.append("raw", json(1024 * 1024 + 1)));
        assertEquals(1, workspace.append("raw", json(1024 * 1024)));
        assertRefused("FIELD_INVALID", () -> workspace.append("no/topic", "1"));
        try (Agent stranger = begin(broker.agent("stranger"))) {
            assertRefused("PERMISSION_DENIED", () -> stranger.workspace(workspace.id()).append("raw", "1"));
        }
        task.finish(Map.of(), "");
        assertRefused("WORKSPACE_CLOSED", () -> workspace.append("raw", "1"));
    }

    @Test
    void aWatchHasEachEntryOnceOverARestartOfTheBroker() throws Exception {
        workspace.append("a", "1");
        try (Watch<WatchEntriesResponse> watch = workspace.verifying().watch(0)) {
            assertEquals(1, next(watch).getEntry().getSequence());
            assertEquals(1, next(watch).getCaughtUp().getLastSequence());
            for (long number = 2; number < 5; number++) {
                broker.kill();
                broker.start();
                workspace.append("b", "2");
                assertEquals(number, next(watch).getEntry().getSequence());
            }
            task.finish(Map.of(), "");
            assertEquals(4, next(watch).getClosed().getLastSequence());
            assertEquals(Optional.empty(), watch.next(PATIENCE));
            assertTrue(watch.isOver());
        }
    }

    @Test
    void aSubscriberGetsEachUpdateAndTheEnd() throws Exception {
        Collecting all = new Collecting();
        Watch<WatchEntriesResponse> watch = workspace.watch(0, "b");
        watch.subscribe(all);
        Collecting second = new Collecting();
        watch.subscribe(second);
        assertInstanceOf(IllegalStateException.class, second.end());
        workspace.append("a", "1");
        List<Long> numbers = new ArrayList<>();
        for (int i = 0; i < 40; i++) { // more than are read ahead
            numbers.add(workspace.append("B ", "2"));
        }
        task.finish(Map.of(), "");
        assertEquals(null, all.end());
        List<Long> found = all.updates.stream()
                .filter(WatchEntriesResponse::hasEntry)
                .map(update -> update.getEntry().getSequence())
                .toList();
        assertEquals(numbers, found);
        Collecting refused = new Collecting();
        workspace.watch(0, "no/topic").subscribe(refused);
        assertEquals("FIELD_INVALID", assertInstanceOf(BatonException.class, refused.end()).reason());
    }

    @Test
    void aClosedWatchIsOver() throws Exception {
        Watch<WatchEntriesResponse> watch = workspace.watch(0);
        next(watch);
        watch.close();
        assertEquals(Optional.empty(), watch.next(PATIENCE));
        assertTrue(watch.isOver());
    }

    @Test
    void topicsAreWaitedFor() throws Exception {
        workspace.append("market_analysis", "1");
        workspace.append("market_analysis", "2");
        workspace.append("growth", "3");
        Map<String, WorkspaceEntry> both = workspace.waitFor(PATIENCE, "Market Analysis", "market analysis", "growth");
        assertEquals(Set.of("market_analysis", "growth"), both.keySet());
        assertEquals("1", both.get("market_analysis").getJson());
        assertEquals(Set.of("growth"), workspace.waitFor(Duration.ofMillis(300), "growth", "missing").keySet());
        assertRefused("FIELD_INVALID", () -> workspace.waitFor(PATIENCE, "no/topic"));
        task.finish(Map.of(), "");
        assertEquals(Set.of("growth"), workspace.waitFor(PATIENCE, "growth", "missing").keySet());
    }

    @Test
    void anEntryThatItsAuthorDidNotSignIsFound() throws Exception {
        workspace.append("a", "1");
        WorkspaceEntry entry = workspace.verifying().list(ALL).getEntries(0);
        workspace.verifying().check(entry);
        assertUnverified("ENTRY_INVALID", entry, one -> one.setJson("2"));
        assertUnverified("ENTRY_INVALID", entry, one -> one.setTopic("b"));
        assertUnverified("ENTRY_INVALID", entry, one -> one.setAuthorId("mallory"));
        assertUnverified("ENTRY_INVALID", entry, one -> one.setMessageId("other"));
        ByteString forged = ByteString.copyFrom(new byte[64]);
        assertUnverified("SIGNATURE_INVALID", entry, one -> {
            one.getEnvelopeBuilder().setSignature(forged);
            return one;
        });
        assertUnverified("SIGNATURE_MISSING", entry, one -> {
            one.getEnvelopeBuilder().clearSignature();
            return one;
        });
    }

    @Test
    void aTopicIsNormalisedAsTheBrokerDoes() {
        Map<String, String> names = Map.of(
                "  GROWTH \t\n metrics ", "growth_metrics",
                "growth\u00a0metrics", "growth_metrics",
                "\u00c4RGER Gr\u00f6\u00dfe", "\u00e4rger_gr\u00f6\u00dfe",
                "\u4efb\u52a1.1-a", "\u4efb\u52a1.1-a",
                "\u03a3\u0391\u03a3", "\u03c3\u03b1\u03c2",
                "\u00e9".repeat(128), "\u00e9".repeat(128));
        names.forEach((name, expected) -> assertEquals(expected, Workspace.topic(name)));
        for (String name : List.of("", " ", "\t", "a/b", "a:b", "a\0b", "a\u200bb", "\ud83d\ude80", "a".repeat(129))) {
            assertRefused("FIELD_INVALID", () -> Workspace.topic(name));
        }
    }

    @Test
    void aTopicsWhiteSpaceIsThatOfTheBroker() throws Exception {
        String spaces = "\t\n\u000b\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
                + "\u2009\u200a\u2028\u2029\u202f\u205f\u3000";
        for (String space : spaces.split("")) {
            assertEquals("a_b", Workspace.topic(space + "a" + space + "b"));
            workspace.append(space + "a" + space + "b", "1");
        }
        for (WorkspaceEntry entry : workspace.verifying().list(ALL).getEntriesList()) {
            assertEquals("a_b", entry.getTopic());
        }
        for (String other : "\u001c\u001d\u001e\u001f\u180e\u200b\u2060\ufeff".split("")) {
            assertRefused("FIELD_INVALID", () -> Workspace.topic("a" + other + "b"));
            assertRefused("FIELD_INVALID", () -> workspace.append("a" + other + "b", "1"));
        }
    }

    private void assertUnverified(
            String reason, WorkspaceEntry entry, UnaryOperator<WorkspaceEntry.Builder> change) {
        WorkspaceEntry changed = change.apply(entry.toBuilder()).build();
        var wrong = assertThrows(VerificationException.class, () -> workspace.verifying().check(changed));
        assertEquals(reason, wrong.reason());
    }

    private static String json(int bytesCount) {
        return "\"" + "x".repeat(bytesCount - 2) + "\"";
    }

    private static WatchEntriesResponse next(Watch<WatchEntriesResponse> watch) throws InterruptedException {
        return watch.next(PATIENCE).orElseThrow();
    }

    private static void assertRefused(String reason, Callable<?> call) {
        assertEquals(reason, assertThrows(BatonException.class, call::call).reason());
    }
}
