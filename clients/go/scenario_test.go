package baton

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// The scenarios that the tests of every language run; ../scenarios/README.md defines their format.

type scenario struct {
	Name   string
	About  string
	Spec   []string
	Agents map[string]struct {
		Types     []string
		Connected *bool
	}
	Names []string
	Steps []json.RawMessage
}

type step struct {
	As          string         `json:"as"`
	Send        *sendStep      `json:"send"`
	Repeat      string         `json:"repeat"`
	Receive     *receiveStep   `json:"receive"`
	Acknowledge *ackStep       `json:"acknowledge"`
	Connect     *connectStep   `json:"connect"`
	Disconnect  *struct{}      `json:"disconnect"`
	Task        string         `json:"task"`
	Handoff     string         `json:"handoff"`
	Expect      map[string]any `json:"expect"`
}

type sendStep struct {
	Type          string          `json:"type"`
	Payload       json.RawMessage `json:"payload"`
	ID            string          `json:"id"`
	To            string          `json:"to"`
	Task          string          `json:"task"`
	Epoch         uint64          `json:"epoch"`
	Correlation   string          `json:"correlation"`
	Sender        string          `json:"sender"`
	MessageID     string          `json:"message_id"`
	ClockOffsetMS int64           `json:"clock_offset_ms"`
	ExpiresInMS   *int64          `json:"expires_in_ms"`
	SignedBy      *string         `json:"signed_by"`
	Changed       struct {
		To          *string `json:"to"`
		Task        *string `json:"task"`
		Epoch       *uint64 `json:"epoch"`
		Correlation *string `json:"correlation"`
	} `json:"changed"`
}

type receiveStep struct {
	Type        string         `json:"type"`
	From        *string        `json:"from"`
	To          *string        `json:"to"`
	Task        *string        `json:"task"`
	Epoch       *uint64        `json:"epoch"`
	Correlation *string        `json:"correlation"`
	Message     *string        `json:"message"`
	Attempt     *uint32        `json:"attempt"`
	Payload     map[string]any `json:"payload"`
	ID          string         `json:"id"`
	Then        then           `json:"then"`
}

type ackStep struct {
	Delivery string `json:"delivery"`
	Then     then   `json:"then"`
}

type connectStep struct {
	Credit uint32 `json:"credit"`
}

// then is a word or an object.
type then struct {
	word         string
	Nack         string `json:"nack"`
	RetryAfterMS int64  `json:"retry_after_ms"`
	ExtendMS     int64  `json:"extend_ms"`
}

func (t *then) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &t.word)
	}
	type plain then
	return strict(text, (*plain)(t))
}

func strict(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// player runs one scenario.
type player struct {
	t          *testing.T
	names      map[string]string
	options    map[string]Options
	agents     map[string]*Agent
	envelopes  map[string]*v1.Envelope
	receipts   map[string]*v1.Receipt
	deliveries map[string]*Delivery
}

func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("../scenarios/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".json"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var one scenario
			if err := strict(text, &one); err != nil {
				t.Fatal(err)
			}
			play(t, one)
		})
	}
}

func play(t *testing.T, one scenario) {
	p := &player{
		t: t, names: map[string]string{}, options: map[string]Options{}, agents: map[string]*Agent{},
		envelopes: map[string]*v1.Envelope{}, receipts: map[string]*v1.Receipt{}, deliveries: map[string]*Delivery{},
	}
	for _, name := range one.Names {
		p.names[name] = unique(name)
	}
	for name := range one.Agents {
		p.options[name] = shared.options(t, name)
		p.names[name] = p.options[name].AgentID
	}
	for name, agent := range one.Agents {
		options := p.options[name]
		for _, kind := range agent.Types {
			options.Card.AgentTypes = append(options.Card.AgentTypes, p.bound(kind))
		}
		p.connect(name, creditDefault)
		if agent.Connected != nil && !*agent.Connected {
			_ = p.agents[name].Close()
		}
	}
	for number, text := range one.Steps {
		var now step
		if err := strict([]byte(p.bound(string(text))), &now); err != nil {
			t.Fatalf("step %d: %v", number+1, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := p.do(ctx, now)
		cancel()
		if err != nil {
			t.Fatalf("step %d: %v\n  %s", number+1, err, text)
		}
	}
}

func (p *player) connect(name string, credit uint32) {
	options := p.options[name]
	options.Credit = credit
	p.agents[name] = connected(p.t, options)
	if err := p.agents[name].SetCredit(patient(p.t), credit); err != nil {
		p.t.Fatal(err)
	}
}

var reference = regexp.MustCompile(`\$\{([^}]*)\}`)

func (p *player) bound(text string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		value, ok := p.names[found[2:len(found)-1]]
		if !ok {
			p.t.Fatalf("%s is not bound", found)
		}
		return value
	})
}

