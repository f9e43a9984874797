package dev.baton;

import com.google.protobuf.ByteString;
import dev.baton.v1.AgentServiceGrpc;
import dev.baton.v1.AuditServiceGrpc;
import dev.baton.v1.BlobServiceGrpc;
import dev.baton.v1.BrokerServiceGrpc;
import dev.baton.v1.ContextServiceGrpc;
import dev.baton.v1.CreateChallengeRequest;
import dev.baton.v1.CreateTokenRequest;
import dev.baton.v1.DeadLetterServiceGrpc;
import dev.baton.v1.HandoffServiceGrpc;
import dev.baton.v1.NegotiationServiceGrpc;
import dev.baton.v1.PlanServiceGrpc;
import dev.baton.v1.RegistryServiceGrpc;
import dev.baton.v1.RoutingServiceGrpc;
import dev.baton.v1.SchemaServiceGrpc;
import dev.baton.v1.TaskServiceGrpc;
import dev.baton.v1.ThreadServiceGrpc;
import dev.baton.v1.WorkspaceServiceGrpc;
import dev.baton.v1.WriteBlobRequest;
import dev.baton.v1.WriteBlobResponse;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.AbstractStub;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.nio.file.Path;
import java.security.KeyPair;
import java.time.Duration;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.regex.Pattern;

/**
 * The connection to a broker: TLS, the caller's identity, and the calls outside the session.
 *
 * <p>Calls authenticate by the client certificate if one is set, otherwise by the token that the agent was given or that
 * {@link #prove} obtains. An operator's token is sent with every call except the session, which always has the agent's own
 * identity.
 */
final class Connection implements AutoCloseable {
    static final Duration CALL_TIMEOUT = Duration.ofSeconds(30);
    static final Duration KEEP_ALIVE_TIME = Duration.ofSeconds(30);
    private static final Duration KEEP_ALIVE_TIMEOUT = Duration.ofSeconds(10);
    private static final String PLAINTEXT = "http://";
    private static final Pattern LOOPBACK = Pattern.compile("localhost|127(\\.\\d{1,3}){3}|\\[::1]");
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    /** An agent's id, and the key that proves it. */
    record Identity(String agentId, String keyId, KeyPair key) {}

    private final ManagedChannel channel;
    private final Identity identity;
    private final boolean isCertified;
    private final String agentToken;
    private final String operatorToken;
    private volatile String token;

    Connection(
            String server,
            Identity identity,
            Path caFile,
            Path certificateFile,
            Path keyFile,
            String agentToken,
            String operatorToken,
            Duration keepAliveTime,
            List<ClientInterceptor> interceptors)
            throws IOException {
        this.identity = identity;
        this.isCertified = certificateFile != null;
        this.agentToken = agentToken;
        this.token = agentToken;
        this.operatorToken = operatorToken;
        boolean isPlaintext = server.startsWith(PLAINTEXT);
        ChannelCredentials credentials =
                isPlaintext ? InsecureChannelCredentials.create() : tls(caFile, certificateFile, keyFile);
        this.channel = Grpc.newChannelBuilder(isPlaintext ? here(server) : server, credentials)
                .maxInboundMessageSize(Limits.FRAME_BYTES_MAX)
                .keepAliveTime(keepAliveTime.toMillis(), TimeUnit.MILLISECONDS)
                .keepAliveTimeout(KEEP_ALIVE_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS)
                .intercept(interceptors)
                .build();
    }

    private static ChannelCredentials tls(Path caFile, Path certificateFile, Path keyFile) throws IOException {
        TlsChannelCredentials.Builder tls = TlsChannelCredentials.newBuilder();
        if (caFile != null) {
            tls.trustManager(caFile.toFile());
        }
        if (certificateFile != null) {
            tls.keyManager(certificateFile.toFile(), keyFile.toFile());
        }
        return tls.build();
    }

    /** Returns an interceptor that compresses the messages of every call by gzip. */
    static ClientInterceptor gzip() {
        return new ClientInterceptor() {
            @Override
            public <Q, A> ClientCall<Q, A> interceptCall(
                    MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
                return next.newCall(method, options.withCompression("gzip"));
            }
        };
    }

    /** Returns the address of a server without TLS. Refuses one off this machine: the calls carry tokens. */
    private static String here(String server) {
        String address = server.substring(PLAINTEXT.length());
        String host = address.substring(0, Math.max(0, address.lastIndexOf(':')));
        if (!LOOPBACK.matcher(host).matches()) {
            throw new IllegalArgumentException(server + " is not on this machine: it takes TLS, without http://");
        }
        return address;
    }

