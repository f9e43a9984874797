package baton

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// The number of handled messages that Serve remembers. A message whose ack was lost is not handled twice.
const rememberedMax = 4096

// Handler handles deliveries, several at a time. Serve acks after nil, and after a refusal because the handoff has
// moved on (HasGoneOn). It nacks after any other error: as FAILURE, so that the message is redelivered, or as Poison
// and RetryAfter say. A panic counts as an error. ctx ends at the handler's time limit (Options.HandlerTimeout), and
// when the agent stops.
type Handler interface {
	Handle(ctx context.Context, delivery *Delivery) error
}

// HandlerFunc adapts a function to a Handler.
type HandlerFunc func(ctx context.Context, delivery *Delivery) error

// Handle calls the function.
func (f HandlerFunc) Handle(ctx context.Context, delivery *Delivery) error { return f(ctx, delivery) }

// Handlers is a Handler with one function for each role of the agent and one for each kind of message. Mail that
// HandOver, ResumeHandOver, Delegate, Ask or a method of Offer waits for goes there instead. A function for a kind of
// message takes precedence over Offer and Context, and these over Other. Without a function:
//
//   - a HandoffRequest, and an award that hands a task over, is rejected as NO_SKILL; a TaskRequest is declined as NO_SKILL;
//   - a HandoffAccept or TaskContextTransfer of a handoff that an earlier process of this agent began is redelivered every
//     two seconds while the handoff is open, so that ResumeHandOver or another process can continue it, and then acked;
//   - a TaskOffer is redelivered every two seconds while the negotiation is open, so that ResumeNegotiation can take it, and
//     then acked;
//   - a TaskAccept without a task, a Delegation and a type unknown to this version are nacked as POISON, and the broker
//     keeps them as dead letters;
//   - a notice is acked.
type Handlers struct {
	// Accepts or rejects the handoffs that are offered to this agent, also offers accepted by an earlier process of it. It
	// returns after it has rejected, completed or failed the handoff; an earlier nil counts as an error. If the handoff
	// continues without this agent, Accept fails, or after the accept the context ends, with a HandoffFailedError as the
	// cause. If the task is recalled while the function works on it, the context ends with a TaskRecalledError as the cause.
	Offer func(context.Context, *Offer) error
	// Answers a request for offers to this agent, and each counter-offer, by an offer, whose round it need not set, or by the
	// error that Decline returns. A nil offer without an error answers nothing; OfferWanted.Offer answers later. A redelivery
	// of a request that is answered already, or whose negotiation has closed, is acked without a call.
	Bid func(context.Context, *OfferWanted) (*v1.TaskOffer, error)
	// Returns the context for a candidate that has accepted, if no HandOver or ResumeHandOver of this process waits for
	// the accept. With it a handoff that an earlier process requested continues.
	Context func(context.Context, *WantedContext) ([]*v1.ContextSection, error)

	// Learns of a task that was taken from this agent. Before it is called, the context of the Offer function that works on
	// the task and those of OwnedTask.UntilRecalled have ended, with a TaskRecalledError as the cause, and HandOver and
	// Delegate of the task have failed. Without it the notice goes to ErrorNotification.
	Recalled func(context.Context, *Recalled) error
	// Answers questions to this agent. A function that returns without an answer leaves the question open;
	// Agent.AnswerQuestion answers it later. Without it a question goes to TaskStatusUpdate.
	Prompt func(context.Context, *Question) error

	HandoffRequest      func(context.Context, *Delivery, *v1.HandoffRequest) error
	HandoffAccept       func(context.Context, *Delivery, *v1.HandoffAccept) error
	HandoffReject       func(context.Context, *Delivery, *v1.HandoffReject) error
	HandoffCancel       func(context.Context, *Delivery, *v1.HandoffCancel) error
	TaskContextTransfer func(context.Context, *Delivery, *v1.TaskContextTransfer) error
	HandoffComplete     func(context.Context, *Delivery, *v1.HandoffComplete) error
	TaskStatusUpdate    func(context.Context, *Delivery, *v1.TaskStatusUpdate) error
	TaskInput           func(context.Context, *Delivery, *v1.TaskInput) error
	ErrorNotification   func(context.Context, *Delivery, *v1.ErrorNotification) error
	TaskRequest         func(context.Context, *Delivery, *v1.TaskRequest) error
	TaskOffer           func(context.Context, *Delivery, *v1.TaskOffer) error
	TaskDecline         func(context.Context, *Delivery, *v1.TaskDecline) error
	TaskAccept          func(context.Context, *Delivery, *v1.TaskAccept) error
	NegotiationClosed   func(context.Context, *Delivery, *v1.NegotiationClosed) error
	Delegation          func(context.Context, *Delivery, *v1.Delegation) error
	Info                func(context.Context, *Delivery, *v1.Info) error
	// Handles each message without a function of its own.
	Other func(context.Context, *Delivery) error
}

