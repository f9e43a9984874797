package baton

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// The vectors that the tests of every language run.

type hexBytes []byte

func (h *hexBytes) UnmarshalJSON(text []byte) error {
	var word string
	if err := json.Unmarshal(text, &word); err != nil {
		return err
	}
	decoded, err := hex.DecodeString(word)
	*h = decoded
	return err
}

type vectorTime struct{ *timestamppb.Timestamp }

func (t *vectorTime) UnmarshalJSON(text []byte) error {
	var parts []int64
	if err := json.Unmarshal(text, &parts); err != nil || parts == nil {
		return err
	}
	t.Timestamp = &timestamppb.Timestamp{Seconds: parts[0], Nanos: int32(parts[1])}
	return nil
}

type vectorEnvelope struct {
	MessageID     string     `json:"message_id"`
	SenderID      string     `json:"sender_id"`
	ReceiverID    string     `json:"receiver_id"`
	Timestamp     vectorTime `json:"timestamp"`
	MessageType   int32      `json:"message_type"`
	CorrelationID string     `json:"correlation_id"`
	TaskID        string     `json:"task_id"`
	Epoch         uint64     `json:"epoch"`
	ExpiresAt     vectorTime `json:"expires_at"`
	KeyID         string     `json:"key_id"`
	Payload       struct {
		TypeURL string   `json:"type_url"`
		Value   hexBytes `json:"value"`
	} `json:"payload"`
}

func (e vectorEnvelope) envelope() *v1.Envelope {
	return &v1.Envelope{
		MessageId: e.MessageID, SenderId: e.SenderID, ReceiverId: e.ReceiverID, Timestamp: e.Timestamp.Timestamp,
		MessageType: v1.MessageType(e.MessageType), CorrelationId: e.CorrelationID, TaskId: e.TaskID, Epoch: e.Epoch,
		ExpiresAt: e.ExpiresAt.Timestamp, KeyId: e.KeyID,
		Payload: &anypb.Any{TypeUrl: e.Payload.TypeURL, Value: e.Payload.Value},
	}
}

func loadVectors[T any](t *testing.T, name string) (vectors T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	return vectors
}

func same(t *testing.T, what string, found, expected []byte) {
	t.Helper()
	if !bytes.Equal(found, expected) {
		t.Errorf("%s: %x, expected %x", what, found, expected)
	}
}

func refusedHere(t *testing.T, err error, reason string) {
	t.Helper()
	var refused *VerificationError
	if !errors.As(err, &refused) || refused.Reason != reason {
		t.Errorf("%v, expected %s", err, reason)
	}
}

func TestEnvelopesAreSignedAsPinned(t *testing.T) {
	vectors := loadVectors[struct {
		Seed    hexBytes `json:"private_key_seed"`
		Public  hexBytes `json:"public_key"`
		Vectors []struct {
			Name      string
			Envelope  vectorEnvelope
			Body      hexBytes
			Input     hexBytes `json:"signing_input_sha256"`
			Signature hexBytes
		}
	}](t, "signing-v1.json")
	for _, one := range vectors.Vectors {
		t.Run(one.Name, func(t *testing.T) {
			envelope := one.Envelope.envelope()
			same(t, "body", envelopeBody(envelope), one.Body)
			digest := sha256.Sum256(pae(envelopeType, envelopeBody(envelope)))
			same(t, "input", digest[:], one.Input)
			SignEnvelope(envelope, "k1", ed25519.NewKeyFromSeed(vectors.Seed))
			same(t, "signature", envelope.GetSignature(), one.Signature)
			if err := VerifyEnvelope(envelope, &v1.AgentKey{KeyId: "k1", PublicKey: vectors.Public}); err != nil {
				t.Error(err)
			}
		})
	}
	if len(vectors.Vectors) == 0 {
		t.Error("no vectors")
	}
}

