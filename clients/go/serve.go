package baton

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// How many handled messages Serve remembers, so that one whose ack was lost is not handled twice.
const rememberedMax = 4096

// Handler handles deliveries, several at a time. nil acks, and so does a refusal of the broker because the handoff has gone
// on (HasGoneOn); any other error nacks as FAILURE, so that the message comes again, or as Poison and RetryAfter say. A
// panic is an error. ctx ends when the handler's time is over (Options.HandlerTimeout),
// and when the agent stops.
type Handler interface {
	Handle(ctx context.Context, delivery *Delivery) error
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, delivery *Delivery) error

// Handle calls it.
func (f HandlerFunc) Handle(ctx context.Context, delivery *Delivery) error { return f(ctx, delivery) }

// Handlers is a Handler with a function for each kind of message. A message that asks for something (HandoffRequest,
// HandoffAccept, TaskContextTransfer, TaskRequest, TaskOffer, TaskAccept, Delegation, or a type that this version does not
// know) and has no function is nacked as POISON, so that the broker keeps it as a dead letter; one that only tells something is acked.
type Handlers struct {
	HandoffRequest      func(context.Context, *Delivery, *v1.HandoffRequest) error
	HandoffAccept       func(context.Context, *Delivery, *v1.HandoffAccept) error
	HandoffReject       func(context.Context, *Delivery, *v1.HandoffReject) error
	HandoffCancel       func(context.Context, *Delivery, *v1.HandoffCancel) error
	TaskContextTransfer func(context.Context, *Delivery, *v1.TaskContextTransfer) error
	HandoffComplete     func(context.Context, *Delivery, *v1.HandoffComplete) error
	TaskStatusUpdate    func(context.Context, *Delivery, *v1.TaskStatusUpdate) error
	ErrorNotification   func(context.Context, *Delivery, *v1.ErrorNotification) error
	TaskRequest         func(context.Context, *Delivery, *v1.TaskRequest) error
	TaskOffer           func(context.Context, *Delivery, *v1.TaskOffer) error
	TaskAccept          func(context.Context, *Delivery, *v1.TaskAccept) error
	Delegation          func(context.Context, *Delivery, *v1.Delegation) error
	Info                func(context.Context, *Delivery, *v1.Info) error
	// Whatever has no function of its own.
	Other func(context.Context, *Delivery) error
}

// Handle calls the function for the delivery's payload.
func (h Handlers) Handle(ctx context.Context, d *Delivery) error {
	switch payload := d.Payload.(type) {
	case *v1.HandoffRequest:
		return one(ctx, h, d, h.HandoffRequest, payload, true)
	case *v1.HandoffAccept:
		return one(ctx, h, d, h.HandoffAccept, payload, true)
	case *v1.HandoffReject:
		return one(ctx, h, d, h.HandoffReject, payload, false)
	case *v1.HandoffCancel:
		return one(ctx, h, d, h.HandoffCancel, payload, false)
	case *v1.TaskContextTransfer:
		return one(ctx, h, d, h.TaskContextTransfer, payload, true)
	case *v1.HandoffComplete:
		return one(ctx, h, d, h.HandoffComplete, payload, false)
	case *v1.TaskStatusUpdate:
		return one(ctx, h, d, h.TaskStatusUpdate, payload, false)
	case *v1.ErrorNotification:
		return one(ctx, h, d, h.ErrorNotification, payload, false)
	case *v1.TaskRequest:
		return one(ctx, h, d, h.TaskRequest, payload, true)
	case *v1.TaskOffer:
		return one(ctx, h, d, h.TaskOffer, payload, true)
	case *v1.TaskAccept:
		return one(ctx, h, d, h.TaskAccept, payload, true)
	case *v1.Delegation:
		return one(ctx, h, d, h.Delegation, payload, true)
	case *v1.Info:
		return one(ctx, h, d, h.Info, payload, false)
	}
	return one[any](ctx, h, d, nil, nil, true)
}

func one[P any](ctx context.Context, h Handlers, d *Delivery, f func(context.Context, *Delivery, P) error, payload P, asks bool) error {
	switch {
	case f != nil:
		return f(ctx, d, payload)
	case h.Other != nil:
		return h.Other(ctx, d)
	case asks:
		return Poison(fmt.Errorf("this agent has no handler for %s", d.Envelope.GetMessageType()))
	}
	return nil
}

type nackError struct {
	error
	cause      v1.NackCause
	retryAfter time.Duration
}

func (e *nackError) Unwrap() error { return e.error }

// Poison makes an error that a handler returns say that the message can never be taken: it becomes a dead letter at once.
func Poison(err error) error {
	return &nackError{error: err, cause: v1.NackCause_NACK_CAUSE_POISON}
}

// RetryAfter makes an error that a handler returns say when the message is to come again.
func RetryAfter(wait time.Duration, err error) error {
	return &nackError{error: err, cause: v1.NackCause_NACK_CAUSE_FAILURE, retryAfter: wait}
}

