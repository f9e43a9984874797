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

// About says what a message is about; what is not set is not said.
type About struct {
	// The task.
	TaskID string
	// The task's fencing token as the sender knows it: 1 for a new task, 0 where there is no task.
	Epoch uint64
	// The handoff that the message belongs to, or the message that it answers.
	CorrelationID string
}

// NewEnvelope makes an envelope around a payload of baton.v1, with a new id, made now and not yet signed.
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

// PayloadOf is the envelope's payload as a message of baton.v1. It is nil if this version does not know the
// message_type. It fails with a VerificationError: PAYLOAD_TYPE_MISMATCH if the payload is not what message_type says,
// MALFORMED if it does not parse.
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

// JSONSection makes a context section of whatever encoding/json makes an object or a list of.
func JSONSection(name string, value any) (*v1.ContextSection, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return &v1.ContextSection{Name: name, Content: &v1.ContextSection_Json{Json: string(text)}}, nil
}

// BytesSection makes a context section of bytes of any other kind.
func BytesSection(name, mediaType string, data []byte) *v1.ContextSection {
	content := &v1.ContextBytes{MediaType: mediaType, Data: data}
	return &v1.ContextSection{Name: name, Content: &v1.ContextSection_Bytes{Bytes: content}}
}

// payloads is every payload by the message type that names it; kinds is the other way round.
var payloads, kinds = func() (map[v1.MessageType]protoreflect.MessageType, map[protoreflect.FullName]v1.MessageType) {
	known := []proto.Message{
		&v1.HandoffRequest{}, &v1.HandoffAccept{}, &v1.HandoffReject{}, &v1.HandoffCancel{}, &v1.TaskContextTransfer{},
		&v1.HandoffComplete{}, &v1.TaskStatusUpdate{}, &v1.ErrorNotification{}, &v1.Heartbeat{}, &v1.TaskRequest{},
		&v1.TaskOffer{}, &v1.TaskAccept{}, &v1.Delegation{}, &v1.Info{},
	}
	byKind := map[v1.MessageType]protoreflect.MessageType{}
	byName := map[protoreflect.FullName]v1.MessageType{}
	for _, message := range known {
		kind := kindNamed(string(message.ProtoReflect().Descriptor().Name()))
		byKind[kind] = message.ProtoReflect().Type()
		byName[message.ProtoReflect().Descriptor().FullName()] = kind
	}
	return byKind, byName
}()

// kindNamed finds MESSAGE_TYPE_HANDOFF_REQUEST for HandoffRequest.
func kindNamed(name string) v1.MessageType {
	for number, text := range v1.MessageType_name {
		if strings.EqualFold(strings.ReplaceAll(strings.TrimPrefix(text, "MESSAGE_TYPE_"), "_", ""), name) {
			return v1.MessageType(number)
		}
	}
	return v1.MessageType_MESSAGE_TYPE_UNSPECIFIED
}
