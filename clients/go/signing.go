package baton

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// The byte layouts that are signed or hashed, as docs/signing.md of the broker defines them.

// SignatureVersion is the signature layout that this client writes, and the only one that it accepts.
const SignatureVersion = 1

const (
	envelopeType = "application/vnd.baton.envelope.v1"
	contextType  = "application/vnd.baton.context.v1"
	sessionType  = "application/vnd.baton.session.v1"
	receiptType  = "application/vnd.baton.receipt.v1"
	// The layout of a receipt that names a resource.
	resourceReceiptType = "application/vnd.baton.receipt.v2"
	custodyType         = "application/vnd.baton.custody.v1"
	auditType           = "application/vnd.baton.audit.v1"
	voucherType         = "application/vnd.baton.key-voucher.v1"
)

// SignEnvelope signs the envelope in place: sets its key_id, signature_version and signature.
func SignEnvelope(envelope *v1.Envelope, keyID string, key ed25519.PrivateKey) {
	envelope.KeyId = keyID
	envelope.SignatureVersion = SignatureVersion
	envelope.Signature = ed25519.Sign(key, pae(envelopeType, envelopeBody(envelope)))
}

// VerifyEnvelope verifies the envelope's signature with this key, which must be valid at the envelope's timestamp. The
// caller decides whether the key is the sender's. It fails with a VerificationError: SIGNATURE_MISSING,
// SIGNATURE_VERSION_UNKNOWN, KEY_NOT_VALID, KEY_WEAK or SIGNATURE_INVALID.
func VerifyEnvelope(envelope *v1.Envelope, key *v1.AgentKey) error {
	if len(envelope.GetSignature()) == 0 {
		return &VerificationError{"SIGNATURE_MISSING", "the envelope is not signed"}
	}
	if version := envelope.GetSignatureVersion(); version != SignatureVersion {
		return &VerificationError{"SIGNATURE_VERSION_UNKNOWN", fmt.Sprintf("signature_version %d", version)}
	}
	if err := checkKey(key, envelope.GetTimestamp()); err != nil {
		return err
	}
	return verify(key, pae(envelopeType, envelopeBody(envelope)), envelope.GetSignature())
}

// VerifyReceipt verifies the broker's signature on a receipt. It fails with a VerificationError: KEY_UNKNOWN if another
// key signed it, SIGNATURE_MISSING, KEY_WEAK or SIGNATURE_INVALID.
func VerifyReceipt(receipt *v1.Receipt, brokerKey *v1.AgentKey) error {
	if len(receipt.GetSignature()) == 0 {
		return &VerificationError{"SIGNATURE_MISSING", "the receipt is not signed"}
	}
	if receipt.GetKeyId() != brokerKey.GetKeyId() {
		text := fmt.Sprintf("the receipt is signed with %q, not %q", receipt.GetKeyId(), brokerKey.GetKeyId())
		return &VerificationError{"KEY_UNKNOWN", text}
	}
	return verify(brokerKey, receiptInput(receipt), receipt.GetSignature())
}

// SectionDigest returns the digest of a context section, 32 bytes: of its text or bytes, or the digest in its reference
// or delta. It returns nil for a section without content.
func SectionDigest(section *v1.ContextSection) []byte {
	switch content := section.GetContent().(type) {
	case *v1.ContextSection_Json:
		return sum([]byte(content.Json))
	case *v1.ContextSection_Bytes:
		return sum(content.Bytes.GetData())
	case *v1.ContextSection_Reference:
		return content.Reference.GetSha256()
	case *v1.ContextSection_Delta:
		return content.Delta.GetResultSha256()
	}
	return nil
}

// ContextDigest returns the digest of a context, 32 bytes. The order of the sections does not matter.
func ContextDigest(sections []*v1.ContextSection) []byte {
	sorted := slices.Clone(sections)
	slices.SortFunc(sorted, func(a, b *v1.ContextSection) int { return strings.Compare(a.GetName(), b.GetName()) })
	var body []byte
	for _, section := range sorted {
		body = appendBytes(body, []byte(section.GetName()))
		body = appendBytes(body, SectionDigest(section))
	}
	return sum(pae(contextType, body))
}