func TestWhatMustNotVerifyDoesNot(t *testing.T) {
	vectors := loadVectors[struct {
		Cases []struct {
			Name, Expect string
			Envelope     vectorEnvelope
			Signature    hexBytes
			Version      uint32     `json:"signature_version"`
			Public       hexBytes   `json:"public_key"`
			NotBefore    vectorTime `json:"not_before"`
			NotAfter     vectorTime `json:"not_after"`
			Revoked      vectorTime `json:"revoked_at"`
		}
	}](t, "refusals-v1.json")
	for _, one := range vectors.Cases {
		t.Run(one.Name, func(t *testing.T) {
			envelope := one.Envelope.envelope()
			envelope.Signature, envelope.SignatureVersion = one.Signature, one.Version
			err := VerifyEnvelope(envelope, &v1.AgentKey{
				KeyId: "k1", PublicKey: one.Public, NotBeforeTime: one.NotBefore.Timestamp,
				NotAfterTime: one.NotAfter.Timestamp, RevokeTime: one.Revoked.Timestamp,
			})
			if one.Expect != "valid" {
				refusedHere(t, err, one.Expect)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	if len(vectors.Cases) == 0 {
		t.Error("no cases")
	}
}

type receiptVector struct {
	Name    string
	Receipt struct {
		MessageID    string     `json:"message_id"`
		Sequence     uint64     `json:"sequence"`
		AcceptTime   vectorTime `json:"accept_time"`
		TaskID       string     `json:"task_id"`
		TaskStatus   int32      `json:"task_status"`
		OwnerID      string     `json:"owner_id"`
		Epoch        uint64     `json:"epoch"`
		HandoffID    string     `json:"handoff_id"`
		HandoffState int32      `json:"handoff_state"`
		CustodyHash  hexBytes   `json:"custody_hash"`
		KeyID        string     `json:"key_id"`
		Resource     string     `json:"resource"`
		Number       uint64     `json:"resource_sequence"`
	}
	Body      hexBytes
	Signature hexBytes
}

type digestVectors struct {
	Seed         hexBytes `json:"private_key_seed"`
	BrokerPublic hexBytes `json:"broker_public_key"`
	Contexts     []struct {
		Name     string
		Sections []struct {
			Name      string
			JSON      *string
			Bytes     *hexBytes
			Reference *hexBytes `json:"reference_sha256"`
			Delta     *hexBytes `json:"delta_result_sha256"`
		}
		Digests map[string]hexBytes `json:"section_digests"`
		Digest  hexBytes            `json:"context_digest"`
	}
	Sessions []struct {
		AgentID   string `json:"agent_id"`
		KeyID     string `json:"key_id"`
		Challenge hexBytes
		Body      hexBytes
		Signature hexBytes
	}
	Receipts         []receiptVector
	ResourceReceipts []receiptVector `json:"resource_receipts"`
	OperatorSeed     hexBytes        `json:"operator_private_key_seed"`
	OperatorPublic   hexBytes        `json:"operator_public_key"`
	Vouchers         []struct {
		Name          string
		AgentID       string     `json:"agent_id"`
		KeyID         string     `json:"key_id"`
		Public        hexBytes   `json:"public_key"`
		OperatorKeyID string     `json:"operator_key_id"`
		NotAfter      vectorTime `json:"not_after_time"`
		Body          hexBytes
		Signature     hexBytes
	}
	Custody, Audit struct{ Entries, Hashes []hexBytes }
}

func TestVouchers(t *testing.T) {
	vectors := loadVectors[digestVectors](t, "digests-v1.json")
	for _, one := range vectors.Vouchers {
		t.Run(one.Name, func(t *testing.T) {
			key := &v1.AgentKey{KeyId: one.KeyID, PublicKey: one.Public}
			voucher := &v1.KeyVoucher{
				OperatorKeyId: one.OperatorKeyID, NotAfterTime: one.NotAfter.Timestamp, Signature: one.Signature,
			}
			same(t, "body", voucherBody(one.AgentID, key, voucher), one.Body)
			notAfter := time.Time{}
			if one.NotAfter.Timestamp != nil {
				notAfter = one.NotAfter.AsTime()
			}
			private := ed25519.NewKeyFromSeed(vectors.OperatorSeed)
			made := Vouch(one.AgentID, key, one.OperatorKeyID, private, notAfter)
			same(t, "signature", made.GetSignature(), one.Signature)
			operator := ed25519.PublicKey(vectors.OperatorPublic)
			before := time.Unix(1_600_000_000, 0)
			if err := VerifyVoucher(one.AgentID, key, voucher, operator, before); err != nil {
				t.Error(err)
			}
			refusedHere(t, VerifyVoucher("another", key, voucher, operator, before), "SIGNATURE_INVALID")
			if one.NotAfter.Timestamp != nil {
				refusedHere(t, VerifyVoucher(one.AgentID, key, voucher, operator, one.NotAfter.AsTime()), "KEY_NOT_VALID")
			}
		})
	}
	if len(vectors.Vouchers) == 0 {
		t.Error("no vouchers")
	}
}

func TestAuditChain(t *testing.T) {
	vectors := loadVectors[digestVectors](t, "digests-v1.json")
	head := make([]byte, 32)
	for i, entry := range vectors.Audit.Entries {
		head = AuditHash(head, entry)
		same(t, "hash", head, vectors.Audit.Hashes[i])
	}
	if len(vectors.Audit.Entries) == 0 {
		t.Error("no entries")
	}
}

func TestContextDigests(t *testing.T) {
	vectors := loadVectors[digestVectors](t, "digests-v1.json")
	for _, one := range vectors.Contexts {
		t.Run(one.Name, func(t *testing.T) {
			var sections []*v1.ContextSection
			for _, section := range one.Sections {
				made := &v1.ContextSection{Name: section.Name}
				switch {
				case section.JSON != nil:
					made.Content = &v1.ContextSection_Json{Json: *section.JSON}
				case section.Bytes != nil:
					made.Content = &v1.ContextSection_Bytes{Bytes: &v1.ContextBytes{Data: *section.Bytes}}
				case section.Reference != nil:
					made.Content = &v1.ContextSection_Reference{Reference: &v1.ContextReference{Sha256: *section.Reference}}
				case section.Delta != nil:
					made.Content = &v1.ContextSection_Delta{Delta: &v1.ContextDelta{ResultSha256: *section.Delta}}
				}
				same(t, section.Name, SectionDigest(made), one.Digests[section.Name])
				sections = append(sections, made)
			}
			same(t, "digest", ContextDigest(sections), one.Digest)
			slices.Reverse(sections)
			same(t, "digest in another order", ContextDigest(sections), one.Digest)
		})
	}
}

func TestProofsOfIdentity(t *testing.T) {
	vectors := loadVectors[digestVectors](t, "digests-v1.json")
	for _, one := range vectors.Sessions {
		same(t, "body", sessionBody(one.AgentID, one.KeyID, one.Challenge), one.Body)
		key := ed25519.NewKeyFromSeed(vectors.Seed)
		same(t, "signature", signSession(one.AgentID, one.KeyID, one.Challenge, key), one.Signature)
	}
}

func TestReceiptsAndTheirChanges(t *testing.T) {
	vectors := loadVectors[digestVectors](t, "digests-v1.json")
	if len(vectors.Receipts) == 0 || len(vectors.ResourceReceipts) == 0 {
		t.Error("no vectors")
	}
	for _, one := range slices.Concat(vectors.Receipts, vectors.ResourceReceipts) {
		t.Run(one.Name, func(t *testing.T) {
			r := one.Receipt
			receipt := &v1.Receipt{
				MessageId: r.MessageID, Sequence: r.Sequence, AcceptTime: r.AcceptTime.Timestamp, TaskId: r.TaskID,
				TaskStatus: v1.TaskStatus(r.TaskStatus), OwnerId: r.OwnerID, Epoch: r.Epoch, HandoffId: r.HandoffID,
				HandoffState: v1.HandoffState(r.HandoffState), CustodyHash: r.CustodyHash, KeyId: r.KeyID,
				Resource: r.Resource, ResourceSequence: r.Number, Signature: one.Signature,
			}
			key := &v1.AgentKey{KeyId: r.KeyID, PublicKey: vectors.BrokerPublic}
			same(t, "body", receiptBody(receipt), one.Body)
			if err := VerifyReceipt(receipt, key); err != nil {
				t.Error(err)
			}
			changes := map[string]func(*v1.Receipt){
				"SIGNATURE_INVALID": func(r *v1.Receipt) { r.Epoch++ },
				"SIGNATURE_MISSING": func(r *v1.Receipt) { r.Signature = nil },
				"KEY_UNKNOWN":       func(r *v1.Receipt) { r.KeyId = "another" },
			}
			for reason, change := range changes {
				changed := proto.CloneOf(receipt)
				change(changed)
				refusedHere(t, VerifyReceipt(changed, key), reason)
			}
			elsewhere := proto.CloneOf(receipt)
			elsewhere.Resource += "another"
			refusedHere(t, VerifyReceipt(elsewhere, key), "SIGNATURE_INVALID")
		})
	}
}

func TestCustodyChain(t *testing.T) {
	vectors := loadVectors[digestVectors](t, "digests-v1.json")
	head := make([]byte, 32)
	for i, entry := range vectors.Custody.Entries {
		head = CustodyHash(head, entry)
		same(t, "hash", head, vectors.Custody.Hashes[i])
	}
	if len(vectors.Custody.Entries) == 0 {
		t.Error("no entries")
	}
}

type vectorFilter struct {
	History  string   `json:"history"`
	Last     uint32   `json:"last"`
	Pointers []string `json:"json_pointers"`
}

func TestDeltasGiveThePinnedResults(t *testing.T) {
	vectors := loadVectors[struct {
		Cases []struct {
			Name, Base, Patch string
			Result            *string
			Digest            hexBytes `json:"result_sha256"`
		}
	}](t, "deltas-v1.json")
	if len(vectors.Cases) == 0 {
		t.Fatal("there are no cases")
	}
	for _, one := range vectors.Cases {
		t.Run(one.Name, func(t *testing.T) {
			result, err := ApplyDelta(one.Base, one.Patch)
			if one.Result == nil {
				if !errors.Is(err, ErrSection) {
					t.Errorf("%q, %v, expected a refusal", result, err)
				}
				return
			}
			if err != nil || result != *one.Result {
				t.Fatalf("%q, %v, expected %q", result, err, *one.Result)
			}
			same(t, "digest", sum([]byte(result)), one.Digest)
			if delta, target := DeltaBetween(one.Base, result); delta != nil {
				again := ok[string](t)(ApplyDelta(one.Base, delta.GetMergePatch()))
				if again != result || target != result {
					t.Errorf("%q gives %q", delta.GetMergePatch(), again)
				}
				same(t, "digest of the delta", delta.GetResultSha256(), one.Digest)
			}
		})
	}
}

func TestFiltersKeepThePinnedParts(t *testing.T) {
	vectors := loadVectors[struct {
		Cases []struct {
			Name, Section, Summary string
			Filter                 vectorFilter
			Result                 *string
		}
	}](t, "filters-v1.json")
	if len(vectors.Cases) == 0 {
		t.Fatal("there are no cases")
	}
	for _, one := range vectors.Cases {
		t.Run(one.Name, func(t *testing.T) {
			history := v1.HistoryFilter_value["HISTORY_FILTER_"+orElse(one.Filter.History, "UNSPECIFIED")]
			filter := &v1.ContextFilter{
				History: v1.HistoryFilter(history), Last: one.Filter.Last, JsonPointers: one.Filter.Pointers,
			}
			part, err := FilterSection(one.Section, filter, one.Summary)
			switch {
			case one.Result == nil && !errors.Is(err, ErrSection):
				t.Errorf("%q, %v, expected a refusal", part, err)
			case one.Result != nil && (err != nil || part != *one.Result):
				t.Errorf("%q, %v, expected %q", part, err, *one.Result)
			}
		})
	}
}
