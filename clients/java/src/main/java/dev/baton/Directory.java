package dev.baton;

import com.google.protobuf.ByteString;
import com.google.protobuf.Timestamp;
import dev.baton.v1.Agent;
import dev.baton.v1.AgentKey;
import dev.baton.v1.Envelope;
import dev.baton.v1.KeyVoucher;
import dev.baton.v1.Welcome;
import java.time.Clock;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;

/**
 * The public keys of other agents, pinned or from the broker's directory. If operators are configured, a key of the
 * directory is valid only with a voucher of one of them.
 */
final class Directory {
    /** The lifetime of a cached key, and so the maximum delay before a revocation takes effect here. */
    static final Duration KEY_CACHE_TIME = Duration.ofSeconds(60);

    private record Fetched(long atNanos, Map<String, AgentKey> keys) {}

    private final Function<String, Agent> getAgent;
    private final Map<String, byte[]> operators;
    private final Clock clock;
    private final Map<String, Map<String, AgentKey>> pinned = new HashMap<>();
    private final Map<String, Fetched> fetched = new ConcurrentHashMap<>();
    private volatile Welcome broker = Welcome.getDefaultInstance();

    Directory(
            Function<String, Agent> getAgent,
            Map<String, ? extends Collection<AgentKey>> pinned,
            Map<String, byte[]> operators,
            Clock clock) {
        this.getAgent = getAgent;
        this.operators = Map.copyOf(operators);
        this.clock = clock;
        pinned.forEach((agentId, keys) -> this.pinned.put(agentId, byId(keys)));
    }

    /** Stores the broker's own key from its welcome over TLS. Pinned keys of the broker take precedence. */
    void meetBroker(Welcome welcome) {
        broker = welcome;
    }

    /** Verifies the sender's signature. Throws VerificationException; BatonException if the keys cannot be fetched. */
    void verify(Envelope envelope) {
        Signing.verify(envelope, key(envelope.getSenderId(), envelope.getKeyId()));
    }

    /** Returns one key. Throws VerificationException, KEY_UNKNOWN; BatonException if the keys cannot be fetched. */
    AgentKey key(String agentId, String keyId) {
        Map<String, AgentKey> keys = pinned.get(agentId);
        AgentKey brokerKey = broker.getBrokerKey();
        if (keys == null && agentId.equals(broker.getBrokerId()) && keyId.equals(brokerKey.getKeyId())) {
            return brokerKey;
        }
        if (keys == null) {
            Fetched known = fetched.get(agentId);
            boolean isFresh = known != null && System.nanoTime() - known.atNanos() < KEY_CACHE_TIME.toNanos();
            if (!isFresh || !known.keys().containsKey(keyId)) {
                Agent agent = getAgent.apply(agentId);
                known = new Fetched(System.nanoTime(), byId(agent.getCard().getKeysList()));
                fetched.put(agentId, known);
            }
            keys = known.keys();
        }
        AgentKey key = keys.get(keyId);
        if (key == null) {
            throw new VerificationException("KEY_UNKNOWN", agentId + " has no key " + keyId);
        }
        // The broker itself is the authority for its own key, so that key needs no voucher.
        boolean needsVoucher =
                !operators.isEmpty() && !pinned.containsKey(agentId) && !agentId.equals(dev.baton.Agent.BROKER_ID);
        if (needsVoucher && key.getVouchersList().stream().noneMatch(voucher -> vouches(voucher, agentId, key))) {
            throw new VerificationException("KEY_UNKNOWN", "no operator vouches for key " + keyId + " of " + agentId);
        }
        return key;
    }

    private boolean vouches(KeyVoucher voucher, String agentId, AgentKey key) {
        byte[] operator = operators.get(voucher.getOperatorKeyId());
        Timestamp notAfter = voucher.hasNotAfterTime() ? voucher.getNotAfterTime() : null;
        if (operator == null || isOver(notAfter)) {
            return false;
        }
        AgentKey operatorKey = AgentKey.newBuilder()
                .setKeyId(voucher.getOperatorKeyId())
                .setPublicKey(ByteString.copyFrom(operator))
                .build();
        try {
            Signing.verifyVoucher(agentId, key, operatorKey, notAfter, voucher.getSignature());
            return true;
        } catch (VerificationException e) {
            return false;
        }
    }

    private boolean isOver(Timestamp notAfter) {
        return notAfter != null && Times.compare(notAfter, Times.ofInstant(clock.instant())) <= 0;
    }

    private static Map<String, AgentKey> byId(Collection<AgentKey> keys) {
        Map<String, AgentKey> byId = new HashMap<>();
        keys.forEach(key -> byId.put(key.getKeyId(), key));
        return byId;
    }
}
