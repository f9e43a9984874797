package dev.baton;

import static dev.baton.Vectors.bytes;
import static dev.baton.Vectors.hex;
import static dev.baton.Vectors.string;
import static dev.baton.Vectors.text;
import static dev.baton.Vectors.time;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.protobuf.ByteString;
import com.google.protobuf.Timestamp;
import dev.baton.v1.AgentKey;
import dev.baton.v1.ContextBytes;
import dev.baton.v1.ContextDelta;
import dev.baton.v1.ContextFilter;
import dev.baton.v1.ContextReference;
import dev.baton.v1.ContextSection;
import dev.baton.v1.Envelope;
import dev.baton.v1.HistoryFilter;
import dev.baton.v1.KeyVoucher;
import dev.baton.v1.Receipt;
import dev.baton.v1.TraceContext;
import java.security.KeyPair;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

class VectorsTest {
    private static final JsonObject SIGNING = Vectors.load("signing-v1.json");
    private static final JsonObject REFUSALS = Vectors.load("refusals-v1.json");
    private static final JsonObject DIGESTS = Vectors.load("digests-v1.json");

    @TestFactory
    Stream<DynamicTest> envelopesAreSignedAsPinned() {
        KeyPair key = Keys.ofSeed(bytes(SIGNING, "private_key_seed"));
        assertEquals(text(SIGNING, "public_key"), hex(Keys.publicBytes(key)));
        AgentKey agentKey = AgentKey.newBuilder().setKeyId("k1").setPublicKey(string(SIGNING, "public_key")).build();
        return Vectors.each(SIGNING, "vectors", one -> {
            Envelope envelope = Vectors.envelope(one.getAsJsonObject("envelope")).build();
            byte[] body = Signing.envelopeBody(envelope);
            assertEquals(text(one, "body"), hex(body));
            byte[] signed = Signing.pae("application/vnd.baton.envelope.v1", body);
            assertEquals(text(one, "signing_input_sha256"), hex(Signing.sha256(signed)));
            Envelope made = Signing.sign(envelope, "k1", key);
            assertEquals(text(one, "signature"), hex(made.getSignature().toByteArray()));
            assertEquals(1, made.getSignatureVersion());
            Signing.verify(made, agentKey);
        });
    }

    @TestFactory
    Stream<DynamicTest> whatMustNotVerifyDoesNot() {
        return Vectors.each(REFUSALS, "cases", one -> {
            AgentKey.Builder key = AgentKey.newBuilder().setKeyId("k1").setPublicKey(string(one, "public_key"));
            time(one, "not_before", key::setNotBeforeTime);
            time(one, "not_after", key::setNotAfterTime);
            time(one, "revoked_at", key::setRevokeTime);
            String expected = text(one, "expect");
            if (expected.equals("valid")) {
                Signing.verify(signed(one), key.build());
            } else {
                var refused = assertThrows(VerificationException.class, () -> Signing.verify(signed(one), key.build()));
                assertEquals(expected, refused.reason());
            }
        });
    }

    @Test
    void traceContextIsOutsideOfTheSignature() {
        JsonObject valid = REFUSALS.getAsJsonArray("cases").get(0).getAsJsonObject();
        TraceContext trace = TraceContext.newBuilder().setTraceparent("00-0af7651916cd43dd-b7ad6b71-01").build();
        AgentKey key = AgentKey.newBuilder().setPublicKey(string(valid, "public_key")).build();
        Signing.verify(signed(valid).toBuilder().setTraceContext(trace).build(), key);
    }

    @TestFactory
    Stream<DynamicTest> whatIsNoKeyVerifiesNothing() {
        JsonObject valid = REFUSALS.getAsJsonArray("cases").get(0).getAsJsonObject();
        byte[] noPoint = new byte[32];
        noPoint[0] = 2;
        return Stream.of(new byte[0], new byte[31], new byte[33], noPoint)
                .map(bytes -> DynamicTest.dynamicTest(bytes.length + " bytes", () -> {
                    AgentKey key = AgentKey.newBuilder().setPublicKey(ByteString.copyFrom(bytes)).build();
                    var refused = assertThrows(VerificationException.class, () -> Signing.verify(signed(valid), key));
                    assertEquals("SIGNATURE_INVALID", refused.reason());
                }));
    }

    @TestFactory
    Stream<DynamicTest> contextDigests() {
        return Vectors.each(DIGESTS, "contexts", one -> {
            List<ContextSection> sections = new ArrayList<>();
            for (JsonElement section : one.getAsJsonArray("sections")) {
                sections.add(section(section.getAsJsonObject()));
            }
            JsonObject expected = one.getAsJsonObject("section_digests");
            assertEquals(expected.size(), sections.size());
            for (ContextSection section : sections) {
                assertEquals(text(expected, section.getName()), hex(Signing.sectionDigest(section)));
            }
            assertEquals(text(one, "context_digest"), hex(Signing.contextDigest(sections)));
            Collections.reverse(sections);
            assertEquals(text(one, "context_digest"), hex(Signing.contextDigest(sections)));
        });
    }

