package dev.baton;

import com.google.protobuf.Message;
import dev.baton.v1.AgentKey;
import io.grpc.ClientInterceptor;
import java.io.IOException;
import java.nio.file.Path;
import java.security.KeyPair;
import java.time.Clock;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** The settings of an agent, before it connects: see {@link Agent}. */
public final class AgentBuilder {
    private static final int CREDIT_MAX = 4096;

    String server = "127.0.0.1:22866";
    String id;
    String keyId = "k1";
    KeyPair key;
    Path caFile;
    Path certificateFile;
    Path certificateKeyFile;
    String token = "";
    String operatorToken = "";
    int credit = 16;
    int capacity;
    Duration listenerTimeout;
    Duration sendTimeout = Duration.ofSeconds(120);
    Clock clock = Clock.systemUTC();
    HandoffListener handoffListener;
    ContextProvider contextProvider;
    RecallListener recallListener;
    PromptListener promptListener;
    BidListener bidListener;
    boolean resumes;
    ViewListener viewListener = (handoffId, view) -> {};
    final List<ClientInterceptor> interceptors = new ArrayList<>();
    /** The silence after which a call that waits reads the state at the broker. */
    Duration lookInterval = Duration.ofSeconds(5);
    /** The idle time of a connection after which gRPC sends a ping; grpc-java's minimum is 10 s. */
    Duration keepAliveTime = Connection.KEEP_ALIVE_TIME;
    final Map<Class<? extends Message>, MessageListener<Message>> listeners = new HashMap<>();
    final Map<String, Collection<AgentKey>> pinnedKeys = new HashMap<>();
    final Map<String, byte[]> operatorKeys = new HashMap<>();

    AgentBuilder() {}

    /**
     * Returns a builder with what the environment, or the profile of the command line, names: the broker, its CA, the agent
     * and its key, and a client certificate or a token if they are set. A variable takes precedence over the value of the
     * profile, and an empty variable counts as absent:
     *
     * <ul>
     *   <li>BATON_SERVER: the broker; default 127.0.0.1:22866.
     *   <li>BATON_CA: the CA file. The default is ./baton-data/tls/ca.pem for the broker that runs on ./baton-data,
     *       otherwise the JDK's CAs.
     *   <li>BATON_AGENT_ID and BATON_AGENT_KEY: the agent and the file of its key, both or neither. BATON_AGENT_KEY_ID is
     *       the key's id; default k1.
     *   <li>BATON_TOKEN: a token of the agent: see {@link #token}.
     *   <li>BATON_CERT and BATON_CERT_KEY: the files of a client certificate and of its key, both or neither.
     * </ul>
     *
     * <p>BATON_PROFILE names a profile of {@code baton profile add}; the default is the one of {@code baton profile use},
     * if any. Profiles are in $XDG_CONFIG_HOME/baton/profiles or ~/.config/baton/profiles. Throws
     * {@link IllegalStateException} if no agent is named or a value is wrong, and says which variable to set;
     * {@link IOException} if a file that is named cannot be used.
     */
    public static AgentBuilder fromEnv() throws IOException {
        return new Environment(System.getenv(), Path.of("")).builder();
    }

    /**
     * Sets the broker: HOST:PORT with TLS, or http://HOST:PORT without TLS for a broker on this machine. Default:
     * 127.0.0.1:22866.
     */
    public AgentBuilder server(String server) {
        this.server = Objects.requireNonNull(server);
        return this;
    }

    /** Sets the agent's id. Required. */
    public AgentBuilder id(String id) {
        this.id = Objects.requireNonNull(id);
        return this;
    }

    /** Sets the agent's ed25519 key: see {@link Keys}. Required. */
    public AgentBuilder key(KeyPair key) {
        this.key = Objects.requireNonNull(key);
        return this;
    }

    /** Sets the id of the key on the agent's card. Default: k1. */
    public AgentBuilder keyId(String keyId) {
        this.keyId = Objects.requireNonNull(keyId);
        return this;
    }

    /** Sets the CA, PEM, that must have signed the broker's certificate. Default: the JDK's CAs. */
    public AgentBuilder caFile(Path caFile) {
        this.caFile = Objects.requireNonNull(caFile);
        return this;
    }

    /** Sets a client certificate and its key, PEM, which prove the agent's identity instead of a signed challenge. */
    public AgentBuilder clientCertificate(Path certificateFile, Path keyFile) {
        this.certificateFile = Objects.requireNonNull(certificateFile);
        this.certificateKeyFile = Objects.requireNonNull(keyFile);
        return this;
    }

    /**
     * Sets a token that proves the agent's identity instead of a signed challenge, from {@code baton token}. The agent does
     * not renew it.
     */
    public AgentBuilder token(String token) {
        this.token = Objects.requireNonNull(token);
        return this;
    }

    /**
     * Sets an operator's token, sent with every call except the session's. It permits registration where only operators
     * may register agents.
     */
    public AgentBuilder operatorToken(String operatorToken) {
        this.operatorToken = Objects.requireNonNull(operatorToken);
        return this;
    }

    /** Sets the maximum number of unacknowledged deliveries, up to 4096. Default: 16. */
    public AgentBuilder credit(int credit) {
        if (credit < 0 || credit > CREDIT_MAX) {
            throw new IllegalArgumentException("credit is 0 to " + CREDIT_MAX);
        }
        this.credit = credit;
        return this;
    }

