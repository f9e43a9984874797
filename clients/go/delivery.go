package baton

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// brokerID is the agent id of a broker.
const brokerID = "baton"

// Delivery is a message that the broker delivered to this agent, its signature verified.
type Delivery struct {
	// The envelope as its sender sent it.
	Envelope *v1.Envelope
	// The payload as the message of baton.v1 that message_type names, for example *v1.HandoffRequest; nil for a type
	// unknown to this version.
	Payload proto.Message
	// The delivery attempt, starting at 1. From 2 on the message may have been handled before.
	Attempt uint32
	// The message's position in the order of everything that the broker stored.
	Sequence uint64
	// The handoff that the message belongs to, if any. For a redriven request it differs from the message_id.
	HandoffID string
	// The trace context that the receiver continues, as the context of a handler does; nil: none is known.
	TraceContext *v1.TraceContext

	agent  *Agent
	mu     sync.Mutex
	id     string
	from   *session
	become outcome
	// Whether an ack was sent, which may have been lost with its session.
	isTaken  bool
	isPeeked bool
}

type outcome int

const (
	open outcome = iota
	acked
	nacked
)

// Terms returns the terms of the handoff that the message asks this agent to take: those of a HandoffRequest, of a
// TaskAccept with a task, or of the requester's mandate in a NegotiationClosed. It returns nil for any other message.
func (d *Delivery) Terms() *v1.HandoffRequest {
	switch payload := d.Payload.(type) {
	case *v1.HandoffRequest:
		return payload
	case *v1.TaskAccept:
		return payload.GetHandoff()
	case *v1.NegotiationClosed:
		return mandateOf(payload).GetHandoff()
	}
	return nil
}

// AnswerTo returns the agent that an answer goes to: the sender, or the requester whose mandate an award shows.
func (d *Delivery) AnswerTo() string {
	closed, _ := d.Payload.(*v1.NegotiationClosed)
	return orElse(closed.GetTaskRequest().GetSenderId(), d.Envelope.GetSenderId())
}

// About returns the task, epoch and handoff for an answer to the delivery.
func (d *Delivery) About() About {
	return About{TaskID: d.Envelope.GetTaskId(), Epoch: d.Envelope.GetEpoch(), CorrelationID: d.HandoffID}
}

// Ack acknowledges the delivery: the broker never delivers the message again. Serve acks when a handler returns nil. A
// handler that acks earlier has no time limit afterwards, and Serve only logs its result. Ack fails with an Error,
// DELIVERY_UNKNOWN, after the delivery's deadline.
func (d *Delivery) Ack(ctx context.Context) error {
	d.mu.Lock()
	d.isTaken = true
	d.mu.Unlock()
	_, err := d.acknowledge(ctx, &v1.Acknowledgement{Outcome: &v1.Acknowledgement_Ack{Ack: &v1.Ack{}}})
	return d.settled(acked, err)
}

// Nack refuses the delivery. The broker redelivers it after the wait, or by its own backoff if the wait is 0; a POISON
// becomes a dead letter. The text is cut to 4096 bytes.
func (d *Delivery) Nack(ctx context.Context, cause v1.NackCause, retryAfter time.Duration, text string) error {
	nack := &v1.Nack{Cause: cause, ReasonText: clipped(text)}
	if retryAfter > 0 {
		nack.RetryAfter = durationpb.New(retryAfter)
	}
	_, err := d.acknowledge(ctx, &v1.Acknowledgement{Outcome: &v1.Acknowledgement_Nack{Nack: nack}})
	return d.settled(nacked, err)
}

// Extend moves the delivery's deadline to extension from now: at most 10 minutes, 0 for the ack wait. It returns the
// new deadline. Serve extends by itself.
func (d *Delivery) Extend(ctx context.Context, extension time.Duration) (time.Time, error) {
	extend := &v1.Extend{}
	if extension > 0 {
		extend.Extension = durationpb.New(extension)
	}
	answer, err := d.acknowledge(ctx, &v1.Acknowledgement{Outcome: &v1.Acknowledgement_Extend{Extend: extend}})
	return answer.GetAckDeadline().AsTime(), err
}