    @Test
    void aSectionWithoutContentHasNoDigest() {
        ContextSection empty = ContextSection.newBuilder().setName("goals").build();
        assertThrows(IllegalArgumentException.class, () -> Signing.sectionDigest(empty));
    }

    @TestFactory
    Stream<DynamicTest> proofsOfIdentity() {
        KeyPair key = Keys.ofSeed(bytes(DIGESTS, "private_key_seed"));
        return Vectors.each(DIGESTS, "sessions", one -> {
            byte[] challenge = bytes(one, "challenge");
            byte[] body = Signing.sessionBody(text(one, "agent_id"), text(one, "key_id"), challenge);
            assertEquals(text(one, "body"), hex(body));
            byte[] proof = Signing.signSession(text(one, "agent_id"), text(one, "key_id"), challenge, key);
            assertEquals(text(one, "signature"), hex(proof));
        });
    }

    @TestFactory
    Stream<DynamicTest> receipts() {
        return Stream.of("receipts", "resource_receipts").flatMap(list -> Vectors.each(DIGESTS, list, one -> {
            Receipt receipt = receipt(one);
            assertEquals(text(one, "body"), hex(Signing.receiptBody(receipt)));
            Signing.verifyReceipt(receipt, brokerKey(receipt));
            Receipt changed = receipt.toBuilder().setResource("another").build();
            var refused = assertThrows(
                    VerificationException.class, () -> Signing.verifyReceipt(changed, brokerKey(receipt)));
            assertEquals("SIGNATURE_INVALID", refused.reason());
        }));
    }

    @TestFactory
    Stream<DynamicTest> changedReceiptsDoNotVerify() {
        record Change(String expected, UnaryOperator<Receipt.Builder> make) {}
        Receipt receipt = receipt(DIGESTS.getAsJsonArray("receipts").get(0).getAsJsonObject());
        return Stream.of(
                        new Change("SIGNATURE_INVALID", one -> one.setEpoch(3)),
                        new Change("SIGNATURE_INVALID", one -> one.setOwnerId("AgentC")),
                        new Change("SIGNATURE_INVALID", one -> one.setCustodyHash(ByteString.copyFrom(new byte[32]))),
                        new Change("SIGNATURE_MISSING", one -> one.clearSignature()),
                        new Change("KEY_UNKNOWN", one -> one.setKeyId("another")))
                .map(change -> DynamicTest.dynamicTest(change.expected(), () -> {
                    Receipt changed = change.make().apply(receipt.toBuilder()).build();
                    var refused = assertThrows(
                            VerificationException.class, () -> Signing.verifyReceipt(changed, brokerKey(receipt)));
                    assertEquals(change.expected(), refused.reason());
                }));
    }

    @Test
    void custodyChain() {
        JsonObject custody = DIGESTS.getAsJsonObject("custody");
        byte[] head = new byte[32];
        var entries = custody.getAsJsonArray("entries");
        var hashes = custody.getAsJsonArray("hashes");
        assertEquals(entries.size(), hashes.size());
        for (int i = 0; i < entries.size(); i++) {
            head = Signing.custodyHash(head, HexFormat.of().parseHex(entries.get(i).getAsString()));
            assertEquals(hashes.get(i).getAsString(), hex(head));
        }
    }

    @Test
    void auditChain() {
        JsonObject audit = DIGESTS.getAsJsonObject("audit");
        byte[] head = new byte[32];
        var entries = audit.getAsJsonArray("entries");
        var hashes = audit.getAsJsonArray("hashes");
        assertEquals(entries.size(), hashes.size());
        for (int i = 0; i < entries.size(); i++) {
            head = Signing.auditHash(head, HexFormat.of().parseHex(entries.get(i).getAsString()));
            assertEquals(hashes.get(i).getAsString(), hex(head));
        }
    }

    @TestFactory
    Stream<DynamicTest> vouchers() {
        return Vectors.each(DIGESTS, "vouchers", one -> {
            AgentKey key = AgentKey.newBuilder()
                    .setKeyId(text(one, "key_id"))
                    .setPublicKey(string(one, "public_key"))
                    .build();
            AgentKey operator = AgentKey.newBuilder()
                    .setKeyId(text(one, "operator_key_id"))
                    .setPublicKey(string(DIGESTS, "operator_public_key"))
                    .build();
            AtomicReference<Timestamp> notAfter = new AtomicReference<>();
            time(one, "not_after_time", notAfter::set);
            String agent = text(one, "agent_id");
            byte[] body = Signing.voucherBody(agent, key, operator.getKeyId(), notAfter.get());
            assertEquals(text(one, "body"), hex(body));
            KeyPair seeded = Keys.ofSeed(bytes(DIGESTS, "operator_private_key_seed"));
            KeyVoucher made = Signing.vouch(agent, key, operator.getKeyId(), seeded, notAfter.get());
            assertEquals(string(one, "signature"), made.getSignature());
            Signing.verifyVoucher(agent, key, operator, notAfter.get(), string(one, "signature"));
            assertThrows(
                    VerificationException.class,
                    () -> Signing.verifyVoucher("AgentB", key, operator, notAfter.get(), string(one, "signature")));
        });
    }

