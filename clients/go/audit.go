package baton

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const custodyPage = 200

// AuditTask reads and verifies the custody log of a task of which this agent is or was a party: the unbroken chain of
// hashes, the broker's receipt for each accepted envelope, and the senders' signatures on the envelopes. It returns the
// entries, oldest first, with the task's state after each. Of a context that this agent may not read the log has only the
// digest, and the receipt is what is verified. It fails with a VerificationError: CUSTODY_INVALID, or the
// reason of an invalid signature, also KEY_NOT_VALID for a sender's key that was revoked later.
func (a *Agent) AuditTask(ctx context.Context, taskID string) ([]*v1.CustodyEntry, error) {
	brokerKeys, ok := a.options.PinnedKeys[brokerID]
	if !ok {
		broker, err := a.GetAgent(ctx, brokerID)
		if err != nil {
			return nil, err
		}
		brokerKeys = broker.GetCard().GetKeys()
	}
	var entries []*v1.CustodyEntry
	head := make([]byte, 32)
	for {
		page, err := call(ctx, a, a.tasks.GetCustodyLog, &v1.GetCustodyLogRequest{
			TaskId: taskID, AfterNumber: uint64(len(entries)), PageSize: custodyPage, IncludeEnvelopes: true,
		})
		if err != nil {
			return nil, err
		}
		for _, found := range page.GetEntries() {
			head = CustodyHash(head, found.GetEntryBytes())
			entry, err := a.auditEntry(ctx, found, uint64(len(entries)+1), head, brokerKeys)
			if err != nil {
				return nil, err
			}
			entries = append(entries, entry)
		}
		switch length := uint64(len(entries)); {
		case length >= page.GetCustodyLength():
			return entries, nil
		case len(page.GetEntries()) == 0:
			return nil, custodyInvalid(length+1, "it is missing")
		}
	}
}

func (a *Agent) auditEntry(
	ctx context.Context, found *v1.CustodyLogEntry, number uint64, head []byte, brokerKeys []*v1.AgentKey,
) (*v1.CustodyEntry, error) {
	entry := &v1.CustodyEntry{}
	if err := proto.Unmarshal(found.GetEntryBytes(), entry); err != nil || entry.GetNumber() != number {
		return nil, custodyInvalid(number, "it does not parse, or is another one")
	}
	if !bytes.Equal(head, found.GetCustodyHash()) {
		return nil, custodyInvalid(number, "the chain breaks")
	}
	accepted := entry.GetAccepted()
	if accepted == nil {
		return entry, nil
	}
	receipt := found.GetReceipt()
	if receipt.GetMessageId() != accepted.GetMessageId() || !bytes.Equal(receipt.GetCustodyHash(), head) {
		return nil, custodyInvalid(number, "the receipt is not its own")
	}
	if err := VerifyReceipt(receipt, keyOf(brokerKeys, receipt.GetKeyId())); err != nil {
		return nil, err
	}
	if found.GetEnvelope() == nil && isHidden(accepted) {
		return entry, nil
	}
	if !bytes.Equal(sum(pae(envelopeType, envelopeBody(found.GetEnvelope()))), accepted.GetContentDigest()) {
		return nil, custodyInvalid(number, "the envelope is not its own")
	}
	return entry, a.verifySender(ctx, found.GetEnvelope())
}

// isHidden reports whether the log may leave the envelope out: it is a context, and the entry has its digest.
func isHidden(accepted *v1.CustodyEnvelope) bool {
	kind := accepted.GetMessageType()
	isContext := kind == v1.MessageType_MESSAGE_TYPE_TASK_CONTEXT_TRANSFER ||
		kind == v1.MessageType_MESSAGE_TYPE_CONTEXT_CHECKPOINT
	return isContext && len(accepted.GetContextDigest()) == sha256.Size
}

func custodyInvalid(number uint64, text string) error {
	return &VerificationError{"CUSTODY_INVALID", fmt.Sprintf("entry %d: %s", number, text)}
}
