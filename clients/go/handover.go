package baton

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const tasksPerPage = 200

// HandedOver is a task that has moved to another agent.
type HandedOver struct {
	// The handoff's id.
	HandoffID string
	// The task's id.
	TaskID string
	// The task's new owner.
	OwnerID string
	// The epoch that began with the new owner.
	Epoch uint64
	// The agents that did not take the task before, in order.
	Rejections []Rejection
}

// Rejection is a candidate's refusal of a handoff.
type Rejection struct {
	// The candidate.
	AgentID string
	// The reason.
	Reason v1.RejectReason
	// The explanation, if the candidate gave one.
	Text string
}

func (r Rejection) String() string {
	return r.AgentID + ": " + orElse(r.Text, strings.TrimPrefix(r.Reason.String(), "REJECT_REASON_"))
}

// WantedContext describes the context that a candidate waits for after its accept. Handlers.Context gets it.
type WantedContext struct {
	// The handoff's id.
	HandoffID string
	// The task's id.
	TaskID string
	// The task's epoch at this agent.
	Epoch uint64
	// The agent that accepted.
	CandidateID string
	// The names of the requested sections; empty for all. The agent leaves out the others itself.
	Sections []string
}

// HandOver hands a task over: it sends the request, sends the context to the agent that accepts, and waits for the end,
// at most for the request's whole timeout. An unknown task id creates the task, at epoch 1.
//
// HandOver fails with a HandoffFailedError if the task stays with this agent, and with an Error if the broker refuses
// the request or the context. If ctx ends first, the handoff continues: ResumeHandOver joins it, Cancel ends it, and
// otherwise its timeouts end it. WithHandOverLimit cancels it at a time limit. HandOver receives its mail also without Serve;
// all other mail goes to Serve. WithSenderView shows its progress. HandOver fails with ErrWaitedFor if another call hands the task over at this epoch.
func (a *Agent) HandOver(
	ctx context.Context, receiverID, taskID string, epoch uint64, request *v1.HandoffRequest, sections ...*v1.ContextSection,
) (*HandedOver, error) {
	if err := checkContext(sections); err != nil {
		return nil, err
	}
	envelope, err := a.newEnvelope(ctx, receiverID, About{TaskID: taskID, Epoch: epoch}, request)
	if err != nil {
		return nil, err
	}
	return a.handOver(ctx, envelope, sections, request.GetMode() == v1.HandoffMode_HANDOFF_MODE_DELEGATE)
}

// tenure is the ownership of a task by this agent in one epoch.
type tenure struct {
	taskID string
	epoch  uint64
}

// hands notes that a call hands a task over, until release. It fails with ErrWaitedFor if another call does. A task that
// has come back has a later epoch.
func (a *Agent) hands(of tenure) (release func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.handing[of] > 0 {
		return nil, waitedFor(ofTask(of.taskID))
	}
	return a.handsAlso(of), nil
}

// handsAlso is hands for a handoff that has begun. The caller holds a.mu.
func (a *Agent) handsAlso(of tenure) (release func()) {
	a.handing[of]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.handing[of]--; a.handing[of] == 0 {
			delete(a.handing, of)
		}
	}
}

