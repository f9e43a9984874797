package dev.baton;

import com.google.protobuf.ByteString;
import com.google.protobuf.Timestamp;
import dev.baton.v1.AgentKey;
import dev.baton.v1.ContextSection;
import dev.baton.v1.Envelope;
import dev.baton.v1.KeyVoucher;
import dev.baton.v1.Receipt;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.KeyPair;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Comparator;

/** The byte layouts that are signed or hashed, as the broker's {@code docs/signing.md} defines them. */
public final class Signing {
    /** The signature layout that this client writes, and the only one that it accepts. */
    public static final int SIGNATURE_VERSION = 1;

    private static final String ENVELOPE = "application/vnd.baton.envelope.v1";
    private static final String CONTEXT = "application/vnd.baton.context.v1";
    private static final String SESSION = "application/vnd.baton.session.v1";
    private static final String RECEIPT = "application/vnd.baton.receipt.v1";
    private static final String RECEIPT_OF_RESOURCE = "application/vnd.baton.receipt.v2";
    private static final String CUSTODY = "application/vnd.baton.custody.v1";
    private static final String AUDIT = "application/vnd.baton.audit.v1";
    private static final String VOUCHER = "application/vnd.baton.key-voucher.v1";

    private Signing() {}

    /** Returns DSSE's pre-authentication encoding of a body. */
    public static byte[] pae(String type, byte[] body) {
        byte[] name = type.getBytes(StandardCharsets.UTF_8);
        ByteArrayOutputStream out = new ByteArrayOutputStream(body.length + name.length + 32);
        out.writeBytes(("DSSEv1 " + name.length + " ").getBytes(StandardCharsets.US_ASCII));
        out.writeBytes(name);
        out.writeBytes((" " + body.length + " ").getBytes(StandardCharsets.US_ASCII));
        out.writeBytes(body);
        return out.toByteArray();
    }

    /** Returns the signed fields of an envelope: all but trace context, signature and signature version. */
    public static byte[] envelopeBody(Envelope envelope) {
        byte[] value = envelope.getPayload().getValue().toByteArray();
        return new Body()
                .text(envelope.getMessageId())
                .text(envelope.getSenderId())
                .text(envelope.getReceiverId())
                .time(envelope.hasTimestamp() ? envelope.getTimestamp() : null)
                .number(envelope.getMessageTypeValue())
                .text(envelope.getCorrelationId())
                .text(envelope.getTaskId())
                .number(envelope.getEpoch())
                .time(envelope.hasExpiresAt() ? envelope.getExpiresAt() : null)
                .text(envelope.getKeyId())
                .bytes(sha256(pae(envelope.getPayload().getTypeUrl(), value)))
                .done();
    }

    /** Returns the signed envelope, with its key_id, signature_version and signature. */
    public static Envelope sign(Envelope envelope, String keyId, KeyPair key) {
        Envelope.Builder signed = envelope.toBuilder().setKeyId(keyId).setSignatureVersion(SIGNATURE_VERSION);
        byte[] signature = Keys.sign(key.getPrivate(), pae(ENVELOPE, envelopeBody(signed.build())));
        return signed.setSignature(ByteString.copyFrom(signature)).build();
    }

    /** Returns the digest of an envelope's signed fields, 32 bytes: the content_digest of a custody log. */
    public static byte[] contentDigest(Envelope envelope) {
        return sha256(pae(ENVELOPE, envelopeBody(envelope)));
    }

    /**
     * Verifies the envelope's signature with this key, which must be valid at the envelope's timestamp. The caller
     * decides whether the key is the sender's. Throws {@link VerificationException}: SIGNATURE_MISSING,
     * SIGNATURE_VERSION_UNKNOWN, KEY_NOT_VALID, KEY_WEAK or SIGNATURE_INVALID.
     */
    public static void verify(Envelope envelope, AgentKey key) {
        if (envelope.getSignature().isEmpty()) {
            throw new VerificationException("SIGNATURE_MISSING", "the envelope is not signed");
        }
        if (envelope.getSignatureVersion() != SIGNATURE_VERSION) {
            String version = Integer.toUnsignedString(envelope.getSignatureVersion());
            throw new VerificationException("SIGNATURE_VERSION_UNKNOWN", "signature_version " + version);
        }
        checkKey(key, envelope.getTimestamp());
        verify(key, pae(ENVELOPE, envelopeBody(envelope)), envelope.getSignature());
    }

