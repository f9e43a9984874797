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

// Error is a refusal of the broker, which then has changed nothing; or a failure of the connection, and then nobody knows.
// Get it by errors.As, and branch on Reason.
type Error struct {
	// The gRPC status code. Unavailable and DeadlineExceeded are those after which nobody knows whether the message was
	// taken: send the same envelope again, and the broker answers with its first receipt.
	Code codes.Code
	// The stable reason, for example "STALE_EPOCH": docs/errors.md of the broker says what to do about each. Empty where
	// the error is not the broker's own, for example without a connection.
	Reason string
	// In words, for people.
	Message string
	// What belongs to the reason, for example "current_epoch".
	Metadata map[string]string
	// The fields that are wrong, all of them.
	Fields []FieldViolation
	// After how long trying again may help; 0 where the broker does not say.
	RetryDelay time.Duration

	cause error
}

// FieldViolation is one field of a request that is wrong.
type FieldViolation struct {
	// Its path, for example "envelope.task_id".
	Field string
	// What it should be.
	Description string
}

func (e *Error) Error() string {
	name := e.Reason
	if name == "" {
		name = e.Code.String()
	}
	return fmt.Sprintf("baton: %s: %s", name, e.Message)
}

// Unwrap gives what is under it, where that is known: for example a *tls.CertificateVerificationError.
func (e *Error) Unwrap() error { return e.cause }

// ErrorCode is the reason as the schema's enum; ERROR_CODE_UNSPECIFIED if there is none, or one that this version does
// not know.
func (e *Error) ErrorCode() v1.ErrorCode {
	return v1.ErrorCode(v1.ErrorCode_value["ERROR_CODE_"+e.Reason])
}

// VerificationError says that a message does not verify here, whatever the broker says of it.
type VerificationError struct {
	// The broker's word for the same: SIGNATURE_MISSING, SIGNATURE_INVALID, SIGNATURE_VERSION_UNKNOWN, KEY_WEAK,
	// KEY_UNKNOWN, KEY_NOT_VALID, PAYLOAD_TYPE_MISMATCH, MALFORMED or CONTEXT_DIGEST_MISMATCH. CUSTODY_INVALID is ours.
	Reason string
	// In words, for people.
	Message string
}

func (e *VerificationError) Error() string { return fmt.Sprintf("baton: %s: %s", e.Reason, e.Message) }

var (
	// ErrClosed is what every call gets after Close.
	ErrClosed = errors.New("baton: the agent is closed")
	// errSessionEnded: what was asked may be asked again on the next one.
	errSessionEnded = &Error{Code: codes.Unavailable, Message: "the session has ended"}
)

// errorOf makes an Error of a failed call. What the caller's own context ended stays that.
func errorOf(ctx context.Context, err error) error {
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

// HandoffFailedError says that a handoff has ended without moving the task. For its sender the task stays where it is, at
// the same epoch; its candidate drops what it has of it.
type HandoffFailedError struct {
	// The handoff.
	HandoffID string
	// The stable code, for example NO_CANDIDATE, ACCEPT_TIMEOUT, HANDOFF_CANCELLED or TAKEOVER_FAILED.
	Reason string
	// In words, for people.
	Message string
	// The agents that did not take it, in order; known to its sender.
	Rejections []Rejection
}

func (e *HandoffFailedError) Error() string { return fmt.Sprintf("baton: %s: %s", e.Reason, e.Message) }

// HasGoneOn tells whether the broker refused because the handoff or the task has gone on: it is over, or at another step,
// or another agent's. Nothing is left to do about the message that led to it, and Serve acks it. So it is with a
// HandoffFailedError.
func HasGoneOn(err error) bool {
	var failed *HandoffFailedError
	if errors.As(err, &failed) {
		return true
	}
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.ErrorCode() {
	case v1.ErrorCode_ERROR_CODE_HANDOFF_STATE, v1.ErrorCode_ERROR_CODE_HANDOFF_FINAL,
		v1.ErrorCode_ERROR_CODE_HANDOFF_EXPIRED, v1.ErrorCode_ERROR_CODE_NOT_CANDIDATE,
		v1.ErrorCode_ERROR_CODE_NOT_OWNER, v1.ErrorCode_ERROR_CODE_STALE_EPOCH, v1.ErrorCode_ERROR_CODE_TASK_FINAL:
		return true
	}
	return false
}

// isPassing tells whether the same call may work later: connections that fail, and brokers that stop.
func isPassing(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted:
		return true
	case codes.Canceled, codes.Unknown, codes.Internal:
		// What has no reason is the connection's: one that breaks ends its calls with any of these.
		return e.Reason == ""
	}
	return false
}
