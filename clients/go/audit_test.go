package baton

import (
	"crypto/ed25519"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

func TestAuditOfAContextThatIsLeftOut(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := []*v1.AgentKey{{KeyId: "broker", PublicKey: public}}
	audit := func(accepted *v1.CustodyEnvelope) error {
		accepted.MessageId = "m"
		entry := &v1.CustodyEntry{Number: 1, Event: &v1.CustodyEntry_Accepted{Accepted: accepted}}
		entryBytes := ok[[]byte](t)(proto.Marshal(entry))
		head := CustodyHash(make([]byte, 32), entryBytes)
		receipt := &v1.Receipt{MessageId: "m", CustodyHash: head, KeyId: "broker"}
		receipt.Signature = ed25519.Sign(private, receiptInput(receipt))
		found := &v1.CustodyLogEntry{EntryBytes: entryBytes, CustodyHash: head, Receipt: receipt}
		_, err := (&Agent{}).auditEntry(t.Context(), found, 1, head, keys)
		return err
	}
	context := v1.MessageType_MESSAGE_TYPE_TASK_CONTEXT_TRANSFER
	if err := audit(&v1.CustodyEnvelope{MessageType: context, ContextDigest: make([]byte, 32)}); err != nil {
		t.Error(err)
	}
	refusedHere(t, audit(&v1.CustodyEnvelope{MessageType: context}), "CUSTODY_INVALID")
	info := v1.MessageType_MESSAGE_TYPE_INFO
	refusedHere(t, audit(&v1.CustodyEnvelope{MessageType: info, ContextDigest: make([]byte, 32)}), "CUSTODY_INVALID")
}