    /**
     * Sets the maximum number of handoffs in progress; a further offer is rejected as OVERLOADED. Default: no limit.
     */
    public AgentBuilder capacity(int capacity) {
        this.capacity = capacity;
        return this;
    }

    /** Sets the time limit of a listener. At the limit it is interrupted and its delivery nacked. Default: no limit. */
    public AgentBuilder listenerTimeout(Duration listenerTimeout) {
        this.listenerTimeout = Objects.requireNonNull(listenerTimeout);
        return this;
    }

    /** Sets the time limit for a message's receipt, over all the sessions that the wait spans. Default: 120 s. */
    public AgentBuilder sendTimeout(Duration sendTimeout) {
        this.sendTimeout = Objects.requireNonNull(sendTimeout);
        return this;
    }

    /**
     * Compresses what the agent sends by gzip. It pays for contexts and results of many kilobytes. The broker's answers
     * need no setting.
     */
    public AgentBuilder gzip() {
        return interceptor(Connection.gzip());
    }

    /** Adds an interceptor of the agent's calls, for example one that measures them. */
    public AgentBuilder interceptor(ClientInterceptor interceptor) {
        interceptors.add(Objects.requireNonNull(interceptor));
        return this;
    }

    /** Sets the clock for the timestamps of envelopes. Default: the system's clock. */
    public AgentBuilder clock(Clock clock) {
        this.clock = Objects.requireNonNull(clock);
        return this;
    }

    /** Pins the keys of an agent, or of the broker itself; they replace the directory's keys of that agent. */
    public AgentBuilder pinnedKeys(String agentId, AgentKey... keys) {
        pinnedKeys.put(agentId, List.of(keys));
        return this;
    }

    /**
     * Adds an operator's public key, 32 bytes, by its operator_key_id. If any are set, a key from the directory is
     * valid only with a voucher of one of these operators.
     */
    public AgentBuilder operatorKey(String operatorKeyId, byte[] publicKey) {
        operatorKeys.put(operatorKeyId, publicKey.clone());
        return this;
    }

    /** Sets the listener of offered handoffs, also of those by an award, which accepts or rejects each. */
    public AgentBuilder onHandoff(HandoffListener listener) {
        this.handoffListener = Objects.requireNonNull(listener);
        return this;
    }

    /**
     * Sets whether the listener of handoffs also gets the tasks that an earlier process of this agent took over and did
     * not end: after a restart, when the session has begun, and as slots get free. Such an offer is
     * {@link Offer#isResumed}: its {@link Offer#accept} returns the task's last context at once, and
     * {@link Takeover#complete} the task. Default: false.
     */
    public AgentBuilder resume(boolean resumes) {
        this.resumes = resumes;
        return this;
    }

    /**
     * Sets the function that returns the context of an accepted handoff if no call of this process waits for the
     * accept, as after a restart. Without a provider the agent nacks the accept with a retry after 2 s, until an
     * {@link Agent#resumeHandOver} takes it or the broker ends the handoff.
     */
    public AgentBuilder contextProvider(ContextProvider provider) {
        this.contextProvider = Objects.requireNonNull(provider);
        return this;
    }

    /**
     * Sets the listener of tasks that were taken from this agent: see {@link Recalled}. Before it is called, the agent
     * interrupts the listener of {@link #onHandoff} that works on the task, and ends its calls {@link Agent#handOver}
     * and {@link Agent#delegate} of the task. Without this listener the notice goes to the listener of
     * ErrorNotification.
     */
    public AgentBuilder onRecalled(RecallListener listener) {
        this.recallListener = Objects.requireNonNull(listener);
        return this;
    }

    /**
     * Sets the listener of questions to this agent: see {@link Question}. Without it a question goes to the listener of
     * TaskStatusUpdate.
     */
    public AgentBuilder onPrompt(PromptListener listener) {
        this.promptListener = Objects.requireNonNull(listener);
        return this;
    }

    /**
     * Sets the listener of requests for offers and of counter-offers to this agent's offers. Without it they go to the
     * listeners of TaskRequest and TaskOffer; without these a request is declined as NO_SKILL.
     */
    public AgentBuilder onOfferWanted(BidListener listener) {
        this.bidListener = Objects.requireNonNull(listener);
        return this;
    }

    /**
     * Sets the listener of the views that this agent has of the handoffs that it sends: IDLE and HANDOFF_INITIATED
     * before the request is stored, then those that {@link Agent#getHandoff} shows, to HANDOFF_COMPLETED.
     */
    public AgentBuilder onView(ViewListener listener) {
        this.viewListener = Objects.requireNonNull(listener);
        return this;
    }

    /** Sets the listener of one kind of message, for example {@code on(Info.class, delivery -> …)}. */
    @SuppressWarnings("unchecked")
    public <M extends Message> AgentBuilder on(Class<M> payload, MessageListener<M> listener) {
        listeners.put(payload, (MessageListener<Message>) (MessageListener<?>) listener);
        return this;
    }

    /** Returns the agent, not yet connected. */
    public Agent build() throws IOException {
        Objects.requireNonNull(id, "an agent has an id");
        Objects.requireNonNull(key, "an agent has a key");
        return new Agent(this);
    }

    /** Returns the agent, connected. Throws {@link BatonException} if the first attempt fails. */
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