    /** Signs a challenge to obtain the token that later calls carry, unless the agent was given one. */
    String prove() {
        if (!agentToken.isEmpty()) {
            return agentToken;
        }
        AgentServiceGrpc.AgentServiceBlockingStub agents = bounded(AgentServiceGrpc.newBlockingStub(channel), CALL_TIMEOUT);
        try {
            byte[] challenge = agents.createChallenge(CreateChallengeRequest.newBuilder()
                            .setAgentId(identity.agentId())
                            .build())
                    .getChallenge()
                    .toByteArray();
            byte[] signature = Signing.signSession(identity.agentId(), identity.keyId(), challenge, identity.key());
            token = agents.createToken(CreateTokenRequest.newBuilder()
                            .setAgentId(identity.agentId())
                            .setKeyId(identity.keyId())
                            .setChallenge(ByteString.copyFrom(challenge))
                            .setSignature(ByteString.copyFrom(signature))
                            .build())
                    .getToken();
            return token;
        } catch (StatusRuntimeException e) {
            throw BatonException.of(e);
        }
    }

    /**
     * Returns the session's stub, with a fresh token or the given one, or with none for a client certificate. Tries to connect at once.
     */
    BrokerServiceGrpc.BrokerServiceStub forSession() {
        channel.resetConnectBackoff();
        BrokerServiceGrpc.BrokerServiceStub broker = BrokerServiceGrpc.newStub(channel);
        return isCertified ? broker : bearing(broker, prove());
    }

    <A> A agents(Function<AgentServiceGrpc.AgentServiceBlockingStub, A> call) {
        return call(AgentServiceGrpc::newBlockingStub, call);
    }

    <A> A tasks(Function<TaskServiceGrpc.TaskServiceBlockingStub, A> call) {
        return call(TaskServiceGrpc::newBlockingStub, call);
    }

    <A> A handoffs(Function<HandoffServiceGrpc.HandoffServiceBlockingStub, A> call) {
        return call(HandoffServiceGrpc::newBlockingStub, call);
    }

    <A> A contexts(Function<ContextServiceGrpc.ContextServiceBlockingStub, A> call) {
        return call(ContextServiceGrpc::newBlockingStub, call);
    }

    <A> A blobs(Function<BlobServiceGrpc.BlobServiceBlockingStub, A> call) {
        return call(BlobServiceGrpc::newBlockingStub, call);
    }

    /** Begins a read, without a time limit. */
    <A> Iterator<A> readBlob(Function<BlobServiceGrpc.BlobServiceBlockingStub, Iterator<A>> call) {
        return call.apply(bearing(BlobServiceGrpc.newBlockingStub(channel), presentToken()));
    }

    /** Begins a write, without a time limit. */
    StreamObserver<WriteBlobRequest> writeBlob(StreamObserver<WriteBlobResponse> answer) {
        return bearing(BlobServiceGrpc.newStub(channel), presentToken()).writeBlob(answer);
    }

    <A> A routing(Function<RoutingServiceGrpc.RoutingServiceBlockingStub, A> call) {
        return call(RoutingServiceGrpc::newBlockingStub, call);
    }

    <A> A negotiations(Function<NegotiationServiceGrpc.NegotiationServiceBlockingStub, A> call) {
        return call(NegotiationServiceGrpc::newBlockingStub, call);
    }

    <A> Iterator<A> watchNegotiations(
            Function<NegotiationServiceGrpc.NegotiationServiceBlockingStub, Iterator<A>> call) {
        return call.apply(bearing(NegotiationServiceGrpc.newBlockingStub(channel), presentToken()));
    }

    <A> A plans(Function<PlanServiceGrpc.PlanServiceBlockingStub, A> call) {
        return call(PlanServiceGrpc::newBlockingStub, call);
    }

    <A> Iterator<A> watchPlans(Function<PlanServiceGrpc.PlanServiceBlockingStub, Iterator<A>> call) {
        return call.apply(bearing(PlanServiceGrpc.newBlockingStub(channel), presentToken()));
    }

    <A> Iterator<A> watchTasks(Function<TaskServiceGrpc.TaskServiceBlockingStub, Iterator<A>> call) {
        return call.apply(bearing(TaskServiceGrpc.newBlockingStub(channel), presentToken()));
    }

    <A> Iterator<A> watchHandoffs(Function<HandoffServiceGrpc.HandoffServiceBlockingStub, Iterator<A>> call) {
        return call.apply(bearing(HandoffServiceGrpc.newBlockingStub(channel), presentToken()));
    }

    <A> A deadLetters(Function<DeadLetterServiceGrpc.DeadLetterServiceBlockingStub, A> call) {
        return call(DeadLetterServiceGrpc::newBlockingStub, call);
    }

    /** Begins a stream of dead letters, without a time limit. */
    <A> Iterator<A> readDeadLetters(Function<DeadLetterServiceGrpc.DeadLetterServiceBlockingStub, Iterator<A>> call) {
        return call.apply(bearing(DeadLetterServiceGrpc.newBlockingStub(channel), presentToken()));
    }