func (a *Agent) handOver(
	ctx context.Context, request *v1.Envelope, sections []*v1.ContextSection, isLoan bool,
) (*HandedOver, error) {
	release, err := a.hands(tenure{request.GetTaskId(), request.GetEpoch()})
	if err != nil {
		return nil, err
	}
	defer release()
	limit, hasLimit := ctx.Value(limitKey{}).(time.Duration)
	if !hasLimit {
		return a.handOverOnce(ctx, request, sections, isLoan)
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done, err := a.handOverOnce(limited, request, sections, isLoan)
	var failed *HandoffFailedError
	if err == nil || errors.As(err, &failed) || limited.Err() == nil || ctx.Err() != nil {
		return done, err
	}
	return a.endAtLimit(ctx, request, isLoan)
}

type limitKey struct{}

// WithHandOverLimit returns a context with which HandOver, OwnedTask.HandOver and Negotiation.HandOver last at most this
// long. At the limit the agent cancels the handoff, for at most 10 s, and the call fails with a HandoffFailedError,
// HANDOFF_CANCELLED, that wraps context.DeadlineExceeded: the task stays with this agent. A task that has moved just before
// is handed over. The deadline of the context itself leaves the handoff open. Delegate has its limit from its context.
func WithHandOverLimit(ctx context.Context, limit time.Duration) context.Context {
	return context.WithValue(ctx, limitKey{}, limit)
}

// endAtLimit cancels the handoff of this request at the time limit of its call. It succeeds if the task has moved before.
func (a *Agent) endAtLimit(ctx context.Context, request *v1.Envelope, isLoan bool) (*HandedOver, error) {
	const text = "the time limit of the call passed"
	ending, stop := context.WithTimeout(ctx, takeBackTime)
	defer stop()
	handoffID, taskID, epoch := request.GetMessageId(), request.GetTaskId(), request.GetEpoch()
	about := About{TaskID: taskID, Epoch: epoch, CorrelationID: handoffID}
	var last error
	isStored := false
	for range takeBackAttempts {
		handoff, err := a.GetHandoff(ending, handoffID)
		if err == nil {
			isStored = true
			if isFinalState(handoff.GetState()) {
				return a.endedAtLimit(ctx, handoff, isLoan)
			}
			_, err = a.Send(ending, handoff.GetCandidateId(), about, &v1.HandoffCancel{ReasonText: text})
		}
		if err == nil {
			continue // the next look shows the end
		}
		// The request may still be on its way, or the handoff has moved on since the look.
		last = err
		if sleep(ending, attemptWait) != nil {
			break
		}
	}
	if !isStored && ending.Err() == nil && !isPassing(last) {
		return nil, &HandoffFailedError{HandoffID: handoffID, Reason: "HANDOFF_CANCELLED", Message: text, cause: context.DeadlineExceeded}
	}
	return nil, fmt.Errorf("baton: %s, and the handoff of task %s could not be cancelled: %w", text, taskID,
		errors.Join(context.DeadlineExceeded, last))
}

// endedAtLimit returns the result of a handoff that was final when its call ended.
func (a *Agent) endedAtLimit(ctx context.Context, handoff *v1.Handoff, isLoan bool) (*HandedOver, error) {
	h := &handOver{agent: a, mail: &conversation{}, epoch: handoff.GetEpoch(), view: senderViewOf(ctx), isLoan: isLoan}
	h.HandoffID, h.TaskID = handoff.GetHandoffId(), handoff.GetTaskId()
	h.knows(handoff)
	done, err := h.told(h.ended(handoff))
	var failed *HandoffFailedError
	if errors.As(err, &failed) {
		failed.cause = context.DeadlineExceeded
	}
	return done, err
}

// handOverOnce is handOver for a caller that has called hands.
func (a *Agent) handOverOnce(
	ctx context.Context, request *v1.Envelope, sections []*v1.ContextSection, isLoan bool,
) (*HandedOver, error) {
	view := senderViewOf(ctx)
	view(v1.SenderView_SENDER_VIEW_IDLE)
	handoffID := request.GetMessageId()
	// Registered before the request is sent, for the answer may arrive before the receipt.
	mail, err := a.converse(ctx, ofHandoff(handoffID), 0)
	if err != nil {
		return nil, err
	}
	defer mail.close()
	defer a.watchHandOver(mail, handoffID, request.GetTaskId(), request.GetEpoch())()
	view(v1.SenderView_SENDER_VIEW_HANDOFF_INITIATED)
	if _, err := a.signAndSend(ctx, request); err != nil {
		return nil, err
	}
	view(v1.SenderView_SENDER_VIEW_AWAITING_HANDOFF_ACCEPT)
	h := &handOver{agent: a, mail: mail, sections: sections, view: view, isLoan: isLoan}
	h.HandoffID, h.TaskID, h.epoch = handoffID, request.GetTaskId(), request.GetEpoch()
	return h.told(h.follow(ctx))
}

// watchHandOver ends the handoff of a task that is recalled from this agent.
func (a *Agent) watchHandOver(mail *conversation, handoffID, taskID string, epoch uint64) func() {
	return a.watch(taskID, epoch, func(r *Recalled) bool {
		mail.fail(r.failed(handoffID))
		return false
	})
}

type senderViewKey struct{}

// WithSenderView returns a context with which HandOver, ResumeHandOver and Delegate call view with each view that this
// agent has of its handoff: IDLE and HANDOFF_INITIATED before the request is stored, then those that GetHandoff shows,
// to HANDOFF_COMPLETED. view must not block.
func WithSenderView(ctx context.Context, view func(v1.SenderView)) context.Context {
	return context.WithValue(ctx, senderViewKey{}, view)
}

func senderViewOf(ctx context.Context) func(v1.SenderView) {
	if view, ok := ctx.Value(senderViewKey{}).(func(v1.SenderView)); ok {
		return view
	}
	return func(v1.SenderView) {}
}

// ResumeHandOver continues a handoff that an earlier process of this agent requested, from any state. It returns or
// fails as HandOver, also when the handoff has ended meanwhile. OwnedTasks lists the open handoffs.
func (a *Agent) ResumeHandOver(
	ctx context.Context, handoffID string, sections ...*v1.ContextSection,
) (*HandedOver, error) {
	if err := checkContext(sections); err != nil {
		return nil, err
	}
	mail, err := a.converse(ctx, ofHandoff(handoffID), 0)
	if err != nil {
		return nil, err
	}
	defer mail.close()
	// Read after the conversation is registered: an earlier end shows in this state, and a later end arrives as mail.
	handoff, err := a.GetHandoff(ctx, handoffID)
	if err != nil {
		return nil, err
	}
	if handoff.GetSenderId() != a.ID() {
		return nil, fmt.Errorf("baton: handoff %s is not one that %s asked for", handoffID, a.ID())
	}
	h := &handOver{agent: a, mail: mail, sections: sections, view: senderViewOf(ctx)}
	h.isLoan = handoff.GetMode() == v1.HandoffMode_HANDOFF_MODE_DELEGATE
	h.HandoffID, h.TaskID, h.epoch = handoffID, handoff.GetTaskId(), handoff.GetEpoch()
	if !isFinalState(handoff.GetState()) {
		a.mu.Lock()
		release := a.handsAlso(tenure{h.TaskID, h.epoch})
		a.mu.Unlock()
		defer release()
	}
	defer a.watchHandOver(mail, handoffID, h.TaskID, h.epoch)()
	h.knows(handoff)
	if isFinalState(handoff.GetState()) {
		return h.told(h.ended(handoff))
	}
	return h.told(h.follow(ctx))
}

// handOver is the sender's side of a handoff.
type handOver struct {
	HandedOver
	agent    *Agent
	mail     *conversation
	epoch    uint64
	sections []*v1.ContextSection
	view     func(v1.SenderView)
	isLoan   bool
	// Whether the context was sent, and how often the handoff was seen to wait for it without an accept.
	isSent  bool
	waiting int
}

// knows records the rejections of a handoff.
func (h *handOver) knows(handoff *v1.Handoff) {
	for _, offer := range handoff.GetOffers() {
		if offer.GetOutcome() == v1.OfferOutcome_OFFER_OUTCOME_REJECTED {
			h.rejected(Rejection{offer.GetCandidateId(), offer.GetRejectReason(), offer.GetReasonText()})
		}
	}
}

// told records the handoff's result, so that the remaining mail about its end needs no handling.
func (h *handOver) told(done *HandedOver, err error) (*HandedOver, error) {
	var failed *HandoffFailedError
	h.mail.isOver = err == nil || errors.As(err, &failed)
	if err == nil && !h.isLoan {
		h.agent.lost(h.TaskID, h.epoch)
	}
	if h.mail.isOver {
		h.agent.settled.add(h.HandoffID)
	}
	return done, err
}

// follow processes the handoff's mail until its end.
func (h *handOver) follow(ctx context.Context) (*HandedOver, error) {
	var ended *v1.Handoff
	for {
		l, err := h.mail.nextOrLook(ctx, func(handoff *v1.Handoff) error {
			if isFinalState(handoff.GetState()) {
				ended = handoff
				return errNoMail
			}
			return h.sendUnasked(ctx, handoff)
		})
		if ended == nil && err != nil && isEndedBy(ctx) {
			looking, cancel := h.agent.lastLook(ctx)
			if handoff, err := h.agent.GetHandoff(looking, h.HandoffID); err == nil && isFinalState(handoff.GetState()) {
				ended = handoff
			}
			cancel()
		}
		if ended != nil {
			h.knows(ended)
			return h.ended(ended)
		}
		if err != nil {
			return nil, err
		}
		sender := l.Envelope.GetSenderId()
		switch payload := l.Payload.(type) {
		case *v1.HandoffAccept:
			done, err := h.giveContext(ctx, l)
			if done != nil || err != nil {
				return done, err
			}
			continue
		case *v1.HandoffReject:
			h.rejected(Rejection{sender, payload.GetReason(), payload.GetReasonText()})
		case *v1.HandoffComplete:
			if payload.GetOutcome() == v1.HandoffOutcome_HANDOFF_OUTCOME_SUCCESS {
				l.finish(nil)
				return h.completed(sender), nil
			}
		case *v1.ErrorNotification:
			if payload.GetNextStep() == v1.NextStep_NEXT_STEP_KEEP_TASK {
				l.finish(nil)
				return nil, h.failed(codeOf(payload), payload.GetErrorMessage())
			}
		}
		l.finish(nil)
	}
}

// sendUnasked sends the context if the handoff waits for it at two looks, and no accept came: another process of this agent
// has acked it.
func (h *handOver) sendUnasked(ctx context.Context, handoff *v1.Handoff) error {
	if handoff.GetState() != v1.HandoffState_HANDOFF_STATE_ACCEPTED || h.isSent {
		h.waiting = 0
		return nil
	}
	if h.waiting++; h.waiting < 2 {
		return nil
	}
	accept := &Delivery{
		Envelope: &v1.Envelope{
			MessageType: v1.MessageType_MESSAGE_TYPE_HANDOFF_ACCEPT, SenderId: handoff.GetCandidateId(),
			TaskId: h.TaskID, Epoch: h.epoch, CorrelationId: h.HandoffID,
		},
		Payload:   &v1.HandoffAccept{WantedSections: handoff.GetWantedSections()},
		HandoffID: h.HandoffID,
		agent:     h.agent,
	}
	err := h.agent.giveContext(ctx, accept, h.sections)
	h.isSent = err == nil
	var again *nackError
	if HasGoneOn(err) || errors.As(err, &again) {
		return nil // the next look shows the state
	}
	return err
}

// giveContext answers an accept. It returns a result if the handoff has ended.
func (h *handOver) giveContext(ctx context.Context, accept *letter) (*HandedOver, error) {
	h.view(v1.SenderView_SENDER_VIEW_CONTEXT_PREPARING)
	err := h.agent.giveContext(ctx, accept.Delivery, h.sections)
	if err == nil {
		h.isSent = true
		h.view(v1.SenderView_SENDER_VIEW_AWAITING_CONTEXT_ACK)
	}
	if ctx.Err() != nil {
		accept.tell(later(0, "what would have sent the context has ended"))
		return nil, context.Cause(ctx)
	}
	if !HasGoneOn(err) {
		accept.finish(err)
		var again *nackError
		if err == nil || errors.As(err, &again) {
			return nil, nil
		}
		return nil, err
	}
	// The context was sent before, or the handoff is over. An earlier process may have received the mail about its end.
	handoff, err := h.agent.GetHandoff(ctx, h.HandoffID)
	accept.finish(nil)
	if err != nil {
		return nil, err
	}
	if isFinalState(handoff.GetState()) {
		return h.ended(handoff)
	}
	return nil, nil
}

func (h *handOver) completed(owner string) *HandedOver {
	h.view(v1.SenderView_SENDER_VIEW_HANDOFF_COMPLETED)
	h.OwnerID, h.Epoch = owner, h.epoch+1
	return &h.HandedOver
}

func (h *handOver) failed(reason, text string) error {
	return &HandoffFailedError{HandoffID: h.HandoffID, Reason: reason, Message: text, Rejections: h.Rejections}
}

// ended returns the result of a handoff in a final state.
func (h *handOver) ended(handoff *v1.Handoff) (*HandedOver, error) {
	if handoff.GetState() == v1.HandoffState_HANDOFF_STATE_COMPLETED {
		return h.completed(handoff.GetCandidateId()), nil
	}
	return nil, h.failed(codeName(handoff.GetErrorCode()), handoff.GetErrorMessage())
}

// rejected records a rejection once: its message is redelivered if an earlier process left it unacknowledged.
func (h *handOver) rejected(one Rejection) {
	for _, known := range h.Rejections {
		if known.AgentID == one.AgentID {
			return
		}
	}
	h.Rejections = append(h.Rejections, one)
}

// giveContext sends the context for an accept. A permanent refusal ends the handoff, since no candidate could take it
// over. It fails with a nackError if a retry may succeed.
func (a *Agent) giveContext(ctx context.Context, accept *Delivery, sections []*v1.ContextSection) error {
	_, err := a.SendContext(ctx, accept, sections...)
	var refused *Error
	switch {
	case err == nil || HasGoneOn(err):
		return err
	case ctx.Err() != nil:
		return later(0, "what would have sent the context has ended")
	case !errors.As(err, &refused):
		return err
	case isPassing(err):
		return &nackError{error: err, cause: v1.NackCause_NACK_CAUSE_SHUTDOWN, retryAfter: max(refused.RetryDelay, laterAfter)}
	}
	cancel := &v1.HandoffCancel{ReasonText: clipped("there is no context: " + err.Error())}
	if _, failure := a.Reply(ctx, accept, cancel); failure != nil && !HasGoneOn(failure) {
		return errors.Join(err, failure)
	}
	// The accept needs no further answer.
	if failure := accept.Ack(ctx); failure != nil {
		a.options.Logger.Info("an acknowledgement was lost; the message comes again", "error", failure)
	}
	return err
}

// provideContext answers an accept that no HandOver waits for, with the context from the handler.
func (a *Agent) provideContext(
	ctx context.Context, accept *Delivery, provide func(context.Context, *WantedContext) ([]*v1.ContextSection, error),
) error {
	payload := accept.Payload.(*v1.HandoffAccept)
	sections, err := provide(ctx, &WantedContext{
		HandoffID: accept.HandoffID, TaskID: accept.Envelope.GetTaskId(), Epoch: accept.Envelope.GetEpoch(),
		CandidateID: accept.Envelope.GetSenderId(), Sections: namesOf(payload),
	})
	if err != nil {
		return err
	}
	return a.giveContext(ctx, accept, sections)
}

// OwnedTask is a task that this agent owns at this epoch. After the task has moved on to another agent, its methods fail
// with STALE_EPOCH.
type OwnedTask struct {
	// The task's id.
	TaskID string
	// The epoch of this agent's ownership. It follows the task: after a loan of this process has ended, it is the epoch that
	// began with the task's return. Do not read it while another goroutine lends the task.
	Epoch uint64
	// The task's status when it was read.
	Status v1.TaskStatus
	// The handoff that was open then, for ResumeHandOver; empty without one.
	HandoffID string
	// Whether an earlier process of this agent took the task over, and this one goes on with it: see Options.Resume.
	Resumed bool

	agent *Agent
	mu    sync.Mutex // guards Epoch against the calls of this package
	over  bool       // ended, or moved to another agent
}

// present returns the epoch of this agent's ownership.
func (t *OwnedTask) present() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Epoch
}

