package baton

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

// Offer is a task that is offered to this agent: Accept or Reject it. Handlers.Offer gets it.
//
// After a crash the broker redelivers the messages that the process had not answered. An offer that an earlier process
// of this agent accepted continues: its Accept sends no second accept.
type Offer struct {
	// The handoff's id.
	HandoffID string
	// The task's id.
	TaskID string
	// The task's epoch at its present owner.
	Epoch uint64
	// The task's present owner, which sent the request.
	SenderID string
	// The terms, of the request or of an award; nil if an earlier process of this agent accepted it.
	Request *v1.HandoffRequest
	// Whether an earlier process of this agent took the task over: see Options.Resume. Accept returns the last context of the
	// task then, and Complete the task, without a message. The offer cannot be rejected.
	Resumed bool

	agent *Agent
	work  *undertaking
	// The request, until it is answered.
	request *Delivery
	context chan *letter
	end     context.CancelCauseFunc
	ended   context.Context

	looks int // that found the context sent, of the listener

	mu       sync.Mutex
	takeover *Takeover
	inHand   *letter // the context, until it is answered
	isOver   bool
}

// offer calls the handler of an offer for a delivered request or award, or for a TaskContextTransfer whose request an
// earlier process accepted. It returns the result for the delivery.
func (a *Agent) offer(ctx context.Context, d *Delivery, take func(context.Context, *Offer) error) error {
	mail, err := a.converse(ctx, ofHandoff(d.HandoffID), 0)
	if errors.Is(err, ErrWaitedFor) {
		return later(laterAfter, "another handler is at work on the handoff")
	}
	if err != nil {
		return err
	}
	defer mail.close()
	ended, end := context.WithCancelCause(ctx)
	defer end(nil)
	o := &Offer{
		HandoffID: d.HandoffID, TaskID: d.Envelope.GetTaskId(), Epoch: d.Envelope.GetEpoch(),
		SenderID: d.AnswerTo(), agent: a, context: make(chan *letter, 1), ended: ended, end: end,
		work: undertakingOf(ctx),
	}
	var resumed *letter
	if terms := d.Terms(); terms != nil {
		o.Request, o.request = terms, d
	} else {
		// Serve extends this delivery, and acknowledges it by this function's result.
		resumed = &letter{Delivery: d, result: make(chan error, 1), settled: make(chan struct{})}
		close(resumed.settled)
		o.context <- resumed
	}
	// A handler that ignores its context is abandoned, and its delivery is redelivered.
	defer context.AfterFunc(ctx, func() {
		mail.close()
		o.giveBack(context.Cause(ctx), resumed)
	})()
	defer a.watch(o.TaskID, o.Epoch, o.recalled)()
	var listening sync.WaitGroup
	listening.Go(func() { o.listen(ended, mail) })
	err = a.guarded(func() error { return take(ended, o) })
	o.work.end(context.Cause(ended), err)
	end(nil)
	listening.Wait()
	return o.outcome(ctx, err, resumed)
}

// listen receives the mail of the handoff: its context, or the notice that it continues without this agent.
func (o *Offer) listen(ctx context.Context, mail *conversation) {
	for {
		l, err := o.nextOf(ctx, mail)
		if err != nil {
			var refused *Error
			if errors.As(err, &refused) { // the broker no longer shows the handoff
				o.end(&HandoffFailedError{HandoffID: o.HandoffID, Reason: refused.Reason, Message: refused.Message})
			}
			return
		}
		switch payload := l.Payload.(type) {
		case *v1.TaskContextTransfer:
			select {
			case o.context <- l:
				go o.giveUpWith(l)
			default:
				go l.finish(later(laterAfter, "the context is here already"))
			}
			continue
		case *v1.HandoffCancel:
			o.end(&HandoffFailedError{HandoffID: o.HandoffID, Reason: "HANDOFF_CANCELLED", Message: payload.GetReasonText()})
		case *v1.ErrorNotification:
			if payload.GetNextStep() == v1.NextStep_NEXT_STEP_DROP_TASK {
				o.end(&HandoffFailedError{HandoffID: o.HandoffID, Reason: codeOf(payload), Message: payload.GetErrorMessage()})
			}
		}
		l.finish(nil)
	}
}

