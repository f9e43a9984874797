package baton

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const (
	deadLettersPerPage = 200
	auditPerPage       = 200
)

// ReassignTask takes a task that has not ended from its owner, and hands it to another agent, or to any able agent of
// "type:NAME". expectedEpoch is the epoch that the caller has read: another one is refused with STALE_EPOCH or EPOCH_AHEAD.
// reason has at most 4096 bytes. It returns the task, which baton.coordinator owns now, and the handoff by which that hands
// it on. Like the calls below, it authenticates as an operator, or as this agent if operatorToken is empty.
func (a *Agent) ReassignTask(
	ctx context.Context, operatorToken, taskID string, expectedEpoch uint64, to, reason string,
) (*v1.Task, *v1.Handoff, error) {
	request := &v1.ReassignTaskRequest{TaskId: taskID, ExpectedEpoch: expectedEpoch, To: to, ReasonText: reason}
	answer, err := administer(ctx, a, operatorToken, a.tasks.ReassignTask, request)
	return answer.GetTask(), answer.GetHandoff(), err
}

// ListDeadLetters iterates over the dead letters that match a filter, newest first and without their envelopes; a nil filter
// is that of all parked ones. An agent reads those of messages that it sent or was to receive. It reads page by page, and
// ends with an error if a page cannot be read.
func (a *Agent) ListDeadLetters(
	ctx context.Context, operatorToken string, filter *v1.DeadLetterFilter,
) iter.Seq2[*v1.DeadLetter, error] {
	return pages(func(token string) ([]*v1.DeadLetter, string, error) {
		request := &v1.ListDeadLettersRequest{PageSize: deadLettersPerPage, PageToken: token, Filter: filter}
		page, err := administer(ctx, a, operatorToken, a.deadLetters.ListDeadLetters, request)
		return page.GetDeadLetters(), page.GetNextPageToken(), err
	})
}

// GetDeadLetter returns a dead letter with its envelope.
func (a *Agent) GetDeadLetter(ctx context.Context, operatorToken, deadLetterID string) (*v1.DeadLetter, error) {
	request := &v1.GetDeadLetterRequest{DeadLetterId: deadLetterID}
	answer, err := administer(ctx, a, operatorToken, a.deadLetters.GetDeadLetter, request)
	return answer.GetDeadLetter(), err
}

// RedriveDeadLetter puts a message on its way again, to toAgentID, or to the agent of the original mailbox if that is empty;
// a handoff request begins a new handoff. It returns the dead letter, marked as REDRIVEN. By default it is for operators.
func (a *Agent) RedriveDeadLetter(
	ctx context.Context, operatorToken, deadLetterID, toAgentID string,
) (*v1.DeadLetter, error) {
	request := &v1.RedriveDeadLetterRequest{DeadLetterId: deadLetterID, ToAgentId: toAgentID}
	answer, err := administer(ctx, a, operatorToken, a.deadLetters.RedriveDeadLetter, request)
	return answer.GetDeadLetter(), err
}