// moved notes that the task came back at a later epoch.
func (t *OwnedTask) moved(from, to uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Epoch == from && to > from {
		t.Epoch = to
	}
}

// lost notes that the task has ended, or moved to another agent, at an epoch. It reports whether this was this ownership.
func (t *OwnedTask) lost(epoch uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = t.over || t.Epoch <= epoch
	return t.over
}

func (t *OwnedTask) isLost() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

// OwnedTasks iterates over the unfinished tasks that this agent owns, newest first: the starting point after a restart.
// It reads page by page, and ends with an error if a page cannot be read.
func (a *Agent) OwnedTasks(ctx context.Context) iter.Seq2[*OwnedTask, error] {
	return func(yield func(*OwnedTask, error) bool) {
		request := &v1.ListTasksRequest{OwnerId: a.ID(), PageSize: tasksPerPage, Statuses: []v1.TaskStatus{
			v1.TaskStatus_TASK_STATUS_CREATED, v1.TaskStatus_TASK_STATUS_IN_PROGRESS,
			v1.TaskStatus_TASK_STATUS_WAITING_FOR_INPUT,
		}}
		for {
			page, err := call(ctx, a, a.tasks.ListTasks, request)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, task := range page.GetTasks() {
				owned := a.ownedTask(task)
				if !isFinalStatus(task.GetStatus()) && !yield(owned, nil) {
					return
				}
			}
			if request.PageToken = page.GetNextPageToken(); request.GetPageToken() == "" {
				return
			}
		}
	}
}