func (d *Delivery) acknowledge(ctx context.Context, acknowledgement *v1.Acknowledgement) (*v1.Acknowledged, error) {
	id, from := d.handle()
	switch {
	case d.isPeeked:
		return nil, errors.New("baton: the message was only looked at")
	case from == nil: // read at the broker: see Agent.found
		return &v1.Acknowledged{}, nil
	}
	acknowledgement.DeliveryId = id
	request := &v1.ConnectRequest{Request: &v1.ConnectRequest_Acknowledgement{Acknowledgement: acknowledgement}}
	answer, err := from.ask(ctx, request)
	return answer.GetAcknowledged(), err
}

func (d *Delivery) handle() (string, *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id, d.from
}

func (d *Delivery) settled(outcome outcome, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.become = outcome
	}
	return err
}

func (d *Delivery) outcome() outcome {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.become
}

// renew takes over the delivery id of a redelivery of the same message. It reports whether an ack was lost and must be
// repeated at once: the broker holds back the task's next message until then.
func (d *Delivery) renew(later *Delivery) bool {
	id, from := later.handle()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.id, d.from = id, from
	if d.isTaken {
		d.become = open
	}
	return d.isTaken
}

// Receive waits for the next delivery, which the caller acknowledges. Most agents use Serve, which acknowledges by
// itself. The sender's signature is verified end to end. A message that does not verify is not returned: the agent
// nacks it as POISON, and the broker keeps it as a dead letter.
func (a *Agent) Receive(ctx context.Context) (*Delivery, error) {
	if err := a.wantMail(ctx, func() { a.taking = true }); err != nil {
		return nil, err
	}
	for {
		select {
		case d := <-a.mail:
			if _, from := d.handle(); from.ended.Err() == nil { // after the session's end it is redelivered
				return d, nil
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-a.life.Done():
			return nil, a.Err()
		}
	}
}

// SetCredit sets the maximum number of unacknowledged deliveries, 0 (a pause) to 4096, for this session and later ones,
// until Serve ends. Without it, the first call that waits for mail sets Options.Credit.
func (a *Agent) SetCredit(ctx context.Context, maxOutstanding uint32) error {
	a.crediting.Lock()
	defer a.crediting.Unlock()
	a.mu.Lock()
	a.credit = maxOutstanding
	if maxOutstanding > 0 {
		a.taking, a.isCredited = true, true
	}
	s := a.session
	a.mu.Unlock()
	if s == nil {
		return nil // the next session begins with it
	}
	return s.giveCredit(ctx, maxOutstanding)
}

// checked returns the delivery if its signature and its form are valid, otherwise nil.
func (a *Agent) checked(ctx context.Context, entry inboxEntry) *Delivery {
	if entry.session.ended.Err() != nil {
		return nil // it is redelivered
	}
	envelope := entry.delivery.GetEnvelope()
	d := &Delivery{
		Envelope: envelope, Attempt: entry.delivery.GetAttempt(), Sequence: entry.delivery.GetSequence(),
		HandoffID:    orElse(entry.delivery.GetHandoffId(), handoffOf(envelope)),
		TraceContext: validTrace(entry.delivery.GetTraceContext()),
		agent:        a, id: entry.delivery.GetDeliveryId(), from: entry.session,
	}
	err := a.verifySender(ctx, envelope)
	if err == nil {
		d.Payload, err = PayloadOf(envelope)
	}
	if closed, ok := d.Payload.(*v1.NegotiationClosed); err == nil && ok {
		err = a.verifyMandate(ctx, envelope, closed)
	}
	if err == nil {
		return d
	}
	if ctx.Err() != nil {
		return nil
	}
	log := a.options.Logger.With("message_id", envelope.GetMessageId(), "sender_id", envelope.GetSenderId())
	cause := v1.NackCause_NACK_CAUSE_FAILURE
	var forged *VerificationError
	if errors.As(err, &forged) {
		cause = v1.NackCause_NACK_CAUSE_POISON
	}
	log.Warn("failed to handle a delivery", "error", err)
	if err := d.Nack(ctx, cause, 0, err.Error()); err != nil {
		log.Warn("failed to nack", "error", err)
	}
	return nil
}

func handoffOf(envelope *v1.Envelope) string {
	switch envelope.GetMessageType() {
	case v1.MessageType_MESSAGE_TYPE_HANDOFF_REQUEST:
		return envelope.GetMessageId()
	case v1.MessageType_MESSAGE_TYPE_TASK_ACCEPT:
		if envelope.GetTaskId() != "" {
			return envelope.GetMessageId()
		}
	}
	return envelope.GetCorrelationId()
}

// keyCache holds the keys of other agents for one minute, which is the maximum delay before a revocation takes effect
// here.
type keyCache struct {
	mu    sync.Mutex
	known map[string]knownKeys
}

type knownKeys struct {
	keys  []*v1.AgentKey
	until time.Time
}

// verifySender verifies an envelope with its sender's key: pinned, cached, or from the directory.
func (a *Agent) verifySender(ctx context.Context, envelope *v1.Envelope) error {
	sender, keyID := envelope.GetSenderId(), envelope.GetKeyId()
	if pinned, ok := a.options.PinnedKeys[sender]; ok {
		return verifyByOneOf(envelope, pinned)
	}
	a.keys.mu.Lock()
	known := a.keys.known[sender]
	a.keys.mu.Unlock()
	if time.Now().Before(known.until) && keyOf(known.keys, keyID) != nil {
		return a.verifyVouched(envelope, known.keys)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := a.GetAgent(ctx, sender)
	if err != nil {
		return err
	}
	keys := found.GetCard().GetKeys()
	a.keys.mu.Lock()
	if len(a.keys.known) >= creditMax || a.keys.known == nil {
		a.keys.known = map[string]knownKeys{}
	}
	a.keys.known[sender] = knownKeys{keys, time.Now().Add(keysKeptFor)}
	a.keys.mu.Unlock()
	return a.verifyVouched(envelope, keys)
}

// verifyVouched verifies an envelope with a key of the directory, which may need a voucher. The broker itself is the
// authority for its own key, so that key needs none.
func (a *Agent) verifyVouched(envelope *v1.Envelope, keys []*v1.AgentKey) error {
	sender, key := envelope.GetSenderId(), keyOf(keys, envelope.GetKeyId())
	if key != nil && len(a.options.OperatorKeys) > 0 && sender != brokerID && !a.isVouched(sender, key) {
		return &VerificationError{"KEY_UNKNOWN", "no operator vouches for key " + key.GetKeyId() + " of " + sender}
	}
	return verifyByOneOf(envelope, keys)
}

func (a *Agent) isVouched(agentID string, key *v1.AgentKey) bool {
	return slices.ContainsFunc(key.GetVouchers(), func(voucher *v1.KeyVoucher) bool {
		operator, ok := a.options.OperatorKeys[voucher.GetOperatorKeyId()]
		return ok && VerifyVoucher(agentID, key, voucher, operator, time.Now()) == nil
	})
}

func verifyByOneOf(envelope *v1.Envelope, keys []*v1.AgentKey) error {
	key := keyOf(keys, envelope.GetKeyId())
	if key == nil {
		text := envelope.GetSenderId() + " has no key " + envelope.GetKeyId()
		return &VerificationError{"KEY_UNKNOWN", text}
	}
	return VerifyEnvelope(envelope, key)
}

func keyOf(keys []*v1.AgentKey, keyID string) *v1.AgentKey {
	for _, key := range keys {
		if key.GetKeyId() == keyID {
			return key
		}
	}
	return nil
}

// clipped cuts a text to its bound of 4096 bytes.
func clipped(text string) string { return cut(text, 4000) }

// cut cuts a text to a number of bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most
	for end > 0 && text[end]&0xc0 == 0x80 { // not inside a character
		end--
	}
	return text[:end]
}
