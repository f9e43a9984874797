package dev.baton;

import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.rpc.ErrorInfo;
import dev.baton.v1.Acknowledged;
import dev.baton.v1.Acknowledgement;
import dev.baton.v1.AgentCard;
import dev.baton.v1.AgentKey;
import dev.baton.v1.AgentServiceGrpc;
import dev.baton.v1.BrokerServiceGrpc;
import dev.baton.v1.ConnectRequest;
import dev.baton.v1.ConnectResponse;
import dev.baton.v1.CreateChallengeRequest;
import dev.baton.v1.CreateChallengeResponse;
import dev.baton.v1.CreateTokenRequest;
import dev.baton.v1.CreateTokenResponse;
import dev.baton.v1.Credited;
import dev.baton.v1.Envelope;
import dev.baton.v1.GetAgentRequest;
import dev.baton.v1.GetAgentResponse;
import dev.baton.v1.GetHandoffRequest;
import dev.baton.v1.GetHandoffResponse;
import dev.baton.v1.GetTaskRequest;
import dev.baton.v1.GetTaskResponse;
import dev.baton.v1.Handoff;
import dev.baton.v1.HandoffServiceGrpc;
import dev.baton.v1.Heartbeat;
import dev.baton.v1.Hello;
import dev.baton.v1.Receipt;
import dev.baton.v1.ResumeTasksRequest;
import dev.baton.v1.ResumeTasksResponse;
import dev.baton.v1.Task;
import dev.baton.v1.TaskServiceGrpc;
import dev.baton.v1.Welcome;
import io.grpc.Grpc;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsServerCredentials;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import java.nio.file.Path;
import java.security.KeyPair;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;

/** A scripted broker that lies and drops connections as a real one would not. */
final class LyingBroker implements AutoCloseable {
    final KeyPair key = Keys.generate();
    final KeyPair bob = Keys.generate();
    final List<Envelope> envelopes = new CopyOnWriteArrayList<>();
    /** The acks and nacks. */
    final BlockingQueue<Acknowledgement> acknowledgements = new LinkedBlockingQueue<>();
    final BlockingQueue<Heartbeat> heartbeats = new LinkedBlockingQueue<>();
    final BlockingQueue<Hello> hellos = new LinkedBlockingQueue<>();
    /** The sessions with credit. Only then does a broker deliver, and only then does the client settle deliveries. */
    final List<StreamObserver<ConnectResponse>> sessions = new CopyOnWriteArrayList<>();
    volatile boolean refusesForGood;
    final AtomicInteger looks = new AtomicInteger();
    /** The answer to a look at any handoff; null if it is unknown or belongs to other agents. */
    volatile Handoff handoff = Handoff.getDefaultInstance();
    /** The answer to a look at any task; null if looks are refused. */
    volatile Task task;
    /** The requests for tasks to resume. */
    final BlockingQueue<ResumeTasksRequest> resumptions = new LinkedBlockingQueue<>();
    /** The answers to them, one after the other; then none. */
    final BlockingQueue<List<Task>> resumable = new LinkedBlockingQueue<>();
    /** Whether sessions are refused for now. */
    volatile boolean isAway;
    /** Answers an envelope; with a receipt unless a test replaces it. */
    volatile BiConsumer<ConnectRequest, StreamObserver<ConnectResponse>> onEnvelope =
            (frame, out) -> out.onNext(receipt(frame, key));
    /** Answers an ack or a nack; confirms it unless a test replaces it. */
    volatile BiConsumer<ConnectRequest, StreamObserver<ConnectResponse>> onAcknowledgement =
            (frame, out) -> out.onNext(acknowledged(frame));

    private final Path certificate;
    private final Server server;

    LyingBroker(Path folder) throws Exception {
        certificate = folder.resolve("server.pem");
        Path certificateKey = folder.resolve("server.key");
        Certificates.make("ip:127.0.0.1", certificate, certificateKey);
        server = Grpc.newServerBuilderForPort(
                        0, TlsServerCredentials.create(certificate.toFile(), certificateKey.toFile()))
                .addService(new Agents())
                .addService(new Broker())
                .addService(new Handoffs())
                .addService(new Tasks())
                .build()
                .start();
    }