// CustodyHash returns the next hash of a task's custody chain, 32 bytes. The first follows 32 zero bytes.
func CustodyHash(previous, entry []byte) []byte {
	return sum(pae(custodyType, appendBytes(appendBytes(nil, previous), entry)))
}

// AuditHash returns the next hash of the chain of the broker's audit log, 32 bytes. The first follows 32 zero bytes.
func AuditHash(previous, entry []byte) []byte {
	return sum(pae(auditType, appendBytes(appendBytes(nil, previous), entry)))
}

// Vouch signs an operator's voucher that the key is the agent's. notAfter is its expiry; the zero time for no expiry.
func Vouch(
	agentID string, key *v1.AgentKey, operatorKeyID string, operator ed25519.PrivateKey, notAfter time.Time,
) *v1.KeyVoucher {
	voucher := &v1.KeyVoucher{OperatorKeyId: operatorKeyID}
	if !notAfter.IsZero() {
		voucher.NotAfterTime = timestamppb.New(notAfter)
	}
	voucher.Signature = ed25519.Sign(operator, pae(voucherType, voucherBody(agentID, key, voucher)))
	return voucher
}

// VerifyVoucher verifies an operator's voucher that the key is the agent's, at this time. It fails with a
// VerificationError: KEY_NOT_VALID for an expired voucher, KEY_WEAK or SIGNATURE_INVALID.
func VerifyVoucher(agentID string, key *v1.AgentKey, voucher *v1.KeyVoucher, operator ed25519.PublicKey, at time.Time) error {
	if end := voucher.GetNotAfterTime(); end != nil && compareTimes(timestamppb.New(at), end) >= 0 {
		return &VerificationError{"KEY_NOT_VALID", fmt.Sprintf("the voucher for key %q is over", key.GetKeyId())}
	}
	operatorKey := &v1.AgentKey{KeyId: voucher.GetOperatorKeyId(), PublicKey: operator}
	return verify(operatorKey, pae(voucherType, voucherBody(agentID, key, voucher)), voucher.GetSignature())
}

// signSession signs the proof of identity for AgentService.CreateToken.
func signSession(agentID, keyID string, challenge []byte, key ed25519.PrivateKey) []byte {
	return ed25519.Sign(key, pae(sessionType, sessionBody(agentID, keyID, challenge)))
}

func envelopeBody(e *v1.Envelope) []byte {
	digest := sum(pae(e.GetPayload().GetTypeUrl(), e.GetPayload().GetValue()))
	body := appendBytes(nil, []byte(e.GetMessageId()))
	body = appendBytes(body, []byte(e.GetSenderId()))
	body = appendBytes(body, []byte(e.GetReceiverId()))
	body = appendTime(body, e.GetTimestamp())
	// A negative value, which no enum of the schema has, is sign-extended as protobuf does.
	body = appendNumber(body, uint64(int64(e.GetMessageType())))
	body = appendBytes(body, []byte(e.GetCorrelationId()))
	body = appendBytes(body, []byte(e.GetTaskId()))
	body = appendNumber(body, e.GetEpoch())
	body = appendTime(body, e.GetExpiresAt())
	body = appendBytes(body, []byte(e.GetKeyId()))
	return appendBytes(body, digest)
}

func sessionBody(agentID, keyID string, challenge []byte) []byte {
	body := appendBytes(nil, []byte(agentID))
	body = appendBytes(body, []byte(keyID))
	return appendBytes(body, challenge)
}

func voucherBody(agentID string, key *v1.AgentKey, voucher *v1.KeyVoucher) []byte {
	body := appendBytes(nil, []byte(agentID))
	body = appendBytes(body, []byte(key.GetKeyId()))
	body = appendBytes(body, key.GetPublicKey())
	body = appendBytes(body, []byte(voucher.GetOperatorKeyId()))
	return appendTime(body, voucher.GetNotAfterTime())
}

func receiptInput(r *v1.Receipt) []byte {
	if r.GetResource() != "" {
		return pae(resourceReceiptType, receiptBody(r))
	}
	return pae(receiptType, receiptBody(r))
}

