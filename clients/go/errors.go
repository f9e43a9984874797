package baton

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Error is a refusal by the broker, which then has changed nothing, or a failure of the connection, whose outcome is
// unknown. Match it with errors.As, and branch on Reason.
type Error struct {
	// The gRPC status code. After Unavailable and DeadlineExceeded the outcome is unknown: send the same envelope again,
	// and the broker answers with its first receipt.
	Code codes.Code
	// The stable reason, for example "STALE_EPOCH"; docs/errors.md of the broker has a remedy for each. Empty for an error
	// that the broker did not raise, for example a failed connection.
	Reason string
	// The explanation, for people.
	Message string
	// The details of the reason, for example "current_epoch".
	Metadata map[string]string
	// All invalid fields.
	Fields []FieldViolation
	// The delay after which a retry may succeed; 0 if the broker names none.
	RetryDelay time.Duration

	cause error
}

// FieldViolation is an invalid field of a request.
type FieldViolation struct {
	// The field's path, for example "envelope.task_id".
	Field string
	// The rule that the field breaks.
	Description string
}

func (e *Error) Error() string {
	name := e.Reason
	if name == "" {
		name = e.Code.String()
	}
	return fmt.Sprintf("baton: %s: %s", name, e.Message)
}

// Unwrap returns the underlying error, if known: for example a *tls.CertificateVerificationError.
func (e *Error) Unwrap() error { return e.cause }

// ErrorCode returns the reason as the schema's enum; ERROR_CODE_UNSPECIFIED without a reason, or for a reason unknown
// to this version.
func (e *Error) ErrorCode() v1.ErrorCode {
	return v1.ErrorCode(v1.ErrorCode_value["ERROR_CODE_"+e.Reason])
}

// VerificationError says that a message fails verification by this client, independent of the broker's checks.
type VerificationError struct {
	// The broker's reason for the same fault: SIGNATURE_MISSING, SIGNATURE_INVALID, SIGNATURE_VERSION_UNKNOWN, KEY_WEAK,
	// KEY_UNKNOWN, KEY_NOT_VALID, PAYLOAD_TYPE_MISMATCH, MALFORMED or CONTEXT_DIGEST_MISMATCH. CUSTODY_INVALID is the
	// client's own.
	Reason string
	// The explanation, for people.
	Message string
}

func (e *VerificationError) Error() string { return fmt.Sprintf("baton: %s: %s", e.Reason, e.Message) }

var (
	// ErrClosed is the error of every call after Close.
	ErrClosed = errors.New("baton: the agent is closed")
	// ErrWaitedFor is the error of a call that would wait for what another call of this Agent waits for: a second Delegate
	// or HandOver of a task, or a second resumption of a handoff or a question. The second call has sent nothing.
	ErrWaitedFor = errors.New("baton: another call of this agent waits for it")
	// errSessionEnded ends a question without an answer; the caller may repeat it on the next session.
	errSessionEnded = &Error{Code: codes.Unavailable, Message: "the session has ended"}
)

// errorOf converts the error of a failed call. An error that the caller's own context caused stays as it is.
func errorOf(ctx context.Context, err error) error {
	// The broker ends a call at the same deadline, and its answer may come before the context's own timer.
	if deadline, has := ctx.Deadline(); has && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errorOfStatus(status.Convert(err))
}

func errorOfStatus(s *status.Status) *Error {
	e := &Error{Code: s.Code(), Message: s.Message()}
	for _, detail := range s.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			e.Reason, e.Metadata = detail.GetReason(), detail.GetMetadata()
		case *errdetails.BadRequest:
			for _, one := range detail.GetFieldViolations() {
				e.Fields = append(e.Fields, FieldViolation{one.GetField(), one.GetDescription()})
			}
		case *errdetails.RetryInfo:
			e.RetryDelay = detail.GetRetryDelay().AsDuration()
		}
	}
	return e
}

// HandoffFailedError says that a handoff ended without moving the task. The sender keeps the task at the same epoch;
// the candidate discards its copy.
type HandoffFailedError struct {
	// The handoff's id.
	HandoffID string
	// The stable code, for example NO_CANDIDATE, ACCEPT_TIMEOUT, HANDOFF_CANCELLED or TAKEOVER_FAILED.
	Reason string
	// The explanation, for people.
	Message string
	// The agents that did not take the task, in order. Only the sender's side knows them.
	Rejections []Rejection

	cause error
}

func (e *HandoffFailedError) Error() string { return fmt.Sprintf("baton: %s: %s", e.Reason, e.Message) }

// Unwrap returns the cause of the end of Delegate's context, or context.DeadlineExceeded for WithHandOverLimit, if that
// ended the handoff.
func (e *HandoffFailedError) Unwrap() error { return e.cause }

// HasGoneOn reports whether the broker refused because the handoff, the task or the question has moved on: it is over,
// at another step, or another agent's. The message that led to the call needs no further work, and Serve acks it. HasGoneOn is
// also true for a HandoffFailedError and a TaskRecalledError.
func HasGoneOn(err error) bool {
	var failed *HandoffFailedError
	var recalled *TaskRecalledError
	if errors.As(err, &failed) || errors.As(err, &recalled) {
		return true
	}
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.ErrorCode() {
	case v1.ErrorCode_ERROR_CODE_HANDOFF_STATE, v1.ErrorCode_ERROR_CODE_HANDOFF_FINAL,
		v1.ErrorCode_ERROR_CODE_HANDOFF_EXPIRED, v1.ErrorCode_ERROR_CODE_NOT_CANDIDATE,
		v1.ErrorCode_ERROR_CODE_NOT_OWNER, v1.ErrorCode_ERROR_CODE_STALE_EPOCH, v1.ErrorCode_ERROR_CODE_TASK_FINAL,
		v1.ErrorCode_ERROR_CODE_INPUT_EXPIRED, v1.ErrorCode_ERROR_CODE_INPUT_TAKEN:
		return true
	}
	return false
}

// isPassing reports whether the same call may succeed later: after a failed connection, or on a broker that is
// stopping.
func isPassing(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted:
		return true
	case codes.Canceled, codes.Unknown, codes.Internal:
		// An error without a reason is the connection's: one that breaks ends its calls with any of these codes.
		return e.Reason == ""
	}
	return false
}
