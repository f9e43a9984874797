package baton

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// The limits of the schema. The client refuses a message over a limit before it sends, with the broker's reason: a
// frame over the limit would end the session.
const (
	payloadBytesMax  = 1 << 20
	entryBytesMax    = 1 << 20
	appendBytesMax   = entryBytesMax + 4096
	frameBytesMax    = 4 << 20
	nameLengthMax    = 128
	uuidLength       = 36
	traceparentMax   = 55
	tracestateMax    = 512
	heartbeatTextMax = 256
	heartbeatMapMax  = 32
)

// checkSize refuses an envelope over a limit of the schema.
func checkSize(envelope *v1.Envelope) error {
	var wrong []FieldViolation
	atMost := func(field, text string, most int) {
		if found := utf8.RuneCountInString(text); found > most {
			wrong = append(wrong, FieldViolation{"envelope." + field, fmt.Sprintf("must have at most %d characters", most)})
		}
	}
	receiver := envelope.GetReceiverId()
	if kind, name, _ := strings.Cut(receiver, ":"); kind == "type" || kind == "all" {
		receiver = name
	}
	atMost("message_id", envelope.GetMessageId(), uuidLength)
	atMost("sender_id", envelope.GetSenderId(), nameLengthMax)
	atMost("receiver_id", receiver, nameLengthMax)
	atMost("correlation_id", envelope.GetCorrelationId(), uuidLength)
	atMost("task_id", envelope.GetTaskId(), nameLengthMax)
	atMost("key_id", envelope.GetKeyId(), nameLengthMax)
	atMost("trace_context.traceparent", envelope.GetTraceContext().GetTraceparent(), traceparentMax)
	atMost("trace_context.tracestate", envelope.GetTraceContext().GetTracestate(), tracestateMax)
	if err := invalid(wrong); err != nil {
		return err
	}
	found := len(envelope.GetPayload().GetValue())
	isAppend := envelope.GetMessageType() == v1.MessageType_MESSAGE_TYPE_WORKSPACE_APPEND
	switch {
	case isAppend && found > appendBytesMax:
		return entryTooLarge(found)
	case !isAppend && found > payloadBytesMax:
		return tooLarge(found)
	}
	if found := proto.Size(frameOf(envelope)); found > frameBytesMax {
		text := fmt.Sprintf("the frame has %d bytes; the limit is %d", found, frameBytesMax)
		return &Error{Code: codes.InvalidArgument, Reason: "PAYLOAD_TOO_LARGE", Message: text}
	}
	return nil
}

// checkContext refuses sections that do not fit into one TaskContextTransfer, before the handoff's request is sent.
func checkContext(sections []*v1.ContextSection) error {
	transfer := &v1.TaskContextTransfer{Sections: sections, ContextDigest: make([]byte, 32)}
	if found := proto.Size(transfer); found > payloadBytesMax {
		return tooLarge(found)
	}
	return nil
}

func checkHeartbeat(heartbeat *v1.Heartbeat) error {
	var wrong []FieldViolation
	if found := len(heartbeat.GetStatus()); found > heartbeatTextMax {
		wrong = append(wrong, FieldViolation{"heartbeat.status", fmt.Sprintf("must have at most %d bytes", heartbeatTextMax)})
	}
	if found := len(heartbeat.GetWorkingOn()); found > workingOnMax {
		wrong = append(wrong, FieldViolation{"heartbeat.working_on", fmt.Sprintf("must have at most %d entries", workingOnMax)})
	}
	if found := len(heartbeat.GetMetrics()); found > heartbeatMapMax {
		wrong = append(wrong, FieldViolation{"heartbeat.metrics", fmt.Sprintf("must have at most %d entries", heartbeatMapMax)})
	}
	if found := proto.Size(heartbeat); found > payloadBytesMax {
		wrong = append(wrong, FieldViolation{"heartbeat", fmt.Sprintf("has %d bytes; the limit is %d", found, payloadBytesMax)})
	}
	return invalid(wrong)
}

func tooLarge(found int) error {
	text := fmt.Sprintf("the payload has %d bytes; the limit is %d", found, payloadBytesMax)
	return &Error{Code: codes.InvalidArgument, Reason: "PAYLOAD_TOO_LARGE", Message: text}
}

func invalid(wrong []FieldViolation) error {
	if len(wrong) == 0 {
		return nil
	}
	text := wrong[0].Field + " " + wrong[0].Description
	return &Error{Code: codes.InvalidArgument, Reason: "FIELD_INVALID", Message: text, Fields: wrong}
}

func frameOf(envelope *v1.Envelope) *v1.ConnectRequest {
	return &v1.ConnectRequest{Request: &v1.ConnectRequest_Envelope{Envelope: envelope}}
}