func (p *player) do(ctx context.Context, now step) error {
	agent := p.agents[now.As]
	switch {
	case now.Send != nil:
		envelope, err := p.envelope(now.As, now.Send)
		if err != nil {
			return err
		}
		return p.send(ctx, agent, envelope, now.Send.ID, now.Expect)
	case now.Repeat != "":
		return p.send(ctx, agent, p.envelopes[now.Repeat], "", now.Expect)
	case now.Receive != nil:
		return p.receive(ctx, agent, now.Receive)
	case now.Acknowledge != nil:
		delivery := p.deliveries[now.Acknowledge.Delivery]
		return expected(acknowledge(ctx, delivery, now.Acknowledge.Then), map[string]any{}, now.Expect)
	case now.Connect != nil:
		p.connect(now.As, now.Connect.Credit)
		return nil
	case now.Disconnect != nil:
		return agent.Close()
	case now.Task != "":
		task, err := agent.GetTask(ctx, now.Task)
		return expected(err, map[string]any{
			"owner": task.GetOwnerId(), "epoch": float64(task.GetEpoch()), "open_handoff": task.GetOpenHandoffId(),
			"status": strings.TrimPrefix(task.GetStatus().String(), "TASK_STATUS_"),
		}, now.Expect)
	case now.Handoff != "":
		return p.lookAt(ctx, agent, now.Handoff, now.Expect)
	}
	return errors.New("a step without a deed")
}

func (p *player) envelope(as string, s *sendStep) (*v1.Envelope, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("baton.v1." + s.Type))
	if err != nil {
		return nil, err
	}
	payload := kind.New().Interface()
	if s.Payload != nil {
		if err := protojson.Unmarshal(s.Payload, payload); err != nil {
			return nil, err
		}
	}
	transfer, isTransfer := payload.(*v1.TaskContextTransfer)
	if isTransfer && transfer.ContextDigest == nil {
		transfer.ContextDigest = ContextDigest(transfer.GetSections())
	}
	about := About{TaskID: s.Task, Epoch: s.Epoch, CorrelationID: s.Correlation}
	envelope, err := NewEnvelope(orElse(s.Sender, p.names[as]), s.To, about, payload)
	if err != nil {
		return nil, err
	}
	envelope.MessageId = orElse(s.MessageID, envelope.MessageId)
	now := time.Now()
	envelope.Timestamp = timestamppb.New(now.Add(time.Duration(s.ClockOffsetMS) * time.Millisecond))
	if s.ExpiresInMS != nil {
		envelope.ExpiresAt = timestamppb.New(now.Add(time.Duration(*s.ExpiresInMS) * time.Millisecond))
	}
	p.sign(envelope, as, s)
	if s.ID != "" {
		p.names[s.ID] = envelope.MessageId
		p.envelopes[s.ID] = envelope
		if isTransfer {
			p.names[s.ID+".digest"] = base64.StdEncoding.EncodeToString(transfer.ContextDigest)
		}
	}
	return envelope, nil
}

func (p *player) sign(envelope *v1.Envelope, as string, s *sendStep) {
	key := p.options[as].Key
	if s.SignedBy != nil {
		key = p.options[*s.SignedBy].Key
	}
	if len(key) == ed25519.PrivateKeySize {
		SignEnvelope(envelope, "k1", key)
	}
	set(&envelope.ReceiverId, s.Changed.To)
	set(&envelope.TaskId, s.Changed.Task)
	set(&envelope.Epoch, s.Changed.Epoch)
	set(&envelope.CorrelationId, s.Changed.Correlation)
}

func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

func (p *player) send(ctx context.Context, agent *Agent, envelope *v1.Envelope, id string, expect map[string]any) error {
	receipt, err := agent.SendEnvelope(ctx, envelope)
	p.receipts[id] = receipt
	found := map[string]any{
		"state":   strings.TrimPrefix(receipt.GetHandoffState().String(), "HANDOFF_STATE_"),
		"status":  strings.TrimPrefix(receipt.GetTaskStatus().String(), "TASK_STATUS_"),
		"epoch":   float64(receipt.GetEpoch()),
		"owner":   receipt.GetOwnerId(),
		"handoff": receipt.GetHandoffId(),
	}
	if first, ok := expect["same_receipt_as"].(string); ok && proto.Equal(receipt, p.receipts[first]) {
		found["same_receipt_as"] = first
	}
	return expected(err, found, expect)
}