// nextOf waits for mail and looks at the handoff, until it is over.
func (o *Offer) nextOf(ctx context.Context, mail *conversation) (*letter, error) {
	if !o.over() {
		l, err := mail.nextOrLook(ctx, o.look)
		if err == nil || !o.over() {
			return l, err
		}
	}
	return mail.next(ctx)
}

func (o *Offer) over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.isOver
}

// recalled ends the offer, or the work on its task. It reports whether this agent never owned the task.
func (o *Offer) recalled(r *Recalled) bool {
	o.mu.Lock()
	isWaiting := !o.isOver && o.inHand == nil && len(o.context) == 0
	o.mu.Unlock()
	if isWaiting {
		o.end(r.failed(o.HandoffID))
	} else {
		o.end(r.lost())
	}
	return isWaiting
}

// look ends the handler if the handoff continues without this agent although no mail said so.
func (o *Offer) look(handoff *v1.Handoff) error {
	o.mu.Lock()
	isWaiting := !o.isOver && o.inHand == nil && len(o.context) == 0
	o.mu.Unlock()
	isOpen := !isFinalState(handoff.GetState())
	if o.over() {
		return errNoMail // no further look is needed
	}
	if isWaiting && handoff.GetCandidateId() == o.agent.ID() {
		switch handoff.GetState() {
		case v1.HandoffState_HANDOFF_STATE_CONTEXT_SENT:
			return o.fetchContext()
		case v1.HandoffState_HANDOFF_STATE_COMPLETED: // another process of this agent completed it
			return o.fetchContext()
		}
	}
	if !isWaiting || isOpen && handoff.GetCandidateId() == o.agent.ID() {
		return nil
	}
	reason := codeName(handoff.GetErrorCode())
	if isOpen {
		reason = "OFFER_WITHDRAWN"
	}
	o.end(&HandoffFailedError{HandoffID: o.HandoffID, Reason: reason, Message: handoff.GetErrorMessage()})
	return errNoMail
}

// fetchContext reads the context at the broker at the second look that finds it sent: another process of this agent may
// have the message.
func (o *Offer) fetchContext() error {
	if o.looks++; o.looks < 2 {
		return nil
	}
	a := o.agent
	ctx, cancel := context.WithTimeout(o.ended, callTimeout)
	defer cancel()
	request := &v1.GetHandoffRequest{HandoffId: o.HandoffID, IncludeContext: true}
	answer, err := call(ctx, a, a.handoffs.GetHandoff, request)
	if err != nil || answer.GetContext() == nil {
		return nil // the next look tries again
	}
	d, err := a.found(ctx, answer.GetContext(), o.HandoffID)
	if err != nil {
		return err
	}
	l := &letter{Delivery: d, result: make(chan error, 1), settled: make(chan struct{})}
	close(l.settled)
	select {
	case o.context <- l:
		a.settled.add(d.Envelope.GetMessageId())
	default:
	}
	return nil
}

// giveUpWith ends the handler after its context was given back at its deadline.
func (o *Offer) giveUpWith(l *letter) {
	<-l.settled
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.isOver {
		o.end(errHandlerTimeout)
	}
}

// outcome settles the deliveries that the handler left, and returns the result for the one it was called with.
func (o *Offer) outcome(ctx context.Context, err error, resumed *letter) error {
	o.mu.Lock()
	isOver := o.isOver
	o.mu.Unlock()
	cause := context.Cause(o.ended)
	switch {
	case isOver && err != nil:
		o.agent.options.Logger.Warn("a handler failed after its handoff was over", "handoff_id", o.HandoffID, "error", err)
		err = nil // the delivery is answered and must not be redelivered; the task has FAILED
	case isOver:
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case HasGoneOn(cause):
		err = cause
	case err == nil:
		err = fmt.Errorf("baton: the handler has neither rejected nor completed handoff %s", o.HandoffID)
	}
	o.giveBack(err, resumed)
	return err
}