    AgentBuilder agent(String id) {
        return Agent.builder()
                .server("127.0.0.1:" + server.getPort())
                .caFile(certificate)
                .id(id)
                .key(Keys.generate());
    }

    /** Delivers an envelope of bob's on the latest session. */
    void deliver(Envelope envelope) {
        deliver(envelope, envelope.getMessageId(), "");
    }

    /** As {@link #deliver(Envelope)}, as this delivery, and of this handoff. */
    void deliver(Envelope envelope, String deliveryId, String handoffId) {
        dev.baton.v1.Delivery delivery = dev.baton.v1.Delivery.newBuilder()
                .setDeliveryId(deliveryId)
                .setEnvelope(envelope)
                .setHandoffId(handoffId)
                .setAttempt(1)
                .build();
        StreamObserver<ConnectResponse> out = sessions.get(sessions.size() - 1);
        out.onNext(ConnectResponse.newBuilder().setDelivery(delivery).build());
    }

    static ConnectResponse acknowledged(ConnectRequest frame) {
        return ConnectResponse.newBuilder()
                .setRequestId(frame.getRequestId())
                .setAcknowledged(Acknowledged.getDefaultInstance())
                .build();
    }

    /** Returns the refusal of an acknowledgement after the delivery's deadline. */
    static ConnectResponse deliveryUnknown(ConnectRequest frame) {
        return refused(frame, Status.Code.NOT_FOUND, "DELIVERY_UNKNOWN");
    }

    static ConnectResponse refused(ConnectRequest frame, Status.Code code, String reason) {
        return ConnectResponse.newBuilder()
                .setRequestId(frame.getRequestId())
                .setError(refusal(code, reason))
                .build();
    }

    /** Returns the error of a stream; a null stands for no reason. */
    static StatusRuntimeException errorOf(Status.Code code, String reason) {
        return reason == null
                ? code.toStatus().asRuntimeException()
                : StatusProto.toStatusRuntimeException(refusal(code, reason));
    }

    private static com.google.rpc.Status refusal(Status.Code code, String reason) {
        ErrorInfo info = ErrorInfo.newBuilder().setReason(reason).build();
        return com.google.rpc.Status.newBuilder()
                .setCode(code.value())
                .addDetails(Any.pack(info))
                .build();
    }

    ConnectResponse receipt(ConnectRequest frame, KeyPair signer) {
        Receipt receipt = Receipt.newBuilder()
                .setMessageId(frame.getEnvelope().getMessageId())
                .setSequence(1)
                .setHandoffId(frame.getEnvelope().getMessageId())
                .setKeyId("broker")
                .build();
        byte[] signed = Signing.pae("application/vnd.baton.receipt.v1", Signing.receiptBody(receipt));
        ByteString signature = ByteString.copyFrom(Keys.sign(signer.getPrivate(), signed));
        return ConnectResponse.newBuilder()
                .setRequestId(frame.getRequestId())
                .setReceipt(receipt.toBuilder().setSignature(signature))
                .build();
    }

    @Override
    public void close() throws InterruptedException {
        server.shutdownNow().awaitTermination();
    }

    private static AgentKey publicKey(String id, KeyPair key) {
        return AgentKey.newBuilder()
                .setKeyId(id)
                .setPublicKey(ByteString.copyFrom(Keys.publicBytes(key)))
                .build();
    }

    private final class Agents extends AgentServiceGrpc.AgentServiceImplBase {
        @Override
        public void createChallenge(CreateChallengeRequest request, StreamObserver<CreateChallengeResponse> out) {
            ByteString challenge = ByteString.copyFrom(new byte[32]);
            out.onNext(CreateChallengeResponse.newBuilder().setChallenge(challenge).build());
            out.onCompleted();
        }

        @Override
        public void createToken(CreateTokenRequest request, StreamObserver<CreateTokenResponse> out) {
            if (refusesForGood) {
                out.onError(Status.PERMISSION_DENIED.withDescription("never again").asRuntimeException());
                return;
            }
            out.onNext(CreateTokenResponse.newBuilder().setToken("secret").build());
            out.onCompleted();
        }

        @Override
        public void getAgent(GetAgentRequest request, StreamObserver<GetAgentResponse> out) {
            AgentCard card = AgentCard.newBuilder().addKeys(publicKey("k1", bob)).build();
            out.onNext(GetAgentResponse.newBuilder()
                    .setAgent(dev.baton.v1.Agent.newBuilder().setCard(card))
                    .build());
            out.onCompleted();
        }
    }