func (p *player) receive(ctx context.Context, agent *Agent, r *receiveStep) error {
	d, err := agent.Receive(ctx)
	if err != nil {
		return err
	}
	e := d.Envelope
	if transfer, ok := d.Payload.(*v1.TaskContextTransfer); ok {
		if !bytes.Equal(ContextDigest(transfer.GetSections()), transfer.GetContextDigest()) {
			return errors.New("the context does not have its digest")
		}
	}
	text, err := protojson.Marshal(d.Payload)
	if err != nil {
		return err
	}
	var payload map[string]any
	if err := json.Unmarshal(text, &payload); err != nil {
		return err
	}
	err = errors.Join(
		differs("type", string(d.Payload.ProtoReflect().Descriptor().Name()), &r.Type),
		differs("from", e.GetSenderId(), r.From),
		differs("to", e.GetReceiverId(), r.To),
		differs("task", e.GetTaskId(), r.Task),
		differs("epoch", e.GetEpoch(), r.Epoch),
		differs("correlation", e.GetCorrelationId(), r.Correlation),
		differs("message", e.GetMessageId(), r.Message),
		differs("attempt", d.Attempt, r.Attempt),
		partOf("payload", r.Payload, payload),
	)
	if err != nil {
		return fmt.Errorf("%w\n  came: %s %s", err, e.GetMessageType(), text)
	}
	p.deliveries[r.ID] = d
	return acknowledge(ctx, d, r.Then)
}

func acknowledge(ctx context.Context, d *Delivery, then then) error {
	switch {
	case then.Nack != "":
		cause := v1.NackCause(v1.NackCause_value["NACK_CAUSE_"+then.Nack])
		return d.Nack(ctx, cause, time.Duration(then.RetryAfterMS)*time.Millisecond, "")
	case then.ExtendMS != 0:
		_, err := d.Extend(ctx, time.Duration(then.ExtendMS)*time.Millisecond)
		return err
	case then.word == "nothing":
		return nil
	case then.word == "" || then.word == "ack":
		return d.Ack(ctx)
	}
	return fmt.Errorf("what is %q?", then.word)
}

func (p *player) lookAt(ctx context.Context, agent *Agent, id string, expect map[string]any) error {
	handoff, err := agent.GetHandoff(ctx, id)
	if err != nil {
		return err
	}
	return partOf("handoff", expect, map[string]any{
		"state":         strings.TrimPrefix(handoff.GetState().String(), "HANDOFF_STATE_"),
		"sender_view":   strings.TrimPrefix(handoff.GetSenderView().String(), "SENDER_VIEW_"),
		"receiver_view": strings.TrimPrefix(handoff.GetReceiverView().String(), "RECEIVER_VIEW_"),
		"candidate":     handoff.GetCandidateId(),
		"error":         strings.TrimPrefix(handoff.GetErrorCode().String(), "ERROR_CODE_"),
	})
}

// expected compares an answer or a refusal with the expected one.
func expected(err error, found, expect map[string]any) error {
	var refused *Error
	if errors.As(err, &refused) && expect["error"] != nil {
		fields := []any{}
		for _, field := range refused.Fields {
			fields = append(fields, field.Field)
		}
		metadata := map[string]any{}
		for name, value := range refused.Metadata {
			metadata[name] = value
		}
		code := codeNames[refused.Code]
		found = map[string]any{"error": refused.Reason, "code": code, "fields": fields, "metadata": metadata}
	} else if err != nil {
		return err
	}
	return partOf("answer", expect, found)
}

var codeNames = map[codes.Code]string{
	codes.InvalidArgument: "INVALID_ARGUMENT", codes.Unauthenticated: "UNAUTHENTICATED",
	codes.PermissionDenied: "PERMISSION_DENIED", codes.NotFound: "NOT_FOUND", codes.AlreadyExists: "ALREADY_EXISTS",
	codes.FailedPrecondition: "FAILED_PRECONDITION", codes.Aborted: "ABORTED", codes.Unavailable: "UNAVAILABLE",
	codes.ResourceExhausted: "RESOURCE_EXHAUSTED", codes.Unimplemented: "UNIMPLEMENTED", codes.Internal: "INTERNAL",
}

func differs[T comparable](what string, found T, expect *T) error {
	if expect != nil && found != *expect {
		return fmt.Errorf("%s is %v, expected %v", what, found, *expect)
	}
	return nil
}

// partOf checks that every expected field is present and equal.
func partOf(what string, expect, found map[string]any) error {
	for name, value := range expect {
		path := what + "." + name
		inner, isObject := value.(map[string]any)
		foundInner, isFoundObject := found[name].(map[string]any)
		switch {
		case isObject && isFoundObject:
			if err := partOf(path, inner, foundInner); err != nil {
				return err
			}
		case !reflect.DeepEqual(value, found[name]):
			return fmt.Errorf("%s is %v, expected %v", path, found[name], value)
		}
	}
	return nil
}
