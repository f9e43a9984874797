package baton

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const typeURL = "type.googleapis.com/"

// About names the task, epoch and handoff of a message. An empty field is left out of the envelope.
type About struct {
	// The task's id.
	TaskID string
	// The task's fencing token as known to the sender: 1 for a new task, 0 without a task.
	Epoch uint64
	// The handoff that the message belongs to, or the message that it answers.
	CorrelationID string
}

// NewEnvelope returns an unsigned envelope around a payload of baton.v1, with a new id and the current time.
func NewEnvelope(senderID, receiverID string, about About, payload proto.Message) (*v1.Envelope, error) {
	name := payload.ProtoReflect().Descriptor().FullName()
	kind, ok := kinds[name]
	if !ok {
		return nil, fmt.Errorf("baton: %s is not a payload", name)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	value, err := proto.Marshal(payload)
	if err != nil {
		return nil, err
	}
	return &v1.Envelope{
		MessageId:     id.String(),
		SenderId:      senderID,
		ReceiverId:    receiverID,
		Timestamp:     timestamppb.Now(),
		MessageType:   kind,
		CorrelationId: about.CorrelationID,
		TaskId:        about.TaskID,
		Epoch:         about.Epoch,
		Payload:       &anypb.Any{TypeUrl: typeURL + string(name), Value: value},
	}, nil
}

// newID returns a new UUID of version 7. It panics if the system has no random numbers.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// PayloadOf returns the envelope's payload as a message of baton.v1, or nil for a message_type unknown to this version.
// It fails with a VerificationError: PAYLOAD_TYPE_MISMATCH if the payload differs from message_type, MALFORMED if it
// does not parse.
func PayloadOf(envelope *v1.Envelope) (proto.Message, error) {
	kind := envelope.GetMessageType()
	name, ok := payloads[kind]
	if !ok {
		return nil, nil
	}
	if found := envelope.GetPayload().GetTypeUrl(); found != typeURL+string(name.Descriptor().FullName()) {
		return nil, &VerificationError{"PAYLOAD_TYPE_MISMATCH", fmt.Sprintf("%s with a payload of type %q", kind, found)}
	}
	payload := name.New().Interface()
	if err := proto.Unmarshal(envelope.GetPayload().GetValue(), payload); err != nil {
		return nil, &VerificationError{"MALFORMED", err.Error()}
	}
	return payload, nil
}

// JSONSection returns a context section with a value that encoding/json encodes as an object or an array.
func JSONSection(name string, value any) (*v1.ContextSection, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return &v1.ContextSection{Name: name, Content: &v1.ContextSection_Json{Json: string(text)}}, nil
}

// BytesSection returns a context section with bytes of the given media type.
func BytesSection(name, mediaType string, data []byte) *v1.ContextSection {
	content := &v1.ContextBytes{MediaType: mediaType, Data: data}
	return &v1.ContextSection{Name: name, Content: &v1.ContextSection_Bytes{Bytes: content}}
}

// payloads maps each message type to its payload; kinds is the inverse.
var payloads, kinds = func() (map[v1.MessageType]protoreflect.MessageType, map[protoreflect.FullName]v1.MessageType) {
	known := []proto.Message{
		&v1.HandoffRequest{}, &v1.HandoffAccept{}, &v1.HandoffReject{}, &v1.HandoffCancel{}, &v1.TaskContextTransfer{},
		&v1.HandoffComplete{}, &v1.TaskStatusUpdate{}, &v1.ErrorNotification{}, &v1.Heartbeat{}, &v1.TaskRequest{},
		&v1.TaskOffer{}, &v1.TaskAccept{}, &v1.Delegation{}, &v1.Info{}, &v1.TaskRecall{},
		&v1.TaskInput{}, &v1.TaskCreate{}, &v1.WorkspaceAppend{}, &v1.TaskDecline{}, &v1.NegotiationClosed{}, &v1.PlanSubmission{},
	}
	byKind := map[v1.MessageType]protoreflect.MessageType{}
	byName := map[protoreflect.FullName]v1.MessageType{}
	for _, message := range known {
		kind := kindNamed(string(message.ProtoReflect().Descriptor().Name()))
		byKind[kind] = message.ProtoReflect().Type()
		byName[message.ProtoReflect().Descriptor().FullName()] = kind
	}
	// A checkpoint has the payload of a context, which by itself is that of a handoff.
	byKind[v1.MessageType_MESSAGE_TYPE_CONTEXT_CHECKPOINT] = byKind[v1.MessageType_MESSAGE_TYPE_TASK_CONTEXT_TRANSFER]
	return byKind, byName
}()

// kindNamed returns the message type of a payload's name: MESSAGE_TYPE_HANDOFF_REQUEST for HandoffRequest.
func kindNamed(name string) v1.MessageType {
	for number, text := range v1.MessageType_name {
		if strings.EqualFold(strings.ReplaceAll(strings.TrimPrefix(text, "MESSAGE_TYPE_"), "_", ""), name) {
			return v1.MessageType(number)
		}
	}
	return v1.MessageType_MESSAGE_TYPE_UNSPECIFIED
}