    private final class Handoffs extends HandoffServiceGrpc.HandoffServiceImplBase {
        @Override
        public void getHandoff(GetHandoffRequest request, StreamObserver<GetHandoffResponse> out) {
            looks.incrementAndGet();
            if (handoff == null) {
                out.onError(Status.PERMISSION_DENIED.asRuntimeException());
                return;
            }
            out.onNext(GetHandoffResponse.newBuilder().setHandoff(handoff).build());
            out.onCompleted();
        }
    }

    private final class Tasks extends TaskServiceGrpc.TaskServiceImplBase {
        @Override
        public void getTask(GetTaskRequest request, StreamObserver<GetTaskResponse> out) {
            Task shown = task;
            if (shown == null) {
                out.onError(Status.UNIMPLEMENTED.asRuntimeException());
                return;
            }
            out.onNext(GetTaskResponse.newBuilder().setTask(shown).build());
            out.onCompleted();
        }

        @Override
        public void resumeTasks(ResumeTasksRequest request, StreamObserver<ResumeTasksResponse> out) {
            resumptions.add(request);
            List<Task> tasks = resumable.poll();
            out.onNext(ResumeTasksResponse.newBuilder()
                    .addAllTasks(tasks == null ? List.of() : tasks)
                    .build());
            out.onCompleted();
        }
    }

    private final class Broker extends BrokerServiceGrpc.BrokerServiceImplBase {
        @Override
        public StreamObserver<ConnectRequest> connect(StreamObserver<ConnectResponse> unshared) {
            StreamObserver<ConnectResponse> out = new Shared<>(unshared);
            Welcome welcome = Welcome.newBuilder()
                    .setBrokerId(Agent.BROKER_ID)
                    .setBrokerKey(publicKey("broker", key))
                    .setHeartbeatInterval(Times.ofDuration(Duration.ofMinutes(1)))
                    .build();
            if (isAway) {
                out.onError(Status.UNAVAILABLE.asRuntimeException());
            } else {
                out.onNext(ConnectResponse.newBuilder().setWelcome(welcome).build());
            }
            return new StreamObserver<>() {
                @Override
                public void onNext(ConnectRequest frame) {
                    take(frame, out);
                }

                @Override
                public void onError(Throwable error) {}

                @Override
                public void onCompleted() {
                    out.onCompleted();
                }
            };
        }

        private void take(ConnectRequest frame, StreamObserver<ConnectResponse> out) {
            ConnectResponse.Builder answer = ConnectResponse.newBuilder().setRequestId(frame.getRequestId());
            switch (frame.getRequestCase()) {
                case ENVELOPE -> {
                    envelopes.add(frame.getEnvelope());
                    onEnvelope.accept(frame, out);
                }
                case ACKNOWLEDGEMENT -> {
                    if (frame.getAcknowledgement().hasExtend()) {
                        out.onNext(acknowledged(frame));
                    } else {
                        acknowledgements.add(frame.getAcknowledgement());
                        onAcknowledgement.accept(frame, out);
                    }
                }
                case CREDIT -> {
                    if (!sessions.contains(out)) {
                        sessions.add(out); // before the answer, for which connect() waits
                    }
                    out.onNext(answer.setCredited(Credited.getDefaultInstance()).build());
                }
                case HEARTBEAT -> heartbeats.add(frame.getHeartbeat());
                case HELLO -> {
                    if (!sessions.contains(out)) {
                        hellos.add(frame.getHello()); // before the session's credit
                    }
                }
                case REQUEST_NOT_SET -> {}
            }
        }
    }

    /** A stream on which the tests and the server's threads write. gRPC's own is for one thread at a time. */
    private record Shared<T>(StreamObserver<T> unshared) implements StreamObserver<T> {
        @Override
        public void onNext(T message) {
            synchronized (unshared) {
                unshared.onNext(message);
            }
        }

        @Override
        public void onError(Throwable error) {
            synchronized (unshared) {
                unshared.onError(error);
            }
        }

        @Override
        public void onCompleted() {
            synchronized (unshared) {
                unshared.onCompleted();
            }
        }
    }
}