    <A> A registries(Function<RegistryServiceGrpc.RegistryServiceBlockingStub, A> call) {
        return call(RegistryServiceGrpc::newBlockingStub, call);
    }

    <A> A audit(Function<AuditServiceGrpc.AuditServiceBlockingStub, A> call) {
        return call(AuditServiceGrpc::newBlockingStub, call);
    }

    <A> A broker(Function<BrokerServiceGrpc.BrokerServiceBlockingStub, A> call) {
        return call(BrokerServiceGrpc::newBlockingStub, call);
    }

    <A> A threads(Function<ThreadServiceGrpc.ThreadServiceBlockingStub, A> call) {
        return call(ThreadServiceGrpc::newBlockingStub, call);
    }

    <A> Iterator<A> watchThreads(Function<ThreadServiceGrpc.ThreadServiceBlockingStub, Iterator<A>> call) {
        return call.apply(bearing(ThreadServiceGrpc.newBlockingStub(channel), presentToken()));
    }

    <A> A schemas(Function<SchemaServiceGrpc.SchemaServiceBlockingStub, A> call) {
        return call(SchemaServiceGrpc::newBlockingStub, call);
    }

    /** Makes a call that waits at the broker, for at most this time. */
    <A> A workspaces(Function<WorkspaceServiceGrpc.WorkspaceServiceBlockingStub, A> call, Duration within) {
        return call(WorkspaceServiceGrpc::newBlockingStub, call, within);
    }

    <A> Iterator<A> watchAgents(Function<AgentServiceGrpc.AgentServiceBlockingStub, Iterator<A>> call) {
        return call.apply(bearing(AgentServiceGrpc.newBlockingStub(channel), presentToken()));
    }

    <A> Iterator<A> watchRouting(Function<RoutingServiceGrpc.RoutingServiceBlockingStub, Iterator<A>> call) {
        return call.apply(bearing(RoutingServiceGrpc.newBlockingStub(channel), presentToken()));
    }

    <A> Iterator<A> watchWorkspaces(Function<WorkspaceServiceGrpc.WorkspaceServiceBlockingStub, Iterator<A>> call) {
        return call.apply(bearing(WorkspaceServiceGrpc.newBlockingStub(channel), presentToken()));
    }

    /** Whether {@link #prove} replaces the token of the calls. */
    boolean canProve() {
        return operatorToken.isEmpty() && agentToken.isEmpty() && !isCertified;
    }

    @Override
    public void close() {
        channel.shutdown();
        try {
            if (!channel.awaitTermination(5, TimeUnit.SECONDS)) {
                channel.shutdownNow();
            }
        } catch (InterruptedException e) {
            channel.shutdownNow();
            Thread.currentThread().interrupt();
        }
    }

    /**
     * Makes unary calls for a method that declares InterruptedException. gRPC cancels the unary call of an interrupted
     * thread, which is BatonException, CANCELLED, for a method that does not declare it.
     */
    static <A> A interruptibly(Supplier<A> calls) throws InterruptedException {
        try {
            return calls.get();
        } catch (BatonException e) {
            if (e.code() != Status.Code.CANCELLED || !Thread.interrupted()) {
                throw e;
            }
            InterruptedException interrupted = new InterruptedException("interrupted within a call to the broker");
            interrupted.initCause(e);
            throw interrupted;
        }
    }

    /** Makes one unary call, and renews an expired token once. */
    private <S extends AbstractStub<S>, A> A call(Function<Channel, S> service, Function<S, A> call) {
        return call(service, call, CALL_TIMEOUT);
    }

    private <S extends AbstractStub<S>, A> A call(Function<Channel, S> service, Function<S, A> call, Duration within) {
        String present = presentToken();
        S stub = service.apply(channel);
        try {
            return call.apply(bounded(bearing(stub, present), within));
        } catch (StatusRuntimeException e) {
            BatonException error = BatonException.of(e);
            boolean isFixed = !operatorToken.isEmpty() || !agentToken.isEmpty();
            if (!error.reason().equals("TOKEN_INVALID") || present.isEmpty() || isFixed) {
                throw error;
            }
        }
        String fresh = prove();
        try {
            return call.apply(bounded(bearing(stub, fresh), within));
        } catch (StatusRuntimeException e) {
            throw BatonException.of(e);
        }
    }

    private String presentToken() {
        return operatorToken.isEmpty() ? token : operatorToken;
    }

    private static <S extends AbstractStub<S>> S bounded(S stub, Duration within) {
        return stub.withDeadlineAfter(within.toMillis(), TimeUnit.MILLISECONDS);
    }

    private static <S extends AbstractStub<S>> S bearing(S stub, String token) {
        if (token.isEmpty()) {
            return stub;
        }
        Metadata headers = new Metadata();
        headers.put(AUTHORIZATION, "Bearer " + token);
        return stub.withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers));
    }
}
