package dev.baton;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.protobuf.Message;
import com.google.protobuf.UnknownFieldSet;
import dev.baton.Envelopes.About;
import dev.baton.v1.Acknowledgement;
import dev.baton.v1.ConnectRequest;
import dev.baton.v1.ConnectResponse;
import dev.baton.v1.ContextSection;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorCode;
import dev.baton.v1.GoAway;
import dev.baton.v1.Handoff;
import dev.baton.v1.HandoffAccept;
import dev.baton.v1.HandoffComplete;
import dev.baton.v1.HandoffOutcome;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.HandoffState;
import dev.baton.v1.Heartbeat;
import dev.baton.v1.Info;
import dev.baton.v1.MessageType;
import dev.baton.v1.NackCause;
import dev.baton.v1.Receipt;
import dev.baton.v1.RejectReason;
import dev.baton.v1.TaskContextTransfer;
import dev.baton.v1.TaskStatus;
import dev.baton.v1.TaskStatusUpdate;
import io.grpc.Status;
import java.nio.file.Path;
import java.security.KeyPair;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The session, against a scripted broker that lies and drops connections. */
class SessionTest {
    private static final int MIB = 1024 * 1024;
    private static final Duration PATIENCE = Duration.ofSeconds(RealBroker.PATIENCE_SECONDS);

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

    @Test
    void aReceiptOfSomebodyElseIsNone() throws Exception {
        broker.onEnvelope = (frame, out) -> out.onNext(broker.receipt(frame, Keys.generate()));
        try (Agent alice = broker.agent("alice").connect()) {
            var refused = assertThrows(
                    VerificationException.class, () -> alice.send("bob", About.NOTHING, info("hello")));
            assertEquals("SIGNATURE_INVALID", refused.reason());
        }
    }