func (a *Agent) ownedTask(task *v1.Task) *OwnedTask {
	return &OwnedTask{
		TaskID: task.GetTaskId(), Epoch: task.GetEpoch(), Status: task.GetStatus(), HandoffID: task.GetOpenHandoffId(),
		agent: a,
	}
}

// Report reports the task's progress as text.
func (t *OwnedTask) Report(ctx context.Context, details string) (*v1.Receipt, error) {
	return t.Update(ctx, &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_IN_PROGRESS, Details: details})
}

// Finish completes the task. The result is nil, or a map or a struct that encoding/json encodes as an object; it arrives as
// it was sent. The result of a delegated task goes to the delegator, which owns the task again. Finish fails with an Error,
// FIELD_INVALID, and sends nothing, if the result has more than 262144 bytes as JSON, more than 128 objects and arrays inside
// each other, or a number or a text that JSON does not have.
func (t *OwnedTask) Finish(ctx context.Context, result any, details string) (*v1.Receipt, error) {
	update := &v1.TaskStatusUpdate{Status: v1.TaskStatus_TASK_STATUS_COMPLETED, Details: details}
	var err error
	if update.ResultJson, err = jsonText(resultField, result, resultBytesMax); err != nil {
		return nil, err
	}
	return t.Update(ctx, update)
}