    /**
     * Checks that the key is valid at this time: at or after not_before_time, and before not_after_time. A revoked key
     * is invalid at every time, also for older signatures: its thief can choose any timestamp. Throws
     * {@link VerificationException}: KEY_NOT_VALID.
     */
    public static void checkKey(AgentKey key, Timestamp at) {
        boolean isTooEarly = key.hasNotBeforeTime() && Times.compare(at, key.getNotBeforeTime()) < 0;
        boolean isTooLate = key.hasNotAfterTime() && Times.compare(at, key.getNotAfterTime()) >= 0;
        if (key.hasRevokeTime() || isTooEarly || isTooLate) {
            throw new VerificationException(
                    "KEY_NOT_VALID", "key " + key.getKeyId() + " is revoked, or not valid at this time");
        }
    }

    /** Returns a section's digest, 32 bytes: of its text or bytes, or the digest in its reference or delta. */
    public static byte[] sectionDigest(ContextSection section) {
        return switch (section.getContentCase()) {
            case JSON -> sha256(section.getJsonBytes().toByteArray());
            case BYTES -> sha256(section.getBytes().getData().toByteArray());
            case REFERENCE -> section.getReference().getSha256().toByteArray();
            case DELTA -> section.getDelta().getResultSha256().toByteArray();
            case CONTENT_NOT_SET -> throw new IllegalArgumentException(
                    "section " + section.getName() + " has no content");
        };
    }

    /** Returns the digest of a context, 32 bytes. The order of the sections does not matter. */
    public static byte[] contextDigest(Iterable<ContextSection> sections) {
        record Named(ByteString name, byte[] digest) {}
        var named = new ArrayList<Named>();
        for (ContextSection section : sections) {
            named.add(new Named(section.getNameBytes(), sectionDigest(section)));
        }
        named.sort(Comparator.comparing(Named::name, ByteString.unsignedLexicographicalComparator()));
        Body body = new Body();
        for (Named one : named) {
            body.bytes(one.name().toByteArray()).bytes(one.digest());
        }
        return sha256(pae(CONTEXT, body.done()));
    }

    /** Returns the signed fields of a proof of identity. */
    public static byte[] sessionBody(String agentId, String keyId, byte[] challenge) {
        return new Body().text(agentId).text(keyId).bytes(challenge).done();
    }

    /** Signs the proof of identity for AgentService.CreateToken, 64 bytes. */
    public static byte[] signSession(String agentId, String keyId, byte[] challenge, KeyPair key) {
        return Keys.sign(key.getPrivate(), pae(SESSION, sessionBody(agentId, keyId, challenge)));
    }

    /** Returns the signed fields of a receipt: all but the signature. */
    public static byte[] receiptBody(Receipt receipt) {
        Body body = new Body()
                .text(receipt.getMessageId())
                .number(receipt.getSequence())
                .time(receipt.hasAcceptTime() ? receipt.getAcceptTime() : null)
                .text(receipt.getTaskId())
                .number(receipt.getTaskStatusValue())
                .text(receipt.getOwnerId())
                .number(receipt.getEpoch())
                .text(receipt.getHandoffId())
                .number(receipt.getHandoffStateValue())
                .bytes(receipt.getCustodyHash().toByteArray())
                .text(receipt.getKeyId());
        if (!receipt.getResource().isEmpty()) {
            body.text(receipt.getResource()).number(receipt.getResourceSequence());
        }
        return body.done();
    }

    /**
     * Verifies the broker's signature on a receipt. Throws {@link VerificationException}: KEY_UNKNOWN if another key
     * signed it, SIGNATURE_MISSING, KEY_WEAK or SIGNATURE_INVALID.
     */
    public static void verifyReceipt(Receipt receipt, AgentKey brokerKey) {
        if (receipt.getSignature().isEmpty()) {
            throw new VerificationException("SIGNATURE_MISSING", "the receipt is not signed");
        }
        if (!receipt.getKeyId().equals(brokerKey.getKeyId())) {
            throw new VerificationException(
                    "KEY_UNKNOWN", "the receipt is signed with " + receipt.getKeyId() + ", not " + brokerKey.getKeyId());
        }
        String type = receipt.getResource().isEmpty() ? RECEIPT : RECEIPT_OF_RESOURCE;
        verify(brokerKey, pae(type, receiptBody(receipt)), receipt.getSignature());
    }