// Handle calls the function for the delivery's payload.
func (h Handlers) Handle(ctx context.Context, d *Delivery) error {
	switch payload := d.Payload.(type) {
	case *v1.HandoffRequest:
		if h.HandoffRequest == nil && h.Offer != nil {
			return d.agent.offer(ctx, d, h.Offer)
		}
		return one(ctx, h, d, h.HandoffRequest, payload, refuse)
	case *v1.HandoffAccept:
		if h.HandoffAccept == nil && h.Context != nil {
			return d.agent.provideContext(ctx, d, h.Context)
		}
		return one(ctx, h, d, h.HandoffAccept, payload, leave)
	case *v1.HandoffReject:
		return one(ctx, h, d, h.HandoffReject, payload, news)
	case *v1.HandoffCancel:
		return one(ctx, h, d, h.HandoffCancel, payload, news)
	case *v1.TaskContextTransfer:
		if h.TaskContextTransfer == nil && h.Offer != nil {
			return d.agent.offer(ctx, d, h.Offer)
		}
		return one(ctx, h, d, h.TaskContextTransfer, payload, leave)
	case *v1.HandoffComplete:
		return one(ctx, h, d, h.HandoffComplete, payload, news)
	case *v1.TaskStatusUpdate:
		if question := questionOf(d); question != nil && h.Prompt != nil {
			return h.Prompt(ctx, question)
		}
		return one(ctx, h, d, h.TaskStatusUpdate, payload, news)
	case *v1.TaskInput:
		return one(ctx, h, d, h.TaskInput, payload, news)
	case *v1.ErrorNotification:
		if recalled := takenBy(d); recalled != nil && h.Recalled != nil {
			return h.Recalled(ctx, recalled)
		}
		return one(ctx, h, d, h.ErrorNotification, payload, news)
	case *v1.TaskRequest:
		if h.TaskRequest == nil && h.Bid != nil {
			return d.agent.bid(ctx, d, h.Bid)
		}
		return one(ctx, h, d, h.TaskRequest, payload, decline)
	case *v1.TaskOffer:
		if h.TaskOffer == nil && h.Bid != nil && d.agent.isCountered(ctx, d) {
			return d.agent.bid(ctx, d, h.Bid)
		}
		return one(ctx, h, d, h.TaskOffer, payload, leaveOffer)
	case *v1.TaskDecline:
		return one(ctx, h, d, h.TaskDecline, payload, news)
	case *v1.TaskAccept:
		if h.TaskAccept == nil && payload.GetHandoff() != nil {
			return h.award(ctx, d)
		}
		return one(ctx, h, d, h.TaskAccept, payload, poison)
	case *v1.NegotiationClosed:
		if h.NegotiationClosed == nil && d.Terms() != nil {
			return h.award(ctx, d)
		}
		return one(ctx, h, d, h.NegotiationClosed, payload, news)
	case *v1.Delegation:
		return one(ctx, h, d, h.Delegation, payload, poison)
	case *v1.Info:
		return one(ctx, h, d, h.Info, payload, news)
	}
	return one[any](ctx, h, d, nil, nil, poison)
}

// award handles an award that hands a task over to this agent.
func (h Handlers) award(ctx context.Context, d *Delivery) error {
	switch {
	case h.Offer != nil:
		return d.agent.offer(ctx, d, h.Offer)
	case h.Other != nil:
		return h.Other(ctx, d)
	}
	return refuse(ctx, d)
}

func one[P any](
	ctx context.Context, h Handlers, d *Delivery, f func(context.Context, *Delivery, P) error, payload P, otherwise func(context.Context, *Delivery) error,
) error {
	switch {
	case f != nil:
		return f(ctx, d, payload)
	case h.Other != nil:
		return h.Other(ctx, d)
	}
	return otherwise(ctx, d)
}