// RedriveDeadLetters redrives the parked dead letters that match the request's filter, oldest first, and iterates over them.
// One that could not be redriven has the error, and the call goes on with the next one. The end of the iteration stops it,
// and the same call again goes on with the rest. It fails with an Error: NOTHING_MATCHES. By default it is for operators.
func (a *Agent) RedriveDeadLetters(
	ctx context.Context, operatorToken string, request *v1.RedriveDeadLettersRequest,
) iter.Seq2[*v1.RedriveDeadLettersResponse, error] {
	return func(yield func(*v1.RedriveDeadLettersResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		answers, err := a.deadLetters.RedriveDeadLetters(a.authorizeAs(ctx, operatorToken), request)
		for err == nil {
			var answer *v1.RedriveDeadLettersResponse
			if answer, err = answers.Recv(); err == nil && !yield(answer, nil) {
				return
			}
		}
		if !errors.Is(err, io.EOF) {
			yield(nil, errorOf(ctx, err))
		}
	}
}

// ExportDeadLetters iterates over the dead letters that match a filter, oldest first and with their envelopes; a nil filter
// is that of all parked ones.
func (a *Agent) ExportDeadLetters(
	ctx context.Context, operatorToken string, filter *v1.DeadLetterFilter,
) iter.Seq2[*v1.DeadLetter, error] {
	return func(yield func(*v1.DeadLetter, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		request := &v1.ExportDeadLettersRequest{Filter: filter}
		answers, err := a.deadLetters.ExportDeadLetters(a.authorizeAs(ctx, operatorToken), request)
		for err == nil {
			var answer *v1.ExportDeadLettersResponse
			if answer, err = answers.Recv(); err == nil && !yield(answer.GetDeadLetter(), nil) {
				return
			}
		}
		if !errors.Is(err, io.EOF) {
			yield(nil, errorOf(ctx, err))
		}
	}
}

// DiscardDeadLetter gives a message up for good. It returns the dead letter, marked as DISCARDED, which is kept until
// retention removes it. reason has at most 4096 bytes. By default it is for operators.
func (a *Agent) DiscardDeadLetter(
	ctx context.Context, operatorToken, deadLetterID, reason string,
) (*v1.DeadLetter, error) {
	request := &v1.DiscardDeadLetterRequest{DeadLetterId: deadLetterID, ReasonText: reason}
	answer, err := administer(ctx, a, operatorToken, a.deadLetters.DiscardDeadLetter, request)
	return answer.GetDeadLetter(), err
}

// AuditLog iterates over the audit log after a number, oldest first: over administrative acts on the broker. It reads page
// by page, and verifies the chain: it ends with a VerificationError, AUDIT_INVALID, if an entry is missing or was changed. The
// first entry after a number other than 0 is taken as it is. By default it is for operators.
func (a *Agent) AuditLog(ctx context.Context, operatorToken string, after uint64) iter.Seq2[*v1.AuditEntry, error] {
	return func(yield func(*v1.AuditEntry, error) bool) {
		chain := auditChain{last: after}
		for {
			request := &v1.ListAuditEntriesRequest{PageSize: auditPerPage, AfterNumber: chain.last}
			page, err := administer(ctx, a, operatorToken, a.audit.ListAuditEntries, request)
			if err != nil {
				yield(nil, err)
				return
			}
			if chain.last+1 <= page.GetFirstNumber() && chain.head == nil {
				chain.last, chain.head = page.GetFirstNumber()-1, page.GetHashBeforeFirst()
			}
			for _, found := range page.GetEntries() {
				entry, err := chain.next(found)
				if !yield(entry, err) || err != nil {
					return
				}
			}
			if len(page.GetEntries()) == 0 {
				return
			}
		}
	}
}

// auditChain is the chain of the audit log up to an entry.
type auditChain struct {
	last uint64
	head []byte // nil: not known
}

func (c *auditChain) next(found *v1.AuditLogEntry) (*v1.AuditEntry, error) {
	entry := &v1.AuditEntry{}
	if err := proto.Unmarshal(found.GetEntryBytes(), entry); err != nil || entry.GetNumber() != c.last+1 {
		return nil, auditInvalid(c.last+1, "it does not parse, or is another one")
	}
	if c.head != nil && !bytes.Equal(AuditHash(c.head, found.GetEntryBytes()), found.GetChainHash()) {
		return nil, auditInvalid(entry.GetNumber(), "the chain breaks")
	}
	c.last, c.head = entry.GetNumber(), found.GetChainHash()
	return entry, nil
}

func auditInvalid(number uint64, text string) error {
	return &VerificationError{"AUDIT_INVALID", fmt.Sprintf("entry %d: %s", number, text)}
}

// authorizeAs adds an operator's token, or the agent's own if that is empty.
func (a *Agent) authorizeAs(ctx context.Context, operatorToken string) context.Context {
	if operatorToken == "" {
		return a.Authorize(ctx)
	}
	return withToken(ctx, operatorToken)
}

// Peek iterates over the messages that wait for this agent now, in order, and takes none: no attempt counts, and an
// acknowledgement fails. A message that does not verify is left out. It ends with an error if the broker refuses.
func (a *Agent) Peek(ctx context.Context) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		request := &v1.ReceiveRequest{Peek: true, InstanceId: a.instanceID}
		answers, err := a.broker.Receive(a.Authorize(ctx), request)
		for err == nil {
			var answer *v1.ReceiveResponse
			if answer, err = answers.Recv(); err != nil {
				break
			}
			delivery := answer.GetDelivery()
			if delivery.GetDeliveryId() != "" {
				err = &Error{Code: codes.Unimplemented, Message: "the broker cannot show mail without giving it out"}
				break
			}
			envelope := delivery.GetEnvelope()
			d, wrong := a.found(ctx, envelope, orElse(delivery.GetHandoffId(), handoffOf(envelope)))
			if wrong != nil {
				a.options.Logger.Warn("failed to verify a message", "message_id", envelope.GetMessageId(), "error", wrong)
				continue
			}
			d.Attempt, d.Sequence, d.isPeeked = delivery.GetAttempt(), delivery.GetSequence(), true
			d.TraceContext = validTrace(delivery.GetTraceContext())
			if !yield(d, nil) {
				return
			}
		}
		var own *Error
		switch {
		case errors.As(err, &own):
			yield(nil, own)
		case !errors.Is(err, io.EOF):
			yield(nil, errorOf(ctx, err))
		}
	}
}
