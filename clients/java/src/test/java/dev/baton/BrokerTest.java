package dev.baton;

import static dev.baton.RealBroker.PATIENCE_SECONDS;
import static dev.baton.RealBroker.begin;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonElement;
import com.google.protobuf.ByteString;
import com.google.protobuf.UnknownFieldSet;
import dev.baton.Envelopes.About;
import dev.baton.v1.AgentCard;
import dev.baton.v1.AgentKey;
import dev.baton.v1.ContextSection;
import dev.baton.v1.CustodyLogEntry;
import dev.baton.v1.Delegation;
import dev.baton.v1.Envelope;
import dev.baton.v1.HandoffAccept;
import dev.baton.v1.HandoffCancel;
import dev.baton.v1.HandoffComplete;
import dev.baton.v1.HandoffOutcome;
import dev.baton.v1.HandoffReason;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.HandoffTimeouts;
import dev.baton.v1.Heartbeat;
import dev.baton.v1.Info;
import dev.baton.v1.ListHandoffsRequest;
import dev.baton.v1.Presence;
import dev.baton.v1.Receipt;
import dev.baton.v1.RejectReason;
import dev.baton.v1.Task;
import dev.baton.v1.TaskContextTransfer;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.TaskStatusUpdate;
import dev.baton.v1.WaitingFor;
import io.grpc.Status;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyPair;
import java.time.Clock;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
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
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Agents with a real broker. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class BrokerTest {
    private static final List<ContextSection> SECTIONS = List.of(
            Envelopes.jsonSection("task_description", "{\"title\": \"Router\"}"),
            Envelopes.jsonSection("goals", "[\"find the cause\"]"));

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

    @Test
    void aWholeHandoff() throws Exception {
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        HandoffListener take = offer -> {
            seen.add(offer.senderId() + " " + offer.request().orElseThrow().getTaskType() + " " + offer.epoch());
            Takeover takeover = offer.accept("goals");
            seen.add(takeover.sections().size() + " " + takeover.section("goals").getJson());
            OwnedTask task = takeover.complete();
            task.report("reading");
            task.finish(Map.of("cause", "a loose cable"), "done");
            seen.add("done at " + task.epoch());
        };
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(take))) {
            HandedOver handed = alice.handOver(bob.id(), "ticket-1", 1, request(), SECTIONS);
            assertEquals(List.of("bob", 2L, List.of()), List.of(handed.ownerId(), handed.epoch(), handed.rejections()));
            assertEquals("alice support-ticket 1", next(seen));
            assertEquals("1 [\"find the cause\"]", next(seen));
            assertEquals("done at 2", next(seen));
            Task task = alice.getTask("ticket-1");
            assertEquals(TaskStatus.TASK_STATUS_COMPLETED, task.getStatus());
            TaskStatusUpdate late = TaskStatusUpdate.newBuilder().setStatus(TaskStatus.TASK_STATUS_COMPLETED).build();
            var stale = assertThrows(BatonException.class, () -> alice.send("", About.task("ticket-1", 1), late));
            assertEquals("STALE_EPOCH", stale.reason());
            assertEquals("2", stale.metadata().get("current_epoch"));
            CustodyLog log = alice.verifyCustody("ticket-1");
            CustodyLogEntry entry = log.entries().get((int) task.getCustodyLength() - 1);
            assertEquals(task.getCustodyHash(), entry.getCustodyHash());
            assertArrayEquals(
                    log.hash(), log.entries().get(log.entries().size() - 1).getCustodyHash().toByteArray());
        }
    }

    @Test
    void aRejectedHandoffIsOfferedAgain() throws Exception {
        HandoffListener refuse = offer ->
                offer.reject(RejectReason.REJECT_REASON_OVERLOADED, "too much to do", List.of("carol"));
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(refuse));
                Agent carol = begin(broker.agent("carol").onHandoff(BrokerTest::take))) {
            HandedOver handed = alice.handOver(bob.id(), "ticket-1", 1, request(), SECTIONS);
            assertEquals(carol.id(), handed.ownerId());
            var rejection = new Rejection("bob", RejectReason.REJECT_REASON_OVERLOADED, "too much to do");
            assertEquals(List.of(rejection), handed.rejections());
            assertEquals("[bob: too much to do]", handed.rejections().toString());
        }
    }

    @Test
    void aHandoffThatNobodyTakesFails() throws Exception {
        HandoffListener refuse = offer -> offer.reject(RejectReason.REJECT_REASON_NO_SKILL, "");
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(refuse))) {
            var failed = assertThrows(
                    HandoffFailedException.class,
                    () -> alice.handOver(bob.id(), "ticket-1", 1, request(), SECTIONS));
            assertEquals("NO_CANDIDATE", failed.reason());
            var rejection = new Rejection("bob", RejectReason.REJECT_REASON_NO_SKILL, "");
            assertEquals(List.of(rejection), failed.rejections());
            assertEquals("[bob: NO_SKILL]", failed.rejections().toString());
            assertEquals("alice", alice.getTask("ticket-1").getOwnerId());
        }
    }

    @Test
    void beyondItsCapacityAnAgentIsWaitedFor() throws Exception {
        CountDownLatch working = new CountDownLatch(1);
        CountDownLatch goOn = new CountDownLatch(1);
        // The owner of an open task has no room for another.
        HandoffListener slow = offer -> {
            working.countDown();
            goOn.await();
            offer.accept().complete().finish(Map.of(), "");
        };
        ListHandoffsRequest all = ListHandoffsRequest.getDefaultInstance();
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").capacity(1).onHandoff(slow))) {
            Future<HandedOver> first = soon(() -> alice.handOver(bob.id(), "ticket-1", 1, request(), SECTIONS));
            RealBroker.await(working);
            Future<HandedOver> second = soon(() -> alice.handOver(bob.id(), "ticket-2", 1, request(), SECTIONS));
            RealBroker.until(
                    "the second waits",
                    () -> alice.handoffs().list(all).stream()
                            .anyMatch(one -> one.getWaitingFor() == WaitingFor.WAITING_FOR_CAPACITY));
            assertFalse(second.isDone());
            goOn.countDown();
            assertEquals(List.of("bob", "bob"), List.of(within(first).ownerId(), within(second).ownerId()));
        }
    }

    @Test
    void aLentTaskComesBackWithItsResult() throws Exception {
        Map<String, Object> result = Map.of("total", 42.5);
        HandoffListener lend = offer -> offer.accept().complete().finish(result, "paid");
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(lend))) {
            Outcome outcome = alice.delegate(bob.id(), "ticket-1", 1, request(), SECTIONS);
            assertEquals(new Outcome("ticket-1", 3, TaskStatus.TASK_STATUS_COMPLETED, result, "paid"), outcome);
            Task task = alice.getTask("ticket-1");
            assertEquals(List.of("alice", 3L), List.of(task.getOwnerId(), task.getEpoch()));
        }
    }

    @Test
    void aTakeoverThatFailsLeavesTheTask() throws Exception {
        HandoffListener fail = offer -> offer.accept().fail("the disk is full");
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(fail))) {
            var failed = assertThrows(
                    HandoffFailedException.class,
                    () -> alice.handOver(bob.id(), "ticket-1", 1, request(), SECTIONS));
            assertEquals("TAKEOVER_FAILED", failed.reason());
            assertTrue(failed.getMessage().contains("the disk is full"));
        }
    }

    @Test
    void aCancelledHandoffEndsTheWaitForItsContext() throws Exception {
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        HandoffListener wait = offer -> {
            try {
                offer.accept();
            } catch (HandoffFailedException e) {
                told.add(e.reason());
                throw e;
            }
        };
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(wait))) {
            alice.send(bob.id(), About.task("ticket-1", 1), request());
            Delivery<?> accept = alice.poll(Duration.ofSeconds(PATIENCE_SECONDS)).orElseThrow();
            assertTrue(accept.payload() instanceof HandoffAccept);
            alice.reply(accept, HandoffCancel.newBuilder().setReasonText("changed my mind").build());
            accept.ack();
            assertEquals("HANDOFF_CANCELLED", next(told));
        }
    }

    @Test
    void aListenerThatThrowsIsCalledAgain() throws Exception {
        List<Boolean> attempts = Collections.synchronizedList(new ArrayList<>());
        HandoffListener faulty = offer -> {
            attempts.add(offer.request().isPresent());
            if (attempts.size() == 1) {
                throw new IllegalStateException("before the accept");
            }
            Takeover takeover = offer.accept();
            if (attempts.size() == 2) {
                throw new IllegalStateException("before the completion");
            }
            takeover.complete();
        };
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(faulty))) {
            assertEquals("bob", alice.handOver(bob.id(), "ticket-1", 1, request(), SECTIONS).ownerId());
            assertEquals(List.of(true, true, false), attempts, "the request twice, then only the context");
        }
    }

    @Test
    void plainMailByHowItsListenerEnds() throws Exception {
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        MessageListener<Info> read = delivery -> {
            String text = delivery.payload().getText();
            seen.add(text + " " + delivery.attempt());
            if (text.equals("later") && delivery.attempt() == 1) {
                throw new RetryLaterException(Duration.ofMillis(200), "not now");
            }
            if (text.equals("poison")) {
                throw new PoisonException("cannot be read");
            }
        };
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").on(Info.class, read))) {
            alice.send(bob.id(), About.NOTHING, info("later"));
            alice.send(bob.id(), About.NOTHING, info("poison"));
            alice.send(bob.id(), About.NOTHING, Delegation.newBuilder().setDescription("no listener").build());
            Set<String> found = new HashSet<>(List.of(next(seen), next(seen), next(seen)));
            assertEquals(Set.of("later 1", "later 2", "poison 1"), found);
            RealBroker.until("two dead letters", () -> broker.deadLetters().size() == 2);
            for (JsonElement letter : broker.deadLetters()) {
                assertEquals(
                        "DEAD_LETTER_REASON_POISON", letter.getAsJsonObject().get("reason").getAsString());
            }
        }
    }

    @Test
    void aListenerThatNeverReturnsIsExtendedUntilItsTimeout() throws Exception {
        BlockingQueue<String> calls = new LinkedBlockingQueue<>();
        BlockingQueue<String> slowly = new LinkedBlockingQueue<>();
        HandoffListener hang = offer -> {
            calls.add("called");
            try {
                new CountDownLatch(1).await();
            } catch (InterruptedException e) {
                calls.add("interrupted");
                throw e;
            }
        };
        // More than twice the ack wait: without an extension the broker would have redelivered it meanwhile.
        MessageListener<Info> slow = delivery -> {
            new CountDownLatch(1).await(5, TimeUnit.SECONDS);
            slowly.add("attempt " + delivery.attempt());
        };
        broker.serve("[delivery]\nack_wait_ms = 2000");
        String token = broker.operatorToken();
        Duration timeout = Duration.ofSeconds(6);
        try (Agent alice = begin(broker.agent("alice").operatorToken(token));
                Agent bob = begin(broker.agent("bob").operatorToken(token).listenerTimeout(timeout).onHandoff(hang)
                        .on(Info.class, slow))) {
            alice.send(bob.id(), About.NOTHING, info("slow"));
            assertEquals("attempt 1", next(slowly));
            HandoffTimeouts whole = HandoffTimeouts.newBuilder()
                    .setWhole(Times.ofDuration(Duration.ofSeconds(12)))
                    .build();
            HandoffRequest request = request().toBuilder().setTimeouts(whole).build();
            long beganNanos = System.nanoTime();
            Future<HandedOver> handing = soon(() -> alice.handOver(bob.id(), "ticket-1", 1, request, SECTIONS));
            assertEquals("called", next(calls));
            assertEquals("interrupted", next(calls), "not called again before");
            assertTrue(System.nanoTime() - beganNanos >= timeout.toNanos());
            var failed = assertThrows(ExecutionException.class, () -> within(handing));
            assertEquals("WHOLE_TIMEOUT", ((HandoffFailedException) failed.getCause()).reason());
        }
    }

    @Test
    void whatAStoppingAgentWasAtGoesToItsNextLife() throws Exception {
        KeyPair key = Keys.generate();
        CountDownLatch working = new CountDownLatch(1);
        HandoffListener hang = offer -> {
            working.countDown();
            new CountDownLatch(1).await();
        };
        try (Agent alice = begin(broker.agent("alice"))) {
            Agent first = begin(broker.agent("bob").key(key).onHandoff(hang));
            Future<HandedOver> handing = soon(() -> alice.handOver("bob", "ticket-1", 1, request(), SECTIONS));
            RealBroker.await(working);
            first.close(Duration.ofMillis(50));
            try (Agent second = begin(broker.agent("bob").key(key).onHandoff(BrokerTest::take))) {
                assertEquals(second.id(), within(handing).ownerId());
            }
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void whatAnEarlierLifeSaidAndDidNotAckCounts(boolean isCompleted) throws Exception {
        KeyPair key = Keys.generate();
        BlockingQueue<String> owned = new LinkedBlockingQueue<>();
        try (Agent alice = begin(broker.agent("alice"))) {
            Future<HandedOver> handing;
            try (Agent first = begin(broker.agent("bob").key(key))) {
                handing = soon(() -> alice.handOver("bob", "ticket-1", 1, request(), SECTIONS));
                Delivery<?> asked = first.poll(Duration.ofSeconds(PATIENCE_SECONDS)).orElseThrow();
                first.reply(asked, HandoffAccept.getDefaultInstance());
                if (isCompleted) {
                    asked.ack();
                    Delivery<?> context = first.poll(Duration.ofSeconds(PATIENCE_SECONDS)).orElseThrow();
                    first.reply(context, HandoffComplete.newBuilder()
                            .setOutcome(HandoffOutcome.HANDOFF_OUTCOME_SUCCESS)
                            .setContextDigest(((TaskContextTransfer) context.payload()).getContextDigest())
                            .build());
                }
            }
            HandoffListener take = offer -> {
                owned.add("called");
                owned.add("at " + offer.accept().complete().epoch());
            };
            try (Agent second = broker.agent("bob").key(key).onHandoff(take).connect()) {
                assertEquals(second.id(), within(handing).ownerId());
                assertEquals(List.of("called", "at 2"), List.of(next(owned), next(owned)), "it is no failure");
            }
        }
    }

    @Test
    void aBrokerThatIsKilledInMidHandoff() throws Exception {
        CountDownLatch accepted = new CountDownLatch(1);
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        List<String> calls = Collections.synchronizedList(new ArrayList<>());
        HandoffListener slow = offer -> {
            calls.add(offer.handoffId());
            Takeover takeover = offer.accept();
            accepted.countDown();
            next(told);
            takeover.complete();
        };
        // Arrives after the redelivered context.
        MessageListener<Info> read = delivery -> told.add(delivery.payload().getText());
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob").onHandoff(slow).on(Info.class, read))) {
            Future<HandedOver> handing = soon(() -> alice.handOver(bob.id(), "ticket-1", 1, request(), SECTIONS));
            RealBroker.await(accepted);
            broker.kill();
            Future<Receipt> sending = soon(() -> alice.send(bob.id(), About.NOTHING, info("meanwhile")));
            broker.start();
            HandedOver handed = within(handing);
            assertEquals(List.of("bob", 2L), List.of(handed.ownerId(), handed.epoch()));
            // Mail of the same task waits until the mail before it is acked.
            alice.send(bob.id(), About.task("ticket-1", 2), info("afterwards"));
            assertEquals("afterwards", next(told));
            assertEquals(List.of(handed.handoffId()), calls, "what came again goes on in the same hands");
            assertTrue(within(sending).getSequence() > 0);
            Task task = alice.getTask("ticket-1");
            assertEquals(List.of("bob", 2L), List.of(task.getOwnerId(), task.getEpoch()));
        }
    }

    @Test
    void aBrokerThatStopsInOrder() throws Exception {
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob"))) {
            Envelope envelope = alice.envelope(bob.id(), About.NOTHING, info("one"));
            Receipt receipt = alice.send(envelope);
            broker.close();
            Future<Receipt> again = soon(() -> alice.send(envelope));
            broker.start();
            assertEquals(receipt, within(again), "the same bytes have the same receipt");
        }
    }

    @Test
    void aTokenThatIsOverIsReplaced() throws Exception {
        try (Agent alice = broker.agent("alice").build()) {
            alice.register(AgentCard.getDefaultInstance());
            alice.proveIdentity();
            broker.kill();
            broker.start(); // tokens do not outlive the broker
            RealBroker.until("the channel is back", () -> {
                try {
                    return alice.getAgent("alice").getCard().getAgentId().equals("alice");
                } catch (BatonException e) {
                    assertEquals(Status.Code.UNAVAILABLE, e.code());
                    return false;
                }
            });
        }
        try (Agent operator = broker.agent("alice").operatorToken("0000").build()) {
            var refused = assertThrows(BatonException.class, () -> operator.getAgent("alice"));
            assertEquals("TOKEN_INVALID", refused.reason());
            assertEquals(Status.Code.UNAUTHENTICATED, refused.code());
        }
    }

    @Test
    void aWrongKeyIsRefused() throws Exception {
        try (Agent alice = broker.agent("alice").build()) {
            alice.register(AgentCard.getDefaultInstance());
            var refused = assertThrows(BatonException.class, () -> broker.agent("alice").connect());
            assertEquals("CHALLENGE_FAILED", refused.reason());
            assertFalse(refused.isPassing());
        }
    }

    @Test
    void aWrongCaIsNotTrusted() throws Exception {
        Path other = Files.createDirectory(folder.resolve("other"));
        try (RealBroker stranger = new RealBroker(other).start()) {
            var refused = assertThrows(
                    UntrustedException.class,
                    () -> broker.agent("alice").caFile(stranger.ca()).connect());
            assertFalse(refused.isPassing());
        }
    }

    @Test
    void nobodyThere() {
        AgentBuilder unreachable = broker.agent("alice").server("127.0.0.1:1");
        var failed = assertThrows(BatonException.class, unreachable::connect);
        assertEquals(Status.Code.UNAVAILABLE, failed.code());
        assertTrue(failed.isPassing());
    }

    @Test
    void aClockThatIsOffByAnHour() throws Exception {
        for (Duration offset : List.of(Duration.ofHours(1), Duration.ofHours(-1))) {
            Clock clock = Clock.offset(Clock.systemUTC(), offset);
            try (Agent bob = begin(broker.agent("bob" + offset.isNegative()));
                    Agent alice = begin(broker.agent("alice" + offset.isNegative()).clock(clock))) {
                var refused = assertThrows(
                        BatonException.class, () -> alice.send(bob.id(), About.NOTHING, info("late")));
                assertEquals("TIMESTAMP_OUTSIDE_WINDOW", refused.reason());
                bob.send(alice.id(), About.NOTHING, info("still reads its mail"));
                alice.poll(Duration.ofSeconds(PATIENCE_SECONDS)).orElseThrow().ack();
            }
        }
    }

    @Test
    void envelopesOfANewerSchema() throws Exception {
        try (Agent alice = begin(broker.agent("alice"));
                Agent bob = begin(broker.agent("bob"))) {
            UnknownFieldSet.Field field = UnknownFieldSet.Field.newBuilder()
                    .addLengthDelimited(ByteString.copyFromUtf8("new"))
                    .build();
            UnknownFieldSet unknown = UnknownFieldSet.newBuilder().addField(1000, field).build();
            Info newer = info("newer").toBuilder().setUnknownFields(unknown).build();
            Envelope envelope = alice.envelope(bob.id(), About.NOTHING, newer).toBuilder()
                    .setUnknownFields(unknown)
                    .build();
            alice.send(envelope);
            Delivery<?> delivery = bob.poll(Duration.ofSeconds(PATIENCE_SECONDS)).orElseThrow();
            assertEquals(envelope.toByteString(), delivery.envelope().toByteString(), "untouched, and it verifies");
            assertEquals(newer, delivery.payload());
            delivery.ack();
            Envelope strange = Signing.sign(
                    Envelopes.make(info("strange"), "alice", "bob", About.NOTHING, Clock.systemUTC().instant()).toBuilder()
                            .setMessageTypeValue(99)
                            .build(),
                    "k1",
                    Keys.generate());
            var refused = assertThrows(BatonException.class, () -> alice.send(strange));
            assertEquals(Status.Code.INVALID_ARGUMENT, refused.code());
            var unread = assertThrows(VerificationException.class, () -> Envelopes.payloadOf(strange));
            assertEquals("PAYLOAD_TYPE_MISMATCH", unread.reason());
        }
    }

    @Test
    void pinnedKeysAreBelievedInsteadOfTheDirectory() throws Exception {
        AgentKey other = AgentKey.newBuilder()
                .setKeyId("k1")
                .setPublicKey(ByteString.copyFrom(Keys.publicBytes(Keys.generate())))
                .build();
        KeyPair key = Keys.generate();
        try (Agent alice = begin(broker.agent("alice").key(key));
                Agent bob = begin(broker.agent("bob").pinnedKeys("alice", other))) {
            alice.send(bob.id(), About.NOTHING, info("hello"));
            RealBroker.until("a dead letter", () -> broker.deadLetters().size() == 1);
        }
        try (Agent alice = begin(broker.agent("alice").key(key).pinnedKeys(Agent.BROKER_ID, other))) {
            var refused = assertThrows(
                    VerificationException.class, () -> alice.send("bob", About.NOTHING, info("hello")));
            assertEquals("KEY_UNKNOWN", refused.reason());
        }
    }

    @Test
    void heartbeatsSayHowTheAgentIsDoing() throws Exception {
        try (Agent alice = broker.agent("alice").build()) {
            alice.register(AgentCard.getDefaultInstance());
            alice.setHeartbeat(Heartbeat.newBuilder().setStatus("busy").putMetrics("temperature", 36.6).build());
            alice.connect();
            RealBroker.until(
                    "the heartbeat",
                    () -> alice.getAgent("alice").getLastHeartbeat().getStatus().equals("busy"));
            assertEquals(Presence.PRESENCE_ALIVE, alice.getAgent("alice").getPresence());
        }
    }

    @Test
    void aBrokerThatFallsSilentIsNoticedAndCalledAgain() throws Exception {
        try (Relay relay = new Relay(broker.server)) {
            AgentBuilder through = broker.agent("alice").server(relay.server());
            through.keepAliveTime = Duration.ofSeconds(10); // the minimum of grpc-java
            try (Agent alice = begin(through)) {
                String session = alice.welcome().getSessionId();
                relay.fallSilent();
                // Sent during the silence; the next session answers.
                var refused = assertThrows(
                        BatonException.class, () -> alice.send("unknown", About.NOTHING, info("hello")));
                assertEquals("RECEIVER_UNKNOWN", refused.reason());
                assertFalse(session.equals(alice.welcome().getSessionId()));
            }
        }
    }

    private static void take(Offer offer) throws InterruptedException {
        offer.accept().complete();
    }

    private static HandoffRequest request() {
        return HandoffRequest.newBuilder()
                .setTaskType("support-ticket")
                .setReason(HandoffReason.HANDOFF_REASON_SKILL)
                .build();
    }

    private static Info info(String text) {
        return Info.newBuilder().setText(text).build();
    }

    private <A> Future<A> soon(Callable<A> work) {
        return threads.submit(work);
    }

    private static <A> A within(Future<A> work) throws Exception {
        return work.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
    }

    private static String next(BlockingQueue<String> queue) throws InterruptedException {
        String next = queue.poll(PATIENCE_SECONDS, TimeUnit.SECONDS);
        assertTrue(next != null, "nothing came");
        return next;
    }
}