// Serve takes mail and handles it, until ctx ends, and acknowledges each delivery by what its handler returns. While a
// handler works its delivery is extended; a message that is delivered again meanwhile is not handled twice.
//
// When ctx ends, Serve takes no more, gives back what was not begun, waits for the handlers at work (Options.StopTimeout,
// then their context ends and their deliveries are given back, too) and returns nil. It returns an error when the agent is
// at its end. One Serve at a time.
func (a *Agent) Serve(ctx context.Context, handler Handler) error {
	if !a.serving.TryLock() {
		return errors.New("baton: the agent is serving already")
	}
	defer a.serving.Unlock()
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	jobs := &jobs{running: map[string]*Delivery{}, done: map[string]bool{}}
	for {
		d, err := a.Receive(ctx)
		if err != nil {
			a.stopServing(jobs, stop)
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		switch jobs.begin(d) {
		case jobNew:
			jobs.wait.Go(func() { jobs.end(d, a.handle(work, handler, d)) })
		case jobRunning: // from now on this is the handing-out to acknowledge
		case jobDone:
			a.settle(d, nil)
		}
	}
}

// stopServing takes no more mail and gives handlers their time.
func (a *Agent) stopServing(jobs *jobs, stop context.CancelCauseFunc) {
	ctx, cancel := context.WithTimeout(a.life, a.options.StopTimeout)
	defer cancel()
	a.mu.Lock()
	a.taking = false
	a.mu.Unlock()
	_ = a.SetCredit(ctx, 0)
	for {
		select {
		case entry := <-a.inbox:
			d := &Delivery{agent: a, id: entry.delivery.GetDeliveryId(), from: entry.session}
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

// errStopped is the cause of a handler's end where the agent stops.
var errStopped = errors.New("baton: the agent stops")

// errHandlerTimeout is the cause of a handler's end where it took too long.
var errHandlerTimeout = errors.New("baton: the handler took too long")

// handle runs the handler and acknowledges. It tells whether the delivery was taken.
func (a *Agent) handle(work context.Context, handler Handler, d *Delivery) bool {
	ctx, cancel := context.WithTimeoutCause(work, a.options.HandlerTimeout, errHandlerTimeout)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- guarded(ctx, handler, d) }()
	for {
		_, from := d.handle()
		wait := max(from.welcome.GetAckWait().AsDuration()/2, 10*time.Millisecond)
		timer := time.NewTimer(wait)
		select {
		case err := <-result:
			timer.Stop()
			if err != nil && ctx.Err() != nil {
				err = context.Cause(ctx) // whatever it says: it was told to end
			}
			return a.settle(d, err)
		case <-ctx.Done():
			// A handler that does not listen to its context is left behind; the message comes again.
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
	// Without a session, or where it came too late, the message is delivered again, and taken up there.
	if _, err := d.Extend(ctx, 0); err != nil {
		a.options.Logger.Debug("failed to extend", "message_id", d.Envelope.GetMessageId(), "error", err)
	}
}

// settle acknowledges by what a handler returned, unless it did so itself. It tells whether the message was taken.
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
		// The agent did this before it restarted, or came too late: again it would be refused again.
		log.Warn("the handoff has gone on", "error", result)
		result = nil
		err = d.Ack(ctx)
	case errors.Is(result, errStopped):
		err = d.Nack(ctx, v1.NackCause_NACK_CAUSE_SHUTDOWN, 0, "the agent stops")
	case errors.As(result, &nack):
		log.Warn("a message was not taken", "error", result)
		err = d.Nack(ctx, nack.cause, nack.retryAfter, result.Error())
	default:
		log.Warn("a message was not taken", "error", result)
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

// guarded makes an error of a panic.
func guarded(ctx context.Context, handler Handler, d *Delivery) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			d.agent.options.Logger.Error("a handler panicked", "panic", panicked, "stack", string(debug.Stack()))
			err = fmt.Errorf("baton: a handler panicked: %v", panicked)
		}
	}()
	return handler.Handle(ctx, d)
}

type jobState int

const (
	jobNew jobState = iota
	jobRunning
	jobDone
)

// jobs knows the messages that are in work, and those that were taken lately.
type jobs struct {
	wait    sync.WaitGroup
	mu      sync.Mutex
	running map[string]*Delivery
	done    map[string]bool
	order   []string
}

func (j *jobs) begin(d *Delivery) jobState {
	j.mu.Lock()
	defer j.mu.Unlock()
	id := jobID(d)
	if running := j.running[id]; running != nil {
		running.renew(d)
		return jobRunning
	}
	if j.done[id] {
		return jobDone
	}
	j.running[id] = d
	return jobNew
}

func (j *jobs) end(d *Delivery, taken bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	id := jobID(d)
	delete(j.running, id)
	if !taken {
		return
	}
	j.done[id] = true
	j.order = append(j.order, id)
	if len(j.order) > rememberedMax {
		delete(j.done, j.order[0])
		j.order = j.order[1:]
	}
}

// jobID tells handings-out of one message apart from those of a request that was redriven, which is another handoff.
func jobID(d *Delivery) string { return d.Envelope.GetMessageId() + " " + d.HandoffID }

func durationOf(span time.Duration) *durationpb.Duration {
	if span == 0 {
		return nil
	}
	return durationpb.New(span)
}