// giveBack settles the context, if one is in hand. Serve settles the delivery that the handler was called with.
func (o *Offer) giveBack(result error, resumed *letter) {
	o.mu.Lock()
	inHand := o.inHand
	o.inHand = nil
	o.mu.Unlock()
	if inHand == nil {
		select {
		case inHand = <-o.context:
		default:
		}
	}
	if inHand != nil && inHand != resumed {
		inHand.finish(result)
	}
}

// Accept accepts the handoff and waits for its context; a nil accept asks for the whole context. It fails with a
// HandoffFailedError if the handoff ends before the context arrives, and with an Error if the accept is too late. The
// request is acked after the broker has taken the accept.
func (o *Offer) Accept(ctx context.Context, accept *v1.HandoffAccept) (*Takeover, error) {
	o.mu.Lock()
	request, takeover := o.request, o.takeover
	o.mu.Unlock()
	if takeover != nil {
		return takeover, nil
	}
	if request != nil {
		if _, err := o.agent.Accept(ctx, request, accept); err != nil && !o.isAcceptedBefore(ctx, err) {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx) // whether it was accepted before is not known
			}
			return nil, o.why(err)
		}
		o.answered(ctx, request)
	}
	select {
	case l := <-o.context:
		o.mu.Lock()
		defer o.mu.Unlock()
		sections := l.Payload.(*v1.TaskContextTransfer).GetSections()
		o.inHand = l
		o.agent.known.note(o.TaskID, sections)
		o.takeover = &Takeover{TaskID: o.TaskID, Sections: sections, offer: o, letter: l}
		return o.takeover, nil
	case <-o.ended.Done():
		return nil, context.Cause(o.ended)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Reject rejects the handoff. The broker asks the next candidate, if any.
func (o *Offer) Reject(ctx context.Context, reject *v1.HandoffReject) error {
	o.mu.Lock()
	request := o.request
	o.mu.Unlock()
	if o.Resumed {
		return errors.New("baton: this agent owns the task already")
	}
	if request == nil {
		return errors.New("baton: the offer was accepted; Takeover.Fail refuses its context")
	}
	if _, err := o.agent.Reply(ctx, request, reject); err != nil {
		return o.why(err)
	}
	o.mu.Lock()
	o.isOver = true
	o.mu.Unlock()
	o.answered(ctx, request)
	return nil
}

// answered acks the request: the broker holds back the task's next message until then.
func (o *Offer) answered(ctx context.Context, request *Delivery) {
	o.mu.Lock()
	o.request = nil
	o.mu.Unlock()
	if err := request.Ack(ctx); err != nil {
		o.agent.options.Logger.Info("an acknowledgement was lost; the message comes again", "error", err)
	}
}

// why returns the cause of the offer's end, if it has ended, in preference to a later refusal of the broker.
func (o *Offer) why(err error) error {
	if cause := context.Cause(o.ended); HasGoneOn(cause) && HasGoneOn(err) {
		return cause
	}
	return err
}

// isAcceptedBefore reports whether an earlier process of this agent accepted the handoff but did not ack its request.
func (o *Offer) isAcceptedBefore(ctx context.Context, refusal error) bool {
	if !HasGoneOn(refusal) {
		return false
	}
	handoff, err := o.agent.GetHandoff(ctx, o.HandoffID)
	if err != nil || handoff.GetCandidateId() != o.agent.ID() {
		return false
	}
	switch handoff.GetState() {
	case v1.HandoffState_HANDOFF_STATE_ACCEPTED, v1.HandoffState_HANDOFF_STATE_CONTEXT_SENT:
		return true
	}
	return false
}

// Takeover is the context of a handoff. Complete makes this agent the task's owner; Fail leaves the task with its
// sender.
type Takeover struct {
	// The task's id.
	TaskID string
	// The sections of the context.
	Sections []*v1.ContextSection

	offer  *Offer
	letter *letter
	owned  *OwnedTask // of a task that this agent owned already
}

// Section returns the section of this name, or nil.
func (t *Takeover) Section(name string) *v1.ContextSection {
	for _, section := range t.Sections {
		if section.GetName() == name {
			return section
		}
	}
	return nil
}

// JSON decodes a JSON section into a value. It fails without a section of this name.
func (t *Takeover) JSON(name string, into any) error {
	content, ok := t.Section(name).GetContent().(*v1.ContextSection_Json)
	if !ok {
		return fmt.Errorf("baton: there is no JSON section %s", name)
	}
	return json.Unmarshal([]byte(content.Json), into)
}

// Complete takes ownership of the task: this agent owns it from Complete's return on. It fails with a
// VerificationError, CONTEXT_DIGEST_MISMATCH, if the sections differ from the sender's digest, and with an Error if it
// is too late. It succeeds if an earlier process of this agent completed the handoff and still owns the task.
func (t *Takeover) Complete(ctx context.Context) (*OwnedTask, error) {
	if t.owned != nil {
		return t.owned, nil
	}
	a, o := t.offer.agent, t.offer
	var owned *OwnedTask
	if receipt, err := a.complete(ctx, t.letter.Delivery); err == nil {
		owned = a.ownedBy(receipt, t.TaskID)
	} else if task := o.taskIfDoneBefore(ctx, err); task != nil {
		owned = a.ownedTask(task)
	} else {
		return nil, o.why(err)
	}
	t.owned = owned
	a.takes(o.work, owned)
	t.end(ctx)
	return owned, nil
}

// Fail refuses the context for the reason in details. The handoff fails, and its sender keeps the task. A task that this
// agent owns already, after Complete or if the offer is a resumed one, ends as FAILED instead.
func (t *Takeover) Fail(ctx context.Context, details string) error {
	if t.owned != nil {
		update := &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_FAILED, Details: cut(details, detailsBytesMax)}
		_, err := t.owned.Update(ctx, update)
		return err
	}
	if _, err := t.offer.agent.FailTakeover(ctx, t.letter.Delivery, details); err != nil {
		return t.offer.why(err)
	}
	t.end(ctx)
	return nil
}