// The defaults for messages without a function.

func news(context.Context, *Delivery) error { return nil }

func poison(_ context.Context, d *Delivery) error {
	// A letter of the broker about a run tells what GetRun shows too.
	if d.Envelope.GetMessageType() == v1.MessageType_MESSAGE_TYPE_INFO && d.Envelope.GetSenderId() == brokerID {
		return nil
	}
	return Poison(fmt.Errorf("this agent has no handler for %s", d.Envelope.GetMessageType()))
}

func refuse(ctx context.Context, d *Delivery) error {
	_, err := d.agent.Reject(ctx, d, v1.RejectReason_REJECT_REASON_NO_SKILL, "this agent takes no handoffs")
	return err
}

func decline(ctx context.Context, d *Delivery) error {
	text := "this agent makes no offers"
	return d.agent.declineRequest(ctx, d, &v1.TaskDecline{Reason: v1.RejectReason_REJECT_REASON_NO_SKILL, ReasonText: text})
}

func leave(ctx context.Context, d *Delivery) error { return d.agent.unclaimed(ctx, d) }

func leaveOffer(ctx context.Context, d *Delivery) error { return d.agent.unclaimedOffer(ctx, d) }

type nackError struct {
	error
	cause      v1.NackCause
	retryAfter time.Duration
}

func (e *nackError) Unwrap() error { return e.error }

// Poison marks a handler's error: the message can never be handled and becomes a dead letter at once.
func Poison(err error) error {
	return &nackError{error: err, cause: v1.NackCause_NACK_CAUSE_POISON}
}

// RetryAfter adds the redelivery delay to a handler's error.
func RetryAfter(wait time.Duration, err error) error {
	return &nackError{error: err, cause: v1.NackCause_NACK_CAUSE_FAILURE, retryAfter: wait}
}

// Serve takes mail and handles it until ctx ends. It acknowledges each delivery by its handler's result and extends the
// delivery while the handler runs. A message that is redelivered meanwhile is not handled twice.
//
// When ctx ends, Serve takes no more mail, gives queued deliveries back, waits up to Options.StopTimeout for the
// running handlers, then ends their context and gives their deliveries back. Then it returns nil. It returns an error
// at the agent's end. One Serve may run at a time.
func (a *Agent) Serve(ctx context.Context, handler Handler) error {
	if !a.serving.TryLock() {
		return errors.New("baton: the agent is serving already")
	}
	defer a.serving.Unlock()
	resume, err := a.resumes(handler)
	if err != nil {
		return err
	}
	a.setStopping(false)
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	jobs := newJobs()
	if resume != nil {
		jobs.wait.Go(func() { a.keepResuming(ctx, work, jobs, resume) })
	}
	for {
		d, err := a.Receive(ctx)
		if err != nil {
			a.stopServing(jobs, stop)
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		switch state, running := jobs.again(d); state {
		case jobNew:
			jobs.begin(d)
			jobs.wait.Go(func() { jobs.end(d, a.handle(work, handler, d)) })
		case jobRunning: // the redelivery is now the one to acknowledge
			if running.renew(d) {
				jobs.wait.Go(func() { a.settle(running, nil) })
			}
		case jobDone:
			jobs.wait.Go(func() { a.settle(d, nil) })
		}
	}
}

// stopServing takes no more mail and waits for the handlers.
func (a *Agent) stopServing(jobs *jobs, stop context.CancelCauseFunc) {
	a.setStopping(true)
	ctx, cancel := context.WithTimeout(a.life, a.options.StopTimeout)
	defer cancel()
	// Running handlers may wait for mail, which still reaches their conversations.
	_ = a.wantMail(ctx, func() { a.taking = false })
	for {
		select {
		case d := <-a.mail:
			_ = d.Nack(ctx, v1.NackCause_NACK_CAUSE_SHUTDOWN, 0, "the agent stops")
			continue
		default:
		}
		break
	}
	done := make(chan struct{})
	go func() { jobs.wait.Wait(); close(done) }()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	stop(errStopped)
	<-done
}

// errStopped is the cause of a handler's end when the agent stops.
var errStopped = errors.New("baton: the agent stops")

// errHandlerTimeout is the cause of a handler's end at its time limit.
var errHandlerTimeout = errors.New("baton: the handler took too long")

// handle runs the handler and acknowledges the delivery. It reports whether the message was acked.
func (a *Agent) handle(work context.Context, handler Handler, d *Delivery) bool {
	u := &undertaking{agent: a, work: work}
	ctx, cancel := context.WithCancelCause(context.WithValue(a.inTrace(work, d), undertakingKey{}, u))
	defer cancel(nil)
	limit := time.AfterFunc(a.options.HandlerTimeout, func() {
		if d.outcome() == open {
			cancel(errHandlerTimeout)
		}
	})
	defer limit.Stop()
	result := make(chan error, 1)
	go func() {
		err := a.guarded(func() error { return handler.Handle(ctx, d) })
		if u.end(context.Cause(ctx), err) {
			err = nil // the failure is the task's, and the message needs no further handling
		}
		result <- err
	}()
	for {
		_, from := d.handle()
		wait := max(from.welcome.GetAckWait().AsDuration()/2, 10*time.Millisecond)
		timer := time.NewTimer(wait)
		select {
		case err := <-result:
			timer.Stop()
			if err != nil && ctx.Err() != nil {
				err = context.Cause(ctx) // the handler's own error is a consequence of the end
			}
			return a.settle(d, err)
		case <-ctx.Done():
			// A handler that ignores its context is abandoned; the message is redelivered.
			timer.Stop()
			return a.settle(d, context.Cause(ctx))
		case <-timer.C:
			if d.outcome() == open {
				a.extend(ctx, d)
			}
		}
	}
}

func (a *Agent) extend(ctx context.Context, d *Delivery) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// Without a session, or after the deadline, the message is redelivered and renew takes it over.
	if _, err := d.Extend(ctx, 0); err != nil {
		a.options.Logger.Debug("failed to extend", "message_id", d.Envelope.GetMessageId(), "error", err)
	}
}

