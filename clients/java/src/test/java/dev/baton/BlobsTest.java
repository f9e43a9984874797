package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import dev.baton.v1.Blob;
import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffRequest;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** Content that is too large for a message. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class BlobsTest {
    private static final int MIB = 1024 * 1024;
    private static final String TASK = "ticket-1";
    private static final String HELD = "task:" + TASK;
    private static final String CSV = "text/csv";
    private static final HandoffRequest REQUEST =
            HandoffRequest.newBuilder().setTaskType("support").build();

    @TempDir
    Path folder;

    private final List<Long> seen = new ArrayList<>();
    private RealBroker broker;
    private Agent alice;
    private Blobs blobs;

    @BeforeEach
    void start() throws Exception {
        broker = new RealBroker(folder).start();
        begin(broker.agent("carol")).close();
        alice = begin(broker.agent("alice"));
        blobs = alice.blobs();
        String handoffId = alice.send("carol", Envelopes.About.task(TASK, 1), REQUEST).getHandoffId();
        alice.send("carol", new Envelopes.About(TASK, 1, handoffId), HandoffCancel.getDefaultInstance());
    }

    @AfterEach
    void stop() throws Exception {
        alice.close();
        broker.close();
    }

    @Test
    void aBlobIsWrittenReadAndReferredTo() throws Exception {
        byte[] whole = content(3 * MIB + 7);
        ByteString digest = digestOf(whole);
        assertEquals(List.of(digest), blobs.missing(List.of(digest)));
        Path file = Files.write(folder.resolve("figures"), whole);
        Blob blob = blobs.put(file, HELD, CSV, (done, size) -> seen.add(done));
        assertEquals(List.of(digest, (long) whole.length, CSV),
                List.of(blob.getSha256(), blob.getSizeBytes(), blob.getMediaType()));
        assertEquals(List.of(0L, (long) whole.length), List.of(seen.get(0), seen.get(seen.size() - 1)));
        assertEquals(seen.stream().sorted().toList(), seen);
        assertEquals(digest, blobs.put(whole, HELD, CSV).getSha256());
        assertEquals(List.of(), blobs.missing(List.of(digest)));
        assertEquals(List.of(digest), blobs.list(HELD).stream().map(Blob::getSha256).toList());
        assertArrayEquals(Arrays.copyOfRange(whole, MIB - 1, MIB + 4), blobs.get(digest, MIB - 1, 5));
        assertArrayEquals(Arrays.copyOfRange(whole, whole.length - 3, whole.length), blobs.get(digest, whole.length - 3, 0));
        assertEquals("BLOB_OUT_OF_RANGE", refusal(() -> blobs.get(digest, whole.length + 1, 0)));
        try (InputStream stream = blobs.open(digest, 0, 0)) {
            assertEquals(Byte.toUnsignedInt(whole[0]), stream.read());
        }
        CompletableFuture<byte[]> got = new CompletableFuture<>();
        CompletableFuture<Agent> self = new CompletableFuture<>();
        AgentBuilder taking = broker.agent("bob").onHandoff(offer -> {
            Takeover takeover = offer.accept();
            ByteString sha256 = takeover.section("figures").getReference().getSha256();
            got.complete(self.get(PATIENCE_SECONDS, TimeUnit.SECONDS).blobs().get(sha256));
            takeover.complete();
        });
        try (Agent bob = begin(taking)) {
            self.complete(bob);
            assertTrue(Set.of("BLOB_UNKNOWN", "PERMISSION_DENIED").contains(refusal(() -> bob.blobs().get(digest))));
            OwnedTask task = alice.ownedTasks().get(0);
            task.handOver("bob", REQUEST, List.of(Sections.referenceSection("figures", Blobs.reference(blob))));
            assertArrayEquals(whole, got.get(PATIENCE_SECONDS, TimeUnit.SECONDS));
            Blob empty = bob.blobs().put(new byte[0], HELD, CSV);
            assertEquals(0, bob.blobs().get(empty.getSha256()).length);
            bob.blobs().delete(empty.getSha256(), HELD);
            assertEquals(List.of(digest), bob.blobs().list(HELD).stream().map(Blob::getSha256).toList());
        }
    }

    @Test
    void aWriteAndAReadContinueAfterAKill() throws Exception {
        byte[] whole = content(12 * MIB);
        Path file = Files.write(folder.resolve("whole"), whole);
        Blob blob = blobs.put(file, HELD, CSV, killingAt(8 * MIB));
        int turn = 1;
        while (seen.get(turn) >= seen.get(turn - 1)) {
            turn++;
        }
        assertEquals(whole.length, blob.getSizeBytes());
        assertTrue(seen.get(turn) > 0, seen::toString);
        seen.clear();
        Path copy = folder.resolve("copy");
        blobs.get(blob.getSha256(), copy, killingAt(2 * MIB));
        assertArrayEquals(whole, Files.readAllBytes(copy));
        assertEquals(seen.stream().sorted().toList(), seen);
        assertFalse(Files.exists(folder.resolve("copy.part")));
    }

    @Test
    void aReadIntoAFileContinuesWhereItStopped() throws Exception {
        byte[] whole = content(2 * MIB);
        Path copy = folder.resolve("copy");
        Path part = folder.resolve("copy.part");
        ByteString digest = blobs.put(whole, HELD, CSV).getSha256();
        Files.write(part, Arrays.copyOf(whole, MIB));
        blobs.get(digest, copy, (done, size) -> seen.add(done));
        assertEquals(MIB, seen.get(0));
        Files.write(part, new byte[MIB]);
        VerificationException other =
                assertThrows(VerificationException.class, () -> blobs.get(digest, copy, Blobs.Progress.NONE));
        assertEquals(List.of("BLOB_DIGEST_MISMATCH", false), List.of(other.reason(), Files.exists(part)));
        for (byte[] before : List.of(new byte[3 * MIB], whole)) {
            Files.write(part, before);
            blobs.get(digest, copy, Blobs.Progress.NONE);
            assertArrayEquals(whole, Files.readAllBytes(copy));
        }
    }

    @Test
    void aWorkspaceOfOthersTakesNoBlobAndAChangedFileIsRefused() throws Exception {
        try (Agent mallory = begin(broker.agent("mallory"))) {
            String reason = refusal(() -> mallory.blobs().put(new byte[1], HELD, CSV));
            assertTrue(Set.of("PERMISSION_DENIED", "WORKSPACE_UNKNOWN").contains(reason), reason);
        }
        Path file = Files.write(folder.resolve("changing"), content(100));
        Blobs.Progress changing = (done, size) -> assertDoesNotThrow(() -> Files.write(file, new byte[100]));
        assertEquals("BLOB_DIGEST_MISMATCH", refusal(() -> blobs.put(file, HELD, CSV, changing)));
    }

    private Blobs.Progress killingAt(long limit) {
        boolean[] isKilled = new boolean[1];
        return (done, size) -> {
            seen.add(done);
            if (done >= limit && !isKilled[0]) {
                isKilled[0] = true;
                try {
                    broker.kill();
                    broker.start();
                } catch (Exception e) {
                    throw new AssertionError(e);
                }
            }
        };
    }

    private interface Refused {
        void call() throws Exception;
    }

    private static String refusal(Refused call) {
        return assertThrows(BatonException.class, call::call).reason();
    }

    private static byte[] content(int bytesCount) {
        byte[] data = new byte[bytesCount];
        new Random(bytesCount).nextBytes(data);
        return data;
    }

    private static ByteString digestOf(byte[] data) {
        return ByteString.copyFrom(Signing.sha256(data));
    }
}
