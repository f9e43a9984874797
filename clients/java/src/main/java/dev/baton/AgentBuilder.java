package dev.baton;

import com.google.protobuf.Message;
import dev.baton.v1.AgentKey;
import java.io.IOException;
import java.nio.file.Path;
import java.security.KeyPair;
import java.time.Clock;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** Says what an agent is before it connects: see {@link Agent}. */
public final class AgentBuilder {
    private static final int CREDIT_MAX = 4096;

    String server = "127.0.0.1:22866";
    String id;
    String keyId = "k1";
    KeyPair key;
    Path caFile;
    Path certificateFile;
    Path certificateKeyFile;
    String operatorToken = "";
    int credit = 16;
    int capacity;
    Duration listenerTimeout;
    Duration sendTimeout = Duration.ofSeconds(120);
    Clock clock = Clock.systemUTC();
    HandoffListener handoffListener;
    ContextProvider contextProvider;
    /** After how long without mail of a handoff, or of a delegated task, the broker is asked how it stands. */
    Duration lookInterval = Duration.ofSeconds(30);
    /** After how long without a byte the connection is tried by a ping; grpc-java takes no less than 10 s. */
    Duration keepAliveTime = Connection.KEEP_ALIVE_TIME;
    final Map<Class<? extends Message>, MessageListener<Message>> listeners = new HashMap<>();
    final Map<String, Collection<AgentKey>> pinnedKeys = new HashMap<>();
    final Map<String, byte[]> operatorKeys = new HashMap<>();

    AgentBuilder() {}

    /**
     * The broker, HOST:PORT, 127.0.0.1:22866 if nothing is said; or http://HOST:PORT without TLS, to a broker on this
     * machine that takes such connections.
     */
    public AgentBuilder server(String server) {
        this.server = Objects.requireNonNull(server);
        return this;
    }

    /** The agent's id. Required. */
    public AgentBuilder id(String id) {
        this.id = Objects.requireNonNull(id);
        return this;
    }

    /** The agent's ed25519 key: see {@link Keys}. Required. */
    public AgentBuilder key(KeyPair key) {
        this.key = Objects.requireNonNull(key);
        return this;
    }

    /** The name of the key on the agent's card; k1 if nothing is said. */
    public AgentBuilder keyId(String keyId) {
        this.keyId = Objects.requireNonNull(keyId);
        return this;
    }

    /** The CA, PEM, that must have signed the broker's certificate; the JDK's CAs if nothing is said. */
    public AgentBuilder caFile(Path caFile) {
        this.caFile = Objects.requireNonNull(caFile);
        return this;
    }

    /** A client certificate and its key, PEM, to prove by who one is instead of a signed challenge. */
    public AgentBuilder clientCertificate(Path certificateFile, Path keyFile) {
        this.certificateFile = Objects.requireNonNull(certificateFile);
        this.certificateKeyFile = Objects.requireNonNull(keyFile);
        return this;
    }

    /** Goes with all calls but the session's, to register where only operators may. */
    public AgentBuilder operatorToken(String operatorToken) {
        this.operatorToken = Objects.requireNonNull(operatorToken);
        return this;
    }

    /** The most deliveries that are handed out and not yet acknowledged, up to 4096; 16 if nothing is said. */
    public AgentBuilder credit(int credit) {
        if (credit < 0 || credit > CREDIT_MAX) {
            throw new IllegalArgumentException("credit is 0 to " + CREDIT_MAX);
        }
        this.credit = credit;
        return this;
    }

    /**
     * The most handoffs that are worked on at a time; what is offered beyond it is rejected as OVERLOADED. Without a
     * limit if nothing is said.
     */
    public AgentBuilder capacity(int capacity) {
        this.capacity = capacity;
        return this;
    }

    /** A listener that takes longer is interrupted, and what it has is nacked. Without a limit if nothing is said. */
    public AgentBuilder listenerTimeout(Duration listenerTimeout) {
        this.listenerTimeout = Objects.requireNonNull(listenerTimeout);
        return this;
    }

    /** How long a message waits for its receipt, over as many sessions as that takes; 120 s if nothing is said. */
    public AgentBuilder sendTimeout(Duration sendTimeout) {
        this.sendTimeout = Objects.requireNonNull(sendTimeout);
        return this;
    }

    /** Where the timestamps of envelopes come from; the system's clock if nothing is said. */
    public AgentBuilder clock(Clock clock) {
        this.clock = Objects.requireNonNull(clock);
        return this;
    }

    /** Keys of an agent, or of the broker itself, that are believed instead of the directory's. */
    public AgentBuilder pinnedKeys(String agentId, AgentKey... keys) {
        pinnedKeys.put(agentId, List.of(keys));
        return this;
    }

    /**
     * An operator's public key, 32 bytes, by its operator_key_id. If there are any, other agents' keys from the directory
     * are good only with a voucher of one of them.
     */
    public AgentBuilder operatorKey(String operatorKeyId, byte[] publicKey) {
        operatorKeys.put(operatorKeyId, publicKey.clone());
        return this;
    }

    /** Who takes or rejects what is offered. */
    public AgentBuilder onHandoff(HandoffListener listener) {
        this.handoffListener = Objects.requireNonNull(listener);
        return this;
    }

    /**
     * Returns the context of a handoff that was accepted while no call of this process waits for it, as after a restart.
     * Without a provider such an accept is delivered again, every 2 s, until an {@link Agent#resumeHandOver} takes it or the
     * broker ends the handoff.
     */
    public AgentBuilder contextProvider(ContextProvider provider) {
        this.contextProvider = Objects.requireNonNull(provider);
        return this;
    }

    /** Who handles one kind of message, for example {@code on(Info.class, delivery -> …)}. */
    @SuppressWarnings("unchecked")
    public <M extends Message> AgentBuilder on(Class<M> payload, MessageListener<M> listener) {
        listeners.put(payload, (MessageListener<Message>) (MessageListener<?>) listener);
        return this;
    }

    /** The agent, not yet connected. */
    public Agent build() throws IOException {
        Objects.requireNonNull(id, "an agent has an id");
        Objects.requireNonNull(key, "an agent has a key");
        return new Agent(this);
    }

    /** The agent, connected. Throws {@link BatonException} if that does not work at once. */
    public Agent connect() throws IOException, InterruptedException {
        Agent agent = build();
        try {
            agent.connect();
            return agent;
        } catch (BatonException | InterruptedException e) {
            agent.close(Duration.ZERO);
            throw e;
        }
    }
}