// settle acknowledges a delivery by its handler's result, unless the handler did. It reports whether the message was
// acked.
func (a *Agent) settle(d *Delivery, result error) bool {
	ctx, cancel := context.WithTimeout(a.life, callTimeout)
	defer cancel()
	log := a.options.Logger.With("message_id", d.Envelope.GetMessageId(), "message_type", d.Envelope.GetMessageType().String())
	var err error
	var nack *nackError
	switch {
	case d.outcome() != open:
		if result != nil {
			log.Warn("a handler failed after its acknowledgement", "error", result)
		}
	case result == nil:
		err = d.Ack(ctx)
	case HasGoneOn(result):
		// The agent did this before a restart, or came too late: a redelivery would be refused again.
		log.Warn("the handoff has gone on", "error", result)
		result = nil
		err = d.Ack(ctx)
	case errors.Is(result, errStopped):
		err = d.Nack(ctx, v1.NackCause_NACK_CAUSE_SHUTDOWN, 0, "the agent stops")
	case errors.As(result, &nack) && nack.cause == v1.NackCause_NACK_CAUSE_SHUTDOWN:
		log.Debug("a message waits", "cause", result)
		err = d.Nack(ctx, nack.cause, nack.retryAfter, result.Error())
	case errors.As(result, &nack):
		log.Warn("failed to handle a message", "error", result)
		err = d.Nack(ctx, nack.cause, nack.retryAfter, result.Error())
	default:
		log.Warn("failed to handle a message", "error", result)
		err = d.Nack(ctx, v1.NackCause_NACK_CAUSE_FAILURE, 0, result.Error())
	}
	if err != nil {
		log.Info("an acknowledgement was lost; the message comes again", "error", err)
	}
	if become := d.outcome(); become != open {
		return become == acked
	}
	return result == nil
}

// guarded converts a panic to an error.
func (a *Agent) guarded(handle func() error) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			a.options.Logger.Error("a handler panicked", "panic", panicked, "stack", string(debug.Stack()))
			err = fmt.Errorf("baton: a handler panicked: %v", panicked)
		}
	}()
	return handle()
}

func durationOf(span time.Duration) *durationpb.Duration {
	if span == 0 {
		return nil
	}
	return durationpb.New(span)
}