    private static Envelope signed(JsonObject one) {
        return Vectors.envelope(one.getAsJsonObject("envelope"))
                .setSignature(string(one, "signature"))
                .setSignatureVersion(one.get("signature_version").getAsInt())
                .build();
    }

    private static ContextSection section(JsonObject one) {
        ContextSection.Builder section = ContextSection.newBuilder().setName(text(one, "name"));
        if (one.has("json")) {
            return section.setJson(text(one, "json")).build();
        }
        if (one.has("bytes")) {
            return section.setBytes(ContextBytes.newBuilder().setData(string(one, "bytes"))).build();
        }
        if (one.has("reference_sha256")) {
            ByteString digest = string(one, "reference_sha256");
            return section.setReference(ContextReference.newBuilder().setSha256(digest)).build();
        }
        ByteString digest = string(one, "delta_result_sha256");
        return section.setDelta(ContextDelta.newBuilder().setResultSha256(digest)).build();
    }

    private static Receipt receipt(JsonObject one) {
        JsonObject fields = one.getAsJsonObject("receipt");
        Receipt.Builder receipt = Receipt.newBuilder()
                .setMessageId(text(fields, "message_id"))
                .setSequence(fields.get("sequence").getAsBigInteger().longValue())
                .setTaskId(text(fields, "task_id"))
                .setTaskStatusValue(fields.get("task_status").getAsInt())
                .setOwnerId(text(fields, "owner_id"))
                .setEpoch(fields.get("epoch").getAsBigInteger().longValue())
                .setHandoffId(text(fields, "handoff_id"))
                .setHandoffStateValue(fields.get("handoff_state").getAsInt())
                .setCustodyHash(string(fields, "custody_hash"))
                .setKeyId(text(fields, "key_id"))
                .setSignature(string(one, "signature"));
        time(fields, "accept_time", receipt::setAcceptTime);
        if (fields.has("resource")) {
            receipt.setResource(text(fields, "resource"))
                    .setResourceSequence(fields.get("resource_sequence").getAsBigInteger().longValue());
        }
        return receipt.build();
    }

    private static AgentKey brokerKey(Receipt receipt) {
        return AgentKey.newBuilder()
                .setKeyId(receipt.getKeyId())
                .setPublicKey(string(DIGESTS, "broker_public_key"))
                .build();
    }

    @TestFactory
    Stream<DynamicTest> deltasGiveThePinnedResults() {
        return Vectors.each(Vectors.load("deltas-v1.json"), "cases", one -> {
            String base = text(one, "base");
            if (one.get("result").isJsonNull()) {
                assertThrows(SectionException.class, () -> Sections.applyDelta(base, text(one, "patch")));
                return;
            }
            String result = Sections.applyDelta(base, text(one, "patch"));
            assertEquals(text(one, "result"), result);
            assertEquals(text(one, "result_sha256"), hex(Sections.sha256(result).toByteArray()));
            Sections.deltaBetween(base, result).ifPresent(made -> {
                assertEquals(result, made.result());
                assertEquals(result, Sections.applyDelta(base, made.delta().getMergePatch()));
                assertEquals(Sections.sha256(result), made.delta().getResultSha256());
            });
        });
    }

    @TestFactory
    Stream<DynamicTest> filtersKeepThePinnedParts() {
        return Vectors.each(Vectors.load("filters-v1.json"), "cases", one -> {
            JsonObject chosen = one.getAsJsonObject("filter");
            ContextFilter.Builder filter = ContextFilter.newBuilder();
            if (chosen.has("history")) {
                filter.setHistory(HistoryFilter.valueOf("HISTORY_FILTER_" + text(chosen, "history")));
            }
            if (chosen.has("last")) {
                filter.setLast(chosen.get("last").getAsInt());
            }
            if (chosen.has("json_pointers")) {
                chosen.getAsJsonArray("json_pointers").forEach(pointer -> filter.addJsonPointers(pointer.getAsString()));
            }
            String section = text(one, "section");
            String summary = text(one, "summary");
            if (one.get("result").isJsonNull()) {
                assertThrows(SectionException.class, () -> Sections.filter(section, filter.build(), summary));
            } else {
                assertEquals(text(one, "result"), Sections.filter(section, filter.build(), summary));
            }
        });
    }

    @Test
    void numbersAreAsEcmaScriptWritesThem() {
        String numbers = "[2.0E-3,5.684341886080802e-14,4.9e-324,1e-7,0.000001,-0.0,123456.789,1.5e-10,9007199254740991]";
        String expected =
                "[0.002,5.684341886080802e-14,5e-324,1e-7,0.000001,0,123456.789,1.5e-10,9007199254740991]";
        assertEquals(expected, CanonicalJson.write(CanonicalJson.parse(numbers)));
    }
}
