package dev.baton;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.protobuf.Message;
import com.google.protobuf.UnknownFieldSet;
import dev.baton.Envelopes.About;
import dev.baton.v1.Acknowledgement;
import dev.baton.v1.ConnectResponse;
import dev.baton.v1.ContextSection;
import dev.baton.v1.Envelope;
import dev.baton.v1.ErrorCode;
import dev.baton.v1.GoAway;
import dev.baton.v1.Handoff;
import dev.baton.v1.HandoffAccept;
import dev.baton.v1.HandoffRequest;
import dev.baton.v1.HandoffState;
import dev.baton.v1.Heartbeat;
import dev.baton.v1.Info;
import dev.baton.v1.MessageType;
import dev.baton.v1.NackCause;
import dev.baton.v1.TaskContextTransfer;
import io.grpc.Status;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The session, against a scripted broker that lies and drops connections. */
@Timeout(600)
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
                Acknowledgement told = broker.acknowledgements.take();
                assertEquals(bad.get(i).getMessageId(), told.getDeliveryId());
                assertEquals(NackCause.NACK_CAUSE_POISON, told.getNack().getCause());
                assertTrue(told.getNack().getReasonText().startsWith(reasons.get(i)), told.getNack().getReasonText());
            }
            assertTrue(broker.acknowledgements.take().hasAck());
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
            assertEquals(envelope.getMessageId(), broker.acknowledgements.take().getDeliveryId());
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
    @EnumSource(names = {"OUT_OF_RANGE", "INVALID_ARGUMENT"})
    void aMessageThatEndsTheSessionIsNotSentAgain(Status.Code code) throws Exception {
        var receipts = broker.onEnvelope;
        broker.onEnvelope = (frame, out) -> out.onError(code.toStatus().asRuntimeException());
        try (Agent alice = broker.agent("alice").connect()) {
            var refused = assertThrows(BatonException.class, () -> alice.send("bob", About.NOTHING, info("bad")));
            assertEquals(code, refused.code());
            broker.onEnvelope = receipts;
            alice.send("bob", About.NOTHING, info("good"));
            assertEquals(List.of("bad", "good"), texts());
            RealBroker.until("another session", () -> broker.sessions.size() == 2);
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

    private static void assertRefused(String field, Executable sending) {
        BatonException refused = assertThrows(BatonException.class, sending);
        assertEquals("FIELD_INVALID", refused.reason());
        assertEquals(
                List.of(field),
                refused.fieldViolations().stream().map(BatonException.FieldViolation::field).toList());
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