    @Test
    void whatHasNoAnswerIsSentAgainOnTheNextSession() throws Exception {
        var receipts = broker.onEnvelope;
        broker.onEnvelope = (frame, out) -> {
            broker.onEnvelope = receipts;
            GoAway goAway = GoAway.newBuilder()
                    .setReconnectAfter(Times.ofDuration(Duration.ofMillis(600)))
                    .build();
            out.onNext(ConnectResponse.newBuilder().setGoAway(goAway).build());
            out.onCompleted(); // without an answer
        };
        try (Agent alice = broker.agent("alice").connect()) {
            long beganNanos = System.nanoTime();
            alice.send("bob", About.NOTHING, info("again"));
            long waitedMillis = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - beganNanos);
            assertTrue(waitedMillis >= 600 * 0.8, "as long as the broker asked for");
            assertEquals(2, broker.envelopes.size());
            assertEquals(broker.envelopes.get(0).toByteString(), broker.envelopes.get(1).toByteString());
            RealBroker.until("another session", () -> broker.sessions.size() == 2);
        }
    }

    @Test
    void aMessageThatHasWaitedTooLongIsSignedAgain() throws Exception {
        AtomicReference<Instant> now = new AtomicReference<>(Instant.now());
        refuseOnceAsOutsideOfTheWindow(() -> now.updateAndGet(before -> before.plus(Duration.ofMinutes(10))));
        KeyPair key = Keys.generate();
        try (Agent alice = broker.agent("alice").key(key).clock(clockOf(now)).connect()) {
            Receipt receipt = alice.send("bob", About.NOTHING, info("late"));
            assertEquals(List.of("late", "late"), texts());
            Envelope second = broker.envelopes.get(1);
            assertEquals(broker.envelopes.get(0).getMessageId(), second.getMessageId());
            assertEquals(receipt.getMessageId(), second.getMessageId());
            assertEquals(now.get(), Times.toInstant(second.getTimestamp()));
            assertEquals(Signing.sign(second, "k1", key), second);
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aMessageThatHasNotWaitedOrIsToStayAsItIsIsNotSignedAgain(boolean isSignedByTheCaller) throws Exception {
        AtomicReference<Instant> now = new AtomicReference<>(Instant.now());
        Duration wait = isSignedByTheCaller ? Duration.ofMinutes(10) : Duration.ZERO;
        refuseOnceAsOutsideOfTheWindow(() -> now.updateAndGet(before -> before.plus(wait)));
        try (Agent alice = broker.agent("alice").clock(clockOf(now)).connect()) {
            Envelope envelope = alice.envelope("bob", About.NOTHING, info("late"));
            Executable sending = isSignedByTheCaller
                    ? () -> alice.send(envelope)
                    : () -> alice.send("bob", About.NOTHING, info("late"));
            var refused = assertThrows(BatonException.class, sending);
            assertEquals("TIMESTAMP_OUTSIDE_WINDOW", refused.reason());
            assertEquals(1, broker.envelopes.size());
        }
    }

    @Test
    void onlyWhatVerifiesIsGivenOut() throws Exception {
        Envelope good = ofBob("good");
        Envelope forged = Signing.sign(ofBob("forged"), "k1", Keys.generate());
        Envelope unsigned = ofBob("unsigned").toBuilder().clearSignature().build();
        Envelope unknownKey = Signing.sign(ofBob("unknown"), "k2", broker.bob);
        Envelope newerType = Signing.sign(ofBob("newer").toBuilder().setMessageTypeValue(99).build(), "k1", broker.bob);
        Envelope mismatched = Signing.sign(
                ofBob("mismatched").toBuilder().setMessageType(MessageType.MESSAGE_TYPE_DELEGATION).build(),
                "k1",
                broker.bob);
        try (Agent alice = broker.agent("alice").connect()) {
            List<Envelope> bad = List.of(forged, unsigned, unknownKey, newerType, mismatched);
            bad.forEach(broker::deliver);
            broker.deliver(good);
            Delivery<?> delivery = alice.poll(PATIENCE).orElseThrow();
            assertEquals(good, delivery.envelope());
            delivery.ack();
            List<String> reasons = List.of(
                    "SIGNATURE_INVALID", "SIGNATURE_MISSING", "KEY_UNKNOWN", "PAYLOAD_TYPE_MISMATCH",
                    "PAYLOAD_TYPE_MISMATCH");
            for (int i = 0; i < bad.size(); i++) {
                Acknowledgement told = RealBroker.next(broker.acknowledgements);
                assertEquals(bad.get(i).getMessageId(), told.getDeliveryId());
                assertEquals(NackCause.NACK_CAUSE_POISON, told.getNack().getCause());
                assertTrue(told.getNack().getReasonText().startsWith(reasons.get(i)), told.getNack().getReasonText());
            }
            assertTrue(RealBroker.next(broker.acknowledgements).hasAck());
        }
    }

    @Test
    void anAckThatWasCutOffIsMadeUpFor() throws Exception {
        try (Agent alice = broker.agent("alice").connect()) {
            Envelope envelope = ofBob("one");
            broker.deliver(envelope);
            Delivery<?> delivery = alice.poll(PATIENCE).orElseThrow();
            broker.sessions.get(0).onCompleted();
            RealBroker.until("another session", () -> broker.sessions.size() == 2);
            alice.send("bob", About.NOTHING, info("the session is there"));
            broker.isAway = true;
            broker.sessions.get(1).onCompleted();
            RealBroker.until("the session's end", () -> {
                try {
                    delivery.extend();
                    return false;
                } catch (SessionEndedException e) {
                    return true;
                }
            });
            delivery.ack();
            broker.acknowledgements.clear();
            broker.isAway = false;
            RealBroker.until("another session", () -> broker.sessions.size() == 3);
            broker.deliver(envelope);
            broker.deliver(ofBob("two"));
            assertEquals("two", ((Info) alice.poll(PATIENCE).orElseThrow().payload()).getText());
            assertEquals(envelope.getMessageId(), RealBroker.next(broker.acknowledgements).getDeliveryId());
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aHandledMessageIsNotHandledAgain(boolean isCrossing) throws Exception {
        BlockingQueue<String> handled = new LinkedBlockingQueue<>();
        Envelope envelope = ofBob("one");
        broker.onAcknowledgement = (frame, out) -> {
            String deliveryId = frame.getAcknowledgement().getDeliveryId();
            if (deliveryId.equals("third") || deliveryId.equals("other")) {
                out.onNext(LyingBroker.acknowledged(frame));
                return;
            }
            Runnable redeliver = () -> broker.deliver(envelope, deliveryId.equals("first") ? "second" : "third", "");
            if (isCrossing) {
                redeliver.run();
            }
            out.onNext(LyingBroker.deliveryUnknown(frame));
            if (!isCrossing) {
                redeliver.run();
            }
        };
        MessageListener<Info> read = delivery -> handled.add(delivery.payload().getText());
        try (Agent alice = broker.agent("alice").on(Info.class, read).connect()) {
            broker.deliver(envelope, "first", "");
            assertEquals(List.of("first", "second", "third"), List.of(acked(), acked(), acked()));
            broker.deliver(ofBob("two"), "other", "");
            assertEquals("other", acked());
            assertEquals(List.of("one", "two"), List.copyOf(handled));
        }
    }

    @Test
    void aMessageThatComesAgainBeforeItsListenerBeginsIsHandledOnce() throws Exception {
        BlockingQueue<String> handled = new LinkedBlockingQueue<>();
        CountDownLatch released = new CountDownLatch(1);
        MessageListener<Info> read = delivery -> {
            handled.add(delivery.payload().getText());
            released.await();
        };
        try (Agent alice = broker.agent("alice").on(Info.class, read).connect()) {
            Envelope envelope = ofBob("one");
            for (int i = 0; i < 20; i++) {
                broker.deliver(envelope, "delivery " + i, "");
            }
            broker.deliver(ofBob("two"), "other", "");
            RealBroker.until("both calls", () -> handled.contains("one") && handled.contains("two"));
            released.countDown();
            assertEquals(Set.of("delivery 19", "other"), Set.of(acked(), acked()));
            assertEquals(2, handled.size());
        }
    }

    @Test
    void aRefusedAckOfTheCallerIsThrown() throws Exception {
        broker.onAcknowledgement = (frame, out) -> out.onNext(LyingBroker.deliveryUnknown(frame));
        try (Agent alice = broker.agent("alice").connect()) {
            Envelope envelope = ofBob("one");
            broker.deliver(envelope, "first", "");
            Delivery<?> first = alice.poll(PATIENCE).orElseThrow();
            assertEquals("DELIVERY_UNKNOWN", assertThrows(BatonException.class, first::ack).reason());
            broker.deliver(envelope, "second", "");
            assertEquals("second", alice.poll(PATIENCE).orElseThrow().deliveryId());
        }
    }

    @Test
    void anAckOfTheCallerThatCrossesTheRedeliverySucceeds() throws Exception {
        Envelope envelope = ofBob("one");
        List<ConnectRequest> acks = new ArrayList<>();
        broker.onAcknowledgement = (frame, out) -> {
            acks.add(frame);
            if (acks.size() == 1) {
                broker.deliver(envelope, "second", "");
            } else {
                out.onNext(LyingBroker.deliveryUnknown(acks.get(0)));
                out.onNext(LyingBroker.acknowledged(frame));
            }
        };
        try (Agent alice = broker.agent("alice").connect()) {
            broker.deliver(envelope, "first", "");
            alice.poll(PATIENCE).orElseThrow().ack();
            assertEquals(List.of("first", "second"), List.of(acked(), acked()));
        }
    }

    @Test
    void aRedrivenRequestIsAnotherMessage() throws Exception {
        broker.onAcknowledgement = (frame, out) -> out.onNext(LyingBroker.deliveryUnknown(frame));
        BlockingQueue<String> handled = new LinkedBlockingQueue<>();
        HandoffListener refuse = offer -> {
            handled.add(offer.handoffId());
            offer.reject(RejectReason.REJECT_REASON_OVERLOADED, "");
        };
        try (Agent alice = broker.agent("alice").onHandoff(refuse).connect()) {
            Envelope request = ofBob(HandoffRequest.newBuilder().setTaskType("x").build(), About.task("task", 1));
            broker.deliver(request, "first", "");
            assertEquals("first", acked());
            broker.deliver(request, "second", "redriven");
            assertEquals("second", acked());
            assertEquals(List.of(request.getMessageId(), "redriven"), List.copyOf(handled));
        }
    }

    @Test
    void aRedrivenRequestIsHandledBesideTheFirst() throws Exception {
        BlockingQueue<String> handled = new LinkedBlockingQueue<>();
        CountDownLatch released = new CountDownLatch(1);
        HandoffListener wait = offer -> {
            handled.add(offer.handoffId());
            released.await();
            offer.reject(RejectReason.REJECT_REASON_OVERLOADED, "");
        };
        try (Agent alice = broker.agent("alice").onHandoff(wait).connect()) {
            Envelope request = ofBob(HandoffRequest.newBuilder().setTaskType("x").build(), About.task("task", 1));
            broker.deliver(request, "first", "");
            RealBroker.until("a call", () -> handled.size() == 1);
            broker.deliver(request, "second", "redriven");
            RealBroker.until("two calls", () -> handled.size() == 2);
            released.countDown();
            assertEquals(Set.of("first", "second"), Set.of(acked(), acked()));
        }
    }

    @Test
    void aListenerThatThrowsAnErrorHasItsMessageNacked() throws Exception {
        MessageListener<Info> faulty = delivery -> {
            switch (delivery.payload().getText()) {
                case "assertion" -> throw new AssertionError("wrong");
                case "stack" -> throw new StackOverflowError();
                case "class" -> throw new NoClassDefFoundError("gone");
                default -> {}
            }
        };
        try (Agent alice = broker.agent("alice").on(Info.class, faulty).connect()) {
            for (String text : List.of("assertion", "stack", "class")) {
                broker.deliver(ofBob(text), text, "");
                Acknowledgement told = told();
                assertEquals(text, told.getDeliveryId());
                assertEquals(NackCause.NACK_CAUSE_FAILURE, told.getNack().getCause());
            }
            broker.deliver(ofBob("good"), "good", "");
            assertEquals("good", acked());
        }
    }

    @Test
    void aFinalStatusThatTheDelegatingCallFailsAtIsGivenOutAgain() throws Exception {
        HandoffRequest request = HandoffRequest.newBuilder().setTaskType("x").build();
        try (Agent alice = broker.agent("alice").connect()) {
            CompletableFuture<Outcome> lending = CompletableFuture.supplyAsync(() -> {
                try {
                    return alice.delegate("bob", "task", 1, request, List.of());
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            });
            RealBroker.until("the request", () -> broker.envelopes.size() == 1);
            String handoffId = broker.envelopes.get(0).getMessageId();
            HandoffComplete complete = HandoffComplete.newBuilder()
                    .setOutcome(HandoffOutcome.HANDOFF_OUTCOME_SUCCESS)
                    .build();
            broker.deliver(ofBob(complete, new About("task", 1, handoffId)));
            assertTrue(told().hasAck());
            // At a later epoch than that of the loan the call asks for the task, which this broker refuses.
            TaskStatusUpdate done = TaskStatusUpdate.newBuilder()
                    .setStatus(TaskStatus.TASK_STATUS_COMPLETED)
                    .build();
            broker.deliver(ofBob(done, About.task("task", 5)));
            BatonException failed = (BatonException) assertThrows(ExecutionException.class, lending::get).getCause();
            assertEquals(Status.Code.UNIMPLEMENTED, failed.code());
            assertEquals(done, alice.poll(PATIENCE).orElseThrow().payload());
        }
    }

    @Test
    void anAgentThatIsRefusedForGoodEnds() throws Exception {
        try (Agent alice = broker.agent("alice").connect()) {
            CompletableFuture<HandedOver> handing = CompletableFuture.supplyAsync(() -> {
                try {
                    return alice.handOver("bob", "task", 1, HandoffRequest.getDefaultInstance(), List.of());
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            });
            RealBroker.until("the request", () -> broker.envelopes.size() == 1);
            broker.refusesForGood = true;
            broker.sessions.get(0).onCompleted();
            for (var one : List.of(
                    assertThrows(BatonException.class, alice::awaitEnd),
                    assertThrows(BatonException.class, () -> alice.poll(Duration.ZERO)),
                    assertThrows(BatonException.class, () -> alice.send("bob", About.NOTHING, info("x"))),
                    assertThrows(ExecutionException.class, handing::get).getCause())) {
                assertTrue(one.getMessage().contains("never again"), one.getMessage());
            }
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {MIB + 1, 2 * MIB, 5 * MIB})
    void tooLargeAPayloadIsRefusedHereAndNotSent(int size) throws Exception {
        try (Agent alice = broker.agent("alice").connect()) {
            var refused = assertThrows(
                    BatonException.class, () -> alice.send("bob", About.NOTHING, info("x".repeat(size))));
            assertEquals(Status.Code.INVALID_ARGUMENT, refused.code());
            assertEquals("PAYLOAD_TOO_LARGE", refused.reason());
            alice.send("bob", About.NOTHING, info("small"));
            assertEquals(List.of("small"), texts());
            assertEquals(1, broker.sessions.size());
        }
    }

    @Test
    void theLargestPayloadIsSent() throws Exception {
        try (Agent alice = broker.agent("alice").connect()) {
            alice.send("bob", About.NOTHING, info("x".repeat(MIB - 4)));
            assertEquals(MIB, broker.envelopes.get(0).getPayload().getValue().size());
        }
    }

    @Test
    void tooLargeAContextIsRefusedBeforeTheHandoffIsAskedFor() throws Exception {
        HandoffRequest request = HandoffRequest.newBuilder().setTaskType("x").build();
        List<ContextSection> context = List.of(Envelopes.bytesSection("picture", new byte[MIB], "image/png"));
        try (Agent alice = broker.agent("alice").connect()) {
            for (Executable handing : List.<Executable>of(
                    () -> alice.handOver("bob", "task", 1, request, context),
                    () -> alice.delegate("bob", "task", 1, request, context),
                    () -> alice.resumeHandOver("0198c0de-0000-7000-8000-000000000001", context))) {
                assertEquals("PAYLOAD_TOO_LARGE", assertThrows(BatonException.class, handing).reason());
            }
            assertEquals(List.of(), broker.envelopes);
        }
    }

    @Test
    void tooLongAnIdIsRefusedHereAndNotSent() throws Exception {
        String name = "a".repeat(128);
        try (Agent alice = broker.agent("alice").connect()) {
            assertRefused("envelope.task_id", () -> alice.send("bob", About.task(name + "a", 1), info("")));
            assertRefused("envelope.receiver_id", () -> alice.send(name + "a", About.NOTHING, info("")));
            assertRefused("envelope.receiver_id", () -> alice.send("type:" + name + "a", About.NOTHING, info("")));
            About about = new About("", 0, "c".repeat(37));
            assertRefused("envelope.correlation_id", () -> alice.send("bob", about, info("")));
            assertEquals(List.of(), broker.envelopes);
            alice.send("type:" + name, About.task(name, 1), info(""));
        }
    }

    @Test
    void tooLargeAFrameIsNotSent() throws Exception {
        UnknownFieldSet.Field newer = UnknownFieldSet.Field.newBuilder()
                .addLengthDelimited(ByteString.copyFrom(new byte[4 * MIB]))
                .build();
        try (Agent alice = broker.agent("alice").connect()) {
            Envelope envelope = alice.envelope("bob", About.NOTHING, info("small")).toBuilder()
                    .setUnknownFields(UnknownFieldSet.newBuilder().addField(1000, newer).build())
                    .build();
            var refused = assertThrows(BatonException.class, () -> alice.send(envelope));
            assertEquals(Status.Code.OUT_OF_RANGE, refused.code());
            assertEquals(List.of(), broker.envelopes);
            assertEquals(1, broker.sessions.size());
        }
    }

    @ParameterizedTest
    @CsvSource({"OUT_OF_RANGE,", "INVALID_ARGUMENT, PAYLOAD_TOO_LARGE"})
    void onlyTheLargestMessageIsRefusedByTheEndOfTheSession(Status.Code code, String reason) throws Exception {
        var receipts = broker.onEnvelope;
        broker.onEnvelope = (frame, out) -> {
            if (broker.envelopes.size() == 2) {
                broker.onEnvelope = receipts;
                out.onError(LyingBroker.errorOf(code, reason));
            }
        };
        try (Agent alice = broker.agent("alice").connect()) {
            String large = "x".repeat(1000);
            CompletableFuture<Receipt> sendingLarge = sending(alice, large);
            CompletableFuture<Receipt> sendingSmall = sending(alice, "small");
            var refused = (BatonException) assertThrows(ExecutionException.class, () -> within(sendingLarge)).getCause();
            assertEquals(code, refused.code());
            within(sendingSmall);
            assertEquals(3, broker.envelopes.size());
            assertEquals(Set.of(large, "small"), Set.copyOf(texts()));
            assertEquals("small", texts().get(2));
            RealBroker.until("another session", () -> broker.sessions.size() == 2);
        }
    }

    @Test
    void aSessionThatEndsForAnotherReasonRefusesNoMessage() throws Exception {
        var receipts = broker.onEnvelope;
        broker.onEnvelope = (frame, out) -> {
            broker.onEnvelope = receipts;
            out.onError(LyingBroker.errorOf(Status.Code.INVALID_ARGUMENT, "MALFORMED"));
        };
        try (Agent alice = broker.agent("alice").connect()) {
            alice.send("bob", About.NOTHING, info("again"));
            assertEquals(List.of("again", "again"), texts());
        }
    }

    @Test
    void tooLargeAHeartbeatGoesWithoutItsContent() throws Exception {
        try (Agent alice = broker.agent("alice").build()) {
            alice.setHeartbeat(Heartbeat.newBuilder().setStatus("x".repeat(4 * MIB)).build());
            alice.connect();
            assertEquals(Heartbeat.getDefaultInstance(), broker.heartbeats.poll(RealBroker.PATIENCE_SECONDS, TimeUnit.SECONDS));
            alice.send("bob", About.NOTHING, info("good"));
            assertEquals(1, broker.sessions.size());
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"HANDOFF_STATE_ACCEPTED", "HANDOFF_STATE_CANCELLED"})
    void aStepOfAHandoffThatNoCallWaitsForIsNoPoison(HandoffState state) throws Exception {
        broker.handoff = Handoff.newBuilder().setState(state).build();
        try (Agent alice = broker.agent("alice").on(Info.class, delivery -> {}).connect()) {
            for (Message payload : List.of(HandoffAccept.getDefaultInstance(), TaskContextTransfer.getDefaultInstance())) {
                broker.deliver(ofBob(payload, new About("task", 1, "handoff")));
                Acknowledgement told = broker.acknowledgements.poll(RealBroker.PATIENCE_SECONDS, TimeUnit.SECONDS);
                if (state == HandoffState.HANDOFF_STATE_ACCEPTED) {
                    assertEquals(NackCause.NACK_CAUSE_SHUTDOWN, told.getNack().getCause());
                    assertEquals(2, told.getNack().getRetryAfter().getSeconds());
                } else {
                    assertTrue(told.hasAck(), "it is over");
                }
            }
        }
    }

    @Test
    void aStepOfAHandoffThatIsNotThereAnyMoreIsAcked() throws Exception {
        broker.handoff = null;
        try (Agent alice = broker.agent("alice").on(Info.class, delivery -> {}).connect()) {
            broker.deliver(ofBob(HandoffAccept.getDefaultInstance(), new About("task", 1, "handoff")));
            assertTrue(broker.acknowledgements.poll(RealBroker.PATIENCE_SECONDS, TimeUnit.SECONDS).hasAck());
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"HANDOFF_STATE_FAILED", "HANDOFF_STATE_REQUESTED"})
    void anOfferThatEndsWithoutAWordEndsTheWait(HandoffState state) throws Exception {
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        AgentBuilder builder = broker.agent("alice").onHandoff(offer -> {
            try {
                offer.accept();
            } catch (HandoffFailedException e) {
                told.add(e.reason());
            }
        });
        builder.lookInterval = Duration.ofMillis(100);
        Handoff.Builder handoff = Handoff.newBuilder().setState(HandoffState.HANDOFF_STATE_ACCEPTED);
        broker.handoff = handoff.setCandidateId("alice").build();
        try (Agent alice = builder.connect()) {
            broker.deliver(ofBob(HandoffRequest.newBuilder().setTaskType("x").build(), About.task("task", 1)));
            RealBroker.until("two looks", () -> broker.looks.get() >= 2);
            assertTrue(told.isEmpty(), "a look changes nothing by itself");
            broker.handoff = handoff.setState(state)
                    .setCandidateId("carol")
                    .setErrorCode(ErrorCode.ERROR_CODE_CONTEXT_TIMEOUT)
                    .build();
            boolean isOpen = state == HandoffState.HANDOFF_STATE_REQUESTED;
            assertEquals(isOpen ? "OFFER_WITHDRAWN" : "CONTEXT_TIMEOUT", told.poll(RealBroker.PATIENCE_SECONDS, TimeUnit.SECONDS));
        }
    }

    @Test
    void aContextThatCannotBeSentCancelsTheHandoff() throws Exception {
        ContextProvider tooMuch =
                wanted -> List.of(Envelopes.bytesSection("picture", new byte[MIB], "image/png"));
        About about = new About("task", 1, "handoff");
        try (Agent alice = broker.agent("alice").contextProvider(tooMuch).connect()) {
            broker.deliver(ofBob(HandoffAccept.getDefaultInstance(), about));
            assertTrue(broker.acknowledgements.poll(RealBroker.PATIENCE_SECONDS, TimeUnit.SECONDS).hasAck());
            assertEquals(1, broker.envelopes.size());
            Envelope cancel = broker.envelopes.get(0);
            assertEquals(MessageType.MESSAGE_TYPE_HANDOFF_CANCEL, cancel.getMessageType());
            assertEquals("bob", cancel.getReceiverId());
            assertEquals(about, new About(cancel.getTaskId(), cancel.getEpoch(), cancel.getCorrelationId()));
        }
    }

    /** Has the next envelope refused as TIMESTAMP_OUTSIDE_WINDOW, after this. */
    private void refuseOnceAsOutsideOfTheWindow(Runnable before) {
        var receipts = broker.onEnvelope;
        broker.onEnvelope = (frame, out) -> {
            broker.onEnvelope = receipts;
            before.run();
            out.onNext(LyingBroker.refused(frame, Status.Code.INVALID_ARGUMENT, "TIMESTAMP_OUTSIDE_WINDOW"));
        };
    }

    /** Returns a clock that shows the time that a test sets. */
    private static Clock clockOf(AtomicReference<Instant> now) {
        return new Clock() {
            @Override
            public Instant instant() {
                return now.get();
            }

            @Override
            public ZoneId getZone() {
                return ZoneOffset.UTC;
            }

            @Override
            public Clock withZone(ZoneId zone) {
                return this;
            }
        };
    }

    private static void assertRefused(String field, Executable sending) {
        BatonException refused = assertThrows(BatonException.class, sending);
        assertEquals("FIELD_INVALID", refused.reason());
        assertEquals(
                List.of(field),
                refused.fieldViolations().stream().map(BatonException.FieldViolation::field).toList());
    }

    private static CompletableFuture<Receipt> sending(Agent agent, String text) {
        return CompletableFuture.supplyAsync(() -> {
            try {
                return agent.send("bob", About.NOTHING, info(text));
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        });
    }

    private static <A> A within(CompletableFuture<A> call) throws Exception {
        return call.get(RealBroker.PATIENCE_SECONDS, TimeUnit.SECONDS);
    }

    /** Returns the next ack or nack. */
    private Acknowledgement told() throws InterruptedException {
        Acknowledgement told = broker.acknowledgements.poll(RealBroker.PATIENCE_SECONDS, TimeUnit.SECONDS);
        assertNotNull(told);
        return told;
    }

    /** Returns the delivery id of the next ack. */
    private String acked() throws InterruptedException {
        Acknowledgement told = told();
        assertTrue(told.hasAck(), told.toString());
        return told.getDeliveryId();
    }

    private List<String> texts() throws Exception {
        List<String> texts = new ArrayList<>();
        for (Envelope envelope : broker.envelopes) {
            texts.add(Info.parseFrom(envelope.getPayload().getValue()).getText());
        }
        return texts;
    }

    private Envelope ofBob(String text) {
        return ofBob(info(text), About.NOTHING);
    }

    private Envelope ofBob(Message payload, About about) {
        return Signing.sign(Envelopes.make(payload, "bob", "alice", about, Instant.now()), "k1", broker.bob);
    }

    private static Info info(String text) {
        return Info.newBuilder().setText(text).build();
    }
}