    /** Returns the next hash of a custody chain, 32 bytes. The first follows 32 zero bytes. */
    public static byte[] custodyHash(byte[] previous, byte[] entry) {
        return sha256(pae(CUSTODY, new Body().bytes(previous).bytes(entry).done()));
    }

    /** Returns the next hash of the administrative chain, 32 bytes. The first follows 32 zero bytes. */
    public static byte[] auditHash(byte[] previous, byte[] entry) {
        return sha256(pae(AUDIT, new Body().bytes(previous).bytes(entry).done()));
    }

    /** Returns the signed fields of a key voucher; the last is its expiry, or null for no expiry. */
    public static byte[] voucherBody(String agentId, AgentKey key, String operatorKeyId, Timestamp notAfter) {
        return new Body()
                .text(agentId)
                .text(key.getKeyId())
                .bytes(key.getPublicKey().toByteArray())
                .text(operatorKeyId)
                .time(notAfter)
                .done();
    }

    /** Signs an operator's voucher that the key is the agent's. {@code notAfter} is its expiry; null for no expiry. */
    public static KeyVoucher vouch(
            String agentId, AgentKey key, String operatorKeyId, KeyPair operator, Timestamp notAfter) {
        byte[] signed = pae(VOUCHER, voucherBody(agentId, key, operatorKeyId, notAfter));
        KeyVoucher.Builder voucher = KeyVoucher.newBuilder()
                .setOperatorKeyId(operatorKeyId)
                .setSignature(ByteString.copyFrom(Keys.sign(operator.getPrivate(), signed)));
        return notAfter == null ? voucher.build() : voucher.setNotAfterTime(notAfter).build();
    }

    /**
     * Verifies an operator's signature on the voucher for an agent's key. The caller checks the voucher's expiry.
     * Throws {@link VerificationException}: KEY_WEAK or SIGNATURE_INVALID.
     */
    public static void verifyVoucher(
            String agentId, AgentKey key, AgentKey operatorKey, Timestamp notAfter, ByteString signature) {
        byte[] body = voucherBody(agentId, key, operatorKey.getKeyId(), notAfter);
        verify(operatorKey, pae(VOUCHER, body), signature);
    }

    static byte[] sha256(byte[] bytes) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(bytes);
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("every JDK has SHA-256", e);
        }
    }

    private static void verify(AgentKey key, byte[] signed, ByteString signature) {
        byte[] publicKey = key.getPublicKey().toByteArray();
        if (Keys.isWeak(publicKey)) {
            throw new VerificationException(
                    "KEY_WEAK", "key " + key.getKeyId() + " is weak: signatures can be forged under it");
        }
        if (!Keys.verifies(publicKey, signed, signature.toByteArray())) {
            throw new VerificationException(
                    "SIGNATURE_INVALID", "the signature does not verify with key " + key.getKeyId());
        }
    }

    /** A sequence of fields, each after its length. */
    private static final class Body {
        private final ByteArrayOutputStream out = new ByteArrayOutputStream(256);

        Body bytes(byte[] value) {
            out.writeBytes(ByteBuffer.allocate(4).putInt(value.length).array());
            out.writeBytes(value);
            return this;
        }

        Body text(String value) {
            return bytes(value.getBytes(StandardCharsets.UTF_8));
        }

        Body number(long value) {
            return bytes(ByteBuffer.allocate(8).putLong(value).array());
        }

        Body time(Timestamp value) {
            if (value == null) {
                return bytes(new byte[0]);
            }
            return bytes(ByteBuffer.allocate(12)
                    .putLong(value.getSeconds())
                    .putInt(value.getNanos())
                    .array());
        }

        byte[] done() {
            return out.toByteArray();
        }
    }
}