func receiptBody(r *v1.Receipt) []byte {
	body := appendBytes(nil, []byte(r.GetMessageId()))
	body = appendNumber(body, r.GetSequence())
	body = appendTime(body, r.GetAcceptTime())
	body = appendBytes(body, []byte(r.GetTaskId()))
	body = appendNumber(body, uint64(int64(r.GetTaskStatus())))
	body = appendBytes(body, []byte(r.GetOwnerId()))
	body = appendNumber(body, r.GetEpoch())
	body = appendBytes(body, []byte(r.GetHandoffId()))
	body = appendNumber(body, uint64(int64(r.GetHandoffState())))
	body = appendBytes(body, r.GetCustodyHash())
	body = appendBytes(body, []byte(r.GetKeyId()))
	if r.GetResource() == "" {
		return body
	}
	body = appendBytes(body, []byte(r.GetResource()))
	return appendNumber(body, r.GetResourceSequence())
}

// checkKey checks that the key is valid at this time: at or after not_before_time, and before not_after_time. A revoked
// key is invalid at every time, also for older signatures: its thief can choose any timestamp.
func checkKey(key *v1.AgentKey, at *timestamppb.Timestamp) error {
	early := key.GetNotBeforeTime() != nil && compareTimes(at, key.GetNotBeforeTime()) < 0
	late := key.GetNotAfterTime() != nil && compareTimes(at, key.GetNotAfterTime()) >= 0
	if key.GetRevokeTime() != nil || early || late {
		return &VerificationError{"KEY_NOT_VALID", fmt.Sprintf("key %q is revoked, or not valid at this time", key.GetKeyId())}
	}
	return nil
}

func verify(key *v1.AgentKey, signed, signature []byte) error {
	public := key.GetPublicKey()
	if len(public) == ed25519.PublicKeySize && isWeak(public) {
		return &VerificationError{"KEY_WEAK", fmt.Sprintf("key %q is weak: signatures can be forged under it", key.GetKeyId())}
	}
	// The library refuses an S of L or more and every R but the computed one. It accepts a small-order R.
	wellFormed := len(public) == ed25519.PublicKeySize && len(signature) == ed25519.SignatureSize
	if !wellFormed || isWeak(signature[:32]) || !ed25519.Verify(public, signed, signature) {
		return &VerificationError{"SIGNATURE_INVALID", fmt.Sprintf("the signature does not verify with key %q", key.GetKeyId())}
	}
	return nil
}

var (
	fieldPrime = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))
	// The y of the 8 points of small order: the identity, orders 2 and 4, and the two of order 8.
	smallOrderY = func() []*big.Int {
		order8, _ := new(big.Int).SetString("2707385501144840649318225287225658788936804267575313519463743609750303402022", 10)
		minus := func(y *big.Int) *big.Int { return new(big.Int).Sub(fieldPrime, y) }
		return []*big.Int{big.NewInt(1), minus(big.NewInt(1)), big.NewInt(0), order8, minus(order8)}
	}()
)

// isWeak reports whether 32 bytes encode a point of small order, canonically or not. Signatures by this key can be
// forged.
func isWeak(point []byte) bool {
	bigEndian := bytes.Clone(point)
	slices.Reverse(bigEndian)
	bigEndian[0] &= 0x7f
	y := new(big.Int).SetBytes(bigEndian)
	y.Mod(y, fieldPrime)
	return slices.ContainsFunc(smallOrderY, func(weak *big.Int) bool { return weak.Cmp(y) == 0 })
}

// pae returns DSSE's pre-authentication encoding of a body.
func pae(kind string, body []byte) []byte {
	return append(fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(kind), kind, len(body)), body...)
}

func sum(data []byte) []byte {
	digest := sha256.Sum256(data)
	return digest[:]
}

func appendBytes(to, value []byte) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(value))), value...)
}

func appendNumber(to []byte, value uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(to, 8), value)
}

func appendTime(to []byte, value *timestamppb.Timestamp) []byte {
	if value == nil {
		return appendBytes(to, nil)
	}
	to = binary.BigEndian.AppendUint32(to, 12)
	to = binary.BigEndian.AppendUint64(to, uint64(value.GetSeconds()))
	return binary.BigEndian.AppendUint32(to, uint32(value.GetNanos()))
}

func compareTimes(a, b *timestamppb.Timestamp) int {
	return cmp.Or(cmp.Compare(a.GetSeconds(), b.GetSeconds()), cmp.Compare(a.GetNanos(), b.GetNanos()))
}
