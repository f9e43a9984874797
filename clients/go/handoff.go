package baton

import (
	"bytes"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// The age from which a message that the broker finds too old may get a new timestamp and signature.
const resignAfter = time.Second

// Send signs and sends a payload of baton.v1, and waits for the broker's receipt, whose signature it verifies. When the
// session ends, it sends the same envelope on the next one, so that the broker takes the message once, for as long as
// ctx allows. It fails with an Error if the broker refuses, and with a VerificationError if the broker did not sign the
// receipt. A message over a limit of the schema is not sent; Send returns the broker's reason, for example
// PAYLOAD_TOO_LARGE.
func (a *Agent) Send(ctx context.Context, receiverID string, about About, payload proto.Message) (*v1.Receipt, error) {
	envelope, err := a.newEnvelope(ctx, receiverID, about, payload)
	if err != nil {
		return nil, err
	}
	return a.signAndSend(ctx, envelope)
}

func (a *Agent) signAndSend(ctx context.Context, envelope *v1.Envelope) (*v1.Receipt, error) {
	made := time.Now()
	SignEnvelope(envelope, a.options.KeyID, a.options.Key)
	receipt, err := a.SendEnvelope(ctx, envelope)
	var refused *Error
	isOld := errors.As(err, &refused) && refused.ErrorCode() == v1.ErrorCode_ERROR_CODE_TIMESTAMP_OUTSIDE_WINDOW
	if isOld && time.Since(made) > resignAfter {
		// The broker was unreachable for longer than its clock window. It detects repeats before it checks the time, so the
		// message was not taken before and may be signed anew. A wrong local clock is refused again.
		envelope.Timestamp = timestamppb.Now()
		SignEnvelope(envelope, a.options.KeyID, a.options.Key)
		return a.SendEnvelope(ctx, envelope)
	}
	if again := a.withoutParent(ctx, envelope, err); again != nil {
		SignEnvelope(again, a.options.KeyID, a.options.Key)
		return a.SendEnvelope(ctx, again)
	}
	return receipt, err
}

// SendEnvelope sends a signed envelope unchanged: one made by NewEnvelope and SignEnvelope, also by an earlier process.
// Otherwise it behaves as Send. A repeated envelope gets its first receipt again.
func (a *Agent) SendEnvelope(ctx context.Context, envelope *v1.Envelope) (*v1.Receipt, error) {
	if err := checkSize(envelope); err != nil {
		return nil, err
	}
	receipt, err := a.sendUntilAnswered(ctx, envelope)
	if err == nil {
		a.noteSent(envelope, receipt)
	}
	return receipt, err
}

func (a *Agent) sendUntilAnswered(ctx context.Context, envelope *v1.Envelope) (*v1.Receipt, error) {
	for {
		s, err := a.current(ctx)
		if err != nil {
			return nil, err
		}
		answer, err := s.ask(ctx, frameOf(envelope))
		var refused *Error
		switch {
		case err == nil:
			receipt, brokerKey := answer.GetReceipt(), s.welcome.GetBrokerKey()
			if pinned, ok := a.options.PinnedKeys[brokerID]; ok {
				brokerKey = keyOf(pinned, receipt.GetKeyId())
			}
			return checkedReceipt(receipt, envelope, brokerKey)
		case errors.Is(err, errSessionEnded):
			continue
		case errors.As(err, &refused) && refused.Code == codes.Unavailable:
			// SHUTTING_DOWN, or a full disk: whether the message was taken is unknown.
			if err := sleep(ctx, max(refused.RetryDelay, reconnectFirst)); err != nil {
				return nil, err
			}
		default:
			return nil, err
		}
	}
}

func checkedReceipt(receipt *v1.Receipt, envelope *v1.Envelope, brokerKey *v1.AgentKey) (*v1.Receipt, error) {
	if err := VerifyReceipt(receipt, brokerKey); err != nil {
		return nil, err
	}
	if receipt.GetMessageId() != envelope.GetMessageId() {
		return nil, &VerificationError{"SIGNATURE_INVALID", "the receipt is for another message, " + receipt.GetMessageId()}
	}
	return receipt, nil
}

// RequestHandoff requests a handoff to an agent, or to any agent of "type:NAME". The receipt has the handoff_id. An
// unknown task id creates the task, owned by this agent at epoch 1.
func (a *Agent) RequestHandoff(
	ctx context.Context, receiverID, taskID string, epoch uint64, request *v1.HandoffRequest,
) (*v1.Receipt, error) {
	return a.Send(ctx, receiverID, About{TaskID: taskID, Epoch: epoch}, request)
}

// Accept accepts the handoff of a delivered HandoffRequest or award. A nil accept asks for the whole context.
func (a *Agent) Accept(ctx context.Context, request *Delivery, accept *v1.HandoffAccept) (*v1.Receipt, error) {
	if accept == nil {
		accept = &v1.HandoffAccept{}
	}
	return a.Reply(ctx, request, accept)
}

// Reject rejects the handoff of a delivered HandoffRequest.
func (a *Agent) Reject(ctx context.Context, request *Delivery, reason v1.RejectReason, text string) (*v1.Receipt, error) {
	return a.Reply(ctx, request, &v1.HandoffReject{Reason: reason, ReasonText: clipped(text)})
}

// SendContext sends the context to the candidate of a delivered HandoffAccept: the sections that it wants, or all. It
// applies the filters of its wishes, and sends a change to the version that the candidate has where that is less.
func (a *Agent) SendContext(
	ctx context.Context, accept *Delivery, sections ...*v1.ContextSection,
) (*v1.Receipt, error) {
	taskID := accept.Envelope.GetTaskId()
	send := func(known func(string, []byte) string) (*v1.Receipt, error) {
		wanted := sections
		if payload, ok := accept.Payload.(*v1.HandoffAccept); ok {
			wanted = forWishes(sections, payload, known)
		}
		return a.Reply(ctx, accept, &v1.TaskContextTransfer{Sections: wanted, ContextDigest: ContextDigest(wanted)})
	}
	receipt, err := send(func(name string, digest []byte) string { return a.known.find(taskID, name, digest) })
	if isBaseUnknown(err) {
		// The broker does not have the version that the candidate has.
		a.known.forget(taskID)
		receipt, err = send(func(string, []byte) string { return "" })
	}
	if err == nil {
		a.known.note(taskID, sections)
	}
	return receipt, err
}

// Complete takes the task over with a delivered TaskContextTransfer. It verifies the context's digest first, and fails
// with a VerificationError, CONTEXT_DIGEST_MISMATCH. From the receipt on this agent owns the task, at the receipt's
// epoch, and the heartbeats of this process list the task until it ends or is handed on; in a handler of Serve until that
// ends.
func (a *Agent) Complete(ctx context.Context, transfer *Delivery) (*v1.Receipt, error) {
	receipt, err := a.complete(ctx, transfer)
	if err == nil {
		a.takes(undertakingOf(ctx), a.ownedBy(receipt, transfer.Envelope.GetTaskId()))
	}
	return receipt, err
}

func (a *Agent) ownedBy(receipt *v1.Receipt, taskID string) *OwnedTask {
	return &OwnedTask{TaskID: taskID, Epoch: receipt.GetEpoch(), Status: receipt.GetTaskStatus(), agent: a}
}

func (a *Agent) complete(ctx context.Context, transfer *Delivery) (*v1.Receipt, error) {
	payload, ok := transfer.Payload.(*v1.TaskContextTransfer)
	if !ok {
		return nil, errors.New("baton: Complete needs a delivered TaskContextTransfer")
	}
	digest := ContextDigest(payload.GetSections())
	if !bytes.Equal(digest, payload.GetContextDigest()) {
		return nil, &VerificationError{"CONTEXT_DIGEST_MISMATCH", "the context is not the one that was sent"}
	}
	complete := &v1.HandoffComplete{Outcome: v1.HandoffOutcome_HANDOFF_OUTCOME_SUCCESS, ContextDigest: digest}
	return a.Reply(ctx, transfer, complete)
}

// FailTakeover refuses a delivered TaskContextTransfer: the handoff fails and its sender keeps the task.
func (a *Agent) FailTakeover(ctx context.Context, transfer *Delivery, details string) (*v1.Receipt, error) {
	complete := &v1.HandoffComplete{Outcome: v1.HandoffOutcome_HANDOFF_OUTCOME_FAILURE, Details: clipped(details)}
	return a.Reply(ctx, transfer, complete)
}

// Cancel cancels an open handoff that this agent requested.
func (a *Agent) Cancel(ctx context.Context, handoffID, text string) (*v1.Receipt, error) {
	handoff, err := a.GetHandoff(ctx, handoffID)
	if err != nil {
		return nil, err
	}
	about := About{TaskID: handoff.GetTaskId(), Epoch: handoff.GetEpoch(), CorrelationID: handoffID}
	return a.Send(ctx, handoff.GetCandidateId(), about, &v1.HandoffCancel{ReasonText: clipped(text)})
}

// UpdateStatus reports the status of a task that this agent owns at this epoch.
func (a *Agent) UpdateStatus(
	ctx context.Context, taskID string, epoch uint64, update *v1.TaskStatusUpdate,
) (*v1.Receipt, error) {
	return a.Send(ctx, "", About{TaskID: taskID, Epoch: epoch}, update)
}

// KeepTurn asks for more time for this agent's step of a handoff: an accept, a context or a completion that takes
// longer than its timeout. Ack a request first: its accept timeout starts with the ack.
func (a *Agent) KeepTurn(ctx context.Context, delivery *Delivery, details string) (*v1.Receipt, error) {
	update := &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_IN_PROGRESS, Details: details}
	return a.Reply(ctx, delivery, update)
}

// Reply sends a payload to the sender of a delivery, or to the requester of an award, about the same task and handoff.
func (a *Agent) Reply(ctx context.Context, to *Delivery, payload proto.Message) (*v1.Receipt, error) {
	return a.Send(ctx, to.AnswerTo(), to.About(), payload)
}