// Update sends a status update. A final status cannot be changed.
func (t *OwnedTask) Update(ctx context.Context, update *v1.TaskStatusUpdate) (*v1.Receipt, error) {
	return t.agent.UpdateStatus(ctx, t.TaskID, t.present(), update)
}

// Cancel ends the task as CANCELED. The broker cancels its open parts with it, down the tree, unless keepParts is true.
func (t *OwnedTask) Cancel(ctx context.Context, details string, keepParts bool) (*v1.Receipt, error) {
	return t.Update(ctx, &v1.TaskStatusUpdate{
		Status: v1.TaskStatus_TASK_STATUS_CANCELED, Details: details, KeepParts: keepParts,
	})
}

// Extend asks that the loan of the task is due this much later than now, at most at the loan_timeout_max of its request. A
// time that is no later changes nothing. The broker refuses it if the loan cannot be extended.
func (t *OwnedTask) Extend(ctx context.Context, by time.Duration) (*v1.Receipt, error) {
	return t.Update(ctx, &v1.TaskStatusUpdate{
		Status: v1.TaskStatus_TASK_STATUS_IN_PROGRESS, ExtendBy: durationpb.New(by),
	})
}

// HandOver hands the task over: see Agent.HandOver.
func (t *OwnedTask) HandOver(
	ctx context.Context, receiverID string, request *v1.HandoffRequest, sections ...*v1.ContextSection,
) (*HandedOver, error) {
	epoch := t.present()
	done, err := t.agent.HandOver(ctx, receiverID, t.TaskID, epoch, request, sections...)
	if err == nil && request.GetMode() != v1.HandoffMode_HANDOFF_MODE_DELEGATE {
		t.lost(epoch)
	}
	return done, err
}

// Delegate lends the task: see Agent.Delegate. When the task is this agent's again, the next calls of t are at its new
// epoch.
func (t *OwnedTask) Delegate(
	ctx context.Context, receiverID string, request *v1.HandoffRequest, sections ...*v1.ContextSection,
) (*Outcome, error) {
	epoch := t.present()
	outcome, err := t.agent.Delegate(ctx, receiverID, t.TaskID, epoch, request, sections...)
	t.moved(epoch, backAt(outcome, err))
	return outcome, err
}

func codeOf(told *v1.ErrorNotification) string { return codeName(told.GetErrorCode()) }

// codeName returns the name of an error code, as in Error.Reason.
func codeName(code v1.ErrorCode) string { return strings.TrimPrefix(code.String(), "ERROR_CODE_") }
