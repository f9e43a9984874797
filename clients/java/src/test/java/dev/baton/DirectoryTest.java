package dev.baton;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.google.protobuf.ByteString;
import com.google.protobuf.Timestamp;
import dev.baton.v1.AgentCard;
import dev.baton.v1.AgentKey;
import dev.baton.v1.KeyVoucher;
import java.security.KeyPair;
import java.time.Clock;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** With operators configured, a key needs a voucher of one of them. */
class DirectoryTest {
    private static final Timestamp PAST = Timestamp.newBuilder().setSeconds(1).build();
    private static final Timestamp FUTURE = Timestamp.newBuilder().setSeconds(1L << 33).build();

    private final KeyPair operator = Keys.generate();
    private final AgentKey key = AgentKey.newBuilder()
            .setKeyId("k1")
            .setPublicKey(ByteString.copyFrom(Keys.publicBytes(Keys.generate())))
            .build();

    @Test
    void anOperatorsWordMakesAKeyGood() {
        assertEquals("", refusal(Map.of(), Signing.vouch("alice", key, "ops", operator, null)));
        assertEquals("", refusal(Map.of(), Signing.vouch("alice", key, "ops", operator, FUTURE)));
        assertEquals("", refusal(Map.of("alice", List.of(key))), "pinned keys need no voucher");
    }

    @Test
    void noOtherWordDoes() {
        AgentKey named = key.toBuilder().setKeyId("k2").build();
        KeyVoucher over = Signing.vouch("alice", key, "ops", operator, PAST);
        assertEquals("KEY_UNKNOWN", refusal(Map.of()));
        for (KeyVoucher bad : List.of(
                Signing.vouch("alice", key, "others", operator, null),
                Signing.vouch("alice", key, "ops", Keys.generate(), null),
                Signing.vouch("bob", key, "ops", operator, null),
                Signing.vouch("alice", named, "ops", operator, null),
                over,
                over.toBuilder().clearNotAfterTime().build())) {
            assertEquals("KEY_UNKNOWN", refusal(Map.of(), bad), bad.toString());
        }
    }

    private String refusal(Map<String, List<AgentKey>> pinned, KeyVoucher... vouchers) {
        AgentKey vouched = key.toBuilder().addAllVouchers(List.of(vouchers)).build();
        var agent = dev.baton.v1.Agent.newBuilder().setCard(AgentCard.newBuilder().addKeys(vouched)).build();
        byte[] operatorKey = Keys.publicBytes(operator);
        Directory directory =
                new Directory(agentId -> agent, pinned, Map.of("ops", operatorKey), Clock.systemUTC());
        try {
            directory.key("alice", "k1");
            return "";
        } catch (VerificationException e) {
            return e.reason();
        }
    }
}