// KeepTurn asks for more time for a takeover that lasts longer than the handoff's timeout for it.
func (t *Takeover) KeepTurn(ctx context.Context, details string) error {
	if t.owned != nil {
		return nil // the turn is over
	}
	_, err := t.offer.agent.KeepTurn(ctx, t.letter.Delivery, details)
	return err
}

func (t *Takeover) end(ctx context.Context) {
	t.offer.mu.Lock()
	t.offer.isOver, t.offer.inHand = true, nil
	t.offer.mu.Unlock()
	if err := t.letter.Ack(ctx); err != nil {
		t.offer.agent.options.Logger.Info("an acknowledgement was lost; the message comes again", "error", err)
	}
	t.letter.finish(nil)
}

// taskIfDoneBefore returns the task if an earlier process of this agent completed the handoff and still owns the task
// by it; otherwise nil.
func (o *Offer) taskIfDoneBefore(ctx context.Context, refusal error) *v1.Task {
	if !HasGoneOn(refusal) {
		return nil
	}
	handoff, err := o.agent.GetHandoff(ctx, o.HandoffID)
	isDone := err == nil && handoff.GetState() == v1.HandoffState_HANDOFF_STATE_COMPLETED
	if !isDone || handoff.GetCandidateId() != o.agent.ID() {
		return nil
	}
	task, err := o.agent.GetTask(ctx, o.TaskID)
	if err != nil || task.GetOwnerId() != o.agent.ID() || task.GetEpoch() != handoff.GetEpoch()+1 {
		return nil
	}
	return task
}
